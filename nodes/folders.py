"""Where hopgate keeps what outlives a process."""

import os
from pathlib import Path

from platformdirs import user_cache_path, user_data_path


def home() -> Path:
    """Return the folder of what must stay: `$HOPGATE_HOME`, else the platform's for user data."""
    return _configured() or user_data_path("hopgate")


def cache() -> Path:
    """Return the folder of what can be made again: `$HOPGATE_HOME/cache`, else the platform's."""
    configured = _configured()
    return configured / "cache" if configured else user_cache_path("hopgate")


def _configured() -> Path | None:
    folder = os.environ.get("HOPGATE_HOME")
    return Path(folder).expanduser() if folder else None
