"""The web routes that hopgate adds to the LangGraph server, under `/hopgate` and `/v1`.

langgraph.json names `app` as its `http.app`. The server copies the routes, so the security headers
are middleware of the routes, not of the app.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from hopgate.common import faults
from hopgate.graphs.compiled import AdaptiveGraph
from hopgate.nodes.run.limits import limits_from_environment
from hopgate.server import mcp, presets
from hopgate.server.access import setup as access
from hopgate.server.access.bodies import BodyLimit
from hopgate.server.access.guards import DeveloperRoutes, SecurityHeaders
from hopgate.server.feedback import feedback
from hopgate.server.graph import graph
from hopgate.server.openai import v1
from hopgate.server.probes import Probes

STATIC = Path(__file__).with_name("static")


def to_page(_: Request) -> RedirectResponse:
    """Redirect to the address with a slash, which the page's relative links need."""
    return RedirectResponse("hopgate/")


def served() -> AdaptiveGraph:
    """Return the first of hopgate's graphs that the server serves."""
    aegra = sys.modules.get("aegra_api.services.langgraph_service")
    if aegra:
        loaded = aegra.get_langgraph_service()._base_graph_cache
    else:
        loaded = getattr(sys.modules.get("langgraph_api.graph"), "GRAPHS", {})
    return next((each for each in loaded.values() if isinstance(each, AdaptiveGraph)), graph)


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Check and load everything, and create the presets, before the server answers."""
    await probes.check()
    with faults.serving():
        async with presets.lifespan(app), tools.run():
            yield


access.warn_if_open()
tools = mcp.Endpoint(served)
probes = Probes(served)

# Editable installs may use links.
files = StaticFiles(directory=STATIC, html=True, follow_symlink=True)

headers = [Middleware(SecurityHeaders)]
route = partial(Route, include_in_schema=False, middleware=headers)

# An app of its own, so that its error responses get the headers too.
site = Starlette(
    routes=[
        tools.route("/mcp"),
        *probes.routes(),
        Mount("/", files),
    ],
    middleware=headers,
)

app = Starlette(
    routes=[
        route("/hopgate", to_page),
        route("/hopgate/feedback", feedback, methods=["POST"]),
        Mount("/hopgate", site),
        v1.OpenAIRoutes(served).mount(),
    ],
    middleware=[
        Middleware(DeveloperRoutes),
        Middleware(BodyLimit, max_bytes=limits_from_environment().body_bytes),
    ],
    lifespan=lifespan,
)
