"""May a candidate replace a router? Both, as requests use them, on the same held-out questions.

Each question was answered once with all three strategies, so both routers are replayed on the same
outcomes. Each difference is tested as promises are (`hopgate.evaluation.measuring.promises`): a
figure fell if the hypothesis that it did not is rejected with 95% confidence.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hopgate.common.strategies import LABELS
from hopgate.evaluation.measuring import promises
from hopgate.evaluation.measuring.replay import Choices, Recorded

CONFIDENCE = 0.95
MIN_QUESTIONS = 100
"""With fewer held-out questions, a router that lost ten points of accuracy could pass."""
ACCURACY, ANSWERED, STEPS = "accuracy", "share answered", "steps"


def compare(recorded: Recorded, before: Choices, after: Choices) -> dict[str, Any]:
    """Compare a candidate with the router in use.

    Args:
        recorded: Questions that neither was trained on.
        before: [questions], the decisions of the router in use.
        after: The same of the candidate.

    Returns:
        `questions`, how many; `figures`, each with `name` (`ACCURACY`, `ANSWERED` or `STEPS`),
        `before`, `after`, `low` and `high` (after − before is above `low`, and below `high`, each
        with `CONFIDENCE`) and `worse` (why the candidate may not be promoted; empty if this figure
        allows it); and `labels`, how many questions went from each label to each.
    """
    rows = np.arange(len(before))
    tables = {ACCURACY: recorded.correct, ANSWERED: recorded.answered, STEPS: recorded.steps}
    figures: list[dict[str, Any]] = []
    for name, table in tables.items():
        if table is None:
            continue
        was, now = (table[rows, choices].astype(float) for choices in (before, after))
        low, high = promises.bounds(now - was, float(table.max()) or 1.0, CONFIDENCE)
        figure = {"name": name, "before": float(was.mean()), "after": float(now.mean())}
        figures.append(figure | {"low": low, "high": high})
    rose = figures[0]["low"] > 0
    for each in figures:
        each["worse"] = _worse(each, rose)
    moved = {
        was: {now: int(((before == at) & (after == to)).sum()) for to, now in enumerate(LABELS)}
        for at, was in enumerate(LABELS)
    }
    return {"questions": len(rows), "figures": figures, "labels": moved}


def _worse(figure: dict[str, Any], accuracy_rose: bool) -> str:
    name, before, after = (figure[key] for key in ("name", "before", "after"))
    if name == STEPS:
        rose = figure["low"] > 0 and not accuracy_rose
        steps = f"rose from {before:.2f} to {after:.2f}, and accuracy did not rise"
        return f"{name} {steps}" if rose else ""
    fell = f"fell from {before:.1%} to {after:.1%}, which is beyond chance"
    return f"{name} {fell}" if figure["high"] < 0 else ""
