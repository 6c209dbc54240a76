"""Changing an index: what is kept, what goes, and what a fault at any moment leaves."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from indexing import HashEncoder, files, flip, one_of, stamped, texts

from hopgate.retrievers.base import Hit, make_passage
from hopgate.retrievers.building import (
    add,
    add_passages,
    build_from_passages,
    build_index,
    compact,
    delete,
)
from hopgate.retrievers.index import verifying
from hopgate.retrievers.index.manifest import info
from hopgate.retrievers.index.reader import Index, load_index
from hopgate.retrievers.index.vectors import choose, write_index
from hopgate.retrievers.index.verifying import verify
from hopgate.retrievers.index.writing import disk_errors, writing


@pytest.fixture
def encoder() -> HashEncoder:
    return HashEncoder()


@pytest.fixture
def index(tmp_path: Path, encoder: HashEncoder) -> Path:
    build_from_passages(stamped(0), tmp_path / "index", encoder)
    encoder.encoded = 0
    return tmp_path / "index"


# What a change does


def test_building_again_changes_nothing_and_encodes_nothing(
    index: Path, encoder: HashEncoder
) -> None:
    before = files(index)
    report = build_from_passages(reversed(stamped(0)), index, encoder)
    assert (report.changed, report.version, report.encoded, report.added) == (False, 1, 0, 0)
    assert files(index) == before
    assert encoder.encoded == 0


def test_a_changed_document_replaces_its_passages_and_the_rest_keeps_its_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs, out = tmp_path / "docs", tmp_path / "index"
    (docs / "deep").mkdir(parents=True)
    (docs / "mill.txt").write_text("The mill grinds barley.")
    (docs / "deep" / "ferry.txt").write_text("The ferry is red.")
    first = build_index([docs], out)
    (docs / "deep" / "ferry.txt").write_text("The ferry is blue.")
    (docs / "new.md").write_text("# Lamp\n\nThe lamp burns oil.")
    second = add([docs / "deep" / "ferry.txt", docs / "new.md"], out)
    assert (first.passages, second.passages) == (2, 3)
    assert (second.added, second.removed, second.encoded, second.version) == (2, 1, 2, 2)
    found = {hit["text"]: hit for hit in load_index(out).search(["colour"], k=9, mode="dense")[0]}
    assert found.keys() == {"The mill grinds barley.", "The ferry is blue.", "The lamp burns oil."}
    assert found["The ferry is blue."]["source"] == "deep/ferry.txt"
    assert not add([docs], out).changed
    assert verify(out).problems == []


def test_names_that_are_not_utf_8_name_documents_too(tmp_path: Path, encoder: HashEncoder) -> None:
    docs = Path(os.fsdecode(os.fsencode(tmp_path) + b"/d\xe9"))
    file = Path(os.fsdecode(os.fsencode(docs) + b"/caf\xe9.txt"))
    docs.mkdir()
    file.write_text("The mill grinds barley.")
    out = tmp_path / "indéx ?#%20"
    build_index([docs], out, encoder)
    file.write_text("The mill grinds oats.")
    assert (add([file], out, encoder).added, len(Index.open(out, encoder))) == (1, 1)
    (hits,) = Index.open(out, encoder).search(["mill"], 3, "bm25", {"source": "caf\\xe9.txt"})
    assert of(hits) == ["The mill grinds oats."]
    assert verify(out, encoder).problems == []
    with pytest.raises(ValueError, match="would delete every passage"):
        delete(out, ["caf\\xe9.txt"])
    with pytest.raises(ValueError, match="is not UTF-8, so FAISS cannot open it"):
        build_from_passages(stamped(0), docs / "index", encoder)


def test_an_index_of_another_encoder_is_encoded_anew(index: Path) -> None:
    with pytest.raises(ValueError, match=r"was built with encoder hash, .* or add --replace"):
        build_from_passages(stamped(0), index, HashEncoder(dimension=8))
    report = build_from_passages(stamped(0), index, HashEncoder(dimension=8), replace=True)
    assert (report.changed, report.encoded) == (True, 5)
    with pytest.raises(ValueError, match="built with dimension 8, and encoder hash has 16"):
        Index.open(index, HashEncoder())


def test_compacting_removes_from_the_disk_what_was_deleted(
    index: Path, encoder: HashEncoder
) -> None:
    secret = make_passage("Secret", "xyzzyplugh", "secret.txt")
    many = [make_passage("T", f"stamp of {number}") for number in range(100)]
    add_passages([secret, *many], index, encoder)
    vector = encoder.encode_passages([secret]).tobytes()
    for needle in (b"xyzzyplugh", vector):
        assert any(needle in content for content in files(index).values())
    delete(index, ["secret.txt"])
    assert Index.open(index, encoder).search(["xyzzyplugh"], 9, "bm25") == [[]]
    before = texts(index, encoder)
    report = compact(index)
    assert (report.changed, report.passages, report.encoded) == (True, 105, 0)
    assert len(info(index)["segments"]) == 1
    for needle in (b"xyzzyplugh", vector):
        assert not any(needle in content for content in files(index).values())
    assert texts(index, encoder) == before
    assert verify(index, encoder).problems == []


def test_a_damaged_index_is_not_built_upon(index: Path, encoder: HashEncoder) -> None:
    flip(one_of(index, "vectors/*.faiss"))
    with pytest.raises(ValueError, match=r"1\.faiss has changed since it was written"):
        add_passages(stamped(1), index, encoder)
    assert build_from_passages(stamped(0), index, encoder).encoded == 5
    assert verify(index, encoder).problems == []


def test_halves_of_characters_and_overlong_sources_are_no_damage(
    index: Path, encoder: HashEncoder
) -> None:
    odd = make_passage("T", "odd name", "a\ud800.txt", section="\udfff")
    add_passages([odd], index, encoder)
    (hits,) = Index.open(index, encoder).search(["odd"], 1, "bm25")
    assert (hits[0]["source"], hits[0]["section"]) == ("a\ufffd.txt", "\ufffd")
    with pytest.raises(ValueError, match=r"source 'ssss.* has over 16,384 bytes: use a shorter"):
        add_passages([make_passage("T", "too long", "s" * 70_000)], index, encoder)
    assert verify(index, encoder).problems == []


def test_a_deleted_passage_that_comes_again_has_its_vector_still(
    index: Path, encoder: HashEncoder
) -> None:
    delete(index, ["0.txt"])
    report = add_passages(stamped(0, 1), index, encoder)
    assert (report.added, report.encoded) == (1, 0)
    assert verify(index, encoder).problems == []


# Verifying


def test_verify_finds_vectors_of_other_passages(index: Path, encoder: HashEncoder) -> None:
    class Other(HashEncoder):
        def encode_queries(self, texts: object) -> np.ndarray:
            return HashEncoder.encode_queries(encoder, [f"{text}!" for text in texts])

    problems = verify(index, Other()).problems
    assert len(problems) == 5
    assert "is not the one its encoder returns" in problems[0]


def test_verify_begins_anew_when_the_index_changes_meanwhile(
    index: Path, encoder: HashEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = verifying.changed_files

    def after_two_changes(*given: Any) -> list[str]:
        monkeypatch.undo()
        for stamp in (1, 2):
            add_passages(stamped(stamp), index, encoder)
        return real(*given)

    monkeypatch.setattr(verifying, "changed_files", after_two_changes)
    report = verify(index, encoder)
    assert (report.version, report.problems) == (3, [])


# Faults


def test_a_killed_build_goes_on_where_it_was(tmp_path: Path, encoder: HashEncoder) -> None:
    passages = [make_passage("T", f"text {number}") for number in range(1200)]

    class Dies(HashEncoder):
        def encode_passages(self, *given: object) -> np.ndarray:
            if self.encoded >= 1000:
                raise KeyboardInterrupt
            return super().encode_passages(*given)

    with pytest.raises(KeyboardInterrupt):
        build_from_passages(passages, tmp_path / "index", Dies())
    with pytest.raises(ValueError, match="is not an index"):
        info(tmp_path / "index")
    (work,) = (tmp_path / "index" / ".work").iterdir()
    assert work.name.startswith("kept-")
    with work.open("ab") as file:
        file.write(b"half a row")
    report = build_from_passages(passages, tmp_path / "index", encoder)
    assert (report.passages, report.encoded, encoder.encoded) == (1200, 176, 176)
    assert not (tmp_path / "index" / ".work").exists()
    assert verify(tmp_path / "index", encoder).problems == []


def test_a_reader_keeps_its_version_whatever_follows(index: Path, encoder: HashEncoder) -> None:
    old = info(index)["files"]
    reader = Index.open(index, encoder)
    for stamp in (1, 2, 3):
        add_passages(stamped(stamp), index, encoder)
    delete(index, ["0.txt"])
    assert not set(old) & set(info(index)["files"])
    for mode in ("dense", "bm25", "hybrid"):
        (hits,) = reader.search(["stamp document"], 9, mode)
        assert sorted(of(hits)) == [f"stamp 0 of document {n}" for n in range(5)]


def test_a_second_writer_is_told_to_wait(index: Path, encoder: HashEncoder) -> None:
    (index / ".writer.json").touch()  # of an older hopgate that was killed
    with (
        writing(index.resolve()),
        pytest.raises(RuntimeError, match=r"index is being changed by another process: wait until"),
    ):
        add_passages(stamped(1), index, encoder)
    assert add_passages(stamped(1), index, encoder).version == 2
    assert not (index / ".writer.json").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)])
    if mounted.returncode:
        pytest.skip("a small disk cannot be mounted here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_leaves_the_old_index(small_disk: Path, encoder: HashEncoder) -> None:
    index = small_disk / "index"
    build_from_passages(stamped(0), index, encoder)
    before = texts(index, encoder)
    for count, words in ((2500, 150), (5000, 1), (3500, 1)):  # full at another file each time
        many = [make_passage("T", f"{n} " * words, "many.txt") for n in range(count)]
        with pytest.raises(RuntimeError, match=r"the disk is full: the index at .* free"):
            add_passages(many, index, encoder)
        assert texts(index, encoder) == before
        assert verify(index, encoder).problems == []
    assert add_passages(stamped(1), index, encoder).version == 2


def test_a_disk_that_is_full_at_the_last_byte_of_an_index_is_noticed(tmp_path: Path) -> None:
    index = faiss.IndexFlatIP(8)
    index.add(np.zeros((2, 8), dtype=np.float32))  # fits into a buffer that is written at the end
    with pytest.raises(RuntimeError, match="the disk is full"), disk_errors(tmp_path):
        write_index(index, Path("/dev/full"))


# Filters and factories


def of(hits: list[Hit]) -> list[str]:
    return [hit["text"] for hit in hits]


@pytest.mark.parametrize("factory", ["HNSW8,SQ8", "IVF16,SQ8", "IVF8,PQ4x4", "PCAR16,IVF16,SQ8"])
def test_a_factory_finds_what_exact_search_finds(
    tmp_path: Path, encoder: HashEncoder, factory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hopgate.retrievers.index.vectors._EXACT_UP_TO", 0)
    passages = [make_passage("T", f"text {n}", f"{n % 3}.txt") for n in range(1500)]
    build_from_passages(passages, tmp_path / "index", encoder, factory=factory)
    add_passages(more := [make_passage("T", "text added", "1.txt")], tmp_path / "index", encoder)
    assert info(tmp_path / "index")["segments"][0]["search"]["recall"] >= 0.95
    held = [each for each in passages if each["source"] != "1.txt"] + more
    index, queries = Index.open(tmp_path / "index", encoder), [f"question {n}" for n in range(20)]
    for source in ("*", "2.txt"):
        allowed = [each for each in held if source in ("*", each["source"])]
        scores = encoder.encode_queries(queries) @ encoder.encode_passages(allowed).T
        shared = []
        for hits, row in zip(
            index.search(queries, 10, "dense", {"source": source}), scores, strict=True
        ):
            exact = {each["text"]: score for each, score in zip(allowed, row, strict=True)}
            assert [hit["score"] for hit in hits] == pytest.approx([exact[t] for t in of(hits)])
            shared.append(len({*sorted(exact, key=exact.__getitem__)[-10:]} & {*of(hits)}))
        assert np.mean(shared) >= 9
    assert verify(tmp_path / "index", encoder).problems == []


@pytest.mark.parametrize(
    ("factory", "encoded", "message"),
    [
        ("Cube", 0, "invalid FAISS factory string 'Cube' for vectors of 16 dimensions"),
        ("IVF64,PQ5", 0, "invalid FAISS factory string 'IVF64,PQ5'"),
        ("IVF64,SQ8", 5, "factory IVF64,SQ8 cannot be trained on 5 vectors"),
    ],
)
def test_a_factory_that_does_not_suit_is_refused(
    tmp_path: Path, encoder: HashEncoder, factory: str, encoded: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build_from_passages(stamped(0), tmp_path / "index", encoder, factory=factory)
    assert encoder.encoded == encoded
    assert not (tmp_path / "index" / "manifest.json").exists()


def test_the_factory_follows_size() -> None:
    assert list(map(choose, (200_000, 200_001, 1_000_000))) == [
        "Flat",
        "IVF2048,SQ8",
        "IVF4096,SQ8",
    ]


def test_an_index_follows_its_folders_when_only_their_names_change(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "a.txt").write_text("The mill stands at the river.")
    index = tmp_path / "index"
    build_index([tmp_path / "old"], index, HashEncoder())
    (tmp_path / "old").rename(tmp_path / "new")
    assert build_index([tmp_path / "new"], index, HashEncoder()).added == 0
    assert info(index)["roots"] == [str(tmp_path / "new")]
