"""The networks behind a router: an encoder of questions and a label head.

`T5Network` is a T5 at its first decoder step. `MiniLMNetwork` is the simple alternative: a frozen
sentence encoder with a small layer on top. Cost and reliability weights differ only in `head` and
the layers that were trained; they share the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from hopgate.classifiers.checkpoint import COST, HEAD, MAX_TOKENS
from hopgate.common import minilm, onnx
from hopgate.common.errors import reason
from hopgate.common.strategies import LABELS

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tokenizers import Tokenizer
    from transformers import T5Config, T5ForConditionalGeneration

    from hopgate.classifiers.checkpoint import Checkpoint, Weights

HIDDEN = 256
"""Width of the layer over the frozen encoder (the MiniLM classifier of Adaptive-RAG's notes)."""
DROPOUT = 0.1


class Network(nn.Module):
    """A classifier of questions: `features`, then `head`.

    Attributes:
        head: The label head: a row and a bias for each of `LABELS`.
    """

    head: nn.Linear

    def features(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return the input of the head: [questions, width of the head].

        Args:
            tokens: Token ids, padded: [questions, tokens].
            mask: 1 for tokens, 0 for padding, of the same shape.
        """
        raise NotImplementedError

    def complete(self) -> None:
        """Set what is not in a checkpoint, after the parameters are loaded."""

    def tune(self, layers: int | None) -> None:
        """Freeze everything but the label head, what is above the encoder, and its top layers.

        Args:
            layers: Number of top layers; None freezes only what this kind of network never trains.
        """
        raise NotImplementedError


class T5Network(Network):
    """A T5 that scores the label tokens at its first decoder step."""

    def __init__(self, config: T5Config) -> None:
        """Create an untrained network; `network_from` loads its weights."""
        from transformers.models.t5.modeling_t5 import T5Model

        super().__init__()
        self.t5 = T5Model(config)
        self.head = nn.Linear(config.d_model, len(LABELS))

    def features(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return the decoder's state after the start token."""
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
        """Tie the embeddings of both stacks."""
        for stack in (self.t5.encoder, self.t5.decoder):
            stack.embed_tokens.weight = self.t5.shared.weight

    def tune(self, layers: int | None) -> None:
        """Freeze nothing, or all but the decoder, the last norm and the encoder's top layers."""
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


class MiniLMNetwork(Network):
    """A frozen sentence encoder, mean-pooled, with one hidden layer on top."""

    def __init__(self, config: Any) -> None:
        """Create an untrained network; `network_from` loads its weights."""
        from transformers.models.bert.modeling_bert import BertModel

        super().__init__()
        self.encoder = BertModel(config, add_pooling_layer=False)
        self.hidden = nn.Linear(config.hidden_size, HIDDEN)
        self.head = nn.Linear(HIDDEN, len(LABELS))

    def features(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return the hidden layer over the mean of the tokens' states, scaled to length 1."""
        states = self.encoder(
            input_ids=tokens,
            attention_mask=mask,
        ).last_hidden_state
        real = mask.unsqueeze(-1).to(states.dtype)
        pooled = functional.normalize((states * real).sum(1) / real.sum(1), dim=-1)
        hidden = functional.relu(self.hidden(pooled))
        return functional.dropout(hidden, DROPOUT, self.training)

    def complete(self) -> None:
        """Register BERT's constant buffers."""
        count = torch.arange(self.encoder.config.max_position_embeddings).unsqueeze(0)
        buffers = {"position_ids": count, "token_type_ids": torch.zeros_like(count)}
        for name, values in buffers.items():
            self.encoder.embeddings.register_buffer(name, values, persistent=False)

    def tune(self, layers: int | None) -> None:
        """Freeze the encoder; the two layers on top are trained."""
        self.encoder.requires_grad_(False)


ARCHITECTURES: dict[str, type[Network]] = {"t5": T5Network, "minilm": MiniLMNetwork}
"""By their name in a manifest, which is also the `source` of a decision."""


def network_from(architecture: str, config: Mapping[str, Any], state: Weights) -> Network:
    """Return a network with a copy of the given parameters, in evaluation mode.

    Raises:
        ValueError: The architecture is unknown, or the parameters do not fit `config`.
    """
    from transformers import BertConfig, T5Config

    if architecture not in ARCHITECTURES:
        raise ValueError(
            f"the router's architecture is {architecture!r}; this version of hopgate knows "
            f"{', '.join(ARCHITECTURES)}"
        )
    kind: Any = ARCHITECTURES[architecture]
    settings = (T5Config if kind is T5Network else BertConfig)(**config)
    with torch.device("meta"):
        network: Network = kind(settings)
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


def state_of(network: Network) -> dict[str, NDArray[np.float32]]:
    """Return a copy of the network's parameters; tied ones appear once."""
    return {
        name: parameter.detach().cpu().float().numpy().copy()
        for name, parameter in network.named_parameters()
    }


class _Features(nn.Module):
    """What of a network is exported."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        return self.network.features(tokens, mask)


def add_graph(checkpoint: Checkpoint) -> None:
    """Give a router its graph for ONNX Runtime, if all of its weights have one body.

    Raises:
        RuntimeError: It could not be exported, or does not give what the network gives.
    """
    from hopgate.common.exporting import export

    if not checkpoint.one_pass:
        return
    state = checkpoint.state(COST + checkpoint.profiles[0])
    network = network_from(checkpoint.architecture, checkpoint.config, state)
    names = {f"network.{name}": name for name in state if not name.startswith(HEAD)}
    vocabulary = int(checkpoint.config["vocab_size"])
    checkpoint.graph = export(_Features(network).eval(), names, vocabulary, MAX_TOKENS)


def padded(ids: Sequence[list[int]], device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Return token ids and mask of several questions, each [questions, tokens]."""
    tokens, mask = map(torch.from_numpy, onnx.padded(ids))
    return tokens.to(device), mask.to(device)


def from_pretrained(t5: T5ForConditionalGeneration, tokenizer: Tokenizer) -> T5Network:
    """Return a T5 whose label head is made of the label tokens' rows of the output layer.

    Raises:
        ValueError: The tokenizer splits a label, or gives two labels the same token.
    """
    tokens = [tokenizer.encode(label, add_special_tokens=False).ids for label in LABELS]
    if any(len(found) != 1 for found in tokens) or len({found[0] for found in tokens}) != 3:
        raise ValueError(
            f"the tokenizer gives A, B, C the tokens {tokens}; each needs one of its own"
        )
    config = t5.config
    scaled = getattr(config, "scale_decoder_outputs", config.tie_word_embeddings)
    rows = t5.lm_head.weight.detach()[[found[0] for found in tokens]]
    state = {
        f"t5.{name}": tensor.detach().numpy()
        for name, tensor in t5.named_parameters()
        if not name.startswith("lm_head")
    }
    state["head.weight"] = (rows * config.d_model**-0.5 if scaled else rows).numpy()
    state["head.bias"] = np.zeros(len(LABELS), dtype=np.float32)
    return cast("T5Network", network_from("t5", config.to_diff_dict(), state))


def minilm_network(seed: int) -> tuple[MiniLMNetwork, Tokenizer]:
    """Return the embedded all-MiniLM-L6-v2 under an untrained layer, and its tokenizer.

    Raises:
        RuntimeError: One of its files is missing or was altered.
    """
    from transformers import BertConfig

    config = BertConfig.from_json_file(minilm.CONFIG)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        fresh = {
            "hidden": nn.Linear(config.hidden_size, HIDDEN),
            "head": nn.Linear(HIDDEN, len(LABELS)),
        }
    state = {f"encoder.{name}": values for name, values in minilm.weights().items()}
    for name, layer in fresh.items():
        state |= {f"{name}.{leaf}": each.numpy() for leaf, each in layer.state_dict().items()}
    tokenizer = minilm.tokenizer()
    tokenizer.enable_truncation(MAX_TOKENS)
    return cast("MiniLMNetwork", network_from("minilm", config.to_diff_dict(), state)), tokenizer
