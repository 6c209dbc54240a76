"""Savers of conversations and runs that read rows as data, so that no row can run code.

By default LangGraph's serializer imports and calls any function that a row names, so whoever can
write to the database could run commands where it is read.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hopgate.common.files import private_file

if TYPE_CHECKING:
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver


def serializer() -> "JsonPlusSerializer":
    """Return a serializer for a saver: `AsyncPostgresSaver(pool, serde=serializer())`.

    It reads plain types, LangChain's messages and documents, and LangGraph's own types, which is
    all that hopgate stores. Of anything else it returns the arguments and creates nothing; it
    refuses pickles. If other nodes of your graph store types of their own, name them:
    `serializer().with_msgpack_allowlist([Ticket])`.
    """
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    return JsonPlusSerializer(
        pickle_fallback=False, allowed_json_modules=None, allowed_msgpack_modules=None
    )


@asynccontextmanager
async def sqlite_saver(file: Path | str) -> AsyncIterator["AsyncSqliteSaver"]:
    """Open an SQLite file of conversations, with `serializer`, for its owner only.

    Args:
        file: The file; it is created if it is missing, and its folder must exist.

    Raises:
        OSError: The file cannot be created, or be closed to other users.
        sqlite3.Error: It cannot be opened.
    """
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    await asyncio.to_thread(private_file, Path(file))
    async with AsyncSqliteSaver.from_conn_string(str(file)) as saver:
        saver.serde = serializer()
        yield saver
