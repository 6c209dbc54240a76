"""Checks of the edits that people and programs make to the state.

Nodes rely on the types of the state, so an edit of another type is refused before it is stored.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, get_type_hints

from langgraph.types import Command, Overwrite, Send
from pydantic import TypeAdapter, ValidationError

from hopgate.common.files import shown
from hopgate.nodes.run.limits import NO_LIMITS, Limits
from hopgate.nodes.run.state import MultihopState, State

OVERWRITE = "__overwrite__"  # how JSON writes LangGraph's `Overwrite`
MERGED = ("gate", "route")  # parts of the decision that an edit can give in part
UNCHECKED = ("messages",)  # LangGraph's own reducer reads many forms


def check_edit(values: object, limits: Limits = NO_LIMITS) -> None:
    """Check values that someone writes into the state.

    Args:
        values: By key of the state, as a mapping or pairs; or `Command`s; or a list of such edits
            with their nodes, as LangGraph's `__copy__` takes it.
        limits: The operator's, which hold for the values too. If they limit anything, the turn's
            cost cannot be replaced, and no node can be started through LangGraph's channels.

    Raises:
        ValueError: A value has the wrong type, exceeds a limit or may not be edited; names the key.
    """
    if isinstance(values, Command):
        check_command(values, limits)
    elif isinstance(values, Mapping):
        for key, value in values.items():
            _check_value(key, value, limits)
    elif isinstance(values, list | tuple):
        for each in values:
            pair = isinstance(each, list | tuple) and len(each) == 2 and isinstance(each[0], str)
            check_edit({each[0]: each[1]} if pair else each, limits)
    elif values is not None and not isinstance(values, str):
        raise ValueError(
            f"the edit is of the type {type(values).__name__}; give a dict of the state's keys"
        )


def check_command(given: object, limits: Limits) -> None:
    """Check a command, or several, that someone gives a run instead of an input.

    Raises:
        ValueError: It edits the state in a way that `check_edit` refuses; or it starts nodes with a
            state of their own (`Send`), or several at once, although the operator sets limits.
    """
    places: list[object] = []
    for each in given if isinstance(given, list | tuple) else [given]:
        if isinstance(each, Send):
            places.append(each)
        elif isinstance(each, Command):
            check_edit(each.update, limits)
            goto = each.goto or ()  # a server leaves None there
            places += [goto] if isinstance(goto, str | Send) else goto
    if limits is NO_LIMITS:
        return
    if len(places) > 1 or any(isinstance(each, Send) for each in places):
        raise ValueError(
            "command.goto may name one node here, without a state of its own (Send): this server "
            "limits the cost of a run; edit the state first, then continue"
        )


def _check_value(key: str, value: Any, limits: Limits) -> None:
    whole, plain = _plain(value)
    if limits is not NO_LIMITS:
        if key == "usage" and whole:
            raise ValueError(
                "usage cannot be replaced: this server limits the cost of a turn; leave it out"
            )
        if ":" in key or key.startswith("__"):
            raise ValueError(f"{shown(key)} is not a key of the state; leave it out")
    if key in _adapters() and key not in UNCHECKED:
        _check(key, plain, whole)
    limits.check_state({key: plain})


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
            partial = not whole and path[:2] in [("decision", part) for part in MERGED]
            if each["type"] == "missing" and partial:
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
