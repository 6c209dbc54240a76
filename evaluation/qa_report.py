"""The report of `hopgate eval qa`: a page, and a picture of accuracy against steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopgate.common.files import json_bytes
from hopgate.common.strategies import STRATEGIES
from hopgate.evaluation.drawing import (
    BLUE,
    LIGHT_GREY,
    RED,
    escape_math,
    label_point,
    new_figure,
    style_axes,
    to_png,
)
from hopgate.evaluation.output import write_files
from hopgate.evaluation.pages import code, costs, percent, settings, table, what_was_run
from hopgate.evaluation.report import DOCUMENT, PAGE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Runs = Sequence[Mapping[str, Any]]

PICTURE = "qa.png"

_NOTES = """\
- Match, the accuracy in the picture: the answer contains an accepted answer, both normalised
  (lower case, no punctuation, no articles). It compares letters, not words, so "12" matches
  "2012", and a long answer that lists many names gains. EM and F1 compare whole words.
  "I don't know" is never correct.
- A step is one retrieval. `none`, `single` and `multi` treat every question alike, and skip gate
  and router. `adaptive` decides for each question; with the gate `off`, the router alone does.
- In square brackets: the 95% bootstrap interval over the questions. The runs share their
  questions, so two runs may differ more reliably than their intervals suggest. At 0% and 100% it
  has no width, and says nothing about other questions.
- Tokens, calls and cost count everything sent and received. Milliseconds are per question, while
  other questions ran concurrently."""


def write_report(out: Path, results: Mapping[str, Any]) -> None:
    """Write `results.json`, `report.md` and `qa.png`, each whole or not at all.

    Args:
        out: Folder to write to; it is created if needed.
        results: The content of `results.json`.

    Raises:
        RuntimeError: matplotlib is not installed, or `out` cannot be written to.
    """
    files = {
        PICTURE: png(results),
        PAGE: page(results).encode(),
        DOCUMENT: json_bytes(results),
    }
    write_files(out, files)


def page(results: Mapping[str, Any]) -> str:
    """Return the content of `report.md`.

    Args:
        results: The content of `results.json`.
    """
    runs = results["runs"]
    sections = [
        f"# Question answering: strategies with {code(results['model'])}",
        what_was_run(results),
        "## Runs\n\nPercent, with 95% intervals in square brackets.",
        _quality(runs),
        f"![Match of each run against its retrieval steps]({PICTURE})",
        "## Cost\n\nMeans per question, unless stated otherwise.",
        costs(runs, "strategy"),
        *_paths(runs),
        *_stops(runs),
        *_datasets(runs),
        "## Settings",
        settings(runs),
        f"## How to read this\n\n{_NOTES}",
    ]
    return "\n\n".join(sections) + "\n"


def _quality(runs: Runs) -> str:
    header = ("strategy", "match", "EM", "F1", "“I don't know”", "steps", "calls", "tokens")
    return table(header, ([code(run["name"]), *quality(run["scores"])] for run in runs))


def quality(scores: Mapping[str, Any]) -> list[str]:
    """Return a run's scores as they are shown, without their names."""
    return [
        *(percent(scores[name], scores["interval"][name]) for name in ("match", "em")),
        *(percent(scores[name]) for name in ("f1", "unknown")),
        f"{scores['retrieval_steps']:.2f}",
        f"{scores['llm_calls']:.2f}",
        f"{scores['tokens']['per_question']['total']:,.0f}",
    ]


def _paths(runs: Runs) -> list[str]:
    adaptive = _adaptive(runs)
    if not adaptive:
        return []
    rows = (
        [code(run["name"]), *map(percent, (*scores["shares"].values(), scores["invalid"]))]
        for run, scores in ((run, run["scores"]) for run in adaptive)
    )
    title = "## Where the questions went\n\nPercent of the questions; a gate's No counts as `none`."
    header = ("strategy", *STRATEGIES, "invalid gate replies")
    return [title, table(header, rows)]


def _stops(runs: Runs) -> list[str]:
    looped = [(run["name"], reasons) for run in runs if (reasons := run["scores"]["stop_reasons"])]
    names = list(dict.fromkeys(reason for _, reasons in looped for reason in reasons))
    if not names:
        return []
    rows = ([code(run), *(str(found.get(name, 0)) for name in names)] for run, found in looped)
    return ["## Why the loop stopped\n\nQuestions.", table(("strategy", *names), rows)]


def _datasets(runs: Runs) -> list[str]:
    counts = {name: part["n"] for name, part in runs[0]["scores"]["by_dataset"].items()}
    if not counts:
        return []
    header = ("strategy", *(f"{code(name)} (n = {count:,})" for name, count in counts.items()))
    rows = ([code(run["name"]), *_parts(run["scores"]["by_dataset"].values())] for run in runs)
    return ["## By dataset\n\nMatch / EM / F1 at how many steps.", table(header, rows)]


def _parts(parts: Iterable[Mapping[str, Any]]) -> list[str]:
    return [
        " / ".join(percent(part[name]) for name in ("match", "em", "f1"))
        + f" at {part['retrieval_steps']:.2f}"
        for part in parts
    ]


def _adaptive(runs: Runs, escalating: bool | None = None) -> list[Mapping[str, Any]]:
    """Return adaptive runs by α: all, or only those with or without escalation."""
    found = [
        run
        for run in runs
        if run["name"] not in STRATEGIES
        and escalating in (None, bool(run["settings"].get("escalate")))
    ]
    return sorted(found, key=lambda run: float(run["settings"]["alpha"]))


def png(results: Mapping[str, Any]) -> bytes:
    """Return match against steps of every run as a PNG.

    Args:
        results: The content of `results.json`.

    Raises:
        RuntimeError: matplotlib is not installed.
    """
    return to_png(draw(results))


def draw(results: Mapping[str, Any]) -> Figure:
    """Return the picture as a matplotlib figure; see `png`."""
    runs = results["runs"]
    figure = new_figure(9, 5.8)
    axes = figure.subplots()
    static = {run["name"]: run for run in runs}
    ordered = [static[name] for name in STRATEGIES if name in static]
    _curve(axes, ordered, "static strategies", "black", ":X")
    _curve(axes, _adaptive(runs, False), "adaptive", BLUE, "-o")
    _curve(axes, _adaptive(runs, True), "adaptive, escalating", RED, "-s")
    axes.set_title(
        f"{escape_math(results['model'])}, {results['data']['rows']:,} questions; "
        "whiskers: 95% intervals",
        loc="left",
        fontsize=12,
    )
    axes.set_xlabel("retrieval steps per question", fontsize=12)
    axes.set_ylabel("match, %", fontsize=12)
    axes.set_ylim(bottom=0)
    axes.margins(x=0.14, y=0.12)
    axes.grid(color=LIGHT_GREY, lw=0.6, zorder=0)
    style_axes(axes)
    figure.legend(loc="outside lower center", ncols=2, fontsize=11, frameon=False)
    return figure


def _curve(axes: Axes, runs: Runs, label: str, colour: str, form: str) -> None:
    """Draw a line through runs, each with its interval and its name."""
    if not runs:
        return
    steps = [run["scores"]["retrieval_steps"] for run in runs]
    match = [100 * run["scores"]["match"] for run in runs]
    for x, run in zip(steps, runs, strict=True):
        low, high = (100 * each for each in run["scores"]["interval"]["match"])
        axes.plot([x, x], [low, high], color=colour, lw=1, alpha=0.5, marker="_", ms=7, zorder=2)
    static = form.startswith(":")
    axes.plot(
        steps, match, form, color=colour, lw=2, ms=10 if static else 8, mec="white", label=label,
        zorder=5 if static else 4,
    )  # fmt: skip
    offset, side = {"X": ((-9, -22), "right"), "o": ((-9, 17), "right"), "s": ((4, -24), "left")}[
        form[-1]
    ]
    for names, x, y in _grouped(runs, steps, match):
        label_point(axes, names, (x, y), offset, color="black" if static else colour, ha=side)


def _grouped(
    runs: Runs, steps: Sequence[float], match: Sequence[float]
) -> Iterable[tuple[str, float, float]]:
    """Return the names of runs; runs at the same place share one."""
    places: dict[tuple[float, float], list[str]] = {}
    for run, x, y in zip(runs, steps, match, strict=True):
        places.setdefault((round(x, 1), round(y)), []).append(_short(run))
    return ((", ".join(names), x, y) for (x, y), names in places.items())


def _short(run: Mapping[str, Any]) -> str:
    alpha = run["settings"].get("alpha")
    return str(run["name"]) if alpha is None else f"α = {alpha:g}"
