"""A web API that keeps conversations in PostgreSQL and streams each answer as it comes.

    pip install '.[cpu,local,postgres]' 'fastapi>=0.135' uvicorn
    export HOPGATE_POSTGRES=postgresql://user:password@127.0.0.1/hopgate
    uvicorn --app-dir examples fastapi_app:app --timeout-graceful-shutdown 5

    curl -N 127.0.0.1:8000/ask --json '{"question": "When was Skerrane Light first lit?",
      "thread": "6f0a2c1e-3d4b-4f5a-8e6d-7c9b0a1f2e3d"}'

Uvicorn listens on loopback only. Whoever knows a thread's id can read it and go on with it: put
authentication before this, and tie threads to users, before others can reach it.
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
from hopgate.nodes import events
from hopgate.nodes.text import check_question

log = logging.getLogger(__name__)
locks: WeakValueDictionary[UUID, asyncio.Lock] = WeakValueDictionary()


class Ask(BaseModel):
    """A question of a conversation."""

    question: Annotated[str, AfterValidator(check_question)]
    thread: UUID
    alpha: float = Field(default=0.4, ge=0, le=1)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the database and build the graph once; close the database at the end."""
    async with connections() as pool:
        saver = AsyncPostgresSaver(pool)
        await saver.setup()
        app.state.graph = build_graph(saver)
        yield


def connections() -> AsyncConnectionPool[AsyncConnection[DictRow]]:
    """Read HOPGATE_POSTGRES; no error shows it, since it may hold a password."""
    try:
        options: dict[str, Any] = dict(conninfo_to_dict(os.environ.get("HOPGATE_POSTGRES", "")))
    except ProgrammingError:
        options = {}
    torn = any("@" in str(options.get(name)) for name in ("host", "port", "dbname"))
    if not options or torn:  # torn: the password holds @ or / as it is
        raise RuntimeError(
            "HOPGATE_POSTGRES is not set, or is no postgresql://user:password@host/name; write "
            "special characters of the password as %40 and so on"
        )
    options |= {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    return AsyncConnectionPool(
        connection_class=AsyncConnection[DictRow], kwargs=options, open=False, timeout=10
    )


app = FastAPI(lifespan=lifespan)


@app.exception_handler(RequestValidationError)
async def refuse(_: Request, error: RequestValidationError) -> JSONResponse:
    """Say which field is wrong and why, without repeating the input as FastAPI would."""
    detail = [{"loc": each["loc"], "msg": each["msg"]} for each in error.errors()]
    return JSONResponse({"detail": detail}, 422)


@app.post("/ask", response_class=EventSourceResponse)
async def ask(asked: Ask) -> AsyncIterator[ServerSentEvent]:
    """Stream hopgate's events and tokens, the sources last; a client that leaves ends the run."""
    config: Any = {"configurable": {"thread_id": str(asked.thread)}}
    result: dict[str, Any] = {}
    try:
        # Of one conversation, one question at a time.
        async with locks.setdefault(asked.thread, asyncio.Lock()):
            part: Any
            async for namespace, mode, part in app.state.graph.astream(
                {"question": asked.question},
                config,
                context=Context(alpha=asked.alpha),
                stream_mode=["custom", "messages", "values"],
                subgraphs=True,  # the loop's too
            ):
                if event := events.read(mode, part):
                    yield ServerSentEvent(event=event["event"], data=event)
                elif mode == "values" and not namespace:
                    result = part
        shown = {key: result[key] for key in ("answer", "citations", "decision", "usage")}
        yield ServerSentEvent(event="result", data=shown)
    except (ValueError, RuntimeError) as error:  # hopgate's own: one line that may be shown
        yield ServerSentEvent(event="error", data={"message": str(error)})
    except Exception:
        log.exception("a question failed")
        yield ServerSentEvent(event="error", data={"message": "an internal error; try again"})


@app.get("/threads/{thread}")
async def history(thread: UUID) -> list[dict[str, str]]:
    """Return the messages of a conversation."""
    state = await app.state.graph.aget_state({"configurable": {"thread_id": str(thread)}})
    if not state.values:
        raise HTTPException(404, f"there is no conversation {thread}")
    return [{"role": each.type, "text": each.text} for each in state.values["messages"]]
