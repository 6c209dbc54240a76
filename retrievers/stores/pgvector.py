"""Tables of PostgreSQL with pgvector: an HNSW graph, and BM25 over the words of a GIN index."""

from __future__ import annotations

import atexit
import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, LiteralString

import psycopg
from psycopg import sql
from psycopg_pool import ConnectionPool

from hopgate.retrievers.filters import FIELDS, Filter, comparisons
from hopgate.retrievers.hybrid import CANDIDATES
from hopgate.retrievers.stores.collection import Entry, Foreign, Listed, Row, Scored
from hopgate.retrievers.stores.names import TIMEOUT_S, address

_MAX_WORDS = 10_000
"""Words of a passage that are indexed: PostgreSQL takes 1 MB of them."""
_MARK = "hopgate "
"""Begins the comment of a table that hopgate made; the collection's description follows."""
_MAX_HNSW_DIMENSIONS = 2_000
_MAX_SEEN = 1_000
"""Largest number of candidates that pgvector keeps during a search (`hnsw.ef_search`)."""
_CONNECTIONS = 8
"""Connections of this process at most."""
_REACHING: dict[str, Any] = {
    "connect_timeout": TIMEOUT_S,
    "keepalives_idle": 10,
    "tcp_user_timeout": 40_000,
}
"""So that a connection notices when its server is gone."""

_CREATE: LiteralString = """
CREATE EXTENSION IF NOT EXISTS vector;
CREATE TABLE {table} (key text PRIMARY KEY, id text NOT NULL, title text NOT NULL,
text text NOT NULL, source text NOT NULL, page text NOT NULL, section text NOT NULL,
stamp text NOT NULL, metadata jsonb NOT NULL DEFAULT '{{}}',
vector vector({dimension}) NOT NULL, words tsvector NOT NULL, norm real NOT NULL);
CREATE INDEX ON {table} USING gin (words);
CREATE INDEX ON {table} (id);
CREATE INDEX ON {table} USING hash (source);
"""
_DESCRIBE: LiteralString = "COMMENT ON TABLE {table} IS {info}; ANALYZE {table};"
_GRAPH: LiteralString = (
    "CREATE INDEX IF NOT EXISTS {graph} ON {table} USING hnsw (vector vector_ip_ops)"
)
_PUT: LiteralString = """
INSERT INTO {table}
(key, id, title, text, source, page, section, stamp, metadata, vector, words, norm)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s::jsonb, %s::vector, %s::tsvector, %s)
ON CONFLICT (key) DO UPDATE SET (stamp, vector, words, norm)
= (excluded.stamp, excluded.vector, excluded.words, excluded.norm)
"""
_INFO: LiteralString = """
SELECT coalesce(obj_description(oid, 'pg_class'), '') FROM pg_class WHERE oid = to_regclass({name})
"""
_LIMITED: LiteralString = "SET LOCAL statement_timeout = '30s';"
"""A search waits no longer, also for locks."""
_DENSE: LiteralString = """
SET LOCAL hnsw.ef_search = {seen}; SET LOCAL hnsw.iterative_scan = strict_order;
SELECT {columns}, -(vector {distance} {vector}::vector) AS score FROM {table} WHERE {where}
ORDER BY {order} LIMIT {k}
"""
_BM25: LiteralString = """
WITH asked AS (SELECT * FROM unnest({terms}::text[], {counts}::int[]) AS q (term, times)),
found AS MATERIALIZED (
  SELECT t.key, t.norm, w.lexeme AS term, cardinality(w.positions) AS times
  FROM {table} t, unnest(t.words) AS w (lexeme, positions, weights)
  WHERE t.words @@ {matched}::tsquery AND w.lexeme = ANY ({terms}::text[])),
rare AS (
  SELECT term, asked.times * ln(1 + (greatest(reltuples, count(*)) - count(*) + 0.5)
    / (count(*) + 0.5)) AS idf
  FROM found JOIN asked USING (term), pg_class WHERE oid = {name}::regclass
  GROUP BY term, asked.times, reltuples),
ranked AS (
  SELECT key, sum(idf * times * 2.2 / (times + norm)) AS score
  FROM found JOIN rare USING (term) GROUP BY key)
SELECT {columns}, score::float8 FROM ranked JOIN {table} USING (key) WHERE {where}
ORDER BY score DESC, key LIMIT {k}
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
SELECT EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass({name})
AND attname = 'langchain_id'), to_regclass('langchain_pg_collection') IS NOT NULL
"""


def connect() -> ConnectionPool:
    """Open a pool of connections."""
    url = address("pgvector")
    psycopg.connect(url, **_REACHING).close()  # its error says what is wrong
    pool = ConnectionPool(
        url,
        kwargs=_REACHING,
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
        self._table = sql.Identifier(name)

    def info(self) -> str | None:
        """Return the description stored with the table."""
        if not (found := self._run(_INFO)):
            return None
        comment = str(found[0][0])
        return comment.removeprefix(_MARK) if comment.startswith(_MARK) else ""

    def create(self, info: str, dimension: int) -> None:
        """Create the table, and the extension if it is missing."""
        self._run(_CREATE + _DESCRIBE, info=_MARK + info, dimension=dimension)

    def describe(self, info: str, dimension: int) -> None:
        """Store other JSON, and make the graph, which takes less time after the rows."""
        graph = _GRAPH if dimension <= _MAX_HNSW_DIMENSIONS else ""
        name = sql.Identifier(f"{self._name[:52]}_vector_idx")  # as PostgreSQL calls it
        self._run(_DESCRIBE + graph, info=_MARK + info, graph=name)

    def drop(self) -> None:
        """Delete the table."""
        self._run("DROP TABLE {table}")

    def listed(self) -> list[Listed]:
        """List all rows."""
        return [Listed(*row) for row in self._run("SELECT key, id, source, stamp FROM {table}")]

    def read(self, keys: Sequence[str]) -> list[tuple[Row, list[float]]]:
        """Read rows with their vectors."""
        query: LiteralString = (
            "SELECT {columns}, vector::real[] FROM {table} WHERE key = ANY ({keys})"
        )
        return _rows(self._run(query, keys=list(keys)))

    def put(self, entries: Sequence[Entry]) -> None:
        """Add or replace rows."""
        values = [
            (*e.row[:-1], e.row.metadata or "{}", str(e.vector), _tsvector(e.words), e.norm)
            for e in entries
        ]
        values.sort()  # so that two writers never wait for each other's rows
        with self._pool.connection() as connection, connection.cursor() as cursor:
            cursor.executemany(sql.SQL(_PUT).format(table=self._table), values)

    def remove(self, keys: Sequence[str]) -> None:
        """Delete rows."""
        self._run("DELETE FROM {table} WHERE key = ANY ({keys})", keys=sorted(keys))

    def dense(self, vector: list[float], k: int, wanted: Filter) -> Scored:
        """Find the rows with the highest inner product."""
        return _rows(self._near(vector, k, "<#>", where=native(wanted)))

    def bm25(self, words: Sequence[str], k: int, wanted: Filter) -> Scored:
        """Find the best rows for some words."""
        counts = Counter(words)
        given = {
            "k": k,
            "terms": list(counts),
            "counts": list(counts.values()),
            "matched": " | ".join(map(_quote, counts)),
        }
        return _rows(self._run(_LIMITED + _BM25, **given, where=native(wanted)))

    def _near(
        self, vector: list[float], k: int, distance: LiteralString, **parts: sql.Composable
    ) -> list[tuple[Any, ...]]:
        """Search the graph; where its scan ends early, as with a rare filter, compare every row."""
        given = {"k": k, "vector": str(vector), "distance": sql.SQL(distance), **parts}
        given["seen"] = min(max(2 * k, CANDIDATES), _MAX_SEEN)
        by_graph = sql.SQL("vector {distance} {vector}::vector").format(**given)
        found = self._run(_LIMITED + _DENSE, **given, order=by_graph)
        if len(found) < k:
            found = self._run(_LIMITED + _DENSE, **given, order=sql.SQL("score DESC"))
        return found

    def _run(self, query: LiteralString, **parts: Any) -> list[tuple[Any, ...]]:
        """Run statements in a transaction, and return the rows of the last.

        Args:
            query: The statements, with fields for their parts.
            parts: Parts of SQL, or values.
        """
        known = {"table": self._table, "columns": _COLUMNS, "name": f'"{self._name}"'}
        with self._pool.connection() as connection:
            done = connection.execute(sql.SQL(query).format(**known | parts))
            while done.nextset():
                pass
            return done.fetchall() if done.description else []

    def foreign(self) -> Foreign | None:
        """Search what LangChain stored by cosine distance, its default."""
        ((table, collections),) = self._run(_MADE_BY_LANGCHAIN)
        query: LiteralString = "SELECT 1 FROM langchain_pg_collection WHERE name = {own}"
        if table:
            documents = sql.SQL(_LANGCHAIN_TABLE).format(table=self._table)
        elif collections and self._run(query, own=self._name):
            documents = sql.SQL(_LANGCHAIN_COLLECTION).format(name=self._name)
        else:
            return None
        parts = {"table": documents, "columns": sql.SQL("id, text, metadata")}

        def search(vector: list[float], k: int, wanted: Filter) -> list[Any]:
            where = native(wanted, sql.SQL("metadata ->> {}").format)
            near = self._near(vector, k, "<=>", **parts, where=where)
            return [(*each, 1 + score) for *each, score in near]

        return search


_COLUMNS = sql.SQL(", ").join(map(sql.Identifier, Row._fields))


def _rows(found: list[tuple[Any, ...]]) -> list[tuple[Row, Any]]:
    """Return rows, each with the value of the column after theirs."""
    return [(Row.read(dict(zip(Row._fields, row, strict=False))), row[-1]) for row in found]


def _quote(term: str) -> str:
    escaped = term.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


def _tsvector(terms: Sequence[str]) -> str:
    """Write words as PostgreSQL's `tsvector`, whose positions stand for how often each occurs."""
    counts = Counter(terms[:_MAX_WORDS])
    return " ".join(
        f"{_quote(term)}:{','.join(map(str, range(1, count + 1)))}"
        for term, count in counts.items()
    )


def native(
    wanted: Filter, column: Callable[[str], sql.Composable] = sql.Identifier
) -> sql.Composable:
    """Return a condition that leaves out no row that `wanted` matches, but may let others through.

    Args:
        wanted: The filter.
        column: Returns the column of one of a passage's own fields.
    """
    conditions: list[sql.Composable] = [sql.SQL("true")]
    for condition in wanted:
        name, found = condition[0], comparisons(condition)
        if not found:
            continue
        if name in FIELDS:
            each = sql.SQL("{} {} {}")
            signs = {"==": sql.SQL("="), "starts with": sql.SQL("^@")}
            either = [
                each.format(column(name), signs[sign], end)
                for ends in found
                for sign, end in ends.items()
            ]
            conditions.append(sql.SQL("({})").format(sql.SQL(" OR ").join(either)))
        else:
            path = " || ".join(
                " && ".join(f"@ {sign} {json.dumps(end)}" for sign, end in ends.items())
                for ends in found
            )
            conditions.append(sql.SQL("metadata @? {}").format(f"$.{name} ? ({path})"))
    return sql.SQL(" AND ").join(conditions)
