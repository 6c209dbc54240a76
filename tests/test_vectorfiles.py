"""Indexes of vectors that were computed elsewhere."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Ran, one_line

from hopgate.retrievers.base import make_passage
from hopgate.retrievers.building import build_from_passages, build_from_vectors
from hopgate.retrievers.documents import vectorfiles
from hopgate.retrievers.encoders import load_encoder
from hopgate.retrievers.index.reader import load_index
from hopgate.retrievers.index.verifying import verify

ROWS = [
    {"id": n, "title": f"Ferry {n}", "text": f"Ferry {n} leaves at {n} o'clock.", "source": f"/{n}"}
    for n in range(12)
]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectorfiles, "_ROWS", 5)


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    passages = [make_passage(str(row["title"]), str(row["text"])) for row in ROWS]
    return load_encoder().encode_passages(passages)


def npy(file: Path, vectors: np.ndarray, rows: Sequence[Any] = ROWS) -> Path:
    np.save(file, vectors)
    lines = map(json.dumps, rows)
    file.with_suffix(".jsonl").write_text("\n".join(lines) + "\n")
    return file


def test_given_vectors_make_the_index_that_encoding_makes(
    tmp_path: Path, vectors: np.ndarray, run: Callable[..., Ran]
) -> None:
    file = npy(tmp_path / "ferries.npy", vectors)
    out = tmp_path / "index"
    built = run("index", "build", "--vectors", file, "--out", out, "--json")
    assert built.code == 0, built.err
    assert json.loads(built.out) | {"passages": 12, "encoded": 0} == json.loads(built.out)
    assert verify(out).problems == []
    (hits,) = load_index(out).search(["Ferry 7"], 1, "bm25")
    assert hits[0]["source"] == "/7"
    passages = [make_passage(row["title"], row["text"], row["source"]) for row in ROWS]
    again = build_from_passages(passages, out)
    assert not again.changed
    assert not build_from_vectors([file], out).changed


def test_a_refused_file_leaves_nothing_for_the_corrected_one(
    tmp_path: Path, vectors: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = vectors.copy()
    wrong[1], wrong[2] = vectors[2], vectors[1]  # in a piece whose sample shows nothing
    wrong[10] = np.roll(vectors[10], 1)
    out = tmp_path / "index"
    with monkeypatch.context() as patch, pytest.raises(ValueError, match="ferries"):
        patch.setattr(vectorfiles, "_FIRST_CHECKED", 1)
        build_from_vectors([npy(tmp_path / "ferries.npy", wrong)], out)
    build_from_vectors([npy(tmp_path / "ferries.npy", vectors)], out)
    assert verify(out).problems == []


def test_a_store_is_filled_through_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="index push FOLDER qdrant:mine"):
        build_from_vectors([tmp_path / "x.npy"], "qdrant:mine")


def late(vectors: np.ndarray) -> np.ndarray:
    """Vectors of which one late piece is of something else."""
    changed = vectors.copy()
    changed[10:] = changed[:2]
    return changed


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda found: found[:, :100], "it has 100 dimensions, and encoder minilm 384"),
        (lambda found: found * 2, "whose length is not 1"),
        (lambda found: np.roll(found, 1, axis=0), "5 of 5 vectors differ from those that encoder"),
        (late, "1 of 1 vectors differ"),
        (lambda found: found * np.nan, "NaN"),
    ],
)
def test_vectors_of_another_encoder_are_refused(
    tmp_path: Path, vectors: np.ndarray, change: Any, says: str, run: Callable[..., Ran]
) -> None:
    file = npy(tmp_path / "a.npy", change(vectors))
    ran = run("index", "build", "--vectors", file, "--out", tmp_path / "index", "--json")
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err.splitlines()[-1]
    assert not (tmp_path / "index" / "manifest.json").exists()


def test_files_that_cannot_be_used_are_named(
    tmp_path: Path, vectors: np.ndarray, run: Callable[..., Ran]
) -> None:
    build = ["index", "build", "--out", tmp_path / "index"]
    (tmp_path / "bad.npy").write_text("no array")
    np.save(tmp_path / "alone.npy", vectors)
    np.save(tmp_path / "flat.npy", vectors[0])
    npy(tmp_path / "few.npy", vectors, ROWS[:3])
    npy(tmp_path / "many.npy", vectors[:3])
    npy(tmp_path / "empty.npy", vectors, [{"text": ""}, *ROWS[1:]])
    for name, says in {
        "gone": "No such file",
        "bad": "bad.npy: the magic string is not correct",
        "alone": "alone.jsonl is not beside it",
        "flat": "it must hold floats, [passages, dimension]",
        "few": "12 vectors, and few.jsonl not as many",
        "many": "3 vectors, and many.jsonl not as many",
        "empty": "row 1: its title and text",
    }.items():
        one_line(run(*build, "--vectors", tmp_path / f"{name}.npy"), 2, says)
    one_line(run(*build), 2, "give PATHS, or --vectors FILE")
    one_line(run(*build, tmp_path, "--vectors", "few.npy"), 2, "give PATHS, or --vectors FILE")
