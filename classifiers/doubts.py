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
_OTHER_WORDS = """
als ao att au auf aus av avec aux bei ce ces cette che chi como cosa cual cuando cuál cuándo das
dei del della delle dem den der des det donde dos dove du dónde eine einem einen einer eines ella
elle em en entre es est et ett fue fut für gli het hoe hva hvad hvem hvilken hvor här i il ikke ist
kto le les leur lo mit nach nas nel nella nicht niet non nos não når och où para pas perché pero
per più pour por på qual quale quali quando quanti que quel quelle quelles quels quem qui quien
quién quoi qué se ses sie sind som sono sont su sur são till um una und une unter uno uns vem viele
vilken voor waar wann warum wat welche welchem welcher welches welk wem wen wer werden wie wird wo
worden wurde wurden zijn zu zum zur är
"""
OTHERS = frozenset(_OTHER_WORDS.split())
"""Common words of other languages that English lacks."""
MOST_SPLIT = 1 / 3
"""Largest share of a question's words that an English vocabulary may have only in pieces. With it,
93% of the keyword queries in `benchmarks/questions/paraphrases.jsonl` count as English (33% by
`ENGLISH` alone); of XQuAD's questions, 4.9% of the German (4.4%) and 2.9% of the Spanish (2.9%)."""
MOSTLY = 0.95


def is_english(question: str, split: float = 1.0) -> bool:
    """Return whether a question looks English.

    It contains any of the words in `ENGLISH`. Or, as in a query of keywords, it has none of
    `OTHERS`, only letters of ASCII, and few words that are split.

    Args:
        question: The full text.
        split: Share of its words that the router's vocabulary has only in pieces.
    """
    words = set(re.findall(r"\w+", question.lower()))
    if words & ENGLISH:
        return True
    return split <= MOST_SPLIT and question.isascii() and not words & OTHERS


def mostly_english(questions: Iterable[str]) -> bool:
    """Return whether at least a share of `MOSTLY` of the questions is English."""
    found = [is_english(question) for question in questions]
    return sum(found) >= MOSTLY * len(found)


def doubt(question: str, tokens: int, limit: int, english: bool, split: float = 1.0) -> str | None:
    """Return why the router's decision on a question is unreliable; None if it is not.

    Args:
        question: The full text.
        tokens: Number of its tokens that the router reads.
        limit: Maximum number of tokens that the router reads.
        english: Whether the router was trained on English questions.
        split: See `is_english`.
    """
    if tokens >= limit:
        return f"the router read only the first {limit} tokens"
    if english and not is_english(question, split):
        return "the router was trained on English questions, and this does not look like one"
    return None
