"""Documents of LangChain in an index, and metadata on their way to a hit."""

import json
import shutil
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from indexing import HashEncoder
from langchain_core.documents import Document
from langchain_text_splitters import CharacterTextSplitter

from hopgate.nodes.prompts.evidence import plain_hit
from hopgate.retrievers.base import Hit, make_passage
from hopgate.retrievers.building import (
    add,
    add_passages,
    build_from_passages,
    build_index,
    sync,
)
from hopgate.retrievers.hybrid import code_last
from hopgate.retrievers.index.reader import Index
from hopgate.retrievers.index.texts import Words
from hopgate.retrievers.langchain import flat
from hopgate.retrievers.sources import sample_path

MILL = {"source": "notes/mill.pdf", "title": "Mill", "page": 3, "author": "Bo Rask", "year": 1811}


def hits(index: Path, query: str = "mill") -> list[Hit]:
    (found,) = Index.open(index, HashEncoder()).search([query], k=99, mode="dense")
    return sorted(found, key=lambda hit: (hit.get("source", ""), hit["text"]))


def by_source(index: Path) -> dict[str, str]:
    return {hit["source"]: hit["text"] for hit in hits(index)}


def test_documents_keep_their_fields_and_their_metadata(tmp_path: Path) -> None:
    known = MILL | {
        "section": "Wheel",
        "tags": ["old", "sea"],
        "seen": date(1999, 5, 6),
        "no": None,
    }
    report = build_index([Document("It grinds.", metadata=known)], tmp_path / "i", HashEncoder())
    assert report.passages == 1
    (hit,) = hits(tmp_path / "i")
    assert (hit["title"], hit["section"]) == ("Mill > Wheel", "Wheel")
    assert (hit["source"], hit["page"], hit["text"]) == ("notes/mill.pdf", 3, "It grinds.")
    metadata = {"author": "Bo Rask", "year": 1811, "tags": ["old", "sea"], "seen": "1999-05-06"}
    assert hit["metadata"] == metadata
    assert plain_hit(hit) == hit


def test_a_long_text_is_cut_and_a_splitters_pieces_are_not(tmp_path: Path) -> None:
    sentences = " ".join(f"Wheel {i} turns in the tide of the harbour." for i in range(200))
    whole = Document(sentences, metadata=MILL)
    build_index(iter([whole]), tmp_path / "whole", HashEncoder())
    found = hits(tmp_path / "whole")
    assert len(found) > 10
    assert all(len(hit["text"]) <= 600 and hit["metadata"]["year"] == 1811 for hit in found)
    splitter = CharacterTextSplitter(separator=". ", chunk_size=1_500, chunk_overlap=0)
    pieces = splitter.split_documents([whole])
    build_index(pieces, tmp_path / "pieces", HashEncoder())
    assert {hit["text"] for hit in hits(tmp_path / "pieces")} == {p.page_content for p in pieces}


def test_documents_are_read_one_by_one(tmp_path: Path) -> None:
    alive: set[int] = set()
    most = 0

    class Counted(Document):
        def __del__(self) -> None:
            alive.discard(id(self))

    def loaded() -> Iterator[Document]:
        nonlocal most
        for number in range(500):
            document = Counted(f"Document {number}.", metadata={"source": f"{number}.txt"})
            alive.add(id(document))
            most = max(most, len(alive))
            yield document
            del document

    for change in (build_index, add, sync):
        assert change(loaded(), tmp_path / "i", HashEncoder()).passages == 500
    assert most <= 5


def test_add_and_sync_replace_documents_by_their_source(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "file.txt").write_text("A file.")
    build_index([tmp_path / "docs"], tmp_path / "i", HashEncoder())

    def documents(*texts: str) -> list[Document]:
        return [Document(text, metadata={"source": text[0]}) for text in texts]

    add(documents("a mill", "b quay"), tmp_path / "i", HashEncoder())
    report = add(documents("b ferry"), tmp_path / "i", HashEncoder())
    assert (report.updated, report.new) == (1, 0)
    assert by_source(tmp_path / "i") == {"a": "a mill", "b": "b ferry", "file.txt": "A file."}
    encoder = HashEncoder()
    report = sync(iter(documents("b ferry", "c lamp")), tmp_path / "i", encoder)
    assert (report.updated, report.new, report.gone, encoder.encoded) == (1, 1, 1, 1)
    assert by_source(tmp_path / "i") == {"b": "b ferry", "c": "c lamp", "file.txt": "A file."}
    sync(tmp_path / "docs", tmp_path / "i", HashEncoder())  # follows its files only
    assert len(by_source(tmp_path / "i")) == 3


def test_metadata_that_changes_replaces_the_old(tmp_path: Path) -> None:
    for year in (1811, 1812):
        document = Document("It grinds.", metadata=MILL | {"year": year})
        report = build_index([document], tmp_path / "i", HashEncoder())
        assert report.changed
    (hit,) = hits(tmp_path / "i")
    assert hit["metadata"] == {"author": "Bo Rask", "year": 1812}
    assert not build_index([document], tmp_path / "i", HashEncoder()).changed


@pytest.mark.parametrize("given", [[], iter(()), iter([Path("a")])])
def test_what_is_neither_documents_nor_paths_is_refused(tmp_path: Path, given: Any) -> None:
    with pytest.raises(ValueError, match=r"no paths given|no passages given|not a LangChain"):
        build_index(given, tmp_path / "i", HashEncoder())
    assert not (tmp_path / "i").exists()


def test_metadata_becomes_flat() -> None:
    odd = {
        "source": "x",
        "n": 2**70,
        "x": float("nan"),
        "deep": {"a": 1},
        "mixed": [1, True],
        "e": "",
    }
    assert flat(odd) == {"n": str(2**70), "deep": '{"a": 1}', "mixed": ["1", "true"]}
    assert json.loads(json.dumps(flat(odd))) == flat(odd)


def test_an_index_without_metadata_takes_it_with_its_next_change(tmp_path: Path) -> None:
    index = tmp_path / "i"
    shutil.copytree(sample_path(), index)
    before = Index.open(index)
    assert before._words.outdated
    assert before.search(["lighthouse"], 3, where={"year": [1811, {"from": 1}]}) == [[]]
    passage = make_passage("Mill", "It grinds barley.", "mill.txt", metadata={"year": 1811})
    assert add_passages([passage], index).added == 1
    after = Index.open(index)
    assert not after._words.outdated
    assert len(after) == len(before) + 1
    (found,) = after.search(["barley mill grinds"], 1, "bm25")
    assert found[0]["metadata"] == {"year": 1811}
    words: Words = after._words
    assert after.search(["the"], 9, "bm25", {"year": {"to": 1811}}) == [[]]
    assert [hit["id"] for hit in after.search(["mill"], 9, where={"year": {"to": 1811}})[0]] == [
        passage["id"]
    ]
    assert words.of("year", ["1811"]).tolist() == [int(passage["id"], 16)]
    (old, new) = (each.search(["Who drew the lighthouse?"], 5) for each in (before, after))
    assert [hit["id"] for hit in old[0]] == [hit["id"] for hit in new[0]]


def test_source_code_comes_behind_the_pages_that_explain_it(tmp_path: Path) -> None:
    code = [
        make_passage(f"c{i}", "turn the wheel " * (9 - i), f"{i}.py", metadata={"kind": "code"})
        for i in range(6)
    ]
    pages = [
        make_passage(f"p{i}", f"How to turn the wheel by page {i}", f"{i}.md") for i in range(4)
    ]
    add_to = tmp_path / "both"
    build_from_passages([*code[:2], *pages], add_to, HashEncoder(), language="en")
    build_from_passages(code, tmp_path / "code", HashEncoder(), language="en")
    for k in (1, 3, 5):
        (found,) = Index.open(add_to, HashEncoder()).search(["turn wheel"], k, "bm25")
        kinds = [hit["title"][0] for hit in found]
        assert kinds == list("ppcpp")[:k]
        assert [hit["score"] for hit in found] == sorted((h["score"] for h in found), reverse=True)
    (found,) = Index.open(tmp_path / "code", HashEncoder()).search(["turn wheel"], 3, "bm25")
    (plain,) = Index.open(tmp_path / "code", HashEncoder()).search(["turn wheel"], 6, "bm25")
    assert found == plain[:3]


@pytest.mark.parametrize(
    ("kinds", "order"),
    [("cccp", "pccc"), ("ccpp", "ppcc"), ("cpcppp", "ppcppc"), ("cc", "cc"), ("", "")],
)
def test_code_moves_to_three_times_its_rank(kinds: str, order: str) -> None:
    ranking = [(f"{kind}{at}", -float(at)) for at, kind in enumerate(kinds)]
    found = code_last(ranking, lambda each: each[0] == "c", 9)
    assert "".join(each[0] for each, _ in found) == order
    assert [score for _, score in found] == sorted((s for _, s in found), reverse=True)
