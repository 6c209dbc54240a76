"""Checks of the edits that people and programs make to the state.

Nodes rely on the types of the state, so an edit of another type is refused before it is stored.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, get_type_hints

from langgraph.types import Command, Send
from pydantic import TypeAdapter, ValidationError

from hopgate.common.files import shown
from hopgate.nodes.run.internals import get_overwrite
from hopgate.nodes.run.state import MultihopState, State

MERGED = ("gate", "route")  # parts of the decision that an edit can give in part
UNCHECKED = ("messages",)  # LangGraph's own reducer reads many forms


def check_edit(values: object) -> None:
    """Check values that someone writes into the state.

    Args:
        values: By key of the state, or a `Command`.

    Raises:
        ValueError: A value has the wrong type, or there is no such key; names the key.
    """
    if isinstance(values, Mapping):
        for key, value in values.items():
            if key not in _adapters():
                raise ValueError(f"{shown(key)} is not a key of the state; leave it out")
            if key not in UNCHECKED:
                whole, new = get_overwrite(value)
                _check(key, new if whole else value, whole)
    elif values is not None and not isinstance(values, Command):
        raise ValueError(
            f"the edit is of the type {type(values).__name__}; give a dict of the state's keys"
        )
    check_command(values)


def check_command(given: object) -> None:
    """Check a command that someone gives a run instead of an input.

    Raises:
        ValueError: `check_edit` refuses its edit; or it starts several nodes, or one with a state
            of its own (`Send`): one request could then make any number of calls.
    """
    if not isinstance(given, Command):
        return
    check_edit(given.update)
    goto = given.goto or ()  # a server leaves None there
    places = [goto] if isinstance(goto, str | Send) else goto
    if len(places) > 1 or any(isinstance(each, Send) for each in places):
        raise ValueError(
            "command.goto may name one node, without a state of its own (Send); edit the state "
            "first, then continue"
        )


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
            if each["type"] == "extra_forbidden":
                raise ValueError(f"{name} is not a key of the state; leave it out") from error
            reason = each["msg"][0].lower() + each["msg"][1:]
            raise ValueError(f"{name} is {shown(each['input'])}: {reason}") from error


@cache
def _adapters() -> dict[str, TypeAdapter[Any]]:
    hints = {**get_type_hints(MultihopState), **get_type_hints(State)}
    return {key: TypeAdapter(hint) for key, hint in hints.items()}
