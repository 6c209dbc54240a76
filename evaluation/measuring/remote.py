"""The subject of a run: it answers the questions, here or in workers (`hopgate.common.workers`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any, Protocol

from hopgate.common.threads import wait_for
from hopgate.common.workers import Piece, Workers
from hopgate.nodes.run.context import Context

Row = Mapping[str, Any]


class Subject(Protocol):
    """The graph, or a part of it; a worker makes its own, from its class and `options`.

    Attributes:
        item: The type of its questions.
        options: The arguments that its class was called with.
    """

    item: Any
    options: Any

    async def check(self, context: Context) -> None:
        """Raise ValueError if a run would fail later for something that the context names."""

    async def ask(self, item: Any, context: Context) -> Row:
        """Ask about one item; the row has the item's `id`."""


def asker(workers: Workers, subject: Subject, context: Context) -> Callable[[Any], Awaitable[Row]]:
    """Return a function that lets a worker ask about one item."""
    kind = type(subject)
    about = {
        "subject": [kind.__module__, kind.__qualname__, subject.options],
        "context": context.model_dump(mode="json"),
    }

    async def ask(item: Any) -> Row:
        piece = Piece("a question", {**about, "item": item}, None)
        row: Row = await asyncio.wrap_future(workers.submit(f"{__name__}:ask_piece", piece))
        return row

    return ask


def ask_piece(message: dict[str, Any]) -> Row:
    """Ask about one item, in a worker; see `Subject.ask`."""
    import msgspec

    module, name, options = message["subject"]
    subject = _subject(module, name, tuple(options))
    item = msgspec.convert(message["item"], subject.item)
    context = Context.model_validate(message["context"])
    row: Row = wait_for(subject.ask(item, context))
    return row


@lru_cache(maxsize=1)
def _subject(module: str, name: str, options: tuple[bool, ...]) -> Any:
    """Make the subject, once per process."""
    return getattr(import_module(module), name)(*options)
