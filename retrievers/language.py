"""The language of a collection: detected from its texts, and how BM25 cuts and stems its words."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from hopgate.common.words import spaced

if TYPE_CHECKING:
    from tantivy import Filter, TextAnalyzer

OTHER = "other"
"""Any other language: its words in lower case, without stems or stop words."""

_TABLES = tomllib.loads(Path(__file__).with_name("languages.toml").read_text(encoding="utf-8"))
_STEMMED: dict[str, str] = _TABLES["stemmers"]
_STOP_WORDS: dict[str, str] = _TABLES["stop_words"]
"""Of languages for which Tantivy has a stemmer but no stop words; the scripts tell the others."""
_UNSPACED = ("ja", "ko", "th", "zh")
_LATIN = tuple(code for code in _STEMMED if code not in ("ar", "el", "ru", "ta"))

LANGUAGES = (*sorted((*_STEMMED, *_UNSPACED)), OTHER)
"""What `--language` takes: ISO 639-1 codes, and `other`."""

_SCRIPT = {code: re.compile(f"[{characters}]") for code, characters in _TABLES["scripts"].items()}
_LETTERS = re.compile(r"[^\W\d_]")
_WORDS = re.compile(r"[^\W\d_]+")
_SAMPLE_CHARS = 1_000
"""Characters of each text that are read."""
_MIN_SCRIPT = 0.3
"""Least share of the letters that a script must have to decide the language."""
_MIN_STOP_WORDS = 0.2
"""Least share of the words that are stop words in a text of the language."""
_MIN_RUSSIAN_STOP_WORDS = 0.1
"""The same for Russian, whose alphabet excludes most others."""
_MAX_WORD_BYTES = 80
_KNOWN_WORDS = 20_000
"""Words of which it is remembered whose stop words they are."""


def detect(texts: Iterable[str]) -> str:
    """Return the language of a collection, from a sample of its texts.

    Scripts decide for all but those of several languages; for these the share of the words that
    are a language's stop words.

    Args:
        texts: Some passages of the collection.

    Returns:
        One of `LANGUAGES`; `other` for a language that is not among them, and for texts without
        words.
    """
    sample = [text[:_SAMPLE_CHARS] for text in texts]
    text = " ".join(sample)
    if text.isascii():  # of none of the scripts
        return _by_stop_words(sample, _LATIN, _MIN_STOP_WORDS)
    letters = "".join(_LETTERS.findall(text))
    if not letters:
        return OTHER
    shares = {code: len(each.findall(letters)) / len(letters) for code, each in _SCRIPT.items()}
    # Japanese mixes Han with kana, a character of Han counts as much as a syllable or a word.
    if shares["ja"] + shares["zh"] > _MIN_SCRIPT:
        return "ja" if shares["ja"] > shares["zh"] / 10 else "zh"
    script = max(shares, key=lambda code: shares[code])
    if shares[script] > _MIN_SCRIPT:
        return (
            script if script != "ru" else _by_stop_words(sample, ("ru",), _MIN_RUSSIAN_STOP_WORDS)
        )
    return _by_stop_words(sample, _LATIN, _MIN_STOP_WORDS)


def _by_stop_words(sample: list[str], languages: Iterable[str], least: float) -> str:
    counts = Counter(word for text in sample for word in _WORDS.findall(text.lower()))
    shares = dict.fromkeys(languages, 0)
    for word, count in counts.items():
        for code in _stop_word_of(word).intersection(shares):
            shares[code] += count
    best = max(shares, key=lambda code: shares[code])
    return best if shares[best] >= least * max(counts.total(), 1) else OTHER


@lru_cache(_KNOWN_WORDS)
def _stop_word_of(word: str) -> frozenset[str]:
    """Return the languages in which a word is a stop word."""
    return frozenset(
        code for code in (*_LATIN, "ru") if not _without_stop_words(code).analyze(word)
    )


@cache
def _without_stop_words(language: str) -> TextAnalyzer:
    from tantivy import TextAnalyzerBuilder, Tokenizer

    return TextAnalyzerBuilder(Tokenizer.whitespace()).filter(_stop_words(language)).build()


@cache
def analyzer(language: str) -> TextAnalyzer:
    """Return the analyzer of a language, for the texts of passages and for queries.

    Both must go through `hopgate.common.words.spaced` first, in every language: it cuts what is
    written without spaces, so that a Chinese name in an English collection is found too.

    Raises:
        ValueError: There is no such language.
    """
    from tantivy import TextAnalyzerBuilder, Tokenizer

    if language not in LANGUAGES:
        raise ValueError(f"unknown language {language!r}; use one of {', '.join(LANGUAGES)}")
    # The simple tokenizer splits at the vowel signs of Indic scripts and Thai; the other is slower.
    simple = language in _STEMMED and language != "ta"
    tokenizer = Tokenizer.simple() if simple else Tokenizer.regex(r"[^\W_]+")
    builder = TextAnalyzerBuilder(tokenizer)
    for each in _filters(language):
        builder = builder.filter(each)
    return builder.build()


def terms(language: str, text: str) -> list[str]:
    """Return the words of a text as BM25 counts them, in order and with repetitions."""
    found: list[str] = analyzer(language).analyze(spaced(text))
    return found


def _filters(language: str) -> Iterable[Filter]:
    from tantivy import Filter

    yield Filter.remove_long(_MAX_WORD_BYTES)
    yield Filter.lowercase()
    if language in _STEMMED:
        yield _stop_words(language)
        if language == "en":
            yield Filter.ascii_fold()
        yield Filter.stemmer(_STEMMED[language])
        if language in _LATIN:  # other languages' stemmers read accents
            yield Filter.ascii_fold()


def _stop_words(language: str) -> Filter:
    from tantivy import Filter

    if language in _STOP_WORDS:
        return Filter.custom_stopword(_STOP_WORDS[language].split())
    return Filter.stopword(_STEMMED[language])
