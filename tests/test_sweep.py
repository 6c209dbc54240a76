"""Replaying recorded outcomes, and `hopgate sweep`: cases by hand, the picture, the command."""

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from commands import Ran, one_line
from recorded import four_questions, write_labels

from hopgate.classifiers.labels import LabelRow, QuestionRow, read_labels, read_questions
from hopgate.evaluation.measuring.replay import MULTI_STEPS, Recorded, join, multi_steps, route_all
from hopgate.evaluation.measuring.sweep import (
    area,
    evenly,
    oracle_curve,
    summary,
    sweep,
)
from hopgate.evaluation.reports.pictures import draw_sweep

SHARED = Path(__file__).resolve().parents[2] / "shared"
FLARE = SHARED / "data" / "flare"


class FakeByLength:
    """Not a router: 1 character → A, 2 → B, 3 → C, whatever α; at α = 1 always C."""

    source, profile, one_pass = "fake", "flan-t5-xl", True

    def __init__(self) -> None:
        self.calls: list[int] = []

    def route_alphas(
        self, questions: Sequence[str], alphas: Sequence[float]
    ) -> list[list[dict[str, float]]]:
        self.calls.append(len(questions))
        picks = [["C" if a == 1 else "ABC"[len(q) - 1] for q in questions] for a in alphas]
        return [[{label: float(label == p) for label in "ABC"} for p in row] for row in picks]


QUESTIONS = [
    QuestionRow("1", "x", "squad"),
    QuestionRow("2", "xx", "nq"),
    QuestionRow("3", "xxx", "musique"),
    QuestionRow("4", "xxx", "elsewhere"),
]
LABELS = [
    LabelRow("1", "x", "squad", "B", frozenset({"single", "multi"})),
    LabelRow("2", "xx", "nq", "B", frozenset({"single"})),
    LabelRow("3", "xxx", "musique", "C", frozenset({"multi"})),
]


@pytest.fixture
def recorded() -> Recorded:
    return join(QUESTIONS, LABELS, multi_steps(None, {each.dataset for each in QUESTIONS}))


# Replay


def test_a_replay_counts_accuracy_steps_and_shares(recorded: Recorded) -> None:
    routed = route_all(FakeByLength(), recorded.questions, [0.5, 1.0])
    middle, most = (recorded.score(choices) for choices in routed.choices)
    datasets = middle.pop("datasets")
    assert middle == {
        "accuracy": 0.5,
        "steps": pytest.approx((0 + 1 + MULTI_STEPS["musique"] + 4.69) / 4),
        "shares": {"A": 0.25, "B": 0.25, "C": 0.5},
    }
    assert most["accuracy"] == 0.5
    assert most["steps"] == pytest.approx((4.52 + 5.04 + 3.60 + 4.69) / 4)
    assert set(datasets) == {"squad", "nq", "musique", "elsewhere"}
    assert datasets["nq"] == {"accuracy": 1, "steps": 1, "shares": {"A": 0, "B": 1, "C": 0}}
    assert datasets["squad"]["accuracy"] == 0


def test_a_question_without_a_label_is_wrong_under_every_strategy(recorded: Recorded) -> None:
    assert recorded.correct[3].tolist() == [False, False, False]
    assert recorded.oracle().tolist() == [1, 1, 2, 0]


def test_many_questions_are_routed_in_batches_with_progress() -> None:
    router, done = FakeByLength(), []
    routed = route_all(router, ["x", "xx"] * 400, [0.0, 1.0], lambda *at: done.append(at))
    assert router.calls == [512, 288]
    assert done == [(400, 800), (800, 800)]
    assert routed.choices.shape == (2, 800)
    assert routed.choices[0].tolist() == [0, 1] * 400
    assert (routed.first.shape, routed.last[:, 2].min()) == ((800, 3), 1)


def test_a_router_with_weights_for_each_alpha_blends_each_once() -> None:
    class ByAlpha(FakeByLength):
        one_pass = False

        def route_alphas(
            self, questions: Sequence[str], alphas: Sequence[float]
        ) -> list[list[dict[str, float]]]:
            blended.extend(alphas)
            return super().route_alphas(questions, alphas)

    blended = list[float]()
    routed = route_all(ByAlpha(), ["x", "xx"] * 400, [0.0, 0.5, 1.0])
    assert blended == [0.0, 0.5, 1.0]
    assert routed.choices[[0, 2], :2].tolist() == [[0, 1], [2, 2]]


def test_multi_steps_are_a_number_a_file_or_the_published_ones(tmp_path: Path) -> None:
    assert multi_steps(None, ["nq", "mine", "nq"]) == {"nq": 5.04, "mine": 4.69}
    assert multi_steps("2.5", ["nq", ""]) == {"nq": 2.5, "": 2.5}
    file = tmp_path / "steps.json"
    file.write_text('{"nq": 3, "mine": 1.5, "other": 9}')
    assert multi_steps(str(file), ["nq", "mine"]) == {"nq": 3, "mine": 1.5}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("0.5", "'0.5'; give a number of at least 1"),
        ("nan", "'nan'; give a number"),
        ("nowhere.json", "'nowhere.json'; give a number"),
        ("{", "cannot be read: not JSON"),
        ('{"other": 2}', "nq is None"),
    ],
)
def test_bad_multi_steps_are_named(tmp_path: Path, given: str, message: str) -> None:
    if given[0] in "{[":
        (tmp_path / "steps.json").write_text(given)
        given = str(tmp_path / "steps.json")
    with pytest.raises(ValueError, match=re.escape(message)):
        multi_steps(given, ["nq"])


# Summaries of curves

MULTI = {"accuracy": 0.5, "steps": 4.0}
CURVE = [
    {"steps": steps, "accuracy": accuracy}
    for steps, accuracy in [(1, 0.2), (2, 0.4), (1.4, 0.3), (3, 0.5), (5, 0.9)]
]


def test_the_summary_by_hand() -> None:
    # area: 0.2 for 0.4 steps, 0.3 for 0.6, 0.4 for 1 and 0.5 for 1, over 4 steps
    assert summary(CURVE, MULTI) == {
        "share_at_38": pytest.approx(0.3 / 0.5),
        "share_at_50": pytest.approx(0.4 / 0.5),
        "steps_for_100": pytest.approx(3 / 4),
        "area": pytest.approx((0.08 + 0.18 + 0.4 + 0.5) / 4),
    }


def test_the_area_is_the_mean_of_the_best_within_each_budget() -> None:
    fine = np.linspace(0, 4, 40_001)
    best = [max((r["accuracy"] for r in CURVE if r["steps"] <= b), default=0) for b in fine]
    assert area(CURVE, 4) == pytest.approx(np.mean(best), abs=1e-4)
    found = summary([{"steps": 3.9, "accuracy": 0.4}], MULTI)
    assert (found["share_at_50"], found["steps_for_100"]) == (None, None)


def test_the_oracle_takes_the_cheapest_questions_first() -> None:
    corners = oracle_curve(four_questions())
    assert corners == [[0, 0.25], [0.25, 0.5], [1, 0.75]]


# The sweep


def test_a_sweep_has_rows_statics_oracle_and_summary(recorded: Recorded) -> None:
    seen: list[tuple[int, int]] = []
    routers = {"one": FakeByLength(), "two": FakeByLength()}
    found = sweep(routers, recorded, [0.0, 0.5, 1.0], lambda *at: seen.append(at))
    assert seen == [(4, 4), (4, 4)]
    assert [(row["router"], row["alpha"]) for row in found["rows"]] == [
        (name, alpha) for name in ("one", "two") for alpha in (0, 0.5, 1)
    ]
    static = {name: (row["accuracy"], row["steps"]) for name, row in found["static"].items()}
    assert static == {"none": (0, 0), "single": (0.5, 1), "multi": (0.5, pytest.approx(4.4625))}
    assert found["oracle"]["accuracy"] == 0.75
    assert found["oracle"]["steps"] == pytest.approx((1 + 1 + 3.6) / 4)
    assert found["summary"]["one"] == found["summary"]["two"]
    assert found["summary"]["one"]["profile"] == "flan-t5-xl"
    json.dumps(found, allow_nan=False)


def test_a_sweep_without_a_correct_multi_step_answer_is_refused() -> None:
    nothing = Recorded(("a",), np.array([""]), np.zeros((1, 3), bool), np.array([[0.0, 1, 3]]))
    with pytest.raises(ValueError, match="multi-step answered none"):
        sweep({"one": FakeByLength()}, nothing, [0.0, 1.0])


@pytest.mark.skipif(not FLARE.is_dir(), reason="needs the released labels in ../shared/data")
def test_the_released_labels_give_the_known_statics_and_oracle() -> None:
    questions = read_questions(FLARE / "questions.valid.jsonl")
    labels = read_labels(FLARE / "flan_t5_xl.valid.jsonl")
    recorded = join(questions, labels, multi_steps(None, {each.dataset for each in questions}))
    multi = recorded.score(np.full(3000, 2, np.int8))
    assert (round(multi["accuracy"], 4), multi["steps"]) == (0.3817, pytest.approx(4.69))
    assert recorded.score(recorded.oracle())["accuracy"] == 0.45


# The picture


def test_the_picture_shows_everything_as_shares_of_multi_step(recorded: Recorded) -> None:
    routers = {"mine": FakeByLength(), "x" * 50: FakeByLength()}
    figure = draw_sweep(sweep(routers, recorded, evenly(5)))
    lines = {
        line.get_label(): list(zip(*line.get_data(), strict=True))
        for line in figure.axes[0].get_lines()
    }
    assert lines["mine"][-1] == (pytest.approx(100), pytest.approx(100))
    assert lines["x" * 30] == lines["mine"]
    assert lines["none, single, multi"][1] == (pytest.approx(100 / 4.4625), pytest.approx(100))
    assert lines["oracle"] == [(pytest.approx(140 / 4.4625), pytest.approx(150))]


# The command


def test_sweep_writes_its_document_and_picture(run: Callable[..., Ran], tmp_path: Path) -> None:
    labels, out = write_labels(tmp_path / "labels.jsonl"), tmp_path / "deep" / "out"
    ran = run("sweep", "--labels", labels, "--points", "21", "--out", out)
    assert (ran.code, ran.err) == (0, ""), ran.err
    for part in ("α = 0 ", "α = 0.5", "α = 1 ", "none", "multi", "oracle", "area"):
        assert part in ran.out
    assert ran.out.count("α = 0.") == 9
    one_line(run("sweep", "--labels", labels, "--out", out), 2, str(out), "--overwrite")
    ran = run("sweep", "--labels", labels, "--points", "3", "--out", out, "--overwrite", "--json")
    assert (ran.code, ran.err) == (0, ""), ran.err
    document = json.loads(ran.out)
    assert document == json.loads((out / "sweep.json").read_text(encoding="utf-8"))
    assert [row["alpha"] for row in document["rows"]] == [0, 0.5, 1]
    for row in document["rows"]:
        assert row["router"] == "builtin"
        assert sum(row["shares"].values()) == pytest.approx(1)
        assert 0 <= row["accuracy"] <= 1
        assert 0 <= row["steps"] <= 5.04
        assert set(row["datasets"]) == {"nq"}
    assert document["static"]["single"]["accuracy"] == pytest.approx(2 / 3)
    assert document["inputs"] == {
        "labels": str(labels),
        "questions": None,
        "multi_steps": {"nq": 5.04},
        "question_count": 3,
        "answered_count": 3,
        "points": 3,
    }
    assert sorted(path.name for path in out.iterdir()) == ["sweep.json", "sweep.png"]


def test_a_question_file_adds_unanswered_questions(run: Callable[..., Ran], tmp_path: Path) -> None:
    labels, questions = write_labels(tmp_path / "l.jsonl"), tmp_path / "q.jsonl"
    extra = '{"id": "4", "question": "Who knows?", "dataset": "squad"}\n'
    questions.write_text(labels.read_text() + extra)
    common = ("--labels", labels, "--questions", questions, "--steps-multi", "2")
    ran = run("sweep", *common, "--points", "2", "--out", tmp_path / "out", "--json")
    document = json.loads(ran.out)
    assert document["static"]["single"]["accuracy"] == 0.5
    assert document["static"]["multi"]["steps"] == 2
    assert document["static"]["multi"]["datasets"]["squad"]["accuracy"] == 0


def test_without_matplotlib_the_extra_is_named(
    run: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    labels = write_labels(tmp_path / "labels.jsonl")
    ran = run("sweep", "--labels", labels, "--out", tmp_path / "out")
    one_line(ran, 1, "pip install 'hopgate[plots]'")
