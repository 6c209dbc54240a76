"""BM25 over the passages of an index: words in common, weighed by how rare they are.

Built by bm25s, which computes every term's score in every passage beforehand (Lù 2024), and
opened memory-mapped. A folder of plain numpy and JSON files, without pickles.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from bm25s import BM25
    from numpy.typing import NDArray
    from Stemmer import Stemmer

K1 = 1.5
"""How fast a repeated term stops counting; the default of bm25s (docs/results/retrieval.md)."""
B = 0.75
"""How much a long passage is held against its terms; the default of bm25s."""
MAX_QUERY_TERMS = 512
"""A longer query is cut here, as encoders cut theirs."""

_STOP_WORDS = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then "
    "there these they this to was will with"
)
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""Lucene's English stop words."""

_WORD = re.compile(r"\w+")
_REPORT_EVERY = 2048
"""Texts between two reports of progress."""

Bm25Progress = Callable[[int, int], None]
"""Called with the texts read so far and their total."""


class Bm25:
    """A BM25 index opened for searching, from any number of threads.

    Words are compared without case and by their English stem (Snowball), stop words left out.
    Texts of a language that does not part its words by spaces are not served by it.
    """

    def __init__(self, index: BM25) -> None:
        """Hold an index that bm25s loaded, see `open`."""
        self._index = index

    @staticmethod
    def build(texts: Sequence[str], folder: Path, progress: Bm25Progress | None = None) -> None:
        """Index texts into a new folder; a text's position is its place in `texts`.

        The same texts give the same files, byte for byte.

        Args:
            texts: at least one; usually title, space, text.
            folder: made if it is not there.
            progress: called about every 2,000 texts, and at the end.
        """
        from bm25s import BM25

        index = BM25(k1=K1, b=B, method="lucene")
        with np.errstate(invalid="ignore"):  # texts without any word have a mean length of 0
            index.index(_numbered(texts, progress), show_progress=False)
        index.save(folder, show_progress=False)

    @classmethod
    def open(cls, folder: Path) -> Bm25:
        """Open a folder that `build` made; its arrays stay on disk until they are used.

        Raises:
            ValueError: the files are missing or damaged.
        """
        from bm25s import BM25

        try:
            return cls(BM25.load(folder, mmap=True, show_progress=False, verbosity=0))
        except (OSError, ValueError, KeyError, EOFError) as error:
            raise ValueError(
                f"the BM25 files in {folder} are damaged ({error}): build the index again"
            ) from error

    def __len__(self) -> int:
        """Count the texts."""
        return int(self._index.scores["num_docs"])

    def search(
        self, queries: Sequence[str], k: int, allowed: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Find the texts of the highest BM25 score for each query.

        Args:
            queries: search texts.
            k: the most texts for each query, at least 1.
            allowed: shape (number of texts,): which may be found; None for all.

        Returns:
            Positions and scores, each of shape (number of queries, min(k, number of texts)),
            best first, ties by position. Where fewer texts share a word with the query, the
            rest is position -1 with score 0.
        """
        width = min(k, len(self))
        positions = np.full((len(queries), width), -1, dtype=np.int64)
        scores = np.zeros((len(queries), width), dtype=np.float32)
        for row, query in enumerate(queries):
            every = self._scores(query)
            if allowed is not None:
                every[~allowed] = 0
            best = _best(every, width)
            positions[row, : len(best)], scores[row, : len(best)] = best, every[best]
        return positions, scores

    def _scores(self, query: str) -> NDArray[np.float32]:
        known = self._index.get_tokens_ids(words(query)[:MAX_QUERY_TERMS])
        return np.asarray(self._index.get_scores_from_ids(known), dtype=np.float32)


def words(text: str) -> list[str]:
    """Give the terms of a text: lower case, stop words left out, stems."""
    found = [word for word in _WORD.findall(text.lower()) if word not in STOP_WORDS]
    return [_stem(word) for word in found]


def _numbered(
    texts: Sequence[str], progress: Bm25Progress | None
) -> tuple[list[array[int]], dict[str, int]]:
    """Give the terms of each text as numbers, and the number of each term.

    The empty term stands for texts without any.
    """
    vocabulary = {"": 0}
    numbered: list[array[int]] = []
    for done, text in enumerate(texts, start=1):
        terms = (vocabulary.setdefault(word, len(vocabulary)) for word in words(text))
        numbered.append(array("i", terms))
        if progress and (done % _REPORT_EVERY == 0 or done == len(texts)):
            progress(done, len(texts))
    return numbered, vocabulary


def _best(scores: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Give the positions of the `k` highest scores above 0, best first, ties by position."""
    if k < len(scores):
        least = np.partition(scores, -k)[-k]
        found = np.flatnonzero((scores >= least) & (scores > 0))
    else:
        found = np.flatnonzero(scores > 0)
    return found[np.argsort(-scores[found], kind="stable")][:k]


_stemming = Lock()


@lru_cache(maxsize=100_000)
def _stem(word: str) -> str:
    with _stemming:  # a stemmer is not for several threads at once
        return str(_stemmer().stemWord(word))


@lru_cache(maxsize=1)
def _stemmer() -> Stemmer:
    from Stemmer import Stemmer

    return Stemmer("english")
