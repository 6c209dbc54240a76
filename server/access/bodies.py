"""Bodies of requests: their maximum size, and JSON that is checked."""

from collections import deque
from typing import TypeVar

from pydantic import BaseModel
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hopgate.nodes.run.limits import limits_from_environment
from hopgate.server.access.guards import SecurityHeaders
from hopgate.server.access.refusals import refusal

BODY_BYTES = 10_000_000  # of hopgate's own routes, if the operator sets no limit

Body = TypeVar("Body", bound=BaseModel)


def body_bytes() -> int:
    """Return the maximum bytes of a request to hopgate's own routes."""
    return limits_from_environment().body_bytes or BODY_BYTES


class BodyLimit:
    """Refuses requests with more bytes than allowed, before the app sees them."""

    def __init__(self, app: ASGIApp, max_bytes: int | None) -> None:
        """Wrap `app`; None for `max_bytes` sets no limit."""
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or connection."""
        if scope["type"] != "http" or self._max_bytes is None:
            await self._app(scope, receive, send)
            return
        size = int(Headers(scope=scope).get("content-length", 0))
        received = 0
        messages: deque[Message] = deque()
        while size <= self._max_bytes and (not messages or messages[-1].get("more_body")):
            messages.append(await receive())
            received += len(messages[-1].get("body", b""))
            size = max(size, received)
        if size > self._max_bytes:
            detail = f"the request is too large: this server allows at most {self._max_bytes} bytes"
            await SecurityHeaders(refusal(413, detail))(scope, receive, send)
            return

        async def replay() -> Message:
            return messages.popleft() if messages else await receive()

        await self._app(scope, replay, send)


async def read_body(request: Request, model: type[Body]) -> Body:
    """Read a request's JSON.

    Raises:
        HTTPException: 415: it is not sent as JSON.
        ValidationError: It does not fit the model.
    """
    # A browser sends other types across sites without asking the server.
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "send the request as JSON: Content-Type: application/json")
    return model.model_validate_json(await request.body())
