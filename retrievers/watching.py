"""Watching a folder, so that an index can follow it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from hopgate.retrievers.building import check_followed
from hopgate.retrievers.documents.finding import KINDS

if TYPE_CHECKING:
    from watchfiles import Change

RETRY_SECONDS = 5.0
"""Time between two tries after an update that failed."""
_POLL_MS = 1_000
_DEBOUNCE_MS = 1_600
_STEP_MS = 200


def watch(
    folder: Path | str, index: Path | str, update: Callable[[], bool], stop: Event | None = None
) -> None:
    """Call `update` at once, and again whenever files below a folder have changed.

    Changes that come within about a second are one call. Hidden files, files of kinds that are not
    read, and the index itself are left out. A folder that goes away is waited for.

    Args:
        folder: The folder.
        index: The index that follows it, in another folder or hidden in this one.
        update: Calls `sync`, for example; returns whether it succeeded. If it did not, it is called
            again every few seconds until it does.
        stop: Ends the watch when it is set, within a second.

    Raises:
        ValueError: There is no such folder or index, or the index is or contains the folder.
        RuntimeError: The extra `documents` is missing.
        OSError: The system cannot watch the folder.
    """
    top, target = check_followed(folder, index)
    try:
        import watchfiles
    except ImportError as error:
        raise RuntimeError(
            "watching a folder needs watchfiles: pip install 'hopgate[documents]'"
        ) from error

    def relevant(_: Change, path: str) -> bool:
        return _is_relevant(Path(path), top, target)

    stop = stop or Event()
    pending, tried = True, -RETRY_SECONDS
    while not stop.is_set():
        followed = _identity(top)
        if followed is None:  # `update` names the problem
            pending, tried = not update(), time.monotonic()
            stop.wait(RETRY_SECONDS)
            continue
        changes = watchfiles.watch(
            top,
            watch_filter=relevant,
            debounce=_DEBOUNCE_MS,
            step=_STEP_MS,
            stop_event=stop,
            rust_timeout=_POLL_MS,
            yield_on_timeout=True,
            ignore_permission_denied=True,
        )
        with suppress(FileNotFoundError):  # it went away just now
            for found in changes:  # with the first, which may be none, the watch has begun
                if stop.is_set() or _identity(top) != followed:
                    pending = True  # another folder of this name, or none
                    break
                if found or (pending and time.monotonic() - tried >= RETRY_SECONDS):
                    pending, tried = not update(), time.monotonic()


def _is_relevant(path: Path, top: Path, index: Path) -> bool:
    """Return whether an index that follows a folder may change because of a path."""
    if path == index or index in path.parents or not path.is_relative_to(top):
        return False
    if any(part.startswith(".") for part in path.relative_to(top).parts):
        return False
    return path.suffix.lower() in KINDS or not path.is_file()


def _identity(folder: Path) -> tuple[int, int] | None:
    """Return a folder's identity, not only its name; None if it is gone."""
    try:
        found = os.stat(folder)
    except OSError:
        return None
    return found.st_dev, found.st_ino
