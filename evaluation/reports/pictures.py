"""The pictures of evaluations; each takes the content of a results file and returns a figure."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hopgate.common.strategies import STRATEGIES
from hopgate.evaluation.reports.drawing import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    RED,
    SKY,
    Series,
    escape_math,
    name_points,
    new_figure,
    new_plot,
    plot_series,
    style_axes,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Run = Mapping[str, Any]
COLOURS = (BLUE, RED, GREEN, PINK, SKY, ORANGE)
MARKED = (0.0, 1.0, 0.25, 0.75, 0.5)
"""The α values marked on a sweep's curves, or the nearest ones, the most important first."""
FLOW = {
    ("yes", "right"): ("retrieved: right", GREEN),
    ("yes", "wrong"): ("retrieved: wrong", RED),
    ("yes", "unknown"): ("retrieved: “I don't know”", SKY),
    ("no", "right"): ("not retrieved: right", "#7fceb9"),
    ("no", "wrong"): ("not retrieved: wrong", "#eaae7f"),
    ("no", "unknown"): ("not retrieved: “I don't know”", "#aad9f4"),
}


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
    figure, axes = new_plot([*others, *series], "retrieval accuracy, %", "match, %", title)
    axes.set_ylim(bottom=0)
    return figure


def draw_flow(results: Mapping[str, Any]) -> Figure:
    """Draw where each gate's questions went, as in RetrievalQA's figure 1."""
    names, flows = [], []
    for run in results["runs"]:
        names.append(run_label(run["name"]))
        flows.append(run["scores"]["flow"])
    figure = new_figure(11, 2 + 0.55 * len(names))
    axes = figure.subplots()
    total = max(sum(flow[way][outcome] for way, outcome in FLOW) for flow in flows)
    ends = np.zeros(len(flows))
    for (way, outcome), (label, colour) in FLOW.items():
        sizes = np.array([flow[way][outcome] for flow in flows])
        bars = axes.barh(names, sizes, left=ends, color=colour, label=label, height=0.6)
        shown = [str(size) if size > 0.03 * total else "" for size in sizes]
        axes.bar_label(bars, shown, label_type="center", fontsize=10)
        ends = ends + sizes
    axes.invert_yaxis()
    style_axes(axes, hidden=("top", "right", "left"))
    axes.set_xlabel("questions", fontsize=12)
    return figure


def draw_qa(results: Mapping[str, Any]) -> Figure:
    """Draw match against retrieval steps of every strategy and α."""
    static = [run for name in STRATEGIES for run in results["runs"] if run["name"] == name]
    adaptive = sorted(
        (run for run in results["runs"] if run["name"] not in STRATEGIES),
        key=lambda run: float(run["settings"]["alpha"]),
    )
    plain = [run for run in adaptive if not run["settings"].get("escalate")]
    escalating = [run for run in adaptive if run["settings"].get("escalate")]
    black = {"color": "black", "marker": "X", "ls": ":", "zorder": 6}
    blue, red = {"color": BLUE, "marker": "o"}, {"color": RED, "marker": "s"}
    series = [
        *_answers("static strategies", static, black, (-9, -14)),
        *_answers("adaptive", plain, blue, (-9, 17)),
        *_answers("adaptive, escalating", escalating, red, (6, -14)),
    ]
    count = results["data"]["rows"]
    title = f"{results['model']}, {count:,} questions; whiskers: 95% intervals"
    figure, axes = new_plot(series, "retrieval steps per question", "match, %", title)
    axes.set_ylim(bottom=0)
    axes.margins(x=0.14, y=0.12)
    name_points(axes, series)
    return figure


def _answers(
    label: str, runs: Sequence[Run], look: Mapping[str, Any], offset: tuple[int, int]
) -> list[Series]:
    """Return the points of some runs as one series; none without runs."""
    scores = [run["scores"] for run in runs]
    series = Series(
        label,
        [(each["retrieval_steps"], 100 * each["match"]) for each in scores],
        {"lw": 2, "ms": 9, "mec": "white", "zorder": 5, **look},
        [
            f"α = {run['settings']['alpha']:g}" if "alpha" in run["settings"] else run["name"]
            for run in runs
        ],
        offset,
        [_percent(each["interval"]["match"]) for each in scores],
    )
    return [series] if runs else []


def draw_threshold(found: Mapping[str, Any]) -> Figure:
    """Draw the effect of each threshold of a gate, from the content of `calibration.json`."""
    lines = {
        "needed": ("retrieves: need it", RED, "-"),
        "known": ("retrieves: do without", BLUE, "-"),
        "balanced_accuracy": ("balanced accuracy", "black", "--"),
        "accuracy": ("accuracy", GREEN, ":"),
    }
    series = [
        Series(
            label,
            [(point["threshold"], 100 * point[name]) for point in found["curve"]],
            {"color": colour, "ls": dash, "lw": 2, "drawstyle": "steps-mid"},
        )
        for name, (label, colour, dash) in lines.items()
    ]
    title = f"{found['model']}, {found['questions']:,} questions: AUC {found['auc']:.3f}"
    figure, axes = new_plot(series, f"threshold of {found['gate']}", "share, %", title)
    axes.axvspan(*found["interval"]["threshold"], color=GREY, alpha=0.12, lw=0)
    chosen = f"threshold {found['threshold']:g}, with its 95% interval"
    axes.axvline(found["threshold"], color=GREY, ls="--", label=chosen)
    return figure


def draw_sweep(sweep: Mapping[str, Any], others: Sequence[Series] = ()) -> Figure:
    """Draw accuracy against steps of routers, both in percent of the multi-step strategy's.

    `others` are drawn beside them, in the same percent.
    """
    multi = sweep["static"]["multi"]

    def place(row: Mapping[str, Any]) -> tuple[float, float]:
        return 100 * row["steps"] / multi["steps"], 100 * row["accuracy"] / multi["accuracy"]

    curves, marks = [], []
    names = dict.fromkeys(row["router"] for row in sweep["rows"])
    for name, colour, dash in zip(
        names, itertools.cycle(COLOURS), itertools.cycle(("-", "--", "-.", ":")), strict=False
    ):
        rows = [row for row in sweep["rows"] if row["router"] == name]
        shown = [min(rows, key=lambda row: abs(row["alpha"] - near)) for near in MARKED]
        look = {"color": colour, "zorder": 5}
        label = textwrap.shorten(name, 30) if " " in name else name[-30:]
        curves.append(Series(label, [*map(place, rows)], {"ls": dash, "lw": 2.4, **look}))
        marks.append(
            Series(
                "",
                [*map(place, shown)],
                {"marker": "o", "ls": "none", "ms": 7, "mec": "white", **look, "zorder": 6},
                [f"α = {row['alpha']:g}" for row in shown],
            )
        )
    black = {"color": "black", "marker": "X", "ls": ":", "ms": 10}
    grey = {"color": GREY, "marker": "*", "ls": "none", "ms": 15}
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
    limit = Series("", [*best, (100.0, best[-1][1])], {"color": GREY, "lw": 1, "alpha": 0.6})
    figure = new_figure(12, 6.6)
    whole, near = figure.subplots(1, 2)
    for axes in (whole, near):
        plot_series(
            axes,
            [*curves, *marks, *fixed, limit, *others],
            "retrieval steps, % of multi-step's",
            "accuracy, % of multi-step's",
        )
        axes.axhline(100, color=GREY, lw=0.8, ls=(0, (4, 3)), zorder=0)
    whole.margins(x=0.14, y=0.14)
    name_points(whole, fixed)
    shown = [point for each in (*curves, *others) for point in each.points]
    across, up = zip(*shown, (min(x for x, _ in curves[0].points), 100.0), strict=True)
    near.set_xlim(*_padded(across))
    near.set_ylim(*_padded(up))
    name_points(near, marks[:1])
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
    spaced = escape_math(short).replace(":", ": ", 1).replace(",", ", ")
    return textwrap.fill(spaced, 30, max_lines=2, placeholder="…", break_on_hyphens=False)


def _percent(span: Sequence[float]) -> tuple[float, float]:
    return 100 * span[0], 100 * span[1]


def _padded(values: Sequence[float]) -> tuple[float, float]:
    pad = 0.07 * max(max(values) - min(values), 4)
    return min(values) - pad, max(values) + pad
