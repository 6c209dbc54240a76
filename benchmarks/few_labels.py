"""From a few hundred labels to a router of one's own: fits for `train-router --add-to`, replayed.

    nice python benchmarks/few_labels.py --cache build/halves

`--cache` is that of `halves.py`. For each LLM in turn: a router that knows the other three LLMs, and
half of the questions; from the other half, 100, 200 and 400 random questions get labels, and each
fit adds the LLM from these. It is scored on the rest of the half: the area under accuracy against
steps, as a share of multi-step's accuracy. 50 draws; differences are paired, draw by draw.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from halves import LLMS, VALID, Floats, Unseen, unseen

from hopgate.classifiers.training import adding
from hopgate.classifiers.training.utility import COST_PENALTY, RELIABILITY_PENALTY, STEPS

SIZES, DRAWS = (100, 200, 400), 50
PENALTIES = np.geomspace(COST_PENALTY, RELIABILITY_PENALTY, 120)
Fit = Callable[[Floats, Floats, Floats], Floats]
"""From features, outcomes and the other LLMs' heads to the weights of P(right): [width + 1, 3]."""


def area(weights: Floats, data: Unseen, rows: Any) -> float:
    """Return the area of a fit on some questions, as a share of multi-step's accuracy."""
    return area_of(data.features[rows] @ weights[:-1] + weights[-1], data, rows)


def area_of(chances: Floats, data: Unseen, rows: Any) -> float:
    """Return the area of the best accuracy within each number of steps, up to multi-step's."""
    right, steps = data.right[rows], data.steps[rows]
    choices = (chances - PENALTIES[:, None, None] * np.array(STEPS)).argmax(2)
    at = np.arange(len(right))
    spent, reached = steps[at, choices].mean(1), right[at, choices].mean(1)
    order = np.argsort(spent, kind="stable")
    budget = steps[:, 2].mean()
    x = np.concatenate([[0.0], spent[order].clip(max=budget), [budget]])
    best = np.concatenate([[0.0], np.maximum.accumulate(reached[order])])
    return float((best * np.diff(x)).sum() / budget / right[:, 2].mean())


# Today's fit


def today(features: Floats, right: Floats, heads: Floats) -> Floats:
    """Fit as `train-router --add-to` does today."""
    prior = torch.tensor(heads.mean(0)).double()
    lead, none, single, multi = map(torch.tensor, (features, *right.T))
    fits = [
        adding.fit(lead, none, prior[:, 0]),
        adding.fit(lead, single, prior[:, 1]),
        adding.fit(lead, multi - single, prior[:, 2] - prior[:, 1]),
    ]
    first, second, gain = (fit.weights.numpy() for fit in fits)
    return np.stack([first, second, second + gain], 1)


# Ridge regression on the other LLMs' heads, a constant and the features


class Ridge(NamedTuple):
    """Ridge regression towards a starting point.

    Attributes:
        heads: Penalty on the factors of the other LLMs' heads, drawn to `start`.
        delta: The inverse of the penalty on the features' own weights; 0: none.
        constant: The penalty on the constant.
        gain: The penalty on the constant of C's gain over B.
        start: The sum of the factors that they are drawn to.
        gain_start: The same for the gain.
        each: Whether each LLM's head has a factor, or the mean of the heads.
        gain_delta: The inverse of the penalty for C's gain over B.
        gain_heads: The penalty on the factors of the gain; None: `heads`.
    """

    heads: float = 1.0
    delta: float = 0.3
    constant: float = 1e-6
    gain: float = 1e-6
    start: float = 1.0
    gain_start: float = 1.0
    each: bool = False
    gain_delta: float = 0.0
    gain_heads: float | None = None

    def __call__(self, features: Floats, right: Floats, heads: Floats) -> Floats:
        gains = heads[:, :, 2] - heads[:, :, 1]
        gain_heads = self.heads if self.gain_heads is None else self.gain_heads
        none = self._fit(features, right[:, 0], heads[:, :, 0], self.heads, self.delta, self.constant, self.start)
        single = self._fit(features, right[:, 1], heads[:, :, 1], self.heads, self.delta, self.constant, self.start)
        gain = self._fit(
            features, right[:, 2] - right[:, 1], gains, gain_heads, self.gain_delta, self.gain, self.gain_start
        )
        return np.stack([none, single, single + gain], 1)

    def _fit(self, features, target, priors, heads, delta, constant, start):  # noqa
        if not self.each:
            priors = priors.mean(0, keepdims=True)
        priors = priors.T  # [width + 1, LLMs]
        given = features @ priors[:-1] + priors[-1]
        middle = given.mean(0)
        centre = features.mean(0)
        scale = np.linalg.norm(features - centre) / len(features) ** 0.5
        spread = (features - centre) / scale * delta**0.5
        columns = np.concatenate([given - middle, np.ones((len(given), 1)), spread], 1)
        count = priors.shape[1]
        begin = np.zeros(columns.shape[1])
        begin[:count] = start / count
        # the constant is drawn to the other LLMs' mean
        begin[count] = middle.mean() * start
        penalty = np.ones(columns.shape[1])
        penalty[:count], penalty[count] = heads, constant
        rest = target - columns @ begin
        found = begin + np.linalg.solve(columns.T @ columns + np.diag(penalty), columns.T @ rest)
        factors, bias, own = found[:count], found[count], found[count + 1 :] * delta**0.5 / scale
        weights = priors[:-1] @ factors + own
        return np.concatenate([weights, [bias + (priors[-1] - middle) @ factors - centre @ own]])


def bagged(fit: Fit, times: int = 20) -> Fit:
    """Return the mean of a fit over resamples of the labels."""

    def each(features: Floats, right: Floats, heads: Floats) -> Floats:
        random = np.random.default_rng(0)
        draws = random.integers(0, len(right), (times, len(right)))
        return np.mean([fit(features[at], right[at], heads) for at in draws], axis=0)

    return each


def nearest(fit: Fit) -> Fit:
    """Return a fit that starts from the LLM whose heads fit the labels best, once shifted."""

    def each(features: Floats, right: Floats, heads: Floats) -> Floats:
        given = features @ heads[:, :-1] + heads[:, -1:]
        errors = ((right - right.mean(0)) - (given - given.mean(1, keepdims=True))) ** 2
        best = int(errors.mean((1, 2)).argmin())
        return fit(features, right, heads[best : best + 1])

    return each


def replay(fits: dict[str, Fit], parts: list[Unseen], sizes=SIZES, draws=DRAWS) -> dict[str, Floats]:
    """Return the area of each fit: [draws, sizes]."""
    found: dict[str, list[list[float]]] = {name: [] for name in fits}
    for draw in range(draws):
        data = parts[draw % len(parts)]
        order = np.random.default_rng(draw).permutation(len(data.right))
        rest = order[max(sizes) :]
        for name, fit in fits.items():
            found[name].append(
                [
                    area(fit(data.features[order[:size]], data.right[order[:size]], data.heads), data, rest)
                    for size in sizes
                ]
            )
    return {name: np.array(areas) for name, areas in found.items()}


def with_interval(values: Floats) -> str:
    """Format the mean of paired differences over draws, with its 95% interval."""
    half = 1.96 * values.std(ddof=1) / len(values) ** 0.5
    return f"{values.mean():+.4f} ({values.mean() - half:+.4f} to {values.mean() + half:+.4f})"
