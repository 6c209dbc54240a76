"""The two kinds of plots, points joined by lines and stacked bars, and how all pictures look."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hopgate.common.errors import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 150
# Okabe and Ito's palette, which colour-blind people can tell apart.
BLUE, RED, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
SKY, ORANGE = "#56B4E9", "#E69F00"
BROWN, GREY, LIGHT_GREY = "#8a5a00", "#6b6b6b", "#dddddd"
_NEAR = 0.07, 0.035
"""Share of the width and the height of a plot within which one point's name hides another's."""


class Series(NamedTuple):
    """Points that belong together.

    Attributes:
        label: Its name in the legend; empty: it is not listed.
        points: x and y of each point.
        look: Keyword arguments of matplotlib's `plot`, such as `color`, `marker` and `ls`.
        names: Texts that `name_points` writes beside the points.
        offset: Where it writes them, in points of print: to the right and up.
        whiskers: The lowest and the highest y of each point, if known.
    """

    label: str
    points: Sequence[tuple[float, float]]
    look: Mapping[str, Any]
    names: Sequence[str] = ()
    offset: tuple[int, int] = (8, -8)
    whiskers: Sequence[tuple[float, float]] = ()


def require_matplotlib() -> None:
    """Check, before any work, that pictures can be drawn.

    Raises:
        RuntimeError: matplotlib is not installed.
    """
    require("drawing", "matplotlib", extra="plots")


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure whose parts make room for each other."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def new_plot(series: Iterable[Series], x: str, y: str, title: str) -> tuple[Figure, Axes]:
    """Return a figure with one plot of points and lines."""
    figure = new_figure(9, 5.8)
    axes = figure.subplots()
    plot_series(axes, series, x, y)
    axes.set_title(title, loc="left", fontsize=12)
    return figure, axes


def to_png(figure: Figure) -> bytes:
    """Return a figure as a PNG of `DPI` dots per inch, with the legend of its first plot below.

    No text is read as a formula.
    """
    from matplotlib.text import Text

    handles, labels = figure.axes[0].get_legend_handles_labels()
    if labels and not figure.legends:
        figure.legend(
            handles, labels, loc="outside lower center", ncols=3, fontsize=11, frameon=False
        )
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


def style_axes(axes: Axes, hidden: Sequence[str] = ("top", "right")) -> None:
    """Set readable tick labels and hide some of the frame's sides."""
    axes.tick_params(labelsize=11)
    for side in hidden:
        axes.spines[side].set_visible(False)


def plot_series(axes: Axes, series: Iterable[Series], x: str, y: str) -> None:
    """Plot points and lines, with the names of both axes."""
    for each in series:
        axes.plot(*zip(*each.points, strict=True), label=each.label or None, **each.look)
        for (across, _), span in zip(each.points, each.whiskers, strict=False):
            axes.plot([across, across], span, color=each.look["color"], lw=1, alpha=0.5, marker="_")
    axes.set_xlabel(x, fontsize=12)
    axes.set_ylabel(y, fontsize=12)
    axes.grid(color=LIGHT_GREY, lw=0.6, zorder=0)
    style_axes(axes)


def name_points(axes: Axes, series: Iterable[Series]) -> None:
    """Write the names of points beside them, once the limits are set, where there is room."""
    from matplotlib.patheffects import withStroke

    taken: list[tuple[float, float]] = []
    for each in series:
        for name, point in zip(each.names, each.points, strict=False):
            if not name:
                continue
            right, up = axes.transLimits.transform(point)
            place = right + each.offset[0] / 400, up + each.offset[1] / 400
            if any(abs(place[0] - a) < _NEAR[0] and abs(place[1] - b) < _NEAR[1] for a, b in taken):
                continue
            taken.append(place)
            axes.annotate(
                name,
                point,
                xytext=each.offset,
                textcoords="offset points",
                ha="left" if each.offset[0] > 0 else "right",
                va="top",
                fontsize=10.5,
                color=each.look["color"],
                zorder=8,
                path_effects=[withStroke(linewidth=3, foreground="white")],
            )
