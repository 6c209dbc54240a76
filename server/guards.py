"""Guards: middleware that refuses requests before the server handles them."""

import asyncio
import os
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hopgate.nodes.limits import limits_from_environment
from hopgate.server.access import AUTH
from hopgate.server.headers import SecurityHeaders
from hopgate.server.refusals import refusal

DEVELOPER_ROUTES = ("/internal", "/deploy")

BODY_BYTES = 10_000_000  # of hopgate's own routes, if the operator sets no limit
BODY_SECONDS = 30
SEND_SECONDS = 60

NOT_FOUND = 404
TOO_SLOW = 408
TOO_LARGE = 413
TOO_LARGE_CLOSE = 1009  # the close code of a WebSocket


class BodyLimit:
    """Refuses requests and WebSocket messages with more bytes than allowed, and slow clients.

    A request has `BODY_SECONDS` to arrive, and each part of a response `SEND_SECONDS` to leave.
    """

    def __init__(self, app: ASGIApp, max_bytes: int | None) -> None:
        """Wrap `app`; `max_bytes` None is no limit."""
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or connection."""
        if scope["type"] == "http":
            await self._respond(scope, _Exchange(receive, send, self._max_bytes))
        elif scope["type"] == "websocket" and self._max_bytes is not None:
            await self._app(scope, _limited(receive, send, self._max_bytes), send)
        else:
            await self._app(scope, receive, send)

    async def _respond(self, scope: Scope, exchange: "_Exchange") -> None:
        """Serve a request, with or without a Content-Length."""
        declared = Headers(scope=scope).get("content-length", "")
        exchange.count(int(declared) if declared.isdigit() else 0)
        if exchange.refusal is None:
            try:
                await self._app(scope, exchange.receive, exchange.send)
            except Exception:  # whatever the app did with what `receive` or `send` raised
                if not exchange.is_over:
                    raise
        if exchange.refusal is not None and not exchange.has_started:
            await exchange.refusal(scope, exchange.receive, exchange.answer)


class _Exchange:
    """A request that is received and a response that is sent, both within limits."""

    def __init__(self, receive: Receive, send: Send, max_bytes: int | None) -> None:
        self._receive, self._send, self._max_bytes = receive, send, max_bytes
        self._received = 0
        self._deadline: float | None = None  # set while the body arrives
        self._is_whole = False
        self._has_stalled = False
        self.has_started = False
        self.refusal: ASGIApp | None = None

    @property
    def is_over(self) -> bool:
        """Whether the client is given up, or gets a refusal."""
        return self._has_stalled or (self.refusal is not None and not self.has_started)

    def count(self, size: int) -> None:
        """Refuse a body of this size if it is too large."""
        if self._max_bytes is not None and size > self._max_bytes:
            message = (
                f"the request is too large: this server allows at most {self._max_bytes} bytes"
            )
            self.refusal = _refusal(TOO_LARGE, message)

    async def receive(self) -> Message:
        if self._is_whole:
            return await self._receive()
        self._deadline = self._deadline or asyncio.get_running_loop().time() + BODY_SECONDS
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            late = f"the request took more than {BODY_SECONDS} s to arrive; send it again"
            self.refusal = _refusal(TOO_SLOW, late, {"Connection": "close"})
            raise HTTPException(TOO_SLOW) from None
        self._received += len(message.get("body", b""))
        self.count(self._received)
        if self.refusal:
            raise HTTPException(TOO_LARGE)
        self._is_whole = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if self.refusal is None or self.has_started:
            self.has_started = True
            await self.answer(message)

    async def answer(self, message: Message) -> None:
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await self._send(message)
        except TimeoutError:
            self._has_stalled = True
            raise


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


def body_bytes() -> int:
    """Return the maximum bytes of a request to hopgate's own routes."""
    return limits_from_environment().body_bytes or BODY_BYTES


def _refusal(status: int, detail: str, headers: Mapping[str, str] | None = None) -> ASGIApp:
    return SecurityHeaders(refusal(status, detail, headers))


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
