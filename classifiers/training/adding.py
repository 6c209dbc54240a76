"""Add LLMs to a router that was trained with the `utility` objective, without retraining it.

The router's network has learned from thousands of outcomes what questions need. The few hundred
outcomes of another LLM are too few to retrain it, but enough to learn how that LLM differs: its
chance of being right with A, with B, and C's gain over B are each fitted as

    a · (mean of the router's LLMs) + b + δ · features

by least squares. Penalties draw a to 1 and δ to 0, so that a few labels only shift the mean of the
router's LLMs, and many can say which questions are different. The penalties were chosen on recorded
outcomes, for 200 labels (benchmarks/few_labels.py, docs/results/router.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopgate.classifiers.checkpoint import CARD, COST, Checkpoint, read, router_folder
from hopgate.classifiers.dial import Dial
from hopgate.classifiers.drift import summarise
from hopgate.classifiers.labels import LabelRow
from hopgate.classifiers.networks import all_features, network_from
from hopgate.classifiers.router import Router
from hopgate.classifiers.training.data import check_outcomes, read_cost
from hopgate.classifiers.training.dials import cheapest_alpha, dials_of
from hopgate.classifiers.training.graphs import add_graph
from hopgate.classifiers.training.utility import chances_of, heads_of
from hopgate.classifiers.training.writing import check_free, model_card, write

OWN = 0.2
"""1 / penalty on δ, for A and B, in units of the features' variance."""
OWN_GAIN = 0.06
"""The same for C's gain over B, of which few labels say anything."""
DRAWN = 10.0
"""Penalty on the distance of a from 1."""


class Fit(NamedTuple):
    """One linear fit.

    Attributes:
        weights: Of the features and 1: [width + 1].
        error: Leave-one-out mean squared error.
    """

    weights: Tensor
    error: float


def add_profiles(
    router: Path | str,
    cost: Mapping[str, Sequence[Path]],
    out: Path,
    *,
    notes: str = "",
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write a copy of a router with additional LLMs.

    Each gets a dial and a summary of its questions, for `hopgate doctor --questions`; the others
    keep theirs. Saved α settings are not copied: they were calibrated for the original router.

    Args:
        router: `builtin`, or the folder of a router whose weights differ only in the label head.
        cost: Label files of each LLM, by the name of its profile, with `correct` in every row; an
            existing profile is replaced.
        out: Folder to write; with `overwrite` it may be the router's own.
        notes: Markdown for the model card.
        overwrite: Replace an existing router's folder.

    Returns:
        The manifest's new `training.added`, by profile: files, number of questions, and for
        `none`, `single` and `gain` (of multi over single) the mean, and the leave-one-out errors of
        the fit and of a constant.

    Raises:
        ValueError: The router or the labels are unusable, or `out` exists.
        RuntimeError: A file of the router was altered, or `out` is not writable.
    """
    check_free(out, overwrite)
    labels = {profile: read_cost(profile, files) for profile, files in cost.items()}
    checkpoint, others = extendable(router, cost)
    check_outcomes(labels)
    about: dict[str, Any] = {}
    for profile, rows in labels.items():
        heads, dials, figures = _fitted(checkpoint, others, profile, rows)
        checkpoint.parts |= heads
        checkpoint.dials |= dials
        files = [path.name for path in cost[profile]]
        about[profile] = {"files": files, "questions": len(rows), "fits": figures}
    checkpoint.training["added"] = checkpoint.training.get("added", {}) | about
    old = router_folder(router) / CARD
    before = old.read_text(encoding="utf-8") if old.is_file() else ""
    card = model_card("added.md.jinja", {"added": about}, notes, before)
    int8 = bool(checkpoint.training["recipe"]["int8"])
    if checkpoint.graph is None:
        add_graph(checkpoint)
    for profile, rows in labels.items():
        made = Router(checkpoint, profile)
        checkpoint.known[profile] = summarise(made, [row.question for row in rows])
        checkpoint.alphas[profile] = cheapest_alpha(made, rows)
    write(checkpoint, out, card, int8=int8, overwrite=overwrite)
    return about


def extendable(router: Path | str, profiles: Iterable[str]) -> tuple[Checkpoint, list[str]]:
    """Return a router that LLMs can be added to, and the profiles that it has besides these.

    Raises:
        ValueError: It is not such a router.
        RuntimeError: A file of the router was altered.
    """
    checkpoint = read(router)
    new = set(profiles)
    others = [each for each in checkpoint.profiles if each not in new]
    if not others or not checkpoint.one_pass or checkpoint.training.get("objective") != "utility":
        raise ValueError(
            f"router {router} has no other LLM trained with the utility objective, which adding an "
            "LLM needs; train a new router with --reliability instead"
        )
    return checkpoint, others


def _fitted(
    checkpoint: Checkpoint, others: Sequence[str], profile: str, rows: Sequence[LabelRow]
) -> tuple[dict[str, dict[str, NDArray[np.float32]]], dict[str, Dial], dict[str, Any]]:
    """Return the label heads of the new LLM, its dial, and the figures of its fits."""
    state = checkpoint.state(COST + others[0])
    network = network_from(checkpoint.architecture, checkpoint.config, state)
    encoded = checkpoint.tokenizer.encode_batch([row.question for row in rows])
    features = all_features(network, [each.ids for each in encoded]).double()
    chances = [chances_of(checkpoint.parts[COST + each]).double() for each in others]
    prior = torch.stack(chances).mean(0)
    right = torch.tensor([row.chances for row in rows])
    none, single, multi = right.double().unbind(1)
    targets = {
        "none": (none, prior[:, 0], OWN),
        "single": (single, prior[:, 1], OWN),
        "gain": (multi - single, prior[:, 2] - prior[:, 1], OWN_GAIN),
    }
    fits = {name: fit(features, *target) for name, target in targets.items()}
    none, single, gain = (found.weights for found in fits.values())
    about = {
        name: {
            "mean": round(target.mean().item(), 4),
            "error": round(fits[name].error, 4),
            "error_of_a_constant": round(_constant_error(target), 4),
        }
        for name, (target, *_) in targets.items()
    }
    heads = heads_of(profile, torch.stack([none, single, single + gain], 1).float())
    return heads, dials_of(features, heads), about


def fit(features: Tensor, target: Tensor, prior: Tensor, own: float) -> Fit:
    """Fit a · prior + b + δ · features.

    Args:
        features: [questions, width].
        target: [questions].
        prior: Weights of the features and 1: [width + 1].
        own: 1 / penalty on δ.
    """
    given = features @ prior[:-1] + prior[-1]
    centre = features.mean(0)
    scale = (features - centre).norm() / (len(features) * own) ** 0.5
    lead = torch.stack([given - given.mean(), torch.ones_like(given)], 1)
    every = torch.cat([lead, (features - centre) / scale], 1)
    penalty = torch.ones(every.shape[1]).double()
    penalty[:2] = torch.tensor([DRAWN, 1e-6])
    solved = torch.linalg.solve(every.T @ every + penalty.diag(), every.T)
    rest = target - given  # so that a is drawn to 1
    weights = solved @ rest
    left_out = (rest - every @ weights) / (1 - (every * solved.T).sum(1)).clamp_min(1e-9)
    more, shift, delta = weights[0], weights[1], weights[2:] / scale
    slope = (1 + more) * prior[:-1] + delta
    bias = (1 + more) * prior[-1] + shift - more * given.mean() - centre @ delta
    return Fit(torch.cat([slope, bias[None]]), left_out.square().mean().item())


def _constant_error(target: Tensor) -> float:
    """Return the leave-one-out mean squared error of predicting the mean."""
    n = len(target)
    return (target - target.mean()).square().mean().item() * (n / (n - 1)) ** 2
