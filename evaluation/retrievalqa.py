"""RetrievalQA's released file: questions with golds and the passages that were found for each.

One JSON object a line, as the authors publish it: `data_source`, `question_id`, `question`,
`ground_truth`, `context`, and in the file of all 2,785 questions `param_knowledge_answerable`
(1: GPT-2 knew the answer, so nothing need be retrieved).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from hopgate.evaluation.rows import SURROGATE, BadRow, golds, read_rows, row_id, shown, text
from hopgate.retrievers.base import Hit, make_passage

NEW_WORLD, LONG_TAIL = "new-world", "long-tail"
KINDS = {
    "realtimeqa": NEW_WORLD,
    "freshqa": NEW_WORLD,
    "toolqa": LONG_TAIL,
    "popqa": LONG_TAIL,
    "triviaqa": LONG_TAIL,
}
"""What each source asks for: knowledge newer than the models, or rarer (the paper, section 2)."""


class Example(NamedTuple):
    """One question.

    Attributes:
        id: As in the data; `SOURCE_LINE` where the data has none. Unique within the file.
        question: As it is asked.
        golds: Accepted answers; at least one is more than articles and punctuation.
        source: The dataset that it comes from.
        passages: Those found for it, best first; `score` is 1/rank. None is empty or there twice.
        answerable: Whether a model can answer alone; None: the data does not say.
    """

    id: str
    question: str
    golds: tuple[str, ...]
    source: str
    passages: tuple[Hit, ...]
    answerable: bool | None


def read_examples(path: Path, skip_bad: bool = False) -> tuple[list[Example], list[BadRow]]:
    """Reads and checks a file of questions.

    `ground_truth` may be a list, a list written as JSON in a string, or one answer. A passage may
    be an object with `title` and `text`, either of which may be missing, or plain text. Half
    characters (lone surrogates) in passages are replaced; anywhere else they spoil the row.

    Args:
        path: The file, UTF-8 with or without a byte order mark. Empty lines are passed over.
        skip_bad: Leave bad rows out, and return them, instead of refusing the file.

    Raises:
        ValueError: If the file is missing or no question can be read from it, or without
            `skip_bad`, if a row is bad. The message names file and line.
    """
    return read_rows(path, _example, "question_id", "RetrievalQA's JSONL", skip_bad)


def _example(fields: dict[str, Any], number: int) -> Example:
    for name in ("data_source", "question", "ground_truth", "context"):
        if name not in fields:
            raise ValueError(f"{name} is missing")
    source = text("data_source", fields["data_source"])
    return Example(
        id=row_id("question_id", fields.get("question_id"), f"{source}_{number}"),
        question=text("question", fields["question"]),
        golds=golds("ground_truth", fields["ground_truth"]),
        source=source,
        passages=_passages(fields["context"]),
        answerable=_answerable(fields.get("param_knowledge_answerable")),
    )


def _passages(value: Any) -> tuple[Hit, ...]:
    if not isinstance(value, list):
        raise ValueError(f"context is {shown(value)}; it must be a list of passages")
    made = (make_passage(*_title_and_text(passage)) for passage in value)
    unique = {each["id"]: each for each in made if each["title"] or each["text"]}
    return tuple(
        Hit(id=each["id"], title=each["title"], text=each["text"], score=1 / rank)
        for rank, each in enumerate(unique.values(), 1)
    )


def _title_and_text(passage: Any) -> tuple[str, str]:
    if isinstance(passage, str):
        passage = {"text": passage}
    if not isinstance(passage, dict):
        raise ValueError(f"a passage of context is {shown(passage)}; it must be an object or text")
    title, body = (passage.get(name) or "" for name in ("title", "text"))
    if not isinstance(title, str) or not isinstance(body, str):
        raise ValueError("title and text of a passage of context must be strings")
    return SURROGATE.sub("\ufffd", title), SURROGATE.sub("\ufffd", body)


def _answerable(value: Any) -> bool | None:
    if value is None:
        return None
    if value not in (0, 1):
        raise ValueError(f"param_knowledge_answerable is {shown(value)}; it must be 0 or 1")
    return bool(value)
