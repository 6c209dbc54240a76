"""`hopgate sweep`: accuracy against steps of routers at every α, on recorded outcomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hopgate.classifiers.router import Router, load_router
from hopgate.common.files import json_bytes
from hopgate.common.strategies import STRATEGIES
from hopgate.evaluation.measuring.replay import Recorded, read_recorded, route_all
from hopgate.evaluation.reports.drawing import require_matplotlib, to_png
from hopgate.evaluation.reports.output import check_folder, write_files
from hopgate.evaluation.reports.pictures import draw_sweep

DOCUMENT, PICTURE = "sweep.json", "sweep.png"
_EPSILON = 1e-9


def run_sweep(
    routers: Sequence[str],
    profile: str | None,
    outcomes: tuple[Path, Path | None, str | None],
    points: int,
    out: Path,
    overwrite: bool,
    advance: Callable[[int, int], None],
) -> dict[str, Any]:
    """Replay routers over the range of α and write `sweep.json` and `sweep.png`.

    Args:
        routers: Folders, or `builtin`.
        profile: The profile of all routers; None: the first of each.
        outcomes: The arguments of `hopgate.evaluation.measuring.replay.read_recorded`.
        points: The number of α values, evenly from 0 to 1.
        out: Folder to write to; it is created if needed.
        overwrite: Replace an existing sweep.
        advance: Called with how many questions a router has done, and the total.

    Returns:
        The content of `sweep.json`: see `sweep`, and `inputs`.

    Raises:
        ValueError: An input is wrong, or `out` already holds a sweep.
        RuntimeError: matplotlib is not installed.
    """
    check_folder(out)
    if any((out / name).exists() for name in (DOCUMENT, PICTURE)) and not overwrite:
        raise ValueError(f"{out} already holds a sweep; use another folder, or --overwrite")
    require_matplotlib()
    alphas = evenly(points)
    recorded, inputs = read_recorded(*outcomes)
    loaded = {name: load_router(name, profile) for name in routers}
    document = sweep(loaded, recorded, alphas, advance)
    document["inputs"] = inputs | {"points": points}
    write_files(out, {PICTURE: to_png(draw_sweep(document)), DOCUMENT: json_bytes(document)})
    return document


def evenly(points: int) -> list[float]:
    """Return `points` evenly spaced values of α from 0 to 1; at least 2."""
    return [step / (points - 1) for step in range(points)]


def sweep(
    routers: Mapping[str, Router],
    recorded: Recorded,
    alphas: Sequence[float],
    advance: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Replay routers at every α, beside the static strategies and the oracle.

    Args:
        routers: Routers by the name to show.
        recorded: The outcomes.
        alphas: From 0 to 1, both included, in order.
        advance: Called with how many questions a router has done, and the total.

    Returns:
        `rows`: one for each router and α, with `router`, `profile`, `alpha`, `accuracy`, `steps`
        (mean), `shares` of A, B and C, and the last three by `datasets`. `static`: the same for
        `none`, `single` and `multi`. `oracle`: the same for the cheapest correct strategy, none
        where no one was; `oracle_curve`: the best that any router could do, as corners
        `[steps, accuracy]`. `summary`: by router, `profile`, `source`, and see `summary`.

    Raises:
        ValueError: Multi-step was never correct, so there is nothing to compare with.
    """
    if not recorded.correct[:, -1].any():
        raise ValueError(
            "multi-step answered none of these questions; a sweep compares with it, so give "
            "labels where it was correct at least once"
        )
    static = {
        name: recorded.score(np.full(len(recorded.questions), at, np.int8))
        for at, name in enumerate(STRATEGIES)
    }
    rows, summaries = [], {}
    for name, router in routers.items():
        routed = route_all(router, recorded.questions, alphas, advance)
        own = [
            {"router": name, "profile": router.profile, "alpha": alpha, **recorded.score(choices)}
            for alpha, choices in zip(alphas, routed.choices, strict=True)
        ]
        rows += own
        summaries[name] = {
            "profile": router.profile,
            "source": router.source,
            **summary(own, static["multi"]),
        }
    return {
        "rows": rows,
        "static": static,
        "oracle": recorded.score(recorded.oracle()),
        "oracle_curve": oracle_curve(recorded),
        "summary": summaries,
    }


def summary(rows: Sequence[Mapping[str, Any]], multi: Mapping[str, Any]) -> dict[str, float | None]:
    """Compare a router's points with the multi-step strategy.

    Args:
        rows: Points with `accuracy` and `steps`.
        multi: The same for the multi-step strategy.

    Returns:
        `share_at_38`, `share_at_50`: the best accuracy at no more than 38% and 50% of multi's
        steps, as a share of multi's accuracy. `steps_for_100`: the smallest share of multi's
        steps that reaches its accuracy. `area`: see `area`. None where no point qualifies.
    """
    enough = [row["steps"] for row in rows if row["accuracy"] >= multi["accuracy"] - _EPSILON]
    best: dict[str, float | None] = {}
    for percent in (38, 50):
        budget = percent / 100 * multi["steps"] + _EPSILON
        within = [float(row["accuracy"]) for row in rows if row["steps"] <= budget]
        best[f"share_at_{percent}"] = max(within) / multi["accuracy"] if within else None
    return {
        **best,
        "steps_for_100": min(enough) / multi["steps"] if enough else None,
        "area": area(rows, multi["steps"]),
    }


def area(rows: Sequence[Mapping[str, Any]], budget: float) -> float:
    """Return the mean of the best accuracy within each step budget from 0 to `budget`.

    This is the area under the staircase of the best points, divided by its width; a budget that
    no point fits counts as 0.
    """
    total, best, at = 0.0, 0.0, 0.0
    for row in sorted(rows, key=lambda row: float(row["steps"])):
        if row["steps"] > budget:
            break
        total += best * (row["steps"] - at)
        at, best = row["steps"], max(best, row["accuracy"])
    return float((total + best * (budget - at)) / budget)


def oracle_curve(recorded: Recorded) -> list[list[float]]:
    """Return the best accuracy that any choice of strategies reaches for its steps, as corners.

    The questions with the cheapest correct strategies come first.
    """
    costs = recorded.steps_for(recorded.oracle())[recorded.correct.any(-1)]
    count = len(recorded.questions)
    steps, right = 0.0, int((costs == 0).sum())
    corners = [[steps, right / count]]
    for cost in np.unique(costs[costs > 0]):
        more = int((costs == cost).sum())
        steps, right = steps + more * float(cost), right + more
        corners.append([steps / count, right / count])
    return corners
