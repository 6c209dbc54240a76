"""The start of a training: a network, its tokenizer and the recipe that suits it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoTokenizer
from transformers.models.t5.modeling_t5 import T5ForConditionalGeneration

from hopgate.classifiers.checkpoint import BASE, MANIFEST, MAX_TOKENS, read, router_folder
from hopgate.classifiers.networks import ARCHITECTURE, T5Network, network_from
from hopgate.common.strategies import LABELS

Objective = Literal["flare", "utility"]


@dataclass(frozen=True)
class Recipe:
    """Settings of a training with AdamW and a linear schedule.

    Attributes:
        epochs: Passes over the questions.
        batch_size: Questions in a batch.
        learning_rate: At the start of the schedule, which falls to 0.
        tuned_layers: Number of top encoder layers that are trained, with everything above them;
            None trains everything.
        readout_rate: The learning rate of the `utility` objective's untrained readout.
        averaged: Use the mean of the weights over the steps of the last epoch.
        int8: Store large matrices as int8 instead of in half precision.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    tuned_layers: int | None = None
    readout_rate: float = 1e-3
    averaged: bool = False
    int8: bool = False


PUBLISHED = Recipe(epochs=20, batch_size=64, learning_rate=3e-5)
"""Flare-Aug, section 4: T5-large, AdamW, linear schedule; for any pretrained T5."""
SMALL = Recipe(
    epochs=3, batch_size=32, learning_rate=1e-4, tuned_layers=4, averaged=True, int8=True
)
"""For the built-in base; chosen by cross-validation on the train splits."""


class Start(NamedTuple):
    """The base of a training."""

    network: T5Network
    config: dict[str, Any]
    tokenizer: Tokenizer
    recipe: Recipe
    objective: Objective


def load_base(base: str) -> Start:
    """Load the network to start from, with the recipe and objective that suit it.

    Raises:
        ValueError: `base` is not `builtin`, a router's folder with a base, or a T5 that
            `transformers` can load.
    """
    folder = router_folder(base)
    if (folder / MANIFEST).is_file():
        found = read(folder)
        start = network_from(found.architecture, found.config, found.state(BASE))
        return Start(start, found.config, found.tokenizer, SMALL, "utility")
    t5, tokenizer = _pretrained(str(folder) if folder.is_dir() else base)
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    start = from_pretrained(t5, tokenizer)
    return Start(start, t5.config.to_diff_dict(), tokenizer, PUBLISHED, "flare")


def _pretrained(base: str) -> Any:
    try:
        loaded: Any = T5ForConditionalGeneration.from_pretrained(
            base, use_safetensors=True, dtype=torch.float32, output_loading_info=True
        )
        model, info = loaded
        if lacking := sorted(info["missing_keys"]) or info["mismatched_keys"]:
            raise ValueError(
                f"its weights are not those of a complete T5: {lacking[0]} is missing or differs"
            )
        return model, AutoTokenizer.from_pretrained(base).backend_tokenizer
    except (OSError, ValueError, AttributeError, SafetensorError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ValueError(f"base {base!r} cannot be loaded as a T5: {reason}") from error


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
    return network_from(ARCHITECTURE, config.to_diff_dict(), state)


def state_of(network: nn.Module) -> dict[str, NDArray[np.float32]]:
    """Return a copy of a network's parameters; tied ones appear once."""
    return {
        name: parameter.detach().cpu().float().numpy().copy()
        for name, parameter in network.named_parameters()
    }
