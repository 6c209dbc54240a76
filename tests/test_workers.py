"""Builds that are shared out over processes: equal to others, whatever is killed."""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from commands import Ran, one_line, started

from hopgate.common.workers import LocalWorkers, Piece, Workers
from hopgate.retrievers.building import BuildReport, build_index
from hopgate.retrievers.encoders import load_encoder
from hopgate.retrievers.index.manifest import info
from hopgate.retrievers.index.reader import Parts
from hopgate.retrievers.index.verifying import verify

TOPICS = ("ferry", "harbour", "lighthouse", "bakery", "school", "orchard", "quarry", "library")


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    """Notes of all kinds that are read in different ways, some of which cannot be read."""
    folder = tmp_path / "docs"
    folder.mkdir()
    for number, topic in enumerate(TOPICS):
        text = "".join(f"\n\n## Part {n}\n\nNote {n} on the {topic}." for n in range(1, 9))
        (folder / f"{number}-{topic}.md").write_text(f"# {topic}{text}")
    rows = [{"title": "Row", "text": f"Row {number} of the table."} for number in range(9)]
    (folder / "3-rows.jsonl").write_text("\n".join(map(json.dumps, [*rows, {"title": "bad"}])))
    (folder / "4-page.html").write_text("<h1>Tides</h1><p>High water is at noon.</p>")
    (folder / "5-broken.pdf").write_bytes(b"%PDF-1.7 broken")
    (folder / "6-empty.txt").write_text("")
    (folder / "7-copy.md").write_bytes((folder / "0-ferry.md").read_bytes())
    return folder


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_encoder(), "batch", 8)


@pytest.fixture
def two() -> Iterator[Workers]:
    with closing(LocalWorkers(2)) as workers:
        yield workers


def content(index: Path) -> tuple[Any, ...]:
    """All that an index holds: the manifest but for names and times, passages, vectors."""
    manifest = info(index)
    passing = ("created", "checksum", "files", "words")
    _, words, vectors = Parts.open(index, manifest)
    keys = words.keys().tolist()
    stored = list(words.read(keys, checked=True))
    kept = {name: each for name, each in manifest.items() if name not in passing}
    return kept, keys, stored, vectors.vectors(keys)


def equal(one: Path, other: Path) -> bool:
    *named, vectors = content(one)
    *others, other_vectors = content(other)
    return named == others and bool(np.abs(vectors - other_vectors).max() < 1e-5)


def anywhere(report: BuildReport) -> BuildReport:
    return replace(report, path="")


def children() -> list[psutil.Process]:
    """The workers of this process."""
    found = psutil.Process().children(recursive=True)
    return [each for each in found if "hopgate.common.workers" in each.cmdline()]


@pytest.mark.parametrize("share_files", [True, False])  # False as on a cluster
def test_two_workers_build_what_one_process_builds(
    documents: Path, tmp_path: Path, two: Workers, share_files: bool
) -> None:
    two.share_files = share_files
    alone = build_index([documents], tmp_path / "alone")
    shared = build_index([documents], tmp_path / "shared", workers=two)
    assert anywhere(shared) == anywhere(alone)
    assert len(shared.skipped) == 3
    assert equal(tmp_path / "alone", tmp_path / "shared")
    assert verify(tmp_path / "shared").problems == []


def test_workers_fill_a_store_as_one_process_does(
    documents: Path, tmp_path: Path, two: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QDRANT_PATH", str(tmp_path / "qdrant"))
    alone = build_index([documents], "qdrant:alone")
    shared = build_index([documents], "qdrant:shared", workers=two)
    assert anywhere(shared) == anywhere(alone)


def test_a_worker_that_is_killed_costs_only_its_piece(
    documents: Path, tmp_path: Path, two: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed: list[str] = []
    call = two._call

    def counted(function: str, message: Any) -> Any:
        handed.append(repr(message))
        return call(function, message)

    def kill_one(stage: str, done: int, total: int) -> None:
        if stage == "encoding passages" and done == 16:
            victim, *_ = children()
            victim.kill()

    monkeypatch.setattr(two, "_call", counted)
    build_index([documents], tmp_path / "alone")
    build_index([documents], tmp_path / "shared", progress=kill_one, workers=two)
    assert equal(tmp_path / "alone", tmp_path / "shared")
    assert len(handed) - len(set(handed)) <= 1


@pytest.mark.parametrize(
    ("function", "message", "kind", "text"),
    [
        ("math:sqrt", -1, ValueError, "math domain error|nonnegative"),
        ("math:nothing", -1, RuntimeError, "AttributeError: module 'math' has no attribute"),
        ("signal:raise_signal", 9, RuntimeError, r"^the piece ended its worker 3 times \(killed"),
    ],
)
def test_an_error_in_a_worker_is_raised_here_and_the_others_go_on(
    two: Workers, function: str, message: int, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        list(two.map(function, [Piece("the piece", message, None)]))
    assert list(two.map("math:sqrt", [Piece("a root", 9, None)])) == [(None, 3)]


def test_results_come_in_order_and_few_pieces_are_taken_ahead(two: Workers) -> None:
    taken = 0

    def pieces() -> Iterator[Piece[int]]:
        nonlocal taken
        for number in range(50):
            taken += 1
            yield Piece("a root", number * number, number)

    for at, (about, root) in enumerate(two.map("math:sqrt", pieces())):
        assert about == root == at
        assert taken <= at + 2 * two.count


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_the_build_and_the_same_command_resumes(
    documents: Path, tmp_path: Path, run: Callable[..., Ran], ending: signal.Signals
) -> None:
    out = tmp_path / "index"
    rows = [{"title": "Row", "text": f"Row {n} of a table. " * 2} for n in range(600)]
    (documents / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    command = ["index", "build", documents, "--out", out, "--workers", "2", "--json"]

    def saved() -> int:
        return sum(file.stat().st_size for file in out.glob(".work/kept-*"))

    process = started(command, lambda: saved() > 0)
    workers = psutil.Process(process.pid).children()
    assert len(workers) == 2
    process.send_signal(ending)
    printed, errors = process.communicate(timeout=30)
    assert psutil.wait_procs(workers, timeout=10)[1] == []
    if ending == signal.SIGKILL:
        return
    assert (process.returncode, printed) == (130, "")
    assert errors.splitlines()[-1] == "hopgate: interrupted"
    again = run(*command)
    assert again.code == 0, again.err
    report = json.loads(again.out)
    assert 0 < report["encoded"] < report["passages"]
    assert verify(out).problems == []


def test_bad_numbers_are_one_line(documents: Path, tmp_path: Path, run: Callable[..., Ran]) -> None:
    build = ["index", "build", documents, "--out", tmp_path / "index"]
    one_line(run(*build, "--workers", "0"), 2, "--workers", "0")
    with pytest.raises(ValueError, match="0 workers"):
        LocalWorkers(0)
