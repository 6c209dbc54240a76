"""Decompose: a question becomes sub-questions that are searched and answered in turn.

The multi-step path of "Adaptive-RAG" as a pattern: split, retrieve and answer each part, and
compose. A later sub-question refers to an earlier answer as `{1}`, which code fills in.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from hopgate.models.chat import ChatModel, Completion, Layout, complete
from hopgate.nodes import generate, prompts
from hopgate.nodes.text import first_line, has_words, key_words, sentences
from hopgate.retrievers.base import Hit

TOKENS_EACH = 60  # a sub-question
ANSWER_TOKENS = 40
MAX_SUB_QUESTION_CHARS = 300  # a longer one is something else
MAX_ANSWER_CHARS = 200

_REFERENCE = re.compile(r"\{(\d{1,2})\}")
_LABEL = re.compile(
    r"^\s*(?:[-*•–—]\s+|\(?\d{1,2}[.):]\s*|(?:sub-?)?q(?:uestion)?\s*\d*\s*[.):]\s*)+",
    re.IGNORECASE,
)
_INNER_NUMBER = re.compile(r"\s+(?=\(?\d{1,2}[.)]\s+\S)")
_QUESTION_END = re.compile(r"(?<=\?)\s+|(?<=[？؟])\s*")
_FENCE = re.compile(r"^\s*```\w*\s*$", re.MULTILINE)


async def decompose(
    model: ChatModel, question: str, limit: int, layout: Layout
) -> tuple[list[str], Completion]:
    """Split a question into sub-questions, in the order in which they have to be asked.

    Args:
        model: The chat model.
        question: The standalone question.
        limit: Most sub-questions.
        layout: Prompt layout.

    Returns:
        1 to `limit` sub-questions, the question itself where the model gave nothing usable,
        and the call's cost.

    Raises:
        ModelError: No answer from the model.
    """
    asked = prompts.as_data(question)
    if layout == "inline":
        asked = f"Question: {asked}\nAnswer:"
    completion = await complete(
        model,
        prompts.render(
            layout,
            prompts.DECOMPOSE.format(limit=limit),
            asked,
            prompts.DECOMPOSE_DEMOS,
            examples_in_inline=True,
        ),
        max_tokens=TOKENS_EACH * limit,
    )
    return read(completion.text, limit) or [question], completion


def read(reply: str, limit: int) -> list[str]:
    """Take the sub-questions out of a reply: JSON, a numbered or bulleted list, or one line.

    Returns:
        At most `limit` sub-questions, each once, and references by their places among these;
        empty when the reply holds none.
    """
    found: list[str] = []
    order: dict[tuple[str, ...], int] = {}
    places: dict[str, int] = {}
    for number, item in enumerate(_from_json(reply) or _from_lines(reply), start=1):
        sub_question = prompts.as_data(item)
        words = key_words(sub_question)
        if not words or len(sub_question) > MAX_SUB_QUESTION_CHARS:
            continue
        if words not in order:
            found.append(sub_question)
            order[words] = len(found)
        places[str(number)] = order[words]

    def moved(reference: re.Match[str]) -> str:
        return f"{{{places.get(reference[1], reference[1])}}}"

    return [_REFERENCE.sub(moved, each) for each in found[:limit]]


def _from_json(reply: str) -> list[str]:
    begin, end = reply.find("["), reply.rfind("]")
    try:
        items: Any = json.loads(reply[begin : end + 1]) if 0 <= begin < end else []
    except (ValueError, RecursionError):
        return []
    if not isinstance(items, list):
        return []
    texts = [next(iter(item.values()), None) if isinstance(item, dict) else item for item in items]
    return [_LABEL.sub("", text) for text in texts if isinstance(text, str)]


def _from_lines(reply: str) -> list[str]:
    parts = list(_parts(_FENCE.sub("", reply)))
    listed = [_LABEL.sub("", part) for part in parts if _LABEL.match(part)]
    return listed or [part for part in parts if part.endswith(("?", "？", "؟"))]


def _parts(reply: str) -> Iterator[str]:
    """Take lines apart where a question ends or the next number stands."""
    for line in reply.splitlines():
        for numbered in _INNER_NUMBER.split(line):
            label = _LABEL.match(numbered)
            first, *others = _QUESTION_END.split(numbered.strip())
            yield first
            yield from (f"- {other}" if label else other for other in others if other.strip())


def fill(plan: Sequence[str], answers: Sequence[str]) -> str:
    """Return the next sub-question, with the answers of earlier ones in their places.

    What an answer says is never filled again; a reference to what has no answer stays.

    Args:
        plan: Every sub-question.
        answers: One for each sub-question asked so far, empty where there was none.
    """

    def known(reference: re.Match[str]) -> str:
        number = int(reference[1])
        return (answers[number - 1] if 1 <= number <= len(answers) else "") or reference[0]

    return _REFERENCE.sub(known, plan[len(answers)])


def is_needed(plan: Sequence[str], number: int) -> bool:
    """Tell whether a sub-question after the `number`-th, counted from 1, needs its answer."""
    return any(f"{{{number}}}" in later for later in plan[number:])


async def answer(
    model: ChatModel, sub_question: str, passages: Sequence[Hit], layout: Layout
) -> tuple[str, Completion]:
    """Answer one sub-question in a few words, over the passages of its own hop.

    Returns:
        The answer on one line, empty when the model has none, and the call's cost.

    Raises:
        ModelError: No answer from the model.
    """
    shown = prompts.fit(passages, model.evidence_chars)
    asked = prompts.grounded(layout, shown, sub_question)
    if layout == "inline":
        asked += "\nAnswer:"
    completion = await complete(
        model,
        prompts.render(layout, prompts.SUB_ANSWER, asked, prompts.SUB_ANSWER_DEMOS),
        max_tokens=ANSWER_TOKENS,
        stop=["\n"] if layout == "turns" else None,
    )
    return _few_words(completion.text), completion


def _few_words(reply: str) -> str:
    found = generate.read(first_line(reply), [])
    parts = sentences(prompts.as_data(found.text)) if found.known else []
    text = parts[0][:MAX_ANSWER_CHARS].strip() if parts else ""
    if not has_words(text):
        return ""
    return text[:-1] if text.endswith(".") and text.count(".") == 1 else text
