r"""How good silver labels are: against gold, and as training data for a router.

`answers` judges the answers that `hopgate label` saved for questions with accepted answers, trains
a router on the silver and on the gold labels of the same questions (`--add-to builtin`), and
replays both on other questions (five folds, each held out once):

    python benchmarks/silver.py answers --labels labels-train.jsonl labels-fresh.jsonl

`recorded` uses published outcomes, which have no answers: it assumes that silver labels are right,
except that two wrong strategies agree with a given probability, and that a lone right answer is
believed only if its citations hold, with another probability.

    python benchmarks/silver.py recorded --train flan_t5_xl.train.jsonl \
        --test flan_t5_xl.valid.jsonl --questions questions.valid.jsonl

Prints Markdown tables; intervals are 95% bootstrap intervals over the questions.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopgate.classifiers.labels import LabelRow, read_labels, read_questions
from hopgate.classifiers.router import load_router
from hopgate.classifiers.training.adding import add_profiles
from hopgate.common.strategies import FLARE_NAME_OF, LABEL_OF, STRATEGIES, Strategy
from hopgate.evaluation.learning import silver
from hopgate.evaluation.measuring.replay import Choices, Recorded, join, multi_steps, route_all
from hopgate.evaluation.measuring.sweep import area, evenly

RESAMPLES = 1000
LEAST = (0.0, 0.3, 0.5, 0.6)
FOLDS = 5
ALPHAS = evenly(201)
Correct = tuple[Strategy, ...]
Labelled = tuple[LabelRow, Correct, float]
"""A question, what counts as right, and how sure that is."""


class Judged(NamedTuple):
    """One question's gold and silver labels."""

    row: LabelRow
    gold: Correct
    silver: Correct
    confidence: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    ways = parser.add_subparsers(required=True)
    way = ways.add_parser("answers")
    way.set_defaults(act=answers, profile="local-smollm2")
    way.add_argument("--labels", type=Path, nargs="+", required=True)
    way = ways.add_parser("recorded")
    way.set_defaults(act=recorded, profile="flan-t5-xl")
    for name in ("--train", "--test", "--questions"):
        way.add_argument(name, type=Path, required=True)
    options = parser.parse_args()
    options.act(options)


def answers(options: argparse.Namespace) -> None:
    judged = [each for path in options.labels for each in judge(path)]
    agreement(judged)
    fold = np.random.default_rng(0).permutation(len(judged)) % FOLDS
    rows = [each.row for each in judged]
    test = join(
        rows, rows, dict.fromkeys({row.dataset for row in rows}, multi_cost(options.labels))
    )

    def routed(sure: Callable[[Judged], tuple[Correct, float] | None]) -> tuple[int, Choices]:
        choices = np.zeros((len(ALPHAS), len(judged)), np.int8)
        for held in range(FOLDS):
            kept = [
                (each.row, *found)
                for each, at in zip(judged, fold, strict=True)
                if at != held and (found := sure(each)) is not None
            ]
            out = np.flatnonzero(fold == held)
            questions = [test.questions[at] for at in out]
            choices[:, out] = choose(trained(kept, options.profile), questions)
        return sum(sure(each) is not None for each in judged), choices

    sets = {"gold": routed(lambda each: (each.gold, 1.0))}
    for least in LEAST:
        sets[f"silver, confidence {least:g} or more"] = routed(partial(sure_silver, least))
    sets["silver, every row as if certain"] = routed(lambda each: (each.silver, 1.0))
    compare(sets, test)


def sure_silver(least: float, each: Judged) -> tuple[Correct, float] | None:
    """Return a question's silver label; None if it is not clear enough."""
    return (each.silver, each.confidence) if each.confidence >= least - 1e-3 else None


def multi_cost(labels: Sequence[Path]) -> float:
    """Return the mean steps of the multi-step strategy."""
    lines = [line for path in labels for line in path.read_text("utf-8").splitlines()]
    return float(np.mean([json.loads(line)["steps"]["multiple"] for line in lines]))


def judge(path: Path) -> list[Judged]:
    """Read label rows and judge the answers saved next to them."""
    gold = {row.id: row for row in read_labels(path)}
    found: dict[str, dict[Strategy, Any]] = {}
    with path.with_name(f"{path.stem}.answers.jsonl").open(encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            strategy, _, key = row.get("id", "").partition(":")
            if strategy in STRATEGIES:
                found.setdefault(key, {})[strategy] = row
    judged = []
    for key, row in gold.items():
        verdict = silver.judge(row.question, found[key])
        right = tuple(name for name in STRATEGIES if name in (row.correct or ()))
        judged.append(Judged(row, right, *verdict))
    return judged


def agreement(judged: Sequence[Judged]) -> None:
    """Print how often silver and gold agree, by minimum confidence."""
    print(f"{len(judged)} questions\n")
    print(
        "| confidence | questions | same label | same, of those that gold says some strategy "
        "answered | right by silver: right by gold | right by gold: right by silver |"
    )
    print("|---|---|---|---|---|---|")
    for least in LEAST:
        kept = [each for each in judged if each.confidence >= least - 1e-3]
        same = [each.gold[:1] == each.silver[:1] for each in kept]
        answered = [each.gold[:1] == each.silver[:1] for each in kept if each.gold]
        cells = [(name in each.gold, name in each.silver) for each in kept for name in STRATEGIES]
        print(
            f"| {least:g} | {len(kept)} | {share(same)} | {share(answered)} | "
            f"{share(gold for gold, ours in cells if ours)} | "
            f"{share(ours for gold, ours in cells if gold)} |"
        )
    print()
    by: dict[tuple[str, str], int] = {}
    for each in judged:
        pair = (label(each.gold), label(each.silver))
        by[pair] = by.get(pair, 0) + 1
    names = [*STRATEGIES, "unanswered"]
    print("| gold \\ silver | " + " | ".join(names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for name in names:
        print(f"| {name} | " + " | ".join(str(by.get((name, ours), 0)) for ours in names) + " |")
    print()


def recorded(options: argparse.Namespace) -> None:
    rows = read_labels(options.train)
    asked = read_questions(options.questions)
    test = join(asked, read_labels(options.test), multi_steps(None, {r.dataset for r in asked}))
    labels = {"gold": [(row, ordered(row), 1.0) for row in rows]}
    for shared in (0.0, 0.25, 0.5):
        for held in (1.0, 0.5):
            name = f"silver: the wrong agree {shared:.0%}, lone right answers believed {held:.0%}"
            labels[name] = simulated(rows, shared, held)
    compare(
        {
            name: (len(each), choose(trained(each, options.profile), test.questions))
            for name, each in labels.items()
        },
        test,
    )


def simulated(rows: Sequence[LabelRow], shared: float, held: float) -> list[Labelled]:
    """Return the labels by consensus, without the rows where it would be unsure."""
    draw = np.random.default_rng(0)
    kept: list[Labelled] = []
    for row in rows:
        right = ordered(row)
        wrong = tuple(name for name in STRATEGIES if name not in right)
        if len(right) > 1:
            kept.append((row, right, 1.0))
        elif draw.random() < shared:
            kept.append((row, wrong, 1.0))
        elif draw.random() < held:
            kept.append((row, right, 1.0))
    return kept


def compare(sets: Mapping[str, tuple[int, Choices]], test: Recorded) -> None:
    """Print the areas of routers on the same questions, each compared with the first.

    Args:
        sets: By name, the number of labels that a router was trained on, and its choices.
        test: The questions, with gold outcomes.
    """
    count = len(test.questions)
    draws = np.random.default_rng(0).multinomial(count, [1 / count] * count, size=RESAMPLES)
    budget = float(test.steps[:, -1].mean())
    print(f"Replayed on {count} questions with gold labels.\n")
    print("| trained on | rows | area | difference from gold | at the steps of single |")
    print("|---|---|---|---|---|")
    first: NDArray[np.float64] | None = None
    for name, (rows, choices) in sets.items():
        points = [curve(test, choices, weights) for weights in (np.ones(count), *draws)]
        areas = np.array([area(each, budget) for each in points])
        first = areas if first is None else first
        best = max(each["accuracy"] for each in points[0] if each["steps"] <= 1 + 1e-9)
        print(f"| {name} | {rows} | {between(areas)} | {between(areas - first)} | {best:.3f} |")
    for at, name in enumerate(STRATEGIES):
        (point,) = curve(test, np.full((1, count), at, np.int8), np.ones(count))
        print(f"| always {name} | | {point['accuracy']:.3f} at {point['steps']:.2f} steps | | |")
    print()


def choose(router: Any, questions: Sequence[str]) -> Choices:
    return route_all(router, questions, ALPHAS).choices


def trained(labels: Sequence[Labelled], profile: str) -> Any:
    """Return the shipped router with a profile fitted to these labels."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "labels.jsonl")
        lines = [
            {
                "id": row.id,
                "question": row.question,
                "correct": [FLARE_NAME_OF[name] for name in correct],
                "label": label_of(correct),
                "confidence": sure,
            }
            for row, correct, sure in labels
        ]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        add_profiles("builtin", {profile: [file]}, Path(folder, "router"))
        return load_router(f"{folder}/router", profile)


def curve(
    test: Recorded, choices: NDArray[np.int8], weights: NDArray[np.float64]
) -> list[dict[str, float]]:
    """Return accuracy and steps at each α, with a weight for each question."""
    total = weights.sum()
    right, steps = test.correct_for(choices) @ weights / total, test.steps_for(choices) @ weights
    return [
        {"accuracy": float(each), "steps": float(cost)}
        for each, cost in zip(right, steps / total, strict=True)
    ]


def between(values: NDArray[np.float64]) -> str:
    low, high = np.quantile(values[1:], [0.025, 0.975])
    return f"{values[0]:.3f} ({low:.3f} to {high:.3f})"


def share(hits: Iterable[bool]) -> str:
    found = list(hits)
    return f"{np.mean(found):.0%}" if found else "–"


def ordered(row: LabelRow) -> Correct:
    return tuple(name for name in STRATEGIES if name in (row.correct or ()))


def label(correct: Correct) -> str:
    return correct[0] if correct else "unanswered"


def label_of(correct: Correct) -> str | None:
    return LABEL_OF[correct[0]] if correct else None


if __name__ == "__main__":
    main()
