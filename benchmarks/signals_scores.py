"""What signals.py computes from recorded outcomes: signals, chances, curves, and resamples."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from hopgate.classifiers.checkpoint import COST, Checkpoint, read
from hopgate.classifiers.networks import all_features, network_from
from hopgate.classifiers.training.adding import add_profiles
from hopgate.classifiers.training.utility import chances_of
from hopgate.common.files import json_line
from hopgate.common.strategies import FLARE_NAME_OF, STRATEGIES

PROFILE = "local-smollm2"
FOLDS = 5
STRENGTHS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
SHOWN = 5  # passages of a single retrieval
MODES = ("bm25", "dense")
RESAMPLES = 10_000

Floats = NDArray[np.float64]
Choices = NDArray[np.intp]
Row = dict[str, Any]


class Outcomes(NamedTuple):
    """What each strategy did with each question; all [questions, 3].

    Attributes:
        right: 1 where it answered the question.
        steps: Its retrievals.
        tokens: Its tokens, with those of the prompts; NaN where the labels do not have them.
    """

    right: Floats
    steps: Floats
    tokens: Floats


def outcomes(labels: Sequence[Row]) -> Outcomes:
    names = [FLARE_NAME_OF[name] for name in STRATEGIES]
    tokens = [row.get("tokens", {}) for row in labels]
    return Outcomes(
        np.array([[float(name in row["correct"]) for name in names] for row in labels]),
        np.array([[float(row["steps"][name]) for name in names] for row in labels]),
        np.array([[sum(spent.get(n, {"": np.nan}).values()) for n in names] for spent in tokens]),
    )


def own_tokens(row: Row, signal: str) -> list[float]:
    """Return a signal's token cost with each strategy; a draft serves as the answer of none."""
    draft, gate = (
        row[kind]["cost"]["prompt_tokens"] + row[kind]["cost"]["completion_tokens"]
        for kind in ("draft", "confidence")
    )
    drafts = draft if signal.startswith(("draft", "all")) else 0
    gates = gate if signal.startswith(("gate", "all")) else 0
    return [gates, drafts + gates, drafts + gates]


# Signals


def margins(row: Row) -> dict[str, float]:
    """Return how unsure the first tokens of a draft are, by the way to measure it; see signals.py.

    A draft that says "I don't know" has the highest uncertainty, as in the gate.
    """
    tokens = np.array(row["draft"]["tokens"] or [[0.5, 0.5, 0.0]])
    first, second = np.maximum(tokens[:, 0], 1e-9), np.maximum(tokens[:, 1], 1e-9)
    found = {"largest entropy (ships)": row["draft"]["uncertainty"]}
    for name, gaps in {
        "p₁ − p₂": first - second,
        "log p₁ − log p₂": np.log(first / second),
    }.items():
        found[f"{name}, first token"] = -gaps[0]
        for count in (3, 5, 20):
            found[f"{name}, mean of {count}"] = -gaps[:count].mean()
            found[f"{name}, least of {count}"] = -gaps[:count].min()
    found["TARG: mean p₂ / p₁ of 20"] = (second / first)[:20].mean()
    found["TARG: mean entropy of 20"] = tokens[:20, 2].mean()
    if not row["draft"]["known"]:
        found = dict.fromkeys(found, 20.0)
    return {name: float(value) for name, value in found.items()}


def first_search(row: Row) -> dict[str, list[float]]:
    """Return the figures of a question's first search, in groups."""
    search = row["search"]
    bm25, dense = (np.array([score for _, score in search[mode]] or [0.0]) for mode in MODES)
    ids = [[key for key, _ in search[mode]] for mode in MODES]
    shared = len(set(ids[0][:SHOWN]) & set(ids[1][:SHOWN])) / SHOWN
    return {
        "BM25 scores": [bm25[0], bm25[0] - bm25.mean(), bm25[1:2].sum() / max(bm25[0], 1e-9)],
        "dense scores": [dense[0], dense[0] - dense.mean(), dense[0] - dense[1:2].sum()],
        "agreement": [shared, _rank(ids[0][:1], ids[1]), _rank(ids[1][:1], ids[0])],
        "support": [search["support"][0], max(search["support"][:SHOWN])],
    }


def _rank(top: Sequence[str], other: Sequence[str]) -> float:
    """Return 1 / the rank of a ranking's first passage in the other ranking; 0 if it is absent."""
    return 1 / (1 + other.index(top[0])) if top and top[0] in other else 0.0


def p_yes(row: Row) -> float:
    """Return the log-odds of Yes; even odds if the gate gave neither Yes nor No."""
    chance = row["confidence"]["p_yes"]
    chance = min(max(0.5 if chance is None else chance, 1e-6), 1 - 1e-6)
    return float(np.log(chance / (1 - chance)))


# Chances


def router_chances(train: Sequence[Row], test: Sequence[Row]) -> tuple[Floats, Floats]:
    """Return the router's estimates of P(right), for train out of fold, and for test."""
    checkpoint = read("builtin")
    profiles = [each for each in checkpoint.profiles if each != PROFILE]
    state = checkpoint.state(COST + profiles[0])
    network = network_from(checkpoint.architecture, checkpoint.config, state)

    def lead(rows: Sequence[Row]) -> Floats:
        encoded = checkpoint.tokenizer.encode_batch([row["question"] for row in rows])
        features = all_features(network, [each.ids for each in encoded])
        return torch.cat([features, torch.ones(len(rows), 1)], 1).double().numpy()

    known, fresh = lead(train), lead(test)
    held_out = np.zeros((len(train), len(STRATEGIES)))
    for kept, left in KFold(FOLDS, shuffle=True, random_state=0).split(train):
        held_out[left] = known[left] @ _heads([train[at] for at in kept])
    return held_out, fresh @ _heads(train)


def _heads(rows: Sequence[Row]) -> Floats:
    """Fit the heads to label rows, as `train-router --add-to builtin` does: [width + 1, 3]."""
    with tempfile.TemporaryDirectory() as folder:
        labels, out = Path(folder) / "labels.jsonl", Path(folder) / "router"
        labels.write_bytes(b"".join(map(json_line, rows)))
        add_profiles("builtin", {PROFILE: [labels]}, out)
        added: Checkpoint = read(out)
        return chances_of(added.parts[COST + PROFILE]).double().numpy()


def fitted(train: Floats, right: Floats, test: Floats) -> tuple[Floats, Floats]:
    """Fit a logistic regression for each column of `right`, as strong as cross-validation says.

    Returns:
        The chances, for train out of fold and for test: [questions, columns].
    """
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    columns = []
    for target in right.T:
        tried = []
        for strength in STRENGTHS:
            model = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=1000))
            chance = cross_val_predict(model, train, target, cv=folds, method="predict_proba")[:, 1]
            tried.append((log_loss(target, chance), strength, chance, model))
        _, _, chance, model = min(tried, key=lambda each: each[:2])
        columns.append((chance, model.fit(train, target).predict_proba(test)[:, 1]))
    held_out, found = (np.stack(each, 1) for each in zip(*columns, strict=True))
    return held_out, found


# Curves and resamples


def curve(chances: Floats, steps: Sequence[float]) -> Choices:
    """Return argmax(chance − penalty · steps) at every penalty where a decision changes.

    Returns:
        [points, questions]; the highest penalty, so the cheapest decisions, first.
    """
    cost = np.asarray(steps)
    pairs = [(0, 1), (0, 2), (1, 2)]
    turns = [(chances[:, b] - chances[:, a]) / (cost[b] - cost[a]) for a, b in pairs]
    penalties = np.unique(np.maximum(np.concatenate(turns), 0.0))[::-1]
    penalties = np.concatenate([[penalties[0] + 1], penalties - 1e-12])
    utility = chances[None] - penalties[:, None, None] * cost
    choices: Choices = utility.argmax(-1)
    return choices


def resamples(questions: int) -> Floats:
    """Return weights of the questions: first all alike, then those of bootstrap resamples."""
    even = np.full(questions, 1 / questions)
    drawn = np.random.default_rng(0).multinomial(questions, even, RESAMPLES) / questions
    return np.concatenate([even[None], drawn])


def along(choices: Choices, of: Floats, weights: Floats) -> Floats:
    """Return the means of an outcome [questions, 3] along a curve: [resamples, points]."""
    return weights @ of[np.arange(len(of)), choices].T


def area(accuracy: Floats, cost: Floats, budget: float) -> Floats:
    """Return the mean accuracy over all budgets up to `budget`, each used by its curve's point."""
    ends = np.concatenate([cost[:, 1:], np.full((len(cost), 1), budget)], 1)
    widths = np.minimum(ends, budget) - np.minimum(cost, budget)
    return (accuracy * widths).sum(1) / budget


def within(accuracy: Floats, cost: Floats, budget: float) -> Floats:
    """Return the accuracy of the last point that a budget allows; 0 if it allows none."""
    last = (cost <= budget + 1e-9).sum(1) - 1
    return np.where(last < 0, 0.0, accuracy[np.arange(len(accuracy)), last])


def share_area(score: Floats, cheap: Floats, deep: Floats, weights: Floats) -> Floats:
    """Return the mean accuracy over all shares of questions, highest score first, sent deeper.

    Of questions with the same score, any may be sent first: the mean over all orders.
    """
    size, gain, before = _sent(score, cheap, deep, weights)
    return weights @ cheap + (gain * (1 - before - size / 2)).sum(1)


def share_right(
    score: Floats, cheap: Floats, deep: Floats, share: float, weights: Floats
) -> Floats:
    """Return the accuracy if a share of the questions, highest score first, is sent deeper."""
    size, gain, before = _sent(score, cheap, deep, weights)
    sent = np.clip((share - before) / np.maximum(size, 1e-12), 0, 1)
    return weights @ cheap + (gain * sent).sum(1)


def _sent(
    score: Floats, cheap: Floats, deep: Floats, weights: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return of each score, highest first, its share of questions, their gain, and those before."""
    groups = (score[:, None] == np.unique(score)[::-1]).astype(float)
    size = weights @ groups
    return size, (weights * (deep - cheap)) @ groups, size.cumsum(1) - size


def auroc(score: Floats, target: Floats, weights: Floats) -> Floats:
    """Return the area under the ROC curve in each resample."""
    yes, no = target > 0, target == 0
    above = score[yes][:, None] - score[no][None]
    wins = (above > 0) + 0.5 * (above == 0)
    pairs = weights[:, yes].sum(1) * weights[:, no].sum(1)
    return ((weights[:, yes] @ wins) * weights[:, no]).sum(1) / pairs


def shown(values: Floats, digits: int = 3) -> str:
    """Return the first value, and the 95% interval of the others, as text."""
    low, high = np.quantile(values[1:], [0.025, 0.975])
    return f"{values[0]:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def by_name(rows: Sequence[Mapping[str, float]]) -> dict[str, Floats]:
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}
