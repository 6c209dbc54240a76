"""Collections of Qdrant: dense and sparse vectors, fused by the engine."""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import uuid
import warnings
from collections import Counter
from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

from hopgate.common.cache import Cache
from hopgate.retrievers.filters import Filter, is_pattern, literal, pieces
from hopgate.retrievers.hybrid import CANDIDATES, K0, K1, Mode, length_norm
from hopgate.retrievers.stores.names import ForeignError, Within
from hopgate.retrievers.stores.rows import TIMEOUT_S, Listed, Row, Scored, foreign_filter

if TYPE_CHECKING:
    import numpy as np
    from langchain_core.documents import Document
    from numpy.typing import NDArray
    from qdrant_client import models

DENSE, SPARSE = "dense", "words"
_INFO = "hopgate"
_PAGE = 4_096
_INDEXED = ("id", "source", "title", "page", "section")

_clients: Cache[Any] = Cache()


class QdrantCollection:
    """A collection of Qdrant, see `rows.Collection`."""

    max_text_bytes = 16 << 20  # a server takes requests of 32 MB

    def __init__(self, name: str) -> None:
        """Connect, once per process and address."""
        self._name, self._client = name, _client()

    def info(self) -> str | None:
        """Return what was stored with the collection."""
        if not self._client.collection_exists(self._name):
            return None
        found = (self._client.get_collection(self._name).config.metadata or {}).get(_INFO)
        if not isinstance(found, str):
            raise ForeignError
        return found

    def create(self, info: str, dimension: int) -> None:
        """Create the collection; it makes its own HNSW graph as it grows."""
        from qdrant_client import models

        self._client.create_collection(
            self._name,
            vectors_config={
                DENSE: models.VectorParams(size=dimension, distance=models.Distance.DOT)
            },
            sparse_vectors_config={SPARSE: models.SparseVectorParams(modifier=models.Modifier.IDF)},
            metadata={_INFO: info},
        )
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Payload indexes have no effect")  # in local mode
            for field in _INDEXED:
                kind = models.PayloadSchemaType.KEYWORD
                self._client.create_payload_index(self._name, field, kind)

    def describe(self, info: str) -> None:
        """Store other JSON with it."""
        self._client.update_collection(self._name, metadata={_INFO: info})

    def drop(self) -> None:
        """Delete the collection."""
        self._client.delete_collection(self._name)

    def finish(self) -> None:
        """Do nothing: the engine indexes on its own."""

    def listed(self, field: str = "", values: Sequence[str] = ()) -> list[Listed]:
        """List rows."""
        from qdrant_client import models

        chosen = models.Filter(must=[_equals(field, values)]) if field else None
        fields, offset, found = list(Listed._fields[1:]), None, list[Listed]()
        while True:
            points, offset = self._client.scroll(
                self._name, chosen, limit=_PAGE, offset=offset, with_payload=fields
            )
            found += [Listed(_key(each), *map(each.payload.get, fields)) for each in points]
            if offset is None:
                return found

    def read(self, keys: Sequence[str]) -> list[tuple[Row, list[float]]]:
        """Read rows with their vectors."""
        points = self._client.retrieve(self._name, keys, with_payload=True, with_vectors=[DENSE])
        return [(_row(point), point.vector[DENSE]) for point in points]

    def put(
        self,
        rows: Sequence[Row],
        vectors: NDArray[np.float32],
        terms: Sequence[Sequence[str]],
        average: float,
    ) -> None:
        """Add or replace rows."""
        from qdrant_client import models

        points = [
            models.PointStruct(
                id=row.key,
                vector={DENSE: vector, SPARSE: _passage_words(words, average)},
                payload={name: getattr(row, name) for name in Row._fields[1:]},
            )
            for row, vector, words in zip(rows, vectors.tolist(), terms, strict=True)
        ]
        self._client.upsert(self._name, points, wait=True)

    def remove(self, keys: Sequence[str]) -> None:
        """Delete rows."""
        self._client.delete(self._name, list(keys), wait=True)

    def search(
        self, mode: Mode, vector: Sequence[float], terms: Sequence[str], k: int, wanted: Filter
    ) -> Scored:
        """Find the best rows."""
        from qdrant_client import models

        only = native(wanted)
        queries: dict[str, Any] = {DENSE: list(vector), SPARSE: _query_words(terms)}
        if mode == "hybrid":
            depth = max(k, CANDIDATES)
            both = [
                models.Prefetch(query=query, using=using, limit=depth, filter=only)
                for using, query in queries.items()
            ]
            # Qdrant counts ranks from 0.
            asked: dict[str, Any] = {
                "prefetch": both,
                "query": models.RrfQuery(rrf=models.Rrf(k=K0 + 1)),
            }
        else:
            using = DENSE if mode == "dense" else SPARSE
            asked = {"query": queries[using], "using": using, "query_filter": only}
        found = self._client.query_points(self._name, limit=k, with_payload=True, **asked)
        return [(_row(point), float(point.score)) for point in found.points]

    def foreign_dimension(self) -> int | None:
        """Return the dimension of LangChain's vectors."""
        _, vectors = self._foreign_vectors()
        return vectors.size if vectors else None

    def _foreign_vectors(self) -> tuple[str | None, models.VectorParams | None]:
        """Return the name and the settings of the first dense vectors."""
        found = self._client.get_collection(self._name).config.params.vectors
        named = found if isinstance(found, dict) else {None: found}
        return next(iter(named.items()), (None, None))

    def search_foreign(
        self, vector: Sequence[float], k: int, wanted: Filter
    ) -> list[tuple[Document, float]]:
        """Find the best documents."""
        from langchain_core.documents import Document

        found = self._client.query_points(
            self._name,
            query=list(vector),
            using=self._foreign_vectors()[0],
            query_filter=native(foreign_filter(wanted), "metadata."),
            limit=k,
        )
        return [
            (
                Document(
                    id=str(point.id),
                    page_content=point.payload["page_content"],
                    metadata=point.payload.get("metadata") or {},
                ),
                float(point.score),
            )
            for point in found.points
        ]


def _client() -> Any:
    """Return the client of this address; a folder in local mode can be opened only once."""
    from qdrant_client import QdrantClient

    url, path = (os.environ.get(each, "").strip() for each in ("QDRANT_URL", "QDRANT_PATH"))

    def connect() -> Any:
        if url:
            key = os.environ.get("QDRANT_API_KEY") or None
            return QdrantClient(url, api_key=key, timeout=TIMEOUT_S, check_compatibility=False)
        local = QdrantClient(path=path, force_disable_check_same_thread=True)
        atexit.register(local.close)
        lock = Lock()  # threads that call it at once break it
        return Within(local, lambda: lock)

    return _clients.get(url or path, connect)


def _key(point: Any) -> str:
    return uuid.UUID(str(point.id)).hex


def _row(point: Any) -> Row:
    return Row(_key(point), *(point.payload[name] for name in Row._fields[1:]))


def _counts(terms: Sequence[str]) -> Counter[int]:
    """Count words by their dimension, 32 bits of their hash."""
    return Counter(int.from_bytes(hashlib.sha256(each.encode()).digest()[:4]) for each in terms)


def _passage_words(terms: Sequence[str], average: float) -> models.SparseVector:
    """Return the part of BM25 that depends on the passage; Qdrant multiplies it by the IDF."""
    from qdrant_client import models

    norm, counts = length_norm(len(terms), average), _counts(terms)
    values = [count * (K1 + 1) / (count + norm) for count in counts.values()]
    return models.SparseVector(indices=list(counts), values=values)


def _query_words(terms: Sequence[str]) -> models.SparseVector:
    from qdrant_client import models

    counts = _counts(terms)
    return models.SparseVector(indices=list(counts), values=list(map(float, counts.values())))


def native(wanted: Filter, prefix: str = "") -> models.Filter:
    """Return a filter that leaves out no row that `wanted` matches, but may let others through.

    A pattern of `source` becomes the words that must be in it, since Qdrant matches whole words.

    Args:
        wanted: The filter.
        prefix: What comes before the name of a field.
    """
    from qdrant_client import models

    def either(name: str, values: Sequence[str]) -> models.Filter:
        patterns = [each for each in values if name == "source" and is_pattern(each)]
        exact = [each for each in values if each not in patterns]
        words = [models.Filter(must=_words(prefix + name, each)) for each in patterns]
        return models.Filter(should=[*words, *([_equals(prefix + name, exact)] if exact else [])])

    return models.Filter(must=[either(name, values) for name, values in wanted])


def _words(key: str, pattern: str) -> list[Any]:
    from qdrant_client import models

    text = "".join(literal(piece) or "*" for piece in pieces(pattern))
    found = (models.MatchText(text=word) for word in _WORD.findall(text))
    return [models.FieldCondition(key=key, match=each) for each in found]


def _equals(name: str, values: Sequence[str]) -> models.FieldCondition:
    from qdrant_client import models

    return models.FieldCondition(key=name, match=models.MatchAny(any=[*values]))


_BETWEEN = r"[\x00-)+-/:-@\[-`{-\x7f]"  # ASCII without letters, digits and `*`
_WORD = re.compile(rf"(?:^|(?<={_BETWEEN}))[A-Za-z0-9]+(?={_BETWEEN}|\Z)")
"""Words that every match of a pattern contains: letters and digits of ASCII between other
characters of ASCII or the text's ends, about which all tokenizers for words agree."""
