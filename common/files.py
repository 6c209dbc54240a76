"""Files: where hopgate keeps them, how it writes them, and how it reads JSON lines."""

import errno
import hashlib
import json
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

Row = TypeVar("Row")

MAX_SHOWN_CHARS = 60  # of a bad value in an error message
_REMOVING_TRIES = 20
_OTHERS = stat.S_IRWXG | stat.S_IRWXO  # the rights of everyone but the owner


def home_dir() -> Path:
    """Return the folder for data to keep: `$HOPGATE_HOME`, or the platform's user data folder."""
    from platformdirs import user_data_path

    folder = os.environ.get("HOPGATE_HOME")
    return Path(folder).expanduser() if folder else user_data_path("hopgate")


# Privacy


def private_folder(folder: Path) -> None:
    """Create a folder that only its owner can enter, or close an existing one to others.

    Raises:
        OSError: It cannot be created or closed, or all users share it, as they do /tmp.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.stat().st_mode & stat.S_ISVTX:
        raise PermissionError(errno.EPERM, "all users share it", str(folder))
    _close_to_others(folder)


def private_file(file: Path) -> None:
    """Create an SQLite file that only its owner can read, or close an existing one to others.

    SQLite creates its side files with the mode of this one; existing side files are closed too.

    Raises:
        OSError: It cannot be created or closed.
    """
    file = file.resolve()
    with suppress(FileExistsError):
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    for ending in ("", "-wal", "-shm", "-journal"):
        with suppress(FileNotFoundError):  # another process may have removed it just now
            _close_to_others(file.with_name(file.name + ending))


def _close_to_others(path: Path) -> None:
    # By name: to close a file that this process has open elsewhere would drop SQLite's locks on it.
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & _OTHERS:
        path.chmod(mode & ~_OTHERS)


# Writing


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that replaces `path` only when the block succeeds.

    The folder must exist. The content reaches the disk before the file gets its name, so a crash
    leaves either the old file or the new one.

    Raises:
        OSError: The file cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_atomic(path: Path, content: bytes) -> None:
    """Replace a file by `content`, or leave it as it was; see `atomic_write`.

    Raises:
        OSError: The file cannot be written.
    """
    with atomic_write(path) as file:
        file.write(content)


def remove_folder(folder: Path) -> None:
    """Remove a folder in which the thread of a library may still be writing a last file.

    Files that cannot be removed stay.
    """
    for _ in range(_REMOVING_TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.01)


def json_bytes(document: Any, indent: int | None = 1) -> bytes:
    """Return a document as an indented JSON file; lone surrogates are escaped.

    Raises:
        ValueError: It holds NaN or an infinity, which JSON has no form for.
    """
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, indent=indent)
    return (text + "\n").encode(errors="backslashreplace")


def json_line(row: Mapping[str, Any]) -> bytes:
    """Return a row as one line of a JSON lines file, see `json_bytes`."""
    return json_bytes(row, indent=None)


# Reading


def read_jsonl(
    path: Path,
    parse: Callable[[dict[str, Any], int], Row | None],
    *,
    expected: str,
    unique: str | None = None,
) -> list[Row]:
    """Read a JSON lines file, one object a line.

    Args:
        path: The file, UTF-8 with or without a byte order mark. Blank lines are skipped.
        parse: Turns a line's fields and its number into a row, or None to leave the line out. A
            ValueError from it describes the error in the line.
        expected: The expected content; completes "give …" in error messages.
        unique: Name of a row attribute that no two rows may share, such as `id`.

    Returns:
        The rows in file order.

    Raises:
        ValueError: The file is missing or unreadable, no row is left, or a line is bad. The
            message names the file and the line.
    """
    rows: list[Row] = []
    seen: set[Any] = set()
    try:
        lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except (OSError, ValueError) as error:  # the latter for a name with a zero byte
        raise ValueError(f"{path} does not exist or cannot be read; give {expected}") from error
    for number, line in enumerate(lines, start=1):
        try:
            row = parse(parse_object(line), number) if line.strip() else None
            if row is None:
                continue
            if unique and (key := getattr(row, unique)) in seen:
                raise ValueError(f"{unique} {key!r} appears twice")
            if unique:
                seen.add(key)
            rows.append(row)
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from error
    if not rows:
        raise ValueError(f"{path} has no usable rows; give {expected}")
    return rows


def parse_object(line: bytes | str) -> dict[str, Any]:
    """Parse an object of JSON, encoded as UTF-8 or decoded.

    Raises:
        ValueError: It is not JSON, or not an object.
    """
    try:
        fields = json.loads(line if isinstance(line, str) else line.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at column {error.colno})") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error})") from error
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    return fields


def read_json(path: Path, option: str) -> dict[str, Any]:
    """Read a file that holds one JSON object.

    Args:
        path: The file, UTF-8 with or without a byte order mark.
        option: The option that names the file, such as `--prices`; starts error messages.

    Raises:
        ValueError: The file cannot be read or does not hold a JSON object.
    """
    try:
        return parse_object(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{option} {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{option} {path} cannot be read: {error}") from error


def required_text(fields: Mapping[str, Any], name: str) -> str:
    """Return a field that must be a non-empty string, stripped.

    Raises:
        ValueError: It is missing, not a string, blank, or holds a lone surrogate.
    """
    if name not in fields:
        raise ValueError(f"{name} is missing")
    value = fields[name]
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} is {shown(value)}; it must be a non-empty string")
    if has_surrogate(value):
        raise ValueError(f"{name} contains half of a character (a lone surrogate)")
    return value.strip()


def has_surrogate(text: str) -> bool:
    """Return whether a text holds a lone surrogate, which UTF-8 cannot encode."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def shown(value: Any) -> str:
    """Return a value for an error message, cut to `MAX_SHOWN_CHARS`."""
    written = repr(value)
    return written if len(written) <= MAX_SHOWN_CHARS else f"{written[: MAX_SHOWN_CHARS - 3]}…"


def sha256(path: Path) -> str:
    """Return a file's SHA-256 in hexadecimal.

    Raises:
        ValueError: The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
