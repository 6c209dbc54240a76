"""MCP: hopgate's tools for clients of the Model Context Protocol.

Over HTTP as a route of the server (`Endpoint`), and over stdin and stdout (`serve_stdio`). The
SDK is an optional package, so `hopgate.server.tools`, which needs it, is imported late.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from starlette.middleware import Middleware
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from hopgate.graphs.compiled import AdaptiveGraph
from hopgate.server.access.bodies import body_bytes
from hopgate.server.access.refusals import refusal
from hopgate.server.access.users import Users

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager


class Endpoint:
    """MCP over HTTP, without sessions: any worker can answer any request.

    It answers while `run` is entered. Without the extra `mcp` it names the extra.
    """

    def __init__(
        self, graph: Callable[[], AdaptiveGraph], settings: Mapping[str, Any] | None = None
    ) -> None:
        """Serve a graph.

        Args:
            graph: Returns it; called for each request.
            settings: Of every request, by fields of `Context`; a call may set α.
        """
        self._graph, self._settings = graph, settings
        self._manager: StreamableHTTPSessionManager | None = None

    def route(self, path: str) -> Route:
        """Return the route, for the server's users."""
        return Route(path, self, include_in_schema=False, middleware=[Middleware(Users)])

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Answer requests until the context ends."""
        if find_spec("mcp") is None:
            yield
            return
        from mcp.server.transport_security import TransportSecuritySettings

        from hopgate.server.tools import build_server

        server = build_server(self._graph, self._settings)
        server.streamable_http_app(
            json_response=True,
            stateless_http=True,
            max_request_body_size=body_bytes(),
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        )
        async with server.session_manager.run():
            self._manager = server.session_manager
            yield
        self._manager = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["method"] != "POST":  # sessions do not exist
            await refusal(405, "use POST", {"Allow": "POST"})(scope, receive, send)
        elif self._manager is None:
            message = "MCP is not installed on this server: pip install 'hopgate[mcp]'"
            await refusal(501, message)(scope, receive, send)
        else:
            await self._manager.handle_request(scope, receive, send)


async def serve_stdio(graph: AdaptiveGraph, settings: Mapping[str, Any]) -> None:
    """Serve one client over stdin and stdout, until it closes stdin.

    Args:
        graph: The graph that the tools use.
        settings: Of every request, by fields of `Context`; a call may set α.

    Raises:
        ValueError: The model, the index, the router or the limits cannot be used.
    """
    from hopgate.server.probes import Probes
    from hopgate.server.tools import build_server

    await Probes(lambda: graph, settings).check()
    await build_server(lambda: graph, settings).run_stdio_async()
