"""Outcomes of questions for `hopgate improve`, and which of them are held out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from hopgate.classifiers.labels import LABEL_FILE, LabelRow, label_row
from hopgate.common.errors import explain
from hopgate.common.files import read_jsonl
from hopgate.common.strategies import FLARE_NAMES, FlareName
from hopgate.evaluation.measuring.datasets import question_id
from hopgate.evaluation.measuring.replay import MEAN_MULTI_STEPS, MULTI_STEPS, Recorded
from hopgate.nodes.texts.text import normalise

SHARE_HELD_OUT = 0.3
"""Share of the questions that no candidate is ever trained on."""

Steps = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Answered(BaseModel):
    """Optional fields of a label row, besides `LabelRow`."""

    steps: dict[FlareName, Steps] | None = Field(None, min_length=3)
    answered: list[FlareName] | None = None
    answers: dict[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class ReplayRow(LabelRow):
    """A label row with the other fields that a replay needs.

    Attributes:
        steps: Retrievals of none, single and multi.
        answered: Whether each gave an answer other than "I don't know"; None if unknown.
        answers: By Flare-Aug's names, the answers; empty if unknown.
    """

    steps: tuple[float, ...]
    answered: tuple[bool, ...] | None
    answers: Mapping[str, str]

    @property
    def key(self) -> str:
        """The question without case, punctuation and articles."""
        return normalise(self.question)

    @property
    def held_out(self) -> bool:
        """See `is_held_out`."""
        return is_held_out(self.question)

    def as_label(self) -> dict[str, Any]:
        """Return a label row whose id follows from the question."""
        return {
            "id": question_id(self.question),
            "question": self.question,
            "correct": [name for name, right in zip(FLARE_NAMES, self.right, strict=True) if right],
            "label": self.label,
            "confidence": self.confidence,
        }


def is_held_out(question: str) -> bool:
    """Return whether a question is for comparing only; the same in every run and every file."""
    digest = hashlib.sha256(normalise(question).encode()).digest()
    return int.from_bytes(digest[:8]) < SHARE_HELD_OUT * 2**64


def read_outcomes(path: Path) -> list[ReplayRow]:
    """Read label rows with `correct`, each question once: its first row counts.

    Besides the fields of a label row, `steps`, `answered` (a list of zero, one, multiple) and
    `answers` are read.

    Raises:
        ValueError: The file is missing or empty, or a line is not such a row.
    """
    rows = read_jsonl(path, _replay_row, expected=LABEL_FILE)
    return list({row.key: row for row in reversed(rows)}.values())[::-1]


def _replay_row(fields: dict[str, Any], line: int) -> ReplayRow:
    row = label_row(fields, line)
    if row.correct is None:
        raise ValueError(f"correct is missing; list which of {', '.join(FLARE_NAMES)} were right")
    try:
        given = _Answered.model_validate(fields)
    except ValidationError as error:
        raise ValueError(explain(error)) from error
    steps: tuple[float, ...] = (0.0, 1.0, MULTI_STEPS.get(row.dataset, MEAN_MULTI_STEPS))
    if given.steps:
        steps = tuple(given.steps[name] for name in FLARE_NAMES)
    answers = given.answers or {}
    answered = None
    if given.answered is not None:
        answered = tuple(name in given.answered for name in FLARE_NAMES)
    return ReplayRow(**vars(row), steps=steps, answered=answered, answers=answers)


def split(
    rows: Iterable[ReplayRow], more: Iterable[ReplayRow]
) -> tuple[list[ReplayRow], list[ReplayRow]]:
    """Return the rows to train on and the held-out ones.

    Args:
        rows: Those of this run; they alone are held out.
        more: More to train on; if a question is in both, the row of this run counts.
    """
    own = list(rows)
    every = {row.key: row for row in (*more, *own) if not row.held_out}
    return list(every.values()), [row for row in own if row.held_out]


def recorded_of(rows: Sequence[ReplayRow]) -> Recorded:
    """Return outcomes as arrays."""
    known = [row.answered for row in rows if row.answered is not None]
    return Recorded(
        questions=tuple(row.question for row in rows),
        datasets=np.array([row.dataset for row in rows]),
        correct=np.array([row.right for row in rows], bool),
        steps=np.array([row.steps for row in rows], np.float64),
        answered=np.array(known, bool) if len(known) == len(rows) else None,
    )
