"""Gates as numbers: which threshold separates best, and how steady a gate is.

A gate's value is what its threshold is compared with: the probability of Yes, or the uncertainty
of a draft. A question retrieves when its value is at least the threshold.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 1000
MAX_POINTS = 201
"""Of a curve that is written down; more are thinned, evenly by rank."""
_BLOCK = 50
_EPSILON = 1e-9

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class _Steps(NamedTuple):
    """How many questions have each value, and the thresholds between the values.

    Attributes:
        needed: [values], how many that need retrieval have the value; or [resamples, values].
        known: The same of those that do not.
    """

    needed: Floats
    known: Floats

    def auc(self) -> Floats:
        """Share of pairs in which the one that needs retrieval has the higher value."""
        below = np.cumsum(self.known, -1) - self.known
        wins = (self.needed * (below + 0.5 * self.known)).sum(-1)
        return np.asarray(wins / (self.needed.sum(-1) * self.known.sum(-1)))

    def shares(self) -> tuple[Floats, Floats]:
        """Share that retrieves, of those that need it and of those that do not.

        Returns:
            Both [..., values + 1]; position i is that of the threshold below value i, the last
            that above all.
        """
        found = []
        for counts in (self.needed, self.known):
            total = counts.sum(-1, keepdims=True)
            under = np.concatenate([np.zeros_like(total), np.cumsum(counts, -1)], -1)
            found.append((total - under) / total)
        return found[0], found[1]


def auc(values: Sequence[float], needed: Sequence[bool]) -> float:
    """Share of pairs in which the question that needs retrieval has the higher value.

    Equal values count half: 0.5 is no signal, 1 a threshold that is always right.

    Args:
        values: Of each question.
        needed: Whether it needs retrieval.

    Raises:
        ValueError: If no question needs retrieval, or all do.
    """
    check_goal(needed)
    return float(_steps(np.asarray(values, float), np.asarray(needed, bool))[1].auc())


def curve(values: Sequence[float], needed: Sequence[bool]) -> list[dict[str, float]]:
    """What each threshold would do, from 0 (always retrieve) upwards.

    Args:
        values: Of each question, 0 to 1.
        needed: Whether it needs retrieval.

    Returns:
        For each threshold that decides differently: `threshold`, `needed` and `known` (share
        that retrieves, of those that need it and of those that do not), `retrieve` (of all),
        `accuracy` and `balanced_accuracy`.

    Raises:
        ValueError: If no question needs retrieval, or all do.
    """
    check_goal(needed)
    labels = np.asarray(needed, bool)
    distinct, steps = _steps(np.asarray(values, float), labels)
    recall, fallout = steps.shares()
    share = float(labels.mean())
    return [
        _point(threshold, float(right), float(wrong), share)
        for threshold, right, wrong in zip(_thresholds(distinct), recall, fallout, strict=False)
    ]


def at(threshold: float, values: Sequence[float], needed: Sequence[bool]) -> dict[str, float]:
    """What one threshold does; the keys are those of `curve`, and so are the errors."""
    check_goal(needed)
    labels = np.asarray(needed, bool)
    picked = np.asarray(values, float) >= threshold
    recall, fallout = picked[labels].mean(), picked[~labels].mean()
    return _point(threshold, float(recall), float(fallout), float(labels.mean()))


def calibrate(
    values: Sequence[float],
    needed: Sequence[bool],
    min_recall: float | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Chooses a threshold, and says how sure that is.

    Without `min_recall` it is the one with the best balanced accuracy; with it, the cheapest one
    (fewest retrievals) that retrieves for at least that share of the questions that need it. Of
    equals the cheaper. `RESAMPLES` times, each class is drawn anew with repetition: the intervals
    are the 2.5th to 97.5th percentile of the AUC and of the threshold that would have been
    chosen. The threshold's scores are on the questions that chose it, so a little flattered.

    Args:
        values: Of each question, 0 to 1.
        needed: Whether it needs retrieval.
        min_recall: Least share of needed retrievals, 0 to 1.
        seed: Of the resampling.

    Returns:
        `auc`, `threshold`, its point (see `curve`) as `chosen`, `curve` (thinned to `MAX_POINTS`),
        `interval` (of `auc` and `threshold`), `questions`, `needed` (how many), `resamples`.

    Raises:
        ValueError: If no question needs retrieval, or all do, or `min_recall` is no share.
    """
    check_goal(needed, min_recall)
    scores, labels = np.asarray(values, float), np.asarray(needed, bool)
    distinct, steps = _steps(scores, labels)
    thresholds = np.array(_thresholds(distinct))
    points = curve(values, needed)
    chosen = int(_best(steps, len(thresholds), min_recall))
    aucs, moved = _resampled(distinct, steps, len(thresholds), min_recall, seed)
    return {
        "auc": float(steps.auc()),
        "threshold": float(thresholds[chosen]),
        "chosen": points[chosen],
        "curve": _thinned(points, chosen),
        "interval": {"auc": _interval(aucs), "threshold": _interval(moved)},
        "questions": len(scores),
        "needed": int(labels.sum()),
        "resamples": RESAMPLES,
    }


def check_goal(needed: Sequence[bool], min_recall: float | None = None) -> None:
    """Refuse, before any question is asked, what no threshold can be chosen with.

    Raises:
        ValueError: If no question needs retrieval, or all do, or `min_recall` is no share.
    """
    if min_recall is not None and not 0 <= min_recall <= 1:
        raise ValueError(f"--min-recall is {min_recall}; it must be from 0 to 1")
    if all(needed) or not any(needed):
        which = "need retrieval" if any(needed) else "do without retrieval"
        raise ValueError(
            f"all {len(needed)} questions {which}; a threshold needs some of either kind"
        )


def _steps(scores: Floats, labels: Bools) -> tuple[Floats, _Steps]:
    """The distinct values, lowest first, and how many of either class have each."""
    distinct, place = np.unique(scores, return_inverse=True)
    needed, known = (
        np.bincount(place[kind], minlength=len(distinct)).astype(float)
        for kind in (labels, ~labels)
    )
    return distinct, _Steps(needed, known)


def _thresholds(distinct: Floats) -> list[float]:
    """One short number below each value and above the one before, and one above all.

    There is none above a value of 1, the highest threshold.
    """
    between = [_short(low, high) for low, high in itertools.pairwise(distinct.tolist())]
    return [0.0, *between, *([1.0] if distinct[-1] < 1 else [])]


def _short(low: float, high: float) -> float:
    """The number with the fewest digits in the middle half between two values."""
    middle, slack = (low + high) / 2, (high - low) / 4
    for digits in range(1, 18):
        rounded = float(f"{middle:.{digits}g}")
        if low < rounded <= high and abs(rounded - middle) <= slack:
            return rounded
    return high


def _point(threshold: float, needed: float, known: float, share: float) -> dict[str, float]:
    return {
        "threshold": threshold,
        "needed": needed,
        "known": known,
        "retrieve": share * needed + (1 - share) * known,
        "accuracy": share * needed + (1 - share) * (1 - known),
        "balanced_accuracy": (needed + 1 - known) / 2,
    }


def _best(steps: _Steps, thresholds: int, min_recall: float | None) -> NDArray[np.intp]:
    """The index of the threshold to choose, for each leading position of `steps`."""
    needed, known = (shares[..., :thresholds] for shares in steps.shares())
    if min_recall is None:
        score = needed - known
        good = score >= score.max(-1, keepdims=True) - _EPSILON
    else:
        good = needed >= min_recall - _EPSILON
    return np.asarray(thresholds - 1 - good[..., ::-1].argmax(-1))


def _resampled(
    distinct: Floats, steps: _Steps, thresholds: int, min_recall: float | None, seed: int
) -> tuple[Floats, Floats]:
    """The AUC and the threshold of each resample, both [resamples]."""
    generator = np.random.default_rng(seed)
    totals = [int(counts.sum()) for counts in steps]
    odds = [counts / counts.sum() for counts in steps]
    aucs, moved = [], []
    for start in range(0, RESAMPLES, _BLOCK):
        size = min(_BLOCK, RESAMPLES - start)
        drawn = _Steps(
            *(
                generator.multinomial(total, odd, size).astype(float)
                for total, odd in zip(totals, odds, strict=True)
            )
        )
        aucs.append(drawn.auc())
        moved.append(_middles(distinct, drawn, _best(drawn, thresholds, min_recall)))
    return np.concatenate(aucs), np.concatenate(moved)


def _middles(distinct: Floats, drawn: _Steps, picks: NDArray[np.intp]) -> Floats:
    """The middle between the values that were drawn next to each pick; 0 and 1 at the ends."""
    places = np.arange(len(distinct))
    there = drawn.needed + drawn.known > 0
    low = np.where(there & (places < picks[:, None]), distinct, -math.inf).max(-1)
    high = np.where(there & (places >= picks[:, None]), distinct, math.inf).min(-1)
    middles = (low + high) / 2
    return np.asarray(np.where(low < 0, 0.0, np.where(high > 1, 1.0, middles)))


def _thinned(points: list[dict[str, float]], chosen: int) -> list[dict[str, float]]:
    if len(points) <= MAX_POINTS:
        return points
    kept = {round(i * (len(points) - 1) / (MAX_POINTS - 1)) for i in range(MAX_POINTS)}
    return [points[i] for i in sorted(kept | {chosen})]


def _interval(values: Iterable[float]) -> list[float]:
    """The 2.5th and the 97.5th percentile, as values that occur."""
    low, high = np.quantile(np.asarray(values), [0.025, 0.975], method="nearest")
    return [float(low), float(high)]


# Paraphrases


class Asked(NamedTuple):
    """What a gate said to one form of a question.

    Attributes:
        retrieve: Yes or no.
        value: Probability of Yes or uncertainty; None: the gate has none.
    """

    retrieve: bool
    value: float | None


def steadiness(groups: Sequence[Sequence[Asked]], seed: int = 0) -> dict[str, Any]:
    """How much a gate's decision hangs on the wording.

    Args:
        groups: For each question, what was said to its forms, at least two.
        seed: Of the resampling.

    Returns:
        Each with `value` and a 95% bootstrap `interval` over the groups: `flips` (share of groups
        in which two forms get different decisions), `pairs` (share of pairs of forms that differ,
        mean over groups), `retrieve` (share of Yes, mean over groups) and `spread` (highest value
        less lowest, mean over the groups with values; None: the gate has none).
    """
    generator = np.random.default_rng(seed)
    measures: dict[str, Callable[[Sequence[Asked]], float]] = {
        "flips": lambda group: float(len({each.retrieve for each in group}) > 1),
        "pairs": _differing,
        "retrieve": lambda group: sum(each.retrieve for each in group) / len(group),
        "spread": _spread,
    }
    return {
        name: _with_interval([measure(group) for group in groups], generator)
        for name, measure in measures.items()
    }


def _differing(group: Sequence[Asked]) -> float:
    yes = sum(each.retrieve for each in group)
    return yes * (len(group) - yes) / math.comb(len(group), 2)


def _spread(group: Sequence[Asked]) -> float:
    values = [each.value for each in group if each.value is not None]
    return max(values) - min(values) if len(values) > 1 else math.nan


def _with_interval(
    measured: Sequence[float], generator: np.random.Generator
) -> dict[str, Any] | None:
    known = np.array([value for value in measured if not math.isnan(value)])
    if not len(known):
        return None
    counts = generator.multinomial(len(known), np.full(len(known), 1 / len(known)), RESAMPLES)
    return {"value": float(known.mean()), "interval": _interval(counts @ known / len(known))}
