"""Guards: what is refused before the server looks at it."""

import os

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hopgate.server.headers import SecurityHeaders

AUTH = "LANGGRAPH_AUTH"  # set by the server where langgraph.json has `auth`
DEVELOPERS = ("/internal", "/deploy")

NOT_FOUND = 404
TOO_LARGE = 413
TOO_LARGE_CLOSE = 1009  # the same, for a WebSocket


class BodyLimit:
    """Refuses a request, or a WebSocket's message, with more bytes than the operator allows."""

    def __init__(self, app: ASGIApp, most: int | None) -> None:
        """Wrap `app`; `most` is `body_bytes` of `HOPGATE_LIMITS`, None for any."""
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or one connection."""
        if self._most is None or scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._app(scope, _messages(receive, send, self._most), send)
        else:
            await self._answer(scope, receive, send, self._most)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, most: int) -> None:
        """Serve a request, whose size may be declared or not."""
        refusal = _refusal(
            TOO_LARGE, f"the request is too large: this server allows at most {most} bytes"
        )
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdigit() and int(declared) > most:
            await refusal(scope, receive, send)
            return
        received, has_begun = 0, False

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > most:
                raise HTTPException(TOO_LARGE)
            return message

        async def answered(message: Message) -> None:
            nonlocal has_begun
            if received <= most or has_begun:
                has_begun = True
                await send(message)

        try:
            await self._app(scope, counted, answered)
        except Exception:
            if received <= most or has_begun:
                raise
        if received > most and not has_begun:  # whatever the app made of the exception
            await refusal(scope, receive, send)


def _messages(receive: Receive, send: Send, most: int) -> Receive:
    """Close a WebSocket on a message that is too large."""

    async def checked() -> Message:
        message = await receive()
        size = len((message.get("text") or "").encode()) or len(message.get("bytes") or b"")
        if size > most:
            await send({"type": "websocket.close", "code": TOO_LARGE_CLOSE})
            return {"type": "websocket.disconnect", "code": TOO_LARGE_CLOSE}
        return message

    return checked


def _refusal(status: int, detail: str) -> ASGIApp:
    return SecurityHeaders(JSONResponse({"detail": detail}, status))


class DeveloperRoutes:
    """Hides `langgraph dev`'s own routes where users need a token, for these ask for none.

    They show any thread, delete everything and deploy the code.
    """

    def __init__(self, app: ASGIApp) -> None:
        """Wrap `app`."""
        self._app = app
        self._is_guarded = bool(os.environ.get(AUTH))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or one connection."""
        path = str(scope.get("path", "")).removeprefix(str(scope.get("root_path", "")))
        hidden = any(path == each or path.startswith(f"{each}/") for each in DEVELOPERS)
        if self._is_guarded and scope["type"] == "http" and hidden:
            await _refusal(NOT_FOUND, "Not Found")(scope, receive, send)
            return
        await self._app(scope, receive, send)
