"""The graph of a router's network for ONNX Runtime, which serves it without torch."""

from __future__ import annotations

from torch import Tensor, nn

from hopgate.classifiers.checkpoint import COST, HEAD, MAX_TOKENS, Checkpoint
from hopgate.classifiers.networks import T5Network, network_from
from hopgate.common.exporting import export


class _Features(nn.Module):
    """The part of a network that is exported."""

    def __init__(self, network: T5Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return self.network.features(tokens, mask)


def add_graph(checkpoint: Checkpoint) -> None:
    """Give a router its graph for ONNX Runtime, if all of its weights have one body.

    Raises:
        RuntimeError: It could not be exported, or its output differs from the network's.
    """
    if not checkpoint.one_pass:
        return
    state = checkpoint.state(COST + checkpoint.profiles[0])
    network = network_from(checkpoint.architecture, checkpoint.config, state)
    names = {f"network.{name}": name for name in state if not name.startswith(HEAD)}
    vocabulary = int(checkpoint.config["vocab_size"])
    checkpoint.graph = export(_Features(network).eval(), names, vocabulary, MAX_TOKENS)
