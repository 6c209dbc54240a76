"""An index on disk, opened for searching: vectors in FAISS, words in BM25, passages in SQLite.

Its manifest names the current version of all three.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, get_args

import numpy as np

from hopgate.common.cache import Cache
from hopgate.retrievers.base import Hit, Passage, check_k, encodable
from hopgate.retrievers.bm25 import Bm25
from hopgate.retrievers.encoders import (
    Encoder,
    find_encoder,
    load_encoder,
    model_files,
    resolve_encoder,
)
from hopgate.retrievers.factory import Searcher, load_faiss
from hopgate.retrievers.hybrid import CANDIDATES, DEFAULT_MODE, Mode, fuse
from hopgate.retrievers.manifest import (
    MANIFEST,
    PASSAGES,
    WORDS,
    Manifest,
    check_hashes,
    damaged,
    describe,
    info,
    version_folder,
)
from hopgate.retrievers.store import PassageStore

if TYPE_CHECKING:
    from numpy.typing import NDArray

_Ranking = list[tuple[int, float]]
"""Positions with their scores, best first."""
_OPENING_TRIES = 10
"""How often an index is opened anew when a writer replaced it just then."""


class Index:
    """An index opened for searching, from any number of threads. Open one with `load_index`.

    It stays the version that was opened, whatever becomes of the folder.

    Attributes:
        path: its folder.
        manifest: what `info` gives.
        encoder: the encoder of its vectors, which encodes queries too.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        vectors: Searcher,
        store: PassageStore,
        encoder: Encoder,
        words: Bm25,
    ) -> None:
        """Hold parts that were opened and checked, see `Index.open`."""
        self.path = path
        self.manifest = manifest
        self.encoder = encoder
        self._vectors = vectors
        self._store = store
        self._words = words

    @classmethod
    def open(cls, path: Path | str, encoder: str | Encoder | None = None) -> Index:
        """Open the current version of an index and load its encoder.

        Args:
            path: the folder of the index.
            encoder: the encoder to use in place of the one that the manifest names, by name or
                loaded; it must be the same model (for one that has moved, say).

        Raises:
            ValueError: the folder is missing, is no index, is damaged, is of another format
                version, or was built with another encoder.
            RuntimeError: faiss or the encoder is missing.
        """
        folder = Path(path).expanduser()
        return while_it_changes(folder, lambda: cls._open(folder, encoder))

    @classmethod
    def _open(cls, folder: Path, encoder: str | Encoder | None) -> Index:
        manifest = info(folder)
        check_hashes(folder, manifest)
        load_faiss()
        loaded = matching_encoder(folder, manifest, encoder)
        version = version_folder(folder, manifest)
        try:
            vectors = Searcher.open(version, manifest["search"])
            store = PassageStore(version / PASSAGES)
            words = Bm25.open(version / WORDS)
            counts = {len(vectors), len(store), len(words)}
        except (RuntimeError, ValueError, OSError, sqlite3.DatabaseError) as error:
            raise damaged(folder, str(error).splitlines()[0]) from error
        if counts != {manifest["passages"]}:
            store.close()
            raise damaged(folder, "vectors, passages and BM25 have different lengths")
        return cls(folder, manifest, vectors, store, loaded, words)

    def __len__(self) -> int:
        """Count the passages."""
        return len(self._vectors)

    def search(
        self,
        queries: Sequence[str],
        k: int,
        mode: Mode | None = None,
        where: Mapping[str, str] | None = None,
    ) -> list[list[Hit]]:
        """Find the best passages for each query.

        Args:
            queries: search texts; what is over the encoder's `max_tokens` is cut.
            k: passages for each query, at least 1; more than there are gives all.
            mode: `dense` (the highest inner product of vectors), `bm25` (words in common) or
                `hybrid` (both, by reciprocal rank); None for the default.
            where: field → value that passages must have, for example `{"source": "a.pdf"}`.

        Returns:
            For each query, in order, its hits, best first.

        Raises:
            ValueError: `k` is below 1, `queries` is one text, or there is no such mode or field.
        """
        check_k(k)
        if isinstance(queries, str):
            raise ValueError("queries is a string: give a list of strings")
        queries = [encodable(query) for query in queries]
        mode = mode or DEFAULT_MODE
        if mode not in get_args(Mode):
            raise ValueError(f"unknown mode {mode!r}: use {', '.join(get_args(Mode))}")
        allowed = None if where is None else self._store.where(where)
        if not queries or (allowed is not None and not len(allowed)):
            return [[] for _ in queries]
        rank = {"dense": self._dense, "bm25": self._bm25, "hybrid": self._hybrid}[mode]
        return [self._hits(ranking) for ranking in rank(queries, k, allowed)]

    def _dense(
        self, queries: Sequence[str], k: int, allowed: NDArray[np.int64] | None
    ) -> list[_Ranking]:
        vectors = self.encoder.encode_queries(queries)
        return _rankings(*self._vectors.search(vectors, k, allowed))

    def _bm25(
        self, queries: Sequence[str], k: int, allowed: NDArray[np.int64] | None
    ) -> list[_Ranking]:
        mask = None
        if allowed is not None:
            mask = np.zeros(len(self), dtype=bool)
            mask[allowed] = True
        return _rankings(*self._words.search(queries, k, mask))

    def _hybrid(
        self, queries: Sequence[str], k: int, allowed: NDArray[np.int64] | None
    ) -> list[_Ranking]:
        depth = max(k, CANDIDATES)
        both = zip(
            self._dense(queries, depth, allowed), self._bm25(queries, depth, allowed), strict=True
        )
        return [
            fuse([[position for position, _ in ranking] for ranking in rankings], k)
            for rankings in both
        ]

    def _hits(self, ranking: _Ranking) -> list[Hit]:
        passages = self._store.get([position for position, _ in ranking])
        return [_hit(passage, score) for passage, (_, score) in zip(passages, ranking, strict=True)]


def _rankings(positions: NDArray[np.int64], scores: NDArray[np.float32]) -> list[_Ranking]:
    return [
        [(position, score) for position, score in zip(*row, strict=True) if position >= 0]
        for row in zip(positions.tolist(), scores.tolist(), strict=True)
    ]


def _hit(passage: Passage, score: float) -> Hit:
    hit = Hit(id=passage["id"], title=passage["title"], text=passage["text"], score=score)
    if passage["source"]:
        hit["source"] = passage["source"]
    if "page" in passage:
        hit["page"] = passage["page"]
    if "section" in passage:
        hit["section"] = passage["section"]
    return hit


_Opened = TypeVar("_Opened")


def while_it_changes(folder: Path, look: Callable[[], _Opened]) -> _Opened:
    """Run `look`, and again whenever a writer replaced the version it was reading."""
    for _ in range(_OPENING_TRIES):
        before = _stat(folder / MANIFEST)
        try:
            return look()
        except (ValueError, OSError, RuntimeError, sqlite3.Error):
            if _stat(folder / MANIFEST) == before:
                raise
    return look()


_hashed: Cache[None] = Cache()


def check_index(path: Path | str) -> Manifest:
    """Check, without opening it, that an index could be opened here with its own encoder.

    Checked are the manifest, the files as in `Index.open` (again only when one of them changes),
    FAISS, and the fingerprint of the encoder if it is on this machine (a model of the hub that is
    not is downloaded when the index is opened).

    Returns:
        The manifest, as `info` does.

    Raises:
        ValueError: See `Index.open`.
        RuntimeError: FAISS is missing, or the embedded encoder is missing or damaged.
    """
    folder = Path(path).expanduser().resolve()
    return while_it_changes(folder, lambda: _check(path))


def _check(path: Path | str) -> Manifest:
    folder = Path(path).expanduser().resolve()
    manifest = info(path)
    version = version_folder(folder, manifest)
    files = [folder / MANIFEST, *(version / name for name in manifest["files"])]
    _hashed.get(folder, lambda: check_hashes(folder, manifest), files)
    load_faiss()
    name = manifest["encoder"]["name"]
    if source := find_encoder(name):
        _check_fingerprint(folder, manifest, name, source.fingerprint)
    return manifest


def _stat(file: Path) -> tuple[int, int, int] | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


def matching_encoder(folder: Path, manifest: Manifest, encoder: str | Encoder | None) -> Encoder:
    """Load an encoder if it is the one that an index was built with.

    Raises:
        ValueError: it is another.
    """
    built_with = manifest["encoder"]
    if isinstance(encoder, Encoder):
        loaded, name = encoder, encoder.name
        _check_fingerprint(folder, manifest, name, encoder.fingerprint)
    else:
        name = encoder or manifest["encoder"]["name"]
        _check_fingerprint(folder, manifest, name, resolve_encoder(name).fingerprint)
        loaded = load_encoder(name, built_with["query_prefix"], built_with["passage_prefix"])
    for key, value in describe(loaded).items():
        if key != "name" and value != built_with.get(key):
            raise ValueError(
                f"the index at {folder} was built with {key} {built_with.get(key)!r}, and encoder "
                f"{name} has {value!r}: build the index again"
            )
    return loaded


def _check_fingerprint(folder: Path, manifest: Manifest, name: str, fingerprint: str) -> None:
    built_with = manifest["encoder"]
    if fingerprint != built_with["fingerprint"]:
        raise ValueError(
            f"the index at {folder} was built with encoder {built_with['name']}, and {name} has "
            "different weights: use the encoder it was built with, or build it again"
        )


_indexes: Cache[Index] = Cache()


def load_index(path: Path | str, encoder: str | None = None) -> Index:
    """Open an index, once per process and again when the index or its encoder changes.

    Arguments and errors are those of `Index.open`.
    """
    folder = Path(path).expanduser().resolve()
    return while_it_changes(folder, lambda: _load(folder, encoder))


def _load(folder: Path, encoder: str | None) -> Index:
    source = resolve_encoder(encoder or info(folder)["encoder"]["name"])
    files = [folder / MANIFEST, *model_files(source.folder)]
    return _indexes.get((folder, encoder), lambda: Index.open(folder, encoder), files)
