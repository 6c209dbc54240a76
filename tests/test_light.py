"""What runs without the extra `train`, and what says that it needs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Ran, one_line
from doubles import by_task
from fake_openai import FakeOpenAI
from recorded import write_labels
from ships import ship, ship_with_passage, write_rows
from tiny_models import save_contriever, save_cross_encoder, small_router, small_t5

from hopgate.classifiers.training.graphs import add_graph
from hopgate.classifiers.training.writing import write
from hopgate.retrievers.building import build_index

LEARNING = ("torch", "transformers", "sentence_transformers", "onnx", "onnxscript")
STATISTICS = ("scipy", "sklearn")
TRAIN = (*LEARNING, *STATISTICS)
"""What the extra `train` brings, by the names of the modules."""

COMMAND = """
import json, sys
from hopgate import cli

absent, found, *arguments = sys.argv[1:]
for name in json.loads(absent):
    sys.modules[name] = None
sys.argv[1:] = arguments
try:
    cli.main()
finally:
    loaded = [name for name, module in sys.modules.items() if module and "." not in name]
    with open(found, "w") as file:
        json.dump(loaded, file)
"""


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., tuple[Ran, set[str]]]:
    """Run a command in a process of its own; also returns the packages that it loaded.

    Modules that are `absent` cannot be imported, as if they were not installed.
    """

    def run(*arguments: str | Path, absent: tuple[str, ...] = ()) -> tuple[Ran, set[str]]:
        found = tmp_path / "loaded.json"
        given = [json.dumps(absent), str(found), *map(str, arguments)]
        done = subprocess.run(
            [sys.executable, "-c", COMMAND, *given],
            capture_output=True,
            text=True,
            timeout=300,
            env=os.environ.copy(),
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr), {*json.loads(found.read_text())}

    return run


def result(ran: Ran) -> Any:
    assert (ran.code, ran.err) == (0, "")
    return json.loads(ran.out)


@pytest.mark.parametrize("mode", ["bm25", "hybrid"])
def test_searching_loads_nothing_of_the_extra(
    command: Callable[..., tuple[Ran, set[str]]], mode: str
) -> None:
    ran, loaded = command("search", "Who designed Skerrane Light?", "--mode", mode, "--json")
    assert "Skerrane Light" in {hit["title"] for hit in result(ran)}
    assert loaded.isdisjoint(TRAIN)
    assert ("onnxruntime" in loaded) == (mode != "bm25")
    assert loaded.isdisjoint({"langgraph", "langchain_core", "openai"})


def test_routing_loads_nothing_of_the_extra(command: Callable[..., tuple[Ran, set[str]]]) -> None:
    ran, loaded = command("route", "Who wrote Hamlet?", "--json")
    assert set(result(ran)["probs"]) == {"A", "B", "C"}
    assert loaded.isdisjoint({*TRAIN, "langgraph", "langchain_core", "openai", "faiss"})


def test_asking_loads_nothing_of_the_extra(
    command: Callable[..., tuple[Ran, set[str]]], fake: FakeOpenAI
) -> None:
    fake.answers(
        by_task(gate="[Yes]", answer="Ada Corrane [1]", reason="So the answer is: Ada Corrane.")
    )
    question = "Who designed Skerrane Light?"
    given = ("--model", "openai:fake", "--mode", "hybrid")
    ran, loaded = command("ask", question, *given, "--json")
    told = result(ran)
    assert told["answer"].startswith("Ada Corrane")
    assert told["usage"]["retrieval_steps"] >= 1
    assert loaded >= {"langgraph", "openai", "onnxruntime"}
    assert loaded.isdisjoint(TRAIN)


def test_making_an_index_loads_nothing_of_the_extra(
    command: Callable[..., tuple[Ran, set[str]]], tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("The ferry leaves at nine.")
    ran, loaded = command("index", "build", tmp_path / "notes.txt", "--out", tmp_path / "index")
    assert ran.code == 0, ran.err
    assert loaded.isdisjoint(TRAIN)


def test_labelling_needs_nothing_of_the_extra(
    command: Callable[..., tuple[Ran, set[str]]], fake: FakeOpenAI, tmp_path: Path
) -> None:
    fake.answers(by_task(direct="word0x", answer="word0x [1]", reason="So the answer is: word0x."))
    questions, out = write_rows(tmp_path / "questions.jsonl", [ship(0)]), tmp_path / "labels.jsonl"
    given = ("--questions", questions, "--out", out, "--model", "openai:fake")
    ran, loaded = command("label", *given, absent=TRAIN)
    assert ran.code == 0, ran.err
    assert json.loads(out.read_text())["correct"] == ["zero", "one", "multiple"]
    assert loaded.isdisjoint(TRAIN)


def test_doctor_loads_nothing_of_the_extra(command: Callable[..., tuple[Ran, set[str]]]) -> None:
    ran, loaded = command("doctor")
    assert ran.code == 0, ran.out
    assert loaded.isdisjoint(TRAIN)


# What needs it


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files and folders that commands below are given."""
    folder = tmp_path_factory.mktemp("places")
    (folder / "notes.txt").write_text("The ferry leaves at nine.")
    for name, one_body in (("blending", False), ("older", True)):
        router = small_router(small_t5(0), small_t5(1), one_body=one_body)
        write(router, folder / name, "", int8=False, overwrite=False)
    save_contriever(folder / "encoder")
    hops = [{"id": each, "question": f"Question {each}?", "label": each} for each in ("B", "C")]
    gated = [{"question": f"{answer}?", "answer": answer} for answer in ("Yes", "No")]
    return {
        **{name: folder / name for name in ("blending", "older", "encoder", "out")},
        "text": folder / "notes.txt",
        "cross": save_cross_encoder(folder / "cross"),
        "labels": write_labels(folder / "labels.jsonl"),
        "hops": write_rows(folder / "binary.jsonl", hops),
        "ships": write_rows(folder / "ships.jsonl", [ship(at) for at in range(3)]),
        "rqa": write_rows(folder / "qa.jsonl", [ship_with_passage(at) for at in range(3)]),
        "gated": write_rows(folder / "gated.jsonl", gated),
    }


TRAINING = "train-router --cost {labels} --reliability {hops} --out {out}"
ASKING = "--model openai:fake --out {out}"
SENTENCES = "needs sentence_transformers"
NEEDS = [
    ("index build {text} --out {out} --encoder {encoder}", LEARNING, f"{{encoder}} {SENTENCES}"),
    ("search ferry --mode bm25 --rerank {cross}", LEARNING, f"cross-encoder {{cross}} {SENTENCES}"),
    ("route Who? --router {blending}", LEARNING, "needs torch"),
    ("route Who? --router {older}", LEARNING, "needs torch"),
    (TRAINING, LEARNING, "training a router needs torch"),
    (TRAINING, ("onnxscript",), "training a router needs onnxscript"),
    ("train-router --cost mine={labels} --add-to builtin --out {out}", LEARNING, "needs torch"),
    ("sweep --labels {labels} --out {out}", STATISTICS, "hopgate sweep needs scipy"),
    ("calibrate --labels {labels} --budget-steps 2", STATISTICS, "hopgate calibrate needs scipy"),
    (f"calibrate --gate confidence --labels {{gated}} {ASKING}", STATISTICS, "needs scipy"),
    (f"eval retrievalqa --data {{rqa}} {ASKING}", STATISTICS, "eval retrievalqa needs scipy"),
    (f"eval qa --data {{ships}} {ASKING}", STATISTICS, "hopgate eval qa needs scipy"),
]


@pytest.mark.parametrize(("line", "absent", "message"), NEEDS, ids=[each[0] for each in NEEDS])
def test_what_needs_the_extra_names_it_in_one_line(
    line: str,
    absent: tuple[str, ...],
    message: str,
    run: Callable[..., Ran],
    places: dict[str, Path],
    fake: FakeOpenAI,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in absent:
        monkeypatch.setitem(sys.modules, name, None)
    ran = run(*(part.format(**places) for part in line.split()))
    one_line(ran, 1, message.format(**places), "pip install 'hopgate[train]'")
    assert not places["out"].exists()
    assert fake.requests == []


def test_an_index_of_another_encoder_cannot_be_searched_without_the_extra(
    command: Callable[..., tuple[Ran, set[str]]], places: dict[str, Path], tmp_path: Path
) -> None:
    build_index([places["text"]], tmp_path, encoder=str(places["encoder"]))
    ran, _ = command("search", "ferry", "--index", tmp_path, "--mode", "dense", absent=TRAIN)
    one_line(ran, 1, "needs sentence_transformers", "pip install 'hopgate[train]'")


def test_a_router_trained_in_one_pass_routes_without_the_extra(
    command: Callable[..., tuple[Ran, set[str]]], tmp_path: Path
) -> None:
    router = small_router(small_t5(0), small_t5(1), one_body=True)
    add_graph(router)
    write(router, tmp_path / "router", "", int8=False, overwrite=False)
    ran, _ = command(
        "route", "who wrote it", "--router", tmp_path / "router", "--json", absent=TRAIN
    )
    assert set(result(ran)["probs"]) == {"A", "B", "C"}
