"""Condense: a follow-up of a conversation becomes a question that stands alone."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from hopgate.models.chat import ChatModel, Completion, Layout, complete
from hopgate.nodes import prompts

MAX_QUESTION_CHARS = 4_000
MAX_TOKENS = 100
SHOWN_TURNS = 3  # of the conversation, the latest

_NAME = re.compile(r"(?<=\s)[A-Z][\w'’-]+")  # a capitalised word that does not begin the text
_POINTS_BACK = re.compile(
    r"^(and|but|what about|how about)\b"
    r"|\b(it|its|he|him|his|she|her|they|them|their|there|this|that|these|those)\b",
    re.IGNORECASE,
)


class Turn(NamedTuple):
    """An earlier question of the conversation and its answer."""

    question: str
    answer: str


def check_question(question: object) -> str:
    """Return the question, stripped.

    Raises:
        ValueError: It is not a text, is empty or is longer than `MAX_QUESTION_CHARS`.
    """
    if not isinstance(question, str) or not prompts.as_data(question):
        raise ValueError("the question is empty; give a text in `question` or a user message")
    question = question.strip()
    if any("\ud800" <= character <= "\udfff" for character in question):
        raise ValueError("the question holds half of a character (a lone surrogate); remove it")
    if len(question) > MAX_QUESTION_CHARS:
        raise ValueError(
            f"the question has {len(question)} characters, at most {MAX_QUESTION_CHARS} are "
            "allowed; shorten it, or index the text and ask about it"
        )
    return question


async def condense(
    model: ChatModel, question: str, history: Sequence[Turn], layout: Layout
) -> tuple[str, Completion]:
    """Rewrite a follow-up so that it can be understood without the conversation.

    Falls back to the question as asked when the model writes nothing, too much, or an
    answer instead of a question. A tiny model often leaves the "it" as it is, or guesses: where
    its rewrite has no name of the last turn, the last question is put before the follow-up.

    Raises:
        ModelError: No answer from the model.
    """
    turns = "\n".join(
        f"Question: {prompts.as_data(turn.question)}\nAnswer: {prompts.as_data(turn.answer)}"
        for turn in history[-SHOWN_TURNS:]
    )
    asked = prompts.conversation(turns, prompts.as_data(question))
    if layout == "inline":
        asked += "\nStandalone question:"
    completion = await complete(
        model,
        prompts.render(layout, prompts.CONDENSE, asked, prompts.CONDENSE_DEMOS),
        max_tokens=MAX_TOKENS,
        stop=["\n"],
    )
    rewritten = completion.text.removeprefix("Question:").strip()
    answered = question.endswith("?") and not rewritten.endswith("?")
    if not rewritten or answered or len(rewritten) > MAX_QUESTION_CHARS:
        rewritten = question
    if model.tiny and not _resolved(question, rewritten, history[-1]):
        rewritten = f"{history[-1].question} {question}"
    return rewritten, completion


def _resolved(question: str, rewritten: str, turn: Turn) -> bool:
    """Tell whether a follow-up that points back was rewritten with a name of the last turn."""
    names = [name for text in turn for name in _NAME.findall(text)]
    return (
        not names
        or _POINTS_BACK.search(question) is None
        or any(name in rewritten for name in names)
    )
