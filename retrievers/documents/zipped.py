"""Documents that are zip archives of XML: .docx, converted to HTML by mammoth, and .epub.

They are parsed in a process with limits (see `parsers`), so this only refuses zip bombs early.
"""

from __future__ import annotations

import posixpath
import re
import zipfile
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

MAX_XML_BYTES = 32 << 20
"""Maximum size of all XML, unpacked: a text of some thousands of pages."""
_XML = (".xml", ".rels", ".opf", ".xhtml", ".html", ".htm")
_PROPERTIES = "docProps/core.xml"
_TITLE = ".//{http://purl.org/dc/elements/1.1/}title"
_STYLES = "\n".join(
    [
        "p.Title => h1.title:fresh",
        "p[style-name='Title'] => h1.title:fresh",
        *(f"p.Heading{level} => h6:fresh" for level in (7, 8, 9)),
        *(f"p[style-name='heading {level}'] => h6:fresh" for level in (7, 8, 9)),
        *(f"p[style-name='toc {level}'] => !" for level in range(1, 10)),
        "p[style-name='toc heading'] => !",
        "p[style-name='table of figures'] => !",
    ]
)
"""Adds to mammoth's own style map: a title becomes `<h1 class="title">`; `!` drops a paragraph."""
_NOTE_NUMBER = re.compile(r'<a href="#(?:foot|end)note[^>]*>[^<]*</a>')
"""The number of a note in the text, and the arrow back to it."""


def docx_to_html(file: Path) -> tuple[str, str]:
    """Return the title in a file's properties, which may be empty, and its text as HTML.

    Images, linked files, the file's own style map and tables of contents are not read.
    """
    from mammoth import convert_to_html

    with _opened(file) as archive, file.open("rb") as content:
        known = _PROPERTIES in archive.namelist()
        title = ElementTree.fromstring(archive.read(_PROPERTIES)).findtext(_TITLE) if known else ""
        html = convert_to_html(
            content,
            style_map=_STYLES,
            include_embedded_style_map=False,
            external_file_access=False,
            convert_image=lambda _: [],
        ).value
    return (title or "").strip(), _NOTE_NUMBER.sub("", html)  # mammoth escapes all text


def epub_chapters(file: Path) -> tuple[str, list[bytes]]:
    """Return the title in a book's properties, which may be empty, and its chapters in XHTML.

    They are in reading order, without the page of contents.
    """
    with _opened(file) as archive:
        container = ElementTree.fromstring(archive.read("META-INF/container.xml"))
        package = next(container.iterfind(".//{*}rootfile")).attrib["full-path"]
        root = ElementTree.fromstring(archive.read(package))
        items = {item.get("id"): item for item in root.iterfind(".//{*}manifest/{*}item")}
        chapters, names = [], set(archive.namelist())
        for reference in root.iterfind(".//{*}spine/{*}itemref"):
            item = items.get(reference.get("idref"))
            if item is None or "nav" in item.get("properties", "").split():
                continue
            href = unquote(item.get("href", "").partition("#")[0])
            name = posixpath.normpath(posixpath.join(posixpath.dirname(package), href))
            chapter = archive.read(name) if name in names else b""
            if chapter and b"<" not in chapter[:100]:
                raise ValueError("its chapters are encrypted")
            chapters.append(chapter)
    return (root.findtext(_TITLE) or "").strip(), chapters


def _opened(file: Path) -> zipfile.ZipFile:
    """Open an archive.

    Raises:
        ValueError: Its XML is too large, by the sizes that it states.
    """
    archive = zipfile.ZipFile(file)
    parts = (part for part in archive.infolist() if part.filename.lower().endswith(_XML))
    if sum(part.file_size for part in parts) > MAX_XML_BYTES:
        raise ValueError(f"its XML unpacks to over {MAX_XML_BYTES >> 20} MB: it may be a zip bomb")
    return archive
