"""What all pictures share: the palette, axes, labels beside points, and PNG files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 150
# Okabe and Ito's palette, which colour-blind people can tell apart.
BLUE, RED, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
SKY, ORANGE = "#56B4E9", "#E69F00"
BROWN, GREY, LIGHT_GREY = "#8a5a00", "#6b6b6b", "#dddddd"


def require_matplotlib() -> None:
    """Check, before any work, that pictures can be drawn.

    Raises:
        RuntimeError: matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise RuntimeError(
            f"drawing needs matplotlib ({error}): pip install 'hopgate[plots]'"
        ) from error


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure whose parts make room for each other.

    Raises:
        RuntimeError: matplotlib is not installed.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def to_png(figure: Figure) -> bytes:
    """Return a figure as a PNG of `DPI` dots per inch."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


def style_axes(axes: Axes, hidden: Sequence[str] = ("top", "right")) -> None:
    """Set readable tick labels and hide some of the frame's sides."""
    axes.tick_params(labelsize=11)
    for side in hidden:
        axes.spines[side].set_visible(False)


def label_point(
    axes: Axes, text: str, at: tuple[float, float], offset: tuple[int, int], **style: Any
) -> None:
    """Write a text beside a point, on a white halo; `offset` is in points."""
    from matplotlib.patheffects import withStroke

    axes.annotate(
        text,
        at,
        xytext=offset,
        textcoords="offset points",
        va="top",
        fontsize=10.5,
        zorder=8,
        path_effects=[withStroke(linewidth=3, foreground="white")],
        **style,
    )


def escape_math(text: str) -> str:
    """Return a text that matplotlib does not read as a formula."""
    return text.replace("$", r"\$")
