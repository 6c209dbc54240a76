"""Finding the files to read, each once: below folders, without links that lead out of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from hopgate.retrievers.documents.cutting import CODE

ROWS, TEXTS = (".csv", ".jsonl"), (".txt", ".md", ".org")
PAGES = (".html", ".htm")
PARSED = (*PAGES, ".pdf", ".docx", ".epub", ".rst")
DOCUMENTS = (*TEXTS, *ROWS, *PARSED)
KINDS = (*DOCUMENTS, *CODE)
"""Suffixes of the files that are read."""

_GENERATED = re.compile(
    r"(?P<search_index>(.*[-_.])?(search[-_.]?(index|data)|searchindex|lunr)[^.]*\.js(on)?)"
    r"|(?P<index_page>(genindex.*|py-modindex|index-all|allclasses.*)\.html?)"
    r"|(?P<minified>.*[-.]min\.(m?js|css))|(?P<source_map>.*\.map)"
    r"|(?P<lock_file>.*\.lock|.*[-.]lock\.(json|ya?ml)|npm-shrinkwrap\.json|go\.sum)"
)
"""Names of the files that generators write for themselves, by kind."""
_SCRIPTS = (".js", ".mjs", ".ts")
_LONG_LINE = 5_000
"""Length of a first line from which a script counts as minified."""
_SAMPLED_PAGES = 6
_MOST_FILES = 1_000
"""Files of a folder among which its first pages are looked for."""


@dataclass(frozen=True)
class SkippedFile:
    """A file (or row of a file, `path:line`) without passages, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class IgnoredFiles:
    """The files of one kind below the folders that is not read.

    Attributes:
        suffix: Their suffix in lower case, such as `.png` (may be empty), or for what generators
            write for themselves, its kind: `search index`, `minified`.
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
class FoundFiles:
    """The files below some paths.

    Attributes:
        files: Files to read, each with its source: its path relative to the given folder, or its
            name. Bytes that are not UTF-8 are escaped.
        skipped: Links that lead out of their folder, pipes, unreadable folders.
        ignored: Files of kinds that are not read, by suffix or kind.
    """

    files: list[tuple[Path, str]] = field(default_factory=list)
    skipped: list[SkippedFile] = field(default_factory=list)
    ignored: list[IgnoredFiles] = field(default_factory=list)


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


def find_files(paths: Sequence[Path | str]) -> FoundFiles:
    """List the files to read, each once, in a fixed order.

    Raises:
        ValueError: A path does not exist, is neither file nor folder, is of another kind, or is a
            folder without any such file.
    """
    if not paths:
        raise ValueError("no paths given: give files or folders to index")
    found = FoundFiles()
    files: dict[Path, tuple[Path, str]] = {}
    others: dict[str, IgnoredFiles] = {}
    for path in map(Path, paths):
        for file, source in _expand(path, found.skipped):
            suffix = file.suffix.lower()
            if file != path:
                suffix = generated(file) or suffix
            if suffix in KINDS:
                files.setdefault(file.resolve(), (file, source))
            else:
                known = others.get(suffix, IgnoredFiles(suffix, 0, source))
                others[suffix] = IgnoredFiles(suffix, known.files + 1, known.example)
    found.files = list(files.values())
    found.ignored = sorted(others.values(), key=lambda kind: (-kind.files, kind.suffix))
    return found


def generated(file: Path) -> str:
    """Return the kind of a file that a generator wrote for itself; empty for any other."""
    if named := _GENERATED.fullmatch(file.name.lower()):
        return str(named.lastgroup).replace("_", " ")
    if file.suffix.lower() not in _SCRIPTS:
        return ""
    if "_static" in file.parts:
        return "page script"
    with suppress(OSError), file.open("rb") as lines:
        return "minified" if len(lines.readline(_LONG_LINE)) == _LONG_LINE else ""
    return ""


def first_pages(folder: Path) -> list[Path]:
    """Return the first pages in HTML below a folder; at most six."""
    files = sorted(islice(_walk(folder, []), _MOST_FILES))
    return [file for file in files if file.suffix.lower() in PAGES][:_SAMPLED_PAGES]


def _expand(path: Path, skipped: list[SkippedFile]) -> list[tuple[Path, str]]:
    kinds = " ".join((*DOCUMENTS, "or source code"))
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
    """Yield the regular files below a folder; links to folders are not followed."""
    real_top = os.path.realpath(top)

    def cannot_list(error: OSError) -> None:
        reason = error.strerror or "it cannot be listed"
        skipped.append(SkippedFile(readable(Path(error.filename)), reason))

    for folder, subfolders, names in os.walk(top, onerror=cannot_list):
        subfolders[:] = sorted(name for name in subfolders if name[0] != ".")
        for path in (Path(folder, name) for name in [*subfolders, *names] if name[0] != "."):
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(real_top):
                if path.exists():
                    why = f"it is a link that leads out of {top}"
                    skipped.append(SkippedFile(readable(path), why))
            elif path.is_file():
                yield path
            elif path.exists() and not path.is_dir():
                skipped.append(SkippedFile(readable(path), "it is not a regular file"))


def stamp_of(file: Path) -> Stamp | None:
    """Return the stamp of a file, or None if it is gone."""
    try:
        status = file.stat()
    except OSError:
        return None
    return Stamp(status.st_size, status.st_mtime_ns)
