"""One change of an index: which passages come, stay and go, and the files that follow from it.

Every change goes the same way. Tantivy gets the passages that are new or moved, and forgets those
that are gone; what has no vector yet is encoded; the new vectors become a segment, merged with
small ones; then the new manifest is published. If nothing changed, nothing is.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

from hopgate.retrievers.automode import default_mode
from hopgate.retrievers.encoders import Encoder, first_line
from hopgate.retrievers.factory import (
    FLAT,
    FLAT_UP_TO,
    Announce,
    IndexLayout,
    UntrainableError,
    choose,
    given,
)
from hopgate.retrievers.hybrid import Mode
from hopgate.retrievers.incoming import Incoming
from hopgate.retrievers.language import detect
from hopgate.retrievers.manifest import (
    FORMAT_VERSION,
    METRIC,
    VECTORS,
    WORDS,
    EncoderInfo,
    Manifest,
    SegmentInfo,
    WordsMeta,
    changed_files,
    damaged,
)
from hopgate.retrievers.segments import (
    DEAD_SHARE,
    KEYS,
    Segment,
    among,
    merged_keys,
    read_keys,
    to_merge,
    write_keys,
    write_segment,
)
from hopgate.retrievers.segments import files_of as files_of_segment
from hopgate.retrievers.words import Place, Stored, Words, WordsWriter, with_places
from hopgate.retrievers.words import files_of as files_of_words
from hopgate.retrievers.writing import Writer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Keys = NDArray[np.uint64]

_BATCH = 512
"""Passages encoded between two saves, from which a killed build resumes."""
_AT_A_TIME = 1_000
"""Passages compared with those of the index at a time."""
_SAMPLE = 500
"""Passages from which the language is detected and the default mode is chosen."""
_REPEATS_COUNTED = 10_000
"""Pairs of documents with passages in common that are counted."""

BuildProgress = Callable[[str, int, int], None]
"""Called with the stage (`reading files`, `encoding passages`, `indexing words` or `indexing
vectors`), how many are done, and the total."""


@dataclass(frozen=True)
class Current:
    """An index as it is before a change."""

    folder: Path
    manifest: Manifest
    words: Words
    keys: Keys
    """The keys of its passages, ascending."""

    def files(self, kind: str) -> list[Path]:
        """List its files of one kind: `WORDS` or `VECTORS`."""
        return [self.folder / name for name in self.manifest["files"] if name.startswith(kind)]


@dataclass
class Difference:
    """What a change does to the passages.

    Attributes:
        added: Keys of passages that were not there, in the order they came.
        removed: Keys of passages that are gone.
        moved: How many passages stay and get other documents.
        sources: The documents of all of these, in a change that names its documents.
        given: How many passages were given that no other document has.
        repeats: How many passages of one document another has too: (document, other) → count.
    """

    added: list[int] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    moved: int = 0
    sources: set[str] = field(default_factory=set)
    given: int = 0
    repeats: Counter[tuple[str, str]] = field(default_factory=Counter)

    def count_repeats(self, places: Sequence[Place], given: Sequence[Place]) -> None:
        """Count a passage that a document repeats."""
        first = places[0].source
        for place in given:
            pair = place.source, first
            if place.source != first and (
                pair in self.repeats or len(self.repeats) < _REPEATS_COUNTED
            ):
                self.repeats[pair] += 1

    def __bool__(self) -> bool:
        """Return whether anything changes."""
        return bool(self.added or self.removed or self.moved)


@dataclass(frozen=True)
class Outcome:
    """The result of a change.

    Attributes:
        manifest: What describes the index now.
        difference: What became of the passages.
        encoded: How many passages were encoded.
        changed: Whether there was anything to change.
    """

    manifest: Manifest
    difference: Difference
    encoded: int
    changed: bool


@dataclass(frozen=True)
class Request:
    """What is asked of a change.

    Attributes:
        leaving: Keys of passages that may lose documents; None for all of them.
        replaced: Whether the passages of a document are replaced by the incoming ones.
        forgotten: Keys of passages that go, whatever documents contain them.
        may_shrink: Allow that most passages are removed.
        factory: FAISS's factory string; empty for what suits the collection.
        language: One of `LANGUAGES`; empty for what the index has, or what is detected.
        roots: Folders that were indexed.
        rewrite: Write everything again.
    """

    leaving: Keys | None
    replaced: Callable[[str], bool]
    forgotten: frozenset[int] = frozenset()
    may_shrink: bool = True
    factory: str = ""
    language: str = ""
    roots: list[str] = field(default_factory=list)
    rewrite: bool = False

    def kept(self, manifest: Manifest) -> Request:
        """Return the request with what it does not name as it is in the index."""
        factory = "" if manifest["auto"] else manifest["factory"]
        return replace(self, factory=factory, roots=self.roots or manifest["roots"])


class Change:
    """Changes an index whose lock is held.

    Args:
        writer: Where to write.
        current: The index as it is; None for a new one.
        described: What the manifest says about the encoder.
        encoder: Loads the encoder; called when passages must be encoded.
        progress: Called as the work goes on.
        announce: Told what is built.
    """

    def __init__(
        self,
        writer: Writer,
        current: Current | None,
        described: EncoderInfo,
        encoder: Callable[[], Encoder],
        progress: BuildProgress | None,
        announce: Announce | None,
    ) -> None:
        """Keep what is needed."""
        self.writer = writer
        self.current = current
        self._described = described
        self._encoder = encoder
        self._progress = progress
        self._announce = announce
        self._held: Keys = current.keys if current else np.empty(0, dtype=np.uint64)

    def stage(self, name: str) -> Callable[[int, int], None] | None:
        """Return the callback of one stage."""
        progress = self._progress
        return (lambda done, total: progress(name, done, total)) if progress else None

    def run(self, incoming: Incoming, request: Request) -> Outcome:
        """Make the change and publish it, unless nothing changes.

        Raises:
            ValueError: No passage would be left, or a file of the index is damaged.
        """
        current = self.current
        if request.factory:  # a wrong one is refused before anything is encoded
            given(request.factory, 1, self._described["dimension"])
        before = current.manifest["language"] if current else ""
        language = request.language or before or _detected(incoming)
        new_language = current is not None and language != before
        anew = request.rewrite or new_language
        pen = _Pen(self.writer.work / WORDS, current, language, len(incoming), anew=anew)
        found = self._compare(incoming, request, pen)
        self._check_shrinks(found, request)
        if current and not (found or anew or self._other_factory(request)):
            return Outcome(current.manifest, found, 0, changed=False)
        words, meta = pen.writer.commit()
        removed = np.sort(np.array(found.removed, dtype=np.uint64))
        keys = self._held[~among(self._held, removed)]
        keys = merged_keys(keys, np.array(found.added, dtype=np.uint64))
        if not len(keys):
            raise ValueError(
                f"this would delete every passage of {self.writer.folder}: delete the folder "
                "instead"
            )
        segments, dead, encoded = self._vectors(incoming, keys, found.added, request)
        mode, reason = self._mode(words, keys, language, found, anew=new_language)
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            version=current.manifest["version"] + 1 if current else 1,
            encoder=self._described,
            metric=METRIC,
            factory=request.factory or max(segments, key=lambda each: each["rows"])["factory"],
            auto=not request.factory,
            language=language,
            mode=mode,
            mode_reason=reason,
            passages=len(keys),
            sources=self._count_sources(words, found, request),
            roots=request.roots,
            segments=segments,
            dead=dead,
            words=cast(WordsMeta, meta),
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            files=current.manifest["files"] if current else {},
            checksum="",
        )
        self._publish(manifest)
        return Outcome(manifest, found, encoded, changed=True)

    def _count_sources(self, words: Words, found: Difference, request: Request) -> int:
        """Count the documents; after a small change only those that it touched."""
        current = self.current
        if current is None or request.leaving is None or len(found.sources) > _AT_A_TIME:
            return len(words.sources())
        came = sum(map(words.has, found.sources)) - sum(map(current.words.has, found.sources))
        return current.manifest["sources"] + came

    def _check_shrinks(self, found: Difference, request: Request) -> None:
        held = len(self._held)
        if not request.may_shrink and len(found.removed) > held / 2:
            raise ValueError(
                f"this build would remove {len(found.removed):,} of the {held:,} passages of "
                f"{self.writer.folder}: add --replace if that is meant, or use `hopgate index add`"
            )

    # Words

    def _compare(self, incoming: Incoming, request: Request, pen: _Pen) -> Difference:
        """Put what is new or has moved, and remove what is gone."""
        found = Difference()
        unique, counts = np.unique(incoming.keys, return_counts=True)
        several = set(unique[counts > 1].tolist())
        gathered: dict[int, list[Place]] = {}
        texts: dict[int, Stored] = {}
        stage, done = self.stage("indexing words"), 0
        for batch in _chunks(incoming, _AT_A_TIME):
            single = []
            for key, stored in batch:
                if key in several:
                    gathered.setdefault(key, []).extend(stored.places)
                    texts[key] = stored
                else:
                    single.append((key, stored))
            self._upsert(single, request, pen, found)
            done += len(batch)
            if stage:
                stage(done, len(incoming))
        shared = (
            (key, with_places(texts[key], tuple(dict.fromkeys(places))))
            for key, places in gathered.items()
        )
        for batch in _chunks(shared, _AT_A_TIME):
            self._upsert(batch, request, pen, found)
        leaving = self._held if request.leaving is None else request.leaving
        for keys in _chunks(leaving[~among(leaving, unique)].tolist(), _AT_A_TIME):
            self._leave(keys, request, pen, found)
        return found

    def _upsert(
        self,
        batch: Sequence[tuple[int, Stored]],
        request: Request,
        pen: _Pen,
        found: Difference,
    ) -> None:
        keys = [key for key, _ in batch]
        before = self._before(keys)
        put: list[tuple[int, Stored]] = []
        for key, stored in batch:
            had = before[key].places if key in before else ()
            rest = [place for place in had if not request.replaced(place.source)]
            places = tuple(dict.fromkeys([*rest, *stored.places]))
            found.given += not rest
            found.count_repeats(places, stored.places)
            if set(places) == set(had):
                continue
            put.append((key, with_places(stored, places)))
            found.sources.update(place.source for place in (*had, *places))
            if key not in before:
                found.added.append(key)
        found.moved += sum(key in before for key, _ in put)
        if put:
            pen.writer.put(put, [key for key, _ in put if key in before])

    def _leave(self, keys: Sequence[int], request: Request, pen: _Pen, found: Difference) -> None:
        """Take from passages the documents that are replaced; those without any are gone."""
        if request.leaving is None:
            pen.writer.remove(keys)
            found.removed.extend(keys)
            return
        put, gone = [], []
        for key, stored in self._before(keys).items():
            found.sources.update(place.source for place in stored.places)
            rest = tuple(place for place in stored.places if not request.replaced(place.source))
            if rest and key not in request.forgotten:
                put.append((key, with_places(stored, rest)))
            else:
                gone.append(key)
        if put or gone:
            pen.writer.remove(gone)
            pen.writer.put(put, [key for key, _ in put])
        found.removed.extend(gone)
        found.moved += len(put)

    def _before(self, keys: Sequence[int]) -> dict[int, Stored]:
        """Read those of the passages that the index has."""
        if self.current is None or not keys:
            return {}
        known = np.array(keys, dtype=np.uint64)
        known = known[among(known, self._held)]
        stored = self.current.words.read(known.tolist(), checked=True)
        return dict(zip(known.tolist(), stored, strict=True))

    # Vectors

    def _vectors(
        self, incoming: Incoming, keys: Keys, added: Sequence[int], request: Request
    ) -> tuple[list[SegmentInfo], str, int]:
        """Encode what has no vector, and write the segment that the change needs.

        Returns:
            The segments, the file of deleted vectors, and how many passages were encoded.
        """
        folder, described = self.writer.folder / VECTORS, self._segments()
        held = self._held
        if self.current and self.current.manifest["dead"]:
            held = merged_keys(held, read_keys(self.current.folder / self.current.manifest["dead"]))
        dead = held[~among(held, keys)]
        parts = [Segment(folder, each, dead) for each in described]
        fresh = np.array(added, dtype=np.uint64)
        fresh = fresh[~among(fresh, held)]
        fresh, vectors, encoded = self._encode(incoming, fresh)
        merged = parts
        if not (request.rewrite or self._other_factory(request)):
            merged = to_merge(parts, len(fresh), FLAT_UP_TO if not request.factory else math.inf)
        staying = [part for part in parts if part not in merged and part.living]
        segments = [part.described for part in staying]
        if rows := len(fresh) + sum(part.living for part in merged):
            layout = self._layout(request.factory, rows, whole=not staying)
            stem, dimension = (
                self.writer.work / VECTORS / self._name(),
                self._described["dimension"],
            )
            stage = self.stage("indexing vectors")
            try:
                new = write_segment(stem, layout, merged, (fresh, vectors), dimension, stage)
            except UntrainableError:
                if request.leaving is None:  # a build, which can be asked for another factory
                    raise
                layout = given(FLAT, rows, dimension)
                new = write_segment(stem, layout, merged, (fresh, vectors), dimension, stage)
            segments.append(new)
            self._warn(new)
        gone = [part.keys[~part.alive] for part in staying]
        return segments, self._write_dead(merged_keys(*gone)), encoded

    def _segments(self) -> list[SegmentInfo]:
        return self.current.manifest["segments"] if self.current else []

    def _other_factory(self, request: Request) -> bool:
        if self.current is None:
            return False
        manifest = self.current.manifest
        before = "" if manifest["auto"] else manifest["factory"]
        return before != request.factory

    def _layout(self, factory: str, rows: int, *, whole: bool) -> IndexLayout:
        dimension = self._described["dimension"]
        if not factory:
            layout = choose(rows, dimension)
        else:
            layout = given(factory if whole or rows > FLAT_UP_TO else FLAT, rows, dimension)
        if self._announce and (whole or layout.factory != FLAT):
            self._announce(str(layout))
        return layout

    def _warn(self, segment: SegmentInfo) -> None:
        recall = segment["search"].get("recall", 1)
        if recall < 0.95 and self._announce:
            self._announce(f"recall@10 is only {recall:.3f}: use another factory")

    def _name(self) -> str:
        """Return the name of the new segment, which no file has."""
        number = self.current.manifest["version"] + 1 if self.current else 1
        folder = self.writer.folder / VECTORS
        taken = (
            {path.name.partition(".")[0] for path in folder.iterdir()} if folder.exists() else {}
        )
        while str(number) in taken or f"dead-{number}" in taken:
            number += 1
        return str(number)

    def _write_dead(self, dead: Keys) -> str:
        if not len(dead):
            return ""
        file = self.writer.work / VECTORS / f"dead-{self._name()}.keys"
        write_keys(file, dead)
        return f"{VECTORS}/{file.name}"

    def _encode(
        self, incoming: Incoming, fresh: Keys
    ) -> tuple[Keys, Callable[[slice], NDArray[np.float32]], int]:
        """Encode passages, saving each batch.

        Returns:
            Their keys in the order of the vectors, what reads a slice of the vectors, and how many
            were encoded just now.
        """
        cache = _Encoded(self.writer, self._described)
        waiting = fresh[~cache.has(fresh)]
        stage, done = self.stage("encoding passages"), len(fresh) - len(waiting)
        if len(waiting):
            encoder = self._encoder()
            if stage:
                stage(done, len(fresh))
            for batch in _chunks(incoming.only(waiting), _BATCH):
                passages = [stored.passage(key) for key, stored in batch]
                cache.keep([key for key, _ in batch], encoder.encode_passages(passages))
                done += len(batch)
                if stage:
                    stage(done, len(fresh))
        fresh, vectors = cache.ordered(fresh)
        return fresh, vectors, len(waiting)

    # The whole

    def _mode(
        self, words: Words, keys: Keys, language: str, found: Difference, *, anew: bool
    ) -> tuple[Mode, str]:
        """Choose the default mode, again when the collection has become another."""
        if self.current and not anew and len(found.added) < len(keys) / 2:
            return self.current.manifest["mode"], self.current.manifest["mode_reason"]
        step = max(1, len(keys) // _SAMPLE)
        sample = keys[::step].tolist()
        passages = [s.passage(key) for key, s in zip(sample, words.read(sample), strict=True)]
        try:
            return default_mode(passages, self._encoder(), language)
        except Exception as error:  # whatever an app's own encoder raises: all else is done
            return "hybrid", f"the encoder could not be measured: {first_line(error)}"

    def _publish(self, manifest: Manifest) -> None:
        """Publish the change, once the files that it replaces turn out to be whole."""
        work, folder = self.writer.work, self.writer.folder
        files = []
        for file in files_of_words(manifest["words"], work / WORDS):
            files.append(folder / WORDS / file.name if file.is_symlink() else file)
        for segment in manifest["segments"]:
            new = files_of_segment(segment, work / VECTORS)
            files += new or files_of_segment(segment, folder / VECTORS)
        if manifest["dead"]:
            files.append(work / manifest["dead"])
        self._check_replaced({file for file in files if work not in file.parents})
        self.writer.publish(manifest, files)

    def _check_replaced(self, staying: set[Path]) -> None:
        """Hash the files whose content was read to write new ones: damage must not pass on."""
        if self.current is None:
            return
        names = self.current.manifest["files"]
        replaced = [
            name
            for name in names
            if self.writer.folder / name not in staying or name.endswith(KEYS)
        ]
        if wrong := changed_files(self.writer.folder, self.current.manifest, only=replaced):
            raise damaged(self.writer.folder, f"{wrong[0]} has changed since it was written")


class _Pen:
    """Holds the writer of the words, which starts with the first passage that changes.

    It starts from nothing and copies what stays if `anew` is set, or much was deleted before.
    """

    def __init__(
        self, folder: Path, current: Current | None, language: str, fresh: int, *, anew: bool
    ) -> None:
        self._folder = folder
        self._current = current
        self._language = language
        self._fresh = fresh
        self._anew = anew

    @cached_property
    def writer(self) -> WordsWriter:
        current = self._current
        if current is None:
            return WordsWriter(self._folder, self._language, expected=self._fresh)
        meta = current.manifest["words"]
        if not (self._anew or _worn(current.manifest)):
            files = current.files(WORDS)
            return WordsWriter(self._folder, self._language, files, meta, self._fresh)
        expected = len(current.keys) + self._fresh
        writer = WordsWriter(self._folder, self._language, expected=expected)
        for keys in _chunks(current.keys.tolist(), _AT_A_TIME):
            writer.put(zip(keys, current.words.read(keys, checked=True), strict=True))
        return writer


class _Encoded:
    """Vectors of passages that a build has encoded, on disk until they are published.

    A row holds a key and its vector. A killed build leaves whole rows, but for the last.
    """

    def __init__(self, writer: Writer, encoder: EncoderInfo) -> None:
        body = {key: value for key, value in encoder.items() if key != "name"}
        key = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]
        self._file = writer.encoded(key)
        self._row = np.dtype([("key", "<u8"), ("vector", "<f4", (encoder["dimension"],))])
        if self._file.exists():
            os.truncate(self._file, self._count() * self._row.itemsize)

    def _count(self) -> int:
        return self._file.stat().st_size // self._row.itemsize if self._file.exists() else 0

    def _table(self) -> NDArray[np.void]:
        count = self._count()
        if not count:
            return np.empty(0, dtype=self._row)
        return np.memmap(self._file, dtype=self._row, mode="r", shape=(count,))

    def has(self, keys: Keys) -> NDArray[np.bool_]:
        """Return which passages have been encoded."""
        return np.isin(keys, self._table()["key"])

    def keep(self, keys: Sequence[int], vectors: NDArray[np.float32]) -> None:
        """Append a batch."""
        if not np.isfinite(vectors).all():
            raise RuntimeError("the encoder returned NaN or infinite values: nothing was changed")
        rows = np.empty(len(keys), dtype=self._row)
        rows["key"], rows["vector"] = keys, vectors
        with self._file.open("ab", buffering=0) as file:
            file.write(rows.tobytes())

    def ordered(self, keys: Keys) -> tuple[Keys, Callable[[slice], NDArray[np.float32]]]:
        """Return encoded passages in the order of the file, and what reads a slice of vectors."""
        held = np.array(self._table()["key"])
        order = np.argsort(held)
        rows = np.sort(order[np.searchsorted(held, keys, sorter=order)])

        def read(part: slice) -> NDArray[np.float32]:
            wanted = rows[part]
            first = int(wanted[0])
            block = np.fromfile(
                self._file,
                self._row,
                count=int(wanted[-1]) - first + 1,
                offset=first * self._row.itemsize,
            )
            vectors: NDArray[np.float32] = block["vector"][wanted - first]
            return vectors

        return held[rows], read


def _detected(incoming: Incoming) -> str:
    return detect(f"{stored.title} {stored.text}" for stored in incoming.sample(_SAMPLE))


def _worn(manifest: Manifest) -> bool:
    """Return whether many of Tantivy's documents are deleted ones."""
    documents = sum(each["max_doc"] for each in manifest["words"]["segments"])
    return manifest["passages"] < (1 - DEAD_SHARE) * documents


Item = TypeVar("Item")


def _chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk
