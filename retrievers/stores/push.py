"""Moving an index into an outside store or out of one, vectors and all, without encoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace as with_values
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec import structs

from hopgate.retrievers.base import Passage
from hopgate.retrievers.building import building
from hopgate.retrievers.encoders import Encoder
from hopgate.retrievers.index.change import BuildProgress, BuildReport
from hopgate.retrievers.index.incoming import chunks
from hopgate.retrievers.index.manifest import EncoderInfo, Manifest, info
from hopgate.retrievers.index.reader import Parts
from hopgate.retrievers.index.texts import key_of
from hopgate.retrievers.stores.collection import BATCH, Collection, StoreInfo
from hopgate.retrievers.stores.names import is_store

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Read = Callable[[Sequence[str]], NDArray[np.float32]]
    Held = tuple[Manifest | StoreInfo, Iterator[tuple[Passage, str]], Read]


def push(
    source: Path | str,
    target: Path | str,
    progress: BuildProgress | None = None,
    *,
    replace: bool = False,
) -> BuildReport:
    """Make `target` hold what `source` holds: passages, documents, vectors, language and mode.

    Either can be a folder or an outside store. Nothing is encoded, and the encoder need not be on
    this machine. If it is interrupted, the same call resumes.

    Args:
        source: The index to read.
        target: The index to write; one that is there is changed as `build_index` does it.
        progress: Called as the work goes on.
        replace: Allow this to remove most passages of the target, or to change its encoder.

    Raises:
        ValueError: There is no such source, or the target cannot be written to.
        RuntimeError: An extra is missing, or an engine failed.
    """
    held = _of_store(str(source)) if is_store(source) else _of_folder(Path(source).expanduser())
    info, passages, read = held
    carried = Carried(info["encoder"], read)
    with building(target, carried, progress, language=info["language"], replace=replace) as change:
        change.roots = list(info["roots"])
        change.mode = info["mode"], info["mode_reason"]
        for passage, stamp in passages:
            change.incoming.put([passage], stamp)
        return with_values(change.run(), encoded=0, tokens=0)


class Carried(Encoder):
    """An encoder whose passages have their vectors already.

    Args:
        described: The encoder that made them.
        read: Returns the vectors of passages by their ids, in the order given.
    """

    def __init__(self, described: EncoderInfo, read: Read) -> None:
        """Take the attributes of the encoder, without loading it."""
        vars(self).update(described)
        self._read = read

    def encode_passages(self, passages: Sequence[Passage]) -> NDArray[np.float32]:
        """Return the vectors that the passages have."""
        return self._read([passage["id"] for passage in passages])


def _of_folder(folder: Path) -> Held:
    """Return an index's description, its passages with their stamps, and a reader of vectors."""
    manifest, words, vectors = Parts.open(folder, info(folder, hashed=True))
    keys = words.keys().tolist()
    passages = (
        (structs.replace(stored, places=(place,)).passage(key), place.stamp)
        for key, stored in zip(keys, words.read(keys, checked=True), strict=True)
        for place in stored.places
    )
    return manifest, passages, lambda ids: vectors.vectors(list(map(key_of, ids)))


def _of_store(name: str) -> Held:
    """Return the same of a collection."""
    collection = Collection(name)
    info, read = collection.info(), collection.engine.read
    listed = collection.engine.listed()
    first = {row.id: row.key for row in listed}
    passages = (
        (row.passage(), row.stamp.rpartition("/")[0])  # without the count of rows
        for some in chunks([row.key for row in listed], BATCH)
        for row, _ in read(some)
    )

    def vectors(ids: Sequence[str]) -> NDArray[np.float32]:
        found = {row.id: vector for row, vector in read([first[each] for each in ids])}
        return np.array([found[each] for each in ids], dtype=np.float32)

    return info, passages, vectors
