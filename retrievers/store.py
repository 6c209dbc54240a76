"""The passages of an index on disk: one read-only SQLite file, looked up by position."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import Lock
from urllib.parse import quote

from hopgate.retrievers.base import Passage

_SCHEMA = """
CREATE TABLE passages (
    position INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    title TEXT NOT NULL,
    text TEXT NOT NULL,
    source TEXT NOT NULL,
    page INTEGER
)
"""
_LOOKUP_CHUNK = 500
"""Positions asked for in one statement; SQLite's oldest limit on parameters is 999."""


def write_passages(path: Path, passages: Iterable[Passage]) -> int:
    """Write a new store; a passage's position is its place in `passages`, from 0.

    Args:
        path: the file to create; it must not exist.
        passages: each id only once.

    Returns:
        The number of passages written.
    """
    rows = (
        (position, p["id"], p["title"], p["text"], p["source"], p.get("page"))
        for position, p in enumerate(passages)
    )
    connection = sqlite3.connect(path)
    try:
        connection.execute(_SCHEMA)
        count = connection.executemany("INSERT INTO passages VALUES (?, ?, ?, ?, ?, ?)", rows)
        connection.commit()
    finally:
        connection.close()
    return count.rowcount


class PassageStore:
    """A store opened for reading, for use from any number of threads.

    The file is taken as immutable: a new version of an index is a new file, and a reader keeps
    the one it opened.

    Args:
        path: a file that `write_passages` made.
    """

    def __init__(self, path: Path) -> None:
        """Open the file."""
        uri = f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1"
        self._connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
        self._lock = Lock()

    def __len__(self) -> int:
        """Count the passages."""
        with self._lock:
            (count,) = self._connection.execute("SELECT count(*) FROM passages").fetchone()
        return int(count)

    def get(self, positions: Sequence[int]) -> list[Passage]:
        """Read the passages at these positions, in the order asked; a position may repeat.

        Raises:
            KeyError: no passage has one of the positions.
        """
        wanted = sorted(set(positions))
        found: dict[int, Passage] = {}
        for start in range(0, len(wanted), _LOOKUP_CHUNK):
            found.update(self._read(wanted[start : start + _LOOKUP_CHUNK]))
        return [found[position] for position in positions]

    def _read(self, positions: Sequence[int]) -> dict[int, Passage]:
        marks = ",".join("?" * len(positions))
        sql = (
            "SELECT position, id, title, text, source, page FROM passages "
            f"WHERE position IN ({marks})"
        )
        with self._lock:
            rows = self._connection.execute(sql, positions).fetchall()
        return {row[0]: _passage(row[1:]) for row in rows}

    def close(self) -> None:
        """Close the file; the store cannot be read after."""
        with self._lock:
            self._connection.close()


def _passage(row: tuple[str, str, str, str, int | None]) -> Passage:
    identity, title, text, source, page = row
    passage = Passage(id=identity, title=title, text=text, source=source)
    if page is not None:
        passage["page"] = page
    return passage
