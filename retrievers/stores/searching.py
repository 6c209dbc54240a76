"""Collections of outside stores, opened for searching: hopgate's own and LangChain's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import get_args

from hopgate.retrievers.base import Hit, check_k, encodable
from hopgate.retrievers.coverage import background_of
from hopgate.retrievers.encoders import Encoder, load_encoder
from hopgate.retrievers.filters import Filter, Where, parse_where, search_until
from hopgate.retrievers.hybrid import CANDIDATES, Mode, fuse
from hopgate.retrievers.index.reader import matching_encoder
from hopgate.retrievers.index.texts import MAX_QUERY_TERMS
from hopgate.retrievers.language import OTHER, terms
from hopgate.retrievers.stores.collection import Collection, Row, StoreInfo, weight_of
from hopgate.retrievers.stores.names import ForeignError, explained


def load_store(name: str) -> StoreIndex:
    """Open a collection; connections and encoders are opened once per process.

    Args:
        name: `ENGINE:NAME`, or `ENGINE:NAME@ENCODER` for an encoder that has moved, or for that
            of a collection which LangChain made.

    Raises:
        ValueError: There is no such collection, neither hopgate nor LangChain made it, it is half
            filled, or its encoder is another.
        RuntimeError: An extra or the encoder is missing, or the engine failed.
    """
    return StoreIndex(Collection(name))


class StoreIndex:
    """A collection opened for searching, from any number of threads.

    The collection's description is read again for each search, so a search never uses
    another encoder or language than the vectors and words have now.
    """

    def __init__(self, collection: Collection) -> None:
        """Check the collection and load its encoder, see `load_store`."""
        self._collection = collection
        self._foreign: tuple[Encoder, Callable[..., list[Hit]]] | None = None
        try:
            self._check()
        except ForeignError:
            self._foreign = self._made_by_langchain()

    def _check(self) -> tuple[StoreInfo, Encoder]:
        """Read the collection's description, and load its encoder."""
        info, name = self._collection.info(), self._collection.name
        return info, matching_encoder(Path(str(name)), info, name.encoder or None)

    def _made_by_langchain(self) -> tuple[Encoder, Callable[..., list[Hit]]]:
        """Return the encoder that the user names for LangChain's vectors, and their search."""
        name = self._collection.name
        if (found := self._collection.engine.foreign()) is None:
            raise ForeignError(f"{name} was not made by hopgate or LangChain, or it is empty")
        if not name.encoder:
            raise ForeignError(
                f"{name} was made by LangChain: name the encoder of its vectors, as in "
                f"{name}@minilm"
            )
        (dimension, search), encoder = found, load_encoder(name.encoder)
        if encoder.dimension != dimension:
            raise ValueError(
                f"the vectors of {name} have {dimension} dimensions, and those of encoder "
                f"{name.encoder} have {encoder.dimension}: name the encoder they come from"
            )
        return encoder, explained(name)(search)

    @property
    def background(self) -> Sequence[float]:
        """Scores of unrelated questions, as `Index.background`."""
        return [] if self._foreign else background_of(self._check()[0])

    def search(
        self,
        queries: Sequence[str],
        k: int,
        mode: Mode | None = None,
        where: Where | Filter | None = None,
    ) -> list[list[Hit]]:
        """Find the best passages for each query; arguments and errors are those of `Index.search`.

        Raises:
            ValueError: LangChain made the collection, and the mode is not `dense`.
            RuntimeError: The engine failed.
        """
        check_k(k)
        # No store takes a NUL character, so a value with one matches nothing.
        wanted = tuple(
            (n, tuple(v for v in values if "\0" not in v)) for n, values in parse_where(where)
        )
        mode, encoder, language = self._settings(mode)
        if not all(values for _, values in wanted):
            return [[] for _ in queries]
        queries = [encodable(query) for query in queries]
        dense = queries if mode != "bm25" else []
        vectors = encoder.encode_queries(dense).tolist() or [[] for _ in queries]
        return [
            search_until(partial(self._found, mode, vector, language, query, wanted), k, wanted)
            for query, vector in zip(queries, vectors, strict=True)
        ]

    def _settings(self, mode: Mode | None) -> tuple[Mode, Encoder, str]:
        """Return the mode of a search, and the encoder and the language of the collection."""
        if self._foreign:
            if mode in (None, "dense"):
                return "dense", self._foreign[0], OTHER
            raise ValueError(
                f"mode {mode!r} is not available with {self._collection.name}, which LangChain "
                "made without hopgate's words: use dense"
            )
        info, encoder = self._check()
        if (mode or info["mode"]) not in get_args(Mode):
            raise ValueError(f"unknown mode {mode!r}: use {', '.join(get_args(Mode))}")
        return mode or info["mode"], encoder, info["language"]

    def _found(
        self, mode: Mode, vector: list[float], language: str, query: str, wanted: Filter, k: int
    ) -> list[Hit]:
        if self._foreign:
            return self._foreign[1](vector, k, wanted)
        engine, depth = self._collection.engine, max(k, CANDIDATES) if mode == "hybrid" else k
        words = terms(language, query)[:MAX_QUERY_TERMS] if mode != "dense" else []
        near = engine.dense(vector, depth, wanted) if mode != "bm25" else []
        found = engine.bm25(words, depth, wanted) if words else []
        if mode == "hybrid":
            found = fuse(near, found, weight_of(engine, words), k)
        return [_hit(row, score) for row, score in found or near]


def _hit(row: Row, score: float) -> Hit:
    hit: Hit = {**row.passage(), "score": score}
    if not row.source:
        del hit["source"]
    return hit
