"""`hopgate calibrate`: the α that meets a goal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopgate.classifiers import saved_alphas
from hopgate.classifiers.router import load_router
from hopgate.common.files import read_jsonl
from hopgate.common.strategies import FLARE_NAMES, LABELS
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
            `budget_tokens` (the same; the labels must have these counts), or `min_accuracy` (the
            cheapest α that reaches it).
        bound: The budget, or the accuracy from 0 to 1.
    """

    name: str
    bound: float

    @property
    def cost(self) -> str:
        """The cost that is budgeted: `steps`, `calls` or `tokens`."""
        return "steps" if self.name == "min_accuracy" else self.name.removeprefix("budget_")

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
        goal: A step budget or an accuracy floor.
        save: Name of the setting to save; None saves nothing.
        advance: Called with how many questions are done, and the total.

    Returns:
        As `choose_alpha`, with `router`, `profile`, `goal`, `multi` (accuracy and steps of the
        multi-step strategy), `inputs` and `saved`, the setting's name or None.

    Raises:
        ValueError: An input is wrong, or no α meets the goal.
        RuntimeError: The setting cannot be saved.
    """
    if save is not None:
        saved_alphas.check_savable(router, save)
    recorded, inputs = read_recorded(*outcomes)
    classifier = load_router(router, profile)
    routed = route_all(classifier, recorded.questions, ALPHAS, advance)
    costs = None if goal.cost == "steps" else _costs(outcomes[0], goal.cost, recorded)
    found = choose_alpha(recorded, routed.choices, ALPHAS, goal, costs=costs)
    about = {"profile": classifier.profile, "goal": {goal.name: goal.bound}}
    if save is not None:
        preset = {name: found[name] for name in ("alpha", "accuracy", "steps")} | about
        preset |= {"labels": outcomes[0].name, "date": date.today().isoformat()}
        saved_alphas.save_alpha(router, save, preset)
    multi = np.full(len(recorded.questions), LABELS.index("C"), np.int8)
    return {
        "router": router,
        **about,
        **found,
        "multi": {name: recorded.score(multi)[name] for name in ("accuracy", "steps")},
        "inputs": inputs,
        "saved": save,
    }


def choose_alpha(
    recorded: Recorded,
    choices: Choices,
    alphas: Sequence[float],
    goal: Goal,
    seed: int = 0,
    costs: Floats | None = None,
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
        seed: Seed of the resampling.
        costs: [questions, 3], the budgeted cost, if not steps; its mean is returned too.

    Returns:
        `alpha`, `accuracy`, `steps`, `shares`, `interval` (low and high of the first three),
        `resamples`, and `infeasible`: in how many of these no α met the goal.

    Raises:
        ValueError: No α meets the goal; the message names the nearest that can be reached.
    """
    rows, table = np.arange(len(recorded.questions)), recorded.steps if costs is None else costs
    right, cost = recorded.correct_for(choices).astype(float), table[rows, choices]
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
