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
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from hopgate.retrievers.base import Hit, Passage, check_k
from hopgate.retrievers.encoders import (
    DEFAULT_ENCODER,
    EncodeProgress,
    Encoder,
    find_encoder,
    load_encoder,
    resolve_encoder,
)
from hopgate.retrievers.loaders import SkippedFile, find_files, read_files
from hopgate.retrievers.store import PassageStore, write_passages

if TYPE_CHECKING:
    import faiss
    from numpy.typing import NDArray

FORMAT_VERSION = 1
"""Version of the folder's layout; a newer one is refused."""

_MANIFEST = "manifest.json"
_VECTORS = "faiss.index"
_PASSAGES = "passages.sqlite"
_OWN_FILES = {_MANIFEST, _VECTORS, _PASSAGES}
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

    `out`, faiss and the encoder are tried before the first file is read.

    Args:
        paths: .txt, .md, .html, .pdf and .jsonl files, or folders of them.
        out: the folder of the index.
        encoder: see `load_encoder`.
        progress: called as the work goes on.

    Returns:
        Counts, and the files that could not be read.

    Raises:
        ValueError: a path is missing, nothing could be read, or `out` cannot be written, holds
            something else or is (or contains) one of `paths`.
        RuntimeError: an extra or the encoder is missing.
    """
    target = _target(out, paths)
    found = find_files(paths)
    with _new_folder(target) as folder:
        faiss, loaded = _faiss(), load_encoder(encoder)
        documents = read_files(found, _stage(progress, "read"))
        unique = _unique(documents.passages)
        _fill(folder, unique, faiss, loaded, _stage(progress, "encode"))
    return BuildReport(
        path=str(target),
        encoder=loaded.name,
        files=documents.files,
        passages=len(unique),
        duplicates=len(documents.passages) - len(unique),
        skipped=documents.skipped,
    )


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
        ValueError: there is no passage, or `out` cannot be written or holds something else.
        RuntimeError: an extra or the encoder is missing.
    """
    passages = list(passages)
    if not passages:
        raise ValueError(f"no passages given: nothing to index in {out}")
    target, unique = _target(out), _unique(passages)
    with _new_folder(target) as folder:
        faiss, loaded = _faiss(), load_encoder(encoder)
        _fill(folder, unique, faiss, loaded, _stage(progress, "encode"))
    return BuildReport(
        path=str(target),
        encoder=loaded.name,
        files=0,
        passages=len(unique),
        duplicates=len(passages) - len(unique),
    )


def _unique(passages: Sequence[Passage]) -> list[Passage]:
    """Keep the first passage of each id."""
    return list({passage["id"]: passage for passage in reversed(passages)}.values())[::-1]


def _fill(
    folder: Path,
    passages: Sequence[Passage],
    faiss: ModuleType,
    encoder: Encoder,
    progress: EncodeProgress | None,
) -> None:
    vectors = encoder.encode_passages(passages, progress)
    if not np.isfinite(vectors).all():
        raise RuntimeError(f"encoder {encoder.name} gave vectors that are not finite numbers")
    flat = faiss.IndexFlatIP(encoder.dimension)
    flat.add(vectors)
    faiss.write_index(flat, str(folder / _VECTORS))
    write_passages(folder / _PASSAGES, passages)
    _write_manifest(folder, encoder, len(passages))


def _stage(progress: BuildProgress | None, name: str) -> Callable[[int, int], None] | None:
    return (lambda done, total: progress(name, done, total)) if progress else None


def _target(out: Path | str, paths: Sequence[Path | str] = ()) -> Path:
    """Resolve the folder to write, and refuse one that must not be replaced."""
    target = Path(out).expanduser().resolve()
    for path in paths:
        source = Path(path).resolve()
        if target == source or target in source.parents:
            raise ValueError(
                f"{out} is or contains {path}, which is to be indexed: give another folder for "
                "the index"
            )
    _check_replaceable(target)
    return target


def _check_replaceable(target: Path) -> None:
    """Refuse to replace anything but an empty folder, or an index with nothing beside it."""
    try:
        names = set(os.listdir(target))
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        raise ValueError(
            f"{target} is or lies under a file: give a folder for the index"
        ) from error
    except OSError as error:
        raise ValueError(_unwritable(target, error)) from error
    if names and not _is_index(target):
        raise ValueError(
            f"{target} holds other files and no index: give a new or empty folder for the index"
        )
    if others := sorted(names - _OWN_FILES):
        raise ValueError(
            f"{target} holds {others[0]!r} beside the index: move it away, or give another folder"
        )


def _is_index(folder: Path) -> bool:
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return (
        isinstance(manifest, dict)
        and isinstance(manifest.get("format_version"), int)
        and isinstance(manifest.get("encoder"), dict)
    )


def _unwritable(target: Path, error: OSError) -> str:
    return f"the index cannot be written to {target} ({error.strerror}): give another folder"


@contextmanager
def _new_folder(target: Path) -> Iterator[Path]:
    """Give a folder beside `target` to fill; it takes the place of `target` if all goes well."""
    mark = uuid.uuid4().hex[:8]
    folder = target.with_name(f".{target.name}.new-{mark}")
    made = [parent for parent in target.parents if not parent.exists()]
    try:
        _make(folder, target)
        yield folder
        _check_replaceable(target)
        _swap(folder, target, target.with_name(f".{target.name}.old-{mark}"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # a parent that is in use stays
            for parent in made:
                parent.rmdir()


def _make(folder: Path, target: Path) -> None:
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise ValueError(_unwritable(target, error)) from error


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
        _check_hashes(folder, manifest)
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
    """Read the manifest of an index and look at the sizes of its files, without opening it.

    Returns:
        `format_version`, `encoder` (`name`, `dimension`, `pooling`, `normalize`, `max_tokens`,
        `fingerprint`), `metric`, `factory`, `passages` (how many), `created` (UTC, ISO 8601) and
        `files` (name → `bytes` and `sha256`).

    Raises:
        ValueError: the folder is missing, is no index, is half-written, or is of a newer format
            version.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise ValueError(f"there is no index at {path}: build one with `hopgate index build`")
    file = folder / _MANIFEST
    if not file.is_file():
        raise ValueError(f"{path} is not an index: it has no {_MANIFEST}")
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(_damaged(folder, f"{_MANIFEST} cannot be read")) from error
    _check_fields(folder, "", manifest, {"format_version": int})
    if (version := manifest["format_version"]) > FORMAT_VERSION:
        raise ValueError(
            f"the index at {path} has format version {version}, and this hopgate reads up to "
            f"{FORMAT_VERSION}: update hopgate or build the index again"
        )
    _check_fields(folder, "", manifest, _MANIFEST_FIELDS)
    _check_fields(folder, "encoder.", manifest["encoder"], _ENCODER_FIELDS)
    _check_fields(folder, "files.", manifest["files"], {_VECTORS: dict, _PASSAGES: dict})
    for name in (_VECTORS, _PASSAGES):
        _check_fields(folder, f"files.{name}.", manifest["files"][name], _FILE_FIELDS)
        _check_size(folder, name, manifest["files"][name]["bytes"])
    return dict(manifest)


_MANIFEST_FIELDS: dict[str, type] = {
    "encoder": dict,
    "metric": str,
    "factory": str,
    "passages": int,
    "created": str,
    "files": dict,
}
_ENCODER_FIELDS: dict[str, type] = {"name": str, "fingerprint": str}
_FILE_FIELDS: dict[str, type] = {"bytes": int, "sha256": str}


def _check_fields(folder: Path, prefix: str, found: Any, fields: dict[str, type]) -> None:
    if not isinstance(found, dict):
        raise ValueError(_damaged(folder, f"{_MANIFEST} is no JSON object"))
    if missing := fields.keys() - found.keys():
        names = ", ".join(prefix + name for name in sorted(missing))
        raise ValueError(_damaged(folder, f"{_MANIFEST} lacks {names}"))
    for name, kind in fields.items():
        if not isinstance(found[name], kind):
            wrong = f"{prefix}{name} of {_MANIFEST} is {found[name]!r:.60}"
            raise ValueError(_damaged(folder, wrong))


def _check_size(folder: Path, name: str, expected: int) -> None:
    file = folder / name
    if not file.is_file():
        raise ValueError(_damaged(folder, f"{name} is missing"))
    size = file.stat().st_size
    if size != expected:
        raise ValueError(_damaged(folder, f"{name} has {size} bytes, not {expected}"))


def _check_hashes(folder: Path, manifest: dict[str, Any]) -> None:
    for name in (_VECTORS, _PASSAGES):
        entry = manifest["files"][name]
        if entry["bytes"] <= _HASH_AT_OPEN_BYTES and _sha256(folder / name) != entry["sha256"]:
            raise ValueError(_damaged(folder, f"{name} has changed since it was built"))


_State = tuple[tuple[int, int] | None, ...]
_checked: dict[Path, tuple[_State, dict[str, Any]]] = {}
_checking = Lock()


def check_index(path: Path | str) -> dict[str, Any]:
    """Check, without opening it, that an index could be opened here with its own encoder.

    Looked at are the manifest, the files as `Index.open` does, faiss, and the fingerprint of the
    encoder if it is on this machine (a model of the hub that is not is fetched when the index is
    opened). An index that was found good is looked at again only when one of its files has
    another size or time.

    Returns:
        What `info` gives.

    Raises:
        ValueError: as `Index.open`.
        RuntimeError: faiss is missing, or the embedded encoder is missing or damaged.
    """
    folder = Path(path).expanduser().resolve()
    with _checking:
        state = _state(folder)
        held = _checked.get(folder)
        if held is None or held[0] != state:
            manifest = info(path)
            _check_hashes(folder, manifest)
            _faiss()
            name = manifest["encoder"]["name"]
            if source := find_encoder(name):
                _check_fingerprint(folder, manifest, name, source.fingerprint)
            held = _checked[folder] = (state, manifest)
        return deepcopy(held[1])


def _state(folder: Path) -> _State:
    """Give size and time of each file of an index; None for one that is missing."""
    return tuple(_stat(folder / name) for name in (_MANIFEST, _VECTORS, _PASSAGES))


def _stat(file: Path) -> tuple[int, int] | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns


def _damaged(folder: Path, what: str) -> str:
    return f"the index at {folder} is damaged or half-written: {what}; build it again"


def _matching_encoder(folder: Path, manifest: dict[str, Any], name: str) -> Encoder:
    """Load an encoder if it is the one that the index was built with."""
    _check_fingerprint(folder, manifest, name, resolve_encoder(name).fingerprint)
    built_with = manifest["encoder"]
    encoder = load_encoder(name)
    for key, value in _describe(encoder).items():
        if key != "name" and value != built_with.get(key):
            raise ValueError(
                f"the index at {folder} was built with {key} {built_with.get(key)}, and encoder "
                f"{name} here has {value}: build it again"
            )
    return encoder


def _check_fingerprint(folder: Path, manifest: dict[str, Any], name: str, fingerprint: str) -> None:
    built_with = manifest["encoder"]
    if fingerprint != built_with["fingerprint"]:
        raise ValueError(
            f"the index at {folder} was built with encoder {built_with['name']}, and {name} here "
            "has other weights: name the encoder it was built with, or build it again"
        )


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
