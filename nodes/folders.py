"""Where hopgate keeps what outlives a process, and how a file gets there whole."""

import os
import threading
from pathlib import Path

from platformdirs import user_cache_path, user_data_path


def home() -> Path:
    """Return the folder of what must stay: `$HOPGATE_HOME`, else the platform's for user data."""
    return _configured() or user_data_path("hopgate")


def cache() -> Path:
    """Return the folder of what can be made again: `$HOPGATE_HOME/cache`, else the platform's."""
    configured = _configured()
    return configured / "cache" if configured else user_cache_path("hopgate")


def write_whole(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; its folder must be there.

    Raises:
        OSError: It cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _configured() -> Path | None:
    folder = os.environ.get("HOPGATE_HOME")
    return Path(folder).expanduser() if folder else None
