"""Unpacking of the XML of .docx and .epub files, which may mean harm."""

from __future__ import annotations

import zipfile

MAX_XML_BYTES = 32 << 20
"""Maximum size of all XML, unpacked: a text of some thousands of pages."""
MAX_TAGS = 1_000_000
"""Maximum number of tags, for each of which mammoth takes about 0.5 KB and 30 µs."""
_DOCUMENT_TYPES = (b"<!DOCTYPE", "<!DOCTYPE".encode("utf-16-le"), "<!DOCTYPE".encode("utf-16-be"))


def unpack(
    archive: zipfile.ZipFile, endings: tuple[str, ...], pages: tuple[str, ...] = ()
) -> dict[str, bytes]:
    """Unpack the XML of an archive, up to the limits and whatever it claims about its size.

    Args:
        archive: The file.
        endings: Endings of the names of XML, which may declare no document type.
        pages: Endings of the names of HTML, which may.

    Raises:
        ValueError: There is too much of it, or it declares a document type.
    """
    parts: dict[str, bytes] = {}
    bytes_left, tags_left = MAX_XML_BYTES, MAX_TAGS
    for name in archive.namelist():
        if name in parts or not name.lower().endswith(endings + pages):
            continue
        with archive.open(name) as part:
            data = part.read(bytes_left + 1)
        bytes_left -= len(data)
        tags_left -= data.count(b"<")
        if bytes_left < 0:
            raise ValueError(
                f"its XML unpacks to over {MAX_XML_BYTES >> 20} MB: it may be a zip bomb"
            )
        if tags_left < 0:
            raise ValueError(f"its XML has over {MAX_TAGS:,} tags: split it")
        if name.lower().endswith(endings) and any(each in data for each in _DOCUMENT_TYPES):
            raise ValueError(f"{name} declares a document type, which it must not")
        parts[name] = data
    return parts
