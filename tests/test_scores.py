"""Summaries of a run, against cases worked by hand and scikit-learn."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from predictions import prediction
from sklearn import metrics

from hopgate.evaluation.measuring.scores import (
    Price,
    decision,
    interval,
    read_price,
    summarise,
)

FOUR = [
    prediction(match=True, em=True, f1=1.0, ms=10.0),
    prediction(source="freshqa", known=False, ms=20.0),
    prediction(retrieve=False, verdict="no", f1=0.5, retrieval_steps=0, prompt_tokens=40, ms=30.0),
    prediction(
        verdict="invalid", source="FreshQA", match=True, llm_calls=3, completion_tokens=20, ms=40.0
    ),
]


def test_the_summary_by_hand() -> None:
    found = summarise(FOUR, Price(input=0.5, output=2.0))
    assert found["n"] == 4
    assert found["retrieval_rate"] == found["retrieval_accuracy"] == 0.75
    assert (found["match"], found["em"], found["f1"]) == (0.5, 0.25, 0.375)
    assert (found["unknown"], found["invalid"]) == (0.25, 0.25)
    assert found["flow"] == {
        "yes": {"right": 2, "wrong": 0, "unknown": 1},
        "no": {"right": 0, "wrong": 1, "unknown": 0},
    }
    assert found["tokens"] == {
        "prompt": 340,
        "completion": 50,
        "total": 390,
        "per_question": {"prompt": 85, "completion": 12.5, "total": 97.5},
    }
    assert (found["llm_calls"], found["retrieval_steps"]) == (2.25, 0.75)
    assert found["cost"] == pytest.approx({"total": 270e-6, "per_question": 67.5e-6})
    assert found["ms"] == pytest.approx({"mean": 25, "p50": 25, "p95": 38.5})
    assert found["decision"] is None
    json.dumps(found, allow_nan=False)


def test_groups_have_the_headline_metrics_of_their_questions() -> None:
    found = summarise(FOUR)
    assert {name: part["n"] for name, part in found["by_source"].items()} == {
        "popqa": 2,
        "freshqa": 1,
        "FreshQA": 1,
    }
    assert found["by_source"]["popqa"] == {
        "n": 2, "retrieval_rate": 0.5, "retrieval_accuracy": 0.5, "match": 0.5, "em": 0.5,
        "f1": 0.75, "unknown": 0, "invalid": 0,
        "interval": {"retrieval_accuracy": [0, 1], "match": [0, 1]},
    }  # fmt: skip
    assert {name: part["n"] for name, part in found["by_kind"].items()} == {
        "new-world": 2,
        "long-tail": 2,
    }
    assert list(found["by_need"]) == ["must-retrieve"]


def test_an_unknown_source_has_no_kind() -> None:
    found = summarise([prediction(source="mine")])
    assert (list(found["by_source"]), found["by_kind"]) == (["mine"], {})


def test_without_a_price_there_is_no_cost() -> None:
    assert summarise(FOUR)["cost"] is None


def test_i_don_t_know_is_never_correct_in_the_flow() -> None:
    found = summarise([prediction(known=False, match=True)])
    assert found["flow"]["yes"] == {"right": 0, "wrong": 0, "unknown": 1}
    assert found["match"] == 1


def test_retrieval_accuracy_counts_only_questions_that_must_retrieve() -> None:
    rows = [
        prediction(answerable=False),
        prediction(answerable=None, retrieve=False),
        prediction(answerable=True),
        prediction(answerable=True),
    ]
    found = summarise(rows)
    assert (found["retrieval_accuracy"], found["retrieval_rate"]) == (0.5, 0.75)
    assert {name: part["n"] for name, part in found["by_need"].items()} == {
        "answerable": 2,
        "must-retrieve": 2,
    }
    assert found["decision"]["n"] == 3


def test_without_must_retrieve_questions_there_is_no_retrieval_accuracy() -> None:
    found = summarise([prediction(answerable=True)])
    assert found["retrieval_accuracy"] is None
    assert found["interval"]["retrieval_accuracy"] is None


# Intervals


def test_the_interval_is_that_of_resampling_the_questions() -> None:
    hits = [True] * 45 + [False] * 105
    draws = np.random.default_rng(1).choice(hits, (4000, 150)).mean(1)
    assert interval(hits) == pytest.approx(np.quantile(draws, [0.025, 0.975]), abs=0.012)


@pytest.mark.parametrize("count", [1, 7, 150])
def test_the_interval_of_a_certain_share_has_no_width(count: int) -> None:
    assert interval([True] * count) == [1, 1]
    assert interval([False] * count) == [0, 0]


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=200))
def test_the_interval_contains_the_share(hits: list[bool]) -> None:
    low, high = interval(hits)
    assert 0 <= low <= np.mean(hits) + 1e-9
    assert np.mean(hits) - 1e-9 <= high <= 1


# The decision


def judged(pairs: Sequence[tuple[bool, bool]]) -> dict[str, Any]:
    found = decision([prediction(answerable=a, retrieve=r) for a, r in pairs])
    assert found is not None
    return found


def test_the_decision_by_hand() -> None:
    # must-retrieve: 3, retrieved 2 of them; answerable: 2, 1 left alone
    found = judged([(False, True), (False, True), (False, False), (True, True), (True, False)])
    assert found == pytest.approx(
        {
            "n": 5,
            "accuracy": 3 / 5,
            "precision": (2 / 3 + 1 / 2) / 2,
            "recall": (2 / 3 + 1 / 2) / 2,
            "f1": (2 / 3 + 1 / 2) / 2,
        }
    )


def test_always_retrieving_has_no_precision_on_answerable_questions() -> None:
    found = judged([(False, True), (True, True)])
    assert found == pytest.approx(
        {"n": 2, "accuracy": 0.5, "precision": 0.25, "recall": 0.5, "f1": 1 / 3}
    )


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40))
def test_the_decision_is_scored_as_scikit_learn_does(pairs: list[tuple[bool, bool]]) -> None:
    truth, chosen = [not a for a, _ in pairs], [r for _, r in pairs]
    macro = metrics.precision_recall_fscore_support(
        truth, chosen, labels=[False, True], average="macro", zero_division=0
    )
    found = judged(pairs)
    assert (found["precision"], found["recall"], found["f1"]) == pytest.approx(macro[:3])
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(truth, chosen))


# Prices


def test_a_price_is_found_by_full_or_bare_model_name(tmp_path: Path) -> None:
    path = tmp_path / "prices.json"
    path.write_text(
        '\ufeff{"small": {"input": 0.15, "output": 0.6}, "local:x": {"input": 0, "output": 0}}'
    )
    assert read_price(path, "openai:small") == read_price(path, "small") == Price(0.15, 0.6)
    assert read_price(path, "local:x") == Price(0, 0)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("{", "is not a JSON file"),
        ("[]", "does not hold a JSON object"),
        ("{}", "has no price for model 'openai:small' (it has none)"),
        ('{"large": {}}', "(it has large)"),
        ('{"small": 3}', "small is 3"),
        ('{"small": {"input": 1}}', "small: output is None"),
        ('{"small": {"input": -1, "output": 1}}', "small: input is -1"),
        ('{"small": {"input": true, "output": 1}}', "small: input is True"),
        ('{"small": {"input": NaN, "output": 1}}', "small: input is nan"),
        ('{"small": {"input": "1", "output": 1}}', "small: input is '1'"),
    ],
)
def test_a_bad_price_file_is_named(tmp_path: Path, content: str, part: str) -> None:
    path = tmp_path / "prices.json"
    path.write_text(content)
    with pytest.raises(ValueError) as caught:
        read_price(path, "openai:small")
    assert str(path) in str(caught.value) and part in str(caught.value)


def test_calls_without_counted_tokens_have_no_cost() -> None:
    price = Price(1, 1)
    assert (
        summarise([prediction(prompt_tokens=0, completion_tokens=0, llm_calls=2)], price)["cost"]
        is None
    )
    free = summarise([prediction(prompt_tokens=0, completion_tokens=0, llm_calls=0)], price)["cost"]
    assert free == {"total": 0, "per_question": 0}


def test_a_missing_price_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere\.json cannot be read: No such file"):
        read_price(tmp_path / "nowhere.json", "small")


def test_all_numbers_are_finite_plain_json() -> None:
    def numbers(value: Any) -> list[float]:
        inner = value.values() if isinstance(value, dict) else value
        if isinstance(value, dict | list):
            return [each for part in inner for each in numbers(part)]
        assert value is None or type(value) in (int, float)
        return [] if value is None else [value]

    assert all(map(math.isfinite, numbers(summarise(FOUR, Price(1, 1)))))
