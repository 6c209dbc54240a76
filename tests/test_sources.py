"""What a request searches and in which mode, from its settings to its citations."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from hopgate.nodes.answers.reading import read_answer
from hopgate.nodes.run.context import Context
from hopgate.nodes.run.runtime import NodeRuntime, Resources
from hopgate.retrievers.base import Hit
from hopgate.retrievers.building import build_index
from hopgate.retrievers.sources import check_source, open_source

ROWS = (
    '{"title": "Part 7731", "text": "Holds the lamp."}\n'
    '{"title": "Bakery", "text": "Loaves are sold before dawn."}\n'
    '{"title": "Ferry", "text": "Crosses twice a day."}\n'
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    (folder / "rows.jsonl").write_text(ROWS)
    (folder / "light.md").write_text("# Light\n\nOld.\n\n## History\n\nIt was first lit in 1811.\n")
    build_index([folder / "rows.jsonl", folder / "light.md"], folder / "index")
    return folder


def test_each_mode_finds_what_it_is_for(folder: Path) -> None:
    index = str(folder / "index")
    words, meaning = "7731", "Where can I buy bread in the morning?"
    found = {
        mode: [hits[0]["title"] if hits else "" for hits in open_source(index, mode).search(
            [words, meaning], 1)]
        for mode in ("dense", "bm25", "hybrid", "auto")
    }  # fmt: skip
    assert found["bm25"] == ["Part 7731", ""]
    assert found["dense"][1] == "Bakery"
    assert found["hybrid"] == ["Part 7731", "Bakery"]
    assert found["auto"] == found["hybrid"]


def test_the_sample_is_found_by_its_name() -> None:
    assert open_source("sample").search(["lighthouse"], 1)[0]


async def test_what_cannot_be_used_is_refused_before_anything_is_paid_for(folder: Path) -> None:
    index = str(folder / "index")
    for context, message in (
        (Context(index=index, rerank="no such thing"), "unknown cross-encoder"),
        (Context(index="web:bing"), "index is 'web:bing'"),
        (Context(index=str(folder / "gone")), "there is no index"),
        (
            Context(index="web:wikipedia", mode="dense"),
            "mode 'dense' is not available with web:wikipedia: use auto",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            await Resources().check(context)
    with pytest.raises(ValueError, match="unknown mode 'sparse': use auto, dense, bm25, hybrid"):
        check_source(index, "sparse")
    with pytest.raises(ValidationError, match="mode"):
        Context(mode="sparse")  # type: ignore[arg-type]


async def test_citations_say_where_a_passage_stands(folder: Path) -> None:
    runtime = NodeRuntime(Context(index=str(folder / "index"), mode="bm25"))
    (hit,) = await runtime.search("When was it first lit?", 1)
    assert (hit["source"], hit["section"]) == ("light.md", "History")
    answer = read_answer("It was lit in 1811 [1].", [hit])
    assert answer.citations == [
        {
            "id": hit["id"],
            "title": "Light > History",
            "quote": "It was first lit in 1811.",
            "source": "light.md",
            "section": "History",
            "number": 1,
        }
    ]
    paged = Hit(id="1", title="T", text="Lit in 1811.", score=1.0, source="a.pdf", page=3)
    assert read_answer("1811 [1]", [paged]).citations[0]["page"] == 3
    bare = Hit(id="1", title="T", text="Lit in 1811.", score=1.0)
    assert read_answer("1811 [1]", [bare]).citations[0].keys() == {"id", "title", "quote", "number"}
