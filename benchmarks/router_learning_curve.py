"""Are the labels the router's limit? Learning curves, layers, and what other LLMs' outcomes say.

    nice python benchmarks/router_learning_curve.py FOLDER [--out docs/results/router]

`FOLDER` holds Flare-Aug's label files, under the names in the Makefile. Four tables:

1. Training on 10% to 100% of the questions. Each fifth of the training questions is held out in
   turn; FLAN-T5-XL is also scored on its validation questions, which nothing is trained on.
2. The same on all questions, from the mean of the tokens' states after each layer of the encoder.
3. One LLM's outcomes, predicted from other LLMs' outcomes on the same questions.
4. The shipped router, on the validation questions, with its interval.

In 1 to 3 all outcomes are fitted by ridge regression, whose penalty is chosen by leave-one-out. The
encoder is the base as it was before it was tuned for routing, so that a fit takes a second.
Intervals: 95%, bootstrap over questions. Writes `learning-curve.json` and `learning-curve.png`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import RidgeCV
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from hopgate.classifiers.labels import read_labels, read_questions
from hopgate.classifiers.networks import padded
from hopgate.classifiers.router import load_router
from hopgate.classifiers.training.bases import load_base
from hopgate.classifiers.training.data import read_cost
from hopgate.classifiers.training.utility import SHARED, STEPS, targets_of
from hopgate.common.files import json_bytes, write_atomic
from hopgate.evaluation.measuring.replay import MULTI_STEPS, join, multi_steps, route_all
from hopgate.evaluation.measuring.sweep import evenly, summary
from hopgate.evaluation.reports import drawing

LLMS = {
    "flan-t5-xl": "flan_t5_xl",
    "flan-t5-xxl": "flan_t5_xxl",
    "gpt-4o-mini": "gpt4o_mini",
    "gpt-4o": "gpt4o",
}
ASKED = 3000
SHARES = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
FOLDS, SEEDS, DRAWS = 5, 3, 200
LAYER = 4
"""The best of the encoder's layers in table 2, without the validation questions."""
PENALTIES = np.concatenate([[10.0], np.geomspace(1, 1e-4, 200), [0.0]])
RIDGES = np.geomspace(100, 100_000, 7)
MEASURES = ("area", "share_at_38", "share_at_50")

Floats = NDArray[np.float64]
Predict = Callable[[Floats], Floats]


class Data(NamedTuple):
    """Recorded outcomes; the names are those of `hopgate.classifiers.training.utility.Targets`.

    Attributes:
        questions: Their texts.
        right: [questions, LLMs, 3].
        weight: [questions], 0 where the outcome is unknown.
        steps: [questions, 3].
    """

    questions: list[str]
    right: Floats
    weight: Floats
    steps: Floats


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("flare", type=Path, metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=Path("docs/results/router"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    train, valid = training_data(options.flare), validation_data(options.flare)
    layers = layers_of(train.questions + valid.questions)
    seen, unseen = np.split(layers, [len(train.questions)], axis=1)
    document: dict[str, Any] = {
        "curve": learning_curve(seen[LAYER], unseen[LAYER], train, valid),
        "layers": by_layer(seen, unseen, train, valid),
        "others": from_others(seen[LAYER], train),
        "ships": shipped(options.flare),
    }
    write_atomic(options.out / "learning-curve.json", json_bytes(document))
    write_atomic(options.out / "learning-curve.png", picture(document))


def training_data(flare: Path) -> Data:
    """Read the outcomes of all LLMs; questions that none answered get placeholders."""
    cost = {name: read_cost(name, [flare / f"{of}.train.jsonl"]) for name, of in LLMS.items()}
    hops = read_labels(flare / "binary.train.jsonl")
    targets = targets_of(cost, hops, ASKED)
    rows = {row.id: row for labelled in cost.values() for row in labelled}
    datasets = [row.dataset for row in (*rows.values(), *hops)]
    known = targets.weight[:, 0].numpy() > 0
    return Data(
        [question for question, use in zip(targets.questions, known, strict=True) if use],
        targets.right.numpy()[known].astype(float),
        targets.weight[:, 0].numpy()[known].astype(float),
        np.array([[0, 1, MULTI_STEPS[name]] for name in datasets])[known],
    )


def validation_data(flare: Path) -> Data:
    """Read FLAN-T5-XL's outcomes on the validation questions."""
    rows = read_questions(flare / "questions.valid.jsonl")
    steps = multi_steps(None, {row.dataset for row in rows})
    found = join(rows, read_labels(flare / "flan_t5_xl.valid.jsonl"), steps)
    right = found.correct[:, None].astype(float)
    return Data(list(found.questions), right, np.ones(len(rows)), found.steps)


def layers_of(questions: Sequence[str]) -> Floats:
    """Return the mean of the tokens' states, [layers + 1, questions, width]; 0: the embeddings."""
    start = load_base("builtin")
    network: Any = start.network
    encoder = network.t5.encoder
    ids = [encoding.ids for encoding in start.tokenizer.encode_batch(list(questions))]
    order = sorted(range(len(ids)), key=lambda at: len(ids[at]))
    parts = []
    with torch.inference_mode():
        for first in range(0, len(order), 64):
            tokens, mask = padded([ids[at] for at in order[first : first + 64]])
            states = encoder(tokens, attention_mask=mask, output_hidden_states=True).hidden_states
            real = mask.unsqueeze(-1).float()
            parts.append([((each * real).sum(1) / real.sum(1)).numpy() for each in states])
    sorted_ = np.concatenate([np.stack(part) for part in parts], axis=1)
    return np.asarray(sorted_[:, np.argsort(order)], float)


def fit(features: Floats, data: Data, rows: NDArray[np.int_]) -> Predict:
    """Return what predicts P(right), [questions, LLMs, 3], as the router's label heads use it."""
    scale = StandardScaler().fit(features[rows])
    ridge = RidgeCV(RIDGES)
    targets = data.right[rows].reshape(len(rows), -1)
    ridge.fit(scale.transform(features[rows]), targets, data.weight[rows])

    def predict(given: Floats) -> Floats:
        chances = ridge.predict(scale.transform(given)).reshape(len(given), -1, 3)
        gain = chances[:, :, 2] - chances[:, :, 1]
        shared = SHARED * gain.mean(1, keepdims=True) + (1 - SHARED) * gain
        return np.stack([chances[:, :, 0], chances[:, :, 1], chances[:, :, 1] + shared], axis=2)

    return predict


def held_out(features: Floats, data: Data, share: float, seed: int) -> Floats:
    """Return the predictions for each fifth of a training on a share of the others."""
    random = np.random.default_rng(seed)
    fold, rank = random.permutation(len(features)) % FOLDS, random.permutation(len(features))
    found = np.empty((len(features), *data.right.shape[1:]))
    for at in range(FOLDS):
        rows = np.flatnonzero(fold != at)
        rows = rows[np.argsort(rank[rows])][: round(share * len(rows))]
        found[fold == at] = fit(features, data, rows)(features[fold == at])
    return found


def choices_of(chances: Floats) -> NDArray[np.int_]:
    """Return the best strategy for each penalty for a step, [penalties, questions]."""
    return np.stack([(chances - each * np.array(STEPS)).argmax(1) for each in PENALTIES])


def measures(choices: NDArray[Any], right: Floats, data: Data) -> Floats:
    """Return `MEASURES` as shares of multi-step's accuracy, on all questions, then on each draw.

    Args:
        choices: [points, questions].
        right: Of one LLM: [questions, 3].
        data: Gives steps and weights.

    Returns:
        [1 + draws, measures].
    """
    random, count = np.random.default_rng(0), len(right)
    draws = [np.bincount(random.integers(0, count, count), minlength=count) for _ in range(DRAWS)]
    weights = np.stack([np.ones(count), *draws]) * data.weight
    weights /= weights.sum(1, keepdims=True)
    at = np.arange(count)
    points = weights @ np.stack([data.steps[at, choices], right[at, choices]]).swapaxes(1, 2)
    multi = weights @ np.stack([data.steps[:, 2], right[:, 2]], axis=1)
    found = []
    for steps, accuracy, (most, reached) in zip(*points, multi, strict=True):
        pairs = zip(steps.tolist(), accuracy.tolist(), strict=True)
        rows = [{"steps": each, "accuracy": share} for each, share in pairs]
        summed: Any = summary(rows, {"steps": most, "accuracy": reached})
        found.append([summed["area"] / reached, summed["share_at_38"], summed["share_at_50"]])
    return np.array(found)


def of_llms(chances: Floats, data: Data) -> Floats:
    """Return `measures` for each LLM, [LLMs, 1 + draws, measures]."""
    return np.stack(
        [
            measures(choices_of(chances[:, llm]), data.right[:, llm], data)
            for llm in range(data.right.shape[1])
        ]
    )


def with_interval(found: Floats) -> list[list[float]]:
    """Return value, low and high of each measure, from [1 + draws, measures]."""
    rows: list[list[float]] = np.vstack(
        [found[:1], np.percentile(found[1:], [2.5, 97.5], axis=0)]
    ).T.tolist()
    return rows


def learning_curve(
    train_features: Floats, valid_features: Floats, train: Data, valid: Data
) -> list[dict[str, Any]]:
    """Score training runs on growing shares of the questions: the mean over `SEEDS` samples."""
    print(f"\nTraining on a share of the questions; {SEEDS} samples\n")
    header("questions", *LLMS, "mean", "flan-t5-xl, at most 38%", "at most 50%", "validation")
    rows, all_found = [], []
    for share in SHARES:
        held, fresh = [], []
        for seed in range(SEEDS):
            held.append(of_llms(held_out(train_features, train, share, seed), train))
            order = np.random.default_rng(seed).permutation(len(train_features))
            used = order[: round(share * len(order))]
            chances = fit(train_features, train, used)(valid_features)[:, :1]
            fresh.append(of_llms(chances, valid)[0])
        found, new = np.mean(held, axis=0), np.mean(fresh, axis=0)
        all_found.append(np.vstack([found[:, :, 0], found[None, :, :, 0].mean(1), new[None, :, 0]]))
        row: dict[str, Any] = {
            "share": share,
            "asked": round(share * ASKED * (FOLDS - 1) / FOLDS),
            "llms": {name: with_interval(each) for name, each in zip(LLMS, found, strict=True)},
            "mean": with_interval(found.mean(0)),
            "valid": with_interval(new),
        }
        rows.append(row)
        areas = [*(each[0] for each in row["llms"].values()), row["mean"][0]]
        cells(f"{row['asked']:,}", *areas, *row["llms"]["flan-t5-xl"][1:], row["valid"][0])
    print("\nArea that a doubling of the questions adds, from 40% on:\n")
    slopes = doubling(np.stack(all_found))
    for name, slope in zip([*LLMS, "mean", "validation"], slopes, strict=True):
        print(f"- {name}: {slope[0]:+.4f} ({slope[1]:+.4f} to {slope[2]:+.4f})")
    return rows


def doubling(areas: Floats) -> list[list[float]]:
    """Return the slope over log2 of the share, with its interval, of areas [shares, …, draws]."""
    late = [at for at, share in enumerate(SHARES) if share >= 0.4]
    logs = np.log2([SHARES[at] for at in late])
    centred = (logs - logs.mean()) / ((logs - logs.mean()) ** 2).sum()
    slopes = np.tensordot(centred, areas[late], axes=1)
    return [with_interval(each[:, None])[0] for each in slopes]


def by_layer(seen: Floats, unseen: Floats, train: Data, valid: Data) -> list[dict[str, Any]]:
    """Score routers that stop after each layer of the encoder."""
    print("\nThe mean of the tokens' states after a layer\n")
    header("layers", *LLMS, "mean", "flan-t5-xl, at most 38%", "at most 50%", "validation")
    rows: list[dict[str, Any]] = []
    every = np.arange(len(train.questions))
    for layer in range(len(seen)):
        found = of_llms(held_out(seen[layer], train, 1.0, 0), train)
        fresh = of_llms(fit(seen[layer], train, every)(unseen[layer])[:, :1], valid)[0]
        llms = {name: with_interval(each) for name, each in zip(LLMS, found, strict=True)}
        row = {"layer": layer, "llms": llms, "mean": with_interval(found.mean(0))}
        rows.append(row | {"valid": with_interval(fresh)})
        areas = [*(each[0] for each in llms.values()), rows[-1]["mean"][0]]
        cells(f"{layer}", *areas, *llms["flan-t5-xl"][1:], rows[-1]["valid"][0])
    return rows


def from_others(features: Floats, train: Data) -> list[dict[str, Any]]:
    """Score predictions of one LLM's outcomes from those of others, and the oracle."""
    print("\nFrom the outcomes of other LLMs on the same questions\n")
    header("known", *LLMS, "mean", "flan-t5-xl, at most 38%", "at most 50%")
    family = [0, 0, 1, 1]
    kinds: dict[str, Callable[[int, int], bool]] = {
        "the other family's": lambda one, other: family[one] != family[other],
        "the sister model's": lambda one, other: family[one] == family[other] and one != other,
        "all three others'": lambda one, other: one != other,
    }
    rows = [_known("the question", train, lambda llm: features)]
    for name, counts in kinds.items():
        for text in (False, True):

            def known(
                llm: int, counts: Callable[[int, int], bool] = counts, text: bool = text
            ) -> Floats:
                others = [at for at in range(len(LLMS)) if counts(llm, at)]
                outcomes = train.right[:, others].reshape(len(features), -1)
                crossed = PolynomialFeatures(3, interaction_only=True, include_bias=False)
                made: Floats = crossed.fit_transform(outcomes)
                return np.hstack([made, features]) if text else made

            rows.append(_known(f"{name} outcomes" + ", the question" * text, train, known))
    oracle = of_llms(train.right, train)
    rows.append(_row("its own outcomes (oracle)", oracle))
    return rows


def _known(name: str, train: Data, known: Callable[[int], Floats]) -> dict[str, Any]:
    found = []
    for llm in range(len(LLMS)):
        own = train._replace(right=train.right[:, [llm]])
        found.append(of_llms(held_out(known(llm), own, 1.0, 0), own)[0])
    return _row(name, np.stack(found))


def _row(name: str, found: Floats) -> dict[str, Any]:
    llms = {llm: with_interval(each) for llm, each in zip(LLMS, found, strict=True)}
    mean = with_interval(found.mean(0))
    cells(name, *(each[0] for each in llms.values()), mean[0], *llms["flan-t5-xl"][1:])
    return {"known": name, "llms": llms, "mean": mean}


def shipped(flare: Path) -> list[list[float]]:
    """Return the shipped router's interval, on the validation questions."""
    valid = validation_data(flare)
    router = load_router("builtin", "flan-t5-xl")
    choices = route_all(router, valid.questions, evenly(201)).choices
    found = with_interval(measures(choices, valid.right[:, 0], valid))
    print("\nThe router that ships, FLAN-T5-XL, validation\n")
    header(*MEASURES)
    print("| " + " | ".join(cell(each) for each in found) + " |")
    return found


def header(*names: str) -> None:
    """Print the first two lines of a table."""
    print("| " + " | ".join(names) + " |")
    print("|---" * len(names) + "|", flush=True)


def cells(first: str, *values: list[float]) -> None:
    """Print a line of a table."""
    print(f"| {first} | " + " | ".join(cell(each) for each in values) + " |", flush=True)


def cell(value: Sequence[float]) -> str:
    """Return a value with its interval."""
    return f"{value[0]:.3f} ({value[1]:.3f} to {value[2]:.3f})"


def picture(document: dict[str, Any]) -> bytes:
    """Draw the learning curves of all LLMs, and what other LLMs' outcomes predict."""
    figure = drawing.new_figure(12, 5.2)
    left, right = figure.subplots(1, 2)
    asked = [row["asked"] for row in document["curve"]]
    colours = (drawing.BLUE, drawing.SKY, drawing.RED, drawing.ORANGE)
    for name, colour in zip(LLMS, colours, strict=True):
        found = np.array([row["llms"][name][0] for row in document["curve"]])
        left.plot(asked, found[:, 0], "o-", color=colour, lw=2, label=name)
        left.fill_between(asked, found[:, 1], found[:, 2], color=colour, alpha=0.12, lw=0)
    left.set_xscale("log", base=2)
    named = [each for each, share in zip(asked, SHARES, strict=True) if share not in (0.6, 0.8)]
    left.set_xticks(named, [f"{each:,}" for each in named])
    left.set_xlabel("questions asked of each LLM in training", fontsize=12)
    left.set_title("More questions", loc="left", fontsize=13)
    for at, row in enumerate(document["others"]):
        value, low, high = row["llms"]["flan-t5-xl"][0]
        right.barh(at, value, height=0.6, color=drawing.BLUE, alpha=0.85)
        right.plot([low, high], [at, at], color="black", lw=1.4, marker="|", ms=7)
    right.set_yticks(range(len(document["others"])), [row["known"] for row in document["others"]])
    right.invert_yaxis()
    right.set_xlim(0.85, 1.17)
    right.set_title("FLAN-T5-XL's outcomes predicted from", loc="left", fontsize=13)
    left.set_ylabel("area, as a share of multi-step's accuracy", fontsize=12)
    right.set_xlabel("area, as a share of multi-step's accuracy", fontsize=12)
    for axes in (left, right):
        drawing.style_axes(axes)
    left.grid(color=drawing.LIGHT_GREY, lw=0.6)
    left.legend(frameon=False, fontsize=11, ncols=2)
    return drawing.to_png(figure)


if __name__ == "__main__":
    main()
