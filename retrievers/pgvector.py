"""Tables of PostgreSQL with pgvector: an HNSW graph, and BM25 over the words of a GIN index."""

from __future__ import annotations

import atexit
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, LiteralString

from hopgate.common.cache import Cache
from hopgate.retrievers.filters import Filter, is_pattern, literal, pieces
from hopgate.retrievers.hybrid import CANDIDATES, Mode, fuse, length_norm
from hopgate.retrievers.stores import TIMEOUT_S, ForeignError, Listed, Row, address

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from psycopg import Connection, sql
    from psycopg_pool import ConnectionPool

_MARK = "hopgate "
"""Begins the comment of a table that hopgate made; then comes what it keeps about it."""
_PAGE = 4_096
_MAX_HNSW_DIMENSIONS = 2_000
_MAX_SEEN = 1_000
"""Largest number of candidates that pgvector keeps during a search (`hnsw.ef_search`)."""
_SEARCH_S = 30
"""Seconds that a search may take, waiting for locks included."""
_CONNECTIONS = 8
"""Connections of this process at most."""
_KEEPALIVE_S = 10
"""Seconds without an answer after which a connection asks whether its server is there."""
_MAX_POSITIONS = 255
_MAX_WORDS_BYTES = 1_000_000
"""Bytes of a passage's words that are indexed: PostgreSQL takes 1,048,575, positions included."""

_CREATE: LiteralString = """
CREATE TABLE {table} (key text PRIMARY KEY, id text NOT NULL, title text NOT NULL,
text text NOT NULL, source text NOT NULL, page text NOT NULL, section text NOT NULL,
stamp text NOT NULL, vector vector({dimension}) NOT NULL, words tsvector NOT NULL,
norm real NOT NULL);
CREATE INDEX ON {table} USING gin (words);
CREATE INDEX ON {table} (id);
CREATE INDEX ON {table} USING hash (source);
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
SELECT {columns}, -(vector <#> %(vector)s::vector) FROM {table} WHERE {where}
ORDER BY vector <#> %(vector)s::vector LIMIT %(k)s
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

_pools: Cache[ConnectionPool] = Cache()


class PgCollection:
    """A table of PostgreSQL, see `stores.Collection`."""

    max_text_bytes = 16 << 20

    def __init__(self, name: str) -> None:
        """Connect, once per process and address."""
        from psycopg import sql

        self._pool = _pool()
        self._table = sql.Identifier(name)
        self._quoted = '"' + name + '"'

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        """Take a connection for one transaction."""
        from psycopg_pool import PoolTimeout

        try:
            with self._pool.connection() as connection:
                yield connection
        except PoolTimeout:
            _direct()  # if the server cannot be reached, this error says why
            raise RuntimeError(
                f"all {_CONNECTIONS} sessions of this process were busy for {TIMEOUT_S} s: run "
                "fewer searches and changes at once"
            ) from None

    def info(self) -> str | None:
        """Return what was stored with the table."""
        with self._connection() as connection:
            found = connection.execute(
                "SELECT obj_description(c.oid, 'pg_class') FROM pg_class c WHERE c.oid = "
                "to_regclass(%s)",
                [self._quoted],
            ).fetchone()
        if found is None:
            return None
        if not str(found[0]).startswith(_MARK):
            raise ForeignError
        return str(found[0]).removeprefix(_MARK)

    def create(self, info: str, dimension: int) -> None:
        """Create the table, and the extension if it is missing."""
        from psycopg import sql

        with self._connection() as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            self._check_version(connection)
            create = sql.SQL(_CREATE).format(table=self._table, dimension=sql.Literal(dimension))
            connection.execute(create)
            connection.execute(self._comment(info))

    def _check_version(self, connection: Any) -> None:
        query = "SELECT extversion FROM pg_extension WHERE extname = 'vector'"
        (version,) = connection.execute(query).fetchone()
        if tuple(map(int, version.split(".")[:2])) < (0, 8):
            raise RuntimeError(f"pgvector is {version}: hopgate needs 0.8 or newer")

    def _comment(self, info: str) -> sql.Composed:
        from psycopg import sql

        return sql.SQL("COMMENT ON TABLE {} IS {}").format(
            self._table, sql.Literal(f"{_MARK}{info}")
        )

    def describe(self, info: str) -> None:
        """Store other JSON with it."""
        with self._connection() as connection:
            connection.execute(self._comment(info))

    def drop(self) -> None:
        """Delete the table."""
        self._run("DROP TABLE {table}")

    def finish(self) -> None:
        """Make the HNSW graph, which takes less time after the rows than before them."""
        from psycopg import sql

        with self._connection() as connection:
            # Two builds that end together would each make a graph, and wait for each other.
            connection.execute(_LOCK, [self._quoted])
            dimension, indexed = connection.execute(_GRAPH, [self._quoted]).fetchone() or (0, True)
            if dimension <= _MAX_HNSW_DIMENSIONS and not indexed:  # else every search is exact
                create = "CREATE INDEX ON {} USING hnsw (vector vector_ip_ops)"
                connection.execute(sql.SQL(create).format(self._table))
        self._run("ANALYZE {table}")  # apart, since it waits while another change has its lock

    def listed(self, field: str = "", values: Sequence[str] = ()) -> Iterator[Listed]:
        """List rows."""
        from psycopg import sql

        where = sql.SQL("{} = ANY (%(values)s)").format(sql.Identifier(field))
        chosen = where if field else sql.SQL("true")
        query = sql.SQL(
            "SELECT key, id, source, stamp FROM {table} WHERE key > %(after)s AND {where} "
            "ORDER BY key LIMIT %(page)s"
        ).format(table=self._table, where=chosen)
        after = ""
        while True:
            given = {"after": after, "values": list(values), "page": _PAGE}
            with self._connection() as connection:
                rows = connection.execute(query, given).fetchall()
            yield from (Listed(*row) for row in rows)
            if len(rows) < _PAGE:
                return
            after = rows[-1][0]

    def read(self, keys: Sequence[str]) -> list[tuple[Row, list[float]]]:
        """Read rows with their vectors."""
        query = "SELECT {columns}, vector::text FROM {table} WHERE key = ANY (%(keys)s)"
        return [
            (Row(*row[:-1]), [float(each) for each in row[-1][1:-1].split(",")])
            for row in self._run(query, {"keys": list(keys)})
        ]

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
        with self._connection() as connection, connection.cursor() as cursor:
            cursor.executemany(sql.SQL(_PUT).format(table=self._table), values)

    def remove(self, keys: Sequence[str]) -> None:
        """Delete rows."""
        self._run("DELETE FROM {table} WHERE key = ANY (%(keys)s)", {"keys": sorted(keys)})

    def search(
        self, mode: Mode, vector: Sequence[float], terms: Sequence[str], k: int, wanted: Filter
    ) -> list[tuple[Row, float]]:
        """Find the best rows; hybrid search fuses both rankings here."""
        if mode == "dense":
            return self._dense(vector, k, wanted)
        if mode == "bm25":
            return self._bm25(terms, k, wanted)
        depth = max(k, CANDIDATES)
        both = self._dense(vector, depth, wanted), self._bm25(terms, depth, wanted)
        rows = {row.key: row for ranking in both for row, _ in ranking}
        number = {key: position for position, key in enumerate(rows)}
        keys = list(rows)
        fused = fuse([[number[row.key] for row, _ in ranking] for ranking in both], k)
        return [(rows[keys[position]], score) for position, score in fused]

    def _dense(self, vector: Sequence[float], k: int, wanted: Filter) -> list[tuple[Row, float]]:
        """Search the graph; where its scan ends early, as with a rare filter, compare every row."""
        given = {"vector": str(list(vector)), "k": k}
        seen = min(max(2 * k, CANDIDATES), _MAX_SEEN)
        approximate = {"hnsw.ef_search": str(seen), "hnsw.iterative_scan": "strict_order"}
        found = self._found(_DENSE, given, wanted, approximate)
        if len(found) == k:
            return found
        return self._found(_DENSE, given, wanted, {"enable_indexscan": "off"})

    def _bm25(self, terms: Sequence[str], k: int, wanted: Filter) -> list[tuple[Row, float]]:
        counts = Counter(terms)
        if not counts:
            return []
        query = " | ".join(_quote(term) for term in counts)
        given = {
            "terms": list(counts),
            "counts": list(counts.values()),
            "query": query,
            "table": self._quoted,
            "k": k,
        }
        return self._found(_BM25, given, wanted)

    def _found(
        self,
        query: LiteralString,
        given: dict[str, Any],
        wanted: Filter,
        settings: dict[str, str] | None = None,
    ) -> list[tuple[Row, float]]:
        where, values = native(wanted)
        limited = {"statement_timeout": f"{_SEARCH_S}s"} | (settings or {})
        rows = self._run(query, given | values, where, limited)
        return [(Row(*row[:-1]), float(row[-1])) for row in rows]

    def _run(
        self,
        query: LiteralString,
        given: dict[str, Any] | None = None,
        where: sql.Composable | None = None,
        settings: dict[str, str] | None = None,
    ) -> list[tuple[Any, ...]]:
        """Run a statement with some of the server's settings changed for it."""
        from psycopg import sql

        composed = sql.SQL(query).format(
            table=self._table,
            columns=sql.SQL(", ").join(map(sql.Identifier, Row._fields)),
            where=where or sql.SQL("true"),
        )
        with self._connection() as connection:
            if settings:
                connection.execute(_SET, [list(settings), list(settings.values())])
            done = connection.execute(composed, given)
            return done.fetchall() if done.description else []


def _pool() -> ConnectionPool:
    """Return the connection pool of this address."""
    from psycopg_pool import ConnectionPool

    url = address("pgvector")

    def connect() -> ConnectionPool:
        _direct()  # its error says what is wrong
        pool = ConnectionPool(
            url,
            kwargs=_reaching(),
            min_size=0,
            max_size=_CONNECTIONS,
            timeout=TIMEOUT_S,
            open=True,
            check=ConnectionPool.check_connection,
        )
        atexit.register(pool.close)
        return pool

    return _pools.get(url, connect)


def _direct() -> None:
    """Connect outside the pool, whose own errors do not say why it cannot."""
    import psycopg

    psycopg.connect(address("pgvector"), **_reaching()).close()


def _reaching() -> dict[str, Any]:
    """Return settings of a connection that notices when its server is gone."""
    return {
        "connect_timeout": TIMEOUT_S,
        "keepalives_idle": _KEEPALIVE_S,
        "keepalives_interval": _KEEPALIVE_S,
        "keepalives_count": 3,
        "tcp_user_timeout": 4 * _KEEPALIVE_S * 1_000,
    }


def _quote(term: str) -> str:
    escaped = term.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"


def _tsvector(terms: Sequence[str]) -> str:
    """Write words as PostgreSQL's `tsvector`, whose positions stand for how often each occurs."""
    counts, size = Counter[str](), 0
    for term in terms:
        size += 2 if term in counts else len(term.encode()) + 5  # a position takes 2 bytes
        if size > _MAX_WORDS_BYTES:
            break
        counts[term] += 1
    positions = [",".join(map(str, range(1, min(n, _MAX_POSITIONS) + 1))) for n in counts.values()]
    return " ".join(f"{_quote(term)}:{n}" for term, n in zip(counts, positions, strict=True))


def native(wanted: Filter) -> tuple[sql.Composable, dict[str, Any]]:
    """Return a condition that leaves out no row that `wanted` matches, and its parameters.

    Patterns of `source` become those of LIKE, which may let other rows through.
    """
    from psycopg import sql

    conditions: list[sql.Composable] = [sql.SQL("true")]
    values: dict[str, Any] = {}
    for number, (name, allowed) in enumerate(wanted):
        patterned = name == "source" and any(map(is_pattern, allowed))
        operator = sql.SQL("LIKE" if patterned else "=")
        values[f"w{number}"] = [_like(each) for each in allowed] if patterned else list(allowed)
        conditions.append(
            sql.SQL("{} {} ANY ({})").format(
                sql.Identifier(name), operator, sql.Placeholder(f"w{number}")
            )
        )
    return sql.SQL(" AND ").join(conditions), values


def _like(pattern: str) -> str:
    """Return the pattern of LIKE that matches at least what a shell pattern matches."""
    return "".join(map(_like_piece, pieces(pattern)))


def _like_piece(piece: str) -> str:
    if piece == "*":
        return "%"
    character = literal(piece)
    if character is None:
        return "_"
    return f"\\{character}" if character in "%_\\" else character
