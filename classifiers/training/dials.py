"""Dials and default α of LLMs, from the training questions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hopgate.classifiers.checkpoint import COST, RELIABILITY
from hopgate.classifiers.decision import RouterLike, likeliest
from hopgate.classifiers.dial import Dial
from hopgate.classifiers.labels import LabelRow
from hopgate.classifiers.training.utility import STEPS
from hopgate.common.strategies import LABELS

if TYPE_CHECKING:
    from torch import Tensor

    Heads = Mapping[str, Mapping[str, NDArray[np.float32]]]

KNOTS = 41
"""Knots of a dial: one for each fortieth of the steps between the two ends."""
_HALVINGS = 40
ALPHA_STEPS = 10


def dials_of(features: Tensor, heads: Heads) -> dict[str, Dial]:
    """Return the dial of each LLM: equal turns of α buy about equal shares of its steps.

    Args:
        features: Of the questions that the steps are counted on: [questions, width].
        heads: As `hopgate.classifiers.training.utility.label_heads`, of all LLMs that need a dial.
    """
    lead = features.double().numpy()
    dials = {}
    for part in heads:
        if part.startswith(COST):
            profile = part.removeprefix(COST)
            cost, reliability = (
                lead @ head["head.weight"].T.astype(float) + head["head.bias"]
                for head in (heads[part], heads[f"{RELIABILITY}-{profile}"])
            )
            dials[profile] = even_dial(partial(_mean_steps, cost, reliability))
    return dials


def _mean_steps(
    cost: NDArray[np.float64], reliability: NDArray[np.float64], weight: float
) -> float:
    """Return the mean steps of the likeliest labels where the scores blend with `weight`."""
    chosen = ((1 - weight) * cost + weight * reliability).argmax(1)
    return float(np.take(STEPS, chosen).mean())


def even_dial(steps_at: Callable[[float], float]) -> Dial:
    """Return the dial whose equal turns buy equal shares of the steps, as far as they can be split.

    Args:
        steps_at: The mean steps on some questions at a weight from 0 to 1; must not fall as the
            weight grows.

    Returns:
        The dial; the identity if the steps are the same at both ends.
    """
    first, last = steps_at(0.0), steps_at(1.0)
    if last <= first:
        return Dial()
    inner = np.linspace(first, last, KNOTS)[1:-1]
    return Dial([0.0, *(round(_crossing(steps_at, steps), 6) for steps in inner), 1.0])


def _crossing(steps_at: Callable[[float], float], steps: float) -> float:
    """Return where the mean steps reach `steps`, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if steps_at(middle) >= steps else (middle, high)
    return high


def cheapest_alpha(router: RouterLike, rows: Sequence[LabelRow]) -> float:
    """Return the least α at which no fewer questions are right than with always one retrieval.

    Args:
        router: Chooses the strategies.
        rows: The questions, and which strategies answered them.

    Returns:
        A multiple of 0.1; 1 if each loses something.
    """
    questions = [row.question for row in rows]
    right = np.array([row.chances for row in rows], dtype=np.float64)

    def right_at(alpha: float) -> float:
        labels = map(likeliest, router.route(questions, alpha))
        chosen = [LABELS.index(label) for label in labels]
        return float(right[np.arange(len(right)), chosen].sum())

    alphas = (step / ALPHA_STEPS for step in range(ALPHA_STEPS))
    return next((each for each in alphas if right_at(each) >= right[:, 1].sum()), 1.0)
