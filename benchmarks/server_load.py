"""hopgate under load: the cost of its graph, in-process and on a LangGraph server, and faults.

    python benchmarks/server_load.py --work DIR [--quick] [--cores 0 1] > load.json

The model is a fake with a fixed latency (fixed_latency.py) in its own process; router, index and
encoder are real. Users ask the sample collection's questions one after the other. hopgate takes
turns with the same flow written without it (plain_flow.py).

Each part runs in its own process and saves its result in DIR; running the same command again runs
the missing parts:

- `graph-N`: N users ask the graph in-process. The `bare` sides are the flow without a graph: model,
  router and index alone, the plain flow's or hopgate's, so the difference to them is the cost of a
  graph.
- `server-N`: N users ask `langgraph dev` over HTTP (stateless runs), with as many job slots as the
  largest number of users; `slots`: 8 users with one slot, the default of `langgraph dev`.
- `faults-graph`, `faults-server`: 4 users, while 28 others are idle or ask a model that is slow,
  drops connections or hangs. `faults-slots`: hanging runs hold all ten slots for a while.
- `memory-graph`, `memory-sqlite`, `memory-server`, `memory-server-plain`: resident memory over many
  requests, 32 concurrent, with a model latency of 10 ms; in-process without checkpoints, with
  checkpoints in SQLite, on the server, and on the server with the plain graph.

The graph or server runs on the first of the --cores; model and users, in their own processes, on
the second.
"""

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import count, islice
from pathlib import Path
from typing import Any

import fixed_latency
import httpx
import plain_flow
from load_measures import Ask, Tally, Watch, counted, endless, in_turns, load, questions, slope
from processes import cpu_seconds, memory_kib

from hopgate import Context, build_graph

ROOT = Path(__file__).parents[1]
USERS = 32
"""Concurrent users of the parts that run for one number of users."""
GOOD = 4
"""Users of a healthy model while others ask a bad one: too few to keep a core busy."""
USERS_ON_ONE_SLOT = 8
"""Users of the part with one slot, the default of `langgraph dev`."""
FEW_SLOTS = 10
"""Default number of slots of a LangGraph server in production."""
MEMORY_MS = 10.0
"""Latency of the model in the memory parts."""
Cores = tuple[int | None, int | None]

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "LANGSMITH_TRACING": "false",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
PACKAGES = ("langgraph", "langgraph-api", "langchain-openai", "openai", "torch")


@dataclass(frozen=True)
class Sizes:
    """Sizes of the benchmark.

    Attributes:
        users: Numbers of concurrent users.
        ms: Latency of the model.
        rounds: Turns of each side.
        min_questions: Minimum number of questions per turn.
        per_user: Questions per user and turn.
        requests: Requests of the memory parts.
        stored_requests: Requests of the memory parts that store checkpoints or runs.
        until_error: Whether to wait until hanging calls fail.
        stuck_s: Seconds for which hanging runs hold all slots.
    """

    users: tuple[int, ...] = (1, 8, 32, 128)
    ms: float = 200.0
    rounds: int = 3
    min_questions: int = 34
    per_user: int = 2
    requests: int = 10_000
    stored_requests: int = 2_000
    until_error: bool = True
    stuck_s: float = 30.0

    def turn(self, users: int) -> int:
        """Return the number of questions per turn."""
        return max(self.min_questions, self.per_user * users)


FULL = Sizes()
QUICK = Sizes((4,), 20.0, 1, 4, 2, 40, 20, False, 2.0)
QUICK_PARTS = ("graph-4", "server-4", "memory-graph")


@dataclass(frozen=True)
class Setting:
    """Settings of a part.

    Attributes:
        sizes: Sizes of the benchmark.
        address: Address of the fake model.
        users: Number of concurrent users.
        core: CPU core of the users if they ask over HTTP.
    """

    sizes: Sizes
    address: str
    users: int
    core: int | None

    @property
    def url(self) -> str:
        """Return the value of OPENAI_BASE_URL."""
        return f"{self.address}/v1"


def context(model: str = plain_flow.MODEL) -> Context:
    """Return the settings of hopgate's graph: those of the plain flow."""
    return Context(
        alpha=plain_flow.ALPHA,
        gate="ta-are",
        model=model,
        top_k=plain_flow.TOP_K,
        hop_k=plain_flow.HOP_K,
        max_hops=plain_flow.MAX_HOPS,
    )


def in_process(model: str = plain_flow.MODEL, saver: Any = None) -> Ask:
    """Ask hopgate's graph in this process; with a saver, each question on its own thread."""
    graph, settings, threads = build_graph(saver), context(model), count()

    async def ask(question: str) -> Any:
        config: Any = {"configurable": {"thread_id": str(next(threads))}} if saver else None
        return await graph.ainvoke({"question": question}, config, context=settings)

    return ask


async def graph(setting: Setting) -> dict[str, Any]:
    bare_plain, bare_hopgate = await plain_flow.load_plain(), await plain_flow.load_own()
    sides: dict[str, Ask] = {
        "bare plain": lambda question: plain_flow.ask(bare_plain, question),
        "plain": lambda question: plain_flow.graph.ainvoke({"question": question}),
        "bare hopgate": lambda question: plain_flow.ask(bare_hopgate, question),
        "hopgate": in_process(),
    }
    watch = Watch(time.process_time, lambda: counted(setting.address))
    sizes, users = setting.sizes, setting.users
    found = await in_turns(sides, users, sizes.turn(users), sizes.rounds, watch)
    return with_shares(found, setting.sizes.ms)


def with_shares(found: dict[str, Any], ms: float) -> dict[str, Any]:
    """Add the model's share of the time, and the comparison of hopgate with the plain flow."""
    for side in found.values():
        waited = sum(side["model_calls"].values()) * ms / (side["asked"] - side["errors"])
        side["model_share"] = round(waited / side["mean_ms"], 3)
    figures = ("answers_per_s", "mean_ms", "p50_ms", "p95_ms", "cpu_ms")
    hopgate, plain = found["hopgate"], found["plain"]
    found["hopgate / plain"] = {name: round(hopgate[name] / plain[name], 3) for name in figures}
    if "bare plain" in found:
        found["beyond bare"] = {
            name: {
                figure: round(found[name][figure] - found[f"bare {name}"][figure], 2)
                for figure in ("mean_ms", "p50_ms", "cpu_ms")
            }
            for name in ("plain", "hopgate")
        }
    return found


class Remote:
    """A `langgraph dev` that serves hopgate's graph and the plain one."""

    def __init__(self, url: str, pid: int, client: httpx.AsyncClient) -> None:
        """Set the server's address and process."""
        self.pid = pid
        self._url = f"{url}/runs/wait"
        self._client = client

    def ask(self, graph: str = "hopgate", model: str = plain_flow.MODEL) -> Ask:
        """Return a function that asks one of the graphs, without a thread."""
        body: dict[str, Any] = {"assistant_id": graph, "on_disconnect": "cancel"}
        if graph == "hopgate":
            body["context"] = context_values(model)

        async def ask(question: str) -> Any:
            response = await self._client.post(
                self._url, json=body | {"input": {"question": question}}
            )
            found = response.raise_for_status().json()
            if fault := found.get("__error__"):
                raise RuntimeError(f"{fault['error']}: {fault['message']}")
            return found

        return ask


def context_values(model: str) -> dict[str, Any]:
    """Return the settings that differ from their defaults, as a request sends them."""
    return context(model).model_dump(exclude_defaults=True)


@asynccontextmanager
async def remote(setting: Setting, slots: int) -> AsyncIterator[Remote]:
    """Run `langgraph dev` on the measured core, and move this process to the other."""
    sys.path.insert(0, str(ROOT / "tests"))
    import langgraph_dev

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        config = json.loads((ROOT / "langgraph.json").read_text())
        config["graphs"]["plain"] = f"{plain_flow.__file__}:graph"
        config.pop("env", None)
        (folder / "langgraph.json").write_text(json.dumps(config))
        env = {"OPENAI_BASE_URL": setting.url}
        server = stack.enter_context(
            langgraph_dev.start(folder, config=folder / "langgraph.json", env=env, jobs=slots)
        )
        stay_on(setting.core)
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=None, limits=limits))
        yield Remote(server.url, server.process.pid, client)


async def server(setting: Setting) -> dict[str, Any]:
    return await on_server(setting, max(setting.sizes.users))


async def slots(setting: Setting) -> dict[str, Any]:
    return await on_server(setting, 1)


async def on_server(setting: Setting, slots: int) -> dict[str, Any]:
    async with remote(setting, slots) as at:
        watch = Watch(lambda: cpu_seconds(at.pid), lambda: counted(setting.address))
        sides = {name: at.ask(name) for name in ("plain", "hopgate")}
        sizes, users = setting.sizes, setting.users
        rounds = min(2, sizes.rounds)
        found = await in_turns(sides, users, sizes.turn(users), rounds, watch)
    return {"slots": slots} | with_shares(found, setting.sizes.ms)


async def faults_graph(setting: Setting) -> dict[str, Any]:
    return await faults(lambda model: in_process(model), setting)


async def faults_server(setting: Setting) -> dict[str, Any]:
    async with remote(setting, setting.users) as at:
        return await faults(lambda model: at.ask(model=model), setting)


async def faults(ask: Callable[[str], Ask], setting: Setting) -> dict[str, Any]:
    """Measure a few users of a healthy model while many others are idle or ask a bad one."""
    good, texts, many = ask(plain_flow.MODEL), endless(questions()), setting.users - GOOD
    bad = {name: ask(f"openai:{name}") for name in ("slow", "drop", "hang")}
    await load(good, islice(texts, GOOD), GOOD)
    turns: dict[str, Tally] = {name: Tally() for name in ("alone", *bad)}
    others = {name: Tally() for name in bad}
    for turn in range(setting.sizes.rounds):
        for name, tally in turns.items():
            # Hanging calls take minutes to fail: one per user.
            asked = islice(endless(questions()), many if name == "hang" else None)
            waiting = asyncio.create_task(
                load(bad[name], asked, many, others[name]) if name in bad else asyncio.sleep(0)
            )
            turns[name] = tally + await load(good, islice(texts, setting.sizes.turn(GOOD)), GOOD)
            last = turn == setting.sizes.rounds - 1
            if not (name == "hang" and last and setting.sizes.until_error):
                waiting.cancel()
            with suppress(asyncio.CancelledError):
                await waiting
    reports = {name: tally.report() for name, tally in turns.items()}
    return {
        "users": {"good": GOOD, "bad": many},
        "good": reports,
        "good / alone": {
            name: {
                f: round(reports[name][f] / reports["alone"][f], 3) for f in ("p50_ms", "p95_ms")
            }
            for name in bad
        },
        "bad": {name: tally.report() for name, tally in others.items()},
    }


async def faults_slots(setting: Setting) -> dict[str, Any]:
    """Measure a server while hanging runs hold all of its slots."""
    texts = endless(questions())
    async with remote(setting, FEW_SLOTS) as at:
        good = at.ask()
        await load(good, islice(texts, GOOD), GOOD)
        alone = await load(good, islice(texts, setting.sizes.turn(GOOD)), GOOD)
        hang = asyncio.create_task(
            load(at.ask(model="openai:hang"), questions()[:FEW_SLOTS], FEW_SLOTS)
        )
        await asyncio.sleep(2)
        others = asyncio.create_task(load(good, islice(texts, GOOD), GOOD))
        await asyncio.sleep(setting.sizes.stuck_s)
        hang.cancel()
        with suppress(asyncio.CancelledError):
            await hang
        stuck = await others
    return {
        "slots": FEW_SLOTS,
        "users": {"good": GOOD, "bad": FEW_SLOTS},
        "until_bad_leave_s": setting.sizes.stuck_s,
        "good": {"alone": alone.report(), "hang": stuck.report()},
    }


async def memory_graph(setting: Setting) -> dict[str, Any]:
    return await memory(in_process(), setting.sizes.requests, os.getpid())


async def memory_sqlite(setting: Setting) -> dict[str, Any]:
    from hopgate.graphs.checkpoints import sqlite_saver

    with tempfile.TemporaryDirectory() as folder:
        async with sqlite_saver(f"{folder}/checkpoints.sqlite") as saver:
            return await memory(in_process(saver=saver), setting.sizes.stored_requests, os.getpid())


async def memory_server(setting: Setting) -> dict[str, Any]:
    return await memory_on_server("hopgate", setting)


async def memory_server_plain(setting: Setting) -> dict[str, Any]:
    return await memory_on_server("plain", setting)


async def memory_on_server(graph: str, setting: Setting) -> dict[str, Any]:
    async with remote(setting, setting.users) as at:
        return await memory(at.ask(graph), setting.sizes.stored_requests, at.pid)


async def memory(ask: Ask, requests: int, pid: int) -> dict[str, Any]:
    """Measure a process's memory after each tenth of the requests."""
    texts, tally, step = endless(questions()), Tally(), requests // 10
    await load(ask, islice(texts, USERS), USERS)
    points = [(0, memory_kib("VmRSS", pid) / 1024)]
    for done in range(step, requests + 1, step):
        tally += await load(ask, islice(texts, step), USERS)
        points.append((done, round(memory_kib("VmRSS", pid) / 1024, 1)))
    return {"resident_mib": points, "mib_per_1000": slope(points), "load": tally.report()}


Part = Callable[[Setting], Any]
AT_EACH: dict[str, Part] = {"graph": graph, "server": server}
ONCE: dict[str, Part] = {
    "slots": slots,
    "faults-graph": faults_graph,
    "faults-server": faults_server,
    "faults-slots": faults_slots,
}
MEMORY: dict[str, Part] = {
    "memory-graph": memory_graph,
    "memory-sqlite": memory_sqlite,
    "memory-server": memory_server,
    "memory-server-plain": memory_server_plain,
}


def all_parts(sizes: Sizes) -> list[str]:
    each = [f"{name}-{users}" for name in AT_EACH for users in sizes.users]
    return [*each, *ONCE, *MEMORY]


def stay_on(core: int | None) -> None:
    """Pin this process, and the processes and threads it starts from now on, to one CPU core."""
    if core is not None:
        os.sched_setaffinity(0, {core})


def run_part(name: str, sizes: Sizes, cores: Cores) -> dict[str, Any]:
    """Run a part in this process."""
    kind, _, users = name.rpartition("-")
    part = AT_EACH.get(kind) or (ONCE | MEMORY)[name]
    ms = MEMORY_MS if name in MEMORY else sizes.ms
    stay_on(cores[0])
    with fixed_latency.running(ms, cores[1]) as address:
        concurrent = (
            int(users) if kind in AT_EACH else USERS_ON_ONE_SLOT if name == "slots" else USERS
        )
        setting = Setting(sizes, address, concurrent, cores[1])
        os.environ |= {"OPENAI_BASE_URL": setting.url}
        started = time.perf_counter()
        found: dict[str, Any] = asyncio.run(part(setting))
    return found | {"model_ms": ms, "took_s": round(time.perf_counter() - started)}


def run_apart(name: str, work: Path, options: list[str]) -> dict[str, Any]:
    """Run a part in its own process, unless its result is saved."""
    saved = work / f"{name}.json"
    if not saved.exists():
        print(name, file=sys.stderr, flush=True)
        command = [sys.executable, __file__, "--part", name, *options]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | ENVIRONMENT
        )
        saved.write_text(done.stdout)
    return dict(json.loads(saved.read_text()))


def conditions(sizes: Sizes, cores: Cores) -> dict[str, Any]:
    """Return the conditions of the measurement."""
    return {
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "cpus": os.cpu_count(),
        "cores": cores,
        "sizes": asdict(sizes),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, help="folder for the parts; default: temporary")
    parser.add_argument("--quick", action="store_true", help="run a few tiny parts as a smoke test")
    parser.add_argument("--cores", type=int, nargs=2, default=(None, None), metavar="CORE")
    parser.add_argument("--only", nargs="+", metavar="PART", help="run only these parts")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    args = parser.parse_args()
    sizes, cores = QUICK if args.quick else FULL, tuple(args.cores)
    if args.part:
        print(json.dumps(run_part(args.part, sizes, cores)))
        return
    wanted = args.only or (QUICK_PARTS if args.quick else all_parts(sizes))
    options = ["--quick"] if args.quick else []
    options += ["--cores", *map(str, cores)] if cores[0] is not None else []
    with tempfile.TemporaryDirectory() as temporary:
        work = args.work or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        found = {name: run_apart(name, work, options) for name in wanted}
    print(json.dumps({"conditions": conditions(sizes, cores)} | found, indent=1))


if __name__ == "__main__":
    main()
