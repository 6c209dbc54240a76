"""The router at work: probabilities of A, B and C for a question at any α.

θ(α) = (1 − α)·θ_cost + α·θ_reliability over every parameter in which the two ends differ
(Flare-Aug, section 3). The probabilities are the softmax over the three label tokens of the
first decoder step; no text is generated.
"""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from hopgate.classifiers.checkpoint import (
    BUILTIN,
    ENDS,
    LABELS,
    MANIFEST,
    Checkpoint,
    model_from,
    read,
)

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import T5ForConditionalGeneration

BATCH = 64
BLENDS = 8
"""Blends kept in memory; one of the shipped router takes 24 MB beside the shared part."""


class Blend(NamedTuple):
    """The network at one α."""

    model: T5ForConditionalGeneration
    rows: Tensor
    """Output layer of the three labels, [3, d_model], with T5's output scale in it."""


class Router:
    """Routes questions with one T5 and two sets of weights, blended per request.

    Safe to use from many threads at once, with different α: every blend is a model of its own
    over the shared tensors, and none is changed after it was made.

    Attributes:
        source: What decisions of this kind of router are marked with.
        profile: The LLM that the cost end was trained for, e.g. `flan-t5-xl`.
        training: Data, recipe and figures of the training.
    """

    source = "t5"

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Takes a router in memory; `Router.load` reads one from disk.

        Raises:
            ValueError: If an end is missing or the weights do not fit the configuration.
        """
        self.profile = checkpoint.profile
        self.training = checkpoint.training
        self._tokenizer = checkpoint.tokenizer
        self._labels = [checkpoint.labels[label] for label in LABELS]
        self._cost, self._reliability = (checkpoint.state(end) for end in ENDS)
        self._differing = frozenset(checkpoint.parts[ENDS[0]])
        self._template = model_from(checkpoint.config, self._cost).requires_grad_(False)
        self._blends: OrderedDict[float, Blend] = OrderedDict()
        self._lock = threading.Lock()

    @classmethod
    def load(cls, path: Path | str = BUILTIN) -> Router:
        """Reads a router's folder (default: the one that ships with hopgate).

        Raises:
            ValueError: If the folder is no router, or its parts do not fit each other.
            RuntimeError: If a file is missing or was altered.
        """
        return cls(read(Path(path)))

    def route(self, questions: Sequence[str], alpha: float) -> list[dict[str, float]]:
        """Probabilities of A (no retrieval), B (one) and C (several) for each question.

        Args:
            questions: Non-empty strings; cut at 384 tokens.
            alpha: From 0 (cheapest) to 1 (most reliable).

        Returns:
            One `{"A": …, "B": …, "C": …}` a question, in order; each sums to 1.

        Raises:
            ValueError: If α is not in [0, 1] or a question is empty.
        """
        alpha = checked_alpha(alpha)
        for at, question in enumerate(questions):
            if not isinstance(question, str) or not question.strip():
                raise ValueError(f"question {at + 1} is empty; give a text to route")
        blend = self._blend(alpha)
        ids = [encoding.ids for encoding in self._tokenizer.encode_batch(list(questions))]
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        found: dict[int, dict[str, float]] = {}
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            rows = self._run(blend, [ids[i] for i in batch])
            for i, probabilities in zip(batch, rows, strict=True):
                found[i] = dict(zip(LABELS, probabilities, strict=True))
        return [found[i] for i in range(len(ids))]

    def _run(self, blend: Blend, ids: Sequence[list[int]]) -> list[list[float]]:
        import torch

        with torch.inference_mode():
            logits = label_logits(blend.model, blend.rows, ids)
            return [list(row) for row in logits.softmax(-1).tolist()]

    def _blend(self, alpha: float) -> Blend:
        with self._lock:
            if alpha not in self._blends:
                self._blends[alpha] = self._new_blend(alpha)
                while len(self._blends) > BLENDS:
                    self._blends.popitem(last=False)
            self._blends.move_to_end(alpha)
            return self._blends[alpha]

    def _new_blend(self, alpha: float) -> Blend:
        import torch

        with torch.no_grad():
            kept: dict[int, Any] = {id(self._template.config): self._template.config}
            for name, parameter in self._template.named_parameters():
                kept[id(parameter)] = parameter
                if name in self._differing:
                    mixed = (1 - alpha) * self._cost[name] + alpha * self._reliability[name]
                    kept[id(parameter)] = torch.nn.Parameter(mixed, requires_grad=False)
            model = copy.deepcopy(self._template, kept)
            return Blend(model, label_rows(model, self._labels))


_loaded: dict[Path, tuple[int, Router]] = {}
_loading = threading.Lock()


def load_router(path: Path | str = BUILTIN) -> Router:
    """Reads a router once per process; one that was trained again is read anew.

    Arguments and errors are those of `Router.load`.
    """
    folder = Path(path).expanduser().resolve()
    manifest = folder / MANIFEST
    with _loading:
        version = manifest.stat().st_mtime_ns if manifest.exists() else 0
        if folder not in _loaded or _loaded[folder][0] != version:
            _loaded[folder] = version, Router.load(folder)
        return _loaded[folder][1]


def checked_alpha(alpha: float) -> float:
    """`alpha` as a float.

    Raises:
        ValueError: If it is not a number from 0 to 1.
    """
    try:
        value = float(alpha)
    except (TypeError, ValueError):
        value = float("nan")
    if not 0 <= value <= 1:
        raise ValueError(f"alpha is {alpha!r}; it must be a number from 0 (cheapest) to 1")
    return value


def label_rows(model: T5ForConditionalGeneration, labels: Sequence[int]) -> Tensor:
    """The output layer's rows of `labels`, [labels, d_model], scaled as T5 scales its output."""
    config = model.config
    scaled = getattr(config, "scale_decoder_outputs", config.tie_word_embeddings)
    rows: Tensor = model.lm_head.weight[list(labels)]
    return rows.mul(config.d_model**-0.5) if scaled else rows


def label_logits(
    model: T5ForConditionalGeneration, rows: Tensor, ids: Sequence[list[int]]
) -> Tensor:
    """Scores of the labels at the first decoder step.

    Args:
        model: Any T5.
        rows: From `label_rows`.
        ids: Token ids of each question; padded here.

    Returns:
        [questions, labels], before the softmax.
    """
    import torch

    pad = model.config.pad_token_id
    width = max(map(len, ids))
    tokens = torch.tensor([row + [pad] * (width - len(row)) for row in ids], device=rows.device)
    lengths = torch.tensor([[len(row)] for row in ids], device=rows.device)
    mask = (torch.arange(width, device=rows.device) < lengths).long()
    start = torch.full((len(ids), 1), model.config.decoder_start_token_id, device=rows.device)
    encoded = model.encoder(input_ids=tokens, attention_mask=mask).last_hidden_state
    decoded = model.decoder(
        input_ids=start,
        encoder_hidden_states=encoded,
        encoder_attention_mask=mask,
        use_cache=False,
    ).last_hidden_state
    return cast("Tensor", decoded[:, 0] @ rows.T)
