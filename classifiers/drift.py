"""Drift: whether questions are like those that a router was trained on.

For each LLM, a router's manifest has a summary of its training questions: how their scores spread,
which labels they get, and how many of them the router doubts. Scores are compared by the population
stability index over their deciles, Σ (p − q)·ln(p / q). In credit scoring, where it comes from, a
value above 0.25 is a major shift (Siddiqi, Credit Risk Scorecards, 2006). For few questions chance
alone exceeds that: for like questions the index is close to χ² with one degree of freedom fewer
than bins, times 1/n + 1/m (Yurdakul, Statistical Properties of Population Stability Index, 2018).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopgate.classifiers.decision import DEFAULT_ALPHA, AlphaRouter, doubts
from hopgate.common.strategies import LABELS

SCORES = ("single over none", "multi over single")
"""The logarithms of how much likelier one label is than another at α = 0: with the `utility`
objective, the gain in the chance of a right answer but for a factor and a constant, so their
deciles are the same at every α."""
MAJOR = 0.25
"""An index above it is a major shift."""
MOST_DOUBTED = 0.25
"""Largest share of questions that the router may doubt beyond that of its training questions."""
MIN_QUESTIONS = 100
"""With fewer, the index of like questions often exceeds `MAJOR`."""
CHANCE = 0.995
"""Quantile of the index over like questions, of each score; of both together about 0.99."""
_BINS = 10
_DRAWS = 4000


@dataclass(frozen=True)
class Summary:
    """A summary of a router's decisions on some questions.

    Attributes:
        questions: How many there are, without repetitions.
        cuts: By `SCORES`, the bounds between a score's bins, in order.
        counts: By `SCORES`, how many questions are in each bin.
        labels: The share of each label at `DEFAULT_ALPHA`, whatever the LLM's own.
        doubted: The share that the router doubts.
    """

    questions: int
    cuts: Mapping[str, Sequence[float]]
    counts: Mapping[str, Sequence[int]]
    labels: Mapping[str, float]
    doubted: float


def summarise(
    router: AlphaRouter, questions: Sequence[str], cuts: Mapping[str, Sequence[float]] | None = None
) -> Summary:
    """Summarise a router's decisions on some questions; repetitions count once.

    Args:
        router: The router, for one LLM.
        questions: At least one.
        cuts: The bins to count in; None: the deciles of these questions.
    """
    unique = list(dict.fromkeys(questions))
    at_zero, at_alpha = (
        np.array([[row[label] for label in LABELS] for row in rows])
        for rows in router.route_alphas(unique, [0, DEFAULT_ALPHA])
    )
    logs = np.log(np.maximum(at_zero, np.finfo(float).tiny))
    scores = dict(zip(SCORES, np.diff(logs, axis=1).T, strict=True))
    bins = cuts or {name: _deciles(values) for name, values in scores.items()}
    labels = np.bincount(at_alpha.argmax(1), minlength=len(LABELS)) / len(unique)
    doubted = sum(doubt is not None for doubt in doubts(router, unique)) / len(unique)
    return Summary(
        questions=len(unique),
        cuts=bins,
        counts={name: _counts(values, bins[name]) for name, values in scores.items()},
        labels={label: round(float(share), 4) for label, share in zip(LABELS, labels, strict=True)},
        doubted=round(doubted, 4),
    )


def _deciles(values: NDArray[np.float64]) -> list[float]:
    inner = np.quantile(values, np.linspace(0, 1, _BINS + 1)[1:-1])
    return [float(cut) for cut in np.unique(inner.round(4))]


def _counts(values: NDArray[np.float64], cuts: Sequence[float]) -> list[int]:
    found = np.bincount(np.searchsorted(cuts, values), minlength=len(cuts) + 1)
    return [int(count) for count in found]


@dataclass(frozen=True)
class Drift:
    """Questions compared with a router's training questions.

    Attributes:
        now: The questions.
        known: The training questions.
        index: By `SCORES`, the population stability index.
        chance: By `SCORES`, the index that as many questions of the same kind hardly exceed.
        unlike: Why the questions are unlike the training questions; empty if they are like them,
            None if there are too few to tell.
    """

    now: Summary
    known: Summary
    index: Mapping[str, float]
    chance: Mapping[str, float]
    unlike: Sequence[str] | None


def drift(router: AlphaRouter, known: Summary, questions: Sequence[str], seed: int = 0) -> Drift:
    """Compare questions with those that a router was trained on.

    They are unlike if the index of a score exceeds both `MAJOR` and chance, or if the router
    doubts `MOST_DOUBTED` more of them.

    Args:
        router: The router, for one LLM.
        known: The summary of its training questions.
        questions: At least one.
        seed: Of the draws that give the chance level.
    """
    now = summarise(router, questions, known.cuts)
    index = {name: stability_index(now.counts[name], known.counts[name]) for name in SCORES}
    chance = {name: chance_level(known.counts[name], now.questions, seed) for name in SCORES}
    unlike = [
        f"stability index of {name} {index[name]:.2f}"
        for name in SCORES
        if index[name] > max(MAJOR, chance[name])
    ]
    if now.doubted > known.doubted + MOST_DOUBTED:
        unlike.append(f"the router doubts {now.doubted:.0%}")
    return Drift(now, known, index, chance, unlike if now.questions >= MIN_QUESTIONS else None)


def stability_index(now: Sequence[int] | NDArray[Any], known: Sequence[int] | NDArray[Any]) -> Any:
    """Return the population stability index of counts, [..., bins]; each bin gets half a count."""
    halves = (np.asarray(counts) + 0.5 for counts in (now, known))
    p, q = (counts / counts.sum(-1, keepdims=True) for counts in halves)
    return ((p - q) * np.log(p / q)).sum(-1)


def chance_level(known: Sequence[int], questions: int, seed: int = 0) -> float:
    """Return the quantile `CHANCE` of the index, of questions drawn from the same distribution.

    Both samples are drawn again, since the training questions are a sample too.
    """
    shares = np.asarray(known) / sum(known)
    generator = np.random.default_rng(seed)
    again = generator.multinomial(sum(known), shares, _DRAWS)
    now = generator.multinomial(questions, shares, _DRAWS)
    return float(np.quantile(stability_index(now, again), CHANCE))
