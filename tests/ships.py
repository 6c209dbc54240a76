"""Questions about ships, and a model that answers them with some strategies only."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from doubles import task
from fake_openai import Messages, Reply
from matplotlib.figure import Figure

CORRECT = [["zero"], ["one", "multiple"], ["multiple"], []]
"""Which strategies answer ship 0, 1, 2 and 3; then again from the start."""
FLARE_NAMES = {"none": "zero", "single": "one", "multi": "multiple"}


def ship(number: int, **fields: Any) -> dict[str, Any]:
    """A row of `hopgate label` and `hopgate eval qa`."""
    return {
        "id": f"q{number}",
        "question": f"What is the code word of ship {number}?",
        "answers": [f"word{number}x"],
        "dataset": "even" if number % 2 == 0 else "odd",
    } | fields


def ship_with_passage(number: int, **fields: Any) -> dict[str, Any]:
    """A row of RetrievalQA; only its passage has the answer."""
    return {
        "data_source": "popqa" if number % 2 else "freshqa",
        "question_id": f"q{number}",
        "question": f"What is the code word of ship {number}?",
        "ground_truth": [f"word{number}x"],
        "context": [{"title": f"Ship {number}", "text": f"Its code word is word{number}x."}],
    } | fields


def prompted(messages: Messages) -> tuple[str, int]:
    """The strategy behind a prompt (`reason`: the loop's thought), and the ship's number."""
    text = messages[-1]["content"]
    number = int(re.findall(r"ship (\d+)\?", text)[-1])
    name = task(messages)
    if name == "answer":  # one retrieval shows five passages, one hop three
        name = "single" if "[4]" in text else "multi"
    return {"direct": "none"}.get(name, name), number


def answers_some(messages: Messages) -> Reply | str:
    """Answer as `CORRECT` says."""
    strategy, number = prompted(messages)
    if strategy == "reason":
        return "So the answer is: found."
    known = FLARE_NAMES[strategy] in CORRECT[number % 4]
    return f"word{number}x" if known else "I don't know"


def reads_the_passage(messages: Messages) -> Reply | str:
    """Say Yes to even ships; answer what the passages say, else "I don't know"."""
    text = messages[-1]["content"]
    match task(messages):
        case "gate":
            return "[Yes]" if int(re.findall(r"ship (\d+)", text)[-1]) % 2 == 0 else "[No]"
        case "answer":
            return f"{re.findall(r'word[0-9a-z]+', text)[-1]} [1]"
    return "I don't know"


def write_rows(path: Path, rows: Sequence[Any]) -> Path:
    """Write a JSONL file; a row that is a string is written as it is."""
    lines = [each if isinstance(each, str) else json.dumps(each) for each in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def count_rows(path: Path) -> int:
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def skip_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no pictures in reports; layout and rendering take a second each."""
    monkeypatch.setattr(Figure, "savefig", lambda _, file, **__: file.write(b"\x89PNG"))
