"""hopgate as LangChain's parts: a retriever, a tool, and middleware of agents."""

from typing import Any

import pytest
from doubles import (
    CORRANE,
    FERRY,
    LIGHT,
    BreakingRetriever,
    FixedRetriever,
    FixedRouter,
    by_task,
    task,
)
from fake_openai import FakeOpenAI
from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.retrievers import BaseRetriever
from langchain_core.tools import BaseTool, tool
from langchain_tests.integration_tests import RetrieversIntegrationTests, ToolsIntegrationTests
from langchain_tests.unit_tests import ToolsUnitTests
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import Field, ValidationError

from hopgate import AdaptiveMiddleware, AdaptiveRetriever, Context, build_graph
from hopgate.graphs.compiled import AdaptiveGraph
from hopgate.nodes.prompts import templates as prompts
from hopgate.nodes.texts.message import kind_of
from hopgate.retrievers.base import Hit

QUESTION = "In what year was Skerrane Light first lit?"
BORN = "Where was the designer of Skerrane Light born?"
FACT = "Skerrane Light was designed by Ilsabet Corrane."
THREAD: Any = {"configurable": {"thread_id": "1"}}


def build(*found: list[Hit], label: str = "B", **more: Any) -> AdaptiveGraph:
    parts: dict[str, Any] = {"retriever": FixedRetriever(*found), "router": FixedRouter(label)}
    return build_graph(**parts | more)


def tasks(fake: FakeOpenAI) -> list[str]:
    """The nodes that asked the model."""
    return [task(request["messages"]) for request in fake.requests]


# LangChain's standard tests


class TestRetrieverStandard(RetrieversIntegrationTests):
    """With the real gate of the embedded model, the real router and the sample index."""

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return AdaptiveRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"context": Context(model="local:smollm2")}

    @property
    def retriever_query_example(self) -> str:
        return QUESTION


class ExampleTool:
    """The tool that both standard suites test."""

    @property
    def tool_constructor(self) -> BaseTool:
        return build_graph(context=Context(model="local:smollm2", gate="never")).as_tool()

    @property
    def tool_invoke_params_example(self) -> dict[str, Any]:
        return {"question": "What is the capital of Japan?"}


class TestToolStandard(ExampleTool, ToolsUnitTests):
    pass


class TestToolStandardRuns(ExampleTool, ToolsIntegrationTests):
    pass


# The retriever


def test_it_finds_nothing_if_the_gate_decides_against_a_search(fake: FakeOpenAI) -> None:
    fake.answers(by_task(gate="[No]"))
    graph = build([LIGHT])
    assert AdaptiveRetriever(graph=graph).invoke("What is the capital of Japan?") == []
    assert graph.resources.retriever.queries == []  # type: ignore[union-attr]
    assert tasks(fake) == ["gate"]


async def test_it_searches_in_hops_and_never_answers(fake: FakeOpenAI) -> None:
    said: dict[str, Any] = {"gate": "[Yes]", "reason": [FACT, "So the answer is: Lissmere."]}
    fake.answers(by_task(**said))
    retriever = AdaptiveRetriever(graph=build([LIGHT], [CORRANE], label="C"))
    found = await retriever.ainvoke(BORN)
    assert {each.metadata["title"] for each in found} == {"Skerrane Light", "Ilsabet Corrane"}
    assert tasks(fake) == ["gate", "reason", "reason"]


def test_documents_say_where_they_come_from() -> None:
    hit = Hit(**{**LIGHT, "source": "lights.pdf", "page": 3, "section": "Reefs"})
    context = Context(strategy="single")
    (found,) = AdaptiveRetriever(graph=build([hit]), context=context).invoke(QUESTION)
    assert (found.id, found.page_content) == (LIGHT["id"], LIGHT["text"])
    assert found.metadata == {
        **{"title": "Skerrane Light", "score": 0.5},
        **{"source": "lights.pdf", "page": 3, "section": "Reefs"},
    }


def test_a_search_that_fails_is_an_error_not_an_empty_result() -> None:
    graph = build_graph(retriever=BreakingRetriever([LIGHT]), router=FixedRouter("B"))
    retriever = AdaptiveRetriever(graph=graph, context=Context(strategy="single"))
    with pytest.raises(RuntimeError, match=r"^the retriever failed: the vector store is down$"):
        retriever.invoke(QUESTION)


@pytest.mark.parametrize("k", [0, 51])
def test_k_has_a_range(k: int) -> None:
    with pytest.raises(ValidationError, match="k"):
        AdaptiveRetriever(k=k)
    with pytest.raises(ValidationError, match="top_k"):
        AdaptiveRetriever(context=Context(strategy="single")).invoke(QUESTION, k=k)


def test_its_settings_add_to_those_of_the_graph(fake: FakeOpenAI) -> None:
    graph = build([LIGHT, CORRANE, FERRY], context=Context(gate="always", top_k=2))
    assert len(AdaptiveRetriever(graph=graph).invoke(QUESTION)) == 2
    assert len(AdaptiveRetriever(graph=graph, context=Context(top_k=1)).invoke(QUESTION)) == 1
    assert len(AdaptiveRetriever(graph=graph, k=3).invoke(QUESTION)) == 3
    assert not fake.requests


# The middleware


class AgentModel(BaseChatModel):
    """A FAKE model of an agent: it records each prompt, and replies with the next message."""

    replies: list[AIMessage]
    prompts: list[list[BaseMessage]] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "agent"

    def bind_tools(self, tools: Any, **_: Any) -> "AgentModel":
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        self.prompts.append(messages)
        reply = self.replies[len(self.prompts) - 1]
        return ChatResult(generations=[ChatGeneration(message=reply)])


def agent(graph: AdaptiveGraph, *said: str | AIMessage, **options: Any) -> tuple[Any, AgentModel]:
    """An agent with the middleware, and its model."""
    model = AgentModel(
        replies=[AIMessage(each) if isinstance(each, str) else each for each in said]
    )
    middleware = AdaptiveMiddleware(graph)
    return create_agent(model, middleware=[middleware], **options), model


def asked(text: Any) -> dict[str, Any]:
    return {"messages": [HumanMessage(text)]}


CALL = AIMessage("", tool_calls=[{"name": "clock", "args": {}, "id": "call-1"}])


@tool
def clock() -> str:
    """Tell the time."""
    return "It is noon."


async def test_the_passages_stand_below_the_user_s_message_as_data(fake: FakeOpenAI) -> None:
    fake.answers(by_task(gate="[Yes]"))
    graph, model = agent(build([LIGHT, FERRY]), "In 1858 [1].", system_prompt="Be brief.")
    result = await graph.ainvoke(asked(QUESTION))
    ((system, human),) = model.prompts
    assert system.text == "Be brief."
    assert isinstance(human, HumanMessage)
    below = human.text.removeprefix(f"{QUESTION}\n\n")
    assert below.startswith(prompts.FOUND)
    assert f"[1] Skerrane Light\n{LIGHT['text']}" in below
    assert f"[2] Ondrith Maid\n{FERRY['text']}" in below
    assert [each.text for each in result["messages"]] == [QUESTION, "In 1858 [1]."]
    assert result["hopgate"]["evidence"] == [LIGHT, FERRY]
    assert result["hopgate"]["decision"]["strategy"] == "single"
    assert tasks(fake) == ["gate"]


def test_a_message_that_needs_no_search_reaches_the_model_as_it_is(fake: FakeOpenAI) -> None:
    fake.answers(by_task(gate="[No]"))
    graph, model = agent(build([LIGHT]), "Tokyo")
    result = graph.invoke(asked("What is the capital of Japan?"))
    assert [each.text for each in model.prompts[0]] == ["What is the capital of Japan?"]
    assert result["hopgate"]["evidence"] == []
    assert result["hopgate"]["decision"]["gate"]["answer"] == "no"


@pytest.mark.parametrize("is_async", [True, False])
async def test_it_retrieves_once_for_a_message_however_often_the_model_is_called(
    fake: FakeOpenAI, is_async: bool
) -> None:
    fake.answers(by_task(gate="[Yes]"))
    hopgate = build([LIGHT])
    graph, model = agent(hopgate, CALL, "In 1858.", tools=[clock])
    await graph.ainvoke(asked(QUESTION)) if is_async else graph.invoke(asked(QUESTION))
    first, second = model.prompts
    assert LIGHT["text"] in first[0].text and LIGHT["text"] in second[0].text
    assert [type(each) for each in second] == [HumanMessage, AIMessage, ToolMessage]
    assert hopgate.resources.retriever.queries == [QUESTION]  # type: ignore[union-attr]


async def test_a_follow_up_is_understood_without_the_tools_talk(fake: FakeOpenAI) -> None:
    asked_for = list[str]()

    def condensed(prompt: str) -> str:
        asked_for.append(prompt)
        return "Who designed Skerrane Light?"

    fake.answers(by_task(gate="[Yes]", condense=condensed))
    hopgate = build([LIGHT], [CORRANE])
    said = (CALL, "In 1858.", "Ilsabet Corrane.")
    graph, model = agent(hopgate, *said, tools=[clock], checkpointer=InMemorySaver())
    await graph.ainvoke(asked(QUESTION), THREAD)
    result = await graph.ainvoke(asked("And who designed it?"), THREAD)
    assert hopgate.resources.retriever.queries == [  # type: ignore[union-attr]
        QUESTION,
        "Who designed Skerrane Light?",
    ]
    assert f"Question: {QUESTION}\nAnswer: In 1858." in asked_for[0]
    assert "noon" not in asked_for[0]
    assert LIGHT["text"] not in str(model.prompts[-1])  # of the turn before
    assert CORRANE["text"] in model.prompts[-1][-1].text
    assert result["hopgate"]["standalone"] == "Who designed Skerrane Light?"


@pytest.mark.parametrize(
    "given", [None, {"messages": [ToolMessage("It is noon.", tool_call_id="call-1")]}]
)
async def test_a_turn_that_is_resumed_keeps_its_passages_and_does_not_search_again(
    fake: FakeOpenAI, given: Any
) -> None:
    fake.answers(by_task(gate="[Yes]"))
    hopgate = build([LIGHT])
    options = {"checkpointer": InMemorySaver(), "interrupt_before": ["tools"], "tools": [clock]}
    graph, model = agent(hopgate, CALL, "In 1858.", **options)
    await graph.ainvoke(asked(QUESTION), THREAD)
    result = await graph.ainvoke(given, THREAD)
    assert result["messages"][-1].text == "In 1858."
    assert LIGHT["text"] in model.prompts[-1][0].text
    assert hopgate.resources.retriever.queries == [QUESTION]  # type: ignore[union-attr]


async def test_images_and_other_parts_of_a_message_stay(fake: FakeOpenAI) -> None:
    fake.answers(by_task(gate="[Yes]"))
    graph, model = agent(build([LIGHT]), "In 1858.")
    parts = [
        {"type": "text", "text": QUESTION},
        {"type": "image", "url": "https://127.0.0.1/light.png"},
    ]
    await graph.ainvoke(asked(parts))
    content = model.prompts[0][0].content
    assert content[:2] == parts
    assert LIGHT["text"] in content[2]["text"]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Summarise this: " + "x " * 4000, "task"),
        ([{"type": "image", "url": "https://127.0.0.1/a"}], None),
    ],
)
async def test_a_message_that_is_not_a_question_is_left_alone(
    fake: FakeOpenAI, text: Any, kind: str | None
) -> None:
    graph, model = agent(build([LIGHT]), "Done.")
    result = await graph.ainvoke(asked(text))
    assert model.prompts[0][0].content == text
    decided = result["hopgate"]
    assert (decided and kind_of(decided["decision"])) == kind
    assert not fake.requests


async def test_a_search_that_fails_is_named_and_the_agent_answers(fake: FakeOpenAI) -> None:
    fake.answers(by_task(gate="[Yes]"))
    graph, model = agent(build(retriever=BreakingRetriever([LIGHT])), "I do not know.")
    result = await graph.ainvoke(asked(QUESTION))
    assert model.prompts[0][0].text == QUESTION
    assert "the retriever failed" in result["hopgate"]["decision"]["warnings"][0]
