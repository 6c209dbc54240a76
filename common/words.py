"""Words and sentences of a text in any script: one notion for search, citations and the loop.

Han, kana, Thai, Lao, Khmer and Burmese are written without spaces between words, and Korean glues
particles to them. Runs of these scripts are cut into overlapping pairs of characters, or triples
where a character is a letter.
"""

import re
import unicodedata

_PAIRS = (
    "\u1100-\u11ff\uac00-\ud7af"  # Hangul
    "\u3005-\u3007\u3040-\u30fa\u30fc-\u30ff"  # kana
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
)
_TRIPLES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
_RUN = re.compile(f"([{_PAIRS}]+)|[{_TRIPLES}]+")
_MARKS = (  # vowel signs and the like, which `\w` leaves out
    "\u0300-\u036f\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0963\u0966-\u0dff"
    "\u0e00-\u0e4e\u0e50-\u109f\u1780-\u17d3\u200c\u200d"
)
_WORD = re.compile(rf"[\w{_MARKS}]+")

_ORDINAL = re.compile(r"(?<!\S)\d{1,2}\.\s{0,5}\Z")
_GERMAN_ORDINAL = re.compile(  # after "3." in German, which has capitals there
    "Januar|Februar|März|April|Mai|Juni|Juli|August|September|Oktober|November|Dezember|Jahrhundert"
)


def spaced(text: str) -> str:
    """Put spaces where a tokenizer needs them: `iPhone是手机` becomes `iPhone 是手 手机 `.

    The text is NFKC-normalised, so that full-width letters and digits equal ordinary ones.
    """
    if text.isascii():
        return text
    return _RUN.sub(_cut, unicodedata.normalize("NFKC", text))


def _cut(run: re.Match[str]) -> str:
    text, size = run[0], 2 if run[1] else 3
    starts = range(max(len(text) - size, 0) + 1)
    return f" {' '.join([text[start : start + size] for start in starts])} "


def words(text: str) -> list[str]:
    """Return the words of a text without punctuation, cut as in `spaced`; case is preserved."""
    return _WORD.findall(spaced(text))


def sentences(text: str, language: str = "en") -> list[str]:
    """Split a text into stripped, non-empty sentences; "U.S." and "3. Mai" do not end one.

    Args:
        text: The text.
        language: Its ISO 639-1 code, for its abbreviations.
    """
    from sentencex import segment

    found: list[str] = []
    for part in segment(language, text):
        if found and _is_ordinal(found[-1], part):
            found[-1] += part
        else:
            found.append(part)
    return [part.strip() for part in found if part.strip()]


def _is_ordinal(before: str, after: str) -> bool:
    """Return whether a full stop belongs to a number: in "3. Mai" and "3. mai", not in "3. The"."""
    goes_on = after[:1].islower() or _GERMAN_ORDINAL.match(after) is not None
    return goes_on and _ORDINAL.search(before[-9:]) is not None
