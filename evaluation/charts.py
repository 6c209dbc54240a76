"""The pictures of a RetrievalQA report, after the paper's table 1 and figure 1."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hopgate.evaluation.drawing import (
    BLUE,
    BROWN,
    GREEN,
    GREY,
    LIGHT_GREY,
    ORANGE,
    RED,
    SKY,
    escape_math,
    new_figure,
    style_axes,
    to_png,
)
from hopgate.evaluation.published import RETRIEVALQA, GateRow
from hopgate.evaluation.scores import MUST_RETRIEVE, OUTCOMES, RIGHT, UNKNOWN, WRONG

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METHODS = {
    "vanilla": ("o", ORANGE, BROWN),
    "ta_are": ("s", GREEN, "#00684c"),
    "always": ("D", "#999999", "#4d4d4d"),
}
"""Marker, its colour, and the colour of the number beside it."""
COLOURS = {RIGHT: GREEN, WRONG: RED, UNKNOWN: SKY}
NAMES = {RIGHT: "right", WRONG: "wrong", UNKNOWN: "“I don't know”"}
WAYS = {"yes": "retrieves", "no": "does not"}
METRICS = {"retrieval_accuracy": "retrieval accuracy, %", "match": "match, %"}

_LEFT, _RIGHT, _NODE = 0.0, 1.0, 0.045
_GAP = 0.05
_LABEL = 0.17
"""The height of a label."""
_BOTTOM = 1 + 2 * _GAP


def gates_png(results: Mapping[str, Any]) -> bytes:
    """Return retrieval accuracy and match of each run, beside the paper's table 1, as a PNG.

    Only for questions that must retrieve, as in the paper's table.

    Args:
        results: The content of `results.json`.

    Raises:
        RuntimeError: matplotlib is not installed.
    """
    return to_png(draw_gates(results))


def flow_png(results: Mapping[str, Any]) -> bytes:
    """Return where each run's questions went (the paper's figure 1), as a PNG.

    Args:
        results: The content of `results.json`.

    Raises:
        RuntimeError: matplotlib is not installed.
    """
    return to_png(draw_flow(results))


def _figure(width: float, height: float) -> Figure:
    figure = new_figure(width, height)
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1, rect=(0, 0, 0.99, 1))  # type: ignore
    return figure


def draw_gates(results: Mapping[str, Any]) -> Figure:
    """Return the picture of `gates_png` as a matplotlib figure."""
    runs = [run for run in results["runs"] if MUST_RETRIEVE in run["scores"]["by_need"]]
    heights = [max(len(runs), 1), len(RETRIEVALQA)]
    figure = _figure(13, 2.5 + 0.52 * sum(heights))
    grid = figure.subplots(2, 2, sharex="col", sharey="row", height_ratios=heights, squeeze=False)
    for column, metric in enumerate(METRICS):
        _draw_runs(grid[0][column], runs, metric)
        _draw_published(grid[1][column], metric)
        for axes in grid[:, column]:
            axes.set_xlabel(METRICS[metric], fontsize=12)
    count = runs[0]["scores"]["by_need"][MUST_RETRIEVE]["n"] if runs else 0
    here = f"This run: {escape_math(results['model'])}, {count:,} questions that must retrieve"
    grid[0][0].set_title(f"{here}; whiskers: 95% intervals", loc="left", fontsize=12)
    grid[1][0].set_title("Published (RetrievalQA, table 1)", loc="left", fontsize=12)
    handles, labels = grid[1][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=11, frameon=False)
    return figure


def _draw_runs(axes: Axes, runs: Sequence[Mapping[str, Any]], metric: str) -> None:
    _frame(axes, [label(run["name"]) for run in runs])
    for row, run in enumerate(runs):
        scores = run["scores"]["by_need"][MUST_RETRIEVE]
        low, high = (100 * each for each in scores["interval"][metric])
        value = 100 * scores[metric]
        axes.barh(row, value, height=0.62, color=BLUE, alpha=0.85, zorder=2)
        axes.plot([low, high], [row, row], color="black", lw=1.4, marker="|", ms=7, zorder=3)
        _beside(axes, row, 1.04, f"{value:.1f}", color=BLUE, weight="bold")
        _beside(axes, row, 1.20, f"[{low:.0f}, {high:.0f}]", color=GREY)


def _draw_published(axes: Axes, metric: str) -> None:
    _frame(axes, [row.model for row in RETRIEVALQA])
    for row, gates in enumerate(RETRIEVALQA):
        values = [_published(gates, method, metric) for method in METHODS]
        axes.plot([min(values), max(values)], [row, row], color="#cccccc", lw=2, zorder=1)
        for at, (value, (_, _, dark)) in enumerate(zip(values, METHODS.values(), strict=True)):
            _beside(axes, row, 1.04 + 0.13 * at, f"{value:.1f}", color=dark)
    for method, (marker, colour, dark) in METHODS.items():
        axes.plot(
            [_published(gates, method, metric) for gates in RETRIEVALQA],
            range(len(RETRIEVALQA)),
            marker, color=colour, mec=dark, ms=9, alpha=0.9, zorder=3, clip_on=False,
            label={"ta_are": "TA-ARE"}.get(method, method),
        )  # fmt: skip


def _published(gates: GateRow, method: str, metric: str) -> float:
    score = getattr(gates, method)
    return 100 * float(score.match if metric == "match" else score.retrieval)


def _frame(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names, fontsize=11)
    axes.set_ylim(max(len(names), 1) - 0.4, -0.6)
    axes.set_xlim(0, 100)
    axes.grid(axis="x", color=LIGHT_GREY, lw=0.6, zorder=0)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelbottom=True)
    style_axes(axes, hidden=("top", "right", "left"))


def _beside(axes: Axes, row: float, across: float, text: str, **looks: Any) -> None:
    axes.text(
        across, row, text, va="center", fontsize=11, transform=axes.get_yaxis_transform(), **looks
    )


def label(name: str) -> str:
    """Return a run's name for a picture: without folders, on at most two lines of 30 characters."""
    short = re.sub(r"=[^,]*/", "=", name)
    spaced = escape_math(short).replace(":", ": ", 1).replace(",", ", ")
    return textwrap.fill(spaced, 30, max_lines=2, placeholder="…", break_on_hyphens=False)


def draw_flow(results: Mapping[str, Any]) -> Figure:
    """Return the picture of `flow_png` as a matplotlib figure."""
    from matplotlib.patches import Patch

    runs = results["runs"]
    columns = min(3, len(runs))
    rows = math.ceil(len(runs) / columns)
    figure = _figure(max(5.2 * columns, 6.5), 1.2 + 3.5 * rows)
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes in grid:
        axes.set_axis_off()
    for axes, run in zip(grid, runs, strict=False):
        _draw_flow(axes, run["scores"]["flow"])
        axes.set_title(label(run["name"]), fontsize=12, weight="bold")
    count = runs[0]["scores"]["n"]
    figure.suptitle(
        f"{escape_math(results['model'])}: where its {count:,} questions go\n"
        "under each outcome: how many were retrieved for + how many not",
        fontsize=12,
    )
    patches = [Patch(color=COLOURS[each], label=NAMES[each]) for each in OUTCOMES]
    figure.legend(handles=patches, loc="outside lower center", ncols=3, fontsize=11, frameon=False)
    return figure


def _draw_flow(axes: Axes, flow: Mapping[str, Mapping[str, int]]) -> None:
    """Draw one run's bands from decision to outcome, in a box one wide and one high."""
    total = sum(flow[way][outcome] for way in WAYS for outcome in OUTCOMES)
    left = {way: sum(flow[way].values()) / total for way in WAYS}
    right = {outcome: sum(flow[way][outcome] for way in WAYS) / total for outcome in OUTCOMES}
    starts, ends = stacked(left), stacked(right)
    _label_nodes(axes, left, starts, _LEFT, {w: f"{WAYS[w]}\n{left[w] * total:.0f}" for w in left})
    _label_nodes(axes, right, ends, _RIGHT, {each: _outcome(flow, each) for each in OUTCOMES})
    for way in WAYS:
        for outcome in OUTCOMES:
            height = flow[way][outcome] / total
            if height:
                _band(axes, starts[way], ends[outcome], height, COLOURS[outcome])
            starts[way] += height
            ends[outcome] += height
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(_BOTTOM, 0)


def _outcome(flow: Mapping[str, Mapping[str, int]], outcome: str) -> str:
    yes, no = (flow[way][outcome] for way in WAYS)
    return f"{NAMES[outcome]} {yes + no}\n{yes} + {no}"


def stacked(shares: Mapping[str, float]) -> dict[str, float]:
    """Return where each node starts, from the top; empty nodes take no room."""
    gaps = _GAP * (sum(share > 0 for share in shares.values()) - 1)
    at = (_BOTTOM - 1 - gaps) / 2
    starts = {}
    for name, share in shares.items():
        starts[name] = at
        at += share + (_GAP if share else 0)
    return starts


def spread(centres: Sequence[float]) -> list[float]:
    """Return label positions near their nodes that do not touch and stay in the panel."""
    places: list[float] = []
    for centre in centres:
        places.append(max(centre, places[-1] + _LABEL if places else _LABEL / 2))
    for at in reversed(range(len(places))):
        below = places[at + 1] if at + 1 < len(places) else _BOTTOM + _LABEL / 2
        places[at] = min(places[at], below - _LABEL)
    return places


def _label_nodes(
    axes: Axes,
    shares: Mapping[str, float],
    starts: Mapping[str, float],
    across: float,
    texts: Mapping[str, str],
) -> None:
    from matplotlib.patches import Rectangle

    shown = [name for name, share in shares.items() if share]
    centres = [starts[name] + shares[name] / 2 for name in shown]
    for name, place in zip(shown, spread(centres), strict=True):
        x = across if across == _LEFT else across - _NODE
        colour = COLOURS.get(name, "#444444")
        axes.add_patch(Rectangle((x, starts[name]), _NODE, shares[name], color=colour, lw=0))
        side = "right" if across == _LEFT else "left"
        x = across - 0.03 if across == _LEFT else across + 0.03
        axes.text(x, place, texts[name], ha=side, va="center", fontsize=11, linespacing=1.25)


def _band(axes: Axes, start: float, end: float, height: float, colour: str) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    left, right, middle = _LEFT + _NODE, _RIGHT - _NODE, 0.5
    corners = [
        (left, start), (middle, start), (middle, end), (right, end),
        (right, end + height), (middle, end + height), (middle, start + height),
        (left, start + height), (left, start),
    ]  # fmt: skip
    curve = [Path.CURVE4] * 3
    codes = [Path.MOVETO, *curve, Path.LINETO, *curve, Path.CLOSEPOLY]
    axes.add_patch(PathPatch(Path(corners, codes), facecolor=colour, alpha=0.55, lw=0))
