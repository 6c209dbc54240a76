"""Reading files into passages.

A file or row that cannot be read is reported with the reason, and the others are read.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from hopgate.common.errors import reason
from hopgate.common.workers import OwnProcess
from hopgate.retrievers.base import Passage
from hopgate.retrievers.documents.cutting import CODE, Section, cut, cut_code
from hopgate.retrievers.documents.finding import (
    FoundFiles,
    IgnoredFiles,
    SkippedFile,
    Stamp,
    find_files,
    readable,
    stamp_of,
)
from hopgate.retrievers.documents.parsers import (
    PACKAGES,
    PARSERS,
    parse_apart,
    parsing_process,
    sections,
    stem,
)
from hopgate.retrievers.documents.plaintext import read_text, unwrap, without_contents
from hopgate.retrievers.documents.rows import ROWS, BadRows

NO_TEXT = "it contains no text"
"""Why a file that could be read has no passages."""

MAX_FILE_BYTES = 128 << 20
"""Largest file that is read whole; .csv and .jsonl are read row by row, at any size."""
MAX_MARKUP_BYTES = 16 << 20
"""Largest .html or .rst file: its parser takes up to a hundred times as much memory."""

_HEADINGS = [("#", "1"), ("##", "2"), ("###", "3")]
_ORG_HEADING = re.compile(r"^(\*+)[ \t]+(.*)$", re.MULTILINE)
_ORG_TITLE = re.compile(r"^#\+title:[ \t]*(.+)$", re.MULTILINE | re.IGNORECASE)
_ORG_MARKUP = re.compile(r"^[ \t]*(#\+|:[\w-]+:[ \t]*$).*\n?", re.MULTILINE)

ReadProgress = Callable[[int, int], None]
"""Called with the number of files read so far and their total."""


class MissingExtraError(RuntimeError):
    """A kind of file needs a package that is not installed."""


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


def read_files(
    found: FoundFiles, report: ReadReport, progress: ReadProgress | None = None
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
    with closing(parsing_process()) as worker:
        for done, (file, source) in enumerate(found.files):
            if progress:
                progress(done, len(found.files))
            yield read_file(file, source, worker, report)
    if progress:
        progress(len(found.files), len(found.files))


def read_file(file: Path, source: str, worker: OwnProcess, report: ReadReport) -> FilePassages:
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


def _passages(file: Path, source: str, worker: OwnProcess, report: ReadReport) -> Iterator[Passage]:
    kind = file.suffix.lower()
    if not stat.S_ISREG(file.stat().st_mode):
        raise ValueError("it is not a regular file")
    if kind in ROWS:
        with closing(BadRows(file, report.skipped)) as bad:
            for section in ROWS[kind](file, source, bad):
                yield from cut(section, source)
        return
    check_size(file)
    if kind in CODE:
        yield from cut_code(read_text(file), kind, PurePosixPath(source).name, source)
        return
    for section in _TEXTS[kind](file, source) if kind in _TEXTS else _parsed(file, source, worker):
        yield from cut(section, source)


def check_size(file: Path) -> None:
    """Raise ValueError for a file that is too large to be read whole."""
    kind = file.suffix.lower()
    most = MAX_MARKUP_BYTES if kind in (".html", ".htm", ".rst") else MAX_FILE_BYTES
    if (size := file.stat().st_size) > most:
        raise ValueError(
            f"it has {size >> 20} MB, and {file.suffix} files are read up to {most >> 20} MB: "
            "split it, or convert it to .jsonl"
        )


def _parsed(file: Path, source: str, worker: OwnProcess) -> list[Section]:
    kind = file.suffix.lower()
    for package in PACKAGES[PARSERS[kind]]:
        if find_spec(package) is None:
            raise MissingExtraError(
                f"reading {kind} needs {package}: pip install 'hopgate[documents]'"
            )
    return parse_apart(worker, file, source)


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
