"""Whether a collection is about a question: its best score beside those of questions about nothing.

Inner products of different encoders and collections cannot be compared, and the best of many
passages is higher than that of few. So an index is asked, when it is built, questions that its
documents most likely do not answer. What a question scores above them, it owes to the collection.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hopgate.retrievers.base import Hit

    Vectors: TypeAlias = NDArray[np.float32]

BACKGROUND = Path(__file__).with_name("background.txt")
"""General knowledge and chatter. A collection that answers such questions scores high on them, so
that little is plainly covered by it: the router and the model decide there."""


class Look(NamedTuple):
    """One search, and what it says about the collection.

    Attributes:
        hits: The passages found, best first.
        score: The highest inner product with a passage; None if the collection was not measured.
        background: What the questions of `BACKGROUND` score, ascending.
        warning: Why this is not the search that was asked for; empty if it is.
    """

    hits: list[Hit]
    score: float | None = None
    background: Sequence[float] = ()
    warning: str = ""

    @property
    def share(self) -> float | None:
        """The share of the background's questions that score lower; None if it is not known."""
        if self.score is None or not self.background:
            return None
        return bisect_left(self.background, self.score) / len(self.background)


def background_of(known: Mapping[str, Any]) -> Sequence[float]:
    """Return what the background's questions score in a collection; empty if scores say nothing.

    That is so where the encoder does not know the language: there the mode is `bm25`.

    Args:
        known: The manifest of an index, or what is known about a store.
    """
    return [] if known.get("mode") == "bm25" else known.get("background") or []


def measure(
    best: Callable[[Vectors], Sequence[float]], encode: Callable[..., Vectors]
) -> list[float]:
    """Return what the questions of `BACKGROUND` score in a collection, ascending; empty on failure.

    Args:
        best: Returns the highest inner product of each query's vector with a passage.
        encode: Encodes queries.
    """
    questions = BACKGROUND.read_text(encoding="utf-8").splitlines()
    try:
        return sorted(round(float(score), 4) for score in best(encode(questions)))
    except Exception:  # whatever an app's own encoder or an engine raises: all else is done
        return []


def look_at(retriever: Any, queries: Sequence[str], k: int, **options: Any) -> list[Look]:
    """Search with a retriever; one without a method `look` says nothing about its collection."""
    if hasattr(retriever, "look"):
        found: list[Look] = retriever.look(queries, k, **options)
        return found
    return [Look(hits) for hits in retriever.search(queries, k, **options)]
