"""Refusals: error responses that clients of LangGraph's server and of OpenAI's can both read."""

import logging
from collections.abc import Mapping

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from hopgate.common.errors import explain, one_line
from hopgate.models.chat import ModelError
from hopgate.nodes.run.feedback import UnfinishedTurn, UnknownAnswer
from hopgate.nodes.run.spending import BudgetSpent, DeadlinePassed, spent_by
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
STATUS: tuple[tuple[type[Exception], int], ...] = (
    *((UnknownAnswer, 404), (UnfinishedTurn, 409), (ValueError, 400)),
    *((ModelError, 502), (DeadlinePassed, 504), (BudgetSpent, 429), (RuntimeError, 500)),
)
NO_RETRY = {"x-should-retry": "false"}  # OpenAI's clients obey it; hopgate has retried already

log = logging.getLogger(__name__)


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


def status_and_message(fault: Exception) -> tuple[int, str]:
    """Return an error's HTTP status, and a message that is safe to show."""
    if isinstance(fault, ValidationError):
        return 400, explain(fault)
    for kind, status in STATUS:
        if isinstance(fault, kind):
            return status, one_line(fault)
    log.error("a request failed", exc_info=fault)
    return SERVER_ERROR, INTERNAL


def refused(fault: Exception) -> JSONResponse:
    """Return the response to a request that an error ended."""
    if isinstance(fault, HTTPException):
        code = "model_not_found" if fault.detail.startswith("there is no model") else None
        return refusal(fault.status_code, fault.detail, fault.headers, code=code)
    status, message = status_and_message(fault)
    return refusal(status, message, NO_RETRY, usage=spent_by(fault))
