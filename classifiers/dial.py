"""The dial: from a request's α to the blend of cost and reliability weights.

Along the blend, the mean number of retrieval steps jumps: with the `utility` objective, most of
the way from no retrieval to one lies within the first tenth. A dial bends α, so that equal turns
buy about equal shares of the steps between a router's cheapest and most reliable end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

KNOTS = 41
"""Knots of a dial: one for each fortieth of the steps between the two ends."""
_HALVINGS = 40
ALPHA_STEPS = 10


class Dial:
    """A monotone, continuous, piecewise linear map from α to the blend's weight, and back.

    Attributes:
        weights: The weight of the reliability weights at evenly spaced α, from 0 at α = 0 to 1 at
            α = 1.
    """

    def __init__(self, weights: Sequence[float] = (0.0, 1.0)) -> None:
        """Create a dial; by default the identity, as for routers that have none.

        Raises:
            ValueError: The weights are not numbers that rise from 0 to 1.
        """
        knots = np.array(weights, dtype=np.float64)
        rises = knots.ndim == 1 and len(knots) > 1 and bool((np.diff(knots) >= 0).all())
        if not rises or knots[0] != 0 or knots[-1] != 1:
            raise ValueError("the weights of a dial must rise from 0 to 1")
        self.weights = knots
        self._alphas = np.linspace(0, 1, len(knots))

    def weight(self, alpha: float) -> float:
        """Return the weight of the reliability weights at α; both from 0 to 1."""
        return float(np.interp(alpha, self._alphas, self.weights))

    def alpha(self, weight: float) -> float:
        """Return an α that gives this weight: the inverse of `weight`."""
        return float(np.interp(weight, self.weights, self._alphas))


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


def cheapest_alpha(
    right: NDArray[np.float64], chosen_at: Callable[[float], NDArray[np.intp]]
) -> float:
    """Return the least α at which no fewer questions are right than with always one retrieval.

    Args:
        right: The chances that none, single and multi are right: shape (questions, 3).
        chosen_at: Which of them a router takes for each question at an α.

    Returns:
        A multiple of 0.1; 1 if each loses something.
    """
    rows, single = np.arange(len(right)), right[:, 1].sum()
    alphas = (step / ALPHA_STEPS for step in range(ALPHA_STEPS))
    enough = (each for each in alphas if right[rows, chosen_at(each)].sum() >= single)
    return next(enough, 1.0)


def _crossing(steps_at: Callable[[float], float], steps: float) -> float:
    """Return where the mean steps reach `steps`, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if steps_at(middle) >= steps else (middle, high)
    return high
