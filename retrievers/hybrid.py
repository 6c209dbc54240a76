"""Hybrid retrieval: fusing the rankings of several retrievers into one, and BM25's constants."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Literal, TypeVar

Mode = Literal["dense", "bm25", "hybrid"]
Ranked = TypeVar("Ranked")

K0 = 60
"""The constant of reciprocal rank fusion (Cormack, Clarke and Büttcher 2009)."""
CANDIDATES = 100
"""Minimum length of each ranking that is fused."""
K1, B = 1.2, 0.75
"""BM25's constants, those of Tantivy, for stores that let hopgate choose them."""


def length_norm(length: int, average: float) -> float:
    """Return the term that BM25 adds to a word's count, so that long passages count for less."""
    return K1 * (1 - B + B * length / average)


def fuse(rankings: Sequence[Sequence[Ranked]], k: int) -> list[tuple[Ranked, float]]:
    """Fuse rankings by reciprocal rank: a passage scores the sum of 1 / (60 + rank) over them.

    Args:
        rankings: Passages or their keys, best first.
        k: Maximum number to return.

    Returns:
        At most `k` of them with their scores, best first; ties in the order of `rankings`.
    """
    scores: dict[Ranked, float] = defaultdict(float)
    for ranking in rankings:
        for rank, each in enumerate(ranking, start=1):
            scores[each] += 1 / (K0 + rank)
    return sorted(scores.items(), key=lambda each: -each[1])[:k]


def code_last(
    ranking: Sequence[tuple[Ranked, float]], is_code: Callable[[Ranked], bool], k: int
) -> list[tuple[Ranked, float]]:
    """Move source code behind the pages that explain it: its rank r counts as 3r + 1.

    So the first piece of code comes after the best three texts, and where there are no texts the
    order stays. No score is higher than that of the passage before.

    Args:
        ranking: `code_depth(k)` passages or their keys with their scores, best first.
        is_code: Whether one is source code.
        k: Maximum number to return.
    """
    places = [3 * r + 1.5 if is_code(each) else r for r, (each, _) in enumerate(ranking, start=1)]
    order = sorted(range(len(ranking)), key=lambda at: places[at])[:k]
    scores = accumulate((ranking[at][1] for at in order), min)
    return [(ranking[at][0], score) for at, score in zip(order, scores, strict=True)]


def code_depth(k: int) -> int:
    """Return how many passages to rank, so that `k` are left to choose from."""
    return 3 * k + 2
