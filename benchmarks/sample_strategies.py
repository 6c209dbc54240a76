"""Share of the sample questions answered correctly under each strategy, and the cost.

    python benchmarks/sample_strategies.py [--model local:smollm2] [--alpha 0.7] [--every 1]

Prints a Markdown table: match accuracy for each kind of question (none, single, multi) and for all,
and the mean retrieval steps, model calls and seconds per question.
"""

import argparse
import asyncio
import time
from collections import defaultdict
from typing import Any

from rich.progress import track
from sample_questions import read_questions

from hopgate import Context, build_graph
from hopgate.common.strategies import STRATEGIES
from hopgate.evaluation.measuring.matching import match
from hopgate.nodes.texts.text import without_marks


async def measure(
    strategy: str, model: str, alpha: float, questions: list[dict[str, Any]]
) -> dict[str, Any]:
    graph = build_graph()
    context = Context(strategy=strategy, model=model, alpha=alpha)  # type: ignore[arg-type]
    correct: dict[str, list[bool]] = defaultdict(list)
    steps = calls = 0
    paths: dict[str, int] = defaultdict(int)
    started = time.perf_counter()
    for row in track(questions, description=strategy):
        result = await graph.ainvoke({"question": row["question"]}, context=context)
        correct[row["strategy"]].append(
            match(without_marks(result["answer"], result["citations"]), row["answers"])
        )
        steps += result["usage"]["retrieval_steps"]
        calls += result["usage"]["llm_calls"]
        paths[result["decision"]["strategy"]] += 1
    count = len(questions)
    return {
        "strategy": strategy,
        **{kind: f"{sum(correct[kind])}/{len(correct[kind])}" for kind in STRATEGIES},
        "all": f"{sum(map(sum, correct.values())) / count:.1%}",
        "steps": f"{steps / count:.2f}",
        "calls": f"{calls / count:.2f}",
        "seconds": f"{(time.perf_counter() - started) / count:.2f}",
        "paths taken": ", ".join(f"{kind} {paths[kind]}" for kind in STRATEGIES),
    }


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="local:smollm2")
    parser.add_argument("--alpha", type=float, default=0.7)
    parser.add_argument("--every", type=int, default=1, help="use every n-th question only")
    arguments = parser.parse_args()
    questions = read_questions()[:: arguments.every]
    rows = [
        await measure(strategy, arguments.model, arguments.alpha, questions)
        for strategy in (*STRATEGIES, "auto")
    ]
    print("| " + " | ".join(rows[0]) + " |")
    print("|" + " --- |" * len(rows[0]))
    for row in rows:
        print("| " + " | ".join(row.values()) + " |")


if __name__ == "__main__":
    asyncio.run(main())
