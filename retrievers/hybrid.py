"""Hybrid retrieval: fusing the rankings of several retrievers into one, and BM25's constants."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Literal, TypeAlias, TypeVar

Mode = Literal["dense", "bm25", "hybrid"]
Ranked = TypeVar("Ranked")
Scored: TypeAlias = Sequence[tuple[Ranked, float]]
Count: TypeAlias = Callable[[str, int], int]

DENSE_WEIGHT, DENSE_WEIGHT_RARE, DENSE_WEIGHT_CODE = 0.6, 0.3, 0.05
"""The vectors' part of a fused score, the same if the query has a rare word, and if it has a code.
Like `RARE` and `CODE`, they were chosen on questions with and without names, see
docs/results/retrieval.md."""
RARE = 5
"""Most passages that a rare word is in."""
CODE = 50
"""Most passages that a code is in: a word with a digit, which means one thing wherever it is."""
CANDIDATES = 100
"""Minimum length of each ranking that is fused."""
K1, B = 1.2, 0.75
"""BM25's constants, those of Tantivy, for stores that let hopgate choose them."""


def length_norm(length: int, average: float) -> float:
    """Return the term that BM25 adds to a word's count, so that long passages count for less."""
    return K1 * (1 - B + B * length / average)


def codes(words: Iterable[str], count: Count) -> list[str]:
    """Return the codes of a query, which BM25 counts twice: they decide, not the words around them.

    Args:
        words: The words of the query, as BM25 counts them.
        count: In how many passages a word is; need not count beyond the number that it is given.
    """
    digits = (word for word in dict.fromkeys(words) if any(map(str.isdigit, word)))
    return [word for word in digits if 0 < count(word, CODE + 1) <= CODE]


def dense_weight(words: Sequence[str], count: Count) -> float:
    """Return the vectors' part of a query's fused scores: little if one of its words says it all.

    Arguments are those of `codes`.
    """
    if codes(words, count):
        return DENSE_WEIGHT_CODE
    names = (word for word in dict.fromkeys(words) if not any(map(str.isdigit, word)))
    rare = any(0 < count(word, RARE + 1) <= RARE for word in names)
    return DENSE_WEIGHT_RARE if rare else DENSE_WEIGHT


def fuse(
    dense: Scored[Ranked], bm25: Scored[Ranked], weight: float, k: int
) -> list[tuple[Ranked, float]]:
    """Fuse two rankings by a convex combination of their scores (Bruch, Gai and Ingber 2023).

    BM25's scores are divided by the best, so that a word that few passages have puts them far above
    all others. Those of vectors, whose zero means nothing, are scaled so that the best is 1 and the
    last of the first `CANDIDATES` 0. A passage that one ranking lacks has 0 there.

    Args:
        dense: Passages or their keys with the scores of vectors, best first.
        bm25: The same with those of BM25; empty if no passage has a word of the query.
        weight: The vectors' part, see `dense_weight`.
        k: Maximum number to return.

    Returns:
        At most `k` of them with their scores from 0 to 1, best first.
    """
    last = dense[:CANDIDATES][-1][1] if dense else 0.0
    scores: dict[Ranked, float] = defaultdict(float)
    for ranking, least, share in ((dense, last, weight), (bm25, 0.0, 1 - weight)):
        spread = ranking[0][1] - least if ranking else 0.0
        for each, score in ranking:
            scores[each] += share * (max(score - least, 0.0) / spread if spread > 0 else 1.0)
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
