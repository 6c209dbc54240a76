"""Collections of outside stores by name, and what hopgate keeps in them about them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import cast

from pydantic import TypeAdapter, ValidationError

from hopgate.retrievers.stores.milvus import MilvusCollection
from hopgate.retrievers.stores.names import (
    ForeignError,
    StoreName,
    Within,
    check_store,
    explained,
    parse,
)
from hopgate.retrievers.stores.pgvector import PgCollection
from hopgate.retrievers.stores.qdrant import QdrantCollection
from hopgate.retrievers.stores.rows import STORE_VERSION, Collection, Listed, StoreInfo

_ENGINES: dict[str, Callable[[str], Collection]] = {
    "milvus": MilvusCollection,
    "qdrant": QdrantCollection,
    "pgvector": PgCollection,
}
_INFO: TypeAdapter[StoreInfo] = TypeAdapter(StoreInfo)


class StoreReport(StoreInfo):
    """What `hopgate index info` shows of a collection.

    Attributes:
        store: Its name.
        passages: How many there are.
        sources: How many documents they come from.
    """

    store: str
    passages: int
    sources: int


def connect(name: str) -> Collection:
    """Return a collection, which need not exist; its errors name the store.

    Raises:
        ValueError: See `check_store`.
        RuntimeError: The extra is missing, or the engine cannot be reached.
    """
    store = check_store(name)
    with explained(store):
        collection = _ENGINES[store.engine](store.name)
    return cast(Collection, Within(collection, partial(explained, store)))


def read_info(store: StoreName, collection: Collection) -> StoreInfo | None:
    """Return what hopgate keeps about a collection; None if there is none of this name.

    Raises:
        ValueError: hopgate did not make it, or another version did.
        RuntimeError: The engine failed.
    """
    try:
        if (found := collection.info()) is None:
            return None
        body = json.loads(found)
        version = body.get("format_version")
        if version != STORE_VERSION:
            raise ValueError(
                f"{store} has format version {version}, and this hopgate reads version "
                f"{STORE_VERSION}: use the hopgate that made it, or build it again, under another "
                "name"
            )
        return _INFO.validate_python(body, strict=True)
    except ForeignError:
        raise ForeignError(f"{store} was not made by hopgate: use another name") from None
    except (ValidationError, json.JSONDecodeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"what hopgate stored about {store} is damaged: build it again, under another name"
        ) from error


def existing_info(store: StoreName, collection: Collection) -> StoreInfo:
    """Return what hopgate keeps about a collection; the errors are those of `read_info`.

    Raises:
        ValueError: There is no such collection.
    """
    if found := read_info(store, collection):
        return found
    raise ValueError(
        f"there is no {store}: build it with `hopgate index build PATHS --out {store}`"
    )


def usable_info(store: StoreName, collection: Collection) -> StoreInfo:
    """Return what hopgate keeps about a collection that is whole; see `existing_info`.

    Raises:
        ValueError: There is no such collection, or it is half filled.
    """
    info = existing_info(store, collection)
    if not info["complete"]:
        raise ValueError(
            f"{store} is half filled, since its first build has not ended: run the same command "
            "again"
        )
    return info


def describe_store(name: str) -> StoreReport:
    """Describe a collection.

    Every row is listed for the counts.

    Raises:
        ValueError: There is no such collection, or see `check_store`.
        RuntimeError: The engine failed.
    """
    store, collection = parse(name), connect(name)
    info = existing_info(store, collection)
    passages, sources = tally(collection.listed())
    return StoreReport(**info, store=str(store), passages=passages, sources=sources)


def tally(rows: Iterable[Listed]) -> tuple[int, int]:
    """Count passages and documents."""
    ids, sources = set(), set()
    for row in rows:
        ids.add(row.id)
        sources.add(row.source)
    return len(ids), len(sources - {""})


def store_identity(name: Path | str) -> str:
    """Return a collection's name with a hash of its content, if hopgate made it."""
    store, collection = parse(str(name)), connect(str(name))
    try:
        existing_info(store, collection)
    except ForeignError:
        return str(name)
    keys = sorted(row.key for row in collection.listed())
    return f"{store}, SHA-256 {hashlib.sha256(''.join(keys).encode()).hexdigest()}"
