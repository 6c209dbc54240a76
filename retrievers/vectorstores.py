"""Outside vector stores by name: Qdrant collections and pgvector tables, through LangChain.

Addresses and credentials come from the environment only: `QDRANT_URL` (or `QDRANT_PATH`, a folder
for the client's local mode) and `QDRANT_API_KEY`; `PGVECTOR_URL`. See docs/retrieval.md.
"""

from __future__ import annotations

import importlib.util
import os
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from langchain_core.embeddings import Embeddings

from hopgate.common.cache import Cache
from hopgate.retrievers.base import LangChainRetriever, Passage
from hopgate.retrievers.encoders import DEFAULT_ENCODER, EncodeProgress, first_line, load_encoder
from hopgate.retrievers.filters import Filter, literal, pieces

if TYPE_CHECKING:
    from langchain_core.vectorstores import VectorStore
    from langchain_postgres import PGEngine, PGVectorStore
    from langchain_qdrant import QdrantVectorStore
    from qdrant_client import QdrantClient, models

TIMEOUT_S = 10
"""Seconds to wait for an engine to connect or to respond."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")
_BATCH = 512
_PACKAGES = {"qdrant": "langchain_qdrant", "pgvector": "langchain_postgres"}
_SETTINGS = {"qdrant": ("QDRANT_URL", "QDRANT_PATH"), "pgvector": ("PGVECTOR_URL",)}

ENGINES = tuple(_PACKAGES)


class Store(NamedTuple):
    """A collection of an outside engine: `ENGINE:NAME` or `ENGINE:NAME@ENCODER`."""

    engine: str
    name: str
    encoder: str


class EncoderEmbeddings(Embeddings):
    """One of hopgate's encoders as LangChain embeddings.

    Args:
        encoder: See `load_encoder`; loaded when it is first used.
    """

    def __init__(self, encoder: str = DEFAULT_ENCODER) -> None:
        """Keep the name."""
        self._encoder = encoder

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Encode texts as passages without a title."""
        passages = [Passage(id="", title="", text=text, source="") for text in texts]
        vectors: list[list[float]] = load_encoder(self._encoder).encode_passages(passages).tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        """Encode a query."""
        (vector,) = load_encoder(self._encoder).encode_queries([text]).tolist()
        return list(vector)


def parse(name: str) -> Store:
    """Parse `qdrant:NAME` or `pgvector:NAME`, with or without `@ENCODER` at the end.

    Raises:
        ValueError: The name has another form.
    """
    engine, _, rest = name.partition(":")
    collection, _, encoder = rest.partition("@")
    if engine not in ENGINES or not _NAME.fullmatch(collection):
        raise ValueError(
            f"index is {name!r}: use ENGINE:NAME or ENGINE:NAME@ENCODER, where ENGINE is "
            f"{' or '.join(ENGINES)} and NAME consists of letters, digits, _ and -"
        )
    return Store(engine, collection, encoder or DEFAULT_ENCODER)


def check_store(name: str) -> None:
    """Check that a store is configured here, without connecting.

    Raises:
        ValueError: The name has another form, or the environment lacks the address.
        RuntimeError: The extra is missing.
    """
    engine = parse(name).engine
    if not any(os.environ.get(each, "").strip() for each in _SETTINGS[engine]):
        raise ValueError(f"{name} needs an address: set {' or '.join(_SETTINGS[engine])}")
    if importlib.util.find_spec(_PACKAGES[engine]) is None:
        raise RuntimeError(f"{name} needs {_PACKAGES[engine]}: pip install 'hopgate[{engine}]'")


_stores: Cache[LangChainRetriever] = Cache()


def open_store(name: str) -> LangChainRetriever:
    """Open an existing collection, once per process and address; scores are inner products.

    Raises:
        ValueError: See `check_store`.
        RuntimeError: The extra is missing, the engine cannot be reached, or it has no such
            collection.
    """
    check_store(name)
    store = parse(name)
    addresses = [os.environ.get(each, "") for each in _SETTINGS[store.engine]]
    with _explained(name):
        return _stores.get(
            (name, *addresses),
            lambda: LangChainRetriever(_CONNECT[store.engine](store), _NATIVE[store.engine]),
        )


def fill_store(
    name: str, passages: Sequence[Passage], progress: EncodeProgress | None = None
) -> None:
    """Put passages into a collection, creating it if needed.

    Title and text are encoded as in one of hopgate's indexes. Passages already there are replaced.

    Args:
        name: See `parse`.
        passages: For example `load_documents(paths).passages`.
        progress: Called with the passages done and their total.

    Raises:
        ValueError: See `check_store`.
        RuntimeError: The extra is missing, or the engine cannot be reached or refuses.
    """
    check_store(name)
    store = parse(name)
    encoder = load_encoder(store.encoder)
    with _explained(name):
        add = _FILL[store.engine](store, encoder.dimension)
        for start in range(0, len(passages), _BATCH):
            batch = passages[start : start + _BATCH]
            add(batch, encoder.encode_passages(batch).tolist())
            if progress:
                progress(start + len(batch), len(passages))


Add = Callable[[Sequence[Passage], list[list[float]]], object]


def _qdrant(store: Store) -> QdrantVectorStore:
    from langchain_qdrant import QdrantVectorStore
    from qdrant_client.models import Distance

    return QdrantVectorStore(
        client=_qdrant_client(),
        collection_name=store.name,
        embedding=EncoderEmbeddings(store.encoder),
        distance=Distance.DOT,
    )


_clients: Cache[QdrantClient] = Cache()


def _qdrant_client() -> QdrantClient:
    """Return the client of this address; a folder in local mode can be opened only once."""
    from qdrant_client import QdrantClient

    url, path = (os.environ.get(each, "").strip() for each in _SETTINGS["qdrant"])

    def connect() -> QdrantClient:
        if not url:
            return QdrantClient(path=path, force_disable_check_same_thread=True)
        return QdrantClient(
            url=url,
            api_key=os.environ.get("QDRANT_API_KEY") or None,
            timeout=TIMEOUT_S,
            check_compatibility=False,
        )

    return _clients.get(url or path, connect)


def _fill_qdrant(store: Store, dimension: int) -> Add:
    from qdrant_client.models import Distance, PointStruct, VectorParams

    client = _qdrant_client()
    if not client.collection_exists(store.name):
        parameters = VectorParams(size=dimension, distance=Distance.DOT)
        client.create_collection(store.name, vectors_config=parameters)

    def add(passages: Sequence[Passage], vectors: list[list[float]]) -> object:
        points = [
            PointStruct(
                id=_uuid(passage),
                vector=vector,
                payload={"page_content": passage["text"], "metadata": _metadata(passage)},
            )
            for passage, vector in zip(passages, vectors, strict=True)
        ]
        return client.upsert(store.name, points)

    return add


def _pgvector(store: Store) -> PGVectorStore:
    from langchain_postgres import PGVectorStore
    from langchain_postgres.v2.indexes import DistanceStrategy

    return PGVectorStore.create_sync(
        engine=_pg_engine(),
        embedding_service=EncoderEmbeddings(store.encoder),
        table_name=store.name,
        distance_strategy=DistanceStrategy.INNER_PRODUCT,
    )


_engines: Cache[PGEngine] = Cache()


def _pg_engine() -> PGEngine:
    """Return the connection pool of this address."""
    from langchain_postgres import PGEngine

    url = os.environ["PGVECTOR_URL"].strip()
    return _engines.get(
        url,
        lambda: PGEngine.from_connection_string(
            re.sub(r"^postgres(ql)?://", "postgresql+psycopg://", url),
            connect_args={"connect_timeout": TIMEOUT_S},
            pool_pre_ping=True,
        ),
    )


def _fill_pgvector(store: Store, dimension: int) -> Add:
    from sqlalchemy.exc import ProgrammingError

    engine = _pg_engine()
    try:
        engine.init_vectorstore_table(store.name, dimension)
    except ProgrammingError as error:
        if "already exists" not in str(error):
            raise
    table = _pgvector(store)

    def add(passages: Sequence[Passage], vectors: list[list[float]]) -> object:
        return table.add_embeddings(
            [passage["text"] for passage in passages],
            vectors,
            [_metadata(passage) for passage in passages],
            [_uuid(passage) for passage in passages],
        )

    return add


PUSHED = ("title", "source", "page", "section")
"""Fields that the engines filter by; an id in a hit is not always the one that is stored."""


def _native_qdrant(wanted: Filter) -> models.Filter:
    """Return a filter that leaves out no passage that `wanted` matches, but may let others through.

    A pattern of `source` becomes the words that must be in it, since Qdrant matches whole words.
    """
    from qdrant_client import models

    def equals(name: str, values: Sequence[str]) -> models.FieldCondition:
        return models.FieldCondition(key=f"metadata.{name}", match=models.MatchAny(any=[*values]))

    def matching(pattern: str) -> models.Filter | None:
        found = [literal(piece) for piece in pieces(pattern)]
        if None not in found:
            return models.Filter(must=[equals("source", ["".join(filter(None, found))])])
        words = [models.MatchText(text=word) for word in _words("".join(c or "*" for c in found))]
        if not words:
            return None
        return models.Filter(
            must=[models.FieldCondition(key="metadata.source", match=word) for word in words]
        )

    def condition(name: str, values: Sequence[str]) -> models.Filter | None:
        if name not in PUSHED:
            return None
        if name == "source":
            patterns = [each for value in values if (each := matching(value))]
            return models.Filter(should=[*patterns]) if len(patterns) == len(values) else None
        either = [equals(name, values)]
        if name == "title":
            either.append(equals("source", values))  # shown as title where there is none
        if name == "page":
            numbers = [int(value) for value in values if re.fullmatch("[0-9]{1,9}", value)]
            match = models.MatchAny(any=numbers)
            either += [models.FieldCondition(key="metadata.page", match=match)] if numbers else []
        return models.Filter(should=[*either])

    conditions = [condition(name, values) for name, values in wanted]
    return models.Filter(must=[each for each in conditions if each])


def _native_pgvector(wanted: Filter) -> dict[str, Any] | None:
    """Return a filter in LangChain's form, with the patterns of `source` as those of LIKE."""

    def condition(name: str, values: Sequence[str]) -> dict[str, Any]:
        if name == "source":
            return {"$or": [{"source": {"$like": _like(value)}} for value in values]}
        equal = {name: {"$in": [*values]}}
        if name == "title":
            return {"$or": [equal, {"source": {"$in": [*values]}}]}
        return equal

    conditions = [condition(name, values) for name, values in wanted if name in PUSHED]
    return {"$and": conditions} if conditions else None


def _like(pattern: str) -> str:
    """Return the pattern of LIKE that matches at least what a shell pattern matches."""
    return "".join(map(_like_piece, pieces(pattern)))


def _like_piece(piece: str) -> str:
    if piece == "*":
        return "%"
    character = literal(piece)
    if character is None:
        return "_"
    return f"\\{character}" if character in "%_\\" else character


def _words(text: str) -> list[str]:
    """Return the words that every match contains, if `*` stands for what can vary.

    Words are letters and digits of ASCII between other characters of ASCII or the text's ends,
    about which all tokenizers for words agree.
    """
    return [match[0] for match in _WORD.finditer(text)]


_BETWEEN = r"[\x00-)+-/:-@\[-`{-\x7f]"  # ASCII without letters, digits and `*`
_WORD = re.compile(rf"(?:^|(?<={_BETWEEN}))[A-Za-z0-9]+(?={_BETWEEN}|\Z)")

_NATIVE: dict[str, Callable[[Filter], Any]] = {
    "qdrant": _native_qdrant,
    "pgvector": _native_pgvector,
}
_CONNECT: dict[str, Callable[[Store], VectorStore]] = {"qdrant": _qdrant, "pgvector": _pgvector}
_FILL: dict[str, Callable[[Store, int], Add]] = {"qdrant": _fill_qdrant, "pgvector": _fill_pgvector}


def _uuid(passage: Passage) -> str:
    """Return a passage's id as the UUID that these engines require."""
    return str(uuid.uuid5(uuid.NAMESPACE_OID, passage["id"]))


def _metadata(passage: Passage) -> dict[str, Any]:
    return {key: passage[key] for key in ("title", "source", "page", "section") if key in passage}


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Name the store in errors, and take out the addresses that clients put into theirs."""
    try:
        yield
    except (ImportError, ValueError) as error:
        raise RuntimeError(f"{name} cannot be used: {_scrubbed(error)}") from None
    except Exception as error:  # the clients' errors have no common base class
        raise RuntimeError(f"{name} failed: {_scrubbed(error)}") from None


def _scrubbed(error: Exception) -> str:
    text = first_line(error)
    for name in ("QDRANT_URL", "QDRANT_API_KEY", "PGVECTOR_URL"):
        if value := os.environ.get(name, "").strip():
            text = text.replace(value, f"${name}")
            if password := urlsplit(value).password if "://" in value else None:
                text = text.replace(password, "…")
    return text[:300]
