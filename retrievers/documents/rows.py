"""Files of rows, read one row at a time whatever their size: .jsonl and .csv."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from hopgate.common.files import parse_object, shown
from hopgate.retrievers.documents.cutting import Section
from hopgate.retrievers.documents.finding import SkippedFile, readable
from hopgate.retrievers.documents.markdown import stem
from hopgate.retrievers.documents.plaintext import GUESS_BYTES, encoding_of

MAX_ROW_CHARACTERS = 16 << 20
"""Longest row of a .csv or .jsonl file."""
MAX_BAD_ROWS = 10
"""Maximum number of bad rows of a file that are reported one by one."""


class BadRows:
    """Reports the bad rows of a file: the first ones by their line, and how many more."""

    def __init__(self, file: Path, skipped: list[SkippedFile]) -> None:
        """Report to `skipped`."""
        self._path, self._skipped, self._count = readable(file), skipped, 0

    def add(self, line: int, reason: object) -> None:
        """Report the row at a line."""
        self._count += 1
        if self._count <= MAX_BAD_ROWS:
            self._skipped.append(SkippedFile(f"{self._path}:{line}", str(reason)))

    def close(self) -> None:
        """Report how many more there were."""
        if (more := self._count - MAX_BAD_ROWS) > 0:
            self._skipped.append(SkippedFile(self._path, f"{more} more rows cannot be read"))


def _jsonl(file: Path, source: str, bad: BadRows) -> Iterator[Section]:
    with file.open(encoding=encoding_of(file), errors="replace", newline="\n") as lines:
        for number, line in enumerate(_lines(lines), start=1):
            try:
                if line.strip():
                    title, text = _row(parse_object(line))
                    yield Section([title], text)
            except ValueError as error:
                bad.add(number, error)


def _lines(file: TextIO) -> Iterator[str]:
    """Yield the lines of a file.

    Raises:
        ValueError: A line is too long.
    """
    for number, line in enumerate(iter(lambda: file.readline(MAX_ROW_CHARACTERS), ""), start=1):
        if len(line) == MAX_ROW_CHARACTERS:
            raise ValueError(
                f"line {number} is over {MAX_ROW_CHARACTERS} characters long; the file is read up "
                "to there"
            )
        yield line


def _row(fields: dict[str, Any]) -> tuple[str, str]:
    """Return a row's title and text; an empty text makes no passage."""
    if "text" not in fields:
        raise ValueError('text is missing; a row is {"title": "…", "text": "…"}')
    for name in ("title", "text"):
        if not isinstance(value := fields.get(name), str | None):
            raise ValueError(f"{name} is {shown(value)}; it must be a string")
    return fields.get("title") or "", fields["text"] or ""


def _csv(file: Path, source: str, bad: BadRows) -> Iterator[Section]:
    """Read the columns `text` and `title` if there are such, else each row as `name: cell. …`."""
    with file.open(encoding=encoding_of(file), errors="replace", newline="") as lines:
        first = lines.readline(GUESS_BYTES)
        lines.seek(0)
        rows = _csv_rows(lines, max(",;\t|", key=first.count), bad)
        names = [name.strip() for name in next(rows, [])]
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


def _csv_rows(lines: TextIO, delimiter: str, bad: BadRows) -> Iterator[list[str]]:
    """Yield the rows of a .csv file, up to a quotation mark that is never closed."""
    csv.field_size_limit(max(MAX_ROW_CHARACTERS, csv.field_size_limit()))
    ended = False

    def until_end() -> Iterator[str]:
        nonlocal ended
        yield from _lines(lines)
        ended = True

    reader, line = csv.reader(until_end(), delimiter=delimiter), 1
    for row in reader:
        if ended:  # the row asked for a line after the last
            bad.add(line, "its quotation mark is never closed; the file is read up to there")
            return
        line = reader.line_num + 1
        yield row


ROWS: dict[str, Callable[[Path, str, BadRows], Iterator[Section]]] = {
    ".csv": _csv,
    ".jsonl": _jsonl,
}
