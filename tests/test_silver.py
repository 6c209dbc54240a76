"""Labels without accepted answers: `hopgate label --judge silver`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Ran, one_line
from doubles import task
from fake_openai import FakeOpenAI, Messages
from ships import prompted, read_rows, ship, write_rows

from hopgate.classifiers.labels import read_labels
from hopgate.common.strategies import STRATEGIES, Strategy
from hopgate.evaluation.learning.silver import Answers, agree, judge

QUESTION = "When was Skerrane Light lit?"


def answers(*texts: str, cited: tuple[int, ...] = (0, 0, 0), doubt: str | None = None) -> Answers:
    """The answers of none, single and multi."""
    rows: dict[Strategy, Any] = {}
    for name, text, count in zip(STRATEGIES, texts, cited, strict=True):
        known = text != "I don't know"
        rows[name] = {"prediction": text, "known": known, "cited": count, "doubt": doubt}
    return rows


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("1858", "Skerrane Light was lit in 1858.", True),
        ("In May 1858", "on 3 May 1858", True),
        ("in 1858", "in 1859", False),
        ("in May 1858", "in May 1859", False),
        ("Yes", "Yes, it was.", True),
        ("Yes, in 1858", "No, in 1858", False),
        ("by Ilsabet Corrane", "Corrane", True),
        ("by Ilsabet Corrane", "by Morwenna Hale", False),
        ("Skerrane Light was lit.", "skerrane light was lit", True),
        ("Skerrane Light", "1858", False),
    ],
)
def test_answers_agree_by_their_own_words(one: str, other: str, same: bool) -> None:
    assert agree(QUESTION, one, other) is same
    assert agree(QUESTION, other, one) is same


@pytest.mark.parametrize(
    ("given", "correct", "confidence"),
    [
        (answers("1858", "1858", "In 1858"), ("none", "single", "multi"), 2 / 3),
        (answers("1860", "1858", "1858", cited=(0, 1, 1)), ("single", "multi"), 2 / 3),
        (answers("1860", "1858", "1859", cited=(0, 1, 0)), ("single",), 1 / 2),
        (answers("1860", "1858", "1859", cited=(0, 1, 1)), ("single",), 1 / 3),
        (answers("1860", "1858", "1859"), ("none",), 0),
        (answers("1858", "I don't know", "I don't know"), ("none",), 0),
        (answers("I don't know", "1858", "I don't know", cited=(0, 1, 0)), ("single",), 1 / 2),
        (answers("1860", "1858", "1858", cited=(0, 1, 1), doubt="bad"), ("single", "multi"), 1 / 2),
        (answers("I don't know", "I don't know", "I don't know"), (), 1),
        (answers("Skerrane Light was lit.", "1858", "1858"), ("single", "multi"), 1 / 2),
    ],
)
def test_the_best_supported_answer_and_what_agrees_with_it_are_right(
    given: Answers, correct: tuple[str, ...], confidence: float
) -> None:
    found = judge(QUESTION, given)
    assert found.correct == correct
    assert found.confidence == pytest.approx(confidence)


@pytest.mark.parametrize("confidence", [-0.1, 1.1, "high", True])
def test_a_confidence_that_is_none_is_refused(tmp_path: Path, confidence: object) -> None:
    row = {"id": "1", "question": "Who?", "correct": ["one"], "label": "B"}
    path = write_rows(tmp_path / "labels.jsonl", [row | {"confidence": confidence}])
    with pytest.raises(ValueError, match=f"confidence is {confidence!r}; it must be a number"):
        read_labels(path)


def test_a_router_learns_the_confidence_as_the_chance_of_a_right_answer(tmp_path: Path) -> None:
    row = {"question": "Who?", "correct": ["one", "multiple"], "label": "B"}
    path = write_rows(
        tmp_path / "labels.jsonl", [row | {"id": "1", "confidence": 0.4}, row | {"id": "2"}]
    )
    assert [each.chances for each in read_labels(path)] == [[0, 0.4, 0.4], [0, 1, 1]]
    from hopgate.classifiers.training.utility import targets_of  # imports torch

    targets = targets_of({"llm": read_labels(path)}, [], None)
    assert targets.right[:, 0].tolist() == [pytest.approx([0, 0.4, 0.4]), pytest.approx([0, 1, 1])]


# The command


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "labels.jsonl"


@pytest.fixture
def label(run: Callable[..., Ran], tmp_path: Path, out: Path) -> Callable[..., Ran]:
    """Silver labels of four ships whose answers nobody knows."""
    rows = [{key: ship(number)[key] for key in ("id", "question")} for number in range(4)]
    data = write_rows(tmp_path / "questions.jsonl", rows)

    def command(*arguments: str | Path) -> Ran:
        given = ("--questions", data, "--model", "openai:fake", "--out", out)
        return run("label", *given, "--judge", "silver", *arguments)

    return command


def mostly_agrees(messages: Messages) -> str:
    """Every strategy agrees on ship 0, the retrievals on 1, none on 2; nobody knows 3."""
    if task(messages) == "reason":
        return "So the answer is: found."
    strategy, number = prompted(messages)
    words = {
        0: {"none": "kilo", "single": "kilo", "multi": "It is kilo."},
        1: {"none": "oscar", "single": "lima", "multi": "lima"},
        2: {"none": "papa", "single": "quebec", "multi": "romeo"},
    }
    return words.get(number, {}).get(strategy, "I don't know")


def test_rows_need_no_accepted_answers_and_unclear_ones_are_left_out(
    label: Callable[..., Ran], fake: FakeOpenAI, out: Path
) -> None:
    fake.answers(mostly_agrees)
    ran = label("--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["unclear"] == 1
    rows = read_rows(out)
    assert [row["id"] for row in rows] == ["q0", "q1", "q3"]
    assert [row["correct"] for row in rows] == [
        ["zero", "one", "multiple"],
        ["one", "multiple"],
        [],
    ]
    assert [row["confidence"] for row in rows] == [0.667, 0.5, 1.0]
    assert rows[2]["answered"] == []


def test_answers_of_one_strategy_only_are_refused(
    label: Callable[..., Ran], fake: FakeOpenAI
) -> None:
    def only_direct(messages: Messages) -> str:
        return "kilo" if task(messages) == "direct" else "I don't know"

    fake.answers(only_direct)
    one_line(label(), 2, "only the strategy none gave any answer", "--judge match")


def test_accepted_answers_alone_need_no_agreement(
    run: Callable[..., Ran], fake: FakeOpenAI, out: Path, tmp_path: Path
) -> None:
    data = write_rows(tmp_path / "q.jsonl", [ship(0, answers=["kilo"])])
    fake.answers(lambda messages: "kilo" if task(messages) == "direct" else "I don't know")
    given = ("--questions", data, "--model", "openai:fake", "--out", out)
    ran = run("label", *given, "--judge", "silver")
    assert ran.code == 0, ran.err
    assert [row["correct"] for row in read_rows(out)] == [["zero"]]


def test_labels_that_are_all_unclear_are_refused(
    label: Callable[..., Ran], fake: FakeOpenAI
) -> None:
    fake.answers(
        lambda messages: (
            f"{prompted(messages)[0]} word"
            if task(messages) != "reason"
            else "So the answer is: found."
        )
    )
    one_line(label("--limit", "1"), 2, "none of 1 questions has an answer that another one")
