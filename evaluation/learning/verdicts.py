"""May a candidate replace a router? Every figure of both, on the same held-out questions.

Each question was answered once with all three strategies, so both routers are replayed on the same
outcomes, and their difference is resampled over the questions. A figure falls beyond chance if the
97.5th percentile of the difference is below 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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


def compare(
    recorded: Recorded,
    before: Choices,
    after: Choices,
    alphas: Sequence[float],
    in_use: float,
) -> dict[str, Any]:
    """Compare a candidate with the router in use.

    Args:
        recorded: Questions that neither was trained on.
        before: [alphas, questions], the decisions of the router in use.
        after: The same of the candidate.
        alphas: In order, with those of `ALPHAS` and `in_use`.
        in_use: The α of requests.

    Returns:
        `questions`, how many; `figures`, each with `name` (`ACCURACY`, `ANSWERED`, `STEPS` or
        `AREA`), `alpha` (None for the area, which is over all), `before`, `after`, `low` and `high`
        (2.5th and 97.5th percentile of after − before) and `worse` (why the candidate may not be
        promoted; empty if this figure allows it); and `labels`, how many questions went from each
        label to each at the α in use.
    """
    were, are = (_measured(recorded, choices, alphas, in_use) for choices in (before, after))
    figures: list[dict[str, Any]] = []
    rose = set()
    for (name, alpha), was in were.items():
        now = are[name, alpha]
        low, high = percentile_interval((now - was)[1:])
        if name == ACCURACY and low > 0:
            rose.add(alpha)
        figure = {"name": name, "alpha": alpha, "before": float(was[0]), "after": float(now[0])}
        figure |= {"low": low, "high": high}
        figures.append({**figure, "worse": _worse(figure, alpha in rose)})
    old, new = (choices[alphas.index(in_use)] for choices in (before, after))
    moved = {
        was: {now: int(((old == at) & (new == to)).sum()) for to, now in enumerate(LABELS)}
        for at, was in enumerate(LABELS)
    }
    return {"questions": len(recorded.questions), "figures": figures, "labels": moved}


def _measured(
    recorded: Recorded, choices: Choices, alphas: Sequence[float], in_use: float
) -> dict[tuple[str, float | None], Floats]:
    """Return each figure of a router: measured first, then in each resample of the questions."""
    own = choices[alphas.index(in_use)]
    answered = [] if recorded.answered is None else [recorded.answered[np.arange(len(own)), own]]
    rows = np.vstack([recorded.correct_for(choices), recorded.steps_for(choices), *answered])
    means = np.vstack([rows.mean(1), resampled_means(rows, RESAMPLES)])
    accuracy, steps = means[:, : len(alphas)], means[:, len(alphas) : 2 * len(alphas)]
    found: dict[tuple[str, float | None], Floats] = {}
    for alpha in sorted({*ALPHAS, in_use}):
        at = alphas.index(alpha)
        found |= {(ACCURACY, alpha): accuracy[:, at], (STEPS, alpha): steps[:, at]}
    budget = float(recorded.steps[:, -1].mean())
    found[AREA, None] = np.array(
        [
            area([{"accuracy": a, "steps": s} for a, s in zip(*each, strict=True)], budget)
            for each in zip(accuracy, steps, strict=True)
        ]
    )
    if answered:
        found[ANSWERED, in_use] = means[:, -1]
    return found


def _worse(figure: Mapping[str, Any], accuracy_rose: bool) -> str:
    name, before, after = (figure[key] for key in ("name", "before", "after"))
    where = name if figure["alpha"] is None else f"{name} at α = {figure['alpha']:g}"
    if name == STEPS:
        rose = figure["low"] > 0 and not accuracy_rose
        steps = f"rose from {before:.2f} to {after:.2f}, and accuracy did not rise"
        return f"{where} {steps}" if rose else ""
    fell = f"fell from {before:.1%} to {after:.1%}, which is beyond chance"
    return f"{where} {fell}" if figure["high"] < 0 else ""
