"""Label rows: which strategies answered a question, and the cheapest of them.

The shape is that of Flare-Aug's released labels, one JSON object a line: `id`, `question` and
`label` (A, B or C), and where known `dataset` and `correct` (any of zero, one, multiple).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hopgate.classifiers.checkpoint import LABELS

STRATEGIES = ("zero", "one", "multiple")
"""The strategies behind A, B and C."""


@dataclass(frozen=True)
class QuestionRow:
    """One question.

    Attributes:
        id: Unique within its file.
        question: As the router gets it.
        dataset: Where the question comes from; empty if not given.
    """

    id: str
    question: str
    dataset: str


Row = TypeVar("Row", bound=QuestionRow)


@dataclass(frozen=True)
class LabelRow(QuestionRow):
    """One labelled question.

    Attributes:
        label: A, B or C; None where no strategy answered.
        correct: Strategies that answered it; None if the row has no such field.
    """

    label: str | None
    correct: frozenset[str] | None


def read_labels(path: Path) -> list[LabelRow]:
    """Reads and checks a file of label rows.

    Raises:
        ValueError: If the file is missing or empty, or a line is no label row, has an unknown
            label or strategy, or repeats an id. The message names file and line.
    """
    return _read(path, _label_row)


def read_questions(path: Path) -> list[QuestionRow]:
    """Reads and checks a file of questions: rows of `id`, `question` and, if known, `dataset`.

    Raises:
        ValueError: As `read_labels`.
    """
    return _read(path, _question_row)


def _read(path: Path, parse: Callable[[dict[str, Any], str], Row]) -> list[Row]:
    if not path.is_file():
        raise ValueError(f"{path} does not exist or is no file")
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8: {error}") from error
    rows: dict[str, Row] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"{path}:{number}"
            row = parse(_fields(line, where), where)
            if row.id in rows:
                raise ValueError(f"{where}: id {row.id!r} appears twice")
            rows[row.id] = row
    if not rows:
        raise ValueError(f"{path} holds no rows")
    return list(rows.values())


def _fields(line: str, where: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where}: not JSON ({error.msg})") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{where}: expected a JSON object")
    return fields


def _question_row(fields: dict[str, Any], where: str) -> QuestionRow:
    return QuestionRow(
        id=_text(fields, "id", where),
        question=_text(fields, "question", where),
        dataset=_text(fields, "dataset", where) if "dataset" in fields else "",
    )


def _label_row(fields: dict[str, Any], where: str) -> LabelRow:
    asked = _question_row(fields, where)
    correct = _correct(fields.get("correct"), where)
    label = fields.get("label")
    if label not in LABELS and (label is not None or correct != frozenset()):
        raise ValueError(
            f"{where}: label is {label!r}; it must be one of A, B and C, or null where `correct` "
            "is an empty list"
        )
    if correct and label != (cheapest := _cheapest(correct)):
        raise ValueError(
            f"{where}: label is {label!r}, but the cheapest of `correct` {sorted(correct)} is "
            f"{cheapest}"
        )
    if label is not None and correct == frozenset():
        raise ValueError(f"{where}: label is {label!r}, but `correct` is empty")
    return LabelRow(asked.id, asked.question, asked.dataset, label=label, correct=correct)


def _cheapest(correct: frozenset[str]) -> str:
    found = (x for x, strategy in zip(LABELS, STRATEGIES, strict=True) if strategy in correct)
    return next(found)


def _text(fields: dict[str, Any], name: str, where: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where}: {name} is {value!r}; it must be a non-empty string")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"{where}: {name} holds half of a character (a lone surrogate)")
    return value


def _correct(value: Any, where: str) -> frozenset[str] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not set(map(str, value)) <= set(STRATEGIES):
        raise ValueError(f"{where}: correct is {value!r}; it must list any of zero, one, multiple")
    return frozenset(value)
