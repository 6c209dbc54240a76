"""LangChain's vector stores and retrievers as a `Retriever`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hopgate.retrievers.base import Hit, Retriever, check_k, passage_id
from hopgate.retrievers.filters import Filter, Where, matches, parse_where, search_until

if TYPE_CHECKING:
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.vectorstores import VectorStore


class LangChainRetriever:
    """A LangChain `VectorStore` or `BaseRetriever` as a `Retriever`.

    A document's id is its own, else the content hash; its title is the metadata's `title`, else
    `source`. A vector store keeps its own order and scores (some return a distance, where lower
    is better). A `BaseRetriever` returns no scores: a hit's score is then 1 / rank.

    With a filter, a vector store is asked for more and more candidates until `k` of them pass. A
    `BaseRetriever` decides itself how many documents it returns; those that do not pass are
    dropped.

    Args:
        store: The LangChain object to search.
    """

    def __init__(self, store: VectorStore | BaseRetriever) -> None:
        """Keep the store; nothing is searched yet."""
        self._store = store

    def search(
        self, queries: Sequence[str], k: int, where: Where | Filter | None = None
    ) -> list[list[Hit]]:
        """Find at most `k` passages for each query, see `Retriever.search`.

        Args:
            queries: One or more search texts.
            k: Maximum number of passages for each query, at least 1.
            where: The filter that all hits must fulfil, see `parse_where`.

        Raises:
            ValueError: `k` is below 1, or the filter is invalid.
        """
        check_k(k)
        wanted = parse_where(where)
        return [self._found(query, k, wanted) for query in queries]

    def _found(self, query: str, k: int, wanted: Filter) -> list[Hit]:
        from langchain_core.retrievers import BaseRetriever

        store = self._store
        if isinstance(store, BaseRetriever):
            documents = enumerate(store.invoke(query), start=1)
            hits = [hit_of(document, 1 / rank) for rank, document in documents]
            return [hit for hit in hits if matches(hit, wanted)][:k]

        def search(candidates: int) -> list[Hit]:
            found = store.similarity_search_with_score(query, k=candidates)
            return [hit_of(document, score) for document, score in found]

        return search_until(search, k, wanted) if wanted else search(k)


def as_retriever(source: Retriever | VectorStore | BaseRetriever) -> Retriever:
    """Wrap a LangChain store or retriever; return a `Retriever` as it is.

    Raises:
        ValueError: `source` cannot be searched.
    """
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.vectorstores import VectorStore

    if isinstance(source, VectorStore | BaseRetriever):
        return LangChainRetriever(source)
    if not hasattr(source, "search"):
        raise ValueError(
            f"retriever is a {type(source).__name__}: use a LangChain VectorStore or "
            "BaseRetriever, or an object with search(queries, k)"
        )
    return source


def hit_of(document: Document, score: float) -> Hit:
    """Return the hit of a document; see `LangChainRetriever`."""
    known, text = document.metadata, document.page_content
    title = str(known.get("title") or known.get("source") or "")
    hit = Hit(id=document.id or passage_id(title, text), title=title, text=text, score=float(score))
    for key in ("source", "section"):
        if isinstance(known.get(key), str) and known[key]:
            hit[key] = known[key]
    if isinstance(known.get("page"), int):
        hit["page"] = int(known["page"])
    return hit
