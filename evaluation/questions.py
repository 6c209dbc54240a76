"""Questions with accepted answers, to be asked of the whole graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hopgate.evaluation.retrievalqa import Example
from hopgate.evaluation.rows import BadRow, golds, read_rows, row_id, text
from hopgate.nodes.text import check_question

ANSWERS = ("answers", "ground_truth", "answer")
"""Fields of the accepted answers; of several, the first."""


def read_questions(path: Path, skip_bad: bool = False) -> tuple[list[Example], list[BadRow]]:
    """Reads and checks a file: JSONL of `question`, one of `ANSWERS`, and perhaps `id`, `dataset`.

    The answers are a list, a list written as JSON in a string, or one text. Other fields are
    passed over. A row without `id` gets one of its dataset, if it has one, and its line's number.

    Args:
        path: The file, UTF-8 with or without a byte order mark. Empty lines are passed over.
        skip_bad: Leave bad rows out, and return them, instead of refusing the file.

    Returns:
        The questions, with the dataset as `source` (empty if none is given) and no passages; and
        the bad rows.

    Raises:
        ValueError: As `hopgate.evaluation.rows.read_rows`.
    """
    kind = 'JSONL with rows such as {"question": "…", "answers": ["…"]}'
    return read_rows(path, _question, "id", kind, skip_bad)


def _question(fields: dict[str, Any], number: int) -> Example:
    if "question" not in fields:
        raise ValueError("question is missing")
    accepted = next((name for name in ANSWERS if fields.get(name) is not None), None)
    if accepted is None:
        raise ValueError(f"the accepted answers are missing; give {' or '.join(ANSWERS)}")
    dataset = text("dataset", given) if (given := fields.get("dataset")) is not None else ""
    return Example(
        id=row_id("id", fields.get("id"), f"{dataset}_{number}" if dataset else str(number)),
        question=check_question(text("question", fields["question"])),
        golds=golds(accepted, fields[accepted]),
        source=dataset,
        passages=(),
        answerable=None,
    )
