"""Where the command line stores data between commands."""

from pathlib import Path

from hopgate.common.files import home_dir


def threads_file() -> Path:
    """Return the SQLite file of conversations (`ask --thread`); its folder is created.

    Raises:
        RuntimeError: The folder cannot be created.
    """
    folder = home_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise RuntimeError(
            f"conversations cannot be stored in {folder} ({error.strerror}); "
            "set HOPGATE_HOME to a folder of your own"
        ) from error
    return folder / "threads.sqlite"
