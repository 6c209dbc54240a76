"""Refusals: error responses that clients of LangGraph's server and of OpenAI's can both read."""

import logging
from collections.abc import Mapping

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from hopgate.common.errors import explain, one_line
from hopgate.common.faults import FAULTS, SERVER_ERROR, fault_of, for_clients
from hopgate.nodes.run.spending import spent_by
from hopgate.nodes.run.state import Usage

CODES = {401: "invalid_api_key", 404: "not_found", 413: "request_too_large"}
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
    from hopgate.server.observing import metrics

    # What a client wrote may be in the message of a request that makes no sense.
    log.warning("refused status=%d: %s", status, code or "input" if status == 400 else message)
    metrics.refusals.labels(status).inc()
    shown = error(status, message, code=code, usage=usage)
    return JSONResponse({"detail": message, **shown}, status, headers)


def error(
    status: int, message: str, *, code: str | None = None, usage: Usage | None = None
) -> dict[str, object]:
    """Return an error in the form of OpenAI's API."""
    kind = "server_error" if status >= SERVER_ERROR else "invalid_request_error"
    shown = {"message": message, "type": kind, "param": None, "code": code or CODES.get(status)}
    return {"error": shown, **({"hopgate": {"usage": usage}} if usage else {})}


def explained(failed: Exception) -> tuple[int, str, str | None]:
    """Return an error's HTTP status, a message that is safe to show, and a code."""
    name, told = fault_of(failed), for_clients(failed)
    if told is not failed:  # it was not raised in a run, whose log line has it
        log.error("a request failed (%s)", name, exc_info=failed)
    text = explain(told) if isinstance(told, ValidationError) else one_line(told)
    return FAULTS[name].status, text, None if name in ("input", "other") else name


def refused(failed: Exception) -> JSONResponse:
    """Return the response to a request that an error ended."""
    if isinstance(failed, HTTPException):
        code = "model_not_found" if failed.detail.startswith("there is no model") else None
        return refusal(failed.status_code, failed.detail, failed.headers, code=code)
    status, message, code = explained(failed)
    wait = getattr(failed, "retry_after", None)
    headers = {} if code in ("model_quota", "stopping") else NO_RETRY
    headers |= {"Retry-After": wait} if wait else {}
    return refusal(status, message, headers, code=code, usage=spent_by(failed))
