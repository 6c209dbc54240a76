"""From a few hundred labels to a router of one's own: fits for `train-router --add-to`, replayed.

    nice python benchmarks/few_labels.py --cache build/halves [--out docs/results/router]

`--cache` is that of `halves.py`. For each LLM in turn: a router that knows the other three LLMs,
and half of the questions; from the other half, 50 to 400 random questions get labels, and each fit
adds the LLM from these. It is scored on the rest of the half: the area under accuracy against
steps, as a share of multi-step's accuracy. 50 draws; differences are paired, draw by draw. Then,
for FLAN-T5-XL, the same on its 3,000 validation questions, with up to 1,600 labels. Then: which
questions to label.

Intervals: 95%, over the draws, which share questions and one router a half: they say how surely one
fit beats another on these questions. Writes `few-labels.json` and `few-labels.png`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from halves import LLMS, VALID, Floats, Unseen, unseen
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from hopgate.classifiers.training import adding
from hopgate.classifiers.training.utility import COST_PENALTY, RELIABILITY_PENALTY, STEPS
from hopgate.common.files import json_bytes, write_atomic
from hopgate.evaluation.reports import drawing

SIZES, LARGE, TRIED, DRAWS = (50, 100, 200, 400), (200, 400, 800, 1600), (200,), 50
PENALTIES = np.geomspace(COST_PENALTY, RELIABILITY_PENALTY, 120)
BEFORE, SHIPS, UNLABELLED = "before", "ships", "the others' mean, no labels"

Fit = Callable[[Floats, Floats, Floats], Floats]
"""From features, outcomes and the other LLMs' heads to the weights of P(right): [width + 1, 3]."""
Rule = Callable[[Unseen, NDArray[np.int_], int, np.random.Generator], NDArray[np.int_]]
"""From questions, the rows to choose from, and how many, to the rows to label."""


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("docs/results/router"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    parts = {llm: [unseen(options.cache, f"{llm}-{half}") for half in (0, 1)] for llm in LLMS}
    drawn = {name: FITS[name] for name in (BEFORE, SHIPS, UNLABELLED)}
    areas = {llm: replayed(drawn, data, SIZES) for llm, data in parts.items()}
    print_fits(areas, SIZES)
    valid = {VALID: replayed(drawn, [unseen(options.cache, f"{VALID}-valid")], LARGE)}
    print_fits(valid, LARGE)
    tried = {llm: replayed(FITS, data, TRIED) for llm, data in parts.items()}
    print_fits(tried, TRIED)
    print_rules({llm: chosen(data) for llm, data in parts.items()})
    document = {
        "halves": {llm: plain(each, SIZES) for llm, each in areas.items()},
        "valid": {llm: plain(each, LARGE) for llm, each in valid.items()},
    }
    write_atomic(options.out / "few-labels.json", json_bytes(document))
    write_atomic(options.out / "few-labels.png", picture(document))


def area(weights: Floats, data: Unseen, rows: NDArray[np.int_]) -> float:
    """Return the mean of the best accuracy within each step budget, as a share of multi-step's."""
    right, steps = data.right[rows], data.steps[rows]
    chances = data.features[rows] @ weights[:-1] + weights[-1]
    choices = (chances - PENALTIES[:, None, None] * np.array(STEPS)).argmax(2)
    at = np.arange(len(rows))
    spent, reached = steps[at, choices].mean(1), right[at, choices].mean(1)
    order = np.argsort(spent, kind="stable")
    budget = steps[:, 2].mean()
    widths = np.diff(np.concatenate([[0], spent[order].clip(max=budget), [budget]]))
    best = np.concatenate([[0], np.maximum.accumulate(reached[order])])
    return float((best * widths).sum() / budget / right[:, 2].mean())


# Fits


def ships(features: Floats, right: Floats, heads: Floats) -> Floats:
    """Fit as `train-router --add-to` does."""
    prior = torch.tensor(heads.mean(0)).double()
    lead, none, single, multi = map(torch.tensor, (features, *right.T))
    fits = [
        adding.fit(lead, none, prior[:, 0], adding.OWN),
        adding.fit(lead, single, prior[:, 1], adding.OWN),
        adding.fit(lead, multi - single, prior[:, 2] - prior[:, 1], adding.OWN_GAIN),
    ]
    first, second, gain = (fit.weights.numpy() for fit in fits)
    return np.stack([first, second, second + gain], 1)


class Ridge(NamedTuple):
    """Least squares on the other LLMs' heads, a constant, and the features' own weights.

    Attributes:
        drawn: Penalty on the heads' factors, drawn to an equal share of 1.
        own: 1 / penalty on the features' own weights; of several, the one with the least
            leave-one-out error.
        own_gain: The same for C's gain over B.
        constant: Penalty on the constant of that gain, drawn to that of the other LLMs.
        each: Whether each LLM has a factor, or only the mean of all.
    """

    drawn: float = adding.DRAWN
    own: Sequence[float] = (adding.OWN,)
    own_gain: Sequence[float] = (adding.OWN_GAIN,)
    constant: float = 1e-6
    each: bool = False

    def __call__(self, features: Floats, right: Floats, heads: Floats) -> Floats:
        """Fit all three targets."""
        gains = heads[:, :, 2] - heads[:, :, 1]
        none, single, gain = (
            min((self._fit(features, *given, own) for own in choices), key=lambda fit: fit[0])[1]
            for choices, given in (
                (self.own, (right[:, 0], heads[:, :, 0], 1e-6)),
                (self.own, (right[:, 1], heads[:, :, 1], 1e-6)),
                (self.own_gain, (right[:, 2] - right[:, 1], gains, self.constant)),
            )
        )
        return np.stack([none, single, single + gain], 1)

    def _fit(
        self, features: Floats, target: Floats, priors: Floats, constant: float, own: float
    ) -> tuple[float, Floats]:
        prior = (priors if self.each else priors.mean(0, keepdims=True)).T
        llms, count = prior.shape[1], len(features)
        given = features @ prior[:-1] + prior[-1]
        centre = features.mean(0)
        scale = np.linalg.norm(features - centre) / count**0.5
        spread = (features - centre) / scale * own**0.5
        every = np.concatenate([given - given.mean(0), np.ones((count, 1)), spread], 1)
        penalty = np.ones(every.shape[1])
        penalty[:llms], penalty[llms] = self.drawn, constant
        solved = np.linalg.solve(every.T @ every + np.diag(penalty), every.T)
        # drawn to 1: what is left once the other LLMs' mean is taken away; else from nothing
        start = 1 / llms if self.drawn > 1e-3 else 0.0
        rest = target - start * given.sum(1)
        weights = solved @ rest
        error = ((rest - every @ weights) / (1 - (every * solved.T).sum(1)).clip(1e-9)) ** 2
        factors, bias = weights[:llms] + start, weights[llms]
        delta = weights[llms + 1 :] * own**0.5 / scale
        bias += prior[-1] @ factors - given.mean(0) @ weights[:llms] - centre @ delta
        return float(error.mean()), np.concatenate([prior[:-1] @ factors + delta, [bias]])


RIDGES = (0.0, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
before = Ridge(drawn=1e-6, own=RIDGES, own_gain=RIDGES)
"""As `train-router --add-to` fitted until now: one free factor, penalties by leave-one-out."""


def bagged(fit: Fit, times: int = 10) -> Fit:
    """Return the mean of a fit over random two thirds of the labels, each without repeats."""

    def fitted(features: Floats, right: Floats, heads: Floats) -> Floats:
        random = np.random.default_rng(0)
        draws = [random.permutation(len(right))[: 2 * len(right) // 3] for _ in range(times)]
        return np.mean([fit(features[at], right[at], heads) for at in draws], axis=0)

    return fitted


def nearest(fit: Fit) -> Fit:
    """Return a fit that starts from the LLM whose heads fit the labels best, once shifted."""

    def fitted(features: Floats, right: Floats, heads: Floats) -> Floats:
        given = features @ heads[:, :-1] + heads[:, -1:]
        errors = (right - right.mean(0) - given + given.mean(1, keepdims=True)) ** 2
        best = int(errors.mean((1, 2)).argmin())
        return fit(features, right, heads[best : best + 1])

    return fitted


def by_own_loss(fits: Sequence[Fit], folds: int = 5) -> Fit:
    """Return the fit with the best cross-validated area on the labels: the decision's own loss."""

    def fitted(features: Floats, right: Floats, heads: Floats) -> Floats:
        fold = np.arange(len(right)) % folds
        if not all(right[fold == at, 2].any() for at in range(folds)):
            return fits[0](features, right, heads)
        data = Unseen(right, np.tile(STEPS, (len(right), 1)), features, heads, np.empty(0, np.int8))

        def score(fit: Fit) -> float:
            held = [(fold != at, np.flatnonzero(fold == at)) for at in range(folds)]
            return sum(
                area(fit(features[train], right[train], heads), data, rest) for train, rest in held
            )

        return max(fits, key=score)(features, right, heads)

    return fitted


def without_gain(fit: Fit) -> Fit:
    """Return a fit that never chooses C unless the labels' mean gain is shown (two errors)."""

    def fitted(features: Floats, right: Floats, heads: Floats) -> Floats:
        weights = fit(features, right, heads)
        gain = right[:, 2] - right[:, 1]
        if gain.mean() < 2 * gain.std() / len(gain) ** 0.5:
            weights[:, 2] = weights[:, 1] - np.eye(len(weights))[-1]
        return weights

    return fitted


FITS: dict[str, Fit] = {
    BEFORE: before,
    SHIPS: ships,
    UNLABELLED: lambda features, right, heads: heads.mean(0),
    "a factor for each of the others": Ridge(each=True),
    "from the nearest LLM": nearest(Ridge()),
    "factor not drawn to 1": Ridge(drawn=1e-6),
    "no weights of its own": Ridge(own=(0.0,), own_gain=(0.0,)),
    "half as free": Ridge(own=(0.1,), own_gain=(0.03,)),
    "twice as free": Ridge(own=(0.4,), own_gain=(0.12,)),
    "freedom by leave-one-out": Ridge(own=RIDGES, own_gain=RIDGES),
    "freedom by the decision's own loss": by_own_loss(
        [Ridge(own=(own,), own_gain=(own / 3,)) for own in (0.2, 0.06, 0.6)]
    ),
    "gain's constant drawn too": Ridge(constant=10),
    "no gain unless its mean is shown": without_gain(Ridge()),
    "mean of fits to ten parts": bagged(Ridge()),
}


def replayed(
    fits: Mapping[str, Fit], parts: Sequence[Unseen], sizes: Sequence[int]
) -> dict[str, Floats]:
    """Return the area of each fit: [draws, sizes]."""
    found: dict[str, list[list[float]]] = {name: [] for name in fits}
    for draw in range(DRAWS):
        data = parts[draw % len(parts)]
        order = np.random.default_rng(draw).permutation(len(data.right))
        rest = order[max(sizes) if len(sizes) > 1 else max(SIZES) :]
        for name, fit in fits.items():
            given = [(data.features[order[:size]], data.right[order[:size]]) for size in sizes]
            found[name].append([area(fit(*each, data.heads), data, rest) for each in given])
    return {name: np.array(areas) for name, areas in found.items()}


# Which questions to label


def at_random(
    data: Unseen, pool: NDArray[np.int_], count: int, random: np.random.Generator
) -> NDArray[np.int_]:
    """Choose at random."""
    return random.choice(pool, count, replace=False)


def spread(
    data: Unseen, pool: NDArray[np.int_], count: int, random: np.random.Generator
) -> NDArray[np.int_]:
    """Choose the nearest question to the centre of each of `count` clusters of the features."""
    features = data.features[pool]
    features = (features - features.mean(0)) / features.std(0)
    means = KMeans(count, n_init=1, max_iter=20, random_state=int(random.integers(2**31)))
    return pool[means.fit_transform(features).argmin(0)]


def farthest(
    data: Unseen, pool: NDArray[np.int_], count: int, random: np.random.Generator
) -> NDArray[np.int_]:
    """Choose, one after the other, the question that is farthest from those chosen."""
    features = data.features[pool]
    features = (features - features.mean(0)) / features.std(0)
    found = [int(random.integers(len(pool)))]
    distance = np.full(len(pool), np.inf)
    while len(found) < count:
        distance = np.minimum(distance, ((features - features[found[-1]]) ** 2).sum(1))
        found.append(int(distance.argmax()))
    return pool[found]


def least_sure(penalty: float, share: float) -> Rule:
    """Return a rule: a share where the others' mean hardly prefers a strategy, the rest random."""

    def rule(
        data: Unseen, pool: NDArray[np.int_], count: int, random: np.random.Generator
    ) -> NDArray[np.int_]:
        mean = data.heads.mean(0)
        scores = data.features[pool] @ mean[:-1] + mean[-1] - penalty * np.array(STEPS)
        ordered = np.sort(scores, 1)
        nearest_first = pool[np.argsort(ordered[:, 2] - ordered[:, 1], kind="stable")]
        unsure = nearest_first[: round(share * count)]
        others = np.setdiff1d(pool, unsure)
        return np.concatenate([unsure, random.choice(others, count - len(unsure), replace=False)])

    return rule


RULES: dict[str, Rule] = {
    "random": at_random,
    "one of each cluster of the features": spread,
    "farthest from each other": farthest,
    "least sure, a step worth 0.05": least_sure(0.05, 1),
    "least sure, a step worth 0.2": least_sure(0.2, 1),
    "half least sure, half random": least_sure(0.05, 0.5),
}
CHOSEN = (100, 200)


def chosen(parts: Sequence[Unseen]) -> dict[str, Floats]:
    """Return the area of the fit that ships, by rule: [draws, `CHOSEN`]."""
    found: dict[str, list[list[float]]] = {name: [] for name in RULES}
    for draw in range(DRAWS):
        data = parts[draw % len(parts)]
        order = np.random.default_rng(draw).permutation(len(data.right))
        rest, pool = order[:400], order[400:]
        for name, rule in RULES.items():
            rows = [rule(data, pool, size, np.random.default_rng(draw)) for size in CHOSEN]
            fits = [ships(data.features[at], data.right[at], data.heads) for at in rows]
            found[name].append([area(weights, data, rest) for weights in fits])
    return {name: np.array(areas) for name, areas in found.items()}


# Output


def interval(values: Floats) -> str:
    """Format the mean of values, one a draw, with its 95% interval."""
    half = 1.96 * values.std(ddof=1) / len(values) ** 0.5
    return f"{values.mean():+.4f} ({values.mean() - half:+.4f} to {values.mean() + half:+.4f})"


def header(first: str, llms: Iterable[str]) -> None:
    """Print the first two lines of a table."""
    names = [first, "labels", *llms, "mean"]
    print(f"\n| {' | '.join(names)} |\n{'|---' * len(names)}|")


def print_fits(areas: Mapping[str, Mapping[str, Floats]], sizes: Sequence[int]) -> None:
    """Print areas, and each fit's difference from the one before."""
    header("fit", areas)
    for name in next(iter(areas.values())):
        for at, size in enumerate(sizes):
            found = [each[name][:, at] for each in areas.values()]
            if name != BEFORE:
                found = [
                    x - each[BEFORE][:, at] for x, each in zip(found, areas.values(), strict=True)
                ]
            shown = [interval(each) for each in [*found, np.mean(found, 0)]]
            print(f"| {name} | {size} | {' | '.join(shown)} |", flush=True)


def print_rules(areas: Mapping[str, Mapping[str, Floats]]) -> None:
    """Print each rule's difference from random questions."""
    header("labelled", areas)
    for name in RULES:
        for at, size in enumerate(CHOSEN):
            found = [each[name][:, at] - each["random"][:, at] for each in areas.values()]
            shown = [interval(each) for each in [*found, np.mean(found, 0)]]
            print(f"| {name} | {size} | {' | '.join(shown)} |", flush=True)


def plain(areas: Mapping[str, Floats], sizes: Sequence[int]) -> dict[str, Any]:
    """Return the mean area of each fit by number of labels."""
    return {
        name: dict(zip(map(str, sizes), found.mean(0).round(4).tolist(), strict=True))
        for name, found in areas.items()
    }


def picture(document: Mapping[str, Any]) -> bytes:
    """Draw area against the number of labels, before and now, a panel for each LLM."""
    figure = drawing.new_figure(13, 3.4)
    axes = figure.subplots(1, len(LLMS) + 1)
    panels = [*document["halves"].items(), (f"{VALID}, validation", document["valid"][VALID])]
    for axis, (name, fits) in zip(axes, panels, strict=True):
        for fit, style in ((BEFORE, "o--"), (SHIPS, "o-")):
            axis.plot(list(fits[fit]), list(fits[fit].values()), style, label=fit)
        axis.axhline(next(iter(fits[UNLABELLED].values())), color="grey", lw=0.8)
        axis.set_title(name, loc="left", fontsize=11)
        axis.set_xlabel("labels")
        drawing.style_axes(axis)
    axes[0].set_ylabel("area, of multi's accuracy")
    return drawing.to_png(figure)


if __name__ == "__main__":
    main()
