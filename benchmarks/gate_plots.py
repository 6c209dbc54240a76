"""The picture of a gate's calibration: how its values separate, and the effect of each threshold.

    python benchmarks/gate_plots.py FOLDER LABELS

FOLDER is the `--out` of `hopgate calibrate --gate`, LABELS its `--labels`; `calibration.png` in the
folder is redrawn, with the distribution of the values.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hopgate.evaluation.measuring.gates import REPLIES
from hopgate.evaluation.reports.drawing import (
    BLUE,
    GREEN,
    GREY,
    RED,
    new_figure,
    style_axes,
    to_png,
)
from hopgate.nodes.prompts.demonstrations import read_pool

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NEEDED, KNOWN, BALANCED, ACCURACY = RED, BLUE, "black", GREEN
BINS, POINTS = 25, 1000
VALUES = {"confidence": "P(Yes)", "draft": "uncertainty of the draft"}


def png(found: Mapping[str, Any], values: Sequence[float], needed: Sequence[bool]) -> bytes:
    """Return the picture as a PNG.

    Args:
        found: The content of `calibration.json`.
        values: The gate's value for each question.
        needed: Whether each question needs retrieval.

    Raises:
        RuntimeError: matplotlib is not installed.
    """
    return to_png(draw(found, values, needed))


def draw(found: Mapping[str, Any], values: Sequence[float], needed: Sequence[bool]) -> Figure:
    """Return the picture as a matplotlib figure; see `png`."""
    figure = new_figure(12, 5.8)
    left, right = figure.subplots(1, 2)
    scores, labels = np.asarray(values, float), np.asarray(needed, bool)
    limits = _limits(scores, found["threshold"])
    _distributions(left, scores, labels, limits)
    _curve(right, scores, labels, limits)
    for axes in (left, right):
        _frame(axes, found, limits)
    left.set_title("How the values are distributed", loc="left", fontsize=13)
    right.set_title("What a threshold does", loc="left", fontsize=13)
    for axes in (left, right):
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False, fontsize=11
        )
    low, high = found["interval"]["auc"]
    figure.suptitle(
        f"{found['gate']} on {found['questions']} questions, model {found['model']}: "
        f"AUC {found['auc']:.3f} (95% interval {low:.3f} to {high:.3f})\n"
        "grey band: the threshold's 95% interval over resamples of the questions",
        fontsize=11,
        color="#333333",
    )
    return figure


def _limits(scores: Any, threshold: float) -> tuple[float, float]:
    low, high = min(scores.min(), threshold), max(scores.max(), threshold)
    pad = 0.03 * (high - low) or 0.01
    return float(max(0, low - pad)), float(min(1, high + pad))


def _distributions(axes: Axes, scores: Any, labels: Any, limits: tuple[float, float]) -> None:
    edges = np.linspace(*limits, BINS + 1).tolist()
    for kind, colour, name in ((~labels, KNOWN, "do without"), (labels, NEEDED, "need retrieval")):
        share = np.full(kind.sum(), 100 / kind.sum())
        axes.hist(
            scores[kind], edges, weights=share, color=colour, alpha=0.55,
            label=f"{name} (n = {kind.sum():,})",
        )  # fmt: skip
    axes.set_ylabel("questions of this kind, %", fontsize=12)


def _curve(axes: Axes, scores: Any, labels: Any, limits: tuple[float, float]) -> None:
    thresholds = np.linspace(*limits, POINTS)
    needed, known = ((scores[kind][:, None] >= thresholds).mean(0) for kind in (labels, ~labels))
    share = labels.mean()
    for up, colour, dash, name in (
        (needed, NEEDED, "-", "retrieves: need it"),
        (known, KNOWN, "-", "retrieves: do without"),
        ((needed + 1 - known) / 2, BALANCED, "--", "balanced accuracy"),
        (share * needed + (1 - share) * (1 - known), ACCURACY, ":", "accuracy"),
    ):
        axes.plot(thresholds, 100 * up, dash, color=colour, lw=2, label=name)
    axes.set_ylabel("share, %", fontsize=12)
    axes.set_ylim(-3, 103)


def _frame(axes: Axes, found: Mapping[str, Any], limits: tuple[float, float]) -> None:
    axes.axvspan(*found["interval"]["threshold"], color=GREY, alpha=0.12, lw=0)
    axes.axvline(
        found["threshold"], color=GREY, lw=1.5, ls=(0, (4, 3)),
        label=f"threshold {found['threshold']:g}",
    )  # fmt: skip
    axes.set_xlim(*limits)
    axes.set_xlabel(VALUES[found["gate"]], fontsize=12)
    style_axes(axes)


def main() -> None:
    folder, labels = Path(sys.argv[1]), Path(sys.argv[2])
    found = json.loads((folder / "calibration.json").read_text(encoding="utf-8"))
    lines = (folder / REPLIES / f"{found['gate']}.jsonl").read_text(encoding="utf-8").splitlines()
    values = {
        row["id"]: 1.0 if row["value"] is None else row["value"] for row in map(json.loads, lines)
    }
    needed = [each.retrieve for each in read_pool(labels)]
    ordered = [values[str(at)] for at in range(1, len(needed) + 1)]
    (folder / "calibration.png").write_bytes(png(found, ordered, needed))


if __name__ == "__main__":
    main()
