"""Published results, drawn together with our own; each table names its source.

    python benchmarks/published.py docs/results/router/sweep.json
    python benchmarks/published.py docs/results/retrievalqa/results.json

The first redraws `sweep.png`, the second `gates.png`, in the same folder. Accuracy counts
containment of a gold answer, on other samples of the six datasets than any label file: compare
shares of multi-step's accuracy and steps, not the numbers themselves.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NamedTuple

from hopgate.evaluation.reports.drawing import BROWN, ORANGE, Series, to_png
from hopgate.evaluation.reports.pictures import draw_gates, draw_sweep

FLARE_AUG = "Flare-Aug"
ADAPTIVE_RAG = "Adaptive-RAG"
MBA_RAG = "MBA-RAG"


class Point(NamedTuple):
    """A published system at one setting.

    Attributes:
        system: Its name.
        accuracy: Share of questions answered correctly, by containment.
        steps: Mean retrieval steps per question.
        alpha: α of Flare-Aug; None for others.
    """

    system: str
    accuracy: float
    steps: float
    alpha: float | None = None


class Published(NamedTuple):
    """What was published for one LLM.

    Attributes:
        none: No retrieval.
        single: Single-step.
        multi: Multi-step (IRCoT); all shares refer to it.
        points: The adaptive systems.
    """

    none: Point
    single: Point
    multi: Point
    points: tuple[Point, ...]


def _table(
    static: tuple[tuple[float, float], ...],
    adaptive: tuple[float, float],
    flare: tuple[tuple[float, float], ...],
    *others: Point,
) -> Published:
    none, single, multi = (
        Point(name, *each) for name, each in zip(("none", "single", "multi"), static, strict=True)
    )
    blends = (Point(FLARE_AUG, *each, alpha=fifth / 5) for fifth, each in enumerate(flare))
    return Published(none, single, multi, (Point(ADAPTIVE_RAG, *adaptive), *blends, *others))


PUBLISHED = {
    "flan-t5-xl": _table(
        ((0.160, 0.0), (0.389, 1.0), (0.437, 4.7)),
        (0.427, 2.3),
        ((0.388, 1.3), (0.421, 1.6), (0.439, 2.2), (0.441, 2.6), (0.439, 2.8), (0.441, 3.0)),
        Point(MBA_RAG, 0.4357, 1.80),
        Point(f"{ADAPTIVE_RAG} (MBA-RAG's run)", 0.421, 2.17),
    ),
    "flan-t5-xxl": _table(
        ((0.193, 0.0), (0.419, 1.0), (0.452, 2.1)),
        (0.439, 1.3),
        ((0.385, 0.9), (0.444, 1.2), (0.461, 1.4), (0.465, 1.5), (0.463, 1.6), (0.463, 1.6)),
    ),
    "gpt-4o-mini": _table(
        ((0.408, 0.0), (0.477, 1.0), (0.533, 5.6)),
        (0.510, 2.6),
        ((0.445, 0.5), (0.490, 1.7), (0.524, 2.8), (0.532, 3.2), (0.533, 3.4), (0.534, 3.5)),
    ),
    "gpt-4o": _table(
        ((0.527, 0.0), (0.539, 1.0), (0.595, 4.2)),
        (0.585, 2.0),
        ((0.533, 0.2), (0.557, 0.7), (0.575, 2.2), (0.584, 2.6), (0.589, 2.8), (0.592, 2.9)),
    ),
}
"""By router profile: Flare-Aug, appendix B.1, table 1 (validation set; Adaptive-RAG as run
there), and for flan-t5-xl MBA-RAG (2024) with the Adaptive-RAG that it compares with."""


class GateScore(NamedTuple):
    """A gate on the questions that must retrieve.

    Attributes:
        retrieval: Share of questions for which it retrieved.
        match: Share of answers that contain a gold answer.
    """

    retrieval: float
    match: float


class GateRow(NamedTuple):
    """What RetrievalQA published for one LLM.

    Attributes:
        model: Its name.
        vanilla: Prompted without date and demonstrations.
        ta_are: Prompted with both.
        always: Always retrieving.
    """

    model: str
    vanilla: GateScore
    ta_are: GateScore
    always: GateScore


def _gates(
    model: str, vanilla: tuple[float, float], ta_are: tuple[float, float], always: float
) -> GateRow:
    return GateRow(model, GateScore(*vanilla), GateScore(*ta_are), GateScore(1.0, always))


RETRIEVALQA = (
    _gates("TinyLlama (1.1B)", (0.391, 0.147), (0.541, 0.190), 0.282),
    _gates("Phi-2 (2.7B)", (0.941, 0.350), (0.955, 0.360), 0.364),
    _gates("Llama-2 (7B)", (0.803, 0.261), (0.860, 0.307), 0.360),
    _gates("GPT-3.5", (0.493, 0.208), (0.863, 0.358), 0.382),
    _gates("GPT-4", (0.676, 0.376), (0.832, 0.464), 0.460),
)
"""RetrievalQA, table 1: 1,271 questions that must retrieve; GPT-4 on 250 of them."""

MARKERS = {FLARE_AUG: "D", ADAPTIVE_RAG: "s", MBA_RAG: "^"}
GATES = {"vanilla": "1", "ta_are": "+", "always": "2"}


def sweep_series(profile: str) -> list[Series]:
    """Return the published systems, in percent of their own multi-step strategy."""
    published = PUBLISHED[profile]

    def place(point: Point) -> tuple[float, float]:
        multi = published.multi
        return 100 * point.steps / multi.steps, 100 * point.accuracy / multi.accuracy

    found = []
    for system in dict.fromkeys(point.system for point in published.points):
        points = [place(point) for point in published.points if point.system == system]
        family = next(name for name in MARKERS if system.startswith(name))
        look = {
            "marker": MARKERS[family], "ls": "-" if points[1:] else "none", "lw": 1.2, "ms": 8,
            "color": ORANGE, "mfc": ORANGE if system == family else "white", "mec": BROWN,
        }  # fmt: skip
        found.append(Series(f"{system}, published", points, look))
    look = {"marker": "X", "ls": "none", "color": ORANGE, "mfc": "white", "mec": BROWN, "ms": 8}
    statics = [place(point) for point in (published.none, published.single)]
    return [*found, Series("none, single, published", statics, look)]


def gate_series() -> list[Series]:
    """Return the published gates: one series for each, with a point for each LLM."""
    return [
        Series(
            f"{name.replace('ta_are', 'TA-ARE')}, published",
            [
                (100 * getattr(row, name).retrieval, 100 * getattr(row, name).match)
                for row in RETRIEVALQA
            ],
            {"marker": marker, "ls": "none", "ms": 11, "color": BROWN},
        )
        for name, marker in GATES.items()
    ]


def main() -> None:
    file = Path(sys.argv[1])
    document = json.loads(file.read_text(encoding="utf-8"))
    if "oracle_curve" in document:
        name, profile = "sweep.png", document["rows"][0]["profile"]
        figure, multi = draw_sweep(document, sweep_series(profile)), PUBLISHED[profile].multi
        figure.suptitle(
            f"{figure.get_suptitle()}\npublished results: 100% = {multi.accuracy:.1%} "
            f"(containment) at {multi.steps:g} steps, profile {profile}",
            fontsize=11,
        )
    else:
        name, figure = "gates.png", draw_gates(document, gate_series())
    file.with_name(name).write_bytes(to_png(figure))


if __name__ == "__main__":
    main()
