"""Routers whose whole body blends: a torch network for each weight. Needs the extra `train`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from hopgate.classifiers.checkpoint import Checkpoint
from hopgate.classifiers.networks import T5Network, all_features, network_from

Features = Callable[[Sequence[list[int]]], NDArray[np.float32]]

BLENDS = 8
"""Maximum number of networks kept in memory."""
BLEND_BYTES = 512 * 2**20
"""Maximum memory for networks; the one in use always stays."""


def blended_body(checkpoint: Checkpoint, profile: str) -> Callable[[float], Features]:
    """Return a function from a weight of the reliability weights to one that computes features.

    The networks of the weights asked for last stay in memory, on a GPU if there is one.

    Raises:
        ValueError: The weights do not fit the configuration.
    """
    cost, reliability = map(checkpoint.state, checkpoint.blended_parts(profile))
    size = sum(values.nbytes for values in cost.values())
    device = "cuda" if torch.cuda.is_available() else "cpu"

    @lru_cache(min(BLENDS, max(1, BLEND_BYTES // size)))
    def network_at(weight: float) -> T5Network:
        state = {
            name: values
            if name in checkpoint.parts["shared"]
            else (1 - weight) * values + weight * reliability[name]
            for name, values in cost.items()
        }
        network = network_from(checkpoint.architecture, checkpoint.config, state)
        return network.requires_grad_(False).to(device)

    def body_at(weight: float) -> Features:
        network = network_at(0.0 if checkpoint.one_pass else weight)

        def features(ids: Sequence[list[int]]) -> NDArray[np.float32]:
            order = sorted(range(len(ids)), key=lambda at: len(ids[at]))
            found = all_features(network, [ids[at] for at in order])
            back = np.empty(found.shape, dtype=np.float32)
            back[order] = found.numpy()
            return back

        return features

    body_at(0.0)  # raises if the weights do not fit
    return body_at
