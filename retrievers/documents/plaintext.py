"""Plain text: its encoding, wrapped lines and tables of contents."""

from __future__ import annotations

import codecs
import re
from pathlib import Path

_BLOCK_BYTES = 1 << 20
GUESS_BYTES = 1 << 18
"""Bytes at the start of a file from which its encoding is guessed."""
_GOOD_TO_BAD = 10
"""Non-ASCII letters for each broken byte from which a text counts as UTF-8 with broken bytes."""
_FOREIGN = 0.3
"""Share of non-ASCII bytes from which a text counts as written in a non-Latin script."""
_COHERENT = 0.7
"""Minimum coherence, 0 to 1, that charset-normalizer must report for a text in Latin script."""

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3001-\u30ff\u3400-\u9fff\uf900-\ufaff\uff01-\uff5e\U00020000-\U0003ffff"  # Chinese, kana
)
_DENSE = re.compile(f"[{_UNSPACED}\uac00-\ud7af]+")
_WRAPPED = re.compile(rf"(?<=[{_UNSPACED}])[^\S\n]*\n\s*(?=[{_UNSPACED}])")
_SPACES, _BETWEEN = re.compile(r"(?<=\S)[^\S\n]+"), re.compile(r"\n\s*\n")
_BROKEN = re.compile(r"(?<=\S)[ \t]*\n[ \t]*(?=\S)(?![\-*+|>]|\d{1,3}[.)]\s)")
_RST_MARKUP = re.compile(
    r"^\.\. (?:[\w:-]+::|_[^\n]+:)|(?<![:\w`]):\w[\w+-]{0,40}(?::\w{1,40})?:`[^`\n]", re.MULTILINE
)
"""A directive or a target at the start of a line, or a role."""
_RST_TITLE = re.compile(r"^(\S.*)\n(([=\-~^\"'`#*+.:_])\3{2,})[ \t]*$", re.MULTILINE)

_L, _NUMBER = r"[.·…][ \t]*+", r"(?:\d{1,4}|[ivxlc]{1,7})"
_CONTENTS = re.compile(
    rf"(?<![.·… \t])[ \t]*+(?:(?=[.·…]{{1,3}} )(?:{_L}){{4,}}{_NUMBER}|(?:{_L}){{5,}}{_NUMBER}"
    rf"|(?:{_L}){{10,}}[\divxlc]*)\s*\Z",
    re.IGNORECASE,
)
"""A dot leader of at least five dots (four with spaces), then a page number; or a longer leader."""


def read_text(file: Path) -> str:
    """Decode a file.

    Text that is not UTF-8 is decoded as UTF-16 if it has a byte order mark, else as what
    charset-normalizer detects with confidence, else as Windows-1252.

    Raises:
        ValueError: It is not text.
        OSError: It cannot be read.
    """
    text = file.read_text(encoding=encoding_of(file), errors="replace")
    if "\x00" in text:
        raise ValueError("it is a binary file")
    return text


def encoding_of(file: Path) -> str:
    """Return the encoding of a file, reading it block by block."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    with file.open("rb") as handle:
        start = handle.read(GUESS_BYTES)
        if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return "utf-16"
        try:
            decoder.decode(start)
            while block := handle.read(_BLOCK_BYTES):
                decoder.decode(block)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return _guessed(start)
    return "utf-8-sig"


def _guessed(start: bytes) -> str:
    """Guess the encoding of bytes that are not valid UTF-8."""
    from charset_normalizer import from_bytes

    text = start.decode(errors="replace")
    broken = text.count("\ufffd")
    if sum(letter > "\x7f" for letter in text) > (1 + _GOOD_TO_BAD) * broken:
        return "utf-8-sig"
    best = from_bytes(start).best()
    foreign = sum(byte > 127 for byte in start) / max(1, len(start))
    if best and (foreign >= _FOREIGN or best.coherence >= _COHERENT):
        return best.encoding
    return "cp1252"


def unwrap(text: str) -> str:
    """Join the lines of each paragraph, but not those of tables, lists and quotations.

    Scripts without spaces between words are joined without a space.
    """
    text = _BROKEN.sub(" ", _WRAPPED.sub(_unwrapped, text))
    return _BETWEEN.sub("\n\n", _SPACES.sub(" ", text)).strip()


def _unwrapped(wrap: re.Match[str]) -> str:
    return "\n\n" if wrap[0].count("\n") > 1 else ""


def is_restructured(text: str) -> bool:
    """Return whether a text is reStructuredText: it has underlined titles, and markup."""
    if not _RST_MARKUP.search(text):
        return False
    return any(len(under[2]) >= len(under[1].rstrip()) for under in _RST_TITLE.finditer(text))


def is_dense(text: str) -> bool:
    """Return whether a text is mostly in a script that says a word in one or two characters.

    Those are Chinese, Japanese, Korean, Thai, Lao, Burmese and Khmer.
    """
    return not text.isascii() and 2 * len(_DENSE.sub("", text)) < len(text)


def without_contents(text: str) -> str:
    """Remove lines of a table of contents, such as `Chapter 2 ........ 17`."""
    return "".join(line for line in text.splitlines(keepends=True) if not is_contents(line))


def is_contents(line: str) -> bool:
    """Return whether a line is of a table of contents: a dot leader and a page number."""
    return _CONTENTS.search(line) is not None
