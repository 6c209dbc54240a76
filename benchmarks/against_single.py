"""A router against always-single, on the outcomes that `hopgate label` recorded.

    python benchmarks/against_single.py --labels labels-fresh.jsonl --profile local-smollm2

Prints a Markdown table: for each α the right answers, retrievals and tokens per question, and the
differences from always-single and from a coin that retrieves once as often as the router does
steps; with 95% bootstrap intervals over the questions.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hopgate.classifiers.labels import read_labels
from hopgate.classifiers.router import load_router
from hopgate.common.strategies import FLARE_NAMES, STRATEGIES
from hopgate.evaluation.measuring.replay import join, route_all

ALPHAS = (0.0, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0)
RESAMPLES = 5000
Values = NDArray[np.float64]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--labels", type=Path, required=True)
    parser.add_argument("--router", default="builtin")
    parser.add_argument("--profile", default="local-smollm2")
    options = parser.parse_args()
    rows = read_labels(options.labels)
    saved = [json.loads(line) for line in options.labels.read_text("utf-8").splitlines()]
    steps = np.array([[row["steps"][name] for name in FLARE_NAMES] for row in saved], float)
    tokens = np.array(
        [[sum(row["tokens"][n].values()) for n in FLARE_NAMES] for row in saved], float
    )
    recorded = join(rows, rows, dict.fromkeys({row.dataset for row in rows}, 1.0))
    right = recorded.correct.astype(float)
    router = load_router(options.router, options.profile)
    choices = route_all(router, recorded.questions, ALPHAS).choices
    count = len(rows)
    draws = np.random.default_rng(0).integers(0, count, (RESAMPLES, count))

    def between(values: Values) -> str:
        return shown(values.mean(), values[draws].mean(1))

    print(f"{count} questions\n")
    print(
        "| | right | retrievals | tokens | right, over single | tokens, over single | over a coin |"
    )
    print("|---|---|---|---|---|---|---|")
    every = np.arange(count)
    for at, name in enumerate(STRATEGIES):
        cost = f"{steps[:, at].mean():.2f} | {tokens[:, at].mean():.0f}"
        print(f"| always {name} | {between(right[:, at])} | {cost} | | | |")
    for alpha, chosen in zip(ALPHAS, choices, strict=True):
        ours, cost, used = (table[every, chosen] for table in (right, steps, tokens))
        share = cost.mean().clip(0, 1), cost[draws].mean(1).clip(0, 1)
        none, single = right[:, 0], right[:, 1]
        coin = [
            part * single[at].mean(-1) + (1 - part) * none[at].mean(-1)
            for part, at in zip(share, (every, draws), strict=True)
        ]
        print(
            f"| α = {alpha:g} | {between(ours)} | {cost.mean():.2f} | {used.mean():.0f} | "
            f"{between(ours - single)} | {used.mean() / tokens[:, 1].mean() - 1:+.0%} | "
            f"{shown(ours.mean() - coin[0], ours[draws].mean(1) - coin[1])} |"
        )


def shown(value: float, resampled: Values) -> str:
    low, high = np.quantile(resampled, [0.025, 0.975])
    return f"{value:.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    main()
