"""The pictures of evaluations; each takes the content of a results file and returns a PNG."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
    plot_bars,
    plot_series,
    to_png,
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


def gates_png(results: Mapping[str, Any]) -> bytes:
    """Return match against retrieval accuracy of each gate, as in RetrievalQA's table 1."""
    return to_png(draw_gates(results))


def draw_gates(results: Mapping[str, Any], others: Sequence[Series] = ()) -> Figure:
    """Return the picture of `gates_png`, with `others` beside the gates of the results.

    Only questions that must retrieve count, as in the paper.
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
    figure = new_figure(9, 5.8)
    axes = figure.subplots()
    plot_series(axes, [*others, *series], "retrieval accuracy, %", "match, %")
    axes.set_ylim(bottom=0)
    count = scores[0]["n"] if scores else 0
    axes.set_title(
        f"{escape_math(results['model'])}, {count:,} questions that must retrieve; "
        "whiskers: 95% intervals",
        loc="left",
        fontsize=12,
    )
    return figure


def flow_png(results: Mapping[str, Any]) -> bytes:
    """Return where each gate's questions went, as in RetrievalQA's figure 1."""
    return to_png(draw_flow(results))


def draw_flow(results: Mapping[str, Any]) -> Figure:
    """Return the picture of `flow_png`."""
    runs = results["runs"]
    figure = new_figure(11, 2 + 0.55 * len(runs))
    axes = figure.subplots()
    parts = [
        (label, colour, [run["scores"]["flow"][way][outcome] for run in runs])
        for (way, outcome), (label, colour) in FLOW.items()
    ]
    plot_bars(axes, [run_label(run["name"]) for run in runs], parts)
    axes.set_xlabel("questions", fontsize=12)
    return figure


def qa_png(results: Mapping[str, Any]) -> bytes:
    """Return match against retrieval steps of every strategy and α."""
    return to_png(draw_qa(results))


def draw_qa(results: Mapping[str, Any]) -> Figure:
    """Return the picture of `qa_png`."""
    static = sorted(
        (run for run in results["runs"] if run["name"] in STRATEGIES),
        key=lambda run: STRATEGIES.index(run["name"]),
    )
    adaptive = sorted(
        (run for run in results["runs"] if run["name"] not in STRATEGIES),
        key=lambda run: float(run["settings"]["alpha"]),
    )
    plain = [run for run in adaptive if not run["settings"].get("escalate")]
    escalating = [run for run in adaptive if run["settings"].get("escalate")]
    series = [
        _answers(*kind)
        for kind in (
            (
                "static strategies",
                static,
                {"color": "black", "marker": "X", "ls": ":", "zorder": 6},
                (-9, -14),
            ),
            ("adaptive", plain, {"color": BLUE, "marker": "o"}, (-9, 17)),
            ("adaptive, escalating", escalating, {"color": RED, "marker": "s"}, (6, -14)),
        )
        if kind[1]
    ]
    figure = new_figure(9, 5.8)
    axes = figure.subplots()
    plot_series(axes, series, "retrieval steps per question", "match, %")
    axes.set_ylim(bottom=0)
    axes.margins(x=0.14, y=0.12)
    name_points(axes, series)
    axes.set_title(
        f"{escape_math(results['model'])}, {results['data']['rows']:,} questions; "
        "whiskers: 95% intervals",
        loc="left",
        fontsize=12,
    )
    return figure


def _answers(
    label: str, runs: Sequence[Run], look: Mapping[str, Any], offset: tuple[int, int]
) -> Series:
    scores = [run["scores"] for run in runs]
    alphas = [run["settings"].get("alpha") for run in runs]
    return Series(
        label,
        [(each["retrieval_steps"], 100 * each["match"]) for each in scores],
        {"lw": 2, "ms": 9, "mec": "white", "zorder": 5, **look},
        [
            run["name"] if alpha is None else f"α = {alpha:g}"
            for run, alpha in zip(runs, alphas, strict=True)
        ],
        offset,
        [_percent(each["interval"]["match"]) for each in scores],
    )


def threshold_png(found: Mapping[str, Any]) -> bytes:
    """Return what each threshold of a gate does; takes the content of `calibration.json`."""
    curve = found["curve"]
    lines = {
        "needed": ("retrieves: need it", RED, "-"),
        "known": ("retrieves: do without", BLUE, "-"),
        "balanced_accuracy": ("balanced accuracy", "black", "--"),
        "accuracy": ("accuracy", GREEN, ":"),
    }
    figure = new_figure(9, 5.8)
    axes = figure.subplots()
    series = [
        Series(
            label,
            [(point["threshold"], 100 * point[name]) for point in curve],
            {"color": colour, "ls": dash, "lw": 2, "drawstyle": "steps-mid"},
        )
        for name, (label, colour, dash) in lines.items()
    ]
    plot_series(axes, series, f"threshold of {found['gate']}", "share, %")
    axes.axvspan(*found["interval"]["threshold"], color=GREY, alpha=0.12, lw=0)
    chosen = f"threshold {found['threshold']:g}, with its 95% interval"
    axes.axvline(found["threshold"], color=GREY, ls="--", label=chosen)
    axes.set_title(
        f"{escape_math(found['model'])}, {found['questions']:,} questions: AUC {found['auc']:.3f}",
        loc="left",
        fontsize=12,
    )
    return to_png(figure)


def sweep_png(sweep: Mapping[str, Any]) -> bytes:
    """Return accuracy against steps of routers, both as shares of the multi-step strategy's."""
    return to_png(draw_sweep(sweep))


def draw_sweep(sweep: Mapping[str, Any], others: Sequence[Series] = ()) -> Figure:
    """Return the picture of `sweep_png`, with `others` beside the routers, in the same percent."""
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
    fixed = [
        Series(
            label,
            [*map(place, rows.values())],
            {"lw": 1, "ms": 10, "mec": "white", "zorder": 4, **look},
            [f"{each}\n{row['accuracy']:.1%} at {row['steps']:.2f}" for each, row in rows.items()],
        )
        for label, rows, look in (
            ("none, single, multi", sweep["static"], {"color": "black", "marker": "X", "ls": ":"}),
            (
                "oracle",
                {"oracle": sweep["oracle"]},
                {"color": GREY, "marker": "*", "ls": "none", "ms": 15},
            ),
        )
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
