"""A run on stderr: its newest event beside a spinner, erased when the answer is there."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.text import Text

from hopgate.terminal.guard import harmless
from hopgate.terminal.pages import err

if TYPE_CHECKING:
    from hopgate.nodes.run.events import Event

Line = tuple[str, str]  # a label, empty if it is the same as above, and a text

ANSWER = "answer"
PATHS = {"none": "no retrieval", "single": "one retrieval", "multi": "several hops"}


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
    answer = ""

    def show(event: "Event") -> None:
        nonlocal answer
        answer = answer + event["text"] if event["event"] == "token" else ""
        for label, text in [(ANSWER, answer)] if answer else event_rows(event):
            newest = f"{label} {text}".strip().replace("\n", " ")
            room = err.width - len("⠋ …")
            status.update(Text(harmless(newest if len(newest) <= room else f"…{newest[-room:]}")))

    with err.status("thinking") as status:
        yield show
