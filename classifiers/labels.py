"""Label rows: which strategies answered a question, and the cheapest of them.

The files have the shape of Flare-Aug's released labels, one JSON object a line: `id`, `question`
and `label` (A, B or C), optionally `dataset` and `correct` (any of zero, one, multiple).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hopgate.common.files import read_jsonl, required_text
from hopgate.common.strategies import FLARE_NAMES, LABEL_OF, LABELS, STRATEGIES, Label, Strategy

LABEL_FILE = "a JSON lines file of label rows (id, question, label)"
QUESTION_FILE = "a JSON lines file of questions (id, question)"


@dataclass(frozen=True)
class QuestionRow:
    """One question.

    Attributes:
        id: Unique within its file.
        question: As the router gets it.
        dataset: Where the question comes from; empty if unknown.
    """

    id: str
    question: str
    dataset: str


@dataclass(frozen=True)
class LabelRow(QuestionRow):
    """One labelled question.

    Attributes:
        label: A, B or C; None if no strategy answered the question.
        correct: The strategies that answered it; None if the row has no such field.
        confidence: How sure `correct` is, 0 to 1; 1 unless the labels are silver
            (`hopgate.evaluation.learning.silver`).
    """

    label: Label | None
    correct: frozenset[Strategy] | None
    confidence: float = 1.0

    @property
    def right(self) -> tuple[bool, ...]:
        """Whether each strategy answered it."""
        return tuple(name in (self.correct or ()) for name in STRATEGIES)

    @property
    def chances(self) -> list[float]:
        """How likely each strategy answered it: the confidence, or 0 if it did not."""
        return [self.confidence * right for right in self.right]


def read_labels(path: Path) -> list[LabelRow]:
    """Read and check a file of label rows.

    Raises:
        ValueError: The file is missing or empty, or a line is not a label row, has an unknown
            label or strategy, or repeats an id. The message names the file and the line.
    """
    return read_jsonl(path, label_row, expected=LABEL_FILE, unique="id")


def read_questions(path: Path) -> list[QuestionRow]:
    """Read and check a file of questions: rows of `id`, `question` and optionally `dataset`.

    Raises:
        ValueError: As `read_labels`.
    """
    return read_jsonl(path, _question_row, expected=QUESTION_FILE, unique="id")


def _question_row(fields: dict[str, Any], _: int) -> QuestionRow:
    # Unstripped: outcomes are matched, and routed, by the exact question.
    names = ("id", "question", *(["dataset"] if "dataset" in fields else []))
    texts = {name: fields[name] for name in names if required_text(fields, name)}
    return QuestionRow(**{"dataset": "", **texts})


def label_row(fields: dict[str, Any], line: int) -> LabelRow:
    """Check and return the fields of one line.

    Raises:
        ValueError: They are not those of a label row.
    """
    row = _question_row(fields, line)
    label, correct = fields.get("label"), _correct(fields.get("correct"))
    if label not in (LABELS if correct is None else (*LABELS, None)):
        raise ValueError(
            f"label is {label!r}; it must be A, B or C, or null if `correct` is an empty list"
        )
    if correct is not None:
        cheapest = next((LABEL_OF[name] for name in STRATEGIES if name in correct), None)
        if label != cheapest:
            raise ValueError(
                f"label is {label!r}, but the cheapest of `correct` {sorted(fields['correct'])} "
                f"is {cheapest or 'null'}"
            )
    confidence = 1.0 if fields.get("confidence") is None else fields["confidence"]
    if type(confidence) not in (int, float) or not 0 <= confidence <= 1:
        raise ValueError(f"confidence is {confidence!r}; it must be a number from 0 to 1")
    return LabelRow(**vars(row), label=label, correct=correct, confidence=float(confidence))


def _correct(value: Any) -> frozenset[Strategy] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not set(map(str, value)) <= set(FLARE_NAMES):
        raise ValueError(f"correct is {value!r}; it must list any of zero, one, multiple")
    return frozenset(STRATEGIES[FLARE_NAMES.index(name)] for name in value)
