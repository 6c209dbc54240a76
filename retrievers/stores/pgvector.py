"""Tables of PostgreSQL with pgvector: an HNSW graph, and BM25 over the words of a GIN index."""

from __future__ import annotations

import atexit
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, LiteralString

from hopgate.common.cache import Cache
from hopgate.retrievers.filters import Filter, is_pattern
from hopgate.retrievers.hybrid import CANDIDATES, Mode, fuse, length_norm
from hopgate.retrievers.stores.names import ForeignError, address
from hopgate.retrievers.stores.rows import TIMEOUT_S, Listed, Row, Scored, foreign_filter, like

if TYPE_CHECKING:
    import numpy as np
    from langchain_core.documents import Document
    from numpy.typing import NDArray
    from psycopg import sql
    from psycopg_pool import ConnectionPool

_MARK = "hopgate "
"""Begins the comment of a table that hopgate made; then comes what it keeps about it."""
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
stamp text NOT NULL, vector vector({dimension}) NOT NULL, words tsvector NOT NULL,
norm real NOT NULL);
CREATE INDEX ON {table} USING gin (words);
CREATE INDEX ON {table} (id);
CREATE INDEX ON {table} USING hash (source);
COMMENT ON TABLE {table} IS {info};
"""
_PUT: LiteralString = """
INSERT INTO {table} (key, id, title, text, source, page, section, stamp, vector, words, norm)
VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s::vector, %s::tsvector, %s)
ON CONFLICT (key) DO UPDATE SET (stamp, vector, words, norm)
= (excluded.stamp, excluded.vector, excluded.words, excluded.norm)
"""
_GRAPH: LiteralString = """
SELECT atttypmod, EXISTS (SELECT FROM pg_index JOIN pg_class c ON c.oid = indexrelid
JOIN pg_am a ON a.oid = c.relam WHERE indrelid = attrelid AND amname = 'hnsw')
FROM pg_attribute WHERE attrelid = %s::regclass AND attname = 'vector'
"""
"""The dimension of a table's vectors, and whether there is a graph of them."""
_LOCK: LiteralString = """
SELECT pg_advisory_xact_lock(hashtextextended('hopgate', %s::regclass::oid::bigint))
"""
_SET: LiteralString = """
SELECT set_config(name, value, true) FROM unnest(%s::text[], %s::text[]) AS s (name, value)
"""
"""Changes settings until the transaction ends."""
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
SELECT {columns}, score FROM ranked JOIN {table} USING (key) WHERE {where}
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

_pools: Cache[ConnectionPool] = Cache()


class PgCollection:
    """A table of PostgreSQL, see `rows.Collection`."""

    max_text_bytes = 16 << 20

    def __init__(self, name: str) -> None:
        """Connect, once per process and address."""
        from psycopg import sql

        self._pool, self._name = _pool(), name
        self._table, self._quoted = sql.Identifier(name), f'"{name}"'

    def info(self) -> str | None:
        """Return what was stored with the table."""
        found = self._run(
            "SELECT obj_description(oid, 'pg_class') FROM pg_class WHERE oid = "
            "to_regclass(%(table)s)",
            {"table": self._quoted},
        )
        if not found and self._langchain() is None:
            return None
        if not found or not str(found[0][0]).startswith(_MARK):
            raise ForeignError
        return str(found[0][0]).removeprefix(_MARK)

    def create(self, info: str, dimension: int) -> None:
        """Create the table, and the extension if it is missing."""
        from psycopg import sql

        self._run(_CREATE, info=_comment(info), dimension=sql.Literal(dimension))

    def describe(self, info: str) -> None:
        """Store other JSON with it."""
        self._run("COMMENT ON TABLE {table} IS {info}", info=_comment(info))

    def drop(self) -> None:
        """Delete the table."""
        self._run("DROP TABLE {table}")

    def finish(self) -> None:
        """Make the HNSW graph, which takes less time after the rows than before them."""
        from psycopg import sql

        with self._pool.connection() as connection:
            # Two builds that end together would each make a graph, and wait for each other.
            connection.execute(_LOCK, [self._quoted])
            dimension, indexed = connection.execute(_GRAPH, [self._quoted]).fetchone() or (0, True)
            if dimension <= _MAX_HNSW_DIMENSIONS and not indexed:  # else every search is exact
                create = "CREATE INDEX ON {} USING hnsw (vector vector_ip_ops)"
                connection.execute(sql.SQL(create).format(self._table))
        self._run("ANALYZE {table}")  # apart, since it waits while another change has its lock

    def listed(self, field: str = "", values: Sequence[str] = ()) -> list[Listed]:
        """List rows."""
        from psycopg import sql

        some = sql.SQL("{} = ANY (%(values)s)").format(sql.Identifier(field))
        found = self._run(
            "SELECT key, id, source, stamp FROM {table} WHERE {where}",
            {"values": list(values)},
            where=some if field else sql.SQL("true"),
        )
        return [Listed(*row) for row in found]

    def read(self, keys: Sequence[str]) -> list[tuple[Row, list[float]]]:
        """Read rows with their vectors."""
        found = self._run(
            "SELECT {columns}, vector::real[] FROM {table} WHERE key = ANY (%(keys)s)",
            {"keys": list(keys)},
        )
        return [(Row(*row[:-1]), row[-1]) for row in found]

    def put(
        self,
        rows: Sequence[Row],
        vectors: NDArray[np.float32],
        terms: Sequence[Sequence[str]],
        average: float,
    ) -> None:
        """Add or replace rows."""
        from psycopg import sql

        values = [
            (*row, str(vector), _tsvector(words), length_norm(len(words), average))
            for row, vector, words in zip(rows, vectors.tolist(), terms, strict=True)
        ]
        values.sort()  # so that two writers never wait for each other's rows
        with self._pool.connection() as connection, connection.cursor() as cursor:
            cursor.executemany(sql.SQL(_PUT).format(table=self._table), values)

    def remove(self, keys: Sequence[str]) -> None:
        """Delete rows."""
        self._run("DELETE FROM {table} WHERE key = ANY (%(keys)s)", {"keys": sorted(keys)})

    def search(
        self, mode: Mode, vector: Sequence[float], terms: Sequence[str], k: int, wanted: Filter
    ) -> Scored:
        """Find the best rows; hybrid search fuses both rankings here."""
        from psycopg import sql

        if mode == "hybrid":
            depth = max(k, CANDIDATES)
            both = [self.search(each, vector, terms, depth, wanted) for each in ("dense", "bm25")]
            number = {row: position for position, row in enumerate(_rows(both))}
            fused = fuse([[number[row] for row, _ in ranking] for ranking in both], k)
            rows = list(number)
            return [(rows[position], score) for position, score in fused]
        where, values = native(wanted)
        if mode == "dense":
            given = {"k": k, "vector": str(list(vector)), **values}
            found = self._near(given, where=where, distance=sql.SQL("<#>"))
        elif counts := Counter(terms):
            given = {"k": k, "terms": list(counts), "counts": list(counts.values()), **values}
            given |= {"query": " | ".join(map(_quote, counts)), "table": self._quoted}
            found = self._run(_BM25, given, {}, where=where)
        else:
            return []
        return [(Row(*row[:-1]), float(row[-1])) for row in found]

    def _near(self, given: dict[str, Any], **parts: sql.Composable) -> list[tuple[Any, ...]]:
        """Search the graph; where its scan ends early, as with a rare filter, compare every row."""
        seen = min(max(2 * given["k"], CANDIDATES), _MAX_SEEN)
        graph = {"hnsw.ef_search": str(seen), "hnsw.iterative_scan": "strict_order"}
        found = self._run(_DENSE, given, graph, **parts)
        if len(found) == given["k"]:
            return found
        return self._run(_DENSE, given, {"enable_indexscan": "off"}, **parts)

    def _run(
        self,
        query: LiteralString,
        given: dict[str, Any] | None = None,
        search: dict[str, str] | None = None,
        **parts: sql.Composable,
    ) -> list[tuple[Any, ...]]:
        """Run a statement.

        Args:
            query: The statement, with fields for its parts.
            given: Its parameters.
            search: If it is a search, the server's settings that are changed for it.
            parts: What the fields stand for, if not for all rows of the table.
        """
        from psycopg import sql

        columns = sql.SQL(", ").join(map(sql.Identifier, Row._fields))
        known = {"table": self._table, "columns": columns, "where": sql.SQL("true")}
        with self._pool.connection() as connection:
            if search is not None:
                settings = {"statement_timeout": f"{_SEARCH_S}s", **search}
                connection.execute(_SET, [list(settings), list(settings.values())])
            done = connection.execute(sql.SQL(query).format(**(known | parts)), given)
            return done.fetchall() if done.description else []

    def _langchain(self) -> sql.Composable | None:
        """Return the documents that LangChain stored under this name; None if there are none."""
        from psycopg import sql

        ((table, collections),) = self._run(_MADE_BY_LANGCHAIN, {"table": self._quoted})
        if table:
            return sql.SQL(_LANGCHAIN_TABLE).format(table=self._table)
        query: LiteralString = "SELECT 1 FROM langchain_pg_collection WHERE name = %(name)s"
        if collections and self._run(query, {"name": self._name}):
            return sql.SQL(_LANGCHAIN_COLLECTION).format(name=sql.Literal(self._name))
        return None

    def foreign_dimension(self) -> int | None:
        """Return the dimension of LangChain's vectors."""
        if (documents := self._langchain()) is None:
            return None
        found = self._run("SELECT vector_dims(vector) FROM {table} LIMIT 1", table=documents)
        return int(found[0][0]) if found else None

    def search_foreign(
        self, vector: Sequence[float], k: int, wanted: Filter
    ) -> list[tuple[Document, float]]:
        """Find the best documents by cosine distance, LangChain's default."""
        from langchain_core.documents import Document
        from psycopg import sql

        documents = self._langchain()
        assert documents is not None
        where, values = native(foreign_filter(wanted), "metadata ->> {}")
        found = self._near(
            {"k": k, "vector": str(list(vector)), **values},
            table=documents,
            columns=sql.SQL("id, text, metadata"),
            where=where,
            distance=sql.SQL("<=>"),
        )
        return [
            (Document(id=key, page_content=text or "", metadata=metadata), 1 + score)
            for key, text, metadata, score in found
        ]


def _rows(rankings: Sequence[Scored]) -> list[Row]:
    """Return the rows of some rankings, each once."""
    return list(dict.fromkeys(row for ranking in rankings for row, _ in ranking))


def _comment(info: str) -> sql.Literal:
    from psycopg import sql

    return sql.Literal(f"{_MARK}{info}")


def _pool() -> ConnectionPool:
    """Return the connection pool of this address."""
    import psycopg
    from psycopg_pool import ConnectionPool

    url = address("pgvector")
    # So that a connection notices when its server is gone.
    reaching: dict[str, Any] = {
        "connect_timeout": TIMEOUT_S,
        "keepalives_idle": 10,
        "tcp_user_timeout": 40_000,
    }

    def connect() -> ConnectionPool:
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

    return _pools.get(url, connect)


def _quote(term: str) -> str:
    escaped = term.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


def _tsvector(terms: Sequence[str]) -> str:
    """Write words as PostgreSQL's `tsvector`, whose positions stand for how often each occurs."""
    counts = Counter(terms[:_MAX_WORDS])
    positions = [",".join(map(str, range(1, min(n, _MAX_POSITIONS) + 1))) for n in counts.values()]
    return " ".join(f"{_quote(term)}:{n}" for term, n in zip(counts, positions, strict=True))


def native(
    wanted: Filter, column: LiteralString = "{}"
) -> tuple[sql.Composable, dict[str, list[str]]]:
    """Return a condition that leaves out no row that `wanted` matches, and its parameters.

    Patterns of `source` become those of LIKE, which may let other rows through.

    Args:
        wanted: The filter.
        column: The column of a field.
    """
    from psycopg import sql

    conditions: list[sql.Composable] = [sql.SQL("true")]
    values: dict[str, list[str]] = {}
    for number, (name, allowed) in enumerate(wanted):
        patterned = name == "source" and any(map(is_pattern, allowed))
        key = sql.Literal(name) if "->>" in column else sql.Identifier(name)
        values[f"w{number}"] = list(map(like, allowed)) if patterned else list(allowed)
        conditions.append(
            sql.SQL("{} {} ANY ({})").format(
                sql.SQL(column).format(key),
                sql.SQL("LIKE" if patterned else "="),
                sql.Placeholder(f"w{number}"),
            )
        )
    return sql.SQL(" AND ").join(conditions), values
