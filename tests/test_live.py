"""The live view of `ask`, and that nothing in it can command the terminal."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import in_terminal
from doubles import by_task
from fake_openai import FakeOpenAI, Reply

from hopgate.retrievers.building import build_index
from hopgate.terminal.live import event_rows

ATTACK = "[bold red]X[/bold red] \x1b[2J\x1b]0;owned\x07\x9b2J\r\n\u202eY"
SHOWN = "[bold red]X[/bold red]"
GATE = {"event": "gate", "answer": "yes", "mode": "ta-are", "reason": "it needs help"}
ROUTE = {
    "event": "route",
    "strategy": "multi",
    "reason": "likeliest",
    "label": "C",
    "alpha": 0.4,
    "probs": {"A": 0.1, "B": 0.2, "C": 0.7},
}


def hop(number: int, query: str, *titles: str) -> dict[str, Any]:
    passages = [{"id": "0", "title": title, "score": 0.5} for title in titles]
    return {"event": "hop", "number": number, "query": query, "passages": passages}


def test_every_event_has_its_lines() -> None:
    told: list[Any] = [
        GATE,
        ROUTE,
        {"event": "plan", "sub_questions": ["Who drew it?", "Where was {1} born?"]},
        hop(1, "Who drew it?", "Skerrane Light", "Gull Tooth"),
        {"event": "thought", "number": 1, "thought": "Corrane"},
        hop(2, "Where was Corrane born?"),
        {"event": "thought", "number": 2, "thought": ""},
        {"event": "stop", "number": 2, "stop_reason": "no_thought"},
        {"event": "escalate", "from": "none", "to": "single", "reason": "no answer"},
        {"event": "answer", "text": "Lissmere [1]"},
    ]
    assert [row for event in told for row in event_rows(event)] == [
        ("gate", "yes (ta-are): it needs help"),
        ("route", "C at α = 0.4 (A 0.10  B 0.20  C 0.70): likeliest"),
        ("plan 1", "Who drew it?"),
        ("plan 2", "Where was {1} born?"),
        ("hop 1", "Who drew it?"),
        ("", "found Skerrane Light, Gull Tooth"),
        ("", "Corrane"),
        ("hop 2", "Where was Corrane born?"),
        ("", "found nothing"),
        ("", "no thought"),
        ("stopped", "no_thought"),
        ("deeper", "no retrieval → one retrieval: no answer"),
        ("answer", "Lissmere [1]"),
    ]


@pytest.fixture
def attacking(tmp_path: Path) -> Path:
    """An index whose one passage attacks the terminal."""
    source = tmp_path / "attack.jsonl"
    source.write_text(json.dumps({"title": ATTACK, "text": f"Text of {ATTACK}"}) + "\n")
    build_index([source], tmp_path / "index")
    return tmp_path / "index"


def test_ask_shows_a_run_in_a_terminal_and_the_answer_on_stdout(
    fake: FakeOpenAI, attacking: Path
) -> None:
    thought = f"So the answer is: {ATTACK}."
    fake.answers(by_task(reason=thought, answer=Reply(f"{ATTACK} [1]", delay=0.5)))
    code, out, err = in_terminal(
        "ask", f"Who is {ATTACK}?", "--strategy", "multi", "--index", str(attacking)
    )
    assert code == 0, err
    assert "stopped answered" in err  # the newest event while the model writes
    assert err.rstrip().endswith("\x1b[2K")  # the view is wiped
    assert SHOWN in out
    for text in (out, err):
        assert "\x1b[2J" not in text
        assert "\x1b]0;" not in text
        assert not set("\x07\x9b\u202e") & set(text)
    assert "\x1b" not in out
    assert out.startswith("╭─ answer")
