"""`hopgate calibrate --gate`: the threshold that best separates questions that need retrieval.

A gate compares a value with its threshold: the probability of Yes, or the uncertainty of a
draft. A question retrieves when its value is at least the threshold.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopgate.common.files import json_bytes, sha256
from hopgate.evaluation.measuring.harness import GateAlone, Question
from hopgate.evaluation.measuring.runner import Job, execute, make_runs
from hopgate.evaluation.measuring.scores import percentile_interval
from hopgate.evaluation.measuring.specs import Variant
from hopgate.evaluation.reports.output import check_folder, write_files
from hopgate.nodes.prompts.demonstrations import read_pool

RESAMPLES = 1000
REPLIES = "asked"
"""The folder of the journals, in the folder of the results."""
_BLOCK = 50
_EPSILON = 1e-9

Floats = NDArray[np.float64]


def calibrate_gate(
    labels: Path, gate: str, job: Job, *, min_recall: float | None = None, out: Path | None = None
) -> dict[str, Any]:
    """Ask a gate about labelled questions and choose its threshold.

    Args:
        labels: See `hopgate.nodes.prompts.demonstrations.read_pool`.
        gate: `confidence` or `draft`.
        job: The command's options.
        min_recall: Minimum recall, 0 to 1; picks the cheapest threshold that reaches it. None: the
            threshold of the best balanced accuracy.
        out: Folder for `calibration.json` and the answers; None saves nothing.

    Returns:
        As `choose_threshold`, with `gate`, `model`, `settings`, `goal`, `invalid` (replies without
        a value; they retrieve at every threshold), `shipped` (the effect of the model's
        own threshold) and `inputs`.

    Raises:
        ValueError: An input is wrong, or all labels are of one kind.
        RuntimeError: The model failed.
    """
    if out is not None:
        check_folder(out)
    labelled = read_pool(labels)
    needed = [each.retrieve for each in labelled]
    if len(set(needed)) == 1:
        raise ValueError(
            f"all {len(needed)} questions {'' if needed[0] else 'do not '}need retrieval; a "
            "threshold needs some of each kind"
        )
    questions = {str(at): Question(str(at), each.question) for at, each in enumerate(labelled, 1)}
    saved_in = None if out is None else out / REPLIES
    with nullcontext(saved_in) if saved_in else tempfile.TemporaryDirectory() as folder:
        data = {"data": sha256(labels)}
        (run,) = make_runs([Variant(gate, {"gate": gate})], Path(folder), job, data)
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
        write_files(out, {"calibration.json": json_bytes(found)})
    return found


def at(
    threshold: float, values: Sequence[float] | Floats, needed: Sequence[bool]
) -> dict[str, float]:
    """Return the effect of one threshold.

    Args:
        threshold: A question retrieves if its value is at least this.
        values: The value of each question, 0 to 1.
        needed: Whether each question needs retrieval; some do and some do not.

    Returns:
        `threshold`, `needed` and `known` (share that retrieves, among the questions that need it
        and those that do not), `retrieve` (among all), `accuracy` and `balanced_accuracy`.
    """
    labels = np.asarray(needed, bool)
    retrieves = np.asarray(values, float) >= threshold
    recall, fallout = float(retrieves[labels].mean()), float(retrieves[~labels].mean())
    return {
        "threshold": threshold,
        "needed": recall,
        "known": fallout,
        "retrieve": float(retrieves.mean()),
        "accuracy": float((retrieves == labels).mean()),
        "balanced_accuracy": (recall + 1 - fallout) / 2,
    }


def choose_threshold(
    values: Sequence[float], needed: Sequence[bool], min_recall: float | None = None, seed: int = 0
) -> dict[str, Any]:
    """Choose a threshold, with intervals.

    Without `min_recall`, the threshold with the best balanced accuracy; with it, the cheapest one
    (fewest retrievals) with at least that recall. Ties go to the cheaper. The intervals are the
    2.5th to 97.5th percentile, over `RESAMPLES` resamples of each class, of the AUC and of the
    threshold chosen again. The scores are on the questions that chose the threshold, so they are
    slightly optimistic.

    Args:
        values: The value of each question, 0 to 1.
        needed: Whether each question needs retrieval; some do and some do not.
        min_recall: Minimum recall, 0 to 1.
        seed: Seed of the resampling.

    Returns:
        `auc`, `threshold`, its point (see `at`) as `chosen`, `curve` (the points of the thresholds
        that decide differently, from 0 upwards), `interval` (of `auc` and
        `threshold`), `questions`, `needed` (how many), `resamples`.
    """
    labels = np.asarray(needed, bool)
    distinct, place = np.unique(np.asarray(values, float), return_inverse=True)
    counts = [
        np.bincount(place[kind], minlength=len(distinct)).astype(float)
        for kind in (labels, ~labels)
    ]
    points = [at(threshold, values, needed) for threshold in _thresholds(distinct)]
    chosen = _best(counts, len(points), min_recall)
    aucs, moved = [], []
    for drawn in _resamples(counts, np.random.default_rng(seed)):
        aucs.append(_auc(*drawn))
        moved.append(_middle(distinct, drawn, _best(drawn, len(points), min_recall)))
    return {
        "auc": _auc(*counts),
        "threshold": points[chosen]["threshold"],
        "chosen": points[chosen],
        "curve": points,
        "interval": {"auc": percentile_interval(aucs), "threshold": percentile_interval(moved)},
        "questions": len(labels),
        "needed": int(labels.sum()),
        "resamples": RESAMPLES,
    }


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


def _resamples(counts: Sequence[Floats], generator: np.random.Generator) -> Iterator[list[Floats]]:
    """Yield how often each value occurs in each resample of the two classes."""
    for _ in range(0, RESAMPLES, _BLOCK):
        drawn = [
            generator.multinomial(int(each.sum()), each / each.sum(), _BLOCK).astype(float)
            for each in counts
        ]
        yield from map(list, zip(*drawn, strict=True))


def _auc(needed: Floats, known: Floats) -> float:
    """Return the area under the ROC curve; both say how many questions have each value."""
    below = np.cumsum(known) - known
    return float((needed * (below + 0.5 * known)).sum() / (needed.sum() * known.sum()))


def _best(counts: Sequence[Floats], thresholds: int, min_recall: float | None) -> int:
    """Return the index of the threshold to choose, from the counts of both classes."""
    recall, fallout = (
        1 - np.append(0.0, np.cumsum(each))[:thresholds] / each.sum() for each in counts
    )
    if min_recall is None:
        good = recall - fallout >= (recall - fallout).max() - _EPSILON
    else:
        good = recall >= min_recall - _EPSILON
    return int(np.flatnonzero(good)[-1])


def _middle(distinct: Floats, drawn: Sequence[Floats], index: int) -> float:
    """Return the middle between the drawn values around a threshold; 0 and 1 beyond them."""
    there = (drawn[0] + drawn[1]) > 0
    below, above = distinct[:index][there[:index]], distinct[index:][there[index:]]
    if not len(below):
        return 0.0
    return float(below[-1] + above[0]) / 2 if len(above) else 1.0
