"""Real servers for the tests: started on a free port, stopped with their process group."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "langgraph.json"
START_SECONDS = 60
STOP_SECONDS = 15


class Server(NamedTuple):
    """A running server: its address, its log and its process."""

    url: str
    log: Path
    process: subprocess.Popen[bytes]


@contextmanager
def start(
    folder: Path,
    *,
    config: Path = CONFIG,
    env: Mapping[str, str] | None = None,
    jobs: int = 2,
) -> Iterator[Server]:
    """Run `langgraph dev`, which refuses blocking calls, until the context ends.

    Args:
        folder: Its working folder, with its threads, its `log` and hopgate's home.
        config: Its langgraph.json.
        env: Environment variables on top of those of the tests.
        jobs: Maximum number of concurrent runs.
    """
    port = free_port()
    command = [
        *(str(Path(sys.executable).with_name("langgraph")), "dev", "--config", str(config)),
        *("--no-browser", "--no-reload", "--host", "127.0.0.1", "--port", str(port)),
        *("--n-jobs-per-worker", str(jobs)),
    ]
    quiet = {"LANGGRAPH_CLI_NO_ANALYTICS": "1", "LANGGRAPH_NO_VERSION_CHECK": "true"}
    environment = quiet | {"HOPGATE_HOME": str(folder)} | dict(env or {})
    with running(command, folder, port, env=environment) as server:
        yield server


@contextmanager
def running(
    command: Sequence[str],
    folder: Path,
    port: int,
    *,
    env: Mapping[str, str] | None = None,
    ready: str = "/ok",
) -> Iterator[Server]:
    """Run a server until the context ends.

    Args:
        command: Its command line.
        folder: Its working folder, which gets its `log`.
        port: The port of 127.0.0.1 that it will listen on.
        env: Environment variables on top of those of the tests.
        ready: A path that it answers with success once it is ready.
    """
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | dict(env or {}),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = Server(f"http://127.0.0.1:{port}", log, process)
    try:
        _wait(server, ready)
        yield server
    finally:
        stop(server)


def stop(server: Server) -> None:
    """Stop a server, unless it has ended already."""
    if server.process.poll() is not None:
        return
    os.killpg(server.process.pid, signal.SIGTERM)
    try:
        server.process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait()


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _wait(server: Server, ready: str) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and server.process.poll() is None:
        try:
            if httpx.get(f"{server.url}{ready}", timeout=1).is_success:
                return
        except httpx.HTTPError:
            time.sleep(0.05)
    raise RuntimeError(f"the server did not start:\n{server.log.read_text()[-3000:]}")
