"""May a candidate replace a router? Every figure of both, on the same held-out questions.

Each question was answered once with all three strategies, so both routers are replayed on the same
outcomes, and their difference is resampled over the questions. A figure falls beyond chance if the
97.5th percentile of the difference is below 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopgate.common.strategies import LABELS
from hopgate.evaluation.measuring.replay import Choices, Recorded
from hopgate.evaluation.measuring.scores import percentile_interval, resampled_means
from hopgate.evaluation.measuring.sweep import area

RESAMPLES = 1000
MIN_QUESTIONS = 100
"""With fewer held-out questions, a router that lost ten points of accuracy could pass."""
ALPHAS = (0.2, 0.5, 0.7, 1.0)
"""Where accuracy and steps are compared, beside the α in use. At α = 0, hardly any router that
was trained with the `utility` objective retrieves."""
ACCURACY, ANSWERED, STEPS, AREA = "accuracy", "share answered", "steps", "area"

Floats = NDArray[np.float64]


class HeldOut(NamedTuple):
    """Questions that no router was trained on, with the outcome of each strategy.

    Attributes:
        recorded: The outcomes.
        answered: [questions, 3], whether none, single and multi gave an answer other than "I don't
            know"; None if that is not known for all.
    """

    recorded: Recorded
    answered: NDArray[np.bool_] | None


@dataclass(frozen=True)
class Figure:
    """One figure of both routers.

    Attributes:
        name: `ACCURACY`, `ANSWERED`, `STEPS` or `AREA`.
        alpha: The request's α; None for the area, which is over all.
        before: Of the router in use.
        after: Of the candidate.
        low: 2.5th percentile of after − before.
        high: 97.5th percentile of after − before.
        worse: Why the candidate may not be promoted; empty if this figure allows it.
    """

    name: str
    alpha: float | None
    before: float
    after: float
    low: float
    high: float
    worse: str = ""


@dataclass(frozen=True)
class Comparison:
    """Two routers on the same questions.

    Attributes:
        questions: How many there are.
        figures: The figures of both.
        labels: How many questions went from each label to each, at the α in use.
    """

    questions: int
    figures: Sequence[Figure]
    labels: Mapping[str, Mapping[str, int]]


def compare(
    held_out: HeldOut,
    before: Choices,
    after: Choices,
    alphas: Sequence[float],
    in_use: float,
    floor: float | None = None,
) -> Comparison:
    """Compare a candidate with the router in use.

    Args:
        held_out: The questions.
        before: [alphas, questions], the decisions of the router in use.
        after: The same of the candidate.
        alphas: In order, with those of `ALPHAS` and `in_use`.
        in_use: The α of requests.
        floor: Smallest share that the candidate must answer at that α; None: it must not fall
            beyond chance.
    """
    rows = [_rows(held_out, choices, alphas.index(in_use)) for choices in (before, after)]
    drawn = np.split(resampled_means(np.concatenate(rows), RESAMPLES), 2, axis=1)
    were, are = (
        _figures(np.vstack([row.mean(1), means]), held_out, alphas, in_use)
        for row, means in zip(rows, drawn, strict=True)
    )
    figures: list[Figure] = []
    rose = set()
    for (name, alpha), was in were.items():
        now = are[name, alpha]
        low, high = percentile_interval((now - was)[1:])
        if name == ACCURACY and low > 0:
            rose.add(alpha)
        found = Figure(name, alpha, float(was[0]), float(now[0]), low, high)
        figures.append(replace(found, worse=_worse(found, alpha in rose, floor)))
    at = alphas.index(in_use)
    return Comparison(len(held_out.recorded.questions), figures, _moved(before[at], after[at]))


def _rows(held_out: HeldOut, choices: Choices, in_use: int) -> Floats:
    """Return each question's share of each mean: [means, questions]."""
    recorded, answered = held_out
    parts = [recorded.correct_for(choices), recorded.steps_for(choices)]
    if answered is not None:
        chosen = choices[[in_use]]
        parts.append(answered[np.arange(chosen.shape[1]), chosen])
    return np.concatenate([np.asarray(part, np.float64) for part in parts])


def _figures(
    means: Floats, held_out: HeldOut, alphas: Sequence[float], in_use: float
) -> dict[tuple[str, float | None], Floats]:
    """Return each figure for each row of means: the measured ones, then the resampled."""
    count = len(alphas)
    accuracy, steps = means[:, :count], means[:, count : 2 * count]
    found: dict[tuple[str, float | None], Floats] = {}
    for alpha in sorted({*ALPHAS, in_use}):
        at = alphas.index(alpha)
        found |= {(ACCURACY, alpha): accuracy[:, at], (STEPS, alpha): steps[:, at]}
    budget = float(held_out.recorded.steps[:, -1].mean())
    found[AREA, None] = np.array(
        [
            area([{"accuracy": a, "steps": s} for a, s in zip(*each, strict=True)], budget)
            for each in zip(accuracy, steps, strict=True)
        ]
    )
    if held_out.answered is not None:
        found[ANSWERED, in_use] = means[:, -1]
    return found


def _worse(figure: Figure, accuracy_rose: bool, floor: float | None) -> str:
    name = figure.name if figure.alpha is None else f"{figure.name} at α = {figure.alpha:g}"
    if figure.name == STEPS:
        rose = figure.low > 0 and not accuracy_rose
        change = f"rose from {figure.before:.2f} to {figure.after:.2f}, and accuracy did not rise"
        return f"{name} {change}" if rose else ""
    change = f"from {figure.before:.1%} to {figure.after:.1%}"
    if figure.name == ANSWERED and floor is not None:
        below = figure.after < floor
        return f"{name} went {change}, below the floor of {floor:.1%}" if below else ""
    return f"{name} fell {change}, which is beyond chance" if figure.high < 0 else ""


def _moved(before: Choices, after: Choices) -> dict[str, dict[str, int]]:
    return {
        old: {new: int(((before == at) & (after == to)).sum()) for to, new in enumerate(LABELS)}
        for at, old in enumerate(LABELS)
    }
