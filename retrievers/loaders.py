"""Reading files and folders into passages of about 100 words.

Every kind of file in `KINDS` is read. A file or row that cannot be read is reported with the
reason, and the others are read.
"""

from __future__ import annotations

import csv
import os
import re
import stat
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from hopgate.common.errors import reason
from hopgate.common.files import parse_object, shown
from hopgate.retrievers.base import Passage, make_passage
from hopgate.retrievers.parsers import PACKAGES, PARSERS, Section, sections, stem
from hopgate.retrievers.plaintext import (
    GUESS_BYTES,
    encoding_of,
    is_dense,
    read_text,
    unwrap,
    without_contents,
)
from hopgate.retrievers.worker import Worker

if TYPE_CHECKING:
    from langchain_text_splitters import TextSplitter

CHUNK_CHARACTERS = 600
"""Length of a passage: about 100 words of English, the unit of DPR's and Contriever's Wikipedia."""
DENSE_CHUNK_CHARACTERS = 200
"""Length of a passage in Chinese, Japanese, Korean or Thai, where a character is about a token."""
_CHUNK_TO_OVERLAP = 6
"""A passage overlaps with the one before by up to a sixth of its length: about a sentence."""

NO_TEXT = "it contains no text"
"""Why a file that could be read has no passages."""

MAX_FILE_BYTES = 128 << 20
"""Largest file that is read whole; .csv and .jsonl are read row by row, at any size."""
MAX_MARKUP_BYTES = 16 << 20
"""Largest .html or .rst file: its parser takes up to a hundred times as much memory."""
MAX_ROW_CHARACTERS = 16 << 20
"""Longest row of a .csv or .jsonl file."""
MAX_BAD_ROWS = 10
"""Most bad rows of a file that are reported one by one."""
_MAX_OPEN_QUOTES = 100
"""Most rows of a .csv file without a closing quotation mark, after which its rest is skipped."""

_SEPARATORS = [r"\n\n", r"\n", r"\. ", "[。！？．؟।]", " ", ""]
_HEADINGS = [("#", "1"), ("##", "2"), ("###", "3")]
_ORG_HEADING = re.compile(r"^(\*+)[ \t]+(.*)$", re.MULTILINE)
_ORG_TITLE = re.compile(r"^#\+title:[ \t]*(.+)$", re.MULTILINE | re.IGNORECASE)
_ORG_MARKUP = re.compile(r"^[ \t]*(#\+|:[\w-]+:[ \t]*$).*\n?", re.MULTILINE)

_LANGUAGES = {
    "c": ".c .h",
    "cpp": ".cc .cpp .cxx .hpp",
    "csharp": ".cs",
    "elixir": ".ex .exs",
    "go": ".go",
    "haskell": ".hs",
    "java": ".java",
    "js": ".js .jsx .mjs",
    "kotlin": ".kt .kts",
    "latex": ".tex",
    "lua": ".lua",
    "php": ".php",
    "powershell": ".ps1",
    "proto": ".proto",
    "python": ".py",
    "r": ".r",
    "ruby": ".rb",
    "rust": ".rs",
    "scala": ".scala",
    "sol": ".sol",
    "swift": ".swift",
    "ts": ".ts .tsx",
    "": ".bash .m .pl .sh .sql",
}
"""Suffixes by the language in langchain-text-splitters; it knows no language for the last."""
_CODE = {suffix: name for name, suffixes in _LANGUAGES.items() for suffix in suffixes.split()}

ReadProgress = Callable[[int, int], None]
"""Called with the number of files read so far and their total."""


class MissingExtraError(RuntimeError):
    """A kind of file needs a package that is not installed."""


@dataclass(frozen=True)
class SkippedFile:
    """A file (or row of a file, `path:line`) without passages, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class IgnoredFiles:
    """The files of one unknown kind below the folders.

    Attributes:
        suffix: Their suffix in lower case, such as `.png`; may be empty.
        files: How many there are.
        example: Path of one of them, relative to its folder.
    """

    suffix: str
    files: int
    example: str


class Stamp(NamedTuple):
    """Size and modification time of a file, which change when it is written."""

    size: int
    mtime_ns: int


@dataclass
class Found:
    """What `find_files` found.

    Attributes:
        files: Files to read, each with its source: its path relative to the given folder, or its
            name. Bytes that are not UTF-8 are escaped.
        skipped: Links that lead out of their folder, pipes, unreadable folders.
        ignored: Files of unknown kinds, by suffix.
    """

    files: list[tuple[Path, str]] = field(default_factory=list)
    skipped: list[SkippedFile] = field(default_factory=list)
    ignored: list[IgnoredFiles] = field(default_factory=list)


@dataclass
class ReadReport:
    """What became of the files, filled while they are read.

    Attributes:
        files: Number of files with passages.
        skipped: Files and rows without.
        ignored: Files of unknown kinds, by suffix.
        missing: The error about the extra `documents`, if a file needed it.
    """

    files: int = 0
    skipped: list[SkippedFile] = field(default_factory=list)
    ignored: list[IgnoredFiles] = field(default_factory=list)
    missing: MissingExtraError | None = None

    def check(self) -> None:
        """Check that there were passages, after the last file.

        Raises:
            ValueError: No file could be read; the message says why.
            MissingExtraError: No file could be read because the extra `documents` is missing.
        """
        if not self.files:
            raise self.missing or ValueError(_nothing_read(self.skipped))


@dataclass
class Documents(ReadReport):
    """The passages of some files, in the order of the files; content may appear twice."""

    passages: list[Passage] = field(default_factory=list)


class FilePassages(NamedTuple):
    """A file that was read.

    Attributes:
        file: Its path.
        source: The source of its passages.
        stamp: Its stamp before it was read; None if it is gone.
        passages: Its passages, to be read before the next file; none if it was skipped.
        skipped: Why it has no passages.
    """

    file: Path
    source: str
    stamp: Stamp | None
    passages: Iterator[Passage]
    skipped: SkippedFile | None


def load_documents(paths: Sequence[Path | str], progress: ReadProgress | None = None) -> Documents:
    """Read files and folders into passages.

    Folders are read with all their subfolders. Hidden files are left out; files of other kinds,
    links that lead out of a folder and everything that is no regular file are reported. Passages
    keep their page (.pdf) and the headings above them (.md, .html, .docx, .epub, .rst, .org).

    Args:
        paths: Files or folders.
        progress: Called at the start and after each file.

    Returns:
        The passages, and the files that could not be read.

    Raises:
        ValueError: A path does not exist or is of another kind, or no file could be read.
        MissingExtraError: No file could be read because the extra `documents` is missing.
    """
    documents = Documents()
    for file in read_files(find_files(paths), documents, progress):
        documents.passages.extend(file.passages)
    documents.check()
    return documents


def _nothing_read(skipped: Sequence[SkippedFile]) -> str:
    shown = [f"{file.path}: {file.reason}" for file in skipped[:3]]
    more = len(skipped) - len(shown)
    reasons = "; ".join([*shown, f"and {more} more"] if more else shown)
    return f"no passage could be read ({reasons})"


def ignored_summary(ignored: Sequence[IgnoredFiles]) -> str:
    """Say how many files were of unknown kinds; empty if there were none.

    >>> ignored_summary([IgnoredFiles(".png", 9, "pictures/a.png")])
    '9 files skipped by type: .png 9 (for example pictures/a.png)'
    """
    if not ignored:
        return ""
    total = sum(kind.files for kind in ignored)
    kinds = ", ".join(f"{kind.suffix or 'no suffix'} {kind.files}" for kind in ignored)
    counted = "1 file" if total == 1 else f"{total} files"
    return f"{counted} skipped by type: {kinds} (for example {ignored[0].example})"


# Finding


def find_files(paths: Sequence[Path | str]) -> Found:
    """List the files to read, each once, in a fixed order.

    Raises:
        ValueError: A path does not exist, is neither file nor folder, is of another kind, or is a
            folder without any such file.
    """
    if not paths:
        raise ValueError("no paths given: give files or folders to index")
    found = Found()
    files: dict[Path, tuple[Path, str]] = {}
    others: dict[str, IgnoredFiles] = {}
    for path in map(Path, paths):
        for file, source in _expand(path, found.skipped):
            suffix = file.suffix.lower()
            if suffix in KINDS:
                files.setdefault(file.resolve(), (file, source))
            else:
                known = others.get(suffix, IgnoredFiles(suffix, 0, source))
                others[suffix] = IgnoredFiles(suffix, known.files + 1, known.example)
    found.files = list(files.values())
    found.ignored = sorted(others.values(), key=lambda kind: (-kind.files, kind.suffix))
    return found


def _expand(path: Path, skipped: list[SkippedFile]) -> list[tuple[Path, str]]:
    kinds = " ".join((*_TEXTS, *ROWS, *PARSERS, "or source code"))
    if path.is_dir():
        files = sorted(_walk(path, skipped), key=lambda file: (file.is_symlink(), file))
        if not any(file.suffix.lower() in KINDS for file in files):
            raise ValueError(f"{path} contains no file of a known kind ({kinds})")
        return [(file, readable(file.relative_to(path))) for file in files]
    if not path.exists():
        raise ValueError(f"{path} does not exist: give files or folders")
    if not path.is_file():
        raise ValueError(f"{path} is not a regular file: give files or folders")
    if path.suffix.lower() not in KINDS:
        raise ValueError(f"{path} is of an unknown kind: use {kinds}")
    return [(path, readable(Path(path.name)))]


def readable(path: Path) -> str:
    """Return a path as text, with bytes that are not UTF-8 escaped."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _walk(top: Path, skipped: list[SkippedFile]) -> Iterator[Path]:
    """Yield the regular files below a folder, skipping folders reached twice by links."""
    real_top = os.path.realpath(top)
    seen: set[str] = set()

    def skip(path: Path, reason: str) -> None:
        skipped.append(SkippedFile(readable(path), reason))

    def cannot_list(error: OSError) -> None:
        skip(Path(error.filename), error.strerror or "it cannot be listed")

    def leads_out(path: Path) -> bool:
        if not path.is_symlink() or Path(os.path.realpath(path)).is_relative_to(real_top):
            return False
        if path.exists():
            skip(path, f"it is a link that leads out of {top}")
        return True

    tops = [top]
    for each in tops:  # grows by links to folders, which come after the folders themselves
        for folder, subfolders, names in os.walk(each, onerror=cannot_list):
            real = os.path.realpath(folder)
            if real in seen:
                subfolders.clear()
                continue
            seen.add(real)
            visible = [Path(folder, name) for name in sorted(subfolders) if name[0] != "."]
            subfolders[:] = [path.name for path in visible if not path.is_symlink()]
            tops += [path for path in visible if path.is_symlink() and not leads_out(path)]
            for file in (Path(folder, name) for name in names if name[0] != "."):
                if leads_out(file):
                    continue
                if file.is_file():
                    yield file
                elif file.exists():
                    skip(file, "it is not a regular file")


def stamp_of(file: Path) -> Stamp | None:
    """Return the stamp of a file, or None if it is gone."""
    try:
        status = file.stat()
    except OSError:
        return None
    return Stamp(status.st_size, status.st_mtime_ns)


# Reading


def read_files(
    found: Found, report: ReadReport, progress: ReadProgress | None = None
) -> Iterator[FilePassages]:
    """Read files one by one; the passages of .csv and .jsonl files are not held in memory.

    Args:
        found: The files, from `find_files`.
        report: Filled on the way; call its `check` after the last file.
        progress: Called at the start and after each file.

    Yields:
        Every file in order, with its passages, those that cannot be read too.
    """
    report.skipped.extend(found.skipped)
    report.ignored.extend(found.ignored)
    with closing(Worker()) as worker:
        for done, (file, source) in enumerate(found.files):
            if progress:
                progress(done, len(found.files))
            yield read_file(file, source, worker, report)
    if progress:
        progress(len(found.files), len(found.files))


def read_file(file: Path, source: str, worker: Worker, report: ReadReport) -> FilePassages:
    """Read one file, see `read_files`; `worker` parses it if its kind needs that."""
    stamp = stamp_of(file)
    before = len(report.skipped)
    passages = _reported(file, _passages(file, source, worker, report), report)
    first = next(passages, None)
    if first is not None:
        report.files += 1
        return FilePassages(file, source, stamp, chain((first,), passages), None)
    if len(report.skipped) == before:
        report.skipped.append(SkippedFile(readable(file), NO_TEXT))
    return FilePassages(file, source, stamp, iter(()), report.skipped[before])


def _reported(file: Path, passages: Iterator[Passage], report: ReadReport) -> Iterator[Passage]:
    """Yield the passages of a file; report the error that ends them."""
    try:
        yield from passages
    except MissingExtraError as error:
        report.missing = error
        report.skipped.append(SkippedFile(readable(file), str(error)))
    except Exception as error:  # the parsers' errors have no common base class
        report.skipped.append(SkippedFile(readable(file), reason(error)))


def _passages(file: Path, source: str, worker: Worker, report: ReadReport) -> Iterator[Passage]:
    kind = file.suffix.lower()
    if not stat.S_ISREG(file.stat().st_mode):
        raise ValueError("it is not a regular file")
    if kind in ROWS:
        with closing(_BadRows(file, report.skipped)) as bad:
            for section in ROWS[kind](file, source, bad):
                yield from _split(section, source)
        return
    check_size(file)
    if kind in _CODE:
        title = PurePosixPath(source).name
        for chunk in _code_splitter(_CODE[kind]).split_text(read_text(file)):
            yield make_passage(title, chunk, source)
        return
    for section in _TEXTS[kind](file, source) if kind in _TEXTS else _parsed(file, source, worker):
        yield from _split(section, source)


def check_size(file: Path) -> None:
    """Raise ValueError for a file that is too large to be read whole."""
    kind = file.suffix.lower()
    most = MAX_MARKUP_BYTES if kind in (".html", ".htm", ".rst") else MAX_FILE_BYTES
    if (size := file.stat().st_size) > most:
        raise ValueError(
            f"it has {size >> 20} MB, and {file.suffix} files are read up to {most >> 20} MB: "
            "split it, or convert it to .jsonl"
        )


def _parsed(file: Path, source: str, worker: Worker) -> list[Section]:
    kind = file.suffix.lower()
    for package in PACKAGES[PARSERS[kind]]:
        if find_spec(package) is None:
            raise MissingExtraError(
                f"reading {kind} needs {package}: pip install 'hopgate[documents]'"
            )
    return worker.parse(file, source)


def _txt(file: Path, source: str) -> Iterator[Section]:
    yield Section([stem(source)], unwrap(without_contents(read_text(file))))


def _markdown(file: Path, source: str) -> Iterator[Section]:
    """Split at headings; a passage's title is the headings above it, `Document > Section`."""
    from langchain_text_splitters import MarkdownHeaderTextSplitter

    text = without_contents(read_text(file))
    for section in MarkdownHeaderTextSplitter(_HEADINGS).split_text(text):
        headings = [section.metadata[key] for _, key in _HEADINGS if key in section.metadata]
        yield Section(headings or [stem(source)], section.page_content)


def _org(file: Path, source: str) -> Iterator[Section]:
    text = without_contents(read_text(file))
    title = found[1].strip() if (found := _ORG_TITLE.search(text)) else stem(source)
    before, *rest = _ORG_HEADING.split(text)
    parts: list[tuple[int | None, str]] = [(None, _ORG_MARKUP.sub("", before))]
    for stars, heading, below in zip(*[iter(rest)] * 3, strict=True):
        parts += [(len(stars), heading.strip()), (None, _ORG_MARKUP.sub("", below))]
    return sections(title, parts)


_TEXTS: dict[str, Callable[[Path, str], Iterator[Section]]] = {
    ".txt": _txt,
    ".md": _markdown,
    ".org": _org,
}


# Rows


class _BadRows:
    """Reports the bad rows of a file: the first ones by their line, and how many more."""

    def __init__(self, file: Path, skipped: list[SkippedFile]) -> None:
        self._path, self._skipped, self.count = readable(file), skipped, 0

    def add(self, line: int, reason: object) -> None:
        self.count += 1
        if self.count <= MAX_BAD_ROWS:
            self._skipped.append(SkippedFile(f"{self._path}:{line}", str(reason)))

    def close(self) -> None:
        if (more := self.count - MAX_BAD_ROWS) > 0:
            self._skipped.append(SkippedFile(self._path, f"{more} more rows cannot be read"))


def _jsonl(file: Path, source: str, bad: _BadRows) -> Iterator[Section]:
    with file.open(encoding=encoding_of(file), errors="replace", newline="\n") as lines:
        for number, line in _lines(lines):
            try:
                if line is None or line.strip():
                    title, text = _row(parse_object(_whole(line)))
                    yield Section([title], text)
            except ValueError as error:
                bad.add(number, error)


def _lines(file: TextIO) -> Iterator[tuple[int, str | None]]:
    """Yield the lines of a file with their numbers; None for a line that is too long."""
    number = 0
    while line := file.readline(MAX_ROW_CHARACTERS):
        number += 1
        whole = len(line) < MAX_ROW_CHARACTERS
        yield number, line if whole else None
        while not whole and line:
            line = file.readline(MAX_ROW_CHARACTERS)
            whole = len(line) < MAX_ROW_CHARACTERS


def _whole(line: str | None) -> str:
    if line is None:
        raise ValueError(f"it is over {MAX_ROW_CHARACTERS} characters long")
    return line


def _row(fields: dict[str, Any]) -> tuple[str, str]:
    """Return a row's title and text; an empty text makes no passage."""
    if "text" not in fields:
        raise ValueError('text is missing; a row is {"title": "…", "text": "…"}')
    for name in ("title", "text"):
        if not isinstance(value := fields.get(name), str | None):
            raise ValueError(f"{name} is {shown(value)}; it must be a string")
    return fields.get("title") or "", fields["text"] or ""


def _csv(file: Path, source: str, bad: _BadRows) -> Iterator[Section]:
    """Read the columns `text` and `title` if there are such, else each row as `name: cell. …`."""
    with file.open(encoding=encoding_of(file), errors="replace", newline="") as lines:
        first = lines.readline(GUESS_BYTES)
        lines.seek(0)
        rows = _csv_rows(_lines(lines), max(",;\t|", key=first.count), bad)
        names = [name.strip() for name in next(rows, [])]
        if bad.count:  # what was read is not the first row
            return
        lower = [name.lower() for name in names]
        for row in rows:
            cells = dict(zip(lower, (cell.strip() for cell in row), strict=False))
            if "text" in lower:
                yield Section([cells.get("title", "")], cells.get("text", ""))
                continue
            named = (
                f"{name}: {cells[key]}"
                for name, key in zip(names, lower, strict=True)
                if cells.get(key)
            )
            yield Section([stem(source)], ". ".join(named))


def _csv_rows(
    lines: Iterator[tuple[int, str | None]], delimiter: str, bad: _BadRows
) -> Iterator[list[str]]:
    """Yield the rows of a .csv file.

    After a quotation mark that is never closed, reading goes on with the next line.
    """
    csv.field_size_limit(max(MAX_ROW_CHARACTERS, csv.field_size_limit()))
    again: deque[tuple[int, str | None]] = deque()
    taken: list[tuple[int, str | None]] = []
    ended = False

    def row_lines() -> Iterator[str]:
        nonlocal ended
        left = MAX_ROW_CHARACTERS
        while numbered := again.popleft() if again else next(lines, None):
            taken.append(numbered)
            left -= len(_whole(numbered[1]))
            yield _whole(numbered[1] if left >= 0 else None)
        ended = True

    open_quotes = 0
    while not ended or again:
        taken.clear()
        ended = False
        try:
            row = next(csv.reader(row_lines(), delimiter=delimiter), None)
            if ended and len(taken) > 1:  # it asked for a line after the last
                raise ValueError("its quotation mark is never closed")
        except (ValueError, csv.Error) as error:
            bad.add(taken[0][0], error)
            again.extendleft(reversed(taken[1:]))
            open_quotes += len(taken) > 1
            if open_quotes > _MAX_OPEN_QUOTES:
                raise ValueError("it has too many quotation marks that are never closed") from error
        else:
            if row is not None:
                yield row


ROWS: dict[str, Callable[[Path, str, _BadRows], Iterator[Section]]] = {
    ".csv": _csv,
    ".jsonl": _jsonl,
}
"""Kinds that are read row by row, whatever their size."""

KINDS = (*_TEXTS, *ROWS, *PARSERS, *_CODE)
"""Suffixes of the files that are read."""


# Splitting


def _split(section: Section, source: str) -> Iterator[Passage]:
    headings, text, page = section
    title, below = " > ".join(headings), " > ".join(headings[1:])
    size = DENSE_CHUNK_CHARACTERS if is_dense(text) else CHUNK_CHARACTERS
    for chunk in _splitter(size).split_text(text):
        if chunk.strip():
            yield make_passage(title, chunk, source, page, below)


@lru_cache(maxsize=2)
def _splitter(size: int) -> TextSplitter:
    from langchain_text_splitters import RecursiveCharacterTextSplitter

    return RecursiveCharacterTextSplitter(
        chunk_size=size,
        chunk_overlap=size // _CHUNK_TO_OVERLAP,
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
