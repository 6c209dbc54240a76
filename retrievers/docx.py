"""The text of a .docx file: paragraphs with the headings they stand under.

Read with the standard library. The parts of the archive are read up to a limit, whatever it says
of their size, and document types, with which XML could be made to swell, are refused.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

MAX_PART_BYTES = 32 << 20
"""Most bytes of an unpacked part: a text of some thousands of pages."""
_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_PARAGRAPH = f"{_WORD}p"
_TITLE = "{http://purl.org/dc/elements/1.1/}title"
_BODY = "word/document.xml"
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
_HEADING = re.compile(r"heading (\d)", re.IGNORECASE)
_SPACES = {f"{_WORD}tab": "\t", f"{_WORD}br": "\n", f"{_WORD}cr": "\n"}


class Paragraph(NamedTuple):
    """A paragraph's text; `level` is that of a heading, 1 to 9 (0: the title), else None."""

    text: str
    level: int | None


def read_docx(file: Path) -> tuple[str, list[Paragraph]]:
    """Read a file's title, which may be empty, and its paragraphs, tables included.

    Raises:
        ValueError: it is no .docx file, or a part of it is over the limit.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            body = _part(archive, _BODY)
            styles = _part(archive, "word/styles.xml")
            core = _part(archive, "docProps/core.xml")
    except zipfile.BadZipFile as error:
        raise ValueError(f"it is not a .docx file: {error}") from error
    if body is None:
        raise ValueError(f"it is not a .docx file: it has no {_BODY}")
    try:
        levels = _levels(ElementTree.fromstring(styles) if styles else None)
        title = ElementTree.fromstring(core).findtext(_TITLE) if core else None
        read = (_paragraph(each, levels) for top in _outermost(body) for each in _all(top))
        paragraphs = [each for each in read if each.text]
    except ElementTree.ParseError as error:
        raise ValueError(f"its XML is broken: {error}") from error
    return (title or "").strip(), paragraphs


def _part(archive: zipfile.ZipFile, name: str) -> bytes | None:
    if name not in archive.namelist():
        return None
    with archive.open(name) as part:
        data = part.read(MAX_PART_BYTES + 1)
    if len(data) > MAX_PART_BYTES:
        raise ValueError(f"{name} unpacks to over {MAX_PART_BYTES >> 20} MB: it may be a zip bomb")
    if b"<!DOCTYPE" in data or b"<\x00!\x00D\x00O\x00C\x00T\x00Y\x00P\x00E" in data:
        raise ValueError(f"{name} has a document type, which no .docx needs")
    return data


def _outermost(body: bytes) -> Iterator[ElementTree.Element]:
    """Yield the paragraphs that are in no other; all else is forgotten as it is read."""
    above: list[ElementTree.Element] = []
    paragraphs = 0
    for event, element in ElementTree.iterparse(BytesIO(body), ("start", "end")):
        if event == "start":
            above.append(element)
            paragraphs += element.tag == _PARAGRAPH
            continue
        above.pop()
        paragraphs -= element.tag == _PARAGRAPH
        if paragraphs:
            continue
        if element.tag == _PARAGRAPH:
            yield element
        if above:
            above[-1].clear()


def _all(element: ElementTree.Element) -> Iterator[ElementTree.Element]:
    """Yield a paragraph and those within it (text boxes), but not what old programs are shown."""
    if element.tag == _PARAGRAPH:
        yield element
    for child in element:
        if child.tag != _FALLBACK:
            yield from _all(child)


def _levels(styles: ElementTree.Element | None) -> dict[str, int]:
    """Give the heading level of each style's id; ids are translated, names are not."""
    levels = {f"Heading{level}": level for level in range(1, 10)} | {"Title": 0}
    for style in styles.iter(f"{_WORD}style") if styles is not None else ():
        name = style.find(f"{_WORD}name")
        shown = name.get(f"{_WORD}val", "") if name is not None else ""
        if heading := _HEADING.fullmatch(shown):
            levels[style.get(f"{_WORD}styleId", "")] = int(heading[1])
        elif shown.lower() == "title":
            levels[style.get(f"{_WORD}styleId", "")] = 0
    return levels


def _paragraph(paragraph: ElementTree.Element, levels: dict[str, int]) -> Paragraph:
    style = paragraph.find(f"{_WORD}pPr/{_WORD}pStyle")
    name = style.get(f"{_WORD}val", "") if style is not None else ""
    return Paragraph("".join(_texts(paragraph)).strip(), levels.get(name))


def _texts(element: ElementTree.Element) -> Iterator[str]:
    """Yield the text under an element, without that of paragraphs inside it (text boxes)."""
    for child in element:
        if child.tag == f"{_WORD}t":
            yield child.text or ""
        elif child.tag in _SPACES:
            yield _SPACES[child.tag]
        elif child.tag not in (_PARAGRAPH, _FALLBACK):
            yield from _texts(child)
