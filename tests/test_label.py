"""`hopgate label`: every strategy on every question, through the command and the real graph."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from commands import Ran, one_line
from doubles import task
from fake_openai import COMPLETION_TOKENS, PROMPT_TOKENS, FakeOpenAI, Messages, Reply

from hopgate.classifiers.labels import read_labels
from hopgate.evaluation.labelling import STRATEGIES
from hopgate.evaluation.questions import read_questions
from hopgate.labelling import Labels, unit_id
from hopgate.nodes.demonstrations import read_pool

CORRECT = [["zero"], ["one", "multiple"], ["multiple"], []]
"""Which strategies answer ship 0, 1, 2 and 3; then again from the start."""


def row(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "id": f"q{number}",
        "question": f"What is the code word of ship {number}?",
        "answers": [f"word{number}x"],
        "dataset": "even" if number % 2 == 0 else "odd",
    } | fields


def write(path: Path, rows: Sequence[Any]) -> Path:
    lines = [each if isinstance(each, str) else json.dumps(each) for each in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def asked_of(messages: Messages) -> tuple[str, int]:
    """Which strategy asks (`reason`: the loop's thought), and the number of the ship."""
    text = messages[-1]["content"]
    number = int(re.findall(r"ship (\d+)\?", text)[-1])
    name = task(messages)
    if name == "answer":  # one retrieval shows five passages, one hop three
        name = "single" if "[4]" in text else "multi"
    return {"direct": "none"}.get(name, name), number


def knows(messages: Messages) -> Reply | str:
    """Answers as `CORRECT` says."""
    strategy, number = asked_of(messages)
    if strategy == "reason":
        return "So the answer is: found."
    name = {"none": "zero", "single": "one", "multi": "multiple"}[strategy]
    return f"word{number}x" if name in CORRECT[number % 4] else "I don't know"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "questions.jsonl", [row(number) for number in range(4)])


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "labels.jsonl"


@pytest.fixture
def label(run: Callable[..., Ran], data: Path, out: Path) -> Callable[..., Ran]:
    """`hopgate label` on the fake model and the sample collection, with more options."""

    def command(*arguments: str | Path) -> Ran:
        return run("label", "--questions", data, "--model", "openai:fake", "--out", out, *arguments)

    return command


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# What is written


def test_each_question_gets_the_row_of_what_answered_it(
    label: Callable[..., Ran], fake: FakeOpenAI, out: Path
) -> None:
    fake.answers(knows)
    ran = label("--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert found["labels"] == {"A": 1, "B": 1, "C": 1, "none": 1}
    assert found["accuracy"] == {"zero": 0.25, "one": 0.25, "multiple": 0.5}
    assert found["steps"] == {"zero": 0, "one": 1, "multiple": 1}
    labels = rows(out)
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
        "answers": {"zero": "I don't know", "one": "I don't know", "multiple": "word2x"},
        "steps": {"zero": 0, "one": 1, "multiple": 1},
        "calls": {"zero": 1, "one": 1, "multiple": 2},
        "tokens": {"zero": one, "one": one, "multiple": {key: 2 * one[key] for key in one}},
    }
    assert len(fake.requests) == 4 * (1 + 1 + 2)


def test_people_see_what_each_strategy_came_to(
    label: Callable[..., Ran], fake: FakeOpenAI, out: Path
) -> None:
    fake.answers(knows)
    ran = label()
    assert ran.code == 0, ran.err
    for part in ("openai:fake, 4 questions", "multiple", "50.0%", "1 questions that no", str(out)):
        assert part in ran.out


def test_rows_without_id_and_dataset_get_a_number_and_none(
    label: Callable[..., Ran], fake: FakeOpenAI, data: Path, out: Path
) -> None:
    bare = [
        {"question": "What is the code word of ship 0?", "answer": "word0x"},
        {"question": "What is the code word of ship 1?", "ground_truth": '["word1x", "w"]'},
    ]
    write(data, bare)
    fake.answers(knows)
    assert label().code == 0
    found = rows(out)
    assert [(each["id"], each["label"]) for each in found] == [("1", "A"), ("2", "B")]
    assert not any("dataset" in each for each in found)


def test_the_judge_is_a_setting_and_judging_again_asks_nothing(
    label: Callable[..., Ran], fake: FakeOpenAI, out: Path
) -> None:
    fake.answers(lambda m: "found" if task(m) == "reason" else f"It is word{asked_of(m)[1]}x.")
    assert label().code == 0
    assert [each["correct"] for each in rows(out)] == [[]] * 4
    count = len(fake.requests)
    assert label("--judge", "match").code == 0
    assert [each["correct"] for each in rows(out)] == [["zero", "one", "multiple"]] * 4
    assert len(fake.requests) == count


def test_not_knowing_is_never_right(
    label: Callable[..., Ran], fake: FakeOpenAI, data: Path, out: Path
) -> None:
    write(data, [row(0, answers=["no"])])  # letters of "i dont know"
    fake.answers(lambda m: "found" if task(m) == "reason" else "I don't know")
    assert label("--judge", "match").code == 0
    assert rows(out)[0]["correct"] == []


# Who reads it


def test_readers_of_labels_take_the_file_as_it_is(
    label: Callable[..., Ran], fake: FakeOpenAI, out: Path
) -> None:
    fake.answers(knows)
    assert label().code == 0
    assert [each.label for each in read_labels(out)] == ["A", "B", "C", None]
    assert [each.retrieve for each in read_pool(out)] == [False, True, True, True]


def test_a_router_is_trained_on_the_labels_and_swept_over_them(
    label: Callable[..., Ran], run: Callable[..., Ran], fake: FakeOpenAI, tmp_path: Path, out: Path
) -> None:
    fake.answers(knows)
    assert label().code == 0
    hops = [{"id": str(n), "question": f"Who is {n}?", "label": "BC"[n % 2]} for n in range(4)]
    binary, router = write(tmp_path / "binary.jsonl", hops), tmp_path / "router"
    for objective in ("flare", "utility"):
        ran = run(
            "train-router", "--base", "minilm", "--epochs", "1", "--cost", out, "--json",
            "--reliability", binary, "--out", router, "--objective", objective, "--overwrite",
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


# Going on


def finals(fake: FakeOpenAI) -> Counter[tuple[str, int]]:
    """How often each question was answered with each strategy."""
    asked = Counter(asked_of(body["messages"]) for body in fake.requests)
    return Counter({key: count for key, count in asked.items() if key[0] != "reason"})


ONCE = Counter((name, n) for n in range(4) for name in ("none", "single", "multi"))


@pytest.mark.parametrize("answers", [0, 3, 9])
def test_an_endpoint_that_dies_leaves_what_was_done_and_the_same_command_goes_on(
    label: Callable[..., Ran], fake: FakeOpenAI, out: Path, answers: int
) -> None:
    left = answers

    def dying(messages: Messages) -> Reply | str:
        nonlocal left
        left -= 1
        return knows(messages) if left >= 0 else Reply(status=400, error="gone")

    fake.answers(dying)
    ran = label("--concurrency", "1")
    kept = out.with_name("labels.answers.jsonl")
    done = {0: 0, 3: 2, 9: 7}[answers]  # a thought is no answer yet
    part = f"{done} of 12 answers are kept in {kept}, and the same command goes on from there"
    one_line(ran, 1, "gone", fake.base_url, part)
    assert len(rows(kept)) == done
    assert len(rows(out)) == done // 3
    fake.requests.clear()
    fake.answers(knows)
    assert label("--concurrency", "1").code == 0
    assert sum(finals(fake).values()) == 12 - done
    assert [each["correct"] for each in rows(out)] == CORRECT


def lines(path: Path) -> int:
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def started(
    arguments: Sequence[str | Path], far_enough: Callable[[], bool], seconds: float = 300
) -> "subprocess.Popen[str]":
    """A command in a process of its own, at the moment when it has come far enough."""
    process = subprocess.Popen(
        [sys.executable, "-m", "hopgate", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ.copy(),
    )
    limit = time.monotonic() + seconds
    while not far_enough():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.02)
    return process


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_killed_and_started_again_it_repeats_no_answer(
    label: Callable[..., Ran], fake: FakeOpenAI, data: Path, out: Path, how: signal.Signals
) -> None:
    def slow(messages: Messages) -> Reply:
        strategy, number = asked_of(messages)
        late = number > 1 or (number == 1 and strategy == "multi")
        return Reply(str(knows(messages)), delay=60 if late else 0)

    fake.answers(slow)
    kept = out.with_name("labels.answers.jsonl")
    command = ("label", "--questions", data, "--out", out, "--model", "openai:fake")
    # all of ship 0, two of ship 1
    with started(command, lambda: (lines(kept), lines(out)) == (5, 1)) as process:
        process.send_signal(how)
        stdout, stderr = process.communicate(timeout=30)
    if how is signal.SIGINT:
        assert (process.returncode, stdout) == (1, "")
        assert stderr.splitlines()[-1].startswith("hopgate: interrupted; 5 of 12 answers are kept")
    assert [each["id"] for each in rows(out)] == ["q0"]
    with kept.open("a") as file:
        file.write('{"id": "multi:q1", "cut sh')  # as a kill in the middle of a write leaves it
    fake.requests.clear()
    fake.answers(knows)
    ran = label()
    assert ran.code == 0, ran.err
    before = Counter({("none", 0): 1, ("single", 0): 1, ("multi", 0): 1, ("none", 1): 1})
    assert finals(fake) == ONCE - before - Counter({("single", 1): 1})
    assert [each["correct"] for each in rows(out)] == CORRECT
    fake.requests.clear()
    assert label().code == 0
    assert fake.requests == []
    assert label("--overwrite").code == 0
    assert finals(fake) == ONCE


def test_more_questions_of_the_same_file_go_on(
    label: Callable[..., Ran], fake: FakeOpenAI, out: Path
) -> None:
    fake.answers(knows)
    for limit, asked in ((1, 3), (3, 9), (2, 9)):
        assert label("--limit", str(limit)).code == 0
        assert len(rows(out)) == limit
        assert sum(finals(fake).values()) == asked


def test_rows_stand_in_the_order_of_the_questions_however_the_answers_come(
    label: Callable[..., Ran], fake: FakeOpenAI, out: Path
) -> None:
    fake.answers(lambda m: Reply(str(knows(m)), delay=1 if asked_of(m)[1] == 0 else 0))
    assert label("--concurrency", "12").code == 0
    assert [each["id"] for each in rows(out)] == ["q0", "q1", "q2", "q3"]
    assert [each["correct"] for each in rows(out)] == CORRECT


def test_progress_says_how_much_time_is_left(
    label: Callable[..., Ran], fake: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hopgate.render.LINE_SECONDS", 0)
    fake.answers(knows)
    ran = label("--json")
    lines = ran.err.splitlines()
    assert len(lines) == 12
    assert all(
        re.fullmatch(rf"answers: {n} of 12, \d:\d\d:\d\d left", line)
        for n, line in enumerate(lines, start=1)
    )
    assert lines[-1] == "answers: 12 of 12, 0:00:00 left"
    json.loads(ran.out)


# Bad input


BAD: list[tuple[Any, str]] = [
    ('{"question": ', "not JSON"),
    ("[1]", "not a JSON object"),
    ({"answers": ["x"]}, "question is missing"),
    (row(9, question=" "), "question is ' '"),
    (row(9, question="x" * 5000), "5000 characters"),
    ({"question": "Who?"}, "the accepted answers are missing"),
    (row(9, answers=[]), "answers is an empty list"),
    (row(9, answers=[7]), "answers is [7]"),
    (row(9, answers={"zero": "x"}), "answers is {'zero': 'x'}"),
    (row(9, answers=["the"]), "only articles"),
    (row(9, dataset=""), "dataset is ''"),
    (row(9, id=True), "id is True"),
    (row(1), "id 'q1' appears twice"),
]


@pytest.mark.parametrize(("bad", "reason"), BAD, ids=[reason for _, reason in BAD])
def test_a_bad_row_is_named_before_anything_is_asked_and_can_be_left_out(
    label: Callable[..., Ran], fake: FakeOpenAI, data: Path, out: Path, bad: Any, reason: str
) -> None:
    write(data, [row(1), bad, row(3)])
    one_line(label(), 2, f"{data}:2", reason, "--skip-bad-rows")
    assert (fake.requests, out.exists()) == ([], False)
    examples, left_out = read_questions(data, skip_bad=True)
    assert [each.id for each in examples] == ["q1", "q3"]
    assert [(each.line, reason in each.reason) for each in left_out] == [(2, True)]


def test_bad_rows_that_were_left_out_are_counted(
    label: Callable[..., Ran], fake: FakeOpenAI, data: Path, out: Path
) -> None:
    write(data, [row(0), "{", row(1)])
    fake.answers(knows)
    found = json.loads(label("--skip-bad-rows", "--json").out)
    assert (found["questions"], found["bad_rows"], len(rows(out))) == (2, 1, 2)


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
        (["--out", "questions.jsonl"], ["is the file of the questions"]),
        (["--out", "questions.jsonl", "--overwrite"], ["is the file of the questions"]),
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
    fake.answers(knows)
    assert label("--overwrite").code == 0
    assert len(rows(out)) == 4


def test_the_answers_are_not_written_over_the_questions(
    label: Callable[..., Ran], fake: FakeOpenAI, data: Path
) -> None:
    data = data.rename(data.with_name("labels.answers.jsonl"))
    before = data.read_bytes()
    for more in ((), ("--overwrite",)):
        one_line(label("--questions", data, *more), 2, "is the file of the questions")
    assert (data.read_bytes(), fake.requests) == (before, [])


def test_an_answer_that_is_damaged_is_named(
    label: Callable[..., Ran], fake: FakeOpenAI, out: Path
) -> None:
    fake.answers(knows)
    assert label("--limit", "1").code == 0
    kept = out.with_name("labels.answers.jsonl")
    kept.write_text(kept.read_text() + '{"id": "none:q1"}\n')
    count = len(fake.requests)
    one_line(label(), 2, f"{kept}, line 4", "'known'", "--overwrite")
    assert len(fake.requests) == count


def test_a_disk_that_fills_up_leaves_no_piece_of_a_row(out: Path, data: Path) -> None:
    examples, _ = read_questions(data)
    answers: dict[str, Any] = {}
    with Labels(out, examples, "em", answers) as labels:
        answers |= {unit_id(examples[0], each): answered() for each in STRATEGIES}
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
        try:
            with pytest.raises(RuntimeError, match=f"{out} cannot be written to"):
                labels.catch_up()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        assert out.read_bytes() == b""
        labels.catch_up()
    assert len(rows(out)) == len(labels.rows) == 1


def answered() -> dict[str, Any]:
    numbers = dict.fromkeys(("retrieval_steps", "llm_calls", "prompt_tokens", "ms"), 1)
    return numbers | {"completion_tokens": 1, "known": True, "em": True, "prediction": "x" * 100}


def test_another_server_is_another_model(
    label: Callable[..., Ran], fake: FakeOpenAI, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.answers(knows)
    secret = fake.base_url.replace("127.0.0.1", "me:s3cret@127.0.0.1")
    monkeypatch.setenv("OPENAI_BASE_URL", secret)
    assert label("--limit", "1").code == 0
    settings = out.with_name("labels.answers.settings.json").read_text()
    assert "127.0.0.1" in settings
    assert "s3cret" not in settings
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    one_line(label(), 2, "endpoint: ", '"127.0.0.1:9" now', "--overwrite")


def test_other_settings_are_refused_before_anything_is_asked(
    label: Callable[..., Ran], fake: FakeOpenAI, data: Path, out: Path
) -> None:
    fake.answers(knows)
    assert label("--limit", "1").code == 0
    written, count = out.read_bytes(), len(fake.requests)
    one_line(label("--model", "openai:other"), 2, 'model: "openai:fake" there', "--overwrite")
    write(data, [row(1)])
    one_line(label(), 2, "labels.answers.jsonl", "data: ")
    assert (out.read_bytes(), len(fake.requests)) == (written, count)
