"""Files of questions with accepted answers: RetrievalQA's release, and files of your own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from hopgate.common.files import has_surrogate, read_jsonl, required_text, shown
from hopgate.nodes.texts.text import check_question, normalise
from hopgate.retrievers.base import Hit, make_passage

NEW_WORLD, LONG_TAIL = "new-world", "long-tail"
KINDS = {
    "realtimeqa": NEW_WORLD,
    "freshqa": NEW_WORLD,
    "toolqa": LONG_TAIL,
    "popqa": LONG_TAIL,
    "triviaqa": LONG_TAIL,
}
"""RetrievalQA's sources: knowledge newer than the models, or rare (the paper, section 2)."""
ANSWERS = ("answers", "ground_truth", "answer")
"""Fields that may hold the accepted answers; the first that is present counts."""


class Example(NamedTuple):
    """One question with its accepted answers.

    Attributes:
        id: Unique within its file.
        question: The question.
        golds: Accepted answers; at least one is more than articles and punctuation. None, if the
            file was read for a judge that needs none.
        source: The dataset that it comes from; empty if unknown.
        passages: Passages that come with it, best first; `score` is 1/rank. None is empty or
            repeated.
        answerable: Whether a model can answer without retrieval; None if unknown.
    """

    id: str
    question: str
    golds: tuple[str, ...]
    source: str
    passages: tuple[Hit, ...]
    answerable: bool | None


def read_retrievalqa(path: Path) -> list[Example]:
    """Read RetrievalQA's JSONL as the authors publish it.

    Rows hold `data_source`, `question`, `ground_truth`, `context`, and optionally `question_id`
    (default: source and line number) and `param_knowledge_answerable` (1: GPT-2 knew the answer,
    so no retrieval is needed). A passage of `context` is an object with `title` or `text`, or
    plain text; lone surrogates in passages are replaced.

    Args:
        path: The file.

    Raises:
        ValueError: The file is missing, has no usable row, or has a bad row. The message names
            file and line.
    """

    def parse(fields: dict[str, Any], line: int) -> Example:
        source = required_text(fields, "data_source")
        answerable = fields.get("param_knowledge_answerable")
        if answerable not in (None, 0, 1):
            raise ValueError(
                f"param_knowledge_answerable is {shown(answerable)}; it must be 0 or 1"
            )
        return Example(
            id=_row_id(fields, "question_id", source, line),
            question=check_question(required_text(fields, "question")),
            golds=_golds(fields, ("ground_truth",)),
            source=source,
            passages=_passages(fields.get("context")),
            answerable=None if answerable is None else bool(answerable),
        )

    return read_jsonl(path, parse, expected="RetrievalQA's JSONL", unique="id")


def read_examples(path: Path, *, answers_needed: bool = True) -> list[Example]:
    """Read JSONL rows of `question`, one of `ANSWERS`, and optionally `id` and `dataset`.

    The answers are a list, a list as JSON in a string, or one text. Other fields are ignored. A
    row without `id` gets one from its dataset and line number.

    Args:
        path: The file.
        answers_needed: Refuse rows without accepted answers.

    Raises:
        ValueError: As `read_retrievalqa`.
    """

    def parse(fields: dict[str, Any], line: int) -> Example:
        dataset = required_text(fields, "dataset") if fields.get("dataset") is not None else ""
        return Example(
            id=_row_id(fields, "id", dataset, line),
            question=check_question(required_text(fields, "question")),
            golds=_golds(fields, ANSWERS, answers_needed),
            source=dataset,
            passages=(),
            answerable=None,
        )

    expected = 'JSONL with rows such as {"question": "…", "answers": ["…"]}'
    return read_jsonl(path, parse, expected=expected, unique="id")


def question_id(question: str) -> str:
    """Return an id that follows from the question, but for case, punctuation and articles."""
    return hashlib.sha256(normalise(question).encode()).hexdigest()[:16]


def _row_id(fields: dict[str, Any], name: str, source: str, line: int) -> str:
    value = fields.get(name)
    if value is None:
        return f"{source}_{line}" if source else str(line)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return required_text(fields, name)


def _golds(fields: dict[str, Any], names: Sequence[str], needed: bool = True) -> tuple[str, ...]:
    """Return the accepted answers: a list, or a text that may hold a list as JSON."""
    name = next((name for name in names if fields.get(name) is not None), None)
    if name is None:
        if needed:
            raise ValueError(f"the accepted answers are missing; give {' or '.join(names)}")
        return ()
    given = fields[name]
    golds = given
    if isinstance(given, str):
        with suppress(ValueError, RecursionError):
            golds = json.loads(given)
        golds = golds if _are_texts(golds) else [given]
    if not _are_texts(golds) or not any(map(normalise, golds)):
        raise ValueError(
            f"{name} is {shown(given)}; it must list texts, one at least with more than articles "
            "and punctuation, which match nothing"
        )
    if any(map(has_surrogate, golds)):
        raise ValueError(f"{name} contains half of a character (a lone surrogate)")
    return tuple(golds)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _passages(value: Any) -> tuple[Hit, ...]:
    if not isinstance(value, list):
        raise ValueError(f"context is {shown(value)}; it must be a list of passages")
    unique = {}
    for each in value:
        fields = each if isinstance(each, dict) else {"text": each}
        title, text = fields.get("title") or "", fields.get("text") or ""
        if not _are_texts([title, text]):
            raise ValueError(f"a passage of context is {shown(each)}; give title and text")
        passage = make_passage(title, text)
        if passage["title"] or passage["text"]:
            unique[passage["id"]] = passage
    return tuple(
        Hit(id=each["id"], title=each["title"], text=each["text"], score=1 / rank)
        for rank, each in enumerate(unique.values(), 1)
    )
