"""The torch network of a router: a T5 at its first decoder step, under a label head.

Cost and reliability weights differ only in `head` and the layers that were trained; they share the
rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hopgate.common import onnx
from hopgate.common.errors import reason
from hopgate.common.strategies import LABELS

if TYPE_CHECKING:
    from transformers import T5Config

    from hopgate.classifiers.checkpoint import Weights

DROPOUT = 0.1
BATCH = 64
"""Questions in a batch of `all_features`."""


class T5Network(nn.Module):
    """A T5 that scores the label tokens at its first decoder step: `features`, then `head`.

    Attributes:
        head: The label head: a row and a bias for each of `LABELS`.
    """

    def __init__(self, config: T5Config) -> None:
        """Create an untrained network; `network_from` loads its weights."""
        from transformers.models.t5.modeling_t5 import T5Model

        super().__init__()
        self.t5 = T5Model(config)
        self.head = nn.Linear(config.d_model, len(LABELS))

    def features(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return the decoder's state after the start token: [questions, width of the head].

        Args:
            tokens: Token ids, padded: [questions, tokens].
            mask: 1 for tokens, 0 for padding, of the same shape.
        """
        start = torch.full_like(tokens[:, :1], self.t5.config.decoder_start_token_id)
        encoded = self.t5.encoder(input_ids=tokens, attention_mask=mask).last_hidden_state
        decoded: Tensor = self.t5.decoder(
            input_ids=start,
            encoder_hidden_states=encoded,
            encoder_attention_mask=mask,
            use_cache=False,
        ).last_hidden_state
        return decoded[:, 0]

    def complete(self) -> None:
        """Tie the embeddings of both stacks, after the parameters are loaded."""
        for stack in (self.t5.encoder, self.t5.decoder):
            stack.embed_tokens.weight = self.t5.shared.weight

    def tune(self, layers: int | None) -> None:
        """Freeze everything but the head, the decoder, the last norm and the encoder's top layers.

        Args:
            layers: Number of top layers; None freezes nothing.
        """
        if layers is None:
            return
        self.t5.requires_grad_(False)
        encoder, decoder = self.t5.encoder, self.t5.decoder
        for module in (
            *encoder.block[len(encoder.block) - layers :],
            encoder.final_layer_norm,
            decoder.block,
            decoder.final_layer_norm,
        ):
            module.requires_grad_(True)


ARCHITECTURE = "t5"
"""In a manifest; it is also the `source` of a decision."""


def network_from(architecture: str, config: Mapping[str, Any], state: Weights) -> T5Network:
    """Return a network with a copy of the given parameters, in evaluation mode.

    Raises:
        ValueError: The architecture is not `ARCHITECTURE`, or the parameters do not fit `config`.
    """
    from transformers import T5Config

    if architecture != ARCHITECTURE:
        raise ValueError(
            f"the router's architecture is {architecture!r}; this version of hopgate only "
            f"trains {ARCHITECTURE!r}; start from another router or base"
        )
    with torch.device("meta"):
        network = T5Network(T5Config(**config))
    try:
        tensors = {name: torch.tensor(values) for name, values in state.items()}
        found = network.load_state_dict(tensors, strict=False, assign=True)
    except RuntimeError as error:
        raise ValueError(
            f"the weights do not fit the router's configuration: {reason(error, 300)}"
        ) from error
    network.complete()
    missing = {name for name, _ in network.named_parameters()} - state.keys()
    if missing or found.unexpected_keys:
        raise ValueError(
            "the weights do not fit the router's configuration: missing "
            f"{sorted(missing)[:3]}, unknown {found.unexpected_keys[:3]}"
        )
    return network.eval()


def padded(ids: Sequence[list[int]], device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Return token ids and mask of several questions, each [questions, tokens]."""
    tokens, mask = map(torch.from_numpy, onnx.padded(ids))
    return tokens.to(device), mask.to(device)


def all_features(network: T5Network, ids: Sequence[list[int]]) -> Tensor:
    """Return the features of all questions, without dropout, on the CPU: [questions, width]."""
    device = network.head.weight.device
    with torch.inference_mode():
        parts = [
            network.features(*padded(ids[at : at + BATCH], device)).cpu()
            for at in range(0, len(ids), BATCH)
        ]
    return torch.cat(parts).clone()
