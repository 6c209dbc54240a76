"""Files of questions, one JSON object a line: what is usable is read, the rest is named."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from hopgate.nodes.text import normalise

SURROGATE = re.compile("[\ud800-\udfff]")
_BOM = b"\xef\xbb\xbf"


class Identified(Protocol):
    """A row that has an id."""

    @property
    def id(self) -> str:
        """Unique within its file."""


Row = TypeVar("Row", bound=Identified)


class BadRow(NamedTuple):
    """A line that holds no usable question.

    Attributes:
        line: Counted from 1.
        reason: What is wrong with it.
    """

    line: int
    reason: str


def read_rows(
    path: Path, parse: Callable[[dict[str, Any], int], Row], id_name: str, kind: str, skip_bad: bool
) -> tuple[list[Row], list[BadRow]]:
    """Reads and checks a file.

    Args:
        path: The file, UTF-8 with or without a byte order mark. Empty lines are passed over.
        parse: Makes a row of a line's fields and its number; a ValueError says what is wrong.
        id_name: The field of the id.
        kind: What the file should be, for messages.
        skip_bad: Leave bad rows out, and return them, instead of refusing the file.

    Raises:
        ValueError: If the file is missing or no row can be read from it, or without `skip_bad`,
            if a row is bad. The message names file and line.
    """
    if not path.is_file():
        raise ValueError(f"{path} does not exist or is no file; give {kind}")
    rows: dict[str, Row] = {}
    bad: list[BadRow] = []
    for number, line in _lines(path):
        try:
            row = parse(_fields(line), number)
            if row.id in rows:
                raise ValueError(f"{id_name} {row.id!r} appears twice")
        except ValueError as error:
            bad.append(BadRow(number, str(error)))
        else:
            rows[row.id] = row
    if bad and not skip_bad:
        more = f" ({len(bad) - 1} more bad rows follow)" if bad[1:] else ""
        raise ValueError(
            f"{path}:{bad[0].line}: {bad[0].reason}{more}; correct the file, or go on without "
            "bad rows with --skip-bad-rows"
        )
    if not rows:
        why = f"{len(bad)} bad rows, the first: {bad[0].reason}" if bad else "it is empty"
        raise ValueError(f"{path} holds no questions ({why}); give {kind}")
    return list(rows.values()), bad


def data_summary(path: Path, rows: int, bad_rows: int) -> dict[str, Any]:
    """What a report says about its data: `name`, `sha256`, `rows` and `bad_rows`.

    Args:
        path: The file.
        rows: How many of its questions were asked.
        bad_rows: How many lines were left out.
    """
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return {"name": path.name, "sha256": digest, "rows": rows, "bad_rows": bad_rows}


def row_id(name: str, value: Any, made: str) -> str:
    """An id that is a text or a whole number; `made` where there is none."""
    if value is None:
        return made
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return text(name, value)


def text(name: str, value: Any) -> str:
    """A field that is a text with something in it, stripped.

    Raises:
        ValueError: If it is none.
    """
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} is {shown(value)}; it must be a non-empty string")
    if SURROGATE.search(value):
        raise ValueError(f"{name} holds half of a character (a lone surrogate)")
    return value.strip()


def golds(name: str, value: Any) -> tuple[str, ...]:
    """Accepted answers: a list, a list written as JSON in a string, or one answer.

    Raises:
        ValueError: If it is none of these, or nothing can be matched with any of them.
    """
    if isinstance(value, str):
        value = _written_list(value)
    if not isinstance(value, list) or not all(isinstance(gold, str) for gold in value):
        raise ValueError(f"{name} is {shown(value)}; it must list strings")
    if not value:
        raise ValueError(f"{name} is an empty list; a question needs an accepted answer")
    if not any(map(normalise, value)):
        raise ValueError(
            f"{name} {shown(value)} is only articles and punctuation, which nothing can be "
            "matched with"
        )
    if any(map(SURROGATE.search, value)):
        raise ValueError(f"{name} holds half of a character (a lone surrogate)")
    return tuple(value)


def shown(value: Any) -> str:
    """A value for a message, not too long."""
    written = repr(value)
    return written if len(written) <= 60 else f"{written[:57]}…"


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(path.read_bytes().removeprefix(_BOM).split(b"\n"), 1):
        if line.strip():
            yield number, line


def _fields(line: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 ({error.reason} at byte {error.start + 1})") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at column {error.colno})") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error})") from error
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    return fields


def _written_list(value: str) -> list[str]:
    """The list that a string holds as JSON; else the string as the only answer."""
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return [value]
    held = isinstance(found, list) and all(isinstance(gold, str) for gold in found)
    return found if held else [value]
