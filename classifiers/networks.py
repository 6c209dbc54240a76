"""The networks behind a router: an encoder of questions, and a label head of one row a label.

`T5Network` is a T5 read at its first decoder step. `MiniLMNetwork` is the simple alternative: a
frozen sentence encoder with a small layer on top. Only `head` and what an end's training changed
differ between the two ends of a router; the rest is shared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from hopgate.classifiers.checkpoint import LABELS, MAX_TOKENS

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import T5Config, T5ForConditionalGeneration

HIDDEN = 256
"""Width of the layer over the frozen encoder (the MiniLM classifier of Adaptive-RAG's notes)."""
DROPOUT = 0.1


class Network(nn.Module):
    """Scores the labels of questions: `features`, then `head`.

    Attributes:
        head: A row and a bias for each of `LABELS`.
    """

    head: nn.Linear

    def features(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """What the head reads, [questions, head's width].

        Args:
            tokens: Token ids, padded: [questions, tokens].
            mask: 1 for tokens, 0 for padding, of the same shape.
        """
        raise NotImplementedError

    def complete(self) -> None:
        """Puts in, after the parameters, what no checkpoint holds."""

    def tune(self, layers: int | None) -> None:
        """Lets only the label head, what is above the encoder, and its top `layers` be trained.

        Args:
            layers: None trains all that this kind of network ever trains.
        """
        raise NotImplementedError


class T5Network(Network):
    """A T5 whose label scores are those of the label tokens at the first decoder step."""

    def __init__(self, config: T5Config) -> None:
        """An untrained network; `network_from` fills it."""
        from transformers.models.t5.modeling_t5 import T5Model

        super().__init__()
        self.t5 = T5Model(config)
        self.head = nn.Linear(config.d_model, len(LABELS))

    def features(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """The decoder's state after the start token."""
        start = tokens.new_full((len(tokens), 1), self.t5.config.decoder_start_token_id)
        encoded = self.t5.encoder(input_ids=tokens, attention_mask=mask).last_hidden_state
        decoded: Tensor = self.t5.decoder(
            input_ids=start,
            encoder_hidden_states=encoded,
            encoder_attention_mask=mask,
            use_cache=False,
        ).last_hidden_state
        return decoded[:, 0]

    def complete(self) -> None:
        """One embedding of the vocabulary for both stacks."""
        for stack in (self.t5.encoder, self.t5.decoder):
            stack.embed_tokens.weight = self.t5.shared.weight

    def tune(self, layers: int | None) -> None:
        """All of it, or the decoder, the last norm and the encoder's top `layers`."""
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
        """An untrained network; `network_from` fills it."""
        from transformers.models.bert.modeling_bert import BertModel

        super().__init__()
        self.encoder = BertModel(config, add_pooling_layer=False)
        self.hidden = nn.Linear(config.hidden_size, HIDDEN)
        self.head = nn.Linear(HIDDEN, len(LABELS))

    def features(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """The hidden layer over the mean of the tokens' states, scaled to length 1."""
        states = self.encoder(
            input_ids=tokens,
            attention_mask=mask,
        ).last_hidden_state
        kept = mask.unsqueeze(-1).to(states.dtype)
        pooled = functional.normalize((states * kept).sum(1) / kept.sum(1), dim=-1)
        hidden = functional.relu(self.hidden(pooled))
        return functional.dropout(hidden, DROPOUT, self.training)

    def complete(self) -> None:
        """BERT's constant buffers."""
        count = torch.arange(self.encoder.config.max_position_embeddings).unsqueeze(0)
        buffers = {"position_ids": count, "token_type_ids": torch.zeros_like(count)}
        for name, values in buffers.items():
            self.encoder.embeddings.register_buffer(name, values, persistent=False)

    def tune(self, layers: int | None) -> None:
        """The two layers on top; the encoder stays frozen."""
        self.encoder.requires_grad_(False)


ARCHITECTURES: dict[str, type[Network]] = {"t5": T5Network, "minilm": MiniLMNetwork}
"""By the name that a manifest carries, which is also the `source` of a decision."""


def network_from(
    architecture: str, config: Mapping[str, Any], state: Mapping[str, Tensor]
) -> Network:
    """A network over exactly the tensors of `state`, in evaluation mode.

    Raises:
        ValueError: If the architecture is unknown, or names or shapes are not those of `config`.
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
        found = network.load_state_dict(dict(state), strict=False, assign=True)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"the weights do not fit the router's configuration: {reason}") from error
    network.complete()
    missing = {name for name, _ in network.named_parameters()} - state.keys()
    if missing or found.unexpected_keys:
        raise ValueError(
            "the weights do not fit the router's configuration: missing "
            f"{sorted(missing)[:3]}, unknown {found.unexpected_keys[:3]}"
        )
    return network.eval()


def state_of(network: Network) -> dict[str, Tensor]:
    """The network's parameters, each shared one once."""
    return {name: parameter.detach() for name, parameter in network.named_parameters()}


def padded(ids: Sequence[list[int]], device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Token ids and mask of several questions, each [questions, tokens]."""
    width = max(map(len, ids))
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in ids], device=device)
    lengths = torch.tensor([[len(row)] for row in ids], device=device)
    return tokens, (torch.arange(width, device=device) < lengths).long()


def from_pretrained(t5: T5ForConditionalGeneration, tokenizer: Tokenizer) -> T5Network:
    """A T5 with its label tokens' rows of the output layer as the label head.

    Raises:
        ValueError: If the tokenizer splits a label or gives two labels one token.
    """
    tokens = [tokenizer.encode(label, add_special_tokens=False).ids for label in LABELS]
    if any(len(found) != 1 for found in tokens) or len({found[0] for found in tokens}) != 3:
        raise ValueError(f"the tokenizer gives A, B, C the tokens {tokens}; each must be its own")
    config = t5.config
    scaled = getattr(config, "scale_decoder_outputs", config.tie_word_embeddings)
    rows = t5.lm_head.weight.detach()[[found[0] for found in tokens]]
    state = {
        f"t5.{name}": tensor.detach()
        for name, tensor in t5.named_parameters()
        if not name.startswith("lm_head")
    }
    state["head.weight"] = rows * config.d_model**-0.5 if scaled else rows.clone()
    state["head.bias"] = torch.zeros(len(LABELS))
    return cast("T5Network", network_from("t5", config.to_diff_dict(), state))


def minilm_folder() -> Path:
    """Where the embedded all-MiniLM-L6-v2 is, checked against its published hash.

    Raises:
        RuntimeError: If its package is missing or its weights were altered.
    """
    from hopgate.retrievers.encoders import DEFAULT_ENCODER, find_encoder

    source = find_encoder(DEFAULT_ENCODER)
    assert source is not None
    return source.folder


def minilm(seed: int) -> tuple[MiniLMNetwork, Tokenizer]:
    """The embedded all-MiniLM-L6-v2 under an untrained layer, and its tokenizer.

    Raises:
        RuntimeError: If the encoder's package is missing or its weights were altered.
    """
    from safetensors.torch import load_file
    from tokenizers import Tokenizer
    from transformers import BertConfig

    folder = minilm_folder()
    config = BertConfig.from_pretrained(folder)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        fresh = {
            "hidden": nn.Linear(config.hidden_size, HIDDEN),
            "head": nn.Linear(HIDDEN, len(LABELS)),
        }
    state = {
        f"encoder.{name}": tensor
        for name, tensor in load_file(folder / "model.safetensors").items()
        if not name.startswith("pooler") and "position_ids" not in name
    }
    for name, layer in fresh.items():
        state |= {f"{name}.{leaf}": tensor.detach() for leaf, tensor in layer.state_dict().items()}
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    return cast("MiniLMNetwork", network_from("minilm", config.to_diff_dict(), state)), tokenizer
