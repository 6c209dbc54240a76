"""`hopgate calibrate --no-worse-than`, `--confidence`: what is promised, and when it is not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from commands import Ran, one_line
from ships import write_rows

from hopgate.classifiers.checkpoint import BUILTIN_FOLDER
from hopgate.classifiers.router import load_router
from hopgate.evaluation.measuring.promises import ALPHAS, bounds, held, needed, p_value
from hopgate.evaluation.measuring.replay import read_recorded, route_all

FLARE = Path(__file__).parents[2] / "shared" / "data" / "flare"


# The test


@pytest.mark.parametrize("spread", [0.02, 0.2, 1.0])
@pytest.mark.parametrize("count", [50, 300])
def test_a_broken_promise_is_shown_as_kept_no_more_often_than_said(
    spread: float, count: int
) -> None:
    """At the bound itself: losses of ½ ± ½ in a share of the questions, with the mean 0.51."""
    generator = np.random.default_rng(0)
    chances = [(spread + 0.02) / 2, 1 - spread, (spread - 0.02) / 2]
    drawn = generator.choice([1.0, 0.5, 0.0], (1000, count), p=chances)
    shown = sum(p_value(each, 0.51, 0.05) <= 0.05 for each in drawn)
    assert shown / 1000 <= 0.05 + 3 * (0.05 * 0.95 / 1000) ** 0.5


def test_what_holds_clearly_is_shown_and_what_always_holds_needs_no_test() -> None:
    losses = np.random.default_rng(0).permutation([0.0] * 150 + [1.0] * 50)
    assert p_value(losses, 0.4, 0.05) < 0.001
    assert p_value(losses, 0.2, 0.05) > 0.5
    assert p_value(np.ones(10), 1.0, 0.05) == 0


def test_the_first_that_is_not_shown_ends_the_sequence() -> None:
    kept, broken = np.zeros(100), np.ones(100)
    assert held(np.stack([kept, kept, broken, kept]), 0.5, 0.95) == 2
    assert held(np.stack([broken, kept]), 0.5, 0.95) == 0
    assert held(np.stack([kept] * 3), 0.5, 0.95) == 3


def test_as_many_labels_as_are_said_to_be_needed_mostly_show_it() -> None:
    generator = np.random.default_rng(0)
    few = np.repeat([0.0, 0.5, 1.0], [9, 84, 7])
    count = needed(few, 0.52, 0.95)
    assert count is not None and 100 < count < 1000
    shown = [held(generator.choice(few, (1, count)), 0.52, 0.95) for _ in range(100)]
    assert sum(shown) > 60
    assert needed(few, few.mean(), 0.95) is None


def test_a_difference_lies_within_its_bounds() -> None:
    differences = np.repeat([-2.0, 0.0, 2.0], [40, 110, 50])
    low, high = bounds(differences, 4, 0.95)
    assert low < differences.mean() < high
    assert high - low < 1
    narrow = bounds(np.tile(differences, 10), 4, 0.95)
    assert low < narrow[0] < narrow[1] < high


# The command


@pytest.fixture
def router(tmp_path: Path) -> Path:
    """A copy of the shipped router."""
    return Path(shutil.copytree(BUILTIN_FOLDER, tmp_path / "router"))


def labelled(path: Path, count: int) -> Path:
    """Write labels of questions that searches answer, every sixth also none."""
    correct = (["zero", "one", "multiple"], *[["one", "multiple"]] * 5)
    rows = [
        {"id": str(at), "question": f"Who built bridge {at} of the {at % 7}th road?"}
        | {"correct": correct[at % 6], "label": "A" if at % 6 == 0 else "B"}
        for at in range(count)
    ]
    return write_rows(path, rows)


def test_a_promise_names_its_alpha_and_is_kept_with_it(
    run: Callable[..., Ran], router: Path, tmp_path: Path
) -> None:
    labels = labelled(tmp_path / "labels.jsonl", 400)
    command = ("calibrate", "--labels", labels, "--router", router, "--profile", "flan-t5-xl")
    ran = run(*command, "--no-worse-than", "single", "--save", "sure", "--json")
    assert (ran.code, ran.err) == (0, ""), ran.err
    found = json.loads(ran.out)
    assert found["goal"] == {"no_worse_than": 0.02, "confidence": 0.95, "than": "single"}
    assert found["accuracy"] >= found["single"]["accuracy"] - 0.02
    words = "an accuracy at most 0.02 below that of always single: shown with 95% confidence by 400"
    assert found["promise"].startswith(words)
    kept = json.loads((router / "presets.json").read_text())["sure"]
    assert (kept["alpha"], kept["promise"]) == (found["alpha"], found["promise"])
    assert kept["known"]["questions"] == 400
    cheaper = found["alpha"] - 0.05
    recorded, _ = read_recorded(labels, None, None)
    (choices,) = route_all(load_router(router, "flan-t5-xl"), recorded.questions, [cheaper]).choices
    assert recorded.score(choices)["accuracy"] < found["single"]["accuracy"] - 0.005
    ran = run(*command, "--no-worse-than", "single", "--by", "0.05", "--confidence", "0.9")
    assert "at most 0.05 below that of always single: shown with 90% confidence" in ran.out


def test_doctor_says_whether_questions_are_like_those_of_a_promise(
    run: Callable[..., Ran], router: Path, tmp_path: Path
) -> None:
    labels = labelled(tmp_path / "labels.jsonl", 200)
    named = ("--router", router, "--profile", "gpt-4o")
    goal = ("--min-accuracy", "0.1", "--confidence", "0.95", "--save", "sure")
    assert run("calibrate", "--labels", labels, *named, *goal).code == 0

    def check(questions: Path) -> dict[str, object]:
        ran = run("doctor", "--questions", questions, *named, "--json")
        checks = {each["name"]: each for each in json.loads(ran.out)}
        return dict(checks["the promise of --alpha sure"])

    assert check(labels)["ok"]
    other = [{"question": f"Wann wurde die Brücke Nummer {at} gebaut?"} for at in range(120)]
    found = check(write_rows(tmp_path / "other.jsonl", other))
    assert not found["ok"] and "unlike its labels" in str(found["found"])
    assert found["advice"] == "`hopgate calibrate --save sure` again"


def test_a_budget_with_a_confidence_is_a_ceiling(run: Callable[..., Ran], tmp_path: Path) -> None:
    command = ("calibrate", "--labels", labelled(tmp_path / "l.jsonl", 300), "--json")
    given = ("--profile", "flan-t5-xl", "--budget-steps", "0.9")
    found = json.loads(run(*command, *given).out)
    promised = json.loads(run(*command, *given, "--confidence", "0.95").out)
    assert promised["steps"] <= found["steps"] <= 0.9
    assert promised["promise"].startswith("at most 0.9 steps: shown with 95% confidence")


def test_too_few_labels_are_said_with_about_how_many_would_do(
    run: Callable[..., Ran], tmp_path: Path
) -> None:
    command = ("calibrate", "--labels", labelled(tmp_path / "l.jsonl", 20))
    ran = run(*command, "--no-worse-than", "single", "--profile", "flan-t5-xl")
    one_line(ran, 1, "20 labels cannot show with 95% confidence", "at most 0.02 below", "about")
    ran = run(*command, "--min-accuracy", "1", "--confidence", "0.9", "--profile", "flan-t5-xl")
    one_line(ran, 1, "an accuracy of at least 1", "more labels like these would not help")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--by", "0.1", "--min-accuracy", "0.3"], "--by needs --no-worse-than"),
        (["--no-worse-than", "single", "--budget-steps", "1"], "give one of --budget-steps"),
        (["--confidence", "0.95"], "give one of --budget-steps"),
        (["--confidence", "1", "--min-accuracy", "0.3"], "--confidence"),
        (["--gate", "draft", "--no-worse-than", "single"], "cannot be used with --gate"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    run: Callable[..., Ran], tmp_path: Path, options: list[str], message: str
) -> None:
    one_line(run("calibrate", "--labels", tmp_path / "l.jsonl", *options), 2, message)


# Recorded outcomes


@pytest.mark.skipif(not FLARE.is_dir(), reason="needs the outcomes in ../shared/data")
def test_on_recorded_outcomes_the_promise_is_kept_and_the_point_estimate_is_not() -> None:
    questions, labels = FLARE / "questions.valid.jsonl", FLARE / "flan_t5_xl.valid.jsonl"
    recorded, _ = read_recorded(labels, questions, None)
    choices = route_all(load_router(profile="flan-t5-xl"), recorded.questions, ALPHAS).choices
    better = recorded.correct_for(choices).astype(float) - recorded.correct[:, 1]
    broken = {"point": 0, "promise": 0}
    for split in range(100):
        known = better[:, np.random.default_rng(split).permutation(better.shape[1])[:200]]
        point = int(np.flatnonzero(known.mean(1) >= -0.02)[0])
        count = held((1 - known[::-1]) / 2, 0.51, 0.95)
        broken["point"] += better[point].mean() < -0.02
        broken["promise"] += bool(count) and better[len(ALPHAS) - count].mean() < -0.02
    assert broken["promise"] <= 5 < broken["point"]
