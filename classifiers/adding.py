"""Adds LLMs to a router that was trained with the `utility` objective, and leaves it as it is.

The router's network has learnt from thousands of outcomes which questions need what. A few hundred
outcomes of another LLM are too few to teach it anew, but enough to tell how that LLM differs: its
chance of being right with A, with B, and what C adds to B, are each fitted as

    a · (mean of the router's LLMs) + b + δ · features

by least squares with a ridge on δ, which is as strong as predicts left-out questions best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hopgate.classifiers.checkpoint import (
    CARD,
    COST,
    HEAD,
    Checkpoint,
    check_free,
    read,
    router_folder,
    write,
)
from hopgate.classifiers.labels import STRATEGIES, LabelRow
from hopgate.classifiers.training import read_cost

if TYPE_CHECKING:
    from torch import Tensor

RIDGES = (0.0, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
"""Ridges that are tried, as 1 / strength, in units of the features' variance; 0: no δ at all."""


class Fit(NamedTuple):
    """One linear fit.

    Attributes:
        weights: Of the features and 1: [width + 1].
        inverse_ridge: One of `RIDGES`.
        error: Mean squared error on questions left out, one at a time.
    """

    weights: Tensor
    inverse_ridge: float
    error: float


def add_profiles(
    router: Path | str,
    cost: Mapping[str, Sequence[Path]],
    out: Path,
    *,
    notes: str = "",
    overwrite: bool = False,
) -> dict[str, Any]:
    """Writes a router with more LLMs; all else in it stays.

    Not so the α that `calibrate --save` named: they were chosen for the router as it was.

    Args:
        router: Folder of a router whose ends differ in the label head alone, or `builtin`.
        cost: Label files of each LLM, by the name of its profile, with `correct` in every row;
            a profile that the router has is replaced.
        out: Folder to write; with `overwrite` it may be the router's own.
        notes: Markdown for the model card.
        overwrite: Replace a router's folder that is there.

    Returns:
        What the manifest keeps as `training.added`, by profile: files, number of questions, and
        by `zero`, `one` and `gain` (what multiple adds to one) the share that is right, the ridge
        and the errors of the fit and of a constant on questions left out.

    Raises:
        ValueError: If router or labels are unusable, or `out` exists.
        RuntimeError: If a file of the router was altered, or `out` cannot be written to.
    """
    check_free(out, overwrite)
    labels = {profile: read_cost(profile, files) for profile, files in cost.items()}
    checkpoint = read(router)
    others = [each for each in checkpoint.profiles if each not in cost]
    _check(checkpoint, router, others, labels)
    about: dict[str, Any] = {}
    for profile, rows in labels.items():
        ends, figures = _fitted(checkpoint, others, profile, rows)
        checkpoint.parts |= ends
        files = [path.name for path in cost[profile]]
        about[profile] = {"files": files, "questions": len(rows), "fits": figures}
    checkpoint.training["added"] = checkpoint.training.get("added", {}) | about
    card = _card(router_folder(router) / CARD, about, notes)
    int8 = bool(checkpoint.training["recipe"]["int8"])
    write(checkpoint, out, card, int8=int8, overwrite=overwrite)
    return about


def _check(
    checkpoint: Checkpoint,
    router: Path | str,
    others: Sequence[str],
    labels: Mapping[str, Sequence[LabelRow]],
) -> None:
    heads = others and all(name.startswith(HEAD) for name in checkpoint.parts[COST + others[0]])
    if not heads or checkpoint.training.get("objective") != "utility":
        raise ValueError(
            f"router {router} has no other LLM trained with the utility objective, beside which "
            "one could be added; train it with --reliability instead"
        )
    for profile, rows in labels.items():
        for row in rows:
            if row.correct is None:
                raise ValueError(f"row {row.id!r} of profile {profile} has no `correct`; add it")


def _fitted(
    checkpoint: Checkpoint, others: Sequence[str], profile: str, rows: Sequence[LabelRow]
) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """The ends of the new LLM, and what the fits came to."""
    import torch

    from hopgate.classifiers.fitting import all_features
    from hopgate.classifiers.networks import network_from
    from hopgate.classifiers.utility import chances_of, ends_of

    network = network_from(
        checkpoint.architecture, checkpoint.config, checkpoint.state(COST + others[0])
    ).eval()
    encoded = checkpoint.tokenizer.encode_batch([row.question for row in rows])
    features = all_features(network, [each.ids for each in encoded]).double()
    chances = [chances_of(checkpoint.parts[COST + each]).double() for each in others]
    prior = torch.stack(chances).mean(0)
    right = torch.tensor([[float(s in (row.correct or ())) for s in STRATEGIES] for row in rows])
    zero, one, multiple = right.double().unbind(1)
    targets = {
        "zero": (zero, prior[:, 0]),
        "one": (one, prior[:, 1]),
        "gain": (multiple - one, prior[:, 2] - prior[:, 1]),
    }
    fits = {name: fit(features, target, start) for name, (target, start) in targets.items()}
    zero, one, gain = (found.weights for found in fits.values())
    about = {
        name: {
            "mean": round(target.mean().item(), 4),
            "inverse_ridge": fits[name].inverse_ridge,
            "error": round(fits[name].error, 4),
            "error_of_a_constant": round(_constant_error(target), 4),
        }
        for name, (target, _) in targets.items()
    }
    return ends_of(profile, torch.stack([zero, one, one + gain], 1).float()), about


def fit(features: Tensor, target: Tensor, prior: Tensor) -> Fit:
    """Fits a · prior + b + δ · features with the ridge of least error on questions left out.

    Args:
        features: [questions, width].
        target: [questions].
        prior: Weights of the features and 1: [width + 1].
    """
    import torch

    given = features @ prior[:-1] + prior[-1]
    centre = features.mean(0)
    free = torch.stack([given, torch.ones_like(given)], 1)
    spread = (features - centre) / (features - centre).norm() * len(features) ** 0.5
    found = []
    for inverse in RIDGES:
        every = torch.cat([free, spread * inverse**0.5], 1)
        penalty = torch.ones(every.shape[1], dtype=every.dtype)
        penalty[:2] = 1e-6  # only so that a constant prior can be solved too
        solved = torch.linalg.solve(every.T @ every + penalty.diag(), every.T)
        leverage = (every * solved.T).sum(1)
        weights = solved @ target
        left_out = (target - every @ weights) / (1 - leverage).clamp_min(1e-9)
        found.append((left_out.square().mean().item(), inverse, weights))
    error, inverse, weights = min(found, key=lambda each: each[:2])
    a, b, delta = weights[0], weights[1], weights[2:] * inverse**0.5
    delta = delta / (features - centre).norm() * len(features) ** 0.5
    slope = a * prior[:-1] + delta
    bias = a * prior[-1] + b - centre @ delta
    return Fit(torch.cat([slope, bias[None]]), inverse, error)


def _constant_error(target: Tensor) -> float:
    """Mean squared error of the other questions' mean."""
    n = len(target)
    return (target - target.mean()).square().mean().item() * (n / (n - 1)) ** 2


def _card(old: Path, added: Mapping[str, Any], notes: str) -> str:
    lines = [old.read_text(encoding="utf-8").rstrip() if old.is_file() else ""]
    for profile, about in added.items():
        lines += [
            "",
            f"## Added: {profile}",
            "",
            f"Its two ends alone, from {about['questions']} questions of "
            f"{', '.join(about['files'])}; the network is the one above. Squared error on "
            "questions left out, one at a time (gain: what multiple adds to one):",
            "",
            "| | mean | fit | a constant | 1 / ridge |",
            "|---|---|---|---|---|",
            *(
                f"| {name} | {fit['mean']:.3f} | {fit['error']:.4f} | "
                f"{fit['error_of_a_constant']:.4f} | {fit['inverse_ridge']:g} |"
                for name, fit in about["fits"].items()
            ),
        ]
    return "\n".join(lines + (["", notes.strip()] if notes.strip() else [])).lstrip() + "\n"
