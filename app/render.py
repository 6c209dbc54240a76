"""What people see: answers, decisions and progress, drawn with rich."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape as escape_markup
from rich.panel import Panel
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

if TYPE_CHECKING:
    from hopgate.diagnosis import Check
    from hopgate.retrievers import BuildReport, Hit

_out = Console(highlight=False, emoji=False)
_err = Console(stderr=True, highlight=False, emoji=False)

PATHS = {"none": "no retrieval", "single": "one retrieval", "multi": "several hops"}


def escape(text: str) -> str:
    """Make a text that is not ours safe to print: no markup, no terminal control sequences."""
    shown = "".join(c if c.isprintable() or c == "\n" else " " for c in text)
    return escape_markup(shown)


@contextmanager
def status(doing: str, *, quiet: bool) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Show a spinner on stderr; yields a callback that shows the graph's events in it."""
    if quiet or not _err.is_terminal:
        yield lambda event: None
        return
    with _err.status(doing) as spinner:
        yield lambda event: spinner.update(escape(_event(event)))


def _event(event: dict[str, Any]) -> str:
    match event["event"]:
        case "gate":
            return f"gate: {event['answer']}"
        case "route":
            return f"route: {PATHS[event['strategy']]}"
        case "hop":
            return f"hop {event['number']}: {event['query']}"
        case "thought":
            return f"thought {event['number']}: {event['thought']}"
    return "answering"


def _bar() -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=_err,
        disable=not _err.is_terminal,
    )


@contextmanager
def progress(doing: str) -> Iterator[Callable[[int, int], None]]:
    """Show one bar on stderr; yields a callback that takes how many are done, and the total."""
    with _bar() as bar:
        task = bar.add_task(doing, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def stages() -> Iterator[Callable[[str, int, int], None]]:
    """Show one bar for each stage on stderr; yields a callback of stage, done and total."""
    with _bar() as bar:
        tasks: dict[str, Any] = {}

        def update(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total)
            bar.update(tasks[stage], completed=done, total=total)

        yield update


def answer(result: dict[str, Any]) -> None:
    """Print an answer with its sources and every decision on the way to it."""
    decision = result["decision"]
    _out.print(Panel(escape(result["answer"]), title="answer", title_align="left"))
    for citation in result["citations"]:
        _out.print(f"  [bold]{escape(citation['title'])}[/]: {escape(citation['quote'])}")
    for warning in decision["warnings"]:
        _out.print(f"  [yellow]![/] {escape(warning)}")
    if result["standalone"] != result["asked"]:
        _out.print(f"[bold]asked[/]   {escape(result['standalone'])}")
    gate = decision["gate"]
    _out.print(f"[bold]gate[/]    {gate['answer']} ({gate['mode']}): {escape(gate['reason'])}")
    if route := decision.get("route"):
        _out.print(f"[bold]route[/]   {_route(route)}: {escape(route['reason'])}")
    _hops(result)
    if decision.get("stop_reason"):
        _out.print(f"[bold]stopped[/] {decision['stop_reason']}")
    _out.print(f"[bold]cost[/]    {_cost(result['usage'])}, model {escape(decision['model'])}")


def _route(route: dict[str, Any]) -> str:
    if not route["probs"]:
        return str(route["label"])
    shown = "  ".join(f"{label} {probability:.2f}" for label, probability in route["probs"].items())
    return f"{route['label']} at α = {route['alpha']:g} ({shown})"


def _hops(result: dict[str, Any]) -> None:
    titles = {hit["id"]: hit["title"] for hit in result["evidence"]}
    for number, hop in enumerate(result["hops"], start=1):
        found = ", ".join(titles.get(each, each) for each in hop["passage_ids"]) or "nothing"
        _out.print(f"[bold]hop {number}[/]   {escape(hop['query'])}")
        _out.print(f"        found {escape(found)}")
        if hop["thought"]:
            _out.print(f"        [italic]{escape(hop['thought'])}[/]")


def _cost(usage: dict[str, Any]) -> str:
    steps = ", ".join(f"{node} {ms / 1000:.2f} s" for node, ms in usage["ms"].items())
    return (
        f"{usage['retrieval_steps']} retrievals, {usage['llm_calls']} model calls, "
        f"{usage['prompt_tokens']} + {usage['completion_tokens']} tokens ({steps})"
    )


def routed(report: dict[str, Any]) -> None:
    """Print what `hopgate route` found."""
    if "output" in report:
        shares = ", ".join(f"{label} {share:.0%}" for label, share in report["shares"].items())
        _out.print(f"{report['rows']} questions → {escape(report['output'])}: {shares}")
    else:
        _out.print(f"{_route(report)}, {report['ms']} ms")


def hits(found: "Sequence[Hit]") -> None:
    """Print passages, best first."""
    for number, hit in enumerate(found, start=1):
        _out.print(f"[bold]{number}. {escape(hit['title'])}[/] [dim]{hit['score']:.3f}[/]")
        _out.print(f"   {escape(hit['text'])}")


def built(report: "BuildReport") -> None:
    """Print what an index was built from, and what was left out."""
    for skipped in report.skipped:
        _err.print(
            f"[yellow]skipped[/] {escape(skipped.path)}: {escape(skipped.reason)}", soft_wrap=True
        )
    _out.print(
        f"{report.passages} passages of {report.files} files → {escape(report.path)} "
        f"(encoder {escape(report.encoder)}, {report.duplicates} duplicates left out)",
        soft_wrap=True,
    )
    _out.print(f'Ask it: hopgate ask "…" --index {escape(report.path)}', soft_wrap=True)


def manifest(path: Path, document: dict[str, Any]) -> None:
    """Print an index's manifest."""
    table = Table(title=escape(str(path)), show_header=False)
    for key, value in document.items():
        shown = (
            ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else value
        )
        table.add_row(key, escape(str(shown)))
    _out.print(table)


def checks(found: "Sequence[Check]") -> None:
    """Print what `hopgate doctor` found."""
    for check in found:
        mark = "[green]✓[/]" if check.ok else "[red]✗[/]" if check.needed else "[yellow]–[/]"
        _out.print(f"{mark} [bold]{check.name}[/]: {escape(check.found)}")
        if check.advice:
            _out.print(f"    {escape(check.advice)}")
