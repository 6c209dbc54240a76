"""A process-wide cache for slow loads: routers, encoders, indexes, question pools."""

import threading
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

Value = TypeVar("Value")
Stamps = tuple[tuple[int, int, int] | None, ...]


class Cache(Generic[Value]):
    """Values that are loaded once per process, and again when their files change.

    Staleness has one rule: a value is stale when one of the files it was loaded from has another
    modification time, size or inode than when loading began. A failed load is not
    cached. Threads that want the same key wait for one load; other keys load in parallel.
    """

    def __init__(self) -> None:
        """Create an empty cache."""
        self._values: dict[Hashable, tuple[Stamps, Value]] = {}
        self._locks: dict[Hashable, threading.Lock] = {}
        self._lock = threading.Lock()

    def get(self, key: Hashable, load: Callable[[], Value], files: Sequence[Path] = ()) -> Value:
        """Return the value of `key`, loading it if it is missing or stale; may block.

        Args:
            key: Identifies the value: its settings and where it comes from.
            load: Loads the value; its errors are raised.
            files: The files that the value is loaded from.
        """
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            stamp = file_stamps(files)
            held = self._values.get(key)
            if held is None or held[0] != stamp:
                held = self._values[key] = (stamp, load())
            return held[1]


def file_stamps(files: Sequence[Path]) -> Stamps:
    """Return the `file_stamp` of each file."""
    return tuple(map(file_stamp, files))


def file_stamp(path: Path) -> tuple[int, int, int] | None:
    """Return modification time, size and inode of a file; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
