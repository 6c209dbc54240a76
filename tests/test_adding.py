"""Adding an LLM to a trained router: what is fitted, and what stays unchanged."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from commands import Ran, one_line

from hopgate.classifiers.checkpoint import BUILTIN_FOLDER, read
from hopgate.classifiers.router import Router, load_router
from hopgate.classifiers.training import adding
from hopgate.classifiers.training.adding import OWN, add_profiles, fit

CAPITALS = [f"What is the capital of {place}?" for place in ("Japan", "Peru", "Chad", "Oman")]
FILMS = [
    f"Who is the {kin} of the director of the film {film}?"
    for kin in ("mother", "father", "wife")
    for film in ("Blue Harbour", "The Long Field", "Seven Bells", "Ashes", "Northwind")
]
DATES = [f"When was {thing} built?" for thing in ("Tower Bridge", "the Panama Canal", "Petra")]


def labels(path: Path, correct: dict[str, list[str]], repeat: int = 4) -> Path:
    """Write rows in which each key's strategies answer its questions."""
    cheapest = {"zero": "A", "one": "B", "multiple": "C"}
    rows = [
        {
            "id": f"{question} {number}",
            "question": question,
            "correct": strategies.split(),
            "label": cheapest.get(strategies.split(" ")[0]),
        }
        for strategies, questions in correct.items()
        for question in questions
        for number in range(repeat)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def likeliest(router: Router, questions: list[str], alpha: float) -> str:
    return "".join(max(p, key=p.__getitem__) for p in router.route(questions, alpha))


@pytest.fixture(scope="module")
def added(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The router that ships, with three more LLMs."""
    folder = tmp_path_factory.mktemp("added")
    outcomes = {
        "short": {"zero one": CAPITALS, "one": DATES, "one multiple": FILMS},
        "long": {"zero one": CAPITALS, "one multiple": DATES, "multiple": FILMS},
        "each": {"zero": CAPITALS, "one": DATES, "multiple": FILMS},
    }
    cost = {name: [labels(folder / name, correct)] for name, correct in outcomes.items()}
    add_profiles("builtin", cost, folder / "router")
    return folder / "router"


def test_an_added_llm_decides_by_its_own_outcomes(added: Path) -> None:
    questions = [*CAPITALS, *FILMS, *DATES]
    assert "C" in likeliest(load_router(profile="flan-t5-xl"), questions, 1)
    assert "C" not in likeliest(load_router(added, "short"), questions, 1)
    assert likeliest(load_router(added, "long"), FILMS, 1) == "C" * len(FILMS)
    assert likeliest(load_router(added, "long"), CAPITALS, 0) == "A" * len(CAPITALS)
    assert "B" in likeliest(load_router(added, "long"), DATES, 0)


def test_an_added_llm_gets_a_dial_and_the_others_keep_theirs(added: Path) -> None:
    before, after = read(BUILTIN_FOLDER).dials, read(added).dials
    assert set(after) - set(before) == {"short", "long", "each"}
    for profile, dial in before.items():
        assert after[profile].weights.tolist() == dial.weights.tolist()
    router, questions = load_router(added, "each"), [*CAPITALS, *FILMS, *DATES]
    alphas = [step / 4 for step in range(5)]
    labels = [likeliest(router, questions, alpha) for alpha in alphas]
    steps = [found.count("B") + 4.69 * found.count("C") for found in labels]
    assert router.dial.weight(0.5) != pytest.approx(0.5, abs=0.05)
    assert max(b - a for a, b in pairwise(steps)) < 0.5 * (steps[-1] - steps[0])


def test_the_other_llms_decide_as_before(added: Path) -> None:
    for profile in ("flan-t5-xl", "gpt-4o"):
        before, after = (load_router(at, profile) for at in (BUILTIN_FOLDER, added))
        assert after.route(FILMS, 0.4) == before.route(FILMS, 0.4)
    assert load_router(added).profile == load_router().profile


def test_the_manifest_and_the_model_card_record_what_was_added(tmp_path: Path) -> None:
    path = labels(tmp_path / "mine.jsonl", {"zero": CAPITALS, "one": DATES, "": FILMS})
    out = tmp_path / "router"
    add_profiles("builtin", {"mine": [path]}, out, notes="## Licence\n\nMIT")
    add_profiles(out, {"other": [path]}, out, overwrite=True)
    added = read(out).training["added"]
    assert list(added)[-2:] == ["mine", "other"]
    assert added["mine"]["questions"] == 4 * (len(CAPITALS) + len(DATES) + len(FILMS))
    assert added["mine"]["fits"]["none"]["mean"] == pytest.approx(4 / 22, abs=1e-3)
    card = (out / "README.md").read_text()
    assert card.startswith((BUILTIN_FOLDER / "README.md").read_text().rstrip())
    assert "## Added: mine" in card and "fitted to 88 questions of mine.jsonl" in card
    assert "## Licence" in card
    files = json.loads((out / "manifest.json").read_text())["sha256"]
    shipped = json.loads((BUILTIN_FOLDER / "manifest.json").read_text())["sha256"]
    assert {name: files[name] for name in shipped} == shipped


def test_few_labels_shift_the_mean_of_the_llms_and_many_find_what_differs() -> None:
    torch.manual_seed(0)
    features = torch.randn(4000, 6, dtype=torch.float64)
    prior, true = torch.randn(2, 7, dtype=torch.float64)
    shifted = features @ prior[:-1] + prior[-1] + 0.2
    few = fit(features[:20], shifted[:20], prior, OWN)
    torch.testing.assert_close(few.weights[:-1], prior[:-1], rtol=1e-4, atol=1e-4)
    assert few.weights[-1] == pytest.approx(float(prior[-1]) + 0.2, abs=1e-4)
    different = features @ true[:-1] + true[-1]
    errors = [
        (features @ found.weights[:-1] + found.weights[-1] - different).square().mean()
        for size in (20, 200, 4000)
        if (found := fit(features[:size], different[:size], prior, OWN))
    ]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.01 * different.var()


def test_the_error_of_a_fit_is_the_leave_one_out_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adding, "DRAWN", 1e-9)
    torch.manual_seed(1)
    features, target = torch.randn(12, 3, dtype=torch.float64), torch.rand(12, dtype=torch.float64)
    prior = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)
    found = fit(features, target, prior, 1e-12)  # only a factor of the prior, and a constant
    lines = torch.stack([features[:, 0], torch.ones(12, dtype=torch.float64)], 1)
    errors = []
    for left_out in range(12):
        others = torch.arange(12) != left_out
        solved = torch.linalg.lstsq(lines[others], target[others]).solution
        errors.append((target[left_out] - lines[left_out] @ solved).square())
    assert found.error == pytest.approx(float(torch.stack(errors).mean()), rel=1e-4)


def test_the_command_adds_an_llm_and_prints_how_to_use_it(
    run: Callable[..., Ran], tmp_path: Path
) -> None:
    path, out = labels(tmp_path / "l.jsonl", {"zero": CAPITALS, "one": DATES}), tmp_path / "r"
    ran = run("train-router", "--add-to", "builtin", "--cost", f"mine={path}", "--out", out)
    assert ran.code == 0, ran.err
    assert f"--router {out}" in ran.out
    assert "mine" in read(out).profiles


def test_a_dry_run_checks_the_labels_and_writes_nothing(
    run: Callable[..., Ran], tmp_path: Path
) -> None:
    path, out = (
        labels(tmp_path / "l.jsonl", {"zero": CAPITALS, "one": DATES, "": FILMS}),
        tmp_path / "r",
    )
    command = ("train-router", "--add-to", "builtin", "--cost", f"mine={path}", "--out", out)
    ran = run(*command, "--dry-run", "--json")
    counts = {"mine": {"A": 16, "B": 12, "none": 60}}
    assert json.loads(ran.out) == {"questions": counts, "calls": 0}
    assert not out.exists()


@pytest.mark.parametrize(
    ("strategies", "advice"),
    [("zero one", "strategy=none"), ("one", "strategy=single"), ("multiple", "strategy=multi")],
)
def test_one_strategy_that_is_right_for_all_is_a_finding(
    run: Callable[..., Ran], tmp_path: Path, strategies: str, advice: str
) -> None:
    path, out = labels(tmp_path / "l.jsonl", {strategies: FILMS, "": DATES}), tmp_path / "r"
    command = ("train-router", "--add-to", "builtin", "--cost", f"mine={path}", "--out", out)
    ran = run(*command, "--json")
    assert (ran.code, ran.err) == (0, "")
    assert advice in json.loads(ran.out)["finding"]
    assert not out.exists()
    path = labels(tmp_path / "n.jsonl", {"": DATES})
    command = ("train-router", "--add-to", "builtin", "--cost", f"mine={path}", "--out", out)
    one_line(run(*command), 2, "no strategy answered any of 12 questions of mine")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give --reliability FILE, or --add-to"),
        (["--add-to", "builtin", "--reliability", "b.jsonl"], "--reliability applies to training"),
        (["--add-to", "builtin", "--batch-size", "8"], "--batch-size applies to training"),
        (["--add-to", "builtin", "--out", "{there}"], "is not a router's folder"),
        (["--add-to", "nowhere"], "nowhere is not a router's folder"),
    ],
)
def test_unusable_options_are_refused(
    run: Callable[..., Ran], tmp_path: Path, options: list[str], message: str
) -> None:
    path = labels(tmp_path / "l.jsonl", {"zero": CAPITALS, "one": DATES})
    (there := tmp_path / "there").mkdir()
    (there / "mine.txt").write_text("keep me")
    given = [option.format(there=there) for option in options]
    out = [] if "--out" in given else ["--out", tmp_path / "r"]
    command = ("train-router", "--cost", f"mine={path}", "--overwrite", *given, *out)
    one_line(run(*command), 2, message)
    assert not (tmp_path / "r").exists() and (there / "mine.txt").exists()


def test_rows_without_outcomes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    path.write_text(
        '{"id": "1", "question": "Who?", "label": "A"}\n'
        '{"id": "2", "question": "When?", "label": "B"}\n'
    )
    with pytest.raises(ValueError, match="row '1' of profile mine has no `correct`; add it"):
        add_profiles("builtin", {"mine": [path]}, tmp_path / "r")


def test_a_router_whose_only_llm_is_replaced_is_refused(tmp_path: Path) -> None:
    path = labels(tmp_path / "l.jsonl", {"zero": CAPITALS, "one": DATES})
    every = {profile: [path] for profile in read(BUILTIN_FOLDER).profiles}
    with pytest.raises(ValueError, match="no other LLM trained with the utility objective"):
        add_profiles("builtin", every, tmp_path / "r")
