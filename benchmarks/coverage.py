"""Which questions are searched at default settings: about a collection, and about anything else.

    hopgate index build FOLDER --out INDEX
    python benchmarks/coverage.py NAME=INDEX …

For each collection the questions of benchmarks/coverage/NAME.jsonl are asked, and those of
common.jsonl and chatter.jsonl beside it, for each profile of the router. The model is a STAND-IN
that always says [No], so every search is hopgate's own decision.
"""

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from langchain_core.language_models import FakeListChatModel

from hopgate import Context, build_graph
from hopgate.classifiers.checkpoint import profiles_in
from hopgate.graphs.adaptive import without_answer

FOLDER = Path(__file__).with_name("coverage")
OTHERS = ("common", "chatter")


def read(name: str) -> list[str]:
    lines = (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["question"] for line in lines]


async def searched(index: str, profile: str, questions: list[str]) -> tuple[float, Counter[str]]:
    """Return the share of questions that are searched, and how each was decided."""
    graph = without_answer(build_graph(model=FakeListChatModel(responses=["[No]"])))
    context, found, modes = Context(index=index, profile=profile), 0, Counter[str]()
    for question in questions:
        state: Any = await graph.ainvoke(
            {"question": question}, context=context, interrupt_before=["retrieve", "multihop"]
        )
        found += state["decision"].get("strategy", "none") != "none"
        modes["asked" if state["usage"]["llm_calls"] else state["decision"]["gate"]["mode"]] += 1
    return found / len(questions), modes


async def main() -> None:
    print("| collection | profile | about it | common knowledge | chatter | asked the model |")
    print("|---|---|---|---|---|---|")
    for argument in sys.argv[1:]:
        name, _, index = argument.partition("=")
        for profile in profiles_in():
            cells, asked, count = [], 0, 0
            for kind in (name, *OTHERS):
                questions = read(kind)
                share, modes = await searched(index, profile, questions)
                cells.append(f"{share:.1%}")
                asked, count = asked + modes["asked"], count + len(questions)
            shown = " | ".join(cells)
            print(f"| {name} | {profile} | {shown} | {asked / count:.0%} |", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
