"""The text of a .docx file as HTML, converted by mammoth.

mammoth builds whole documents in memory and does not protect itself against hostile files. It gets
a copy of the archive with nothing but its XML, checked for size, number of tags and document types
(with which XML could be made to swell). Images, links to other files, style maps that the file
brings and tables of contents are never read.
"""

from __future__ import annotations

import re
import zipfile
from io import BytesIO
from pathlib import Path
from xml.etree import ElementTree
from xml.parsers.expat import ExpatError

from hopgate.retrievers.documents.archives import unpack

_PROPERTIES = "docProps/core.xml"
_TITLE = "{http://purl.org/dc/elements/1.1/}title"
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
"""What mammoth's own style map leaves out: a title becomes `<h1 class="title">`; `!` drops."""
_NOTE_NUMBER = re.compile(r'<a href="#(?:foot|end)note[^>]*>[^<]*</a>')
"""The number of a note in the text, and the arrow back to it."""
_INLINE = re.compile(r"</?(?:a|em|s|strong|sub|sup)(?: [^>]*)?>")
"""Formatting, which may begin or end within a word."""
_BLOCK = re.compile(r"(?=<(?:p|li)[ >])")


def docx_to_html(file: Path) -> tuple[str, str]:
    """Return the title in a file's properties, which may be empty, and its text as HTML.

    The HTML has headings, tables and lists but no formatting, and a blank line between paragraphs.

    Raises:
        ValueError: It is not a .docx file, or its XML is broken, too large or not allowed.
        ImportError: mammoth is not installed.
    """
    from mammoth import convert_to_html

    try:
        with zipfile.ZipFile(file) as archive:
            parts = unpack(archive, (".xml", ".rels"))
    except zipfile.BadZipFile as error:
        raise ValueError(f"it is not a .docx file: {error}") from error
    try:
        properties = parts.get(_PROPERTIES)
        title = ElementTree.fromstring(properties).findtext(_TITLE) if properties else None
        converted = convert_to_html(
            _archive(parts),
            style_map=_STYLES,
            include_embedded_style_map=False,
            external_file_access=False,
            convert_image=lambda _: [],
        )
    except (ElementTree.ParseError, ExpatError) as error:
        raise ValueError(f"its XML is broken: {error}") from error
    except RecursionError as error:
        raise ValueError("its XML is nested too deeply") from error
    except OSError as error:
        raise ValueError("it is not a .docx file: it has no main document") from error
    html = _INLINE.sub("", _NOTE_NUMBER.sub("", converted.value))  # mammoth escapes all text
    return (title or "").strip(), _BLOCK.sub("\n\n", html)


def _archive(parts: dict[str, bytes]) -> BytesIO:
    content = BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return content
