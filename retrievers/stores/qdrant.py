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

from langchain_core.documents import Document
from qdrant_client import QdrantClient, models

from hopgate.retrievers.filters import (
    FIELDS,
    Condition,
    Filter,
    Range,
    has_patterns,
    literal,
    pieces,
    same,
    split,
)
from hopgate.retrievers.hybrid import K1
from hopgate.retrievers.stores.collection import (
    NAME,
    TIMEOUT_S,
    Entry,
    Foreign,
    Listed,
    Row,
    Scored,
)
from hopgate.retrievers.stores.names import address, is_local

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

    def describe(self, info: str) -> None:
        """Store other JSON with it."""
        self._client.update_collection(self._name, metadata={_INFO: info})

    def drop(self) -> None:
        """Delete the collection."""
        self._client.delete_collection(self._name)

    def finish(self) -> None:
        """Do nothing: the engine indexes on its own."""

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
        found = self._client.get_collection(self._name).config.params.vectors
        named = found if isinstance(found, dict) else {None: found}
        using, vectors = next(iter(named.items()), (None, None))

        def search(vector: list[float], k: int, wanted: Filter) -> list[tuple[Document, float]]:
            points = self._best(vector, using, k, native(wanted, "metadata."))
            return [(_document(each), each.score) for each in points]

        return (vectors.size, search) if vectors else None


def _document(point: Any) -> Document:
    text, metadata = point.payload["page_content"], point.payload.get("metadata") or {}
    return Document(text, id=str(point.id), metadata=metadata)


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

    A pattern of `source` becomes the words that must be in it, since Qdrant matches whole words.
    A range of pages, which are texts, and a name of the metadata that would be a path are left out.

    Args:
        wanted: The filter.
        prefix: Put before the name of a field.
    """

    def either(condition: Condition) -> list[Any]:
        name, (texts, ranges) = condition[0], split(condition[1])
        key = prefix + name
        if name not in FIELDS:
            return _known(f"metadata.{name}", texts, ranges) if NAME.fullmatch(name) else []
        if has_patterns(condition):
            return [models.Filter(must=_words(key, each)) for each in texts]
        match = models.MatchAny(any=texts)
        return [] if ranges else [models.FieldCondition(key=key, match=match)]

    found: list[Any] = [
        models.Filter(should=some) for condition in wanted if (some := either(condition))
    ]
    return models.Filter(must=found)


def _known(key: str, texts: list[str], ranges: list[Range]) -> list[Any]:
    """Return conditions on the metadata of which one must hold."""
    found: list[dict[str, Any]] = [{"match": models.MatchAny(any=texts)}] if texts else []
    for each in (each for text in texts for each in same(text)[1:]):
        if isinstance(each, bool):
            found.append({"match": models.MatchValue(value=each)})
        else:
            found.append({"range": _range(each, each)})
    for start, end in ranges:
        dates = isinstance(start, str) or isinstance(end, str)
        found.append({"range": (_dates if dates else _range)(start, end)})
    return [models.FieldCondition(key=key, **each) for each in found]


def _range(start: Any, end: Any) -> models.Range:
    return models.Range(gte=start, lte=end)


def _dates(start: Any, end: Any) -> models.DatetimeRange:
    """Return a range of instants; a day wider, since filters leave time zones aside."""

    def day(text: str | None, more: int) -> date | None:
        number = date.fromisoformat(text[:10]).toordinal() + more if text else 0
        return date.fromordinal(number) if 0 < number <= date.max.toordinal() else None

    return models.DatetimeRange(gte=day(start, -1), lte=day(end, 2))


def _words(key: str, pattern: str) -> list[Any]:
    text = "".join(literal(piece) or "*" for piece in pieces(pattern))
    found = (models.MatchText(text=word) for word in _WORD.findall(text))
    return [models.FieldCondition(key=key, match=each) for each in found]


_BETWEEN = r"[\x00-)+-/:-@\[-`{-\x7f]"  # ASCII without letters, digits and `*`
_WORD = re.compile(rf"(?:^|(?<={_BETWEEN}))[A-Za-z0-9]+(?={_BETWEEN}|\Z)")
"""Words that every match of a pattern contains: letters and digits of ASCII between other
characters of ASCII or the text's ends, about which all tokenizers for words agree."""
