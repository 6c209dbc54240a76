"""hopgate as a LangChain retriever: it decides whether and how deep to search."""

from typing import TYPE_CHECKING, Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import Field, PrivateAttr

from hopgate.graphs import adaptive
from hopgate.graphs.compiled import AdaptiveGraph
from hopgate.nodes.run.context import Context
from hopgate.nodes.run.resources import RETRIEVER_FAILED
from hopgate.retrievers.base import Hit

if TYPE_CHECKING:
    from hopgate.graphs.adaptive import RetrievalGraph


class AdaptiveRetriever(BaseRetriever):
    """Retrieves nothing, once or in several hops, whatever the question needs.

    An empty list means that the gate or the router decided against a search, or that nothing was
    found. With `Context(gate="always")` there is always a search.

    >>> AdaptiveRetriever(context=Context(index="my-index"), k=5).invoke("Who signed the lease?")
    """

    graph: AdaptiveGraph = Field(default_factory=lambda: adaptive.graph, exclude=True)
    """A graph of `build_graph`, for a model, a retriever or a router of your own."""
    context: Context = Field(default_factory=Context)
    """Settings; the others come from the graph."""
    k: int | None = Field(default=None, ge=1, le=50)
    """Maximum number of documents; None: all that the settings allow (`top_k`, `max_passages`)."""
    _retrieval: "RetrievalGraph" = PrivateAttr()

    def model_post_init(self, _: Any, /) -> None:
        """Compile the part of the graph before the answer."""
        self._retrieval = adaptive.without_answer(self.graph)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        found = self._retrieval.invoke(
            {"question": query}, {"callbacks": run_manager.get_child()}, context=self._settings(k)
        )
        return _documents(found, k or self.k)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        found = await self._retrieval.ainvoke(
            {"question": query}, {"callbacks": run_manager.get_child()}, context=self._settings(k)
        )
        return _documents(found, k or self.k)

    def _settings(self, k: int | None) -> Context:
        settings = self.context.over(self.graph.defaults)
        wanted = self.k if k is None else k
        return settings if wanted is None else Context(top_k=wanted).over(settings)


def _documents(found: dict[str, Any], k: int | None) -> list[Document]:
    """Return the passages as documents.

    Raises:
        RuntimeError: Nothing was found, because a search failed.
    """
    failures = [each for each in found["decision"]["warnings"] if RETRIEVER_FAILED in each]
    if failures and not found["evidence"]:
        raise RuntimeError(failures[0].partition(";")[0])
    return [_document(hit) for hit in found["evidence"][:k]]


def _document(hit: Hit) -> Document:
    known = {name: value for name, value in hit.items() if name not in ("id", "text")}
    return Document(hit["text"], id=hit["id"], metadata=known)
