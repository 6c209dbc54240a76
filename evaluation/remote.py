"""Questions asked by workers (`hopgate.common.workers`); their rows come back to one journal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

from hopgate.common.background import wait_for
from hopgate.common.workers import Piece, Workers
from hopgate.nodes.context import Context


class Remote(NamedTuple):
    """How a worker makes what answers the questions.

    Attributes:
        subject: Its class, `module:name`.
        given: What the class is called with.
        item: The type of what it is asked about.
    """

    subject: str
    given: tuple[bool, ...]
    item: Any


def asker(
    workers: Workers, remote: Remote, context: Context
) -> Callable[[Any], Awaitable[Mapping[str, Any]]]:
    """Return what lets a worker ask about one item."""
    from pydantic import TypeAdapter

    about = {
        "subject": remote.subject,
        "given": remote.given,
        "context": TypeAdapter(Context).dump_python(context, mode="json"),
    }

    async def ask(item: Any) -> Mapping[str, Any]:
        piece = Piece("a question", {**about, "item": item}, None)
        row: Mapping[str, Any] = await asyncio.wrap_future(
            workers.submit(f"{__name__}:ask_piece", piece)
        )
        return row

    return ask


def ask_piece(message: dict[str, Any]) -> Mapping[str, Any]:
    """Ask about one item, in a worker; see `Subject.ask`."""
    import msgspec
    from pydantic import TypeAdapter

    subject = _subject(message["subject"], tuple(message["given"]))
    item = msgspec.convert(message["item"], subject.remote.item)
    context = TypeAdapter(Context).validate_python(message["context"])
    row: Mapping[str, Any] = wait_for(subject.ask(item, context))
    return row


@lru_cache(maxsize=1)
def _subject(name: str, given: tuple[bool, ...]) -> Any:
    """Make what answers, once per process."""
    module, _, kind = name.partition(":")
    return getattr(import_module(module), kind)(*given)
