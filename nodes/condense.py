"""Condense: rewrite a follow-up of a conversation as a question that stands alone."""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from langchain_core.messages import AnyMessage

from hopgate.nodes import prompts
from hopgate.nodes.runtime import NodeRuntime
from hopgate.nodes.state import State, Update
from hopgate.nodes.text import MAX_QUESTION_CHARS, as_data, inert, without_marks

MAX_TOKENS = 100
SHOWN_TURNS = 3  # of the conversation, the latest

_NAME = re.compile(r"(?<=\s)[A-Z][\w'’-]+")  # a capitalised word that is not the first
_POINTS_BACK = re.compile(
    r"^(and|but|what about|how about)\b"
    r"|\b(it|its|he|him|his|she|her|they|them|their|there|this|that|these|those)\b",
    re.IGNORECASE,
)


class Exchange(NamedTuple):
    """An earlier question of the conversation and its answer."""

    question: str
    answer: str


async def condense(state: State, runtime: NodeRuntime) -> Update:
    """Rewrite a follow-up question; without a conversation it is left alone and costs no call."""
    history = exchanges(state["messages"], state["message_id"])
    if not history:
        return {}
    rewritten = inert(await rewrite(state["original_question"], history, runtime))
    return {"standalone": rewritten} if runtime.resources.limits.allows_length(rewritten) else {}


async def rewrite(question: str, history: Sequence[Exchange], runtime: NodeRuntime) -> str:
    """Rewrite a follow-up so that it can be understood without the conversation.

    Falls back to the question itself if the model writes nothing, too much, or an answer instead
    of a question. A tiny model often keeps the "it", or guesses: if its rewrite has no name from
    the last exchange, the last question is put in front of the follow-up.

    Raises:
        ModelError: No answer from the model.
    """
    model = await runtime.model()
    conversation = "\n".join(
        f"Question: {as_data(exchange.question)}\nAnswer: {as_data(exchange.answer)}"
        for exchange in history[-SHOWN_TURNS:]
    )
    messages = prompts.render(
        model.layout,
        prompts.CONDENSE,
        prompts.conversation(conversation, as_data(question)),
        prompts.CONDENSE_DEMOS,
        cue="Standalone question:",
    )
    completion = await runtime.complete(messages, max_tokens=MAX_TOKENS, stop=["\n"])
    rewritten = completion.text.removeprefix("Question:").strip()
    is_answer = question.endswith("?") and not rewritten.endswith("?")
    if not rewritten or is_answer or len(rewritten) > MAX_QUESTION_CHARS:
        rewritten = question
    if model.tiny and not _is_resolved(question, rewritten, history[-1]):
        rewritten = f"{history[-1].question} {question}"
    return rewritten


def exchanges(messages: Sequence[AnyMessage], current_id: str) -> list[Exchange]:
    """Return the earlier questions of a conversation that were answered, oldest first."""
    spoken = [message for message in messages if message.type != "system"]
    earlier = [message for message in spoken if message.id != current_id]
    return [
        Exchange(question.text, _plain(answer))
        for question, answer in pairwise(earlier)
        if question.type == "human" and answer.type == "ai"
    ]


def _plain(answer: AnyMessage) -> str:
    return without_marks(answer.text, answer.additional_kwargs.get("citations") or [])


def _is_resolved(question: str, rewritten: str, last: Exchange) -> bool:
    """Return whether a follow-up that points back got a name from the last exchange."""
    names = [name for text in last for name in _NAME.findall(text)]
    return (
        not names
        or _POINTS_BACK.search(question) is None
        or any(name in rewritten for name in names)
    )
