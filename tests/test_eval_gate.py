"""Measuring gates: thresholds that separate best, and stability on paraphrases."""

import json
import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Ran, one_line
from doubles import task
from fake_openai import COMPLETION_TOKENS, PROMPT_TOKENS, FakeOpenAI, Messages, Reply
from hypothesis import given, settings
from hypothesis import strategies as st
from ships import write_rows

from hopgate.evaluation.measuring import gates
from hopgate.evaluation.measuring.stability import read_groups, stability

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
    rising = np.random.default_rng(0).random((2, 3000))
    many = gates.choose_threshold(rising[0].tolist(), (rising[1] < rising[0]).tolist())
    assert len(many["curve"]) <= gates.MAX_POINTS + 1
    assert many["chosen"] in many["curve"]
    assert (many["curve"][0]["needed"], many["curve"][-1]["needed"]) == (1, 0)


# Paraphrases


def group(*said: bool | float) -> list[dict[str, Any]]:
    """Decisions, or values that decide at 0.5."""
    return [
        {"retrieve": each >= 0.5, "value": None if isinstance(each, bool) else each}
        for each in said
    ]


def test_stability_by_hand() -> None:
    found = stability([group(0.9, 0.4, 0.6), group(0.1, 0.3), group(0.7, 0.8)])
    assert found["flips"]["value"] == pytest.approx(1 / 3)
    assert found["pairs"]["value"] == pytest.approx((2 / 3 + 0 + 0) / 3)
    assert found["retrieve"]["value"] == pytest.approx((2 / 3 + 0 + 1) / 3)
    assert found["spread"]["value"] == pytest.approx((0.5 + 0.2 + 0.1) / 3)
    for each in found.values():
        low, high = each["interval"]
        assert low <= each["value"] <= high
    assert stability([group(True, False), group(True, True)])["spread"] is None


@given(st.lists(st.lists(st.booleans(), min_size=2, max_size=5), min_size=1, max_size=8))
def test_pairs_are_counted(groups: list[list[bool]]) -> None:
    found = stability([group(*said) for said in groups])
    shares = [
        np.mean([a != b for at, a in enumerate(said) for b in said[at + 1 :]]) for said in groups
    ]
    assert found["pairs"]["value"] == pytest.approx(np.mean(shares))
    assert math.isclose(found["flips"]["value"], np.mean([len(set(said)) > 1 for said in groups]))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"question": "Why?"}', "needs a list `questions`, or `question` and `paraphrases`"),
        ('{"questions": ["Why?", "Why? "]}', "at least two forms with different texts"),
        ('{"questions": ["Why?", 3]}', "empty"),
        ('{"id": "1", "questions": ["Why?", "How?"]}', "'1' appears twice"),
    ],
)
def test_a_bad_group_is_named(tmp_path: Path, line: str, reason: str) -> None:
    good = [{"id": 1, "questions": ["A?", "B?"]}, {"question": "C?", "paraphrases": ["D?"]}]
    file = write_rows(tmp_path / "p.jsonl", good)
    assert read_groups(file) == [("1", ("A?", "B?")), ("group_2", ("C?", "D?"))]
    write_rows(file, [*good, line])
    with pytest.raises(ValueError, match=rf"p\.jsonl:3: .*{re.escape(reason)}"):
        read_groups(file)


# eval gate


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    rows = [{"id": f"g{at}", "questions": [f"Is {at} odd?", f"odd {at}"]} for at in range(5)]
    return write_rows(tmp_path / "groups.jsonl", rows)


def by_wording(messages: Messages) -> Reply:
    """Says Yes to the terse form, and to 0 in any form."""
    asked = messages[-1]["content"]
    yes = bool(re.search(r"odd \d", asked.splitlines()[-2])) or "Is 0 odd?" in asked
    high, low = math.log(0.9), math.log(0.1)
    return Reply(
        "[Yes]" if yes else "[No]",
        logprobs=[{"Yes": high if yes else low, "No": low if yes else high}],
    )


def test_flips_are_reported_and_only_the_gate_is_prompted(
    run: Callable[..., Ran], fake: FakeOpenAI, groups: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    fake.answers(by_wording)
    asked = ("--gate", "ta-are", "--gate", "confidence:threshold=0.5", "--gate", "always")
    common = ("eval", "gate", "--paraphrases", groups, "--model", "openai:fake", "--out", out)
    ran = run(*common, *asked, "--json")
    assert (ran.code, ran.err) == (0, ""), ran.err
    found = json.loads(ran.out)
    assert found == json.loads((out / "paraphrases.json").read_text(encoding="utf-8"))
    assert (found["data"]["groups"], found["data"]["questions"]) == (5, 10)
    ta_are, confidence, always = (each["scores"] for each in found["runs"])
    assert ta_are["flips"]["value"] == confidence["flips"]["value"] == 0.8
    assert ta_are["retrieve"]["value"] == pytest.approx(0.6)
    assert ta_are["spread"] is None
    assert confidence["spread"]["value"] == pytest.approx(0.8 * 0.8)
    assert (always["flips"]["value"], always["retrieve"]["value"]) == (0, 1)
    assert found["runs"][0]["usage"] == {
        "llm_calls": 10,
        "prompt_tokens": 10 * PROMPT_TOKENS,
        "completion_tokens": 10 * COMPLETION_TOKENS,
    }
    assert len(fake.requests) == 20
    page = (out / "paraphrases.md").read_text(encoding="utf-8")
    assert "| `ta-are` | 80% (" in page
    assert "Is 0 odd?" not in page + ran.out
    assert (out / "asked" / "ta-are.jsonl").read_text().count("\n") == 10


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ["--gate"]),
        (["--gate", "maybe"], ["'maybe'"]),
        (["--gate", "ta-are", "--paraphrases", "nowhere"], ["nowhere"]),
        (["--gate", "ta-are", "--out", "groups.jsonl"], ["groups.jsonl is not a folder"]),
    ],
    ids=lambda each: " ".join(each)[:40],
)
def test_wrong_usage_of_eval_gate_is_one_line(
    run: Callable[..., Ran],
    fake: FakeOpenAI,
    groups: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    parts: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = run("eval", "gate", "--paraphrases", groups, "--out", "out", *arguments)
    one_line(ran, 2, *parts)
    assert fake.requests == []


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
    assert (out / "calibration.png").read_bytes().startswith(b"\x89PNG")
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


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--gate", "confidence", "--budget-steps", "2"], ["--budget-steps", "with --gate"]),
        (["--gate", "draft", "--router", "x"], ["--router", "with --gate"]),
        (["--gate", "ta-are"], ["'ta-are'"]),
        (["--budget-steps", "2", "--model", "auto"], ["--model", "without --gate"]),
        (["--budget-steps", "2", "--out", "x"], ["--out", "without --gate"]),
        (["--gate", "confidence", "--min-recall", "2"], ["'--min-recall': 2.0 is not in"]),
        (["--gate", "confidence", "--demos", "nowhere"], ["nowhere", "cannot be read"]),
        (["--gate", "confidence", "--out", "labels.jsonl"], ["labels.jsonl is not a folder"]),
    ],
    ids=lambda each: " ".join(each)[:40],
)
def test_wrong_usage_of_calibrate_is_one_line(
    run: Callable[..., Ran],
    fake: FakeOpenAI,
    labels: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    parts: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    one_line(run("calibrate", "--labels", labels, *arguments), 2, *parts)
    assert fake.requests == []
    assert [path.name for path in tmp_path.iterdir()] == ["labels.jsonl"]
