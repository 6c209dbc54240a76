"""Drift: questions like those of a router's training, and questions unlike them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from commands import Ran, one_line
from ships import write_rows
from test_adding import CAPITALS, DATES, FILMS, labels

from hopgate.classifiers.checkpoint import BUILTIN_FOLDER, MANIFEST, read
from hopgate.classifiers.doubts import doubt
from hopgate.classifiers.drift import (
    CHANCE,
    MIN_QUESTIONS,
    SCORES,
    chance_level,
    drift,
    stability_index,
    summarise,
)
from hopgate.classifiers.router import load_router
from hopgate.classifiers.training.adding import add_profiles


class Normal:
    """A FAKE router: a question is two scores."""

    def route_alphas(
        self, questions: Sequence[str], alphas: Sequence[float]
    ) -> list[list[dict[str, float]]]:
        rows = []
        for question in questions:
            single, multi = map(float, question.split()[:2])
            powers = np.exp([0, single, single + multi])
            rows.append(dict(zip("ABC", (powers / powers.sum()).tolist(), strict=True)))
        return [rows for _ in alphas]

    def doubts(self, questions: Sequence[str]) -> list[str | None]:
        return ["odd" if "odd" in question else None for question in questions]


def drawn(count: int, seed: int, shift: float = 0.0, words: str = "") -> list[str]:
    scores = np.random.default_rng(seed).normal([0, shift], size=(count, 2))
    return [f"{single} {multi} {words}" for single, multi in scores]


KNOWN = summarise(Normal(), drawn(2000, 0))


def test_the_deciles_hold_a_tenth_of_the_questions_each() -> None:
    for name in SCORES:
        assert len(KNOWN.cuts[name]) == 9
        assert all(abs(count - 200) <= 1 for count in KNOWN.counts[name])
    assert KNOWN.cuts[SCORES[0]][4] == pytest.approx(0, abs=0.1)


def test_like_questions_are_hardly_ever_called_unlike() -> None:
    found = [drift(Normal(), KNOWN, drawn(MIN_QUESTIONS, seed)).unlike for seed in range(1, 51)]
    assert sum(map(bool, found)) <= 2


def test_shifted_scores_are_called_unlike_with_the_score_that_shifted() -> None:
    found = drift(Normal(), KNOWN, drawn(300, 1, shift=1))
    assert found.unlike == [f"stability index of multi over single {found.index[SCORES[1]]:.2f}"]
    assert found.index[SCORES[0]] < found.chance[SCORES[0]]


def test_questions_that_the_router_doubts_are_called_unlike() -> None:
    asked = drawn(200, 1) + drawn(100, 2, words="odd")
    assert drift(Normal(), KNOWN, asked).unlike == ["the router doubts 33%"]


def test_few_questions_or_few_different_ones_cannot_tell() -> None:
    few = drawn(MIN_QUESTIONS - 1, 1, shift=5)
    assert drift(Normal(), KNOWN, few * 3).unlike is None
    assert drift(Normal(), KNOWN, [*few, "0 0"]).unlike


def test_chance_is_that_of_chi_squared_times_both_sizes() -> None:
    from scipy.stats import chi2

    expected = chi2.ppf(CHANCE, 9) * (1 / 500 + 1 / 2000)
    assert chance_level([200] * 10, 500) == pytest.approx(expected, rel=0.1)


def test_the_index_is_that_of_its_definition() -> None:
    p, q = np.array([300.5, 700.5]) / 1001, np.array([500.5, 500.5]) / 1001
    expected = float(((p - q) * np.log(p / q)).sum())
    assert stability_index([300, 700], [500, 500]) == pytest.approx(expected)
    assert stability_index([5, 5], [50, 50]) == pytest.approx(0)


# In a router's folder


@pytest.fixture(scope="module")
def added(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("added")
    path = labels(folder / "l", {"zero": CAPITALS, "one": DATES, "multiple": FILMS})
    add_profiles("builtin", {"mine": [path]}, folder / "router")
    return folder / "router"


def test_adding_an_llm_keeps_a_summary_of_its_questions_beside_the_others(added: Path) -> None:
    before, after = read(BUILTIN_FOLDER).known, read(added).known
    assert set(after) == {*before, "mine"} and {name: after[name] for name in before} == before
    asked = [*CAPITALS, *DATES, *FILMS]
    again = summarise(load_router(added, "mine"), asked)
    assert after["mine"].questions == len(asked)
    assert after["mine"].counts == again.counts and after["mine"].labels == again.labels


# doctor


def asked(path: Path, questions: Sequence[str]) -> Path:
    return write_rows(path, [{"question": each} for each in questions])


GERMAN = [f"Wann wurde die Brücke Nummer {number} in Köln gebaut?" for number in range(120)]


@pytest.fixture
def check(run: Callable[..., Ran], tmp_path: Path) -> Callable[..., dict[str, object]]:
    """The check of `hopgate doctor` about some questions."""

    def command(questions: Sequence[str], *more: str | Path) -> dict[str, object]:
        path = asked(tmp_path / "asked.jsonl", questions)
        ran = run("doctor", "--questions", path, "--json", *more)
        assert ran.code == 0, ran.err
        (found,) = (each for each in json.loads(ran.out) if each["name"].startswith("questions"))
        return dict(found)

    return command


def test_doctor_says_that_questions_are_unlike_and_why(
    check: Callable[..., dict[str, object]],
) -> None:
    assert all(doubt(each, 20, 384, english=True) for each in GERMAN)
    found = check(GERMAN, "--profile", "gpt-4o")
    assert (found["name"], found["ok"], found["needed"]) == ("questions (gpt-4o)", False, False)
    text = str(found["found"])
    assert text.startswith("120 unlike the training's: stability index of single over none")
    assert "the router doubts 100%" in text and "labels now (then): A " in text
    assert "hopgate improve" in str(found["advice"])


def test_doctor_says_that_too_few_questions_cannot_tell(
    check: Callable[..., dict[str, object]],
) -> None:
    found = check(GERMAN[:99])
    assert found["found"] == "99 different questions are too few to tell; at least 100"


def test_doctor_says_how_a_router_without_a_summary_gets_one(
    check: Callable[..., dict[str, object]], added: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(added, tmp_path / "router"))
    manifest = json.loads((folder / MANIFEST).read_text())
    del manifest["known"]
    (folder / MANIFEST).write_text(json.dumps(manifest))
    found = check(GERMAN, "--router", folder, "--profile", "mine")
    assert "no summary of its training" in str(found["found"])
    assert "redial.py" in str(found["advice"])


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        ([], [], "has no usable rows; give JSON lines with a `question`"),
        (['{"question": 3}'], [], "asked.jsonl:1: question is 3"),
        (['{"question": "Who?"}'], ["--router", "nowhere"], "nowhere is not a router's folder"),
        (['{"question": "Who?"}'], ["--profile", "mine"], "profile is 'mine'; the router"),
    ],
)
def test_unusable_questions_are_one_line(
    run: Callable[..., Ran], tmp_path: Path, lines: list[str], options: list[str], message: str
) -> None:
    path = write_rows(tmp_path / "asked.jsonl", lines)
    one_line(run("doctor", "--questions", path, *options), 2, message)
