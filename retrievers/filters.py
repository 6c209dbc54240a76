"""Filters: which passages a search may return, by their metadata.

A filter maps fields to values, for example `{"source": "handbook/*", "page": [3, 4], "author":
"Ada", "date": {"from": "2024-01-01"}}`. All of its conditions must hold; of several values of one
field, one must match. A name that is not one of `FIELDS` is that of a passage's metadata.
"""

from __future__ import annotations

import glob
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from hopgate.common.files import has_surrogate, shown
from hopgate.retrievers.coverage import Look, look_at

if TYPE_CHECKING:
    from hopgate.retrievers.base import Hit, Retriever

FIELDS = ("id", "title", "source", "page", "section")
"""A passage's own fields."""
PATTERNS = ("source",)
"""Fields whose values are shell patterns: `*`, `?`, `[abc]`, `[!abc]`. `*` also matches `/`."""
ENDS = ("from", "to")
"""Names of a range's ends in a filter as people write it."""
MAX_CHARS = 1_000
MAX_VALUES = 1_000
MAX_WILDCARDS = 30
MAX_CANDIDATES = 10_000
"""Maximum number of candidates to fetch for a query where a store cannot filter by itself."""
MAX_NUMBER = 2**63 - 1
"""Largest number that the engines take."""

Bound = str | int | float
One = str | int | float | bool | Mapping[str, Bound | None]
Where = Mapping[str, One | Sequence[One]]
"""Field → its value or range, or several of which one must match."""


class Range(NamedTuple):
    """Numbers, or ISO 8601 dates, both ends included; an end that is None is open.

    Dates compare as text, as far as the last one goes: 2024-12-31 includes 2024-12-31T18:00:00.
    """

    start: Bound | None
    end: Bound | None

    def holds(self, found: object) -> bool:
        """Return whether a value lies within; it must be a number, or a date, as the ends are."""
        start, end = self
        dates = isinstance(start, str) or isinstance(end, str)
        if isinstance(found, bool) or not isinstance(found, str if dates else int | float):
            return False
        value: Any = found
        if dates and not is_date(value):
            return False
        last = value[: len(str(end))] if dates else value
        return (start is None or value >= start) and (end is None or last <= end)


Condition = tuple[str, tuple[str | Range, ...]]
"""A field, and the values and ranges of which one must match."""
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
    passages that have a source. Values are compared as text: page 3 is `"3"`, and a list of texts
    equals each of its members. Ranges compare numbers, or dates, and no lists.
    """
    known = passage.get("metadata")
    metadata = known if isinstance(known, Mapping) else {}
    return all(
        _holds((passage if name in FIELDS else metadata).get(name), name, values)
        for name, values in wanted
    )


def text_of(value: object) -> str:
    """Return a value of the metadata as filters compare it: `true`, `3` also for 3.0."""
    if isinstance(value, bool):
        return str(value).lower()
    whole = isinstance(value, float) and value.is_integer() and abs(value) < _EXACT
    return str(int(value) if whole else value)  # type: ignore[call-overload]


def same(text: str) -> list[str | int | float | bool]:
    """Return the values whose `text_of` this is: the text, and the number or bool it may be."""
    value = json.loads(text) if _PLAIN.fullmatch(text) else text
    return [text, value] if value != text and text_of(value) == text else [text]


def split(values: Iterable[str | Range]) -> tuple[list[str], list[Range]]:
    """Return a condition's values and its ranges."""
    each = list(values)
    texts = [value for value in each if isinstance(value, str)]
    return texts, [value for value in each if isinstance(value, Range)]


def is_date(text: str) -> bool:
    """Return whether a text is a date such as 2024-02-01, with a time or without."""
    try:
        return bool(_DATE.fullmatch(text) and datetime.fromisoformat(text))
    except ValueError:
        return False


def is_pattern(value: str) -> bool:
    """Return whether a value of `source` can match more than one text."""
    return glob.has_magic(value)


def comparisons(condition: Condition) -> list[dict[str, Any]]:
    """Return a condition as stores can compare it.

    Each member maps the signs `==`, `>=`, `<=` and `starts with` to values, and all of one member
    must hold. More passages may pass than fulfil the condition. The list is empty where a store
    cannot compare: a range of pages, which are texts there, or a name that would be a path.
    """
    name, values = condition
    texts, ranges = split(values)
    if name in FIELDS:
        plain = [each for each in texts if name not in PATTERNS or not is_pattern(each)]
        starts = [_MAGIC.split(each)[0] for each in texts if each not in plain]
        found = [{"==": each} for each in plain] + [{"starts with": each} for each in starts]
        return [] if ranges or {"starts with": ""} in found else found
    if not _NAME.fullmatch(name):
        return []
    known: list[dict[str, Any]] = [{"==": each} for text in texts for each in same(text)]
    for start, end in ranges:
        ends = {">=": start, "<=": f"{end}~" if isinstance(end, str) else end}
        known.append({sign: each for sign, each in ends.items() if each is not None})
    return known


def escaped(text: str) -> str:
    """Return the pattern that matches this text only."""
    return "".join(f"[{each}]" if each in "*?[" else each for each in text)


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


_EXACT = 10**15
"""Whole numbers below this are exact also as floats, and are written alike."""
_PLAIN = re.compile(r"true|false|-?(0|[1-9][0-9]{0,18})(\.[0-9]+)?(e[+-][0-9]+)?")
_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_MAGIC = re.compile("[*?[]")
_DATE = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)?)?", re.ASCII)


def _holds(found: object, name: str, values: Sequence[str | Range]) -> bool:
    if found is None or found == "":
        return False
    texts, ranges = split(values)
    if name in PATTERNS:
        return any(fnmatchcase(str(found), value) for value in texts)
    members = found if isinstance(found, list) else [found]
    return any(text_of(each) in texts for each in members) or any(
        each.holds(found) for each in ranges
    )


def _pairs(where: object) -> Iterable[tuple[Any, Any]]:
    if isinstance(where, Mapping):
        return where.items()
    if isinstance(where, tuple) and all(isinstance(c, tuple) and len(c) == 2 for c in where):
        return where
    raise ValueError(
        f'where is {shown(where)}: use a mapping of fields to values, such as {{"source": "a.md"}}'
    )


def _field(name: object) -> str:
    if isinstance(name, str) and _is_usable("", name):
        return name
    raise ValueError(
        f"where has the field {shown(name)}: use {', '.join(FIELDS)}, or the name of a field of "
        "the metadata"
    )


def _values(name: str, given: object) -> tuple[str | Range, ...]:
    single = isinstance(given, str | bytes | Range) or not isinstance(given, Sequence)
    values: Sequence[object] = [given] if single else given  # type: ignore[assignment]
    read = [_value(name, each) for each in values[: MAX_VALUES + 1]]
    found = [each for each in read if each is not None]
    if found and len(found) == len(read) <= MAX_VALUES:
        return tuple(dict.fromkeys(found))
    raise ValueError(
        f"where.{name} is {shown(given)}: use a number, true or false, text of 1 to "
        f"{MAX_CHARS:,} characters (in {', '.join(PATTERNS)} with at most {MAX_WILDCARDS} "
        'wildcards), a range such as {"from": 1, "to": 9} or {"from": "2024-01-31"} (of page or '
        f"of metadata), or a list of 1 to {MAX_VALUES:,} of them"
    )


def _value(name: str, given: object) -> str | Range | None:
    """Return a value as a filter has it; None if it cannot be used."""
    if isinstance(given, Range):
        given = dict(zip(ENDS, given, strict=True))
    if isinstance(given, Mapping):
        ends = [given.get(each) for each in ENDS]
        known = [each for each in ends if each is not None]
        dates = all(isinstance(each, str) and is_date(each) for each in known)
        usable = given.keys() <= {*ENDS} and (name == "page" or name not in FIELDS)
        return Range(*ends) if known and usable and (dates or all(map(_is_number, known))) else None
    if isinstance(given, bool) or _is_number(given):
        return text_of(given)
    return given if isinstance(given, str) and _is_usable(name, given) else None


def _is_number(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(value) <= MAX_NUMBER


def _is_usable(name: str, value: str) -> bool:
    wildcards = len(_MAGIC.findall(value)) if name in PATTERNS else 0
    return 0 < len(value) <= MAX_CHARS and wildcards <= MAX_WILDCARDS and not has_surrogate(value)
