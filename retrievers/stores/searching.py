"""Collections of outside stores, opened for searching: hopgate's own and LangChain's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from hopgate.retrievers.base import Hit, check_k, encodable, with_score
from hopgate.retrievers.coverage import background_of
from hopgate.retrievers.encoders import Encoder, load_encoder
from hopgate.retrievers.filters import Filter, Where, parse_where, search_until
from hopgate.retrievers.hybrid import CANDIDATES, Mode, code_depth, code_last, fuse
from hopgate.retrievers.index.reader import matching_encoder
from hopgate.retrievers.index.texts import MAX_QUERY_TERMS
from hopgate.retrievers.langchain import hit_of
from hopgate.retrievers.language import terms
from hopgate.retrievers.stores.collection import Asked, Collection, StoreInfo
from hopgate.retrievers.stores.names import ForeignError, explained

Search = Callable[[str, list[float], Filter, int], list[Hit]]
"""Called with a query, its vector, a filter, and the number of hits."""


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
        self._foreign: tuple[Encoder, Search] | None = None
        try:
            self._opened()
        except ForeignError:
            self._foreign = self._made_by_langchain()

    def _opened(self) -> tuple[StoreInfo, Encoder]:
        """Read the collection's description, and load its encoder."""
        info, name = self._collection.info(), self._collection.name
        return info, matching_encoder(Path(str(name)), info, name.encoder or None)

    def _made_by_langchain(self) -> tuple[Encoder, Search]:
        """Return the encoder that the user names for LangChain's vectors, and their search."""
        name = self._collection.name
        if (found := self._collection.engine.foreign()) is None:
            raise ForeignError(f"{name} was not made by hopgate or LangChain, or it is empty")
        if not name.encoder:
            raise ForeignError(
                f"{name} was made by LangChain: name the encoder of its vectors, as in "
                f"{name}@minilm"
            )
        (dimension, near), encoder = found, load_encoder(name.encoder)
        if encoder.dimension != dimension:
            raise ValueError(
                f"the vectors of {name} have {dimension} dimensions, and those of encoder "
                f"{name.encoder} have {encoder.dimension}: name the encoder they come from"
            )

        def search(query: str, vector: list[float], wanted: Filter, k: int) -> list[Hit]:
            # The engine knows where LangChain put these two; the caller checks the whole filter.
            own = tuple(each for each in wanted if each[0] in ("source", "section"))
            with explained(name):
                return [hit_of(*each) for each in near(vector, k, own)]

        return encoder, search

    @property
    def background(self) -> Sequence[float]:
        """Scores of unrelated questions, as `Index.background`."""
        return [] if self._foreign else background_of(self._opened()[0])

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
        wanted, queries = parse_where(where), [encodable(query) for query in queries]
        if self._foreign:
            (encoder, search), mode = self._foreign, mode or "dense"
            if mode != "dense":
                raise ValueError(
                    f"mode {mode!r} is not available with {self._collection.name}, which LangChain "
                    "made without hopgate's words: use dense"
                )
        else:
            info, encoder = self._opened()
            mode = mode or info["mode"]
            search = partial(self._search, mode, info["language"])
        dense = mode != "bm25"
        vectors = encoder.encode_queries(queries).tolist() if dense else [[]] * len(queries)
        return [
            search_until(partial(search, query, vector, wanted), k, wanted)
            for query, vector in zip(queries, vectors, strict=True)
        ]

    def _search(
        self, mode: Mode, language: str, query: str, vector: list[float], wanted: Filter, k: int
    ) -> list[Hit]:
        engine, k, most = self._collection.engine, code_depth(k), k
        depth = max(k, CANDIDATES) if mode == "hybrid" else k
        words = terms(language, query)[:MAX_QUERY_TERMS] if mode != "dense" else []
        near = engine.dense(vector, depth, wanted) if mode != "bm25" else []
        found = (asked := Asked(engine, words)).bm25(depth, wanted)
        if mode == "hybrid":
            found = fuse(near, found, asked.dense_weight(), k)
        ordered = code_last(found or near, lambda row: row.known().get("kind") == "code", most)
        return [with_score(row.passage(), score) for row, score in ordered]
