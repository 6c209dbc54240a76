"""Rows of a collection, and the interface that each engine implements."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, NotRequired, Protocol

from typing_extensions import TypedDict

from hopgate.retrievers.base import Passage
from hopgate.retrievers.filters import Filter, literal, pieces
from hopgate.retrievers.hybrid import Mode
from hopgate.retrievers.index.manifest import EncoderInfo

if TYPE_CHECKING:
    import numpy as np
    from langchain_core.documents import Document
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]

STORE_VERSION: Literal[1] = 1
"""Version of a collection's layout; another is refused."""
TIMEOUT_S = 10
"""Seconds to wait for an engine to connect."""
BATCH = 128
"""Rows written at a time: the most that a killed build loses."""


class Row(NamedTuple):
    """A passage of one document, as stores have it: texts only, empty where there is none.

    A passage that several documents share has a row for each, so that no writer must know what
    others are writing.

    Attributes:
        key: The hash of `id`, `source`, `page` and `section`, 32 hex digits.
        id: The id of the passage.
        title: Title of the passage.
        text: Text of the passage.
        source: The document.
        page: Its page, in digits.
        section: The headings above.
        stamp: Size and time of the file, see `texts.Place`, and the number of its document's rows.
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
    """The fields of a `Row` that tell whether it must change."""

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


Scored = list[tuple[Row, float]]
"""Rows with their scores, best first."""


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

    def listed(self, field: str = "", values: Sequence[str] = ()) -> list[Listed]:
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
    ) -> Scored:
        """Find the best rows for a query.

        Args:
            mode: How.
            vector: The query's vector; empty for `bm25`.
            terms: The query's words; empty for `dense`.
            k: How many rows at most.
            wanted: A filter. The engine returns every row that matches; it may return others.
        """
        ...

    def foreign_dimension(self) -> int | None:
        """Return the dimension of a collection that LangChain made; None if it made none."""
        ...

    def search_foreign(
        self, vector: Sequence[float], k: int, wanted: Filter
    ) -> list[tuple[Document, float]]:
        """Find the best documents of a collection that LangChain made, as `search` does."""
        ...


FOREIGN_FIELDS = ("source", "section")
"""Fields that filter LangChain's documents in the engine; the others are compared afterwards."""


def foreign_filter(wanted: Filter) -> Filter:
    """Return the part of a filter that engines apply to LangChain's documents."""
    return tuple(each for each in wanted if each[0] in FOREIGN_FIELDS)


def like(pattern: str) -> str:
    """Return a pattern of SQL's LIKE that matches at least what a shell pattern matches.

    `_`, which matches any character, stands for those that LIKE or a quoted text treats specially.
    """
    return "".join(map(_like_piece, pieces(pattern)))


def _like_piece(piece: str) -> str:
    character = literal(piece)
    if piece == "*":
        return "%"
    return "_" if character is None or character in "%_\\\"'" else character
