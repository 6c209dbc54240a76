"""Verifying an index: every byte of it, and that its parts belong together."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hopgate.retrievers.base import passage_id
from hopgate.retrievers.bm25 import Bm25
from hopgate.retrievers.encoders import Encoder
from hopgate.retrievers.factory import Searcher
from hopgate.retrievers.index import matching_encoder, while_it_changes
from hopgate.retrievers.manifest import (
    MANIFEST,
    PASSAGES,
    WORDS,
    DamagedError,
    Manifest,
    changed_files,
    info,
    to_bytes,
    version_folder,
)
from hopgate.retrievers.store import PassageStore

SAMPLE = 32
"""Passages that are encoded again."""
TOLERANCE = 1e-3
"""How far a number of a vector may lie from that of the same passage encoded again, relative to
the vector's length: other batches, threads and processors round otherwise."""


_CHANGED = "has changed since it was written"


@dataclass(frozen=True)
class VerifyReport:
    """The result of `verify`.

    Attributes:
        path: the folder of the index.
        version: its version; 0 if the manifest cannot be read.
        passages: how many there are.
        files: files that were hashed.
        sampled: passages that were encoded again.
        problems: what is wrong, each beginning with the name of the file; empty if all is well.
    """

    path: str
    version: int
    passages: int
    files: int
    sampled: int
    problems: list[str]


def verify(path: Path | str, encoder: str | Encoder | None = None) -> VerifyReport:
    """Check an index: every byte of its files, and that they belong together.

    Hashed is every file, and the manifest by its own checksum. Then vectors, passages and BM25 must
    agree in number, ids with the passages' content, and some passages, encoded again, with their
    vectors.

    Args:
        path: the folder of the index.
        encoder: for an encoder that has moved, see `Index.open`.

    Returns:
        What was looked at, and what is wrong.

    Raises:
        ValueError: there is no index, or it is of another format version or encoder.
        RuntimeError: faiss or the encoder is missing.
    """
    folder = Path(path).expanduser()
    try:
        return while_it_changes(folder, lambda: _looked_at(folder, encoder))
    except DamagedError as error:
        return VerifyReport(str(folder), 0, 0, 0, 0, [*_of_manifest(folder), str(error)])


def _looked_at(folder: Path, encoder: str | Encoder | None) -> VerifyReport:
    manifest = info(folder)
    changed = changed_files(folder, manifest)
    problems = _of_manifest(folder) + [f"{name} {_CHANGED}" for name in changed]
    sampled = 0
    if not problems:
        loaded = matching_encoder(folder, manifest, encoder)
        sampled = min(SAMPLE, manifest["passages"])
        problems = list(_disagreements(folder, manifest, loaded))
    return VerifyReport(
        path=str(folder),
        version=manifest["version"],
        passages=manifest["passages"],
        files=len(manifest["files"]) + 1,
        sampled=sampled,
        problems=problems,
    )


def _of_manifest(folder: Path) -> list[str]:
    """Return the problems of the manifest as a file."""
    found = (folder / MANIFEST).read_bytes()
    try:
        whole = found == to_bytes(json.loads(found))
    except ValueError:
        whole = False
    return [] if whole else [f"{MANIFEST} {_CHANGED}"]


def _disagreements(folder: Path, manifest: Manifest, encoder: Encoder) -> Iterator[str]:
    version = version_folder(folder, manifest)
    vectors = Searcher.open(version, manifest["search"])
    words = Bm25.open(version / WORDS)
    with closing(PassageStore(version / PASSAGES)) as store:
        counts = {"vectors": len(vectors), "passages": len(store), "BM25": len(words)}
        if set(counts.values()) != {manifest["passages"]}:
            yield f"{MANIFEST} says {manifest['passages']} passages, but the files have {counts}"
            return
        try:
            yield from (f"{PASSAGES}: {fault}" for fault in store.faults())
            yield from _strangers(store, vectors, encoder)
        except (sqlite3.DatabaseError, KeyError) as error:
            yield f"{PASSAGES} cannot be read: {error}"


def _strangers(store: PassageStore, vectors: Searcher, encoder: Encoder) -> Iterator[str]:
    """Yield a line for each sampled passage whose id or vector does not match its content."""
    count = len(store)
    positions = np.unique(np.linspace(0, count - 1, min(SAMPLE, count)).astype(np.int64))
    passages = store.get(positions.tolist())
    again = encoder.encode_passages(passages)
    apart = np.abs(again - vectors.exact[positions]).max(axis=1)
    far = apart > TOLERANCE * np.linalg.norm(again, axis=1)
    for passage, is_far in zip(passages, far.tolist(), strict=True):
        if passage["id"] != passage_id(passage["title"], passage["text"]):
            yield f"{PASSAGES}: the id of passage {passage['id']} does not match its content"
        if is_far:
            yield f"the vector of passage {passage['id']} is not the one its encoder returns"
