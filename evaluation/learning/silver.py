"""Judges answers without accepted ones: right is the best-supported one, and those that agree.

An answer is supported by every other strategy that agrees with it, and by its citations if they
hold. Strategies share mistakes: the loop starts from the passages of the single retrieval, and all
ask one model. So these labels are silver, not gold; docs/results/silver.md measures how good they
are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from hopgate.common.strategies import STRATEGIES, Strategy
from hopgate.evaluation.measuring.scores import Answered
from hopgate.nodes.texts.support import content_words
from hopgate.nodes.texts.text import normalise
from hopgate.retrievers.language import detect

MIN_AGREEMENT = 0.5
"""Two answers agree if they share this part of the content words of the shorter one."""
MIN_CONFIDENCE = 0.3
"""Rows below are left out: nothing supports the best answer. A higher bar keeps more of the
mistakes that strategies share (docs/results/silver.md)."""

Answers = Mapping[Strategy, Answered]


class Judgement(NamedTuple):
    """Which strategies answered a question, as far as can be told without an accepted answer.

    Attributes:
        correct: The strategies whose answer counts as right, in the order of `STRATEGIES`.
        confidence: How clear that is, from 0 to 1: s / (s + r + 1), where s is the support of the
            best answer and r that of the best one that disagrees with it. 1 if no strategy gave
            an answer.
    """

    correct: tuple[Strategy, ...]
    confidence: float


def judge(question: str, answers: Answers) -> Judgement:
    """Judge the answers to one question, from those of each strategy."""
    given = [name for name in STRATEGIES if _says_something(question, answers[name])]
    if not given:
        return Judgement((), 1.0)
    agreeing = {name: _agreeing(question, answers, name, given) for name in given}
    support = {
        name: len(agreeing[name])
        - 1
        + (answers[name]["cited"] > 0 and answers[name]["doubt"] is None)
        for name in given
    }
    best = max(given, key=support.__getitem__)
    rivals = [support[name] for name in given if name not in agreeing[best]]
    confidence = support[best] / (support[best] + max(rivals, default=0) + 1)
    return Judgement(tuple(agreeing[best]), confidence)


def agree(question: str, one: str, other: str) -> bool:
    """Return whether two answers say the same, apart from the question's words.

    Different numbers, or a yes and a no, disagree.
    """
    verdicts = {_yes_or_no(one), _yes_or_no(other)}
    if verdicts != {None}:
        return len(verdicts) == 1
    language = detect([one, other])
    words = [content_words(text, question, language) for text in (one, other)]
    if not all(words):
        return normalise(one) == normalise(other)
    numbers = [{word for word in each if any(map(str.isdigit, word))} for each in words]
    if all(numbers) and not numbers[0] & numbers[1]:
        return False
    return len(words[0] & words[1]) >= MIN_AGREEMENT * min(map(len, words))


def _agreeing(
    question: str, answers: Answers, name: Strategy, given: Collection[Strategy]
) -> list[Strategy]:
    own = answers[name]["prediction"]
    return [
        other
        for other in given
        if other == name or agree(question, own, answers[other]["prediction"])
    ]


def _says_something(question: str, answer: Answered) -> bool:
    """Return whether an answer is more than "I don't know" or the question's own words."""
    text = answer["prediction"]
    said = _yes_or_no(text) or content_words(text, question, detect([text]))
    return answer["known"] and bool(said)


def _yes_or_no(text: str) -> str | None:
    first = normalise(text).partition(" ")[0]
    return first if first in ("yes", "no") else None
