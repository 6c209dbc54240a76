"""The `Retriever` protocol, passages and hits."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import NotRequired, Protocol

from typing_extensions import TypedDict

SAMPLE = "sample"
"""The name of the index that ships with the package."""


class Passage(TypedDict):
    """A piece of a document, as it is stored."""

    id: str
    """Content hash of title and text, see `passage_id`."""
    title: str
    text: str
    source: str
    """Path of its file, relative to the indexed folder; may be empty."""
    page: NotRequired[int]
    """Page of a PDF, counted from 1."""
    section: NotRequired[str]
    """Headings above the text."""


class Hit(TypedDict):
    """A passage found for a query. Plain Python types only, so that it can be checkpointed."""

    id: str
    title: str
    text: str
    score: float
    """Higher is better, unless a wrapped outside store defines it otherwise."""
    source: NotRequired[str]
    """File the passage comes from, as in `Passage`."""
    page: NotRequired[int]
    section: NotRequired[str]


def with_score(passage: Passage, score: float) -> Hit:
    """Return the hit of a passage."""
    hit: Hit = {**passage, "score": score}
    if not passage["source"]:
        del hit["source"]
    return hit


class Retriever(Protocol):
    """Anything that finds passages: an `Index`, or a LangChain store behind its adapter."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Find the best passages for each query.

        A retriever that can filter takes a third argument `where`, a parsed filter (see
        `hopgate.retrievers.filters`); one that does not is refused where a filter is set.

        Args:
            queries: One or more search texts.
            k: Maximum number of passages for each query, at least 1.

        Returns:
            For each query, in order, at most `k` hits, best first.

        Raises:
            ValueError: `k` is below 1.
        """
        ...


_LONE = re.compile("[\ud800-\udfff]")


def encodable(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode, by U+FFFD."""
    return _LONE.sub("\ufffd", text)


def passage_id(title: str, text: str) -> str:
    """Return the id of a passage: 16 hex digits (64 bits) of the SHA-256 of its title and text.

    The same content always has the same id, so that rebuilding an index changes nothing.
    """
    return hashlib.sha256(f"{title}\x1f{text}".encode()).hexdigest()[:16]


def make_passage(
    title: str, text: str, source: str = "", page: int | None = None, section: str | None = None
) -> Passage:
    """Create a passage with its content-hash id.

    White space around title and text is removed; a lone surrogate becomes U+FFFD.
    """
    title, text = (encodable(each.strip()) for each in (title, text))
    passage = Passage(id=passage_id(title, text), title=title, text=text, source=source)
    if page is not None:
        passage["page"] = page
    if section:
        passage["section"] = section
    return passage


def check_k(k: int) -> None:
    """Raise ValueError for a number of passages below 1."""
    if k < 1:
        raise ValueError(f"k is {k}: use at least 1")
