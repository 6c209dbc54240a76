"""Middleware: security headers, and developer routes that users must not reach."""

import os

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hopgate.server.access.refusals import refusal
from hopgate.server.access.setup import AUTH

# Everything from this origin, nothing inline, and no text becomes markup or code.
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
DEVELOPER_ROUTES = ("/internal/", "/deploy/")


class SecurityHeaders:
    """Adds `HEADERS` to every response, and makes browsers revalidate cached ones."""

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


class DeveloperRoutes:
    """Hides the developer routes of `langgraph dev` if users need a token.

    These routes need no token, show any thread, delete everything and deploy the code.
    """

    def __init__(self, app: ASGIApp) -> None:
        """Wrap `app`."""
        self._app = app
        self._has_users = bool(os.environ.get(AUTH))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or connection."""
        path = str(scope.get("path", "")).removeprefix(str(scope.get("root_path", "")))
        is_hidden = self._has_users and f"{path}/".startswith(DEVELOPER_ROUTES)
        app = SecurityHeaders(refusal(404, "Not Found")) if is_hidden else self._app
        await app(scope, receive, send)
