"""Collections of Milvus: dense vectors and its own BM25, fused by the engine.

`MILVUS_URI` (or `MILVUS_URL`) is the address of a server, or a file `NAME.db` for milvus-lite,
which runs in this process.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

from hopgate.common.cache import Cache
from hopgate.retrievers.filters import Filter, is_pattern, literal, pieces
from hopgate.retrievers.hybrid import CANDIDATES, K0, K1, B, Mode
from hopgate.retrievers.stores import (
    TIMEOUT_S,
    ForeignError,
    Listed,
    Row,
    address,
    request_slices,
    without,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from pymilvus import CollectionSchema, MilvusClient
    from pymilvus.milvus_client import IndexParams

_INFO = "hopgate"
_BM25 = {"bm25_k1": K1, "bm25_b": B}
_MAX_BYTES = 65_535
"""Longest text of a field."""
_PAGE = 1_000

_clients: Cache[MilvusClient] = Cache()
_writing = Lock()
"""Held while rows change: milvus-lite 3.2 fails now and then when two threads write at once."""


class MilvusCollection:
    """A collection of Milvus, see `stores.Collection`."""

    max_text_bytes = _MAX_BYTES

    def __init__(self, name: str) -> None:
        """Connect, once per process and address."""
        self._name, self._client = name, _client()

    def info(self) -> str | None:
        """Return what was stored with the collection."""
        if not self._client.has_collection(self._name):
            return None
        properties = self._client.describe_collection(self._name).get("properties") or {}
        if not isinstance(found := properties.get(_INFO), str):
            raise ForeignError
        self._client.load_collection(self._name)  # a server or file that was opened anew has not
        return found

    def create(self, info: str, dimension: int) -> None:
        """Create the collection with its indexes, which the engine extends as rows come."""
        self._client.create_collection(
            self._name,
            schema=self._schema(dimension),
            index_params=self._indexes(),
            properties={_INFO: info},
            consistency_level="Strong",
        )

    def _schema(self, dimension: int) -> CollectionSchema:
        from pymilvus import DataType, Function, FunctionType

        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("key", DataType.VARCHAR, max_length=32, is_primary=True)
        for field in Row._fields[1:]:
            schema.add_field(field, DataType.VARCHAR, max_length=_MAX_BYTES)
        schema.add_field(
            "words",
            DataType.VARCHAR,
            max_length=_MAX_BYTES,
            enable_analyzer=True,
            analyzer_params={"tokenizer": "standard"},
        )
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dimension)
        schema.add_field("sparse", DataType.SPARSE_FLOAT_VECTOR)
        bm25 = Function(
            name="bm25",
            function_type=FunctionType.BM25,
            input_field_names=["words"],
            output_field_names=["sparse"],
        )
        schema.add_function(bm25)
        return schema

    def _indexes(self) -> IndexParams:
        params = self._client.prepare_index_params()
        params.add_index("vector", index_type="AUTOINDEX", metric_type="IP")
        params.add_index(
            "sparse", index_type="SPARSE_INVERTED_INDEX", metric_type="BM25", params=_BM25
        )
        for field in ("id", "source"):
            params.add_index(field, index_type="INVERTED")
        return params

    def describe(self, info: str) -> None:
        """Store other JSON with it."""
        self._client.alter_collection_properties(self._name, {_INFO: info})

    def drop(self) -> None:
        """Delete the collection."""
        self._client.drop_collection(self._name)

    def finish(self) -> None:
        """Flush, so that the engine can index what came last."""
        with _writing:
            self._client.flush(self._name)

    def listed(self, field: str = "", values: Sequence[str] = ()) -> Iterator[Listed]:
        """List rows."""
        fields = list(Listed._fields)
        rows = self._client.query_iterator(
            self._name,
            batch_size=_PAGE,
            filter=_equals(field, values) if field else "",
            output_fields=fields,
        )
        try:
            while found := rows.next():
                yield from (Listed(*(row[name] for name in fields)) for row in found)
        finally:
            rows.close()

    def read(self, keys: Sequence[str]) -> list[tuple[Row, list[float]]]:
        """Read rows with their vectors."""
        fields = [*Row._fields, "vector"]
        found = self._client.get(self._name, ids=list(keys), output_fields=fields)
        return [(_row(each), [float(x) for x in each["vector"]]) for each in found]

    def put(
        self,
        rows: Sequence[Row],
        vectors: NDArray[np.float32],
        terms: Sequence[Sequence[str]],
        average: float,
    ) -> None:
        """Add or replace rows."""
        data = [
            {**row._asdict(), "vector": vector, "words": _text(words)}
            for row, vector, words in zip(rows, vectors.tolist(), terms, strict=True)
        ]
        for part in request_slices(rows, vectors.shape[1], terms):
            with _writing:
                self._client.upsert(self._name, data[part])

    def remove(self, keys: Sequence[str]) -> None:
        """Delete rows."""
        with _writing:
            self._client.delete(self._name, ids=list(keys))

    def search(
        self, mode: Mode, vector: Sequence[float], terms: Sequence[str], k: int, wanted: Filter
    ) -> list[tuple[Row, float]]:
        """Find the best rows."""
        from pymilvus import AnnSearchRequest, RRFRanker

        fields, only = list(Row._fields), native(wanted)
        dense, words = [list(vector)], [_text(terms)]
        if mode == "hybrid" and words[0]:
            depth = max(k, CANDIDATES)
            requests = [
                AnnSearchRequest(data, field, {}, limit=depth, expr=only or None)
                for data, field in ((dense, "vector"), (words, "sparse"))
            ]
            (found,) = self._client.hybrid_search(
                self._name, requests, RRFRanker(K0), limit=k, output_fields=fields
            )
        elif mode == "bm25" and not words[0]:
            return []
        else:
            data, field = (words, "sparse") if mode == "bm25" else (dense, "vector")
            (found,) = self._client.search(
                self._name, data, only, limit=k, output_fields=fields, anns_field=field
            )
        # milvus-lite gives BM25's scores as negative numbers.
        sign = -1 if mode == "bm25" and any(each["distance"] < 0 for each in found) else 1
        return [(_row(each["entity"] | each), sign * float(each["distance"])) for each in found]


def _client() -> MilvusClient:
    """Return the client of this address; a file can be opened by one process at a time."""
    uri = address("milvus")

    def connect() -> MilvusClient:
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else it writes notes to stderr
        with without("MILVUS_URI"):  # pymilvus reads it too, and knows no files there
            from pymilvus import MilvusClient

        for name in ("pymilvus", "milvus_lite"):  # they log tracebacks of what they also raise
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        token = os.environ.get("MILVUS_TOKEN", "").strip()
        try:
            return MilvusClient(uri, token=token, timeout=TIMEOUT_S)
        except Exception as error:
            if "://" in uri:
                raise
            raise RuntimeError(
                "the file in MILVUS_URI cannot be opened: its name must end in .db, its folder "
                "must exist, and only one process at a time can open it (several need a server)"
            ) from error

    return _clients.get(uri, connect)


def _row(found: Any) -> Row:
    return Row(*(found[name] for name in Row._fields))


def _text(terms: Sequence[str]) -> str:
    """Return words as a text that every tokenizer splits at the spaces.

    Words that are not ASCII become their hash, since tokenizers differ about other scripts.
    """
    words = (term if term.isascii() else _hashed(term) for term in terms)
    return " ".join(words)[:_MAX_BYTES]


def _hashed(term: str) -> str:
    return f"x{hashlib.sha256(term.encode()).hexdigest()[:16]}"


def native(wanted: Filter) -> str:
    """Return a filter that leaves out no row that `wanted` matches, but may let others through."""
    return " and ".join(f"({_condition(name, values)})" for name, values in wanted)


def _condition(name: str, values: Sequence[str]) -> str:
    if name != "source":
        return _equals(name, values)
    exact = [each for each in values if not is_pattern(each)]
    either = [f"source like {_string(_like(each))}" for each in values if is_pattern(each)]
    return " or ".join([*either, *([_equals(name, exact)] if exact else [])])


def _equals(name: str, values: Sequence[str]) -> str:
    return f"{name} in [{', '.join(map(_string, values))}]"


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _like(pattern: str) -> str:
    """Return the pattern of LIKE that matches at least what a shell pattern matches."""
    return "".join(map(_like_piece, pieces(pattern)))


def _like_piece(piece: str) -> str:
    if piece == "*":
        return "%"
    character = literal(piece)
    return "_" if character is None or character in "%_\\\"'" else character
