"""Collections of outside stores, opened for searching: hopgate's own and LangChain's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from langchain_core.documents import Document

from hopgate.retrievers.base import Hit, check_k, encodable, with_score
from hopgate.retrievers.coverage import background_of
from hopgate.retrievers.encoders import load_encoder
from hopgate.retrievers.filters import Filter, Where, parse_where, search_until
from hopgate.retrievers.hybrid import CANDIDATES, Mode, code_depth, code_last, fuse
from hopgate.retrievers.index.reader import matching_encoder
from hopgate.retrievers.index.texts import MAX_QUERY_TERMS
from hopgate.retrievers.langchain import hit_of
from hopgate.retrievers.language import terms
from hopgate.retrievers.stores.collection import Asked, Collection, Foreign
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

    Attributes:
        background: Scores of unrelated questions, as `Index.background`.
    """

    def __init__(self, collection: Collection) -> None:
        """Check the collection and load its encoder, see `load_store`."""
        self._engine, self._name = collection.engine, collection.name
        self._near: Foreign | None = None
        self._mode: Mode = "dense"
        self.background: Sequence[float] = []
        named = self._name.encoder
        try:
            info = collection.info()
        except ForeignError:
            self._near = self._engine.foreign()
            if not self._near:
                raise
            if not named:
                raise ForeignError(
                    f"{self._name} was made by LangChain: name the encoder of its vectors, as in "
                    f"{self._name}@minilm"
                ) from None
            self._encoder = load_encoder(named)
        else:
            self._mode, self._language = info["mode"], info["language"]
            self._encoder = matching_encoder(Path(str(self._name)), info, named or None)
            self.background = background_of(info)

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
        chosen = mode or self._mode
        if self._near and chosen != "dense":
            raise ValueError(
                f"mode {mode!r} is not available with {self._name}, which LangChain made without "
                "hopgate's words: use dense"
            )
        dense, search = chosen != "bm25", self._foreign if self._near else self._own
        vectors = self._encoder.encode_queries(queries).tolist() if dense else [[]] * len(queries)
        return [
            search_until(partial(search, chosen, query, vector, wanted), k, wanted)
            for query, vector in zip(queries, vectors, strict=True)
        ]

    def _foreign(
        self, _mode: Mode, _query: str, vector: list[float], wanted: Filter, k: int
    ) -> list[Hit]:
        # The engine knows where LangChain put these two; the caller checks the whole filter.
        own = tuple(each for each in wanted if each[0] in ("source", "section"))
        assert self._near
        with explained(self._name):
            found = self._near(vector, k, own)
        return [
            hit_of(Document(text or "", id=key, metadata=metadata), score)
            for key, text, metadata, score in found
        ]

    def _own(
        self, mode: Mode, query: str, vector: list[float], wanted: Filter, k: int
    ) -> list[Hit]:
        engine, k, most = self._engine, code_depth(k), k
        depth = max(k, CANDIDATES) if mode == "hybrid" else k
        words = terms(self._language, query)[:MAX_QUERY_TERMS] if mode != "dense" else []
        near = engine.dense(vector, depth, wanted) if mode != "bm25" else []
        found = (asked := Asked(engine, words)).bm25(depth, wanted)
        if mode == "hybrid":
            found = fuse(near, found, asked.dense_weight(), k)
        ordered = code_last(found or near, lambda row: row.known().get("kind") == "code", most)
        return [with_score(row.passage(), score) for row, score in ordered]
