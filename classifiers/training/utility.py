"""The `utility` objective: expected correctness minus a penalty for retrieval steps.

Flare-Aug's cost labels record one thing about a question: the cheapest strategy that answered it.
Here all outcomes count: the network learns, for all LLMs at once, how likely each strategy is to be
right, and also whether a question is multi-hop. The label heads of each LLM's cost and reliability
weights are then fitted to its features by least squares, so that A, B and C score

    cost weights         COST_SCALE · (P(right) − COST_PENALTY · steps)
    reliability weights  RELIABILITY_SCALE · (P(right) − RELIABILITY_PENALTY · steps)

A blend of the two is the same utility with a penalty in between: the penalty falls as α grows, so
a greater α never routes a question to a cheaper strategy. The steps jump along the blend, so each
LLM gets a dial from α to the blend's weight (`hopgate.classifiers.dial`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from hopgate.classifiers.checkpoint import COST, RELIABILITY
from hopgate.classifiers.labels import LabelRow
from hopgate.classifiers.networks import DROPOUT
from hopgate.classifiers.training.data import check_outcomes
from hopgate.common.strategies import STRATEGIES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hopgate.classifiers.checkpoint import Weights

    Heads = Mapping[str, Mapping[str, NDArray[np.float32]]]

STEPS = (0.0, 1.0, 4.69)
"""Retrieval steps of A, B and C; C: multi-step's mean over six datasets (Adaptive-RAG)."""
COST_PENALTY, RELIABILITY_PENALTY = 0.5, 0.008
"""How much a step must raise the chance of a right answer. At α = 0 hardly any step does. At α = 1
steps are nearly free, but a second retrieval that adds nothing is still avoided."""
COST_SCALE, RELIABILITY_SCALE = 0.9, 66.0
"""Weight of differences in utility. The penalty at α is the mean of both penalties, weighted by
(1 − w) and w times these scales, where w is the blend's weight at α (see `dials_of`). At w = 0.4 it
is 0.018, so that the router reaches multi-step's accuracy at the same weight as Flare-Aug's
(table 1)."""
SHARED = 0.75
"""Share of C's gain over B that is the mean over all LLMs: their questions are the same, and
each LLM has few that only C answers."""
RIDGE = 1e-2


class Targets(NamedTuple):
    """The targets of each question, as tensors.

    Attributes:
        questions: Their texts.
        right: Whether each strategy was right, for each LLM: [questions, LLMs, 3].
        weight: Weight of the outcomes: [questions, LLMs]; 0 if unknown.
        multi_hop: 1 for multi-hop, 0 for single-hop, NaN if unknown: [questions].
    """

    questions: list[str]
    right: Tensor
    weight: Tensor
    multi_hop: Tensor

    def to(self, device: torch.device) -> Targets:
        """Move the tensors to a device."""
        return Targets(self.questions, *(tensor.to(device) for tensor in self[1:]))


def targets_of(
    cost: Mapping[str, Sequence[LabelRow]], reliability: Sequence[LabelRow], asked: int | None
) -> Targets:
    """Align the label rows of all LLMs by question.

    Args:
        cost: By profile, the rows of its LLM, with `correct`.
        reliability: Rows with B for single-hop, C for multi-hop.
        asked: Number of questions put to every LLM, if the files leave out those that no strategy
            answered: a question that is missing from only some files counts as wrong there, and
            the reliability rows stand in for the questions missing from all files. None: missing
            outcomes are unknown.

    Raises:
        ValueError: A row has no `correct`, two files give one id to different questions, or
            `asked` is less than the number of questions in the files.
    """
    check_outcomes(cost)
    rows: dict[str, LabelRow] = {}
    for profile, labelled in cost.items():
        for row in labelled:
            if rows.setdefault(row.id, row).question != row.question:
                raise ValueError(
                    f"id {row.id!r} of profile {profile} is a different question in another "
                    "profile's cost file; give each question a unique id"
                )
    if asked is not None and asked < len(rows):
        raise ValueError(f"--asked is {asked}, but the cost files have {len(rows)} questions")
    every = [*rows.values(), *reliability]
    right = torch.zeros(len(every), len(cost), len(STRATEGIES))
    weight = torch.zeros(len(every), len(cost))
    at = {id_: number for number, id_ in enumerate(rows)}
    for column, labelled in enumerate(cost.values()):
        for row in labelled:
            right[at[row.id], column] = torch.tensor(row.chances)
            weight[at[row.id], column] = 1
    if asked is not None:
        weight[: len(rows)] = 1
        known = {row.question for row in rows.values()}
        unknown = torch.tensor([float(row.question not in known) for row in reliability])
        share = (asked - len(rows)) / max(1.0, unknown.sum().item())
        weight[len(rows) :] = share * unknown.unsqueeze(1)
    return Targets([r.question for r in every], right, weight, _multi_hop(every, reliability))


def _multi_hop(every: Sequence[LabelRow], reliability: Sequence[LabelRow]) -> Tensor:
    """Return the labels of the reliability rows; they also give those of their datasets."""
    of_dataset: dict[str, set[str | None]] = {}
    for row in reliability:
        of_dataset.setdefault(row.dataset, set()).add(row.label)
    known = {name: labels.pop() for name, labels in of_dataset.items() if len(labels) == 1}
    values = [float(row.label == "C") for row in reliability]
    others = every[: len(every) - len(reliability)]
    looked_up = [known.get(row.dataset) if row.dataset else None for row in others]
    return torch.tensor(
        [float("nan") if label is None else float(label == "C") for label in looked_up] + values
    )


def new_readout(width: int, profiles: int) -> nn.Linear:
    """Return an untrained layer: a row for each LLM and strategy, and one for multi-hop."""
    layer = nn.Linear(width, profiles * len(STRATEGIES) + 1)
    nn.init.normal_(layer.weight, std=0.02)
    nn.init.zeros_(layer.bias)
    return layer


def loss_of(readout: nn.Linear, targets: Targets) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss of a batch: cross-entropy of every known outcome, and of multi-hop."""
    _, right, weight, multi_hop = targets
    has_hop = ~multi_hop.isnan()

    def loss(features: Tensor, batch: Tensor) -> Tensor:
        features = functional.dropout(features, DROPOUT, readout.training)
        scores = readout(features)
        batch = batch.to(right.device)
        found = functional.binary_cross_entropy_with_logits(
            scores[:, :-1].view(-1, *right.shape[1:]), right[batch], reduction="none"
        )
        hop = functional.binary_cross_entropy_with_logits(
            scores[:, -1], multi_hop[batch].nan_to_num(), reduction="none"
        )
        return ((found.sum(2) * weight[batch]).sum() + (hop * has_hop[batch]).sum()) / len(batch)

    return loss


def label_heads(
    features: Tensor, readout: nn.Linear, profiles: Sequence[str]
) -> dict[str, dict[str, NDArray[np.float32]]]:
    """Return the label heads of all weights; their scores are linear in the features.

    The readout's probabilities are fitted to the features by ridge regression, then penalised for
    steps (see the module's docstring).

    Args:
        features: Of the training questions, without dropout: [questions, width].
        readout: Trained.
        profiles: The LLMs, in the order of the readout.

    Returns:
        By part (`cost-PROFILE`, `reliability-PROFILE`), `head.weight` [3, width] and
        `head.bias` [3].
    """
    with torch.no_grad():
        given = readout(features).sigmoid()
        lead = torch.cat([features, torch.ones(len(features), 1)], 1).double()
        gram = lead.T @ lead + RIDGE * len(lead) * torch.eye(lead.shape[1]).double()
        solved = torch.linalg.solve(gram, lead.T @ given.double()).float()
    right = solved[:, :-1].reshape(-1, len(profiles), len(STRATEGIES))
    mean = right.mean(1)
    heads: dict[str, dict[str, NDArray[np.float32]]] = {}
    for at, profile in enumerate(profiles):
        scores = right[:, at].clone()
        gain = SHARED * (mean[:, 2] - mean[:, 1]) + (1 - SHARED) * (scores[:, 2] - scores[:, 1])
        scores[:, 2] = scores[:, 1] + gain
        heads |= heads_of(profile, scores)
    return heads


def heads_of(profile: str, scores: Tensor) -> dict[str, dict[str, NDArray[np.float32]]]:
    """Return the two label heads of an LLM, given P(right) as a linear function of the features.

    Args:
        profile: The LLM.
        scores: For each strategy, the weights of P(right) and its bias: [width + 1, 3].

    Returns:
        As `label_heads`, for one LLM.
    """
    heads = {}
    for part, penalty, scale in (
        (COST + profile, COST_PENALTY, COST_SCALE),
        (f"{RELIABILITY}-{profile}", RELIABILITY_PENALTY, RELIABILITY_SCALE),
    ):
        rows = scores.clone()
        rows[-1] -= penalty * torch.tensor(STEPS)
        rows *= scale
        heads[part] = {"head.weight": rows[:-1].T.numpy().copy(), "head.bias": rows[-1].numpy()}
    return heads


def chances_of(cost: Weights) -> Tensor:
    """Return the P(right) that `heads_of` made a cost head from: [width + 1, 3]."""
    weight, bias = (torch.tensor(cost[name]) for name in ("head.weight", "head.bias"))
    rows = torch.cat([weight.T, bias[None]]) / COST_SCALE
    rows[-1] += COST_PENALTY * torch.tensor(STEPS)
    return rows
