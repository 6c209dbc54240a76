"""Collections of Milvus: dense vectors and its own BM25.

`MILVUS_URI` (or `MILVUS_URL`) is the address of a server, or a file `NAME.db` for milvus-lite,
which runs in this process.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hopgate.retrievers.filters import FIELDS, MAX_CANDIDATES, Condition, Filter, comparisons
from hopgate.retrievers.hybrid import K1, B
from hopgate.retrievers.stores.collection import Entry, Foreign, Listed, Row, Scored
from hopgate.retrievers.stores.names import TIMEOUT_S, address, is_local

if TYPE_CHECKING:
    from pymilvus import CollectionSchema, MilvusClient

_INFO = "hopgate"
_BM25 = {"bm25_k1": K1, "bm25_b": B}
_MAX_BYTES = 65_535
"""Longest text of a field."""
_PAGE = 1_000


def connect() -> MilvusClient:
    """Connect; a file can be opened by one process at a time."""
    uri = address("milvus")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else it writes notes to stderr
    # pymilvus reads MILVUS_URI while it is imported, and fails on a file there.
    os.environ["MILVUS_URL"] = uri
    os.environ.pop("MILVUS_URI", None)
    from pymilvus import MilvusClient

    os.environ["MILVUS_URI"] = uri
    for name in ("pymilvus", "milvus_lite"):  # they log tracebacks of errors that they also raise
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    return MilvusClient(uri, token=os.environ.get("MILVUS_TOKEN", "").strip(), timeout=TIMEOUT_S)


class Milvus:
    """A collection of Milvus, see `collection.Engine`."""

    max_text_bytes = _MAX_BYTES

    def __init__(self, client: Any, name: str) -> None:
        """Keep both."""
        self._client, self._name = client, name
        self._lite = is_local("milvus")

    def info(self) -> str | None:
        """Return the description stored with the collection."""
        if not self._client.has_collection(self._name):
            return None
        self._client.load_collection(self._name)  # a server or file that was opened anew has not
        properties = self._client.describe_collection(self._name).get("properties") or {}
        return str(properties.get(_INFO, ""))

    def create(self, info: str, dimension: int) -> None:
        """Create the collection with its indexes, which the engine extends as rows come."""
        params = self._client.prepare_index_params()
        # milvus-lite's AUTOINDEX, a graph, misses passages that a filter matches.
        kind = "FLAT" if self._lite else "AUTOINDEX"
        params.add_index("vector", index_type=kind, metric_type="IP")
        params.add_index(
            "sparse", index_type="SPARSE_INVERTED_INDEX", metric_type="BM25", params=_BM25
        )
        for field in ("id", "source"):
            params.add_index(field, index_type="INVERTED")
        self._client.create_collection(
            self._name,
            schema=self._schema(dimension),
            index_params=params,
            properties={_INFO: info},
            consistency_level="Strong",
        )

    def _schema(self, dimension: int) -> CollectionSchema:
        from pymilvus import DataType, Function, FunctionType

        schema = self._client.create_schema(auto_id=False, enable_dynamic_field=False)
        text = {"datatype": DataType.VARCHAR, "max_length": _MAX_BYTES}
        schema.add_field("key", DataType.VARCHAR, max_length=32, is_primary=True)
        for field in Row._fields[1:-1]:
            schema.add_field(field, **text)
        schema.add_field("metadata", DataType.JSON)
        analyzer = {"tokenizer": "standard"}
        schema.add_field("words", **text, enable_analyzer=True, analyzer_params=analyzer)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dimension)
        schema.add_field("sparse", DataType.SPARSE_FLOAT_VECTOR)
        schema.add_function(Function("bm25", FunctionType.BM25, ["words"], ["sparse"]))
        return schema

    def describe(self, info: str, dimension: int) -> None:
        """Store other JSON with it, and flush, so that the engine indexes the last rows."""
        self._client.alter_collection_properties(self._name, {_INFO: info})
        self._client.flush(self._name)

    def drop(self) -> None:
        """Delete the collection."""
        self._client.drop_collection(self._name)

    def listed(self) -> list[Listed]:
        """List all rows."""
        fields = list(Listed._fields)
        rows = self._client.query_iterator(self._name, batch_size=_PAGE, output_fields=fields)
        pages = iter(rows.next, [])
        return [Listed(*map(row.get, Listed._fields)) for page in pages for row in page]

    def read(self, keys: Sequence[str]) -> list[tuple[Row, list[float]]]:
        """Read rows with their vectors."""
        fields = [*Row._fields, "vector"]
        found = self._client.get(self._name, ids=list(keys), output_fields=fields)
        return [(Row.read(each), [float(x) for x in each["vector"]]) for each in found]

    def put(self, entries: Sequence[Entry]) -> None:
        """Add or replace rows."""
        rows = [
            row._asdict() | {"metadata": row.known(), "vector": vector, "words": _text(words)}
            for row, vector, words, _ in entries
        ]
        self._client.upsert(self._name, rows)

    def remove(self, keys: Sequence[str]) -> None:
        """Delete rows."""
        self._client.delete(self._name, ids=list(keys))

    def dense(self, vector: list[float], k: int, wanted: Filter) -> Scored:
        """Find the rows with the highest inner product."""
        return self._best("vector", vector, k, wanted)

    def bm25(self, words: Sequence[str], k: int, wanted: Filter) -> Scored:
        """Find the best rows for some words; milvus-lite gives their scores as negative numbers."""
        found = self._best("sparse", _text(words), k, wanted)
        return [(row, abs(score)) for row, score in found]

    def _best(self, field: str, query: Any, k: int, wanted: Filter) -> Scored:
        found = self._search(field, query, k, wanted, list(Row._fields))
        return [(Row.read(each["entity"] | each), each["distance"]) for each in found]

    def _search(self, field: str, query: Any, k: int, wanted: Filter, fields: list[str]) -> Any:
        # With more candidates, a graph that LangChain chose loses few passages in milvus-lite.
        graph = self._lite and wanted and field != "sparse"
        (found,) = self._client.search(
            self._name,
            [query],
            native(wanted),
            limit=k,
            output_fields=fields,
            search_params={"params": {"ef": MAX_CANDIDATES}} if graph else {},
            anns_field=field,
        )
        return found

    def foreign(self) -> Foreign | None:
        """Search a collection that LangChain made; scores are as its metric has them."""
        from pymilvus import DataType

        if not self._client.has_collection(self._name):
            return None
        described = self._client.describe_collection(self._name)["fields"]
        names = {each["name"] for each in described}
        dense = [each["name"] for each in described if each["type"] == DataType.FLOAT_VECTOR]
        if not dense or "text" not in names:
            return None
        (key,) = (each["name"] for each in described if each.get("is_primary"))

        def search(vector: list[float], k: int, wanted: Filter) -> list[Any]:
            known = tuple(each for each in wanted if each[0] in names)
            found = self._search(dense[0], vector, k, known, ["*"])
            return [document(each["entity"], each[key], each["distance"]) for each in found]

        def document(entity: dict[str, Any], identity: object, score: float) -> tuple[Any, ...]:
            metadata = {name: entity[name] for name in entity.keys() - {key, *dense, "text"}}
            metadata |= metadata.pop("metadata", None) or {}
            return str(identity), entity["text"], metadata, score

        return search


def _text(words: Sequence[str]) -> str:
    """Return words as a text that every tokenizer splits at the spaces.

    Words that are not ASCII become their hash, since tokenizers differ about other scripts.
    """
    hashed = (
        each if each.isascii() else f"x{hashlib.sha256(each.encode()).hexdigest()[:16]}"
        for each in words
    )
    return " ".join(hashed)[:_MAX_BYTES]


def native(wanted: Filter) -> str:
    """Return a filter that leaves out no row that `wanted` matches, but may let others through."""
    return " && ".join(f"({each})" for condition in wanted if (each := _either(condition)))


def _either(condition: Condition) -> str:
    name, known = condition[0], condition[0] not in FIELDS
    value = f'metadata["{name}"]' if known else name
    found = comparisons(condition)
    either = [" && ".join(_compared(value, *each) for each in ends.items()) for ends in found]
    if known and (texts := [ends["=="] for ends in found if isinstance(ends.get("=="), str)]):
        either.append(f"json_contains_any({value}, {_json(texts)})")
    return " || ".join(f"({each})" for each in either)


def _compared(value: str, sign: str, end: object) -> str:
    if sign == "starts with":
        # `_` is any character: it stands for those that LIKE or a quoted text treats specially.
        sign, end = "like", re.sub(r"""[%_\\"']""", "_", str(end)) + "%"
    return f"{value} {sign} {_json(end)}"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
