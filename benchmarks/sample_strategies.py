"""Share of the sample questions answered right under each strategy, with its cost.

    python benchmarks/sample_strategies.py [--model local:smollm2] [--alpha 0.4]

Prints a Markdown table: match accuracy per kind of question (none, single, multi) and
in all, mean retrieval steps, model calls and seconds a question, one run, side by side.
"""

import argparse
import asyncio
import time
from collections import defaultdict
from typing import Any

from rich.progress import track
from sample_questions import read_questions

from hopgate import Context, build_graph
from hopgate.evaluation.matching import match

KINDS = ("none", "single", "multi")


async def measure(strategy: str, model: str, alpha: float) -> dict[str, Any]:
    graph = build_graph()
    questions = read_questions()
    context = Context(strategy=strategy, model=model, alpha=alpha)  # type: ignore[arg-type]
    right: dict[str, list[bool]] = defaultdict(list)
    steps = calls = 0
    paths: dict[str, int] = defaultdict(int)
    started = time.perf_counter()
    for row in track(questions, description=strategy):
        result = await graph.ainvoke({"question": row["question"]}, context=context)
        right[row["strategy"]].append(match(result["answer"], row["answers"]))
        steps += result["usage"]["retrieval_steps"]
        calls += result["usage"]["llm_calls"]
        paths[result["decision"]["strategy"]] += 1
    count = len(questions)
    return {
        "strategy": strategy,
        **{kind: f"{sum(right[kind])}/{len(right[kind])}" for kind in KINDS},
        "all": f"{sum(map(sum, right.values())) / count:.1%}",
        "steps": f"{steps / count:.2f}",
        "calls": f"{calls / count:.2f}",
        "seconds": f"{(time.perf_counter() - started) / count:.2f}",
        "paths taken": ", ".join(f"{kind} {paths[kind]}" for kind in KINDS),
    }


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="local:smollm2")
    parser.add_argument("--alpha", type=float, default=0.4)
    arguments = parser.parse_args()
    rows = [
        await measure(strategy, arguments.model, arguments.alpha)
        for strategy in ("none", "single", "multi", "auto")
    ]
    print("| " + " | ".join(rows[0]) + " |")
    print("|" + " --- |" * len(rows[0]))
    for row in rows:
        print("| " + " | ".join(row.values()) + " |")


if __name__ == "__main__":
    asyncio.run(main())
