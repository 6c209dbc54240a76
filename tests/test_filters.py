"""Filters: what they match, and that no passage outside one gets through anywhere."""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from commands import Ran
from doubles import FixedRetriever, FixedRouter, TalkingModel, by_task, hit
from fake_openai import FakeOpenAI
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.state import CompiledStateGraph
from langgraph_dev import CONFIG, Server, start
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from pydantic import TypeAdapter, ValidationError

from hopgate import Context, build_graph
from hopgate.common.cache import Cache
from hopgate.graphs.history import fork, hops
from hopgate.nodes.run.limits import Limits
from hopgate.retrievers import filters
from hopgate.retrievers.base import Hit, Metadata, Passage, make_passage
from hopgate.retrievers.building import build_from_passages
from hopgate.retrievers.filters import (
    Filter,
    Where,
    escaped,
    matches,
    parse_where,
)
from hopgate.retrievers.hybrid import RARE, code_depth
from hopgate.retrievers.langchain import LangChainRetriever
from hopgate.retrievers.sources import MODES, open_source
from hopgate.retrievers.stores import collection as collections
from hopgate.retrievers.stores.searching import load_store
from hopgate.server import tokens

ENGINES = ("milvus", "qdrant", "pgvector")
USERS = ("ann", "anna", "Ann", "bob", "*", "a*", "[ab]*", "a?n", "an_", "50%", "ünn", "{user}")
TOPICS = ("harbour", "ledger", "lamp", "ferry")
KNOWN: tuple[Metadata, ...] = (
    {"author": "Ada", "date": "2024-01-31", "size": 3, "draft": True, "tags": ["hr", "a"]},
    {"author": "A\"d'a%", "date": "2024-01-31T23:30:00-11:00", "size": 3.0, "tags": ["legal"]},
    {"author": "3", "date": "2024-02-01T09:00:00.5+00:00", "size": "3", "draft": False, "a.b": "x"},
    {"author": "true", "date": "31 January 2024", "size": -7.25, "draft": "true", "tags": "hr"},
    {"author": ["Ada", "3"], "date": "0001-01-01", "size": 10**17, "tags": ["2024-01-31", "3"]},
    {"date": "2024-02-30", "size": True, "ü [0]": 'x"', "a.b": ["x", "y"]},
    {"date": "9999-12-31", "size": 1e22, 'q"]': 5},
)
MODE = st.sampled_from(("auto", *MODES))
slow = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def secret(user: str, number: int) -> str:
    """A text that only one passage of one user has."""
    return f"secret-{USERS.index(user)}x{number}"


def passage_of(user: str, number: int) -> Passage:
    topic = TOPICS[number % len(TOPICS)]
    return make_passage(
        f"The {topic}",
        f"The note about the {topic} says {secret(user, number)}.",
        f"users/{user}/{topic}.md",
        number + 1 if number % 2 else None,
        "Notes" if number % 3 else None,
        KNOWN[(USERS.index(user) + number) % len(KNOWN)] | {"groups": [user, f"all {topic}"]},
    )


PASSAGES = [passage_of(user, number) for user in USERS for number in range(len(TOPICS))]
PASSAGES += [
    make_passage("Rules", f"A note on rule {number} of the harbour.", f"public/{number}.md")
    for number in range(3)
]
PASSAGES += [make_passage("Nobody", "A note about the ferry that has no source.")]
TWINS = [  # one text, in two documents
    make_passage("Twin", "A note on twins.", f"{name}.md", metadata={"author": name, "size": size})
    for name, size in (("Ada", 1), ("Ben", 9))
]
EVERY = [*PASSAGES, *TWINS]
SECRETS = {
    secret(user, number): f"users/{user}/" for user in USERS for number in range(len(TOPICS))
}


def foreign(shown: object, user: str) -> list[str]:
    """The secrets of other users in anything that can be shown."""
    text = json.dumps(shown, ensure_ascii=False, default=repr)
    return [each for each, folder in SECRETS.items() if each in text and folder != f"users/{user}/"]


def ids(found: Sequence[Mapping[str, Any]]) -> set[str]:
    return {each["text"] for each in found}


# Reading filters

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "id": st.sampled_from([each["id"] for each in PASSAGES]),
    "title": st.sampled_from([f"The {topic}" for topic in TOPICS] + ["Rules", "the lamp"]),
    "source": st.one_of(
        st.sampled_from([each["source"] for each in PASSAGES if each["source"]]),
        st.sampled_from([f"users/{escaped(user)}/*" for user in USERS]),
        st.sampled_from(
            [
                *("*", "?*", "*.md", "*lamp.md", "[", "*ü*", "users/*", "users/an?/*"),
                *("users/[!a]*/f*", "users/[*]/*", "users/an_/*", "*/ann*/*"),
                *("public/*", "public/1*", "public/[01].md", "Ada.md", "[AB]*.md"),
            ]
        ),
    ),
    "page": st.one_of(st.sampled_from([2, 4, "2", "4", 3, "iv"])),
    "section": st.sampled_from(["Notes", "notes"]),
    "author": st.sampled_from(["Ada", "ada", "A\"d'a%", "3", 3, "true", True, "%", "\\"]),
    "date": st.sampled_from(["2024-01-31", "31 January 2024", "2024", "0001-01-01"]),
    "size": st.sampled_from([3, 3.0, "3", -7.25, 10**17, True, "true", "9" * 30, "1e999"]),
    "draft": st.sampled_from([True, False, "true", "True", 1]),
    "tags": st.sampled_from(["hr", "legal", "a", "3", 3, "h", '["hr", "a"]', "2024-01-31"]),
    "groups": st.sampled_from([*USERS, "all lamp"]),
    "a.b": st.sampled_from(["x", "y"]),
    "ü [0]": st.sampled_from(['x"', "x"]),
    'q"]': st.sampled_from([5, "5"]),
    "nothing": st.just("x"),
}
ENDS: dict[str, st.SearchStrategy[Any]] = {
    "page": st.sampled_from([1, 2, 3, 4, 2.5]),
    "date": st.sampled_from(
        [
            *("0001-01-01", "2024-01-30", "2024-01-31", "2024-02-01T09:00:00"),
            *("2024-02-02", "9999-12-31"),
        ]
    ),
    "size": st.sampled_from([-10, -7.25, 3, 3.5, 10**17, 10**18]),
}
ENDS |= {name: ENDS["size"] for name in ("tags", "draft", 'q"]')}


def spans(name: str) -> st.SearchStrategy[dict[str, Any]]:
    """Ranges of a field, with an end or two."""
    end = ENDS[name]
    return st.fixed_dictionaries({"from": end}, optional={"to": end}) | st.fixed_dictionaries(
        {"to": end}
    )


@st.composite
def wheres(draw: st.DrawFn) -> dict[str, Any]:
    """Filters as people write them, with one or two fields."""
    names = draw(st.lists(st.sampled_from([*VALUES]), min_size=1, max_size=2, unique=True))
    one = {name: VALUES[name] | spans(name) if name in ENDS else VALUES[name] for name in names}
    return {
        name: draw(st.one_of(one[name], st.lists(one[name], min_size=1, max_size=3)))
        for name in names
    }


def test_filters_are_combined_and_hashable() -> None:
    wanted = parse_where({"source": "a/*", "page": [3, "4", 3]}, None, {"source": "*.md"}, ())
    assert wanted == (("source", ("a/*",)), ("page", ("3", "4")), ("source", ("*.md",)))
    assert parse_where(wanted) == wanted
    assert hash(wanted) == hash(parse_where(wanted, wanted))
    assert parse_where() == parse_where(None) == parse_where({}) == ()


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({3: "x"}, "where has the field 3: use id, title, source, page, section, or the name"),
        *(({each: "x"}, "where has the field ") for each in ("", "x" * 1001, "\ud800")),
        *(
            ({"size": each}, "where.size is .*a range such as")
            for each in (
                *({}, {"from": None}, {"from": 1, "till": 2}, {"from": 1, "to": "2024-01-31"}),
                *({"from": "2024"}, {"to": "2024-02-30"}, {"to": True}, {"to": 10**19}, None),
                *(float("nan"), float("inf"), {"to": float("nan")}, [[1]], {"to": "5"}),
            )
        ),
        *(({each: {"from": 1}}, f"where.{each} is ") for each in ("source", "title")),
        ({"source": []}, r"where.source is \[\]: use a number, true or false, text of 1 to 1,000"),
        *(({"source": each}, "where.source is ") for each in (["a", ""], "?" * 31)),
        *(({"page": each}, "where.page is ") for each in ({"to": "5"}, {"a": 1}, [["a"]])),
        *(
            ({"title": each}, "where.title is ")
            for each in (b"x", "\ud800", "x" * 1001, ["x"] * 1001)
        ),
        ("source=a", "where is 'source=a': use a mapping of fields to values"),
        ([("source", ("a",))], "where is .*use a mapping"),
        ((("source", "a", "b"),), "where is .*use a mapping"),
    ],
)
def test_a_wrong_filter_is_refused(where: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_where(where)
    if not isinstance(where, tuple):
        with pytest.raises(ValidationError, match="where"):
            Context(where=where)


@pytest.mark.parametrize(
    ("where", "titles"),
    [
        ({}, {"a", "b", "c"}),
        ({"source": "x/*"}, {"a", "b"}),
        ({"source": "x/1.md"}, {"a"}),
        ({"source": ["x/[12].md", "nothing"], "page": "3"}, {"a"}),
        ({"source": "X/*"}, set()),
        ({"source": "*"}, {"a", "b"}),
        ({"title": ["a", "c"]}, {"a", "c"}),
        ({"title": "*"}, set()),
        ({"page": 3}, {"a"}),
        ({"page": "03"}, set()),
        ({"section": "S"}, {"b"}),
        ({"page": {"from": 3, "to": 3}}, {"a"}),
        ({"page": {"to": 2}}, set()),
        ({"page": [4, {"from": 1, "to": None}]}, {"a"}),
        ({"author": "Ada"}, {"a"}),
        ({"author": ["Ben", "Ada"], "tags": ["hr", "legal"]}, {"a"}),
        ({"tags": "legal"}, {"a", "b"}),
        ({"tags": "leg*"}, set()),
        ({"size": 3}, {"a", "b"}),
        ({"size": {"from": 3}}, {"a"}),  # a text is not a number
        ({"draft": False}, {"a"}),
        ({"date": {"from": "2024-01-31", "to": "2024-01-31"}}, {"a"}),
        ({"date": {"to": "2024-01-31T11:00:00"}}, set()),
        ({"date": {"from": "2024-02-01"}}, set()),
        ({"metadata": "Ada"}, set()),
        ({"text": "1"}, set()),
    ],
)
def test_a_filter_matches_all_its_conditions(where: Where, titles: set[str]) -> None:
    known: Metadata = {"author": "Ada", "tags": ["legal", "x"], "size": 3.0, "draft": False}
    known["date"] = "2024-01-31T12:00:00"
    passages = [
        make_passage("a", "1", "x/1.md", 3, metadata=known),
        make_passage("b", "2", "x/y/2.md", section="S", metadata={"tags": "legal", "size": "3"}),
        make_passage("c", "3"),
    ]
    wanted = parse_where(where)
    assert {each["title"] for each in passages if matches(each, wanted)} == titles


@given(st.text(min_size=1), st.text(min_size=1))
@example("*", "x")
@example("[a]", "a")
@example("!", "[!]")
def test_an_escaped_text_matches_only_itself(text: str, other: str) -> None:
    wanted: Filter = (("source", (escaped(text),)),)
    assert matches({"source": text}, wanted)
    assert matches({"source": other}, wanted) == (other == text)


def test_a_context_holds_a_filter_that_can_be_stored() -> None:
    spans = Context(where={"size": [1.0, {"from": 2, "to": 3.5}], "date": {"to": "2024-01-31"}})
    assert Context(**json.loads(spans.model_dump_json(exclude_unset=True))) == spans
    assert parse_where(spans.where) == spans.where
    context = Context(where={"source": "a*", "page": [3, "4"]})
    adapter = TypeAdapter(Context)
    assert context.where == (("source", ("a*",)), ("page", ("3", "4")))
    assert adapter.validate_json(adapter.dump_json(context)) == context
    assert len({context, Context(where={"source": ["a*"], "page": ["3", 4]})}) == 1
    schema = adapter.json_schema()["properties"]["where"]
    assert (schema["type"], schema["default"]) == ("object", {})
    assert [*schema["properties"]] == [*filters.FIELDS]


# Searching


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An index of notes of several users."""
    folder = tmp_path_factory.mktemp("filters") / "index"
    build_from_passages(EVERY, folder)
    return str(folder)


@pytest.fixture(scope="module", params=ENGINES)
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, index: str
) -> Any:
    """A filled collection of an outside engine, or the index."""
    if request.param == "folder":
        yield index
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collections, "_clients", Cache())
        if request.param == "qdrant":
            patch.setenv("QDRANT_PATH", str(tmp_path_factory.mktemp("qdrant")))
        elif request.param == "milvus":
            patch.setenv("MILVUS_URI", str(tmp_path_factory.mktemp("milvus") / "filters.db"))
        else:
            patch.setenv("PGVECTOR_URL", request.getfixturevalue("postgres"))
        name = f"{request.param}:filters"
        build_from_passages(EVERY, name)
        yield name


@pytest.mark.parametrize("store", ["folder", *ENGINES], indirect=True, scope="module")
@settings(slow, max_examples=12)
@given(where=wheres(), also=st.none() | wheres(), mode=MODE)
@example({"source": "users/50%/*"}, None, "hybrid")
@example({"source": "users/an_/*"}, {"page": "iv"}, "dense")
@example({"source": "\\*"}, None, "bm25")
@example({"source": ['a"b', "a'b*", "\\"], "title": "\\\"'"}, None, "dense")
@example({"page": "9" * 30}, None, "dense")
@example({"author": "Ada", "size": {"from": 2}}, None, "auto")
@example({"author": "A\"d'a%", "date": {"from": "2024-01-31", "to": "2024-01-31"}}, None, "bm25")
@example({"size": ["9" * 30, 3]}, {"date": {"to": "9999-12-31"}}, "dense")
@example({"ü [0]": 'x"'}, {"a.b": ["x", "%"]}, "hybrid")
@example({"author": "Ben", "size": {"from": 2}}, {"source": "*"}, "bm25")
@example({"author": "Ada"}, {"source": "Ben*"}, "dense")
def test_a_search_finds_exactly_what_its_filter_matches(
    store: str, where: dict[str, Any], also: dict[str, Any] | None, mode: str
) -> None:
    wanted = parse_where(where, also)
    possible = ids([each for each in EVERY if matches(each, wanted)])
    (hits,) = open_source(store, mode, where=wanted).search(["A note about the"], len(EVERY))
    assert ids(hits) == possible
    (few,) = open_source(store, mode, where=wanted).search(["A note about the"], 2)
    assert ids(few) <= possible
    assert len(few) == min(2, len(possible))


@pytest.mark.parametrize("mode", MODES)
def test_a_store_filters_by_itself(store: str, mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    index = load_store(store)
    engine = index._engine

    def counted(search: Any, query: Any, k: int, wanted: Any) -> Any:
        calls.append(k)
        return search(query, k, wanted)

    for name in ("dense", "bm25"):
        monkeypatch.setattr(engine, name, partial(counted, getattr(engine, name)))
    where = {"source": "users/bob/*", "title": "The lamp", "section": "Notes"}
    ((found,),) = index.search(["the note"], 1, mode, where)
    assert secret("bob", 2) in found["text"]
    assert calls == {"hybrid": [100, 100, RARE + 1]}.get(mode, [code_depth(1)])


@pytest.mark.parametrize(
    "where",
    [
        {"author": ["Ada", "true"]},
        {"tags": "hr", "groups": "bob"},
        {"size": [{"from": -8, "to": 3.5}, {"from": 10**18}]},
        {"draft": True},
        {"size": {"to": 3}, "groups": "bob"},
        {"groups": ["bob", "*"], "title": "The lamp"},
    ],
)
def test_a_store_leaves_out_what_the_metadata_excludes(store: str, where: Where) -> None:
    engine, wanted = load_store(store)._engine, parse_where(where)
    possible = ids([each for each in EVERY if matches(each, wanted)])
    assert 0 < len(possible) < len(PASSAGES)
    for rows in (engine.dense([0.5] * 384, 99, wanted), engine.bm25(["note"], 99, wanted)):
        assert possible <= ids([row.passage() for row, _ in rows])
        assert len(rows) < len(EVERY)
    near = parse_where({"date": {"from": "2024-01-31", "to": "2024-01-31"}})
    assert len(engine.dense([0.5] * 384, 99, near)) < len(PASSAGES) / 2  # a day wider, in Qdrant


def documents() -> list[Document]:
    return [
        Document(
            each["text"],
            id=each["id"],
            metadata={k: v for k, v in each.items() if k not in ("text", "metadata")}
            | each.get("metadata", {}),
        )
        for each in PASSAGES
    ]


@given(where=wheres(), k=st.integers(1, 60))
@settings(max_examples=40, deadline=None)
def test_any_vector_store_of_langchain_can_be_filtered(where: dict[str, Any], k: int) -> None:
    memory = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    memory.add_documents(documents())
    wanted = parse_where(where)
    shown = [{**each, "title": each["title"] or each["source"]} for each in PASSAGES]
    possible = ids([each for each in shown if matches(each, wanted)])
    (hits,) = LangChainRetriever(memory).search(["x"], k, where)
    assert ids(hits) <= possible
    assert len(hits) == min(k, len(possible))
    every = LangChainRetriever(memory.as_retriever(search_kwargs={"k": len(PASSAGES)}))
    assert len(every.search(["x"], k, where)[0]) == min(k, len(possible))


# The graph


class Careless(FixedRetriever):
    """A retriever that takes a filter and ignores it."""

    def search(self, queries: Sequence[str], k: int, where: Filter = ()) -> list[list[Hit]]:
        self.queries += [f"{query} {where}" for query in queries]
        return [[Hit(score=1.0, **each) for each in PASSAGES] for _ in queries]  # type: ignore[typeddict-item]


def say(number: int, prompt: str) -> str:
    """Reason with words that all notes have, then answer with a citation."""
    if "reasoning" in prompt:
        return f"The note number {number} is about the lamp of the ferry."
    return "The note says so [1]." if "[1]" in prompt else "[Yes]"


def build(limits: Mapping[str, Any] | None = None, **given: Any) -> CompiledStateGraph[Any, Any]:
    given.setdefault("model", TalkingModel(say=say))
    router = FixedRouter("B")
    return build_graph(router=router, limits=Limits.parse(limits or {}), **given)


def as_user(name: str | None, thread: str = "1") -> Any:
    """The config of a run as a LangGraph server fills it in."""
    user = None if name is None else SimpleNamespace(identity=name)
    return {"configurable": {"thread_id": thread, "langgraph_auth_user": user}}


async def stream(graph: Any, context: Context, config: Any) -> tuple[dict[str, Any], list[Any]]:
    """Return the final state, and everything that the run shows."""
    shown: list[Any] = []
    parts = graph.astream(
        {"question": "What does the note about the lamp say?"},
        config,
        context=context,
        stream_mode=["values", "updates", "custom", "messages"],
        subgraphs=True,
    )
    async for part in parts:
        shown.append(part)
    return next(part[2] for part in reversed(shown) if part[:2] == ((), "values")), shown


@slow
@given(
    user=st.sampled_from(USERS),
    where=st.none() | wheres(),
    mode=MODE,
    path=st.sampled_from(["single", "multi", "decompose", "escalate"]),
)
def test_no_run_shows_a_passage_of_another_user(
    index: str, user: str, where: dict[str, Any] | None, mode: Any, path: Any
) -> None:
    context = Context(
        index=index,
        mode=mode,
        strategy="multi" if path in ("multi", "decompose") else "single",
        multihop="decompose" if path == "decompose" else "ircot",
        escalate=4 if path == "escalate" else 0,
        where=where or {},
        max_hops=3,
    )
    graph = build({"where": {"source": "users/{user}/*"}})
    state, shown = asyncio.run(stream(graph, context, as_user(user)))
    assert foreign(shown, user) == []
    wanted = parse_where(where)
    assert all(matches(each, wanted) for each in state["evidence"])
    assert all(each["source"].startswith(f"users/{user}/") for each in state["evidence"])
    if where is None:
        assert state["evidence"]
        assert state["citations"]


@pytest.mark.parametrize("strategy", ["single", "multi"])
async def test_no_run_over_a_store_shows_a_passage_of_another_user(
    store: str, strategy: Any
) -> None:
    graph = build({"where": {"source": "users/{user}/*"}})
    for user in ("ann", "*", "[ab]*", "50%", "an_"):
        context = Context(index=store, strategy=strategy, where={"source": "users/*"}, top_k=50)
        state, shown = await stream(graph, context, as_user(user))
        assert foreign(shown, user) == []
        assert state["evidence"]


async def test_a_retriever_that_cannot_filter_is_refused_before_any_call() -> None:
    model, own = TalkingModel(say=say), FixedRetriever([hit("A", "b")])
    graph = build(retriever=own, model=model)
    with pytest.raises(ValueError, match=r"where \(title\) is not available with a FixedRetriever"):
        await graph.ainvoke({"question": "Why?"}, context=Context(where={"title": "A"}))
    assert (model.prompts, own.queries) == ([], [])
    assert await graph.ainvoke({"question": "Why?"}, context=Context())


async def test_a_retriever_that_ignores_the_filter_shows_nothing_more() -> None:
    own = Careless([])
    graph = build(retriever=own)
    context = Context(strategy="multi", where={"source": "users/ann/*"}, hop_k=50)
    state, shown = await stream(graph, context, as_user(None))
    assert foreign(shown, "ann") == []
    assert len(state["evidence"]) == len(TOPICS)
    assert "('source', ('users/ann/*',))" in own.queries[0]


# Limits

BOUND = {"where": {"source": "users/{user}/*"}}


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({}, "where is {}; give at least one field"),
        (None, "where is None; give at least one field"),
        (["a"], "where is .*use a mapping"),
        ({"date": {"from": "x"}}, "where.date is "),
        ({"source": "users/{user}*"}, r"use {user} as a whole name between slashes"),
        ({"source": "*/{user}/*"}, r"without \*, \? or \[ before it, such as users/{user}/\*"),
        ({"source": ["public/*", "[a]/{user}"]}, "use {user} as a whole name"),
    ],
)
def test_a_wrong_limit_of_the_filter_is_named(where: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Limits.parse({"where": where})


def test_a_limit_is_added_to_the_requests_filter() -> None:
    limits = Limits.parse({"where": {"source": ["public/*", "users/{user}/*"]}, "max_hops": 2})
    limited = limits.apply(Context(where={"source": "*.md"}), "ann")
    assert limited.where == (("source", ("*.md",)), ("source", ("public/*", "users/ann/*")))
    assert limited.max_hops == 2
    assert limits.apply(Context(), "*").where == (("source", ("public/*", "users/[*]/*")),)
    by_group = Limits.parse({"where": {"groups": ["{user}", "public"], "size": {"to": 9}}})
    assert by_group.apply(Context(), "ann").where == parse_where(
        {"groups": ["ann", "public"], "size": {"to": 9}}
    )
    with pytest.raises(ValueError, match="no authenticated user"):
        by_group.apply(Context())
    by_title = Limits.parse({"where": {"title": "Notes of {user}"}})
    assert by_title.apply(Context(), "a/*").where == (("title", ("Notes of a/*",)),)


@pytest.mark.parametrize("user", [None, ""])
@pytest.mark.parametrize("strategy", ["none", "single", "multi"])
async def test_a_run_without_a_user_is_refused(user: str | None, strategy: Any) -> None:
    model = TalkingModel(say=say)
    refused = "limits where.source to 'users/{user}/[*]', and this run has no authenticated user"
    for config in (as_user(user), {}, {"configurable": {"langgraph_auth_user": {"identity": "x"}}}):
        with pytest.raises(ValueError, match=refused):
            await build(BOUND, model=model).ainvoke(
                {"question": "Why?"}, config, context=Context(strategy=strategy)
            )
    assert model.prompts == []


@pytest.mark.parametrize("user", ["ann/private", "/", ".."])
def test_a_user_whose_name_is_a_path_is_refused(user: str) -> None:
    with pytest.raises(ValueError, match="cannot name a folder: use names without /"):
        Limits.parse(BOUND).apply(Context(), user)


name = st.text(min_size=1, max_size=6) | st.text("ab*?[]!-./{}user", min_size=1, max_size=6)


@given(user=name, other=name, rest=st.text(max_size=8))
@example("*", "x", "y")
@example("[ab]", "a", "")
@example("ann", "ann/x", "")
def test_no_passage_matches_for_two_users(user: str, other: str, rest: str) -> None:
    def allowed(name: str) -> Filter:
        try:
            return parse_where(Limits.parse(BOUND).apply(Context(), name).where)
        except ValueError:  # refused
            return (("source", ()),)

    source = {"source": f"users/{user}/{rest}"}
    if "/" not in user and user not in (".", ".."):
        assert matches(source, allowed(user))
    assert not (
        user != other and matches(source, allowed(user)) and matches(source, allowed(other))
    )


@pytest.mark.parametrize("after", ["start", "gate", "route"])
@pytest.mark.parametrize("strategy", ["single", "multi"])
async def test_a_resumed_run_is_bound_to_its_user(index: str, after: str, strategy: Any) -> None:
    graph = build(BOUND, checkpointer=InMemorySaver())
    context = Context(index=index, strategy=strategy, where={"source": "*"})
    question = {"question": "What does the note about the lamp say?"}
    await graph.ainvoke(question, as_user("ann"), context=context, interrupt_after=[after])
    with pytest.raises(ValueError, match="no authenticated user"):
        await graph.ainvoke(None, as_user(None), context=context)
    wider = Context(index=index, strategy=strategy, where={"source": ["users/*", "public/*"]})
    state = await graph.ainvoke(None, as_user("ann"), context=wider)
    assert foreign([state, await history(graph)], "ann") == []
    assert state["citations"]


async def history(graph: Any) -> list[Any]:
    """Return all stored states, those of the loop included."""
    found: list[Any] = [step async for step in graph.aget_state_history(as_user(None))]
    for step in [*found]:
        for task in step.tasks:
            if task.state:
                found += [each async for each in graph.aget_state_history(task.state)]
    return [each.values for each in found]


async def test_a_fork_is_bound_to_its_user(index: str) -> None:
    graph = build(BOUND, checkpointer=InMemorySaver())
    context = Context(index=index, strategy="multi", max_hops=3)
    await graph.ainvoke({"question": "What about the lamp?"}, as_user("ann"), context=context)
    first = (await hops(graph, as_user("ann")))[0]
    for strategy in ("multi", "single"):
        config = await fork(graph, first, query="secret note of bob", strategy=strategy)
        config["configurable"] |= as_user("ann")["configurable"]
        wide = Context(index=index, top_k=50, hop_k=50, where={"source": "users/*"})
        await graph.ainvoke(None, config, context=wide)
        state = (await graph.aget_state(as_user("ann"))).values
        assert foreign([state, await history(graph)], "ann") == []
        assert len(state["evidence"]) == len(TOPICS)
        config["configurable"]["langgraph_auth_user"] = None
        with pytest.raises(ValueError, match="no authenticated user"):
            await graph.ainvoke(None, config, context=context)


# Commands


@pytest.mark.parametrize("command", [["label"], ["eval", "qa", "--strategies", "single,multi"]])
def test_an_evaluation_searches_with_the_filter(
    run: Callable[..., Ran], fake: FakeOpenAI, index: str, tmp_path: Path, command: list[str]
) -> None:
    replies = {"reason": "The lamp of the ferry.", "answer": "It says so [1].", "direct": "x"}
    fake.answers(by_task(**replies))
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "What does the note of bob say?", "answer": "x"}\n')
    questions = "--questions" if command == ["label"] else "--data"
    where = ("--where", "source=users/ann/*", "--where", "source=users/anna/lamp.md")
    options = ("--model", "openai:fake", "--index", index, "--out", tmp_path / "out")
    ran = run(*command, questions, rows, *options, *where)
    assert ran.code == 0, ran.err
    asked = json.dumps([request["messages"] for request in fake.requests])
    assert secret("anna", 2) in asked
    assert secret("ann", 2) in asked
    assert foreign(asked.replace(secret("anna", 2), ""), "ann") == []
    changed = run(*command, questions, rows, *options, "--where", "source=users/bob/*")
    assert changed.code == 2
    assert "where" in changed.err


# A server

TOKENS = {"ann": "ann-4c1d9e7b", "bob": "bob-7a20f3c5"}
ASKED = {"question": "What does the secret note of bob about the lamp say?"}


@pytest.fixture(scope="module")
def server(
    index: str, _fake_server: FakeOpenAI, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A `langgraph dev` whose users search only their own passages."""
    folder = tmp_path_factory.mktemp("bound")
    auth = {"path": "hopgate.server.auth:auth", "disable_studio_auth": True}
    config = json.loads(CONFIG.read_text(encoding="utf-8")) | {"auth": auth}
    (folder / "langgraph.json").write_text(json.dumps(config), encoding="utf-8")
    env = {
        "HOPGATE_TOKENS": json.dumps({tokens.digest(each): user for user, each in TOKENS.items()}),
        "HOPGATE_LIMITS": json.dumps({**BOUND, "index": [index]}),
        "OPENAI_API_KEY": "sk-server",
        "OPENAI_BASE_URL": _fake_server.base_url,
    }
    with start(folder, config=folder / "langgraph.json", env=env) as server:
        yield server


@pytest.fixture
def served(server: Server, fake: FakeOpenAI) -> Server:
    """The server, with a model that retrieves, searches again and cites."""
    replies = {"reason": "The lamp of the ferry.", "answer": "It says so [1].", "direct": "x"}
    fake.answers(by_task(gate="[Yes]", condense=ASKED["question"], **replies))
    return server


def headers(user: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKENS[user]}"}


def client(server: Server, user: str) -> LangGraphClient:
    return get_client(url=server.url, api_key=None, headers=headers(user))


async def everything(of: LangGraphClient, thread: str, **run: Any) -> list[Any]:
    """Return all that a run streams, and all that its thread stores."""
    parts = of.runs.stream(
        thread,
        "hopgate",
        stream_mode=["values", "updates", "custom", "messages", "debug"],
        stream_subgraphs=True,
        **run,
    )
    shown = [(part.event, part.data) async for part in parts]
    state = await of.threads.get_state(thread, subgraphs=True)
    return [shown, state, await of.threads.get_history(thread, limit=100)]


FORGED = {"langgraph_auth_user": {"identity": "bob"}, "langgraph_auth_user_id": "bob"}


async def test_no_request_to_a_server_gets_another_users_passages(served: Server) -> None:
    ann = client(served, "ann")
    context = {"model": "openai:fake", "strategy": "single", "top_k": 50}
    thread = (await ann.threads.create())["thread_id"]
    shown = await everything(
        ann, thread, input=ASKED, context=context | {"where": {"source": "users/bob/*"}}
    )
    assert foreign(shown, "ann") == []
    assert (await ann.threads.get_state(thread))["values"]["evidence"] == []
    for forged in (FORGED, {"where": {"source": "users/bob/*"}}):
        with suppress(httpx.HTTPStatusError):
            shown.append(
                await everything(ann, thread, input=ASKED, config={"configurable": forged})
            )
        with suppress(httpx.HTTPStatusError):
            shown.append(await everything(ann, thread, input=ASKED, context=context | forged))
    await ann.runs.wait(
        thread,
        "hopgate",
        input=ASKED,
        context=context,  # type: ignore[arg-type]
        interrupt_before=["route"],
    )
    edit = {"standalone": ASKED["question"], "decision": {"strategy": "multi"}}
    with pytest.raises(Exception, match="'where' is not a key of the state"):
        await ann.threads.update_state(thread, {**edit, "where": {}}, as_node="route")
    edited = await ann.threads.update_state(thread, edit, as_node="route")
    checkpoint = edited["checkpoint"] | FORGED  # type: ignore[operator]
    for at in (checkpoint, None):
        with suppress(httpx.HTTPStatusError):
            shown.append(await everything(ann, thread, checkpoint=at, input=None, context=context))
    with suppress(httpx.HTTPStatusError):
        jump = {"goto": {"node": "retrieve", "input": {**edit, **FORGED}}}
        shown.append(await everything(ann, thread, command=jump, context=context))
    assert foreign(shown, "ann") == []
    assert "users/ann/" in json.dumps(shown)


async def test_a_servers_tools_are_bound_to_the_user_too(served: Server) -> None:
    params = {"name": "hopgate", "arguments": {**ASKED}}
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    accept = {"Accept": "application/json, text/event-stream"}
    async with httpx.AsyncClient(base_url=served.url, timeout=60, follow_redirects=True) as web:
        response = await web.post("/mcp", json=request, headers=headers("ann") | accept)
    assert "users/ann/lamp.md" in response.text
    assert foreign(response.text, "ann") == []
