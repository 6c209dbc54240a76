"""`hopgate ask`: one question, with every decision."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.panel import Panel
from rich.text import Text

from hopgate.commands.options import EVERY_FIELD, command, request_context
from hopgate.common.files import home_dir, private_file, private_folder
from hopgate.nodes.run.context import Context
from hopgate.nodes.run.events import Event
from hopgate.terminal import pages
from hopgate.terminal.errors import counts
from hopgate.terminal.guard import harmless
from hopgate.terminal.live import event_rows, view

if TYPE_CHECKING:
    from hopgate.graphs.compiled import AdaptiveGraph

SHOWN = ("answer", "citations", "decision", "hops", "usage")


@command(context=EVERY_FIELD)
def ask(
    question: str, /, settings: dict[str, Any], *, thread: str | None = None, stream: bool = False
) -> None:
    """Answer QUESTION, with sources and the reason for every decision.

    In a folder with a langgraph.json, its graph answers.

    Args:
        question: The question.
        settings: Fields of `Context`.
        thread: Keep a conversation under this id; follow-ups then work.
        stream: Print each event as a JSON line on stdout as it happens; the last is the result.
    """
    as_json = click.get_current_context().meta[pages.AS_JSON]
    if stream and as_json:
        raise click.UsageError("give --stream or --json, not both")
    from hopgate.graphs.adaptive import build_graph
    from hopgate.server import project

    graph = project.load(Path.cwd()) or build_graph()
    context = request_context(settings)
    told: list[Event] = []
    watcher = nullcontext(pages.print_json) if stream else nullcontext() if as_json else view()
    with watcher as show_event:

        def on_event(event: Event) -> None:
            told.append(event)
            if show_event:
                show_event(event)

        stream_tokens = show_event is not None
        answering = answered(question, context, graph, thread, on_event, stream=stream_tokens)
        result = asyncio.run(answering)
    document = {key: result[key] for key in SHOWN}
    if stream:
        pages.print_json({"event": "result", **document})
    else:
        pages.output(document, lambda _: show(result, told))


async def answered(
    question: str,
    context: Context,
    graph: "AdaptiveGraph",
    thread: str | None,
    on_event: Callable[[Event], None],
    *,
    stream: bool,
) -> dict[str, Any]:
    """Answer a question and return the graph's final state.

    Args:
        question: The question.
        context: The request's settings.
        graph: The graph that answers.
        thread: Id of a conversation stored in SQLite; None stores nothing.
        on_event: Called with each event as it happens.
        stream: Whether the model streams, so that the answer's tokens are events too.
    """
    if thread is None:
        return await _run(graph, question, context, {}, on_event, stream)
    if not thread.strip():
        raise ValueError("--thread is empty; give it a name")
    from hopgate.graphs.checkpoints import sqlite_saver
    from hopgate.nodes.run.internals import SYNC_DURABILITY

    file = threads_file()
    try:
        async with sqlite_saver(file) as saver:
            config = {"configurable": {"thread_id": thread}}
            kept = graph.copy({"checkpointer": saver}).with_config(SYNC_DURABILITY)
            return await _run(kept, question, context, config, on_event, stream)
    except sqlite3.DatabaseError as error:
        busy = isinstance(error, sqlite3.OperationalError)
        advice = "make room on the disk, or wait for other processes" if busy else "move it away"
        raise RuntimeError(f"{file} of conversations cannot be used ({error}); {advice}") from error


def threads_file() -> Path:
    """Return the SQLite file of conversations; creates it if need be, closed to other users.

    Raises:
        RuntimeError: It cannot be created or closed to other users.
    """
    file = home_dir() / "threads.sqlite"
    try:
        private_folder(file.parent)
        private_file(file)
    except OSError as error:
        raise RuntimeError(
            f"conversations cannot be kept private in {error.filename or file.parent} "
            f"({error.strerror}); set HOPGATE_HOME to a folder of your own"
        ) from error
    return file


async def _run(
    graph: "AdaptiveGraph",
    question: str,
    context: Context,
    config: Any,
    on_event: Callable[[Event], None],
    stream: bool,
) -> dict[str, Any]:
    from hopgate.graphs import events

    state: Any = {}
    part: Any
    async for part in graph.astream(
        {"question": question},
        config,
        context=context,
        stream_mode=["values", "custom", *(["messages"] if stream else [])],
        subgraphs=True,
    ):
        namespace, mode, chunk = part
        if event := events.read(mode, chunk):
            on_event(event)
        if mode == "values" and not namespace:
            state = chunk
    return dict(state)


def show(result: dict[str, Any], told: Iterable[Event]) -> None:
    """Print an answer with its sources and every decision that led to it."""
    answer = Text(harmless(result["answer"]))
    pages.out.print(Panel(answer, title="answer", title_align="left"))
    for citation in result["citations"]:
        mark = f"  [{citation['number']}] " if "number" in citation else "  "
        found = f" ({place})" if (place := pages.place(citation)) else ""
        pages.line(
            mark, (citation["title"], "bold"), (found, "dim"), f": {citation['quote']}", wrap=True
        )
    for warning in result["decision"]["warnings"]:
        pages.line(("  ! ", "yellow"), warning, wrap=True)
    standalone, asked = result["standalone"], result["original_question"]
    rewritten = [] if standalone == asked else [("rewritten", standalone)]
    decisions = [row for event in told if event["event"] != "answer" for row in event_rows(event)]
    times = ", ".join(f"{node} {ms / 1000:.2f} s" for node, ms in result["usage"]["ms"].items())
    cost = f"{counts(result['usage'])} ({times}), model {result['decision']['model']}"
    pages.rows([*rewritten, *decisions, ("cost", cost)], wrap=True)
