"""Building and changing an index: documents or passages in, one change out."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Unpack

from typing_extensions import TypedDict

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
from hopgate.retrievers.encoders import (
    DEFAULT_ENCODER,
    AnyEncoder,
    Encoder,
    as_encoder,
    load_encoder,
)
from hopgate.retrievers.filters import is_pattern
from hopgate.retrievers.index.change import BuildProgress, Change
from hopgate.retrievers.index.change import BuildReport as BuildReport
from hopgate.retrievers.index.manifest import (
    Built,
    Manifest,
    changed_files,
    describe,
    info,
)
from hopgate.retrievers.index.reader import Parts, matching_encoder, own_encoder
from hopgate.retrievers.index.vectors import load_faiss, new_index
from hopgate.retrievers.index.writing import writing
from hopgate.retrievers.langchain import documents_in
from hopgate.retrievers.stores.change import StoreChange
from hopgate.retrievers.stores.collection import Collection, StoreInfo
from hopgate.retrievers.stores.names import check_folder, is_store

if TYPE_CHECKING:
    from langchain_core.documents import Document

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
        language: One of `LANGUAGES`; by default detected when the index is made.
        query_prefix: Prefix of each query; by default the encoder's own.
        passage_prefix: Prefix of each passage; likewise.
        mode: The default mode of searches; `auto` measures which, as for a new index.
        replace: Allow a build that changes the encoder of the index, or removes most of its
            passages.
    """

    factory: str | None
    language: str
    query_prefix: str | None
    passage_prefix: str | None
    mode: str
    replace: bool


def build_index(
    paths: Sequence[Path | str] | Iterable[Document],
    out: Path | str,
    encoder: AnyEncoder = None,
    progress: BuildProgress | None = None,
    **options: Unpack[BuildOptions],
) -> BuildReport:
    """Build an index from files and folders; an index already at `out` is brought up to date.

    `out`, FAISS and the encoder are checked before the first file is read. Passages that the index
    at `out` already has are not encoded again. A killed build resumes with the rest.

    Args:
        paths: Files, or folders of them, see `load_documents`; or documents of LangChain, from any
            loader or splitter, read one by one, see `documents_in`.
        out: The folder of the index.
        encoder: See `load_encoder`, or one that is loaded; None for that of the index at `out`,
            else `minilm`.
        progress: Called as the work goes on.
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
    given = documents_in(paths)
    if isinstance(given, Iterator):
        return build_from_passages(given, out, encoder, progress, **options)
    check_apart(out, given)
    found = find_files(given)
    with building(out, encoder, progress, **options) as change:
        change.roots = _roots(given)
        _read(change, _named(found, change.roots))
        change.reading.check()
        return change.run()


def build_from_passages(
    passages: Iterable[Passage],
    out: Path | str,
    encoder: AnyEncoder = None,
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
    encoder: AnyEncoder = None,
    progress: BuildProgress | None = None,
    **options: Unpack[BuildOptions],
) -> BuildReport:
    """Build an index from files of passages with their vectors, see `VectorFile`.

    Nothing is encoded but a sample, which shows whether the vectors are those of the encoder.

    Args:
        files: .npy files.
        out: The folder of the index.
        encoder: The encoder that made the vectors, see `build_index`.
        progress: Called as the work goes on.
        options: See `BuildOptions`.

    Raises:
        ValueError: A file cannot be used, or its vectors are not those of the encoder.
        RuntimeError: See `build_index`.
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
    paths: Sequence[Path | str] | Iterable[Document],
    index: Path | str,
    encoder: AnyEncoder = None,
    progress: BuildProgress | None = None,
) -> BuildReport:
    """Add files and folders to an index; a document that is in it already is replaced.

    A file's source is its path below the folder that was indexed first, if it lies in one, else
    below the folder given. Files that cannot be read are reported and change nothing.

    Args:
        paths: Files, or folders of them, or documents of LangChain, see `build_index`.
        index: The folder of the index.
        encoder: For an encoder that has moved, see `Index.open`.
        progress: Called as the work goes on.

    Raises:
        ValueError: There is no such index or path, or nothing could be read.
        RuntimeError: See `build_index`.
    """
    given = documents_in(paths)
    if isinstance(given, Iterator):
        return add_passages(given, index, encoder, progress)
    found = find_files(given)
    with _changing(index, encoder, progress) as change:
        change.roots = sorted({*change.roots, *_roots(given)})
        sources = _read(change, _named(found, change.roots))
        change.reading.check()
        change.replace_documents(sources)
        return change.run()


def add_passages(
    passages: Iterable[Passage],
    index: Path | str,
    encoder: AnyEncoder = None,
    progress: BuildProgress | None = None,
) -> BuildReport:
    """Add passages as they are; those of the same sources are replaced, see `add`.

    Passages without a source replace nothing.

    Raises:
        ValueError: There is no such index, or no passage.
        RuntimeError: See `build_index`.
    """
    with _changing(index, encoder, progress) as change:
        change.replace_documents(_put(change, passages, index))
        return change.run()


def _put(change: AnyChange, passages: Iterable[Passage], index: Path | str) -> set[str]:
    """Put passages one by one; return the documents they come from."""
    sources = set()
    for passage in passages:
        change.incoming.put([passage])
        sources.add(encodable(passage["source"]))
    if not len(change.incoming):
        raise ValueError(f"no passages given: nothing to add to {index}")
    return sources - {""}


def sync(
    folder: Path | str | Iterable[Document],
    index: Path | str,
    encoder: AnyEncoder = None,
    progress: BuildProgress | None = None,
) -> BuildReport:
    """Make an index follow a folder: add its new files, replace changed ones, remove those gone.

    A file whose size and time have not changed is not read. Documents that were added from
    elsewhere stay. A file that cannot be read is reported, and its old passages stay. While another
    folder of the index is missing (a disk that is not mounted, say), no document is removed.

    Args:
        folder: The folder; if it was not indexed before, all of it is added. Or documents of
            LangChain, see `build_index`: those added before that do not come again are removed,
            and files stay.
        index: The folder of the index.
        encoder: For an encoder that has moved, see `Index.open`.
        progress: Called as the work goes on.

    Raises:
        ValueError: There is no such index or folder, or no file of a known kind is left in it.
        RuntimeError: See `build_index`.
    """
    if not isinstance(folder, str | Path):
        passages = documents_in(folder)
        if not isinstance(passages, Iterator):
            raise ValueError("sync follows one folder, or documents of LangChain")
        with _changing(index, encoder, progress) as change:
            sources = _put(change, passages, index)
            others = set(change.sources()) - sources
            change.replace_documents(sources, {each for each in others if not change.stamp(each)})
            return change.run()
    top, target = check_followed(folder, index)
    found = find_files([top])
    with _changing(target, encoder, progress) as change:
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
    with _changing(index, progress=progress) as change:
        patterns = any(map(is_pattern, sources))
        every = change.sources() if patterns else filter(change.has, sources)
        known, gone = set(every), set[str]()
        for pattern in sources:
            found = {each for each in known if each == pattern or fnmatchcase(each, pattern)}
            if not found:
                raise ValueError(f"the index at {index} has no source {pattern!r}")
            gone |= found
        for each in ids:
            if not change.has_passage(each):
                raise ValueError(f"the index at {index} has no passage with the id {each!r}")
        change.delete(gone, ids)
        return change.run()


def compact(index: Path | str, progress: BuildProgress | None = None) -> BuildReport:
    """Rewrite an index without deleted passages, in as few segments as possible.

    Raises:
        ValueError: There is no such index, or it is damaged.
        RuntimeError: The disk is full, or another process is changing the index.
    """
    check_folder(index, "compact")
    with _changing(index, None, progress) as change:
        change.rewrite = True
        return change.run()


@contextmanager
def building(
    out: Path | str,
    encoder: AnyEncoder,
    progress: BuildProgress | None,
    **options: Unpack[BuildOptions],
) -> Iterator[AnyChange]:
    """Prepare a change that replaces all passages of an index; see `build_index`."""
    factory, language = options.get("factory") or "", options.get("language", "")
    replace, mode = options.get("replace", False), given_mode(options.get("mode", ""))
    if factory and is_store(out):
        raise ValueError(f"--factory is for folders: leave it out, {out} indexes its own vectors")
    with _target(out, new=True) as target:
        loaded = _encoder_of(target, encoder, options)
        if factory:
            new_index(factory, loaded.dimension)  # before anything is encoded
        keep = target.info is None or _is_same(target, target.info, loaded, replace)
        if is_store(out) and replace and target.info:  # a folder's language can be changed
            keep &= language in ("", target.info["language"])
        held = target.held if keep else None
        change = target.begin(held, describe(loaded), lambda: loaded, progress)
        if isinstance(change, StoreChange):
            change.renew = not keep
        with closing(change):
            change.replace_all(may_shrink=replace)
            change.factory, change.language, change.roots = factory, language, []
            change.mode = mode
            yield change


@contextmanager
def _changing(
    index: Path | str,
    encoder: AnyEncoder = None,
    progress: BuildProgress | None = None,
) -> Iterator[AnyChange]:
    """Prepare a change of an index; its encoder is loaded when it is needed."""
    with _target(index, new=False) as target:
        assert target.info is not None
        encoder = target.encoder if encoder is None else encoder
        load = partial(matching_encoder, target.name, target.info, encoder)
        if encoder is not None:
            load()
        change = target.begin(target.held, target.info["encoder"], load, progress)
        with closing(change):
            yield change


class _Target(NamedTuple):
    """An index that is about to be changed.

    Attributes:
        name: Its folder, or the name of the collection.
        encoder: The encoder that the name of a collection asks for.
        begin: Begins a change, given `held` or None, then the other arguments of `Change`.
        held: The index as it is; None if there is none, or it is damaged.
        info: Its description.
    """

    name: Path
    encoder: str | None
    begin: Callable[..., AnyChange]
    held: Parts | StoreInfo | None
    info: Manifest | StoreInfo | None


@contextmanager
def _target(index: Path | str, *, new: bool) -> Iterator[_Target]:
    """Open an index, which may be a `new` one, to change it."""
    if is_store(index):
        collection = Collection(str(index))
        name, held = collection.name, collection.find() if new else collection.info()
        begin = partial(StoreChange, collection)
        yield _Target(Path(str(name)), name.encoder or None, begin, held, held)
        return
    folder = Path(index).expanduser().resolve() if new else _existing(index)
    if readable(folder) != str(folder):
        raise ValueError(
            f"the name of {index} is not UTF-8, so FAISS cannot open it: use another folder"
        )
    with writing(folder) as writer:
        parts = _whole(folder) if new else Parts.open(folder, info(folder, hashed=True))
        load_faiss()
        yield _Target(folder, None, partial(Change, writer), parts, parts and parts.manifest)


def _whole(folder: Path) -> Parts | None:
    """Open an index if there is one of which every byte is as it was written."""
    with suppress(ValueError):
        manifest = info(folder)
        if not changed_files(folder, manifest):
            return Parts.open(folder, manifest)
    return None


def _is_same(target: _Target, built: Built, loaded: Encoder, replace: bool) -> bool:
    """Return whether a build can keep the vectors of an index.

    Raises:
        ValueError: It cannot, and was not told to `replace` them.
    """
    same = built["encoder"] | {"name": ""} == describe(loaded) | {"name": ""}
    if not same and not replace:
        raise ValueError(
            f"{target.name} was built with encoder {built['encoder']['name']}, and this build uses "
            f"{loaded.name} with other weights or prefixes: leave out --encoder and the prefixes, "
            "or add --replace to encode everything again"
        )
    return same


def _encoder_of(target: _Target, encoder: AnyEncoder, options: BuildOptions) -> Encoder:
    """Load the encoder of a build: the one that is given, or the index's own, or the default."""
    encoder = as_encoder(target.encoder if encoder is None else encoder)
    if isinstance(encoder, Encoder):
        return encoder
    prefixes = options.get("query_prefix"), options.get("passage_prefix")
    if encoder is None and target.info:
        if prefixes == (None, None):
            return matching_encoder(target.name, target.info, None)
        encoder = own_encoder(target.name, target.info).name
    return load_encoder(DEFAULT_ENCODER if encoder is None else encoder, *prefixes)


def _read(change: AnyChange, found: FoundFiles) -> set[str]:
    """Read files; return the sources that were read, also those that now have no text."""
    sources = set()
    stage = change.stage("reading files")
    for file in read_files(found, change.reading, stage):
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
