"""The utility objective: its targets, its loss and its label heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hopgate.classifiers.labels import LabelRow
from hopgate.classifiers.training.utility import label_heads, loss_of, new_readout, targets_of


def row(id_: str, label: str | None, correct: str | None, dataset: str = "") -> LabelRow:
    found = None if correct is None else frozenset(correct.split())
    return LabelRow(id_, f"question {id_}?", dataset, label, found)


HOPS = [row("h1", "B", None, "nq"), row("h2", "C", None, "musique")]


def test_outcomes_of_two_llms_are_aligned_by_question() -> None:
    cost = {
        "one-llm": [row("1", "A", "none single", "nq"), row("2", None, "")],
        "other": [row("1", "C", "multi", "nq"), row("3", "B", "single", "musique")],
    }
    known = targets_of(cost, HOPS, asked=None)
    assert known.questions == [f"question {id_}?" for id_ in ("1", "2", "3", "h1", "h2")]
    assert known.right[0].tolist() == [[1, 1, 0], [0, 0, 1]]
    assert known.right[1].tolist() == [[0, 0, 0], [0, 0, 0]]
    assert known.weight.tolist() == [[1, 1], [1, 0], [0, 1], [0, 0], [0, 0]]
    assert torch.equal(known.multi_hop.isnan(), torch.tensor([False, True, False, False, False]))
    assert known.multi_hop[[0, 2, 3, 4]].tolist() == [0, 1, 0, 1]


def test_missing_questions_count_as_wrong_if_the_number_of_questions_is_known() -> None:
    cost = {"one-llm": [row("1", "A", "none")], "other": [row("2", "B", "single")]}
    known = targets_of(cost, HOPS, asked=12)
    assert known.weight[:2].tolist() == [[1, 1], [1, 1]]
    assert known.weight[2:].sum(0).tolist() == [10, 10]
    assert known.right[1, 0].tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="asked is 1, but the cost files have 2"):
        targets_of(cost, HOPS, asked=1)


def test_one_id_for_two_questions_is_refused() -> None:
    other = LabelRow("1", "another question?", "", "B", frozenset({"single"}))
    with pytest.raises(ValueError, match="id '1' of profile other is a different question"):
        targets_of({"one-llm": [row("1", "A", "none")], "other": [other]}, HOPS, None)


def test_unknown_outcomes_do_not_affect_the_loss() -> None:
    known = targets_of({"llm": [row("1", "A", "none")]}, HOPS, None)
    readout = new_readout(8, 1).eval()
    features = torch.randn(1, 8)
    loss = loss_of(readout, known)(features, torch.tensor([1]))
    scores = readout(features)[0]
    torch.testing.assert_close(loss, torch.nn.functional.softplus(scores[-1]))


Heads = dict[str, dict[str, np.ndarray[Any, np.dtype[np.float32]]]]


def trained_heads() -> tuple[torch.Tensor, Heads]:
    torch.manual_seed(0)
    features = torch.randn(400, 16)
    readout = new_readout(16, 2)
    readout.weight.data.normal_(std=0.5)
    return features, label_heads(features, readout, ["weak", "strong"])


def labels_at(features: torch.Tensor, heads: Heads, alpha: float) -> list[int]:
    mixed = {
        name: (1 - alpha) * heads["cost-weak"][name] + alpha * heads["reliability-weak"][name]
        for name in ("head.weight", "head.bias")
    }
    scores = features.numpy() @ mixed["head.weight"].T + mixed["head.bias"]
    found: list[int] = scores.argmax(1).tolist()
    return found


def test_a_greater_alpha_never_routes_to_a_cheaper_strategy() -> None:
    features, heads = trained_heads()
    by_alpha = torch.tensor([labels_at(features, heads, step / 50) for step in range(51)])
    assert (by_alpha.diff(dim=0) >= 0).all()
    assert by_alpha[0].float().mean() < 0.5
    assert by_alpha[-1].float().mean() > by_alpha[0].float().mean() + 0.4


def test_heads_have_one_shape_and_differ_by_profile() -> None:
    _, heads = trained_heads()
    assert set(heads) == {
        f"{part}-{llm}" for part in ("cost", "reliability") for llm in ("weak", "strong")
    }
    assert {head["head.weight"].shape for head in heads.values()} == {(3, 16)}
    assert not np.array_equal(heads["cost-weak"]["head.bias"], heads["cost-strong"]["head.bias"])
