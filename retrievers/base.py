"""The `Retriever` protocol, passages and hits, and the adapter for LangChain's stores."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NotRequired, Protocol

from typing_extensions import TypedDict

from hopgate.retrievers.filters import Filter, Where, matches, parse_where, search_until

if TYPE_CHECKING:
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.vectorstores import VectorStore


class Passage(TypedDict):
    """A piece of a document, as it is stored."""

    id: str
    """Content hash of title and text, see `passage_id`."""
    title: str
    text: str
    source: str
    """Path of its file, relative to the indexed folder; may be empty."""
    page: NotRequired[int]
    """Page of a PDF, counted from 1."""
    section: NotRequired[str]
    """Headings above the text."""


class Hit(TypedDict):
    """A passage found for a query. Plain Python types only, so that it can be checkpointed."""

    id: str
    title: str
    text: str
    score: float
    """Higher is better, unless a wrapped outside store defines it otherwise."""
    source: NotRequired[str]
    """File the passage comes from, as in `Passage`."""
    page: NotRequired[int]
    section: NotRequired[str]


class Retriever(Protocol):
    """Anything that finds passages: an `Index`, or a LangChain store behind its adapter."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Find the best passages for each query.

        A retriever that can filter takes a third argument `where`, a parsed filter (see
        `hopgate.retrievers.filters`); one that does not is refused where a filter is set.

        Args:
            queries: One or more search texts.
            k: Maximum number of passages for each query, at least 1.

        Returns:
            For each query, in order, at most `k` hits, best first.

        Raises:
            ValueError: `k` is below 1.
        """
        ...


_LONE = re.compile("[\ud800-\udfff]")


def encodable(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode, by U+FFFD."""
    return _LONE.sub("\ufffd", text)


def passage_id(title: str, text: str) -> str:
    """Return the id of a passage: 16 hex digits (64 bits) of the SHA-256 of its title and text.

    The same content always has the same id, so that rebuilding an index changes nothing.
    """
    return hashlib.sha256(f"{title}\x1f{text}".encode()).hexdigest()[:16]


def make_passage(
    title: str,
    text: str,
    source: str = "",
    page: int | None = None,
    section: str | None = None,
) -> Passage:
    """Create a passage with its content-hash id.

    White space around title and text is removed; a lone surrogate becomes U+FFFD.
    """
    title, text = (encodable(each.strip()) for each in (title, text))
    passage = Passage(id=passage_id(title, text), title=title, text=text, source=source)
    if page is not None:
        passage["page"] = page
    if section:
        passage["section"] = section
    return passage


def check_k(k: int) -> None:
    """Raise ValueError for a number of passages below 1."""
    if k < 1:
        raise ValueError(f"k is {k}: use at least 1")


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
        native: Returns the `filter` that makes a vector store itself leave out passages which
            do not fulfil a filter; it may let through some that do not, but must leave out none
            that do. None: the store is never given a filter.
    """

    def __init__(
        self,
        store: VectorStore | BaseRetriever,
        native: Callable[[Filter], Any] | None = None,
    ) -> None:
        """Keep the store; nothing is searched yet."""
        self._store = store
        self._native = native

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
            hits = [_hit(document, 1 / rank) for rank, document in documents]
            return [hit for hit in hits if matches(hit, wanted)][:k]
        options = {"filter": self._native(wanted)} if wanted and self._native else {}

        def search(candidates: int) -> list[Hit]:
            found = store.similarity_search_with_score(query, k=candidates, **options)
            return [_hit(document, score) for document, score in found]

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


def _hit(document: Document, score: float) -> Hit:
    known, text = document.metadata, document.page_content
    title = str(known.get("title") or known.get("source") or "")
    hit = Hit(id=document.id or passage_id(title, text), title=title, text=text, score=float(score))
    for key in ("source", "section"):
        if isinstance(known.get(key), str) and known[key]:
            hit[key] = known[key]
    if isinstance(known.get("page"), int):
        hit["page"] = int(known["page"])
    return hit
