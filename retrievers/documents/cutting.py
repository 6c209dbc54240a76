"""Cutting texts into passages of about 100 words, and source code between its functions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from hopgate.retrievers.base import Passage, make_passage
from hopgate.retrievers.documents.plaintext import is_dense

if TYPE_CHECKING:
    from langchain_text_splitters import TextSplitter

CHUNK_CHARACTERS = 600
"""Length of a passage: about 100 words of English, the unit of DPR's and Contriever's Wikipedia."""
DENSE_CHUNK_CHARACTERS = 200
"""Length of a passage in Chinese, Japanese, Korean or Thai, where a character is about a token."""
_CHUNK_TO_OVERLAP = 6
"""A passage overlaps with the one before by up to a sixth of its length: about a sentence."""

_SEPARATORS = [r"\n\n", r"\n", r"\. ", "[。！？．؟।]", " ", ""]
_TABLE = re.compile(r"^(\|.*\n\|[ :|\-]+\n)((?:\|.*(?:\n|\Z))+)", re.MULTILINE)
"""A table in Markdown: its header, and its rows."""
_ROW = "\x1e"
"""Stands for the end of a row where a table must not be cut."""
_LANGUAGES = {
    "": ".bash .m .pl .sh .sql", "c": ".c .h", "cpp": ".cc .cpp .cxx .hpp", "csharp": ".cs",
    "elixir": ".ex .exs", "go": ".go", "haskell": ".hs", "java": ".java", "js": ".js .jsx .mjs",
    "kotlin": ".kt .kts", "latex": ".tex", "lua": ".lua", "php": ".php", "powershell": ".ps1",
    "proto": ".proto", "python": ".py", "r": ".r", "ruby": ".rb", "rust": ".rs", "scala": ".scala",
    "sol": ".sol", "swift": ".swift", "ts": ".ts .tsx",
}  # fmt: skip
"""Suffixes by the language in langchain-text-splitters; it knows no language for the first."""
CODE = {suffix: name for name, suffixes in _LANGUAGES.items() for suffix in suffixes.split()}


class Section(NamedTuple):
    """Text of a document that has one heading and one page.

    Attributes:
        headings: The document's title and the headings above the text.
        text: Paragraphs with a blank line between them.
        page: Page number of a PDF, from 1.
        kind: `code` on a page of source code.
    """

    headings: list[str]
    text: str
    page: int | None = None
    kind: str = ""


def cut(section: Section, source: str) -> Iterator[Passage]:
    """Yield the passages of a section."""
    headings, text, page, kind = section
    title, below = " > ".join(headings), " > ".join(headings[1:])
    size = DENSE_CHUNK_CHARACTERS if is_dense(text) else CHUNK_CHARACTERS
    for chunk in _chunks(text, size):
        if chunk.strip():
            yield make_passage(title, chunk, source, page, below, {"kind": kind} if kind else None)


def _chunks(text: str, size: int) -> Iterator[str]:
    """Cut a text; a table stays whole, or each of its pieces begins with its header."""
    end, before = 0, ""
    for table in _TABLE.finditer(text):
        before += text[end : table.start()]
        end = table.end()
        if len(table[0]) <= size:
            before += table[0].replace("\n", _ROW)
            continue
        yield from _split(before, size)
        before = ""
        for rows in _splitter(size, overlap=False).split_text(table[2]):
            yield f"{table[1]}{rows}"
    yield from _split(before + text[end:], size)


def _split(text: str, size: int) -> Iterator[str]:
    return (each.replace(_ROW, "\n") for each in _splitter(size).split_text(text))


def cut_code(text: str, suffix: str, title: str, source: str) -> Iterator[Passage]:
    """Yield the passages of source code."""
    for chunk in _code_splitter(CODE[suffix]).split_text(text):
        yield make_passage(title, chunk, source, metadata={"kind": "code"})


@lru_cache(maxsize=4)
def _splitter(size: int, *, overlap: bool = True) -> TextSplitter:
    from langchain_text_splitters import RecursiveCharacterTextSplitter

    return RecursiveCharacterTextSplitter(
        chunk_size=size,
        chunk_overlap=size // _CHUNK_TO_OVERLAP * overlap,
        separators=_SEPARATORS,
        is_separator_regex=True,
        keep_separator="end",
    )


@lru_cache(maxsize=len(_LANGUAGES))
def _code_splitter(language: str) -> TextSplitter:
    from langchain_text_splitters import Language, RecursiveCharacterTextSplitter

    overlap = CHUNK_CHARACTERS // _CHUNK_TO_OVERLAP
    if not language:
        return RecursiveCharacterTextSplitter(chunk_size=CHUNK_CHARACTERS, chunk_overlap=overlap)
    return RecursiveCharacterTextSplitter.from_language(
        Language(language), chunk_size=CHUNK_CHARACTERS, chunk_overlap=overlap
    )
