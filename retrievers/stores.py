"""Outside stores by name: collections of Milvus, Qdrant and PostgreSQL, and what each can do.

A name is `ENGINE:NAME` or `ENGINE:NAME@ENCODER`. Addresses and credentials come from the
environment only. `milvus.py`, `qdrant.py` and `pgvector.py` speak to the engines; `store_index.py`
searches a collection and `store_change.py` changes it. See docs/retrieval.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, NotRequired, Protocol
from urllib.parse import quote, unquote, urlsplit

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from hopgate.common.extras import require
from hopgate.retrievers.base import Passage
from hopgate.retrievers.encoders import first_line
from hopgate.retrievers.filters import Filter
from hopgate.retrievers.hybrid import Mode
from hopgate.retrievers.manifest import EncoderInfo

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

STORE_VERSION: Literal[1] = 1
"""Version of a collection's layout; another is refused."""
TIMEOUT_S = 10
"""Seconds to wait for an engine to connect."""
BATCH = 512
"""Rows written at a time; a build that is killed loses at most one such batch."""
MAX_REQUEST_BYTES = 8 << 20
"""Size of a request that `request_slices` aims at; Qdrant takes 32 MB, Milvus 64 MB."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")


class Engine(NamedTuple):
    """What an engine needs: the packages of its extra, and variables with its address."""

    packages: tuple[str, ...]
    addresses: tuple[str, ...]
    secrets: tuple[str, ...] = ()


ENGINES = {
    "milvus": Engine(("pymilvus",), ("MILVUS_URI", "MILVUS_URL"), ("MILVUS_TOKEN",)),
    "qdrant": Engine(("qdrant_client",), ("QDRANT_URL", "QDRANT_PATH"), ("QDRANT_API_KEY",)),
    "pgvector": Engine(("psycopg", "psycopg_pool"), ("PGVECTOR_URL",)),
}


class Store(NamedTuple):
    """The name of a collection; `encoder` is empty for the collection's own."""

    engine: str
    name: str
    encoder: str

    def __str__(self) -> str:
        """Return the name without the encoder."""
        return f"{self.engine}:{self.name}"


class Row(NamedTuple):
    """A passage of one document, as stores have it: texts only, empty where there is none.

    A passage that several documents share has a row for each, so that no writer must know what
    others are writing.

    Attributes:
        key: The hash of `id`, `source`, `page` and `section`, 32 hex digits.
        id: That of the passage.
        title: Title of the passage.
        text: Text of the passage.
        source: The document.
        page: Its page, in digits.
        section: The headings above.
        stamp: Size and time of the file, see `words.Place`, and how many rows its document has.
    """

    key: str
    id: str
    title: str
    text: str
    source: str
    page: str
    section: str
    stamp: str

    @classmethod
    def of(cls, passage: Passage, stamp: str) -> Row:
        """Return the row of a passage."""
        page, section = str(passage.get("page", "")), passage.get("section", "")
        place = (passage["id"], passage["source"], page, section)
        key = hashlib.sha256("\x1f".join(place).encode()).hexdigest()[:32]
        text = passage["title"], passage["text"]
        return cls(key, place[0], *text, *place[1:], stamp)

    def passage(self) -> Passage:
        """Return the passage."""
        found = Passage(id=self.id, title=self.title, text=self.text, source=self.source)
        if self.page:
            found["page"] = int(self.page)
        if self.section:
            found["section"] = self.section
        return found


class Listed(NamedTuple):
    """What tells whether a row must change; the fields are those of `Row`."""

    key: str
    id: str
    source: str
    stamp: str


class StoreInfo(TypedDict):
    """What hopgate keeps in the store about a collection.

    Attributes:
        format_version: `STORE_VERSION`.
        encoder: The encoder of the vectors.
        language: Chooses the analyzer of the words.
        mode: The mode that `auto` means.
        mode_reason: Why.
        background: See `Manifest`.
        average_terms: Mean number of words in a passage when the collection was made.
        roots: Folders that were indexed.
        created: When the collection was made, UTC, ISO 8601.
        complete: Whether its first build has ended.
    """

    format_version: Literal[1]
    encoder: EncoderInfo
    language: str
    mode: Mode
    mode_reason: str
    background: NotRequired[list[float]]
    average_terms: float
    roots: list[str]
    created: str
    complete: bool


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


class ForeignError(ValueError):
    """hopgate did not make a collection of this name."""


class Collection(Protocol):
    """A collection of an engine, which need not exist yet."""

    max_text_bytes: int
    """Longest text of a row that the engine takes, in UTF-8."""

    def info(self) -> str | None:
        """Return the JSON that was stored with the collection; None if there is no collection.

        Raises:
            ForeignError: There is one, without such JSON.
        """
        ...

    def create(self, info: str, dimension: int) -> None:
        """Create the collection."""
        ...

    def describe(self, info: str) -> None:
        """Store other JSON with it."""
        ...

    def drop(self) -> None:
        """Delete the collection."""
        ...

    def finish(self) -> None:
        """Do what is best done once after many rows: make the approximate index, flush."""
        ...

    def listed(self, field: str = "", values: Sequence[str] = ()) -> Iterator[Listed]:
        """List the rows whose `field` (`id` or `source`) has one of some values, or all rows."""
        ...

    def read(self, keys: Sequence[str]) -> list[tuple[Row, list[float]]]:
        """Read rows with their vectors, in any order; those that are missing are left out."""
        ...

    def put(
        self, rows: Sequence[Row], vectors: Vectors, terms: Sequence[Sequence[str]], average: float
    ) -> None:
        """Add rows, or replace those with the same keys.

        Args:
            rows: At most `BATCH`.
            vectors: One for each, [rows, dimension].
            terms: The words of each, see `language.terms`.
            average: Mean number of words in a passage of the collection.
        """
        ...

    def remove(self, keys: Sequence[str]) -> None:
        """Delete rows; at most `BATCH`."""
        ...

    def search(
        self, mode: Mode, vector: Sequence[float], terms: Sequence[str], k: int, wanted: Filter
    ) -> list[tuple[Row, float]]:
        """Find the best rows for a query.

        Args:
            mode: How.
            vector: The query's vector; empty for `bm25`.
            terms: The query's words; empty for `dense`.
            k: How many rows at most.
            wanted: A filter, with which the engine leaves out no row that matches; it may let
                others through.
        """
        ...


def request_slices(
    rows: Sequence[Row], dimension: int, terms: Sequence[Sequence[str]]
) -> Iterator[slice]:
    """Cut rows into requests of at most `MAX_REQUEST_BYTES`; a larger row has one of its own.

    Args:
        rows: Rows to send.
        dimension: That of their vectors; a number takes up to 24 bytes as JSON.
        terms: The words of each row; one takes up to 48 bytes as a weight in JSON.
    """
    start = size = 0
    for number, (row, words) in enumerate(zip(rows, terms, strict=True)):
        texts = 2 * sum(len(text.encode()) for text in row)  # JSON escapes, and Milvus' words
        row_size = 512 + texts + 24 * dimension + 48 * len(words)
        if number > start and size + row_size > MAX_REQUEST_BYTES:
            yield slice(start, number)
            start, size = number, 0
        size += row_size
    if rows:
        yield slice(start, len(rows))


def is_store(name: object) -> bool:
    """Return whether an index is an outside store, and not a folder."""
    engine, found, _ = str(name).partition(":")
    return bool(found) and engine in ENGINES


def check_folder(index: object, doing: str) -> None:
    """Raise ValueError for a store, with a command that only folders need."""
    if is_store(index):
        raise ValueError(f"{doing} is for folders: leave it out, the engine of {index} sees to it")


def parse(name: str) -> Store:
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
    if engine == "milvus" and "-" in collection:
        raise ValueError(f"index is {name!r}: Milvus takes no - in a name, use _")
    return Store(engine, collection, encoder)


def check_store(name: str) -> Store:
    """Check that a store is configured here, without connecting.

    Raises:
        ValueError: The name has another form, or the environment lacks the address.
        RuntimeError: The extra is missing.
    """
    store = parse(name)
    engine = ENGINES[store.engine]
    if not address(store.engine):
        raise ValueError(f"{store} needs an address: set {' or '.join(engine.addresses)}")
    packages = engine.packages
    if store.engine == "milvus" and "://" not in address("milvus"):
        packages = (*packages, "milvus_lite")
    require(str(store), *packages, extra=store.engine)
    return store


_environment = threading.RLock()


def address(engine: str) -> str:
    """Return the address of an engine; empty if the environment has none."""
    with _environment:
        given = (os.environ.get(each, "").strip() for each in ENGINES[engine].addresses)
        return next(filter(None, given), "")


@contextmanager
def without(variable: str) -> Iterator[None]:
    """Hide a variable of the environment from a package that fails on it while it is imported."""
    with _environment:
        value = os.environ.pop(variable, None)
        try:
            yield
        finally:
            if value is not None:
                os.environ[variable] = value


def connect(name: str) -> Collection:
    """Return a collection, which need not exist; its errors name the store.

    Raises:
        ValueError: See `check_store`.
        RuntimeError: The extra is missing, or the engine cannot be reached.
    """
    store = check_store(name)
    with explained(store):
        if store.engine == "milvus":
            from hopgate.retrievers.milvus import MilvusCollection

            return MilvusCollection(store.name)
        if store.engine == "qdrant":
            from hopgate.retrievers.qdrant import QdrantCollection

            return QdrantCollection(store.name)
        from hopgate.retrievers.pgvector import PgCollection

        return PgCollection(store.name)


_INFO: TypeAdapter[StoreInfo] = TypeAdapter(StoreInfo)


def read_info(store: Store, collection: Collection) -> StoreInfo | None:
    """Return what hopgate keeps about a collection; None if there is none of this name.

    Raises:
        ValueError: hopgate did not make it, or another version did.
        RuntimeError: The engine failed.
    """
    with explained(store):
        try:
            found = collection.info()
        except ForeignError:
            raise ForeignError(
                f"{store} was not made by hopgate: use another name, or pass LangChain's store to "
                "build_graph(retriever=…)"
            ) from None
    if found is None:
        return None
    try:
        body = json.loads(found)
        version = body.get("format_version") if isinstance(body, dict) else None
        if isinstance(version, int) and version != STORE_VERSION:
            raise ValueError(
                f"{store} has format version {version}, and this hopgate reads version "
                f"{STORE_VERSION}: use the hopgate that made it, or build it again, under another "
                "name"
            )
        return _INFO.validate_python(body, strict=True)
    except (ValidationError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(
            f"what hopgate stored about {store} is damaged: build it again, under another name"
        ) from error


def existing_info(store: Store, collection: Collection) -> StoreInfo:
    """Return what hopgate keeps about a collection; the errors are those of `read_info`.

    Raises:
        ValueError: There is no such collection.
    """
    if found := read_info(store, collection):
        return found
    raise ValueError(
        f"there is no {store}: build it with `hopgate index build PATHS --out {store}`"
    )


def usable_info(store: Store, collection: Collection) -> StoreInfo:
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


def to_json(info: StoreInfo) -> str:
    """Return what `read_info` reads."""
    return json.dumps(info)


def describe_store(name: str) -> StoreReport:
    """Describe a collection.

    Every row is listed for the counts.

    Raises:
        ValueError: There is no such collection, or see `check_store`.
        RuntimeError: The engine failed.
    """
    store, collection = parse(name), connect(name)
    info = existing_info(store, collection)
    with explained(store):
        passages, sources = tally(collection.listed())
    return StoreReport(**info, store=str(store), passages=passages, sources=sources)


def tally(rows: Iterator[Listed]) -> tuple[int, int]:
    """Count passages and documents."""
    ids, sources = set(), set()
    for row in rows:
        ids.add(row.id)
        sources.add(row.source)
    return len(ids), len(sources - {""})


def store_identity(name: Path | str) -> str:
    """Return a collection's name with a hash of its content."""
    store, collection = parse(str(name)), connect(str(name))
    existing_info(store, collection)
    with explained(store):
        keys = sorted(row.key for row in collection.listed())
    return f"{store}, SHA-256 {hashlib.sha256(''.join(keys).encode()).hexdigest()}"


@contextmanager
def explained(store: Store) -> Iterator[None]:
    """Name the store in errors of its client, and take out the addresses that these contain."""
    try:
        yield
    except ForeignError:
        raise
    except Exception as error:  # the clients' errors have no common base class
        engine = ENGINES[store.engine]
        variable = " or ".join(each for each in engine.addresses if os.environ.get(each))
        said = _scrubbed(error, engine)
        remedy = _remedy(error, variable) if said else f"{variable} {_UNREADABLE}"
        raise RuntimeError(f"{store} failed: {said}{remedy}") from None


_UNREADABLE = (
    "cannot be read as an address: use SCHEME://USER:PASSWORD@HOST:PORT, with every character of "
    "the password except letters, digits, - and _ percent-encoded (/ is %2F); PostgreSQL also "
    "takes password='…' in quotes"
)


def _remedy(error: Exception, variable: str) -> str:
    """Return what to do about an error of a client, as far as its kind says it."""
    text = f"{type(error).__name__} {error}".lower()
    if "must be owner" in text:
        return "; an account that changes a table must own it: ALTER TABLE … OWNER TO …"
    if re.search(r"statement timeout|too many clients|too many connections|connection slots", text):
        return "; the table is locked or the server is busy: try again later"
    if re.search(r"permission denied|forbidden|unauthori[sz]ed|unauthenticated|40[13]\b", text):
        return "; the account needs the right to do this"
    unreachable = r"connect|refused|timed? ?out|timeout|unavailable|resolve|getting a connection"
    if re.search(unreachable, text):
        return f"; check that it runs, and that {variable} is its address"
    return ""


def _scrubbed(error: Exception, engine: Engine) -> str:
    """Return an error's first line without addresses and secrets.

    It is empty if an address cannot be parsed: then any part of it may be a part of a password.
    """
    text = first_line(error)
    for name in (*engine.addresses, *engine.secrets):
        if not (value := os.environ.get(name, "").strip()):
            continue
        text = text.replace(value, f"${name}")
        try:
            hidden = _passwords(name, value) if name in engine.addresses else []
        except ValueError:
            return ""
        for password in hidden:
            text = text.replace(password, "…")
    return text[:300]


def _passwords(name: str, value: str) -> list[str]:
    """Return the passwords in an address, as they are written and as they are sent.

    Raises:
        ValueError: The address cannot be parsed, or an `@` or a port shows that a character of the
            password is taken for the password's end.
    """
    if name == "PGVECTOR_URL":
        import psycopg
        from psycopg.conninfo import conninfo_to_dict

        try:
            given = {key: str(each) for key, each in conninfo_to_dict(value).items()}
        except psycopg.Error:
            raise ValueError from None
        rest = given.get("host", "") + given.get("dbname", "")
        ports = given.get("port", "").replace(",", "")
        found = [given.get("password", ""), given.get("sslpassword", "")]
    elif "://" in value:
        parts = urlsplit(value)
        rest = parts.netloc.partition("@")[2] + parts.path + parts.query + parts.fragment
        ports = str(parts.port or "")
        found = [parts.password or ""]
    else:
        return []
    if "@" in rest or not (ports.isdecimal() or not ports):
        raise ValueError
    return [form for each in found if each for form in (each, quote(each, safe=""), unquote(each))]
