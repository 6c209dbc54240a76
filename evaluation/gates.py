"""Measuring gates: which threshold separates best, and how stable decisions are.

A gate's value is what its threshold is compared with: the probability of Yes, or the uncertainty
of a draft. A question retrieves when its value is at least the threshold.
"""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopgate.common.extras import STATISTICS, require
from hopgate.common.files import json_bytes, sha256
from hopgate.evaluation.output import check_folder, write_files
from hopgate.evaluation.runner import Job, Run, execute, make_run
from hopgate.evaluation.scores import percentile_interval
from hopgate.evaluation.specs import Spec

RESAMPLES = 1000
MAX_POINTS = 201
"""Maximum number of points of a saved curve; more are thinned, evenly by rank."""
REPLIES = "asked"
"""The folder of the journals, in the folder of the results."""
_BLOCK = 50
_EPSILON = 1e-9

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def calibrate_gate(
    labels: Path,
    gate: str,
    job: Job,
    *,
    min_recall: float | None = None,
    out: Path | None = None,
) -> dict[str, Any]:
    """Ask a gate about labelled questions and choose its threshold.

    Args:
        labels: See `hopgate.nodes.demonstrations.read_pool`.
        gate: `confidence` or `draft`.
        job: The command's options.
        min_recall: Minimum recall; picks the cheapest threshold that reaches it. None: the
            threshold of the best balanced accuracy.
        out: Folder for `calibration.json`, `calibration.png` and the answers; None saves nothing.

    Returns:
        As `choose_threshold`, with `gate`, `model`, `settings`, `goal`, `invalid` (replies without
        a value; they retrieve at every threshold), `shipped` (what the model's own threshold
        does) and `inputs`.

    Raises:
        ValueError: An input is wrong, or all labels are of one kind.
        RuntimeError: The model failed, or `out` cannot be written to.
    """
    require("hopgate calibrate --gate", *STATISTICS)
    from hopgate.evaluation import gate_plots
    from hopgate.evaluation.drawing import require_matplotlib
    from hopgate.evaluation.harness import GateAlone, Question
    from hopgate.nodes.demonstrations import read_pool

    if out is not None:
        check_folder(out)
        require_matplotlib()
    labelled = read_pool(labels)
    needed = [each.retrieve for each in labelled]
    check_goal(needed, min_recall)
    questions = {str(at): Question(str(at), each.question) for at, each in enumerate(labelled, 1)}
    saved_in = None if out is None else out / REPLIES
    with nullcontext(saved_in) if saved_in else tempfile.TemporaryDirectory() as folder:
        data = {"data": sha256(labels)}
        (run,) = gate_runs([Spec(gate, {"gate": gate})], Path(folder), job, data)
        (rows,) = execute([run], questions, GateAlone(), job, saved_in)
    values = [1.0 if row["value"] is None else row["value"] for row in rows]
    found = {
        "gate": gate,
        "model": job.model,
        "settings": run.shown,
        "goal": {} if min_recall is None else {"min_recall": min_recall},
        **choose_threshold(values, needed, min_recall),
        "shipped": at(rows[0]["threshold"], values, needed),
        "invalid": sum(row["value"] is None for row in rows),
        "inputs": {"labels": labels.name, "sha256": data["data"]},
    }
    if out is not None:
        picture = gate_plots.png(found, values, needed)
        write_files(out, {"calibration.png": picture, "calibration.json": json_bytes(found)})
    return found


def gate_runs(specs: Sequence[Spec], folder: Path, job: Job, data: Mapping[str, Any]) -> list[Run]:
    """Return a run for each gate; its journal is in `folder`. See `make_run`."""
    return [
        make_run(
            spec.name, folder / f"{spec.slug}.jsonl", job, data, spec.settings, dated=spec.dated
        )
        for spec in specs
    ]


# Thresholds


class _Steps(NamedTuple):
    """How many questions have each value.

    Attributes:
        needed: [values] or [resamples, values], the number that need retrieval.
        known: The number that do not, in the same shape.
    """

    needed: Floats
    known: Floats

    def auc(self) -> Floats:
        """Return the area under the ROC curve of each resample."""
        below = np.cumsum(self.known, -1) - self.known
        wins = (self.needed * (below + 0.5 * self.known)).sum(-1)
        return np.asarray(wins / (self.needed.sum(-1) * self.known.sum(-1)))

    def shares(self) -> tuple[Floats, Floats]:
        """Return the share that retrieves, among those that need it and those that do not.

        Returns:
            Both [..., values + 1]; position i is for the threshold below value i, the last for
            one above all.
        """
        found = []
        for counts in (self.needed, self.known):
            total = counts.sum(-1, keepdims=True)
            under = np.concatenate([np.zeros_like(total), np.cumsum(counts, -1)], -1)
            found.append((total - under) / total)
        return found[0], found[1]


def curve(values: Sequence[float], needed: Sequence[bool]) -> list[dict[str, float]]:
    """Return what each threshold does, from 0 (always retrieve) upwards.

    Args:
        values: The value of each question, 0 to 1.
        needed: Whether each question needs retrieval.

    Returns:
        For each threshold that decides differently: `threshold`, `needed` and `known` (share
        that retrieves, among those that need it and those that do not), `retrieve` (among all),
        `accuracy` and `balanced_accuracy`.

    Raises:
        ValueError: No question needs retrieval, or all do.
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
    """Return what one threshold does; keys and errors are as in `curve`."""
    check_goal(needed)
    labels = np.asarray(needed, bool)
    retrieves = np.asarray(values, float) >= threshold
    recall, fallout = retrieves[labels].mean(), retrieves[~labels].mean()
    return _point(threshold, float(recall), float(fallout), float(labels.mean()))


def choose_threshold(
    values: Sequence[float],
    needed: Sequence[bool],
    min_recall: float | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Choose a threshold, with intervals.

    Without `min_recall`, the threshold with the best balanced accuracy; with it, the cheapest one
    (fewest retrievals) with at least that recall. Ties go to the cheaper. The intervals are the
    2.5th to 97.5th percentile, over `RESAMPLES` resamples of each class, of the AUC and of the
    threshold chosen again. The scores are on the questions that chose the threshold, so they are
    slightly optimistic.

    Args:
        values: The value of each question, 0 to 1.
        needed: Whether each question needs retrieval.
        min_recall: Minimum recall, 0 to 1.
        seed: Seed of the resampling.

    Returns:
        `auc`, `threshold`, its point (see `curve`) as `chosen`, `curve` (thinned to `MAX_POINTS`),
        `interval` (of `auc` and `threshold`), `questions`, `needed` (how many), `resamples`.

    Raises:
        ValueError: No question needs retrieval, or all do, or `min_recall` is out of range.
    """
    from sklearn.metrics import roc_auc_score

    check_goal(needed, min_recall)
    scores, labels = np.asarray(values, float), np.asarray(needed, bool)
    distinct, steps = _steps(scores, labels)
    thresholds = np.array(_thresholds(distinct))
    points = curve(values, needed)
    chosen = int(_best(steps, len(thresholds), min_recall))
    aucs, moved = _resampled(distinct, steps, len(thresholds), min_recall, seed)
    return {
        "auc": float(roc_auc_score(labels, scores)),
        "threshold": float(thresholds[chosen]),
        "chosen": points[chosen],
        "curve": _thinned(points, chosen),
        "interval": {"auc": percentile_interval(aucs), "threshold": percentile_interval(moved)},
        "questions": len(scores),
        "needed": int(labels.sum()),
        "resamples": RESAMPLES,
    }


def check_goal(needed: Sequence[bool], min_recall: float | None = None) -> None:
    """Check, before any question is asked, that a threshold can be chosen.

    Raises:
        ValueError: No question needs retrieval, or all do, or `min_recall` is out of range.
    """
    if min_recall is not None and not 0 <= min_recall <= 1:
        raise ValueError(f"--min-recall is {min_recall}; it must be from 0 to 1")
    if all(needed) or not any(needed):
        which = "need retrieval" if any(needed) else "do without retrieval"
        raise ValueError(
            f"all {len(needed)} questions {which}; a threshold needs some of each kind"
        )


def _steps(scores: Floats, labels: Bools) -> tuple[Floats, _Steps]:
    """Return the distinct values, lowest first, and how many of each class have each."""
    distinct, place = np.unique(scores, return_inverse=True)
    needed, known = (
        np.bincount(place[kind], minlength=len(distinct)).astype(float)
        for kind in (labels, ~labels)
    )
    return distinct, _Steps(needed, known)


def _thresholds(distinct: Floats) -> list[float]:
    """Return a short number between each two values, 0, and 1 if no value is 1."""
    between = [_short(low, high) for low, high in itertools.pairwise(distinct.tolist())]
    return [0.0, *between, *([1.0] if distinct[-1] < 1 else [])]


def _short(low: float, high: float) -> float:
    """Return the number with the fewest digits in the middle half between two values."""
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
    """Return the index of the threshold to choose, for each leading position of `steps`."""
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
    """Return the AUC and the threshold of each resample, both [resamples].

    `scipy.stats.bootstrap` would choose a threshold from the values of one resample at a time;
    drawing how often each value occurs lets NumPy choose for all resamples at once.
    """
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


def _middles(distinct: Floats, drawn: _Steps, indices: NDArray[np.intp]) -> Floats:
    """Return the middle between the drawn values around each index; 0 and 1 beyond them."""
    places = np.arange(len(distinct))
    there = drawn.needed + drawn.known > 0
    low = np.where(there & (places < indices[:, None]), distinct, -math.inf).max(-1)
    high = np.where(there & (places >= indices[:, None]), distinct, math.inf).min(-1)
    middles = (low + high) / 2
    return np.asarray(np.where(low < 0, 0.0, np.where(high > 1, 1.0, middles)))


def _thinned(points: list[dict[str, float]], chosen: int) -> list[dict[str, float]]:
    if len(points) <= MAX_POINTS:
        return points
    indices = {round(i * (len(points) - 1) / (MAX_POINTS - 1)) for i in range(MAX_POINTS)}
    return [points[i] for i in sorted(indices | {chosen})]


# Paraphrases


class Decided(NamedTuple):
    """What a gate decided about one form of a question.

    Attributes:
        retrieve: The decision.
        value: Probability of Yes, or uncertainty; None: the gate has none.
    """

    retrieve: bool
    value: float | None


def stability(groups: Sequence[Sequence[Decided]], seed: int = 0) -> dict[str, Any]:
    """Measure how much a gate's decision depends on the wording.

    Args:
        groups: For each question, the decisions about its forms, at least two.
        seed: Seed of the resampling.

    Returns:
        Each with `value` and a 95% bootstrap `interval` over the groups: `flips` (share of groups
        in which two forms get different decisions), `pairs` (share of pairs of forms that differ,
        mean over groups), `retrieve` (share of Yes, mean over groups) and `spread` (highest value
        minus lowest, mean over the groups with values; None: the gate has none).
    """
    generator = np.random.default_rng(seed)
    measures: dict[str, Callable[[Sequence[Decided]], float]] = {
        "flips": lambda group: float(len({each.retrieve for each in group}) > 1),
        "pairs": _differing_pairs,
        "retrieve": lambda group: sum(each.retrieve for each in group) / len(group),
        "spread": _spread,
    }
    return {
        name: _with_interval([measure(group) for group in groups], generator)
        for name, measure in measures.items()
    }


def _differing_pairs(group: Sequence[Decided]) -> float:
    yes = sum(each.retrieve for each in group)
    return yes * (len(group) - yes) / math.comb(len(group), 2)


def _spread(group: Sequence[Decided]) -> float:
    values = [each.value for each in group if each.value is not None]
    return max(values) - min(values) if len(values) > 1 else math.nan


def _with_interval(
    measured: Sequence[float], generator: np.random.Generator
) -> dict[str, Any] | None:
    known = [value for value in measured if not math.isnan(value)]
    if not known:
        return None
    mean = float(np.mean(known))
    if len(known) == 1:  # nothing to resample
        return {"value": mean, "interval": [mean, mean]}
    from scipy.stats import bootstrap

    low, high = bootstrap(
        (known,), np.mean, n_resamples=RESAMPLES, method="percentile", rng=generator
    ).confidence_interval
    return {"value": mean, "interval": [float(low), float(high)]}
