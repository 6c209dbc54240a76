"""The chapters of an .epub file, as XHTML in reading order."""

from __future__ import annotations

import posixpath
import zipfile
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

from hopgate.retrievers.documents.archives import unpack

_XML = (".xml", ".opf")
_PAGES = (".xhtml", ".html", ".htm")


def epub_chapters(file: Path) -> tuple[str, list[bytes]]:
    """Return the title in a book's properties, which may be empty, and its chapters.

    The book's page of contents is left out.

    Raises:
        ValueError: It is not an .epub file, or its XML is broken, too large or not allowed.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            parts = unpack(archive, _XML, _PAGES)
        container = ElementTree.fromstring(parts["META-INF/container.xml"])
        package = _attribute(container.find(".//{*}rootfile"), "full-path")
        root = ElementTree.fromstring(parts[package])
    except (zipfile.BadZipFile, KeyError) as error:
        raise ValueError(f"it is not an .epub file: {error}") from error
    except ElementTree.ParseError as error:
        raise ValueError(f"its XML is broken: {error}") from error
    items = {item.get("id"): item for item in root.iterfind(".//{*}manifest/{*}item")}
    chapters = []
    for reference in root.iterfind(".//{*}spine/{*}itemref"):
        item = items.get(reference.get("idref"))
        if item is None or "nav" in item.get("properties", "").split():
            continue
        href = unquote(_attribute(item, "href").partition("#")[0])
        name = posixpath.normpath(posixpath.join(posixpath.dirname(package), href))
        chapter = parts.get(name, b"")
        if chapter and b"<" not in chapter[:100]:
            raise ValueError("its chapters are encrypted")
        chapters.append(chapter)
    return (root.findtext(".//{http://purl.org/dc/elements/1.1/}title") or "").strip(), chapters


def _attribute(element: ElementTree.Element | None, name: str) -> str:
    return "" if element is None else element.get(name, "")
