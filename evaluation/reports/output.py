"""Writing results: folders and whole files."""

import os
from collections.abc import Mapping
from pathlib import Path

from hopgate.common.files import write_atomic


def check_folder(folder: Path) -> None:
    """Check, before any work, that results can be written to a folder.

    Raises:
        ValueError: It, or a parent of it, is a file.
        RuntimeError: It is not writable.
    """
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not existing.is_dir():
        raise ValueError(f"--out {folder}: {existing} is not a folder; name a folder to write to")
    if not os.access(existing, os.W_OK):
        raise RuntimeError(f"--out {folder}: {existing} is not writable; choose another folder")


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a folder, each whole or not at all; the folder is created if needed.

    Args:
        folder: The folder.
        files: Content by name, written in this order.

    Raises:
        OSError: A file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_atomic(folder / name, content)
