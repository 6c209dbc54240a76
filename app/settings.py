"""Where the command line stores data between commands."""

from pathlib import Path

from hopgate.common.files import home_dir, private_file, private_folder


def threads_file() -> Path:
    """Return the SQLite file of conversations (`ask --thread`).

    It and its folder are created if need be, and closed to other users.

    Raises:
        RuntimeError: They cannot be created, or not be closed to other users.
    """
    folder = home_dir()
    file = folder / "threads.sqlite"
    try:
        private_folder(folder)
        private_file(file)
    except OSError as error:
        raise RuntimeError(
            f"conversations cannot be kept private in {error.filename or folder} "
            f"({error.strerror}); set HOPGATE_HOME to a folder of your own"
        ) from error
    return file
