"""The pictures of evaluations; each takes the content of a results file and returns a figure."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hopgate.common.strategies import STRATEGIES
from hopgate.evaluation.reports import drawing
from hopgate.evaluation.reports.drawing import Series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Run = Mapping[str, Any]
COLOURS = (drawing.BLUE, drawing.RED, drawing.GREEN, drawing.PINK, drawing.SKY, drawing.ORANGE)
MARKED = (0.0, 0.25, 0.5, 0.75, 1.0)
"""The α values marked on a sweep's curves, or the nearest ones."""


def draw_gates(results: Mapping[str, Any], others: Sequence[Series] = ()) -> Figure:
    """Draw match against retrieval accuracy of each gate, as in RetrievalQA's table 1.

    Only questions that must retrieve count, as in the paper; `others` are drawn beside.
    """
    runs = [run for run in results["runs"] if "must-retrieve" in run["scores"]["by_need"]]
    scores = [run["scores"]["by_need"]["must-retrieve"] for run in runs]
    series = [
        Series(
            run_label(run["name"]),
            [(100 * each["retrieval_accuracy"], 100 * each["match"])],
            {"color": colour, "marker": marker, "ls": "none", "ms": 9, "mec": "white"},
            whiskers=[_percent(each["interval"]["match"])],
        )
        for run, each, (marker, colour) in zip(
            runs, scores, itertools.cycle(itertools.product("osD^v", COLOURS)), strict=False
        )
    ]
    count = scores[0]["n"] if scores else 0
    title = f"{results['model']}, {count:,} questions that must retrieve; whiskers: 95% intervals"
    figure, axes = drawing.new_plot([*others, *series], "retrieval accuracy, %", "match, %", title)
    axes.set_ylim(bottom=0)
    return figure


def draw_qa(results: Mapping[str, Any]) -> Figure:
    """Draw match against retrieval steps of every strategy and α."""
    looks = {
        "static strategies": ({"color": "black", "marker": "X", "ls": ":", "zorder": 6}, (-9, -14)),
        "adaptive": ({"color": drawing.BLUE, "marker": "o", "zorder": 5}, (-9, 17)),
        "adaptive, escalating": ({"color": drawing.RED, "marker": "s", "zorder": 5}, (6, -14)),
    }
    groups: dict[str, dict[str, Any]] = {label: {} for label in looks}
    for run in sorted(results["runs"], key=_order):
        if run["name"] in STRATEGIES:
            groups["static strategies"][run["name"]] = run["scores"]
        else:
            label = "adaptive" + ", escalating" * bool(run["settings"].get("escalate"))
            groups[label][f"α = {run['settings']['alpha']:g}"] = run["scores"]
    series = [
        Series(
            label,
            [(each["retrieval_steps"], 100 * each["match"]) for each in groups[label].values()],
            {"lw": 2, "ms": 9, "mec": "white", **look},
            [*groups[label]],
            offset,
            [_percent(each["interval"]["match"]) for each in groups[label].values()],
        )
        for label, (look, offset) in looks.items()
        if groups[label]
    ]
    count = results["data"]["rows"]
    title = f"{results['model']}, {count:,} questions; whiskers: 95% intervals"
    figure, axes = drawing.new_plot(series, "retrieval steps per question", "match, %", title)
    axes.set_ylim(bottom=0)
    axes.margins(x=0.14, y=0.12)
    drawing.name_points(axes, series)
    return figure


def _order(run: Mapping[str, Any]) -> float:
    name = run["name"]
    return STRATEGIES.index(name) if name in STRATEGIES else float(run["settings"]["alpha"])


def draw_sweep(sweep: Mapping[str, Any], others: Sequence[Series] = ()) -> Figure:
    """Draw accuracy against steps of routers, both in percent of the multi-step strategy's.

    `others` are drawn beside them, in the same percent.
    """
    multi = sweep["static"]["multi"]

    def place(row: Mapping[str, Any]) -> tuple[float, float]:
        return 100 * row["steps"] / multi["steps"], 100 * row["accuracy"] / multi["accuracy"]

    curves = []
    names = dict.fromkeys(row["router"] for row in sweep["rows"])
    for name, colour, dash in zip(
        names, itertools.cycle(COLOURS), itertools.cycle(("-", "--", "-.", ":")), strict=False
    ):
        rows = [row for row in sweep["rows"] if row["router"] == name]
        away = [[abs(row["alpha"] - alpha) for row in rows] for alpha in MARKED]
        marked = sorted({each.index(min(each)) for each in away})
        look = {"color": colour, "ls": dash, "lw": 2.4, "zorder": 5}
        look |= {"marker": "o", "ms": 7, "mec": "white", "markevery": marked}
        texts = [f"α = {row['alpha']:g}" if at in marked else "" for at, row in enumerate(rows)]
        curves.append(Series(name[-30:], [*map(place, rows)], look, texts))
    black = {"color": "black", "marker": "X", "ls": ":", "ms": 10}
    grey = {"color": drawing.GREY, "marker": "*", "ls": "none", "ms": 15}
    fixed = [
        Series(
            ", ".join(rows),
            [*map(place, rows.values())],
            {"lw": 1, "mec": "white", "zorder": 4, **look},
            [f"{each}\n{row['accuracy']:.1%} at {row['steps']:.2f}" for each, row in rows.items()],
        )
        for rows, look in ((sweep["static"], black), ({"oracle": sweep["oracle"]}, grey))
    ]
    best = [place({"steps": steps, "accuracy": right}) for steps, right in sweep["oracle_curve"]]
    limit = Series(
        "", [*best, (100.0, best[-1][1])], {"color": drawing.GREY, "lw": 1, "alpha": 0.6}
    )
    figure = drawing.new_figure(12, 6.6)
    whole, near = figure.subplots(1, 2)
    for axes in (whole, near):
        drawing.plot_series(
            axes,
            [*curves, *fixed, limit, *others],
            "retrieval steps, % of multi-step's",
            "accuracy, % of multi-step's",
        )
        axes.axhline(100, color=drawing.GREY, lw=0.8, ls=(0, (4, 3)), zorder=0)
    whole.margins(x=0.14, y=0.14)
    drawing.name_points(whole, fixed)
    shown = [point for each in (*curves, *others) for point in each.points]
    across, up = zip(*shown, (min(x for x, _ in curves[0].points), 100.0), strict=True)
    near.set_xlim(*_padded(across))
    near.set_ylim(*_padded(up))
    drawing.name_points(near, curves[:1])
    whole.set_title("All strategies", loc="left", fontsize=13)
    near.set_title("Where the routers are", loc="left", fontsize=13)
    title = f"100% = multi-step: {multi['accuracy']:.1%} right at {multi['steps']:.2f} steps"
    if count := sweep.get("inputs", {}).get("question_count"):
        title += f", {count:,} questions replayed"
    figure.suptitle(title, fontsize=11, color="#333333")
    return figure


def run_label(name: str) -> str:
    """Return a run's name for a picture: without folders, on at most two lines of 30 characters."""
    short = re.sub(r"=[^,]*/", "=", name)
    spaced = short.replace(":", ": ", 1).replace(",", ", ")
    return textwrap.fill(spaced, 30, max_lines=2, placeholder="…", break_on_hyphens=False)


def _percent(span: Sequence[float]) -> tuple[float, float]:
    return 100 * span[0], 100 * span[1]


def _padded(values: Sequence[float]) -> tuple[float, float]:
    pad = 0.07 * max(max(values) - min(values), 4)
    return min(values) - pad, max(values) + pad
