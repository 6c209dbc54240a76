"""A journal of rows on disk, so that long work that was killed goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from filelock import FileLock, Timeout

from hopgate.common.files import write_atomic as write_whole
from hopgate.evaluation.writing import append_lines

SHOWN_CHARS = 60
"""Of a setting's value in a message."""


class Journal:
    """A JSONL file of finished rows, each with an `id`; use it as a context manager.

    The settings of the work stand beside the rows, in `NAME.settings.json`; a later run must
    have the same ones. A last line that was cut short by a kill is dropped. While the journal
    is open, no other process can open it.

    Attributes:
        path: The rows' file.
        done: The rows so far, by id.

    Args:
        path: The rows' file; its folder is made.
        settings: What the rows depend on, plain JSON values.
        overwrite: Throw away what is there.
        fields: Each row has these.

    Raises:
        ValueError: If what is there was made with other settings, or is no journal.
        RuntimeError: If another process has it open, or it cannot be written to.
    """

    def __init__(
        self,
        path: Path,
        settings: Mapping[str, Any],
        overwrite: bool = False,
        fields: Set[str] = frozenset(("id",)),
    ) -> None:
        """Takes the lock, compares the settings and reads the rows."""
        self.path = path
        self.done: dict[str, dict[str, Any]] = {}
        with ExitStack() as stack:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(FileLock(path.with_name(f".{path.stem}.lock"), timeout=0))
                if overwrite:
                    path.unlink(missing_ok=True)
                    settings_path(path).unlink(missing_ok=True)
                self._check(json.loads(json.dumps(settings)))
                self._read(fields)
                self._file = stack.enter_context(path.open("ab", buffering=0))
            except Timeout as error:
                raise RuntimeError(
                    f"{path} is in use by another process; wait for it, or give another --out"
                ) from error
            except OSError as error:
                raise _unwritable(path, error) from error
            self._open = stack.pop_all()

    def append(self, row: Mapping[str, Any]) -> None:
        """Keep a row: when this returns, it is on the disk.

        Raises:
            RuntimeError: If it cannot be written.
        """
        text = json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"
        try:
            append_lines(self._file, text.encode("utf-8", "backslashreplace"))  # a lone surrogate
        except OSError as error:
            raise _unwritable(self.path, error) from error
        self.done[str(row["id"])] = dict(row)

    def close(self) -> None:
        """Close the file and let other processes have it."""
        self._open.close()

    def __enter__(self) -> Self:
        """Gives the journal."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the journal."""
        self.close()

    def _check(self, settings: dict[str, Any]) -> None:
        before = stored_settings(self.path)
        if before is None:
            if self.path.exists() and self.path.stat().st_size:
                raise ValueError(
                    f"{self.path} has rows, but {settings_path(self.path).name} is not beside it; "
                    "give --overwrite to start anew, or another --out"
                )
            text = json.dumps(settings, ensure_ascii=False, indent=1) + "\n"
            write_whole(settings_path(self.path), text.encode("utf-8", "backslashreplace"))
        elif before != settings:
            raise ValueError(
                f"{self.path} was made with other settings ({_difference(before, settings)}); "
                "give --overwrite to start anew, or another --out"
            )

    def _read(self, fields: Set[str]) -> None:
        """Reads the rows, and cuts off a last line that has no end."""
        if not self.path.exists():
            return
        with self.path.open("r+b") as file:
            content = file.read()
            whole = content[: content.rfind(b"\n") + 1]
            file.truncate(len(whole))
        for number, line in enumerate(whole.split(b"\n")[:-1], start=1):
            try:
                row = _row(line, fields)
            except ValueError as error:
                raise ValueError(
                    f"{self.path}, line {number}: no row of this journal ({error}); take the line "
                    "out, give --overwrite to start anew, or another --out"
                ) from error
            self.done[str(row["id"])] = row


def _row(line: bytes, fields: Set[str]) -> dict[str, Any]:
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError(f"it holds a {type(row).__name__}")
    if missing := sorted(fields - row.keys()):
        raise ValueError(f"it lacks {', '.join(map(repr, missing))}")
    return row


def settings_path(path: Path) -> Path:
    """Where the settings of a journal stand."""
    return path.with_name(f"{path.stem}.settings.json")


def stored_settings(path: Path) -> dict[str, Any] | None:
    """The settings that a journal was made with; None if there is none.

    Raises:
        ValueError: If they are damaged.
        RuntimeError: If they cannot be read.
    """
    file = settings_path(path)
    try:
        settings = json.loads(file.read_bytes())
        if not isinstance(settings, dict):
            raise ValueError(f"it holds a {type(settings).__name__}")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unwritable(path, error) from error
    except ValueError as error:
        raise ValueError(
            f"{file} holds no settings ({error}); give --overwrite, or another --out"
        ) from error
    return settings


def _difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    there, here = (
        {name: _shown(settings, name) for name in {**before, **now}} for settings in (before, now)
    )
    return ", ".join(
        f"{name}: {there[name]} there, {here[name]} now"
        for name in there
        if there[name] != here[name]
    )


def _shown(settings: Mapping[str, Any], name: str) -> str:
    text = json.dumps(settings[name], ensure_ascii=False) if name in settings else "nothing"
    return text if len(text) <= SHOWN_CHARS else f"{text[: SHOWN_CHARS - 1]}…"


def _unwritable(path: Path, error: OSError) -> RuntimeError:
    return RuntimeError(f"{path} cannot be used: {error}; give another --out")
