"""Printing answers, decisions and progress with rich."""

import shlex
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType
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
from rich.segment import Segment
from rich.table import Table

from hopgate.common.strategies import LABELS
from hopgate.terminal import harmless

if TYPE_CHECKING:
    from hopgate.diagnosis import Check
    from hopgate.project import Created
    from hopgate.retrievers.base import Hit
    from hopgate.retrievers.building import BuildReport
    from hopgate.retrievers.following import FollowReport
    from hopgate.retrievers.loaders import SkippedFile
    from hopgate.retrievers.manifest import Manifest
    from hopgate.retrievers.stores import StoreReport
    from hopgate.retrievers.verifying import VerifyReport


FIRST_SECONDS = 1.0
LINE_SECONDS = 5.0
MAX_LINE_SECONDS = 60.0
LINES_PER_DOUBLING = 10
"""How often progress is printed where there is no terminal."""
SKIPPED_SHOWN = 20
REPEATS_SHOWN = 5
PATHS = {"none": "no retrieval", "single": "one retrieval", "multi": "several hops"}


class SafeConsole(Console):
    """A rich console that makes texts harmless and keeps rich's own styles.

    Texts that are laid out, such as those in tables, should be harmless before, so that their
    width is known.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        """Print on stdout or stderr."""
        super().__init__(stderr=stderr, highlight=False, emoji=False)

    @property  # type: ignore[misc]
    def file(self) -> IO[str]:
        """The stream behind the guard, and behind rich's own while a live display runs."""
        file = super().file
        while hasattr(file, "rich_proxied_file"):
            file = file.rich_proxied_file
        return file

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as rich does, with harmless texts."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(harmless(segment.text), segment.style)


_out = SafeConsole()
_err = SafeConsole(stderr=True)


def escape(text: str, *, lines: bool = False) -> str:
    """Make untrusted text safe to print: no markup, no control characters.

    Args:
        text: The text.
        lines: Whether it may have several lines, as answers do and names do not.
    """
    return escape_markup(harmless(text, lines=lines))


@contextmanager
def status(doing: str, *, quiet: bool) -> Iterator[None]:
    """Show a spinner on stderr."""
    if quiet or not _err.is_terminal:
        yield
        return
    with _err.status(doing):
        yield


def _bar(*, transient: bool) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=_err,
        transient=transient,
        speed_estimate_period=3600,  # a slow model answers once a minute
    )


@contextmanager
def progress(doing: str) -> Iterator[Callable[[int, int], None]]:
    """Show the progress of one stage on a terminal; yields a callback of done and total."""
    if not _err.is_terminal:
        yield lambda done, total: None
        return
    with stages() as update:
        yield partial(update, doing)


@contextmanager
def stages(*, brief: bool = False) -> Iterator[Callable[[str, int, int], None]]:
    """Show the progress of each stage on stderr; yields a callback of stage, done and total.

    A terminal gets a bar for each stage, anything else a line now and then, see `_Lines`.

    Args:
        brief: For work that is usually over at once: leave no bars behind, and print no lines
            in the first seconds.
    """
    if not _err.is_terminal:
        lines = _Lines(LINE_SECONDS if brief else FIRST_SECONDS)
        try:
            yield lines.update
        finally:
            lines.close()
        return
    with _bar(transient=brief) as bar:
        tasks: dict[str, Any] = {}
        starting = bar.add_task("starting", total=None)

        def update(stage: str, done: int, total: int) -> None:
            bar.update(starting, visible=False)
            if stage not in tasks:  # a new bar, so that earlier work does not distort the estimate
                tasks[stage] = bar.add_task(escape(stage), total=total, completed=done)
            bar.update(tasks[stage], completed=done, total=total)

        yield update
        bar.update(starting, visible=False)


class _Lines:
    """Progress as lines of text, for a log.

    The first comes after a second, then one at the start of each stage and every few seconds, and
    in long work every minute. Work that is over within the first second prints nothing.
    """

    def __init__(self, quiet_seconds: float) -> None:
        self._lock = threading.Lock()
        self._started = self._printed = time.monotonic()
        self._quiet_seconds = quiet_seconds
        self._stage, self._stage_started, self._before = "starting", self._started, 0
        self._done, self._total = 0, 0
        self._timer = threading.Timer(quiet_seconds, self._print)
        self._timer.daemon = True
        self._timer.start()

    def update(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        new = stage != self._stage
        if new:
            self._stage, self._stage_started, self._before = stage, now, done
        self._done, self._total = done, total
        long = (now - self._started) / LINES_PER_DOUBLING
        due = now - self._printed >= min(max(LINE_SECONDS, long), MAX_LINE_SECONDS)
        if now - self._started >= self._quiet_seconds and (new or due or done == total):
            self._print()

    def _print(self) -> None:
        with self._lock:
            self._printed = now = time.monotonic()
            line = self._stage
            if self._total:
                line += f": {self._done:,} of {self._total:,}"
            seconds, did = now - self._stage_started, self._done - self._before
            if did > 0 and seconds > 0 and self._done < self._total:
                left = timedelta(seconds=round(seconds / did * (self._total - self._done)))
                line += f" ({_rate(did / seconds)}, {left} left)"
            _err.print(escape(line), soft_wrap=True)

    def close(self) -> None:
        self._timer.cancel()


def _rate(per_second: float) -> str:
    if per_second >= 1:
        return f"{per_second:,.0f} a second"
    return f"{per_second * 60:,.1f} a minute"


def answer(result: dict[str, Any]) -> None:
    """Print an answer with its sources and every decision that led to it."""
    decision = result["decision"]
    _out.print(Panel(escape(result["answer"], lines=True), title="answer", title_align="left"))
    for citation in result["citations"]:
        place = f" [dim]({place})[/]" if (place := _place(citation)) else ""
        mark = escape(f"[{citation['number']}] ") if "number" in citation else ""
        title, quote = escape(citation["title"]), escape(citation["quote"], lines=True)
        _out.print(f"  {mark}[bold]{title}[/]{place}: {quote}")
    for warning in decision["warnings"]:
        _out.print(f"  [yellow]![/] {escape(warning)}")
    if result["standalone"] != result["original_question"]:
        _out.print(f"[bold]rewritten[/] {escape(result['standalone'], lines=True)}")
    gate = decision["gate"]
    _out.print(f"[bold]gate[/]    {gate['answer']} ({gate['mode']}): {escape(gate['reason'])}")
    if route := decision.get("route"):
        _out.print(f"[bold]route[/]   {route_line(route)}: {escape(route['reason'])}")
    for step in decision.get("escalated", []):
        _out.print(f"[bold]deeper[/]  {step['from']} → {step['to']}: {escape(step['reason'])}")
    _hops(result)
    if decision.get("stop_reason"):
        _out.print(f"[bold]stopped[/] {decision['stop_reason']}")
    _out.print(f"[bold]cost[/]    {_cost(result['usage'])}, model {escape(decision['model'])}")


def route_line(route: Mapping[str, Any]) -> str:
    """Return a router's decision as a line: label, α and probabilities."""
    if not route["probs"]:
        return str(route["label"])
    shown = "  ".join(f"{label} {probability:.2f}" for label, probability in route["probs"].items())
    return f"{route['label']} at α = {route['alpha']:g} ({shown})"


def _hops(result: dict[str, Any]) -> None:
    titles = {hit["id"]: hit["title"] for hit in result["evidence"]}
    for number, hop in enumerate(result["hops"], start=1):
        found = ", ".join(titles.get(each, each) for each in hop["passage_ids"]) or "nothing"
        _out.print(f"[bold]hop {number}[/]   {escape(hop['query'], lines=True)}")
        _out.print(f"        found {escape(found)}")
        if hop["thought"]:
            _out.print(f"        [italic]{escape(hop['thought'], lines=True)}[/]")


def _cost(usage: dict[str, Any]) -> str:
    steps = ", ".join(f"{node} {ms / 1000:.2f} s" for node, ms in usage["ms"].items())
    return f"{counts(usage)} ({steps})"


def counts(usage: Mapping[str, Any]) -> str:
    """Return what was spent, without times."""
    return (
        f"{usage['retrieval_steps']} retrievals, {usage['llm_calls']} model calls, "
        f"{usage['prompt_tokens']} + {usage['completion_tokens']} tokens"
    )


def routed(report: dict[str, Any]) -> None:
    """Print the result of `hopgate route`."""
    if "output" in report:
        shares = ", ".join(f"{label} {share:.0%}" for label, share in report["shares"].items())
        _out.print(f"{report['rows']} questions → {escape(report['output'])}: {shares}")
    else:
        _out.print(f"{route_line(report)}, profile {escape(report['profile'])}, {report['ms']} ms")
        _out.print(f"[dim]{escape(report['reason'])}[/]")


def _place(found: "Hit | dict[str, Any]") -> str:
    page = f"page {found['page']}" if "page" in found else ""
    parts = [found.get("source") or "", page, found.get("section") or ""]
    return escape(", ".join(part for part in parts if part))


def created(report: "Created") -> None:
    """Print where a new project is and what to do with it."""
    folder = escape(report.folder)
    _out.print(
        f"{folder}: {_count(len(report.files), 'file')}, and an index of "
        f"{_count(report.passages, 'passage')}. Try it:",
        soft_wrap=True,
    )
    for command in (
        f"cd {escape(shlex.quote(report.folder))}",
        'hopgate ask "When does the canteen close?" --index index',
        "langgraph dev",
        "python -m pytest",
    ):
        _out.print(f"  {command}", soft_wrap=True)
    _out.print("README.md there says what to change.")


def hits(found: "Sequence[Hit]") -> None:
    """Print passages, best first."""
    for number, hit in enumerate(found, start=1):
        place = f"{hit['score']:.3f}  {_place(hit)}".rstrip()
        _out.print(f"[bold]{number}. {escape(hit['title'])}[/] [dim]{place}[/]")
        _out.print(f"   {escape(hit['text'], lines=True)}")


def note(text: str) -> None:
    """Print a line on stderr."""
    _err.print(escape(text), soft_wrap=True)


def built(report: "BuildReport") -> None:
    """Print what a change did to an index, and what was skipped."""
    _skipped(report)
    path = escape(report.path)
    _out.print(
        f"{_count(report.passages, 'passage')} → {path}"
        + (f", version {report.version}" if report.version else "")
        + f" ({_difference(report)})",
        soft_wrap=True,
    )
    if documents := _documents(report):
        _out.print(documents)
    if report.duplicates:
        _repeats(report)
    reason = f" ({escape(report.mode_reason)})" if report.mode_reason else ""
    _out.print(
        f"language {escape(report.language)}, mode {report.mode}{reason}, encoder "
        f"{escape(report.encoder)}"
        + (f", factory {escape(report.factory)}" if report.factory else ""),
        soft_wrap=True,
    )
    _out.print(
        f'Ask it: hopgate ask "…" --index {escape(shlex.quote(report.path))}', soft_wrap=True
    )


def synced(report: "BuildReport", at: str, skipped: "Sequence[SkippedFile]") -> None:
    """Print one round of `hopgate index sync --watch` as a line, and what it skipped."""
    _skipped_list([f"{at} [yellow]skipped[/] {_reason(each)}" for each in skipped])
    did = _difference(report)
    if report.changed and (documents := _documents(report)):
        did = f"{documents}; passages: {did}"
    _out.print(f"{at} {did}; {_count(report.passages, 'passage')}", soft_wrap=True)


def followed(report: "FollowReport", at: str = "") -> None:
    """Print what `hopgate index follow` copied; with the time in front in a watch."""
    files = f"{_count(report.files, 'file')}, {_bytes(report.bytes)} copied"
    _out.print(
        f"{at}{_count(report.passages, 'passage')} → {escape(report.path)}, version "
        f"{report.version} ({files if report.changed else 'nothing new'})",
        soft_wrap=True,
    )


def compacted(report: "BuildReport", before: int, after: int) -> None:
    """Print what compacting an index freed."""
    _out.print(
        f"{_count(report.passages, 'passage')} → {escape(report.path)}, version {report.version} "
        f"({_bytes(before)} before, {_bytes(after)} now)",
        soft_wrap=True,
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _bytes(number: float) -> str:
    """Return a size as people read it."""
    for unit in ("bytes", "kB", "MB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "bytes" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} GB"


def _difference(report: "BuildReport") -> str:
    counts = {"added": report.added, "removed": report.removed, "encoded": report.encoded}
    did = ", ".join(f"{number:,} {what}" for what, number in counts.items() if number)
    return did or "passages as before" if report.changed else "nothing changed"


def _documents(report: "BuildReport") -> str:
    """Return what was read, and what became of the documents as far as the change knows."""
    counts = {
        "new": report.new,
        "changed": report.updated,
        "gone": report.gone,
        "unchanged": report.unchanged,
    }
    parts = [f"{number:,} {what}" for what, number in counts.items() if number]
    if parts:
        return f"documents: {', '.join(parts)}"
    return f"{_count(report.files, 'file')} read" if report.files else ""


def _repeats(report: "BuildReport") -> None:
    _out.print(f"{_count(report.duplicates, 'duplicate')} left out")
    for repeat in report.repeats[:REPEATS_SHOWN]:
        is_are = "is" if repeat.passages == 1 else "are"
        _out.print(
            f"  {_count(repeat.passages, 'passage')} of {escape(repeat.source)} {is_are} in "
            f"{escape(repeat.of)} too",
            soft_wrap=True,
        )


def _skipped(report: "BuildReport") -> None:
    from hopgate.retrievers.loaders import ignored_summary

    _skipped_list([f"[yellow]skipped[/] {_reason(each)}" for each in report.skipped])
    if summary := ignored_summary(report.ignored):
        _err.print(f"[yellow]{escape(summary)}[/]", soft_wrap=True)


def _skipped_list(lines: Sequence[str]) -> None:
    for line in lines[:SKIPPED_SHOWN]:
        _err.print(line, soft_wrap=True)
    if (more := len(lines) - SKIPPED_SHOWN) > 0:
        _err.print(f"[yellow]skipped[/] {more:,} more; --json lists them all", soft_wrap=True)


def _reason(skipped: "SkippedFile") -> str:
    return f"{escape(skipped.path)}: {escape(skipped.reason)}"


def manifest(document: "Manifest", path: Path) -> None:
    """Print a page about an index."""
    _print_page(str(path), _page(document, path))


def store(document: "StoreReport") -> None:
    """Print a page about a collection in an outside store."""
    whole = "" if document["complete"] else "half filled: its first build has not ended"
    page = _common(document) | {
        "folders": _folders(document["roots"]),
        "created": f"{_local(document['created'])}{', ' if whole else ''}{whole}",
    }
    _print_page(document["store"], page)


def _print_page(title: str, page: dict[str, str]) -> None:
    width = max(map(len, page)) + 2
    _out.print(f"[bold]{escape(title)}[/]", soft_wrap=True)
    for name, value in page.items():
        shown = escape(value, lines=True).replace("\n", "\n" + " " * width)
        _out.print(f"[bold]{name:<{width}}[/]{shown}", soft_wrap=True)


def _page(document: "Manifest", path: Path) -> dict[str, str]:
    from hopgate.retrievers.manifest import size

    return _common(document) | {
        "factory": _factory(document),
        "segments": _segments(document, path),
        "size": _bytes(size(document)),
        "folders": _folders(document["roots"]),
        "last change": f"{_local(document['created'])}, version {document['version']}",
    }


def _common(document: Mapping[str, Any]) -> dict[str, str]:
    """Return what folders and stores have in common."""
    encoder, reason = document["encoder"], document["mode_reason"]
    return {
        "passages": f"{document['passages']:,} of {_count(document['sources'], 'document')}",
        "language": document["language"],
        "mode": document["mode"] + (f": {reason}" if reason else ""),
        "encoder": f"{encoder['name']}, {encoder['dimension']} dimensions",
    }


def _folders(roots: Sequence[str]) -> str:
    shown = "\n".join(harmless(each, lines=False) for each in roots)
    return shown or "none: only files were indexed"


def _factory(document: "Manifest") -> str:
    chosen = "chosen for the collection" if document["auto"] else "as given to `index build`"
    recalls = [each["search"].get("recall") for each in document["segments"]]
    measured = [recall for recall in recalls if recall is not None]
    found = f"recall@10 {min(measured):.3f}" if measured else "exact"
    return f"{document['factory']} ({chosen}; {found})"


def _segments(document: "Manifest", path: Path) -> str:
    """Say how many segments there are, and what `compact` would free."""
    from hopgate.retrievers.manifest import reclaimable, size

    vectors, words = len(document["segments"]), len(document["words"].get("segments", ()))
    counts = f"{vectors} of vectors, {words} of words; "
    if not (freed := reclaimable(document)):
        return counts + "nothing is left of deleted passages"
    return counts + (
        f"{freed / size(document):.0%} of the size is deleted passages: `hopgate index compact "
        f"{shlex.quote(str(path))}` frees it"
    )


def _local(time_in_utc: str) -> str:
    try:
        return f"{datetime.fromisoformat(time_in_utc).astimezone():%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError):
        return time_in_utc


def verified(report: "VerifyReport") -> None:
    """Print the problems of an index, or that it has none."""
    for problem in report.problems:
        _err.print(f"[red]✗[/] {escape(problem)}", soft_wrap=True)
    if not report.problems:
        _out.print(
            f"[green]✓[/] {escape(report.path)}, version {report.version}: "
            f"{_count(report.files, 'file')} and {_count(report.passages, 'passage')} are as "
            f"written; {_count(report.sampled, 'passage')} encoded again for comparison",
            soft_wrap=True,
        )


def checks(found: "Sequence[Check]") -> None:
    """Print the checks of `hopgate doctor`."""
    for check in found:
        mark = "[green]✓[/]" if check.ok else "[red]✗[/]" if check.needed else "[yellow]–[/]"
        _out.print(f"{mark} [bold]{check.name}[/]: {escape(check.found)}")
        if check.advice:
            _out.print(f"    {escape(check.advice)}")


def _table(title: str | None, *columns: str) -> Table:
    """Return a table with a first column of names and others of numbers."""
    table = Table(title=title)
    for at, column in enumerate(columns):
        table.add_column(column, justify="right" if at else "left")
    return table


def swept(document: dict[str, Any], out: Path) -> None:
    """Print a sweep: some α of each router, the static strategies, and a summary."""
    multi = document["static"]["multi"]
    for name, summary in document["summary"].items():
        rows = [row for row in document["rows"] if row["router"] == name]
        table = _table(
            f"{escape(name)} ({escape(summary['source'])}, {escape(summary['profile'])})",
            *("", "accuracy", "steps", "of multi's steps", "of its accuracy", *LABELS),
        )
        for row in [rows[at] for at in sorted({i * (len(rows) - 1) // 10 for i in range(11)})]:
            table.add_row(f"α = {row['alpha']:.2g}", *_scored(row, multi))
        table.add_section()
        for static, row in (document["static"] | {"oracle": document["oracle"]}).items():
            table.add_row(static, *_scored(row, multi))
        _out.print(table)
        _out.print(_summary(summary), soft_wrap=True)
    files = " and ".join(escape(str(out / name)) for name in ("sweep.json", "sweep.png"))
    _out.print(f"→ {files}", soft_wrap=True)


def _scored(row: dict[str, Any], multi: dict[str, Any]) -> list[str]:
    return [
        f"{row['accuracy']:.1%}",
        f"{row['steps']:.2f}",
        f"{row['steps'] / multi['steps']:.0%}",
        f"{row['accuracy'] / multi['accuracy']:.1%}",
        *(f"{share:.0%}" for share in row["shares"].values()),
    ]


def _summary(summary: dict[str, Any]) -> str:
    ece, recall, needed = summary["ece"], summary["recall"], summary["steps_for_100"]
    enough = "100% is never reached" if needed is None else f"100% needs {needed:.1%} of them"
    calibration = [
        f"α = {alpha}: calibration error {ece[weights]:.3f}, recall "
        + " ".join(f"{label} {share:.0%}" for label, share in recall[weights].items())
        for alpha, weights in enumerate(("cost", "reliability"))
        if ece[weights] is not None
    ]
    return (
        f"  share of multi's accuracy: {_percent(summary['share_at_38'])} at 38% of its steps, "
        f"{_percent(summary['share_at_50'])} at 50%; {enough}; area {summary['area']:.3f}\n  "
        + "; ".join(calibration)
    )


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def calibrated(found: dict[str, Any]) -> None:
    """Print the chosen α, and how to use it."""
    interval, multi = found["interval"], found["multi"]
    cost = next(name for name in ("steps", "calls", "tokens") if name in interval)
    _out.print(f"[bold]α = {found['alpha']:g}[/]{_between(interval['alpha'], '.2f')}")
    _out.print(f"accuracy {found['accuracy']:.1%}{_between(interval['accuracy'], '.1%')}")
    _out.print(f"{cost:8} {found[cost]:,.2f}{_between(interval[cost], ',.2f')}")
    shares = ", ".join(f"{label} {share:.0%}" for label, share in found["shares"].items())
    _out.print(f"shares   {shares}")
    _out.print(f"(always multi-step: {multi['accuracy']:.1%} at {multi['steps']:.2f} steps)")
    if found["infeasible"]:
        _out.print(
            f"[yellow]![/] no α met the goal in {found['infeasible']} of {found['resamples']} "
            "resamples of the questions"
        )
    alpha = escape(found["saved"] or f"{found['alpha']:g}")
    router = "" if found["router"] == "builtin" else f" --router {escape(found['router'])}"
    profile = escape(found["profile"])
    _out.print(
        f'Use it: hopgate ask "…" --alpha {alpha} --profile {profile}{router}', soft_wrap=True
    )


def _between(interval: list[float] | None, form: str) -> str:
    if interval is None:
        return ""
    return f"   95% interval {interval[0]:{form}} to {interval[1]:{form}}"


def retrievalqa(results: dict[str, Any], out: Path) -> None:
    """Print the scores of each gate, and where the report is."""
    columns = {"retrieval": "retrieval_accuracy", "match": "match", "EM": "em", "F1": "f1"}
    _benchmark(results, out, "gate", columns)


def qa(results: dict[str, Any], out: Path) -> None:
    """Print the scores of each strategy, and where the report is."""
    columns = {"match": "match", "EM": "em", "F1": "f1", "steps": "retrieval_steps"}
    _benchmark(results, out, "strategy", columns)


def _benchmark(results: dict[str, Any], out: Path, kind: str, columns: dict[str, str]) -> None:
    title = f"{escape(results['model'])}, {results['data']['rows']} questions"
    table = _table(title, kind, *columns, "calls", "tokens", "ms")
    table.columns[0].overflow = "fold"  # long names leave the numbers room
    for column in table.columns[1:]:
        column.no_wrap = True
    for run in results["runs"]:
        scores = run["scores"]
        table.add_row(
            escape(run["name"]),
            *(_score(name, scores[name]) for name in columns.values()),
            f"{scores['llm_calls']:.2f}",
            f"{scores['tokens']['per_question']['total']:.0f}",
            f"{scores['ms']['mean']:.0f}",
        )
    _out.print(table)
    _out.print(f"→ {escape(str(out / 'report.md'))}", soft_wrap=True)


def _score(name: str, value: float | None) -> str:
    return f"{value:.2f}" if name == "retrieval_steps" else _percent(value)


def labelled(report: dict[str, Any]) -> None:
    """Print how good each strategy is, and for how many questions it is the cheapest."""
    title = f"{escape(report['model'])}, {report['questions']} questions"
    table = _table(title, "strategy", "correct", "cheapest for", "steps", "calls", "ms")
    for name, accuracy in report["accuracy"].items():
        table.add_row(
            name,
            _percent(accuracy),
            str(report["cheapest"][name]),
            f"{report['steps'][name]:.2f}",
            f"{report['calls'][name]:.2f}",
            f"{report['ms'][name]:.0f}",
        )
    _out.print(table)
    _out.print(f"{report['cheapest']['unanswered']} questions that no strategy answered")
    if report["unclear"]:
        _out.print(f"{report['unclear']} questions left out: not clear which answer is right")
    if report["bad_rows"]:
        _out.print(f"[yellow]![/] {report['bad_rows']} bad rows left out")
    _out.print(f"→ {escape(report['out'])}", soft_wrap=True)


def improved(verdict: dict[str, Any], out: Path) -> None:
    """Print both routers' figures, and how to promote the candidate if it may be."""
    for name, compared in verdict["compared"].items():
        table = _table(
            f"{compared['questions']:,} questions, {name}",
            *("figure", "α", "in use", "candidate", "95% of the difference", ""),
        )
        for each in compared["figures"]:
            form = ".2f" if each["name"] == "steps" else ".1%"
            table.add_row(
                each["name"],
                "all" if each["alpha"] is None else f"{each['alpha']:g}",
                *(format(each[side], form) for side in ("before", "after")),
                f"{each['low']:+{form}} to {each['high']:+{form}}",
                "[red]worse[/]" if each["worse"] else "",
            )
        _out.print(table)
    _out.print(f"→ {escape(str(out / 'report.md'))}", soft_wrap=True)
    if verdict["promote"]:
        name = verdict["router"]["name"]
        to = "ROUTER" if name == "builtin" else escape(shlex.quote(name))
        done = escape(shlex.quote(str(out)))
        _out.print(f"Use it: hopgate promote {done} --to {to}", soft_wrap=True)


def promoted(in_use: dict[str, Any]) -> None:
    """Print which version of a router is in use, and how to go back."""
    router = escape(shlex.quote(in_use["router"]))
    _out.print(f"[green]✓[/] {router} is version {in_use['version']} now", soft_wrap=True)
    if in_use["before"] is not None:
        _out.print(
            f"Version {in_use['before']}, in use before, is kept: hopgate promote --back --to "
            f"{router}",
            soft_wrap=True,
        )


def harvested(report: dict[str, Any]) -> None:
    """Print how many questions were read and drawn, and why others were left out."""
    _out.print(f"{report['threads']:,} threads read, {report['questions']:,} questions in them")
    for reason, number in report["left_out"].items():
        _out.print(f"  left out, {escape(reason)}: {number:,}")
    signals = ", ".join(f"{name} {number:,}" for name, number in report["signals"].items())
    _out.print(f"{report['rows']:,} questions written ({signals})", soft_wrap=True)
    _out.print(f"{report['answers']:,} of them with the right answer")
    _out.print(f"→ {escape(report['out'])}", soft_wrap=True)


def paraphrases(found: dict[str, Any], out: Path) -> None:
    """Print how stable each gate is, with 95% intervals, and where the report is."""
    from hopgate.evaluation.paraphrases import MEASURES, cells

    data = found["data"]
    title = f"{escape(found['model'])}, {data['groups']} questions in {data['questions']} forms"
    table = _table(title, "gate", *MEASURES.values())
    for run in found["runs"]:
        table.add_row(escape(run["name"]), *cells(run["scores"]))
    _out.print(table)
    _out.print(f"→ {escape(str(out / 'paraphrases.md'))}", soft_wrap=True)


def gate_calibrated(found: dict[str, Any], out: Path | None) -> None:
    """Print the chosen threshold, what others would do, and how to use it."""
    interval, needed = found["interval"], found["needed"]
    _out.print(f"[bold]threshold {found['threshold']}[/]{_between(interval['threshold'], '.3g')}")
    _out.print(f"AUC       {found['auc']:.3f}{_between(interval['auc'], '.3f')}")
    _out.print(f"questions {found['questions']}, of which {needed} need retrieval")
    if found["invalid"]:
        _out.print(
            f"[yellow]![/] {found['invalid']} replies were neither Yes nor No; they retrieve"
        )
    if interval["auc"][0] <= 0.5:
        _out.print(
            "[yellow]![/] on these questions the gate cannot be told from chance (AUC 0.5); do not "
            "use this threshold"
        )
    table = _table(
        None, "", "threshold", "retrieves if needed", "otherwise", "accuracy", "balanced"
    )
    curve = found["curve"]
    shown = [curve[at] for at in sorted({i * (len(curve) - 1) // 10 for i in range(11)})]
    for point in shown:
        table.add_row("", *_point(point))
    table.add_section()
    table.add_row("shipped", *_point(found["shipped"]))
    table.add_row("chosen", *_point(found["chosen"]))
    _out.print(table)
    if out is not None:
        files = " and ".join(str(out / f"calibration.{kind}") for kind in ("json", "png"))
        _out.print(f"→ {escape(files)}", soft_wrap=True)
    _out.print(f"Use it: {escape(found['use'])}", soft_wrap=True)


def _point(point: dict[str, float]) -> list[str]:
    names = ("needed", "known", "accuracy", "balanced_accuracy")
    return [f"{point['threshold']:g}", *(_percent(point[name]) for name in names)]
