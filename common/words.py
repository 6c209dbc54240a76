"""The words of a text in any script: one notion for searching, citations and comparisons.

Chinese, Japanese, Korean, Thai, Lao, Khmer and Burmese do not put spaces between words (Korean
glues particles to them), so their runs are cut into overlapping pairs of characters.
"""

import re
import unicodedata

_UNSPACED = (
    "\u0e00-\u0eff"  # Thai, Lao
    "\u1000-\u109f\u1780-\u17ff"  # Burmese, Khmer
    "\u1100-\u11ff\uac00-\ud7af"  # Hangul
    "\u3005-\u3007\u3040-\u30fa\u30fc-\u30ff"  # Japanese
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han
)
_RUN = re.compile(f"[{_UNSPACED}]+")


def spaced(text: str) -> str:
    """Put spaces where a tokenizer needs them: between pairs of characters of unspaced scripts.

    The text is NFKC-normalised, so that full-width letters and digits are found as ordinary
    ones. `"iPhone是手机"` becomes `"iPhone 是手 手机 "`.
    """
    if text.isascii():
        return text
    return _RUN.sub(_pairs, unicodedata.normalize("NFKC", text))


def _pairs(run: re.Match[str]) -> str:
    text = run[0]
    if len(text) == 1:
        return f" {text} "
    return f" {' '.join([text[i : i + 2] for i in range(len(text) - 1)])} "
