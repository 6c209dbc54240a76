"""What each α buys with and without a router's dial, on recorded outcomes.

    python benchmarks/dial.py --labels LABELS.jsonl … [--questions QUESTIONS.jsonl …] [--profile P]

Prints a Markdown table: α, the blend's weight, accuracy and steps with α as the weight (before the
dial) and with the dial; then the same at α = 1 if every question gets at least one retrieval, as
it was before. Questions without a label count as wrong under every strategy.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from hopgate.classifiers.labels import read_labels, read_questions
from hopgate.classifiers.router import load_router
from hopgate.evaluation.measuring.replay import join, multi_steps, route_all


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--labels", type=Path, required=True)
    parser.add_argument("--questions", type=Path, nargs="+", required=True)
    parser.add_argument("--router", default="builtin")
    parser.add_argument("--profile", default="flan-t5-xl")
    options = parser.parse_args()
    asked = {row.id: row for path in options.questions for row in read_questions(path)}
    rows = list(asked.values())
    steps = multi_steps(None, {row.dataset for row in rows})
    recorded = join(rows, read_labels(options.labels), steps)
    router = load_router(options.router, options.profile)
    bent = [step / 10 for step in range(11)]
    plain = [router.dial.alpha(alpha) for alpha in bent]  # gives back α as the weight
    choices = route_all(router, recorded.questions, [*bent, *plain]).choices
    print(f"{options.profile}, {len(rows)} questions of {options.labels.name}\n")
    print("| α | before: accuracy | steps | weight | now: accuracy | steps |")
    print("|---|---|---|---|---|---|")
    for alpha, now, before in zip(bent, choices, choices[len(bent) :], strict=False):
        old, new = recorded.score(before), recorded.score(now)
        print(
            f"| {alpha:g} | {old['accuracy']:.3f} | {old['steps']:.2f} | "
            f"{router.dial.weight(alpha):.3f} | {new['accuracy']:.3f} | {new['steps']:.2f} |"
        )
    forced = recorded.score(np.maximum(choices[len(bent) - 1], 1))
    print(f"\nα = 1, always retrieving: {forced['accuracy']:.3f} at {forced['steps']:.2f} steps")


if __name__ == "__main__":
    main()
