"""FAISS: which index suits a collection, and how it is built, tuned and searched.

Exact search while that is as fast as encoding the query, then an inverted file of bytes. An index
that is not exact only names candidates. They are scored by the vectors themselves, which lie
on disk beside it, memory-mapped: scores mean the same with every factory, and recall is lost only
where a neighbour is not a candidate.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from threading import Lock, RLock
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import faiss
    from numpy.typing import NDArray

    Keys = NDArray[np.uint64]
    Vectors = NDArray[np.float32]
    Positions = NDArray[np.int64]

FAISS = ".faiss"
"""Suffix of FAISS's file of a segment."""
EXACT = ".npy"
"""Suffix of the vectors themselves, float32, beside every FAISS index but a flat one."""
FLAT = "Flat"
FLAT_UP_TO = 200_000
"""Vectors that are searched exactly: at 384 dimensions some 30 ms on one core, which is about what
the encoder takes for the query."""
TUNED_RECALL = 0.975
"""Recall at 10 to reach on a sample of passages, each among its own neighbours: above the promised
0.95 because of sampling error, and because queries lie further away than passages do."""
_SAMPLE = 400
_NEIGHBOURS = 10
_TRAIN_PER_LIST = 40
"""Training vectors for each list; FAISS warns below 39."""
_BLOCK = 16_384
"""Vectors handled at a time."""
_EXACT_UP_TO = 50_000
"""Filters that match up to this many passages are searched exactly, whatever the factory."""
_KNOBS = {"nprobe", "efSearch"}
"""Parameters of FAISS's indexes that `tune` sets."""
_READ_BYTES = 1 << 22
_LARGEST = 1e15
"""Bound of a vector's values: inner products of larger ones overflow, and FAISS, when it clusters
vectors whose distances are NaN, ends the process."""
_FLAT_HEADER_BYTES = 45


def choose(count: int) -> str:
    """Return the factory that suits a number of vectors: exact, or an inverted file of bytes.

    A graph (HNSW) is never chosen: at 300,000 vectors it took more than twice as long to build as
    an inverted file and was slower at a lower recall (docs/results/scale.md).
    """
    if count <= FLAT_UP_TO:
        return FLAT
    lists: int = 2 ** round(math.log2(4 * math.sqrt(count)))
    return f"IVF{lists},SQ8"


def load_faiss() -> ModuleType:
    """Import faiss.

    Raises:
        RuntimeError: It is not installed.
    """
    try:
        import faiss
    except ImportError as error:
        raise RuntimeError("the index needs FAISS: pip install 'hopgate[cpu]'") from error
    return faiss


def new_index(factory: str, dimension: int) -> Any:
    """Make an empty index.

    Raises:
        ValueError: FAISS has no such factory, or it does not suit the vectors.
    """
    faiss = load_faiss()
    try:
        return faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise ValueError(
            f"invalid FAISS factory string {factory!r} for vectors of {dimension} dimensions: use "
            "one such as Flat, HNSW32,SQ8 or IVF4096,SQ8, or leave it out"
        ) from error


def write(
    stem: Path,
    factory: str,
    blocks: Iterable[Vectors],
    shape: tuple[int, int],
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    """Build a FAISS index and write it, with the vectors beside it unless it contains them.

    Args:
        stem: Where to write, without the suffix.
        factory: FAISS's factory string.
        blocks: All vectors, in the order of their positions.
        shape: How many they are, and their length.
        progress: Called with the vectors added so far.

    Returns:
        Settings for searches, see `tune`.

    Raises:
        ValueError: There are too few vectors to train such an index.
        RuntimeError: A vector is not finite.
    """
    beside = stem.with_suffix(EXACT)
    exact = _stored(beside, blocks, shape)
    index = new_index(factory, shape[1])
    settings: dict[str, Any] = {}
    if factory == FLAT:
        index.add(exact)
        beside.unlink()
    else:
        if not index.is_trained:
            _train(index, factory, exact)
        for at in range(0, len(exact), _BLOCK):
            index.add(exact[at : at + _BLOCK])
            progress(index.ntotal, len(exact))
        settings = tune(index, exact)
    write_index(index, stem.with_suffix(FAISS))
    return settings


def write_index(index: faiss.Index, file: Path) -> None:
    """Write the FAISS index through Python, since FAISS itself ignores a full disk.

    Raises:
        OSError: It cannot be written.
    """
    faiss = load_faiss()
    with file.open("wb") as handle:
        faiss.write_index(index, faiss.PyCallbackIOWriter(handle.write))


def _stored(file: Path, blocks: Iterable[Vectors], shape: tuple[int, int]) -> Vectors:
    """Write the vectors into a file, and give them mapped from there.

    Written through the file, since a full disk kills a process that writes through a mapping.
    """
    with file.open("wb") as handle:
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(handle, header)
        for block in blocks:
            if not (np.abs(block) < _LARGEST).all():
                raise RuntimeError(
                    "a vector has NaN, infinite or huge values, from the encoder or a damaged "
                    "file: nothing was changed"
                )
            handle.write(block.astype("<f4", copy=False).tobytes())
    return _mapped(file)


def _train(index: faiss.Index, factory: str, exact: Vectors) -> None:
    wanted = max(_TRAIN_PER_LIST * getattr(index, "nlist", 0), 65_536)
    try:
        index.train(exact[_spread(len(exact), wanted)])
    except RuntimeError as error:
        raise ValueError(
            f"factory {factory} cannot be trained on {len(exact):,} vectors: use one with fewer "
            "lists, or leave it out"
        ) from error


def _spread(count: int, wanted: int) -> Positions:
    """Return positions drawn evenly at random, the same each time, in ascending order."""
    drawn = np.random.default_rng(0).choice(count, size=min(count, wanted), replace=False)
    return np.sort(drawn)


def tune(index: faiss.Index, exact: Vectors) -> dict[str, Any]:
    """Find the cheapest settings that reach the target on a sample.

    The sample's queries are vectors of the collection, and among their own neighbours.

    Args:
        index: The FAISS index that was built.
        exact: Its vectors.

    Returns:
        The setting (`nprobe` or `efSearch`) that reached `TUNED_RECALL`, else the largest;
        `oversample`, the candidates for each hit; `recall` at 10 and the number of `queries` it was
        measured on.
    """
    queries, k = exact[_spread(len(exact), _SAMPLE)], min(_NEIGHBOURS, len(exact))
    faiss = load_faiss()
    truth = faiss.knn(queries, exact, k, faiss.METRIC_INNER_PRODUCT)[1]
    found: dict[str, Any] = {}
    for settings in _ladder(index):
        near = Searcher(index, exact, settings).search(queries, k)[0]
        recall = float((near[:, :, None] == truth[:, None]).any(axis=1).mean())
        found = settings | {"recall": round(recall, 4), "queries": len(queries)}
        if recall >= TUNED_RECALL:
            break
    return found


def _ladder(index: faiss.Index) -> Iterator[dict[str, int]]:
    """Yield settings for a search, the cheapest first."""
    inverted = load_faiss().try_extract_index_ivf(index)
    oversample, steps = 4, [dict[str, int]()]
    if inverted is not None:
        coarse = inverted.code_size * 4 <= inverted.d  # product quantisation and the like
        oversample = 32 if coarse else 4
        steps = [{"nprobe": 2**power} for power in range((inverted.nlist - 1).bit_length() + 1)]
    elif hasattr(index, "hnsw"):
        steps = [{"efSearch": 2**power} for power in range(4, 12)]
    yield from (step | {"oversample": oversample} for step in steps)
    yield steps[-1] | {"oversample": 128}


class Allowed:
    """The vectors of a segment that a search may find.

    Args:
        mask: Whether each may be found, in the order of their positions.
    """

    def __init__(self, mask: NDArray[np.bool_]) -> None:
        """Prepare both forms that a search needs."""
        self.positions: Positions = np.flatnonzero(mask)
        self.selector = load_faiss().IDSelectorBitmap(np.packbits(mask, bitorder="little"))

    def __len__(self) -> int:
        """Count the vectors."""
        return len(self.positions)


class Searcher:
    """Vectors opened for searching, from any number of threads.

    Args:
        index: FAISS's index.
        exact: The vectors themselves, shape (n, dimension), memory-mapped.
        settings: `nprobe` or `efSearch`, and `oversample`; empty for exact search.
    """

    def __init__(self, index: faiss.Index, exact: Vectors, settings: Mapping[str, Any]) -> None:
        """Apply the settings."""
        self.exact = exact
        self._index, self._settings = index, settings
        for name in _KNOBS & settings.keys():
            load_faiss().ParameterSpace().set_index_parameter(index, name, settings[name])
        self._gpu: faiss.Index | None = None
        self._one_at_a_time = Lock()

    @classmethod
    def open(cls, stem: Path, settings: Mapping[str, Any]) -> Searcher:
        """Open the files of a segment, memory-mapped, and copy the index to a GPU if there is one.

        Raises:
            RuntimeError: FAISS cannot read its file, or the settings are those of another kind of
                index.
            ValueError: The vectors beside it cannot be read, or it is of another metric.
        """
        faiss = load_faiss()
        file = stem.with_suffix(FAISS)
        _check_structure(file)
        index = faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC)
        if index.metric_type != faiss.METRIC_INNER_PRODUCT:
            raise ValueError(f"{file.name} is not an index of inner products")
        if isinstance(index, faiss.IndexFlat):
            _read_through(file)
        searcher = cls(index, _exact(stem.with_suffix(EXACT), index), settings)
        if getattr(faiss, "get_num_gpus", int)() > 0 and "efSearch" not in settings:
            searcher._gpu = faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), 0, index)
        return searcher

    def __len__(self) -> int:
        """Count the vectors."""
        return int(self._index.ntotal)

    def search(
        self, queries: Vectors, k: int, allowed: Allowed | None = None
    ) -> tuple[Positions, Vectors]:
        """Find the vectors of the highest inner product with each query.

        Args:
            queries: Shape (m, dimension).
            k: At least 1.
            allowed: The vectors that may be found; None for all.

        Returns:
            Positions and inner products, each of shape (m, min(k, vectors allowed)), best first.
        """
        queries = np.ascontiguousarray(queries, dtype=np.float32)
        k = min(k, len(self) if allowed is None else len(allowed))
        if not self._settings:
            scores, near = self._nearest(queries, k, allowed)
            return near, scores
        if allowed is not None and len(allowed) <= _EXACT_UP_TO:
            return self._best_of(queries, allowed.positions, k)
        wide = min(k * self._settings.get("oversample", 1), len(self))
        near, scores = self._best_of(queries, self._nearest(queries, wide, allowed)[1], k)
        short = (near < 0).any(axis=1)  # too few lists were looked at
        if short.any():
            rest = np.arange(len(self)) if allowed is None else allowed.positions
            near[short], scores[short] = self._best_of(queries[short], rest, k)
        return near, scores

    def _nearest(self, queries: Vectors, k: int, allowed: Allowed | None) -> tuple[Any, Any]:
        """Return the scores and positions that FAISS finds, on the GPU if there is no filter."""
        if self._gpu is None or allowed is not None:
            scores, near = self._index.search(queries, k, params=self._parameters(allowed))
        else:
            with self._one_at_a_time:
                scores, near = self._gpu.search(queries, k)
        return scores, near

    def _parameters(self, allowed: Allowed | None) -> Any:
        """Return the settings of a filtered search, which looks at more of the index."""
        if allowed is None:
            return None
        faiss, selector = load_faiss(), allowed.selector
        if "nprobe" in self._settings:
            probes = round(self._settings["nprobe"] * len(self) / len(allowed))
            found = faiss.SearchParametersIVF(sel=selector, nprobe=probes)
            if isinstance(self._index, faiss.IndexPreTransform):
                found = faiss.SearchParametersPreTransform(index_params=found)
            return found
        return faiss.SearchParameters(sel=selector)

    def _best_of(
        self, queries: Vectors, candidates: Positions, k: int
    ) -> tuple[Positions, Vectors]:
        """Find the best candidates by the vectors themselves, as FAISS's own refinement does.

        Args:
            queries: Shape (m, dimension).
            candidates: Shape (m, n), or (n,) for the same ones for every query; -1 ends a row.
            k: How many to find; where there are fewer, the last positions are -1.
        """
        if candidates.max(initial=-1) >= len(self.exact):
            raise IndexError("the index names a vector that it does not have")
        faiss, shape = load_faiss(), (len(queries), k)
        near, scores = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.float32)
        faiss.knn_inner_products_by_idx(
            *map(faiss.swig_ptr, (queries, self.exact, candidates)),
            *(self.exact.shape[1], len(queries), len(self.exact), candidates.shape[-1], k),
            *map(faiss.swig_ptr, (scores, near)),
            0 if candidates.ndim == 1 else candidates.shape[1],
        )
        return near, scores


def _check_structure(file: Path) -> None:
    """Read the part before the vectors, through a reader that notices where a file ends.

    FAISS 1.15 reads beyond the end of a mapped file, and the process dies, when it ends within its
    header.

    Raises:
        RuntimeError: FAISS cannot read the file.
    """
    faiss = load_faiss()
    with file.open("rb") as handle:
        header = handle.read(_FLAT_HEADER_BYTES)
    kind, dimension, count = struct.unpack("<4siq", header[:16].ljust(16, b"\0"))
    if kind == b"IxFI" and file.stat().st_size == _FLAT_HEADER_BYTES + 4 * dimension * count:
        return
    faiss.read_index(str(file), faiss.IO_FLAG_MMAP)


def _read_through(file: Path) -> None:
    """Read a file once, so that the system caches all of it before it is searched.

    300 MB that were not in memory took 3 s in a row, and 20 s as pages that a search touched.
    """
    block = bytearray(_READ_BYTES)
    with file.open("rb", buffering=0) as handle:
        while handle.readinto(block):
            pass


reading_headers = RLock()
"""Held where numpy reads a file's header, which Python parses for it.

In two threads at once, CPython 3.11 fails now and then: SystemError, AST constructor recursion
depth mismatch."""


def _mapped(file: Path) -> Vectors:
    with reading_headers:
        vectors: Vectors = np.load(file, mmap_mode="r")
    return vectors.view(np.ndarray)  # each indexing of a memmap costs 20 µs more


def _exact(file: Path, index: faiss.Index) -> Vectors:
    if file.exists():
        vectors = _mapped(file)
        if vectors.shape != (index.ntotal, index.d) or vectors.dtype != np.float32:
            raise ValueError(f"{file.name} does not contain the vectors of {index.ntotal} passages")
        return vectors
    faiss = load_faiss()
    if not isinstance(index, faiss.IndexFlat):
        raise ValueError(f"{file.name} is missing")
    view: Vectors = faiss.rev_swig_ptr(index.get_xb(), index.ntotal * index.d)
    return view.reshape(index.ntotal, index.d)
