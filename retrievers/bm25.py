"""BM25 over the passages of an index: words in common, weighted by how rare they are.

As in bm25s, every term's score in every passage is computed beforehand (Lù 2024), and bm25s opens
what is built here, memory-mapped. A folder of plain numpy and JSON files, without pickles.
"""

from __future__ import annotations

import json
import re
import unicodedata
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from hopgate.retrievers.factory import reading_headers

if TYPE_CHECKING:
    from bm25s import BM25
    from numpy.typing import NDArray
    from Stemmer import Stemmer

K1 = 1.5
"""How fast a repeated term stops counting; the default of bm25s (docs/results/retrieval.md)."""
B = 0.75
"""How much long passages are penalised; the default of bm25s."""
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
_SCORED_AT_A_TIME = 1 << 22

_COUNTS = "counts.npy"
"""How often each term is in each text that has it, in the order of bm25s' own files."""
_LENGTHS = "lengths.npy"
"""How many terms each text has."""
_TERMS = "terms.npy"
"""Hashes of all terms, ascending, with the number of each term; memory-mapped, so that no reader
has to load the words of a whole collection."""
_VOCABULARY = "vocab.index.json"
_TEXT = 0xFFFFFFFF
"""The bits of a posting that are its text; those above are its term."""

Bm25Progress = Callable[[int, int], None]
"""Called with the texts read so far and their total."""


class Texts(Protocol):
    """Texts that can be counted and read one after the other."""

    def __len__(self) -> int:
        """Count them."""
        ...

    def __iter__(self) -> Iterator[str]:
        """Read them."""
        ...


class Kept(NamedTuple):
    """What a new index reuses of an existing one.

    Attributes:
        folder: of the index that is there.
        origins: for each text of the new index its position in that one, or -1.
    """

    folder: Path
    origins: NDArray[np.int64]


class Bm25:
    """A BM25 index opened for searching, from any number of threads.

    Words are compared without case and by their English stem (Snowball), stop words left out.
    Texts of a language that does not part its words by spaces are not served by it.
    """

    def __init__(self, index: BM25, terms: NDArray[np.uint64]) -> None:
        """Hold an index that bm25s loaded, and the numbers of its terms, see `open`."""
        self._index = index
        self._terms = terms

    @staticmethod
    def build(
        texts: Texts,
        folder: Path,
        progress: Bm25Progress | None = None,
        kept: Kept | None = None,
    ) -> None:
        """Index texts into a new folder; a text's position is its place in `texts`.

        The same texts give the same files, byte for byte, if nothing is kept.

        Args:
            texts: at least one; usually title, space, text.
            folder: made if it is not there.
            progress: called about every 2,000 texts, and at the end.
            kept: takes over texts of another index, whose terms are known; `texts` are then
                the others, those of origin -1.
        """
        from bm25s import BM25

        postings = _Postings.of(kept) if kept else _Postings.none(len(texts))
        postings.add(texts, progress)
        index = BM25(k1=K1, b=B, method="lucene")
        index.nonoccurrence_array = None
        index.scores, index.vocab_dict = postings.scored(), postings.vocabulary
        index.save(folder, show_progress=False)
        np.save(folder / _TERMS, _hashed(postings.vocabulary))
        np.save(folder / _COUNTS, postings.counts)
        np.save(folder / _LENGTHS, postings.lengths)

    @staticmethod
    def can_keep(folder: Path) -> bool:
        """Return whether a folder has what `build` takes over."""
        return (folder / _COUNTS).exists() and (folder / _LENGTHS).exists()

    @classmethod
    def open(cls, folder: Path) -> Bm25:
        """Open a folder that `build` made; its arrays stay on disk until they are used.

        Raises:
            ValueError: the files are missing or damaged.
        """
        from bm25s import BM25

        try:
            with reading_headers:
                index = BM25.load(folder, mmap=True, load_vocab=False, verbosity=0)
            has_terms = (folder / _TERMS).exists()
            return cls(index, _mapped(folder / _TERMS) if has_terms else _hashed(_words_of(folder)))
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
        asked = [_hash(word) for word in words(query)[:MAX_QUERY_TERMS]]
        hashes, numbers = self._terms
        at = np.searchsorted(hashes, np.array(asked, dtype=np.uint64))
        known = [
            int(numbers[place])
            for place, wanted in zip(at.tolist(), asked, strict=True)
            if place < len(hashes) and hashes[place] == wanted
        ]
        return np.asarray(self._index.get_scores_from_ids(known), dtype=np.float32)


def words(text: str) -> list[str]:
    """Return the terms of a text: lower case, stop words left out, stems."""
    return [_stem(word) for word in _split(text) if word not in STOP_WORDS]


def _split(text: str) -> list[str]:
    """Return the words of a text; ligatures, full-width and combined letters become plain ones."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return _WORD.findall(text.lower())


class _Numbers(dict[str, int]):
    """The number of each word's term, given when the word is first seen; -1 for stop words.

    Args:
        terms: the number of each term; new ones are put into it.
    """

    def __init__(self, terms: dict[str, int]) -> None:
        """Know the stop words only."""
        super().__init__(dict.fromkeys(STOP_WORDS, -1))
        self._terms = terms

    def __missing__(self, word: str) -> int:
        """Number a word."""
        number = self[word] = self._terms.setdefault(_stem(word), len(self._terms))
        return number


class _Postings:
    """Which terms are in which texts.

    Attributes:
        vocabulary: the number of each term. The empty term comes first: bm25s wants one.
        pairs: a term and a text that has it, as `term << 32 | text`, ascending.
        counts: how often, for each pair.
        lengths: how many terms each text has.
    """

    def __init__(
        self,
        vocabulary: dict[str, int],
        pairs: NDArray[np.int64],
        counts: NDArray[np.unsignedinteger],
        lengths: NDArray[np.int32],
        new: NDArray[np.int64],
    ) -> None:
        """Hold the parts; `new` are the positions of the texts that are still to be added."""
        self.vocabulary, self.lengths = vocabulary, lengths
        self.pairs, self.counts = pairs, counts
        self._new = new

    @classmethod
    def none(cls, texts: int) -> _Postings:
        """Begin without any text."""
        empty, lengths = np.empty(0, np.int64), np.zeros(texts, np.int32)
        return cls({"": 0}, empty, empty.astype(np.uint8), lengths, np.arange(texts))

    @classmethod
    def of(cls, kept: Kept) -> _Postings:
        """Begin with the texts of another index, without terms that no text has any more."""
        old = Bm25.open(kept.folder)._index
        indptr, texts = old.scores["indptr"], old.scores["indices"]
        was_there = kept.origins >= 0
        before = kept.origins[was_there]
        now = np.full(old.scores["num_docs"], -1, dtype=np.int32)
        now[before] = np.flatnonzero(was_there)
        at = now[texts]
        stays = at >= 0
        term = np.repeat(np.arange(len(indptr) - 1, dtype=np.int32), np.diff(indptr))[stays]
        lives = np.zeros(len(indptr) - 1, dtype=bool)
        lives[0] = True
        lives[term] = True
        pairs = ((lives.cumsum() - 1)[term] << 32) | at[stays]
        del at, term
        counts = _mapped(kept.folder / _COUNTS)[stays]
        words = [w for w, lasts in zip(_words_of(kept.folder), lives, strict=True) if lasts]
        lengths = np.zeros(len(kept.origins), np.int32)
        lengths[was_there] = _mapped(kept.folder / _LENGTHS)[before]
        if np.any(np.diff(before) < 0):  # texts have changed their order
            order = np.argsort(pairs)
            pairs, counts = pairs[order], counts[order]
        numbered = {word: number for number, word in enumerate(words)}
        return cls(numbered, pairs, counts, lengths, np.flatnonzero(~was_there))

    def add(self, texts: Texts, progress: Bm25Progress | None) -> None:
        """Read the texts that are missing."""
        pairs = self._read(texts, progress)
        pairs.sort()
        begins = np.ones(len(pairs), dtype=bool)
        np.not_equal(pairs[1:], pairs[:-1], out=begins[1:])
        first = np.flatnonzero(begins)
        counts = np.empty(len(first), dtype=np.uint32)
        np.subtract(first[1:], first[:-1], out=counts[:-1], casting="unsafe")
        counts[-1:] = len(pairs) - first[-1:]
        del first
        self._merge(pairs[begins], counts.astype(np.min_scalar_type(counts.max(initial=0))))

    def _read(self, texts: Texts, progress: Bm25Progress | None) -> NDArray[np.int64]:
        """Return the terms of the texts that are missing, with their texts, in the texts' order."""
        numbers = _Numbers(self.vocabulary)
        terms, lengths = array("i"), array("i")
        for done, text in enumerate(texts, start=1):
            before = len(terms)
            terms.extend([each for each in map(numbers.__getitem__, _split(text)) if each >= 0])
            lengths.append(len(terms) - before)
            if progress and (done % _REPORT_EVERY == 0 or done == len(texts)):
                progress(done, len(texts))
        self.lengths[self._new] = lengths
        pairs = np.array(terms, dtype=np.int64)
        pairs <<= 32
        pairs |= np.repeat(self._new.astype(np.int32), lengths)
        return pairs

    def _merge(self, pairs: NDArray[np.int64], counts: NDArray[np.unsignedinteger]) -> None:
        if not len(self.pairs):
            self.pairs, self.counts = pairs, counts
            return
        at = np.searchsorted(self.pairs, pairs)
        wide = np.promote_types(self.counts.dtype, counts.dtype)
        self.counts = np.insert(self.counts.astype(wide, copy=False), at, counts)
        self.pairs = np.insert(self.pairs, at, pairs)

    def scored(self) -> dict[str, object]:
        """Score each pair, as bm25s' own (much slower) `index` does.

        Returns:
            Scores and texts sorted by term, where each term's begin, and the number of texts.
        """
        pairs, total = self.pairs, len(self.lengths)
        among = np.bincount(pairs >> 32, minlength=len(self.vocabulary))
        rarity = np.log(1 + (total - among + 0.5) / (among + 0.5)).astype(np.float32)
        norm = K1 * (1 - B + B * self.lengths / (self.lengths.mean() or 1))
        scores = np.empty(len(pairs), dtype=np.float32)
        for start in range(0, len(pairs), _SCORED_AT_A_TIME):
            part = slice(start, start + _SCORED_AT_A_TIME)
            term, text = pairs[part] >> 32, pairs[part] & _TEXT
            often = self.counts[part].astype(np.float32)
            scores[part] = rarity[term] * (often / (norm[text] + often))
        return {
            "data": scores,
            "indices": pairs.astype(np.int32),  # the lower bits
            "indptr": np.concatenate([[0], among.cumsum()]),
            "num_docs": total,
        }


def _hash(word: str) -> int:
    return int.from_bytes(blake2b(word.encode(), digest_size=8).digest())


def _hashed(vocabulary: dict[str, int]) -> NDArray[np.uint64]:
    """Return the hashes of terms, ascending, and the number of each; shape (2, terms)."""
    table = np.empty((2, len(vocabulary)), dtype=np.uint64)
    table[0] = np.fromiter(map(_hash, vocabulary), np.uint64, len(vocabulary))
    table[1] = np.fromiter(vocabulary.values(), np.uint64, len(vocabulary))
    return table[:, np.argsort(table[0])]


def _words_of(folder: Path) -> dict[str, int]:
    """Read the terms of an index in the order of their numbers."""
    words: dict[str, int] = json.loads((folder / _VOCABULARY).read_text(encoding="utf-8"))
    return words


def _mapped(file: Path) -> NDArray[Any]:
    with reading_headers:
        return np.asarray(np.load(file, mmap_mode="r"))


def _best(scores: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Return the positions of the `k` highest scores above 0, best first, ties by position."""
    found = np.flatnonzero(scores)
    if k < len(found):
        among = scores[found]
        found = found[among >= np.partition(among, -k)[-k]]
    return found[np.argsort(-scores[found], kind="stable")][:k]


_stemming = Lock()


@lru_cache(maxsize=100_000)
def _stem(word: str) -> str:
    with _stemming:  # a stemmer is not for several threads at once
        return str(_stemmer().stemWord(word))


@lru_cache(maxsize=1)
def _stemmer() -> Stemmer:
    from Stemmer import Stemmer

    return Stemmer("english", 0)  # its own cache slows it down on many words
