"""The torch networks of a router: an encoder of questions and a label head.

`T5Network` is a T5 at its first decoder step. `MiniLMNetwork` is the simple alternative: a frozen
sentence encoder with a small layer on top. Cost and reliability weights differ only in `head` and
the layers that were trained; they share the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hopgate.common import onnx
from hopgate.common.errors import reason
from hopgate.common.strategies import LABELS

if TYPE_CHECKING:
    from transformers import T5Config

    from hopgate.classifiers.checkpoint import Weights

HIDDEN = 256
"""Width of the layer over the frozen encoder (the MiniLM classifier of Adaptive-RAG's notes)."""
DROPOUT = 0.1
BATCH = 64
"""Questions in a batch of `all_features`."""


class Classifier(nn.Module):
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
        """Set the values that no checkpoint holds, after the parameters are loaded."""

    def tune(self, layers: int | None) -> None:
        """Freeze everything but the label head, the parts above the encoder, and its top layers.

        Args:
            layers: Number of top layers; None freezes only what this kind of network never trains.
        """
        raise NotImplementedError


class T5Network(Classifier):
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


class MiniLMNetwork(Classifier):
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
        states = self.encoder(input_ids=tokens, attention_mask=mask).last_hidden_state
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


ARCHITECTURES: dict[str, type[Classifier]] = {"t5": T5Network, "minilm": MiniLMNetwork}
"""By their name in a manifest, which is also the `source` of a decision."""


def network_from(architecture: str, config: Mapping[str, Any], state: Weights) -> Classifier:
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
        network: Classifier = kind(settings)
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


def all_features(network: Classifier, ids: Sequence[list[int]]) -> Tensor:
    """Return the features of all questions, without dropout, on the CPU: [questions, width]."""
    device = network.head.weight.device
    with torch.inference_mode():
        parts = [
            network.features(*padded(ids[at : at + BATCH], device)).cpu()
            for at in range(0, len(ids), BATCH)
        ]
    return torch.cat(parts).clone()
