"""`hopgate calibrate`: the α that meets a goal, and saved settings."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from commands import Ran, one_line
from doubles import by_task
from fake_openai import FakeOpenAI
from recorded import write_labels

from hopgate.classifiers.checkpoint import BUILTIN_FOLDER
from hopgate.classifiers.saved_alphas import save_alpha, saved_alpha
from hopgate.evaluation.measuring.calibration import RESAMPLES, Goal, choose_alpha
from hopgate.evaluation.measuring.replay import Recorded

# Choosing α

ACCURACY = np.array([0.2, 0.4, 0.4, 0.5, 0.3])
STEPS = np.array([0.5, 1.8, 1.5, 3.0, 0.5])


@pytest.mark.parametrize(
    ("goal", "best"),
    [
        (Goal("budget_steps", 1.8), 2),  # of the two with 0.4 the cheaper
        (Goal("budget_steps", 0.5), 4),
        (Goal("budget_steps", 9), 3),
        (Goal("budget_steps", 0.4), -1),
        (Goal("min_accuracy", 0.4), 2),
        (Goal("min_accuracy", 0.1), 4),  # of the two at 0.5 steps the better
        (Goal("min_accuracy", 0.45), 3),
        (Goal("min_accuracy", 0.51), -1),
    ],
)
def test_the_best_point_that_meets_a_goal(goal: Goal, best: int) -> None:
    assert goal.best(ACCURACY, STEPS) == best
    both = goal.best(np.stack([ACCURACY, ACCURACY[::-1]]), np.stack([STEPS, STEPS[::-1]]))
    assert both.tolist() == [best, 4 - best if best >= 0 else -1]


def halves(questions: int) -> tuple[Recorded, np.ndarray]:
    """Half the questions need no retrieval, half need one; at α = 1 all get one."""
    half = questions // 2
    recorded = Recorded(
        questions=("x",) * questions,
        datasets=np.array([""] * questions),
        correct=np.array([[1, 0, 0]] * half + [[0, 1, 1]] * half, bool),
        steps=np.array([[0.0, 1.0, 3.0]] * questions),
    )
    return recorded, np.array([[0] * questions, [1] * questions], np.int8)


def test_the_interval_of_a_share_has_its_known_width() -> None:
    recorded, choices = halves(400)
    found = choose_alpha(recorded, choices, [0.0, 1.0], Goal("budget_steps", 0), recorded.steps)
    low, high = found["interval"]["accuracy"]
    assert found["accuracy"] == 0.5
    assert high - low == pytest.approx(2 * 1.96 * 0.5 / 400**0.5, rel=0.15)
    assert low < 0.5 < high
    assert found["interval"]["steps"] == [0, 0]


def test_resamples_that_meet_no_goal_are_counted_and_alpha_is_chosen_anew() -> None:
    recorded, choices = halves(400)
    found = choose_alpha(recorded, choices[:1], [0.3], Goal("min_accuracy", 0.5), recorded.steps)
    assert 0.3 * RESAMPLES < found["infeasible"] < 0.7 * RESAMPLES
    assert found["interval"]["alpha"] == [0.3, 0.3]
    either = choose_alpha(recorded, choices, [0.0, 1.0], Goal("min_accuracy", 0.5), recorded.steps)
    assert (either["alpha"], either["infeasible"]) == (0, 0)
    assert either["interval"]["alpha"] == [0, 1]


def test_an_unreachable_goal_names_what_can_be_reached() -> None:
    recorded, choices = halves(10)
    with pytest.raises(
        ValueError, match=r"min accuracy of 0.9.*α = 0, has an accuracy of 0.5000 at 0.000"
    ):
        choose_alpha(recorded, choices, [0.0, 1.0], Goal("min_accuracy", 0.9), recorded.steps)
    with pytest.raises(ValueError, match=r"budget steps of 0.5.*the nearest, α = 1.*1.000 steps"):
        choose_alpha(recorded, choices[1:], [1.0], Goal("budget_steps", 0.5), recorded.steps)


# Settings by name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A router's folder as far as settings go: only its manifest."""
    path = tmp_path / "router"
    path.mkdir()
    (path / "manifest.json").write_text('{"weights": 1}')
    return path


def test_a_setting_is_saved_beside_others_for_its_profile(folder: Path) -> None:
    with pytest.raises(ValueError, match="none yet"):
        saved_alpha(folder, "cheap")
    save_alpha(folder, "cheap", {"alpha": 0.1, "profile": "gpt-4o"})
    save_alpha(folder, "sure-2", {"alpha": 1, "profile": "gpt-4o", "labels": "l.jsonl"})
    save_alpha(folder, "cheap", {"alpha": 0.2, "profile": "gpt-4o"})
    assert saved_alpha(folder, "cheap") == 0.2
    assert saved_alpha(folder, "sure-2", "gpt-4o") == 1
    with pytest.raises(ValueError, match="for the profile gpt-4o, not for flan-t5-xl"):
        saved_alpha(folder, "cheap", "flan-t5-xl")
    with pytest.raises(ValueError, match=r"'b' is neither.*saved: cheap, sure-2\)"):
        saved_alpha(folder, "b")
    assert json.loads((folder / "presets.json").read_text())["sure-2"]["labels"] == "l.jsonl"
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "presets.json"]


def test_settings_of_replaced_weights_are_refused_and_dropped(folder: Path) -> None:
    save_alpha(folder, "old", {"alpha": 0.1, "profile": "x"})
    (folder / "manifest.json").write_text('{"weights": 2}')
    with pytest.raises(ValueError, match="trained again"):
        saved_alpha(folder, "old")
    save_alpha(folder, "new", {"alpha": 0.2, "profile": "x"})
    assert set(json.loads((folder / "presets.json").read_text())) == {"new"}


@pytest.mark.parametrize("name", ["", "Cheap", "1st", "a/b", "nan", "a\n"])
def test_a_bad_name_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot name a setting"):
        save_alpha(folder, name, {"alpha": 0.1, "profile": "x"})
    assert not (folder / "presets.json").exists()


def test_settings_that_cannot_be_read_or_written_are_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "presets.json").write_text("{")
    with pytest.raises(ValueError, match=r"settings .*presets\.json cannot be read: not JSON"):
        saved_alpha(folder, "a")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(RuntimeError, match=r"cannot be saved in .*--router"):
        save_alpha(folder, "a", {"alpha": 0.1, "profile": "x"})


# The command


@pytest.fixture
def router(tmp_path: Path) -> Path:
    """A copy of the shipped router."""
    return Path(shutil.copytree(BUILTIN_FOLDER, tmp_path / "router"))


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    return write_labels(tmp_path / "labels.jsonl")


def test_calibrate_json_gives_alpha_with_intervals(run: Callable[..., Ran], labels: Path) -> None:
    ran = run("calibrate", "--labels", labels, "--budget-steps", "4.5", "--json")
    assert (ran.code, ran.err) == (0, ""), ran.err
    found = json.loads(ran.out)
    assert found["goal"] == {"budget_steps": 4.5}
    assert 0 <= found["alpha"] <= 1
    assert found["steps"] <= 4.5
    for name in ("accuracy", "steps"):
        low, high = found["interval"][name]
        assert low <= found[name] <= high
    assert found["saved"] is None
    assert found["multi"] == {"accuracy": pytest.approx(1 / 3), "steps": pytest.approx(5.04)}


def test_ask_and_route_accept_a_saved_setting(
    run: Callable[..., Ran], fake: FakeOpenAI, router: Path, labels: Path
) -> None:
    command = ("calibrate", "--router", router, "--labels", labels, "--min-accuracy", "0")
    ran = run(*command, "--save", "cheap")
    assert (ran.code, ran.err) == (0, ""), ran.err
    kept = json.loads((router / "presets.json").read_text(encoding="utf-8"))["cheap"]
    assert f"--alpha cheap --profile {kept['profile']} --router {router}" in ran.out
    assert (kept["labels"], kept["goal"]) == ("labels.jsonl", {"min_accuracy": 0})
    assert {"alpha", "accuracy", "steps", "profile", "date"} <= set(kept)

    named = ("--alpha", "cheap", "--profile", kept["profile"], "--router", router, "--json")
    routed = run("route", "Why?", *named)
    assert json.loads(routed.out)["alpha"] == kept["alpha"], routed.err
    fake.answers(by_task(gate="[Yes]", reason="So the answer is: x", answer="x [1]"))
    asked = run("ask", "Why is the sea salt?", *named, "--gate", "ta-are")
    assert json.loads(asked.out)["decision"]["route"]["alpha"] == kept["alpha"], asked.err


@pytest.mark.parametrize("profile", ["auto", "gpt-4o-mini"])
def test_a_setting_must_be_of_the_profile_in_use(
    run: Callable[..., Ran], router: Path, profile: str
) -> None:
    save_alpha(router, "cheap", {"alpha": 0.2, "profile": "gpt-4o"})
    save_alpha(router, "embedded", {"alpha": 0.3, "profile": "local-smollm2"})
    command = ("route", "Why?", "--router", router, "--profile", profile, "--json")
    one_line(run(*command, "--alpha", "cheap"), 2, "'cheap'", "gpt-4o", "--profile gpt-4o")
    one_line(run(*command, "--alpha", "dear"), 2, "--alpha 'dear'", "hopgate calibrate --save")
    if profile == "auto":
        assert json.loads(run(*command, "--alpha", "embedded").out)["alpha"] == 0.3


def test_nothing_is_routed_for_a_read_only_folder(
    run: Callable[..., Ran], router: Path, labels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != router)
    command = ("calibrate", "--router", router, "--labels", labels, "--budget-steps", "9")
    one_line(run(*command, "--save", "cheap"), 1, str(router), "permission denied", "--router")


def test_calls_and_tokens_are_budgets_too(tmp_path: Path, run: Callable[..., Ran]) -> None:
    """A search costs more tokens than an answer without one, so a low budget leaves few."""
    names, path = ("zero", "one", "multiple"), tmp_path / "labels.jsonl"
    calls = dict(zip(names, (1, 1, 3), strict=True))
    tokens = {name: {"prompt": 100 * at + 90, "completion": 10} for at, name in enumerate(names)}
    rows = [
        {"id": str(at), "question": f"Who was number {at}?", "label": "B", "correct": ["one"]}
        | {"calls": calls, "tokens": tokens}
        for at in range(20)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ("calibrate", "--labels", path, "--json")
    found = json.loads(run(*command, "--budget-tokens", "150").out)
    assert 100 <= found["tokens"] <= 150
    assert found["tokens"] == pytest.approx(100 + 100 * found["steps"])
    assert json.loads(run(*command, "--budget-calls", "1").out)["calls"] == 1
    del rows[3]["tokens"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    one_line(run(*command, "--budget-tokens", "150"), 2, "needs the tokens of every question")
