"""The trade of accuracy against steps: routers over the whole range of α, on recorded outcomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from hopgate.evaluation.calibration import honesty
from hopgate.evaluation.replay import Outcomes, Routes, decide

STATIC = ("none", "single", "multi")
_EPSILON = 1e-9


class Profiled(Routes, Protocol):
    """A router that says what it is and which LLM it was trained for."""

    source: str
    profile: str


def evenly(points: int) -> list[float]:
    """`points` values of α from 0 to 1.

    Raises:
        ValueError: If there are fewer than 2 or more than 1001.
    """
    if not 2 <= points <= 1001:
        raise ValueError(f"--points is {points}; it must be from 2 to 1001")
    return [step / (points - 1) for step in range(points)]


def sweep(
    routers: Mapping[str, Profiled],
    outcomes: Outcomes,
    alphas: Sequence[float],
    advance: Callable[[int, int], None],
) -> dict[str, Any]:
    """Replays routers at every α, beside the static strategies and the oracle.

    Args:
        routers: By the name to show.
        outcomes: What was recorded.
        alphas: From 0 to 1, both included, in order.
        advance: Called with how many questions are done, and the total over all routers.

    Returns:
        `rows`: one a router and α, with `router`, `profile`, `alpha`, `accuracy`, `steps` (mean),
        `shares` of A, B and C, and the last three in each of `datasets`. `static`: the same for
        `none`, `single` and `multi`. `oracle`: for the cheapest strategy that was right, none
        where no one was; `oracle_curve`: the best that any router could do, as corners
        `[steps, accuracy]`. `summary`: by router, see `summary`, `profile`, `source`, and `ece`
        and `recall` of `hopgate.evaluation.calibration.honesty`.

    Raises:
        ValueError: If multi-step was never right, so that there is nothing to compare with.
    """
    if not outcomes.correct[:, -1].any():
        raise ValueError(
            "multi-step answered none of these questions; a sweep compares with it, so give "
            "labels where it was right at least once"
        )
    static = {
        name: outcomes.score(np.full(len(outcomes.questions), at, np.int8))
        for at, name in enumerate(STATIC)
    }
    rows, summaries = [], {}
    total = len(outcomes.questions) * len(routers)
    for number, (name, router) in enumerate(routers.items()):
        done = number * len(outcomes.questions)

        def count(more: int) -> None:
            nonlocal done
            done += more
            advance(done, total)

        routed = decide(router, outcomes.questions, alphas, count)
        mine = [
            {"router": name, "profile": router.profile, "alpha": alpha, **outcomes.score(picks)}
            for alpha, picks in zip(alphas, routed.picks, strict=True)
        ]
        rows += mine
        summaries[name] = {
            "profile": router.profile,
            "source": router.source,
            **summary(mine, static["multi"]),
            **honesty(outcomes, routed.first, routed.last),
        }
    curve = oracle_curve(outcomes)
    return {
        "rows": rows,
        "static": static,
        "oracle": outcomes.score(outcomes.oracle()) | {"area": curve_area(curve, static["multi"])},
        "oracle_curve": curve,
        "summary": summaries,
    }


def summary(rows: Sequence[Mapping[str, Any]], multi: Mapping[str, Any]) -> dict[str, float | None]:
    """What a router's points come to beside the multi-step strategy.

    Args:
        rows: Points with `accuracy` and `steps`.
        multi: The same of the multi-step strategy.

    Returns:
        `share_at_38`, `share_at_50`: the best accuracy at no more than 38% and 50% of multi's
        steps, as a share of multi's accuracy. `steps_for_100`: the least share of multi's steps
        that reaches its accuracy. `area`: the mean, over all step budgets from 0 to multi's, of
        the best accuracy within the budget, 0 where no point fits. None where there is none.
    """
    enough = [row["steps"] for row in rows if row["accuracy"] >= multi["accuracy"] - _EPSILON]
    return {
        "share_at_38": _share_at(0.38, rows, multi),
        "share_at_50": _share_at(0.50, rows, multi),
        "steps_for_100": min(enough) / multi["steps"] if enough else None,
        "area": area(rows, multi["steps"]),
    }


def _share_at(
    share: float, rows: Sequence[Mapping[str, Any]], multi: Mapping[str, Any]
) -> float | None:
    budget = share * multi["steps"] + _EPSILON
    within = [float(row["accuracy"]) for row in rows if row["steps"] <= budget]
    return max(within) / multi["accuracy"] if within else None


def area(rows: Sequence[Mapping[str, Any]], budget: float) -> float:
    """The mean over all step budgets from 0 to `budget` of the best accuracy within each.

    Exactly: the area under the staircase of the best points, over its width.
    """
    total, best, at = 0.0, 0.0, 0.0
    for row in sorted(rows, key=lambda row: float(row["steps"])):
        if row["steps"] > budget:
            break
        total += best * (row["steps"] - at)
        at, best = row["steps"], max(best, row["accuracy"])
    return float((total + best * (budget - at)) / budget)


def oracle_curve(outcomes: Outcomes) -> list[list[float]]:
    """The most accuracy that any choice of strategies gets for its steps, as corners.

    It buys the questions whose cheapest right strategy is cheapest first.
    """
    prices = outcomes.cost(outcomes.oracle())[outcomes.correct.any(-1)]
    count = len(outcomes.questions)
    steps, right = 0.0, int((prices == 0).sum())
    corners = [[steps, right / count]]
    for price in np.unique(prices[prices > 0]):
        bought = int((prices == price).sum())
        steps, right = steps + bought * float(price), right + bought
        corners.append([steps / count, right / count])
    return corners


def curve_area(corners: Sequence[Sequence[float]], multi: Mapping[str, Any]) -> float:
    """As `area`, under straight lines between corners; the last accuracy holds beyond them."""
    budget = float(multi["steps"])
    steps, accuracy = zip(*corners, strict=True)
    inside = sorted({0.0, budget, *(each for each in steps if each < budget)})
    return float(np.trapezoid(np.interp(inside, steps, accuracy), inside)) / budget
