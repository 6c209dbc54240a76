"""Changing an index: one writer at a time, and versions that appear whole or not at all.

A writer fills the folder of the next version, syncs it to the disk and then replaces the
manifest: whoever kills it leaves the version before, and what the killed one left is cleared by
the next. Readers take no lock: they keep the files they opened, and the version before the
current one stays for those that are just opening it.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from hopgate.retrievers.manifest import MANIFEST, Manifest, to_bytes, version_name

LOCK = ".lock"
HOLDER = ".writer.json"
WORK = ".work"
"""What a build has encoded so far; a killed build resumes from it."""
_NEXT_MANIFEST = ".manifest.json"
_OWN = {LOCK, HOLDER, WORK, MANIFEST, _NEXT_MANIFEST}
_VERSION = re.compile(r"v(\d{6,})")
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FULL_TEXT = re.compile(
    r"No space left|disk is full|disk full|quota|File too large|\d+ requested and \d+ written", re.I
)
"""Error messages of FAISS, SQLite and numpy when the disk is full."""


class Writer:
    """Writes a new version of an index whose lock is held.

    Attributes:
        folder: the folder of the index.
        work: where to keep what is worth keeping if the change does not come to its end.
        number: number of the version that is written.
        version: its folder, empty at first.
    """

    def __init__(self, folder: Path, current: int) -> None:
        """Remove what killed writers left, and old versions."""
        self.folder = folder
        self.work = folder / WORK
        self.number = current + 1
        self.version = folder / version_name(self.number)
        self._done = False
        self._clear(keep=current)
        self.work.mkdir(exist_ok=True)
        self.version.mkdir()

    def publish(self, manifest: Manifest, *, forget: bool = False) -> None:
        """Make the version the current one.

        Args:
            manifest: what describes it.
            forget: remove the version before at once, since it holds what was to be deleted.
        """
        for file in self.version.rglob("*"):
            _sync(file)
        _sync(self.version)
        following = self.folder / _NEXT_MANIFEST
        following.write_bytes(to_bytes(manifest))
        _sync(following)
        _sync(self.folder)
        os.replace(following, self.folder / MANIFEST)
        self._done = True
        _sync(self.folder)
        shutil.rmtree(self.work, ignore_errors=True)
        if forget:
            self._clear(keep=self.number)

    def close(self) -> None:
        """Remove what was not published, except work that the next try can reuse."""
        if not self._done:
            shutil.rmtree(self.version, ignore_errors=True)
            (self.folder / _NEXT_MANIFEST).unlink(missing_ok=True)
        with suppress(OSError):  # it holds something, or is gone
            self.work.rmdir()

    def _clear(self, keep: int) -> None:
        for path in self.folder.iterdir():
            number = _VERSION.fullmatch(path.name)
            if number and int(number[1]) != keep:
                shutil.rmtree(path, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def writing(folder: Path, doing: str) -> Iterator[Writer]:
    """Hold the lock of an index while it is changed, creating its folder if needed.

    Args:
        folder: The folder of the index, resolved.
        doing: The command that holds the lock, for the error message other writers get.

    Raises:
        ValueError: the folder cannot be written.
        RuntimeError: another one is changing the index, or the disk is full.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    lock = _locked(folder)
    try:
        _sign(folder, doing)
        with explained(folder):
            writer = Writer(folder, _current(folder))
            try:
                yield writer
            finally:
                writer.close()
    finally:
        (folder / HOLDER).unlink(missing_ok=True)
        if made and set(os.listdir(folder)) <= {LOCK}:
            (folder / LOCK).unlink(missing_ok=True)
        lock.release()
        with suppress(OSError):  # one that is in use stays
            for path in made:
                path.rmdir()


def _locked(folder: Path) -> FileLock:
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise RuntimeError(
            f"the index at {folder} is being changed by {_holder(folder)}: wait until it is done, "
            "then run this again"
        ) from error
    except OSError as error:
        raise ValueError(unwritable(folder, error)) from error
    return lock


def unwritable(folder: Path, error: OSError) -> str:
    """Return the error message for a folder that cannot be written to."""
    return f"the index cannot be written to {folder} ({error.strerror}): use another folder"


def _sign(folder: Path, doing: str) -> None:
    """Record who holds the lock, for the error message other writers get."""
    holder = {
        "doing": doing,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    with suppress(OSError):
        (folder / HOLDER).write_text(json.dumps(holder), encoding="utf-8")


def _holder(folder: Path) -> str:
    try:
        found = json.loads((folder / HOLDER).read_text(encoding="utf-8"))
        return "`{doing}` (process {pid} on {host}, since {since})".format(**found)
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def _current(folder: Path) -> int:
    """Return the number of the current version; 0 if there is none."""
    try:
        version = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["version"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    return version if isinstance(version, int) else 0


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turn the many errors of a full disk into one."""
    try:
        yield
    except (OSError, RuntimeError, sqlite3.Error) as error:
        if not _is_full(error):
            raise
        free = shutil.disk_usage(folder).free
        raise RuntimeError(
            f"the disk is full: the index at {folder} could not be written ({free >> 20} MiB free) "
            "and is unchanged; free some space and run this again"
        ) from error


def _is_full(error: BaseException) -> bool:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _FULL
    return bool(_FULL_TEXT.search(str(error)))


def foreign(folder: Path) -> list[str]:
    """List what is in the folder of an index but not part of it.

    Raises:
        OSError: the folder cannot be listed.
    """
    names = sorted(os.listdir(folder))
    return [name for name in names if name not in _OWN and not _VERSION.fullmatch(name)]
