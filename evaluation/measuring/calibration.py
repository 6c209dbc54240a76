"""`hopgate calibrate`: the α that meets a goal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopgate.classifiers import saved_alphas
from hopgate.classifiers.drift import summarise
from hopgate.classifiers.router import load_router
from hopgate.common.files import read_jsonl
from hopgate.common.strategies import FLARE_NAMES, STRATEGIES, Strategy
from hopgate.evaluation.measuring import promises
from hopgate.evaluation.measuring.replay import Choices, Recorded, read_recorded, route_all
from hopgate.evaluation.measuring.scores import percentile_interval, resampled_means

ALPHAS = [step / 200 for step in range(201)]
"""The α values to choose from."""
RESAMPLES = 1000
_EPSILON = 1e-9

Floats = NDArray[np.float64]


class Goal(NamedTuple):
    """The goal of α: a budget or an accuracy floor.

    Attributes:
        name: `budget_steps` (the most accurate α within these mean steps), `budget_calls` or
            `budget_tokens` (the same; the labels must have these counts), `min_accuracy` (the
            cheapest α that reaches it), or `no_worse_than` (the cheapest α whose accuracy is at
            most `bound` below that of a strategy).
        bound: The budget, or the accuracy or its distance, from 0 to 1.
        confidence: Of the promise that the goal is met on other questions like these; None: it is
            met on these.
        than: The strategy of `no_worse_than`, which needs a confidence.
    """

    name: str
    bound: float
    confidence: float | None = None
    than: Strategy | None = None

    @property
    def budgets(self) -> bool:
        """Whether it bounds a cost."""
        return self.name.startswith("budget_")

    @property
    def cost(self) -> str:
        """The cost that is budgeted: `steps`, `calls` or `tokens`."""
        return self.name.removeprefix("budget_") if self.budgets else "steps"

    def best(self, accuracy: Floats, cost: Floats) -> NDArray[np.intp]:
        """Return the index along the last axis of the best point that meets the goal; -1 if none.

        Ties go to the point that is better in the other measure, then to the first.
        """
        if self.name == "min_accuracy":
            met, first, second = accuracy >= self.bound - _EPSILON, cost, -accuracy
        else:
            met, first, second = cost <= self.bound + _EPSILON, -accuracy, cost
        first = np.where(met, first.round(9), math.inf)
        equal = met & (first == first.min(-1, keepdims=True))
        second = np.where(equal, second.round(9), math.inf)
        return np.where(met.any(-1), second.argmin(-1), -1)


def calibrate(
    router: str,
    profile: str | None,
    outcomes: tuple[Path, Path | None, str | None],
    goal: Goal,
    save: str | None,
    advance: Callable[[int, int], None],
) -> dict[str, Any]:
    """Choose the α that meets a goal, and save it with the router if asked.

    Args:
        router: Folder, or `builtin`.
        profile: The router's profile; None: its first.
        outcomes: The arguments of `hopgate.evaluation.measuring.replay.read_recorded`.
        goal: What α must reach.
        save: Name of the setting to save; None saves nothing.
        advance: Called with how many questions are done, and the total.

    Returns:
        As `choose_alpha`, or `promised_alpha` for a goal with a confidence, with `router`,
        `profile`, `goal`, `single` and `multi` (accuracy and steps of these strategies), `inputs`
        and `saved`, the setting's name or None.

    Raises:
        ValueError: An input is wrong, or no α meets the goal.
        RuntimeError: The setting cannot be saved, or the labels cannot show the promise.
    """
    if save is not None:
        saved_alphas.check_savable(router, save)
    recorded, inputs = read_recorded(*outcomes)
    classifier = load_router(router, profile)
    costs = recorded.steps if goal.cost == "steps" else _costs(outcomes[0], goal.cost, recorded)
    alphas = ALPHAS if goal.confidence is None else promises.ALPHAS
    routed = route_all(classifier, recorded.questions, alphas, advance)
    choose = choose_alpha if goal.confidence is None else promised_alpha
    found = choose(recorded, routed.choices, alphas, goal, costs=costs)
    given = {goal.name: goal.bound, "confidence": goal.confidence, "than": goal.than}
    about: dict[str, Any] = {
        "profile": classifier.profile,
        "goal": {name: each for name, each in given.items() if each is not None},
    }
    if save is not None:
        kept = ("alpha", "accuracy", "steps", "promise")
        preset = {name: found[name] for name in kept if name in found} | about
        preset |= {"labels": outcomes[0].name, "date": date.today().isoformat()}
        preset["known"] = asdict(summarise(classifier, recorded.questions))
        saved_alphas.save_alpha(router, save, preset)

    def always(label: int) -> dict[str, float]:
        score = recorded.score(np.full(len(recorded.questions), label, np.int8))
        return {name: score[name] for name in ("accuracy", "steps")}

    return {
        "router": router,
        **about,
        **found,
        "single": always(1),
        "multi": always(2),
        "inputs": inputs,
        "saved": save,
    }


def promised_alpha(
    recorded: Recorded, choices: Choices, alphas: Sequence[float], goal: Goal, costs: Floats
) -> dict[str, Any]:
    """Choose the best α of which the labels can show that it meets a goal.

    Best is the cheapest for an accuracy, the most reliable for a budget. The largest cost among
    the labels counts as the largest there is.

    Args:
        recorded: The outcomes.
        choices: [alphas, questions], the router's decisions at each α.
        alphas: The values to choose from, in order.
        goal: With a confidence.
        costs: [questions, 3], what the goal budgets.

    Returns:
        `alpha`, `accuracy`, `steps`, the budgeted cost, `shares`, and `promise`, in words.

    Raises:
        RuntimeError: These labels cannot show it for any α; the message says how many would.
    """
    rows = np.arange(len(recorded.questions))
    right, spent = recorded.correct_for(choices).astype(float), costs[rows, choices]
    order = slice(None) if goal.budgets else slice(None, None, -1)
    if goal.budgets:
        losses, bound = spent / costs.max(), goal.bound / costs.max()
    elif goal.than is None:
        losses, bound = 1 - right, 1 - goal.bound
    else:
        reference = recorded.correct[:, STRATEGIES.index(goal.than)]
        losses, bound = (1 - right + reference) / 2, (1 + goal.bound) / 2
    confidence = goal.confidence or 0.0
    losses, tried = losses[order], list(range(len(alphas)))[order]
    count = promises.held(losses, bound, confidence)
    if not count:
        first = tried[0]
        more = promises.needed(losses[0], bound, confidence)
        raise RuntimeError(
            f"{len(rows)} labels cannot show with {confidence:.0%} confidence that any α has "
            f"{_wanted(goal)}: α = {alphas[first]:g} has an accuracy of {right[first].mean():.3f} "
            f"at {spent[first].mean():.2f} {goal.cost}; "
            + (f"about {more:,} might" if more else "more labels like these would not help")
        )
    chosen = tried[count - 1]
    score = recorded.score(choices[chosen])
    shown = f"shown with {confidence:.0%} confidence by {len(rows):,} labels"
    return {
        "alpha": float(alphas[chosen]),
        **{name: score[name] for name in ("accuracy", "steps")},
        goal.cost: float(spent[chosen].mean()),
        "shares": score["shares"],
        "promise": f"{_wanted(goal)}: {shown}",
    }


def _wanted(goal: Goal) -> str:
    if goal.budgets:
        return f"at most {goal.bound:g} {goal.cost}"
    if goal.than is None:
        return f"an accuracy of at least {goal.bound:g}"
    return f"an accuracy at most {goal.bound:g} below that of always {goal.than}"


def choose_alpha(
    recorded: Recorded,
    choices: Choices,
    alphas: Sequence[float],
    goal: Goal,
    costs: Floats,
    seed: int = 0,
) -> dict[str, Any]:
    """Choose the α that meets a goal best, with 95% bootstrap intervals over the questions.

    The intervals of accuracy and steps are the 2.5th to 97.5th percentile over `RESAMPLES`
    resamples at the chosen α; the interval of α is over the α that each resample would choose.
    Accuracy at the best of many α, on the questions that chose it, is slightly optimistic; the
    interval does not correct that.

    Args:
        recorded: The outcomes.
        choices: [alphas, questions], the router's decisions at each α.
        alphas: The values to choose from.
        goal: The goal of α.
        costs: [questions, 3], what the goal budgets; its mean is returned too.
        seed: Seed of the resampling.

    Returns:
        `alpha`, `accuracy`, `steps`, `shares`, `interval` (low and high of the first three),
        `resamples`, and `infeasible`: in how many of these no α met the goal.

    Raises:
        ValueError: No α meets the goal; the message names the nearest that can be reached.
    """
    rows = np.arange(len(recorded.questions))
    right, cost = recorded.correct_for(choices).astype(float), costs[rows, choices]
    accuracy, steps = right.mean(-1), cost.mean(-1)
    chosen = int(goal.best(accuracy, steps))
    if chosen < 0:
        raise ValueError(_unreachable(goal, alphas, accuracy, steps))
    means = resampled_means(np.concatenate([right, cost]), RESAMPLES, seed)
    accuracies, spent = np.split(means, 2, axis=1)
    again = goal.best(accuracies, spent)
    feasible = np.asarray(alphas)[again[again >= 0]]
    score = recorded.score(choices[chosen])
    return {
        "alpha": float(alphas[chosen]),
        "accuracy": score["accuracy"],
        "steps": score["steps"],
        goal.cost: float(steps[chosen]),
        "shares": score["shares"],
        "interval": {
            "alpha": percentile_interval(feasible) if len(feasible) else None,
            "accuracy": percentile_interval(accuracies[:, chosen]),
            goal.cost: percentile_interval(spent[:, chosen]),
        },
        "resamples": RESAMPLES,
        "infeasible": int((again < 0).sum()),
    }


def _unreachable(goal: Goal, alphas: Sequence[float], accuracy: Floats, steps: Floats) -> str:
    best = int(accuracy.argmax() if goal.name == "min_accuracy" else steps.argmin())
    return (
        f"no α has a {goal.name.replace('_', ' ')} of {goal.bound:g} on these labels; the nearest, "
        f"α = {alphas[best]:g}, has an accuracy of {accuracy[best]:.4f} at {steps[best]:.3f} "
        f"{goal.cost}"
    )


def _costs(labels: Path, cost: str, recorded: Recorded) -> Floats:
    """Return the calls or tokens of each strategy, which `hopgate label` writes with its labels."""
    rows = read_jsonl(labels, lambda row, _: row, expected="--labels as of `hopgate label`")
    try:
        each = [row[cost][name] for row in rows for name in FLARE_NAMES]
        found = [sum(part.values()) if isinstance(part, dict) else part for part in each]
    except (KeyError, TypeError):
        found = []
    if len(found) != recorded.steps.size:
        raise ValueError(
            f"--budget-{cost} needs the {cost} of every question, which `hopgate label` writes; "
            f"{labels} does not have them"
        )
    return np.array(found, dtype=np.float64).reshape(recorded.steps.shape)
