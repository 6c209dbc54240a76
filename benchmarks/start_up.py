"""How long commands take from a cold start, as ratios to `import sentence_transformers`.

    python benchmarks/start_up.py [--rounds 5] [--beside TREE] > start.md

Whole processes, alternately, on the sample collection. The model of `ask` is a fake that answers
instantly, in its own process (fixed_latency.py). With `--beside`, two checkouts are measured
alternately (beside.py). The server's first and second question are asked some seconds after it
answers `/ok`, and immediately, each on a fresh `langgraph dev`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import fixed_latency
import httpx
from beside import Tree, in_turns, print_table, trees

ROOT = Path(__file__).parents[1]
BASE = "import sentence_transformers"
IMPORTS = "import langgraph.graph, langchain_openai"
QUESTION = "In what year was Skerrane Light first lit?"
COMMANDS = {
    "--help": ["--help"],
    "search --mode bm25": ["search", QUESTION, "--mode", "bm25"],
    "search": ["search", QUESTION],
    "route": ["route", QUESTION],
    "ask": ["ask", QUESTION, "--model", "openai:fake"],
}
WAIT_S = 5.0
"""Time from the server's first sign of life to the first question, in one of its two runs."""


def seconds(tree: Tree, arguments: list[str]) -> float:
    """Return how long a Python process takes."""
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True, env=tree.environment()
    )
    return time.perf_counter() - started


def measure(rounds: int, every: list[Tree]) -> dict[str, list[float]]:
    """Return the times of each process, after a round that warms the disk's cache."""
    acts = {code: (every[0], ["-c", code]) for code in (BASE, IMPORTS)}
    for tree in every:
        for name, arguments in COMMANDS.items():
            acts[f"{name} ({tree.name})"] = (tree, ["-m", "hopgate", *arguments])
    found: dict[str, list[float]] = {name: [] for name in acts}
    for turn in range(rounds + 1):
        for name in in_turns(list(acts), turn):
            print(f"round {turn}: {name}", file=sys.stderr, flush=True)
            took = seconds(*acts[name])
            if turn:
                found[name].append(took)
    return found


def first_questions(tree: Tree, wait_s: float) -> list[float]:
    """Return the seconds of the first two questions of a new server."""
    sys.path.insert(0, str(ROOT / "tests"))
    import langgraph_dev

    body = {"assistant_id": "hopgate", "input": {"question": QUESTION}}
    took = []
    with (
        tempfile.TemporaryDirectory() as folder,
        langgraph_dev.start(Path(folder), env=tree.environment()) as server,
    ):
        time.sleep(wait_s)
        for _ in range(2):
            started = time.perf_counter()
            reply = httpx.post(f"{server.url}/runs/wait", json=body, timeout=120)
            assert reply.raise_for_status().json()["answer"], reply.text
            took.append(time.perf_counter() - started)
    return took


def main() -> None:
    """Print the tables as Markdown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--beside", type=Path, help="folder of another hopgate package")
    given = parser.parse_args()
    every = trees(given.beside)
    os.environ |= {"HF_HUB_OFFLINE": "1", "LANGSMITH_TRACING": "false"}
    with fixed_latency.running(0, None) as address:
        os.environ["OPENAI_BASE_URL"] = f"{address}/v1"
        times = measure(given.rounds, every)
        base = statistics.median(times[BASE])
        rows = {
            name: {
                "median s": round(statistics.median(each), 2),
                "lowest": round(min(each), 2),
                f"of `{BASE}`": round(statistics.median(each) / base, 3),
            }
            for name, each in times.items()
        }
        print_table("From nothing", rows)
        servers = {}
        for tree in every:
            for wait_s in (WAIT_S, 0.0):
                first, second = first_questions(tree, wait_s)
                servers[f"{tree.name}, asked after {wait_s:g} s"] = {
                    "first s": round(first, 2),
                    "second s": round(second, 2),
                }
        print_table("`langgraph dev`", servers)


if __name__ == "__main__":
    main()
