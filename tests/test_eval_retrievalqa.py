"""`hopgate eval retrievalqa`: gates on questions, through the command and the real graph."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Ran, one_line
from doubles import by_task
from fake_openai import COMPLETION_TOKENS, PROMPT_TOKENS, FakeOpenAI
from ships import reads_the_passage, ship_with_passage, skip_pictures, write_rows

from hopgate import Context
from hopgate.evaluation.measuring.datasets import Example
from hopgate.evaluation.measuring.harness import GivenPassages, SingleRetrievalGraph
from hopgate.evaluation.measuring.specs import parse_spec, parse_specs
from hopgate.retrievers.sources import sample_path

SURE, UNSURE = [{"x": 0.0}], [{"x": -1.0, "y": -1.0, "z": -1.0, "w": -1.0}]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "data.jsonl", [ship_with_passage(number) for number in range(6)])


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def evaluate(
    run: Callable[..., Ran], data: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Ran]:
    """`hopgate eval retrievalqa` on the fake model, without pictures."""
    skip_pictures(monkeypatch)

    def command(*arguments: str | Path) -> Ran:
        common = ("--data", data, "--model", "openai:fake", "--out", out)
        return run("eval", "retrievalqa", *common, *arguments)

    return command


def predictions(out: Path, slug: str) -> list[dict[str, Any]]:
    lines = (out / "predictions" / f"{slug}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


# What is asked and saved


def test_each_gate_runs_on_every_question(
    evaluate: Callable[..., Ran], fake: FakeOpenAI, out: Path
) -> None:
    fake.answers(reads_the_passage)
    ran = evaluate("--json")
    assert (ran.code, ran.err) == (0, ""), ran.err
    results = json.loads(ran.out)
    assert results == json.loads((out / "results.json").read_text(encoding="utf-8"))
    scores = {run["name"]: run["scores"] for run in results["runs"]}
    assert {name: each["match"] for name, each in scores.items()} == {
        "ta-are": 0.5,
        "always": 1,
        "never": 0,
    }
    assert {name: each["retrieval_rate"] for name, each in scores.items()} == {
        "ta-are": 0.5,
        "always": 1,
        "never": 0,
    }
    assert scores["ta-are"]["llm_calls"] == 2
    assert scores["never"]["unknown"] == 1
    assert len(fake.requests) == 6 * (2 + 1 + 1)
    kept = {each["id"]: each for each in predictions(out, "ta-are")}
    assert set(kept) == {f"q{number}" for number in range(6)}
    assert kept["q2"].pop("ms") > 0
    assert kept["q2"] == {
        "id": "q2",
        "question": "What is the code word of ship 2?",
        "source": "freshqa",
        "answerable": None,
        "retrieve": True,
        "verdict": "yes",
        "p_yes": None,
        "uncertainty": None,
        "prediction": "word2x",
        "known": True,
        "match": True,
        "em": True,
        "f1": 1.0,
        "retrieval_steps": 1,
        "llm_calls": 2,
        "prompt_tokens": 2 * PROMPT_TOKENS,
        "completion_tokens": 2 * COMPLETION_TOKENS,
    }
    assert (kept["q1"]["known"], kept["q1"]["retrieval_steps"]) == (False, 0)
    assert {"report.md", "results.json", "predictions"} <= {path.name for path in out.iterdir()}


def test_people_see_a_table(
    run: Callable[..., Ran], fake: FakeOpenAI, data: Path, out: Path
) -> None:
    one_line(run("eval"), 2, "name a command: qa, retrievalqa")
    fake.answers(reads_the_passage)
    common = ("--data", data, "--model", "openai:fake", "--out", out)
    ran = run("eval", "retrievalqa", *common, "--gate", "always")
    assert (ran.code, ran.err) == (0, "")
    for part in ("openai:fake, 6 questions", "always", "100.0%", str(out / "report.md")):
        assert part in ran.out
    assert (out / "gates.png").read_bytes().startswith(b"\x89PNG")


def test_questions_with_the_same_text_have_their_own_passages(
    run: Callable[..., Ran], fake: FakeOpenAI, tmp_path: Path, out: Path
) -> None:
    same = "Which number is it?"
    rows = [
        ship_with_passage(number, question=same, context=[f"It is word{number}x."])
        for number in range(6)
    ]
    data = write_rows(tmp_path / "same.jsonl", rows)
    fake.answers(reads_the_passage)
    common = ("--data", data, "--model", "openai:fake", "--out", out, "--concurrency", "6")
    assert run("eval", "retrievalqa", *common, "--gate", "always").code == 0
    assert {each["id"]: each["prediction"] for each in predictions(out, "always")} == {
        f"q{number}": f"word{number}x" for number in range(6)
    }


def test_specs_reach_the_prompt(
    evaluate: Callable[..., Ran], fake: FakeOpenAI, tmp_path: Path
) -> None:
    pool = write_rows(
        tmp_path / "p.jsonl", [{"question": "Who is the harbour pilot?", "answer": "Yes"}]
    )
    fake.answers(by_task(gate="[No]", direct="x"))
    specs = (
        "ta-are",
        "ta-are:date=no",
        "ta-are:demos=0",
        f"ta-are:pool={pool},demos=2",
        "ta-are:layout=turns",
    )
    gates = [part for spec in specs for part in ("--gate", spec)]
    ran = evaluate(*gates, "--limit", "1", "--today", "2024-02-03", "--json")
    assert ran.code == 0, ran.err
    full, dateless, bare, picked, turns = fake.prompts[::2]
    assert "Today is 2024-02-03" in full
    assert "Walter de la Pole" in full
    assert "Today is" not in dateless
    assert "Walter de la Pole" not in bare
    assert "harbour pilot" in picked
    assert len(fake.requests[8]["messages"]) > 2
    assert "[Yes]" in turns
    runs = json.loads(ran.out)["runs"]
    assert [each["name"] for each in runs] == list(specs)
    assert runs[1]["settings"] == {"gate": "ta-are", "gate_date": False}
    assert runs[2]["settings"] == {"today": "2024-02-03", "gate": "ta-are", "gate_demos": 0}
    assert runs[3]["settings"]["demos"].startswith("p.jsonl, SHA-256 ")


def test_an_index_can_be_searched_instead(
    run: Callable[..., Ran], fake: FakeOpenAI, tmp_path: Path, out: Path
) -> None:
    question = "Who designed Farrick Head Lighthouse?"
    data = write_rows(
        tmp_path / "d.jsonl",
        [ship_with_passage(1, question=question, ground_truth=["Caddoc Fairlow"])],
    )
    fake.answers(by_task(answer="Caddoc Fairlow [1]"))
    common = ("--data", data, "--model", "openai:fake", "--out", out, "--gate", "always")
    ran = run("eval", "retrievalqa", *common, "--passages", "index", "--index", sample_path())
    assert ran.code == 0, ran.err
    assert "Caddoc Fairlow" in fake.prompts[0]
    (found,) = predictions(out, "always")
    assert (found["prediction"], found["match"], found["em"]) == ("Caddoc Fairlow", True, True)
    given = run("eval", "retrievalqa", *common)
    one_line(given, 2, "always.jsonl", "passages: 'index", "'given' now")


async def test_a_failing_retriever_is_an_error(
    fake: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ConnectionError("gone")

    fake.answers(lambda _: "an answer without sources")
    monkeypatch.setattr(GivenPassages, "search", fail)
    example = Example("q1", "Why?", ("x",), "popqa", (), None)
    with pytest.raises(RuntimeError, match="question q1: the retriever failed: gone"):
        await SingleRetrievalGraph(given=True).ask(
            example, Context(model="openai:fake", gate="always")
        )


# Resuming (see test_resuming for kills)


def test_a_finished_run_asks_nothing_and_more_questions_are_added(
    evaluate: Callable[..., Ran], fake: FakeOpenAI, out: Path
) -> None:
    fake.answers(reads_the_passage)
    few = json.loads(evaluate("--limit", "2", "--json").out)
    assert few["runs"][0]["scores"]["n"] == 2
    first = json.loads(evaluate("--json").out)
    count = len(fake.requests)
    assert count == 6 * (2 + 1 + 1)
    again = json.loads(evaluate("--json").out)
    assert len(fake.requests) == count
    assert again["runs"] == first["runs"]
    assert evaluate("--gate", "never", "--overwrite").code == 0
    assert len(fake.requests) == count + 6


def test_a_resumed_run_keeps_the_date_of_its_start(
    evaluate: Callable[..., Ran], fake: FakeOpenAI, out: Path
) -> None:
    fake.answers(reads_the_passage)
    assert evaluate("--gate", "ta-are", "--limit", "1", "--today", "2024-02-03").code == 0
    assert evaluate("--gate", "ta-are").code == 0
    asked = [text for text in fake.prompts if "Today is" in text]
    assert len(asked) == 6
    assert all("Today is 2024-02-03" in text for text in asked)
    one_line(evaluate("--gate", "ta-are", "--today", "2025-01-01"), 2, "'2024-02-03' in the file")


# Specs


def test_a_spec_sets_the_context() -> None:
    spec = parse_spec("confidence:threshold=0.02,layout=turns,demos=12,date=no")
    assert spec.settings == {
        "gate": "confidence",
        "gate_threshold": 0.02,
        "layout": "turns",
        "gate_demos": 12,
        "gate_date": False,
    }
    Context(**spec.settings)
    assert not spec.dated
    assert parse_spec("vanilla:invalid=direct").settings["gate_invalid"] == "direct"
    assert parse_spec("ta-are").dated
    assert not parse_spec("vanilla").dated


def test_specs_have_files_of_their_own(tmp_path: Path) -> None:
    a, b = tmp_path / "a_b", tmp_path / "a-b"
    texts = ["ta-are", "ta-are:date=no", "ta-are:date=no,demos=0", "draft:threshold=0.5"]
    texts += [f"ta-are:pool={a}", f"ta-are:pool={b}"]
    slugs = [spec.slug for spec in parse_specs(texts)]
    assert slugs[:4] == [
        "ta-are",
        "ta-are_date=no",
        "ta-are_date=no,demos=0",
        "draft_threshold=0.5",
    ]
    assert len(set(slugs)) == 6
    assert all(re.fullmatch(r"[a-z0-9.=,_-]{1,90}", slug) for slug in slugs)
