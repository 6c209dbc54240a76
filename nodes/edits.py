"""Checks of what people and programs write into the state from outside.

Nodes rely on the types of the state, so an edit of another type is refused before it is stored.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, get_type_hints

from langgraph.types import Command, Overwrite, Send
from pydantic import TypeAdapter, ValidationError

from hopgate.common.files import shown
from hopgate.nodes.limits import NO_LIMITS, Limits
from hopgate.nodes.state import MultihopState, State

OVERWRITE = "__overwrite__"  # how JSON writes LangGraph's `Overwrite`
MERGED = ("gate", "route")  # parts of the decision that an edit can give in part
UNCHECKED = ("messages",)  # LangGraph's own reducer reads many forms


def check_edit(values: object, limits: Limits = NO_LIMITS) -> None:
    """Check values that someone writes into the state.

    Args:
        values: By key of the state; anything but a mapping is left to LangGraph.
        limits: The operator's. If they limit anything, what the turn has cost cannot be edited.

    Raises:
        ValueError: A value has the wrong type, or may not be edited; names the key.
    """
    if not isinstance(values, Mapping):
        return
    for key, value in values.items():
        if key == "usage" and limits is not NO_LIMITS:
            raise ValueError(
                "usage cannot be edited: this server limits what a turn may cost; leave it out"
            )
        if key in _adapters() and key not in UNCHECKED:
            whole, plain = _plain(value)
            _check(key, plain, whole)


def check_command(given: object, limits: Limits) -> None:
    """Check a command that someone gives a run instead of an input.

    Raises:
        ValueError: It edits the state in a way that `check_edit` refuses; or it starts nodes with a
            state of their own (`Send`), or several at once, although the operator sets limits.
    """
    if not isinstance(given, Command):
        return
    check_edit(given.update, limits)
    if limits is NO_LIMITS:
        return
    places = [given.goto] if isinstance(given.goto, str | Send) else list(given.goto)
    if len(places) > 1 or any(isinstance(each, Send) for each in places):
        raise ValueError(
            "command.goto may name one node here, without a state of its own (Send): this server "
            "limits what a run may cost; edit the state first, then continue"
        )


def _plain(value: Any) -> tuple[bool, Any]:
    """Return whether a value replaces the old one as a whole, and the value."""
    if isinstance(value, Overwrite):
        return True, value.value
    if isinstance(value, dict) and len(value) == 1 and OVERWRITE in value:
        return True, value[OVERWRITE]
    if isinstance(value, dict) and value.get("type") == OVERWRITE and "value" in value:
        return True, value["value"]
    return False, value


def _check(key: str, value: Any, whole: bool) -> None:
    try:
        _adapters()[key].validate_python(value, strict=True)
    except ValidationError as error:
        for each in error.errors(include_url=False):
            path = (key, *each["loc"])
            partial = path[:1] == ("decision",) and path[1:2] in [(name,) for name in MERGED]
            if each["type"] == "missing" and partial and not whole:
                continue
            name = ".".join(map(str, path))
            if each["type"] == "missing":
                raise ValueError(f"{name} is missing; add it") from error
            reason = each["msg"][0].lower() + each["msg"][1:]
            raise ValueError(f"{name} is {shown(each['input'])}: {reason}") from error


@cache
def _adapters() -> dict[str, TypeAdapter[Any]]:
    hints = {**get_type_hints(MultihopState), **get_type_hints(State)}
    return {key: TypeAdapter(hint) for key, hint in hints.items()}
