"""Refusals: error responses that clients of LangGraph's server and of OpenAI's can both read."""

from collections.abc import Mapping

from starlette.responses import JSONResponse

from hopgate.nodes.run.state import Usage

INTERNAL = "an internal error; the server's log has the details"
SERVER_ERROR = 500
CODES = {
    401: "invalid_api_key",
    404: "not_found",
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
    usage: Usage | None = None,
) -> JSONResponse:
    """Return an error response.

    Args:
        status: The HTTP status.
        message: One line with the problem and the remedy.
        headers: More headers.
        code: A word for programs to test; None takes the status's own, if it has one.
        usage: The cost of the run up to its failure.
    """
    shown = error(status, message, code=code, usage=usage)
    return JSONResponse({"detail": message, **shown}, status, headers)


def error(
    status: int, message: str, *, code: str | None = None, usage: Usage | None = None
) -> dict[str, object]:
    """Return an error in the form of OpenAI's API."""
    kind = "server_error" if status >= SERVER_ERROR else "invalid_request_error"
    shown = {"message": message, "type": kind, "param": None, "code": code or CODES.get(status)}
    return {"error": shown, **({"hopgate": {"usage": usage}} if usage else {})}
