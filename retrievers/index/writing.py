"""Changing an index: one writer at a time, and changes that appear whole or not at all.

A writer makes its files in `.work`, moves them beside those of the index under names that were
never used, and then replaces the manifest. Whoever kills it leaves the index as it was; the next
writer removes whatever is left over. Readers take no lock: they have mapped their files, which the
system keeps until they are done.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from hopgate.common.files import remove_folder, sha256, write_atomic
from hopgate.retrievers.index.manifest import (
    FILE_NAME,
    MANIFEST,
    VECTORS,
    WORDS,
    DamagedError,
    FileInfo,
    Manifest,
    changed_files,
    content,
    damaged,
    info,
    parse,
    to_bytes,
)
from hopgate.retrievers.index.segments import KEYS
from hopgate.retrievers.index.texts import UnreadableError

LOCK = ".lock"
WORK = ".work"
"""Where a change is prepared; files that the next try can reuse stay there."""
_FOLDERS = {WORK, WORDS, VECTORS}
_FILES = {LOCK, MANIFEST}
_LEFTOVER = re.compile(r"\.(manifest|\.writer)\.json\.\d+\.\d+|\.writer\.json")
"""Leftovers of a killed writer: a half-written manifest, and formerly a file with its name."""
_KEPT = "kept-"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FULL_TEXT = re.compile(r"\(os error (28|122|27)\)|\d+ requested and \d+ written")
"""Error messages of Tantivy (with Linux's error numbers) and numpy when the disk is full."""


class Writer:
    """Prepares a change to an index whose lock is held.

    Attributes:
        folder: The folder of the index.
        work: Where to prepare the change.
    """

    def __init__(self, folder: Path) -> None:
        """Remove the leftovers of killed writers."""
        self.folder = folder
        self.work = folder / WORK
        for path in folder.iterdir():
            if _LEFTOVER.fullmatch(path.name):
                path.unlink()
        with suppress(ValueError):  # there is no index yet, or it is damaged
            self._forget(set(info(folder)["files"]))
        self._clear_work()
        for name in (WORDS, VECTORS):
            (self.work / name).mkdir(parents=True)

    def kept(self, key: str) -> Path:
        """Return a file that stays for the next try; those of other tries are deleted."""
        wanted = self.work / f"{_KEPT}{key}"
        for other in set(self.work.glob(f"{_KEPT}*")) - {wanted}:
            other.unlink()
        return wanted

    def publish(self, manifest: Manifest, names: Sequence[str]) -> None:
        """Make a change the current state of the index.

        Args:
            manifest: Describes it; its `files` are those before the change.
            names: The files of the index after the change, new (in `work`) or old; missing ones are
                left out.

        Raises:
            ValueError: A file whose content was read to write a new one is damaged.
        """
        before = manifest["files"]
        new = [n for n in names if (self.work / n).is_file() and not (self.work / n).is_symlink()]
        files = {name: before[name] for name in names if name in before and name not in new}
        read = [name for name in before if name not in files or name.endswith(KEYS)]
        if wrong := changed_files(self.folder, manifest, read):
            raise damaged(self.folder, f"{wrong[0]} has changed since it was written")
        for name in new:
            file = self.work / name
            files[name] = FileInfo(bytes=file.stat().st_size, sha256=sha256(file))
            _sync(file)
            (self.folder / name).parent.mkdir(exist_ok=True)
            os.replace(file, self.folder / name)
        for folder in (WORDS, VECTORS):
            _sync(self.folder / folder)
        manifest["files"] = files
        write_atomic(self.folder / MANIFEST, to_bytes(manifest))
        _sync(self.folder)
        self._forget(set(files))
        remove_folder(self.work)

    def close(self) -> None:
        """Remove unpublished files, except those that the next try can reuse."""
        if self.work.exists():
            self._clear_work()
            with suppress(OSError):  # it holds something
                self.work.rmdir()

    def _clear_work(self) -> None:
        self.work.mkdir(exist_ok=True)
        for path in self.work.iterdir():
            if path.is_dir() and not path.is_symlink():
                remove_folder(path)
            elif path.is_symlink() or not path.is_file() or not path.name.startswith(_KEPT):
                path.unlink()

    def _forget(self, current: set[str]) -> None:
        """Delete the files that no longer belong to the index."""
        for name in (WORDS, VECTORS):
            for path in (self.folder / name).glob("*"):
                if f"{name}/{path.name}" not in current:
                    path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def writing(folder: Path) -> Iterator[Writer]:
    """Hold the lock of an index while it is changed, creating its folder if needed.

    Args:
        folder: The folder of the index, resolved.

    Raises:
        ValueError: The folder cannot be written, or contains foreign files.
        RuntimeError: Another process is changing the index, or the disk is full.
    """
    _check_replaceable(folder)
    made = not folder.exists()
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise RuntimeError(
            f"the index at {folder} is being changed by another process: wait until it is done, "
            "then run this again"
        ) from error
    except OSError as error:
        raise _unwritable(folder, error) from error
    try:
        with disk_errors(folder), closing(Writer(folder)) as writer:
            yield writer
    finally:
        if made and os.listdir(folder) == [LOCK]:
            shutil.rmtree(folder)
        lock.release()


def _unwritable(folder: Path, error: OSError) -> ValueError:
    return ValueError(
        f"the index cannot be written to {folder} ({error.strerror}): use another folder"
    )


def _check_replaceable(folder: Path) -> None:
    """Check that a folder is empty or absent, or an index with nothing beside it.

    Links are refused: through one, a change would reach outside the folder.

    Raises:
        ValueError: It contains something else, or cannot be read.
    """
    try:
        others = sorted(name for name, mode in _entries(folder) if not _belongs(name, mode))
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unwritable(folder, error) from error
    if (folder / MANIFEST).exists():
        try:
            parse(content(folder), folder)
        except DamagedError:
            others.append(MANIFEST)
    if others:
        raise ValueError(
            f"{folder} contains {others[0]!r}, which is a link or not part of an index: use "
            "another folder for the index, or move it away"
        )


def _entries(folder: Path, below: str = "") -> Iterator[tuple[str, int]]:
    """List names and modes in a folder, and in those in it that an index has."""
    for path in folder.iterdir():
        mode = path.lstat().st_mode
        yield f"{below}{path.name}", mode
        if stat.S_ISDIR(mode) and path.name in (WORDS, VECTORS) and not below:
            yield from _entries(path, f"{path.name}/")


def _belongs(name: str, mode: int) -> bool:
    """Return whether an entry is one that an index has, and of the right kind."""
    if name in _FOLDERS:
        return stat.S_ISDIR(mode)
    known = name in _FILES or FILE_NAME.fullmatch(name) or _LEFTOVER.fullmatch(name)
    return bool(known) and stat.S_ISREG(mode)


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn the many errors of a full disk into one; name the index in errors about damage."""
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        number = getattr(error, "errno", None)
        if number in _FULL or (number is None and _FULL_TEXT.search(str(error))):
            free = shutil.disk_usage(folder).free
            raise RuntimeError(
                f"the disk is full: the index at {folder} could not be written ({free >> 20} MiB "
                "free) and is unchanged; free some space and run this again"
            ) from error
        if isinstance(error, UnreadableError):
            raise damaged(folder, str(error)) from error
        raise
