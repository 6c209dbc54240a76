"""Collections of outside stores, opened for searching: hopgate's own and LangChain's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from hopgate.retrievers.base import Hit, check_k, encodable
from hopgate.retrievers.coverage import background_of
from hopgate.retrievers.encoders import Encoder, load_encoder
from hopgate.retrievers.filters import Filter, Where, parse_where, search_until
from hopgate.retrievers.hybrid import Mode
from hopgate.retrievers.index.reader import matching_encoder
from hopgate.retrievers.index.texts import MAX_QUERY_TERMS
from hopgate.retrievers.langchain import hit_of
from hopgate.retrievers.language import terms
from hopgate.retrievers.stores.names import ForeignError, StoreName, parse
from hopgate.retrievers.stores.opening import connect, usable_info
from hopgate.retrievers.stores.rows import Collection, Row, StoreInfo


def load_store(name: str) -> StoreIndex | LangChainIndex:
    """Open a collection; connections and encoders are opened once per process.

    Args:
        name: `ENGINE:NAME`, or `ENGINE:NAME@ENCODER` for an encoder that has moved, or for that
            of a collection which LangChain made.

    Raises:
        ValueError: There is no such collection, neither hopgate nor LangChain made it, it is half
            filled, or its encoder is another.
        RuntimeError: An extra or the encoder is missing, or the engine failed.
    """
    index = StoreIndex(parse(name), connect(name))
    try:
        index.check()
    except ForeignError:
        return LangChainIndex(parse(name), connect(name))
    return index


class StoreIndex:
    """A collection opened for searching, from any number of threads.

    What hopgate keeps about the collection is read again for each search, so a search never uses
    another encoder or language than the vectors and words have now.
    """

    def __init__(self, store: StoreName, collection: Collection) -> None:
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
        wanted = _without_nul(parse_where(where))
        info, encoder = self.check()
        mode = mode or info["mode"]
        if mode not in get_args(Mode):
            raise ValueError(f"unknown mode {mode!r}: use {', '.join(get_args(Mode))}")
        if not all(values for _, values in wanted):
            return [[] for _ in queries]
        queries = [encodable(query) for query in queries]
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
        def search(candidates: int) -> list[Hit]:
            rows = self._collection.search(mode, vector, words, candidates, wanted)
            return [_hit(row, score) for row, score in rows]

        return search_until(search, k, wanted)


class LangChainIndex:
    """A collection that LangChain made, searched with the encoder that its user names.

    Args:
        store: Its name, with the encoder.
        collection: The collection.

    Raises:
        ValueError: No encoder is named, its vectors have another dimension, or LangChain did not
            make the collection.
        RuntimeError: The encoder is missing, or the engine failed.
    """

    background: Sequence[float] = ()

    def __init__(self, store: StoreName, collection: Collection) -> None:
        """Check the collection, and load the encoder."""
        self._store, self._collection = store, collection
        dimension = collection.foreign_dimension()
        if dimension is None:
            raise ForeignError(f"{store} was not made by hopgate or LangChain, or it is empty")
        if not store.encoder:
            raise ForeignError(
                f"{store} was made by LangChain: name the encoder of its vectors, as in "
                f"{store}@minilm"
            )
        self._encoder = load_encoder(store.encoder)
        if self._encoder.dimension != dimension:
            raise ValueError(
                f"the vectors of {store} have {dimension} dimensions, and those of encoder "
                f"{store.encoder} have {self._encoder.dimension}: name the encoder they come from"
            )

    def search(
        self,
        queries: Sequence[str],
        k: int,
        mode: Mode | None = None,
        where: Where | Filter | None = None,
    ) -> list[list[Hit]]:
        """Find the best documents for each query; see `Index.search`.

        Raises:
            ValueError: The mode is not `dense`, or see `Index.search`.
            RuntimeError: The engine failed.
        """
        check_k(k)
        wanted = _without_nul(parse_where(where))
        if mode not in (None, "dense"):
            raise ValueError(
                f"mode {mode!r} is not available with {self._store}, which LangChain made without "
                "hopgate's words: use dense"
            )
        if not all(values for _, values in wanted):
            return [[] for _ in queries]
        vectors = _vectors(self._encoder, [encodable(query) for query in queries])
        return [self._found(vector, k, wanted) for vector in vectors]

    def _found(self, vector: list[float], k: int, wanted: Filter) -> list[Hit]:
        def search(candidates: int) -> list[Hit]:
            found = self._collection.search_foreign(vector, candidates, wanted)
            return [hit_of(document, score) for document, score in found]

        return search_until(search, k, wanted)


def _without_nul(wanted: Filter) -> Filter:
    """Leave out values with a NUL character, which no store takes."""
    return tuple((n, tuple(v for v in values if "\0" not in v)) for n, values in wanted)


def _vectors(encoder: Encoder, queries: Sequence[str]) -> list[list[float]]:
    found: list[list[float]] = encoder.encode_queries(queries).tolist()
    return found


def _hit(row: Row, score: float) -> Hit:
    hit: Hit = {**row.passage(), "score": score}
    if not row.source:
        del hit["source"]
    return hit
