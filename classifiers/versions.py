"""Versions of a router, kept beside it: put another one in use, and go back.

    ROUTER.versions/1, 2, …    the versions; each is a router's folder and never changes
    ROUTER.versions/current    the number of the version in use
    ROUTER.versions/2.json     which version was in use before version 2, and since when

`router_folder` of `hopgate.classifiers.checkpoint` follows `current`. That file is replaced in one
step, so a reader sees the old version or the new one, and after a kill one of the two is in use.
Versions are never removed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout

from hopgate.classifiers.checkpoint import (
    BUILTIN_FOLDER,
    CURRENT,
    is_router,
    router_folder,
    verify,
    versions_of,
)
from hopgate.common.files import json_bytes, read_json, write_atomic

_LOCK, _NEW = ".lock", ".new"


class InUse(NamedTuple):
    """The version of a router that is in use.

    Attributes:
        router: The router's path.
        version: The number of the version.
        before: The number of the version that was in use before; None if there was none.
    """

    router: Path
    version: int
    before: int | None


def put(candidate: Path, router: Path, before: Path | str = "builtin") -> InUse:
    """Put a router in use in place of another, which is kept as a version.

    Args:
        candidate: A router's folder, which is copied.
        router: The router to replace; it is created if it does not exist.
        before: The router that `back` returns to if there was none.

    Raises:
        ValueError: The candidate is not a router's folder, or `router` cannot be replaced.
        RuntimeError: A file of the candidate was altered, or the router cannot be replaced.
    """
    router = replaceable(router)
    verify(candidate)
    with _changing(router) as versions:
        now = router_folder(router)
        old = now if is_router(now) else router_folder(before)
        first = _number(old, versions) or _copied(old, versions)
        number = _copied(router_folder(candidate), versions)
        about = {"before": first, "since": datetime.now(UTC).isoformat(timespec="seconds")}
        write_atomic(versions / f"{number}.json", json_bytes(about))
        _use(versions, number)
    return InUse(router, number, first)


def back(router: Path) -> InUse:
    """Put the version in use that was in use before; nothing is copied or removed.

    Raises:
        ValueError: There is no earlier version.
        RuntimeError: A file of that version was altered, or the router cannot be replaced.
    """
    router = replaceable(router)
    versions = versions_of(router)
    before = _before(versions, _number(router_folder(router), versions))
    if before is None:
        raise ValueError(
            f"{router} has no version before the one in use; those kept are in {versions}, each a "
            "router's folder of its own"
        )
    with _changing(router):
        verify(versions / str(before))
        _use(versions, before)
        return InUse(router, before, _before(versions, before))


def replaceable(router: Path) -> Path:
    """Return the absolute path of a router that may be replaced.

    Raises:
        ValueError: It ships with hopgate, or is not a router's folder.
    """
    path = Path(os.path.abspath(router.expanduser()))
    if str(router) == "builtin" or path.resolve() == BUILTIN_FOLDER.resolve():
        raise ValueError(
            f"{router} ships with hopgate and is not replaced; name a folder of your own, which is "
            "created if it does not exist"
        )
    if path.exists() and not is_router(path):
        raise ValueError(f"{router} is not a router's folder, so it is not replaced; name another")
    return path


@contextmanager
def _changing(router: Path) -> Iterator[Path]:
    """Yield the folder of the versions, locked."""
    versions = versions_of(router)
    try:
        versions.mkdir(parents=True, exist_ok=True)
        with FileLock(versions / _LOCK, timeout=0):
            yield versions
    except Timeout as error:
        raise RuntimeError(f"{router} is being changed by another process; wait for it") from error
    except OSError as error:
        raise RuntimeError(f"{router} cannot be replaced: {error.strerror or error}") from error


def _number(folder: Path, versions: Path) -> int | None:
    """Return the number of a version, also if `folder` is a link to it."""
    place = folder.expanduser().resolve()
    known = place.parent == versions.resolve() and place.name.isdecimal() and place.is_dir()
    return int(place.name) if known else None


def _before(versions: Path, number: int | None) -> int | None:
    """Return which version was in use before another, if it is still there.

    Raises:
        ValueError: The note about it is damaged.
    """
    about = versions / f"{number}.json"
    before = read_json(about, "the version's note").get("before") if about.is_file() else None
    return before if (versions / str(before)).is_dir() else None


def _copied(folder: Path, versions: Path) -> int:
    """Copy a router into a new version, completely or not at all."""
    new = versions / _NEW
    shutil.rmtree(new, ignore_errors=True)
    shutil.copytree(folder, new)
    verify(new)
    kept = (int(path.name) for path in versions.iterdir() if path.name.isdecimal())
    number = 1 + max(kept, default=0)
    new.rename(versions / str(number))
    return number


def _use(versions: Path, number: int) -> None:
    write_atomic(versions / CURRENT, f"{number}\n".encode())
