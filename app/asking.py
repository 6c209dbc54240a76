"""Asking the graph one question, for `hopgate ask` and the demo."""

import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hopgate.common.files import shown

if TYPE_CHECKING:
    from hopgate import Context
    from hopgate.nodes.events import Event

SHOWN = ("answer", "citations", "decision", "hops", "usage")


async def ask(
    question: str,
    context: "Context",
    thread: str | None = None,
    on_event: "Callable[[Event], None] | None" = None,
) -> dict[str, Any]:
    """Answer a question and return the graph's final state.

    Args:
        question: The question.
        context: The request's settings.
        thread: Id of a conversation stored in SQLite; None stores nothing.
        on_event: Called with each event as it happens, the answer's tokens included; the model
            then streams.

    Returns:
        The final state, with the keys of `SHOWN` and `original_question`, `standalone`, `evidence`.
    """
    if thread is None:
        return await _run(question, context, None, {}, on_event)
    if not thread.strip():
        raise ValueError("--thread is empty; give it a name")
    from hopgate.graphs.checkpoints import sqlite_saver
    from hopgate.settings import threads_file

    file = threads_file()
    try:
        async with sqlite_saver(file) as saver:
            config = {"configurable": {"thread_id": thread}}
            return await _run(question, context, saver, config, on_event)
    except sqlite3.OperationalError as error:
        raise RuntimeError(
            f"the conversations in {file} cannot be used now ({error}); make room on the disk, or "
            "wait for other processes that use them, and ask again"
        ) from error
    except sqlite3.DatabaseError as error:
        raise RuntimeError(
            f"the conversations in {file} cannot be used ({error}); move the file away"
        ) from error


async def _run(
    question: str,
    context: "Context",
    saver: Any,
    config: Any,
    on_event: "Callable[[Event], None] | None",
) -> dict[str, Any]:
    from hopgate.graphs import events
    from hopgate.graphs.adaptive import build_graph

    graph = build_graph(saver)
    if saver is not None:
        await _check(graph, config)
    state: Any = {}
    stream = graph.astream(
        {"question": question},
        config,
        context=context,
        stream_mode=["values", "custom", "messages"] if on_event else ["values"],
        subgraphs=True,
    )
    part: Any
    async for part in stream:
        namespace, mode, chunk = part
        if on_event and (event := events.read(mode, chunk)):
            on_event(event)
        if mode == "values" and not namespace:
            state = chunk
    return dict(state)


async def _check(graph: Any, config: Any) -> None:
    """Refuse a conversation whose rows hold something else than a conversation."""
    try:
        await graph.aget_state(config)
    except (
        AttributeError,
        LookupError,
        NotImplementedError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise RuntimeError(
            f"the conversation {shown(config['configurable']['thread_id'])} cannot be read "
            f"({type(error).__name__}: {error}); use another --thread, or move threads.sqlite away"
        ) from error
