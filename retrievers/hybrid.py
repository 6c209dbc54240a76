"""Hybrid retrieval: rankings of several retrievers made into one."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

Mode = Literal["dense", "bm25", "hybrid"]
DEFAULT_MODE: Mode = "hybrid"
"""What finds most on the questions of docs/results/retrieval.md."""

K0 = 60
"""The constant of reciprocal rank fusion (Cormack, Clarke and Büttcher 2009)."""
CANDIDATES = 100
"""How many passages of each ranking are fused, at least."""


def fuse(rankings: Sequence[Sequence[int]], k: int) -> list[tuple[int, float]]:
    """Fuse rankings by reciprocal rank: a passage scores the sum of 1 / (60 + rank) over them.

    Args:
        rankings: positions, best first; -1 (no passage) is passed over.
        k: the most passages to return.

    Returns:
        At most `k` positions with their scores, best first; ties in the order of `rankings`.
    """
    scores: dict[int, float] = defaultdict(float)
    for ranking in rankings:
        for rank, position in enumerate(ranking, start=1):
            if position >= 0:
                scores[position] += 1 / (K0 + rank)
    return sorted(scores.items(), key=lambda each: -each[1])[:k]
