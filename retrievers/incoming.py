"""Passages on their way into an index: kept on disk, so that a million of them fit."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import compress, islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hopgate.common.files import shown
from hopgate.retrievers.base import Passage, encodable, passage_id
from hopgate.retrievers.words import MAX_SOURCE_BYTES, Place, Stored, decode, encode, key_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Keys = NDArray[np.uint64]


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
            place = Place(source, passage.get("page"), section, stamp)
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
