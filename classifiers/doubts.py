"""Questions that a router was not made for: cut, or in another language than it learnt."""

from __future__ import annotations

import re
from collections.abc import Iterable

_WORDS = """
and are by did does for from had has have how it its many much of or that the to were what when
where which who whom whose why with
"""
ENGLISH = frozenset(_WORDS.split())
"""Words of which 4,325 of 4,333 questions of Flare-Aug's train splits hold at least one, and that
the languages nearest to English write otherwise."""
MOSTLY = 0.95


def is_english(question: str) -> bool:
    """Whether a question holds any of the commonest English words."""
    return any(word in ENGLISH for word in re.findall(r"\w+", question.lower()))


def mostly_english(questions: Iterable[str]) -> bool:
    """Whether nearly all of the questions that a router learnt from are English."""
    found = [is_english(question) for question in questions]
    return sum(found) >= MOSTLY * len(found)


def doubt(question: str, tokens: int, limit: int, english: bool) -> str | None:
    """Why the router's decision on a question deserves no trust; None if it does.

    Args:
        question: As asked.
        tokens: How many tokens the router reads of it.
        limit: How many it reads at most.
        english: Whether the router learnt from English questions.
    """
    if tokens >= limit:
        return f"the router read the first {limit} tokens only"
    if english and not is_english(question):
        return "the router learnt from English questions, and this does not look like one"
    return None
