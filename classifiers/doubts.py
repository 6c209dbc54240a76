"""Questions outside a router's training data: cut, or in another language."""

from __future__ import annotations

import re
from collections.abc import Iterable

_WORDS = """
and are by did does for from had has have how it its many much of or that the to were what when
where which who whom whose why with
"""
ENGLISH = frozenset(_WORDS.split())
"""Common English words that closely related languages spell differently. 4,325 of the 4,333
questions of Flare-Aug's train splits contain at least one."""
MOSTLY = 0.95


def is_english(question: str) -> bool:
    """Return whether a question contains any of the words in `ENGLISH`."""
    return any(word in ENGLISH for word in re.findall(r"\w+", question.lower()))


def mostly_english(questions: Iterable[str]) -> bool:
    """Return whether at least a share of `MOSTLY` of the questions is English."""
    found = [is_english(question) for question in questions]
    return sum(found) >= MOSTLY * len(found)


def doubt(question: str, tokens: int, limit: int, english: bool) -> str | None:
    """Return why the router's decision on a question is unreliable; None if it is not.

    Args:
        question: The full text.
        tokens: Number of its tokens that the router reads.
        limit: Maximum number of tokens that the router reads.
        english: Whether the router was trained on English questions.
    """
    if tokens >= limit:
        return f"the router read only the first {limit} tokens"
    if english and not is_english(question):
        return "the router was trained on English questions, and this does not look like one"
    return None
