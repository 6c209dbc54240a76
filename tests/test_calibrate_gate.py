"""`hopgate calibrate --gate`: thresholds that separate best."""

import json
import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Ran, one_line
from doubles import task
from fake_openai import FakeOpenAI, Messages, Reply
from hypothesis import given, settings
from hypothesis import strategies as st
from ships import write_rows

from hopgate.evaluation.measuring import gates

# The threshold

VALUES = [0.1, 0.2, 0.2, 0.4, 0.3, 0.6]
NEEDED = [False, False, True, False, True, True]


def test_the_curve_by_hand() -> None:
    points = gates.choose_threshold(VALUES, NEEDED)["curve"]
    shares = [(point["needed"] * 3, point["known"] * 3) for point in points]
    assert shares == [
        (pytest.approx(needed), pytest.approx(known))
        for needed, known in [(3, 3), (3, 2), (2, 1), (1, 1), (1, 0), (0, 0)]
    ]
    assert [point["threshold"] for point in points] == [0, 0.15, 0.25, 0.35, 0.5, 1]
    assert points[2]["accuracy"] == pytest.approx(4 / 6)
    assert points[2]["balanced_accuracy"] == pytest.approx(4 / 6)
    assert points[2]["retrieve"] == pytest.approx(0.5)


some = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=2, max_size=40).filter(
    lambda rows: len({needed for _, needed in rows}) == 2
)


@settings(deadline=None, max_examples=50)
@given(some, st.none() | st.floats(0, 1))
def test_no_threshold_is_better_than_the_chosen_one(
    rows: list[tuple[float, bool]], min_recall: float | None
) -> None:
    values, needed = zip(*rows, strict=True)
    found = gates.choose_threshold(values, needed, min_recall)
    points, chosen = found["curve"], found["chosen"]
    needing, others = ([v for v, n in rows if n is kind] for kind in (True, False))
    wins = sum((n > k) + 0.5 * (n == k) for n in needing for k in others)
    assert found["auc"] == pytest.approx(wins / len(needing) / len(others))
    for point in points:
        assert point == pytest.approx(gates.at(point["threshold"], values, needed))
    decisions = {tuple(value >= point["threshold"] for value in values) for point in points}
    assert len(decisions) == len(points)
    assert {tuple(value >= cut for value in values) for cut in values} <= decisions
    if min_recall is None:
        best = max(point["balanced_accuracy"] for point in points)
        assert chosen["balanced_accuracy"] == pytest.approx(best)
        same = [p for p in points if p["balanced_accuracy"] > best - 1e-9]
    else:
        assert chosen["needed"] >= min_recall - 1e-9
        same = [point for point in points if point["needed"] >= min_recall - 1e-9]
    assert chosen["retrieve"] == pytest.approx(min(point["retrieve"] for point in same))
    assert chosen["threshold"] == found["threshold"]


def test_intervals_show_how_certain_a_threshold_is() -> None:
    generator = random.Random(1)
    needed = [at % 2 == 0 for at in range(400)]
    apart = [0.8 * label + 0.1 * generator.random() for label in needed]
    mixed = [0.2 * label + 0.8 * generator.random() for label in needed]
    sure, unsure = gates.choose_threshold(apart, needed), gates.choose_threshold(mixed, needed)
    assert (sure["auc"], sure["interval"]["auc"]) == (1, [1, 1])
    assert sure["threshold"] == 0.5
    assert sure["interval"]["threshold"] == [pytest.approx(0.45, abs=0.01)] * 2
    low, high = unsure["interval"]["auc"]
    assert low < unsure["auc"] < high
    assert 0.08 < high - low < 0.15  # 4 × Hanley and McNeil's standard error: 0.11
    low, high = unsure["interval"]["threshold"]
    assert high - low > 0.05
    json.dumps(unsure, allow_nan=False)


# calibrate --gate


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    """Questions 0 to 9, in the three shapes; those from 5 on need retrieval."""
    rows: list[dict[str, Any]] = [
        {"question": f"What is {at}?", "answer": "Yes" if at > 4 else "no"} for at in range(4, 8)
    ]
    rows += [{"question": f"What is {at}?", "correct": ["zero", "one"]} for at in (0, 1)]
    rows += [{"question": "What is 8?", "correct": ["one"]}]
    rows += [
        {"question": f"What is {at}?", "retrieval_steps": 0, "match": at < 5} for at in (2, 3, 9)
    ]
    return write_rows(tmp_path / "labels.jsonl", rows)


def by_number(messages: Messages) -> Reply:
    """P(Yes), or the uncertainty of a draft, grows with the number; only 3 is out of order."""
    at = int(re.findall(r"What is (\d)\?", messages[-1]["content"])[-1])
    p = 0.56 if at == 3 else (at + 1) / 20
    words = ("Yes", "No") if task(messages) == "gate" else ("a", "b")
    return Reply("[No]", logprobs=[dict(zip(words, (math.log(p), math.log(1 - p)), strict=True))])


def test_a_threshold_is_found_and_the_command_to_use_it(
    run: Callable[..., Ran], fake: FakeOpenAI, labels: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    fake.answers(by_number)
    common = ("calibrate", "--gate", "confidence", "--labels", labels, "--model", "openai:fake")
    ran = run(*common, "--out", out, "--layout", "turns", "--json")
    assert (ran.code, ran.err) == (0, ""), ran.err
    found = json.loads(ran.out)
    assert found["auc"] == pytest.approx(20 / 25)
    assert 0.25 < found["threshold"] <= 0.3
    assert found["chosen"]["needed"] == 1
    assert found["chosen"]["known"] == pytest.approx(0.2)
    assert found["shipped"]["threshold"] == 0.5
    assert found["shipped"]["needed"] == pytest.approx(0.2)
    assert (found["questions"], found["needed"], found["invalid"]) == (10, 5, 0)
    assert found["settings"]["layout"] == "turns"
    assert found["use"] == (
        f'hopgate ask "…" --gate confidence --gate-threshold {found["threshold"]} '
        "--model openai:fake --layout turns"
    )
    kept = json.loads((out / "calibration.json").read_text(encoding="utf-8"))
    assert kept == {key: value for key, value in found.items() if key != "use"}
    assert "What is" not in json.dumps(kept)

    fake.requests.clear()
    again = run(*common, "--out", out, "--layout", "turns", "--min-recall", "0.6")
    assert again.code == 0, again.err
    assert fake.requests == []
    for part in ("threshold 0.38", " 0.800 ", "shipped", "chosen", "--gate-threshold 0.38"):
        assert part in again.out
    other = run(*common, "--out", out)
    one_line(other, 2, "confidence.jsonl", "layout: 'turns' in the file")
    common = ("calibrate", "--gate", "draft", *common[3:])
    assert json.loads(run(*common, "--json").out)["auc"] == pytest.approx(22 / 25)
    assert {task(body["messages"]) for body in fake.requests} == {"direct"}


def test_replies_without_a_value_retrieve_at_every_threshold(
    run: Callable[..., Ran], fake: FakeOpenAI, labels: Path
) -> None:
    def half(messages: Messages) -> Reply:
        known = "What is 0?" in messages[-1]["content"]
        return Reply("?", logprobs=[{"maybe": 0.0}]) if known else by_number(messages)

    fake.answers(half)
    common = ("calibrate", "--gate", "confidence", "--labels", labels, "--model", "openai:fake")
    found = json.loads(run(*common, "--json").out)
    assert found["invalid"] == 1
    assert found["curve"][-1]["known"] >= 0.2


def test_a_gate_that_separates_nothing_is_not_recommended(
    run: Callable[..., Ran], fake: FakeOpenAI, labels: Path
) -> None:
    fake.answers(lambda _: Reply("[No]", logprobs=[{"Yes": -1.0, "No": -0.5}]))
    common = ("calibrate", "--gate", "confidence", "--labels", labels, "--model", "openai:fake")
    ran = run(*common)
    assert ran.code == 0, ran.err
    assert "the gate cannot be told from chance" in " ".join(ran.out.split())


def test_labels_of_one_kind_are_refused_before_anything_is_asked(
    run: Callable[..., Ran], fake: FakeOpenAI, tmp_path: Path
) -> None:
    labels = write_rows(tmp_path / "l.jsonl", [{"question": "Why?", "answer": "Yes"}] * 3)
    common = ("calibrate", "--gate", "confidence", "--model", "openai:fake")
    one_line(run(*common, "--labels", labels), 2, "all 3 questions need retrieval")
    write_rows(labels, [{"question": "Why?"}])
    one_line(run(*common, "--labels", labels), 2, "l.jsonl:1")
    assert fake.requests == []
