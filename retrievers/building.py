"""Building and changing an index: documents or passages in, one change out."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hopgate.retrievers.base import Passage, encodable
from hopgate.retrievers.change import BuildProgress, Change, Current, Outcome, Request
from hopgate.retrievers.encoders import DEFAULT_ENCODER, Encoder, load_encoder
from hopgate.retrievers.factory import Announce, given, load_faiss
from hopgate.retrievers.incoming import Incoming
from hopgate.retrievers.index import Index, matching_encoder
from hopgate.retrievers.loaders import (
    NO_TEXT,
    Found,
    IgnoredFiles,
    ReadReport,
    SkippedFile,
    Stamp,
    find_files,
    read_files,
    readable,
    stamp_of,
)
from hopgate.retrievers.manifest import (
    EncoderInfo,
    changed_files,
    check_hashes,
    damaged,
    describe,
    info,
)
from hopgate.retrievers.writing import Writer, writing

_REPEATS_REPORTED = 10
_ROOT_MISSING = (
    "this folder of the index is missing, so no document was removed: bring it back, or run "
    "`hopgate index build` without it"
)
_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")
"""A byte of a file's name that is not UTF-8, as `readable` writes it."""


@dataclass(frozen=True)
class Repeat:
    """Passages that two documents have in common.

    Attributes:
        source: The document that repeats them.
        of: The one that had them first.
        passages: How many they are.
    """

    source: str
    of: str
    passages: int


@dataclass(frozen=True)
class BuildReport:
    """The result of a change.

    Attributes:
        path: The folder of the index.
        version: Its version now.
        changed: Whether there was anything to change.
        encoder: Name of the encoder.
        factory: FAISS's factory string.
        language: The language whose words BM25 knows.
        mode: The default mode.
        mode_reason: Why it is the default.
        files: Files that gave passages.
        new: Documents that were not there before; counted by `add` and `sync` only, like the next.
        updated: Documents that were there before and were read again.
        gone: Documents that `sync` removed, because their files are gone.
        unchanged: Files that `sync` did not read again.
        passages: Passages in the index.
        added: Passages that were not there before.
        removed: Passages that were there before.
        encoded: Passages that were encoded; the rest had their vectors from before.
        duplicates: Passages given that had the same title and text as another.
        repeats: Of which documents, the most frequent first; at most ten.
        skipped: Files and rows that could not be read, and why.
        ignored: Files of unknown kinds, by suffix.
    """

    path: str
    version: int
    changed: bool
    encoder: str
    factory: str
    language: str
    mode: str
    mode_reason: str
    files: int
    new: int
    updated: int
    gone: int
    unchanged: int
    passages: int
    added: int
    removed: int
    encoded: int
    duplicates: int
    repeats: list[Repeat] = field(default_factory=list)
    skipped: list[SkippedFile] = field(default_factory=list)
    ignored: list[IgnoredFiles] = field(default_factory=list)


def build_index(
    paths: Sequence[Path | str],
    out: Path | str,
    encoder: str | Encoder | None = None,
    progress: BuildProgress | None = None,
    factory: str | None = None,
    announce: Announce | None = None,
    *,
    language: str = "",
    replace: bool = False,
) -> BuildReport:
    """Build an index from files and folders; an index already at `out` is brought up to date.

    `out`, FAISS and the encoder are checked before the first file is read. Passages that the index
    at `out` already has are not encoded again. A killed build resumes with what is not encoded yet.

    Args:
        paths: Files, or folders of them, see `load_documents`.
        out: The folder of the index.
        encoder: See `load_encoder`, or one that is loaded; None for that of the index at `out`,
            else `minilm`.
        progress: Called as the work goes on.
        factory: FAISS's factory string; by default what suits the collection.
        announce: Told, before the vectors are indexed, what is built, why, and the memory it
            will take.
        language: One of `LANGUAGES`; by default what is detected when the index is made.
        replace: Allow a build that changes the encoder of the index at `out`, or removes most of
            its passages.

    Returns:
        Counts, and the files that could not be read.

    Raises:
        ValueError: A path is missing, nothing could be read, FAISS cannot make such an index,
            `replace` is needed, or `out` cannot be written, contains something else or is (or
            contains) one of `paths`.
        RuntimeError: An extra or the encoder is missing, the disk is full, or another process is
            changing the index.
    """
    folder = _target(out, paths)
    found = find_files(paths)
    roots = _roots(paths)
    with writing(folder, "index build") as writer:
        job = _Job.build(writer, encoder, progress, announce, factory, replace)
        report = ReadReport()
        with job.incoming() as incoming:
            job.read(found, roots, incoming, report)
            report.check()
            return job.build_from(incoming, report, factory, language, roots)


def build_from_passages(
    passages: Iterable[Passage],
    out: Path | str,
    encoder: str | Encoder | None = None,
    progress: BuildProgress | None = None,
    factory: str | None = None,
    announce: Announce | None = None,
    *,
    language: str = "",
    replace: bool = False,
) -> BuildReport:
    """Build an index from passages as they are, see `build_index`.

    Args:
        passages: For example from `make_passage`.
        out: The folder of the index.
        encoder: See `build_index`.
        progress: Called as the work goes on.
        factory: FAISS's factory string; by default what suits the collection.
        announce: Told what is built.
        language: See `build_index`.
        replace: See `build_index`.

    Raises:
        ValueError: There is no passage, `replace` is needed, or `out` cannot be written or
            contains something else.
        RuntimeError: See `build_index`.
    """
    rest = iter(passages)
    first = list(islice(rest, 1))
    if not first:
        raise ValueError(f"no passages given: nothing to index in {out}")
    with writing(_target(out), "index build") as writer:
        job = _Job.build(writer, encoder, progress, announce, factory, replace)
        with job.incoming() as incoming:
            incoming.put(chain(first, rest))
            return job.build_from(incoming, ReadReport(), factory, language, [])


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
        paths: Files, or folders of them.
        index: The folder of the index.
        encoder: For an encoder that has moved, see `Index.open`.
        progress: Called as the work goes on.
        announce: Told what is built.

    Raises:
        ValueError: There is no such index or path, or nothing could be read.
        RuntimeError: See `build_index`.
    """
    folder = _existing(index)
    found = find_files(paths)
    with writing(folder, "index add") as writer:
        job = _Job.change(writer, encoder, progress, announce)
        report, roots = ReadReport(), sorted({*job.roots, *_roots(paths)})
        with job.incoming() as incoming:
            sources = job.read(found, roots, incoming, report)
            report.check()
            return job.replace(incoming, sources, report, roots)


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
    with writing(_existing(index), "index add") as writer:
        job = _Job.change(writer, encoder, progress, announce)
        with job.incoming() as incoming:
            incoming.put(passages)
            sources = {encodable(passage["source"]) for passage in passages} - {""}
            return job.replace(incoming, sources, ReadReport(), job.roots)


def sync(
    folder: Path | str,
    index: Path | str,
    encoder: str | Encoder | None = None,
    progress: BuildProgress | None = None,
    announce: Announce | None = None,
) -> BuildReport:
    """Make an index follow a folder: add its new files, replace changed ones, remove those gone.

    A file whose size and time are those of last time is not read. Documents that were added from
    elsewhere stay. A file that cannot be read is reported, and its old passages stay. While another
    folder of the index is missing (a disk that is not mounted, say), no document is removed.

    Args:
        folder: The folder; if it was not indexed before, all of it is added.
        index: The folder of the index.
        encoder: For an encoder that has moved, see `Index.open`.
        progress: Called as the work goes on.
        announce: Told what is built.

    Raises:
        ValueError: There is no such index or folder, or no file of a known kind is left in it.
        RuntimeError: See `build_index`.
    """
    top, target = check_followed(folder, index)
    found = find_files([top])
    with writing(target, "index sync") as writer:
        job = _Job.change(writer, encoder, progress, announce)
        report, roots = ReadReport(), sorted({*job.roots, str(top)})
        missing = [root for root in roots if not Path(root).is_dir()]
        report.skipped.extend(SkippedFile(root, _ROOT_MISSING) for root in missing)
        gone = set() if missing else job.gone(found, roots)
        fresh = job.changed(found, roots)
        with job.incoming() as incoming:
            sources = job.read(fresh, roots, incoming, report)
            unchanged = len(found.files) - len(fresh.files)
            return job.replace(incoming, sources, report, roots, gone, unchanged)


def check_followed(folder: Path | str, index: Path | str) -> tuple[Path, Path]:
    """Resolve a folder and the index that follows it.

    Raises:
        ValueError: There is no such folder or index, or the index is or contains the folder.
    """
    top, target = Path(folder), _existing(index)
    if not top.is_dir():
        raise ValueError(f"{folder} is not a folder: give the folder that the index follows")
    _check_apart(target, [top])
    return top.resolve(), target


def delete(
    index: Path | str,
    sources: Sequence[str] = (),
    ids: Sequence[str] = (),
    progress: BuildProgress | None = None,
) -> BuildReport:
    """Delete documents or single passages from an index.

    A passage that another document contains too stays, as that document's. No search finds what
    was deleted; the disk still has it until `compact` or a later change writes its segment again.

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
    with writing(_existing(index), "index delete") as writer:
        job = _Job.change(writer, None, progress, None)
        return job.delete(sources, ids)


def compact(
    index: Path | str, progress: BuildProgress | None = None, announce: Announce | None = None
) -> BuildReport:
    """Write an index again without what was deleted, in as few segments as possible.

    Raises:
        ValueError: There is no such index, or it is damaged.
        RuntimeError: The disk is full, or another process is changing the index.
    """
    with writing(_existing(index), "index compact") as writer:
        job = _Job.change(writer, None, progress, announce)
        with job.incoming() as incoming:
            request = Request(
                leaving=np.empty(0, dtype=np.uint64), replaced=lambda _: False, rewrite=True
            )
            return job.report(job.run(incoming, request), len(incoming), ReadReport())


class _Counts(NamedTuple):
    """Counts of documents, see `BuildReport`."""

    new: int = 0
    updated: int = 0
    gone: int = 0
    unchanged: int = 0


_UNCOUNTED = _Counts()


class _Job:
    """One change of an index: what the functions above have in common."""

    def __init__(
        self,
        writer: Writer,
        current: Current | None,
        described: EncoderInfo,
        encoder: Callable[[], Encoder],
        progress: BuildProgress | None,
        announce: Announce | None,
    ) -> None:
        self._writer = writer
        self._current = current
        self._progress = progress
        self._change = Change(writer, current, described, encoder, progress, announce)
        self._may_shrink = True

    @classmethod
    def build(
        cls,
        writer: Writer,
        encoder: str | Encoder | None,
        progress: BuildProgress | None,
        announce: Announce | None,
        factory: str | None,
        replace: bool,
    ) -> _Job:
        current = _current(writer.folder, whole=True)
        load_faiss()
        if isinstance(encoder, Encoder):
            loaded = encoder
        elif encoder is None and current:
            loaded = matching_encoder(writer.folder, current.manifest, None)
        else:
            loaded = load_encoder(DEFAULT_ENCODER if encoder is None else encoder)
        if factory:
            given(factory, 1, loaded.dimension)  # before anything is encoded
        described = describe(loaded)
        if current and current.manifest["encoder"] | {"name": ""} != described | {"name": ""}:
            before = current.manifest["encoder"]["name"]
            if not replace:
                raise ValueError(
                    f"the index at {writer.folder} was built with encoder {before}, and this build "
                    f"uses {loaded.name} with other weights or prefixes: leave out --encoder and "
                    "the prefixes, or add --replace to encode everything again"
                )
            current = None
        job = cls(writer, current, described, lambda: loaded, progress, announce)
        job._may_shrink = replace
        return job

    @classmethod
    def change(
        cls,
        writer: Writer,
        encoder: str | Encoder | None,
        progress: BuildProgress | None,
        announce: Announce | None,
    ) -> _Job:
        current = _current(writer.folder)
        assert current is not None
        folder, manifest = writer.folder, current.manifest
        if encoder is not None:
            matching_encoder(folder, manifest, encoder)

        def load() -> Encoder:
            return matching_encoder(folder, manifest, encoder)

        return cls(writer, current, manifest["encoder"], load, progress, announce)

    @property
    def roots(self) -> list[str]:
        """Return the folders that were indexed before."""
        return self._current.manifest["roots"] if self._current else []

    @contextmanager
    def incoming(self) -> Iterator[Incoming]:
        with closing(Incoming(self._writer.work / "incoming.jsonl")) as incoming:
            yield incoming

    def read(
        self, found: Found, roots: Sequence[str], incoming: Incoming, report: ReadReport
    ) -> set[str]:
        """Read files; return the sources that were read, also those that now have no text."""
        sources = set()
        named = Found([_known(*each, roots) for each in found.files], found.skipped, found.ignored)
        for file in read_files(named, report, self._change.stage("reading files")):
            followed = any(file.file.resolve().is_relative_to(root) for root in roots)
            stamp = _stamp(file.stamp) if followed else ""
            incoming.put(file.passages, stamp)
            emptied = file.skipped and file.skipped.reason == NO_TEXT
            if file.skipped is None or (emptied and self._has(file.source)):
                sources.add(file.source)
        return sources

    def _has(self, source: str) -> bool:
        return self._current is not None and self._current.words.has(source)

    def changed(self, found: Found, roots: Sequence[str]) -> Found:
        """Return the files that are new, or not as they were when they were read."""
        assert self._current is not None
        words = self._current.words
        files = [
            (file, source)
            for file, source in found.files
            if words.stamp(_known(file, source, roots)[1]) != _stamp(stamp_of(file))
        ]
        return Found(files, found.skipped, found.ignored)

    def gone(self, found: Found, roots: Sequence[str]) -> set[str]:
        """Return the documents whose files no indexed folder has any more."""
        assert self._current is not None
        words = self._current.words
        there = {_known(*each, roots)[1] for each in found.files}
        return {
            source
            for source in set(words.sources()) - there
            if not any(_exists(root, source) for root in roots) and words.stamp(source)
        }

    def build_from(
        self,
        incoming: Incoming,
        read: ReadReport,
        factory: str | None,
        language: str,
        roots: list[str],
    ) -> BuildReport:
        """Make the index hold these passages and no others."""
        request = Request(
            leaving=None,
            replaced=lambda _: True,
            factory=factory or "",
            language=language,
            roots=roots,
            may_shrink=self._may_shrink,
        )
        return self.report(self._change.run(incoming, request), len(incoming), read)

    def replace(
        self,
        incoming: Incoming,
        sources: set[str],
        read: ReadReport,
        roots: list[str],
        gone: Set[str] = frozenset(),
        unchanged: int = 0,
    ) -> BuildReport:
        """Put passages in the place of those of some documents, and remove those that are gone."""
        assert self._current is not None
        words, leaving = self._current.words, sources | gone
        updated = sum(map(words.has, sources))
        counts = _Counts(len(sources) - updated, updated, len(gone), unchanged)
        request = Request(
            leaving=words.of("source", sorted(leaving)),
            replaced=leaving.__contains__,
            roots=roots,
        )
        return self.report(self.run(incoming, request), len(incoming), read, counts)

    def delete(self, patterns: Sequence[str], ids: Sequence[str]) -> BuildReport:
        assert self._current is not None
        words, folder = self._current.words, self._writer.folder
        sources: set[str] = set()
        every = words.sources() if patterns else []
        for pattern in patterns:
            found = {each for each in every if each == pattern or fnmatchcase(each, pattern)}
            if not found:
                raise ValueError(f"the index at {folder} has no source {pattern!r}")
            sources |= found
        for each in ids:
            if not len(words.of("id", [each])):
                raise ValueError(f"the index at {folder} has no passage with the id {each!r}")
        forgotten = words.of("id", ids)
        request = Request(
            leaving=np.union1d(words.of("source", sorted(sources)), forgotten),
            replaced=sources.__contains__,
            forgotten=frozenset(forgotten.tolist()),
        )
        with self.incoming() as incoming:
            return self.report(self.run(incoming, request), 0, ReadReport())

    def run(self, incoming: Incoming, request: Request) -> Outcome:
        """Run a change that keeps the factory and, unless it names some, the folders."""
        assert self._current is not None
        return self._change.run(incoming, request.kept(self._current.manifest))

    def report(
        self, outcome: Outcome, given: int, read: ReadReport, documents: _Counts = _UNCOUNTED
    ) -> BuildReport:
        manifest, difference = outcome.manifest, outcome.difference
        return BuildReport(
            path=str(self._writer.folder),
            version=manifest["version"],
            changed=outcome.changed,
            encoder=manifest["encoder"]["name"],
            factory=manifest["factory"],
            language=manifest["language"],
            mode=manifest["mode"],
            mode_reason=manifest["mode_reason"],
            files=read.files,
            new=documents.new,
            updated=documents.updated,
            gone=documents.gone,
            unchanged=documents.unchanged,
            passages=manifest["passages"],
            added=len(difference.added),
            removed=len(difference.removed),
            encoded=outcome.encoded,
            duplicates=given - difference.given,
            repeats=[
                Repeat(source, of, count)
                for (source, of), count in difference.repeats.most_common(_REPEATS_REPORTED)
            ],
            skipped=read.skipped,
            ignored=read.ignored,
        )


def _current(folder: Path, *, whole: bool = False) -> Current | None:
    """Open the index that is there.

    Args:
        folder: Its folder.
        whole: Check every byte, and return None for one that is missing or damaged.
    """
    try:
        manifest = info(folder)
        check_hashes(folder, manifest)
        if whole and (wrong := changed_files(folder, manifest)):
            raise damaged(folder, f"{wrong[0]} has changed since it was written")
        words, segments = Index.parts(folder, manifest)
    except ValueError:
        if whole:
            return None
        raise
    return Current(folder, manifest, words, segments.keys())


def _existing(index: Path | str) -> Path:
    """Resolve the folder of an existing index."""
    info(index)
    return Path(index).expanduser().resolve()


def _roots(paths: Sequence[Path | str]) -> list[str]:
    return sorted(str(Path(path).resolve()) for path in paths if Path(path).is_dir())


def _known(file: Path, source: str, roots: Sequence[str]) -> tuple[Path, str]:
    """Name a file by the folder that was indexed, so that a document keeps its source."""
    for root in roots:
        with suppress(ValueError):
            return file, readable(file.resolve().relative_to(root))
    return file, source


def _exists(root: str, source: str) -> bool:
    """Return whether a folder has the file of a source, see `readable`."""
    name = _ESCAPED.sub(lambda byte: bytes.fromhex(byte[1].decode()), source.encode())
    return Path(root, source).exists() or Path(root, os.fsdecode(name)).exists()


def _stamp(stamp: Stamp | None) -> str:
    return "-".join(map(str, stamp or ()))


def _target(out: Path | str, paths: Sequence[Path | str] = ()) -> Path:
    """Resolve the folder to write to and check that it may be changed."""
    target = Path(out).expanduser().resolve()
    if readable(target) != str(target):
        raise ValueError(
            f"the name of {out} is not UTF-8, so FAISS cannot open it: use another folder"
        )
    _check_apart(target, [Path(path) for path in paths])
    return target


def _check_apart(target: Path, paths: Sequence[Path]) -> None:
    for path in paths:
        source = path.resolve()
        if target == source or target in source.parents:
            raise ValueError(
                f"{target} is or contains {path}, which is being indexed: use another folder for "
                "the index"
            )
