"""Reading files into passages.

A file or row that cannot be read is reported with the reason, and the others are read.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from hopgate.common.errors import reason
from hopgate.retrievers.base import Passage
from hopgate.retrievers.documents.apart import Parser
from hopgate.retrievers.documents.cutting import CODE, Section, cut, cut_code
from hopgate.retrievers.documents.finding import (
    PAGES,
    FoundFiles,
    IgnoredFiles,
    SkippedFile,
    Stamp,
    find_files,
    first_pages,
    readable,
    stamp_of,
)
from hopgate.retrievers.documents.markdown import parts, sections, stem
from hopgate.retrievers.documents.parsers import MIN_PAGES
from hopgate.retrievers.documents.plaintext import (
    is_restructured,
    read_text,
    unwrap,
    without_contents,
)
from hopgate.retrievers.documents.rows import ROWS, BadRows

NO_TEXT = "it contains no text"
"""Why a file that could be read has no passages."""

MAX_FILE_BYTES = 128 << 20
"""Largest file that is read whole; .csv and .jsonl are read row by row, at any size."""
MAX_MARKUP_BYTES = 16 << 20
"""Largest .html or .rst file: its parser takes up to a hundred times as much memory."""

ReadProgress = Callable[[int, int], None]
"""Called with the number of files read so far and their total."""


@dataclass
class ReadReport:
    """The outcome of reading files, filled while they are read.

    Attributes:
        files: Number of files with passages.
        skipped: Files and rows without.
        ignored: Files of unknown kinds, by suffix.
        missing: Names the extra `documents`, if a file needed it and it is not installed.
    """

    files: int = 0
    skipped: list[SkippedFile] = field(default_factory=list)
    ignored: list[IgnoredFiles] = field(default_factory=list)
    missing: str = ""

    def check(self) -> None:
        """Check that there were passages, after the last file.

        Raises:
            ValueError: No file could be read; the message says why.
            RuntimeError: No file could be read because the extra `documents` is missing.
        """
        if self.files:
            return
        if self.missing:
            raise RuntimeError(self.missing)
        reasons = [f"{file.path}: {file.reason}" for file in self.skipped[:3]]
        if more := len(self.skipped) - len(reasons):
            reasons.append(f"and {more} more")
        raise ValueError(f"no passage could be read ({'; '.join(reasons)})")


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


@dataclass
class Documents(ReadReport):
    """The passages of some files, in the order of the files; content may appear twice."""

    passages: list[Passage] = field(default_factory=list)


def load_documents(paths: Sequence[Path | str], progress: ReadProgress | None = None) -> Documents:
    """Read files and folders into passages.

    Folders are read with all their subfolders. Hidden files are left out; files of other kinds,
    links that lead out of a folder and everything that is not a regular file are reported. Passages
    keep their page (.pdf) and the headings above them (.md, .html, .docx, .epub, .rst).

    Args:
        paths: Files or folders.
        progress: Called at the start and after each file.

    Returns:
        The passages, and the files that could not be read.

    Raises:
        ValueError: A path does not exist or is of another kind, or no file could be read.
        RuntimeError: No file could be read because the extra `documents` is missing.
    """
    documents = Documents()
    for file in read_files(find_files(paths), documents, progress):
        documents.passages.extend(file.passages)
    documents.check()
    return documents


def read_files(
    found: FoundFiles, report: ReadReport, progress: ReadProgress | None = None
) -> Iterator[FilePassages]:
    """Read files one by one; passages of .csv and .jsonl files are streamed.

    Args:
        found: The files, from `find_files`.
        report: Filled on the way; call its `check` after the last file.
        progress: Called at the start and after each file.

    Yields:
        Every file in order with its passages, unreadable ones included.
    """
    report.skipped.extend(found.skipped)
    report.ignored.extend(found.ignored)
    total = len(found.files)
    with closing(Parser()) as parser:
        near = Neighbours(parser)
        for done, (file, source) in enumerate(found.files):
            if progress:
                progress(done, total)
            yield read_file(file, source, parser, report, near.repeated(file, source))
    if progress:
        progress(total, total)


class Neighbours:
    """Tells which blocks the pages around a page share: its site's menus, headers and footers.

    Args:
        parser: The process that reads pages.
    """

    def __init__(self, parser: Parser) -> None:
        """Remember each folder's."""
        self._pages = cache(first_pages)
        self._repeated = cache(lambda folder: parser.repeated_blocks(self._pages(folder)))

    def repeated(self, file: Path, source: str) -> Sequence[str]:
        """Return the blocks of a page that most pages of its folder, or of one above, have."""
        if file.suffix.lower() not in PAGES:
            return ()
        above = file.parents[: len(PurePosixPath(source).parts)]
        known = (each for each in above if len(self._pages(each)) >= MIN_PAGES)
        return self._repeated(next(known, above[-1]))


def read_file(
    file: Path, source: str, parser: Parser, report: ReadReport, repeated: Sequence[str] = ()
) -> FilePassages:
    """Read one file, by `parser` if its kind needs that; errors go to the report."""
    stamp = stamp_of(file)
    before = len(report.skipped)
    passages = _reported(file, _passages(file, source, parser, report, repeated), report)
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
    except Exception as error:  # the parsers' errors have no common base class
        report.skipped.append(SkippedFile(readable(file), reason(error)))
        if isinstance(error, RuntimeError):
            report.missing = reason(error)


def _passages(
    file: Path, source: str, parser: Parser, report: ReadReport, repeated: Sequence[str]
) -> Iterator[Passage]:
    kind = file.suffix.lower()
    if not stat.S_ISREG(file.stat().st_mode):
        raise ValueError("it is not a regular file")
    if kind in ROWS:
        with closing(BadRows(file, report.skipped)) as bad:
            for section in ROWS[kind](file, source, bad):
                yield from cut(section, source)
        return
    most = MAX_MARKUP_BYTES if kind in (*PAGES, ".rst") else MAX_FILE_BYTES
    if (size := file.stat().st_size) > most:
        raise ValueError(
            f"it has {size >> 20} MB, and {file.suffix} files are read up to {most >> 20} MB: "
            "split it, or convert it to .jsonl"
        )
    if kind in CODE:
        yield from cut_code(read_text(file), kind, PurePosixPath(source).name, source)
        return
    if kind == ".txt" and size <= MAX_MARKUP_BYTES and find_spec("docutils"):
        kind = ".rst" if is_restructured(read_text(file)) else kind
    read = _TEXTS.get(kind)
    parsed = read(file, source) if read else parser.parse(file, kind, source, repeated)
    for section in parsed:
        yield from cut(section, source)


def _txt(file: Path, source: str) -> Iterator[Section]:
    yield Section([stem(source)], unwrap(without_contents(read_text(file))))


def _markdown(file: Path, source: str) -> Iterator[Section]:
    """Split at headings; a passage's title is the headings above it, `Document > Section`."""
    for section in sections("", parts(read_text(file))):
        yield section._replace(headings=section.headings[1:] or [stem(source)])


_TEXTS: dict[str, Callable[[Path, str], Iterator[Section]]] = {
    ".txt": _txt,
    ".md": _markdown,
    ".org": _txt,
}
