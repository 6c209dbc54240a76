"""`hopgate improve` and `promote`: what is compared, what stops a candidate, what is put in use."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Ran, one_line
from doubles import task
from fake_openai import FakeOpenAI, Messages
from ships import prompted, read_rows, ship, write_rows
from test_versions import made

from hopgate.classifiers.checkpoint import BUILTIN_FOLDER, profiles_in
from hopgate.evaluation.learning import improving, verdicts
from hopgate.evaluation.learning.outcomes import SHARE_HELD_OUT, read_outcomes, split
from hopgate.evaluation.learning.verdicts import compare
from hopgate.evaluation.measuring.replay import Choices, Recorded
from hopgate.evaluation.measuring.runner import Job
from hopgate.retrievers.sources import sample_path

ALPHA = 0.7
COUNT = 200


# What stops a candidate


def held_out(none: float, single: float, multi: float, seed: int = 0) -> Recorded:
    """Questions that each strategy answers correctly with a chance; B always answers something."""
    generator = np.random.default_rng(seed)
    correct = generator.random((COUNT, 3)) < [none, single, multi]
    return Recorded(
        questions=tuple(map(str, range(COUNT))),
        datasets=np.array([""] * COUNT),
        correct=correct,
        steps=np.array([[0.0, 1.0, 3.0]] * COUNT),
        answered=correct | np.array([False, True, False]),
    )


def always(label: str) -> Choices:
    return np.full(COUNT, "ABC".index(label), np.int8)


def judged(given: Recorded, before: str, after: str) -> dict[str, Any]:
    return compare(given, always(before), always(after))


def worse(found: dict[str, Any]) -> list[str]:
    return [figure["worse"] for figure in found["figures"] if figure["worse"]]


def test_a_candidate_that_loses_accuracy_and_answers_is_stopped() -> None:
    found = worse(judged(held_out(0.3, 0.6, 0.6), "B", "A"))
    assert [line.split(" fell")[0] for line in found] == ["accuracy", "share answered"]


def test_a_candidate_that_gains_accuracy_may_take_more_steps() -> None:
    found = judged(held_out(0.2, 0.6, 0.6), "A", "B")
    assert worse(found) == []
    accuracy = found["figures"][0]
    assert 0.2 < accuracy["low"] < accuracy["after"] - accuracy["before"] < accuracy["high"]


def test_more_steps_for_nothing_stop_a_candidate() -> None:
    given = held_out(0.2, 0.6, 0.6)
    given.correct[:, 2] = given.correct[:, 1]
    found = worse(judged(replace(given, answered=None), "B", "C"))
    assert found == ["steps rose from 1.00 to 3.00, and accuracy did not rise"]


def test_a_difference_within_chance_does_not_stop_a_candidate() -> None:
    after = always("B")
    after[:3] = 0  # three questions of two hundred
    assert worse(compare(held_out(0.5, 0.5, 0.5), always("B"), after)) == []


def test_without_answers_nothing_is_said_about_the_share_answered() -> None:
    found = judged(replace(held_out(0.5, 0.5, 0.5), answered=None), "B", "A")
    assert [each["name"] for each in found["figures"]] == ["accuracy", "steps"]


def test_the_labels_of_both_are_counted_together() -> None:
    after = always("B")
    after[:30] = 2
    found = compare(held_out(0.5, 0.5, 0.5), always("A"), after)["labels"]
    assert found["A"] == {"A": 0, "B": COUNT - 30, "C": 30}
    assert found["B"] == found["C"] == {"A": 0, "B": 0, "C": 0}


# What is held out


def rows(path: Path, questions: list[str], **fields: Any) -> Path:
    given = {"correct": ["one"], "label": "B"} | fields
    return write_rows(
        path, [{"id": str(at), "question": each} | given for at, each in enumerate(questions)]
    )


def test_a_question_once_held_out_stays_so_in_other_files_and_other_wording_of_case(
    tmp_path: Path,
) -> None:
    asked = [f"Who built bridge {number}?" for number in range(400)]
    first = read_outcomes(rows(tmp_path / "1", asked))
    again = read_outcomes(rows(tmp_path / "2", [f"who built the  {q[10:]}" for q in asked[::-1]]))
    assert [each.held_out for each in first] == [each.held_out for each in again[::-1]]
    share = sum(each.held_out for each in first) / len(first)
    assert abs(share - SHARE_HELD_OUT) < 0.08
    train, kept = split(first, again)
    keys = [{each.key for each in part} for part in (train, kept)]
    assert not keys[0] & keys[1] and keys[0] | keys[1] == {each.key for each in first}
    assert len(train) == len(keys[0])


def test_steps_and_answers_are_read_from_the_row(tmp_path: Path) -> None:
    answers = {"zero": "I don't know", "one": "Ada", "multiple": "I do not know, but Ada"}
    steps = {"zero": 0, "one": 1, "multiple": 2}
    more = {"answers": answers, "steps": steps, "answered": ["one"]}
    (found,) = read_outcomes(rows(tmp_path / "l", ["Who?"], **more))
    assert (found.steps, found.answered) == ((0, 1, 2), (False, True, False))
    assert found.answers == answers
    (found,) = read_outcomes(rows(tmp_path / "l", ["Who?"], dataset="nq"))
    assert (found.steps[2], found.answered) == (5.04, None)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"correct": None}, "1: correct is missing"),
        ({"answered": ["two"]}, "answered.0 is 'two'"),
        ({"answers": ["Ada"]}, "answers is"),
        ({"steps": {"zero": 0}}, "steps is"),
        ({"steps": {"zero": 0, "one": -1, "multiple": 2}}, "steps.one is -1"),
        ({"steps": {"zero": 0, "one": 1, "multiple": float("nan")}}, "steps.multiple is nan"),
    ],
)
def test_a_row_that_cannot_be_replayed_is_refused(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        read_outcomes(rows(tmp_path / "l", ["Who?"], **fields))


# The command


def knows_most(messages: Messages) -> str:
    """Answer no third ship; every fifth only with a passage, the others also without."""
    name, number = prompted(messages) if task(messages) != "gate" else ("gate", 0)
    if name == "reason":
        return "So the answer is: found."
    unknown = number % 3 == 0 or (name == "none" and number % 5 == 0)
    return "I don't know" if unknown else f"word{number}x"


SHIPS, LEAST = 36, 3


@pytest.fixture(scope="module")
def improved(tmp_path_factory: pytest.TempPathFactory, _fake_server: FakeOpenAI) -> Path:
    """What `improve` wrote of a router whose candidate may be promoted; the questions beside it."""
    folder = tmp_path_factory.mktemp("improved")
    write_rows(folder / "questions.jsonl", [ship(number) for number in range(SHIPS)])
    _fake_server.reset()
    _fake_server.answers(knows_most)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", "sk-test")
        patch.setenv("OPENAI_BASE_URL", _fake_server.base_url)
        patch.setattr(improving, "MIN_QUESTIONS", LEAST)
        job = Job({"model": "openai:fake"}, 4, False, "hopgate improve", lambda *_: None)
        inputs = improving.Inputs(folder / "questions.jsonl", sample_path(), "em")
        improving.improve(inputs, improving.Rule("builtin", "auto", ALPHA), folder / "out", job)
    return folder / "out"


@pytest.fixture
def out(improved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(improved, tmp_path / "out"))


def verdict_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "verdict.json").read_text())
    return found


def test_the_candidate_has_a_profile_of_the_models_own(improved: Path) -> None:
    assert set(profiles_in(improved / "router")) - set(profiles_in()) == {"fake"}
    verdict = verdict_of(improved)
    assert verdict["promote"] and verdict["reasons"] == []
    assert verdict["router"]["profile"] == "flan-t5-xl"
    counts = verdict["questions"]
    assert counts["labelled"] == SHIPS == counts["trained on"] + counts["held out"]
    assert LEAST <= counts["held out"] == verdict["compared"]["held out"]["questions"]


def test_no_held_out_question_is_trained_on(improved: Path) -> None:
    trained = {row["question"] for row in read_rows(improved / "train.jsonl")}
    outcomes = read_outcomes(improved / "labels.jsonl")
    assert trained == {each.question for each in outcomes if not each.held_out}


def test_the_report_shows_the_figures_and_the_questions_whose_route_changed(improved: Path) -> None:
    page = (improved / "report.md").read_text()
    assert "**May be promoted**" in page
    assert "| accuracy |" in page and "α of requests: 0.7 in use, 0.7 of the candidate" in page
    assert "`What is the code word of ship" in page and "| B, right | A, " in page
    assert "ship" not in (improved / "verdict.json").read_text()


def test_nothing_is_promoted_by_improving(improved: Path) -> None:
    assert not list(improved.parent.glob("*.versions"))
    assert "fake" not in profiles_in()
    assert not (BUILTIN_FOLDER.parent / "weights.versions").exists()


@pytest.fixture
def improve(
    run: Callable[..., Ran], fake: FakeOpenAI, improved: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Ran]:
    """`hopgate improve` on the questions of `improved`, with more options."""
    monkeypatch.setattr(improving, "MIN_QUESTIONS", LEAST)
    fake.answers(knows_most)
    data = improved.parent / "questions.jsonl"
    return lambda *more: run(
        "improve", "--questions", data, "--index", sample_path(), "--model", "openai:fake", *more
    )


def test_a_figure_that_fell_is_one_line_and_exit_code_1(
    improve: Callable[..., Ran], run: Callable[..., Ran], fake: FakeOpenAI, out: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(verdicts, "_worse", lambda figure, _: f"{figure['name']} fell")
    ran = improve("--out", out, "--json")
    assert ran.code == 1, ran.err
    assert ran.err.startswith("hopgate: not to be promoted: accuracy fell (")
    assert ran.err.count("\n") == 1
    assert json.loads(ran.out) == verdict_of(out)
    assert "**Not to be promoted:**" in (out / "report.md").read_text()
    assert fake.requests == []  # its answers were saved
    router = out.parent / "router"
    one_line(run("promote", out, "--to", router), 2, "may not be promoted: accuracy fell")
    assert not router.exists()


def test_people_see_the_figures_and_the_next_command(
    improve: Callable[..., Ran], out: Path, improved: Path, tmp_path: Path
) -> None:
    ran = improve("--out", out, "--labels", improved / "labels.jsonl")
    assert ran.code == 0, ran.err
    for part in ("held out", "share answered", f"promote {out} --to ROUTER"):
        assert part in ran.out


def test_too_few_held_out_questions_stop_a_candidate_with_how_many_are_needed() -> None:
    (reason,) = improving._reasons(99, {})
    assert "99 held-out questions are too few to compare on; 100 are needed" in reason
    assert "label about 330 questions" in reason
    assert improving._reasons(100, {}) == []


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        ([], [], "questions.jsonl has no usable rows"),
        (["{}"], [], "questions.jsonl:1: question is missing"),
        (None, ["--router", "nowhere"], "nowhere is not a router's folder"),
        (None, ["--router", "{out}/router"], "is where --out puts the candidate"),
        (None, ["--router", "{own}"], "has no other LLM trained with the utility objective"),
        (None, ["--profile", "Mine!"], "invalid profile name 'Mine!'"),
        (None, ["--labels", "none.jsonl"], "none.jsonl does not exist"),
        (None, ["--labels", "{bare}"], "bare.jsonl:1: correct is missing"),
    ],
)
def test_unusable_input_is_one_line_before_a_model_is_asked(
    run: Callable[..., Ran], fake: FakeOpenAI, tmp_path: Path, lines: list[Any] | None,
    options: list[str], message: str,
) -> None:  # fmt: skip
    data = write_rows(tmp_path / "questions.jsonl", [ship(0)] if lines is None else lines)
    bare = rows(tmp_path / "bare.jsonl", ["Who?"], correct=None)
    out, own = tmp_path / "out", made(tmp_path / "own", 1)
    given = [option.format(out=out, bare=bare, own=own) for option in options]
    command = ("improve", "--questions", data, "--model", "openai:fake", "--out", out, *given)
    one_line(run(*command), 2, message)
    assert fake.requests == []


def test_questions_that_leave_too_few_to_compare_on_are_refused_before_a_model_is_asked(
    run: Callable[..., Ran], fake: FakeOpenAI, tmp_path: Path
) -> None:
    data = write_rows(tmp_path / "questions.jsonl", [ship(number) for number in range(SHIPS)])
    command = ("improve", "--questions", data, "--model", "openai:fake", "--out", tmp_path / "out")
    one_line(run(*command), 2, "held-out questions are too few", "label about 330 questions")
    assert fake.requests == []


def test_a_dry_run_of_improve_asks_nothing(
    improve: Callable[..., Ran], fake: FakeOpenAI, tmp_path: Path
) -> None:
    ran = improve("--out", tmp_path / "new", "--dry-run", "--json")
    assert (ran.code, ran.err) == (0, "")
    assert json.loads(ran.out)["calls"] == [SHIPS * 4, SHIPS * 7]
    assert (fake.requests, (tmp_path / "new").exists()) == ([], False)


@pytest.mark.parametrize("option", ["--questions", "--labels"])
def test_an_input_that_the_command_would_replace_is_refused(
    run: Callable[..., Ran], fake: FakeOpenAI, tmp_path: Path, option: str
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    mine = rows(out / "train.jsonl", ["Who?"])
    before = mine.read_bytes()
    data = write_rows(tmp_path / "questions.jsonl", [ship(0)])
    command = ("improve", "--questions", data, "--model", "openai:fake", "--out", out)
    ran = run(*command, "--overwrite", option, mine)
    one_line(ran, 2, "train.jsonl is a file that this command writes; use another --out")
    assert (mine.read_bytes(), fake.requests) == (before, [])


# Promoting


def test_a_candidate_is_promoted_into_a_new_folder_and_its_router_kept_from_then_on(
    run: Callable[..., Ran], out: Path, tmp_path: Path
) -> None:
    router = tmp_path / "router"
    ran = run("promote", out, "--to", router, "--json")
    assert (ran.code, ran.err) == (0, "")
    assert json.loads(ran.out) == {"router": str(router), "version": 2, "before": 1}
    assert profiles_in(router) == profiles_in(out / "router")
    one_line(run("promote", out, "--to", router), 2, "the candidate in", "is already in use as")
    assert run("promote", "--back", "--to", router).code == 0
    assert profiles_in(router) == profiles_in()
    one_line(run("promote", "--back", "--to", router), 2, "no version before the one in use")


def test_a_promotion_and_the_way_back_are_printed(
    run: Callable[..., Ran], out: Path, tmp_path: Path
) -> None:
    router = Path(shutil.copytree(BUILTIN_FOLDER, tmp_path / "router"))
    ran = run("promote", out, "--to", router)
    assert ran.code == 0, ran.err
    assert f"{router} is version 2 now" in ran.out
    assert f"hopgate promote --back --to {router}" in ran.out
    assert "fake" in profiles_in(router)
    assert run("promote", "--back", "--to", router).code == 0
    assert "fake" not in profiles_in(router)
    assert run("promote", out, "--to", router).code == 0
    assert "fake" in profiles_in(router)


def change(manifest: Path) -> None:
    manifest.write_text(manifest.read_text().replace('"seed": 0', '"seed": 1'))


def test_a_candidate_that_has_changed_since_is_refused(
    run: Callable[..., Ran], out: Path, tmp_path: Path
) -> None:
    change(out / "router" / "manifest.json")
    ran = run("promote", out, "--to", tmp_path / "router")
    one_line(ran, 2, "out/router is not the router that", "run `hopgate improve` again")
    (out / "router" / "manifest.json").unlink()
    one_line(run("promote", out, "--to", tmp_path / "router"), 2, "is not the router that")
    assert not (tmp_path / "router").exists()


def test_a_router_that_has_changed_since_is_not_replaced(
    run: Callable[..., Ran], out: Path, tmp_path: Path
) -> None:
    router = Path(shutil.copytree(BUILTIN_FOLDER, tmp_path / "router"))
    change(router / "manifest.json")
    one_line(run("promote", out, "--to", router), 2, "router is not the router that")
    assert "fake" not in profiles_in(router) and not router.is_symlink()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{out}", "--to", "builtin"], "builtin ships with hopgate and is not replaced"),
        (
            ["{empty}", "--to", "{out}/new"],
            "verdict {empty}/verdict.json cannot be read",
        ),
        (["--to", "{out}/new"], "give DIR, or --back"),
        (["{out}", "--back", "--to", "{out}/new"], "give DIR, or --back"),
        (["--back", "--to", "{out}/new"], "has no version before"),
    ],
)
def test_an_unusable_promotion_is_one_line(
    run: Callable[..., Ran], out: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (empty := tmp_path / "empty").mkdir()
    given = [each.format(out=out, empty=empty) for each in arguments]
    one_line(run("promote", *given), 2, message.format(empty=empty))


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 1}', '{"format": 0}'])
def test_a_damaged_verdict_is_one_line(
    run: Callable[..., Ran], tmp_path: Path, content: str
) -> None:
    (tmp_path / "verdict.json").write_text(content)
    one_line(run("promote", tmp_path, "--to", tmp_path / "router"), 2, "verdict")
