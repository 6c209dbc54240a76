"""Building and changing an index: documents in, a new version out.

Every change goes the same way. The passages of the new version are written next to those of the
old; what the old one has a vector for keeps it, the rest is encoded; then the FAISS index and
BM25 are made, and the version is published. If the passages are those of before, nothing is.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hopgate.retrievers.base import Passage
from hopgate.retrievers.bm25 import Bm25, Kept
from hopgate.retrievers.encoders import DEFAULT_ENCODER, Encoder, load_encoder, passage_text
from hopgate.retrievers.factory import (
    FLAT,
    Announce,
    IndexLayout,
    OldVectors,
    Searcher,
    choose,
    given,
    load_faiss,
    write,
)
from hopgate.retrievers.index import matching_encoder
from hopgate.retrievers.loaders import (
    Documents,
    Found,
    ReadProgress,
    SkippedFile,
    find_files,
    read_files,
    readable,
)
from hopgate.retrievers.manifest import (
    FORMAT_VERSION,
    METRIC,
    PASSAGES,
    VECTORS,
    WORDS,
    Manifest,
    check_all_hashes,
    describe,
    describe_files,
    info,
    looks_like_one,
    version_folder,
)
from hopgate.retrievers.store import PassageStore, PassageWriter
from hopgate.retrievers.versions import Writer, foreign, unwritable, writing

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BATCH = 512
"""Passages encoded between two saves, from which a killed build resumes."""
_BLOCK = 16_384
"""Vectors handed on at a time."""

BuildProgress = Callable[[str, int, int], None]
"""Called with the stage (`reading files`, `encoding passages`, `indexing vectors` or `indexing
words`), how many are done, and the total."""


@dataclass(frozen=True)
class BuildReport:
    """The result of a change.

    Attributes:
        path: the folder of the index.
        version: its version now.
        changed: whether there is a new version; not if everything was as asked for already.
        encoder: name of the encoder.
        factory: FAISS's factory string.
        files: files that gave passages.
        passages: passages in the index.
        added: passages that were not there before.
        removed: passages that were there before.
        encoded: passages that were encoded; the rest had their vectors from before.
        duplicates: passages given that had the same title and text as another.
        skipped: files that could not be read, and why.
    """

    path: str
    version: int
    changed: bool
    encoder: str
    factory: str
    files: int
    passages: int
    added: int
    removed: int
    encoded: int
    duplicates: int
    skipped: list[SkippedFile] = field(default_factory=list)


@dataclass(frozen=True)
class _Old:
    """The previous version."""

    manifest: Manifest
    folder: Path

    @property
    def passages(self) -> Path:
        return self.folder / PASSAGES


def build_index(
    paths: Sequence[Path | str],
    out: Path | str,
    encoder: str | Encoder = DEFAULT_ENCODER,
    progress: BuildProgress | None = None,
    factory: str | None = None,
    announce: Announce | None = None,
) -> BuildReport:
    """Build an index from files and folders; an index already at `out` is brought up to date.

    `out`, FAISS and the encoder are checked before the first file is read. Passages that the index
    at `out` already has are not encoded again. A killed build resumes with what is not encoded yet.

    Args:
        paths: files, or folders of them, see `load_documents`.
        out: the folder of the index.
        encoder: see `load_encoder`, or one that is loaded.
        progress: called as the work goes on.
        factory: FAISS's factory string; by default what suits the collection.
        announce: told, before the vectors are indexed, what is built, why, and the memory it
            will take.

    Returns:
        Counts, and the files that could not be read.

    Raises:
        ValueError: a path is missing, nothing could be read, FAISS cannot make such an index, or
            `out` cannot be written, holds something else or is (or contains) one of `paths`.
        RuntimeError: an extra or the encoder is missing, the disk is full, or another process is
            changing the index.
    """
    folder = _target(out, paths)
    found = find_files(paths)
    with writing(folder, "index build") as writer:
        change = _Change(writer, _loaded(encoder), None, factory, progress, announce)
        documents = _documents(found, change.stage("reading files"))
        change.roots = _roots(paths)
        return change.build(documents.passages, documents)


def _documents(found: Found, progress: ReadProgress | None) -> Documents:
    documents = Documents()
    for file in read_files(found, documents, progress):
        documents.passages.extend(file.passages)
    documents.check()
    return documents


def build_from_passages(
    passages: Iterable[Passage],
    out: Path | str,
    encoder: str | Encoder = DEFAULT_ENCODER,
    progress: BuildProgress | None = None,
    factory: str | None = None,
    announce: Announce | None = None,
) -> BuildReport:
    """Build an index from passages as they are, see `build_index`.

    Args:
        passages: for example from `make_passage`; those with an id seen before are left out.
        out: the folder of the index.
        encoder: see `load_encoder`, or one that is loaded.
        progress: called as the work goes on.
        factory: FAISS's factory string; by default what suits the collection.
        announce: told what is built.

    Raises:
        ValueError: there is no passage, or `out` cannot be written or holds something else.
        RuntimeError: see `build_index`.
    """
    rest = iter(passages)
    first = list(islice(rest, 1))
    if not first:
        raise ValueError(f"no passages given: nothing to index in {out}")
    folder = _target(out)
    with writing(folder, "index build") as writer:
        change = _Change(writer, _loaded(encoder), None, factory, progress, announce)
        return change.build(chain(first, rest), Documents())


def add(
    paths: Sequence[Path | str],
    index: Path | str,
    encoder: str | Encoder | None = None,
    progress: BuildProgress | None = None,
    announce: Announce | None = None,
) -> BuildReport:
    """Add files and folders to an index; a document that is in it already is replaced.

    A file's source is its path below the folder that was indexed first, if it lies in one, else
    below the folder given. Files that cannot be read are reported and change nothing.

    Args:
        paths: files, or folders of them.
        index: the folder of the index.
        encoder: for an encoder that has moved, see `Index.open`.
        progress: called as the work goes on.
        announce: told what is built.

    Raises:
        ValueError: there is no such index or path, or nothing could be read.
        RuntimeError: see `build_index`.
    """
    folder = _existing(index)
    found = find_files(paths)
    with writing(folder, "index add") as writer:
        change = _Change(writer, None, encoder, None, progress, announce)
        found.files = _known(found.files, change.roots)
        documents = _documents(found, change.stage("reading files"))
        change.roots = sorted({*change.roots, *_roots(paths)})
        sources = {passage["source"] for passage in documents.passages}
        return change.add(documents.passages, sources, documents)


def add_passages(
    passages: Iterable[Passage],
    index: Path | str,
    encoder: str | Encoder | None = None,
    progress: BuildProgress | None = None,
    announce: Announce | None = None,
) -> BuildReport:
    """Add passages as they are; those of the same sources are replaced, see `add`.

    Passages without a source replace nothing.

    Raises:
        ValueError: there is no such index, or no passage.
        RuntimeError: see `build_index`.
    """
    passages = list(passages)
    if not passages:
        raise ValueError(f"no passages given: nothing to add to {index}")
    with writing(_existing(index), "index add") as writer:
        change = _Change(writer, None, encoder, None, progress, announce)
        sources = {passage["source"] for passage in passages} - {""}
        return change.add(passages, sources, Documents())


def delete(
    index: Path | str,
    sources: Sequence[str] = (),
    ids: Sequence[str] = (),
    progress: BuildProgress | None = None,
) -> BuildReport:
    """Delete documents or single passages from an index, and from the disk.

    The version before goes at once. A passage that another document holds too stays, as that
    document's.

    Args:
        index: the folder of the index.
        sources: documents, by their source or a shell pattern such as `reports/*`.
        ids: passages, whatever document they come from.
        progress: called as the work goes on.

    Raises:
        ValueError: there is no such index, source or passage, or nothing would be left.
        RuntimeError: see `build_index`.
    """
    if not sources and not ids:
        raise ValueError("nothing to delete: give sources or ids")
    with writing(_existing(index), "index delete") as writer:
        change = _Change(writer, None, None, None, progress, None)
        return change.delete(sources, ids)


class _Change:
    """One change of an index, by the one who holds its lock.

    Args:
        writer: of the version to write.
        encoder: that of a build; None: that of the index.
        named: what to use in its place, see `Index.open`.
        factory: asked for by a build.
        progress: called as the work goes on.
        announce: told what is built.
    """

    def __init__(
        self,
        writer: Writer,
        encoder: Encoder | None,
        named: str | Encoder | None,
        factory: str | None,
        progress: BuildProgress | None,
        announce: Announce | None,
    ) -> None:
        load_faiss()
        if encoder is not None and factory is not None:
            given(factory, 1, encoder.dimension)
        self._writer = writer
        self._progress = progress
        self._announce = announce
        self._named = named
        self._old = _old(writer.folder, must=encoder is None)
        self._encoder = encoder
        self.roots: list[str] = []
        self._factory, self._auto = factory, factory is None
        if encoder is None and self._old is not None:
            self.roots = self._old.manifest.get("roots", [])
            self._factory = self._old.manifest["factory"]
            self._auto = bool(self._old.manifest.get("auto", True))

    def stage(self, name: str) -> Callable[[int, int], None] | None:
        """Return the callback of one stage."""
        progress = self._progress
        return (lambda done, total: progress(name, done, total)) if progress else None

    def build(self, passages: Iterable[Passage], documents: Documents) -> BuildReport:
        """Make the index hold these passages and no others."""
        assert self._encoder is not None
        if self._old and not _same_encoder(self._old.manifest, self._encoder):
            self._old = None
        new = self._passages()
        with closing(new):
            offered = new.put(passages)
            return self._finish(new, documents, offered - len(new), as_was=self._is_as_asked())

    def add(
        self, passages: Iterable[Passage], sources: Iterable[str], documents: Documents
    ) -> BuildReport:
        """Put these passages in the place of those of `sources`."""
        with closing(self._passages()) as new:
            new.keep(without=sources)
            before = len(new)
            offered = new.put(passages)
            return self._finish(new, documents, offered - (len(new) - before))

    def delete(self, patterns: Sequence[str], ids: Sequence[str]) -> BuildReport:
        """Leave out these documents and passages."""
        folder = self._writer.folder
        with closing(self._passages()) as new:
            if unmatched := new.unmatched(patterns):
                raise ValueError(f"the index at {folder} has no source {unmatched[0]!r}")
            if unknown := new.unknown(ids):
                raise ValueError(f"the index at {folder} has no passage with the id {unknown[0]!r}")
            new.keep(without=patterns, globs=True, ids=ids)
            if not len(new):
                raise ValueError(
                    f"this would delete every passage of {folder}: delete the folder instead"
                )
            return self._finish(new, Documents(), 0, forget=True)

    def _is_as_asked(self) -> bool:
        """Return whether the previous version has the factory that this build requests."""
        if self._old is None:
            return False
        if self._factory is None:
            return bool(self._old.manifest.get("auto"))
        return bool(self._factory == self._old.manifest["factory"])

    def _passages(self) -> PassageWriter:
        old = self._old.passages if self._old else None
        return PassageWriter(self._writer.version / PASSAGES, old)

    def _finish(
        self,
        new: PassageWriter,
        documents: Documents,
        duplicates: int,
        *,
        as_was: bool = True,
        forget: bool = False,
    ) -> BuildReport:
        """Write and publish the new version, unless nothing changed."""
        origins = new.origins()
        changed = not (as_was and new.is_old())
        encoded = 0
        if changed:
            manifest, encoded = self._write(new, origins)
            self._writer.publish(manifest, forget=forget)
        else:
            assert self._old is not None
            manifest = self._old.manifest
        before = self._old.manifest["passages"] if self._old else 0
        kept = int((origins >= 0).sum())
        return BuildReport(
            path=str(self._writer.folder),
            version=manifest["version"],
            changed=changed,
            encoder=manifest["encoder"]["name"],
            factory=manifest["factory"],
            files=documents.files,
            passages=len(new),
            added=len(new) - kept,
            removed=before - kept,
            encoded=encoded,
            duplicates=duplicates,
            skipped=documents.skipped,
        )

    def _write(self, new: PassageWriter, origins: NDArray[np.int64]) -> tuple[Manifest, int]:
        described = self._described()
        dimension = described["dimension"]
        unencoded = np.flatnonzero(origins < 0)
        cache = _Encoded(self._writer.work, described)
        ids = new.ids()[unencoded]
        encoded = self._encode(new, unencoded[~cache.has(ids)], len(unencoded), cache)
        fresh = cache.rows(ids)
        new.finish()
        old = self._old
        layout, reusable = self._layout(len(new), dimension)
        if self._announce:
            self._announce(str(layout))
        searcher = Searcher.open(old.folder, {}) if old else None  # its vectors live as it does
        blocks = _blocks(origins, searcher.exact if searcher else None, cache.vectors, fresh)
        settings = write(
            self._writer.version,
            layout,
            blocks,
            len(new),
            dimension,
            self._reused(origins) if reusable else None,
            self.stage("indexing vectors"),
        )
        if settings.get("recall", 1) < 0.95 and self._announce:
            self._announce(f"recall@10 is only {settings['recall']:.3f}: use another factory")
        store = PassageStore(self._writer.version / PASSAGES)
        with closing(store):
            self._write_words(store, origins)
            sources = store.sources()
        return self._manifest(described, layout, settings, len(new), sources), encoded

    def _write_words(self, store: PassageStore, origins: NDArray[np.int64]) -> None:
        """Index the words, reusing those of passages that were there before."""
        kept, missing = None, np.arange(len(origins))
        if self._old and Bm25.can_keep(self._old.folder / WORDS):
            kept = Kept(self._old.folder / WORDS, origins)
            missing = np.flatnonzero(origins < 0)
        folder = self._writer.version / WORDS
        Bm25.build(_Texts(store, missing), folder, self.stage("indexing words"), kept)

    def _described(self) -> dict[str, Any]:
        if self._encoder is not None:
            return describe(self._encoder)
        assert self._old is not None
        return dict(self._old.manifest["encoder"])

    def _encode(
        self, new: PassageWriter, waiting: NDArray[np.int64], total: int, cache: _Encoded
    ) -> int:
        """Encode the passages without a vector, saving each batch."""
        if not len(waiting):
            return 0
        encoder = self._encoder or self._matching()
        stage, done = self.stage("encoding passages"), total - len(waiting)
        for start in range(0, len(waiting), _BATCH):
            batch = list(new.read(waiting[start : start + _BATCH].tolist()))
            cache.keep([passage["id"] for passage in batch], encoder.encode_passages(batch))
            done += len(batch)
            if stage:
                stage(done, total)
        return len(waiting)

    def _matching(self) -> Encoder:
        assert self._old is not None
        manifest = self._old.manifest
        return matching_encoder(self._writer.folder, manifest, self._named)

    def _layout(self, count: int, dimension: int) -> tuple[IndexLayout, bool]:
        """Return what to build, and whether the trained FAISS index can be reused."""
        old = self._old.manifest["factory"] if self._old else None
        if self._auto and old in (None, FLAT):
            layout = choose(count, dimension)
        else:
            layout = given(self._factory or old or FLAT, count, dimension)
        return layout, layout.factory == old != FLAT

    def _reused(self, origins: NDArray[np.int64]) -> OldVectors:
        assert self._old is not None
        before = self._old.manifest["passages"]
        in_place = np.array_equal(origins[:before], np.arange(before))
        return OldVectors(self._old.folder / VECTORS, in_place)

    def _manifest(
        self, encoder: object, layout: IndexLayout, settings: object, passages: int, sources: int
    ) -> Manifest:
        return {
            "format_version": FORMAT_VERSION,
            "version": self._writer.number,
            "encoder": encoder,
            "metric": METRIC,
            "factory": layout.factory,
            "auto": self._auto,
            "search": settings,
            "passages": passages,
            "sources": sources,
            "roots": self.roots,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "files": describe_files(self._writer.version),
        }


class _Texts:
    """The texts of passages of a store, read as they are needed."""

    def __init__(self, store: PassageStore, positions: NDArray[np.int64]) -> None:
        self._store = store
        self._positions = positions

    def __len__(self) -> int:
        return len(self._positions)

    def __iter__(self) -> Iterator[str]:
        return map(passage_text, self._store.read(self._positions.tolist()))


class _Encoded:
    """Vectors of passages that a build has encoded, on disk until its version is published.

    A row holds an id and its vector. A killed build leaves whole rows, but for the last.
    """

    def __init__(self, work: Path, encoder: dict[str, Any]) -> None:
        body = {key: value for key, value in encoder.items() if key != "name"}
        key = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]
        self._file = work / f"encoded-{key}"
        self._row = np.dtype([("id", "S16"), ("vector", np.float32, (encoder["dimension"],))])
        for other in work.iterdir():
            if other != self._file:
                other.unlink()
        whole = self._rows() * self._row.itemsize
        if self._file.exists():
            os.truncate(self._file, whole)

    def _rows(self) -> int:
        return self._file.stat().st_size // self._row.itemsize if self._file.exists() else 0

    def _table(self) -> NDArray[np.void]:
        count = self._rows()
        if not count:
            return np.empty(0, dtype=self._row)
        return np.memmap(self._file, dtype=self._row, mode="r", shape=(count,))

    def has(self, ids: NDArray[np.bytes_]) -> NDArray[np.bool_]:
        """Return which passages have been encoded."""
        return np.isin(ids, self._table()["id"])

    def keep(self, ids: Sequence[str], vectors: NDArray[np.float32]) -> None:
        """Append a batch."""
        rows = np.empty(len(ids), dtype=self._row)
        rows["id"], rows["vector"] = [identity.encode() for identity in ids], vectors
        if not np.isfinite(vectors).all():
            raise RuntimeError("the encoder returned NaN or infinite values: nothing was changed")
        with self._file.open("ab", buffering=0) as file:
            file.write(rows.tobytes())

    @property
    def vectors(self) -> NDArray[np.float32]:
        """The vectors, memory-mapped, in the order in which they were encoded."""
        vectors: NDArray[np.float32] = self._table()["vector"]
        return vectors

    def rows(self, ids: NDArray[np.bytes_]) -> NDArray[np.int64]:
        """Find the rows of passages, all of which have been encoded."""
        if not len(ids):
            return np.empty(0, dtype=np.int64)
        held = np.asarray(self._table()["id"])
        order = np.argsort(held)
        return np.asarray(order[np.searchsorted(held, ids, sorter=order)], dtype=np.int64)


def _blocks(
    origins: NDArray[np.int64],
    old: NDArray[np.float32] | None,
    new: NDArray[np.float32],
    fresh: NDArray[np.int64],
) -> Iterator[NDArray[np.float32]]:
    """Yield the vectors of a version, from the version before and from those just encoded.

    Args:
        origins: position in the version before, or -1.
        old: vectors of the version before.
        new: vectors that were encoded.
        fresh: for each -1 of `origins`, its row in `new`.
    """
    used = 0
    for start in range(0, len(origins), _BLOCK):
        part = origins[start : start + _BLOCK]
        missing = part < 0
        block = np.empty((len(part), new.shape[1]), dtype=np.float32)
        if old is not None:
            block[~missing] = old[part[~missing]]
        count = int(missing.sum())
        block[missing] = new[fresh[used : used + count]]
        used += count
        yield block


def _loaded(encoder: str | Encoder) -> Encoder:
    load_faiss()
    return load_encoder(encoder) if isinstance(encoder, str) else encoder


def _same_encoder(manifest: Manifest, encoder: Encoder) -> bool:
    before, now = dict(manifest["encoder"]), describe(encoder)
    return before | {"name": ""} == now | {"name": ""}


def _old(folder: Path, *, must: bool) -> _Old | None:
    """Return the version that is there, if its files are whole.

    Raises:
        ValueError: it must be there, and is not, or is damaged.
    """
    try:
        manifest = info(folder)
        check_all_hashes(folder, manifest)
    except ValueError:
        if must:
            raise
        return None
    return _Old(manifest, version_folder(folder, manifest))


def _existing(index: Path | str) -> Path:
    """Resolve the folder of an existing index."""
    info(index)
    return Path(index).expanduser().resolve()


def _roots(paths: Sequence[Path | str]) -> list[str]:
    return sorted(str(Path(path).resolve()) for path in paths if Path(path).is_dir())


def _known(found: Sequence[tuple[Path, str]], roots: Sequence[str]) -> list[tuple[Path, str]]:
    """Name files by the folders that were indexed, so that a document keeps its source."""
    named = []
    for file, source in found:
        for root in roots:
            with suppress(ValueError):
                source = readable(file.resolve().relative_to(root))
                break
        named.append((file, source))
    return named


def _target(out: Path | str, paths: Sequence[Path | str] = ()) -> Path:
    """Resolve the folder to write to and check that it may be changed."""
    target = Path(out).expanduser().resolve()
    if readable(target) != str(target):
        raise ValueError(
            f"the name of {out} is not UTF-8, so FAISS cannot open it: use another folder"
        )
    for path in paths:
        source = Path(path).resolve()
        if target == source or target in source.parents:
            raise ValueError(
                f"{out} is or contains {path}, which is being indexed: use another folder for the "
                "index"
            )
    _check_replaceable(target)
    return target


def _check_replaceable(target: Path) -> None:
    """Check that a folder is empty, or an index with nothing beside it."""
    try:
        others = foreign(target)
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        raise ValueError(
            f"{target} is a file or lies under one: give a folder for the index"
        ) from error
    except OSError as error:
        raise ValueError(unwritable(target, error)) from error
    index = looks_like_one(target)
    if (others and not index) or index is False:
        raise ValueError(
            f"{target} contains other files and no index: use a new or empty folder for the index"
        )
    if others:
        raise ValueError(
            f"{target} contains {others[0]!r} beside the index: move it away, or use another folder"
        )
