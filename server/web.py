"""The web routes that hopgate adds to the LangGraph server, under `/hopgate` and `/v1`.

langgraph.json names `app` as its `http.app`. The server copies the routes, so the security headers
are middleware of the routes, not of the app.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from hopgate.graphs.compiled import AdaptiveGraph
from hopgate.nodes.limits import limits_from_environment
from hopgate.server import access, mcp, metrics, presets, v1
from hopgate.server.feedback import feedback
from hopgate.server.graph import graph
from hopgate.server.guards import BodyLimit, DeveloperRoutes
from hopgate.server.headers import SecurityHeaders
from hopgate.server.warming import warming

STATIC = Path(__file__).with_name("static")


def to_page(_: Request) -> RedirectResponse:
    """Redirect to the address with a slash, which the page's relative links need."""
    return RedirectResponse("hopgate/")


def to_metrics(_: Request) -> Response:
    """Return hopgate's metrics for Prometheus."""
    return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)


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
    """Create the presets before the server answers, and load the defaults while it does."""
    async with warming(), presets.lifespan(app), tools.run():
        yield


access.warn_if_open()
tools = mcp.Endpoint(served)

# Editable installs may use links.
files = StaticFiles(directory=STATIC, html=True, follow_symlink=True)

# An app of its own, so that its error responses get the headers too.
site = Starlette(
    routes=[
        Route("/metrics", to_metrics, include_in_schema=False),
        tools.route("/mcp"),
        Mount("/", files),
    ],
    middleware=[Middleware(SecurityHeaders)],
)

app = Starlette(
    routes=[
        Route(
            "/hopgate", to_page, include_in_schema=False, middleware=[Middleware(SecurityHeaders)]
        ),
        Route(
            "/hopgate/feedback",
            feedback,
            methods=["POST"],
            include_in_schema=False,
            middleware=[Middleware(SecurityHeaders)],
        ),
        Mount("/hopgate", site),
        v1.Endpoint(served).mount(),
    ],
    middleware=[
        Middleware(DeveloperRoutes),
        Middleware(BodyLimit, max_bytes=limits_from_environment().body_bytes),
    ],
    lifespan=lifespan,
)
