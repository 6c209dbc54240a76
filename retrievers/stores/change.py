"""One change of a collection in an outside store: which rows come, stay and go.

Rows are written in batches and removed last. A killed change leaves whole batches, and the next
one goes on: a passage that the store has is not encoded again. The stamp of a row also counts the
rows of its document, so that half of one does not look like all of it.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from datetime import UTC, datetime
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hopgate.retrievers.automode import default_mode
from hopgate.retrievers.coverage import measure
from hopgate.retrievers.encoders import Encoder
from hopgate.retrievers.hybrid import Mode, length_norm
from hopgate.retrievers.index.change import SAMPLE, BaseChange, BuildProgress, BuildReport
from hopgate.retrievers.index.incoming import chunks
from hopgate.retrievers.index.manifest import EncoderInfo
from hopgate.retrievers.language import detect, terms
from hopgate.retrievers.stores.collection import (
    BATCH,
    STORE_VERSION,
    Collection,
    Entry,
    Listed,
    Row,
    StoreInfo,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


class StoreChange(BaseChange):
    """One change of a collection; the counterpart of `change.Change`.

    Args:
        collection: The collection.
        current: Its description; None if it is to be made.
        described: The encoder of its vectors.
        encoder: Loads the encoder; called when passages must be encoded.
        progress: Called as the work goes on.

    Attributes:
        renew: Delete the collection that is there first.
    """

    def __init__(
        self,
        collection: Collection,
        current: StoreInfo | None,
        described: EncoderInfo,
        encoder: Callable[[], Encoder],
        progress: BuildProgress | None,
    ) -> None:
        """Prepare a change that puts the incoming passages and removes none."""
        self._folder = tempfile.TemporaryDirectory(prefix="hopgate-")
        file = Path(self._folder.name) / "incoming.jsonl"
        roots = current["roots"] if current else []
        super().__init__(collection.name, file, roots, described, encoder, progress)
        self._collection, self._engine, self._info = collection, collection.engine, current
        self.renew = False
        self._leaving: Set[str] = set()  # keys of rows that go if they do not come again
        self._coming: dict[str, str] = {}  # key → id
        self._sizes: Counter[str] = Counter()  # rows of each document that comes

    def close(self) -> None:
        """Delete the incoming passages."""
        super().close()
        self._folder.cleanup()

    # The store's rows

    @cached_property
    def _held(self) -> dict[str, Listed]:
        """The rows that the store had at the start, by their keys."""
        return {row.key: row for row in self._engine.listed()} if self._info else {}

    @cached_property
    def _stamps(self) -> dict[str, str]:
        """The stamp of each document's file; empty where it is not whole."""
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for row in self._held.values():
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
        return source in self._stamps

    def has_passage(self, identity: str) -> bool:
        """Return whether the store has a passage."""
        return any(row.id == identity for row in self._held.values())

    # Changes

    def replace_all(self, *, may_shrink: bool) -> None:
        """Let the incoming passages replace all others; most of them only if it `may_shrink`."""
        self._rebuild, self._leaving = True, self._held.keys()
        self._may_shrink = may_shrink or not (self._info and self._info["complete"])

    def delete(self, sources: Set[str], ids: Sequence[str] = ()) -> None:
        """Remove documents, and passages from whatever document."""
        rows = self._held.items()
        self._leaving = {key for key, row in rows if row.source in sources or row.id in ids}

    def run(self) -> BuildReport:
        """Make the change.

        Raises:
            ValueError: No passage would be left, most would go and `replace_all` forbids it, or
                the engine does not take a passage.
            RuntimeError: The engine failed.
        """
        self._count()
        leaving = sorted(self._leaving - self._coming.keys())
        self._check_removed(len(leaving), len(self._held))
        if len(leaving) == len(self._held) and not self._coming:
            raise ValueError(
                f"this would delete every passage of {self._report.path}: delete the collection "
                "with the engine's own tools instead"
            )
        before, info = self._info, self._prepared()
        if self.renew:
            self._engine.drop()
        if before is None:
            self._engine.create(json.dumps(info), self._described["dimension"])
            self._info = info
        put = self._fill(info)
        for keys in chunks(leaving, BATCH):
            self._current()
            self._engine.remove(keys)
        info["roots"] = self.roots
        if not info["complete"] or self.mode:
            info["mode"], info["mode_reason"] = self._measured_mode(info["language"])
            info["background"] = measure(self._best, self.encoder.encode_queries)
            info["complete"] = True
        self._report.changed = bool(put or leaving or before != info)
        if self._report.changed:
            now = self._current()
            if not self._rebuild:  # other writers may have added folders meanwhile
                info["roots"] = sorted({*self.roots, *now["roots"]})
            self._engine.describe(json.dumps(info), self._described["dimension"])
        held = {row.id for row in self._held.values()}
        staying = {row.id for key, row in self._held.items() if key not in self._leaving}
        staying.update(self._coming.values())
        added, removed = len(staying - held), len(held - staying)
        return self._reported(info, passages=len(staying), added=added, removed=removed)

    def _count(self) -> None:
        """Count the rows that come, before anything is written."""
        seen, most = set[str](), self._engine.max_text_bytes
        for row in self._rows():
            texts = row.text, row.title, row.section, row.source
            longest = max(len(text.encode()) for text in texts)
            if longest > most or "\0" in "".join(texts):
                cause = f"{longest:,} bytes" if longest > most else "a NUL character"
                raise ValueError(
                    f"{self._report.path} cannot take passage {row.id} of "
                    f"{row.source or 'no source'}, which has {cause}, and nothing was changed: "
                    "split or clean it, or use a folder"
                )
            self._sizes[row.source] += row.key not in self._coming
            self._coming[row.key] = row.id
            self._report.duplicates += row.id in seen
            seen.add(row.id)

    def _rows(self) -> Iterator[Row]:
        """Read the rows that come; their stamps are right once the rows have been counted."""
        for key, stored in self.incoming:
            place = stored.places[0]
            stamp = place.stamp and f"{place.stamp}/{self._sizes[place.source]}"
            yield Row.of(stored.passage(key), stamp)

    def _current(self) -> StoreInfo:
        """Read the collection's description as it is now.

        Raises:
            RuntimeError: Another process has made the collection anew.
        """
        now = self._collection.info(whole=False)
        if self._info and now["created"] != self._info["created"]:
            raise RuntimeError(
                f"{self._report.path} was built anew by another process meanwhile, so this change "
                "was stopped: run it again"
            )
        return now

    def _prepared(self) -> StoreInfo:
        """Return the collection's description; a new one is made from a sample of passages."""
        if self._info is not None:
            if self.language not in ("", self._info["language"]):
                raise ValueError(
                    f"{self._report.path} has the language {self._info['language']}: leave "
                    "out --language, or add --replace to make it anew"
                )
            return StoreInfo(**self._info)
        texts = [f"{each.title} {each.text}" for each in self.incoming.sample(SAMPLE)]
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

    def _measured_mode(self, language: str) -> tuple[Mode, str]:
        if self.mode and self.mode != "auto":
            return self.mode
        step = max(1, len(self.incoming) // SAMPLE)
        passages = [each.passage(key) for key, each in islice(self.incoming, 0, None, step)]
        return default_mode(passages, self.encoder, language)

    def _best(self, queries: NDArray[np.float32]) -> Sequence[float]:
        return [self._engine.dense(query, 1, ())[0][1] for query in queries.tolist()]

    def _fill(self, info: StoreInfo) -> int:
        """Write the rows that the store does not have, a batch at a time; return their number."""
        stage, held, done, put = self.stage("filling the store"), self._held, 0, 0
        for batch in chunks(self._rows(), BATCH):
            rows = {
                row.key: row
                for row in batch
                if row.key not in held or held[row.key].stamp != row.stamp
            }
            if rows:
                vectors, entries = self._vectors(rows.values()), []
                for row in rows.values():
                    words = terms(info["language"], f"{row.title} {row.text}")
                    norm = length_norm(len(words), info["average_terms"])
                    entries.append(Entry(row, vectors[row.id], words, norm))
                self._current()
                self._engine.put(entries)
            done, put = done + len(batch), put + len(rows)
            stage(done, len(self.incoming))
        return put

    @cached_property
    def _stored(self) -> dict[str, str]:
        """The key of a row with each passage that the store has a vector of, by its id."""
        return {row.id: row.key for row in self._held.values()}

    def _vectors(self, rows: Iterable[Row]) -> dict[str, list[float]]:
        """Return the vectors of passages: read where the store has them, else encoded."""
        passages = {row.id: row.passage() for row in rows}
        known = sorted(self._stored[each] for each in passages if each in self._stored)
        found = {row.id: vector for row, vector in (self._engine.read(known) if known else ())}
        if fresh := [passage for each, passage in passages.items() if each not in found]:
            found |= zip((each["id"] for each in fresh), self._encoded(fresh).tolist(), strict=True)
        self._stored.update((row.id, row.key) for row in rows)
        return found


def _whole(stamps: Counter[str]) -> str:
    """Return the stamp of a document, given those of its rows; empty if it is not whole."""
    (marked, rows), *others = stamps.items()
    stamp, _, size = marked.rpartition("/")
    return stamp if not others and size == str(rows) else ""
