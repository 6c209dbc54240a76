"""Reading documents into passages of about 100 words.

Kinds: .txt, .md, .html, .pdf, .docx, .csv and .jsonl. A file that cannot be read is reported with
the reason, and the others are read.
"""

from __future__ import annotations

import codecs
import csv
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TextIO

from hopgate.common.files import parse_object, shown
from hopgate.retrievers.base import Passage, make_passage

if TYPE_CHECKING:
    from bs4 import BeautifulSoup
    from langchain_text_splitters import TextSplitter

CHUNK_CHARACTERS = 600
"""Length of a passage: about 100 words of English, the unit of DPR's and Contriever's Wikipedia."""
OVERLAP_CHARACTERS = 100
"""Maximum overlap with the passage before: about a sentence."""

MAX_FILE_BYTES = 128 << 20
"""Largest file that is read whole; .csv and .jsonl are read row by row, at any size."""
MAX_HTML_BYTES = 16 << 20
"""Largest .html file: its parser takes up to a hundred times as much memory."""
MAX_ROW_CHARACTERS = 16 << 20
"""Longest line of a .csv or .jsonl file."""

_STREAMED = (".csv", ".jsonl")
_BLOCK_BYTES = 1 << 20
_GUESS_BYTES = 1 << 18
"""Bytes at the start of a file from which its encoding is guessed."""
_GOOD_TO_BAD = 10
"""Non-ASCII letters for each broken byte from which a text counts as UTF-8 with broken bytes."""
_FOREIGN = 0.3
"""Share of non-ASCII bytes from which a text counts as written in a non-Latin script."""
_COHERENT = 0.7
"""Minimum coherence, 0 to 1, that charset-normalizer must report for a text in Latin script."""
_SEPARATORS = ["\n\n", "\n", ". ", " ", ""]
_SPACE_BEFORE_MARK = re.compile(r" (?=[,.;:!?)\]])")
"""The space left before the comma when the tags of `<b>word</b>,` are removed."""
_HEADINGS = [("#", "1"), ("##", "2"), ("###", "3")]

ReadProgress = Callable[[int, int], None]
"""Called with the number of files read so far and their total."""


class MissingExtraError(RuntimeError):
    """A kind of file needs a package that is not installed."""


@dataclass(frozen=True)
class SkippedFile:
    """A file without passages, and why."""

    path: str
    reason: str


@dataclass
class Documents:
    """The passages of some files.

    Attributes:
        passages: In the order of the files; the same content may appear twice.
        files: Number of files with passages.
        skipped: Files without.
    """

    passages: list[Passage] = field(default_factory=list)
    files: int = 0
    skipped: list[SkippedFile] = field(default_factory=list)


def load_documents(paths: Sequence[Path | str], progress: ReadProgress | None = None) -> Documents:
    """Read files and folders into passages.

    Folders are read with all their subfolders; hidden files, files of other kinds and loops of
    symbolic links are skipped. Text that is not UTF-8 is decoded as UTF-16 if it has a byte order
    mark, else as what charset-normalizer detects with confidence, else as Windows-1252. Passages
    keep their page (.pdf) and the headings above them (.md, .html, .docx).

    Args:
        paths: Files or folders.
        progress: Called after each file.

    Returns:
        The passages, and the files that could not be read.

    Raises:
        ValueError: A path does not exist or is of another kind, or no file could be read.
        MissingExtraError: No file could be read because the extra `documents` is missing.
    """
    return read_files(find_files(paths), progress)


def read_files(
    found: Sequence[tuple[Path, str]], progress: ReadProgress | None = None
) -> Documents:
    """Read the files that `find_files` returned, see `load_documents`."""
    documents = Documents()
    missing: MissingExtraError | None = None
    for done, (file, source) in enumerate(found, start=1):
        try:
            _add_file(documents, file, source)
        except MissingExtraError as error:
            missing = error
            documents.skipped.append(SkippedFile(str(file), str(error)))
        if progress:
            progress(done, len(found))
    if not documents.passages:
        raise missing or ValueError(_nothing_read(documents.skipped))
    return documents


def _nothing_read(skipped: Sequence[SkippedFile]) -> str:
    shown = [f"{file.path}: {file.reason}" for file in skipped[:3]]
    more = len(skipped) - len(shown)
    reasons = "; ".join([*shown, f"and {more} more"] if more else shown)
    return f"no passage could be read ({reasons})"


def _add_file(documents: Documents, file: Path, source: str) -> None:
    kind = file.suffix.lower()
    try:
        if kind not in _STREAMED:
            _check_size(file)
        passages = list(_READERS[kind](file, source))
    except MissingExtraError:
        raise
    except Exception as error:  # the parsers' errors have no common base class
        reason = " ".join(str(error).split()) or type(error).__name__
        documents.skipped.append(SkippedFile(str(file), reason))
        return
    if not passages:
        documents.skipped.append(SkippedFile(str(file), "it contains no text"))
        return
    documents.passages.extend(passages)
    documents.files += 1


def find_files(paths: Sequence[Path | str]) -> list[tuple[Path, str]]:
    """List the files to read, each once, in a fixed order.

    Returns:
        Each file with its source: its path relative to the given folder, or its name. Bytes that
        are not UTF-8 are escaped.

    Raises:
        ValueError: A path does not exist, is neither file nor folder, is of another kind, or is a
            folder without any such file.
    """
    if not paths:
        raise ValueError("no paths given: give files or folders to index")
    found: dict[Path, tuple[Path, str]] = {}
    for path in map(Path, paths):
        for file, source in _expand(path):
            found.setdefault(file.resolve(), (file, source))
    return list(found.values())


def _expand(path: Path) -> list[tuple[Path, str]]:
    kinds = " ".join(_READERS)
    if path.is_dir():
        files = sorted(_walk(path))
        if not files:
            raise ValueError(f"{path} contains no file of a known kind ({kinds})")
        return [(file, readable(file.relative_to(path))) for file in files]
    if not path.exists():
        raise ValueError(f"{path} does not exist: give files or folders")
    if not path.is_file():
        raise ValueError(f"{path} is not a regular file: give files or folders")
    if path.suffix.lower() not in _READERS:
        raise ValueError(f"{path} is of an unknown kind: use {kinds}")
    return [(path, readable(Path(path.name)))]


def readable(path: Path) -> str:
    """Return a path as text, with bytes that are not UTF-8 escaped."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _stem(source: str) -> str:
    return PurePosixPath(source).stem


def _walk(top: Path) -> Iterator[Path]:
    """Yield the files of known kinds below a folder, skipping folders reached twice by links."""
    seen: set[str] = set()
    for folder, subfolders, names in os.walk(top, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            subfolders.clear()
            continue
        seen.add(real)
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        for name in names:
            file = Path(folder, name)
            if not name.startswith(".") and file.suffix.lower() in _READERS and file.is_file():
                yield file


def _check_size(file: Path) -> None:
    most = MAX_HTML_BYTES if _READERS[file.suffix.lower()] is _html else MAX_FILE_BYTES
    if (size := file.stat().st_size) > most:
        raise ValueError(
            f"it has {size >> 20} MB, and {file.suffix} files are read up to {most >> 20} MB: "
            "split it, or convert it to .jsonl"
        )


def _read_text(file: Path) -> str:
    """Decode a file, see `load_documents`; raise ValueError if it is not text."""
    text = file.read_text(encoding=_encoding(file), errors="replace")
    if "\x00" in text:
        raise ValueError("it is a binary file")
    return text


def _encoding(file: Path) -> str:
    """Return the encoding of a file, reading it block by block."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    with file.open("rb") as handle:
        start = handle.read(_GUESS_BYTES)
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


def _txt(file: Path, source: str) -> Iterator[Passage]:
    return _split(_stem(source), _unwrap(_read_text(file)), source)


def _markdown(file: Path, source: str) -> Iterator[Passage]:
    """Split at headings; a passage's title is the headings above it, `Document > Section`."""
    from langchain_text_splitters import MarkdownHeaderTextSplitter

    for section in MarkdownHeaderTextSplitter(_HEADINGS).split_text(_read_text(file)):
        headings = [section.metadata[key] for _, key in _HEADINGS if key in section.metadata]
        yield from _section(headings or [_stem(source)], section.page_content, source)


def _html(file: Path, source: str) -> Iterator[Passage]:
    """Split at headings, under the page's title."""
    try:
        from bs4 import BeautifulSoup
    except ImportError as error:
        raise _missing(".html", error) from error
    soup = BeautifulSoup(_read_text(file), "html.parser")
    title = " ".join(soup.title.get_text().split()) if soup.title else ""
    for tag in soup(["script", "style", "template", "noscript", "title"]):
        tag.decompose()
    yield from _by_headings(soup, title or _stem(source), source)


def _docx(file: Path, source: str) -> Iterator[Passage]:
    """Split at headings, under the document's title."""
    try:
        from bs4 import BeautifulSoup

        from hopgate.retrievers.docx import docx_to_html

        title, html = docx_to_html(file)
    except ImportError as error:
        raise _missing(".docx", error) from error
    soup = BeautifulSoup(html, "html.parser")
    if not title and (heading := soup.find("h1", class_="title")):
        title = " ".join(heading.get_text(" ").split())
    yield from _by_headings(soup, title or _stem(source), source)


def _by_headings(soup: BeautifulSoup, title: str, source: str) -> Iterator[Passage]:
    """Split the text of a page at its headings."""
    for string in soup(string=re.compile(_MARK)):
        string.replace_with(type(string)(string.replace(_MARK, " ")))
    within: set[int] = set()
    for tag in soup(_HTML_HEADINGS):
        if id(tag) in within:
            continue
        within.update(map(id, tag(_HTML_HEADINGS)))
        heading = " ".join(tag.get_text(" ").split())
        tag.string = f"{_MARK}{tag.name[1]}{heading}{_MARK}" if heading else ""
    for headings, part in _sections(title, _marked(soup.get_text("\n"))):
        yield from _section(headings, _SPACE_BEFORE_MARK.sub("", _unwrap(part)), source)


_HTML_HEADINGS = ["h1", "h2", "h3", "h4", "h5", "h6"]
_MARK = "\x1e"
"""Marks both ends of a heading in the text of a page, from which it is removed before."""


def _marked(text: str) -> Iterator[tuple[int | None, str]]:
    """Yield the parts of a text with marked headings, each with the level of its heading."""
    for number, part in enumerate(text.split(_MARK)):
        yield (int(part[0]), part[1:]) if number % 2 else (None, part)


def _sections(
    title: str, parts: Iterable[tuple[int | None, str]]
) -> Iterator[tuple[list[str], str]]:
    """Yield each text with the headings above it, the title first.

    Args:
        title: Title of the document; a heading that repeats it is dropped.
        parts: Level (None for text) and text, in the order of the document.
    """
    above: dict[int, str] = {}
    texts: list[str] = []
    for level, text in parts:
        if level is None:
            texts.append(text)
            continue
        yield [title, *above.values()], "\n\n".join(texts)
        texts = []
        above = {each: heading for each, heading in above.items() if each < level}
        if text != title:
            above[level] = text
    yield [title, *above.values()], "\n\n".join(texts)


def _section(headings: Sequence[str], text: str, source: str) -> Iterator[Passage]:
    return _split(" > ".join(headings), text, source, section=" > ".join(headings[1:]))


def _pdf(file: Path, source: str) -> Iterator[Passage]:
    """Split page by page, so that a passage has one page number."""
    try:
        from pypdf import PdfReader
    except ImportError as error:
        raise _missing(".pdf", error) from error
    for number, page in enumerate(PdfReader(file).pages, start=1):
        yield from _split(_stem(source), _unwrap(page.extract_text()), source, page=number)


def _csv(file: Path, source: str) -> Iterator[Passage]:
    """Read the columns `text` and `title` if there are such, else each row as `name: cell. …`."""
    with file.open(encoding=_encoding(file), errors="replace", newline="") as lines:
        first = lines.readline(_GUESS_BYTES)
        lines.seek(0)
        csv.field_size_limit(max(MAX_ROW_CHARACTERS, csv.field_size_limit()))
        rows = csv.reader(_lines(lines), delimiter=max(",;\t|", key=first.count))
        names = [name.strip() for name in next(rows, [])]
        lower = [name.lower() for name in names]
        for row in rows:
            cells = dict(zip(lower, (cell.strip() for cell in row), strict=False))
            if "text" in lower:
                yield from _split(cells.get("title", ""), cells.get("text", ""), source)
                continue
            named = (
                f"{name}: {cells[key]}"
                for name, key in zip(names, lower, strict=True)
                if cells.get(key)
            )
            yield from _split(_stem(source), ". ".join(named), source)


def _jsonl(file: Path, source: str) -> Iterator[Passage]:
    with file.open(encoding=_encoding(file), errors="replace", newline="\n") as lines:
        for number, line in enumerate(_lines(lines), start=1):
            if not line.strip():
                continue
            try:
                title, text = _row(parse_object(line))
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error
            yield from _split(title, text, source)


def _lines(file: TextIO) -> Iterator[str]:
    """Yield the lines of a file, each up to `MAX_ROW_CHARACTERS` long."""
    number = 0
    while line := file.readline(MAX_ROW_CHARACTERS):
        number += 1
        if len(line) == MAX_ROW_CHARACTERS:
            raise ValueError(f"line {number} is over {MAX_ROW_CHARACTERS} characters long")
        yield line


def _row(fields: dict[str, Any]) -> tuple[str, str]:
    """Return a row's title and text; an empty text makes no passage."""
    if "text" not in fields:
        raise ValueError('text is missing; a row is {"title": "…", "text": "…"}')
    for name in ("title", "text"):
        if not isinstance(value := fields.get(name), str | None):
            raise ValueError(f"{name} is {shown(value)}; it must be a string")
    return fields.get("title") or "", fields["text"] or ""


_READERS: dict[str, Callable[[Path, str], Iterable[Passage]]] = {
    ".txt": _txt,
    ".md": _markdown,
    ".html": _html,
    ".htm": _html,
    ".pdf": _pdf,
    ".docx": _docx,
    ".csv": _csv,
    ".jsonl": _jsonl,
}


def _split(
    title: str, text: str, source: str, page: int | None = None, section: str = ""
) -> Iterator[Passage]:
    for chunk in _splitter().split_text(text):
        if chunk.strip():
            yield make_passage(title, chunk, source, page, section)


@lru_cache(maxsize=1)
def _splitter() -> TextSplitter:
    from langchain_text_splitters import RecursiveCharacterTextSplitter

    return RecursiveCharacterTextSplitter(
        chunk_size=CHUNK_CHARACTERS,
        chunk_overlap=OVERLAP_CHARACTERS,
        separators=_SEPARATORS,
        keep_separator="end",
    )


def _unwrap(text: str) -> str:
    """Join the lines of each paragraph: the line breaks of a page or of HTML mean nothing."""
    paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
    return "\n\n".join(part for part in paragraphs if part)


def _missing(kind: str, error: ImportError) -> MissingExtraError:
    return MissingExtraError(f"reading {kind} needs {error.name}: pip install 'hopgate[documents]'")
