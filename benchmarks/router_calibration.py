"""How well a router's probabilities hold: calibration error and recall of both sets of weights.

    python benchmarks/router_calibration.py --labels LABELS [--questions QUESTIONS] [--router DIR]

The truth for α = 0 is the cheapest correct strategy, over the questions that have one. The truth
for α = 1 is B for single-hop datasets and C for multi-hop ones, over the questions of these six.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import recall_score

from hopgate.classifiers.router import load_router
from hopgate.common.strategies import LABELS
from hopgate.evaluation.measuring.replay import Choices, Probabilities, read_recorded, route_all

BINS = 15
"""Of the calibration error (Guo et al. 2017, section 5)."""
SINGLE_HOP = ("squad", "nq", "trivia")
MULTI_HOP = ("musique", "hotpotqa", "2wikimultihopqa")


def calibration_error(probabilities: Probabilities, truth: Choices) -> float:
    """Return the expected calibration error of the most probable label.

    The questions are put into `BINS` equal-width bins (low, high] of their highest probability;
    the error is the mean over questions of |share correct − mean probability| of their bin (Guo
    et al. 2017, equation 3).

    Args:
        probabilities: [questions, labels], at least one question.
        truth: [questions], the index of the true label.
    """
    top = probabilities.max(-1)
    right = probabilities.argmax(-1) == truth
    bins = np.clip(np.ceil(top * BINS).astype(int) - 1, 0, BINS - 1)
    gaps: NDArray[np.float64] = np.bincount(bins, weights=right - top, minlength=BINS)
    return float(np.abs(gaps).sum() / len(top))


def recall(probabilities: Probabilities, truth: Choices) -> dict[str, float]:
    """Return the recall of each label that occurs in `truth`; arguments as `calibration_error`."""
    labels = np.unique(truth)
    scores = recall_score(truth, probabilities.argmax(-1), labels=labels, average=None)
    return {LABELS[at]: float(score) for at, score in zip(labels, scores, strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--labels", type=Path, required=True)
    parser.add_argument("--questions", type=Path)
    parser.add_argument("--router", default="builtin")
    parser.add_argument("--profile")
    options = parser.parse_args()
    recorded, _ = read_recorded(options.labels, options.questions, None)
    router = load_router(options.router, options.profile)
    routes = route_all(router, recorded.questions, [0.0, 1.0])
    multi_hop = np.isin(recorded.datasets, MULTI_HOP)
    hops = np.where(multi_hop, 2, 1).astype(np.int8)
    known = multi_hop | np.isin(recorded.datasets, SINGLE_HOP)
    for alpha, probabilities, truth, among in (
        (0, routes.first, recorded.oracle(), recorded.correct.any(-1)),
        (1, routes.last, hops, known),
    ):
        pair = probabilities[among], truth[among]
        found = {"alpha": alpha, "ece": calibration_error(*pair), "recall": recall(*pair)}
        print(json.dumps(found))


if __name__ == "__main__":
    main()
