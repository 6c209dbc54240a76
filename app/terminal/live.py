"""The live view of a run on stderr: its events as they happen, erased when the answer is there."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from hopgate.terminal.guard import harmless
from hopgate.terminal.pages import err

if TYPE_CHECKING:
    from hopgate.nodes.run.events import Event

Line = tuple[str, str]  # a label, empty if it is the same as above, and a text

ANSWER = "answer"
PATHS = {"none": "no retrieval", "single": "one retrieval", "multi": "several hops"}


class View:
    """Shows the events so far: as many of the newest lines as fit the terminal."""

    def __init__(self) -> None:
        """Start with a spinner only."""
        self._rows: list[Line] = []
        self._spinner = Spinner("dots", "thinking")

    def show(self, event: "Event") -> None:
        """Add an event; some extend or replace the line before."""
        answer = self._rows.pop()[1] if self._rows and self._rows[-1][0] == ANSWER else ""
        if event["event"] == "token":
            self._rows.append((ANSWER, answer + event["text"]))
        else:
            self._rows += event_rows(event)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the newest lines, then the spinner."""
        grid = Table.grid(padding=(0, 1))
        grid.add_column(min_width=len("stopped"))  # so that a new label does not shift the texts
        for label, text in list(self._rows):
            grid.add_row(Text(label, "bold"), Text(harmless(text.replace("\n", " "))))
        lines = console.render_lines(grid, options.update(height=None), pad=False)
        for line in lines[-max(1, console.height - 2) :] if self._rows else []:
            yield from line
            yield Segment.line()
        yield self._spinner


def event_rows(event: Any) -> list[Line]:
    """Return the lines that describe an event."""
    match event["event"]:
        case "gate":
            return [("gate", f"{event['answer']} ({event['mode']}): {event['reason']}")]
        case "route":
            return [("route", f"{route_line(event)}: {event['reason']}")]
        case "plan":
            questions = enumerate(event["sub_questions"], start=1)
            return [(f"plan {number}", question) for number, question in questions]
        case "hop":
            found = ", ".join(each["title"] or each["id"] for each in event["passages"])
            return [(f"hop {event['number']}", event["query"]), ("", f"found {found or 'nothing'}")]
        case "thought":
            return [("", event["thought"] or "no thought")]
        case "stop":
            return [("stopped", event["stop_reason"])]
        case "escalate":
            path = f"{PATHS[event['from']]} → {PATHS[event['to']]}"
            return [("deeper", f"{path}: {event['reason']}")]
        case "answer":
            return [(ANSWER, event["text"])]
    return []


def route_line(route: Any) -> str:
    """Return a router's decision as a line: label, α and probabilities."""
    if not route["probs"]:
        return str(route["label"])
    shown = "  ".join(f"{label} {probability:.2f}" for label, probability in route["probs"].items())
    return f"{route['label']} at α = {route['alpha']:g} ({shown})"


@contextmanager
def view() -> Iterator[Callable[["Event"], None] | None]:
    """Show a run on stderr while the context is open.

    Yields:
        A callback for each event; None if stderr is not a terminal.
    """
    if not err.is_terminal:
        yield None
        return
    shown = View()
    with Live(shown, console=err, refresh_per_second=10, transient=True, redirect_stdout=False):
        yield shown.show
