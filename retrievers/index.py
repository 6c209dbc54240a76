"""A dense index on disk: vectors in FAISS, passages in SQLite, and a manifest that describes both.

An index is a folder with `faiss.index`, `passages.sqlite` and `manifest.json`. It is written
beside its place and moved there when it is complete, so that no one ever opens half of one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from hopgate.retrievers.base import Hit, Passage, check_k
from hopgate.retrievers.encoders import DEFAULT_ENCODER, Encoder, load_encoder, resolve_encoder
from hopgate.retrievers.loaders import SkippedFile, load_documents
from hopgate.retrievers.store import PassageStore, write_passages

if TYPE_CHECKING:
    import faiss
    from numpy.typing import NDArray

FORMAT_VERSION = 1
"""Version of the folder's layout; a newer one is refused."""

_MANIFEST = "manifest.json"
_VECTORS = "faiss.index"
_PASSAGES = "passages.sqlite"
_METRIC = "inner_product"
_FACTORY = "Flat"
_HASH_AT_OPEN_BYTES = 8 << 20
"""Files up to this size are hashed whenever an index is opened (some 20 ms); larger ones only
have their size checked."""

BuildProgress = Callable[[str, int, int], None]
"""Called with the stage (`read`: files, `encode`: passages), how many are done, and the total."""


@dataclass(frozen=True)
class BuildReport:
    """What a build did.

    Attributes:
        path: the folder of the index.
        encoder: name of the encoder.
        files: files that gave passages.
        passages: passages in the index.
        duplicates: passages left out because one of the same title and text was there.
        skipped: files that could not be read, and why.
    """

    path: str
    encoder: str
    files: int
    passages: int
    duplicates: int
    skipped: list[SkippedFile] = field(default_factory=list)


def build_index(
    paths: Sequence[Path | str],
    out: Path | str,
    encoder: str = DEFAULT_ENCODER,
    progress: BuildProgress | None = None,
) -> BuildReport:
    """Build an index from files and folders; an index already at `out` is replaced at the end.

    Args:
        paths: .txt, .md, .html, .pdf and .jsonl files, or folders of them.
        out: the folder of the index.
        encoder: see `load_encoder`.
        progress: called as the work goes on.

    Returns:
        Counts, and the files that could not be read.

    Raises:
        ValueError: a path is missing, nothing could be read, or `out` holds something else.
        RuntimeError: an extra or the encoder is missing.
    """
    target = _target(out)
    documents = load_documents(paths, _stage(progress, "read"))
    return _build(documents.passages, target, encoder, progress, documents.files, documents.skipped)


def build_from_passages(
    passages: Iterable[Passage],
    out: Path | str,
    encoder: str = DEFAULT_ENCODER,
    progress: BuildProgress | None = None,
) -> BuildReport:
    """Build an index from passages as they are, see `build_index`.

    Args:
        passages: for example from `make_passage`; those with an id seen before are left out.
        out: the folder of the index.
        encoder: see `load_encoder`.
        progress: called as the work goes on.

    Raises:
        ValueError: there is no passage, or `out` holds something else.
        RuntimeError: an extra or the encoder is missing.
    """
    passages = list(passages)
    if not passages:
        raise ValueError(f"no passages given: nothing to index in {out}")
    return _build(passages, _target(out), encoder, progress, files=0, skipped=[])


def _build(
    passages: Sequence[Passage],
    target: Path,
    encoder_name: str,
    progress: BuildProgress | None,
    files: int,
    skipped: list[SkippedFile],
) -> BuildReport:
    faiss = _faiss()
    encoder = load_encoder(encoder_name)
    unique = list({passage["id"]: passage for passage in reversed(passages)}.values())[::-1]
    vectors = encoder.encode_passages(unique, _stage(progress, "encode"))
    if not np.isfinite(vectors).all():
        raise RuntimeError(f"encoder {encoder.name} gave vectors that are not finite numbers")
    with _new_folder(target) as folder:
        flat = faiss.IndexFlatIP(encoder.dimension)
        flat.add(vectors)
        faiss.write_index(flat, str(folder / _VECTORS))
        write_passages(folder / _PASSAGES, unique)
        _write_manifest(folder, encoder, len(unique))
    return BuildReport(
        path=str(target),
        encoder=encoder.name,
        files=files,
        passages=len(unique),
        duplicates=len(passages) - len(unique),
        skipped=skipped,
    )


def _stage(progress: BuildProgress | None, name: str) -> Callable[[int, int], None] | None:
    return (lambda done, total: progress(name, done, total)) if progress else None


def _target(out: Path | str) -> Path:
    """Resolve the folder to write, and refuse one that holds anything but an index."""
    target = Path(out).expanduser().resolve()
    if target.exists() and not target.is_dir():
        raise ValueError(f"{out} is a file: give a folder for the index")
    if target.is_dir() and any(target.iterdir()) and not (target / _MANIFEST).exists():
        raise ValueError(
            f"{out} holds other files and no index: give a new or empty folder for the index"
        )
    return target


@contextmanager
def _new_folder(target: Path) -> Iterator[Path]:
    """Give a folder beside `target` to fill; it takes the place of `target` if all goes well."""
    target.parent.mkdir(parents=True, exist_ok=True)
    mark = uuid.uuid4().hex[:8]
    folder = target.with_name(f".{target.name}.new-{mark}")
    folder.mkdir()
    try:
        yield folder
        _swap(folder, target, target.with_name(f".{target.name}.old-{mark}"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _swap(folder: Path, target: Path, aside: Path) -> None:
    if not target.exists():
        os.rename(folder, target)
        return
    os.rename(target, aside)
    try:
        os.rename(folder, target)
    except OSError:
        os.rename(aside, target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _write_manifest(folder: Path, encoder: Encoder, passages: int) -> None:
    manifest = {
        "format_version": FORMAT_VERSION,
        "encoder": _describe(encoder),
        "metric": _METRIC,
        "factory": _FACTORY,
        "passages": passages,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "files": {name: _file_entry(folder / name) for name in (_VECTORS, _PASSAGES)},
    }
    (folder / _MANIFEST).write_text(
        json.dumps(manifest, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def _describe(encoder: Encoder) -> dict[str, Any]:
    return {
        "name": encoder.name,
        "dimension": encoder.dimension,
        "pooling": encoder.pooling,
        "normalize": encoder.normalize,
        "max_tokens": encoder.max_tokens,
        "fingerprint": encoder.fingerprint,
    }


def _file_entry(file: Path) -> dict[str, Any]:
    return {"bytes": file.stat().st_size, "sha256": _sha256(file)}


def _sha256(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


class Index:
    """An index opened for searching, from any number of threads. Open one with `load_index`.

    Attributes:
        path: its folder.
        manifest: what `info` gives.
        encoder: the encoder of its vectors, which encodes queries too.
    """

    def __init__(
        self,
        path: Path,
        manifest: dict[str, Any],
        vectors: faiss.Index,
        store: PassageStore,
        encoder: Encoder,
    ) -> None:
        """Hold parts that were opened and checked, see `Index.open`."""
        self.path = path
        self.manifest = manifest
        self.encoder = encoder
        self._vectors = vectors
        self._store = store

    @classmethod
    def open(cls, path: Path | str, encoder: str | None = None) -> Index:
        """Open an index and load its encoder.

        Args:
            path: the folder of the index.
            encoder: name of the encoder to use in place of the one that the manifest names; it
                must be the same model (for one that has moved, say).

        Raises:
            ValueError: the folder is missing, is no index, is half-written, is of a newer format
                version, or was built with another encoder.
            RuntimeError: faiss or the encoder is missing.
        """
        folder = Path(path).expanduser()
        manifest = info(folder)
        _check_files(folder, manifest)
        faiss = _faiss()
        loaded = _matching_encoder(folder, manifest, encoder or manifest["encoder"]["name"])
        try:
            vectors = faiss.read_index(str(folder / _VECTORS))
            store = PassageStore(folder / _PASSAGES)
            passages = len(store)
        except (RuntimeError, sqlite3.DatabaseError) as error:
            raise ValueError(_damaged(folder, str(error).splitlines()[0])) from error
        if not passages == vectors.ntotal == manifest["passages"]:
            store.close()
            raise ValueError(_damaged(folder, "vectors and passages differ in number"))
        return cls(folder, manifest, vectors, store, loaded)

    def __len__(self) -> int:
        """Count the passages."""
        return int(self._vectors.ntotal)

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Find the passages of the highest inner product with each query.

        Args:
            queries: search texts; what is over the encoder's `max_tokens` is cut.
            k: passages for each query, at least 1; more than there are gives all.

        Returns:
            For each query, in order, its hits, best first.

        Raises:
            ValueError: `k` is below 1.
        """
        check_k(k)
        if not queries:
            return []
        vectors = self.encoder.encode_queries(queries)
        scores, positions = self._vectors.search(vectors, min(k, len(self)))
        return [self._hits(*row) for row in zip(scores, positions, strict=True)]

    def _hits(self, scores: NDArray[np.float32], positions: NDArray[np.int64]) -> list[Hit]:
        passages = self._store.get(positions.tolist())
        return [
            Hit(id=p["id"], title=p["title"], text=p["text"], score=score)
            for p, score in zip(passages, scores.tolist(), strict=True)
        ]


def info(path: Path | str) -> dict[str, Any]:
    """Read the manifest of an index, without opening the index.

    Returns:
        `format_version`, `encoder` (`name`, `dimension`, `pooling`, `normalize`, `max_tokens`,
        `fingerprint`), `metric`, `factory`, `passages` (how many), `created` (UTC, ISO 8601) and
        `files` (name → `bytes` and `sha256`).

    Raises:
        ValueError: the folder is missing, is no index, or is of a newer format version.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise ValueError(f"there is no index at {path}: build one with `hopgate index build`")
    file = folder / _MANIFEST
    if not file.exists():
        raise ValueError(f"{path} is not an index: it has no {_MANIFEST}")
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
        version = int(manifest["format_version"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(_damaged(folder, f"{_MANIFEST} cannot be read")) from error
    if version > FORMAT_VERSION:
        raise ValueError(
            f"the index at {path} has format version {version}, and this hopgate reads up to "
            f"{FORMAT_VERSION}: update hopgate or build the index again"
        )
    if missing := _MANIFEST_KEYS - manifest.keys():
        raise ValueError(_damaged(folder, f"{_MANIFEST} lacks {', '.join(sorted(missing))}"))
    return dict(manifest)


_MANIFEST_KEYS = {"encoder", "metric", "factory", "passages", "created", "files"}


def _check_files(folder: Path, manifest: dict[str, Any]) -> None:
    for name, entry in manifest["files"].items():
        file = folder / name
        if not file.exists():
            raise ValueError(_damaged(folder, f"{name} is missing"))
        size = file.stat().st_size
        if size != entry["bytes"]:
            raise ValueError(_damaged(folder, f"{name} has {size} bytes, not {entry['bytes']}"))
        if size <= _HASH_AT_OPEN_BYTES and _sha256(file) != entry["sha256"]:
            raise ValueError(_damaged(folder, f"{name} has changed since it was built"))


def _damaged(folder: Path, what: str) -> str:
    return f"the index at {folder} is damaged or half-written: {what}; build it again"


def _matching_encoder(folder: Path, manifest: dict[str, Any], name: str) -> Encoder:
    """Load an encoder if it is the one that the index was built with."""
    built_with = manifest["encoder"]
    if resolve_encoder(name).fingerprint != built_with["fingerprint"]:
        raise ValueError(
            f"the index at {folder} was built with encoder {built_with['name']}, and {name} here "
            "has other weights: name the encoder it was built with, or build it again"
        )
    encoder = load_encoder(name)
    for key, value in _describe(encoder).items():
        if key != "name" and value != built_with.get(key):
            raise ValueError(
                f"the index at {folder} was built with {key} {built_with.get(key)}, and encoder "
                f"{name} here has {value}: build it again"
            )
    return encoder


_opened: dict[Path, tuple[tuple[int, str | None], Index]] = {}
_opening = Lock()


def load_index(path: Path | str, encoder: str | None = None) -> Index:
    """Open an index, once per process; one that was built again is opened anew.

    Arguments and errors are those of `Index.open`.
    """
    folder = Path(path).expanduser().resolve()
    manifest = folder / _MANIFEST
    with _opening:
        version = (manifest.stat().st_mtime_ns if manifest.exists() else 0, encoder)
        held = _opened.get(folder)
        if held is None or held[0] != version:
            held = _opened[folder] = (version, Index.open(folder, encoder))
        return held[1]


def _faiss() -> ModuleType:
    try:
        import faiss
    except ImportError as error:
        raise RuntimeError("the index needs faiss: pip install 'hopgate[cpu]'") from error
    return faiss
