"""Outside stores by name: `ENGINE:NAME` or `ENGINE:NAME@ENCODER`, and the needs of each engine.

Addresses and credentials come from the environment only, and appear in no error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from threading import Lock
from typing import NamedTuple
from urllib.parse import unquote

from hopgate.common.errors import reason, require

TIMEOUT_S = 10
"""Seconds to wait for an engine to connect."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")
_MAX_REASON_CHARS = 300


class Needs(NamedTuple):
    """The packages of an engine's extra, and the variables with its address and credentials."""

    packages: tuple[str, ...]
    addresses: tuple[str, ...]
    secrets: tuple[str, ...] = ()


ENGINES = {
    "milvus": Needs(("pymilvus",), ("MILVUS_URI", "MILVUS_URL"), ("MILVUS_TOKEN",)),
    "qdrant": Needs(("qdrant_client",), ("QDRANT_URL", "QDRANT_PATH"), ("QDRANT_API_KEY",)),
    "pgvector": Needs(("psycopg", "psycopg_pool"), ("PGVECTOR_URL",)),
}


class StoreName(NamedTuple):
    """The name of a collection; `encoder` is empty for the collection's own."""

    engine: str
    name: str
    encoder: str

    def __str__(self) -> str:
        """Return the name without the encoder."""
        return f"{self.engine}:{self.name}"


class StoreError(RuntimeError):
    """A store could not be reached, or it failed."""

    fault = "retriever"


class ForeignError(ValueError):
    """hopgate did not make a collection of this name."""


def is_store(name: object) -> bool:
    """Return whether an index is an outside store and not a folder."""
    engine, found, _ = str(name).partition(":")
    return bool(found) and engine in ENGINES


def check_folder(index: object, doing: str) -> None:
    """Raise ValueError if a command that only folders need is given a store."""
    if is_store(index):
        raise ValueError(f"{doing} is for folders: leave it out, the engine of {index} sees to it")


def parse(name: str) -> StoreName:
    """Parse `ENGINE:NAME`, with or without `@ENCODER` at the end.

    Raises:
        ValueError: The name has another form.
    """
    engine, _, rest = name.partition(":")
    collection, _, encoder = rest.partition("@")
    if engine not in ENGINES or not _NAME.fullmatch(collection):
        raise ValueError(
            f"index is {name!r}: use ENGINE:NAME or ENGINE:NAME@ENCODER, where ENGINE is "
            f"{', '.join(ENGINES)}, and NAME consists of letters, digits, _ and -"
        )
    return StoreName(engine, collection, encoder)


def check_store(name: str) -> StoreName:
    """Check that a store is configured here, without connecting.

    Raises:
        ValueError: The name has another form, or the environment lacks the address.
        RuntimeError: The extra is missing.
    """
    store = parse(name)
    needs = ENGINES[store.engine]
    if not address(store.engine):
        raise ValueError(f"{store} needs an address: set {' or '.join(needs.addresses)}")
    require(str(store), *needs.packages, extra=store.engine)
    return store


def address(engine: str) -> str:
    """Return the address of an engine; empty if the environment has none."""
    return next(filter(None, map(_value, ENGINES[engine].addresses)), "")


def is_local(engine: str) -> bool:
    """Return whether an engine runs in this process: milvus-lite, or Qdrant in local mode."""
    if engine == "qdrant":
        return not _value("QDRANT_URL")
    return engine == "milvus" and "://" not in address(engine)


@contextmanager
def explained(store: StoreName, *, connecting: bool = False) -> Iterator[None]:
    """Name the store in errors of its client, and take out the addresses that these contain.

    An engine in this process fails when threads call it at once, so they take turns.
    """
    needs = ENGINES[store.engine]
    try:
        with _taking_turns if is_local(store.engine) else nullcontext():
            yield
    except Exception as error:  # the clients' errors have no common base class
        remedy = _UNREACHED if connecting else _ANSWERED
        remedy = remedy.format(next(filter(_value, needs.addresses), ""))
        raise StoreError(f"{store} failed: {_scrubbed(reason(error), needs)}; {remedy}") from None


_taking_turns = Lock()
_UNREACHED = (
    "check that {} is the address of a server that runs (with the password percent-encoded: / is "
    "%2F), or a path that exists and that no other process has open"
)
_ANSWERED = "if the account has the right to do this, try again when the server is less busy"


def _scrubbed(text: str, needs: Needs) -> str:
    """Return an error's text without the pieces that contain a word of an address or a secret."""
    given = [value for name in needs.addresses if re.search("://|=", value := _value(name))]
    given += map(_value, needs.secrets)
    words = set(re.findall(r"\w+", " ".join((*given, *map(unquote, given))).lower()))
    pieces = (
        "…" if words.intersection(re.findall(r"\w+", each.lower())) else each
        for each in text.split()
    )
    return " ".join(pieces)[:_MAX_REASON_CHARS]


def _value(variable: str) -> str:
    return os.environ.get(variable, "").strip()
