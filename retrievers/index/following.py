"""Following an index that another machine builds: a copy that takes over each version whole.

Readers map the files of an index, so they need one on a disk of their own: on shared storage the
writer's machine deletes files that another one has mapped, and object storage cannot map any.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
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
_MB = 1_000_000


@dataclass(frozen=True)
class FollowReport:
    """The result of `follow`.

    Attributes:
        source: The source, without credentials.
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


Copied = Callable[[int | None, int], None]
"""Called with the size of a file, if it is known, and how much of it was copied."""


class NotWholeError(RuntimeError):
    """The source is not whole now: it is being copied there, or was copied in part."""


def follow(source: str, index: Path | str, progress: BuildProgress | None = None) -> FollowReport:
    """Bring the copy of an index up to date; only files that it lacks are copied.

    Every file is checked by its hash, then all take effect at once. Readers of the copy see the old
    version until then. A killed copy continues with the file that it was at.

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
    manifest, files = origin.manifest(), dict[str, FileInfo]()
    with suppress(ValueError):  # the copy is missing or damaged
        held = info(folder)
        files = manifest["files"] if held["checksum"] == manifest["checksum"] else held["files"]
    new = [name for name, entry in manifest["files"].items() if files.get(name) != entry]
    if new:
        check_encoder(folder, manifest)
        with writing(folder) as writer:
            _copy(origin, manifest, new, writer, progress)
    return FollowReport(
        source=origin.name,
        path=str(folder),
        version=manifest["version"],
        passages=manifest["passages"],
        changed=bool(new),
        files=len(new),
        bytes=sum(manifest["files"][name]["bytes"] for name in new),
    )


def check_source(source: str, index: Path | str) -> tuple[_Source, Path]:
    """Resolve a source and the folder of its copy, without connecting.

    Raises:
        ValueError: fsspec does not know such URLs or needs another package, or the two overlap.
    """
    origin, folder = _Source(source), Path(index).expanduser().resolve()
    top = origin.local
    if top and (folder.is_relative_to(top) or top.is_relative_to(folder)):
        raise ValueError(f"{folder} and {top} overlap: use another folder for the copy")
    return origin, folder


def _copy(
    origin: _Source,
    manifest: Manifest,
    new: list[str],
    writer: Writer,
    progress: BuildProgress | None,
) -> None:
    """Copy the new files, check them, and publish them."""
    wanted = manifest["files"]
    staged = dict(zip(new, writer.kept(*(name.replace("/", "-") for name in new)), strict=True))
    missing = [name for name in new if not _is_whole(staged[name], wanted[name])]
    done, total = 0, sum(wanted[name]["bytes"] for name in missing)
    if total > (free := shutil.disk_usage(writer.folder).free):
        raise RuntimeError(
            f"the copy needs {total // _MB} MB more, and the disk of {writer.folder} has "
            f"{free // _MB} MB free: it is unchanged; free some space and run this again"
        )

    def copied(_: int | None, value: int) -> None:
        if progress:
            progress("copying megabytes", (done + value) // _MB, max(1, total // _MB))

    for name in missing:
        origin.fetch(name, staged[name], wanted[name], copied)
        done += wanted[name]["bytes"]
        copied(None, 0)
    for name, file in staged.items():
        os.replace(file, writer.work / name)
    if any((writer.folder / name).exists() for name in new):  # another index, with the same names
        (writer.folder / MANIFEST).unlink(missing_ok=True)
    old = {name: entry for name, entry in wanted.items() if name not in staged}
    writer.publish(manifest | {"files": old}, list(wanted))


def _is_whole(file: Path, wanted: FileInfo) -> bool:
    return file.exists() and sha256(file) == wanted["sha256"]


class _Source:
    """A folder that fsspec can read.

    Attributes:
        name: Its URL, without credentials.
        local: The folder, if it is on this machine.
    """

    def __init__(self, url: str) -> None:
        """Resolve the URL without connecting.

        Raises:
            ValueError: fsspec does not know such URLs, or needs another package for them.
        """
        from fsspec.core import url_to_fs
        from fsspec.implementations.local import LocalFileSystem

        parts = urlsplit(url)
        self.name = url
        if parts.scheme and "@" in parts.netloc:
            self.name = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        try:
            self._fs, self._root = url_to_fs(url, skip_instance_cache=True)
        except (ImportError, ValueError) as error:  # fsspec names the package
            raise ValueError(f"{self.name} cannot be followed: {reason(error, 200)}") from None
        self.local = Path(self._root).resolve() if isinstance(self._fs, LocalFileSystem) else None

    def manifest(self) -> Manifest:
        """Read the manifest.

        Raises:
            ValueError: There is none, or it is of another format version.
            RuntimeError: The source cannot be reached, or the manifest was written in part.
        """
        try:
            with self._explained():  # not opened: over HTTP that takes any failure for no file
                path = f"{self._root}/{MANIFEST}"
                content = self._fs.cat_file(path, start=0, end=MAX_MANIFEST_BYTES + 1)
        except FileNotFoundError:
            raise ValueError(
                f"{self.name} has no {MANIFEST}: build an index there with `hopgate index build`, "
                "or copy one there"
            ) from None
        with suppress(DamagedError):
            manifest = parse(content, self.name)
            if json.loads(to_bytes(manifest))["checksum"] == manifest["checksum"]:
                return manifest
        raise self.not_whole(f"{MANIFEST} is not as it was written")

    def fetch(self, name: str, to: Path, wanted: FileInfo, copied: Copied) -> None:
        """Copy a file, and check that it is the one that the manifest names.

        Raises:
            NotWholeError: It is another, or missing.
            RuntimeError: The source cannot be reached.
        """
        from fsspec.callbacks import Callback

        path, callback = f"{self._root}/{name}", Callback(hooks={"copied": copied})
        try:
            with self._explained():
                if self._fs.size(path) in (wanted["bytes"], None):  # some servers do not tell
                    self._fs.get_file(path, str(to), callback=callback)
        except FileNotFoundError:
            raise self.not_whole(f"{name} is missing") from None
        if not _is_whole(to, wanted):
            to.unlink(missing_ok=True)
            raise self.not_whole(f"{name} is not the file that {MANIFEST} names")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (NotWholeError, FileNotFoundError):
            raise
        except Exception as error:  # each kind of storage has its own
            raise RuntimeError(
                f"{self.name} cannot be read ({type(error).__name__}: {reason(error, 200)}); the "
                "copy stays as it was. Check the address and the access rights"
            ) from None

    def not_whole(self, problem: str) -> NotWholeError:
        """Return the error for a source of which something is missing or damaged."""
        return NotWholeError(
            f"{self.name} is not whole: {problem}; the copy stays as it was. Wait until all of "
            "the index is there, or copy it there again"
        )
