"""Following an index that another machine builds: a copy that takes over each version whole.

Readers map the files of an index, so they need one on a disk of their own: on shared storage the
writer's machine deletes files that another one has mapped, and object storage cannot map any.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hopgate.common.errors import reason
from hopgate.common.files import sha256
from hopgate.retrievers.index.change import BuildProgress
from hopgate.retrievers.index.manifest import (
    MANIFEST,
    MAX_MANIFEST_BYTES,
    DamagedError,
    FileInfo,
    Manifest,
    info,
    parse,
    to_bytes,
)
from hopgate.retrievers.index.reader import check_encoder
from hopgate.retrievers.index.writing import Writer, writing

POLL_SECONDS = 5.0
"""Time between two looks at the source's manifest."""
_TRIES = 5
"""How often a copy starts again because the source has a newer version meanwhile."""
_MB = 1_000_000


@dataclass(frozen=True)
class FollowReport:
    """The result of `follow`.

    Attributes:
        source: What is followed, without credentials.
        path: The folder of the copy.
        version: Its version now.
        passages: Passages in it.
        changed: Whether there was anything new.
        files: Files that were copied.
        bytes: Their size.
    """

    source: str
    path: str
    version: int
    passages: int
    changed: bool
    files: int
    bytes: int


class NotWholeError(RuntimeError):
    """The source is no whole index now: it is being copied there, or was copied in part."""


def follow(source: str, index: Path | str, progress: BuildProgress | None = None) -> FollowReport:
    """Bring the copy of an index up to date; only files that it lacks are copied.

    Every file is checked by its hash before any of them counts, then all count at once. Readers of
    the copy see the old version until then. A killed copy goes on with the file that it was at.

    Args:
        source: A folder, or a URL that fsspec knows, such as `s3://bucket/index`.
        index: The folder of the copy.
        progress: Called with the megabytes done and their total.

    Raises:
        ValueError: There is no index at the source, `index` contains something else or is the
            source, or the encoder has other weights here.
        RuntimeError: The source cannot be reached or is not whole, the encoder is missing here, the
            disk is full, or another process is changing the copy.
    """
    origin, folder = check_source(source, index)
    for last in [False] * (_TRIES - 1) + [True]:
        manifest = origin.manifest()
        if _checksum(folder) == manifest["checksum"]:
            return FollowReport(
                origin.name, str(folder), manifest["version"], manifest["passages"], False, 0, 0
            )
        check_encoder(folder, manifest)
        try:
            with writing(folder, "index follow") as writer:
                return _copy(origin, manifest, writer, progress)
        except NotWholeError:
            if last or origin.manifest()["checksum"] == manifest["checksum"]:
                raise
    raise AssertionError


def check_source(source: str, index: Path | str) -> tuple[_Source, Path]:
    """Resolve a source and the folder of its copy, without connecting.

    Raises:
        ValueError: fsspec knows no such kind of URL, or the two overlap.
        RuntimeError: fsspec needs another package for it.
    """
    origin, folder = _Source(source), Path(index).expanduser().resolve()
    origin.check_apart(folder)
    return origin, folder


def _checksum(folder: Path) -> str | None:
    """Return the checksum of the copy's manifest; None if the copy is missing or damaged."""
    with suppress(ValueError):
        return info(folder)["checksum"]
    return None


def _copy(
    origin: _Source, manifest: Manifest, writer: Writer, progress: BuildProgress | None
) -> FollowReport:
    """Copy what is missing, check it, and make it count."""
    held: dict[str, FileInfo] = {}
    with suppress(ValueError):
        held = info(writer.folder)["files"]
    wanted = manifest["files"]
    new = [name for name in wanted if held.get(name) != wanted[name]]
    total = sum(wanted[name]["bytes"] for name in new)
    done = 0

    def report(size: int) -> None:
        nonlocal done
        done += size
        if progress:
            progress("copying megabytes", done // _MB, max(1, total // _MB))

    staged = dict(zip(new, writer.kept(*(name.replace("/", "-") for name in new)), strict=True))
    _check_room(writer.folder, sum(wanted[n]["bytes"] for n in new if not staged[n].exists()))
    for name, file in staged.items():
        if not file.exists() or sha256(file) != wanted[name]["sha256"]:
            origin.fetch(name, wanted[name], file, report)
    for name, file in staged.items():
        os.replace(file, writer.work / name)
    if any((writer.folder / name).exists() for name in new):  # another index, with the same names
        (writer.folder / MANIFEST).unlink(missing_ok=True)
    old = {name: entry for name, entry in wanted.items() if name not in staged}
    writer.publish(manifest | {"files": old}, list(wanted))
    return FollowReport(
        origin.name, str(writer.folder), manifest["version"], manifest["passages"], True, len(new),
        total,
    )  # fmt: skip


def _check_room(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if size > free:
        raise RuntimeError(
            f"the copy needs {size // _MB} MB more, and the disk of {folder} has {free // _MB} MB "
            "free: it is unchanged; free some space and run this again"
        )


class _Source:
    """A folder anywhere that fsspec reaches."""

    def __init__(self, url: str) -> None:
        """Connect to nothing yet.

        Raises:
            ValueError: fsspec knows no such kind of URL.
            RuntimeError: It needs another package for it.
        """
        from fsspec.core import url_to_fs

        self.name = _without_password(url)
        try:
            self._fs, self._root = url_to_fs(url, skip_instance_cache=True)
        except ImportError as error:  # fsspec names the package
            raise RuntimeError(f"{self.name} cannot be read: {reason(error, 200)}") from None
        except ValueError as error:
            raise ValueError(f"{self.name} cannot be followed: {reason(error, 200)}") from None

    def check_apart(self, folder: Path) -> None:
        """Raise ValueError if the copy would be its own source, or lie in it."""
        if "file" in (self._fs.protocol if isinstance(self._fs.protocol, tuple) else ()):
            top = Path(self._root).resolve()
            if folder == top or top in folder.parents or folder in top.parents:
                raise ValueError(f"{folder} and {top} overlap: use another folder for the copy")

    def manifest(self) -> Manifest:
        """Read the manifest.

        Raises:
            ValueError: There is none, or it is of another format version.
            RuntimeError: The source cannot be reached, or the manifest was written in part.
        """
        path = f"{self._root}/{MANIFEST}"
        try:
            content = self._fs.cat_file(path, start=0, end=MAX_MANIFEST_BYTES + 1)
        except FileNotFoundError:
            raise ValueError(
                f"{self.name} has no {MANIFEST}: build an index there with `hopgate index build`, "
                "or copy one there"
            ) from None
        except Exception as error:  # each kind of storage has its own
            raise self._unreachable(error) from None
        with suppress(DamagedError):
            manifest = parse(content, self.name)
            if json.loads(to_bytes(manifest))["checksum"] == manifest["checksum"]:
                return manifest
        raise self._not_whole(f"{MANIFEST} is not as it was written")

    def fetch(self, name: str, wanted: FileInfo, file: Path, report: Callable[[int], None]) -> None:
        """Copy one file, and check its hash.

        Raises:
            NotWholeError: It is missing, or not the one that the manifest names.
            RuntimeError: The source cannot be reached.
        """
        path = f"{self._root}/{name}"
        try:
            found = self._fs.info(path)
            if found["type"] != "file" or found.get("size") not in (None, wanted["bytes"]):
                raise self._not_whole(f"{name} has {found.get('size')} bytes of {wanted['bytes']}")
            counting = _counting(wanted["bytes"], report)
            self._fs.get_file(path, str(file), callback=counting)
            report(wanted["bytes"] - counting.value)  # not every kind of storage counts
        except FileNotFoundError:
            raise self._not_whole(f"{name} is missing") from None
        except NotWholeError:
            raise
        except _TooLongError:
            raise self._not_whole(f"{name} has over {wanted['bytes']} bytes") from None
        except Exception as error:
            if isinstance(error, OSError) and error.filename == str(file):
                raise  # this disk, not the source
            raise self._unreachable(error) from None
        if file.stat().st_size != wanted["bytes"] or sha256(file) != wanted["sha256"]:
            file.unlink()
            raise self._not_whole(f"{name} is not the file that {MANIFEST} names")

    def _not_whole(self, what: str) -> NotWholeError:
        return NotWholeError(
            f"{self.name} is not whole: {what}; the copy stays as it was. Wait until all of the "
            "index is there, or copy it there again"
        )

    def _unreachable(self, error: Exception) -> RuntimeError:
        return RuntimeError(
            f"{self.name} cannot be read ({type(error).__name__}: {reason(error, 200)}); the copy "
            "stays as it was. Check the address and the access rights"
        )


class _TooLongError(Exception):
    """A file is longer than its manifest says."""


def _counting(size: int, report: Callable[[int], None]) -> Any:
    """Return fsspec's callback that counts bytes and ends a copy that has no end."""
    from fsspec.callbacks import Callback

    class Counting(Callback):  # type: ignore[misc]
        def relative_update(self, inc: int = 1) -> None:
            super().relative_update(inc)
            report(inc)
            if self.value > size:
                raise _TooLongError

    return Counting(size=size)


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme and parts.netloc and "@" in parts.netloc:
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    return url
