"""A web API that keeps conversations in PostgreSQL and streams each answer.

    pip install '.[cpu,local,postgres]' 'fastapi>=0.135' uvicorn
    export HOPGATE_POSTGRES=postgresql://user:password@127.0.0.1/hopgate
    uvicorn --app-dir examples fastapi_app:app --timeout-graceful-shutdown 5

    curl -N 127.0.0.1:8000/ask --json '{"question": "When was Skerrane Light first lit?",
      "thread": "6f0a2c1e-3d4b-4f5a-8e6d-7c9b0a1f2e3d"}'

Uvicorn listens on loopback only. Anyone who knows the id of a thread can read and continue it: add
authentication and tie threads to users before you expose it.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any
from uuid import UUID
from weakref import WeakValueDictionary

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg import AsyncConnection, ProgrammingError
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool
from pydantic import AfterValidator, BaseModel, Field

from hopgate import Context, build_graph
from hopgate.graphs.checkpoints import serializer
from hopgate.nodes.run import events
from hopgate.nodes.texts.text import check_question

log = logging.getLogger(__name__)
locks: WeakValueDictionary[UUID, asyncio.Lock] = WeakValueDictionary()
places = asyncio.Semaphore(50)  # concurrent questions, each with a connection as its lock


class Question(BaseModel):
    """A question in a conversation."""

    question: Annotated[str, AfterValidator(check_question)]
    thread: UUID
    alpha: float = Field(default=0.7, ge=0, le=1)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the database and build the graph; close the database at the end."""
    async with connections() as pool:
        saver = AsyncPostgresSaver(pool, serde=serializer())
        await saver.setup()
        app.state.graph = build_graph(saver)
        yield


@asynccontextmanager
async def alone(thread: UUID) -> AsyncIterator[None]:
    """Wait until no other question of a conversation is being answered, in any process.

    The lock is PostgreSQL's and ends with its connection, even if this process dies. Within a
    process, only one question per conversation opens a connection at a time.
    """
    async with locks.setdefault(thread, asyncio.Lock()), places:
        held = await AsyncConnection.connect(**connection_options())
        try:
            await held.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", [str(thread)])
            yield
        finally:
            await held.close()  # at once, even while the task is being cancelled


def connections() -> AsyncConnectionPool[AsyncConnection[DictRow]]:
    """Create a pool for the stored conversations."""
    return AsyncConnectionPool(
        connection_class=AsyncConnection[DictRow],
        kwargs=connection_options(),
        open=False,
        timeout=10,
    )


def connection_options() -> dict[str, Any]:
    """Read HOPGATE_POSTGRES; errors never show it, as it may hold a password."""
    try:
        options: dict[str, Any] = dict(conninfo_to_dict(os.environ.get("HOPGATE_POSTGRES", "")))
    except ProgrammingError:
        options = {}
    misread = any("@" in str(options.get(name)) for name in ("host", "port", "dbname"))
    if not options or misread:  # the password has an unescaped @ or /
        raise RuntimeError(
            "HOPGATE_POSTGRES is missing or malformed; set postgresql://user:password@host/name "
            "with special characters of the password escaped, such as @ as %40"
        )
    return options | {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}


app = FastAPI(lifespan=lifespan)


@app.exception_handler(RequestValidationError)
async def refuse(_: Request, error: RequestValidationError) -> JSONResponse:
    """Name the field and the error, without the input that FastAPI would repeat."""
    detail = [{"loc": each["loc"], "msg": each["msg"]} for each in error.errors()]
    return JSONResponse({"detail": detail}, 422)


@app.post("/ask", response_class=EventSourceResponse)
async def ask(body: Question) -> AsyncIterator[ServerSentEvent]:
    """Stream hopgate's events and tokens, then the result; disconnecting cancels the run."""
    config: Any = {"configurable": {"thread_id": str(body.thread)}}
    result: dict[str, Any] = {}
    try:
        async with alone(body.thread):
            part: Any
            async for namespace, mode, part in app.state.graph.astream(
                {"question": body.question},
                config,
                context=Context(alpha=body.alpha),
                stream_mode=["custom", "messages", "values"],
                subgraphs=True,  # the loop's events too
            ):
                if event := events.read(mode, part):
                    yield ServerSentEvent(event=event["event"], data=event)
                elif mode == "values" and not namespace:
                    result = part
        shown = {key: result[key] for key in ("answer", "citations", "decision", "usage")}
        yield ServerSentEvent(event="result", data=shown)
    except (ValueError, RuntimeError) as error:  # hopgate's errors are one line and safe to show
        yield ServerSentEvent(event="error", data={"message": str(error)})
    except Exception:
        log.exception("a question failed")
        yield ServerSentEvent(event="error", data={"message": "an internal error; try again"})


@app.get("/threads/{thread}")
async def history(thread: UUID) -> list[dict[str, str]]:
    """Return the messages of a conversation."""
    state = await app.state.graph.aget_state({"configurable": {"thread_id": str(thread)}})
    if not state.values:
        raise HTTPException(404, f"no conversation {thread}")
    return [{"role": each.type, "text": each.text} for each in state.values["messages"]]
