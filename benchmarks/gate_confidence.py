"""How well the embedded model's P(Yes) separates questions that need retrieval from the rest.

    python benchmarks/gate_confidence.py [--retrievalqa FILE.jsonl] [--every 1]

Compares the authors' four demonstrations with the built-in twelve on the sample questions (none
against single and multi) and, if the file is given, on every fifth question of RetrievalQA against
the sample questions that need no retrieval.
"""

import argparse
import asyncio
import json
from datetime import date
from pathlib import Path

from rich.progress import track
from sklearn.metrics import roc_auc_score

from hopgate.models import chat
from hopgate.nodes.gate import CONFIDENCE_TOKENS, probability_of_yes
from hopgate.nodes.prompts import templates as prompts
from hopgate.retrievers.sources import sample_path

THRESHOLDS = (0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1)


def rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def against_none(found: dict[str, list[float]], group: str) -> float:
    needed, known = found[group], found["none"]
    labels = [True] * len(needed) + [False] * len(known)
    return float(roc_auc_score(labels, [*needed, *known]))


async def p_yes(
    questions: list[str], demos: tuple[prompts.Demo, ...], description: str
) -> list[float]:
    model = await chat.load(chat.LOCAL)
    instruction = prompts.TA_ARE.format(today=date.today().isoformat())
    found = []
    for question in track(questions, description=description):
        completion = await chat.complete(
            model,
            prompts.render("turns", instruction, question, demos),
            max_tokens=CONFIDENCE_TOKENS,
            logprobs=True,
        )
        found.append(probability_of_yes(completion) or 0.0)
    return found


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--retrievalqa", type=Path)
    parser.add_argument("--every", type=int, default=1, help="use every n-th question only")
    arguments = parser.parse_args()
    groups: dict[str, list[str]] = {}
    for row in rows(sample_path().parent / "questions.jsonl"):
        groups.setdefault(row["strategy"], []).append(row["question"])
    if arguments.retrievalqa:
        groups["retrievalqa"] = [row["question"] for row in rows(arguments.retrievalqa)[::5]]
    groups = {group: questions[:: arguments.every] for group, questions in groups.items()}
    sets = {"authors' four": prompts.GATE_DEMOS, "built-in twelve": prompts.CONFIDENCE_DEMOS}
    for name, demos in sets.items():
        found = {group: await p_yes(questions, demos, group) for group, questions in groups.items()}
        needed = [group for group in groups if group != "none"]
        print(f"\n## {name}\n\nAUC against none: ", end="")
        print(", ".join(f"{group} {against_none(found, group):.3f}" for group in needed))
        print("\n| P(Yes) ≥ | " + " | ".join(found) + " |\n|" + " --- |" * (len(found) + 1))
        for threshold in THRESHOLDS:
            shares = [sum(p >= threshold for p in ps) / len(ps) for ps in found.values()]
            print(f"| {threshold} | " + " | ".join(f"{share:.0%}" for share in shares) + " |")


if __name__ == "__main__":
    asyncio.run(main())
