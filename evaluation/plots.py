"""The picture of a sweep: accuracy against steps, as shares of the multi-step strategy's.

Shares, because published accuracies are for other questions and count containment; what share of
multi-step's accuracy a system reaches, at what share of its steps, can be compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hopgate.evaluation.drawing import (
    BLUE,
    BROWN,
    GREEN,
    GREY,
    LIGHT_GREY,
    ORANGE,
    PINK,
    RED,
    SKY,
    label_point,
    new_figure,
    style_axes,
    to_png,
)
from hopgate.evaluation.published import ADAPTIVE_RAG, FLARE_AUG, MBA_RAG, PUBLISHED, Published

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKED = (0.0, 0.25, 0.5, 0.75, 1.0)
"""The α values marked on each curve, or the nearest ones of the sweep."""
ROUTERS = (BLUE, RED, GREEN, PINK, SKY)
DASHES = ("-", "--", "-.", ":")
MARKERS = {FLARE_AUG: "D", ADAPTIVE_RAG: "s", MBA_RAG: "^"}


class Plane(NamedTuple):
    """The steps and the accuracy that count as 100%."""

    steps: float
    accuracy: float

    def of(self, steps: float, accuracy: float) -> tuple[float, float]:
        """Return a point in percent of the multi-step strategy's steps and accuracy."""
        return 100 * steps / self.steps, 100 * accuracy / self.accuracy


def png(sweep: Mapping[str, Any], *, published: bool = True) -> bytes:
    """Return the picture of a sweep as a PNG.

    Args:
        sweep: The content of `sweep.json`. Published results are those for its first router's
            profile.
        published: Whether to show published results, if there are any for that profile.

    Raises:
        RuntimeError: matplotlib is not installed.
    """
    return to_png(draw(sweep, published=published))


def draw(sweep: Mapping[str, Any], *, published: bool = True) -> Figure:
    """Return the picture as a matplotlib figure; see `png`."""
    multi = sweep["static"]["multi"]
    plane = Plane(multi["steps"], multi["accuracy"])
    others = PUBLISHED.get(sweep["rows"][0]["profile"]) if published else None
    figure = new_figure(12, 6.6)
    whole, near = figure.subplots(1, 2)
    for axes in (whole, near):
        _ours(axes, sweep, plane)
        _published(axes, others)
        _frame(axes)
    _name_points(whole, sweep, plane)
    _zoom(near, sweep, plane, others)
    _mark_alphas(near, sweep, plane)
    whole.set_title("All strategies", loc="left", fontsize=13)
    near.set_title("Where the routers are", loc="left", fontsize=13)
    handles, names = whole.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, fontsize=11, frameon=False)
    title = _title(sweep, others) if published else _here(sweep)
    figure.suptitle(title, fontsize=11, color="#333333")
    return figure


def _here(sweep: Mapping[str, Any]) -> str:
    multi, inputs = sweep["static"]["multi"], sweep.get("inputs", {})
    here = f"100% = multi-step: {multi['accuracy']:.1%} right at {multi['steps']:.2f} steps"
    if count := inputs.get("question_count"):
        here += f", {count:,} questions replayed"
    return here


def _title(sweep: Mapping[str, Any], published: Published | None) -> str:
    here = _here(sweep)
    if published is None:
        return f"{here}\nno published results for the profile {sweep['rows'][0]['profile']}"
    there = f"{published.multi.accuracy:.1%} (containment) at {published.multi.steps:g} steps"
    return f"{here}\npublished results: 100% = {there}, profile {sweep['rows'][0]['profile']}"


def _ours(axes: Axes, sweep: Mapping[str, Any], plane: Plane) -> None:
    for (name, rows), colour, dash in zip(
        _by_router(sweep), itertools.cycle(ROUTERS), itertools.cycle(DASHES), strict=False
    ):
        curve = [plane.of(row["steps"], row["accuracy"]) for row in rows]
        axes.plot(
            *zip(*curve, strict=True), dash, color=colour, lw=2.4, label=_short(name), zorder=5
        )
        marks = [plane.of(row["steps"], row["accuracy"]) for row in _marked(rows)]
        axes.plot(*zip(*marks, strict=True), "o", color=colour, ms=7, mec="white", zorder=6)
    static = [plane.of(each["steps"], each["accuracy"]) for each in sweep["static"].values()]
    axes.plot(
        *zip(*static, strict=True), ":X", color="black", lw=1, ms=9, mec="white", zorder=4,
        label="none, single, multi",
    )  # fmt: skip
    corners = [plane.of(*corner) for corner in sweep["oracle_curve"]]
    corners.append((100.0, corners[-1][1]))
    axes.plot(*zip(*corners, strict=True), color=GREY, lw=1, alpha=0.6, zorder=1)
    oracle = plane.of(sweep["oracle"]["steps"], sweep["oracle"]["accuracy"])
    axes.plot(*oracle, "*", color=GREY, ms=15, mec="white", ls="none", label="oracle", zorder=4)


def _published(axes: Axes, published: Published | None) -> None:
    if published is None:
        return
    plane = Plane(published.multi.steps, published.multi.accuracy)
    for system in dict.fromkeys(point.system for point in published.points):
        points = [
            plane.of(point.steps, point.accuracy)
            for point in published.points
            if point.system == system
        ]
        family = next(name for name in MARKERS if system.startswith(name))
        axes.plot(
            *zip(*points, strict=True), MARKERS[family], ls="-" if points[1:] else "none", lw=1.2,
            color=ORANGE, ms=8, mfc=ORANGE if system == family else "white", mec=BROWN, mew=1.1,
            label=f"{system}, published", zorder=3,
        )  # fmt: skip
    static = [plane.of(p.steps, p.accuracy) for p in (published.none, published.single)]
    axes.plot(
        *zip(*static, strict=True), "X", mfc="white", mec=BROWN, ms=8, ls="none", zorder=3,
        label="none, single, published",
    )  # fmt: skip


def _frame(axes: Axes) -> None:
    axes.set_xlabel("retrieval steps, % of multi-step's", fontsize=12)
    axes.set_ylabel("accuracy, % of multi-step's", fontsize=12)
    axes.axhline(100, color=GREY, lw=0.8, ls=(0, (4, 3)), zorder=0)
    axes.grid(color=LIGHT_GREY, lw=0.6, zorder=0)
    style_axes(axes)


def _name_points(axes: Axes, sweep: Mapping[str, Any], plane: Plane) -> None:
    """Name the three static strategies and the oracle, with their absolute numbers."""
    axes.margins(y=0.14)
    for name, each in {**sweep["static"], "oracle": sweep["oracle"]}.items():
        last = name == "multi"
        label_point(
            axes,
            f"{name}\n{each['accuracy']:.1%} at {each['steps']:.2f}",
            plane.of(each["steps"], each["accuracy"]),
            offset=(4, -10) if last else (9, -9),
            ha="right" if last else "left",
        )


def _zoom(axes: Axes, sweep: Mapping[str, Any], plane: Plane, published: Published | None) -> None:
    """Show the box that holds all routers and published adaptive systems."""
    shown = [plane.of(row["steps"], row["accuracy"]) for row in sweep["rows"]]
    shown.append((100 * min(row["steps"] for row in sweep["rows"]) / plane.steps, 100.0))
    if published is not None:
        theirs = Plane(published.multi.steps, published.multi.accuracy)
        shown += [theirs.of(point.steps, point.accuracy) for point in published.points]
    across, up = zip(*shown, strict=True)
    axes.set_xlim(*_padded(across))
    axes.set_ylim(*_padded(up))


def _padded(values: Sequence[float]) -> tuple[float, float]:
    pad = 0.07 * max(max(values) - min(values), 4)
    return min(values) - pad, max(values) + pad


def _mark_alphas(axes: Axes, sweep: Mapping[str, Any], plane: Plane) -> None:
    """Write α beside the first router's marks where there is room, the outermost first."""
    _, rows = next(iter(_by_router(sweep)))
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    taken: list[tuple[float, float]] = []
    for row in sorted(_marked(rows), key=lambda row: -abs(row["alpha"] - 0.5)):
        x, y = plane.of(row["steps"], row["accuracy"])
        place = (x - left) / (right - left), (y - bottom) / (top - bottom)
        if all(abs(place[0] - a) > 0.15 or abs(place[1] - b) > 0.05 for a, b in taken):
            taken.append(place)
            label_point(axes, f"α = {row['alpha']:g}", (x, y), (5, -6), color=ROUTERS[0])


def _by_router(sweep: Mapping[str, Any]) -> Iterable[tuple[str, list[Mapping[str, Any]]]]:
    names = dict.fromkeys(row["router"] for row in sweep["rows"])
    return ((name, [row for row in sweep["rows"] if row["router"] == name]) for name in names)


def _marked(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    chosen = (min(rows, key=lambda row: abs(row["alpha"] - alpha)) for alpha in MARKED)
    return list({row["alpha"]: row for row in chosen}.values())


def _short(name: str) -> str:
    return name if len(name) <= 30 else f"…{name[-29:]}"
