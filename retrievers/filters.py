"""Filters: which passages a search may return, by their metadata.

A filter maps fields to values, for example `{"source": "handbook/*", "page": [3, 4]}`. All of its
conditions must hold; of several values of one field, one must match.
"""

from __future__ import annotations

import glob
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import translate
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from hopgate.common.files import has_surrogate, shown
from hopgate.retrievers.coverage import Look, look_at

if TYPE_CHECKING:
    from hopgate.retrievers.base import Hit, Retriever

FIELDS = ("id", "title", "source", "page", "section")
PATTERNS = ("source",)
"""Fields whose values are shell patterns: `*`, `?`, `[abc]`, `[!abc]`. `*` also matches `/`."""
MAX_CHARS = 1_000
MAX_VALUES = 1_000
MAX_WILDCARDS = 30
MAX_CANDIDATES = 10_000
"""Maximum number of candidates to fetch for a query where a store cannot filter by itself."""

Where = Mapping[str, str | int | Sequence[str | int]]
"""Field → its value, or several values of which one must match."""
Condition = tuple[str, tuple[str, ...]]
"""A field, and the values of which one must match."""
Filter = tuple[Condition, ...]
"""Conditions that must all hold; hashable. An empty filter matches every passage."""


def parse_where(*given: Where | Filter | None) -> Filter:
    """Combine filters into one that matches only if all of them do.

    Args:
        given: Filters as people write them, or parsed ones; None means no filter.

    Raises:
        ValueError: A filter is not a mapping, or has an unknown field or a value that is not
            text, a whole number or a list of them; names the field, the value and the remedy.
    """
    conditions = [
        (_field(name), _values(name, value))
        for where in given
        if where is not None
        for name, value in _pairs(where)
    ]
    return tuple(dict.fromkeys(conditions))


def matches(passage: Mapping[str, Any], wanted: Filter) -> bool:
    """Return whether a passage or hit fulfils a filter.

    A field that is missing or empty fulfils no condition, so `{"source": "*"}` matches the
    passages that have a source. Values are compared as text: page 3 is `"3"`.
    """
    return all(_holds(passage.get(name), name, values) for name, values in wanted)


def is_pattern(value: str) -> bool:
    """Return whether a value of `source` can match more than one text."""
    return glob.has_magic(value)


def has_patterns(condition: Condition) -> bool:
    """Return whether one of a condition's values is a shell pattern."""
    name, values = condition
    return name in PATTERNS and any(map(is_pattern, values))


def escaped(text: str) -> str:
    """Return the pattern that matches this text only."""
    return "".join(f"[{each}]" if each in "*?[" else each for each in text)


def pieces(pattern: str) -> list[str]:
    """Split a value of `source` into `*`, `?`, sets such as `[ab]`, and single characters."""
    return _PIECE.findall(pattern)


def literal(piece: str) -> str | None:
    """Return the one character that a piece matches; None if it can match several."""
    if len(piece) == 1:
        return None if piece in "*?" else piece
    return piece[1] if len(piece) == 3 else None


def filtered(retriever: Retriever, where: Where | Filter | None) -> Retriever:
    """Return the retriever with a filter on all its searches.

    Raises:
        ValueError: The filter is invalid, or the retriever's `search` takes no `where`.
    """
    if not (wanted := parse_where(where)):
        return retriever
    try:
        inspect.signature(retriever.search).bind([], 1, where=wanted)
    except TypeError:
        raise ValueError(
            f"where ({', '.join(dict(wanted))}) is not available with a "
            f"{type(retriever).__name__}: give its search a parameter `where`, or leave where out"
        ) from None
    return Filtered(retriever, wanted)


class Filtered:
    """A retriever with a filter on all its searches.

    Whatever the retriever returns is checked again, so that a hit which does not fulfil the
    filter never gets through.

    Args:
        retriever: Its `search` takes `where`.
        wanted: The filter.
    """

    def __init__(self, retriever: Retriever, wanted: Filter) -> None:
        """Keep both."""
        self._search: Callable[..., list[list[Hit]]] = retriever.search
        self._look: Callable[..., list[Look]] = partial(look_at, retriever)
        self._wanted = wanted

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Find at most `k` passages that fulfil the filter for each query."""
        return list(map(self._passing, self._search(queries, k, where=self._wanted)))

    def look(self, queries: Sequence[str], k: int) -> list[Look]:
        """Search as `search` does, and say whether the retriever is about each query."""
        found = self._look(queries, k, where=self._wanted)
        return [each._replace(hits=self._passing(each.hits)) for each in found]

    def _passing(self, hits: Sequence[Hit]) -> list[Hit]:
        return [hit for hit in hits if matches(hit, self._wanted)]


def search_until(search: Callable[[int], list[Hit]], k: int, wanted: Filter) -> list[Hit]:
    """Fetch more and more candidates until enough of them fulfil a filter.

    Args:
        search: Returns the best hits, at most as many as it is asked for.
        k: Maximum number of hits.
        wanted: The filter.

    Returns:
        The `k` best hits that fulfil it, each passage once; fewer if there are no more among all
        candidates, or among the best `MAX_CANDIDATES`.
    """
    candidates = k
    while True:
        found = search(candidates)
        passing: dict[str, Hit] = {}
        for hit in found:
            if matches(hit, wanted):
                passing.setdefault(hit["id"], hit)
        if len(passing) >= k or len(found) < candidates or candidates >= MAX_CANDIDATES:
            return list(passing.values())[:k]
        candidates = max(k, min(4 * candidates, MAX_CANDIDATES))


_PIECE = re.compile(r"\[!?+\]?+[^\]]*+\]|.", re.DOTALL)


@lru_cache(maxsize=MAX_VALUES)  # fnmatch's own cache would hold many more patterns of strangers
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))


def _holds(found: object, name: str, values: Sequence[str]) -> bool:
    if found is None or found == "":
        return False
    if name not in PATTERNS:
        return str(found) in values
    return any(_compiled(value).match(str(found)) for value in values)


def _pairs(where: object) -> Iterable[tuple[Any, Any]]:
    if isinstance(where, Mapping):
        return where.items()
    if isinstance(where, tuple) and all(isinstance(c, tuple) and len(c) == 2 for c in where):
        return where
    raise ValueError(
        f'where is {shown(where)}: use a mapping of fields to values, such as {{"source": "a.md"}}'
    )


def _field(name: object) -> str:
    if isinstance(name, str) and name in FIELDS:
        return name
    raise ValueError(f"unknown field {shown(name)} in where: use {', '.join(FIELDS)}")


def _values(name: str, given: object) -> tuple[str, ...]:
    several = isinstance(given, Sequence) and not isinstance(given, str | bytes | bytearray)
    values: Sequence[object] = given if several else [given]  # type: ignore[assignment]
    if 0 < len(values) <= MAX_VALUES and all(_is_usable(name, each) for each in values):
        return tuple(dict.fromkeys(map(str, values)))
    raise ValueError(
        f"where.{name} is {shown(given)}: use a whole number, or text of 1 to {MAX_CHARS:,} "
        f"characters (in {', '.join(PATTERNS)} with at most {MAX_WILDCARDS} wildcards), or a list "
        f"of 1 to {MAX_VALUES:,} of them"
    )


def _is_usable(name: str, value: object) -> bool:
    if not isinstance(value, str):
        return isinstance(value, int) and not isinstance(value, bool)
    wildcards = sum(literal(piece) is None for piece in pieces(value)) if name in PATTERNS else 0
    usable = 0 < len(value) <= MAX_CHARS and wildcards <= MAX_WILDCARDS
    return usable and not has_surrogate(value)
