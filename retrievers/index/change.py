"""One change of an index: which passages come, stay and go, and the files to write.

`BaseChange` is the part that a change of an outside store has too.

Every change goes the same way. Tantivy gets the passages that are new or moved and drops those that
are gone; passages without a vector are encoded; the new vectors become a segment, merged with small
ones; then the new manifest is published. If nothing changed, nothing is written.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from msgspec import structs

from hopgate.retrievers.automode import GIVEN, Given, default_mode
from hopgate.retrievers.base import Passage
from hopgate.retrievers.coverage import measure
from hopgate.retrievers.documents.finding import IgnoredFiles, SkippedFile
from hopgate.retrievers.documents.reading import ReadReport
from hopgate.retrievers.encoders import Encoder, passage_text
from hopgate.retrievers.hybrid import Mode
from hopgate.retrievers.index.incoming import Encoded, Incoming, chunks
from hopgate.retrievers.index.manifest import (
    FORMAT_VERSION,
    METRIC,
    VECTORS,
    WORDS,
    EncoderInfo,
    Manifest,
    SegmentInfo,
    WordsMeta,
)
from hopgate.retrievers.index.reader import Parts
from hopgate.retrievers.index.segments import (
    DEAD_SHARE,
    Segment,
    file_names,
    is_in,
    merged_keys,
    to_merge,
    without,
    write_keys,
    write_segment,
)
from hopgate.retrievers.index.texts import Place, Stored, Words, WordsWriter, key_of
from hopgate.retrievers.index.vectors import FLAT, FLAT_UP_TO, choose
from hopgate.retrievers.index.writing import Writer
from hopgate.retrievers.language import detect

if TYPE_CHECKING:
    from hopgate.retrievers.index.vectors import Keys, Vectors

_AT_A_TIME = 1_000
"""Passages compared with those of the index at a time."""
BYTES_PER_TOKEN = 4
SAMPLE = 500
"""Passages from which the language is detected and the default mode is chosen."""
_NO_KEYS: Keys = np.empty(0, dtype=np.uint64)

BuildProgress = Callable[[str, int, int], None]
"""Called with the stage (`reading files`, `reading vectors`, `encoding passages`, `indexing words`
or `indexing vectors`), how many are done, and the total."""


@dataclass
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
        tokens: About how many tokens these had, at four bytes each.
        duplicates: Passages given that had the same title and text as another.
        skipped: Files and rows that could not be read, and why.
        ignored: Files of unknown kinds, by suffix.
    """

    path: str
    version: int = 0
    changed: bool = False
    encoder: str = ""
    factory: str = ""
    language: str = ""
    mode: str = ""
    mode_reason: str = ""
    files: int = 0
    new: int = 0
    updated: int = 0
    gone: int = 0
    unchanged: int = 0
    passages: int = 0
    added: int = 0
    removed: int = 0
    encoded: int = 0
    tokens: int = 0
    duplicates: int = 0
    skipped: list[SkippedFile] = field(default_factory=list)
    ignored: list[IgnoredFiles] = field(default_factory=list)


class BaseChange:
    """A change that puts the incoming passages into an index, and may remove others.

    Args:
        index: The name of the index.
        incoming: The file for the passages that come.
        roots: Folders that were indexed so far.
        described: The description of the encoder.
        encoder: Loads the encoder; called when passages must be encoded.
        progress: Called as the work goes on.

    Attributes:
        incoming: The passages to put into the index.
        reading: The report on the files that they come from.
        rewrite: Write everything again.
        factory: FAISS's factory string; empty for the one that suits the collection.
        language: One of `LANGUAGES`; empty for that of the index, or the one detected.
        roots: Folders that were indexed.
        unchanged: Files that were not read again.
        mode: See `Given`.
    """

    def __init__(
        self,
        index: object,
        incoming: Path,
        roots: Sequence[str],
        described: EncoderInfo,
        encoder: Callable[[], Encoder],
        progress: BuildProgress | None,
    ) -> None:
        """Prepare a change that puts the incoming passages and removes none."""
        self._described, self._encoder, self._progress = described, encoder, progress
        self.incoming = Incoming(incoming)
        self.reading = ReadReport()
        self.factory, self.language, self.roots = "", "", list(roots)
        self.rewrite, self.unchanged = False, 0
        self.mode: Given = None
        self._rebuild, self._may_shrink = False, True
        self._report = BuildReport(str(index))

    def close(self) -> None:
        """Close the file of incoming passages."""
        self.incoming.close()

    @property
    def encoder(self) -> Encoder:
        """The encoder, loaded."""
        return self._encoder()

    def stage(self, name: str) -> Callable[[int, int], None]:
        """Return the callback of one stage."""
        progress = self._progress
        return partial(progress, name) if progress else lambda done, total: None

    def has(self, source: str) -> bool:
        """Return whether the index has a document."""
        raise NotImplementedError

    def replace_documents(self, sources: Set[str], gone: Set[str] = frozenset()) -> None:
        """Let the incoming passages replace those of `sources`, and remove those of `gone`."""
        self._report.updated = updated = sum(map(self.has, sources))
        self._report.new, self._report.gone = len(sources) - updated, len(gone)
        self.delete(sources | gone)

    def delete(self, sources: Set[str], ids: Sequence[str] = ()) -> None:
        """Remove documents, and passages from whatever document."""
        raise NotImplementedError

    def _check_removed(self, removed: int, held: int) -> None:
        """Raise ValueError if most passages would go and the build may not shrink the index."""
        if not self._may_shrink and removed > held / 2:
            raise ValueError(
                f"this build would remove {removed:,} of the {held:,} passages of "
                f"{self._report.path}: add --replace if that is meant, or use `hopgate index add`"
            )

    def _encoded(self, passages: Sequence[Passage]) -> Vectors:
        """Encode some passages, and count them and their tokens."""
        sizes = (len(passage_text(each).encode()) for each in passages)
        self._report.tokens += sum(size // BYTES_PER_TOKEN for size in sizes)
        self._report.encoded += len(passages)
        vectors = self.encoder.encode_passages(passages)
        if not np.isfinite(vectors).all():
            raise RuntimeError("the encoder returned NaN or infinite values: use another encoder")
        return vectors

    def _reported(self, built: Any, **counts: Any) -> BuildReport:
        """Return the report, given the index's description and what only one kind of index has."""
        return replace(
            self._report,
            encoder=built["encoder"]["name"],
            language=built["language"],
            mode=built["mode"],
            mode_reason=built["mode_reason"],
            files=self.reading.files,
            unchanged=self.unchanged,
            skipped=self.reading.skipped,
            ignored=self.reading.ignored,
            **counts,
        )


class Change(BaseChange):
    """One change of an index whose lock is held; `run` makes it.

    Args:
        writer: Where to write.
        current: The index as it is; None for a new one.
        described: The manifest's entry for the encoder.
        encoder: Loads the encoder; called when passages must be encoded.
        progress: Called as the work goes on.
    """

    def __init__(
        self,
        writer: Writer,
        current: Parts | None,
        described: EncoderInfo,
        encoder: Callable[[], Encoder],
        progress: BuildProgress | None,
    ) -> None:
        """Prepare a change that puts the incoming passages and removes none."""
        self._manifest = manifest = current.manifest if current else None
        roots, file = manifest["roots"] if manifest else [], writer.work / "incoming.jsonl"
        super().__init__(writer.folder, file, roots, described, encoder, progress)
        self._writer, self._current = writer, current
        self._held = current.vectors.keys() if current else _NO_KEYS
        self.factory = manifest["factory"] if manifest and not manifest["auto"] else ""
        self._leaving = _NO_KEYS  # passages that may lose documents
        self._replaced: Set[str] = frozenset()  # documents whose passages are replaced
        self._forgotten: Set[int] = frozenset()  # passages that go, whatever documents have them
        self._added, self._removed = array("Q"), array("Q")
        self._moved = False

    @property
    def words(self) -> Words:
        """The words of the index as it is."""
        assert self._current is not None
        return self._current.words

    def has(self, source: str) -> bool:
        """Return whether the index has a document."""
        return self._current is not None and self.words.has(source)

    def has_passage(self, identity: str) -> bool:
        """Return whether the index has a passage."""
        return bool(len(self.words.of("id", [identity])))

    def sources(self) -> Iterable[str]:
        """List the documents."""
        return self.words.sources()

    def stamp(self, source: str) -> str:
        """Return the stamp of a document's file; empty if there is none."""
        return self.words.stamp(source)

    # Changes

    def replace_all(self, *, may_shrink: bool) -> None:
        """Let the incoming passages replace all others; most of them only if it `may_shrink`."""
        self._rebuild, self._leaving, self._may_shrink = True, self._held, may_shrink

    def delete(self, sources: Set[str], ids: Sequence[str] = ()) -> None:
        """Remove documents, and passages from whatever document."""
        forgotten = self.words.of("id", ids)
        self._leaving = np.union1d(self.words.of("source", sorted(sources)), forgotten)
        self._replaced, self._forgotten = sources, set(forgotten.tolist())

    def put_encoded(self, batches: Iterable[tuple[list[Passage], Vectors]]) -> None:
        """Add passages that come with their vectors, in place of those that a killed build encoded.

        Passages that the index has keep their vectors. After an error, nothing is kept.
        """
        saved = Encoded(self._writer, self._described)
        saved.clear()
        try:
            for passages, vectors in batches:
                self.incoming.put(passages)
                keys = np.array([key_of(each["id"]) for each in passages], dtype=np.uint64)
                new = ~is_in(keys, self._held)
                saved.keep(keys[new].tolist(), vectors[new])
        except BaseException:
            saved.clear()
            raise

    def run(self) -> BuildReport:
        """Make the change and publish it, unless nothing changes.

        Raises:
            ValueError: No passage would be left, or a file of the index is damaged.
        """
        before, report = self._manifest, self._report
        self._choose_language()
        self._compare()
        report.added, report.removed = len(self._added), len(self._removed)
        self._check_removed(report.removed, len(self._held))
        if before and not self._differs(before):
            return self._finished(before)
        words, removed = self._words_writer.commit(), np.sort(self._removed)
        keys = merged_keys(without(self._held, removed), np.array(self._added))
        if not len(keys):
            raise ValueError(
                f"this would delete every passage of {report.path}: delete the folder instead"
            )
        parts, dead = self._write_vectors(keys)
        segments = [part.described for part in parts]
        mode, mode_reason, background = self._measured(words, parts, keys)
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            version=before["version"] + 1 if before else 1,
            encoder=self._described,
            metric=METRIC,
            factory=self.factory or max(segments, key=lambda each: each["rows"])["factory"],
            auto=not self.factory,
            language=self.language,
            mode=mode,
            mode_reason=mode_reason,
            background=background,
            passages=len(keys),
            sources=len(words.sources()),
            roots=self.roots,
            segments=segments,
            dead=dead,
            words=cast(WordsMeta, words.meta),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            files=before["files"] if before else {},
            checksum="",
        )
        names = [f"{WORDS}/{file.name}" for file in words.files]
        names += [f"{VECTORS}/{name}" for each in segments for name in file_names(each)]
        self._writer.publish(manifest, [*names, dead] if dead else names)
        report.changed = True
        return self._finished(manifest)

    def _choose_language(self) -> None:
        """Detect the language of a new index."""
        if self._manifest:
            self.language = self.language or self._manifest["language"]
        elif not self.language:
            sample = self.incoming.sample(SAMPLE)
            self.language = detect(f"{stored.title} {stored.text}" for stored in sample)

    def _differs(self, before: Manifest) -> bool:
        """Return whether there is anything to publish."""
        changes = self._added or self._removed or self._moved or before["roots"] != self.roots
        renewed = self.rewrite or self._new_language or self._new_factory
        other_mode = self.mode and (self.mode == "auto" or self.mode[0] != before["mode"])
        return bool(changes or renewed or other_mode or "background" not in before)

    @property
    def _new_language(self) -> bool:
        return self._manifest is not None and self.language != self._manifest["language"]

    @property
    def _new_factory(self) -> bool:
        before = self._manifest
        return before is not None and self.factory != ("" if before["auto"] else before["factory"])

    def _measured(
        self, words: Words, parts: Sequence[Segment], keys: Keys
    ) -> tuple[Mode, str, list[float]]:
        """Measure the collection, or take over the values if it is much the same as before.

        Returns:
            The default mode, the reason, and the scores of unrelated questions.
        """
        before, mode = self._manifest, None if self.mode == "auto" else self.mode
        alike = bool(before) and not self._new_language and len(self._added) < len(keys) / 2
        if before and not self.mode and (alike or before["mode_reason"] == GIVEN):
            mode = before["mode"], before["mode_reason"]
        if mode is None:
            sample = keys[:: max(1, len(keys) // SAMPLE)].tolist()
            stored = zip(sample, words.read(sample), strict=True)
            passages = [each.passage(key) for key, each in stored]
            mode = default_mode(passages, self.encoder, self.language)
        background = before.get("background") if before and alike else None
        if background is None:
            background = measure(partial(_best, parts), self.encoder.encode_queries)
        return *mode, background

    def _finished(self, manifest: Manifest) -> BuildReport:
        version, factory, passages = (manifest[n] for n in ("version", "factory", "passages"))
        return self._reported(manifest, version=version, factory=factory, passages=passages)

    # Words

    @cached_property
    def _words_writer(self) -> WordsWriter:
        """The writer of the words, created with the first passage that changes.

        If everything is written again, or much was deleted before, it begins with a new Tantivy
        index and copies the passages that stay.
        """
        folder, current = self._writer.work / WORDS, self._current
        if current is None:
            return WordsWriter(folder, self.language)
        documents = sum(each["max_doc"] for each in current.manifest["words"]["segments"])
        worn = current.manifest["passages"] < (1 - DEAD_SHARE) * documents
        if not (worn or self.rewrite or self._new_language or current.words.outdated):
            return WordsWriter(folder, self.language, current.words)
        writer = WordsWriter(folder, self.language)
        for keys in chunks(self._held.tolist(), _AT_A_TIME):
            writer.put(zip(keys, current.words.read(keys, checked=True), strict=True))
        return writer

    def _compare(self) -> None:
        """Put new and moved passages, and remove those that are gone."""
        stage, done = self.stage("indexing words"), 0
        self._report.duplicates = len(self.incoming)
        for batch in chunks(self.incoming.merged(), _AT_A_TIME):
            self._change(dict(batch))
            done += len(batch)
            stage(done, len(self.incoming))
        leaving = without(self._leaving, merged_keys(self.incoming.keys))
        for keys in chunks(leaving.tolist(), _AT_A_TIME):
            self._change(dict.fromkeys(keys))

    def _change(self, batch: dict[int, Stored | None]) -> None:
        """Give passages the documents that they have from now on; those without any are gone."""
        held = self._read_held(batch)
        put: list[tuple[int, Stored]] = []
        gone: list[int] = []
        for key, coming in batch.items():
            had = held[key].places if key in held else ()
            places = rest = self._staying(key, had)
            if coming:
                places = tuple(dict.fromkeys([*rest, *coming.places]))
                self._report.duplicates -= not rest
            if not places:
                gone.append(key)
            elif set(places) != set(had):
                put.append((key, structs.replace(coming or held[key], places=places)))
        moved = [key for key, _ in put if key in held]
        self._added.extend(key for key, _ in put if key not in held)
        self._removed.extend(gone)
        self._moved |= bool(moved)
        if put or gone:
            self._words_writer.remove([*gone, *moved])
            self._words_writer.put(put)

    def _staying(self, key: int, places: tuple[Place, ...]) -> tuple[Place, ...]:
        if self._rebuild or key in self._forgotten:
            return ()
        return tuple(place for place in places if place.source not in self._replaced)

    def _read_held(self, keys: Iterable[int]) -> dict[int, Stored]:
        """Read those of the passages that the index has."""
        if self._current is None:
            return {}
        held = np.intersect1d(np.fromiter(keys, dtype=np.uint64), self._held).tolist()
        return dict(zip(held, self.words.read(held, checked=True), strict=True))

    # Vectors

    @cached_property
    def _segment_name(self) -> str:
        """A name for the new segment that no file has."""
        files = (self._writer.folder / VECTORS).glob("*")
        taken = {file.name.partition(".")[0].removeprefix("dead-") for file in files}
        first = self._manifest["version"] + 1 if self._manifest else 1
        return next(name for name in map(str, count(first)) if name not in taken)

    def _write_vectors(self, keys: Keys) -> tuple[list[Segment], str]:
        """Encode passages without a vector, and write the segment that the change needs.

        Returns:
            The segments, and the file of deleted vectors.
        """
        old = self._current.vectors if self._current else None
        stored = merged_keys(self._held, old.dead) if old else _NO_KEYS
        dead = without(stored, keys)
        folder = self._writer.folder / VECTORS
        parts = [Segment(folder, part.described, dead) for part in old.parts] if old else []
        fresh, read = self._encode(without(np.array(self._added), stored))
        merged = parts
        if not (self.rewrite or self._new_factory):
            merged = to_merge(parts, len(fresh))
        staying = [part for part in parts if part not in merged and part.live]
        dead = merged_keys(*(part.keys[~part.alive] for part in staying))
        if len(fresh) or any(part.live for part in merged):
            written = self._write_segment(merged, fresh, read, whole=not staying)
            staying.append(Segment(self._writer.work / VECTORS, written, _NO_KEYS))
        if not len(dead):
            return staying, ""
        name = f"{VECTORS}/dead-{self._segment_name}.keys"
        write_keys(self._writer.work / name, dead)
        return staying, name

    def _write_segment(
        self, old: Sequence[Segment], fresh: Keys, read: Callable[[slice], Vectors], *, whole: bool
    ) -> SegmentInfo:
        """Write the segment of this change, which has `whole` of the index or a part of it."""
        rows, dimension = len(fresh) + sum(each.live for each in old), self._described["dimension"]
        factory = self.factory or choose(rows)
        if not whole and rows <= FLAT_UP_TO:
            factory = FLAT
        write = partial(
            write_segment,
            self._writer.work / VECTORS / self._segment_name,
            old=old,
            fresh=fresh,
            read=read,
            dimension=dimension,
            progress=self.stage("indexing vectors"),
        )
        try:
            return write(factory)
        except ValueError:  # too few vectors are left to train such an index
            if self._rebuild:  # it can be asked for another factory
                raise
            return write(FLAT)

    def _encode(self, fresh: Keys) -> tuple[Keys, Callable[[slice], Vectors]]:
        """Encode passages, saving each batch.

        Returns:
            Their keys in the order of the vectors, and a function that reads a slice of the
            vectors.
        """
        saved = Encoded(self._writer, self._described)
        waiting = fresh[~saved.has(fresh)]
        if not len(waiting):
            return saved.ordered(fresh)
        stage, total = self.stage("encoding passages"), len(fresh)
        stage(done := total - len(waiting), total)
        for part in chunks(self.incoming.only(waiting), self.encoder.batch):
            vectors = self._encoded([stored.passage(key) for key, stored in part])
            saved.keep([key for key, _ in part], vectors)
            stage(done := done + len(part), total)
        return saved.ordered(fresh)


def _best(parts: Sequence[Segment], queries: Vectors) -> list[float]:
    """Return the highest inner product of each query with a vector."""
    found = zip(*(part.search(queries, 1) for part in parts), strict=True)
    return [max(near[0][0] for near in each if near) for each in found]
