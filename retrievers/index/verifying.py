"""Verifying an index: every byte of it, and that its parts belong together."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hopgate.retrievers.encoders import Encoder, differ
from hopgate.retrievers.index.manifest import (
    MANIFEST,
    DamagedError,
    Manifest,
    changed_files,
    content,
    info,
    to_bytes,
)
from hopgate.retrievers.index.reader import Parts, matching_encoder, while_it_changes
from hopgate.retrievers.index.texts import UnreadableError, identity

SAMPLED = 32
"""Passages that are encoded again."""
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
        problems: Each begins with the name of the file; empty if all is well.
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
    and their vectors those that the encoder returns.

    Args:
        path: The folder of the index.
        encoder: For an encoder that has moved, see `Index.open`.

    Returns:
        The number of files and passages checked, and the problems.

    Raises:
        ValueError: There is no index, or it is of another format version or encoder.
        RuntimeError: FAISS or the encoder is missing.
    """
    folder = Path(path).expanduser()
    try:
        return while_it_changes(folder, lambda: _checked(folder, encoder))
    except DamagedError as error:
        return VerifyReport(str(folder), 0, 0, 0, 0, [*_manifest_problems(folder), str(error)])


def _checked(folder: Path, encoder: str | Encoder | None) -> VerifyReport:
    manifest, sampled = info(folder), 0
    problems = _manifest_problems(folder)
    problems += [f"{name} {_CHANGED}" for name in changed_files(folder, manifest)]
    if not problems:
        sampled = min(SAMPLED, manifest["passages"])
        loaded = matching_encoder(folder, manifest, encoder)
        problems = _disagreements(folder, manifest, loaded)
    version, passages, files = manifest["version"], manifest["passages"], len(manifest["files"]) + 1
    return VerifyReport(str(folder), version, passages, files, sampled, problems)


def _manifest_problems(folder: Path) -> list[str]:
    """Return the problems of the manifest as a file."""
    try:
        found = content(folder)
        whole = found == to_bytes(json.loads(found))
    except (ValueError, AttributeError, RecursionError):
        whole = False
    return [] if whole else [f"{MANIFEST} {_CHANGED}"]


def _disagreements(folder: Path, manifest: Manifest, encoder: Encoder) -> list[str]:
    """Compare words with vectors, and some vectors with new ones of the encoder."""
    _, words, vectors = Parts.open(folder, manifest)
    keys = words.keys()
    if not np.array_equal(keys, vectors.keys()):
        return [f"{MANIFEST} lists words and vectors of different passages"]
    positions = np.unique(np.linspace(0, len(keys) - 1, min(SAMPLED, len(keys))).astype(np.int64))
    sample = keys[positions].tolist()
    try:
        stored = list(words.read(sample, checked=True))
    except UnreadableError as error:
        return [f"words: {error}"]
    passages = [each.passage(key) for key, each in zip(sample, stored, strict=True)]
    again = encoder.encode_passages(passages)
    wrong = keys[positions][differ(again, vectors.vectors(sample))]
    return [
        f"vectors: that of passage {identity(key)} is not the one its encoder returns"
        for key in wrong.tolist()
    ]
