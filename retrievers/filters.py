"""Filters: which passages a search may return, by their metadata.

A filter maps fields to values, for example `{"source": "handbook/*", "page": [3, 4]}`. All of its
conditions must hold; of several values of one field, one must match.
"""

from __future__ import annotations

import glob
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from hopgate.common.files import has_surrogate, shown

FIELDS = ("id", "title", "source", "page", "section")
PATTERNS = ("source",)
"""Fields whose values are shell patterns: `*`, `?`, `[abc]`, `[!abc]`. `*` also matches `/`."""
MAX_CHARS = 1_000
MAX_VALUES = 1_000

Where = Mapping[str, str | int | Sequence[str | int]]
"""Field → its value, or several values of which one must match."""
Condition = tuple[str, tuple[str, ...]]
"""A field, and the values of which one must match."""
Filter = tuple[Condition, ...]
"""Conditions that must all hold; hashable. An empty filter matches every passage."""


def parse_where(*given: Where | Filter | None) -> Filter:
    """Combine filters into one that matches what all of them match.

    Args:
        given: Filters as people write them, or parsed ones; None is no filter.

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
    return all(_holds(passage, name, values) for name, values in wanted)


def is_pattern(value: str) -> bool:
    """Return whether a value of `source` can match more than one text."""
    return glob.has_magic(value)


def escaped(text: str) -> str:
    """Return the pattern that matches this text only."""
    return "".join(f"[{each}]" if each in "*?[" else each for each in text)


def _holds(passage: Mapping[str, Any], name: str, values: Iterable[str]) -> bool:
    found = passage.get(name)
    if found is None or found == "":
        return False
    text = str(found)
    if name in PATTERNS:
        return any(fnmatchcase(text, value) for value in values)
    return text in values


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
    if not values:
        raise ValueError(
            f"where.{name} is {shown(given)}: give at least one value, or leave it out"
        )
    if len(values) > MAX_VALUES:
        raise ValueError(f"where.{name} has {len(values)} values: use at most {MAX_VALUES:,}")
    return tuple(dict.fromkeys(_text(name, value) for value in values))


def _text(name: str, value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise ValueError(
            f"where.{name} is {shown(value)}: use text, a whole number, or a list of them"
        )
    if not value:
        raise ValueError(f"where.{name} is empty: give a value, or leave it out")
    if len(value) > MAX_CHARS:
        raise ValueError(f"where.{name} has {len(value):,} characters: use at most {MAX_CHARS:,}")
    if has_surrogate(value):
        raise ValueError(f"where.{name} is {shown(value)}: remove the lone surrogate")
    return value
