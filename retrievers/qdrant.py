"""Collections of Qdrant: dense and sparse vectors, fused by the engine."""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import uuid
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

from hopgate.common.cache import Cache
from hopgate.retrievers.filters import Filter, literal, pieces
from hopgate.retrievers.hybrid import CANDIDATES, K0, K1, Mode, length_norm
from hopgate.retrievers.stores import TIMEOUT_S, ForeignError, Listed, Row, request_slices

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from qdrant_client import QdrantClient, models

DENSE, SPARSE = "dense", "words"
_INFO = "hopgate"
_PAGE = 4_096
_INDEXED = ("id", "source", "title", "page", "section")

_clients: Cache[Any] = Cache()


class QdrantCollection:
    """A collection of Qdrant, see `stores.Collection`."""

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

    def listed(self, field: str = "", values: Sequence[str] = ()) -> Iterator[Listed]:
        """List rows."""
        from qdrant_client import models

        chosen = models.Filter(must=[_equals(field, values)]) if field else None
        fields, offset = ["id", "source", "stamp"], None
        while True:
            points, offset = self._client.scroll(
                self._name, chosen, limit=_PAGE, offset=offset, with_payload=fields
            )
            for point in points:
                found = point.payload or {}
                yield Listed(_key(point.id), *(found[name] for name in fields))
            if offset is None:
                return

    def read(self, keys: Sequence[str]) -> list[tuple[Row, list[float]]]:
        """Read rows with their vectors."""
        points = self._client.retrieve(self._name, keys, with_payload=True, with_vectors=[DENSE])
        return [(_row(point), _dense(point.vector)) for point in points]

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
                vector={DENSE: vector, SPARSE: _weights(words, average)},
                payload={name: getattr(row, name) for name in Row._fields[1:]},
            )
            for row, vector, words in zip(rows, vectors.tolist(), terms, strict=True)
        ]
        for part in request_slices(rows, vectors.shape[1], terms):
            self._client.upsert(self._name, points[part], wait=True)

    def remove(self, keys: Sequence[str]) -> None:
        """Delete rows."""
        self._client.delete(self._name, list(keys), wait=True)

    def search(
        self, mode: Mode, vector: Sequence[float], terms: Sequence[str], k: int, wanted: Filter
    ) -> list[tuple[Row, float]]:
        """Find the best rows."""
        from qdrant_client import models

        only = native(wanted) if wanted else None
        dense, sparse = list(vector), _query(terms)
        asked: dict[str, Any]
        if mode == "dense":
            asked = {"query": dense, "using": DENSE, "query_filter": only}
        elif mode == "bm25":
            asked = {"query": sparse, "using": SPARSE, "query_filter": only}
        else:
            depth = max(k, CANDIDATES)
            both = [
                models.Prefetch(query=query, using=using, limit=depth, filter=only)
                for query, using in ((dense, DENSE), (sparse, SPARSE))
            ]
            # Qdrant counts ranks from 0.
            rrf = models.RrfQuery(rrf=models.Rrf(k=K0 + 1))
            asked = {"prefetch": both, "query": rrf}
        found = self._client.query_points(self._name, limit=k, with_payload=True, **asked)
        return [(_row(point), float(point.score)) for point in found.points]


class _OneAtATime:
    """A client in local mode, which breaks when threads call it at once."""

    def __init__(self, client: QdrantClient) -> None:
        self._client, self._lock = client, Lock()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(*given: Any, **named: Any) -> Any:
            with self._lock:
                return method(*given, **named)

        return call


def _client() -> Any:
    """Return the client of this address; a folder in local mode can be opened only once."""
    from qdrant_client import QdrantClient

    url, path = (os.environ.get(each, "").strip() for each in ("QDRANT_URL", "QDRANT_PATH"))

    def connect() -> QdrantClient | _OneAtATime:
        if not url:
            local = QdrantClient(path=path, force_disable_check_same_thread=True)
            atexit.register(local.close)
            return _OneAtATime(local)
        return QdrantClient(
            url=url,
            api_key=os.environ.get("QDRANT_API_KEY") or None,
            timeout=TIMEOUT_S,
            check_compatibility=False,
        )

    return _clients.get(url or path, connect)


def _key(identity: object) -> str:
    return uuid.UUID(str(identity)).hex


def _row(point: Any) -> Row:
    found = point.payload or {}
    return Row(_key(point.id), *(found[name] for name in Row._fields[1:]))


def _dense(vector: Any) -> list[float]:
    found: list[float] = vector[DENSE]
    return found


def _position(term: str) -> int:
    """Return the dimension of a word: 32 bits of its hash."""
    return int.from_bytes(hashlib.sha256(term.encode()).digest()[:4])


def _weights(terms: Sequence[str], average: float) -> models.SparseVector:
    """Return the part of BM25 that depends on the passage; Qdrant multiplies it by the IDF."""
    from qdrant_client import models

    norm = length_norm(len(terms), average)
    counts = Counter(map(_position, terms))
    values = [count * (K1 + 1) / (count + norm) for count in counts.values()]
    return models.SparseVector(indices=list(counts), values=values)


def _query(terms: Sequence[str]) -> models.SparseVector:
    from qdrant_client import models

    counts = Counter(map(_position, terms))
    return models.SparseVector(indices=list(counts), values=[float(n) for n in counts.values()])


def native(wanted: Filter) -> models.Filter:
    """Return a filter that leaves out no row that `wanted` matches, but may let others through.

    A pattern of `source` becomes the words that must be in it, since Qdrant matches whole words.
    """
    from qdrant_client import models

    conditions = [_condition(name, values) for name, values in wanted]
    return models.Filter(must=[each for each in conditions if each])


def _equals(name: str, values: Sequence[str]) -> models.FieldCondition:
    from qdrant_client import models

    return models.FieldCondition(key=name, match=models.MatchAny(any=[*values]))


def _condition(name: str, values: Sequence[str]) -> models.Filter | models.FieldCondition | None:
    from qdrant_client import models

    if name != "source":
        return _equals(name, values)
    patterns = [each for value in values if (each := _matching(value))]
    return models.Filter(should=[*patterns]) if len(patterns) == len(values) else None


def _matching(pattern: str) -> models.Filter | None:
    from qdrant_client import models

    found = [literal(piece) for piece in pieces(pattern)]
    if None not in found:
        return models.Filter(must=[_equals("source", ["".join(filter(None, found))])])
    words = [models.MatchText(text=word) for word in _words("".join(c or "*" for c in found))]
    if not words:
        return None
    return models.Filter(must=[models.FieldCondition(key="source", match=word) for word in words])


def _words(text: str) -> list[str]:
    """Return the words that every match contains, if `*` stands for what can vary.

    Words are letters and digits of ASCII between other characters of ASCII or the text's ends,
    about which all tokenizers for words agree.
    """
    return [match[0] for match in _WORD.finditer(text)]


_BETWEEN = r"[\x00-)+-/:-@\[-`{-\x7f]"  # ASCII without letters, digits and `*`
_WORD = re.compile(rf"(?:^|(?<={_BETWEEN}))[A-Za-z0-9]+(?={_BETWEEN}|\Z)")
