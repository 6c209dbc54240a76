"""Calibration in both senses: whether probabilities are honest, and which α meets a goal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopgate.common.strategies import LABELS
from hopgate.evaluation.replay import Outcomes, Picks, Probabilities

BINS = 15
"""Of the calibration error (Guo et al. 2017, section 5)."""
SINGLE_HOP = ("squad", "nq", "trivia")
MULTI_HOP = ("musique", "hotpotqa", "2wikimultihopqa")
RESAMPLES = 1000
_BLOCK = 100
_EPSILON = 1e-9

Floats = NDArray[np.float64]


def calibration_error(probabilities: Probabilities, truth: Picks) -> float:
    """Expected calibration error of the likeliest label.

    The questions are put into `BINS` equal-width bins (low, high] of their highest
    probability; the error is the mean over questions of |share right − mean probability| of
    the bin they are in (Guo et al. 2017, equation 3).

    Args:
        probabilities: [questions, labels], at least one question.
        truth: [questions], the index of the true label.
    """
    top = probabilities.max(-1)
    right = probabilities.argmax(-1) == truth
    bins = np.clip(np.ceil(top * BINS).astype(int) - 1, 0, BINS - 1)
    gaps = np.bincount(bins, weights=right - top, minlength=BINS)
    return float(np.abs(gaps).sum() / len(top))


def recall(probabilities: Probabilities, truth: Picks) -> dict[str, float]:
    """Share of each true label's questions for which it is the likeliest label.

    Args:
        probabilities: [questions, labels].
        truth: [questions], the index of the true label; labels that it lacks are left out.
    """
    picks = probabilities.argmax(-1)
    return {
        LABELS[label]: float((picks[truth == label] == label).mean()) for label in np.unique(truth)
    }


def honesty(outcomes: Outcomes, cost: Probabilities, reliability: Probabilities) -> dict[str, Any]:
    """Calibration error and recall of a router's two ends, each against its own truth.

    At α = 0 the truth is the cheapest strategy that was right, over the questions that have one.
    At α = 1 it is B for the single-hop datasets and C for the multi-hop ones, over the questions
    of these six.

    Args:
        outcomes: What was recorded.
        cost: [questions, 3], probabilities at α = 0.
        reliability: The same at α = 1.

    Returns:
        `ece` and `recall`, each with `cost` and `reliability`; None for an end without truth.
    """
    answered = outcomes.correct.any(-1)
    multi_hop = np.isin(outcomes.datasets, MULTI_HOP)
    known = multi_hop | np.isin(outcomes.datasets, SINGLE_HOP)
    hops = np.where(multi_hop, 2, 1).astype(np.int8)
    ends = {
        "cost": (cost[answered], outcomes.oracle()[answered]),
        "reliability": (reliability[known], hops[known]),
    }
    return {
        "ece": {
            end: calibration_error(*each) if len(each[1]) else None for end, each in ends.items()
        },
        "recall": {end: recall(*each) if len(each[1]) else None for end, each in ends.items()},
    }


@dataclass(frozen=True)
class Goal:
    """What α is chosen for: exactly one of a step budget and an accuracy floor.

    Attributes:
        budget_steps: Most mean steps; the most accurate α within it is chosen.
        min_accuracy: Least accuracy, 0 to 1; the cheapest α that has it is chosen.

    Raises:
        ValueError: If both or neither is given, or one is out of range.
    """

    budget_steps: float | None = None
    min_accuracy: float | None = None

    def __post_init__(self) -> None:
        """Checks the fields."""
        if (self.budget_steps is None) == (self.min_accuracy is None):
            raise ValueError("give one of --budget-steps and --min-accuracy")
        if self.budget_steps is not None and not 0 <= self.budget_steps < math.inf:
            raise ValueError(f"--budget-steps is {self.budget_steps}; it must be 0 or more")
        if self.min_accuracy is not None and not 0 <= self.min_accuracy <= 1:
            raise ValueError(f"--min-accuracy is {self.min_accuracy}; it must be from 0 to 1")

    def met(self, accuracy: Floats, steps: Floats) -> NDArray[np.bool_]:
        """Which points meet the goal, in the shape of the arguments."""
        if self.min_accuracy is not None:
            return accuracy >= self.min_accuracy - _EPSILON
        return steps <= float(self.budget_steps or 0) + _EPSILON

    def best(self, accuracy: Floats, steps: Floats) -> NDArray[np.intp]:
        """The index along the last axis of the best point that meets the goal; -1 where none.

        Of equals, the one that is better in the other measure; then the first.
        """
        met = self.met(accuracy, steps)
        first, second = (-accuracy, steps) if self.min_accuracy is None else (steps, -accuracy)
        first = np.where(met, first.round(9), math.inf)
        equal = met & (first == first.min(-1, keepdims=True))
        second = np.where(equal, second.round(9), math.inf)
        return np.where(met.any(-1), second.argmin(-1), -1)


def calibrate(
    outcomes: Outcomes, picks: Picks, alphas: Sequence[float], goal: Goal, seed: int = 0
) -> dict[str, Any]:
    """Chooses the α that meets a goal best, with 95% bootstrap intervals over the questions.

    `RESAMPLES` times as many questions as there are are drawn with repetition. The intervals of
    accuracy and steps are the 2.5th to 97.5th percentile at the chosen α; that of α is over the
    α that each resample would have chosen. Accuracy at the best of many α, on the questions that
    chose it, is a little flattered: the interval does not take that away.

    Args:
        outcomes: What was recorded.
        picks: [alphas, questions], what the router decides at each α.
        alphas: Those to choose from.
        goal: What to choose for.
        seed: Of the resampling.

    Returns:
        `alpha`, `accuracy`, `steps`, `shares`, `interval` (low and high of each of the three),
        `resamples`, and `infeasible`: how many of these no α met the goal in.

    Raises:
        ValueError: If no α meets the goal; it says what can be reached.
    """
    right, cost = outcomes.right(picks).astype(float), outcomes.cost(picks)
    accuracy, steps = right.mean(-1), cost.mean(-1)
    chosen = int(goal.best(accuracy, steps))
    if chosen < 0:
        raise ValueError(_unreachable(goal, alphas, accuracy, steps))
    accuracies, costs = _resample(right, cost, seed)
    again = goal.best(accuracies, costs)
    feasible = np.asarray(alphas)[again[again >= 0]]
    score = outcomes.score(picks[chosen])
    return {
        "alpha": float(alphas[chosen]),
        "accuracy": score["accuracy"],
        "steps": score["steps"],
        "shares": score["shares"],
        "interval": {
            "alpha": _interval(feasible),
            "accuracy": _interval(accuracies[:, chosen]),
            "steps": _interval(costs[:, chosen]),
        },
        "resamples": RESAMPLES,
        "infeasible": int((again < 0).sum()),
    }


def _resample(right: Floats, cost: Floats, seed: int) -> tuple[Floats, Floats]:
    """Accuracy and steps in each resample, both [resamples, alphas]."""
    questions = right.shape[1]
    generator = np.random.default_rng(seed)
    even = np.full(questions, 1 / questions)
    accuracies, costs = [], []
    for start in range(0, RESAMPLES, _BLOCK):
        size = min(_BLOCK, RESAMPLES - start)
        weights = generator.multinomial(questions, even, size).astype(float) / questions
        accuracies.append(weights @ right.T)
        costs.append(weights @ cost.T)
    return np.concatenate(accuracies), np.concatenate(costs)


def _interval(values: Floats) -> list[float] | None:
    """The 2.5th and the 97.5th percentile, as values that occur; None of nothing."""
    if not len(values):
        return None
    low, high = np.quantile(values, [0.025, 0.975], method="nearest")
    return [float(low), float(high)]


def _unreachable(goal: Goal, alphas: Sequence[float], accuracy: Floats, steps: Floats) -> str:
    if goal.min_accuracy is not None:
        best, wanted = int(accuracy.argmax()), f"reaches an accuracy of {goal.min_accuracy:g}"
        word = "the most accurate"
    else:
        best, wanted = int(steps.argmin()), f"stays within {goal.budget_steps:g} steps"
        word = "the cheapest"
    return (
        f"no α {wanted} on these labels; {word}, α = {alphas[best]:g}, gets "
        f"{accuracy[best]:.4f} right at {steps[best]:.3f} steps"
    )
