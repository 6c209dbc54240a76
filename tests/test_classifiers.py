"""The router that ships and its folder, on the real weights; label files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from hopgate.classifiers import checkpoint
from hopgate.classifiers.checkpoint import BUILTIN_FOLDER, MANIFEST, Checkpoint, read, verify
from hopgate.classifiers.labels import LabelRow, QuestionRow, read_labels, read_questions
from hopgate.classifiers.router import Router, load_router
from hopgate.classifiers.training.writing import check_free
from hopgate.common.onnx import BATCH_TOKENS

if TYPE_CHECKING:
    pass

SHIPPED = ("flan-t5-xl", "flan-t5-xxl", "gpt-4o-mini", "gpt-4o", "local-smollm2")
QUESTIONS = [
    "What is the capital of France?",
    "Who was the mother of the director of the film that won the award which Ann Hui founded?",
    "When did the Korean War begin?",
    "What year saw the creation of the region where the county of Hertfordshire is located?",
]


@pytest.fixture(scope="module")
def router() -> Router:
    return load_router()


@pytest.fixture(scope="module")
def shipped() -> Checkpoint:
    return read(BUILTIN_FOLDER)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BUILTIN_FOLDER, tmp_path / "router"))


def as_rows(found: list[dict[str, float]]) -> torch.Tensor:
    return torch.tensor([[row[label] for label in "ABC"] for row in found])


def test_shipped_router_gives_probabilities(router: Router) -> None:
    found = router.route(QUESTIONS, 0.4)
    assert [set(row) for row in found] == [{"A", "B", "C"}] * len(QUESTIONS)
    assert as_rows(found).sum(1).tolist() == pytest.approx([1.0] * len(QUESTIONS), abs=1e-5)
    assert router.profile == "flan-t5-xl"


def test_shipped_router_tells_single_from_multi_hop(router: Router) -> None:
    single, multi = router.route(["Who wrote Hamlet?", QUESTIONS[1]], 0.5)
    assert single["B"] > single["C"]
    assert multi["C"] > multi["B"]


def test_a_batch_gives_what_each_question_gives_alone(router: Router) -> None:
    questions = [f"{question} {'And why? ' * (i % 7)}" for i, question in enumerate(QUESTIONS * 17)]
    assert len(questions) > BATCH_TOKENS // 8  # more than one pass
    together = as_rows(router.route(questions, 0.3))
    alone = as_rows([router.route([question], 0.3)[0] for question in questions])
    torch.testing.assert_close(together, alone, atol=1e-4, rtol=0)


def test_every_profile_ships_and_differs() -> None:
    routers = [load_router(profile=profile) for profile in SHIPPED]
    assert routers[0].profiles == SHIPPED
    found = [as_rows(router.route(QUESTIONS, 0.3)) for router in routers]
    assert not any(torch.allclose(a, b, atol=1e-3) for a, b in pairwise(found))
    with pytest.raises(ValueError, match="profile is 'gpt-5'; the router has flan-t5-xl"):
        Router.load(profile="gpt-5")


def test_questions_outside_the_training_data_are_flagged(router: Router) -> None:
    found = router.doubts(["Who wrote Hamlet?", "Wer schrieb den Faust?", "why " * 10_000])
    assert found[0] is None
    assert "English" in str(found[1])
    assert "first 384 tokens" in str(found[2])


@pytest.mark.parametrize("alpha", [-0.01, 1.01, float("nan")])
def test_alpha_outside_its_range_is_refused(router: Router, alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha"):
        router.route(QUESTIONS, alpha)


@pytest.mark.parametrize("question", ["", " \n"])
def test_empty_question_is_refused(router: Router, question: str) -> None:
    with pytest.raises(ValueError, match="question 2 is empty"):
        router.route(["Who?", question], 0.5)


def test_no_questions_give_no_answers(router: Router) -> None:
    assert router.route([], 0.5) == []


def test_long_question_is_cut_at_384_tokens(router: Router) -> None:
    text = "why " * 382
    cut, longer = router.route([text, text + "not " * 10_000], 0.5)
    assert cut == pytest.approx(longer, abs=1e-5)


@pytest.mark.parametrize("name", ["cost-flan-t5-xl.safetensors", "features.onnx"])
def test_altered_byte_is_refused(folder: Path, name: str) -> None:
    content = bytearray((folder / name).read_bytes())
    content[-1] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(RuntimeError, match=f"{name} was altered"):
        Router.load(folder)


def test_a_graph_without_a_hash_is_refused(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    del manifest["sha256"]["features.onnx"]
    (folder / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(RuntimeError, match=r"features\.onnx was altered"):
        Router.load(folder)


def test_missing_file_is_named(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(RuntimeError, match=r"tokenizer\.json is missing"):
        Router.load(folder)


def test_folder_without_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a router's folder"):
        Router.load(tmp_path)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda manifest: manifest.update(format=99), "format 99"),
        # only torch reads the configuration
        (lambda m: (m["config"].update(d_ff=512), m.update(graph=None)), "do not fit"),
        (lambda m: m["tensors"].pop("reliability-flan-t5-xl"), "no 'reliability'"),
    ],
)
def test_manifest_that_does_not_fit_is_refused(
    folder: Path, edit: Callable[[Any], object], message: str
) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    edit(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=message):
        Router.load(folder)


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        ({"sha256": ["tokenizer.json"]}, "sha256"),
        ({"sha256": {"../x": ""}}, "sha256"),
        ({"max_tokens": 512}, "max_tokens"),
        ({"training": None}, "training"),
        ({"dials": {"gpt-4o": [0, 0.5]}}, "dials.gpt-4o"),
        ({"alphas": {"gpt-4o": 2}}, "alphas.gpt-4o"),
        ({"known": {"gpt-4o": {"questions": 1}}}, "known.gpt-4o"),
    ],
)
def test_a_damaged_manifest_is_refused(folder: Path, edit: dict[str, object], field: str) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(manifest | edit))
    with pytest.raises(RuntimeError, match=f"manifest.json is damaged .{field}"):
        verify(folder)
    (folder / MANIFEST).write_text("{")
    with pytest.raises(RuntimeError, match="is damaged"):
        verify(folder)


def test_an_intact_folder_is_hashed_again_only_after_a_change(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []
    real = checkpoint.sha256

    def counted(path: Path) -> str:
        hashed.append(path.name)
        return real(path)

    monkeypatch.setattr(checkpoint, "sha256", counted)
    manifest = verify(folder)
    assert sorted(hashed) == sorted(manifest.sha256)
    assert verify(str(folder)) is manifest
    assert sorted(hashed) == sorted(manifest.sha256)
    content = bytearray((folder / "cost-flan-t5-xl.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "cost-flan-t5-xl.safetensors").write_bytes(content)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"cost-flan-t5-xl\.safetensors was altered"):
            verify(folder)


def test_a_router_is_found_under_the_home_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    assert verify("~/router") == verify(folder)
    assert Router.load("~/router").profile == "flan-t5-xl"


def test_a_router_is_loaded_once_and_again_after_a_new_training(folder: Path) -> None:
    first = load_router(folder)
    assert load_router(str(folder), "flan-t5-xl") is first
    assert load_router(folder, "gpt-4o") is not first
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["training"]["seed"] = 7
    (folder / MANIFEST).write_text(json.dumps(manifest))
    assert load_router(folder).training["seed"] == 7


def test_only_a_folder_with_nothing_but_a_router_is_overwritten(
    folder: Path, tmp_path: Path
) -> None:
    check_free(folder, overwrite=True)
    (folder / "notes.txt").write_text("years of work")
    with pytest.raises(ValueError, match=r"contains 'notes\.txt' besides the router"):
        check_free(folder, overwrite=True)
    other = tmp_path / "other"
    other.mkdir()
    check_free(other, overwrite=True)
    for manifest in ('{"name": "web app"}', '{"architecture": "x", "tensors": 1}', "[]", "{"):
        (other / MANIFEST).write_text(manifest)
        with pytest.raises(ValueError, match="is not a router's folder"):
            check_free(other, overwrite=True)


def test_shipped_weights_stay_under_45_megabytes() -> None:
    assert sum(file.stat().st_size for file in BUILTIN_FOLDER.iterdir()) < 45_000_000


def test_labels_are_read(tmp_path: Path) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text(
        '{"id": "1", "question": "Who?", "label": "B", "dataset": "nq", "correct": ["one"]}\n'
        '\n{"id": "2", "question": "Wo\u2028?", "label": "C"}\n',
        encoding="utf-8",
    )
    assert read_labels(path) == [
        LabelRow("1", "Who?", "nq", "B", frozenset({"single"})),
        LabelRow("2", "Wo\u2028?", "", "C", None),
    ]
    assert read_questions(path)[0] == QuestionRow("1", "Who?", "nq")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": "1", "question": "Who?", "label": "D"}', ":2: label is 'D'"),
        ('{"id": "1", "question": " ", "label": "A"}', ":2: question is"),
        ('{"id": 1, "question": "Who?", "label": "A"}', ":2: id is 1"),
        ('{"id": "1", "question": "Who?", "label": "A", "correct": ["two"]}', ":2: correct is"),
        (
            '{"id": "1", "question": "Who?", "label": "C", "correct": ["zero"]}',
            r":2: label is 'C', but the cheapest of `correct` \['zero'\] is A",
        ),
        ('{"id": "1", "question": "Who?", "label": "C", "correct": []}', ":2: label is 'C', but"),
    ],
)
def test_a_bad_line_of_a_label_file_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text('{"id": "0", "question": "Who?", "label": "A"}\n' + line + "\n")
    with pytest.raises(ValueError, match=message):
        read_labels(path)
