"""Routers whose whole body blends: a torch network for each weight. Needs the extra `train`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from hopgate.classifiers.checkpoint import Checkpoint
from hopgate.classifiers.networks import Classifier, all_features, network_from

BLENDS = 8
"""Maximum number of networks kept in memory."""
BLEND_BYTES = 512 * 2**20
"""Maximum memory for networks; the one in use always stays."""


class BlendedBody:
    """The networks of a router at the weights asked for last, on a GPU if there is one."""

    def __init__(self, checkpoint: Checkpoint, profile: str) -> None:
        """Keep the two sets of weights.

        Raises:
            ValueError: They do not fit the configuration.
        """
        self._architecture, self._config = checkpoint.architecture, checkpoint.config
        self._cost, self._reliability = map(checkpoint.state, checkpoint.blended_parts(profile))
        self._same = {*checkpoint.parts["shared"]}
        self._one_pass = checkpoint.one_pass
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        size = sum(values.nbytes for values in self._cost.values())
        kept = min(BLENDS, max(1, BLEND_BYTES // size))
        self._kept = lru_cache(kept)(self._network)
        self.at(0.0)  # raises if the weights do not fit

    def at(self, weight: float) -> Callable[[Sequence[list[int]]], NDArray[np.float32]]:
        """Return the function that computes a blend's features; makes a network for a new one.

        Args:
            weight: That of the reliability weights.
        """
        network = self._kept(0.0 if self._one_pass else weight)

        def features(ids: Sequence[list[int]]) -> NDArray[np.float32]:
            order = sorted(range(len(ids)), key=lambda at: len(ids[at]))
            found = all_features(network, [ids[at] for at in order])
            back = np.empty(found.shape, dtype=np.float32)
            back[order] = found.numpy()
            return back

        return features

    def _network(self, weight: float) -> Classifier:
        state = {
            name: cost
            if name in self._same
            else (1 - weight) * cost + weight * self._reliability[name]
            for name, cost in self._cost.items()
        }
        network = network_from(self._architecture, self._config, state)
        return network.requires_grad_(False).to(self._device)
