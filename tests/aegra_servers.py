"""Real processes of Aegra for tests, with real PostgreSQL and Redis.

Aegra needs Python 3.12: its processes run in `build/aegra`, which `make aegra` makes, or in this
interpreter if Aegra is installed here.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import psycopg
import pytest
from langgraph_dev import ROOT, Server, free_port, running

CONFIG = ROOT / "aegra.json"
VENV = ROOT / "build/aegra/bin/python"

# The quickest takeover that Aegra's checks allow; docs/aegra.md has those for work.
QUICK = {
    "LEASE_DURATION_SECONDS": "3",
    "HEARTBEAT_INTERVAL_SECONDS": "1",
    "REAPER_INTERVAL_SECONDS": "1",
}


def interpreter() -> str:
    """Return a Python that has Aegra; without one, or without Redis, skip the test."""
    found = sys.executable if find_spec("aegra_api") else str(VENV)
    if not Path(found).exists():
        pytest.skip("no Aegra: make aegra (needs Python 3.12 or newer)")
    if not shutil.which("redis-server"):
        pytest.skip("no redis-server: apt-get install redis-server")
    return found


def configuration(folder: Path, **changes: Any) -> Path:
    """Write a copy of aegra.json with other values into a folder, and return its path."""
    config = json.loads(CONFIG.read_text(encoding="utf-8")) | changes
    graph = config["graphs"]["hopgate"]
    graph["path"] = str(ROOT / graph["path"])
    path = folder / "aegra.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


class Cluster:
    """Processes of Aegra that share a database and a queue.

    Attributes:
        database: The URI of their database.
        servers: The running processes, by process id.
    """

    def __init__(self, folder: Path, database: str, env: Mapping[str, str]) -> None:
        """Start none yet; `folder` gets a folder for each, with its log."""
        self.database = database
        self.servers: dict[int, Server] = {}
        self._folder, self._env = folder, env
        self._stack = ExitStack()

    def start(self, number: int = 1, **env: str) -> list[Server]:
        """Start processes at the same time and wait until they answer.

        On a new database, start one alone: Aegra cannot make its tables in two at a time.
        """
        with ThreadPoolExecutor() as pool:
            starting = [pool.submit(self._start, env) for _ in range(number)]
        started = [each.result() for each in starting]
        self.servers |= {each.process.pid: each for each in started}
        return started

    def _start(self, env: Mapping[str, str]) -> Server:
        return self._stack.enter_context(self._running(env))

    @contextmanager
    def _running(self, env: Mapping[str, str]) -> Iterator[Server]:
        folder = Path(mkdtemp(dir=self._folder))
        port = free_port()
        address = ("--host", "127.0.0.1", "--port", str(port))
        command = [interpreter(), "-m", "uvicorn", "aegra_api.main:app", *address]
        with running(command, folder, port, env={**self._env, **env}, ready="/health") as server:
            yield server

    def kill(self, server: Server) -> None:
        """Kill a process as `kill -9` does."""
        server.process.kill()
        server.process.wait()
        del self.servers[server.process.pid]

    def holder(self, run_id: str) -> Server:
        """Return the process that holds a run, once there is one."""
        query = "SELECT claimed_by FROM runs WHERE run_id = %s AND claimed_by IS NOT NULL"
        with psycopg.connect(self.database, autocommit=True) as connection:
            while not (row := connection.execute(query, [run_id]).fetchone()):
                time.sleep(0.02)
        return self.servers[int(row[0].split("-")[-3])]  # HOST-PID-worker-NUMBER

    def close(self) -> None:
        """Stop all processes."""
        self._stack.close()


@contextmanager
def redis(folder: Path) -> Iterator[str]:
    """Run Redis, and yield its URL."""
    port = free_port()
    command = ["redis-server", "--port", str(port), "--save", "", "--dir", str(folder)]
    with subprocess.Popen([*command, "--bind", "127.0.0.1"], stdout=subprocess.DEVNULL) as process:
        try:
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.terminate()


@contextmanager
def cluster(folder: Path, postgres: str, **env: str) -> Iterator[Cluster]:
    """Yield a cluster without processes, with a database and a Redis of its own.

    Args:
        folder: A temporary folder.
        postgres: The URI of a PostgreSQL server.
        env: Environment variables of the processes.
    """
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS aegra WITH (FORCE)")
        connection.execute("CREATE DATABASE aegra")
    database = postgres.replace("@/postgres", "@/aegra")
    with redis(folder) as url:
        shared = {
            "AEGRA_CONFIG": str(CONFIG),
            "DATABASE_URL": database,
            "HOPGATE_HOME": str(folder),
            "LOG_LEVEL": "WARNING",
            "PYTHONPATH": "",
            "REDIS_BROKER_ENABLED": "true",
            "REDIS_URL": url,
        }
        made = Cluster(folder, database, shared | QUICK | env)
        try:
            yield made
        finally:
            made.close()
