"""A collection without an encoder: clustered vectors, and passages whose title is their number."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hopgate.retrievers.base import Passage, make_passage
from hopgate.retrievers.encoders import Encoder

DIMENSION = 384
PER_CLUSTER = 500
SPREAD = 0.7
"""Length of a vector's offset in its cluster, relative to the cluster's centre: two of a cluster
have a cosine of about 0.67."""
DIRECTIONS = 32
"""Most of the offset lies in this many directions, above all in the first: text embeddings fill few
of their dimensions, and noise spread evenly over all 384 would leave no near neighbours."""
NOISE = 0.1
"""Length of the noise in all dimensions, relative to the centre."""
QUERY_SPREAD = 0.5
"""Length of the noise between a query and the vector it is drawn from."""
WORDS = 100
"""Words of a passage, about 600 characters."""
QUERY_WORDS = 10
VOCABULARY = 200_000
_SHARES = 1 / (np.arange(VOCABULARY) + 2.7) ** 1.15
"""How often each word occurs, as in real text (Zipf, Mandelbrot): four in ten are stop words."""
_UP_TO = np.cumsum(_SHARES / _SHARES.sum())
_BLOCK = 50_000
_STOP_WORDS = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then "
    "there these they this to was will with"
)
STOP_WORDS = _STOP_WORDS.split()
"""Lucene's English stop words, which are the most frequent words here."""


def vectors(count: int, seed: int = 0) -> Iterator[NDArray[np.float32]]:
    """Yield clustered vectors of length 1, in blocks."""
    random = np.random.default_rng(seed)
    shape = (max(1, count // PER_CLUSTER), DIMENSION)
    centres = random.normal(size=shape).astype(np.float32)
    spectrum = 1 / np.sqrt(np.arange(1, DIRECTIONS + 1))
    spectrum *= SPREAD / np.linalg.norm(spectrum)
    directions = (spectrum[:, None] * random.normal(size=(DIRECTIONS, DIMENSION))).astype(
        np.float32
    )
    for start in range(0, count, _BLOCK):
        size = min(_BLOCK, count - start)
        rows = centres[random.integers(len(centres), size=size)]
        rows += random.standard_normal((size, DIRECTIONS), dtype=np.float32) @ directions
        rows += random.standard_normal((size, DIMENSION), dtype=np.float32) * NOISE
        yield _unit(rows)


def queries(drawn_from: NDArray[np.float32], count: int, seed: int = 1) -> NDArray[np.float32]:
    """Give vectors near some in the collection, but not in it."""
    random = np.random.default_rng(seed)
    near = drawn_from[np.sort(random.integers(len(drawn_from), size=count))]
    scale = QUERY_SPREAD / np.sqrt(DIMENSION)
    noise = random.standard_normal(near.shape, dtype=np.float32) * scale
    return _unit(near + noise)


def _unit(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    unit: NDArray[np.float32] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def passages(start: int, stop: int, source: str = "") -> Iterator[Passage]:
    """Yield passages of words drawn as in natural language: a few often, most rarely."""
    for number in range(start, stop):
        text = _words(np.random.default_rng(number), WORDS)
        yield make_passage(str(number), text, source or f"{number // 20}.txt")


def query(number: int) -> str:
    """Give the text of a query: its number, which identifies its vector, and some words."""
    return f"{number} {_words(np.random.default_rng([number, 1]), QUERY_WORDS)}"


def _words(random: np.random.Generator, count: int) -> str:
    ranks = np.searchsorted(_UP_TO, random.random(count)).tolist()
    return " ".join(map(word, ranks))


def word(rank: int) -> str:
    """Give the word of a rank; 0 is the most frequent."""
    return STOP_WORDS[rank] if rank < len(STOP_WORDS) else f"w{rank:06d}"


class StoredEncoder(Encoder):
    """Looks vectors up: a passage's by the number in its title, a query's by its first word.

    Args:
        folder: holds `vectors.npy` and `queries.npy`.
    """

    def __init__(self, folder: Path) -> None:
        """Map the files."""
        self._passages = np.load(folder / "vectors.npy", mmap_mode="r")
        self._queries = np.load(folder / "queries.npy")
        self.name, self.fingerprint, self.dimension = "stored", "0" * 64, DIMENSION
        self.pooling, self.normalize, self.max_tokens = "none", True, 0
        self.query_prefix = self.passage_prefix = ""

    def __getattr__(self, name: str) -> None:
        """Other properties of an encoder are not set."""
        if name.startswith("_"):
            raise AttributeError(name)

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Look up queries."""
        return self._queries[[int(text.split()[0]) for text in texts]]

    def encode_passages(self, passages: Sequence[Passage]) -> NDArray[np.float32]:
        """Look up passages."""
        return np.asarray(self._passages[[int(passage["title"]) for passage in passages]])


def write(folder: Path, count: int, queried: int, extra: int = 0) -> None:
    """Write the vectors of `count + extra` passages, and queries near the first `count`."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "vectors.npy").open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (count + extra, DIMENSION)}
        np.lib.format.write_array_header_1_0(file, header)
        for block in vectors(count + extra):
            file.write(block.tobytes())
    drawn = queries(np.load(folder / "vectors.npy", mmap_mode="r")[:count], queried)
    np.save(folder / "queries.npy", drawn)
