"""Where the command line keeps what outlives a command."""

from pathlib import Path

from hopgate.common.files import home_dir as home


def threads_file() -> Path:
    """Return the SQLite file that keeps conversations (`ask --thread`); its folder exists.

    Raises:
        RuntimeError: The folder cannot be made.
    """
    folder = home()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise RuntimeError(
            f"conversations cannot be kept in {folder} ({error.strerror}); "
            "set HOPGATE_HOME to a folder of your own"
        ) from error
    return folder / "threads.sqlite"
