"""Outside engines by name: pgvector on a real PostgreSQL, Qdrant in its client's local mode."""

from pathlib import Path

import pytest

from hopgate.common.cache import Cache
from hopgate.nodes.context import Context
from hopgate.nodes.runtime import Resources
from hopgate.retrievers import vectorstores
from hopgate.retrievers.base import make_passage
from hopgate.retrievers.encoders import load_encoder
from hopgate.retrievers.sources import check_source, open_source
from hopgate.retrievers.vectorstores import EncoderEmbeddings, fill_store, parse

PASSAGES = [
    make_passage("Skerry Light", "It was first lit in 1811.", "lights.pdf", 3, "History"),
    make_passage("Harbour bakery", "Bread is baked before dawn.", "bakery.md"),
    make_passage("Ferry", "It crosses to the mainland twice a day."),
]
QUERIES = ["When was Skerry Light lit?", "Who bakes bread?"]
SECRET = "p4ssw0rd-71c"


@pytest.fixture(params=["qdrant", "pgvector"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a collection of an engine that is configured, not made yet."""
    monkeypatch.setattr(vectorstores, "_stores", Cache())
    if request.param == "qdrant":
        monkeypatch.setenv("QDRANT_PATH", str(tmp_path / "qdrant"))
    else:
        monkeypatch.setenv("PGVECTOR_URL", request.getfixturevalue("postgres"))
    return f"{request.param}:passages_{tmp_path.name.replace('-', '_')[:20]}"


def test_a_filled_store_finds_what_an_index_finds(store: str) -> None:
    fill_store(store, PASSAGES)
    check_source(store)
    first, second = open_source(store).search(QUERIES, k=2)
    assert [first[0]["title"], second[0]["title"]] == ["Skerry Light", "Harbour bakery"]
    assert len(first) == len(second) == 2
    encoder = load_encoder()
    products = encoder.encode_passages(PASSAGES) @ encoder.encode_queries(QUERIES[:1])[0]
    assert first[0]["score"] == pytest.approx(float(products[0]), abs=1e-4)
    assert first[0]["score"] > first[1]["score"]
    assert (first[0]["source"], first[0]["page"], first[0]["section"]) == (
        "lights.pdf",
        3,
        "History",
    )
    assert "page" not in second[0]


def test_filling_again_replaces(store: str) -> None:
    seen: list[tuple[int, int]] = []
    for _ in range(2):
        fill_store(store, PASSAGES, lambda done, total: seen.append((done, total)))
    (hits,) = open_source(store).search(["anything"], k=10)
    assert sorted(hit["title"] for hit in hits) == ["Ferry", "Harbour bakery", "Skerry Light"]
    assert seen == [(3, 3), (3, 3)]


def test_a_collection_that_is_not_there_is_named(store: str) -> None:
    with pytest.raises(RuntimeError, match=f"{store} (failed|cannot be used): "):
        open_source(store)


def test_a_request_chooses_its_store_by_context(store: str) -> None:
    fill_store(store, PASSAGES)
    context = Context(index=store, strategy="single")
    resources = Resources()
    retriever = resources.open_retriever(context)
    assert retriever is resources.open_retriever(context)
    ((best,),) = retriever.search(["bread"], 1)
    assert best["title"] == "Harbour bakery"


def test_names_are_read_and_bad_ones_refused() -> None:
    assert parse("qdrant:docs") == ("qdrant", "docs", "minilm")
    assert parse("pgvector:docs@org/model") == ("pgvector", "docs", "org/model")
    for name in ("qdrant:", "pgvector:a;drop table b", "qdrant:a/b"):
        with pytest.raises(ValueError, match=r"index is .*use ENGINE:NAME"):
            parse(name)


def test_a_store_without_an_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QDRANT_URL", "QDRANT_PATH", "PGVECTOR_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="qdrant:a needs an address: set QDRANT_URL or QDRANT_PA"):
        check_source("qdrant:a")
    with pytest.raises(ValueError, match="pgvector:a needs an address: set PGVECTOR_URL"):
        check_source("pgvector:a")
    with pytest.raises(ValueError, match="mode 'hybrid' is not available with qdrant:a: use auto"):
        check_source("qdrant:a", mode="hybrid")


@pytest.mark.parametrize(
    ("name", "variable", "url"),
    [
        ("qdrant:a", "QDRANT_URL", f"http://user:{SECRET}@127.0.0.1:9"),
        ("pgvector:a", "PGVECTOR_URL", f"postgresql://user:{SECRET}@127.0.0.1:9/db"),
    ],
)
def test_a_server_out_of_reach_is_named_without_its_password(
    monkeypatch: pytest.MonkeyPatch, name: str, variable: str, url: str
) -> None:
    monkeypatch.setenv(variable, url)
    with pytest.raises(RuntimeError, match=f"{name} failed: ") as failure:
        open_source(name)
    assert SECRET not in str(failure.value)


def test_embeddings_are_those_of_the_encoder() -> None:
    embeddings = EncoderEmbeddings()
    (vector,) = embeddings.embed_documents(["Bread is baked."])
    assert vector == pytest.approx(embeddings.embed_query("Bread is baked."), abs=1e-5)
    assert len(vector) == 384
