"""Collections of Milvus: dense vectors and its own BM25, fused by the engine.

`MILVUS_URI` (or `MILVUS_URL`) is the address of a server, or a file `NAME.db` for milvus-lite,
which runs in this process.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

from hopgate.common.cache import Cache
from hopgate.retrievers.filters import MAX_CANDIDATES, Filter, is_pattern
from hopgate.retrievers.hybrid import CANDIDATES, K0, K1, B, Mode
from hopgate.retrievers.stores.names import ForeignError, address
from hopgate.retrievers.stores.rows import TIMEOUT_S, Listed, Row, Scored, foreign_filter, like

if TYPE_CHECKING:
    import numpy as np
    from langchain_core.documents import Document
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
    """A collection of Milvus, see `rows.Collection`."""

    max_text_bytes = _MAX_BYTES

    def __init__(self, name: str) -> None:
        """Connect, once per process and address."""
        self._name, self._client = name, _client()
        self._lite = "://" not in address("milvus")
        # milvus-lite's AUTOINDEX, a graph, misses passages that a filter matches.
        self.index_type = "FLAT" if self._lite else "AUTOINDEX"

    def info(self) -> str | None:
        """Return what was stored with the collection."""
        if not self._client.has_collection(self._name):
            return None
        self._client.load_collection(self._name)  # a server or file that was opened anew has not
        properties = self._client.describe_collection(self._name).get("properties") or {}
        if not isinstance(found := properties.get(_INFO), str):
            raise ForeignError
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
        schema.add_function(Function("bm25", FunctionType.BM25, ["words"], ["sparse"]))
        return schema

    def _indexes(self) -> IndexParams:
        params = self._client.prepare_index_params()
        params.add_index("vector", index_type=self.index_type, metric_type="IP")
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

    def listed(self, field: str = "", values: Sequence[str] = ()) -> list[Listed]:
        """List rows."""
        rows = self._client.query_iterator(
            self._name,
            batch_size=_PAGE,
            filter=_equals(field, values) if field else "",
            output_fields=list(Listed._fields),
        )
        pages = iter(rows.next, [])
        return [Listed(*map(row.get, Listed._fields)) for page in pages for row in page]

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
        with _writing:
            self._client.upsert(self._name, data)

    def remove(self, keys: Sequence[str]) -> None:
        """Delete rows."""
        with _writing:
            self._client.delete(self._name, ids=list(keys))

    def search(
        self, mode: Mode, vector: Sequence[float], terms: Sequence[str], k: int, wanted: Filter
    ) -> Scored:
        """Find the best rows."""
        from pymilvus import AnnSearchRequest, RRFRanker

        fields, only = list(Row._fields), native(wanted)
        dense, words = [list(vector)], [_text(terms)]
        if mode == "hybrid" and words[0]:
            depth = max(k, CANDIDATES)
            requests = [
                AnnSearchRequest(dense, "vector", self._exact(only), depth, only or None),
                AnnSearchRequest(words, "sparse", {}, depth, only or None),
            ]
            (found,) = self._client.hybrid_search(
                self._name, requests, RRFRanker(K0), limit=k, output_fields=fields
            )
        elif mode == "bm25" and words[0]:
            (found,) = self._client.search(
                self._name, words, only, limit=k, output_fields=fields, anns_field="sparse"
            )
        elif mode == "bm25":
            return []
        else:
            found = self._near("vector", vector, k, only, fields)
        # milvus-lite gives BM25's scores as negative numbers.
        sign = -1 if mode == "bm25" and any(each["distance"] < 0 for each in found) else 1
        return [(_row(each["entity"] | each), sign * float(each["distance"])) for each in found]

    def _near(
        self, field: str, vector: Sequence[float], k: int, only: str, fields: list[str]
    ) -> list[Any]:
        (found,) = self._client.search(
            self._name,
            [list(vector)],
            only,
            limit=k,
            output_fields=fields,
            search_params=self._exact(only),
            anns_field=field,
        )
        return list(found)

    def _exact(self, only: str) -> dict[str, Any]:
        """Return settings with which milvus-lite's graph, if there is one, loses few passages."""
        return {"params": {"ef": MAX_CANDIDATES}} if self._lite and only else {}

    def foreign_dimension(self) -> int | None:
        """Return the dimension of LangChain's vectors."""
        found = self._foreign_fields()[0]
        return int(found["params"]["dim"]) if found else None

    def _foreign_fields(self) -> tuple[dict[str, Any] | None, list[str], str]:
        """Return the dense vectors' field, the other fields, and the primary key's name."""
        from pymilvus import DataType

        fields = self._client.describe_collection(self._name)["fields"]
        dense = [each for each in fields if each["type"] == DataType.FLOAT_VECTOR]
        sparse = [each for each in fields if each["type"] == DataType.SPARSE_FLOAT_VECTOR]
        names = [each["name"] for each in fields if each not in (*dense, *sparse)]
        key = next((each["name"] for each in fields if each.get("is_primary")), "")
        return dense[0] if dense and "text" in names else None, names, key

    def search_foreign(
        self, vector: Sequence[float], k: int, wanted: Filter
    ) -> list[tuple[Document, float]]:
        """Find the best documents; a distance becomes a negative score."""
        from langchain_core.documents import Document

        dense, names, key = self._foreign_fields()
        assert dense is not None
        known = tuple(each for each in foreign_filter(wanted) if each[0] in names)
        found = self._near(dense["name"], vector, k, native(known), ["*"])
        (index,) = self._client.list_indexes(self._name, dense["name"])
        metric = self._client.describe_index(self._name, index)["metric_type"]
        documents = []
        for each in found:
            entity = {name: value for name, value in each["entity"].items() if name != key}
            entity.pop(dense["name"], None)
            text, nested = entity.pop("text"), entity.pop("metadata", None) or {}
            document = Document(id=str(each[key]), page_content=text, metadata=entity | nested)
            documents.append((document, each["distance"] * (-1 if metric == "L2" else 1)))
        return documents


def _client() -> MilvusClient:
    """Return the client of this address; a file can be opened by one process at a time."""
    uri = address("milvus")

    def connect() -> MilvusClient:
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else it writes notes to stderr
        # pymilvus reads MILVUS_URI while it is imported, and fails on a file there.
        os.environ["MILVUS_URL"] = uri
        os.environ.pop("MILVUS_URI", None)
        from pymilvus import MilvusClient

        os.environ["MILVUS_URI"] = uri
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
    hashed = (
        each if each.isascii() else f"x{hashlib.sha256(each.encode()).hexdigest()[:16]}"
        for each in terms
    )
    return " ".join(hashed)[:_MAX_BYTES]


def native(wanted: Filter) -> str:
    """Return a filter that leaves out no row that `wanted` matches, but may let others through."""
    return " and ".join(f"({_condition(name, values)})" for name, values in wanted)


def _condition(name: str, values: Sequence[str]) -> str:
    patterns = [each for each in values if name == "source" and is_pattern(each)]
    exact = [each for each in values if each not in patterns]
    either = [f"{name} like {_string(like(each))}" for each in patterns]
    return " or ".join([*either, *([_equals(name, exact)] if exact else [])])


def _equals(name: str, values: Sequence[str]) -> str:
    return f"{name} in [{', '.join(map(_string, values))}]"


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
