"""The statements of a full answer, and whether the evidence supports them."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from hopgate.common.words import sentences
from hopgate.nodes.texts.support import MAX_TRACED_CHARS, Support, support, terms
from hopgate.nodes.texts.text import MARK, MAX_LINE_CHARS, has_words
from hopgate.retrievers.base import Hit
from hopgate.retrievers.language import detect

SHOWN_CHARS = 80  # of a statement in a warning
MAX_WARNINGS = 5
MIN_CHARS = 80  # to tell the language of an answer

_LEADING_MARKS = re.compile(r"(?:\s*\[[\d\s,]+\])+")
_BULLET = re.compile(r"^\W*(?:\d{1,2}[.)]\s)?")
_NUMBER = re.compile(r"(?<![\w.])\d[\d.,:]*\d(?!\w)")
_NAME = re.compile(r"(?<=[\w,;] )[A-Z][\w'’-]{2,}")  # not the first word of a sentence


class Statement(NamedTuple):
    """A sentence, a list item or a row of a table, and the passages that it cites."""

    text: str
    numbers: tuple[int, ...]


class Statements:
    """A full answer's statements beside the passages that the model was shown."""

    def __init__(self, answer: str, evidence: Sequence[Hit], question: str, said: str) -> None:
        """Read an answer without its code.

        Args:
            answer: The answer, with marks.
            evidence: The passages.
            question: The message that it answers.
            said: The conversation before.
        """
        self._question = question[:MAX_TRACED_CHARS]
        self._texts = [full_text(hit) for hit in evidence]
        self._language = detect(self._texts)
        self._passages = [terms(text, self._language) for text in self._texts]
        self._terms_said = terms(f"{self._question}\n{said}", self._language)
        self._all = list(_statements(answer, self._language))
        # Words can be compared within a language; that of a few words cannot be told.
        self._comparable = len(answer) < MIN_CHARS or detect([answer]) == self._language

    def warnings(self) -> list[str]:
        """Name the statements that the passages do not hold."""
        found = [warning for each in self._all if (warning := self._warning(each))]
        more = len(found) - MAX_WARNINGS
        return [*found[:MAX_WARNINGS], *([f"… and {more} more like this"] if more > 0 else [])]

    def support(self, number: int) -> Support:
        """Return a tracer for the statements that cite a passage."""
        citing = " ".join(each.text for each in self._all if number in each.numbers)
        return support(citing, self._question, self._texts)

    def _warning(self, statement: Statement) -> str | None:
        shown = statement.text[:SHOWN_CHARS] + "…" * (len(statement.text) > SHOWN_CHARS)
        if self._comparable:
            words = support(statement.text, self._question, self._texts).words
            for number in statement.numbers:
                held = self._passages[number - 1] if number <= len(self._passages) else words
                if words and not words & held:
                    return f"[{number}] does not support “{shown}”"
        facts = self._facts(statement.text)
        if facts and not any(facts & held for held in self._passages):
            return f"no passage supports “{shown}”"
        return None

    def _facts(self, text: str) -> frozenset[str]:
        """Return the terms of a statement's numbers and names that were not said before."""
        named = _NUMBER.findall(text)
        if self._comparable and self._language != "de":  # German has capitals in every noun
            named += _NAME.findall(text)
        return terms(" ".join(named), self._language) - self._terms_said


def full_text(hit: Hit) -> str:
    """Return a passage's title and text."""
    return f"{hit['title']} {hit['text']}"


def _statements(answer: str, language: str) -> list[Statement]:
    found: list[Statement] = []
    for line in filter(has_words, answer.splitlines()):
        whole = len(line) > MAX_LINE_CHARS or line.lstrip().startswith("|")
        for part in [line] if whole else sentences(line, language):
            marks = _LEADING_MARKS.match(part)
            if marks and found:  # "It was lit in 1858. [1] It is tall."
                found[-1] = _statement(f"{found[-1].text} {marks[0]}", found[-1].numbers)
                part = part[marks.end() :]
            if has_words(part):
                found.append(_statement(part))
    return [each for each in found if not each.text.endswith(("?", ":"))]


def _statement(text: str, before: tuple[int, ...] = ()) -> Statement:
    numbers = [int(each) for group in MARK.findall(text) for each in group.split(",")]
    plain = _BULLET.sub("", MARK.sub("", text)).strip(" |")
    return Statement(plain, tuple(dict.fromkeys([*before, *numbers])))
