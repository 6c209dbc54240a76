"""Decompose: split a question into sub-questions that are searched and answered in turn.

The multi-step path of "Adaptive-RAG" as a pattern: split, retrieve and answer each part, compose.
A later sub-question refers to an earlier answer as `{1}`, which code fills in.
"""

import re
from collections.abc import Iterator

from hopgate.nodes.loop import REFERENCE, leaving_room, set_stop_reason
from hopgate.nodes.prompts import templates as prompts
from hopgate.nodes.prompts.own import fill
from hopgate.nodes.run.events import PlanEvent
from hopgate.nodes.run.runtime import NodeRuntime
from hopgate.nodes.run.state import Decision, MultihopState, Update
from hopgate.nodes.texts.text import as_data, key_words

TOKENS_EACH = 60  # a sub-question
MAX_SUB_QUESTION_CHARS = 300  # a longer one is something else

_LABEL = re.compile(
    r"^\s*(?:[-*•–—]\s+|\(?\d{1,2}[.):]\s*|(?:sub-?)?q(?:uestion)?\s*(?:\d+\s*)?[.):]\s*)+",
    re.IGNORECASE,
)
_INNER_NUMBER = re.compile(r"(?<!\s)\s++(?=\(?\d{1,2}[.)]\s+\S)")
_QUESTION_END = re.compile(r"(?<=\?)\s+|(?<=[？؟])\s*")


@leaving_room
async def decompose(state: MultihopState, runtime: NodeRuntime) -> Update:
    """Split the question into sub-questions, one for each hop."""
    sub_questions = await _split(state["standalone"], runtime)
    runtime.send(PlanEvent(event="plan", sub_questions=sub_questions))
    return {"sub_questions": sub_questions, **set_stop_reason(state, Decision(stop_reason=None))}


async def _split(question: str, runtime: NodeRuntime) -> list[str]:
    """Return the sub-questions in order, or the question itself if the model gave none."""
    model, limit = await runtime.model(), runtime.context.max_sub_questions
    if own := runtime.resources.prompts.get("decompose"):
        messages = fill(own, question=as_data(question), limit=limit)
    else:
        request = prompts.asked(model.layout, as_data(question))
        instruction = prompts.DECOMPOSE.format(limit=limit)
        messages = prompts.render(
            model.layout, instruction, request, prompts.DECOMPOSE_DEMOS, examples_in_inline=True
        )
    completion = await runtime.complete(messages, max_tokens=TOKENS_EACH * limit)
    return read_sub_questions(completion.text, limit) or [question]


def read_sub_questions(reply: str, limit: int) -> list[str]:
    """Read sub-questions from a reply: a numbered or bulleted list, or one line.

    Returns:
        At most `limit` sub-questions, each once, with references renumbered to match; empty if
        the reply holds none.
    """
    found: list[str] = []
    order: dict[tuple[str, ...], int] = {}
    places: dict[str, int] = {}
    for number, item in enumerate(_items(reply), start=1):
        if len(found) == limit:
            break
        sub_question = as_data(item)
        if len(sub_question) > MAX_SUB_QUESTION_CHARS or not (words := key_words(sub_question)):
            continue
        if words not in order:
            found.append(sub_question)
            order[words] = len(found)
        places[str(number)] = order[words]

    def renumber(reference: re.Match[str]) -> str:
        return f"{{{places.get(reference[1], reference[1])}}}"

    return [REFERENCE.sub(renumber, each) for each in found]


def _items(reply: str) -> list[str]:
    parts = list(_parts(reply))
    listed = [_LABEL.sub("", part) for part in parts if _LABEL.match(part)]
    return listed or [part for part in parts if part.endswith(("?", "？", "؟"))]


def _parts(reply: str) -> Iterator[str]:
    """Split lines where a question ends or the next number starts."""
    for line in filter(str.strip, reply.splitlines()):
        for numbered in _INNER_NUMBER.split(line):
            label = _LABEL.match(numbered)
            first, *others = _QUESTION_END.split(numbered.strip())
            yield first
            yield from (f"- {other}" if label else other for other in others if other.strip())
