"""The web routes beside the LangGraph server's own: all under `/hopgate`.

langgraph.json names `app` as its `http.app`. The server takes its routes over, so what they all
share (security headers) hangs on the routes, not on the app.
"""

from pathlib import Path

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hopgate.graphs import limits
from hopgate.server import metrics, presets
from hopgate.server.guards import BodyLimit, DeveloperRoutes

STATIC = Path(__file__).with_name("static")

# Everything from this origin, nothing inline, and no text may become markup or code.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)

HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class SecurityHeaders:
    """Adds `HEADERS` to every response, and has it revalidated before it is shown again."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-cache")
            await send(message)

        await self._app(scope, receive, send_with_headers)


def to_page(_: Request) -> RedirectResponse:
    """Add the slash that the page's relative addresses count on."""
    return RedirectResponse("hopgate/")


def to_metrics(_: Request) -> Response:
    """Give what α does, for Prometheus."""
    return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)


# An editable install may lay links.
files = StaticFiles(directory=STATIC, html=True, follow_symlink=True)

# An app of its own, so that its refusals bear the headers too.
site = Starlette(
    routes=[Route("/metrics", to_metrics, include_in_schema=False), Mount("/", files)],
    middleware=[Middleware(SecurityHeaders)],
)

app = Starlette(
    routes=[
        Route(
            "/hopgate", to_page, include_in_schema=False, middleware=[Middleware(SecurityHeaders)]
        ),
        Mount("/hopgate", site),
    ],
    middleware=[
        Middleware(DeveloperRoutes),
        Middleware(BodyLimit, most=limits.from_environment().body_bytes),
    ],
    lifespan=presets.lifespan,
)
