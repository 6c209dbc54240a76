"""Building and changing an index: documents or passages in, one change out."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Unpack

from typing_extensions import TypedDict

from hopgate.common.workers import Workers
from hopgate.retrievers.automode import given_mode
from hopgate.retrievers.base import Passage, encodable
from hopgate.retrievers.documents.finding import (
    FoundFiles,
    SkippedFile,
    Stamp,
    find_files,
    readable,
    stamp_of,
)
from hopgate.retrievers.documents.reading import NO_TEXT, read_files
from hopgate.retrievers.documents.vectorfiles import VectorFile, checked_vectors
from hopgate.retrievers.encoders import DEFAULT_ENCODER, Encoder, load_encoder
from hopgate.retrievers.filters import is_pattern
from hopgate.retrievers.index.change import BuildProgress, Change
from hopgate.retrievers.index.change import BuildReport as BuildReport
from hopgate.retrievers.index.manifest import (
    Built,
    Manifest,
    changed_files,
    checked_info,
    describe,
    info,
)
from hopgate.retrievers.index.reader import Parts, matching_encoder
from hopgate.retrievers.index.vectors import Announce, check_factory, load_faiss
from hopgate.retrievers.index.writing import writing
from hopgate.retrievers.stores.change import StoreChange
from hopgate.retrievers.stores.collection import Collection, StoreInfo
from hopgate.retrievers.stores.names import check_folder, is_store

AnyChange = Change | StoreChange

_ROOT_MISSING = (
    "this folder of the index is missing, so no document was removed: bring it back, or run "
    "`hopgate index build` without it"
)
_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")
"""A byte of a file's name that is not UTF-8, as `readable` writes it."""


class BuildOptions(TypedDict, total=False):
    """Further options of a build.

    Attributes:
        factory: FAISS's factory string; by default one that suits the collection.
        announce: Called, before the vectors are indexed, with a line on which FAISS index is
            built, why, and the memory it will take.
        language: One of `LANGUAGES`; by default detected when the index is made.
        mode: The default mode of searches; `auto` measures which, as for a new index.
        replace: Allow a build that changes the encoder of the index, or removes most of its
            passages.
    """

    factory: str | None
    announce: Announce | None
    language: str
    mode: str
    replace: bool


def build_index(
    paths: Sequence[Path | str],
    out: Path | str,
    encoder: str | Encoder | None = None,
    progress: BuildProgress | None = None,
    *,
    workers: Workers | None = None,
    **options: Unpack[BuildOptions],
) -> BuildReport:
    """Build an index from files and folders; an index already at `out` is brought up to date.

    `out`, FAISS and the encoder are checked before the first file is read. Passages that the index
    at `out` already has are not encoded again. A killed build resumes with the rest.

    Args:
        paths: Files, or folders of them, see `load_documents`.
        out: The folder of the index.
        encoder: See `load_encoder`, or one that is loaded; None for that of the index at `out`,
            else `minilm`.
        progress: Called as the work goes on.
        workers: Read and encode, see `LocalWorkers`; None for this process. The index is the
            same.
        options: See `BuildOptions`.

    Returns:
        Counts, and the files that could not be read.

    Raises:
        ValueError: A path is missing, nothing could be read, FAISS cannot make such an index,
            `replace` is needed, or `out` cannot be written, contains something else or is (or
            contains) one of `paths`.
        RuntimeError: An extra or the encoder is missing, the disk is full, or another process is
            changing the index.
    """
    check_apart(out, paths)
    found = find_files(paths)
    with building(out, encoder, progress, **options) as change:
        change.roots, change.workers = _roots(paths), workers
        _read(change, _named(found, change.roots))
        change.reading.check()
        return change.run()


def build_from_passages(
    passages: Iterable[Passage],
    out: Path | str,
    encoder: str | Encoder | None = None,
    progress: BuildProgress | None = None,
    **options: Unpack[BuildOptions],
) -> BuildReport:
    """Build an index from passages as they are, see `build_index`.

    Args:
        passages: For example from `make_passage`.
        out: The folder of the index.
        encoder: See `build_index`.
        progress: Called as the work goes on.
        options: See `BuildOptions`.

    Raises:
        ValueError: There is no passage, `replace` is needed, or `out` cannot be written or
            contains something else.
        RuntimeError: See `build_index`.
    """
    with building(out, encoder, progress, **options) as change:
        change.incoming.put(passages)
        if not len(change.incoming):
            raise ValueError(f"no passages given: nothing to index in {out}")
        return change.run()


def build_from_vectors(
    files: Sequence[Path | str],
    out: Path | str,
    encoder: str | Encoder | None = None,
    progress: BuildProgress | None = None,
    **options: Unpack[BuildOptions],
) -> BuildReport:
    """Build an index from files of passages with their vectors, see `VectorFile`.

    Nothing is encoded but a sample, which shows whether the vectors are those of the encoder.

    Args:
        files: .parquet or .npy files.
        out: The folder of the index.
        encoder: The encoder that made the vectors, see `build_index`.
        progress: Called as the work goes on.
        options: See `BuildOptions`.

    Raises:
        ValueError: A file cannot be used, or its vectors are not those of the encoder.
        RuntimeError: The extra `parquet` is missing, or see `build_index`.
    """
    if is_store(out):
        raise ValueError(
            f"--vectors fills a folder: build one, then run `hopgate index push FOLDER {out}`"
        )
    opened = [VectorFile(Path(file)) for file in files]
    if not sum(file.rows for file in opened):
        raise ValueError(f"no passages given: nothing to index in {out}")
    with building(out, encoder, progress, **options) as change:
        assert isinstance(change, Change)
        change.put_encoded(checked_vectors(opened, change.encoder, change.stage("reading vectors")))
        return change.run()


def add(
    paths: Sequence[Path | str],
    index: Path | str,
    encoder: str | Encoder | None = None,
    progress: BuildProgress | None = None,
    announce: Announce | None = None,
    *,
    workers: Workers | None = None,
) -> BuildReport:
    """Add files and folders to an index; a document that is in it already is replaced.

    A file's source is its path below the folder that was indexed first, if it lies in one, else
    below the folder given. Files that cannot be read are reported and change nothing.

    Args:
        paths: Files, or folders of them.
        index: The folder of the index.
        encoder: For an encoder that has moved, see `Index.open`.
        progress: Called as the work goes on.
        announce: See `BuildOptions`.
        workers: See `build_index`.

    Raises:
        ValueError: There is no such index or path, or nothing could be read.
        RuntimeError: See `build_index`.
    """
    folder, found = _existing(index), find_files(paths)
    with _changing(folder, "index add", encoder, progress, announce) as change:
        change.roots, change.workers = sorted({*change.roots, *_roots(paths)}), workers
        sources = _read(change, _named(found, change.roots))
        change.reading.check()
        change.replace_documents(sources)
        return change.run()


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
        ValueError: There is no such index, or no passage.
        RuntimeError: See `build_index`.
    """
    passages = list(passages)
    if not passages:
        raise ValueError(f"no passages given: nothing to add to {index}")
    with _changing(_existing(index), "index add", encoder, progress, announce) as change:
        change.incoming.put(passages)
        sources = {encodable(passage["source"]) for passage in passages}
        change.replace_documents(sources - {""})
        return change.run()


def sync(
    folder: Path | str,
    index: Path | str,
    encoder: str | Encoder | None = None,
    progress: BuildProgress | None = None,
    announce: Announce | None = None,
) -> BuildReport:
    """Make an index follow a folder: add its new files, replace changed ones, remove those gone.

    A file whose size and time have not changed is not read. Documents that were added from
    elsewhere stay. A file that cannot be read is reported, and its old passages stay. While another
    folder of the index is missing (a disk that is not mounted, say), no document is removed.

    Args:
        folder: The folder; if it was not indexed before, all of it is added.
        index: The folder of the index.
        encoder: For an encoder that has moved, see `Index.open`.
        progress: Called as the work goes on.
        announce: See `BuildOptions`.

    Raises:
        ValueError: There is no such index or folder, or no file of a known kind is left in it.
        RuntimeError: See `build_index`.
    """
    top, target = check_followed(folder, index)
    found = find_files([top])
    with _changing(target, "index sync", encoder, progress, announce) as change:
        change.roots = sorted({*change.roots, str(top)})
        missing = [root for root in change.roots if not Path(root).is_dir()]
        change.reading.skipped.extend(SkippedFile(root, _ROOT_MISSING) for root in missing)
        named = _named(found, change.roots)
        gone = set() if missing else _gone(change, named)
        fresh = [
            (file, source)
            for file, source in named.files
            if change.stamp(source) != _stamp(stamp_of(file))
        ]
        change.unchanged = len(named.files) - len(fresh)
        sources = _read(change, dataclasses.replace(named, files=fresh))
        change.replace_documents(sources, gone)
        return change.run()


def check_followed(folder: Path | str, index: Path | str) -> tuple[Path, Path]:
    """Resolve a folder and the index that follows it.

    Raises:
        ValueError: There is no such folder or index, or the index is or contains the folder.
    """
    top, target = Path(folder), _existing(index)
    if not top.is_dir():
        raise ValueError(f"{folder} is not a folder: give the folder that the index follows")
    check_apart(target, [top])
    return top.resolve(), target


def delete(
    index: Path | str,
    sources: Sequence[str] = (),
    ids: Sequence[str] = (),
    progress: BuildProgress | None = None,
) -> BuildReport:
    """Delete documents or single passages from an index.

    A passage that another document contains too stays, as that document's. No search finds a
    deleted passage; it stays on disk until `compact` or a later change rewrites its segment.

    Args:
        index: The folder of the index.
        sources: Documents, by their source or a shell pattern such as `reports/*`.
        ids: Passages, whatever document they come from.
        progress: Called as the work goes on.

    Raises:
        ValueError: There is no such index, document or passage, or nothing would be left.
        RuntimeError: The disk is full, or another process is changing the index.
    """
    if not sources and not ids:
        raise ValueError("nothing to delete: give sources or ids")
    folder = _existing(index)
    with _changing(folder, "index delete", progress=progress) as change:
        patterns = any(map(is_pattern, sources))
        every = change.sources() if patterns else filter(change.has, sources)
        known, gone = set(every), set[str]()
        for pattern in sources:
            found = {each for each in known if each == pattern or fnmatchcase(each, pattern)}
            if not found:
                raise ValueError(f"the index at {folder} has no source {pattern!r}")
            gone |= found
        for each in ids:
            if not change.has_passage(each):
                raise ValueError(f"the index at {folder} has no passage with the id {each!r}")
        change.delete(gone, ids)
        return change.run()


def compact(
    index: Path | str, progress: BuildProgress | None = None, announce: Announce | None = None
) -> BuildReport:
    """Rewrite an index without deleted passages, in as few segments as possible.

    Raises:
        ValueError: There is no such index, or it is damaged.
        RuntimeError: The disk is full, or another process is changing the index.
    """
    check_folder(index, "compact")
    with _changing(_existing(index), "index compact", None, progress, announce) as change:
        change.rewrite = True
        return change.run()


@contextmanager
def building(
    out: Path | str,
    encoder: str | Encoder | None,
    progress: BuildProgress | None,
    factory: str | None = None,
    announce: Announce | None = None,
    *,
    language: str = "",
    mode: str = "",
    replace: bool = False,
) -> Iterator[AnyChange]:
    """Prepare a change that replaces all passages of an index; see `build_index`."""
    given = given_mode(mode)
    if is_store(out):
        with _building_store(str(out), encoder, progress, factory, language, replace) as change:
            change.mode = given
            yield change
        return
    folder = Path(out).expanduser().resolve()
    if readable(folder) != str(folder):
        raise ValueError(
            f"the name of {out} is not UTF-8, so FAISS cannot open it: use another folder"
        )
    with writing(folder, "index build") as writer:
        current = None
        with suppress(ValueError):  # it is missing or damaged
            if not changed_files(folder, info(folder)):
                current = Parts.open(folder, checked_info(folder))
        load_faiss()
        loaded = _encoder_of(folder, encoder, current.manifest if current else None)
        if factory:
            check_factory(factory, loaded.dimension)  # before anything is encoded
        if current and not _same_encoder(
            f"the index at {folder}", current.manifest, loaded, replace
        ):
            current = None
        own = Change(writer, current, describe(loaded), lambda: loaded, progress, announce)
        with closing(own):
            own.replace_all(may_shrink=replace)
            own.factory, own.language, own.roots = factory or "", language, []
            own.mode = given
            yield own


def _same_encoder(index: str, current: Built, loaded: Encoder, replace: bool) -> bool:
    """Return whether a build can keep the vectors of an index.

    Raises:
        ValueError: It cannot, and was not told to `replace` them.
    """
    same = current["encoder"] | {"name": ""} == describe(loaded) | {"name": ""}
    if not same and not replace:
        raise ValueError(
            f"{index} was built with encoder {current['encoder']['name']}, and this build uses "
            f"{loaded.name} with other weights or prefixes: leave out --encoder and the prefixes, "
            "or add --replace to encode everything again"
        )
    return same


@contextmanager
def _changing(
    folder: Path,
    doing: str,
    encoder: str | Encoder | None = None,
    progress: BuildProgress | None = None,
    announce: Announce | None = None,
) -> Iterator[AnyChange]:
    """Prepare a change of an index; its encoder is loaded when it is needed."""
    if is_store(folder):
        with _changing_store(str(folder), encoder, progress) as change:
            yield change
        return
    with writing(folder, doing) as writer:
        current = Parts.open(folder, checked_info(folder))
        load = partial(matching_encoder, folder, current.manifest, encoder)
        if encoder is not None:
            load()
        described = current.manifest["encoder"]
        with closing(Change(writer, current, described, load, progress, announce)) as own:
            yield own


@contextmanager
def _building_store(
    name: str,
    encoder: str | Encoder | None,
    progress: BuildProgress | None,
    factory: str | None,
    language: str,
    replace: bool,
) -> Iterator[StoreChange]:
    """Prepare a change that replaces all passages of a collection."""
    collection = Collection(name)
    store, current = collection.name, collection.find()
    if factory:
        raise ValueError(f"--factory is for folders: leave it out, {store} indexes its own vectors")
    loaded = _encoder_of(Path(str(store)), encoder or store.encoder or None, current)
    same = not current or _same_encoder(str(store), current, loaded, replace)
    renew = bool(replace and current and not (same and language in ("", current["language"])))
    kept = None if renew else current
    change = StoreChange(collection, kept, describe(loaded), lambda: loaded, progress)
    with closing(change):
        change.replace_all(may_shrink=replace)
        change.language, change.roots, change.renew = language, [], renew
        yield change


def _encoder_of(
    index: Path, encoder: str | Encoder | None, current: Manifest | StoreInfo | None
) -> Encoder:
    """Load the encoder of a build: the one that is given, or the index's own, or the default."""
    if isinstance(encoder, Encoder):
        return encoder
    if encoder is None and current:
        return matching_encoder(index, current, None)
    return load_encoder(DEFAULT_ENCODER if encoder is None else encoder)


@contextmanager
def _changing_store(
    name: str, encoder: str | Encoder | None, progress: BuildProgress | None
) -> Iterator[StoreChange]:
    """Prepare a change of a collection; its encoder is loaded when it is needed."""
    collection = Collection(name)
    current, store = collection.info(), collection.name
    encoder = encoder or store.encoder or None
    load = partial(matching_encoder, Path(str(store)), current, encoder)
    if encoder is not None:
        load()
    described = current["encoder"]
    with closing(StoreChange(collection, current, described, load, progress)) as change:
        yield change


def _read(change: AnyChange, found: FoundFiles) -> set[str]:
    """Read files; return the sources that were read, also those that now have no text."""
    sources = set()
    stage = change.stage("reading files")
    for file in read_files(found, change.reading, stage, change.workers):
        followed = any(file.file.resolve().is_relative_to(root) for root in change.roots)
        change.incoming.put(file.passages, _stamp(file.stamp) if followed else "")
        emptied = file.skipped and file.skipped.reason == NO_TEXT
        if file.skipped is None or (emptied and change.has(file.source)):
            sources.add(file.source)
    return sources


def _named(found: FoundFiles, roots: Sequence[str]) -> FoundFiles:
    """Name files by the folder that was indexed, so that a document keeps its source."""
    files = [(file, _source(file, roots) or source) for file, source in found.files]
    return dataclasses.replace(found, files=files)


def _source(file: Path, roots: Sequence[str]) -> str:
    for root in roots:
        with suppress(ValueError):
            return readable(file.resolve().relative_to(root))
    return ""


def _gone(change: AnyChange, found: FoundFiles) -> set[str]:
    """Return the documents whose files no indexed folder has any more."""
    there = {source for _, source in found.files}
    return {
        source
        for source in set(change.sources()) - there
        if not any(_exists(root, source) for root in change.roots) and change.stamp(source)
    }


def _existing(index: Path | str) -> Path:
    """Resolve the folder of an existing index; a store is looked at when it is opened."""
    if is_store(index):
        return Path(index)
    info(index)
    return Path(index).expanduser().resolve()


def _roots(paths: Sequence[Path | str]) -> list[str]:
    return sorted(str(Path(path).resolve()) for path in paths if Path(path).is_dir())


def _exists(root: str, source: str) -> bool:
    """Return whether a folder has the file of a source, see `readable`."""
    name = _ESCAPED.sub(lambda byte: bytes.fromhex(byte[1].decode()), source.encode())
    return Path(root, source).exists() or Path(root, os.fsdecode(name)).exists()


def _stamp(stamp: Stamp | None) -> str:
    return "-".join(map(str, stamp or ()))


def check_apart(out: Path | str, paths: Sequence[Path | str]) -> None:
    """Raise ValueError if an index is or contains one of the paths to be indexed."""
    target = Path(out).expanduser().resolve()
    for path in paths:
        if Path(path).resolve().is_relative_to(target) and not is_store(out):
            raise ValueError(
                f"{target} is or contains {path}, which is being indexed: use another folder for "
                "the index"
            )
