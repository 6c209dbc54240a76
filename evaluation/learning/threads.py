"""Threads of a store, for reading: an SQLite file, a PostgreSQL database, or a running server."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from json import JSONDecodeError
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from hopgate.common.errors import reason, require
from hopgate.graphs.checkpoints import serializer

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph_sdk.client import LangGraphClient

TOKEN = "HOPGATE_TOKEN"
POSTGRES = ("postgresql", "postgres")
WEB = ("http", "https")
_URI = re.compile(r"[A-Za-z][\w+.-]+:/+")
_DSN = re.compile(r"\b(host|dbname|user|password)(?=\s*=)")
THREADS_PAGE = 1_000
SERVER_PAGE = 100
STATES_PAGE = 20

_COUNT = "SELECT count(DISTINCT thread_id) FROM checkpoints WHERE checkpoint_ns = ''"
_NAMES = (
    "SELECT DISTINCT thread_id FROM checkpoints WHERE checkpoint_ns = '' AND thread_id > {} "
    f"ORDER BY thread_id LIMIT {THREADS_PAGE}"
)

Query = Callable[[str, Sequence[str]], Awaitable[Sequence[Sequence[Any]]]]


class Stored(NamedTuple):
    """One stored state of a thread: its values, and when it was stored."""

    values: Mapping[str, Any]
    at: datetime


class Store(Protocol):
    """A store of threads."""

    async def count(self) -> int:
        """Return how many threads there are."""

    def threads(self) -> AsyncIterator[str]:
        """Yield their ids."""

    def states(self, thread: str) -> AsyncIterator[Stored]:
        """Yield the states of a thread's main graph, newest first."""


@asynccontextmanager
async def open_store(source: str) -> AsyncIterator[Store]:
    """Open a store for reading only.

    Args:
        source: An SQLite file, a PostgreSQL URI (`postgresql://…`; a password may come from
            PGPASSWORD or ~/.pgpass), or the address of a LangGraph server or Aegra, for which
            `HOPGATE_TOKEN` or LANGGRAPH_API_KEY in the environment has the token.

    Raises:
        ValueError: There is no such file, it holds no threads, or the URI cannot be used.
        RuntimeError: The store does not answer, or refuses to; or an extra is missing.
    """
    scheme = source.partition("://")[0].lower()
    if scheme in WEB:
        opened: Any = _server(source)
    elif scheme in POSTGRES:
        opened = _postgres(source)
    elif other := _URI.match(source) or _DSN.search(source):  # the rest may hold a password
        raise ValueError(
            f"{other[0]} is no source; give an SQLite file, postgresql://… or http://…"
        )
    else:
        opened = _sqlite(Path(source))
    async with opened as store:
        yield store


class _Saved:
    """The threads of a LangGraph saver with SQL tables."""

    def __init__(self, saver: BaseCheckpointSaver[Any], query: Query, mark: str) -> None:
        self._saver, self._query, self._names = saver, query, _NAMES.format(mark)

    async def count(self) -> int:
        return int((await self._query(_COUNT, ()))[0][0])

    async def threads(self) -> AsyncIterator[str]:
        last = ""
        while page := [str(row[0]) for row in await self._query(self._names, (last,))]:
            for last in page:
                yield last

    async def states(self, thread: str) -> AsyncIterator[Stored]:
        config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
        before: Any = None
        while page := [
            each async for each in self._saver.alist(config, before=before, limit=STATES_PAGE)
        ]:
            for each in page:
                at = datetime.fromisoformat(each.checkpoint["ts"])
                yield Stored(each.checkpoint["channel_values"], at)
            before = page[-1].config


@asynccontextmanager
async def _sqlite(file: Path) -> AsyncIterator[Store]:
    import aiosqlite
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    uri = _read_only(file)
    try:
        async with aiosqlite.connect(uri, uri=True) as connection:
            saver = AsyncSqliteSaver(connection, serde=serializer())
            saver.is_setup = True  # it would write

            async def query(sql: str, values: Sequence[str]) -> Sequence[Sequence[Any]]:
                async with connection.execute(sql, values) as cursor:
                    return list(await cursor.fetchall())

            yield _Saved(saver, query, "?")
    except sqlite3.Error as error:
        raise ValueError(
            f"{file} cannot be read as LangGraph's SQLite checkpoints: {reason(error)}"
        ) from error


def _read_only(file: Path) -> str:
    if not file.is_file():
        raise ValueError(
            f"{file} does not exist or is not a file; give an SQLite file, postgresql://… or "
            "the address of a server"
        )
    return f"{file.resolve().as_uri()}?mode=ro"


@asynccontextmanager
async def _postgres(uri: str) -> AsyncIterator[Store]:
    require("a PostgreSQL source", "langgraph.checkpoint.postgres", "psycopg", extra="postgres")
    import psycopg
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    from psycopg.rows import dict_row, tuple_row

    try:
        async with await psycopg.AsyncConnection.connect(
            uri,
            autocommit=True,
            prepare_threshold=0,
            row_factory=dict_row,
            options="-c default_transaction_read_only=on",
        ) as connection:
            saver = AsyncPostgresSaver(connection, serde=serializer())

            async def query(sql: str, values: Sequence[str]) -> Sequence[Sequence[Any]]:
                async with connection.cursor(row_factory=tuple_row) as cursor:
                    await cursor.execute(sql.encode(), values)
                    return await cursor.fetchall()

            yield _Saved(saver, query, "%s")
    except psycopg.OperationalError as error:
        raise RuntimeError(f"PostgreSQL does not answer: {reason(error)}") from error
    except psycopg.ProgrammingError as error:
        if isinstance(error, psycopg.errors.UndefinedTable):
            raise ValueError("the database has no LangGraph checkpoints") from error
        if isinstance(error, psycopg.errors.InsufficientPrivilege):
            raise RuntimeError(
                "the PostgreSQL user may not read the checkpoints; grant it SELECT on their tables"
            ) from None
        # psycopg's message may repeat the password
        raise ValueError(
            "the PostgreSQL URI cannot be used; write postgresql://USER@HOST:5432/DATABASE"
        ) from None


class _Served:
    """The threads of a running server that its user may read."""

    def __init__(self, client: LangGraphClient) -> None:
        self._threads = client.threads

    async def count(self) -> int:
        import httpx

        try:
            return await self._threads.count()
        except httpx.HTTPStatusError:  # not every server counts them
            return 0

    async def threads(self) -> AsyncIterator[str]:
        offset = 0
        while page := await self._threads.search(
            limit=SERVER_PAGE, offset=offset, sort_by="thread_id", sort_order="asc"
        ):
            for each in page:
                yield each["thread_id"]
            offset += len(page)

    async def states(self, thread: str) -> AsyncIterator[Stored]:
        before: Any = None
        while page := await self._page(thread, before):
            for each in page:
                if isinstance(each["values"], dict) and each["created_at"]:
                    yield Stored(each["values"], datetime.fromisoformat(each["created_at"]))
            before = {"configurable": page[-1]["checkpoint"]}  # the form that every server takes

    async def _page(self, thread: str, before: Any) -> list[Any]:
        import httpx

        try:
            return await self._threads.get_history(thread, limit=STATES_PAGE, before=before)
        except httpx.HTTPStatusError as error:
            if error.response.status_code == httpx.codes.NOT_FOUND:  # deleted meanwhile
                return []
            raise


@asynccontextmanager
async def _server(url: str) -> AsyncIterator[Store]:
    import httpx
    from langgraph_sdk import get_client

    host = _host(url)
    token = os.environ.get(TOKEN, "").strip()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        key = os.environ.get("LANGGRAPH_API_KEY")  # no other key, whatever the SDK would take
        async with get_client(url=url, api_key=key, headers=headers) as client:
            yield _Served(client)
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        hint = f"; set {TOKEN} to a user's token" if status in (401, 403) else ""
        raise RuntimeError(
            f"the server at {host} refused to show threads ({status}){hint}"
        ) from error
    except httpx.HTTPError as error:
        raise RuntimeError(f"no answer from {host}: {reason(error)}") from error
    except JSONDecodeError as error:
        raise RuntimeError(f"{host} answers, but is no LangGraph server") from error


def _host(url: str) -> str:
    """Return the host of an address, which may hold a password elsewhere."""
    try:
        parts = urlsplit(url)
        host = parts.hostname if parts.port != 0 else None
    except ValueError:
        host = None
    if not host:
        raise ValueError("the source is no address of a server; write http://HOST:PORT")
    return host
