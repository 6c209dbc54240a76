"""`/v1`: the graph as a model of OpenAI's API, for chat clients and OpenAI's libraries."""

import asyncio
import json
import logging
import re
import sqlite3
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_core.runnables import RunnableConfig
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from hopgate.common.files import shown
from hopgate.graphs.checkpoints import sqlite_saver
from hopgate.graphs.compiled import AdaptiveGraph
from hopgate.graphs.feedback import give_feedback
from hopgate.nodes.run.context import Context
from hopgate.nodes.run.identity import identity
from hopgate.nodes.run.limits import limits_from_environment
from hopgate.nodes.run.runtime import NodeRuntime
from hopgate.nodes.run.spending import spent_by
from hopgate.server.access.bodies import BodyLimit, body_bytes, read_body
from hopgate.server.access.refusals import error, explained, refused
from hopgate.server.access.users import Users, user_of
from hopgate.server.feedback import Opinion
from hopgate.server.observing import metrics
from hopgate.server.openai.completions import OWNER, ChatCompletion, ChatRequest, Json, run
from hopgate.server.presets import DEFAULT, PRESETS

if TYPE_CHECKING:
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

HUNG_UP = 499  # nginx's status; nobody reads it

_ALPHA = re.compile(r"\d*\.?\d+")

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class CompletionOpinion(Opinion):
    """The body of a request to `/v1/feedback`."""

    id: str
    """The completion's id."""


class OpenAIRoutes:
    """The routes under `/v1`."""

    def __init__(
        self,
        graph: Callable[[], AdaptiveGraph],
        settings: Mapping[str, Any] | None = None,
        keep: Path | None = None,
    ) -> None:
        """Serve a graph.

        Args:
            graph: Returns it; called for each request.
            settings: Of every request, by fields of `Context`; a model's name may set α.
            keep: SQLite file to keep answered conversations in, for feedback and `hopgate harvest`;
                None keeps none. Serve within `run` then.
        """
        self._graph = graph
        self._keep = keep
        self._saver: AsyncSqliteSaver | None = None
        self._keeper: AsyncSqliteSaver | None = None
        self._settings = dict(settings or {})
        self._started = int(time.time())

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Hold the file of kept conversations open."""
        if self._keep is None:
            yield
            return
        async with sqlite_saver(self._keep) as self._saver:
            self._keeper = copy(self._saver)
            for name in ("aput", "aput_writes"):
                setattr(self._keeper, name, _forgiving(getattr(self._saver, name)))
            yield

    def mount(self) -> Mount:
        """Return the routes."""
        app = Starlette(
            routes=[
                Route("/models", self.models),
                Route("/models/{name}", self.model),
                Route("/chat/completions", self.complete, methods=["POST"]),
                Route("/feedback", self.feedback, methods=["POST"]),
            ],
            exception_handlers=dict.fromkeys(
                (HTTPException, ValueError, RuntimeError, Exception),
                lambda _, fault: refused(fault),
            ),
        )
        guards = [Middleware(Users), Middleware(BodyLimit, max_bytes=body_bytes())]
        return Mount("/v1", app, middleware=guards)

    async def models(self, _: Request) -> Response:
        """List the models: the graph, and each preset of α that the operator allows."""
        allowed = limits_from_environment()
        presets = sorted(PRESETS, key=lambda each: each.alpha or 0)
        names = [self._graph().name]
        names += [p.name for p in presets if p.alpha is None or allowed.allows(alpha=p.alpha)]
        return JSONResponse({"object": "list", "data": [await self._shown(n) for n in names]})

    async def model(self, request: Request) -> Response:
        """Describe one model."""
        name = request.path_params["name"]
        self._context(name)
        return JSONResponse(await self._shown(name))

    async def complete(self, request: Request) -> Response:
        """Answer the last message of a conversation."""
        asked = await read_body(request, ChatRequest)
        graph, context = self._with(self._keeper), self._context(asked.model, asked.sampling)
        completion = ChatCompletion(asked)
        thread = completion.id if self._saver else None
        parts = run(graph, asked.history(), context, user_of(request.scope), thread)
        if not asked.stream:
            async with aclosing(parts):
                document = await _while_connected(request, completion.document(parts))
            return JSONResponse(document)
        may_be_withdrawn = context.over(graph.defaults).escalate > 0
        chunks = completion.chunks(parts, live=not may_be_withdrawn)
        first = await _while_connected(request, anext(chunks))
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        lines = _lines(first, chunks)
        return StreamingResponse(lines, headers=headers, media_type="text/event-stream")

    async def feedback(self, request: Request) -> Response:
        """Keep a user's feedback on a completion of theirs."""
        given = await read_body(request, CompletionOpinion)
        if self._saver is None:
            raise HTTPException(
                404,
                "this server keeps no conversations, so it takes no feedback; start it with "
                "hopgate serve --keep FILE",
            )
        graph = self._with(self._saver)
        owner = identity(user_of(request.scope)) or ""
        thread: RunnableConfig = {
            "configurable": {"thread_id": given.id},
            "metadata": {OWNER: owner},  # the state that feedback writes belongs to them too
        }
        metadata = (await graph.aget_state(thread)).metadata or {}
        if metadata.get(OWNER) != owner:
            raise HTTPException(404, f"there is no completion {shown(given.id)} of yours")
        kept = await give_feedback(graph, thread, thumbs=given.thumbs, answer=given.answer)
        return JSONResponse({"id": given.id, "feedback": kept})

    def _with(self, saver: "AsyncSqliteSaver | None") -> AdaptiveGraph:
        graph = self._graph()
        return graph.copy({"checkpointer": saver}) if saver else graph

    async def _shown(self, name: str) -> dict[str, Any]:
        graph = self._graph()
        settings = self._context(name).over(graph.defaults)
        return {
            "id": name,
            "object": "model",
            "created": self._started,
            "owned_by": "hopgate",
            "alpha": await NodeRuntime(settings, graph.resources).alpha(),
        }

    def _context(self, model: str, sampling: Mapping[str, Any] | None = None) -> Context:
        """Return the settings that a model's name stands for, and how the answer is sampled.

        Raises:
            HTTPException: 404: there is no such model.
            ValueError: Its α is not from 0 to 1.
        """
        name, settings = self._graph().name, {**self._settings, **(sampling or {})}
        if model in (name, DEFAULT):
            return Context(**settings)
        alphas = {each.name: each.alpha for each in PRESETS}
        given = model.removeprefix(f"{name}-")
        if model in alphas:
            alpha = alphas[model]
        elif given != model and _ALPHA.fullmatch(given):
            alpha = float(given)
        else:
            raise HTTPException(
                404,
                f"there is no model {model!r}; use {name}, {name}-0.7 (α from 0 to 1), or "
                f"{', '.join(alphas)}",
            )
        return Context(**{**settings, "alpha": alpha})


def _forgiving(write: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return a saver's method that warns if the disk is full, so that the answer goes on."""

    async def kept(config: RunnableConfig, *given: Any, **more: Any) -> Any:
        try:
            return await write(config, *given, **more)
        except sqlite3.Error as error:
            log.warning("a conversation is not kept: %s; make room on the disk", error)
            metrics.unkept.inc()
            return config

    return kept


async def _while_connected(request: Request, work: Awaitable[Result]) -> Result:
    """Wait for work, and end it when the client hangs up.

    Raises:
        HTTPException: 499: the client has hung up.
    """
    working = asyncio.ensure_future(work)
    listening = asyncio.ensure_future(request.receive())  # the body is read: only an end can come
    try:
        await asyncio.wait({working, listening}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise HTTPException(HUNG_UP, "the client has hung up")
        return working.result()
    finally:
        working.cancel()
        listening.cancel()
        await asyncio.gather(working, listening, return_exceptions=True)


async def _lines(first: Json, more: AsyncIterator[Json]) -> AsyncGenerator[str, None]:
    """Write chunks as server-sent events; an error too, because the status has been sent."""
    yield _line(first)
    try:
        async for chunk in more:
            yield _line(chunk)
    except Exception as failed:
        status, message, code = explained(failed)
        yield _line(error(status, message, code=code, usage=spent_by(failed)))
    yield "data: [DONE]\n\n"


def _line(document: Json) -> str:
    return f"data: {json.dumps(document, ensure_ascii=False)}\n\n"
