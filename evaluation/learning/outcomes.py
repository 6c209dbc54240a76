"""Outcomes of questions for `hopgate improve`, and which of them are held out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from hopgate.classifiers.labels import LABEL_FILE, LabelRow, label_row
from hopgate.common.files import read_jsonl, shown
from hopgate.common.strategies import FLARE_NAME_OF, FLARE_NAMES, STRATEGIES
from hopgate.evaluation.learning.verdicts import HeldOut
from hopgate.evaluation.measuring.datasets import question_id
from hopgate.evaluation.measuring.replay import MEAN_MULTI_STEPS, MULTI_STEPS, Recorded
from hopgate.nodes.answers.reading import read_answer
from hopgate.nodes.texts.text import normalise

SHARE_HELD_OUT = 0.3
"""Share of the questions that no candidate is ever trained on."""


@dataclass(frozen=True)
class Outcome:
    """A label row, with what a replay needs besides.

    Attributes:
        row: The question, and which strategies answered it correctly.
        steps: Retrievals of none, single and multi.
        answered: Whether each gave an answer other than "I don't know"; None if unknown.
        answers: By Flare-Aug's names, the answers; empty if unknown.
    """

    row: LabelRow
    steps: tuple[float, ...]
    answered: tuple[bool, ...] | None
    answers: Mapping[str, str]

    @property
    def key(self) -> str:
        """The question without case, punctuation and articles."""
        return normalise(self.row.question)

    @property
    def held_out(self) -> bool:
        """Whether the question is for comparing only; the same in every run and every file."""
        digest = hashlib.sha256(self.key.encode()).digest()
        return int.from_bytes(digest[:8]) < SHARE_HELD_OUT * 2**64

    def as_label(self) -> dict[str, Any]:
        """Return a label row whose id follows from the question."""
        return {
            "id": question_id(self.row.question),
            "question": self.row.question,
            "correct": [FLARE_NAME_OF[name] for name in STRATEGIES if name in self.correct],
            "label": self.row.label,
            "confidence": self.row.confidence,
        }

    @property
    def correct(self) -> frozenset[str]:
        """The strategies that answered correctly."""
        return self.row.correct or frozenset()


def read_outcomes(path: Path) -> list[Outcome]:
    """Read label rows with `correct`, each question once: its first row counts.

    Besides the fields of a label row, `steps` and `answered` (a list of zero, one, multiple) are
    read; without `answered`, the texts in `answers` say what was answered.

    Raises:
        ValueError: The file is missing or empty, or a line is not such a row.
    """
    rows = read_jsonl(path, _outcome, expected=LABEL_FILE)[0]
    return list({row.key: row for row in reversed(rows)}.values())[::-1]


def _outcome(fields: dict[str, Any], line: int) -> Outcome:
    row = label_row(fields, line)
    if row.correct is None:
        raise ValueError(f"correct is missing; list which of {', '.join(FLARE_NAMES)} were right")
    answers = fields.get("answers") or {}
    return Outcome(row, _steps(fields, row.dataset), _answered(fields, answers), answers)


def _steps(fields: Mapping[str, Any], dataset: str) -> tuple[float, ...]:
    given = fields.get("steps")
    if given is None:
        return (0.0, 1.0, MULTI_STEPS.get(dataset, MEAN_MULTI_STEPS))
    try:
        steps = tuple(float(given[name]) for name in FLARE_NAMES)
        if not all(0 <= each < inf for each in steps):
            raise ValueError("one is no number of retrievals")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"steps is {shown(given)}; give numbers from 0 for {', '.join(FLARE_NAMES)}"
        ) from error
    return steps


def _answered(fields: Mapping[str, Any], answers: Any) -> tuple[bool, ...] | None:
    given = fields.get("answered")
    if given is not None:
        if not isinstance(given, list) or not set(map(str, given)) <= set(FLARE_NAMES):
            raise ValueError(f"answered is {shown(given)}; it must list any of zero, one, multiple")
        return tuple(name in given for name in FLARE_NAMES)
    if not isinstance(answers, dict) or not all(isinstance(a, str) for a in answers.values()):
        raise ValueError(f"answers is {shown(answers)}; it must hold texts by zero, one, multiple")
    if not set(FLARE_NAMES) <= answers.keys():
        return None
    return tuple(read_answer(answers[name], []).known for name in FLARE_NAMES)


def split(
    rows: Iterable[Outcome], more: Iterable[Outcome], trusted: Iterable[Outcome]
) -> tuple[list[Outcome], list[Outcome]]:
    """Return the rows to train on and the held-out ones.

    Args:
        rows: Those of this run; they alone are held out.
        more: More to train on; if a question is in both, the row of this run counts.
        trusted: Their questions are in neither.
    """
    taken = {row.key for row in trusted}
    own = [row for row in rows if row.key not in taken]
    every = {row.key: row for row in (*more, *own) if row.key not in taken and not row.held_out}
    return list(every.values()), [row for row in own if row.held_out]


def replayable(rows: Sequence[Outcome]) -> HeldOut:
    """Return outcomes as arrays."""
    known = [row.answered for row in rows if row.answered is not None]
    return HeldOut(
        Recorded(
            questions=tuple(row.row.question for row in rows),
            datasets=np.array([row.row.dataset for row in rows]),
            correct=np.array([[name in row.correct for name in STRATEGIES] for row in rows], bool),
            steps=np.array([row.steps for row in rows], np.float64),
        ),
        np.array(known, bool) if len(known) == len(rows) else None,
    )
