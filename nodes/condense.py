"""Condense: rewrite a follow-up of a conversation as a question that stands alone."""

import re
from collections.abc import Sequence

from hopgate.nodes.prompts import templates as prompts
from hopgate.nodes.prompts.own import fill
from hopgate.nodes.run.conversation import Exchange, exchanges
from hopgate.nodes.run.runtime import NodeRuntime
from hopgate.nodes.run.state import Decision, State, Update
from hopgate.nodes.texts.message import MessageDecision
from hopgate.nodes.texts.text import MAX_QUESTION_CHARS, as_data, inert

MAX_TOKENS = 100
SHOWN_TURNS = 3  # of the conversation, the latest
SHOWN_CHARS = 2_000  # of each message in it

_NAME = re.compile(r"(?<=\s)[A-Z][\w'’-]+")  # a capitalised word that is not the first
_POINTS_BACK = re.compile(
    r"^(and|but|what about|how about)\b"
    r"|\b(it|its|he|him|his|she|her|they|them|their|there|this|that|these|those)\b",
    re.IGNORECASE,
)


FROM_CONVERSATION = MessageDecision(
    kind="conversation", source="model", reason="the model can reply from the conversation"
)


async def condense(state: State, runtime: NodeRuntime) -> Update:
    """Rewrite a follow-up question, or find that the conversation itself answers it."""
    history = exchanges(state["messages"], state["message_id"])
    if not history:
        return {}
    rewritten = await rewrite(state["standalone"], history, runtime)
    if rewritten is None:
        return {"decision": Decision(message=FROM_CONVERSATION.copy())}
    return {"standalone": inert(rewritten)}


async def rewrite(question: str, history: Sequence[Exchange], runtime: NodeRuntime) -> str | None:
    """Rewrite a follow-up so that it can be understood without the conversation.

    Falls back to the question itself if the model writes nothing, too much, or an answer instead
    of a question. A tiny model often keeps the "it", or guesses: if its rewrite has no name from
    the last exchange, the last question is put in front of the follow-up.

    Returns:
        The question; None if a capable model says that the conversation holds all that is needed.

    Raises:
        ModelError: No answer from the model.
    """
    model = await runtime.model()
    conversation = "\n".join(
        f"Question: {_shown(exchange.question)}\nAnswer: {_shown(exchange.answer)}"
        for exchange in history[-SHOWN_TURNS:]
    )
    if own := runtime.resources.prompts.get("condense"):
        messages = fill(own, conversation=conversation, question=as_data(question))
    else:
        messages = prompts.render(
            model.layout,
            prompts.CONDENSE if model.layout == "turns" else prompts.CONDENSE_OR_STAY,
            prompts.conversation(conversation, as_data(question)),
            prompts.CONDENSE_DEMOS,
            cue="Standalone question:",
        )
    reply = await runtime.complete_line(messages, max_tokens=MAX_TOKENS)
    rewritten = reply.removeprefix("Question:").strip()
    if rewritten.lower().startswith(prompts.ABOUT_CONVERSATION):
        return None
    is_answer = question.endswith("?") and not rewritten.endswith("?")
    if not rewritten or is_answer or len(rewritten) > MAX_QUESTION_CHARS:
        rewritten = question
    if model.tiny and not _is_resolved(question, rewritten, history[-1]):
        rewritten = f"{history[-1].question} {question}"
    return rewritten


def _shown(text: str) -> str:
    return as_data(text[:SHOWN_CHARS])


def _is_resolved(question: str, rewritten: str, last: Exchange) -> bool:
    """Return whether a follow-up that points back got a name from the last exchange."""
    names = [name for text in last for name in _NAME.findall(text)]
    return (
        not names
        or _POINTS_BACK.search(question) is None
        or any(name in rewritten for name in names)
    )
