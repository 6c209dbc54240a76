"""Watching a folder, so that an index can follow it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from threading import Event

from hopgate.retrievers.building import check_followed
from hopgate.retrievers.documents.finding import Stamp, find_files, stamp_of

LOOK_SECONDS = 1.0
"""Time between two looks at the files; in a large folder it is ten times what a look takes."""
RETRY_SECONDS = 5.0
"""Time between two tries after an update that failed."""


def watch(
    folder: Path | str, index: Path | str, update: Callable[[], bool], stop: Event | None = None
) -> None:
    """Call `update` at once, and again whenever files below a folder have changed.

    The files' sizes and times are compared every few seconds, which works on network drives too. A
    file that is still being written is waited for, and so is a folder that goes away.

    Args:
        folder: The folder.
        index: The index that follows it, in another folder or hidden in this one.
        update: Calls `sync`, for example; returns whether it succeeded. If it did not, it is called
            again every few seconds until it does.
        stop: Ends the watch when it is set.

    Raises:
        ValueError: There is no such folder or index, or the index is or contains the folder.
    """
    top, _ = check_followed(folder, index)
    stop = stop or Event()
    seen = before = _stamps(top)
    done: object = False
    pause = LOOK_SECONDS
    while True:
        if seen == before and seen != done:
            done = seen if update() else False
        if stop.wait(RETRY_SECONDS if done is False else pause):
            return
        started = time.monotonic()
        before, seen = seen, _stamps(top)
        pause = max(LOOK_SECONDS, 10 * (time.monotonic() - started))


def _stamps(folder: Path) -> dict[Path, Stamp | None] | None:
    """Return the stamps of the files below a folder; None if there are none."""
    try:
        return {file: stamp_of(file) for file, _ in find_files([folder]).files}
    except (ValueError, OSError):  # `update` names the problem
        return None
