"""`hopgate eval qa`: strategies and α on questions, through the command and the real graph."""

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Ran, one_line
from fake_openai import COMPLETION_TOKENS, PROMPT_TOKENS, FakeOpenAI, Messages, Reply
from ships import answers_some, prompted, read_rows, ship, skip_pictures, write_rows

from hopgate.evaluation.measuring.datasets import read_examples
from hopgate.evaluation.measuring.specs import systems
from hopgate.evaluation.reports import pictures

STATIC = ("--strategies", "none,single,multi")
MULTIHOP = Path(__file__).resolve().parents[2] / "shared" / "data" / "multihop" / "dev.jsonl"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "questions.jsonl", [ship(number) for number in range(4)])


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def evaluate(
    run: Callable[..., Ran], data: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Ran]:
    """`hopgate eval qa` on the fake model and the sample collection, without pictures."""
    skip_pictures(monkeypatch)

    def command(*arguments: str | Path) -> Ran:
        common = ("--data", data, "--model", "openai:fake", "--out", out)
        return run("eval", "qa", *common, *arguments)

    return command


def gates(messages: Messages) -> Reply | str:
    """Says Yes to odd ships, and answers as `answers_some`."""
    if "[Yes]" in messages[-1]["content"]:
        number = int(re.findall(r"ship (\d+)", messages[-1]["content"])[-1])
        return "[Yes]" if number % 2 else "[No]"
    return answers_some(messages)


def test_each_strategy_and_each_alpha_is_scored(
    evaluate: Callable[..., Ran], fake: FakeOpenAI, out: Path
) -> None:
    fake.answers(answers_some)
    ran = evaluate("--alphas", "0,1", "--json")
    assert ran.code == 0, ran.err
    results = json.loads(ran.out)
    assert results == json.loads((out / "results.json").read_text(encoding="utf-8"))
    found = {run["name"]: run["scores"] for run in results["runs"]}
    cheap, dear = "adaptive:alpha=0", "adaptive:alpha=1"
    assert list(found) == ["none", "single", "multi", cheap, dear]
    right = {name: [found[name][key] for key in ("match", "em", "f1")] for name in list(found)[:3]}
    assert right == {"none": [0.25] * 3, "single": [0.25] * 3, "multi": [0.5] * 3}
    assert [found[name]["retrieval_steps"] for name in right] == [0, 1, 1]
    assert [found[name]["llm_calls"] for name in right] == [1, 1, 2]
    assert found["multi"]["tokens"]["total"] == 4 * 2 * (PROMPT_TOKENS + COMPLETION_TOKENS)
    assert found["multi"]["stop_reasons"] == {"answered": 4}
    assert found["none"]["stop_reasons"] == {}
    assert [found[name]["shares"] for name in right] == [
        {name: float(name == each) for name in right} for each in right
    ]
    assert found["multi"]["by_dataset"]["even"]["match"] == 0.5
    assert found["multi"]["by_dataset"]["odd"]["n"] == 2
    assert found[dear]["shares"]["none"] == 0
    assert found[cheap]["retrieval_steps"] <= found[dear]["retrieval_steps"]
    for name in (cheap, dear):
        assert sum(found[name]["shares"].values()) == 1
        paths = Counter(each["strategy"] for each in kept(out, name))
        assert paths["none"] / 4 == found[name]["shares"]["none"]
    settings = results["runs"][3]["settings"]
    assert (settings["alpha"], settings["gate"]) == (0, "off")
    assert re.fullmatch("builtin, SHA-256 [0-9a-f]{64}", settings["router"])
    assert results["passages"].startswith("index ")
    names = {"report.md", "results.json", "qa.png", "predictions"}
    assert {path.name for path in out.iterdir()} == names


def kept(out: Path, name: str) -> list[dict[str, Any]]:
    return read_rows(out / "predictions" / f"{name.replace(':', '_')}.jsonl")


def test_the_page_has_the_figures_and_no_text_of_the_data(
    run: Callable[..., Ran], fake: FakeOpenAI, data: Path, out: Path
) -> None:
    fake.answers(answers_some)
    common = ("--data", data, "--model", "openai:fake", "--out", out)
    ran = run("eval", "qa", *common, "--strategies", "multi,adaptive", "--alphas", "1")
    assert ran.code == 0, ran.err
    for part in ("openai:fake, 4 questions", "adaptive:alpha=1", "50.0%", str(out / "report.md")):
        assert part in ran.out
    text = (out / "report.md").read_text(encoding="utf-8")
    for part in (
        "| `multi` | 50.0 [0.0, 100.0] | 50.0 [0.0, 100.0] | 50.0 | 50.0 | 1.00 | 2.00 | 28 |",
        "| `adaptive:alpha=1` | 0.0 |",
        "| strategy | answered |",
        "| strategy | `even` (n = 2) | `odd` (n = 2) |",
        "| `multi` | 50.0 / 50.0 / 50.0 at 1.00 | 50.0 / 50.0 / 50.0 at 1.00 |",
        "](qa.png)",
    ):
        assert part in text
    assert "code word" not in text + (out / "results.json").read_text(encoding="utf-8")
    assert (out / "qa.png").read_bytes().startswith(b"\x89PNG")


def test_a_gate_can_precede_the_router(
    evaluate: Callable[..., Ran], fake: FakeOpenAI, out: Path
) -> None:
    fake.answers(gates)
    options = ("--strategies", "adaptive", "--alphas", "0.5", "--gate", "ta-are")
    ran = evaluate(*options, "--today", "2024-02-03", "--json")
    assert ran.code == 0, ran.err
    (found,) = json.loads(ran.out)["runs"]
    assert found["settings"]["today"] == "2024-02-03"
    assert found["scores"]["shares"]["none"] == 0.5
    assert {each["id"]: each["strategy"] == "none" for each in kept(out, found["name"])} == {
        "q0": True, "q1": False, "q2": True, "q3": False,
    }  # fmt: skip
    asked = [text for text in fake.prompts if "Today is 2024-02-03" in text]
    assert len(asked) == 4


def test_i_don_t_know_is_never_correct(
    evaluate: Callable[..., Ran], fake: FakeOpenAI, data: Path
) -> None:
    write_rows(data, [ship(0, answers=["no"]), ship(1, answers=["no"])])  # letters of "i dont know"
    fake.answers(lambda messages: "No" if prompted(messages)[1] else "I don't know")
    (found,) = json.loads(evaluate("--strategies", "none", "--json").out)["runs"]
    scores = found["scores"]
    assert [scores[key] for key in ("match", "em", "f1", "unknown")] == [0.5] * 4
    assert scores["by_dataset"]["even"]["match"] == 0


@pytest.mark.skipif(not MULTIHOP.is_file(), reason="needs the questions in ../shared/data")
def test_multi_hop_questions_are_read() -> None:
    examples = read_examples(MULTIHOP)
    assert len(examples) == 54
    assert {each.source for each in examples} == {"hotpotqa", "iirc", "2wikimultihopqa", "musique"}
    assert all(each.golds and not each.passages for each in examples)


# The picture


def document(**scores: tuple[float, float]) -> dict[str, Any]:
    """Results of runs, by name, with steps and match."""
    runs = [
        {
            "name": name.replace("alpha", "adaptive:alpha="),
            "settings": {"alpha": int(name[5:]) / 100} if "alpha" in name else {"strategy": name},
            "scores": {
                "retrieval_steps": steps,
                "match": match,
                "interval": {"match": [max(match - 0.1, 0), min(match + 0.1, 1)]},
            },
        }
        for name, (steps, match) in scores.items()
    ]
    return {"model": "openai:a$b", "data": {"rows": 50}, "runs": runs}


def test_the_picture_joins_static_strategies_and_alphas_in_order() -> None:
    close = {"alpha100": (2, 0.6), "alpha0": (0.5, 0.3), "alpha50": (1.99, 0.6)}
    found = document(multi=(2.5, 0.6), none=(0, 0.2), **close)
    deeper = document(alpha0=(1.5, 0.4))["runs"]
    deeper[0]["settings"]["escalate"] = 4
    found["runs"] += deeper
    axes = pictures.draw_qa(found).axes[0]
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert list(lines["static strategies"].get_xdata()) == [0, 2.5]
    assert list(lines["adaptive"].get_xdata()) == [0.5, 1.99, 2]
    assert list(lines["adaptive"].get_ydata()) == [30, 60, 60]
    assert list(lines["adaptive, escalating"].get_xdata()) == [1.5]
    # two points at one place have one name
    assert {each.get_text() for each in axes.texts} == {"none", "multi", "α = 0", "α = 0.5"}


# Resuming (see test_resuming for kills)


def test_another_router_gate_server_or_file_cannot_resume(
    evaluate: Callable[..., Ran], fake: FakeOpenAI, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.answers(answers_some)
    options = ("--strategies", "adaptive", "--alphas", "0", "--limit", "1")
    assert evaluate(*options).code == 0
    count = len(fake.requests)
    for change in (("--gate", "never"), ("--profile", "gpt-4o"), ("--top-k", "3")):
        named = change[0][2:].replace("-", "_")
        one_line(evaluate(*options, *change), 2, named, "other settings", "--overwrite")
    write_rows(data, [ship(1)])
    one_line(evaluate(*options), 2, "data: ", "other settings")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    one_line(evaluate(*options), 2, "endpoint: ", "'127.0.0.1:9' now")
    assert len(fake.requests) == count


def test_systems_have_names_and_files_of_their_own() -> None:
    found = systems("adaptive", "0,1", 4, {"gate": "off"})
    assert [(each.name, each.settings.get("escalate")) for each in found] == [
        ("adaptive:alpha=0", None),
        ("adaptive:alpha=0,escalate=4", 4),
        ("adaptive:alpha=1", None),
        ("adaptive:alpha=1,escalate=4", 4),
    ]
    found = systems("none,adaptive", "0,0.25", 0, {"gate": "ta-are"})
    assert [(each.name, each.slug, each.settings.get("alpha"), each.dated) for each in found] == [
        ("none", "none", None, False),
        ("adaptive:alpha=0", "adaptive_alpha=0", 0, True),
        ("adaptive:alpha=0.25", "adaptive_alpha=0.25", 0.25, True),
    ]
