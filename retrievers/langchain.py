"""LangChain's vector stores and retrievers as a `Retriever`, and its documents as passages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import wraps
from inspect import iscoroutinefunction
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hopgate.common.threads import for_caller
from hopgate.retrievers.base import (
    Hit,
    Metadata,
    Passage,
    Retriever,
    check_k,
    encodable,
    make_passage,
    passage_id,
)
from hopgate.retrievers.filters import Filter, Where, matches, parse_where, search_until

if TYPE_CHECKING:
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.vectorstores import VectorStore

_PIECE_CHARACTERS = 2_000
"""Longest text of a document that counts as a splitter's piece and is not cut."""
_MAX_DIGITS = 19
"""Digits from which a number does not surely fit 64 bits, and becomes text."""
_FIELDS = ("source", "title", "page", "section")


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


class AwaitedRetriever:
    """A retriever whose `search` is a coroutine function, for hopgate's threads."""

    def __init__(self, source: Any) -> None:
        """Keep the retriever."""

        @wraps(source.search)
        def search(*arguments: Any, **options: Any) -> list[list[Hit]]:
            return for_caller(source.search(*arguments, **options))

        self.search = search


def as_retriever(source: Retriever | VectorStore | BaseRetriever) -> Retriever:
    """Wrap a LangChain store or retriever, or an `async def search`; else return it as it is.

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
    return AwaitedRetriever(source) if iscoroutinefunction(source.search) else source


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
    if rest := flat(known):
        hit["metadata"] = rest
    return hit


def documents_in(
    given: Sequence[Path | str] | Iterable[Document],
) -> Sequence[Path | str] | Iterator[Passage]:
    """Return the passages of LangChain's documents, read one by one; paths as they are.

    A document's `source`, `title`, `page` and `section` are the passage's, and the rest of its
    metadata is kept with it (see `flat`). A text longer than a splitter's piece is cut.

    Raises:
        ValueError: It is an iterator, but not of documents.
    """
    if isinstance(given, Sequence) and not (given and hasattr(given[0], "page_content")):
        return cast("Sequence[Path | str]", given)
    documents = cast("Iterator[Document]", iter(given))
    first = list(islice(documents, 1))
    if first and not hasattr(first[0], "page_content"):
        raise ValueError(
            f"{type(first[0]).__name__} is not a LangChain Document: give Documents, or a list of "
            "files and folders"
        )
    return (each for document in chain(first, documents) for each in _passages(document))


def _passages(document: Document) -> Iterator[Passage]:
    from hopgate.retrievers.documents.cutting import Section, cut

    known, text = document.metadata, document.page_content
    source, title, below = (str(known.get(key) or "") for key in ("source", "title", "section"))
    page = known["page"] if isinstance(known.get("page"), int) else None
    headings, metadata = [each for each in (title, below) if each], flat(known)
    if not text.strip():
        return
    if len(text) <= _PIECE_CHARACTERS:
        yield make_passage(" > ".join(headings), text, source, page, below, metadata)
        return
    for passage in cut(Section(headings, text, page), source):
        yield make_passage(passage["title"], passage["text"], source, page, below, metadata)


def flat(metadata: Mapping[str, Any]) -> Metadata:
    """Return metadata without a passage's own fields, in the types that every index can hold.

    Dates become ISO 8601, lists become lists of texts, and anything else its JSON; what is empty is
    left out, and so are numbers that JSON does not know.
    """
    own = {str(name): value for name, value in metadata.items() if name not in _FIELDS}
    text = encodable(json.dumps(own, default=_readable, ensure_ascii=False))
    plain = json.loads(text, parse_int=_integer, parse_constant=lambda _: None)
    return {name: _flat(value) for name, value in plain.items() if value not in (None, "", [], {})}


def _readable(value: Any) -> Any:
    if hasattr(value, "item"):  # a number of numpy
        return value.item()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) < _MAX_DIGITS else digits


def _flat(value: Any) -> str | int | float | bool | list[str]:
    if isinstance(value, list):
        return [each if isinstance(each, str) else json.dumps(each) for each in value]
    return json.dumps(value) if isinstance(value, dict) else value
