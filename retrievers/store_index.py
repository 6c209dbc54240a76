"""A collection of an outside store, opened for searching."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from hopgate.retrievers.base import Hit, check_k, encodable
from hopgate.retrievers.coverage import background_of
from hopgate.retrievers.encoders import Encoder
from hopgate.retrievers.filters import MAX_CANDIDATES, Filter, Where, matches, parse_where
from hopgate.retrievers.hybrid import Mode
from hopgate.retrievers.index import matching_encoder
from hopgate.retrievers.language import terms
from hopgate.retrievers.stores import (
    Collection,
    Row,
    Store,
    StoreInfo,
    connect,
    explained,
    parse,
    usable_info,
)
from hopgate.retrievers.words import MAX_QUERY_TERMS


def load_store(name: str) -> StoreIndex:
    """Open a collection; connections and encoders are opened once per process.

    Args:
        name: `ENGINE:NAME`, or `ENGINE:NAME@ENCODER` for an encoder that has moved.

    Raises:
        ValueError: There is no such collection, hopgate did not make it, it is half filled, or
            its encoder is another.
        RuntimeError: An extra or the encoder is missing, or the engine failed.
    """
    index = StoreIndex(parse(name), connect(name))
    index.check()
    return index


class StoreIndex:
    """A collection opened for searching, from any number of threads.

    What hopgate keeps about the collection is read again for each search, so a search never uses
    another encoder or language than the vectors and words have now.
    """

    def __init__(self, store: Store, collection: Collection) -> None:
        """Keep both, see `load_store`."""
        self._store, self._collection = store, collection

    def check(self) -> tuple[StoreInfo, Encoder]:
        """Read what the collection is, and load its encoder; see `load_store`."""
        store = self._store
        info = usable_info(store, self._collection)
        return info, matching_encoder(Path(str(store)), info, store.encoder or None)

    def search(
        self,
        queries: Sequence[str],
        k: int,
        mode: Mode | None = None,
        where: Where | Filter | None = None,
    ) -> list[list[Hit]]:
        """Find the best passages for each query; arguments and errors are those of `Index.search`.

        Raises:
            RuntimeError: The engine failed.
        """
        check_k(k)
        wanted = parse_where(where)
        info, encoder = self.check()
        mode = mode or info["mode"]
        if mode not in get_args(Mode):
            raise ValueError(f"unknown mode {mode!r}: use {', '.join(get_args(Mode))}")
        queries = [encodable(query) for query in queries]
        wanted = tuple((n, tuple(v for v in values if "\0" not in v)) for n, values in wanted)
        if not all(values for _, values in wanted):  # no store takes a passage with a NUL character
            return [[] for _ in queries]
        vectors = [[] for _ in queries] if mode == "bm25" else _vectors(encoder, queries)
        found = []
        for query, vector in zip(queries, vectors, strict=True):
            words = [] if mode == "dense" else terms(info["language"], query)[:MAX_QUERY_TERMS]
            found.append(self._found(mode, vector, words, k, wanted))
        return found

    @property
    def background(self) -> Sequence[float]:
        """What unrelated questions score, as `Index.background`."""
        return background_of(self.check()[0])

    def _found(
        self, mode: Mode, vector: list[float], words: list[str], k: int, wanted: Filter
    ) -> list[Hit]:
        """Fetch more and more rows until enough passages fulfil the filter, each counted once."""
        candidates = k
        while True:
            with explained(self._store):
                rows = self._collection.search(mode, vector, words, candidates, wanted)
            hits: dict[str, Hit] = {}
            for row, score in rows:
                hit = _hit(row, score)
                if matches(hit, wanted):
                    hits.setdefault(row.id, hit)
            if len(hits) >= k or len(rows) < candidates or candidates >= MAX_CANDIDATES:
                return list(hits.values())[:k]
            candidates = min(4 * candidates, MAX_CANDIDATES)


def _vectors(encoder: Encoder, queries: Sequence[str]) -> list[list[float]]:
    found: list[list[float]] = encoder.encode_queries(queries).tolist()
    return found


def _hit(row: Row, score: float) -> Hit:
    hit: Hit = {**row.passage(), "score": score}
    if not row.source:
        del hit["source"]
    return hit
