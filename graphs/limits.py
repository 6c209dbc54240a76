"""Limits: what an operator allows a request to ask for, read from `HOPGATE_LIMITS`.

The graph enforces them, since a LangGraph server refuses a bad context nowhere else; and in every
node, since a run that is resumed or forked brings a context of its own and passes no first node.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import ValidationError

from hopgate.graphs.context import Context, explain

VARIABLE = "HOPGATE_LIMITS"
SIZES = ("question_chars", "prompt_chars", "body_bytes")

Value = Any  # of a context's field


@dataclass(frozen=True)
class Limit:
    """What one field of a context may be.

    Attributes:
        maximum: The largest value; None where `allowed` counts.
        allowed: All values; the first stands in for a default that is none of them.
    """

    maximum: Value = None
    allowed: tuple[Value, ...] = ()

    def permits(self, value: Value) -> bool:
        """Tell whether the field may be this; unset is no number below a maximum."""
        if self.allowed:
            return value in self.allowed
        return value is not None and bool(value <= self.maximum)

    @property
    def instead(self) -> Value:
        """What a field becomes that was left at a default which is not allowed."""
        return self.allowed[0] if self.allowed else self.maximum

    def __str__(self) -> str:
        """Return it as the end of "this server allows …"."""
        if not self.allowed:
            return f"at most {self.maximum}"
        *others, last = map(repr, self.allowed)
        return f"{', '.join(others)} or {last}" if others else f"only {last}"


@dataclass(frozen=True, eq=False)  # told apart by identity, which can be hashed
class Limits:
    """What a request may ask for; by default everything that a `Context` allows.

    Attributes:
        question_chars: Most characters of a question, also of one that was edited in the state.
        prompt_chars: Most characters of any one prompt, whatever the state holds.
        body_bytes: Most bytes of one HTTP request; enforced by the server's own app.
        context: The limits of the context's fields, by name.
    """

    question_chars: int | None = None
    prompt_chars: int | None = None
    body_bytes: int | None = None
    context: Mapping[str, Limit] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> "Limits":
        """Read limits as JSON spells them.

        Args:
            given: For a field of `Context` a number, its maximum, or a list, its allowed values;
                and `question_chars`, `prompt_chars` and `body_bytes`.

        Raises:
            ValueError: A name is not known, or a limit does not suit its field.
        """
        sizes = {name: _size(name, given[name]) for name in SIZES if name in given}
        context = {name: _limit(name, limit) for name, limit in given.items() if name not in SIZES}
        return cls(**sizes, context=MappingProxyType(context))

    def apply(self, context: Context) -> Context:
        """Return the context within the limits.

        A field that was left at its default takes the limit where the default is beyond it.

        Raises:
            ValueError: A field is beyond its limit; says which, its value and what is allowed.
        """
        return _applied(self, context) if self.context else context

    def permits(self, **values: Value) -> bool:
        """Tell whether fields of a context may be this."""
        return all(
            name not in self.context or self.context[name].permits(value)
            for name, value in values.items()
        )

    def check_question(self, name: str, text: str) -> None:
        """Refuse a question that is too long.

        Args:
            name: Where it stands in the input or the state.
            text: The question.

        Raises:
            ValueError: It is longer than `question_chars`.
        """
        if not self.fits(text):
            raise ValueError(
                f"{name} has {len(text)} characters: this server allows at most "
                f"{self.question_chars}; shorten it"
            )

    def fits(self, question: str) -> bool:
        """Tell whether a question is short enough."""
        return self.question_chars is None or len(question) <= self.question_chars

    def check_strategy(self, strategy: str) -> None:
        """Refuse a strategy that was edited into the state past the context's.

        Raises:
            ValueError: The context's `strategy` is limited to others, `auto` not among them.
        """
        if not self.permits(strategy="auto") and not self.permits(strategy=strategy):
            raise ValueError(
                f"decision.strategy is {strategy!r}: this server allows {self.context['strategy']}"
            )


@lru_cache(maxsize=256)  # every node of a turn asks
def _applied(limits: Limits, context: Context) -> Context:
    beyond = {
        name: limit
        for name, limit in limits.context.items()
        if not limit.permits(getattr(context, name))
    }
    refused = [
        f"{name} is {getattr(context, name)!r}: this server allows {limit}"
        for name, limit in beyond.items()
        if getattr(context, name) != _DEFAULTS[name]
    ]
    if refused:
        raise ValueError("; ".join(refused))
    return replace(context, **{name: limit.instead for name, limit in beyond.items()})


def from_environment() -> Limits:
    """Read the limits that `HOPGATE_LIMITS` holds, as JSON or as the path of a JSON file.

    Raises:
        ValueError: They cannot be read; the message begins with the variable's name.
    """
    given = json_variable(VARIABLE)
    if given is None:
        return Limits()
    try:
        return Limits.parse(given)
    except ValueError as error:
        raise ValueError(f"{VARIABLE}: {error}") from error


def json_variable(name: str) -> dict[str, Any] | None:
    """Read an environment variable that holds a JSON object, or the path of a file that does.

    Returns:
        The object; None where the variable is not set, or empty.

    Raises:
        ValueError: It is no JSON object, or the file cannot be read.
    """
    text = os.environ.get(name, "").strip()
    if not text:
        return None
    where = name
    if not text.startswith("{"):
        where = f"{name}: {text[:200]}"
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{where} is neither a JSON object nor a file that can be read ({error})"
            ) from error
    try:
        value = json.loads(text, object_pairs_hook=_without_repeats)
    except ValueError as error:
        raise ValueError(f"{where} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{where} is not a JSON object")
    return value


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a name that is given twice, of which JSON would silently drop one."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is given twice")
    return found


def _size(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} is {value!r}; give a whole number from 1")
    return value


def _limit(name: str, given: object) -> Limit:
    if name not in _DEFAULTS:
        known = ", ".join((*SIZES, *_DEFAULTS))
        raise ValueError(f"{name!r} is nothing that can be limited; use {known}")
    if isinstance(given, list) and given:
        return Limit(allowed=tuple(_checked(name, value) for value in given))
    if name in _NUMBERS and isinstance(given, int | float) and not isinstance(given, bool):
        return Limit(maximum=_checked(name, given))
    asked = "a number or a list" if name in _NUMBERS else "a list"
    raise ValueError(f"{name} is {given!r}; give {asked} of allowed values")


def _checked(name: str, value: object) -> Value:
    """Return the value as a context would hold it."""
    try:
        return getattr(Context(**{name: value}), name)  # type: ignore[arg-type]
    except ValidationError as error:
        raise ValueError(explain(error)) from error


def _is_number(hint: Any) -> bool:
    kinds = get_args(hint) if get_origin(hint) else (hint,)
    return bool({int, float} & set(kinds)) and set(kinds) <= {int, float, NoneType}


_DEFAULTS: dict[str, Value] = {each.name: getattr(Context(), each.name) for each in fields(Context)}
_NUMBERS = frozenset(name for name, hint in get_type_hints(Context).items() if _is_number(hint))
