"""Collections of Qdrant: dense vectors, and the words of BM25 as sparse ones."""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import uuid
from collections import Counter
from collections.abc import Sequence
from datetime import date
from typing import Any

from qdrant_client import QdrantClient, models

from hopgate.retrievers.filters import FIELDS, Condition, Filter, comparisons
from hopgate.retrievers.hybrid import K1
from hopgate.retrievers.stores.collection import Entry, Foreign, Listed, Row, Scored
from hopgate.retrievers.stores.names import TIMEOUT_S, address, is_local

_DENSE, _WORDS, _INFO = "dense", "words", "hopgate"
_PAGE = 4_096
_INDEXED = ("id", "source", "title", "page", "section")


def connect() -> QdrantClient:
    """Connect; a folder in local mode can be opened only once."""
    if is_local("qdrant"):
        local = QdrantClient(path=address("qdrant"), force_disable_check_same_thread=True)
        atexit.register(local.close)
        return local
    key = os.environ.get("QDRANT_API_KEY") or None
    server = QdrantClient(
        address("qdrant"), api_key=key, timeout=TIMEOUT_S, check_compatibility=False
    )
    server.info()  # it connects only now
    return server


class Qdrant:
    """A collection of Qdrant, see `collection.Engine`."""

    max_text_bytes = 16 << 20  # a server takes requests of 32 MB

    def __init__(self, client: Any, name: str) -> None:
        """Keep both."""
        self._client, self._name = client, name

    def info(self) -> str | None:
        """Return the description stored with the collection."""
        if not self._client.collection_exists(self._name):
            return None
        found = (self._client.get_collection(self._name).config.metadata or {}).get(_INFO)
        return found if isinstance(found, str) else ""

    def create(self, info: str, dimension: int) -> None:
        """Create the collection; it makes its own HNSW graph as it grows."""
        dense = models.VectorParams(size=dimension, distance=models.Distance.DOT)
        words = models.SparseVectorParams(modifier=models.Modifier.IDF)
        self._client.create_collection(
            self._name,
            vectors_config={_DENSE: dense},
            sparse_vectors_config={_WORDS: words},
            metadata={_INFO: info},
        )
        for field in () if is_local("qdrant") else _INDEXED:
            kind = models.PayloadSchemaType.KEYWORD
            self._client.create_payload_index(self._name, field, kind)

    def describe(self, info: str, dimension: int) -> None:
        """Store other JSON with it."""
        self._client.update_collection(self._name, metadata={_INFO: info})

    def drop(self) -> None:
        """Delete the collection."""
        self._client.delete_collection(self._name)

    def listed(self) -> list[Listed]:
        """List all rows."""
        fields, offset, found = list(Listed._fields[1:]), None, list[Listed]()
        while True:
            points, offset = self._client.scroll(
                self._name, limit=_PAGE, offset=offset, with_payload=fields
            )
            found += [Listed(_key(each), *map(each.payload.get, fields)) for each in points]
            if offset is None:
                return found

    def read(self, keys: Sequence[str]) -> list[tuple[Row, list[float]]]:
        """Read rows with their vectors."""
        points = self._client.retrieve(self._name, keys, with_payload=True, with_vectors=[_DENSE])
        return [(_row(point), point.vector[_DENSE]) for point in points]

    def put(self, entries: Sequence[Entry]) -> None:
        """Add or replace rows."""
        points = [
            models.PointStruct(
                id=row.key,
                vector={_DENSE: vector, _WORDS: _passage_words(words, norm)},
                payload=row._asdict() | {"metadata": row.known()},
            )
            for row, vector, words, norm in entries
        ]
        self._client.upsert(self._name, points, wait=True)

    def remove(self, keys: Sequence[str]) -> None:
        """Delete rows."""
        self._client.delete(self._name, list(keys), wait=True)

    def dense(self, vector: list[float], k: int, wanted: Filter) -> Scored:
        """Find the rows with the highest inner product."""
        return [(_row(each), each.score) for each in self._best(vector, _DENSE, k, native(wanted))]

    def bm25(self, words: Sequence[str], k: int, wanted: Filter) -> Scored:
        """Find the best rows for some words; Qdrant multiplies a passage's part by the IDF."""
        query = _sparse({word: float(count) for word, count in _counts(words).items()})
        return [(_row(each), each.score) for each in self._best(query, _WORDS, k, native(wanted))]

    def _best(self, query: Any, using: str | None, k: int, only: models.Filter) -> Any:
        asked = {"query": query, "using": using, "query_filter": only, "limit": k}
        return self._client.query_points(self._name, **asked).points

    def foreign(self) -> Foreign | None:
        """Search the first dense vectors of a collection that LangChain made."""
        if not self._client.collection_exists(self._name):
            return None
        vectors = self._client.get_collection(self._name).config.params.vectors
        using = next(iter(vectors)) if isinstance(vectors, dict) else None

        def search(vector: list[float], k: int, wanted: Filter) -> list[Any]:
            points = self._best(vector, using, k, native(wanted, "metadata."))
            return [_document(each) for each in points]

        return search


def _document(point: Any) -> tuple[Any, ...]:
    known = point.payload
    return str(point.id), known["page_content"], known.get("metadata") or {}, point.score


def _key(point: Any) -> str:
    return uuid.UUID(str(point.id)).hex


def _row(point: Any) -> Row:
    return Row.read({**point.payload, "key": _key(point)})


def _counts(words: Sequence[str]) -> Counter[int]:
    """Count words by their dimension, 32 bits of their hash."""
    return Counter(int.from_bytes(hashlib.sha256(each.encode()).digest()[:4]) for each in words)


def _passage_words(words: Sequence[str], norm: float) -> models.SparseVector:
    """Return the part of BM25 that depends on the passage."""
    return _sparse({w: count * (K1 + 1) / (count + norm) for w, count in _counts(words).items()})


def _sparse(values: dict[int, float]) -> models.SparseVector:
    return models.SparseVector(indices=list(values), values=list(values.values()))


def native(wanted: Filter, prefix: str = "") -> models.Filter:
    """Return a filter that leaves out no row that `wanted` matches, but may let others through.

    Args:
        wanted: The filter.
        prefix: Put before the name of a field.
    """
    found: list[Any] = [
        models.Filter(should=some) for each in wanted if (some := _either(each, prefix))
    ]
    return models.Filter(must=found)


def _either(condition: Condition, prefix: str) -> list[Any]:
    name = condition[0]
    key = prefix + name if name in FIELDS else f"metadata.{name}"
    return [_compared(key, ends) for ends in comparisons(condition)]


def _compared(key: str, ends: dict[str, Any]) -> Any:
    if start := ends.get("starts with"):  # Qdrant matches whole words
        words = (models.MatchText(text=word) for word in _WORD.findall(start))
        return models.Filter(must=[models.FieldCondition(key=key, match=word) for word in words])
    equal = ends.get("==")
    if isinstance(equal, str | bool):
        return models.FieldCondition(key=key, match=models.MatchValue(value=equal))
    low, high = (ends.get(sign, equal) for sign in (">=", "<="))
    dates = isinstance(low, str) or isinstance(high, str)
    between: Any = (
        models.DatetimeRange(gte=_day(low, -1), lte=_day(high, 2))
        if dates
        else models.Range(gte=low, lte=high)
    )
    return models.FieldCondition(key=key, range=between)


def _day(text: str | None, more: int) -> date | None:
    """Return a date some days from that of a text, since filters leave time zones aside."""
    number = date.fromisoformat(text[:10]).toordinal() + more if text else 0
    return date.fromordinal(number) if 0 < number <= date.max.toordinal() else None


_BETWEEN = r"[\x00-/:-@\[-`{-\x7f]"  # ASCII without letters and digits
_WORD = re.compile(rf"(?:^|(?<={_BETWEEN}))[A-Za-z0-9]+(?={_BETWEEN})")
"""Words that every text with a beginning contains: letters and digits of ASCII between other
characters of ASCII or the text's start, about which all tokenizers for words agree."""
