"""Verifying an index: every byte of it, and that its parts belong together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hopgate.retrievers.encoders import Encoder
from hopgate.retrievers.index import Parts, matching_encoder, while_it_changes
from hopgate.retrievers.manifest import (
    MANIFEST,
    MAX_MANIFEST_BYTES,
    DamagedError,
    Manifest,
    changed_files,
    info,
    to_bytes,
)
from hopgate.retrievers.segments import Segments
from hopgate.retrievers.words import UnreadableError, Words, identity

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
        path: The folder of the index.
        version: Its version; 0 if the manifest cannot be read.
        passages: How many there are.
        files: Files that were hashed.
        sampled: Passages that were encoded again.
        problems: What is wrong, each beginning with the name of the file; empty if all is well.
    """

    path: str
    version: int
    passages: int
    files: int
    sampled: int
    problems: list[str]


def verify(path: Path | str, encoder: str | Encoder | None = None) -> VerifyReport:
    """Check an index: every byte of its files, and that they belong together.

    Hashed is every file, and the manifest by its own checksum. Then vectors and passages must have
    the same keys, and some passages are looked at: their ids must be the hashes of their content,
    and their vectors what the encoder returns for them.

    Args:
        path: The folder of the index.
        encoder: For an encoder that has moved, see `Index.open`.

    Returns:
        What was looked at, and what is wrong.

    Raises:
        ValueError: There is no index, or it is of another format version or encoder.
        RuntimeError: FAISS or the encoder is missing.
    """
    folder = Path(path).expanduser()
    try:
        return while_it_changes(folder, lambda: _looked_at(folder, encoder))
    except DamagedError as error:
        return VerifyReport(str(folder), 0, 0, 0, 0, [*_of_manifest(folder), str(error)])


def _looked_at(folder: Path, encoder: str | Encoder | None) -> VerifyReport:
    manifest = info(folder)
    problems = _of_manifest(folder) + [
        f"{name} {_CHANGED}" for name in changed_files(folder, manifest)
    ]
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
    """Return the problems of the manifest as a file; none for one that `info` refuses to read."""
    file = folder / MANIFEST
    try:
        if not file.is_file() or file.stat().st_size > MAX_MANIFEST_BYTES:
            return []
        found = file.read_bytes()
        whole = found == to_bytes(json.loads(found))
    except (OSError, ValueError, AttributeError, RecursionError):
        whole = False
    return [] if whole else [f"{MANIFEST} {_CHANGED}"]


def _disagreements(folder: Path, manifest: Manifest, encoder: Encoder) -> Iterator[str]:
    _, words, vectors = Parts.open(folder, manifest)
    keys = words.keys()
    if not np.array_equal(keys, vectors.keys()):
        yield f"{MANIFEST} lists words and vectors of different passages"
        return
    try:
        yield from _strangers(keys, words, vectors, encoder)
    except UnreadableError as error:
        yield f"words: {error}"


def _strangers(
    keys: np.ndarray, words: Words, vectors: Segments, encoder: Encoder
) -> Iterator[str]:
    """Yield a line for each sampled passage whose vector is not that of its content."""
    positions = np.unique(np.linspace(0, len(keys) - 1, min(SAMPLE, len(keys))).astype(np.int64))
    sample = keys[positions].tolist()
    passages = [
        stored.passage(key)
        for key, stored in zip(sample, words.read(sample, checked=True), strict=True)
    ]
    again = encoder.encode_passages(passages)
    apart = np.abs(again - vectors.vectors(sample)).max(axis=1)
    far = apart > TOLERANCE * np.linalg.norm(again, axis=1)
    for key, is_far in zip(sample, far.tolist(), strict=True):
        if is_far:
            yield f"vectors: that of passage {identity(key)} is not the one its encoder returns"
