"""Commands without the extra `train`: most run, the others say that they need it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import Ran, one_line
from doubles import by_task
from fake_openai import FakeOpenAI
from recorded import write_labels
from ships import ship, ship_with_passage, write_rows
from tiny_models import save_contriever, save_cross_encoder, small_router, small_t5

from hopgate.classifiers.training.writing import write

LEARNING = ("torch", "transformers", "sentence_transformers", "onnx", "onnxscript")
STATISTICS = ("scipy", "sklearn")
TRAIN = (*LEARNING, *STATISTICS)
"""The modules of the extra `train`."""
HEAVY = ("langgraph", "langchain_core", "openai")

COMMAND = """
import sys
from hopgate import cli

sys.modules |= dict.fromkeys({absent}, None)  # they cannot be imported
try:
    cli.main()
finally:
    assert not sys.modules.keys() & {unused}
"""


@pytest.mark.parametrize(
    ("line", "unused"),
    [
        ("search ferry --mode hybrid --json", HEAVY),
        ("route Who? --json", (*HEAVY, "faiss")),
        ("ask Who? --model openai:fake --strategy single --json", ()),
        ("index build {text} --out {out}", ()),
        ("label --questions {ships} --out {out} --model openai:fake", ()),
        ("doctor", ()),
    ],
)
def test_these_commands_run_without_the_extra(
    line: str, unused: tuple[str, ...], places: dict[str, Path], tmp_path: Path, fake: FakeOpenAI
) -> None:
    fake.answers(by_task(direct="word0x", answer="word0x [1]", reason="So the answer is: word0x."))
    code = COMMAND.format(absent=TRAIN, unused=set(unused))
    arguments = line.format(**places | {"out": tmp_path / "out"}).split()
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# Commands that need it


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files and folders that commands below are given."""
    folder = tmp_path_factory.mktemp("places")
    (folder / "notes.txt").write_text("The ferry leaves at nine.")
    router = small_router(small_t5(0), small_t5(1), one_body=False)
    write(router, folder / "blending", "", int8=False, overwrite=False)
    save_contriever(folder / "encoder")
    hops = [{"id": each, "question": f"Question {each}?", "label": each} for each in ("B", "C")]
    return {
        **{name: folder / name for name in ("blending", "encoder", "out")},
        "text": folder / "notes.txt",
        "cross": save_cross_encoder(folder / "cross"),
        "labels": write_labels(folder / "labels.jsonl"),
        "hops": write_rows(folder / "binary.jsonl", hops),
        "ships": write_rows(folder / "ships.jsonl", [ship(at) for at in range(3)]),
        "rqa": write_rows(folder / "qa.jsonl", [ship_with_passage(at) for at in range(3)]),
    }


TRAINING = "train-router --cost {labels} --reliability {hops} --out {out}"
ASKING = "--model openai:fake --out {out}"
SENTENCES = "needs sentence_transformers"
NEEDS = [
    ("index build {text} --out {out} --encoder {encoder}", LEARNING, f"{{encoder}} {SENTENCES}"),
    ("search ferry --mode bm25 --rerank {cross}", LEARNING, f"cross-encoder {{cross}} {SENTENCES}"),
    ("route Who? --router {blending}", LEARNING, "needs torch"),
    (TRAINING, LEARNING, "training a router needs torch"),
    ("train-router --cost mine={labels} --add-to builtin --out {out}", LEARNING, "needs torch"),
    (f"eval retrievalqa --data {{rqa}} {ASKING}", STATISTICS, "eval retrievalqa needs scipy"),
    (f"eval qa --data {{ships}} {ASKING}", STATISTICS, "hopgate eval qa needs scipy"),
]


@pytest.mark.parametrize(("line", "absent", "message"), NEEDS, ids=[each[0] for each in NEEDS])
def test_a_command_that_needs_the_extra_names_it_in_one_line(
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
