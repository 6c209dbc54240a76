"""Reranking: a cross-encoder reads the query together with each candidate and reorders them.

Any document compressor of LangChain can take its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from hopgate.common.cache import Cache
from hopgate.common.errors import require
from hopgate.retrievers.base import Hit, Retriever, check_k
from hopgate.retrievers.coverage import Look, look_at
from hopgate.retrievers.encoders import model_files
from hopgate.retrievers.encoding.hub import HUB_ID, hub_model
from hopgate.retrievers.filters import Filter, Where, filtered

if TYPE_CHECKING:
    from langchain_core.documents import BaseDocumentCompressor

CANDIDATES = 32
"""Minimum number of passages to score for each query; the cross-encoder reads each of them."""
_BATCH = 32
_NUMBER = "hopgate_hit"
"""Tells which hit a compressor's document is."""


class Reranker:
    """A cross-encoder in memory, for use from any number of threads (one call runs at a time).

    Load one with `load_reranker`.
    """

    def __init__(self, name: str, folder: Path) -> None:
        """Load the weights, from safetensors.

        Raises:
            RuntimeError: The files are not those of a cross-encoder with one score.
        """
        require(f"cross-encoder {name}", "sentence_transformers")
        from hopgate.retrievers.encoding.sentence_models import load_cross_encoder

        self.name, self._lock = name, Lock()
        self._model = load_cross_encoder(name, folder)
        if self._model.num_labels != 1:
            raise RuntimeError(
                f"cross-encoder {name} returns {self._model.num_labels} scores for a pair: use one "
                "that returns one, such as cross-encoder/ms-marco-MiniLM-L6-v2"
            )

    def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return how well each text answers the query; higher is better."""
        if not texts:
            return []
        with self._lock:
            scores = self._model.predict(
                [(query, text) for text in texts], batch_size=_BATCH, show_progress_bar=False
            )
        return [float(score) for score in scores]


class Reranked:
    """A retriever whose candidates are reordered.

    Args:
        retriever: Finds the candidates.
        reranker: A cross-encoder, or a document compressor of LangChain, which may also drop
            some; its score (without one, 1 / rank) becomes the hit's score.

    Raises:
        ValueError: It is neither.
    """

    def __init__(self, retriever: Retriever, reranker: Reranker | BaseDocumentCompressor) -> None:
        """Keep both."""
        if not (hasattr(reranker, "scores") or hasattr(reranker, "compress_documents")):
            raise ValueError(
                f"reranker is a {type(reranker).__name__}: use load_reranker(…), or a LangChain "
                "BaseDocumentCompressor"
            )
        self._retriever = retriever
        self._reranker: Any = reranker

    def search(
        self, queries: Sequence[str], k: int, where: Where | Filter | None = None
    ) -> list[list[Hit]]:
        """Find at most `k` passages for each query, see `Retriever.search`.

        Raises:
            ValueError: `k` is below 1, or the retriever cannot be searched with a filter.
        """
        check_k(k)
        found = filtered(self._retriever, where).search(queries, max(k, CANDIDATES))
        return [self._ordered(query, hits)[:k] for query, hits in zip(queries, found, strict=True)]

    def look(
        self, queries: Sequence[str], k: int, where: Where | Filter | None = None
    ) -> list[Look]:
        """Search, and say what the collection has to do with each query; see `look_at`."""
        found = look_at(filtered(self._retriever, where), queries, max(k, CANDIDATES))
        return [
            each._replace(hits=self._ordered(query, each.hits)[:k])
            for query, each in zip(queries, found, strict=True)
        ]

    def _ordered(self, query: str, hits: Sequence[Hit]) -> list[Hit]:
        texts = [f"{hit['title']} {hit['text']}".strip() for hit in hits]
        if hasattr(self._reranker, "compress_documents"):
            return _compressed(self._reranker, query, hits, texts)
        scored = zip(hits, self._reranker.scores(query, texts), strict=True)
        rescored = [Hit(**{**hit, "score": score}) for hit, score in scored]
        return sorted(rescored, key=lambda hit: -hit["score"])


def _compressed(
    compressor: BaseDocumentCompressor, query: str, hits: Sequence[Hit], texts: Sequence[str]
) -> list[Hit]:
    """Return the hits that a compressor keeps, in its order and with their own texts."""
    from langchain_core.documents import Document

    documents = [
        Document(text, metadata={**hit.get("metadata", {}), _NUMBER: number})
        for number, (hit, text) in enumerate(zip(hits, texts, strict=True))
    ]
    kept = compressor.compress_documents(documents, query) if documents else []
    found = []
    for rank, each in enumerate(kept, start=1):
        hit: Hit = hits[each.metadata[_NUMBER]]
        score = float(each.metadata.get("relevance_score", 1 / rank))
        found.append(Hit(**{**hit, "score": score}))
    return found


_rerankers: Cache[Reranker] = Cache()


def load_reranker(name: str) -> Reranker:
    """Load a cross-encoder, once per process and again when its files change.

    Args:
        name: A folder in sentence-transformers' layout, or a model id of the hub.

    Raises:
        ValueError: There is no such cross-encoder.
        RuntimeError: Its files are missing or damaged, or cannot be downloaded.
    """
    folder = check_reranker(name) or hub_model(name)
    return _rerankers.get(name, lambda: Reranker(name, folder), model_files(folder))


def check_reranker(name: str) -> Path | None:
    """Check a cross-encoder's name, without loading or downloading anything.

    Returns:
        The folder that `name` is; None for a model id of the hub.

    Raises:
        ValueError: It is neither a model id nor a folder with safetensors weights.
    """
    folder = Path(name).expanduser()
    if not folder.is_dir():
        if HUB_ID.fullmatch(name):
            return None
        raise ValueError(
            f"unknown cross-encoder {name!r}: use a folder, or a model id such as "
            "cross-encoder/ms-marco-MiniLM-L6-v2"
        )
    if not any(folder.glob("*.safetensors")):
        raise ValueError(
            f"cross-encoder folder {name} has no .safetensors file: save its weights as safetensors"
        )
    return folder
