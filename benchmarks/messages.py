"""Which messages are searched for: the rules alone, and the whole decision with a model.

Each row of benchmarks/messages/*.jsonl has a `message`, the `history` before it, and what it
`needs`: a search, the conversation, or nothing at all.

    python benchmarks/messages.py [--model local:smollm2] [FILE ...]
"""

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

from hopgate import Context, build_graph
from hopgate.graphs.adaptive import without_answer
from hopgate.nodes.texts.message import classify

FOLDER = Path(__file__).with_name("messages")


def by_rules(row: dict[str, Any]) -> bool:
    names = {"user": "human", "assistant": "ai"}
    said = [(names[each["role"]], each["content"]) for each in row["history"]]
    return classify(row["message"], said)["kind"] == "question"


async def by_model(row: dict[str, Any], model: str) -> tuple[bool, int]:
    """Return whether the graph searches, and how many calls it takes to decide."""
    graph = without_answer(build_graph())
    messages = [*row["history"], {"role": "user", "content": row["message"]}]
    found: Any = await graph.ainvoke({"messages": messages}, context=Context(model=model))
    return found["usage"]["retrieval_steps"] > 0, found["usage"]["llm_calls"]


async def measure(name: str, rows: list[dict[str, Any]], model: str | None) -> None:
    right, calls = {"rules": 0, "model": 0}, 0
    print(f"\n## {name}\n\n| message | needs | rules | {model or ''} |\n|---|---|---|---|")
    for row in rows:
        wanted, cells = row["needs"] == "search", []
        searched = by_rules(row)
        right["rules"] += searched == wanted
        cells.append(searched)
        if model:
            searched, more = await by_model(row, model)
            calls += more
            right["model"] += searched == wanted
            cells.append(searched)
        shown = [("search" if each else "none") + " ✗" * (each != wanted) for each in cells]
        text = " ".join(row["message"].split())[:70].replace("|", "/")
        print(f"| {text} | {row['needs']} | {' | '.join(shown)} |")
    print(f"\nright by rules alone: {right['rules']} of {len(rows)}")
    if model:
        print(f"right with {model}: {right['model']} of {len(rows)}, {calls} calls")


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, default=sorted(FOLDER.glob("*.jsonl")))
    parser.add_argument("--model", help="also decide with this model")
    options = parser.parse_args()
    for file in options.files:
        await measure(file.stem, read(file), options.model)


if __name__ == "__main__":
    asyncio.run(main())
