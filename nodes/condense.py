"""Condense: a follow-up of a conversation becomes a question that stands alone."""

from collections.abc import Sequence
from typing import NamedTuple

from hopgate.models.chat import ChatModel, Completion, Layout, complete
from hopgate.nodes import prompts

MAX_QUESTION_CHARS = 4_000
MAX_TOKENS = 100
SHOWN_TURNS = 3  # of the conversation, the latest


class Turn(NamedTuple):
    """An earlier question of the conversation and its answer."""

    question: str
    answer: str


def check_question(question: object) -> str:
    """Return the question, stripped.

    Raises:
        ValueError: It is not a text, is empty or is longer than `MAX_QUESTION_CHARS`.
    """
    if not isinstance(question, str) or not question.strip():
        raise ValueError("the question is empty; give a text in `question` or a user message")
    question = question.strip()
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
    answer instead of a question.

    Raises:
        ModelError: No answer from the model.
    """
    turns = "\n".join(
        f"Question: {turn.question}\nAnswer: {turn.answer}" for turn in history[-SHOWN_TURNS:]
    )
    asked = prompts.conversation(turns, question)
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
        return question, completion
    return rewritten, completion
