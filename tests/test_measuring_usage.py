"""Wrong usage of the commands that measure: one line, before anything is asked or written."""

from collections.abc import Callable
from pathlib import Path

import pytest
from commands import Ran, one_line
from fake_openai import FakeOpenAI
from recorded import write_labels
from ships import ship, ship_with_passage, write_rows

MODEL = "--model openai:fake"
COMMANDS = {
    "label": f"label --questions ships.jsonl --out labelled.jsonl {MODEL}",
    "retrievalqa": f"eval retrievalqa --data rqa.jsonl --out out {MODEL}",
    "qa": f"eval qa --data ships.jsonl --out out {MODEL}",
    "gate": "calibrate --labels gated.jsonl",
    "calibrate": "calibrate --labels labels.jsonl",
    "sweep": "sweep --labels labels.jsonl --out out",
}
SAME = "--gate ta-are:date=no,demos=0 --gate ta-are:demos=0,date=no"
WRONG: list[tuple[str, str, list[str]]] = [
    ("label", "--questions nowhere", ["nowhere"]),
    ("label", "--index nowhere", ["nowhere", "hopgate index build"]),
    ("label", "--judge f1", ["--judge", "match"]),
    ("label", "--concurrency 0", ["--concurrency"]),
    ("label", "--out .", [". is a folder"]),
    ("label", "--out ships.jsonl/labels.jsonl", ["ships.jsonl is not a folder"]),
    ("label", "--out ships.jsonl --overwrite", ["is the file of questions"]),
    ("retrievalqa", "--gate maybe", ["'maybe'", "ta-are"]),
    ("retrievalqa", "--gate ta-are:", ["'ta-are:'", "date, demos, pool"]),
    ("retrievalqa", "--gate ta-are:data=no", ["'data=no'", "date, demos, pool"]),
    ("retrievalqa", "--gate ta-are:demos=3", ["gate_demos is '3'", "multiple of 2"]),
    ("retrievalqa", "--gate ta-are:pool=nowhere", ["nowhere cannot be read"]),
    ("retrievalqa", "--gate ta-are:threshold=0.5", ["'threshold=0.5' is not one of date"]),
    ("retrievalqa", "--gate draft:threshold=nan", ["gate_threshold is 'nan'"]),
    ("retrievalqa", SAME, ["means the same as 'ta-are:date=no,demos=0'"]),
    ("retrievalqa", "--passages index", ["--index"]),
    ("retrievalqa", "--index nowhere", ["--passages index"]),
    ("retrievalqa", "--today yesterday", ["--today", "'yesterday'"]),
    ("retrievalqa", "--model gpt", ["gpt", "openai:NAME"]),
    ("retrievalqa", "--out rqa.jsonl/deep", ["rqa.jsonl is not a folder"]),
    ("qa", "--strategies none,deep", ["'deep'", "adaptive"]),
    ("qa", "--strategies none,none", ["'none' means the same as 'none'"]),
    ("qa", "--alphas 2", ["--alphas: alpha is '2'", "less than or equal to 1"]),
    ("qa", "--alphas 0,,1", ["--alphas: alpha is ''"]),
    ("qa", "--alphas 0.5,.5", ["'adaptive:alpha=0.5' means the same"]),
    ("qa", "--max-hops 99", ["--max-hops is 99", "less than or equal to 10"]),
    ("qa", "--router nowhere", ["nowhere"]),
    ("qa", "--profile gpt-9", ["gpt-9", "flan-t5-xl"]),
    ("gate", "--gate confidence --budget-steps 2", ["--budget-steps", "with --gate"]),
    ("gate", "--gate ta-are", ["'ta-are'"]),
    ("gate", "--budget-steps 2 --model auto", ["--model", "without --gate"]),
    ("gate", "--gate confidence --min-recall 2", ["'--min-recall': 2.0 is not in"]),
    ("gate", "--gate confidence --demos nowhere", ["nowhere", "cannot be read"]),
    ("calibrate", "", ["--budget-steps", "--min-accuracy"]),
    ("calibrate", "--budget-steps 1 --min-accuracy 0.5", ["give one of --budget-steps"]),
    ("calibrate", "--min-accuracy 1", ["no α has a min accuracy of 1", "has an accuracy"]),
    ("calibrate", "--budget-steps 1 --save Bad", ["'Bad'", "lowercase letters"]),
    ("sweep", "--labels bare.jsonl", ["bare.jsonl", "'2'", "correct"]),
    ("sweep", "--questions bare.jsonl", ["labels.jsonl", "'1'"]),
    ("sweep", "--steps-multi 0", ["--steps-multi", "'0'"]),
]


@pytest.mark.parametrize(("name", "arguments", "parts"), WRONG, ids=[each[1] for each in WRONG])
def test_wrong_usage_is_one_line_before_anything_is_asked(
    run: Callable[..., Ran], fake: FakeOpenAI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    name: str, arguments: str, parts: list[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    write_rows(Path("ships.jsonl"), [ship(number) for number in range(4)])
    write_rows(Path("rqa.jsonl"), [ship_with_passage(number) for number in range(4)])
    write_rows(
        Path("gated.jsonl"), [{"question": "Why?", "answer": each} for each in ("Yes", "No")]
    )
    write_rows(Path("bare.jsonl"), [{"id": "2", "question": "Why?", "label": "A"}])
    rows = [{"id": str(at), "question": "Why?"} for at in (1, 2)]
    correct = (["zero"], ["multiple"])
    write_labels(
        Path("labels.jsonl"),
        [row | {"correct": each} for row, each in zip(rows, correct, strict=True)],
    )
    before = sorted(tmp_path.iterdir())
    one_line(run(*COMMANDS[name].split(), *arguments.split()), 2, *parts)
    assert fake.requests == []
    assert sorted(tmp_path.iterdir()) == before
