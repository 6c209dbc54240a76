"""The passages of an index on disk: one SQLite file per version, looked up by position.

A passage's position is the place of its vector, counted from 0. The same content is kept once;
when several documents hold it, the later ones are remembered beside the passage, so that it goes
only with the last of them.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from hopgate.retrievers.base import Passage, passage_id

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Positions = NDArray[np.int64]

FIELDS = ("id", "title", "text", "source", "page", "section")
"""Columns of a passage, and what a search can be filtered by."""

_SCHEMA = """
CREATE TABLE passages (
    position INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    title TEXT NOT NULL,
    text TEXT NOT NULL,
    source TEXT NOT NULL,
    page INTEGER,
    section TEXT
);
CREATE TABLE repeats (
    id TEXT NOT NULL,
    source TEXT NOT NULL,
    page INTEGER,
    section TEXT,
    PRIMARY KEY (id, source)
) WITHOUT ROWID;
"""
_INDEXES = "CREATE INDEX passages_by_source ON passages (source, position);"
_COLUMNS = ", ".join(FIELDS)
_AS_IT_IS = "?mode=ro&immutable=1"
_MAPPED = 1 << 40
"""Bytes of the file that may be memory-mapped: all of it, or as much as SQLite was built for."""
_LOOKUP_CHUNK = 500
"""Positions asked for in one statement; SQLite's oldest limit on parameters is 999."""

_GONE = """
CREATE TEMP TABLE gone_sources AS SELECT DISTINCT source FROM (
    SELECT source FROM old.passages UNION SELECT source FROM old.repeats
) WHERE EXISTS (
    SELECT 1 FROM patterns WHERE source = pattern OR (is_glob AND source GLOB pattern)
);
"""
_KEEP = f"""
INSERT INTO repeats SELECT * FROM old.repeats
    WHERE source NOT IN gone_sources AND id NOT IN gone_ids;
CREATE TEMP TABLE heirs AS
    SELECT id, min(source) AS source FROM repeats
    WHERE id IN (SELECT id FROM old.passages WHERE source IN gone_sources) GROUP BY id;
INSERT INTO passages
    SELECT row_number() OVER (ORDER BY position) - 1, {_COLUMNS} FROM (
        SELECT position, {_COLUMNS} FROM old.passages
            WHERE source NOT IN gone_sources AND id NOT IN gone_ids
        UNION ALL
        SELECT p.position, p.id, p.title, p.text, r.source, r.page, r.section
            FROM old.passages p JOIN heirs h USING (id)
            JOIN repeats r ON r.id = h.id AND r.source = h.source
    );
DELETE FROM repeats WHERE (id, source) IN (SELECT id, source FROM heirs);
"""


class PassageWriter:
    """Writes the passages of a new version, next to those of the version before.

    Args:
        path: the file to create; it must not exist.
        old: the file of the version before, if there is one.
    """

    def __init__(self, path: Path, old: Path | None = None) -> None:
        """Create the file."""
        # As a URI, so that `old` may be one: not every SQLite is built to take them everywhere.
        self._connection = sqlite3.connect(_uri(path), isolation_level=None, uri=True)
        self._old = old is not None
        run = self._connection.execute
        run("PRAGMA journal_mode = OFF")  # a file that is not finished is thrown away
        run("PRAGMA synchronous = OFF")  # the version is synced as a whole
        if old is not None:
            run("ATTACH ? AS old", [_uri(old) + _AS_IT_IS])
        run("BEGIN")
        for statement in _statements(_SCHEMA):
            run(statement)
        self._count = 0

    def keep(
        self, without: Iterable[str] = (), globs: bool = False, ids: Iterable[str] = ()
    ) -> int:
        """Take over the passages of the version before, except those of some documents.

        Args:
            without: sources to leave out.
            globs: take `without` as shell patterns too.
            ids: passages to leave out, whatever their source.

        Returns:
            How many passages were left out.
        """
        connection = self._connection
        connection.execute("CREATE TEMP TABLE patterns (pattern TEXT, is_glob INTEGER)")
        connection.executemany(
            "INSERT INTO patterns VALUES (?, ?)", ((source, globs) for source in without)
        )
        connection.execute("CREATE TEMP TABLE gone_ids (id TEXT PRIMARY KEY)")
        connection.executemany("INSERT OR IGNORE INTO gone_ids VALUES (?)", ((i,) for i in ids))
        for statement in _statements(_GONE + _KEEP):
            connection.execute(statement)
        self._count = self._one("SELECT count(*) FROM passages")
        return self._one("SELECT count(*) FROM old.passages") - self._count

    def put(self, passages: Iterable[Passage]) -> int:
        """Add passages; content that is there already is kept once.

        Returns:
            How many were given.

        Raises:
            ValueError: one has not the id of its content.
        """
        given = 0
        for passage in passages:
            given += 1
            if passage["id"] != passage_id(passage["title"], passage["text"]):
                raise ValueError(
                    f"the id of passage {passage['id']!r} does not match its content: create "
                    "passages with make_passage"
                )
            row = [passage.get(name) for name in FIELDS]
            added = self._connection.execute(
                f"INSERT OR IGNORE INTO passages VALUES (?, {', '.join('?' * len(FIELDS))})",
                [self._count, *row],
            )
            if added.rowcount:
                self._count += 1
            else:
                self._repeat(row)
        return given

    def _repeat(self, row: Sequence[Any]) -> None:
        """Remember a further document that holds a passage."""
        identity, source = row[0], row[3]
        self._connection.execute(
            "INSERT OR IGNORE INTO repeats SELECT ?, ?, ?, ? "
            "WHERE NOT EXISTS (SELECT 1 FROM passages WHERE id = ? AND source = ?)",
            [identity, *row[3:], identity, source],
        )

    def __len__(self) -> int:
        """Count the passages so far."""
        return self._count

    def unmatched(self, patterns: Sequence[str]) -> list[str]:
        """Return the patterns that match no source of the previous version."""
        sql = (
            "SELECT 1 FROM (SELECT source FROM old.passages UNION SELECT source FROM old.repeats) "
            "WHERE source = ?1 OR source GLOB ?1 LIMIT 1"
        )
        return [each for each in patterns if not self._connection.execute(sql, [each]).fetchone()]

    def unknown(self, ids: Sequence[str]) -> list[str]:
        """Return the ids that the previous version does not have."""
        sql = "SELECT 1 FROM old.passages WHERE id = ?"
        return [each for each in ids if not self._connection.execute(sql, [each]).fetchone()]

    def is_old(self) -> bool:
        """Return whether these are the passages of the previous version, in any order."""
        if not self._old:
            return False
        columns = "id, source, page, section"  # the id stands for title and text
        return all(
            self._one(f"SELECT count(*) FROM {table}")
            == self._one(f"SELECT count(*) FROM old.{table}")
            and not self._one(
                f"SELECT EXISTS (SELECT {columns} FROM main.{table} "
                f"EXCEPT SELECT {columns} FROM old.{table})"
            )
            for table in ("passages", "repeats")
        )

    def origins(self) -> Positions:
        """Return each passage's position in the previous version, -1 if it is new."""
        if not self._old:
            return np.full(self._count, -1, dtype=np.int64)
        rows = self._connection.execute(
            "SELECT coalesce(o.position, -1) FROM passages n LEFT JOIN old.passages o USING (id) "
            "ORDER BY n.position"
        )
        return np.fromiter((row[0] for row in rows), dtype=np.int64, count=self._count)

    def ids(self) -> NDArray[np.bytes_]:
        """Return the id of each passage, in the order of their positions."""
        rows = self._connection.execute("SELECT id FROM passages ORDER BY position")
        return np.fromiter((row[0].encode() for row in rows), dtype="S16", count=self._count)

    def read(self, positions: Iterable[int]) -> Iterator[Passage]:
        """Read passages that were put, one after the other."""
        sql = f"SELECT {_COLUMNS} FROM passages WHERE position = ?"
        for position in positions:
            yield _passage(self._connection.execute(sql, [position]).fetchone())

    def finish(self) -> None:
        """Complete the file and close it."""
        for statement in _statements(_INDEXES):
            self._connection.execute(statement)
        self._connection.execute("COMMIT")
        self.close()

    def close(self) -> None:
        """Close the file; one that was not finished cannot be used."""
        self._connection.close()

    def _one(self, sql: str) -> int:
        (value,) = self._connection.execute(sql).fetchone()
        return int(value)


def _statements(script: str) -> list[str]:
    return [each for each in script.split(";") if each.strip()]


def _uri(path: Path) -> str:
    return f"file:{quote(os.fsencode(path.absolute()))}"


class PassageStore:
    """A store opened for reading, for use from any number of threads.

    The file is taken as immutable: a new version of an index is a new file, and a reader keeps
    the one it opened.

    Args:
        path: A file that a `PassageWriter` finished.
    """

    def __init__(self, path: Path) -> None:
        """Open the file."""
        at = _uri(path) + _AS_IT_IS
        self._connection = sqlite3.connect(at, uri=True, check_same_thread=False)
        self._connection.execute(f"PRAGMA mmap_size = {_MAPPED}")
        self._lock = Lock()

    def __len__(self) -> int:
        """Count the passages."""
        ((count,),) = self._query("SELECT count(*) FROM passages")
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
        first, last = positions[0], positions[-1]
        if last - first < len(positions):  # in a row, which is faster
            chosen, values = "BETWEEN ? AND ?", [first, last]
        else:
            chosen, values = f"IN ({','.join('?' * len(positions))})", list(positions)
        sql = f"SELECT position, {_COLUMNS} FROM passages WHERE position {chosen}"
        return {row[0]: _passage(row[1:]) for row in self._query(sql, values)}

    def where(self, wanted: Mapping[str, str]) -> Positions:
        """Find the passages whose metadata are these.

        Args:
            wanted: field → value, all of which must hold; the fields are those of a passage. A
                `source` is found too when it is a further document of the same content.

        Returns:
            Their positions in ascending order.

        Raises:
            ValueError: there is no such field.
        """
        if unknown := sorted(wanted.keys() - set(FIELDS)):
            raise ValueError(f"unknown field {unknown[0]!r} in where: use {', '.join(FIELDS)}")
        conditions = [f"{name} = :{name}" for name in wanted]
        if "source" in wanted:
            conditions[list(wanted).index("source")] = (
                "(source = :source OR id IN (SELECT id FROM repeats WHERE source = :source))"
            )
        sql = f"SELECT position FROM passages WHERE {' AND '.join(conditions) or '1'} ORDER BY 1"
        rows = self._query(sql, wanted)
        return np.fromiter((row[0] for row in rows), dtype=np.int64, count=len(rows))

    def sources(self) -> int:
        """Count the documents that the passages come from."""
        sql = "SELECT count(*) FROM (SELECT source FROM passages UNION SELECT source FROM repeats)"
        ((count,),) = self._query(sql)
        return int(count)

    def faults(self) -> list[str]:
        """Return the faults that SQLite's integrity check finds."""
        found = [str(row[0]) for row in self._query("PRAGMA integrity_check(3)")]
        return [] if found == ["ok"] else found

    def read(self, positions: Sequence[int]) -> Iterator[Passage]:
        """Read passages one after the other, in the order asked, a few hundred at a time."""
        for start in range(0, len(positions), _LOOKUP_CHUNK):
            yield from self.get(positions[start : start + _LOOKUP_CHUNK])

    def _query(self, sql: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> list[Any]:
        with self._lock:
            return self._connection.execute(sql, values).fetchall()

    def close(self) -> None:
        """Close the file; the store cannot be read after."""
        with self._lock:
            self._connection.close()


def _passage(row: Sequence[Any]) -> Passage:
    identity, title, text, source, page, section = row
    passage = Passage(id=identity, title=title, text=text, source=source)
    if page is not None:
        passage["page"] = page
    if section is not None:
        passage["section"] = section
    return passage
