"""The promise of `hopgate calibrate --no-worse-than`, tried on recorded outcomes.

    nice python benchmarks/promise.py --cache build/halves

`--cache` is that of `halves.py`; its routers of all four LLMs route the questions that they have
not seen. 500 times, 200, 500 or 1,000 of these 1,933 questions are drawn to choose α on; the others
tell whether the promise holds. It is broken where the accuracy at that α is more than `--by` below
that of always single, or always multi. The test questions are a sample themselves, so that a
promise that holds exactly at its bound is seen broken half of the time; `of all` counts the α that
break it on all 1,933, which stand for the traffic that the labels were drawn from.

Two ways to choose the cheapest α, of the 21 from 0 to 1: the point estimate, and the test that
ships. Where nothing can be shown, the strategy itself is used, and its steps count.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from halves import ALL, LLMS, Floats, unseen
from scipy.stats import binomtest

from hopgate.evaluation.measuring.calibration import ALPHAS as FINE
from hopgate.evaluation.measuring.promises import ALPHAS, held, needed

SPLITS, SIZES = 500, (200, 500, 1000)
REFERENCES = {"single": 1, "multi": 2}


def main() -> None:
    """Print a table for each strategy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--by", type=float, default=0.02)
    parser.add_argument("--confidence", type=float, default=0.95)
    options = parser.parse_args()
    halves = [unseen(options.cache, f"{ALL}-{half}") for half in (0, 1)]
    grid = [FINE.index(alpha) for alpha in ALPHAS]
    choices = np.concatenate([each.choices for each in halves], 2)[:, grid]
    right = np.concatenate([each.right for each in halves], 1)
    steps = np.concatenate([each.steps for each in halves])
    for than, column in REFERENCES.items():
        print(
            f"\nno worse than {than} by {options.by:g}, with {options.confidence:.0%} confidence\n"
        )
        print(
            "| LLM | labels | point estimate: broken | of all | steps | promise: broken | of all | "
            "not shown | steps | more than the point's | labels needed |\n" + "|---" * 11 + "|"
        )
        for at, llm in enumerate(LLMS):
            rows = np.arange(len(steps))
            differences = right[at][rows, choices[at]] - right[at][:, column]
            spent = steps[rows, choices[at]]
            for size in SIZES:
                found = tried(differences, spent, steps[:, column], size, options)
                print(f"| {llm} | {size:,} | {' | '.join(found)} |", flush=True)


def tried(
    differences: Floats, spent: Floats, fallback: Floats, size: int, options: Any
) -> list[str]:
    """Return the cells of one LLM and number of labels.

    Args:
        differences: In being right, from the strategy: [alphas, questions].
        spent: Steps, likewise.
        fallback: Steps of the strategy: [questions].
        size: Number of labels.
        options: The bound and the confidence.
    """
    bound = (1 + options.by) / 2
    broken: dict[str, list[bool]] = {"point": [], "promise": []}
    of_all: dict[str, list[bool]] = {"point": [], "promise": []}
    cost: dict[str, list[float]] = {"point": [], "promise": []}
    unshown, more = 0, []
    for split in range(SPLITS):
        order = np.random.default_rng(split).permutation(len(fallback))
        labels, rest = order[:size], order[size:]
        known = differences[:, labels]
        enough = np.flatnonzero(known.mean(1) >= -options.by - 1e-9)
        losses = (1 - known[::-1]) / 2
        count = held(losses, bound, options.confidence)
        chosen = {
            "point": int(enough[0]) if len(enough) else None,
            "promise": len(ALPHAS) - count if count else None,
        }
        unshown += not count
        if not count and (about := needed(losses[0], bound, options.confidence)):
            more.append(about)
        for name, alpha in chosen.items():
            if alpha is None:
                cost[name].append(fallback[rest].mean())
                each = np.zeros(len(fallback))
            else:
                cost[name].append(spent[alpha, rest].mean())
                each = differences[alpha]
            broken[name].append(bool(each[rest].mean() < -options.by))
            of_all[name].append(bool(each.mean() < -options.by))
    extra = np.subtract(cost["promise"], cost["point"])
    return [
        share(broken["point"]), share(of_all["point"]), f"{np.mean(cost['point']):.2f}",
        share(broken["promise"]), share(of_all["promise"]), f"{unshown / SPLITS:.0%}",
        f"{np.mean(cost['promise']):.2f}", f"{extra.mean():+.2f}",
        f"{np.median(more):,.0f}" if more else "–",
    ]  # fmt: skip


def share(broken: list[bool]) -> str:
    """Format a share with its exact 95% interval."""
    found = binomtest(sum(broken), len(broken))
    low, high = found.proportion_ci(0.95)
    return f"{found.statistic:.1%} ({low:.1%} to {high:.1%})"


if __name__ == "__main__":
    main()
