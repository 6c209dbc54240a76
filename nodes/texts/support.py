"""Support: how much of an answer's words a passage holds, in any language.

Words are compared as BM25 compares them: by stem, and in pairs of characters where a script has
no spaces between words.
"""

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from hopgate.common.words import spaced
from hopgate.nodes.texts.text import normalise
from hopgate.retrievers.language import analyzer, detect

# fmt: off
_FUNCTION_WORDS = frozenset((
    "and", "are", "as", "at", "be", "been", "by", "for", "from", "had", "has", "have", "he",
    "her", "his", "in", "is", "it", "its", "of", "on", "or", "she", "that", "their", "there",
    "these", "they", "this", "those", "to", "was", "were", "which", "who", "with",
))
# fmt: on
MAX_TRACED_CHARS = 4_000
"""Of an answer; some characters stand for whole phrases, and are spelled out before the search."""
_FUNCTION_CHARACTERS = re.compile(
    "[\u3040-\u309f"  # hiragana: particles and endings
    "的了是在和与與及由于於为為被把对對从從到也就都而以之其有这這那个個一"
    "은는이가을를에의로와과도]"
)
# fmt: off
_BARE = (  # too little to trace
    "yes", "no", "ja", "nein", "sí", "да", "нет", "نعم", "لا", "是", "否", "不是", "はい", "いいえ",
    "예", "네", "아니요", "ใช่", "ไม่ใช่",
)
# fmt: on


class Support(NamedTuple):
    """The words of an answer that can trace it to a passage, in the language of the passages."""

    language: str
    words: frozenset[str]

    def share(self, text: str) -> float:
        """Return the share of the words that occur in a text, 0 to 1; 0 without words."""
        return overlap(self.words, text, self.language)

    def numbers_share(self, text: str) -> float:
        """Return the share of the words with digits that occur in a text."""
        numbers = [word for word in self.words if any(map(str.isdigit, word))]
        return overlap(numbers, text, self.language)


def support(answer: str, question: str, texts: Sequence[str]) -> Support:
    """Return a tracer from answers to the texts of passages.

    Words of the question and function words are dropped, unless nothing else is left; a bare yes
    or no has no words.
    """
    language = detect(texts)
    if normalise(answer).rstrip("。؟!？") in _BARE:
        return Support(language, frozenset())
    words = terms(answer[:MAX_TRACED_CHARS], language)
    rest = words - terms(question, language)
    return Support(language, _content(rest) or rest or words)


def content_words(answer: str, question: str, language: str) -> frozenset[str]:
    """Return the terms of an answer that are neither the question's nor function words."""
    return _content(terms(answer[:MAX_TRACED_CHARS], language) - terms(question, language))


def _content(words: Collection[str]) -> frozenset[str]:
    return frozenset(filter(_is_content, words))


def _is_content(word: str) -> bool:
    return word not in _FUNCTION_WORDS and not _FUNCTION_CHARACTERS.search(word)


def terms(text: str, language: str) -> frozenset[str]:
    """Return the terms of a text as BM25 sees them, after the papers' normalisation."""
    return frozenset(analyzer(language).analyze(spaced(normalise(text))))


def overlap(words: Collection[str], text: str, language: str) -> float:
    """Return the share of the words that are among a text's terms, 0 to 1; 0 without words."""
    return len(terms(text, language).intersection(words)) / len(words) if words else 0.0
