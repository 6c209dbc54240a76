"""The dial: from a request's α to the blend of cost and reliability weights.

Along the blend, the mean number of retrieval steps jumps: with the `utility` objective, most of
the way from no retrieval to one lies within the first tenth. A dial bends α, so that equal turns
buy about equal shares of the steps between a router's cheapest and most reliable end.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


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
