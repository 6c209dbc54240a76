"""Fine-tune a router: cost and reliability weights for each LLM, from one base.

All weights start from the same base; otherwise a blend of them would be meaningless (Flare-Aug,
section 3). With the `flare` objective, as published, the cost weights learn the cheapest strategy
that answers a question for one LLM, and the reliability weights, one set for all LLMs, learn
single-hop → B and multi-hop → C. With `utility`, both weights of each LLM are derived from one
network that learns all outcomes (`hopgate.classifiers.training.utility`).
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hopgate.classifiers.checkpoint import COST, RELIABILITY, Checkpoint
from hopgate.classifiers.dial import Dial
from hopgate.classifiers.doubts import mostly_english
from hopgate.classifiers.drift import summarise
from hopgate.classifiers.labels import LabelRow
from hopgate.classifiers.networks import ARCHITECTURE, T5Network, all_features
from hopgate.classifiers.router import Router
from hopgate.classifiers.training import utility
from hopgate.classifiers.training.bases import (
    PUBLISHED,
    Objective,
    Recipe,
    Start,
    load_base,
    state_of,
)
from hopgate.classifiers.training.data import read_cost, read_reliability
from hopgate.classifiers.training.dials import cheapest_alpha, dials_of
from hopgate.classifiers.training.fitting import Advance, Training, Unfinished
from hopgate.classifiers.training.graphs import add_graph
from hopgate.classifiers.training.writing import Parts, check_free, model_card, split, write
from hopgate.common.strategies import LABELS

Losses = dict[str, list[float]]


def train(
    cost: Mapping[str, Sequence[Path]],
    reliability: Path,
    out: Path,
    *,
    base: str = "builtin",
    objective: Objective | None = None,
    asked: int | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    seed: int = 0,
    notes: str = "",
    overwrite: bool = False,
    advance: Advance = lambda stage, done, total: None,
) -> dict[str, Any]:
    """Train all weights and write the router's folder.

    Runs on a GPU if there is one. A killed training resumes after its last complete epoch when it
    is started again with the same data and settings.

    Args:
        cost: Label files of each LLM, by the name of its profile.
        reliability: Label file with B for single-hop and C for multi-hop questions.
        out: Folder to write.
        base: `builtin` or the folder of a router or base (with the recipe for small ones), or a
            pretrained T5 (folder or name) that `transformers` can load.
        objective: Default: `flare` for a pretrained T5 and for rows without `correct`, else
            `utility`.
        asked: For `utility`: number of questions put to the LLMs, if the cost files leave out
            those that no strategy answered.
        epochs: Passes over the questions; default: the recipe of the base (`PUBLISHED` for a
            pretrained T5).
        batch_size: Questions in a batch; default: the recipe's.
        learning_rate: Default: the recipe's.
        seed: For the order and the dropout.
        notes: Markdown for the model card, e.g. the origin of the data and its licence.
        overwrite: Replace an existing router's folder.
        advance: Called with the stage, its steps done and their total after each step.

    Returns:
        The manifest's `training`: data, recipe, seed and figures.

    Raises:
        ValueError: Labels, base or settings are unusable, or `out` exists.
        RuntimeError: The training diverged, or `out` is not writable.
    """
    out = out.expanduser()
    check_free(out, overwrite)
    labels = {profile: read_cost(profile, paths) for profile, paths in cost.items()}
    hops = read_reliability(reliability)
    start = load_base(base)
    known = all(row.correct is not None for rows in labels.values() for row in rows)
    objective = objective or (start.objective if known else "flare")
    if asked is not None and objective == "flare":
        raise ValueError("--asked applies only to the utility objective; leave it out")
    recipe = _recipe(
        start.recipe, epochs=epochs, batch_size=batch_size, learning_rate=learning_rate
    )
    training: dict[str, Any] = {
        "base": base if start.recipe is PUBLISHED else Path(base).name,
        "objective": objective,
        "data": {
            "cost": {name: [path.name for path in paths] for name, paths in cost.items()},
            "reliability": reliability.name,
            "asked": asked,
            "labels": {
                name: {label or "none": n for label, n in Counter(r.label for r in rows).items()}
                for name, rows in {**labels, RELIABILITY: hops}.items()
            },
        },
        "recipe": asdict(recipe),
        "seed": seed,
        "english": mostly_english(
            row.question for rows in (*labels.values(), hops) for row in rows
        ),
    }
    unfinished = _unfinished(out, training, start, labels, hops)
    run = Training(recipe, seed, unfinished, advance)
    if objective == "utility":
        targets = utility.targets_of(labels, hops, asked)
        parts, training["loss"], dials = _utility(run, start, targets, list(labels))
    else:
        rows_of = {COST + profile: rows for profile, rows in labels.items()}
        parts, training["loss"] = _flare(run, start, rows_of | {RELIABILITY: hops})
        dials = {}  # along this blend, steps may fall as well as rise
    checkpoint = Checkpoint(
        architecture=ARCHITECTURE,
        config=start.config,
        tokenizer=start.tokenizer,
        parts=split(parts, state_of(start.network)),
        training=training,
        dials=dials,
    )
    add_graph(checkpoint)
    if checkpoint.graph:  # else each pass would need torch, and every α a pass of its own
        questions = [row.question for rows in (*labels.values(), hops) for row in rows]
        for profile in checkpoint.profiles:
            router, rows = Router(checkpoint, profile), labels[profile]
            checkpoint.known[profile] = summarise(router, questions)
            if objective == "utility":  # whose rows have the outcomes
                checkpoint.alphas[profile] = cheapest_alpha(router, rows)
    values = training | {
        "profiles": checkpoint.profiles,
        "architecture": ARCHITECTURE,
        "dials": bool(dials),
    }
    card = model_card("card.md.jinja", values, notes)
    write(checkpoint, out, card, int8=recipe.int8, overwrite=overwrite)
    unfinished.discard()
    return training


def _flare(
    run: Training, start: Start, rows_of: Mapping[str, Sequence[LabelRow]]
) -> tuple[Parts, Losses]:
    """Train each set of weights on its own labels; return weights and losses by part."""
    parts, losses = {}, {}
    for part, rows in rows_of.items():
        network = _network(run, start)
        labelled = [(row.question, LABELS.index(row.label)) for row in rows if row.label]
        questions, numbers = zip(*labelled, strict=True)
        labels = torch.tensor(numbers, device=network.head.weight.device)

        def loss(
            features: Tensor, batch: Tensor, head: nn.Module = network.head, labels: Tensor = labels
        ) -> Tensor:
            return functional.cross_entropy(head(features), labels[batch])

        losses[part] = run.fit(network, _ids(start, questions), loss, part)
        parts[part] = state_of(network)
    return parts, losses


def _utility(
    run: Training, start: Start, targets: utility.Targets, profiles: Sequence[str]
) -> tuple[Parts, Losses, dict[str, Dial]]:
    """Train one network on all outcomes and derive the label heads from it."""
    network = _network(run, start)
    device = network.head.weight.device
    torch.manual_seed(run.seed)
    readout = utility.new_readout(network.head.in_features, len(profiles)).to(device)
    ids, loss = _ids(start, targets.questions), utility.loss_of(readout, targets.to(device))
    losses = run.fit(network, ids, loss, "outcomes", readout)
    features = all_features(network, ids)
    heads = utility.label_heads(features, readout.cpu(), profiles)
    body, dials = state_of(network), dials_of(features, heads)
    return {part: body | head for part, head in heads.items()}, {"outcomes": losses}, dials


def _network(run: Training, start: Start) -> T5Network:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network = copy.deepcopy(start.network).to(device)
    network.tune(run.recipe.tuned_layers)
    return network


def _ids(start: Start, questions: Sequence[str]) -> list[list[int]]:
    return [encoding.ids for encoding in start.tokenizer.encode_batch(list(questions))]


def _recipe(recipe: Recipe, **given: Any) -> Recipe:
    for name, value in given.items():
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name} is {value!r}; it must be above 0")
    return replace(recipe, **{name: value for name, value in given.items() if value is not None})


def _unfinished(
    out: Path,
    training: Mapping[str, Any],
    start: Start,
    cost: Mapping[str, Sequence[LabelRow]],
    reliability: Sequence[LabelRow],
) -> Unfinished:
    """Return the state of a killed run, identified by a hash of everything that it depends on."""
    rows = list(map(asdict, (*itertools.chain(*cost.values()), *reliability)))
    data = json.dumps([training, rows], sort_keys=True, default=sorted)  # `correct` is a set
    digest = hashlib.sha256(data.encode())
    for name, values in state_of(start.network).items():
        digest.update(name.encode())
        digest.update(values.tobytes())
    return Unfinished(out, digest.hexdigest())
