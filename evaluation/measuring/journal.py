"""A journal of rows on disk, so that long work can resume after a kill."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from hopgate.common.files import json_bytes, json_line, parse_object, read_json, shown, write_atomic


class Journal(ExitStack):
    """A JSONL file of finished rows, each with an `id`; use it as a context manager.

    The settings that the rows depend on are saved beside them, in `NAME.settings.json`; a later
    process must use the same ones. A last line cut short by a kill is dropped. While a journal
    is open, no other process can open it.

    Attributes:
        path: The file of rows.
        done: The rows so far, by id.

    Args:
        path: The file of rows; its folder is created.
        settings: The settings that the rows depend on, as JSON values.
        overwrite: Discard earlier rows.

    Raises:
        ValueError: The file was written with other settings, or is not a journal.
        RuntimeError: Another process has it open.
        OSError: It cannot be written.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], overwrite: bool = False) -> None:
        """Take the lock, compare the settings and read the rows."""
        super().__init__()
        self.path = path
        self.done: dict[str, dict[str, Any]] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.enter_context(FileLock(path.with_name(f".{path.stem}.lock"), timeout=0))
            if overwrite:
                path.unlink(missing_ok=True)
                settings_path(path).unlink(missing_ok=True)
            self._check_settings(json.loads(json.dumps(settings)))
            self._file = self.enter_context(path.open("a+b", buffering=0))
            self._read()
        except Timeout as error:
            raise RuntimeError(
                f"{path} is in use by another process; wait for it, or use another --out"
            ) from error
        except BaseException:
            self.close()
            raise

    def append(self, row: Mapping[str, Any]) -> None:
        """Save a row; it is on the disk when this returns.

        Raises:
            RuntimeError: It cannot be written; no part of it is left in the file.
        """
        end = os.fstat(self._file.fileno()).st_size
        line = json_line(row)
        try:
            if self._file.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file.fileno())
        except OSError as error:
            with suppress(OSError):  # else the next row would follow a fragment of this one
                self._file.truncate(end)
            raise RuntimeError(f"{self.path} cannot be written to: {error.strerror}") from error
        self.done[str(row["id"])] = dict(row)

    def _check_settings(self, settings: dict[str, Any]) -> None:
        rows = self.path.exists() and self.path.stat().st_size > 0
        before = stored_settings(self.path)
        if before is None and not rows:
            write_atomic(settings_path(self.path), json_bytes(settings))
        elif before != settings:
            raise ValueError(
                f"{self.path} was written with other settings "
                f"({_difference(before or {}, settings)}); use --overwrite to start again, or "
                "another --out"
            )

    def _read(self) -> None:
        """Read the rows, and cut off a last line that has no end."""
        self._file.seek(0)
        content = self._file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._file.truncate(len(whole))
        for number, line in enumerate(whole.split(b"\n")[:-1], start=1):
            try:
                row = parse_object(line)
                self.done[str(row["id"])] = row
            except (KeyError, ValueError) as error:
                raise ValueError(
                    f"{self.path}:{number}: not a row of this journal ({error}); remove the line, "
                    "use --overwrite to start again, or another --out"
                ) from error


def settings_path(path: Path) -> Path:
    """Return where the settings of a journal are saved."""
    return path.with_name(f"{path.stem}.settings.json")


def stored_settings(path: Path) -> dict[str, Any] | None:
    """Return the settings that a journal was written with; None if there is none.

    Raises:
        ValueError: They are damaged.
    """
    file = settings_path(path)
    return read_json(file, "the settings") if file.exists() else None


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    def of(settings: Mapping[str, Any], name: str) -> str:
        return shown(settings.get(name, "unset"))

    return ", ".join(
        f"{name}: {of(before, name)} in the file, {of(now, name)} now"
        for name in {**before, **now}
        if before.get(name, "unset") != now.get(name, "unset")
    )
