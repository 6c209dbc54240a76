"""How well the uncertainty of the embedded model's direct answers predicts wrong ones.

    python benchmarks/gate_draft.py [--retrievalqa FILE.jsonl] [--every 1]

Answers the sample questions directly and, if the file is given, every third question of
RetrievalQA; prints the AUC and the effect of each threshold of the `draft` gate.
"""

import argparse
import asyncio
import json
from pathlib import Path
from typing import NamedTuple

from rich.progress import track
from sklearn.metrics import roc_auc_score

from hopgate.evaluation.measuring.matching import match
from hopgate.models import chat
from hopgate.nodes import gate
from hopgate.nodes.run.context import Context
from hopgate.nodes.run.runtime import NodeRuntime
from hopgate.retrievers.sources import sample_path

THRESHOLDS = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9)


class DraftResult(NamedTuple):
    """A direct answer: the question's group, the uncertainty, and whether it is correct."""

    group: str
    uncertainty: float
    correct: bool


async def write_drafts(questions: list[tuple[str, str, list[str]]]) -> list[DraftResult]:
    runtime = NodeRuntime(Context(model=chat.LOCAL, gate="draft"))
    drafts = []
    for group, question, golds in track(questions, description="drafts"):
        decision = await gate.decide(question, runtime)
        correct = match(decision["reply"], golds)
        drafts.append(DraftResult(group, decision["uncertainty"] or 0.0, correct))
    return drafts


def auc(drafts: list[DraftResult]) -> float:
    """Return the AUC of uncertainty as a predictor of wrong answers."""
    wrong = [not each.correct for each in drafts]
    return float(roc_auc_score(wrong, [each.uncertainty for each in drafts]))


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--retrievalqa", type=Path)
    parser.add_argument("--every", type=int, default=1, help="use every n-th question only")
    arguments = parser.parse_args()
    questions = [
        (row["strategy"], row["question"], row["answers"])
        for row in rows(sample_path().parent / "questions.jsonl")
    ]
    if arguments.retrievalqa:
        questions += [
            ("retrievalqa", row["question"], row["ground_truth"])
            for row in rows(arguments.retrievalqa)[::3]
        ]
    drafts = asyncio.run(write_drafts(questions[:: arguments.every]))  # type: ignore[arg-type]
    sample = [each for each in drafts if each.group != "retrievalqa"]
    correct = sum(each.correct for each in drafts)
    print(f"{correct} of {len(drafts)} direct answers are correct.")
    print(f"AUC: sample {auc(sample):.3f}, all {auc(drafts):.3f}.\n")
    groups = list(dict.fromkeys(each.group for each in drafts))
    print("| uncertainty ≥ | " + " | ".join(groups) + " | answered: correct | wrong |")
    print("|" + " --- |" * (len(groups) + 3))
    for threshold in THRESHOLDS:
        answered = [each for each in drafts if each.uncertainty < threshold]
        shares = []
        for group in groups:
            uncertain = [each.uncertainty >= threshold for each in drafts if each.group == group]
            shares.append(f"{sum(uncertain) / len(uncertain):.0%}")
        counts = [
            sum(each.correct for each in answered),
            sum(not each.correct for each in answered),
        ]
        print(f"| {threshold} | " + " | ".join([*shares, *map(str, counts)]) + " |")


if __name__ == "__main__":
    main()
