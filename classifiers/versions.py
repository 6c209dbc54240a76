"""Versions of a router, kept beside it: put another one in use, and go back.

    ROUTER                     a link to the version in use
    ROUTER.versions/1, 2, …    the versions; each is a router's folder and stays as it is
    ROUTER.versions/2.json     which version was in use before version 2, and since when

The link is replaced in one step, so a reader sees the old version or the new one, and after a kill
one of the two is in use. Versions are never removed.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout

from hopgate.classifiers.checkpoint import BUILTIN_FOLDER, is_router, verify
from hopgate.common.files import json_bytes, write_atomic

_LOCK, _NEW, _LINK = ".lock", ".new", ".link"
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux


class InUse(NamedTuple):
    """The version of a router that is in use.

    Attributes:
        router: The router's path.
        version: The number of the version.
        before: Of the version that was in use before; None if there was none.
    """

    router: Path
    version: int
    before: int | None


def put(candidate: Path, router: Path) -> InUse:
    """Put a router in use in place of another, which is kept as a version.

    Args:
        candidate: A router's folder, which is copied; or a kept version of `router`.
        router: The router to replace; it is created if there is none.

    Raises:
        ValueError: The candidate is not a router's folder or is in use already, or `router` is
            not one that can be replaced.
        RuntimeError: A file of the candidate was altered, or the router cannot be replaced.
    """
    router = replaceable(router)
    verify(candidate)
    with _changing(router) as versions:
        present = _present(router, versions)
        number = _number(candidate, versions)
        if number is None:
            number = _copied(candidate, versions, 1 + max(_last(versions), present or 0))
        elif number == present:
            raise ValueError(f"version {number} of {router} is in use already")
        about = {"before": present, "since": datetime.now(UTC).isoformat(timespec="seconds")}
        write_atomic(versions / f"{number}.json", json_bytes(about))
        _use(router, versions, number, present)
    return InUse(router, number, present)


def back(router: Path) -> InUse:
    """Put the version in use that was in use before; nothing is copied or removed.

    Raises:
        ValueError: There is no version before.
        RuntimeError: A file of that version was altered, or the router cannot be replaced.
    """
    router = replaceable(router)
    if not versions_of(router).is_dir():
        raise ValueError(f"{router} has no other versions; `hopgate promote DIR --to` makes one")
    with _changing(router) as versions:
        now = _number(router, versions)
        if now is None and not os.path.lexists(router):
            now = _last(versions)  # killed where two paths cannot be exchanged in one step
        before = _before(versions, now) if now else None
        if before is None:
            raise ValueError(
                f"{router} has no version before the one in use; those kept are in {versions}, and "
                "`hopgate promote VERSION --to` puts one in use"
            )
        verify(versions / str(before))
        _use(router, versions, before, None)
        return InUse(router, before, _before(versions, before))


def versions_of(router: Path) -> Path:
    """Return the folder of a router's versions."""
    return router.with_name(f"{router.name}.versions")


def is_version(folder: Path, router: Path) -> bool:
    """Return whether a folder is a kept version of a router."""
    return _number(folder, versions_of(replaceable(router))) is not None


def replaceable(router: Path) -> Path:
    """Return the absolute path of a router that may be replaced.

    Raises:
        ValueError: It is the one that ships with hopgate, or something else than a router.
    """
    path = Path(os.path.abspath(router.expanduser()))
    if str(router) == "builtin" or path.resolve() == BUILTIN_FOLDER.resolve():
        raise ValueError(
            f"{router} ships with hopgate and is not replaced; name a folder of your own, which is "
            "created if there is none"
        )
    if path.is_mount():
        raise ValueError(
            f"{router} is a mount point; mount the folder above it, and it is replaced"
        )
    if path.exists() and not is_router(path):
        raise ValueError(f"{router} is not a router's folder, so it is not replaced; name another")
    return path


@contextmanager
def _changing(router: Path) -> Iterator[Path]:
    """Yield the folder of the versions, locked, without what a killed change left there."""
    versions = versions_of(router)
    try:
        versions.mkdir(parents=True, exist_ok=True)
        with FileLock(versions / _LOCK, timeout=0):
            shutil.rmtree(versions / _NEW, ignore_errors=True)
            for path in versions.iterdir():
                if path.is_symlink() and (path.name == _LINK or path.name.isdecimal()):
                    path.unlink()
            yield versions
    except Timeout as error:
        raise RuntimeError(f"{router} is being changed by another process; wait for it") from error
    except OSError as error:
        raise RuntimeError(f"{router} cannot be replaced: {error.strerror or error}") from error


def _present(router: Path, versions: Path) -> int | None:
    """Return the version in use; of a folder that is none yet, the number that it will get."""
    if (number := _number(router, versions)) is not None or not router.exists():
        return number
    number = 1 + _last(versions)
    return _copied(router, versions, number) if router.is_symlink() else number


def _number(folder: Path, versions: Path) -> int | None:
    """Return the number of a version, also if `folder` is a link to it."""
    place = folder.expanduser().resolve()
    if place.parent != versions.resolve() or not place.name.isdecimal() or not place.is_dir():
        return None
    return int(place.name)


def _last(versions: Path) -> int:
    return max((int(path.name) for path in versions.iterdir() if path.name.isdecimal()), default=0)


def _before(versions: Path, number: int) -> int | None:
    """Return which version was in use before another, if it is still there.

    Raises:
        ValueError: The note about it is damaged.
    """
    about = versions / f"{number}.json"
    try:
        before = json.loads(about.read_bytes())["before"] if about.is_file() else None
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(
            f"{about} is damaged; put a version in {versions} in use with `hopgate promote VERSION "
            "--to`"
        ) from error
    return before if (versions / str(before)).is_dir() else None


def _copied(folder: Path, versions: Path, number: int) -> int:
    """Copy a router into a new version, completely or not at all."""
    new = versions / _NEW
    shutil.copytree(folder, new)
    verify(new)
    new.rename(versions / str(number))
    return number


def _use(router: Path, versions: Path, number: int, present: int | None) -> None:
    """Make `router` a link to a version; a folder in its place becomes version `present`."""
    target = f"{versions.name}/{number}"  # relative, so that both can be moved together
    if router.is_dir() and not router.is_symlink():
        place = versions / str(present)
        place.symlink_to(target)
        if _exchanged(router, place):
            return
        place.unlink()
        router.rename(place)
    link = versions / _LINK
    link.symlink_to(target)
    link.replace(router)


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two paths in one step; False if the system or the file system cannot."""
    try:
        exchange = ctypes.CDLL(None).renameat2
    except AttributeError:
        return False
    return bool(exchange(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0)
