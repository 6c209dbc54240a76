"""The live view of `ask`, and that nothing in it can command the terminal."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from commands import in_terminal
from doubles import by_task
from fake_openai import FakeOpenAI
from rich.console import Console

from hopgate.retrievers.building import build_index
from hopgate.terminal.live import View

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


def token(text: str) -> dict[str, Any]:
    return {"event": "token", "text": text}


def drawn(told: Sequence[Any], height: int = 50) -> list[str]:
    """Draw the view once, without styles, so that every escape in it comes from a text."""
    view = View()
    for event in told:
        view.show(event)
    file = io.StringIO()
    console = Console(
        file=file, force_terminal=True, color_system=None, width=60, height=height, emoji=False
    )
    console.print(view)
    *lines, spinner = file.getvalue().splitlines()
    assert "thinking" in spinner
    return [line.rstrip() for line in lines]


def test_every_event_has_its_line() -> None:
    told = [
        GATE,
        ROUTE,
        {"event": "plan", "sub_questions": ["Who drew it?", "Where was {1} born?"]},
        hop(1, "Who drew it?", "Skerrane Light", "Gull Tooth"),
        {"event": "thought", "number": 1, "thought": "Corrane"},
        hop(2, "Where was Corrane born?"),
        {"event": "thought", "number": 2, "thought": ""},
        {"event": "stop", "number": 2, "stop_reason": "no_thought"},
        token("Liss"),
        token("mere [1]"),
    ]
    assert drawn(told) == [
        "gate    yes (ta-are): it needs help",
        "route   C at α = 0.4 (A 0.10  B 0.20  C 0.70): likeliest",
        "plan 1  Who drew it?",
        "plan 2  Where was {1} born?",
        "hop 1   Who drew it?",
        "        found Skerrane Light, Gull Tooth",
        "        Corrane",
        "hop 2   Where was Corrane born?",
        "        found nothing",
        "        no thought",
        "stopped no_thought",
        "answer  Lissmere [1]",
    ]


def test_an_escalation_drops_the_answer_before_it() -> None:
    escalated = {"event": "escalate", "from": "none", "to": "single", "reason": "no answer"}
    told = [token("I don't"), {"event": "answer", "text": "I don't know"}, escalated, token("Yes")]
    assert drawn(told) == ["deeper  no retrieval → one retrieval: no answer", "answer  Yes"]


def test_a_long_run_shows_its_newest_lines() -> None:
    told = [hop(number, f"query {number}", "x" * 200) for number in range(1, 30)]
    lines = drawn([*told, token("the answer")], height=10)
    assert len(lines) == 8
    assert lines[-1].endswith("the answer")


def test_no_text_is_markup_or_a_control_character() -> None:
    told = [
        {**GATE, "reason": ATTACK},
        ROUTE,
        {"event": "plan", "sub_questions": [ATTACK]},
        hop(1, ATTACK, ATTACK),
        {"event": "thought", "number": 1, "thought": ATTACK},
        {"event": "escalate", "from": "none", "to": "single", "reason": ATTACK},
        token(ATTACK),
    ]
    shown = "\n".join(drawn(told))
    assert shown.count(SHOWN) == 7
    assert all(character.isprintable() for character in shown.replace("\n", ""))


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
    fake.answers(by_task(reason=thought, answer=f"{ATTACK} [1]"))
    code, out, err = in_terminal(
        "ask", f"Who is {ATTACK}?", "--strategy", "multi", "--index", str(attacking)
    )
    assert code == 0, err
    for shown in ("gate", "route", f"hop 1   Who is {SHOWN}", f"found {SHOWN}", "stopped answered"):
        assert shown in err.replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert err.rstrip().endswith("\x1b[2K")  # the view is wiped
    for text in (out, err):
        assert SHOWN in text
        assert "\x1b[2J" not in text
        assert "\x1b]0;" not in text
        assert not set("\x07\x9b\u202e") & set(text)
    assert "\x1b" not in out
    assert out.startswith("╭─ answer")
