"""Stored threads, read-only: an SQLite file, a PostgreSQL database, or a running server."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from functools import partial
from json import JSONDecodeError
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlsplit

from hopgate.common.errors import reason, require
from hopgate.graphs.checkpoints import serializer

if TYPE_CHECKING:
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph_sdk._async.threads import ThreadsClient

TOKEN = "HOPGATE_TOKEN"
SERVER_PAGE = 100
STATES_PAGE = 20

_NAMES = "SELECT DISTINCT thread_id FROM checkpoints WHERE checkpoint_ns = '' ORDER BY thread_id"


class Snapshot(NamedTuple):
    """One stored state of a thread: its values, and when it was stored."""

    values: Mapping[str, Any]
    at: datetime


class Threads(NamedTuple):
    """Stored threads.

    Attributes:
        ids: All of them.
        states: Yields the states of a thread's main graph, newest first.
    """

    ids: list[str]
    states: Callable[[str], AsyncIterator[Snapshot]]


def open_threads(source: str) -> AbstractAsyncContextManager[Threads]:
    """Open stored threads for reading only.

    Args:
        source: An SQLite file, a PostgreSQL URI (`postgresql://…`; a password may come from
            PGPASSWORD or ~/.pgpass), or the address of a LangGraph server or Aegra, for which
            `HOPGATE_TOKEN` or LANGGRAPH_API_KEY in the environment has the token.

    Raises:
        ValueError: There is no such file, it holds no threads, or the URI cannot be used.
        RuntimeError: The store does not answer, or refuses to; or an extra is missing.
    """
    scheme = source.partition("://")[0].lower()
    if scheme in ("http", "https"):
        return _server(source)
    if scheme in ("postgresql", "postgres"):
        return _postgres(source)
    if not os.path.isfile(source):  # it may hold a password, so it is not repeated
        raise ValueError(
            "the source is not a file; give an SQLite file, postgresql://… or http://HOST:PORT"
        )
    return _sqlite(source)


async def _saved_states(saver: BaseCheckpointSaver[Any], thread: str) -> AsyncIterator[Snapshot]:
    config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    before: Any = None
    while page := [each async for each in saver.alist(config, before=before, limit=STATES_PAGE)]:
        for each in page:
            at = datetime.fromisoformat(each.checkpoint["ts"])
            yield Snapshot(each.checkpoint["channel_values"], at)
        before = page[-1].config


@asynccontextmanager
async def _sqlite(file: str) -> AsyncIterator[Threads]:
    import aiosqlite
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    uri = f"file:{quote(file)}?mode=ro"
    try:
        async with aiosqlite.connect(uri, uri=True) as connection:
            saver = AsyncSqliteSaver(connection, serde=serializer())
            saver.is_setup = True  # it would write
            names = await connection.execute_fetchall(_NAMES)
            yield Threads([row[0] for row in names], partial(_saved_states, saver))
    except sqlite3.Error as error:
        raise ValueError(
            f"{file} cannot be read as LangGraph's SQLite checkpoints: {reason(error)}"
        ) from error


@asynccontextmanager
async def _postgres(uri: str) -> AsyncIterator[Threads]:
    require("a PostgreSQL source", "langgraph.checkpoint.postgres", "psycopg", extra="postgres")
    import psycopg
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    from psycopg.rows import dict_row

    try:
        async with await psycopg.AsyncConnection.connect(
            uri,
            autocommit=True,
            prepare_threshold=0,
            row_factory=dict_row,
            options="-c default_transaction_read_only=on",
        ) as connection:
            saver = AsyncPostgresSaver(connection, serde=serializer())
            names = await (await connection.execute(_NAMES)).fetchall()
            yield Threads([row["thread_id"] for row in names], partial(_saved_states, saver))
    except psycopg.OperationalError as error:
        raise RuntimeError(f"PostgreSQL does not answer: {reason(error)}") from error
    except (psycopg.errors.UndefinedTable, psycopg.errors.InsufficientPrivilege) as error:
        raise ValueError(
            f"the database's LangGraph checkpoints cannot be read: {reason(error)}"
        ) from error
    except psycopg.ProgrammingError:  # its message may repeat the password
        raise ValueError(
            "the PostgreSQL URI cannot be used; write postgresql://USER@HOST:5432/DATABASE"
        ) from None


@asynccontextmanager
async def _server(url: str) -> AsyncIterator[Threads]:
    import httpx
    from langgraph_sdk import get_client

    host = urlsplit(url).hostname  # the rest may hold a password
    token = os.environ.get(TOKEN, "").strip()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        key = os.environ.get("LANGGRAPH_API_KEY")  # no other key, whatever the SDK would take
        async with get_client(url=url, api_key=key, headers=headers) as client:
            ids = [each async for each in _served_ids(client.threads)]
            yield Threads(ids, partial(_served_states, client.threads))
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        hint = f"; set {TOKEN} to a user's token" if status in (401, 403) else ""
        raise RuntimeError(
            f"the server at {host} refused to show threads ({status}){hint}"
        ) from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise RuntimeError(f"no answer from {host}: {reason(error)}") from error
    except JSONDecodeError as error:
        raise RuntimeError(f"{host} answers, but is not a LangGraph server") from error


async def _served_ids(client: ThreadsClient) -> AsyncIterator[str]:
    offset = 0
    while page := await client.search(
        limit=SERVER_PAGE, offset=offset, sort_by="thread_id", sort_order="asc"
    ):
        for each in page:
            yield each["thread_id"]
        offset += len(page)


async def _served_states(client: ThreadsClient, thread: str) -> AsyncIterator[Snapshot]:
    import httpx

    before: Any = None
    while True:
        try:
            page: Any = await client.get_history(thread, limit=STATES_PAGE, before=before)
        except httpx.HTTPStatusError as error:
            if error.response.status_code == httpx.codes.NOT_FOUND:  # deleted meanwhile
                return
            raise
        if not page:
            return
        for each in page:
            if isinstance(each["values"], dict) and each["created_at"]:
                yield Snapshot(each["values"], datetime.fromisoformat(each["created_at"]))
        before = {"configurable": page[-1]["checkpoint"]}  # the form that every server takes
