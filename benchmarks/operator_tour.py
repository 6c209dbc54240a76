"""The operator's tour: each fault provoked on real servers, with its status, log line and metric.

    python benchmarks/operator_tour.py faults --out FILE.jsonl
    python benchmarks/operator_tour.py rolling --out FILE.jsonl

The servers, the indexes, PostgreSQL and the connections are real, on loopback. The model is a FAKE:
an endpoint with scripted replies and faults.

- `faults`: `hopgate serve` answers while its index, its router, its store and its model fail in
  turn. A row has what a client of `/v1` got, the new lines of the log and the metrics that grew.
- `rolling`: clients ask two processes of `hopgate serve` without a pause, while each is stopped
  (SIGTERM) and started again. An answer is lost if a client got neither an answer nor a refused
  connection, which a proxy sends on to the other process.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psycopg

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from doubles import by_task
from fake_openai import FakeOpenAI, Reply
from langgraph_dev import Server, free_port, running
from postgres import server as postgres_server

from hopgate.classifiers.checkpoint import BUILTIN_FOLDER
from hopgate.retrievers.sources import sample_path

QUESTION = "In what year was Skerrane Light first lit?"
KEY = "sk-operator-5b1f0c9d2e77"
ANSWER = "It was lit in 1858 [1]."
TABLE = "docs"
SINGLE = ("--strategy", "single", "--model", "openai:fake")
UNPRIVILEGED = ("setpriv", "--bounding-set=-dac_override,-dac_read_search",
                "--inh-caps=-dac_override,-dac_read_search")  # fmt: skip
"""So that root, too, may not read a file without permissions."""


@contextmanager
def serving(folder: Path, *options: str, **env: str) -> Iterator[Server]:
    """Run `hopgate serve` in a folder."""
    port = free_port()
    command = [sys.executable, "-m", "hopgate", "serve", "--port", str(port), *options]
    if os.geteuid() == 0 and "PGVECTOR_URL" not in env:
        command = [*UNPRIVILEGED, *command]
    quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "OPENAI_API_KEY": KEY}
    with running(command, folder, port, env=quiet | env, ready="/hopgate/metrics") as server:
        yield server


@contextmanager
def resetting() -> Iterator[str]:
    """Run an endpoint that resets every connection after the request's first bytes."""
    listening = socket.create_server(("127.0.0.1", 0))

    def reset() -> None:
        while True:
            try:
                accepted, _ = listening.accept()
            except OSError:
                return
            with accepted:
                accepted.recv(1000)
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    threading.Thread(target=reset, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    finally:
        listening.close()


# What a client, the log and the metrics say


def ask(server: Server, question: str = QUESTION, **more: Any) -> httpx.Response:
    """Ask a server over `/v1`."""
    body = {"model": "hopgate", "messages": [{"role": "user", "content": question}], **more}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=240)


def samples(server: Server) -> dict[str, float]:
    """Return the server's metrics of failures and outcomes."""
    text = httpx.get(f"{server.url}/hopgate/metrics").text
    lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith("hopgate_")]
    wanted = ("errors_total", "turns_total", "refusals_total", "failed_searches", "unkept")
    return {name: float(value) for name, _, value in lines if any(each in name for each in wanted)}


def observed(server: Server, act: Callable[[], httpx.Response]) -> dict[str, Any]:
    """Return what an act shows to the client, in the log and in the metrics."""
    before, size = samples(server), len(server.log.read_bytes())
    reply = act()
    time.sleep(0.3)
    after = samples(server)
    content = reply.json()
    if "error" in content:
        said = content["error"]["message"]
    else:
        warnings = content["hopgate"]["decision"]["warnings"]
        said = f"{content['choices'][0]['message']['content']} {warnings}"
    return {
        "status": reply.status_code,
        "client": said,
        "retry_after": reply.headers.get("retry-after"),
        "tokens": (content.get("hopgate") or {}).get("usage", {}).get("prompt_tokens"),
        "log": server.log.read_bytes()[size:].decode().splitlines(),
        "metrics": {name: after[name] for name in after if after[name] != before.get(name, 0)},
    }


# The faults


class Fault(NamedTuple):
    """A fault of a folder: how to provoke it, and how to mend it."""

    name: str
    provoke: Callable[[], object]
    mend: Callable[[], object]


def edited(file: Path, change: Callable[[str], str]) -> Fault:
    """Return the fault of a file with another content."""
    content = file.read_text()
    name = f"{file.parent.name}/{file.name} changed"
    return Fault(name, lambda: file.write_text(change(content)), lambda: file.write_text(content))


def moved(file: Path, name: str) -> Fault:
    """Return the fault of a file or a folder that is gone."""
    away = file.with_name("away")
    return Fault(name, lambda: file.rename(away), lambda: away.rename(file))


def unreadable(file: Path) -> None:
    """Write a file anew, so that nobody may read it."""
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content)
    file.chmod(0)


def folder_faults(index: Path, router: Path) -> list[Fault]:
    """Return the faults of an index and a router."""
    manifest = index / "manifest.json"
    vectors = max((index / "vectors").glob("*.faiss"))
    mode = vectors.stat().st_mode
    return [
        moved(index, "index missing"),
        edited(manifest, lambda text: text[: len(text) // 2])._replace(name="index damaged"),
        edited(
            manifest, lambda text: text.replace('"format_version": 3', '"format_version": 2')
        )._replace(name="index of another format"),
        Fault("index unreadable", lambda: unreadable(manifest), lambda: manifest.chmod(mode)),
        moved(router, "router missing"),
        edited(router / "manifest.json", lambda text: text.replace('"format": 2', '"format": 1'))
        ._replace(name="router of another format"),
        edited(router / "tokenizer.json", lambda text: text + " ")._replace(name="router altered"),
    ]  # fmt: skip


REPLIES = {
    "model 401": Reply(status=401, error=f"bad key {KEY}"),
    "model 403": Reply(status=403, error="no access to project p-1"),
    "model 429": Reply(status=429, error="rate limit of org-17 reached", retry_after="7"),
    "model 400": Reply(status=400, error="bad request at 10.1.2.3"),
    "model 500": Reply(status=500, error="worker 10.1.2.3 crashed"),
    "model garbage": Reply(body=b"<html>gateway</html>"),
}


def faults() -> Iterator[dict[str, Any]]:
    """Yield a row for each fault of a folder, a store or a model."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hopgate-tour-")))
        fake = stack.enter_context(FakeOpenAI())
        fake.answers(by_task(answer=ANSWER))
        index, router = folder / "index", folder / "router"
        shutil.copytree(sample_path(), index)
        shutil.copytree(BUILTIN_FOLDER, router)
        place = ("--index", str(index), "--router", str(router), "--model", "openai:fake")
        with serving(folder, *place, "--gate", "always", OPENAI_BASE_URL=fake.base_url) as server:
            assert ask(server).status_code == 200
            for fault in folder_faults(index, router):
                fault.provoke()
                yield {"fault": fault.name, **observed(server, partial(ask, server))}
                fault.mend()
                assert ask(server).status_code == 200, fault.name
            for name, reply in REPLIES.items():
                fake.answers(lambda _, reply=reply: reply)  # type: ignore[misc]
                yield {"fault": name, **observed(server, partial(ask, server))}
        with resetting() as url, serving(folder, *SINGLE, OPENAI_BASE_URL=url) as server:
            yield {"fault": "model resets", **observed(server, partial(ask, server))}
        closed = f"http://127.0.0.1:{free_port()}/v1"
        with serving(folder, *SINGLE, OPENAI_BASE_URL=closed) as server:
            yield {
                "fault": "model refuses the connection",
                **observed(server, partial(ask, server)),
            }
        fake.answers(by_task(answer=ANSWER, direct="In 1858."))
        for rule in ("answer", "error"):
            yield from store_faults(folder, fake, rule)


def store_faults(folder: Path, fake: FakeOpenAI, rule: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each fault of a store in PostgreSQL."""
    more = () if rule == "answer" else ("--retriever-failure", rule)
    with ExitStack() as stack:
        url = stack.enter_context(postgres_server())
        env = {"PGVECTOR_URL": url, "OPENAI_BASE_URL": fake.base_url}
        push = [sys.executable, "-m", "hopgate", "index", "push", str(sample_path())]
        subprocess.run(
            [*push, f"pgvector:{TABLE}"], check=True, env=os.environ | env, capture_output=True
        )
        options = ("--index", f"pgvector:{TABLE}", *SINGLE, *more)
        server = stack.enter_context(serving(folder, *options, **env))
        assert ask(server).status_code == 200
        rename(url, TABLE, "away")
        row = observed(server, partial(ask, server))
        yield {"fault": " ".join(("store's table renamed", *more)), **row}
        rename(url, "away", TABLE)
        assert ask(server).status_code == 200
        stop_postgres(url)
        row = observed(server, partial(ask, server))
        yield {"fault": " ".join(("store down", *more)), **row}


def rename(url: str, table: str, name: str) -> None:
    """Rename a table."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'ALTER TABLE "{table}" RENAME TO "{name}"')  # type: ignore[arg-type]


def stop_postgres(url: str) -> None:
    """Stop PostgreSQL, and wait until it has ended."""
    pid = int((Path(url.partition("host=")[2]) / "data/postmaster.pid").read_text().split()[0])
    os.kill(pid, signal.SIGINT)
    while Path(url.partition("host=")[2], "data/postmaster.pid").exists():
        time.sleep(0.05)


# The rolling restart


def rolling(seconds: float = 20, clients: int = 8) -> Iterator[dict[str, Any]]:
    """Yield the rows of a rolling restart: clients ask without a pause, whole and streamed."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hopgate-tour-")))
        fake = stack.enter_context(FakeOpenAI())
        fake.answers(lambda messages: Reply(str(by_task(answer=ANSWER)(messages)), delay=0.5))
        ports = [free_port(), free_port()]
        servers = [stack.enter_context(ExitStack()) for _ in ports]

        def start(number: int) -> Server:
            command = [sys.executable, "-m", "hopgate", "serve", *SINGLE]
            command += ["--port", str(ports[number])]
            place = folder / str(time.monotonic())
            place.mkdir()
            env = {"OMP_NUM_THREADS": "1", "OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": fake.base_url}
            return servers[number].enter_context(
                running(command, place, ports[number], env=env, ready="/ready")
            )

        running_now = [start(number) for number in range(2)]
        asking = Asking([server.url for server in running_now], clients)
        restarts = 0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for number in range(2):
                time.sleep(1)
                running_now[number].process.send_signal(signal.SIGTERM)
                running_now[number].process.wait()
                running_now[number] = start(number)
                restarts += 1
        yield {"fault": "rolling restart", "restarts": restarts, **asking.end()}


class Asking:
    """Clients that ask two servers in turn, as a proxy does: the other one if one refuses."""

    def __init__(self, urls: list[str], clients: int) -> None:
        """Start asking."""
        self._urls, self._ended = urls, threading.Event()
        self._counts: Counter[str] = Counter()
        self._lost: list[str] = []
        self._threads = [threading.Thread(target=self._ask, args=(n,)) for n in range(clients)]
        for thread in self._threads:
            thread.start()

    def end(self) -> dict[str, Any]:
        """Stop asking, and return the counts of answers."""
        self._ended.set()
        for thread in self._threads:
            thread.join()
        return {"status": 200, "client": f"{len(self._lost)} lost", "lost": self._lost[:5],
                **self._counts}  # fmt: skip

    def _ask(self, number: int) -> None:
        stream = number % 2 == 1
        while not self._ended.is_set():
            for url in self._urls if number % 4 < 2 else self._urls[::-1]:
                server = Server(url, Path(), None)  # type: ignore[arg-type]
                try:
                    reply = ask(server, stream=stream)
                except httpx.ConnectError:
                    self._counts["sent on"] += 1
                    continue
                except httpx.HTTPError as error:
                    self._lost.append(repr(error))
                    break
                whole = "[DONE]" in reply.text if stream else True
                if reply.status_code == 200 and whole and '"error"' not in reply.text:
                    self._counts["answered in a stream" if stream else "answered"] += 1
                else:
                    self._lost.append(reply.text[-300:])
                break
            else:
                self._lost.append("both refused")


def main() -> None:
    """Run a part of the tour, and append its rows to a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["faults", "rolling"])
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    parts: Mapping[str, Callable[[], Iterator[dict[str, Any]]]] = {
        "faults": faults,
        "rolling": rolling,
    }
    with given.out.open("a", encoding="utf-8") as out:
        for row in parts[given.part]():
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
            out.flush()
            print(row["fault"], "|", row["status"], "|", row["client"])


if __name__ == "__main__":
    main()
