"""How well the uncertainty of the embedded model's direct answers tells wrong from right ones.

    python benchmarks/gate_draft.py [--retrievalqa FILE.jsonl]

Answers the sample questions directly, and, where the file is given, every third question of
RetrievalQA; prints the AUC and what each threshold of the `draft` gate would do.
"""

import argparse
import asyncio
import json
from pathlib import Path
from typing import NamedTuple

from rich.progress import track
from sklearn.metrics import roc_auc_score

from hopgate.evaluation.matching import match
from hopgate.models import chat
from hopgate.nodes import gate
from hopgate.retrievers.sources import sample_path

THRESHOLDS = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9)


class Drafted(NamedTuple):
    """A direct answer: its group, how unsure it is, and whether it is right."""

    group: str
    uncertainty: float
    right: bool


async def drafted(questions: list[tuple[str, str, list[str]]]) -> list[Drafted]:
    model = await chat.load(chat.LOCAL)
    found = []
    for group, question, golds in track(questions, description="drafts"):
        decision, completion = await gate.draft(
            model, question, layout=model.layout, threshold=model.draft_threshold
        )
        found.append(Drafted(group, decision["uncertainty"] or 0.0, match(completion.text, golds)))
    return found


def auc(drafts: list[Drafted]) -> float:
    """How well uncertainty tells wrong answers from right ones."""
    wrong = [not each.right for each in drafts]
    return float(roc_auc_score(wrong, [each.uncertainty for each in drafts]))


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--retrievalqa", type=Path)
    arguments = parser.parse_args()
    asked = [
        (row["strategy"], row["question"], row["answers"])
        for row in rows(sample_path().parent / "questions.jsonl")
    ]
    if arguments.retrievalqa:
        asked += [
            ("retrievalqa", row["question"], row["ground_truth"])
            for row in rows(arguments.retrievalqa)[::3]
        ]
    drafts = asyncio.run(drafted(asked))  # type: ignore[arg-type]
    sample = [each for each in drafts if each.group != "retrievalqa"]
    right = sum(each.right for each in drafts)
    print(f"{right} of {len(drafts)} direct answers are right.")
    print(f"AUC: sample {auc(sample):.3f}, all {auc(drafts):.3f}.\n")
    groups = list(dict.fromkeys(each.group for each in drafts))
    print("| uncertainty at least | " + " | ".join(groups) + " | answered: right | wrong |")
    print("|" + " --- |" * (len(groups) + 3))
    for threshold in THRESHOLDS:
        kept = [each for each in drafts if each.uncertainty < threshold]
        shares = []
        for group in groups:
            unsure = [each.uncertainty >= threshold for each in drafts if each.group == group]
            shares.append(f"{sum(unsure) / len(unsure):.0%}")
        counts = [sum(each.right for each in kept), sum(not each.right for each in kept)]
        print(f"| {threshold} | " + " | ".join([*shares, *map(str, counts)]) + " |")


if __name__ == "__main__":
    main()
