"""Faults: whose fault an error is, and what a server tells its clients about it.

An error names its fault in its attribute `fault`. Without one, a ValueError is the fault of the
request (`input`), and everything else is `other`. The names are the causes in logs and metrics.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from hopgate.common.errors import reason

SERVER_ERROR = 500
_IN_LOG = "the server's log has the reason"


class Fault(NamedTuple):
    """A kind of error.

    Attributes:
        status: The HTTP status of its response.
        said: What clients read; empty: the error's own text.
    """

    status: int
    said: str = ""


FAULTS = {
    "input": Fault(400),
    "unknown_answer": Fault(404),
    "unfinished_turn": Fault(409),
    "budget_spent": Fault(429),
    "rate_reached": Fault(429),
    "deadline_passed": Fault(504),
    "index": Fault(503, f"the index cannot be used; {_IN_LOG}"),
    "router": Fault(503, f"the router cannot be used; {_IN_LOG}"),
    "retriever": Fault(503, f"the search failed; {_IN_LOG}"),
    "model": Fault(503, f"the model cannot be used; {_IN_LOG}"),
    "model_auth": Fault(502, f"the model's endpoint refused the server's key; {_IN_LOG}"),
    "model_quota": Fault(429, "the model's rate limit or quota is reached; try again later"),
    "model_timeout": Fault(504, "the model did not answer in time; ask again"),
    "model_connection": Fault(502, "the model cannot be reached; try again later"),
    "model_reply": Fault(502, f"the model's reply cannot be used; {_IN_LOG}"),
    "model_refusal": Fault(502, f"the model's endpoint refused the request; {_IN_LOG}"),
    "model_error": Fault(502, f"the model failed; {_IN_LOG}"),
    "stopping": Fault(503),
    "other": Fault(500, f"an internal error; {_IN_LOG}"),
}


class RunFailed(RuntimeError):
    """An error as a server's clients may read it; its cause is the error itself."""


_serving = [0]


@contextmanager
def serving() -> Iterator[None]:
    """Keep from clients, in this process, the texts of errors that are not theirs."""
    _serving[0] += 1
    try:
        yield
    finally:
        _serving[0] -= 1


@contextmanager
def blamed(fault: str) -> Iterator[None]:
    """Name the fault of errors that name none."""
    try:
        yield
    except Exception as error:
        error.fault = fault_of(error, fault)  # type: ignore[attr-defined]
        raise


def fault_of(error: BaseException, default: str | None = None) -> str:
    """Return the name of an error's fault, by default as its class suggests."""
    default = default or ("input" if isinstance(error, ValueError) else "other")
    found = getattr(error, "fault", None)  # which errors of other libraries have, too
    return found if isinstance(found, str) and found in FAULTS else default


def whole(error: BaseException) -> BaseException:
    """Return the error that a `RunFailed` stands for, or any other as it is."""
    return error.__cause__ or error if isinstance(error, RunFailed) else error


def for_clients(error: Exception) -> Exception:
    """Return an error as clients may read it, with its attributes; outside of servers as it is."""
    fault = fault_of(error)
    if not (_serving[0] and FAULTS[fault].said) or isinstance(error, RunFailed):
        return error
    told = RunFailed(FAULTS[fault].said)
    vars(told).update(vars(error), fault=fault)
    return told


def detail(error: BaseException, limit: int) -> str:
    """Return an error's text for a warning in an answer, as far as clients may read it."""
    return _IN_LOG if _serving[0] else reason(error, limit)
