"""Commands that ask many questions: what is saved when they stop, and that they resume."""

import json
import math
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import Ran, one_line, started
from fake_openai import FakeOpenAI, Messages, Reply
from ships import (
    answers_some,
    count_rows,
    reads_the_passage,
    ship,
    ship_with_passage,
    skip_pictures,
    write_rows,
)

Model = Callable[[Messages], Reply | str]


class Command:
    """A command on few questions: its arguments, its journals, and a model that can answer it."""

    def __init__(
        self, arguments: list[str | Path], journals: list[Path], total: int, model: Model
    ) -> None:
        self.arguments = [*arguments, "--model", "openai:fake", "--concurrency", "1"]
        self.journals, self.total, self.model = journals, total, model

    def saved(self) -> int:
        return sum(map(count_rows, self.journals))

    def rows(self) -> list[dict[str, Any]]:
        """All saved answers, without a last line that was cut short."""
        texts = [path.read_text() for path in self.journals if path.exists()]
        return [json.loads(line) for text in texts for line in text.split("\n")[:-1]]


def label(folder: Path) -> Command:
    questions = write_rows(folder / "q.jsonl", [ship(number) for number in range(2)])
    arguments = ["label", "--questions", questions, "--out", folder / "labels.jsonl"]
    return Command(arguments, [folder / "labels.answers.jsonl"], 6, answers_some)


def qa(folder: Path) -> Command:
    data = write_rows(folder / "q.jsonl", [ship(number) for number in range(3)])
    arguments = ["eval", "qa", "--data", data, "--out", folder, "--strategies", "none,multi"]
    journals = [folder / "predictions" / f"{name}.jsonl" for name in ("none", "multi")]
    return Command(arguments, journals, 6, answers_some)


def retrievalqa(folder: Path) -> Command:
    data = write_rows(folder / "d.jsonl", [ship_with_passage(number) for number in range(3)])
    gates = ["--gate", "always", "--gate", "ta-are"]
    arguments = ["eval", "retrievalqa", "--data", data, "--out", folder, *gates]
    journals = [folder / "predictions" / f"{name}.jsonl" for name in ("always", "ta-are")]
    return Command(arguments, journals, 6, reads_the_passage)


def calibrate(folder: Path) -> Command:
    rows = [{"question": f"What is {n}?", "answer": "No" if n % 2 else "Yes"} for n in range(6)]
    labels = write_rows(folder / "l.jsonl", rows)
    reply = Reply("[No]", logprobs=[{"Yes": math.log(0.3), "No": math.log(0.7)}])
    arguments = ["calibrate", "--gate", "confidence", "--labels", labels, "--out", folder]
    return Command(arguments, [folder / "asked" / "confidence.jsonl"], 6, lambda _: reply)


@pytest.fixture(params=[label, qa, retrievalqa, calibrate], ids=lambda each: each.__name__)
def command(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Command:
    skip_pictures(monkeypatch)
    found: Command = request.param(tmp_path)
    return found


def dying(model: Model, calls: int) -> Model:
    """Answer so many calls; after that the endpoint is gone."""
    left: Iterator[int] = iter(range(calls))
    gone = Reply(status=400, error="gone")
    return lambda messages: gone if next(left, None) is None else model(messages)


def resume(run: Callable[..., Ran], fake: FakeOpenAI, command: Command) -> None:
    """Run the command again: saved answers stay, only the others are asked for."""
    before = command.rows()
    fake.requests.clear()
    fake.answers(command.model)
    ran = run(*command.arguments)
    assert ran.code == 0, ran.err
    after = command.rows()
    assert [row for row in after if row in before] == before
    assert len(after) == command.total
    new = [row for row in after if row not in before]
    assert len(fake.requests) == sum(row["llm_calls"] for row in new)
    fake.requests.clear()
    assert run(*command.arguments).code == 0
    assert fake.requests == []


def test_a_failing_endpoint_leaves_the_answers_so_far_and_the_same_command_resumes(
    command: Command, run: Callable[..., Ran], fake: FakeOpenAI
) -> None:
    fake.answers(dying(command.model, 5))
    ran = run(*command.arguments)
    saved = command.saved()
    assert 0 < saved < command.total
    message = f"{saved} of {command.total} answers are saved in {command.journals[0].parent}"
    one_line(ran, 1, "gone", fake.base_url, message, "run the same command again to resume")
    resume(run, fake, command)


@pytest.mark.parametrize(("build", "how"), [(label, signal.SIGKILL), (retrievalqa, signal.SIGINT)])
def test_a_killed_command_resumes(
    run: Callable[..., Ran],
    fake: FakeOpenAI,
    tmp_path: Path,
    build: Callable[[Path], Command],
    how: signal.Signals,
) -> None:
    command = build(tmp_path)
    first = iter(range(4))

    def slow(messages: Messages) -> Reply | str:
        reply = command.model(messages)
        return reply if next(first, None) is not None else Reply(str(reply), delay=3600)

    fake.answers(slow)
    with started(command.arguments, lambda: command.saved() >= 3) as process:
        process.send_signal(how)
        stdout, stderr = process.communicate(timeout=60)
    saved = command.saved()
    if how is signal.SIGINT:
        message = f"interrupted; {saved} of 6 answers are saved in"
        after_progress = stderr.splitlines(keepends=True)[-1]
        one_line(Ran(process.returncode, stdout, after_progress), 130, message, "to resume")
    else:
        with command.journals[0].open("a") as file:
            file.write('{"id": "cut sh')  # what a kill in the middle of a write leaves
    resume(run, fake, command)
