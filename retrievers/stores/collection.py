"""Collections of outside stores: their rows, their descriptions, and the engines."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, NotRequired, Protocol, cast

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from hopgate.common.cache import Cache
from hopgate.retrievers.base import Metadata, Passage
from hopgate.retrievers.filters import Filter
from hopgate.retrievers.hybrid import Mode, codes, dense_weight
from hopgate.retrievers.index.manifest import EncoderInfo
from hopgate.retrievers.stores.names import ForeignError, StoreName, address, check_store, explained

STORE_VERSION: Literal[1] = 1
"""Version of a collection's layout; another is refused."""
_WORDS_LOOKED_UP = 32
"""Words of a query that are looked up, one search each."""
BATCH = 128
"""Rows written at a time: the most that a killed build loses."""


class Row(NamedTuple):
    """A passage of one document, as stores have it: texts only, empty where there is none.

    A passage that several documents share has a row for each, so that no writer must know what
    others are writing.

    Attributes:
        key: The hash of `id`, `source`, `page`, `section` and `metadata`, 32 hex digits.
        id: The id of the passage.
        title: Title of the passage.
        text: Text of the passage.
        source: The document.
        page: Its page, in digits.
        section: The headings above.
        stamp: Size and time of the file, see `texts.Place`, and the number of its document's rows.
        metadata: Its metadata, in JSON.
    """

    key: str
    id: str
    title: str
    text: str
    source: str
    page: str
    section: str
    stamp: str
    metadata: str

    @classmethod
    def of(cls, passage: Passage, stamp: str = "") -> Row:
        """Return the row of a passage."""
        page, section = str(passage.get("page", "")), passage.get("section", "")
        metadata = _written(passage.get("metadata"))
        place = (passage["id"], passage["source"], page, section)
        hashed = "\x1f".join((*place, metadata) if metadata else place)
        key = hashlib.sha256(hashed.encode()).hexdigest()[:32]
        text = passage["title"], passage["text"]
        return cls(key, place[0], *text, *place[1:], stamp, metadata)

    def passage(self) -> Passage:
        """Return the passage."""
        found = Passage(id=self.id, title=self.title, text=self.text, source=self.source)
        if self.page:
            found["page"] = int(self.page)
        if self.section:
            found["section"] = self.section
        if known := self.known():
            found["metadata"] = known
        return found

    def known(self) -> Metadata:
        """Return the metadata."""
        found: Metadata = json.loads(self.metadata or "{}")
        return found

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Row:
        """Return the row of an engine's fields, of which the metadata is an object."""
        texts = {name: fields[name] for name in cls._fields}
        return cls(**texts | {"metadata": _written(fields["metadata"])})


def _written(metadata: Metadata | None) -> str:
    return json.dumps(metadata, sort_keys=True) if metadata else ""


class Listed(NamedTuple):
    """The fields of a `Row` that tell whether it must change."""

    key: str
    id: str
    source: str
    stamp: str


class Entry(NamedTuple):
    """A row to write.

    Attributes:
        row: The row.
        vector: Its vector.
        words: Its words, see `language.terms`.
        norm: How much its length counts for BM25, see `length_norm`.
    """

    row: Row
    vector: list[float]
    words: list[str]
    norm: float


class StoreInfo(TypedDict):
    """A collection's description, which hopgate keeps in the store.

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


Scored = list[tuple[Row, float]]
"""Rows with their scores, best first."""
Foreign = Callable[[list[float], int, Filter], list[tuple[str, str, dict[str, Any], float]]]
"""Searches LangChain's vectors, with the arguments of `Engine.dense`; returns the id, the text, the
metadata and the score of each document."""


class Engine(Protocol):
    """One collection in an engine, which need not exist yet.

    A search is given a filter; it returns every row that matches, and may return others.

    Attributes:
        max_text_bytes: Longest text of a row that the engine takes, in UTF-8.
    """

    max_text_bytes: int

    def info(self) -> str | None:
        """Return the JSON stored with the collection, empty if there is none.

        None stands for no collection.
        """

    def create(self, info: str, dimension: int) -> None:
        """Create the collection with its indexes."""

    def describe(self, info: str, dimension: int) -> None:
        """Store other JSON with it at the end of a change, and finish its indexes."""

    def drop(self) -> None:
        """Delete the collection."""

    def listed(self) -> list[Listed]:
        """List all rows."""

    def read(self, keys: Sequence[str]) -> list[tuple[Row, list[float]]]:
        """Read rows with their vectors, in any order; those that are missing are left out."""

    def put(self, entries: Sequence[Entry]) -> None:
        """Add rows, or replace those with the same keys; at most `BATCH`."""

    def remove(self, keys: Sequence[str]) -> None:
        """Delete rows; at most `BATCH`."""

    def dense(self, vector: list[float], k: int, wanted: Filter) -> Scored:
        """Find the rows with the highest inner product."""

    def bm25(self, words: Sequence[str], k: int, wanted: Filter) -> Scored:
        """Find the best rows for some words, of which there is at least one."""

    def foreign(self) -> Foreign | None:
        """Return how to search a collection that LangChain made; None if it did not."""


class Asked:
    """The words of a query, and in how many passages of a collection they are."""

    def __init__(self, engine: Engine, words: Sequence[str]) -> None:
        """Keep both; words are counted, one search each, when they are needed."""
        self._engine, self._words, self._first = engine, words, words[:_WORDS_LOOKED_UP]
        self._count = cache(
            lambda word, most: len({r.id for r, _ in engine.bm25([word], most, ())})
        )

    def bm25(self, k: int, wanted: Filter) -> Scored:
        """Find the best rows, with the codes counted twice, see `hybrid.codes`."""
        twice = codes(self._first, self._count)
        return self._engine.bm25([*self._words, *twice], k, wanted) if self._words else []

    def dense_weight(self) -> float:
        """Return the vectors' part of the query's fused scores, see `hybrid.dense_weight`."""
        return dense_weight(self._first, self._count)


class Collection:
    """A collection by its name; errors of the engine's client name it.

    Attributes:
        name: Its name.
        engine: Its engine.
    """

    def __init__(self, name: str) -> None:
        """Connect, once per process and address.

        Raises:
            ValueError: See `check_store`.
            RuntimeError: The extra is missing, or the engine cannot be reached.
        """
        self.name = store = check_store(name)
        with explained(store, connecting=True):
            module = import_module(f"hopgate.retrievers.stores.{store.engine}")
            client = _clients.get((store.engine, address(store.engine)), module.connect)
            found = getattr(module, store.engine.capitalize())(client, store.name)
        self.engine = cast(Engine, _Explained(found, store))

    def find(self) -> StoreInfo | None:
        """Return the collection's description; None if there is none of this name.

        Raises:
            ValueError: hopgate did not make it, or another version did.
            RuntimeError: The engine failed.
        """
        if (found := self.engine.info()) is None:
            return None
        if not found:
            raise ForeignError(f"{self.name} was not made by hopgate: use another name")
        try:
            return _INFO.validate_json(found, strict=True)
        except ValidationError as error:
            raise ValueError(
                f"the description of {self.name} is damaged or of another version than "
                f"{STORE_VERSION}: use the hopgate that made it, or build it under another name"
            ) from error

    def info(self, *, whole: bool = True) -> StoreInfo:
        """Return the collection's description; the errors are those of `find`.

        Raises:
            ValueError: There is no such collection, or it is to be `whole` and is half filled.
        """
        if not (found := self.find()):
            raise ForeignError(
                f"there is no {self.name}: build it with `hopgate index build PATHS --out "
                f"{self.name}`"
            )
        if whole and not found["complete"]:
            raise ValueError(
                f"{self.name} is half filled, since its first build has not ended: run the same "
                "command again"
            )
        return found

    def report(self) -> StoreReport:
        """Describe the collection; every row is listed for the counts."""
        info, rows = self.info(whole=False), self.engine.listed()
        sources = {row.source for row in rows} - {""}
        passages = len({row.id for row in rows})
        return StoreReport(**info, store=str(self.name), passages=passages, sources=len(sources))


_INFO: TypeAdapter[StoreInfo] = TypeAdapter(StoreInfo)
_clients: Cache[Any] = Cache()


class _Explained:
    """An object whose methods run within `explained`."""

    def __init__(self, target: object, store: StoreName) -> None:
        self._target, self._store = target, store

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        return explained(self._store)(found) if callable(found) else found


def store_identity(name: Path | str) -> str:
    """Return a collection's name with a hash of its content, if hopgate made it."""
    collection = Collection(str(name))
    try:
        collection.info()
    except ForeignError:
        return str(name)
    keys = "".join(sorted(row.key for row in collection.engine.listed()))
    return f"{collection.name}, SHA-256 {hashlib.sha256(keys.encode()).hexdigest()}"
