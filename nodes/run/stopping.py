"""Stopping: how a server ends the runs that have not ended when its time to stop is over."""

import asyncio
from contextlib import suppress

visits = set[asyncio.Timeout]()
"""The time limits of all visits to nodes that have not ended."""
ended = list[bool]()
"""Not empty once `end_runs` was called."""


class Stopping(RuntimeError):
    """The server stops before the run has ended."""

    fault = "stopping"


def end_runs() -> None:
    """End the runs of this event loop, and those that start later."""
    ended.append(True)
    for visit in tuple(visits):
        with suppress(RuntimeError):  # its own time limit has just passed
            visit.reschedule(0)
