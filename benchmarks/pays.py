"""What hopgate's decisions cost and save, compared with always searching once.

    hopgate label --questions fresh.jsonl --index index --model local:smollm2 --judge match \
      --out labels-fresh.jsonl
    python benchmarks/pays.py --labels labels-fresh.jsonl --index index

Each question was answered with no, one and several retrievals. Here every way of deciding is
actually run, with its searches and calls, and gets the recorded answer of the strategy that it
chose, so all ways are compared on the same answers. Calls and tokens include deciding and
answering; seconds are the answer's recorded ones plus those spent deciding here.
"""

import argparse
import asyncio
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from hopgate import Context, build_graph
from hopgate.common.strategies import FLARE_NAMES, STRATEGIES
from hopgate.graphs.adaptive import without_answer

WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "default of before": {"gate": "confidence", "alpha": 0.7},
    "router alone": {"gate": "off"},
    "gate confidence": {"gate": "confidence"},
    "gate ta-are": {"gate": "ta-are"},
    "gate vanilla": {"gate": "vanilla"},
    "gate draft": {"gate": "draft"},
}
RESAMPLES = 5_000
COSTS = ("calls", "steps", "tokens", "ms")


async def decide(rows: list[dict[str, Any]], context: Context) -> list[dict[str, Any]]:
    """Return each question's decision and its cost; the loop itself is not run."""
    graph = build_graph()
    found = []
    for row in rows:
        before = time.perf_counter()
        config: Any = {"configurable": {"thread_id": row["id"]}}
        state: Any = await without_answer(graph).ainvoke(
            {"question": row["question"]}, config, context=context, interrupt_before=STOP
        )
        ms = 1000 * (time.perf_counter() - before)
        decision, usage = state["decision"], state["usage"]
        found.append(
            {
                "strategy": decision.get("strategy", "none"),
                "mode": decision["gate"]["mode"],
                "calls": usage["llm_calls"],
                "tokens": usage["prompt_tokens"] + usage["completion_tokens"],
                "ms": ms,
            }
        )
    return found


STOP = ["retrieve", "multihop"]


def measured(rows: list[dict[str, Any]], decided: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the columns of a way: right, calls, steps, tokens and ms of each question."""
    table: dict[str, list[float]] = {name: [] for name in ("right", *COSTS)}
    for row, each in zip(rows, decided, strict=True):
        name = FLARE_NAMES[STRATEGIES.index(each["strategy"])]
        drafted = each["mode"] == "draft" and name == "zero"  # the draft is the answer
        table["right"].append(name in (row["correct"] or []))
        table["calls"].append(each["calls"] + (0 if drafted else row["calls"][name]))
        table["steps"].append(row["steps"][name])
        answer = 0 if drafted else sum(row["tokens"][name].values())
        table["tokens"].append(each["tokens"] + answer)
        table["ms"].append(each["ms"] + (0 if drafted else row["ms"][name]))
    return {name: np.array(values, float) for name, values in table.items()}


def fixed(rows: list[dict[str, Any]], strategy: str) -> list[dict[str, Any]]:
    free = {"mode": "", "calls": 0, "tokens": 0, "ms": 0.0}
    return [{"strategy": strategy, **free} for _ in rows]


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--labels", type=Path, required=True)
    parser.add_argument("--index", required=True)
    parser.add_argument("--model", default="local:smollm2")
    parser.add_argument("--alpha", type=float)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument(
        "--plot", type=Path, help="PNG of α from 0 to 1, against searches and tokens"
    )
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.labels.read_text("utf-8").splitlines()]
    given: dict[str, Any] = {"index": options.index, "model": options.model}
    if options.alpha is not None:
        given["alpha"] = options.alpha
    if options.plot:
        return await plot(rows, given, options.plot)
    single = measured(rows, fixed(rows, "single"))
    draws = np.random.default_rng(0).integers(0, len(rows), (RESAMPLES, len(rows)))
    print(f"{len(rows)} questions, {options.model}\n")
    print("| | right | over always single | calls | searches | tokens | s | decided by |")
    print("|---|---|---|---|---|---|---|---|")
    for strategy in STRATEGIES:
        show(f"always {strategy}", measured(rows, fixed(rows, strategy)), single, draws, "")
    for name in options.ways.split(","):
        decided = await decide(rows, Context(**given | WAYS[name]))
        modes = [each["mode"] for each in decided]
        kinds = ", ".join(f"{each} {modes.count(each)}" for each in dict.fromkeys(modes))
        show(name, measured(rows, decided), single, draws, kinds)
        for source in dict.fromkeys(row["dataset"] for row in rows):
            part = [at for at, row in enumerate(rows) if row["dataset"] == source]
            searched = np.mean([decided[at]["strategy"] != "none" for at in part])
            print(f"<!-- {name}, {source}: {searched:.0%} of {len(part)} searched -->", flush=True)


async def plot(rows: list[dict[str, Any]], given: dict[str, Any], out: Path) -> None:
    """Draw the share of right answers against searches and against tokens, as α changes."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    alphas = [step / 10 for step in range(11)]
    turned = [measured(rows, await decide(rows, Context(**given, alpha=a))) for a in alphas]
    always = {name: measured(rows, fixed(rows, name)) for name in STRATEGIES}
    for axis, cost in zip(axes, ("steps", "tokens"), strict=True):
        line = [(table[cost].mean(), 100 * table["right"].mean()) for table in turned]
        axis.plot(*zip(*line, strict=True), "o-", ms=4, color="#0f766e", label="hopgate")
        for at in (0, 5, 10):
            axis.annotate(f"α = {alphas[at]:g}", line[at], (4, 6), textcoords="offset points")
        for name, table in always.items():
            spot = table[cost].mean(), 100 * table["right"].mean()
            axis.plot(*spot, "s", color="#6b7280")
            axis.annotate(f"always {name}", spot, (4, -12), textcoords="offset points")
        axis.set_xlabel("searches per question" if cost == "steps" else "tokens per question")
        axis.margins(0.15)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("right answers, %")
    figure.tight_layout()
    figure.savefig(out, dpi=150)


def show(name: str, table: Any, single: Any, draws: Any, kinds: str) -> None:
    gain = table["right"] - single["right"]
    low, high = np.quantile(gain[draws].mean(1), [0.025, 0.975])
    calls, steps, tokens, ms = (table[each].mean() for each in COSTS)
    print(
        f"| {name} | {table['right'].mean():.1%} | {gain.mean():+.1%} ({low:+.1%} to {high:+.1%}) "
        f"| {calls:.2f} | {steps:.2f} | {tokens:.0f} | {ms / 1000:.1f} | {kinds} |",
        flush=True,
    )


if __name__ == "__main__":
    asyncio.run(main())
