"""Limits that an operator sets on requests, read from `HOPGATE_LIMITS`.

The graph enforces them, because a LangGraph server checks a context nowhere else. Every node does,
because a run that is resumed or forked brings its own context and skips the first node.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args, get_type_hints

from pydantic import ValidationError

from hopgate.common.errors import explain
from hopgate.common.rates import Rates
from hopgate.nodes.run.context import Context
from hopgate.retrievers.filters import PATTERNS, Filter, escaped, is_pattern, parse_where, split

VARIABLE = "HOPGATE_LIMITS"
RATES = ("requests_per_user", "tokens_per_user")
SIZES = ("message_chars", "body_bytes")
CAPPED = ("max_answer_tokens",)
"""Fields of a context that are lowered to their maximum, not refused."""
WHERE = "where"
USER = "{user}"
"""Stands for the authenticated user in the values of `where`."""

Value = Any  # of a field of the context


@dataclass(frozen=True)
class Limit:
    """The limit of one field of the context.

    Attributes:
        maximum: The largest value; None if `allowed` is used.
        allowed: The allowed values; the first replaces a default that is not among them.
    """

    maximum: Value = None
    allowed: tuple[Value, ...] = ()

    def allows(self, value: Value) -> bool:
        """Return whether the field may have this value; unset counts as above any maximum."""
        if self.allowed:
            return value in self.allowed
        return value is not None and bool(value <= self.maximum)

    def __str__(self) -> str:
        """Return the text that completes "this server allows …"."""
        if not self.allowed:
            return f"at most {self.maximum}"
        *others, last = map(repr, self.allowed)
        return f"{', '.join(others)} or {last}" if others else f"only {last}"


@dataclass(frozen=True)
class Limits:
    """The limits of a request; by default it may ask for everything a `Context` allows.

    Attributes:
        message_chars: Maximum characters of a user's message.
        body_bytes: Maximum bytes of one HTTP request; enforced by the server's app.
        where: A filter on every search, besides the request's own; `{user}` in it stands for the
            authenticated user.
        rates: The requests and tokens of each user in a time.
        context: The limits of the context's other fields, by name.
    """

    message_chars: int | None = None
    body_bytes: int | None = None
    where: Filter = ()
    rates: Rates = field(default_factory=Rates, compare=False)
    context: Mapping[str, Limit] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> "Limits":
        """Read limits from parsed JSON.

        Args:
            given: For a field of `Context`, its maximum or a list of its allowed values; also
                `message_chars`, `body_bytes`, rates such as `requests_per_user`, and `where`, a
                filter.

        Raises:
            ValueError: A name is unknown, or a limit does not suit its field.
        """
        sizes = {name: _size(name, given[name]) for name in SIZES if name in given}
        where = _where(given[WHERE]) if WHERE in given else ()
        context = {
            name: _limit(name, limit)
            for name, limit in given.items()
            if name not in (*SIZES, *RATES, WHERE)
        }
        rates = Rates(*(str(given.get(name, "")) for name in RATES))
        return cls(**sizes, where=where, rates=rates, context=MappingProxyType(context))

    def apply(self, context: Context, user: str | None = None) -> Context:
        """Return the context within the limits.

        A field left at its default takes the limit if the default exceeds it. The conditions of
        `where` are added to the request's own.

        Args:
            context: The request's settings.
            user: The authenticated user; None: there is none.

        Raises:
            ValueError: A field exceeds its limit; names the field, its value and what is allowed.
                Or `where` names the user, and there is none or their name cannot be used.
        """
        exceeding = {
            name: limit
            for name, limit in self.context.items()
            if not limit.allows(getattr(context, name))
        }
        refused = [
            f"{name} is {getattr(context, name)!r}: this server allows {limit}"
            for name, limit in exceeding.items()
            if getattr(context, name) != _DEFAULTS[name] and name not in CAPPED
        ]
        if refused:
            raise ValueError("; ".join(refused))
        update = {name: (*limit.allowed, limit.maximum)[0] for name, limit in exceeding.items()}
        if self.where:
            update[WHERE] = parse_where(context.where, _bound(self.where, user))
        return context.model_copy(update=update) if update else context

    def allows(self, **values: Value) -> bool:
        """Return whether fields of the context may have these values."""
        return all(
            name not in self.context or self.context[name].allows(value)
            for name, value in values.items()
        )

    def check_message(self, text: str) -> None:
        """Check the length of a user's message.

        Raises:
            ValueError: It is longer than the limit.
        """
        if self.message_chars is not None and len(text) > self.message_chars:
            raise ValueError(
                f"the message has {len(text)} characters: this server allows at most "
                f"{self.message_chars}; shorten it"
            )


NO_LIMITS = Limits()


def _bound(where: Filter, user: str | None) -> Filter:
    """Return an operator's filter with the user's name in place of `{user}`."""
    return tuple(
        (
            name,
            tuple(
                _named(name, each, user) if isinstance(each, str) and USER in each else each
                for each in values
            ),
        )
        for name, values in where
    )


def _named(field: str, value: str, user: str | None) -> str:
    if not user:
        raise ValueError(
            f"this server limits where.{field} to {value!r}, and this run has no authenticated "
            "user: turn on the server's authentication, or take {user} out of its limits"
        )
    if field not in PATTERNS:
        return value.replace(USER, user)
    if "/" in user or user in (".", ".."):
        raise ValueError(
            f"this server limits where.{field} to {value!r}, and the user's name {user!r} cannot "
            "name a folder: use names without /"
        )
    return value.replace(USER, escaped(user))


def limits_from_environment() -> Limits:
    """Read the limits from `HOPGATE_LIMITS`: JSON, or the path of a JSON file.

    Raises:
        ValueError: They cannot be read; the message starts with the variable's name.
    """
    given = json_variable(VARIABLE)
    if given is None:
        return NO_LIMITS
    try:
        return Limits.parse(given)
    except ValueError as error:
        raise ValueError(f"{VARIABLE}: {error}") from error


def json_variable(name: str) -> dict[str, Any] | None:
    """Read an environment variable that holds a JSON object, or the path of a file that does.

    Returns:
        The object; None if the variable is unset or empty.

    Raises:
        ValueError: It is not a JSON object, or the file cannot be read.
    """
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    if not text.startswith("{"):
        name = f"{name}: {text[:200]}"
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{name} is neither a JSON object nor a file that can be read ({error})"
            ) from error
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{name} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{name} is not a JSON object")
    return value


def _size(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} is {value!r}; use a whole number of at least 1")
    return value


def _where(given: Any) -> Filter:
    """Read an operator's filter.

    `{user}` in a pattern must be a whole folder or file name with nothing variable before it.
    Then no passage can match for two users.
    """
    found = parse_where(given)
    if not found:
        raise ValueError(f"where is {given!r}; give at least one field, or leave it out")
    for name, value in ((name, value) for name, values in found for value in split(values)[0]):
        if name not in PATTERNS or USER not in value:
            continue
        names = [each for each in value.split("/") if USER in each]
        if any(each != USER for each in names) or is_pattern(value.partition(USER)[0]):
            raise ValueError(
                f"where.{name} is {value!r}; use {USER} as a whole name between slashes, without "
                f"*, ? or [ before it, such as users/{USER}/*"
            )
    return found


def _limit(name: str, given: object) -> Limit:
    if name not in _DEFAULTS:
        known = ", ".join((*SIZES, *RATES, *_DEFAULTS))
        raise ValueError(f"unknown limit {name!r}; use {known}")
    if isinstance(given, list) and given:
        return Limit(allowed=tuple(_checked(name, value) for value in given))
    if name in _NUMBERS and isinstance(given, int | float) and not isinstance(given, bool):
        return Limit(maximum=_checked(name, given))
    form = "a number or a list" if name in _NUMBERS else "a list"
    raise ValueError(f"{name} is {given!r}; use {form} of allowed values")


def _checked(name: str, value: object) -> Value:
    """Return the value as a context holds it."""
    try:
        return getattr(Context(**{name: value}), name)  # type: ignore[arg-type]
    except ValidationError as error:
        raise ValueError(explain(error)) from error


_DEFAULTS: dict[str, Value] = dict(Context())
_NUMBERS = frozenset(
    name
    for name, hint in get_type_hints(Context).items()
    if not {int, float}.isdisjoint((hint, *get_args(hint)))
)
