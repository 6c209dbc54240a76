"""The dial: equal turns of α buy about equal shares of the steps, and old points stay reachable."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import redial
from test_onnx import QUESTIONS

from hopgate.classifiers.checkpoint import BUILTIN_FOLDER, MANIFEST
from hopgate.classifiers.dial import Dial
from hopgate.classifiers.router import Router, load_router
from hopgate.classifiers.saved_alphas import save_alpha, saved_alpha
from hopgate.classifiers.training.dials import KNOTS, even_dial
from hopgate.classifiers.training.utility import STEPS
from hopgate.common.strategies import LABELS
from hopgate.retrievers.sources import sample_path

TENTHS = [step / 10 for step in range(11)]
SHIPPED = load_router().profiles
LARGEST = dict.fromkeys(SHIPPED, 0.2) | {"gpt-4o-mini": 0.34, "local-smollm2": 0.21}
"""The largest share of the steps that a tenth of the dial may buy on questions not its own."""
by_profile = pytest.mark.parametrize("profile", SHIPPED)


def mean_steps(router: Router, questions: Sequence[str], alphas: Sequence[float]) -> list[float]:
    return [
        float(np.mean([STEPS[LABELS.index(max(row, key=row.__getitem__))] for row in rows]))
        for rows in router.route_alphas(questions, alphas)
    ]


# The map


def test_equal_turns_buy_equal_steps_if_they_can_be_split() -> None:
    dial = even_dial(lambda weight: 3 * weight**4)
    assert len(dial.weights) == KNOTS
    bought = [3 * dial.weight(alpha) ** 4 for alpha in TENTHS]
    assert np.diff(bought) == pytest.approx([0.3] * 10, abs=1e-4)


def test_a_jump_that_cannot_be_split_takes_the_turns_that_it_buys() -> None:
    dial = even_dial(lambda weight: 0.0 if weight < 0.2 else 1.0)
    assert [dial.weight(0.5), dial.alpha(0.1) < 0.025] == [pytest.approx(0.2), True]
    assert dial.weight(dial.alpha(0.2)) == pytest.approx(0.2)


def test_without_a_step_to_buy_or_a_dial_alpha_is_the_weight() -> None:
    for dial in (Dial(), even_dial(lambda weight: 1.0)):
        assert [dial.weight(alpha) for alpha in TENTHS] == pytest.approx(TENTHS)
        assert [dial.alpha(weight) for weight in TENTHS] == pytest.approx(TENTHS)


@pytest.mark.parametrize(
    "weights", [[], [0, 0.5], [0.1, 1], [0, 0.6, 0.4, 1], [0, float("nan"), 1], [[0, 1]]]
)
def test_weights_that_do_not_rise_from_0_to_1_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError):
        Dial(weights)


# The router that ships


@by_profile
def test_a_shipped_dial_is_monotone_keeps_its_ends_and_reaches_every_old_point(
    profile: str,
) -> None:
    dial = load_router(profile=profile).dial
    assert (dial.weight(0), dial.weight(1), len(dial.weights)) == (0, 1, KNOTS)
    fine = [dial.weight(step / 1000) for step in range(1001)]
    assert all(a <= b for a, b in pairwise(fine))
    for weight in TENTHS:
        assert dial.weight(dial.alpha(weight)) == pytest.approx(weight, abs=1e-9)


@pytest.mark.parametrize("profile", ["gpt-4o-mini", "local-smollm2"])
def test_no_tenth_of_the_dial_hides_most_of_the_steps(profile: str) -> None:
    """These questions are not those of the dial, so the shares are only about equal."""
    lines = sample_path().with_name("questions.jsonl").read_text(encoding="utf-8").splitlines()
    questions = QUESTIONS + [json.loads(line)["question"] for line in lines]
    router = load_router(profile=profile)
    plain = [router.dial.alpha(weight) for weight in TENTHS]  # α as the weight
    found = mean_steps(router, questions, TENTHS + plain)
    steps, before = found[: len(TENTHS)], found[len(TENTHS) :]
    shares = np.diff(steps) / (steps[-1] - steps[0])
    assert (shares >= 0).all()
    assert shares.max() < LARGEST[profile]
    assert before[0] == steps[0]
    assert before[-1] == steps[-1]
    assert (np.diff(before) / (before[-1] - before[0])).max() > shares.max()


def without_dials(tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(BUILTIN_FOLDER, tmp_path / "router"))
    manifest = json.loads((folder / MANIFEST).read_text())
    del manifest["dials"]
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder


def test_without_dials_alpha_is_the_weight_and_a_saved_alpha_is_refused_with_them(
    tmp_path: Path,
) -> None:
    router, older = load_router(), Router.load(folder := without_dials(tmp_path))
    for weight in (0.0, 0.4, 1.0):
        (found,) = router.route(["Who wrote Hamlet?"], router.dial.alpha(weight))
        assert older.route(["Who wrote Hamlet?"], weight)[0] == pytest.approx(found, abs=1e-5)
    save_alpha(folder, "thrifty", {"alpha": 0.4, "profile": "flan-t5-xl"})
    assert saved_alpha(folder, "thrifty") == 0.4
    shutil.copy(BUILTIN_FOLDER / MANIFEST, folder)
    with pytest.raises(ValueError, match="or its dial changed; calibrate again"):
        saved_alpha(folder, "thrifty")


def test_dials_can_be_made_again_without_touching_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, asked = without_dials(tmp_path), tmp_path / "questions.jsonl"
    asked.write_text("".join(json.dumps({"question": each}) + "\n" for each in QUESTIONS[::25]))
    monkeypatch.setattr("sys.argv", ["redial.py", str(folder), str(asked), "--profile", "gpt-4o"])
    redial.main()
    manifest = json.loads((folder / MANIFEST).read_text())
    assert set(manifest["dials"]) == {"gpt-4o"}
    assert manifest["sha256"] == json.loads((BUILTIN_FOLDER / MANIFEST).read_text())["sha256"]
