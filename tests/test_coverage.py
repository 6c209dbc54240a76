"""Looking at the collection before deciding: what it covers is searched, the rest is not."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from doubles import FixedRetriever, FixedRouter, by_task
from fake_openai import FakeOpenAI
from indexing import edit_manifest
from langgraph.checkpoint.memory import InMemorySaver

from hopgate import Context, build_graph
from hopgate.classifiers.labels import LabelRow
from hopgate.classifiers.training.dials import cheapest_alpha
from hopgate.common.strategies import Strategy
from hopgate.graphs.compiled import AdaptiveGraph
from hopgate.nodes.run.runtime import NodeRuntime
from hopgate.retrievers.base import Hit, make_passage
from hopgate.retrievers.building import add_passages, build_from_passages
from hopgate.retrievers.coverage import Look, background_of
from hopgate.retrievers.filters import filtered, matches
from hopgate.retrievers.index.manifest import info
from hopgate.retrievers.sources import open_source

QUESTION = "In what year was Skerry Light first lit?"
LIGHT = Hit(id="light", title="Skerry Light", text="It was first lit in 1811.", score=1.0)
PASSAGES = [
    make_passage("Skerry Light", "It was first lit in 1811.", "lights.md"),
    make_passage("Ferry", "It crosses to the mainland twice a day.", "ferry.md"),
    *(make_passage(f"Note {n}", f"Remark {n} on tides and harbours.") for n in range(20)),
]
NAMES = tuple(f"n{number}" for number in range(30))


class Covering(FixedRetriever):
    """A retriever that says that a share of unrelated questions score lower."""

    def __init__(self, share: float) -> None:
        super().__init__([LIGHT])
        self.share, self.looks = share, 0

    def look(self, queries: Sequence[str], k: int) -> list[Look]:
        self.looks += 1
        background = [0.0] * round(100 * self.share) + [2.0] * round(100 - 100 * self.share)
        return [Look([LIGHT], 1.0, background) for _ in queries]


def graph(share: float, label: str = "B", **more: Any) -> tuple[AdaptiveGraph, Covering]:
    retriever = Covering(share)
    return build_graph(retriever=retriever, router=FixedRouter(label), **more), retriever


# The gate


@pytest.mark.parametrize(
    ("share", "label", "alpha", "mode", "strategy"),
    [
        (1.0, "A", 0.0, "coverage", "single"),  # whatever the router believes
        (0.9, "A", 0.0, "router", "none"),
        (0.9, "A", 0.5, "coverage", "single"),
        (0.6, "B", 0.5, "coverage", "none"),
        (0.6, "B", 1.0, "ta-are", "single"),
        (0.7, "A", 0.5, "router", "none"),
        (0.7, "B", 0.5, "ta-are", "single"),
        (0.0, "C", 1.0, "coverage", "none"),
    ],
)
async def test_what_is_plain_is_decided_without_a_call(
    fake: FakeOpenAI, share: float, label: str, alpha: float, mode: str, strategy: str
) -> None:
    fake.answers(by_task(gate="[Yes]", answer="In 1811 [1].", direct="In 1811."))
    app, retriever = graph(share, label)
    result = await app.ainvoke({"question": QUESTION}, context=Context(alpha=alpha))
    decision = result["decision"]
    assert (decision["gate"]["mode"], decision["strategy"]) == (mode, strategy)
    assert decision["gate"]["coverage"] == {"score": 1.0, "share": share}
    assert result["usage"]["llm_calls"] == 1 + (mode == "ta-are")
    assert (retriever.looks, retriever.queries) == (1, [])  # what was found is used
    assert result["usage"]["retrieval_steps"] == (strategy == "single")


async def test_the_loop_s_first_hop_uses_what_was_found(fake: FakeOpenAI) -> None:
    fake.answers(by_task(reason="So the answer is: 1811.", answer="In 1811 [1]."))
    app, retriever = graph(1.0, "C")
    result = await app.ainvoke({"question": QUESTION})
    assert result["decision"]["strategy"] == "multi"
    assert (retriever.queries, result["usage"]["retrieval_steps"]) == ([], 1)
    assert result["usage"]["llm_calls"] == 2  # n + 1


async def test_another_filter_is_searched_anew(fake: FakeOpenAI) -> None:
    """A run that stopped after the look, and goes on with other settings."""
    fake.answers(by_task(answer="In 1811 [1]."))
    app, retriever = graph(1.0, checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "1"}}
    await app.ainvoke({"question": QUESTION}, thread, interrupt_after=["gate"])
    await app.ainvoke(None, thread, context=Context(mode="bm25"))
    assert retriever.queries == [QUESTION]
    assert (await app.aget_state(thread)).values["looked"] is None


@pytest.mark.parametrize("settings", [{"gate": "ta-are"}, {"strategy": "single"}, {"gate": "off"}])
async def test_a_request_that_decides_itself_is_not_looked_at(
    fake: FakeOpenAI, settings: Any
) -> None:
    fake.answers(by_task(gate="[Yes]", answer="In 1811 [1]."))
    app, retriever = graph(0.0)
    await app.ainvoke({"question": QUESTION}, context=Context(**settings))
    assert (retriever.looks, retriever.queries) == (0, [QUESTION])


async def test_a_retriever_that_does_not_say_leaves_it_to_the_model(fake: FakeOpenAI) -> None:
    fake.answers(by_task(gate="[No]", direct="In 1811."))
    retriever = FixedRetriever([LIGHT])
    app = build_graph(retriever=retriever, router=FixedRouter("B"))
    result = await app.ainvoke({"question": QUESTION})
    assert retriever.queries == []
    assert result["decision"]["gate"]["mode"] == "ta-are"
    assert result["decision"]["gate"]["coverage"] is None


async def test_an_unmeasured_collection_is_searched_once(fake: FakeOpenAI) -> None:
    fake.answers(by_task(gate="[Yes]", answer="In 1811 [1]."))
    app, retriever = graph(0.0)
    retriever.look = lambda queries, k: [Look([LIGHT]) for _ in queries]  # type: ignore[method-assign]
    result = await app.ainvoke({"question": QUESTION})
    assert result["decision"]["gate"]["mode"] == "ta-are"
    assert (retriever.queries, result["usage"]["retrieval_steps"]) == ([], 1)


async def test_the_web_is_never_looked_at() -> None:
    assert await NodeRuntime(Context(index="web:wikipedia")).look(QUESTION) is None


async def test_a_question_in_another_language_is_not_taken_for_uncovered(fake: FakeOpenAI) -> None:
    fake.answers(by_task(gate="[No]", direct="1811."))
    context = Context(model="openai:fake", profile="gpt-4o", alpha=0.5)
    app = build_graph(retriever=Covering(0.0))
    asked = {"question": "Wann wurde das Leuchtfeuer zum ersten Mal entzündet?"}
    result = await app.ainvoke(asked, context=context)
    assert result["decision"]["gate"]["mode"] == "ta-are"


async def test_a_model_that_the_router_guesses_is_asked(fake: FakeOpenAI) -> None:
    fake.answers(by_task(gate="[No]", direct="1811."))
    for model, mode in (("openai:unknown", "ta-are"), ("openai:gpt-4o", "router")):
        app = build_graph(retriever=Covering(0.75))
        context = Context(model=model, alpha=0.2)
        result = await app.ainvoke({"question": "Who wrote Hamlet?"}, context=context)
        assert result["decision"]["gate"]["mode"] == mode


# The index


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("coverage") / "index"
    build_from_passages(PASSAGES, folder, language="en")
    return folder


def test_an_index_knows_what_unrelated_questions_score(index: Path) -> None:
    background = info(index)["background"]
    assert len(background) == 48 and background == sorted(background)
    about, chatter = open_source(str(index)).look([QUESTION, "Tell me a joke."], 3)  # type: ignore[attr-defined]
    assert about.share == 1 and chatter.share < 0.9
    own = open_source(str(index)).search([QUESTION], 3)[0]
    assert [hit["id"] for hit in about.hits] == [hit["id"] for hit in own]
    (dense,) = open_source(str(index), "dense").search([QUESTION], 1)
    assert about.score == pytest.approx(dense[0]["score"])


def test_a_filter_looks_at_its_passages_alone(index: Path) -> None:
    retriever = filtered(open_source(str(index)), {"source": "ferry.md"})
    (found,) = retriever.look([QUESTION], 5)  # type: ignore[attr-defined]
    assert found.share < 1
    assert all(matches(hit, (("source", ("ferry.md",)),)) for hit in found.hits)


def test_the_background_is_measured_again_for_another_collection(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    build_from_passages(PASSAGES, folder, language="en")
    first = info(folder)["background"]
    add_passages([make_passage("One", "One more remark.")], folder)
    assert info(folder)["background"] == first
    more = [
        make_passage(f"Country {n}", f"The capital of country {n} is Ville {n}.") for n in NAMES
    ]
    add_passages(more, folder)
    assert info(folder)["background"] != first


def test_an_index_of_before_is_measured_at_its_next_change(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    build_from_passages(PASSAGES, folder, language="en")
    edit_manifest(folder, lambda manifest: manifest.pop("background"))
    (found,) = open_source(str(folder)).look([QUESTION], 1)  # type: ignore[attr-defined]
    assert found.hits and found.share is None
    add_passages(PASSAGES[:1], folder)
    assert len(info(folder)["background"]) == 48


def test_where_the_encoder_does_not_know_the_language_scores_say_nothing() -> None:
    assert background_of({"mode": "bm25", "background": [0.1]}) == []
    assert background_of({"mode": "hybrid"}) == []


# The default α


@pytest.mark.parametrize(
    ("rows", "rising", "expected"), [(3, True, 0.6), (3, False, 1), (1, True, 0)]
)
def test_the_cheapest_alpha_loses_nothing_against_one_search(
    rows: int, rising: bool, expected: float
) -> None:
    class Rising:
        def route(self, questions: Any, alpha: float) -> list[dict[str, float]]:
            labels = "A" + ("B" if rising and alpha >= 0.3 else "A")
            labels += "B" if rising and alpha >= 0.6 else "A"
            found = [dict.fromkeys("ABC", 0.0) | {label: 1.0} for label in labels]
            return found[: len(questions)]

    right: list[frozenset[Strategy]] = [
        frozenset({"none", "single", "multi"}),
        frozenset({"single", "multi"}),
        frozenset({"single"}),
    ]
    labelled = [LabelRow(str(at), "?", "", "A", each) for at, each in enumerate(right[:rows])]
    assert cheapest_alpha(Rising(), labelled) == expected


async def test_a_request_without_alpha_has_the_profile_s_own(fake: FakeOpenAI) -> None:
    context = Context(model="openai:gpt-4o")
    assert await NodeRuntime(context.model_copy(update={"profile": "local-smollm2"})).alpha() == 0.6
    assert await NodeRuntime(context).alpha() == 0
    assert await NodeRuntime(Context(alpha=0.9)).alpha() == 0.9
