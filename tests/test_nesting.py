"""A graph's own name and settings, and hopgate inside another graph."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from doubles import LIGHT, FixedRetriever, FixedRouter, by_task
from fake_openai import FakeOpenAI
from langchain_core._api import LangChainBetaWarning
from langgraph.graph import START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from typing_extensions import TypedDict

from hopgate import Context, build_graph
from hopgate.graphs.compiled import AdaptiveGraph

QUESTION = "Who designed Skerrane Light?"
OWN = Context(alpha=0.9, gate="never", model="openai:own")


def build(**options: Any) -> AdaptiveGraph:
    return build_graph(retriever=FixedRetriever([LIGHT]), router=FixedRouter("B"), **options)


async def settings(graph: AdaptiveGraph, fake: FakeOpenAI, context: Any = None) -> tuple[Any, ...]:
    """The α, the gate's mode and the model of a run."""
    fake.answers(by_task(gate="[No]", direct="x", answer="x"))
    result = await graph.ainvoke({"question": QUESTION}, context=context)
    decision = result["decision"]
    return decision["alpha"], decision["gate"]["mode"], decision["model"]


# A graph's own settings


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (None, (0.9, "never", "openai:own")),
        (Context(), (0.9, "never", "openai:own")),
        (Context(alpha=0.2), (0.2, "never", "openai:own")),
        (Context(alpha=0.7), (0.7, "never", "openai:own")),  # given, though it is the default
        ({"gate": "always"}, (0.9, "always", "openai:own")),
    ],
)
async def test_a_request_replaces_only_the_settings_that_it_gives(
    fake: FakeOpenAI, given: Any, found: tuple[Any, ...]
) -> None:
    assert await settings(build(context=OWN), fake, given) == found


async def test_a_copy_of_the_graph_keeps_its_settings_which_its_schema_shows(
    fake: FakeOpenAI,
) -> None:
    graph = build(context=OWN, name="handbook").with_config(tags=["mine"])
    assert await settings(graph, fake) == (0.9, "never", "openai:own")
    fields = graph.get_context_jsonschema()["properties"]
    defaults = [fields[name]["default"] for name in ("alpha", "gate", "top_k")]
    assert (graph.name, defaults) == ("handbook", [0.9, "never", Context().top_k])
    assert build().get_context_jsonschema()["properties"]["alpha"]["default"] == Context().alpha


# Inside another graph


class Turn(TypedDict):
    question: str
    answer: str


@dataclass
class Tone:
    """The settings of another graph; `alpha` means something else there."""

    alpha: float = 9.0


class Both(Context):
    """Hopgate's settings and another graph's."""

    tone: str = "plain"


def outer(inner: AdaptiveGraph, schema: Any) -> CompiledStateGraph[Any, Any, Any, Any]:
    builder = StateGraph(Turn, context_schema=schema)
    builder.add_node("inner", inner)
    builder.add_edge(START, "inner")
    return builder.compile()


@pytest.mark.parametrize(
    ("schema", "given"), [(Tone, Tone()), (Tone, {"alpha": 9}), (None, {"alpha": 9})]
)
async def test_the_context_of_another_graph_is_ignored(
    fake: FakeOpenAI, schema: Any, given: Any
) -> None:
    fake.answers(by_task(direct="Ilsabet Corrane"))
    result = await outer(build(context=OWN), schema).ainvoke({"question": QUESTION}, context=given)
    assert result["answer"] == "Ilsabet Corrane"
    assert fake.requests[0]["model"] == "own"


async def test_a_context_that_extends_hopgate_s_reaches_it(fake: FakeOpenAI) -> None:
    fake.answers(by_task(direct="x"))
    graph = outer(build(context=OWN), Both)
    await graph.ainvoke({"question": QUESTION}, context=Both(model="openai:theirs", tone="loud"))
    await graph.ainvoke({"question": QUESTION}, context={"model": "openai:dict"})
    assert [body["model"] for body in fake.requests] == ["theirs", "dict"]


# As a tool


@pytest.mark.parametrize("given", [{"question": QUESTION}, QUESTION])
async def test_the_graph_is_a_tool_that_takes_a_question(fake: FakeOpenAI, given: Any) -> None:
    tool = build(name="lights", context=Context(strategy="single", model="openai:own")).as_tool()
    assert (tool.name, list(tool.args)) == ("lights", ["question"])
    assert "question" in tool.description
    fake.answers(by_task(answer="Ilsabet Corrane [1]"))
    for result in (await tool.ainvoke(given), tool.invoke(given)):
        assert "Ilsabet Corrane" in result["answer"]
        assert [each["id"] for each in result["citations"]] == [LIGHT["id"]]
        assert result["warnings"] == []


async def test_an_agent_calls_the_tool_and_reads_json(fake: FakeOpenAI) -> None:
    tool = build(context=Context(strategy="single")).as_tool(description="Look it up.")
    fake.answers(by_task(answer="Ilsabet Corrane [1]"))
    call = {"name": "hopgate", "args": {"question": QUESTION}, "id": "1", "type": "tool_call"}
    message = await tool.ainvoke(call)
    assert json.loads(message.content)["citations"][0]["title"] == "Skerrane Light"
    assert tool.description == "Look it up."


def test_a_tool_with_a_schema_of_one_s_own_is_langchain_s(fake: FakeOpenAI) -> None:
    with pytest.warns(LangChainBetaWarning):
        tool = build(context=Context(strategy="single")).as_tool(arg_types={"question": str})
    fake.answers(by_task(answer="Ilsabet Corrane [1]"))
    assert tool.invoke({"question": QUESTION})["hops"]
