"""Guards: middleware that refuses requests before the server handles them."""

import os

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hopgate.server.access import AUTH
from hopgate.server.headers import SecurityHeaders
from hopgate.server.refusals import refusal

DEVELOPER_ROUTES = ("/internal", "/deploy")

NOT_FOUND = 404
TOO_LARGE = 413
TOO_LARGE_CLOSE = 1009  # the close code of a WebSocket


class BodyLimit:
    """Refuses requests and WebSocket messages with more bytes than the operator allows."""

    def __init__(self, app: ASGIApp, max_bytes: int | None) -> None:
        """Wrap `app`; `max_bytes` is `body_bytes` of `HOPGATE_LIMITS`, None for no limit."""
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or connection."""
        if self._max_bytes is None or scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._app(scope, _limited(receive, send, self._max_bytes), send)
        else:
            await self._respond(scope, receive, send, self._max_bytes)

    async def _respond(self, scope: Scope, receive: Receive, send: Send, max_bytes: int) -> None:
        """Serve a request, with or without a Content-Length."""
        refusal = _refusal(
            TOO_LARGE, f"the request is too large: this server allows at most {max_bytes} bytes"
        )
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdigit() and int(declared) > max_bytes:
            await refusal(scope, receive, send)
            return
        received, has_started = 0, False

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > max_bytes:
                raise HTTPException(TOO_LARGE)
            return message

        async def answered(message: Message) -> None:
            nonlocal has_started
            if received <= max_bytes or has_started:
                has_started = True
                await send(message)

        try:
            await self._app(scope, counted, answered)
        except Exception:
            if received <= max_bytes or has_started:
                raise
        if received > max_bytes and not has_started:  # whatever the app did with the exception
            await refusal(scope, receive, send)


def _limited(receive: Receive, send: Send, max_bytes: int) -> Receive:
    """Close the WebSocket when a message is too large."""

    async def checked() -> Message:
        message = await receive()
        size = len((message.get("text") or "").encode()) or len(message.get("bytes") or b"")
        if size > max_bytes:
            await send({"type": "websocket.close", "code": TOO_LARGE_CLOSE})
            return {"type": "websocket.disconnect", "code": TOO_LARGE_CLOSE}
        return message

    return checked


def _refusal(status: int, detail: str) -> ASGIApp:
    return SecurityHeaders(refusal(status, detail))


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
        hidden = any(path == each or path.startswith(f"{each}/") for each in DEVELOPER_ROUTES)
        if self._has_users and scope["type"] == "http" and hidden:
            await _refusal(NOT_FOUND, "Not Found")(scope, receive, send)
            return
        await self._app(scope, receive, send)
