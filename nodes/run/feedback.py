"""Feedback on answers: a thumb up or down, and the right answer. It is kept in the thread's state.

The state's key `feedback` holds it by the id of the answer's message, so it travels with the
thread, into copies and forks too.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from langchain_core.messages import convert_to_messages
from pydantic import AfterValidator
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from hopgate.common.files import has_surrogate, shown
from hopgate.nodes.texts.text import normalise

MAX_ANSWER_CHARS = 4_000
NODE = "generate"
"""The node that feedback is written as: a turn ends after it, so nothing runs again."""

Thumbs = Literal["up", "down"]


class UnknownAnswer(ValueError):
    """The thread has no such answer."""

    fault = "unknown_answer"


class UnfinishedTurn(ValueError):
    """The thread's newest question is not answered yet."""

    fault = "unfinished_turn"


def check_answer(answer: str) -> str:
    """Return a right answer that a user gave, stripped.

    Raises:
        ValueError: It is only articles and punctuation, is longer than `MAX_ANSWER_CHARS`, or holds
            a lone surrogate.
    """
    if len(answer) > MAX_ANSWER_CHARS:
        raise ValueError(
            f"the right answer has {len(answer)} characters; at most {MAX_ANSWER_CHARS} are allowed"
        )
    if has_surrogate(answer):
        raise ValueError("the right answer contains half of a character (a lone surrogate)")
    if not normalise(answer):
        raise ValueError(f"the right answer is {shown(answer)}; give one with words")
    return answer.strip()


class Feedback(TypedDict):
    """A user's feedback on an answer."""

    thumbs: Thumbs | None
    answer: Annotated[str, AfterValidator(check_answer)] | None
    """The right answer."""
    at: str
    """When, as an ISO date and time in UTC."""


Given = dict[str, Feedback | None]
"""Feedback by the id of the answer's message; None takes it back."""


def merge_feedback(old: Given, new: Given) -> Given:
    """Reducer: new feedback on an answer replaces the old one; None removes it."""
    return {answer: each for answer, each in {**old, **new}.items() if each}


def feedback_edit(
    values: Mapping[str, Any],
    following: Sequence[str],
    *,
    thumbs: Thumbs | None = None,
    answer: str | None = None,
    message_id: str | None = None,
) -> tuple[str, Feedback | None]:
    """Return the feedback to write into a thread's state.

    Args:
        values: The thread's state; messages may be JSON objects.
        following: The nodes that come next; empty after a finished turn.
        thumbs: The user's verdict.
        answer: The right answer. If this and `thumbs` are both missing, earlier feedback is taken
            back.
        message_id: The answer's message; None is the newest answer.

    Returns:
        The id of the answer's message, and the feedback, None to take it back.

    Raises:
        UnknownAnswer: The thread has no answer, or none with this id.
        UnfinishedTurn: The thread's newest question is not answered yet.
        ValueError: The feedback cannot be used.
    """
    messages = convert_to_messages(values.get("messages") or [])
    answers = [each.id for each in messages if each.type == "ai"]
    newest = answers[-1] if answers else None
    rated = newest if message_id is None else message_id
    if rated is None:
        raise UnknownAnswer("the thread has no answer yet; ask a question first")
    if rated not in answers:
        raise UnknownAnswer(
            f"the thread has no answer with the message id {shown(rated)}; take the `id` of one of "
            "its `messages`, or leave it out for the newest answer"
        )
    if following:
        raise UnfinishedTurn("the thread's newest question is not answered yet; give feedback then")
    if thumbs not in (None, "up", "down"):
        raise ValueError(f"thumbs is {shown(thumbs)}; use 'up', 'down' or None")
    right = check_answer(answer) if answer and answer.strip() else None
    if thumbs is None and right is None:
        return rated, None
    at = datetime.now(UTC).isoformat(timespec="seconds")
    return rated, Feedback(thumbs=thumbs, answer=right, at=at)
