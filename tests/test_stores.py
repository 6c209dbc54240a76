"""Outside stores: milvus-lite, Qdrant in its client's local mode, pgvector on a real PostgreSQL."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import psycopg
import pytest
from commands import Ran
from langchain_core.documents import Document

from hopgate.common.cache import Cache
from hopgate.evaluation.measuring.runner import index_identity
from hopgate.retrievers.base import make_passage
from hopgate.retrievers.building import (
    add,
    add_passages,
    build_from_passages,
    build_index,
    compact,
    delete,
    sync,
)
from hopgate.retrievers.encoders import load_encoder
from hopgate.retrievers.index.manifest import info
from hopgate.retrievers.index.reader import load_index
from hopgate.retrievers.index.texts import Place, unfrozen
from hopgate.retrievers.sources import MODES, check_source, open_source
from hopgate.retrievers.stores import change as store_change
from hopgate.retrievers.stores import collection as collections
from hopgate.retrievers.stores.collection import Collection, Entry, Row
from hopgate.retrievers.stores.names import parse
from hopgate.retrievers.stores.push import push

ENGINES = ("milvus", "qdrant", "pgvector")
LIGHT = make_passage("Skerry Light", "It was first lit in 1811.", "lights.pdf", 3, "History")
PASSAGES = [
    LIGHT,
    make_passage("Harbour bakery", "Bread is baked before dawn.", "bakery.md"),
    make_passage("Harbour bakery", "Bread is baked before dawn.", "copy.md", 2),
    make_passage("Harbour bakery", "Bread is baked before dawn.", "copy.md", 7, "Again"),
    make_passage("Ferry", "It crosses twice a day.", metadata={"year": 1811, "tags": ["é", "b"]}),
    make_passage("港", "港湾の手帳は青い。", "日本.md"),
    *(make_passage(f"Note {n}", f"Remark {n} on tides and harbours.", "n.md") for n in range(20)),
]
QUERIES = ["When was Skerry Light lit?", "Who bakes bread in the harbour?", "港湾", "zzz"]
SECRET = "p4ssw0rd-71c"


@pytest.fixture(scope="module")
def milvus_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of milvus-lite, which starts slowly."""
    return tmp_path_factory.mktemp("milvus") / "tests.db"


def configure(engine: str, request: pytest.FixtureRequest, patch: pytest.MonkeyPatch) -> None:
    if engine == "milvus":
        patch.setenv("MILVUS_URI", str(request.getfixturevalue("milvus_file")))
    elif engine == "qdrant":
        patch.setenv("QDRANT_PATH", str(request.getfixturevalue("tmp_path") / "qdrant"))
    else:
        patch.setenv("PGVECTOR_URL", request.getfixturevalue("postgres"))


one_engine = pytest.mark.parametrize("store", ["qdrant"], indirect=True)
"""For what does not depend on the engine."""


@pytest.fixture(params=ENGINES)
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The name of a collection of an engine that is configured, not made yet."""
    configure(request.param, request, monkeypatch)
    name = f"{request.param}:{tmp_path.name.replace('-', '_')[:40]}"
    yield name
    if request.param == "qdrant":
        client_of(name).close()


def content(name: Path | str) -> set[tuple[Any, ...]]:
    """Every passage of every document in an index."""
    if ":" in str(name):
        collection = Collection(str(name)).engine
        rows = collection.read([row.key for row in collection.listed()])
        return {(*row[1:-2], row.stamp.rpartition("/")[0], row.metadata) for row, _ in rows}
    index = load_index(name)
    keys = index._words.keys().tolist()
    return {
        (f"{key:016x}", each.title, each.text, *written(p))
        for key, each in zip(keys, index._words.read(keys), strict=True)
        for p in each.places
    }


def written(place: Place) -> tuple[str, ...]:
    """A document of a folder as a store's row has it."""
    known = json.dumps(unfrozen(place.metadata), sort_keys=True) if place.metadata else ""
    return place.source, str(place.page or ""), place.section, place.stamp, known


def info_of(store: str) -> Any:
    """What `hopgate index info` shows of a store."""
    return Collection(store).report()


def ids(name: Path | str, query: str, mode: str, k: int = 10) -> list[str]:
    (hits,) = open_source(str(name), mode).search([query], k)
    return [hit["id"] for hit in hits]


def test_a_store_finds_what_a_folder_finds(store: str, tmp_path: Path) -> None:
    build_from_passages(PASSAGES, tmp_path / "folder", language="en")
    report = build_from_passages(PASSAGES, store, language="en")
    assert (report.passages, report.duplicates, report.encoded) == (24, 2, 24)
    assert content(store) == content(tmp_path / "folder")
    check_source(store, "hybrid")
    for query in QUERIES:
        for mode in (*MODES, "auto"):
            own, other = ids(tmp_path / "folder", query, mode, 3), ids(store, query, mode, 3)
            assert own[:1] == other[:1], (query, mode)
        assert set(ids(store, query, "dense", 99)) == {each["id"] for each in PASSAGES}
    (hits,), folder = (
        open_source(store, "dense").search(QUERIES[:1], 1),
        load_index(tmp_path / "folder"),
    )
    ((hit,),) = folder.search(QUERIES[:1], 1, "dense")
    assert hits[0].pop("score") == pytest.approx(hit.pop("score"), abs=1e-5)  # type: ignore[misc]
    assert hits == [hit] == [LIGHT]
    assert ids(store, "zzz", "bm25") == []


def test_a_rare_word_decides_in_a_store_as_in_a_folder(store: str, tmp_path: Path) -> None:
    passages = [
        make_passage(f"Valve {n}", f"ZK-{n} withstands {n % 7 + 3} bar. Its body is made of brass.")
        for n in range(4470, 4530)
    ]
    built = build_from_passages(passages, tmp_path / "folder", language="en")
    report = build_from_passages(passages, store, language="en")
    assert report.mode == built.mode
    asked = [f"How much pressure can ZK-{n} take?" for n in (4471, 4502, 4529)]
    for query, found in zip(asked, open_source(store, "hybrid").search(asked, 5), strict=True):
        assert found[0]["text"].split()[0] in query
        (own,) = open_source(str(tmp_path / "folder"), "hybrid").search([query], 5)
        assert (found[0]["id"], found[0]["score"]) == (own[0]["id"], pytest.approx(own[0]["score"]))
    assert build_from_passages(passages, store, mode="dense").mode == "dense"
    assert info_of(store)["mode_reason"] == "as given"
    assert build_from_passages(passages, store).mode == "dense"
    assert build_from_passages(passages, store, mode="auto").mode == built.mode


def test_a_store_follows_files_as_a_folder_does(store: str, tmp_path: Path) -> None:
    files, folder = tmp_path / "files", tmp_path / "folder"
    files.mkdir()
    for name in ("a", "b", "c"):
        (files / f"{name}.md").write_text(
            f"# {name}\n\nThe page about {name}.\n\n## Both\n\nShared."
        )

    def both(change: Callable[[Any], Any]) -> Any:
        own, other = change(folder), change(store)
        assert content(store) == content(folder)
        counts = ("passages", "added", "removed", "encoded", "new", "updated", "gone", "unchanged")
        assert {n: getattr(own, n) for n in counts} == {n: getattr(other, n) for n in counts}
        return other

    assert both(lambda index: build_index([files], index)).changed
    assert not both(lambda index: build_index([files], index)).changed
    assert not both(lambda index: sync(files, index)).changed
    (files / "a.md").write_text("# a\n\nAnother page about a.\n")
    (files / "b.md").unlink()
    (files / "d.md").write_text("# d\n\nA new page.\n")
    assert both(lambda index: sync(files, index)).gone == 1
    (tmp_path / "e.md").write_text("# e\n\nFrom elsewhere.\n")
    both(lambda index: add([tmp_path / "e.md"], index))
    both(lambda index: delete(index, ["[cd].md"]))
    only = next(iter(content(store)))[0]
    both(lambda index: delete(index, ids=[only]))
    with pytest.raises(ValueError, match="has no source 'nothing'"):
        delete(store, ["nothing"])


KILLED = """
import os, sys
from hopgate.retrievers.stores import change as store_change
from hopgate.retrievers.base import make_passage
from hopgate.retrievers.building import build_from_passages
store_change.BATCH = 8
def progress(stage, done, total):
    if stage == "filling the store" and done >= 16:
        os._exit(9)
passages = [make_passage(f"Note {n}", f"Remark {n}.", f"{n}.md") for n in range(40)]
build_from_passages(passages, sys.argv[1], progress=None if sys.argv[2:] else progress)
"""


@pytest.mark.parametrize("store", ["qdrant", "pgvector"], indirect=True)
def test_a_killed_build_resumes_without_encoding_again(store: str) -> None:
    assert subprocess.run([sys.executable, "-c", KILLED, store]).returncode == 9
    with pytest.raises(ValueError, match=f"{store} is half filled, .* run the same command again"):
        open_source(store)
    assert info_of(store)["complete"] is False
    with pytest.raises(ValueError, match="is half filled"):
        add_passages([make_passage("Other", "Text.")], store)
    passages = [make_passage(f"Note {n}", f"Remark {n}.", f"{n}.md") for n in range(40)]
    report = build_from_passages(passages, store)
    assert (report.passages, report.encoded) == (40, 24)
    assert len(ids(store, "remark", "bm25", 99)) == 40


@one_engine
def test_a_killed_sync_is_finished_by_the_next(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    text = "\n\n".join(f"## Part {n}\n\nRemark {n} about the ferry." for n in range(9))
    (files / "long.md").write_text(f"# Long\n\n{text}")
    build_from_passages(PASSAGES, store)
    monkeypatch.setattr(store_change, "BATCH", 4)

    def interrupt(stage: str, done: int, total: int) -> None:
        if stage == "filling the store":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sync(files, store, progress=interrupt)
    report = sync(files, store)
    assert (report.unchanged, report.updated, report.encoded) == (0, 1, 5)
    assert sum(row[3] == "long.md" for row in content(store)) == 9
    assert sync(files, store).unchanged == 1


def test_several_writers_add_at_once(store: str) -> None:
    build_from_passages(PASSAGES, store)
    shared = make_passage("Rules", "All writers share this passage.")

    def write(number: int) -> None:
        own = make_passage(f"Writer {number}", f"Text {number}.", f"w{number}.md")
        for _ in range(3):
            add_passages([own, {**shared, "source": own["source"]}], store)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    written = {(row[0], row[3]) for row in content(store)}
    assert {(shared["id"], f"w{n}.md") for n in range(4)} <= written
    assert len(content(store)) == len(PASSAGES) + 8


def test_a_round_trip_loses_nothing(store: str, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "own.md").write_text("# Own\n\nA page that is followed.\n")
    there, back = tmp_path / "there", tmp_path / "back"
    build_index([files], there, language="de")
    add_passages(PASSAGES, there)
    report = push(there, store)
    assert (report.encoded, report.added, report.passages) == (0, 25, 25)
    assert not push(there, store).changed
    assert index_identity(Path(store)) == index_identity(Path(store))
    assert index_identity(Path(store)).startswith(f"{store}, SHA-256 ")
    assert push(store, back).encoded == 0
    assert content(back) == content(store) == content(there)
    old, new = load_index(there), load_index(back)
    keys = old._words.keys().tolist()
    assert (old._vectors.vectors(keys) == new._vectors.vectors(keys)).all()
    for field in ("encoder", "language", "mode", "mode_reason", "roots", "passages", "sources"):
        assert old.manifest[field] == new.manifest[field]  # type: ignore[literal-required]
        assert info_of(store)[field] == new.manifest[field]  # type: ignore[literal-required]
    assert not sync(files, store).changed


def test_a_build_that_would_remove_most_wants_replace(store: str) -> None:
    build_from_passages(PASSAGES, store)
    with pytest.raises(ValueError, match=f"remove 25 of the 26 passages of {store}: add --replace"):
        build_from_passages(PASSAGES[:1], store)
    other = load_encoder("minilm", "query: ", "passage: ")
    with pytest.raises(ValueError, match=f"{store} was built with encoder minilm, .*--replace"):
        build_from_passages(PASSAGES, store, other)
    with pytest.raises(ValueError, match=f"{store} has the language .*--replace"):
        build_from_passages(PASSAGES, store, language="fi")
    assert len(content(store)) == len(PASSAGES)
    assert build_from_passages(PASSAGES, store, other, replace=True).encoded == 24
    assert info_of(store)["encoder"]["query_prefix"] == "query: "
    build_from_passages(PASSAGES[:1], store, replace=True)
    assert content(store) == {(LIGHT["id"], *list(LIGHT.values())[1:4], "3", "History", "", "")}


@one_engine
def test_what_only_folders_have_is_refused(store: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"there is no {store}: build it with `hopgate index bui"):
        open_source(store)
    with pytest.raises(ValueError, match="--factory is for folders: leave it out"):
        build_from_passages(PASSAGES, store, factory="Flat")
    with pytest.raises(ValueError, match="compact is for folders: leave it out"):
        compact(store)
    with pytest.raises(ValueError, match="there is no"):
        info_of(store)


def test_a_collection_of_others_is_left_alone(store: str) -> None:
    engine, name = store.split(":")
    Collection(store)
    if engine == "qdrant":
        from qdrant_client.models import Distance, VectorParams

        client_of(store).create_collection(name, VectorParams(size=4, distance=Distance.DOT))
    elif engine == "milvus":
        client_of(store).create_collection(name, dimension=4)
    else:
        with psycopg.connect(os.environ["PGVECTOR_URL"]) as connection:
            connection.execute(f'CREATE TABLE "{name}" (id int)')
    for act in (
        lambda n: Collection(n).report(),
        lambda n: build_from_passages(PASSAGES, n, replace=True),
    ):
        with pytest.raises(ValueError, match=f"{store} was not made by hopgate: use another name"):
            act(store)
    with pytest.raises(ValueError, match=f"{store} was (not made by hopgate|made by LangChain)"):
        open_source(store)


NOTES = [
    Document(
        each["text"],
        id=str(UUID(int=number)),
        metadata={"source": each["source"], "page": number, "title": each["title"]},
    )
    for number, each in enumerate(PASSAGES, start=1)
]


def fill_as_langchain_does(store: str, other: bool = False) -> None:
    """Fill a collection with `NOTES` in a layout of LangChain's packages: the default, or another.

    The other has named vectors in Qdrant, dynamic fields in Milvus, `PGVectorStore`'s table.
    """
    vectors = load_encoder("minilm").encode_passages(PASSAGES).tolist()
    fill = {"qdrant": fill_qdrant, "milvus": fill_milvus, "pgvector": fill_postgres}
    engine, name = store.split(":")
    fill[engine](store, name, list(zip(NOTES, vectors, strict=True)), other)


def fill_qdrant(store: str, name: str, entries: Any, other: bool) -> None:
    from qdrant_client.models import Distance, PointStruct, VectorParams

    sizes, client = VectorParams(size=384, distance=Distance.COSINE), client_of(store)
    client.create_collection(name, {"own": sizes} if other else sizes)
    points = [
        PointStruct(
            id=str(each.id),
            vector={"own": vector} if other else vector,
            payload={"page_content": each.page_content, "metadata": each.metadata},
        )
        for each, vector in entries
    ]
    client.upsert(name, points)


def fill_milvus(store: str, name: str, entries: Any, other: bool) -> None:
    client = client_of(store)  # before the import, see `milvus.connect`
    from pymilvus import DataType

    schema = client.create_schema(auto_id=other, enable_dynamic_field=other)
    key = DataType.INT64 if other else DataType.VARCHAR
    schema.add_field("pk", key, max_length=64, is_primary=True)
    for field in ("text",) if other else ("text", "source", "title"):
        schema.add_field(field, DataType.VARCHAR, max_length=65_535)
    if not other:
        schema.add_field("page", DataType.INT64)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=384)
    params = client.prepare_index_params()
    kind = ("HNSW", "COSINE") if other else ("AUTOINDEX", "L2")
    params.add_index("vector", index_type=kind[0], metric_type=kind[1], params={"M": 8})
    client.create_collection(name, schema=schema, index_params=params)
    rows = [
        {"text": each.page_content, "vector": vector, **each.metadata}
        | ({} if other else {"pk": each.id})
        for each, vector in entries
    ]
    client.insert(name, rows)


def fill_postgres(store: str, name: str, entries: Any, other: bool) -> None:
    owner, rows = UUID(int=1), []
    for each, vector in entries:
        row = (each.id, str(vector), each.page_content, json.dumps(each.metadata))
        rows.append(row if other else (*row, owner))
    with psycopg.connect(os.environ["PGVECTOR_URL"]) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        if other:
            table = f'"{name}"'
            connection.execute(
                f"CREATE TABLE {table} (langchain_id uuid PRIMARY KEY, embedding vector(384)"
                " NOT NULL, content text NOT NULL, langchain_metadata json)"
            )
        else:
            table = "langchain_pg_embedding"
            connection.execute(
                "CREATE TABLE langchain_pg_collection (uuid uuid PRIMARY KEY, name varchar);"
                f"CREATE TABLE {table} (id varchar PRIMARY KEY, embedding vector,"
                " document varchar, cmetadata jsonb, collection_id uuid)"
            )
            insert = "INSERT INTO langchain_pg_collection VALUES (%s, %s)"
            connection.execute(insert, [owner, name])
        marks = ", ".join(["%s"] * len(rows[0]))
        connection.cursor().executemany(f"INSERT INTO {table} VALUES ({marks})", rows)


@pytest.mark.parametrize("other", [False, True])
def test_a_collection_that_langchain_made_is_searched(store: str, other: bool) -> None:
    fill_as_langchain_does(store, other)
    with pytest.raises(ValueError, match=f"made by LangChain: name the encoder .* {store}@minilm"):
        open_source(store)
    named = f"{store}@minilm"
    found, more = open_source(named).search([QUERIES[0], "tides"], 30)
    first = found[0]
    assert (first["text"], first["source"], first["page"]) == (LIGHT["text"], LIGHT["source"], 1)
    assert len({hit["id"] for hit in found}) == len(more) == len(PASSAGES)
    for where in ({"source": "copy.*"}, {"source": "copy.md"}, {"page": [3, 4]}):
        (hits,) = open_source(named, where=where).search(["bread"], 30)
        assert [hit["source"] for hit in hits] == ["copy.md"] * 2
    assert index_identity(Path(named)) == named
    with pytest.raises(ValueError, match=r"mode 'bm25' is not available with .*: use dense"):
        open_source(named, "bm25").search(["x"], 1)
    with pytest.raises(ValueError, match=r"was not made by hopgate|there is no"):
        add_passages(PASSAGES, store)


def test_a_filtered_search_of_milvus_lite_misses_nothing(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure("milvus", request, monkeypatch)
    sources = [f"users/{number % 30}/{number}.md" for number in range(3_000)]
    vectors, queries = (
        np.random.default_rng(seed).normal(size=(rows, 32)).astype(np.float32)
        for seed, rows in ((0, 3_000), (1, 200))
    )
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    collection: Any = Collection("milvus:exact").engine
    collection.create("{}", 32)
    rows = rows_of(sources)
    for start in range(0, 3_000, 500):
        part = slice(start, start + 500)
        put(collection, rows[part], vectors[part], [["word"]] * 500)
    collection.describe("{}", 32)
    for number, query in enumerate(queries):
        only = (("source", (f"users/{number % 30}/*",)),)
        found = collection.dense(query.tolist(), 10, only)
        best = np.sort(vectors[number % 30 :: 30] @ query)[::-1][:10]
        assert [score for _, score in found] == pytest.approx(best.tolist(), abs=1e-4)


def test_an_account_without_rights_is_told(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("CREATE ROLE reader LOGIN")
        monkeypatch.setenv("PGVECTOR_URL", postgres)
        build_from_passages(PASSAGES, "pgvector:guarded")
        monkeypatch.setenv("PGVECTOR_URL", postgres.replace("postgres@", "reader@"))
        with pytest.raises(RuntimeError, match="permission denied for table guarded; if"):
            open_source("pgvector:guarded").search(["x"], 1)
        connection.execute("GRANT SELECT ON guarded TO reader")
        assert ids("pgvector:guarded", "bread", "hybrid")
        with pytest.raises(RuntimeError, match="permission denied for table guarded; if"):
            add_passages([make_passage("a", "b", "c")], "pgvector:guarded")
    monkeypatch.setenv("PGVECTOR_URL", postgres)
    assert len(content("pgvector:guarded")) == len(PASSAGES)


@one_engine
def test_the_commands_take_a_store(store: str, tmp_path: Path, run: Callable[..., Ran]) -> None:
    (tmp_path / "page.md").write_text("# Lamp\n\nThe lamp is green.\n")
    page = str(tmp_path / "page.md")
    done = run("index", "build", page, "--out", store, "--json")
    assert (done.code, json.loads(done.out)["passages"]) == (0, 1)
    (tmp_path / "more.md").write_text("# Boat\n\nThe boat is red.\n")
    assert run("index", "add", str(tmp_path / "more.md"), "--index", store).code == 0
    (hit,) = json.loads(run("search", "boat", "--index", store, "-k", "1", "--json").out)
    assert hit["source"] == "more.md"
    shown = run("index", "info", store).out
    assert re.search(r"sources +2\b", shown)
    assert store in shown
    assert json.loads(run("index", "info", store, "--json").out)["store"] == store
    folder = tmp_path / "out"
    assert run("index", "push", store, str(folder)).code == 0
    assert info(folder)["passages"] == 2
    assert run("index", "delete", "more.md", "--index", store).code == 0
    assert len(content(store)) == 1
    refused = run("index", "compact", store)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "compact is for folders" in refused.err


def test_names_are_read_and_bad_ones_refused() -> None:
    assert parse("qdrant:docs") == ("qdrant", "docs", "")
    assert parse("pgvector:docs@org/model") == ("pgvector", "docs", "org/model")
    for name in ("qdrant:", "pgvector:a;drop table b", "qdrant:a/b", "milvus:"):
        with pytest.raises(ValueError, match=r"index is .*use ENGINE:NAME"):
            parse(name)


def test_a_store_without_an_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QDRANT_URL", "QDRANT_PATH", "PGVECTOR_URL", "MILVUS_URI", "MILVUS_URL"):
        monkeypatch.delenv(name, raising=False)
    for store, names in (
        ("qdrant:a", "QDRANT_URL or QDRANT_PATH"),
        ("pgvector:a", "PGVECTOR_URL"),
        ("milvus:a", "MILVUS_URI or MILVUS_URL"),
    ):
        with pytest.raises(ValueError, match=f"{store} needs an address: set {names}"):
            check_source(store)


def rows_of(sources: list[str]) -> list[Row]:
    """One row for each source."""
    return [
        Row.of(make_passage(f"Row {n}", f"Text {n}.", source), "")
        for n, source in enumerate(sources)
    ]


def put(engine: Any, rows: list[Row], vectors: Any, words: list[list[str]]) -> None:
    engine.put([Entry(*e, 1.0) for e in zip(rows, vectors.tolist(), words, strict=True)])


def client_of(store: str) -> Any:
    """The client of a store's engine."""
    return Collection(store).engine._client  # type: ignore[attr-defined]


def test_a_rare_filter_finds_what_the_graph_misses(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = "hnsw.max_scan_tuples=100", "enable_seqscan=off", "enable_bitmapscan=off"
    options = "%20".join(f"-c%20{each.replace('=', '%3D')}" for each in settings)
    monkeypatch.setenv("PGVECTOR_URL", f"{postgres}&options={options}")
    sources = ["near.md"] * 995 + ["far.md"] * 5
    vectors = np.random.default_rng(0).normal(0, 0.1, (len(sources), 8)).astype(np.float32)
    vectors[:, 0] = [1 if source == "near.md" else -1 for source in sources]
    collection = Collection("pgvector:rare").engine
    collection.create("{}", 8)
    put(collection, rows_of(sources), vectors, [["word"]] * len(sources))
    collection.describe("{}", 8)
    query = [1.0, *[0.0] * 7]
    for source, count in (("far.md", 5), ("near.md", 10)):
        found = collection.dense(query, 10, (("source", (source,)),))
        assert [row.source for row, _ in found] == [source] * count
        exact = sorted(vectors[[each == source for each in sources], 0], reverse=True)
        if count < 10:  # then the graph has not answered
            assert [score for _, score in found] == pytest.approx(exact)


@pytest.mark.parametrize(
    ("name", "variable", "value"),
    [
        ("pgvector:a", "PGVECTOR_URL", "postgres://u:{}℀w@127.0.0.1:9/db"),
        ("pgvector:a", "PGVECTOR_URL", "postgres://u:x/{}@127.0.0.1:9/db"),
        ("pgvector:a", "PGVECTOR_URL", "host=127.0.0.1 password={} yacht zebra"),
        ("qdrant:a", "QDRANT_URL", "http://u:[{}@127.0.0.1:9"),
        ("milvus:a", "MILVUS_URI", "http://u:x/{}@127.0.0.1:9"),
        ("milvus:a", "MILVUS_URI", "/nowhere/tests.db"),
        ("qdrant:a", "QDRANT_URL", "http://u:{}@127.0.0.1:9"),
    ],
)
def test_no_part_of_an_odd_password_is_printed(
    monkeypatch: pytest.MonkeyPatch, name: str, variable: str, value: str
) -> None:
    monkeypatch.setattr(collections, "_clients", Cache())
    monkeypatch.setenv(variable, value.format(SECRET))
    remedy = f"{name} failed: .*; check that {variable} is the address of a server"
    with pytest.raises(RuntimeError, match=remedy) as failed:
        open_source(name)
    assert "\n" not in str(failed.value)
    for part in (SECRET, "yacht", "zebra", "℀"):
        assert part not in str(failed.value)


def test_a_search_of_pgvector_waits_for_no_lock_for_ever(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collections, "_clients", Cache())
    limit = "SET LOCAL statement_timeout = '1s';"
    monkeypatch.setattr("hopgate.retrievers.stores.pgvector._LIMITED", limit)
    monkeypatch.setenv("PGVECTOR_URL", postgres)
    build_from_passages(PASSAGES, "pgvector:locked")
    index = open_source("pgvector:locked", "hybrid")
    with psycopg.connect(postgres) as other:
        other.execute("LOCK TABLE locked")
        with pytest.raises(RuntimeError, match=r"statement timeout; if .* try again"):
            index.search(["bread"], 1)
    assert index.search(["bread"], 1)


@one_engine
def test_a_store_says_what_it_covers(store: str) -> None:
    build_from_passages(PASSAGES, store, language="en")
    found = open_source(store).look(["When was Skerry Light first lit?", "Tell me a joke."], 3)  # type: ignore[attr-defined]
    about, chatter = found
    assert about.share == 1 and chatter.share < 0.9
    assert about.hits[0]["title"] == "Skerry Light"
    assert len(about.background) == 48


def test_a_change_that_would_empty_a_collection_or_lose_a_passage_changes_nothing(
    store: str,
) -> None:
    good = [make_passage("", "The ferry leaves at nine.", "ferry.md")]
    build_from_passages(good, store)
    with pytest.raises(ValueError, match=f"this would delete every passage of {store}"):
        delete(store, ["*"])
    bad = make_passage("", "a\0b", "bad.md")
    with pytest.raises(ValueError, match=r"of bad\.md, which has a NUL character, and nothing was"):
        build_from_passages([*good, bad], store, replace=True)
    assert len(content(store)) == 1
