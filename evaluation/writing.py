"""Folders that commands write their results into."""

import errno
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

from hopgate.common.files import write_atomic as write_whole


def check_folder(out: Path) -> None:
    """Refuse, before any work, a folder that could not be written into.

    Raises:
        ValueError: If it, or what should hold it, is a file.
        RuntimeError: If it cannot be written to.
    """
    there = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not there.is_dir():
        raise ValueError(f"--out {out}: {there} is not a folder; name a folder to write into")
    if not os.access(there, os.W_OK):
        raise RuntimeError(f"--out {out}: {there} cannot be written to; choose another folder")


def json_bytes(document: Mapping[str, Any]) -> bytes:
    """A document as a JSON file."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1)
    return (text + "\n").encode(errors="backslashreplace")  # of a path that is no UTF-8


def append_lines(file: FileIO, lines: bytes) -> None:
    """Append whole lines to an unbuffered file; when this returns, they are on the disk.

    Raises:
        OSError: They cannot be written; nothing of them is in the file then.
    """
    end = os.fstat(file.fileno()).st_size
    try:
        if file.write(lines) < len(lines):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):  # else the next line would stand behind a piece of these
            file.truncate(end)
        raise


def write_files(out: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a folder, which is made if it is not there; each whole or not at all.

    Args:
        out: The folder.
        files: Content by name, in the order in which they are written.

    Raises:
        RuntimeError: If one cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_whole(out / name, content)
    except OSError as error:
        raise RuntimeError(f"{out} cannot be written to: {error}") from error
