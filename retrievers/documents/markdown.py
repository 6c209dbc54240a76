"""Markdown, which most kinds of documents are converted to: its headings, code and paragraphs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Set
from pathlib import PurePosixPath

from hopgate.retrievers.documents.cutting import Section
from hopgate.retrievers.documents.plaintext import unwrap, without_contents

PROSE, CODE = 0, -1
"""Stand for the level of a heading where there is text."""
_FENCE = re.compile(r"[ \t]*(```+|~~~+)")
_HEADING = re.compile(r"(#{1,6})[ \t]+(\S.*)")
_ANCHOR = re.compile(r"(?<![ \t])[ \t]*+[¶🔗][ \t]*$", re.MULTILINE)
"""The sign of a link to a heading, after it."""
_CLOSING = re.compile(r"[ \t]\\?#+$")
_ESCAPED = re.compile(r"^([ \t]*)\\(?=[#>+\-])", re.MULTILINE)


def stem(source: str) -> str:
    """Return the name of a source without its ending: the title of a document without one."""
    return PurePosixPath(source).stem


def sections(title: str, parts: Iterable[tuple[int, str]]) -> Iterator[Section]:
    """Yield each text with the headings above it, the title first.

    Args:
        title: Title of the document; a heading that repeats it is dropped.
        parts: Level (`PROSE` or `CODE` for text) and text, in the order of the document.
    """
    above: dict[int, str] = {}
    texts: list[str] = []
    for level, text in parts:
        if level <= PROSE:
            texts.append(text)
            continue
        yield Section([title, *above.values()], "\n\n".join(filter(None, texts)))
        texts = []
        above = {each: heading for each, heading in above.items() if each < level}
        if text != title:
            above[level] = text
    yield Section([title, *above.values()], "\n\n".join(filter(None, texts)))


def parts(text: str) -> Iterator[tuple[int, str]]:
    """Yield the headings with their levels, and the prose and the code between them."""
    kept: list[str] = []
    fence = ""

    def until_here() -> tuple[int, str]:
        found = "\n".join(kept)
        kept.clear()
        return (CODE, found) if fence else (PROSE, _plain(found))

    for line in text.splitlines():
        mark, heading = _FENCE.match(line), None if fence else _HEADING.match(line)
        if mark and mark[1].startswith(fence):
            yield until_here()
            fence = "" if fence else mark[1]
        elif heading:
            yield until_here()
            if name := _CLOSING.sub("", _ANCHOR.sub("", heading[2]).strip()).strip():
                yield len(heading[1]), name
        else:
            kept.append(line)
    yield until_here()


def _plain(text: str) -> str:
    return unwrap(_ESCAPED.sub(r"\1", _ANCHOR.sub("", without_contents(text))))


def blocks(text: str) -> set[str]:
    """Return the paragraphs, tables and lists of a text, without its headings and code."""
    prose = (each for level, each in parts(text) if level == PROSE)
    return {block for each in prose for block in each.split("\n\n") if block}


def without_blocks(text: str, unwanted: Set[str]) -> Iterator[tuple[int, str]]:
    """Yield the parts of a text without some of its blocks."""
    for level, each in parts(text):
        if level == PROSE:
            each = "\n\n".join(block for block in each.split("\n\n") if block not in unwanted)
        yield level, each
