"""Stopping: how a server ends the runs that have not ended when its time to stop is over."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

_visits: set[asyncio.Timeout] = set()
_ended = [False]


class Stopping(RuntimeError):
    """The server stops before the run has ended."""

    fault = "stopping"


@contextmanager
def ends_with_server(visit: asyncio.Timeout) -> Iterator[None]:
    """Let `end_runs` end what happens under a time limit."""
    _visits.add(visit)
    try:
        yield
    finally:
        _visits.discard(visit)


def end_runs() -> None:
    """End the runs of this event loop, and those that start later."""
    _ended[0] = True
    for visit in _visits:
        visit.reschedule(0)


def have_ended() -> bool:
    """Return whether `end_runs` was called."""
    return _ended[0]
