"""`hopgate label`: every strategy on every question, through the command and the real graph."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Ran, one_line
from doubles import task
from fake_openai import COMPLETION_TOKENS, PROMPT_TOKENS, FakeOpenAI
from ships import CORRECT, answers_some, prompted, read_rows, ship, write_rows
from tiny_models import save_t5

from hopgate.classifiers.labels import read_labels
from hopgate.nodes.prompts.demonstrations import read_pool


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "questions.jsonl", [ship(number) for number in range(4)])


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "labels.jsonl"


@pytest.fixture
def label(run: Callable[..., Ran], data: Path, out: Path) -> Callable[..., Ran]:
    """`hopgate label` on the fake model and the sample collection, with more options."""

    def command(*arguments: str | Path) -> Ran:
        return run("label", "--questions", data, "--model", "openai:fake", "--out", out, *arguments)

    return command


# What is written


def test_each_question_gets_a_row_of_the_strategies_that_answered_it(
    label: Callable[..., Ran], fake: FakeOpenAI, out: Path
) -> None:
    fake.answers(answers_some)
    ran = label("--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert found["cheapest"] == {"none": 1, "single": 1, "multi": 1, "unanswered": 1}
    assert found["accuracy"] == {"none": 0.25, "single": 0.25, "multi": 0.5}
    assert found["steps"] == {"none": 0, "single": 1, "multi": 1}
    labels = read_rows(out)
    assert [each["id"] for each in labels] == ["q0", "q1", "q2", "q3"]
    assert [each["correct"] for each in labels] == CORRECT
    assert [each["label"] for each in labels] == ["A", "B", "C", None]
    first = labels[2]
    assert all(value > 0 for value in first.pop("ms").values())
    one = {"prompt": PROMPT_TOKENS, "completion": COMPLETION_TOKENS}
    assert first == {
        "id": "q2",
        "question": "What is the code word of ship 2?",
        "dataset": "even",
        "correct": ["multiple"],
        "label": "C",
        "answered": ["multiple"],
        "answers": {"zero": "I don't know", "one": "I don't know", "multiple": "word2x"},
        "steps": {"zero": 0, "one": 1, "multiple": 1},
        "calls": {"zero": 1, "one": 1, "multiple": 2},
        "tokens": {"zero": one, "one": one, "multiple": {key: 2 * one[key] for key in one}},
    }
    assert len(fake.requests) == 4 * (1 + 1 + 2)


def test_a_dry_run_says_how_much_would_be_asked_and_asks_nothing(
    label: Callable[..., Ran], fake: FakeOpenAI, out: Path
) -> None:
    ran = label("--dry-run", "--max-hops", "3", "--json")
    assert (ran.code, ran.err) == (0, "")
    found = json.loads(ran.out)
    assert (found["questions"], found["calls"]) == (4, [4 * 4, 4 * 6])
    assert 4 * 4 * 300 < found["tokens"][0] < found["tokens"][1] < 4 * 6 * 3_000
    assert "4 questions: 16 to 24 calls, roughly" in label("--dry-run", "--max-hops", "3").out
    assert (fake.requests, out.exists()) == ([], False)
    fake.answers(answers_some)
    assert "4 questions: 16 to 24 calls" in label("--max-hops", "3").err
    assert label("--max-hops", "3").err == ""  # everything is saved


def test_rows_without_id_and_dataset_get_a_number_as_id(
    label: Callable[..., Ran], fake: FakeOpenAI, data: Path, out: Path
) -> None:
    bare = [
        {"question": "What is the code word of ship 0?", "answer": "word0x"},
        {"question": "What is the code word of ship 1?", "ground_truth": '["word1x", "w"]'},
    ]
    write_rows(data, bare)
    fake.answers(answers_some)
    assert label().code == 0
    found = read_rows(out)
    assert [(each["id"], each["label"]) for each in found] == [("1", "A"), ("2", "B")]
    assert not any("dataset" in each for each in found)


def test_another_judge_uses_the_saved_answers(
    label: Callable[..., Ran], fake: FakeOpenAI, out: Path
) -> None:
    fake.answers(lambda m: "found" if task(m) == "reason" else f"It is word{prompted(m)[1]}x.")
    assert label().code == 0
    assert [each["correct"] for each in read_rows(out)] == [[]] * 4
    count = len(fake.requests)
    assert label("--judge", "match").code == 0
    assert [each["correct"] for each in read_rows(out)] == [["zero", "one", "multiple"]] * 4
    assert len(fake.requests) == count


def test_i_don_t_know_is_never_correct(
    label: Callable[..., Ran], fake: FakeOpenAI, data: Path, out: Path
) -> None:
    write_rows(data, [ship(0, answers=["no"])])  # letters of "i dont know"
    fake.answers(lambda m: "found" if task(m) == "reason" else "I don't know")
    assert label("--judge", "match").code == 0
    assert read_rows(out)[0]["correct"] == []


# Readers of the file


def test_a_router_is_trained_on_the_labels_and_swept_over_them(
    label: Callable[..., Ran], run: Callable[..., Ran], fake: FakeOpenAI, tmp_path: Path, out: Path
) -> None:
    fake.answers(answers_some)
    assert label().code == 0
    assert [each.label for each in read_labels(out)] == ["A", "B", "C", None]
    assert [each.retrieve for each in read_pool(out)] == [False, True, True, True]
    hops = [{"id": str(n), "question": f"Who is {n}?", "label": "BC"[n % 2]} for n in range(4)]
    binary, router = write_rows(tmp_path / "binary.jsonl", hops), tmp_path / "router"
    base = save_t5(tmp_path / "base", [ship(number)["question"] for number in range(4)])
    ran = run(
        "train-router", "--base", base, "--epochs", "1", "--cost", out, "--json",
        "--reliability", binary, "--out", router,
    )  # fmt: skip
    assert ran.code == 0, ran.err
    counted = json.loads(ran.out)["data"]["labels"]["custom"]
    assert counted == {"A": 1, "B": 1, "C": 1, "none": 1}
    ran = run(
        "sweep", "--router", router, "--labels", out, "--points", "2", "--out", tmp_path / "sweep",
        "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    accuracy = {name: each["accuracy"] for name, each in json.loads(ran.out)["static"].items()}
    assert accuracy == {"none": 0.25, "single": 0.25, "multi": 0.5}


# Bad input


BAD: list[tuple[Any, str]] = [
    ('{"question": ', "not JSON"),
    ({"answers": ["x"]}, "question is missing"),
    (ship(9, question="x" * 5000), "5000 characters"),
    ({"question": "Who?"}, "the accepted answers are missing"),
    (ship(9, dataset=""), "dataset is ''"),
    (ship(9, id=True), "id is True"),
    (ship(1), "id 'q1' appears twice"),
]


@pytest.mark.parametrize(("bad", "reason"), BAD, ids=[reason for _, reason in BAD])
def test_a_bad_row_is_named_before_anything_is_asked(
    label: Callable[..., Ran], fake: FakeOpenAI, data: Path, out: Path, bad: Any, reason: str
) -> None:
    write_rows(data, [ship(1), bad, ship(3)])
    one_line(label(), 2, f"{data}:2", reason)
    assert (fake.requests, out.exists()) == ([], False)


def test_labels_from_elsewhere_are_not_replaced(
    label: Callable[..., Ran], fake: FakeOpenAI, out: Path
) -> None:
    out.write_text("mine\n")
    one_line(label(), 2, str(out), "labels.answers.jsonl", "--overwrite")
    assert out.read_text() == "mine\n"
    fake.answers(answers_some)
    assert label("--overwrite").code == 0
    assert len(read_rows(out)) == 4


def test_the_answers_are_not_written_over_the_questions(
    label: Callable[..., Ran], fake: FakeOpenAI, data: Path
) -> None:
    data = data.rename(data.with_name("labels.answers.jsonl"))
    before = data.read_bytes()
    for more in ((), ("--overwrite",)):
        one_line(label("--questions", data, *more), 2, "is the file of questions")
    assert (data.read_bytes(), fake.requests) == (before, [])
