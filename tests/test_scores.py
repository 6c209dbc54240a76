"""Summaries of a run, against cases worked by hand and scikit-learn."""

import json

import numpy as np
import pytest
from predictions import prediction

from hopgate.evaluation.measuring.scores import decision, interval, summarise

FOUR = [
    prediction(match=True, em=True, f1=1.0, ms=10.0),
    prediction(source="freshqa", known=False, ms=20.0),
    prediction(retrieve=False, verdict="no", f1=0.5, retrieval_steps=0, prompt_tokens=40, ms=30.0),
    prediction(
        verdict="invalid", source="FreshQA", match=True, llm_calls=3, completion_tokens=20, ms=40.0
    ),
]


def test_the_summary_by_hand() -> None:
    found = summarise(FOUR)
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
    assert found["ms"] == pytest.approx({"mean": 25, "p50": 25, "p95": 38.5})
    assert found["decision"] is None
    json.dumps(found, allow_nan=False)


def test_groups_have_the_headline_metrics_of_their_questions() -> None:
    found = summarise([prediction(source="mine", answerable=True, known=False, match=True)])
    assert (list(found["by_source"]), found["by_kind"]) == (["mine"], {})
    assert found["retrieval_accuracy"] is None
    assert (found["match"], found["flow"]["yes"]["unknown"]) == (1, 1)
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


# Intervals


def test_the_interval_is_that_of_resampling_the_questions() -> None:
    hits = [True] * 45 + [False] * 105
    draws = np.random.default_rng(1).choice(hits, (4000, 150)).mean(1)
    assert (interval([True] * 7), interval([False])) == ([1, 1], [0, 0])  # certain
    assert interval(hits) == pytest.approx(np.quantile(draws, [0.025, 0.975]), abs=0.012)


# The decision


def test_the_decision_by_hand() -> None:
    # must-retrieve: 3, retrieved 2 of them; answerable: 2, 1 left alone
    pairs = [(False, True), (False, True), (False, False), (True, True), (True, False)]
    third = (2 / 3 + 1 / 2) / 2
    assert decision([prediction(answerable=a, retrieve=r) for a, r in pairs]) == pytest.approx(
        {"n": 5, "accuracy": 3 / 5, "precision": third, "recall": third, "f1": third}
    )
    always = decision([prediction(answerable=each) for each in (False, True)])
    assert always == pytest.approx(
        {"n": 2, "accuracy": 0.5, "precision": 0.25, "recall": 0.5, "f1": 1 / 3}
    )
