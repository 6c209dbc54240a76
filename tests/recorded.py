"""Recorded outcomes of few questions, for sweeps and calibrations."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from hopgate.evaluation.measuring.replay import Recorded


def four_questions() -> Recorded:
    """Four questions: none, single and multi correct where the row says; multi takes 3 steps."""
    return Recorded(
        questions=("a", "b", "c", "d"),
        datasets=np.array(["", "", "", ""]),
        correct=np.array([[1, 0, 1], [0, 1, 1], [0, 0, 1], [0, 0, 0]], bool),
        steps=np.array([[0.0, 1.0, 3.0]] * 4),
    )


def write_labels(path: Path, rows: list[dict[str, Any]] | None = None) -> Path:
    """Write label rows, by default one for each label."""
    rows = rows or [
        {"id": "1", "question": "What is the capital of France?", "correct": ["zero", "one"]},
        {"id": "2", "question": "When was Skerrane Light first lit?", "correct": ["one"]},
        {
            "id": "3",
            "question": "Where was the mother of the director of Up born?",
            "correct": ["multiple"],
        },
    ]
    labels = {"zero": "A", "one": "B", "multiple": "C"}
    lines = [
        json.dumps({"label": labels[row["correct"][0]], "dataset": "nq"} | row) for row in rows
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
