"""The `utility` objective: expected correctness minus the price of retrieval steps.

Flare-Aug's cost labels keep one thing of a question, the cheapest strategy that answered it. Here
every outcome counts: the network learns how likely each strategy is to be right, for every LLM
at once, and beside it whether a question is multi-hop. The label rows of each LLM's two ends are
then read off its features by least squares, so that A, B and C score

    cost end         COST_SHARPNESS · (P(right) − COST_PRICE · steps)
    reliability end  RELIABILITY_SHARPNESS · (P(right) − RELIABILITY_PRICE · steps)

A blend of the two is the same utility at a price between: what a step must be worth falls as α
grows, and no question is ever routed to a cheaper strategy by a greater α.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from hopgate.classifiers.checkpoint import COST, RELIABILITY
from hopgate.classifiers.labels import STRATEGIES, LabelRow
from hopgate.classifiers.networks import DROPOUT

STEPS = (0.0, 1.0, 4.69)
"""Retrieval steps of A, B and C: multi-step's mean over six datasets (Adaptive-RAG)."""
COST_PRICE, RELIABILITY_PRICE = 0.5, 0.008
"""What a step must add to the chance of a right answer. At α = 0 hardly any does; at α = 1 steps
are nearly free, but a second retrieval that adds nothing is still not made."""
COST_SHARPNESS, RELIABILITY_SHARPNESS = 0.9, 66.0
"""How much a difference in utility counts. Their ratio bends the dial: the price at α is the mean
of both prices, weighted by (1 − α) and α times these. At α = 0.4 it is 0.018, so that the router
comes up to multi-step's accuracy where Flare-Aug's does (table 1)."""
SHARED = 0.75
"""How much of what C adds to B is taken from the mean over the LLMs: it is the same question for
all of them, and each has few that only C answers."""
RIDGE = 1e-2


class Outcomes(NamedTuple):
    """What is known of each question, as tensors for training.

    Attributes:
        questions: Their texts.
        right: Whether each strategy answered, for each LLM: [questions, LLMs, 3].
        weight: What the outcomes of a question count: [questions, LLMs]; 0 where unknown.
        multi_hop: 1 multi-hop, 0 single-hop, not-a-number where unknown: [questions].
    """

    questions: list[str]
    right: Tensor
    weight: Tensor
    multi_hop: Tensor

    def to(self, device: str) -> Outcomes:
        """The same, with the tensors on a device."""
        return Outcomes(self.questions, *(tensor.to(device) for tensor in self[1:]))


def outcomes(
    cost: Mapping[str, Sequence[LabelRow]], reliability: Sequence[LabelRow], asked: int | None
) -> Outcomes:
    """Lays the label rows side by side.

    Args:
        cost: By profile, the rows of its LLM, with `correct`.
        reliability: Rows with B for single-hop, C for multi-hop.
        asked: How many questions every LLM was asked, where the files leave out those that no
            strategy answered: a question that one file lacks was answered wrongly, and the
            reliability rows stand for the questions that all files lack. None: what a file
            lacks is not known.

    Raises:
        ValueError: If a row has no `correct`, two files give one id to two questions, or
            `asked` is less than what the files hold.
    """
    rows: dict[str, LabelRow] = {}
    for profile, labelled in cost.items():
        for row in labelled:
            if row.correct is None:
                raise ValueError(
                    f"row {row.id!r} of profile {profile} has no `correct`, which the utility "
                    "objective learns from; add it, or train with --objective flare"
                )
            if rows.setdefault(row.id, row).question != row.question:
                raise ValueError(
                    f"id {row.id!r} is one question for profile {profile} and another in the "
                    "cost file of another; give every question an id of its own"
                )
    if asked is not None and asked < len(rows):
        raise ValueError(f"--asked is {asked}, but the cost files hold {len(rows)} questions")
    every = [*rows.values(), *reliability]
    right = torch.zeros(len(every), len(cost), len(STRATEGIES))
    weight = torch.zeros(len(every), len(cost))
    at = {id_: number for number, id_ in enumerate(rows)}
    for column, labelled in enumerate(cost.values()):
        for row in labelled:
            answered = row.correct or frozenset()
            right[at[row.id], column] = torch.tensor([float(s in answered) for s in STRATEGIES])
            weight[at[row.id], column] = 1
    if asked is not None:
        weight[: len(rows)] = 1
        known = {row.question for row in rows.values()}
        unknown = torch.tensor([float(row.question not in known) for row in reliability])
        share = (asked - len(rows)) / max(1.0, unknown.sum().item())
        weight[len(rows) :] = share * unknown.unsqueeze(1)
    return Outcomes([r.question for r in every], right, weight, _multi_hop(every, reliability))


def _multi_hop(every: Sequence[LabelRow], reliability: Sequence[LabelRow]) -> Tensor:
    """The reliability rows' labels, and through their datasets those of the others."""
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
    """An untrained layer over the features: a row for each LLM and strategy, one for multi-hop."""
    layer = nn.Linear(width, profiles * len(STRATEGIES) + 1)
    nn.init.normal_(layer.weight, std=0.02)
    nn.init.zeros_(layer.bias)
    return layer


def loss_of(readout: nn.Linear, known: Outcomes) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss of a batch: cross-entropy of every known outcome, and of multi-hop."""
    right, weight, multi_hop = known.right, known.weight, known.multi_hop
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
) -> dict[str, dict[str, Tensor]]:
    """The label head of each end, whose scores are linear in the features.

    The readout's probabilities are fitted by ridge regression from the features, then weighed
    against steps (see above).

    Args:
        features: Of the training questions, without dropout: [questions, width].
        readout: As trained.
        profiles: The LLMs, in the readout's order.

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
    heads: dict[str, dict[str, Tensor]] = {}
    for at, profile in enumerate(profiles):
        scores = right[:, at].clone()
        gain = SHARED * (mean[:, 2] - mean[:, 1]) + (1 - SHARED) * (scores[:, 2] - scores[:, 1])
        scores[:, 2] = scores[:, 1] + gain
        heads |= ends_of(profile, scores)
    return heads


def ends_of(profile: str, scores: Tensor) -> dict[str, dict[str, Tensor]]:
    """The two ends of an LLM whose chances of being right are linear in the features.

    Args:
        profile: The LLM.
        scores: For each strategy, the weights of P(right) and its bias: [width + 1, 3].

    Returns:
        As `label_heads`, for one LLM.
    """
    ends = {}
    for part, price, sharpness in (
        (COST + profile, COST_PRICE, COST_SHARPNESS),
        (f"{RELIABILITY}-{profile}", RELIABILITY_PRICE, RELIABILITY_SHARPNESS),
    ):
        rows = scores.clone()
        rows[-1] -= price * torch.tensor(STEPS)
        rows *= sharpness
        ends[part] = {"head.weight": rows[:-1].T.contiguous(), "head.bias": rows[-1].clone()}
    return ends


def chances_of(cost: Mapping[str, Tensor]) -> Tensor:
    """P(right) as `ends_of` was given it, from the cost end that it made."""
    rows = torch.cat([cost["head.weight"].T, cost["head.bias"][None]]) / COST_SHARPNESS
    rows[-1] += COST_PRICE * torch.tensor(STEPS)
    return rows
