"""`hopgate label`: every strategy on every question, through the command and the real graph."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Ran, one_line
from doubles import task
from fake_openai import COMPLETION_TOKENS, PROMPT_TOKENS, FakeOpenAI, Messages, Reply
from ships import CORRECT, answers_some, count_rows, prompted, read_rows, ship, write_rows

from hopgate.classifiers.labels import read_labels
from hopgate.evaluation.measuring.datasets import read_examples
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


def test_people_see_the_scores_of_each_strategy(
    label: Callable[..., Ran], fake: FakeOpenAI, out: Path
) -> None:
    fake.answers(answers_some)
    ran = label()
    assert ran.code == 0, ran.err
    for part in ("openai:fake, 4 questions", "multi", "50.0%", "unanswered  1", str(out)):
        assert part in ran.out


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


def test_other_commands_read_the_file(
    label: Callable[..., Ran], fake: FakeOpenAI, out: Path
) -> None:
    fake.answers(answers_some)
    assert label().code == 0
    assert [each.label for each in read_labels(out)] == ["A", "B", "C", None]
    assert [each.retrieve for each in read_pool(out)] == [False, True, True, True]


def test_a_router_is_trained_on_the_labels_and_swept_over_them(
    label: Callable[..., Ran], run: Callable[..., Ran], fake: FakeOpenAI, tmp_path: Path, out: Path
) -> None:
    fake.answers(answers_some)
    assert label().code == 0
    hops = [{"id": str(n), "question": f"Who is {n}?", "label": "BC"[n % 2]} for n in range(4)]
    binary, router = write_rows(tmp_path / "binary.jsonl", hops), tmp_path / "router"
    ran = run(
        "train-router", "--base", "minilm", "--epochs", "1", "--cost", out, "--json",
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


# Resuming (see test_resuming for kills)


def finals(fake: FakeOpenAI) -> Counter[tuple[str, int]]:
    """How often each question was answered with each strategy."""
    found = Counter(prompted(body["messages"]) for body in fake.requests)
    return Counter({key: count for key, count in found.items() if key[0] != "reason"})


ONCE = Counter((name, n) for n in range(4) for name in ("none", "single", "multi"))


def test_an_interrupted_command_resumes_and_asks_nothing_twice(
    label: Callable[..., Ran], fake: FakeOpenAI, out: Path
) -> None:
    left = 9

    def dying(messages: Messages) -> Reply | str:
        nonlocal left
        left -= 1
        return answers_some(messages) if left >= 0 else Reply(status=400, error="gone")

    fake.answers(dying)
    assert label("--concurrency", "1").code == 1
    assert count_rows(out.with_name("labels.answers.jsonl")) == 7  # a thought is no answer
    assert not out.exists()
    before = finals(fake) - Counter({("single", 2): 1})  # the call that failed
    fake.requests.clear()
    fake.answers(answers_some)
    assert label("--concurrency", "1").code == 0
    assert sum(finals(fake).values()) == 5
    assert before + finals(fake) >= ONCE
    assert [each["correct"] for each in read_rows(out)] == CORRECT
    fake.requests.clear()
    assert label("--overwrite").code == 0
    assert finals(fake) == ONCE


def test_more_questions_of_the_same_file_are_added(
    label: Callable[..., Ran], fake: FakeOpenAI, out: Path
) -> None:
    fake.answers(answers_some)
    for limit, asked in ((1, 3), (3, 9), (2, 9)):
        assert label("--limit", str(limit)).code == 0
        assert len(read_rows(out)) == limit
        assert sum(finals(fake).values()) == asked


def test_rows_are_in_the_order_of_the_questions_whatever_finishes_first(
    label: Callable[..., Ran], fake: FakeOpenAI, out: Path
) -> None:
    fake.answers(lambda m: Reply(str(answers_some(m)), delay=1 if prompted(m)[1] == 0 else 0))
    assert label("--concurrency", "12").code == 0
    assert [each["id"] for each in read_rows(out)] == ["q0", "q1", "q2", "q3"]
    assert [each["correct"] for each in read_rows(out)] == CORRECT


# Bad input


BAD: list[tuple[Any, str]] = [
    ('{"question": ', "not JSON"),
    ("[1]", "not a JSON object"),
    ({"answers": ["x"]}, "question is missing"),
    (ship(9, question=" "), "question is ' '"),
    (ship(9, question="x" * 5000), "5000 characters"),
    ({"question": "Who?"}, "the accepted answers are missing"),
    (ship(9, answers=[]), "answers is []"),
    (ship(9, answers=[7]), "answers is [7]"),
    (ship(9, answers={"zero": "x"}), "answers is {'zero': 'x'}"),
    (ship(9, answers=["the"]), "more than articles"),
    (ship(9, dataset=""), "dataset is ''"),
    (ship(9, id=True), "id is True"),
    (ship(1), "id 'q1' appears twice"),
]


@pytest.mark.parametrize(("bad", "reason"), BAD, ids=[reason for _, reason in BAD])
def test_a_bad_row_is_named_first_and_can_be_left_out(
    label: Callable[..., Ran], fake: FakeOpenAI, data: Path, out: Path, bad: Any, reason: str
) -> None:
    write_rows(data, [ship(1), bad, ship(3)])
    one_line(label(), 2, f"{data}:2", reason, "--skip-bad-rows")
    assert (fake.requests, out.exists()) == ([], False)
    examples, left_out = read_examples(data, skip_bad=True)
    assert [each.id for each in examples] == ["q1", "q3"]
    assert [(each.line, reason in each.reason) for each in left_out] == [(2, True)]


def test_skipped_rows_are_counted(
    label: Callable[..., Ran], fake: FakeOpenAI, data: Path, out: Path
) -> None:
    write_rows(data, [ship(0), "{", ship(1)])
    fake.answers(answers_some)
    found = json.loads(label("--skip-bad-rows", "--json").out)
    assert (found["questions"], found["bad_rows"], len(read_rows(out))) == (2, 1, 2)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--questions", "nowhere"], ["nowhere"]),
        (["--index", "nowhere"], ["nowhere", "hopgate index build"]),
        (["--model", "gpt"], ["gpt", "openai:NAME"]),
        (["--judge", "f1"], ["--judge", "match"]),
        (["--concurrency", "0"], ["--concurrency"]),
        (["--limit", "0"], ["--limit"]),
        (["--out", "."], [". is a folder"]),
        (["--out", "questions.jsonl/labels.jsonl"], ["questions.jsonl is not a folder"]),
        (["--out", "questions.jsonl"], ["is the file of questions"]),
        (["--out", "questions.jsonl", "--overwrite"], ["is the file of questions"]),
    ],
    ids=lambda each: " ".join(each)[:40],
)
def test_wrong_usage_is_one_line_before_anything_is_asked(
    label: Callable[..., Ran],
    fake: FakeOpenAI,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    parts: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    one_line(label(*arguments), 2, *parts)
    assert fake.requests == []
    assert [path.name for path in tmp_path.iterdir()] == ["questions.jsonl"]


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


def test_another_server_is_another_model(
    label: Callable[..., Ran], fake: FakeOpenAI, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.answers(answers_some)
    secret = fake.base_url.replace("127.0.0.1", "me:s3cret@127.0.0.1")
    monkeypatch.setenv("OPENAI_BASE_URL", secret)
    assert label("--limit", "1").code == 0
    settings = out.with_name("labels.answers.settings.json").read_text()
    assert "127.0.0.1" in settings
    assert "s3cret" not in settings
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    one_line(label(), 2, "endpoint: ", "'127.0.0.1:9' now", "--overwrite")


def test_other_settings_are_refused_before_anything_is_asked(
    label: Callable[..., Ran], fake: FakeOpenAI, data: Path, out: Path
) -> None:
    fake.answers(answers_some)
    assert label("--limit", "1").code == 0
    written, count = out.read_bytes(), len(fake.requests)
    one_line(label("--model", "openai:other"), 2, "model: 'openai:fake' in the file", "--overwrite")
    write_rows(data, [ship(1)])
    one_line(label(), 2, "labels.answers.jsonl", "data: ")
    assert (out.read_bytes(), len(fake.requests)) == (written, count)
