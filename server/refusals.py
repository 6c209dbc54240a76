"""Refusals: error responses that clients of LangGraph's server and of OpenAI's can both read."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.responses import JSONResponse

    from hopgate.nodes.state import Usage

INTERNAL = "an internal error; the server's log has the details"
SERVER_ERROR = 500
CODES = {
    401: "invalid_api_key",
    404: "not_found",
    408: "request_timeout",
    413: "request_too_large",
    429: "budget_spent",
    504: "deadline_passed",
}


def refusal(
    status: int,
    message: str,
    headers: Mapping[str, str] | None = None,
    *,
    code: str | None = None,
    param: str | None = None,
    usage: "Usage | None" = None,
) -> "JSONResponse":
    """Return an error response.

    Args:
        status: The HTTP status.
        message: What happened and what to do, in one line.
        headers: More headers.
        code: A word that programs can test for; None is that of the status, if it has one.
        param: The part of the request that is wrong.
        usage: What the run had cost when it failed.
    """
    from starlette.responses import JSONResponse

    shown = error(status, message, code=code, param=param, usage=usage)
    return JSONResponse({"detail": message, **shown}, status, headers)


def error(
    status: int,
    message: str,
    *,
    code: str | None = None,
    param: str | None = None,
    usage: "Usage | None" = None,
) -> dict[str, object]:
    """Return an error in the form of OpenAI's API."""
    kind = "server_error" if status >= SERVER_ERROR else "invalid_request_error"
    shown = {"message": message, "type": kind, "param": param, "code": code or CODES.get(status)}
    return {"error": shown, **({"hopgate": {"usage": usage}} if usage else {})}
