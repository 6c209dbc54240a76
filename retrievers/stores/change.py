"""One change of a collection in an outside store: which rows come, stay and go.

Rows are written in batches and removed last. A killed change leaves whole batches, and the next
one goes on: a passage that the store has is not encoded again. The stamp of a row also counts the
rows of its document, so that half of one does not look like all of it.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence, Set
from datetime import UTC, datetime
from functools import cached_property, partial
from itertools import islice
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hopgate.common.errors import reason
from hopgate.common.workers import Workers
from hopgate.retrievers.automode import default_mode
from hopgate.retrievers.base import Passage
from hopgate.retrievers.coverage import measure
from hopgate.retrievers.documents.parallel import encode_with
from hopgate.retrievers.documents.reading import ReadReport
from hopgate.retrievers.encoders import Encoder
from hopgate.retrievers.hybrid import Mode
from hopgate.retrievers.index.change import BuildProgress, BuildReport, Repeat
from hopgate.retrievers.index.incoming import Incoming, chunks
from hopgate.retrievers.index.manifest import EncoderInfo
from hopgate.retrievers.index.texts import Stored
from hopgate.retrievers.language import detect, terms
from hopgate.retrievers.stores.names import StoreName
from hopgate.retrievers.stores.opening import read_info, tally
from hopgate.retrievers.stores.rows import (
    BATCH,
    STORE_VERSION,
    Collection,
    Listed,
    Row,
    StoreInfo,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

_SAMPLE = 500
"""Passages from which the language is detected and the default mode is chosen."""
_REPEATS_REPORTED = 10


class StoreChange:
    """One change of a collection; the counterpart of `change.Change`, with the same attributes.

    Args:
        store: The name of the collection.
        collection: The collection.
        current: What hopgate keeps about it; None if it is to be made.
        described: The encoder of its vectors.
        encoder: Loads the encoder; called when passages must be encoded.
        progress: Called as the work goes on.

    Attributes:
        renew: Delete the collection that is there first.
        workers: Who reads and encodes; None for this process.
    """

    def __init__(
        self,
        store: StoreName,
        collection: Collection,
        current: StoreInfo | None,
        described: EncoderInfo,
        encoder: Callable[[], Encoder],
        progress: BuildProgress | None,
    ) -> None:
        """Prepare a change that puts the incoming passages and removes none."""
        self._store, self._collection, self._info = store, collection, current
        self._described, self._encoder, self._progress = described, encoder, progress
        self._folder = tempfile.TemporaryDirectory(prefix="hopgate-")
        self.incoming = Incoming(Path(self._folder.name) / "incoming.jsonl")
        self.reading = ReadReport()
        self.factory, self.language, self.rewrite = "", "", False
        self.mode: tuple[Mode, str] | None = None
        self.workers: Workers | None = None
        self.roots = list(current["roots"]) if current else []
        self.unchanged = 0
        self.renew = self._rebuild = False
        self._may_shrink = True
        self._leaving: dict[str, Listed] = {}
        self._new = self._updated = self._gone = 0
        self._added: set[str] = set()
        self._put = self._encoded = self._duplicates = 0
        self._repeats: Counter[tuple[str, str]] = Counter()
        self._sizes: Counter[str] = Counter()  # rows of each document that comes

    def close(self) -> None:
        """Delete the incoming passages."""
        self.incoming.close()
        self._folder.cleanup()

    def stage(self, name: str) -> Callable[[int, int], None]:
        """Return the callback of one stage."""
        progress = self._progress
        return partial(progress, name) if progress else lambda done, total: None

    # What the store has

    @cached_property
    def _stamps(self) -> dict[str, str]:
        """The stamp of each document; empty where it is not whole."""
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for row in self._listed():
            if row.source:
                found[row.source][row.stamp] += 1
        return {source: _whole(stamps) for source, stamps in found.items()}

    def sources(self) -> Iterable[str]:
        """List the documents."""
        return self._stamps.keys()

    def stamp(self, source: str) -> str:
        """Return the stamp of a document's file; empty if there is none, or only a part of it."""
        return self._stamps.get(source, "")

    def has(self, source: str) -> bool:
        """Return whether the store has a document."""
        return bool(source and self._listed("source", [source]))

    def has_passage(self, identity: str) -> bool:
        """Return whether the store has a passage."""
        return bool(self._listed("id", [identity]))

    def _listed(self, field: str = "", values: Iterable[str] = ()) -> list[Listed]:
        if self._info is None:
            return []
        if not field:
            return self._collection.listed()
        parts = chunks(sorted(values), BATCH)
        return [row for some in parts for row in self._collection.listed(field, some)]

    # What is to change

    def replace_all(self, *, may_shrink: bool) -> None:
        """Let the incoming passages replace all others; most of them only if it `may_shrink`."""
        self._rebuild = True
        self._may_shrink = may_shrink or not (self._info and self._info["complete"])
        self._leaving = {row.key: row for row in self._listed()}

    def replace_documents(self, sources: Set[str], gone: Set[str] = frozenset()) -> None:
        """Let the incoming passages replace those of `sources`, and remove those of `gone`."""
        held = self._listed("source", sources | gone)
        self._updated = len(sources & {row.source for row in held})
        self._new, self._gone = len(sources) - self._updated, len(gone)
        self._leaving = {row.key: row for row in held}

    def delete(self, sources: Set[str], ids: Sequence[str]) -> None:
        """Remove documents, and passages from whatever document."""
        held = self._listed("source", sources) + self._listed("id", ids)
        self._leaving = {row.key: row for row in held}

    def run(self) -> BuildReport:
        """Make the change.

        Raises:
            ValueError: No passage would be left, most would go and `replace_all` forbids it, or
                the engine does not take a passage.
            RuntimeError: The engine failed.
        """
        before = self._info
        self._check()
        info = self._prepared()
        if self.renew:
            self._collection.drop()
        if before is None:
            self._collection.create(json.dumps(info), self._described["dimension"])
            self._info = info
        self._fill(info)
        removed = self._remove()
        info["roots"] = self.roots
        if not info["complete"] or self.mode:
            info["mode"], info["mode_reason"] = self._chosen_mode(info)
            info["background"] = self._background()
            info["complete"] = True
        if changed := bool(self._put or removed or before != info):
            self._collection.finish()
        if before != info:
            now = self._current()
            if not self._rebuild:  # other writers may have added folders meanwhile
                info["roots"] = sorted({*info["roots"], *now["roots"]})
            self._collection.describe(json.dumps(info))
        return self._report(info, tally(self._collection.listed())[0], removed, changed)

    def _check(self) -> None:
        """Check, before anything is written, what the change would do."""
        most = self._collection.max_text_bytes
        coming: set[str] = set()
        for key, stored in self.incoming:
            row = Row.of(stored.passage(key), "")
            self._sizes[row.source] += row.key not in coming
            coming.add(row.key)
            longest = max(len(text.encode()) for text in (row.text, row.title, row.section))
            if longest > most or "\0" in row.text + row.title + row.section + row.source:
                what = f"{longest:,} bytes" if longest > most else "a NUL character"
                raise ValueError(
                    f"{self._store} cannot take passage {row.id} of {row.source or 'no source'}, "
                    f"which has {what}, and nothing was changed: split or clean it, or use a folder"
                )
        gone, held = len(self._leaving.keys() - coming), len(self._leaving)
        if not self._may_shrink and gone > held / 2:
            raise ValueError(
                f"this build would remove {gone:,} of the {held:,} passages of {self._store}: add "
                "--replace if that is meant, or use `hopgate index add`"
            )
        if gone and not coming and all(each.key in self._leaving for each in self._listed()):
            raise ValueError(
                f"this would delete every passage of {self._store}: delete the collection in "
                f"{self._store.engine} instead"
            )

    def _prepared(self) -> StoreInfo:
        """Return what to keep about the collection, for a new one from a sample of passages."""
        if self._info is not None:
            if self.language not in ("", self._info["language"]):
                raise ValueError(
                    f"{self._store} has the language {self._info['language']}: leave out "
                    "--language, or add --replace to make it anew"
                )
            return StoreInfo(**self._info)
        sample = self.incoming.sample(_SAMPLE)
        texts = [f"{each.title} {each.text}" for each in sample]
        language = self.language or detect(texts)
        counts = [len(terms(language, text)) for text in texts]
        return StoreInfo(
            format_version=STORE_VERSION,
            encoder=self._described,
            language=language,
            mode="hybrid",
            mode_reason="",
            average_terms=max(float(np.mean(counts)), 1.0),
            roots=[],
            created=datetime.now(UTC).isoformat(),
            complete=False,
        )

    def _chosen_mode(self, info: StoreInfo) -> tuple[Mode, str]:
        if self.mode:
            return self.mode
        passages = [
            each.passage(int(key))
            for key, each in islice(self.incoming, 0, None, max(1, len(self.incoming) // _SAMPLE))
        ]
        try:
            return default_mode(passages, self._encoder(), info["language"])
        except Exception as error:  # whatever an app's own encoder raises: all else is done
            return "hybrid", f"the encoder could not be measured: {reason(error, 300)}"

    def _background(self) -> list[float]:
        def best(queries: Vectors) -> Sequence[float]:
            return [self._collection.search("dense", q, [], 1, ())[0][1] for q in queries.tolist()]

        try:
            return measure(best, self._encoder().encode_queries)
        except Exception:  # as above, and some engines find what was just stored only later
            return []

    def _fill(self, info: StoreInfo) -> None:
        """Write the rows that the store does not have, a batch at a time."""
        stage, done, total = self.stage("filling the store"), 0, len(self.incoming)
        seen: dict[str, str] = {}
        for batch in chunks(self.incoming, BATCH):
            rows: dict[str, Row] = {}
            for key, stored in batch:
                row = self._row(key, stored)
                self._duplicates += row.id in seen
                first = seen.setdefault(row.id, row.source)
                if row.source != first:
                    self._repeats[row.source, first] += 1
                rows[row.key] = row
            self._write(info, rows)
            done += len(batch)
            stage(done, total)

    def _row(self, key: int, stored: Stored) -> Row:
        passage, stamp = stored.passage(key), stored.places[0].stamp
        return Row.of(passage, f"{stamp}/{self._sizes[passage['source']]}" if stamp else "")

    def _current(self) -> StoreInfo:
        """Read what hopgate keeps about the collection now.

        Raises:
            RuntimeError: Another process has made the collection anew.
        """
        now = read_info(self._store, self._collection)
        if now is None or (self._info and now["created"] != self._info["created"]):
            raise RuntimeError(
                f"{self._store} was deleted or built anew by another process meanwhile, so this "
                "change was stopped: run it again"
            )
        return now

    def _write(self, info: StoreInfo, rows: dict[str, Row]) -> None:
        self._current()
        held = {each.key: each for each in self._listed("id", {row.id for row in rows.values()})}
        for key in rows:
            self._leaving.pop(key, None)
        put = [r for r in rows.values() if r.key not in held or held[r.key].stamp != r.stamp]
        if not put:
            return
        vectors = self._vectors(put, {each.id: each.key for each in held.values()})
        words = [terms(info["language"], f"{row.title} {row.text}") for row in put]
        self._collection.put(put, vectors, words, info["average_terms"])
        self._put += len(put)

    def _vectors(self, rows: Sequence[Row], held: dict[str, str]) -> Vectors:
        """Return the vectors of rows: read where the store has the passage, else encoded."""
        known = {held[row.id] for row in rows if row.id in held}
        read = self._collection.read(sorted(known)) if known else []
        found: dict[str, list[float] | Vectors] = {row.id: vector for row, vector in read}
        fresh = {row.id: row.passage() for row in rows if row.id not in found}
        if fresh:
            encoded = self._encode(list(fresh.values()))
            if not np.isfinite(encoded).all():
                raise RuntimeError("the encoder returned NaN or infinite values: nothing is lost")
            found |= dict(zip(fresh, encoded, strict=True))
            self._encoded += len(fresh)
            self._added.update(fresh)
        return np.array([found[row.id] for row in rows], dtype=np.float32)

    def _encode(self, passages: list[Passage]) -> Vectors:
        encoder = self._encoder()
        if not self.workers:
            return encoder.encode_passages(passages)
        shares = chunks(passages, ceil(len(passages) / self.workers.count))
        return np.concatenate([each for _, each in encode_with(self.workers, encoder, shares)])

    def _remove(self) -> int:
        """Remove the rows that leave; return how many passages no document has any more.

        A row that another writer has put since it was listed stays.
        """
        gone = {row.id for row in self._leaving.values()}
        if not gone:
            return 0
        self._current()
        now = [row for row in self._listed("id", gone) if self._leaving.get(row.key) == row]
        for rows in chunks(now, BATCH):
            self._collection.remove([row.key for row in rows])
        return len(gone - {row.id for row in self._listed("id", gone)})

    def _report(self, info: StoreInfo, passages: int, removed: int, changed: bool) -> BuildReport:
        repeats = self._repeats.most_common(_REPEATS_REPORTED)
        return BuildReport(
            path=str(self._store),
            version=0,
            changed=changed,
            encoder=info["encoder"]["name"],
            factory="",
            language=info["language"],
            mode=info["mode"],
            mode_reason=info["mode_reason"],
            files=self.reading.files,
            new=self._new,
            updated=self._updated,
            gone=self._gone,
            unchanged=self.unchanged,
            passages=passages,
            added=len(self._added),
            removed=removed,
            encoded=self._encoded,
            duplicates=self._duplicates,
            repeats=[Repeat(source, of, count) for (source, of), count in repeats],
            skipped=self.reading.skipped,
            ignored=self.reading.ignored,
        )


def _whole(stamps: Counter[str]) -> str:
    """Return the stamp of a document, given those of its rows; empty if it is not whole."""
    (marked, rows), *others = stamps.items()
    stamp, _, size = marked.rpartition("/")
    return stamp if not others and size == str(rows) else ""
