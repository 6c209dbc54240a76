"""An α with a promise, by Learn then Test (Angelopoulos et al. 2021, arXiv 2110.01052).

Every promise says that the mean of a loss from 0 to 1 is below a bound. Along the dial, each α is a
hypothesis that it is not. They are tested in a fixed order, from the α that is likeliest to keep
the promise, each at the full level, up to the first that cannot be rejected (fixed-sequence
testing, section 2 there). So the chance that any of the α before it breaks the promise is at most
1 − confidence, whatever the router, and for questions like the labelled ones.

The p-values are valid for any number of labels: they come from betting against the hypothesis
(Waudby-Smith and Ramdas 2024, "Estimating means of bounded random variables by betting").
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

ALPHAS = [step / 20 for step in range(21)]
"""The α to choose from. A finer grid did not choose cheaper ones (docs/results/router.md)."""
_LARGEST_BET = 0.75
"""Share of the capital that one question can lose (section 3 of Waudby-Smith and Ramdas)."""
_HALVINGS = 20
_POWER = 0.84
"""Normal quantile of 80%: the chance to show what holds, with as many labels as `needed` says."""

Floats = NDArray[np.float64]


def p_value(losses: Floats, bound: float, level: float) -> float:
    """Return a p-value of the hypothesis that the mean loss is at least `bound`.

    Args:
        losses: From 0 to 1, of questions in random order.
        bound: Above 0.
        level: The level of the test, which the bets are best for.
    """
    if bound >= 1:
        return 0.0
    counts = np.arange(1, len(losses) + 1)
    means = (0.5 + losses.cumsum()) / (counts + 1)
    variances = (0.25 + ((losses - means) ** 2).cumsum()) / (counts + 1)
    before = np.concatenate([[0.25], variances[:-1]])
    bets = np.sqrt(2 * math.log(1 / level) / (len(losses) * before))
    capital = np.log1p(bets.clip(max=_LARGEST_BET / (1 - bound)) * (bound - losses)).cumsum()
    return float(min(1, np.exp(-capital.max())))


def needed(losses: Floats, bound: float, confidence: float) -> int | None:
    """Return about how many labels would show that the mean loss is below `bound`.

    None if it is not below it on these labels.
    """
    gap = bound - losses.mean()
    if gap <= 0:
        return None
    quantile = math.sqrt(-2 * math.log(1 - confidence)) + _POWER
    count = losses.var() * (quantile / gap) ** 2
    largest = math.log1p(_LARGEST_BET / (1 - bound) * gap)  # gain from a question, see `p_value`
    least = math.log(1 / (1 - confidence)) / largest
    return int(float(f"{max(count, least):.2g}"))


def held(losses: Floats, bound: float, confidence: float, seed: int = 0) -> int:
    """Return how many hypotheses in a row are rejected: these keep the promise.

    Args:
        losses: [hypotheses, questions], from 0 to 1, the likeliest to keep the promise first.
        bound: Of the mean loss.
        confidence: Between 0 and 1.
        seed: Of the order in which the questions are bet on.
    """
    order = np.random.default_rng(seed).permutation(losses.shape[1])
    level = 1 - confidence
    values = (p_value(each[order], bound, level) for each in losses)
    return next((at for at, value in enumerate(values) if value > level), len(losses))


def bounds(
    differences: Floats, largest: float, confidence: float, seed: int = 0
) -> tuple[float, float]:
    """Return what a mean is above, and what it is below, each with a confidence.

    Args:
        differences: From −`largest` to `largest`.
        largest: Above 0.
        confidence: Between 0 and 1.
        seed: Of the order in which they are bet on.
    """
    shuffled = np.random.default_rng(seed).permutation(differences) / largest
    low, high = (-_upper((1 - shuffled) / 2, confidence), _upper((1 + shuffled) / 2, confidence))
    return largest * low, largest * high


def _upper(losses: Floats, confidence: float) -> float:
    """Return the least u such that the mean of 2 · losses − 1 is shown to be below it."""
    low, high = losses.mean(), 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        shown = p_value(losses, middle, 1 - confidence) <= 1 - confidence
        low, high = (low, middle) if shown else (middle, high)
    return float(2 * high - 1)
