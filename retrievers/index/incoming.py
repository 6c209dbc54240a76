"""Passages and vectors on their way into an index: kept on disk, so that a million of them fit."""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import compress, islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from msgspec import structs

from hopgate.common.files import shown
from hopgate.retrievers.base import Passage, encodable, passage_id
from hopgate.retrievers.index.manifest import EncoderInfo
from hopgate.retrievers.index.texts import (
    MAX_SOURCE_BYTES,
    Place,
    Stored,
    decode,
    encode,
    frozen,
    key_of,
)
from hopgate.retrievers.index.writing import Writer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hopgate.retrievers.index.vectors import Keys, Vectors

Item = TypeVar("Item")


class Incoming:
    """Passages in the order given, read as often as needed.

    Args:
        file: The file to keep them in; it must not exist.
    """

    def __init__(self, file: Path) -> None:
        """Create the file."""
        self._path, self._file = file, file.open("xb")
        self._keys = array("Q")

    def put(self, passages: Iterable[Passage], stamp: str = "") -> None:
        """Add passages.

        Args:
            passages: See `make_passage`.
            stamp: That of their file, see `Place`.

        Raises:
            ValueError: One does not have the id of its content, or its source is too long.
        """
        for passage in passages:
            title, text = passage["title"], passage["text"]
            if passage["id"] != passage_id(title, text):
                raise ValueError(
                    f"the id of passage {passage['id']!r} does not match its content: create "
                    "passages with make_passage"
                )
            source, section = encodable(passage["source"]), encodable(passage.get("section", ""))
            if len(source.encode()) > MAX_SOURCE_BYTES:
                raise ValueError(
                    f"source {shown(source)} has over {MAX_SOURCE_BYTES:,} bytes: use a shorter one"
                )
            metadata = frozen(passage.get("metadata", {}))
            place = Place(source, passage.get("page"), section, stamp, metadata)
            self._file.write(encode(Stored(title, text, (place,))) + b"\n")
            self._keys.append(key_of(passage["id"]))

    def __len__(self) -> int:
        """Count the passages."""
        return len(self._keys)

    @property
    def keys(self) -> Keys:
        """The key of each passage, in the order given."""
        return np.frombuffer(self._keys, dtype=np.uint64) if self._keys else np.empty(0, np.uint64)

    def __iter__(self) -> Iterator[tuple[int, Stored]]:
        """Read each passage with its key."""
        self._file.flush()
        with self._path.open("rb") as lines:
            for key, line in zip(self._keys, lines, strict=True):
                yield key, decode(line)

    def merged(self) -> Iterator[tuple[int, Stored]]:
        """Read each passage once, with the places of all its copies; repeated ones come last."""
        unique, counts = np.unique(self.keys, return_counts=True)
        repeated = set(unique[counts > 1].tolist())
        gathered: dict[int, tuple[Stored, list[Place]]] = {}
        for key, stored in self:
            if key in repeated:
                gathered.setdefault(key, (stored, []))[1].extend(stored.places)
            else:
                yield key, stored
        for key, (stored, places) in gathered.items():
            yield key, structs.replace(stored, places=tuple(dict.fromkeys(places)))

    def only(self, keys: Keys) -> Iterator[tuple[int, Stored]]:
        """Read the passages with some keys, each once."""
        unique, first = np.unique(self.keys, return_index=True)
        wanted = np.zeros(len(self), dtype=bool)
        wanted[first[np.isin(unique, keys)]] = True
        yield from compress(self, wanted)

    def sample(self, most: int) -> list[Stored]:
        """Read passages spread evenly over all."""
        step = max(1, len(self) // most)
        return [stored for _, stored in islice(self, 0, most * step, step)]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Encoded:
    """Vectors of passages that a build has encoded, on disk until they are published.

    A row holds a key and its vector. Only the last row of a killed build may be incomplete.
    """

    def __init__(self, writer: Writer, encoder: EncoderInfo) -> None:
        """Continue the file of a killed build with the same encoder, if there is one."""
        body = {key: value for key, value in encoder.items() if key != "name"}
        key = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]
        self._file = writer.kept(key)
        self._row = np.dtype([("key", "<u8"), ("vector", "<f4", (encoder["dimension"],))])
        if self._file.exists():
            size = self._file.stat().st_size
            os.truncate(self._file, size - size % self._row.itemsize)

    def keys(self) -> Keys:
        """Return the keys of the encoded passages, in the order of the file."""
        if not self._file.exists() or not self._file.stat().st_size:
            return np.empty(0, np.uint64)
        return np.array(np.memmap(self._file, self._row, mode="r")["key"])

    def clear(self) -> None:
        """Forget everything."""
        self._file.unlink(missing_ok=True)

    def has(self, keys: Keys) -> NDArray[np.bool_]:
        """Return which passages have been encoded."""
        return np.isin(keys, self.keys())

    def keep(self, keys: Sequence[int], vectors: Vectors) -> None:
        """Append a batch."""
        rows = np.empty(len(keys), dtype=self._row)
        rows["key"], rows["vector"] = keys, vectors
        with self._file.open("ab") as file:
            file.write(rows.tobytes())

    def ordered(self, keys: Keys) -> tuple[Keys, Callable[[slice], Vectors]]:
        """Return passages in the order of the file, and a reader of slices of their vectors."""
        held = self.keys()
        order = np.argsort(held)
        rows = np.sort(order[np.searchsorted(held, keys, sorter=order)])

        def read(part: slice) -> Vectors:
            vectors: Vectors = np.memmap(self._file, self._row, mode="r")["vector"][rows[part]]
            return vectors

        return held[rows], read


def chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield lists of `size` items; the last may be shorter."""
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk
