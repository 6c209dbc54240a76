"""hopgate on several Aegra processes: kills in the middle of runs, and throughput.

    make aegra && python benchmarks/aegra.py kills --out FILE.jsonl [--number 100]
    python benchmarks/aegra.py throughput --out FILE.jsonl [--rounds 3]

PostgreSQL, Redis and the Aegra processes are real, with the settings of docs/aegra.md. The model is
a FAKE: an endpoint that replies after 0.3 s and records each call. Each run goes through the loop,
with four searches of the sample collection and five calls.

Every kill or measurement is a line in FILE; running the same command again adds the missing ones.

- `kills`: four processes work. Six runs are started, and one or two of the processes running them
  are killed (SIGKILL) at a random moment; others are started in their place.
- `throughput`: a batch of runs is queued for 1, 2 and 4 processes, and for several numbers of
  slots, in turn.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from aegra_servers import Cluster, cluster
from doubles import by_task
from fake_openai import FakeOpenAI, Messages, Reply
from langgraph_dev import Server
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from postgres import server

LATENCY = 0.3  # seconds per call
CONTEXT = {"model": "openai:fake", "strategy": "multi", "hop_k": 2}
QUESTION = "What is produced in the birthplace of the designer of Skerrane Light? (case {})"
ANSWER = "Sea salt [1]"
THOUGHTS = [
    "Skerrane Light was designed by Ilsabet Corrane.",
    "Ilsabet Corrane was born in Lissmere.",
    "Lissmere produces sea salt.",
    "So the answer is: sea salt.",
]
LASTS = 1.7  # a run's approximate length in seconds; kills happen within it
AT_ONCE = 6  # runs in a round of kills
WORKING = 4  # processes
VICTIMS = 2  # of them, at most
RECOVERY = {
    "LEASE_DURATION_SECONDS": "6",
    "HEARTBEAT_INTERVAL_SECONDS": "2",
    "REAPER_INTERVAL_SECONDS": "2",
}
SETTINGS = [(1, 8), (2, 8), (4, 8), (2, 2), (2, 32)]  # processes, slots per process
BATCH = 64


@dataclass
class Call:
    """A call to the endpoint: its prompt, and when its reply was sent (0: not yet)."""

    prompt: str
    sent: float = 0.0


class Model:
    """The fake endpoint, with its calls in order."""

    def __init__(self, fake: FakeOpenAI) -> None:
        """Answer the fake's requests."""
        self.calls: list[Call] = []
        self._reply_to = by_task(reason=_thought, answer=ANSWER)
        fake.answers(self._reply)

    def _reply(self, messages: Messages) -> Reply:
        call = Call("\n".join(each["content"] for each in messages))
        self.calls.append(call)
        then: Callable[[], None] = partial(_mark, call)
        return Reply(str(self._reply_to(messages)), delay=LATENCY, then=then)


def _mark(call: Call) -> None:
    call.sent = time.monotonic()


def _thought(prompt: str) -> str:
    return THOUGHTS[sum(each in prompt for each in THOUGHTS)]


def repeated(calls: list[Call], killed: float) -> dict[str, int]:
    """Count the calls made twice: those whose reply was sent before the kill, and the others."""
    first: dict[str, Call] = {}
    found: Counter[str] = Counter()
    for call in calls:
        if call.prompt not in first:
            first[call.prompt] = call
        elif 0 < first[call.prompt].sent < killed:
            found["finished"] += 1
        else:
            found["in_flight"] += 1
    return {"finished": found["finished"], "in_flight": found["in_flight"]}


@contextmanager
def working(**env: str) -> Iterator[tuple[Cluster, Model]]:
    """Yield a cluster without processes, and its model."""
    with tempfile.TemporaryDirectory(prefix="hopgate-aegra-") as folder, FakeOpenAI() as fake:
        model = {"OPENAI_API_KEY": "sk-bench", "OPENAI_BASE_URL": fake.base_url}
        quiet = {"LANGSMITH_TRACING": "false", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        settings = {"LANGGRAPH_STRICT_MSGPACK": "true", "WORKER_COUNT": "1", **RECOVERY, **quiet}
        with (
            server() as postgres,
            cluster(Path(folder), postgres, **settings, **model, **env) as made,
        ):
            yield made, Model(fake)


async def queued(client: LangGraphClient, case: str) -> tuple[str, str]:
    """Queue a run, and return its thread and the run."""
    thread = (await client.threads.create())["thread_id"]
    asked = {"question": QUESTION.format(case)}
    run = await client.runs.create(thread, "hopgate", input=asked, context=CONTEXT)
    return thread, run["run_id"]


def claims(made: Cluster, runs: list[str]) -> dict[str, tuple[str, int]]:
    """Return the status of each run, and the process that holds it (0: none)."""
    query = "SELECT run_id, status, claimed_by FROM runs WHERE run_id = ANY(%s)"
    with psycopg.connect(made.database) as connection:
        rows = connection.execute(query, [runs]).fetchall()
    return {run: (status, int(by.split("-")[-3]) if by else 0) for run, status, by in rows}


def until_over(
    made: Cluster, runs: list[str], see: Callable[[dict[str, Any]], None] = lambda _: None
) -> dict[str, str]:
    """Wait until runs have ended, and return how they ended."""
    while True:
        now = claims(made, runs)
        see(now)
        if all(status not in ("pending", "running") for status, _ in now.values()):
            return {run: status for run, (status, _) in now.items()}
        time.sleep(0.02)


async def kill_once(made: Cluster, model: Model, number: int) -> dict[str, Any] | None:
    """Kill processes in the middle of runs; None if there were no runs at that moment."""
    client = get_client(url=next(iter(made.servers.values())).url)
    model.calls.clear()
    cases = [f"{number}.{each}" for each in range(AT_ONCE)]
    pairs = await asyncio.gather(*(queued(client, case) for case in cases))
    runs = [run for _, run in pairs]
    await asyncio.sleep(random.uniform(0, LASTS))
    held = {run: pid for run, (_, pid) in claims(made, runs).items() if pid}
    if not held:
        until_over(made, runs)
        return None
    holders = sorted(set(held.values()))
    victims = random.sample(holders, min(VICTIMS, len(holders)))
    orphans = [run for run, pid in held.items() if pid in victims]
    killed = time.monotonic()
    for victim in victims:
        made.kill(made.servers[victim])
    taken: dict[str, float] = {}

    def see(now: dict[str, tuple[str, int]]) -> None:
        for run in orphans:
            status, pid = now[run]
            if run not in taken and (pid not in (0, *victims) or status == "success"):
                taken[run] = time.monotonic() - killed

    ended, _ = await asyncio.gather(
        asyncio.to_thread(until_over, made, runs, see), asyncio.to_thread(made.start, len(victims))
    )
    left = get_client(url=next(iter(made.servers.values())).url)
    states: Any = [(await left.threads.get_state(thread))["values"] for thread, _ in pairs]
    return {
        "kills": len(victims),
        "orphans": len(orphans),
        "ended": Counter(ended.values()),
        "right": sum(state["answer"] == ANSWER and len(state["hops"]) == 4 for state in states),
        "taken_after": [round(each, 2) for each in taken.values()],
        "repeated": repeated(list(model.calls), killed),
        "calls": len(model.calls),
    }


def kills(out: Path, number: int) -> None:
    """Kill until the file has `number` kills."""
    with working(N_JOBS_PER_WORKER="4") as (made, model):
        made.start()
        made.start(WORKING - 1)
        while (done := sum(row["kills"] for row in read(out))) < number:
            if found := asyncio.run(kill_once(made, model, done)):
                write(out, found)
                print(f"{done + found['kills']}/{number}: {found}", file=sys.stderr)


async def batch(servers: list[Server]) -> list[str]:
    """Queue a batch over all processes' APIs, and return its runs."""
    clients = [get_client(url=each.url) for each in servers]
    pairs = [queued(clients[each % len(clients)], str(each)) for each in range(BATCH)]
    return [run for _, run in await asyncio.gather(*pairs)]


def throughput(out: Path, rounds: int) -> None:
    """Measure each setting once per round."""
    with working() as (made, model):
        wanted = [(turn, *setting) for turn in range(rounds) for setting in SETTINGS]
        for turn, processes, slots in wanted[len(read(out)) :]:
            made.start(N_JOBS_PER_WORKER=str(slots))  # alone: it creates the tables
            made.start(processes - 1, N_JOBS_PER_WORKER=str(slots))
            servers = list(made.servers.values())
            model.calls.clear()
            started = time.monotonic()
            runs = asyncio.run(batch(servers))
            ended = until_over(made, runs)
            seconds = time.monotonic() - started
            for each in servers:
                made.kill(each)
            row = {
                "round": turn,
                "processes": processes,
                "slots": slots,
                "runs": BATCH,
                "ended": Counter(ended.values()),
                "calls": len(model.calls),
                "seconds": round(seconds, 2),
                "runs_per_s": round(BATCH / seconds, 2),
            }
            write(out, row)
            print(row, file=sys.stderr)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file; none if there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write(path: Path, row: dict[str, Any]) -> None:
    """Append a line to a file."""
    with path.open("a", encoding="utf-8") as out:
        out.write(json.dumps(row) + "\n")


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Add up the lines of a file."""
    if "processes" in rows[0]:
        by: dict[str, list[float]] = {}
        for row in rows:
            by.setdefault(f"{row['processes']}x{row['slots']}", []).append(row["runs_per_s"])
        return {name: {"median": statistics.median(all_), "all": all_} for name, all_ in by.items()}
    taken = sorted(each for row in rows for each in row["taken_after"])
    ended: Counter[str] = sum((Counter(row["ended"]) for row in rows), Counter())
    return {
        "kills": sum(row["kills"] for row in rows),
        "orphans": sum(row["orphans"] for row in rows),
        "ended": dict(ended),
        "right": sum(row["right"] for row in rows),
        "calls": sum(row["calls"] for row in rows),
        "repeated": {
            kind: sum(row["repeated"][kind] for row in rows) for kind in ("finished", "in_flight")
        },
        "taken_after": {
            "median": statistics.median(taken),
            "p95": taken[int(len(taken) * 0.95)],
            "max": taken[-1],
        },
    }


def main() -> None:
    """Run one part, and print its summary as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", choices=["kills", "throughput"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--number", type=int, default=100, help="kills")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each setting")
    given = parser.parse_args()
    if given.part == "kills":
        kills(given.out, given.number)
    else:
        throughput(given.out, given.rounds)
    print(json.dumps(summary(read(given.out)), indent=1))


if __name__ == "__main__":
    main()
