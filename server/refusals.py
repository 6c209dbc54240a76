"""Refusals: error responses that clients of LangGraph's server and of OpenAI's can both read."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.responses import JSONResponse

INTERNAL = "an internal error; the server's log has the details"
SERVER_ERROR = 500
CODES = {
    401: "invalid_api_key",
    404: "not_found",
    408: "request_timeout",
    413: "request_too_large",
}


def refusal(
    status: int,
    message: str,
    headers: Mapping[str, str] | None = None,
    *,
    code: str | None = None,
    param: str | None = None,
) -> "JSONResponse":
    """Return an error response.

    Args:
        status: The HTTP status.
        message: What happened and what to do, in one line.
        headers: More headers.
        code: A word that programs can test for; None is that of the status, if it has one.
        param: The part of the request that is wrong.
    """
    from starlette.responses import JSONResponse

    return JSONResponse(
        {"detail": message, **error(status, message, code=code, param=param)}, status, headers
    )


def error(
    status: int, message: str, *, code: str | None = None, param: str | None = None
) -> dict[str, object]:
    """Return an error in the form of OpenAI's API."""
    kind = "server_error" if status >= SERVER_ERROR else "invalid_request_error"
    shown = {"message": message, "type": kind, "param": param, "code": code or CODES.get(status)}
    return {"error": shown}
