"""The vectors of an index: immutable segments, each a FAISS index with the keys of its vectors.

Each change writes at most one segment. Those that are no larger than the new one are merged
into it, so that there are few: about as many as the index has doublings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, cast
from weakref import WeakValueDictionary

import numpy as np

from hopgate.retrievers.filters import Filter
from hopgate.retrievers.index.manifest import SearchSettings, SegmentInfo
from hopgate.retrievers.index.texts import UnreadableError
from hopgate.retrievers.index.vectors import (
    EXACT,
    FAISS,
    Allowed,
    Searcher,
    reading_headers,
    write,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hopgate.retrievers.index.vectors import Keys, Vectors

KEYS = ".keys"
"""Suffix of the file with the keys of a segment's vectors, in the order of their positions."""
DEAD_SHARE = 0.3
"""Share of deleted vectors from which a segment is written again without them."""
_FILTERS_REMEMBERED = 32
_BLOCK = 16_384
"""Vectors handed on at a time."""


class _Files:
    """The files of a segment, mapped; they never change."""

    def __init__(self, folder: Path, described: SegmentInfo) -> None:
        self.keys = read_keys(folder / f"{described['name']}{KEYS}")
        self.searcher = Searcher.open(folder / described["name"], described["search"])
        if not len(self.keys) == len(self.searcher) == described["rows"]:
            raise ValueError(f"segment {described['name']} has vectors and keys of other lengths")


_open_files: WeakValueDictionary[tuple[object, ...], _Files] = WeakValueDictionary()
"""Segments in use, by folder, name, and inode and time of their keys: a changed index is opened
again without reading those that it had before."""


class Segment:
    """One segment, opened for searching.

    Args:
        folder: The folder with its files.
        described: The manifest's entry for it.
        dead: The keys of all deleted vectors, ascending.

    Attributes:
        keys: The keys of its vectors, deleted ones included, in the order of their positions.
        exact: The vectors themselves, shape (n, dimension), memory-mapped.
        alive: Which vectors were not deleted.
        live: How many these are.

    Raises:
        RuntimeError: FAISS cannot read its file.
        ValueError: Its files do not belong together.
    """

    def __init__(self, folder: Path, described: SegmentInfo, dead: Keys) -> None:
        """Map the files."""
        found = (folder / f"{described['name']}{KEYS}").stat()
        which = (folder, *map(str, described.items()), found.st_ino, found.st_mtime_ns)
        files = _open_files.get(which)
        if files is None:
            files = _open_files[which] = _Files(folder, described)
        self._files = files
        self.described = described
        self.keys, self.exact = files.keys, files.searcher.exact
        self.alive = ~is_in(self.keys, dead)
        self.live = int(self.alive.sum())

    @cached_property
    def _living(self) -> Allowed | None:
        """The vectors that were not deleted; None if they are all."""
        return Allowed(self.alive) if self.live < len(self.keys) else None

    def allow(self, keys: Keys) -> Allowed:
        """Return the vectors that were not deleted and have one of these keys, ascending."""
        return Allowed(self.alive & is_in(self.keys, keys))

    def search(
        self, queries: Vectors, k: int, allowed: Allowed | None = None
    ) -> list[list[tuple[float, int]]]:
        """Return (score, key) of the best vectors for each query; None allows all that live."""
        allowed = self._living if allowed is None else allowed
        if allowed is not None and not len(allowed):
            return [[] for _ in queries]
        try:
            positions, scores = self._files.searcher.search(queries, k, allowed)
            keys = self.keys[positions]
        except (RuntimeError, IndexError) as error:  # a position that the segment does not have
            raise UnreadableError(f"segment {self.described['name']} is damaged") from error
        rows = zip(scores.tolist(), keys.tolist(), strict=True)
        return [list(zip(*row, strict=True)) for row in rows]


class Segments:
    """The vectors of an index, opened for searching from any number of threads.

    Args:
        folder: The folder with the files of the segments.
        described: The manifest's entries for them.
        dead: The file with the keys of deleted vectors; None if there are none.
        select: Returns the keys of the passages that a filter allows, ascending.
    """

    def __init__(
        self,
        folder: Path,
        described: Sequence[SegmentInfo],
        dead: Path | None,
        select: Callable[[Filter], Keys],
    ) -> None:
        """Map the files."""
        self.dead = read_keys(dead) if dead else np.empty(0, dtype=np.uint64)
        self.parts = parts = [Segment(folder, each, self.dead) for each in described]

        def allow(wanted: Filter) -> list[Allowed]:
            keys = select(wanted)
            return [part.allow(keys) for part in parts]

        self._allow = lru_cache(_FILTERS_REMEMBERED)(allow)

    def __len__(self) -> int:
        """Count the vectors that were not deleted."""
        return sum(part.live for part in self.parts)

    def keys(self) -> Keys:
        """Return the keys of all vectors that were not deleted, ascending."""
        return merged_keys(*(part.keys[part.alive] for part in self.parts))

    def search(
        self, queries: Vectors, k: int, wanted: Filter = ()
    ) -> list[list[tuple[int, float]]]:
        """Return the keys of the vectors with the highest inner products, best first.

        Args:
            queries: Shape (m, dimension).
            k: At least 1.
            wanted: The filter that the passages must fulfil.
        """
        allowed = self._allow(wanted) if wanted else [None] * len(self.parts)
        found = [
            part.search(queries, k, only) for part, only in zip(self.parts, allowed, strict=True)
        ]
        return [
            [(key, score) for score, key in sorted(chain(*rows), reverse=True)[:k]]
            for rows in zip(*found, strict=True)
        ]

    def vectors(self, keys: Sequence[int]) -> Vectors:
        """Return the vectors of passages, in the order asked.

        Raises:
            ValueError: There is no vector with such a key.
        """
        found = {
            int(part.keys[at]): part.exact[at]
            for part in self.parts
            for at in np.flatnonzero(part.alive & np.isin(part.keys, np.array(keys, np.uint64)))
        }
        try:
            return np.array([found[key] for key in keys], dtype=np.float32)
        except KeyError as error:
            raise ValueError(f"the vector of passage {error.args[0]:016x} is missing") from None


def write_segment(
    stem: Path,
    factory: str,
    old: Sequence[Segment],
    fresh: Keys,
    read: Callable[[slice], Vectors],
    dimension: int,
    progress: Callable[[int, int], None],
) -> SegmentInfo:
    """Write a segment from the living vectors of others and from new ones.

    Args:
        stem: Where to write, without the suffix; its name is that of the segment.
        factory: FAISS's factory string.
        old: Segments that are merged into it.
        fresh: The keys of new vectors.
        read: Reads a slice of these vectors.
        dimension: Length of the vectors.
        progress: Called with the vectors indexed so far and their total.
    """
    keys = np.concatenate([*(part.keys[part.alive] for part in old), fresh])
    write_keys(stem.with_suffix(KEYS), keys)

    def blocks() -> Iterator[Vectors]:
        for part in old:
            rows = np.flatnonzero(part.alive)
            for start in range(0, len(rows), _BLOCK):
                yield part.exact[rows[start : start + _BLOCK]]
        for start in range(0, len(fresh), _BLOCK):
            yield read(slice(start, start + _BLOCK))

    settings = write(stem, factory, blocks(), (len(keys), dimension), progress)
    return SegmentInfo(
        name=stem.name, rows=len(keys), factory=factory, search=cast(SearchSettings, settings)
    )


def to_merge(parts: Sequence[Segment], size: int) -> list[Segment]:
    """Choose the segments to write again together with `size` new vectors.

    These are the ones with many deleted vectors, and those no larger than the part written anyway.
    """
    chosen = []
    for part in sorted(parts, key=lambda each: each.live):
        worn = len(part.keys) - part.live > DEAD_SHARE * len(part.keys)
        if worn or part.live <= size:
            chosen.append(part)
            size += part.live
    return chosen


def file_names(described: SegmentInfo) -> list[str]:
    """List the files that a segment may have."""
    return [f"{described['name']}{suffix}" for suffix in (FAISS, EXACT, KEYS)]


def read_keys(file: Path) -> Keys:
    """Read a file of keys.

    Raises:
        ValueError: It holds something else.
    """
    with reading_headers, file.open("rb") as handle:
        keys: Keys = np.lib.format.read_array(handle, allow_pickle=False)
    if keys.dtype != np.uint64 or keys.ndim != 1:
        raise ValueError(f"{file.name} does not contain keys")
    return keys


def write_keys(file: Path, keys: Keys) -> None:
    """Write a file of keys."""
    with file.open("wb") as handle:
        np.lib.format.write_array(handle, keys, allow_pickle=False)


def is_in(keys: Keys, ascending: Keys) -> NDArray[np.bool_]:
    """Return which keys are among others, which are in ascending order."""
    if not len(ascending):
        return np.zeros(len(keys), dtype=bool)
    at = np.minimum(np.searchsorted(ascending, keys), len(ascending) - 1)
    return np.asarray(ascending[at] == keys)


def without(keys: Keys, ascending: Keys) -> Keys:
    """Return the keys that are not among others, which are in ascending order."""
    return keys[~is_in(keys, ascending)]


def merged_keys(*parts: Keys) -> Keys:
    """Return keys in one array, ascending; fast where the parts are ascending already."""
    return np.sort(np.concatenate([np.empty(0, dtype=np.uint64), *parts]), kind="stable")
