"""Tables of PostgreSQL with pgvector: an HNSW graph, and BM25 over the words of a GIN index."""

from __future__ import annotations

import atexit
import json
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any, LiteralString

import psycopg
from langchain_core.documents import Document
from psycopg import sql
from psycopg_pool import ConnectionPool

from hopgate.retrievers.filters import FIELDS, Filter, Range, has_patterns, same, split
from hopgate.retrievers.hybrid import CANDIDATES
from hopgate.retrievers.stores.collection import (
    TIMEOUT_S,
    Entry,
    Foreign,
    Listed,
    Row,
    Scored,
    like,
)
from hopgate.retrievers.stores.names import address

_MARK = "hopgate "
"""Begins the comment of a table that hopgate made; the collection's description follows."""
_MAX_HNSW_DIMENSIONS = 2_000
_MAX_SEEN = 1_000
"""Largest number of candidates that pgvector keeps during a search (`hnsw.ef_search`)."""
_SEARCH_S = 30
"""Seconds that a search may take, waiting for locks included."""
_CONNECTIONS = 8
"""Connections of this process at most."""
_MAX_POSITIONS = 255
_MAX_WORDS = 10_000
"""Words of a passage that are indexed: PostgreSQL takes 1 MB of them."""

_CREATE: LiteralString = """
CREATE EXTENSION IF NOT EXISTS vector;
CREATE TABLE {table} (key text PRIMARY KEY, id text NOT NULL, title text NOT NULL,
text text NOT NULL, source text NOT NULL, page text NOT NULL, section text NOT NULL,
stamp text NOT NULL, metadata jsonb NOT NULL DEFAULT '{{}}',
vector vector({dimension}) NOT NULL, words tsvector NOT NULL, norm real NOT NULL);
CREATE INDEX ON {table} USING gin (words);
CREATE INDEX ON {table} (id);
CREATE INDEX ON {table} USING hash (source);
COMMENT ON TABLE {table} IS {info};
"""
_PUT: LiteralString = """
INSERT INTO {table}
(key, id, title, text, source, page, section, stamp, metadata, vector, words, norm)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s::jsonb, %s::vector, %s::tsvector, %s)
ON CONFLICT (key) DO UPDATE SET (stamp, vector, words, norm)
= (excluded.stamp, excluded.vector, excluded.words, excluded.norm)
"""
_INFO: LiteralString = """
SELECT obj_description(oid, 'pg_class') FROM pg_class WHERE oid = to_regclass(%(table)s)
"""
_ADD_METADATA: LiteralString = """
ALTER TABLE {table} ADD COLUMN IF NOT EXISTS metadata jsonb NOT NULL DEFAULT '{{}}'
"""
_HAS_METADATA: LiteralString = """
SELECT EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass(%(table)s)
AND attname = 'metadata')
"""
_GRAPH: LiteralString = """
SELECT atttypmod, EXISTS (SELECT FROM pg_index JOIN pg_class c ON c.oid = indexrelid
JOIN pg_am a ON a.oid = c.relam WHERE indrelid = attrelid AND amname = 'hnsw')
FROM pg_attribute WHERE attrelid = %s::regclass AND attname = 'vector'
"""
"""The dimension of a table's vectors, and whether there is a graph of them."""
_NO_METADATA = sql.SQL("'{}'::jsonb")
_NEAR: LiteralString = """
SET LOCAL hnsw.ef_search = {seen}; SET LOCAL hnsw.iterative_scan = strict_order
"""
_EXACT: LiteralString = "SET LOCAL enable_indexscan = off"
_DENSE: LiteralString = """
SELECT {columns}, -(vector {distance} %(vector)s::vector) FROM {table} WHERE {where}
ORDER BY vector {distance} %(vector)s::vector LIMIT %(k)s
"""
_BM25: LiteralString = """
WITH asked AS (SELECT * FROM unnest(%(terms)s::text[], %(counts)s::int[]) AS q (term, times)),
found AS MATERIALIZED (
  SELECT t.key, t.norm, w.lexeme AS term, cardinality(w.positions) AS times
  FROM {table} t, unnest(t.words) AS w (lexeme, positions, weights)
  WHERE t.words @@ %(query)s::tsquery AND w.lexeme = ANY (%(terms)s)),
rare AS (
  SELECT term, asked.times * ln(1 + (greatest(reltuples, count(*)) - count(*) + 0.5)
    / (count(*) + 0.5)) AS idf
  FROM found JOIN asked USING (term), pg_class WHERE oid = %(table)s::regclass
  GROUP BY term, asked.times, reltuples),
ranked AS (
  SELECT key, sum(idf * times * 2.2 / (times + norm)) AS score
  FROM found JOIN rare USING (term) GROUP BY key)
SELECT {columns}, score::float8 FROM ranked JOIN {table} USING (key) WHERE {where}
ORDER BY score DESC, key LIMIT %(k)s
"""
"""BM25 as Tantivy computes it; PostgreSQL's own ranking knows no IDF.

`norm` is the part that depends on a passage's length, and `reltuples` the number of rows as ANALYZE
last estimated it.
"""

_LANGCHAIN_TABLE: LiteralString = """
(SELECT langchain_id::text AS id, content AS text, embedding AS vector,
coalesce(langchain_metadata::jsonb, '{{}}')
|| (to_jsonb(t) - '{{langchain_id,content,embedding,langchain_metadata}}'::text[]) AS metadata
FROM {table} t) AS documents
"""
"""A table that LangChain's `PGVectorStore` made."""
_LANGCHAIN_COLLECTION: LiteralString = """
(SELECT e.id::text AS id, document AS text, embedding AS vector,
coalesce(e.cmetadata::jsonb, '{{}}') AS metadata
FROM langchain_pg_embedding e JOIN langchain_pg_collection c ON c.uuid = collection_id
WHERE c.name = {name}) AS documents
"""
"""A collection that LangChain's `PGVector` made."""
_MADE_BY_LANGCHAIN: LiteralString = """
SELECT EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass(%(table)s)
AND attname = 'langchain_id'), to_regclass('langchain_pg_collection') IS NOT NULL
"""


def connect() -> ConnectionPool:
    """Open a pool of connections."""
    # So that a connection notices when its server is gone.
    reaching: dict[str, Any] = {
        "connect_timeout": TIMEOUT_S,
        "keepalives_idle": 10,
        "tcp_user_timeout": 40_000,
    }
    url = address("pgvector")
    psycopg.connect(url, **reaching).close()  # its error says what is wrong
    pool = ConnectionPool(
        url,
        kwargs=reaching,
        min_size=0,
        max_size=_CONNECTIONS,
        timeout=TIMEOUT_S,
        open=True,
        check=ConnectionPool.check_connection,
    )
    atexit.register(pool.close)
    return pool


class Pgvector:
    """A table of PostgreSQL, see `collection.Engine`."""

    max_text_bytes = 16 << 20

    def __init__(self, pool: ConnectionPool, name: str) -> None:
        """Keep both."""
        self._pool, self._name = pool, name
        self._table, self._quoted = sql.Identifier(name), f'"{name}"'

    def info(self) -> str | None:
        """Return the description stored with the table."""
        found = self._run(_INFO, {"table": self._quoted})
        if not found and self._langchain() is None:
            return None
        comment = str(found[0][0]) if found else ""
        return comment.removeprefix(_MARK) if comment.startswith(_MARK) else ""

    def create(self, info: str, dimension: int) -> None:
        """Create the table, and the extension if it is missing."""
        vars(self).pop("_has_metadata", None)
        self._run(_CREATE, info=sql.Literal(_MARK + info), dimension=sql.Literal(dimension))

    def describe(self, info: str) -> None:
        """Store other JSON with it."""
        self._run("COMMENT ON TABLE {table} IS {info}", info=sql.Literal(_MARK + info))

    def drop(self) -> None:
        """Delete the table."""
        self._run("DROP TABLE {table}")

    def finish(self) -> None:
        """Make the HNSW graph, which takes less time after the rows than before them."""
        with self._pool.connection() as connection:
            # Two builds that end together would each make a graph, and wait for each other.
            lock = sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE")
            connection.execute(lock.format(self._table))
            dimension, indexed = connection.execute(_GRAPH, [self._quoted]).fetchone() or (0, True)
            if dimension <= _MAX_HNSW_DIMENSIONS and not indexed:  # else every search is exact
                create = "CREATE INDEX ON {} USING hnsw (vector vector_ip_ops)"
                connection.execute(sql.SQL(create).format(self._table))
        self._run("ANALYZE {table}")  # apart, since it waits while another change has its lock

    def listed(self) -> list[Listed]:
        """List all rows."""
        return [Listed(*row) for row in self._run("SELECT key, id, source, stamp FROM {table}")]

    def read(self, keys: Sequence[str]) -> list[tuple[Row, list[float]]]:
        """Read rows with their vectors."""
        query: LiteralString = (
            "SELECT {columns}, vector::real[] FROM {table} WHERE key = ANY (%(keys)s)"
        )
        return [(_row(row), row[-1]) for row in self._run(query, {"keys": list(keys)})]

    def put(self, entries: Sequence[Entry]) -> None:
        """Add or replace rows."""
        values = [
            (*e.row[:-1], e.row.metadata or "{}", str(e.vector), _tsvector(e.words), e.norm)
            for e in entries
        ]
        values.sort()  # so that two writers never wait for each other's rows
        if not self._has_metadata:  # it was made by an older hopgate
            self._run(_ADD_METADATA)
            del self._has_metadata
        with self._pool.connection() as connection, connection.cursor() as cursor:
            cursor.executemany(sql.SQL(_PUT).format(table=self._table), values)

    def remove(self, keys: Sequence[str]) -> None:
        """Delete rows."""
        self._run("DELETE FROM {table} WHERE key = ANY (%(keys)s)", {"keys": sorted(keys)})

    def dense(self, vector: list[float], k: int, wanted: Filter) -> Scored:
        """Find the rows with the highest inner product."""
        where, values = self._native(wanted)
        found = self._near(vector, k, values, where=where, distance=sql.SQL("<#>"))
        return [(_row(row), row[-1]) for row in found]

    def bm25(self, words: Sequence[str], k: int, wanted: Filter) -> Scored:
        """Find the best rows for some words."""
        counts, (where, values) = Counter(words), self._native(wanted)
        given = {
            "k": k,
            "terms": list(counts),
            "counts": list(counts.values()),
            "query": " | ".join(map(_quote, counts)),
            "table": self._quoted,
        }
        found = self._search(_BM25, given | values, where=where)
        return [(_row(row), float(row[-1])) for row in found]

    def _near(
        self, vector: list[float], k: int, values: dict[str, Any], **parts: sql.Composable
    ) -> list[tuple[Any, ...]]:
        """Search the graph; where its scan ends early, as with a rare filter, compare every row."""
        seen = min(max(2 * k, CANDIDATES), _MAX_SEEN)
        given = {"k": k, "vector": str(vector), **values}
        found = self._search(_DENSE, given, _NEAR, seen=sql.Literal(seen), **parts)
        return found if len(found) == k else self._search(_DENSE, given, _EXACT, **parts)

    def _search(
        self,
        query: LiteralString,
        given: dict[str, Any],
        settings: LiteralString = "",
        **parts: sql.Composable,
    ) -> list[tuple[Any, ...]]:
        """Run a search with a time limit, and with other settings of the server."""
        limited: LiteralString = "SET LOCAL statement_timeout = {limit};" + settings
        return self._run(query, given, limited, limit=sql.Literal(f"{_SEARCH_S}s"), **parts)

    def _run(
        self,
        query: LiteralString,
        given: dict[str, Any] | None = None,
        first: LiteralString = "",
        **parts: sql.Composable,
    ) -> list[tuple[Any, ...]]:
        """Run a statement, in a transaction of its own.

        Args:
            query: The statement, with fields for its parts.
            given: Its parameters.
            first: Statements to run before it.
            parts: Values of the fields.
        """
        known: dict[str, sql.Composable] = {"table": self._table}
        if "{columns}" in query and "columns" not in parts:
            metadata = self._metadata + sql.SQL(" AS metadata")
            columns = [*map(sql.Identifier, Row._fields[:-1]), metadata]
            known["columns"] = sql.SQL(", ").join(columns)
        known |= parts
        with self._pool.connection() as connection:
            if first:
                connection.execute(sql.SQL(first).format(**known))
            done = connection.execute(sql.SQL(query).format(**known), given)
            return done.fetchall() if done.description else []

    @cached_property
    def _has_metadata(self) -> bool:
        return bool(self._run(_HAS_METADATA, {"table": self._quoted})[0][0])

    @property
    def _metadata(self) -> sql.Composable:
        return sql.SQL("metadata" if self._has_metadata else "'{}'::jsonb")

    def _native(self, wanted: Filter) -> tuple[sql.Composable, dict[str, Any]]:
        return native(wanted, metadata=self._metadata)

    def _langchain(self) -> sql.Composable | None:
        """Return the documents that LangChain stored under this name; None if there are none."""
        ((table, collections),) = self._run(_MADE_BY_LANGCHAIN, {"table": self._quoted})
        if table:
            return sql.SQL(_LANGCHAIN_TABLE).format(table=self._table)
        query: LiteralString = "SELECT 1 FROM langchain_pg_collection WHERE name = %(name)s"
        if collections and self._run(query, {"name": self._name}):
            return sql.SQL(_LANGCHAIN_COLLECTION).format(name=sql.Literal(self._name))
        return None

    def foreign(self) -> Foreign | None:
        """Search what LangChain stored by cosine distance, its default."""
        if (documents := self._langchain()) is None:
            return None
        found = self._run("SELECT vector_dims(vector) FROM {table} LIMIT 1", table=documents)

        def search(vector: list[float], k: int, wanted: Filter) -> list[tuple[Document, float]]:
            where, values = native(wanted, "metadata ->> {}")
            parts = {"table": documents, "columns": sql.SQL("id, text, metadata"), "where": where}
            near = self._near(vector, k, values, **parts, distance=sql.SQL("<=>"))
            return [
                (Document(text or "", id=key, metadata=metadata), 1 + score)
                for key, text, metadata, score in near
            ]

        return (int(found[0][0]), search) if found else None


def _row(found: Sequence[Any]) -> Row:
    return Row.read(dict(zip(Row._fields, found, strict=False)))


def _quote(term: str) -> str:
    escaped = term.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


def _tsvector(terms: Sequence[str]) -> str:
    """Write words as PostgreSQL's `tsvector`, whose positions stand for how often each occurs."""
    counts = Counter(terms[:_MAX_WORDS])
    positions = [",".join(map(str, range(1, min(n, _MAX_POSITIONS) + 1))) for n in counts.values()]
    return " ".join(f"{_quote(term)}:{n}" for term, n in zip(counts, positions, strict=True))


def native(
    wanted: Filter, column: LiteralString = "{}", metadata: sql.Composable = _NO_METADATA
) -> tuple[sql.Composable, dict[str, Any]]:
    """Return a condition that leaves out no row that `wanted` matches, and its parameters.

    Patterns of `source` become those of LIKE, which may let other rows through.

    Args:
        wanted: The filter.
        column: The column of a field.
        metadata: The metadata.
    """
    conditions: list[sql.Composable] = [sql.SQL("true")]
    values: dict[str, Any] = {}
    for number, (name, given) in enumerate(wanted):
        patterned, (allowed, ranges) = has_patterns((name, given)), split(given)
        if name not in FIELDS:
            conditions.append(_known(f"w{number}", name, given, metadata, values))
        if name not in FIELDS or ranges:  # pages are texts here
            continue
        values[f"w{number}"] = list(map(like, allowed)) if patterned else list(allowed)
        key = sql.Literal(name) if "->>" in column else sql.Identifier(name)
        condition = sql.SQL(column + (" LIKE" if patterned else " =") + " ANY ({})")
        conditions.append(condition.format(key, sql.Placeholder(f"w{number}")))
    return sql.SQL(" AND ").join(conditions), values


def _known(
    prefix: str,
    name: str,
    wanted: Sequence[str | Range],
    metadata: sql.Composable,
    values: dict[str, Any],
) -> sql.Composable:
    """Return a condition on the metadata, and put its parameters among `values`.

    Numbers are compared as JSON, which fails for no other type, and dates by their bytes.
    """

    def given(value: object) -> sql.Placeholder:
        values[f"{prefix}_{len(values)}"] = value
        return sql.Placeholder(f"{prefix}_{len(values) - 1}")

    def compare(form: LiteralString, end: object) -> sql.Composable:
        if isinstance(end, str):
            form = '({0} ->> {1}::text) COLLATE "C"' + form
        else:
            form, end = "{0} -> {1}::text" + form + "::jsonb", json.dumps(end)
        return sql.SQL(form).format(metadata, given(name), given(end))

    texts, ranges = split(wanted)
    is_one: LiteralString = "{0} -> {1}::text = ANY ({2}::jsonb[]) OR {0} -> {1}::text ?| {3}"
    alike = [json.dumps(each) for text in texts for each in same(text)]
    either = [sql.SQL(is_one).format(metadata, given(name), given(alike), given(texts))]
    for start, end in ranges:
        ends = [(" >= {2}", start), (" <= {2}", f"{end}~" if isinstance(end, str) else end)]
        asked = [compare(form, each) for form, each in ends if each is not None]
        either.append(sql.SQL("({})").format(sql.SQL(" AND ").join(asked)))
    return sql.SQL("({})").format(sql.SQL(" OR ").join(either))
