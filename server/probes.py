"""Whether a server can answer: checked in full when it starts, and for `/ready` at no cost.

The routes need no token, and contain no texts.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hopgate.common.errors import reason
from hopgate.common.faults import blamed, fault_of
from hopgate.common.threads import in_thread
from hopgate.graphs.compiled import AdaptiveGraph
from hopgate.nodes.run import resources as named
from hopgate.nodes.run.context import Context
from hopgate.nodes.run.runtime import WEB, NodeRuntime
from hopgate.retrievers.sources import index_path
from hopgate.server.access import setup as access

QUESTION = "What is asked first?"
PROBE_SECONDS = 2  # for the model's endpoint
KEPT_SECONDS = 1  # of an answer to `/ready`, which anybody may ask for

log = logging.getLogger(__name__)


class Probes:
    """Checks what the requests to a graph will need."""

    def __init__(
        self, graph: Callable[[], AdaptiveGraph], settings: Mapping[str, Any] | None = None
    ) -> None:
        """Check a graph.

        Args:
            graph: Returns it.
            settings: Of every request, by fields of `Context`.
        """
        self._graph, self._settings = graph, dict(settings or {})
        self._seen: tuple[float, str] = (0, "")
        self._looking = asyncio.Lock()
        self._folder: Path | None = None

    def context(self) -> Context:
        """Return the settings of a request that gives none.

        Raises:
            ValueError: The operator's limits allow none of them, or name a user, and there are no
                users.
        """
        graph = self._graph()
        settings = Context(**self._settings).over(graph.defaults)
        return graph.resources.limits.apply(settings, "nobody" if self._has_users else None)

    @cached_property
    def _has_users(self) -> bool:
        return bool(access.users()) or access.has_others()

    @cached_property
    def _certificates(self) -> ssl.SSLContext:
        return ssl.create_default_context()

    async def check(self) -> None:
        """Check the limits, the model, the router and the index, and load them.

        The router and the index are used once, unless that may cost something; the model is not
        asked.

        Raises:
            ValueError: One of them cannot be used.
        """
        started = time.perf_counter()
        context, resources = self.context(), self._graph().resources
        runtime = NodeRuntime(context, resources)
        try:
            await resources.check(context)
            await runtime.model()
            if resources.router is None and context.strategy == "auto":
                await runtime.route(QUESTION)
            if resources.retriever is None and not context.index.startswith(WEB):
                await runtime.search(QUESTION, 1)
        except (OSError, RuntimeError) as error:
            raise ValueError(reason(error)) from error
        if named.is_folder(context) and resources.retriever is None:
            self._folder = index_path(context.index)
        log.info("everything was loaded in %.1f s", time.perf_counter() - started)

    def routes(self) -> list[Route]:
        """Return the routes of probes and metrics."""
        return [
            Route(f"/{each.__name__}", each, include_in_schema=False)
            for each in (self.live, self.ready, self.metrics)
        ]

    async def live(self, _: Request) -> Response:
        """Say that the process answers."""
        return JSONResponse({"status": "live"})

    def metrics(self, _: Request) -> Response:
        """Return hopgate's metrics for Prometheus."""
        from prometheus_client import CONTENT_TYPE_LATEST

        from hopgate.server.observing.metrics import text

        return Response(text(self._folder), media_type=CONTENT_TYPE_LATEST)

    async def ready(self, _: Request) -> Response:
        """Say whether a question could be answered, and if not, what is missing."""
        async with self._looking:
            if time.monotonic() - self._seen[0] > KEPT_SECONDS:
                failing = await self._failing()
                self._seen = time.monotonic(), failing
        if failing := self._seen[1]:
            return JSONResponse({"status": "not ready", "failing": failing}, 503)
        return JSONResponse({"status": "ready"})

    async def _failing(self) -> str:
        try:
            context, resources = self.context(), self._graph().resources
            await resources.check(context)
            if resources.retriever is None:
                await in_thread(resources.store(context), named.open_index, context)
            endpoint = (await resources.load_model(context)).endpoint
            if endpoint.startswith("http"):
                with blamed("model_connection"):
                    async with httpx.AsyncClient(
                        timeout=PROBE_SECONDS, verify=self._certificates
                    ) as client:
                        await client.head(endpoint)
        except Exception as error:  # whatever it is, it is not ready
            log.warning("not ready: %s", reason(error))
            return fault_of(error)
        return ""
