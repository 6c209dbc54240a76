"""The main graph: its drawing, every path, conversations, faults, edits and events."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from doubles import (
    CORRANE,
    FERRY,
    LIGHT,
    BreakingRetriever,
    FixedRetriever,
    FixedRouter,
    TalkingModel,
    by_task,
    task,
)
from fake_openai import COMPLETION_TOKENS, PROMPT_TOKENS, FakeOpenAI, Reply
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph.state import CompiledStateGraph
from pydantic import ValidationError

from hopgate import Context, build_graph, graph
from hopgate.common.errors import explain
from hopgate.models.chat import ModelError
from hopgate.nodes.route import _log_once
from hopgate.nodes.run.limits import Limits
from hopgate.retrievers.base import Hit

QUESTION = "Where was the designer of Skerrane Light born?"
FACT = "Skerrane Light was designed by Ilsabet Corrane."
TWO_HOPS: dict[str, Any] = {
    "reason": [FACT, "So the answer is: Lissmere."],
    "answer": "Lissmere [1]",
}
Saver = BaseCheckpointSaver[str]
THREAD: Any = {"configurable": {"thread_id": "1"}}


def build(
    label: str = "B", retriever: FixedRetriever | None = None, checkpointer: Saver | None = None
) -> CompiledStateGraph[Any, Context, Any, Any]:
    return build_graph(
        checkpointer,
        router=FixedRouter(label),
        retriever=retriever or FixedRetriever([LIGHT], [CORRANE]),
    )


@pytest.fixture
async def saver(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Saver]:
    if getattr(request, "param", "memory") == "memory":
        yield InMemorySaver()
    else:
        async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "t.sqlite")) as sqlite:
            yield sqlite


memory_and_sqlite = pytest.mark.parametrize("saver", ["memory", "sqlite"], indirect=True)


# The drawing


def test_the_drawing_shows_the_designed_nodes_and_edges() -> None:
    drawn = graph.get_graph(xray=True)
    edges = {(edge.source, edge.target, edge.conditional) for edge in drawn.edges}
    assert edges == {
        ("__start__", "start", False),
        ("start", "condense", True),
        ("start", "gate", True),
        ("condense", "gate", False),
        ("gate", "route", True),
        ("gate", "generate", True),
        ("route", "generate", True),
        ("route", "retrieve", True),
        ("route", "multihop:__start__", True),
        ("retrieve", "generate", False),
        ("multihop:__start__", "multihop:retrieve", True),
        ("multihop:__start__", "multihop:decompose", True),
        ("multihop:__start__", "multihop:reason", True),
        ("multihop:decompose", "multihop:retrieve", True),
        ("multihop:decompose", "multihop:__end__", True),
        ("multihop:retrieve", "multihop:reason", True),
        ("multihop:retrieve", "multihop:sub_answer", True),
        ("multihop:retrieve", "multihop:__end__", True),
        ("multihop:reason", "multihop:retrieve", True),
        ("multihop:reason", "multihop:__end__", True),
        ("multihop:sub_answer", "multihop:retrieve", True),
        ("multihop:sub_answer", "multihop:__end__", True),
        ("multihop:__end__", "generate", False),
        ("generate", "__end__", True),
        ("generate", "escalate", True),
        ("escalate", "retrieve", True),
        ("escalate", "multihop:__start__", True),
    }
    assert "subgraph multihop" in drawn.draw_mermaid()
    assert (graph.name, graph.checkpointer) == ("hopgate", None)


def test_the_schema_of_the_settings_is_generated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A LangGraph server asks for it at every run."""
    first = graph.get_context_jsonschema()
    monkeypatch.setattr(Context, "model_json_schema", None)
    assert first == graph.get_context_jsonschema()
    assert first and set(first["properties"]) == {*Context.model_fields}
    first["properties"]["alpha"].clear()
    again = graph.get_context_jsonschema()
    assert again and again["properties"]["alpha"]["anyOf"][0]["maximum"] == 1


# The paths


async def test_a_no_from_the_gate_answers_directly_without_routing(fake: FakeOpenAI) -> None:
    fake.answers(by_task(gate="[No]", direct="Tokyo"))
    retriever = FixedRetriever([FERRY])
    router = FixedRouter("C")
    result = await build_graph(router=router, retriever=retriever).ainvoke({"question": QUESTION})
    assert result["answer"] == "Tokyo"
    assert result["citations"] == result["hops"] == []
    assert router.calls == retriever.queries == []
    decision = result["decision"]
    assert decision["gate"]["answer"] == "no"
    assert decision["route"] is None
    assert decision["strategy"] == "none"
    assert decision["stop_reason"] is None
    assert decision["answered"] is True
    assert decision["warnings"] == []
    assert set(result["usage"]["ms"]) == {"start", "gate", "generate"}


async def test_a_single_retrieval_answers_with_its_source(fake: FakeOpenAI) -> None:
    fake.answers(by_task(gate="[Yes]", answer="Ilsabet Corrane [1]"))
    retriever = FixedRetriever([LIGHT, FERRY, CORRANE])
    context = Context(top_k=2)
    result = await build("B", retriever).ainvoke({"question": QUESTION}, context=context)
    assert retriever.queries == [QUESTION]
    assert result["hops"] == [
        {"query": QUESTION, "passage_ids": [LIGHT["id"], FERRY["id"]], "thought": ""}
    ]
    assert result["citations"][0] == {
        "id": LIGHT["id"],
        "number": 1,
        "title": "Skerrane Light",
        "quote": "Skerrane Light was designed by Ilsabet Corrane.",
    }
    assert result["decision"]["strategy"] == "single"
    assert result["decision"]["stop_reason"] is None


async def test_each_hop_searches_for_the_last_thought(fake: FakeOpenAI) -> None:
    fake.answers(by_task(gate="[Yes]", **TWO_HOPS))
    retriever, router = FixedRetriever([LIGHT], [CORRANE]), FixedRouter("C")
    graph = build_graph(router=router, retriever=retriever)
    result = await graph.ainvoke({"question": QUESTION}, context=Context(alpha=0.7))
    assert retriever.queries == [QUESTION, FACT]
    assert router.calls == [(QUESTION, 0.7)]
    assert [hop["thought"] for hop in result["hops"]] == TWO_HOPS["reason"]
    assert result["answer"] == "Lissmere [1]"
    assert [each["title"] for each in result["citations"]] == ["Ilsabet Corrane"]
    assert result["decision"]["stop_reason"] == "answered"
    route = result["decision"]["route"]
    assert (route["label"], route["alpha"]) == ("C", 0.7)
    assert "C is the likeliest" in route["reason"]


ROUTED: list[tuple[str, dict[str, Any], str, str]] = [
    ("A", {}, "B", "single"),  # the gate says Yes
    ("B", {}, "B", "single"),
    ("C", {}, "C", "multi"),
    ("A", {"gate": "off"}, "A", "none"),  # Flare-Aug: the router alone
    ("A", {"gate": "always", "alpha": 1}, "B", "single"),
]


@pytest.mark.parametrize(("likeliest", "settings", "label", "strategy"), ROUTED)
async def test_label_a_becomes_b_if_retrieval_is_required(
    fake: FakeOpenAI, likeliest: str, settings: dict[str, Any], label: str, strategy: str
) -> None:
    fake.answers(by_task(gate="[Yes]", direct="x", **TWO_HOPS))
    context = Context(**settings)
    result = await build(likeliest).ainvoke({"question": QUESTION}, context=context)
    assert result["decision"]["route"]["label"] == label
    assert result["decision"]["strategy"] == strategy
    assert (result["usage"]["retrieval_steps"] > 0) == (strategy != "none")


@pytest.mark.parametrize(("strategy", "steps"), [("none", 0), ("single", 1), ("multi", 2)])
async def test_a_forced_strategy_skips_gate_and_router(
    fake: FakeOpenAI, strategy: Any, steps: int
) -> None:
    fake.answers(by_task(direct="x", **TWO_HOPS))
    router = FixedRouter("A")
    graph = build_graph(router=router, retriever=FixedRetriever([LIGHT], [CORRANE]))
    result = await graph.ainvoke({"question": QUESTION}, context=Context(strategy=strategy))
    assert router.calls == []
    assert result["decision"]["gate"]["answer"] == "skipped"
    assert result["decision"]["route"]["source"] == "forced"
    assert result["decision"]["strategy"] == strategy
    assert result["usage"]["retrieval_steps"] == steps


# Usage


@pytest.mark.parametrize("label", ["A", "B", "C"])
async def test_usage_counts_every_request_and_its_tokens(fake: FakeOpenAI, label: str) -> None:
    fake.answers(by_task(gate="[Yes]", **TWO_HOPS))
    usage = (await build(label).ainvoke({"question": QUESTION}))["usage"]
    assert usage["llm_calls"] == len(fake.requests)
    assert usage["prompt_tokens"] == PROMPT_TOKENS * len(fake.requests)
    assert usage["completion_tokens"] == COMPLETION_TOKENS * len(fake.requests)
    visited = {"start", "gate", "route", "retrieve", "generate"}
    assert set(usage["ms"]) == visited | ({"reason"} if label == "C" else set())
    assert all(ms >= 0 for ms in usage["ms"].values())


# Turns of a conversation


@memory_and_sqlite
async def test_a_follow_up_is_condensed_with_one_call(fake: FakeOpenAI, saver: Saver) -> None:
    retriever = FixedRetriever([LIGHT])
    graph = build("B", retriever, saver)
    fake.answers(by_task(gate="[Yes]", answer="Ilsabet Corrane [1]"))
    await graph.ainvoke({"question": "Who designed Skerrane Light?"}, THREAD)
    fake.requests.clear()
    standalone = "When was Skerrane Light lit?"
    fake.answers(by_task(condense=standalone, gate="[Yes]", answer="1858 [1]"))
    result = await graph.ainvoke({"question": "And when was it lit?"}, THREAD)
    assert "Who designed Skerrane Light?" in fake.prompts[0]
    assert "Ilsabet Corrane" in fake.prompts[0]
    assert "And when was it lit?" in fake.prompts[0]
    assert retriever.queries[-1] == standalone
    assert f"Question: {standalone}" in fake.prompts[1]
    assert [said["content"] for said in fake.requests[2]["messages"][1:3]] == [
        "Who designed Skerrane Light?",
        "Ilsabet Corrane",
    ]
    assert fake.prompts[2].endswith("And when was it lit?")
    assert result["usage"]["llm_calls"] == len(fake.requests) == 3
    assert "condense" in result["usage"]["ms"]
    state = (await graph.aget_state(THREAD)).values
    assert (state["original_question"], state["standalone"]) == ("And when was it lit?", standalone)


@memory_and_sqlite
async def test_a_new_turn_resets_the_state_of_the_last_one(fake: FakeOpenAI, saver: Saver) -> None:
    graph = build("C", BreakingRetriever([LIGHT], at=2), saver)
    fake.answers(by_task(gate="[Yes]", reason=[FACT], answer="x [9]"))
    first = await graph.ainvoke({"question": QUESTION}, THREAD)
    assert first["decision"]["stop_reason"] == "retriever_failed"
    assert first["decision"]["warnings"]
    fake.answers(by_task(condense="What is the capital of Japan?", gate="[No]", direct="Tokyo"))
    second = await graph.ainvoke({"question": "And of Japan?"}, THREAD)
    alone = await build().ainvoke({"question": "What is the capital of Japan?"})
    assert second["decision"] == alone["decision"]
    assert second["hops"] == second["citations"] == []
    state = (await graph.aget_state(THREAD)).values
    assert state["evidence"] == []
    assert second["usage"]["retrieval_steps"] == 0
    assert second["usage"]["llm_calls"] == 3


def transcript(messages: list[BaseMessage]) -> list[tuple[str, str]]:
    return [(message.type, message.text) for message in messages]


@memory_and_sqlite
async def test_one_conversation_can_mix_questions_and_messages(
    fake: FakeOpenAI, saver: Saver
) -> None:
    graph = build(checkpointer=saver)
    fake.answers(by_task(condense=lambda prompt: f"{prompt.count('?')}?", gate="[No]", direct="x"))
    await graph.ainvoke({"question": "One?"}, THREAD)
    await graph.ainvoke({"messages": [HumanMessage("Two?")]}, THREAD)
    result = await graph.ainvoke({"question": "Three?"}, THREAD)
    assert transcript(result["messages"]) == [
        ("human", "One?"),
        ("ai", "x"),
        ("human", "Two?"),
        ("ai", "x"),
        ("human", "Three?"),
        ("ai", "x"),
    ]
    assert (await graph.aget_state(THREAD)).values["original_question"] == "Three?"


@pytest.mark.parametrize("following", [{"messages": [HumanMessage("Two?")]}, {"question": "Two?"}])
async def test_a_conversation_continues_after_a_refused_message(
    fake: FakeOpenAI, saver: Saver, following: dict[str, Any]
) -> None:
    retriever, limits = FixedRetriever([LIGHT]), Limits(message_chars=100)
    graph = build_graph(saver, router=FixedRouter("B"), retriever=retriever, limits=limits)
    fake.answers(by_task(gate="[No]", direct="x"))
    with pytest.raises(ValueError, match="the message has 101 characters"):
        await graph.ainvoke({"messages": [HumanMessage("x" * 101)]}, THREAD)
    result = await graph.ainvoke(following, THREAD)
    assert transcript(result["messages"])[-2:] == [("human", "Two?"), ("ai", "x")]
    assert len(fake.requests) == 2  # nothing to condense: no earlier turn was answered


@pytest.mark.parametrize(
    "bad", [{"question": ""}, {"question": "  "}, {"question": "x\ud800"}, {"messages": []}]
)
async def test_a_bad_question_is_refused_before_any_call(
    fake: FakeOpenAI, bad: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="question"):
        await build().ainvoke(bad)
    assert fake.requests == []


# Checkpoints and edits


@memory_and_sqlite
async def test_every_checkpoint_is_plain_json(fake: FakeOpenAI, saver: Saver, key: str) -> None:
    graph = build("C", checkpointer=saver)
    fake.answers(by_task(gate="[Yes]", **TWO_HOPS))
    await graph.ainvoke({"question": QUESTION}, THREAD)
    history = [state async for state in graph.aget_state_history(THREAD)]
    assert [state.next for state in history][::-1] == [
        ("__start__",),
        ("start",),
        ("gate",),
        ("route",),
        ("multihop",),
        ("generate",),
        (),
    ]
    for state in history:
        values = dict(state.values)
        values["messages"] = [message.model_dump() for message in values.get("messages", [])]
        assert json.loads(json.dumps(values, allow_nan=False)) == values
    raw = [json.dumps(point.checkpoint, default=str) async for point in saver.alist(None)]
    assert len(raw) > len(history)  # the loop's own steps are there too
    assert not any(key in each for each in raw)


@memory_and_sqlite
@pytest.mark.parametrize(
    ("edited", "node"), [("none", "generate"), ("single", "retrieve"), ("multi", "multihop")]
)
async def test_a_strategy_edited_at_route_is_followed(
    fake: FakeOpenAI, saver: Saver, edited: str, node: str
) -> None:
    graph = build("B", checkpointer=saver)
    fake.answers(by_task(gate="[Yes]", direct="Tokyo", **TWO_HOPS))
    await graph.ainvoke({"question": QUESTION}, THREAD, interrupt_after=["route"])
    before = await graph.aget_state(THREAD)
    assert before.next == ("retrieve",)
    await graph.aupdate_state(THREAD, {"decision": {"strategy": edited}})
    after = await graph.aget_state(THREAD)
    assert after.next == (node,)
    assert after.values["decision"]["route"] == before.values["decision"]["route"]
    result = await graph.ainvoke(None, THREAD)
    assert result["decision"]["strategy"] == edited
    assert result["usage"]["retrieval_steps"] == {"none": 0, "single": 1, "multi": 2}[edited]


async def test_a_finished_conversation_can_be_edited_and_continued(
    fake: FakeOpenAI, saver: Saver
) -> None:
    graph = build("B", checkpointer=saver)
    fake.answers(by_task(gate="[Yes]", answer="Ilsabet Corrane [1]"))
    await graph.ainvoke({"question": QUESTION}, THREAD)
    await graph.aupdate_state(THREAD, {"answer": "Lissmere"})
    edited = await graph.aget_state(THREAD)
    assert (edited.values["answer"], edited.next) == ("Lissmere", ())
    fake.answers(by_task(condense="Who was she?", gate="[No]", direct="A surveyor"))
    result = await graph.ainvoke({"question": "Who?"}, THREAD)
    assert result["answer"] == "A surveyor"
    assert len(result["messages"]) == 4


@pytest.mark.parametrize(
    ("where", "edit", "searched"),
    [
        ({"interrupt_before": ["route"]}, {}, "Who drew it?"),  # the request resumes with decompose
        ({"interrupt_after": ["route"]}, {}, QUESTION),  # too late: ircot is in the state
        ({"interrupt_after": ["route"]}, {"multihop": "decompose"}, "Who drew it?"),
    ],
)
async def test_the_loops_mode_is_decided_at_route(
    fake: FakeOpenAI, saver: Saver, where: Any, edit: dict[str, Any], searched: str
) -> None:
    retriever = FixedRetriever([LIGHT])
    graph = build("C", retriever, saver)
    replies = {"reason": "So the answer is: x.", "sub_answer": "x", "answer": "x"}
    fake.answers(by_task(gate="[Yes]", decompose="1. Who drew it?", **replies))
    await graph.ainvoke({"question": QUESTION}, THREAD, **where)
    if edit:
        await graph.aupdate_state(THREAD, {"decision": edit})
    await graph.ainvoke(None, THREAD, context=Context(multihop="decompose"))
    assert retriever.queries == [searched]


# Faults


BAD_CONTEXTS: list[tuple[dict[str, Any], list[str]]] = [
    ({"alpha": 1.5, "max_hops": 0}, ["alpha is 1.5", "less than or equal to 1", "max_hops is 0"]),
    ({"alpha": float("nan")}, ["alpha", "nan", "finite"]),
    ({"strategy": "deep"}, ["strategy", "'deep'", "'none', 'single' or 'multi'"]),
    ({"top_k": 2.5}, ["top_k", "2.5", "integer"]),
    ({"today": "tomorrow"}, ["today", "'tomorrow'", "date"]),
    ({"alhpa": 0.5}, ["alhpa", "0.5", "not permitted"]),
    ({"gate_demos": 3}, ["gate_demos", "3", "multiple of 2"]),
    ({"timezone": "Berlin"}, ["timezone", "'Berlin'", "Europe/Berlin"]),
]


@pytest.mark.parametrize(("bad", "parts"), BAD_CONTEXTS)
async def test_a_bad_context_names_the_field_its_value_and_the_allowed_values(
    fake: FakeOpenAI, bad: dict[str, Any], parts: list[str]
) -> None:
    with pytest.raises(ValidationError) as caught:
        await build().ainvoke({"question": QUESTION}, context=bad)
    assert isinstance(caught.value, ValueError)
    line = explain(caught.value)
    assert "\n" not in line
    assert all(part in line for part in parts), line
    assert fake.requests == []


SYSTEM = "Answer in German."


@pytest.mark.parametrize("layout", ["inline", "turns"])
@pytest.mark.parametrize("verdict", ["[No]", "[Yes]"])
async def test_a_system_message_shapes_the_answer_and_nothing_else(
    fake: FakeOpenAI, layout: Any, verdict: str
) -> None:
    fake.answers(
        by_task(gate=verdict, condense="Who drew it?", direct="Sie", answer="Sie [1]", reason="x.")
    )
    graph = build("C", retriever=FixedRetriever([LIGHT]), checkpointer=InMemorySaver())
    context = Context(layout=layout)
    for question in (QUESTION, "Who?"):  # clients may send it again with each turn
        messages: Any = [("system", SYSTEM), ("user", question)]
        await graph.ainvoke({"messages": messages}, THREAD, context=context)
    counts = [
        (task(body["messages"]), str(body["messages"]).count(SYSTEM)) for body in fake.requests
    ]
    assert all(count == (name in ("direct", "answer")) for name, count in counts), counts
    assert {name for name, _ in counts} > {"gate", "condense"}


async def test_the_app_s_instructions_come_before_system_messages(fake: FakeOpenAI) -> None:
    sure = Reply("Lissmere", logprobs=[{"Lissmere": -0.001}])
    fake.says(sure, "In Lissmere")
    graph = build_graph(instructions="Be brief.", router=FixedRouter("B"))
    messages: Any = [("system", SYSTEM), ("user", QUESTION)]
    result = await graph.ainvoke({"messages": messages}, context=Context(gate="draft"))
    assert result["answer"] == "In Lissmere"
    draft, answer = fake.prompts
    assert "Be brief." not in draft
    assert f"Be brief.\n\n{SYSTEM}" in answer


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
WITH_IMAGE: Any = [HumanMessage([{"type": "text", "text": QUESTION}, IMAGE])]


async def test_an_image_reaches_the_answer_and_nothing_else(fake: FakeOpenAI) -> None:
    fake.answers(by_task(gate="[No]", direct="x"))
    result = await build().ainvoke({"messages": WITH_IMAGE})
    gate, answer = fake.requests
    assert "base64" not in str(gate)
    assert answer["messages"][-1]["content"] == [{"type": "text", "text": QUESTION}, IMAGE]
    assert result["decision"]["warnings"] == []


async def test_a_model_that_reads_no_images_gets_the_text_alone() -> None:
    model = TalkingModel(say=lambda *_: "A light", profile={"image_inputs": False})
    graph = build_graph(model=model, retriever=FixedRetriever([LIGHT]), router=FixedRouter("A"))
    result = await graph.ainvoke({"messages": WITH_IMAGE}, context=Context(strategy="none"))
    assert result["answer"] == "A light"
    (warning,) = result["decision"]["warnings"]
    assert warning == "TalkingModel reads no images or files: it got the text alone"


async def test_an_image_without_text_is_answered_without_a_search(fake: FakeOpenAI) -> None:
    fake.says("A lighthouse")
    result = await build().ainvoke({"messages": [HumanMessage([IMAGE])]})
    assert result["decision"]["gate"]["mode"] == "rules"
    assert fake.requests[0]["messages"][-1]["content"] == [IMAGE]


@pytest.mark.parametrize(
    ("model", "profile", "knows"),
    [("qwen3", "auto", False), ("gpt-4o", "auto", True), ("qwen3", "gpt-4o", True)],
)
async def test_a_model_that_the_router_does_not_know_is_named_once_in_the_log(
    fake: FakeOpenAI,
    caplog: pytest.LogCaptureFixture,
    model: str,
    profile: str,
    knows: bool,
) -> None:
    _log_once.cache_clear()
    fake.answers(by_task(gate="[Yes]", reason="The answer is: Corrane.", answer="Corrane [1]"))
    graph = build_graph(retriever=FixedRetriever([LIGHT]))
    context = Context(model=f"openai:{model}", profile=profile)
    for _ in range(2):
        decision = (await graph.ainvoke({"question": QUESTION}, context=context))["decision"]
        assert decision["route"]["profile"] == ("gpt-4o" if knows else "flan-t5-xl")
        assert decision["warnings"] == []
    assert caplog.text.count("takes it for flan-t5-xl") == (not knows)


def test_a_model_s_name_is_refused_at_once() -> None:
    name: Any = "gpt-4o"
    with pytest.raises(ValueError, match=r"Context\(model=\"openai:gpt-4o\"\)"):
        build_graph(model=name)


async def test_a_retriever_may_search_asynchronously_on_the_app_s_loop(fake: FakeOpenAI) -> None:
    loops = []

    class Own:
        async def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
            loops.append(asyncio.get_running_loop())
            return [[LIGHT] for _ in queries]

    own: Any = Own()
    fake.answers(by_task(gate="[Yes]", answer="Ilsabet Corrane [1]"))
    graph = build_graph(retriever=own, router=FixedRouter("B"))
    result = await graph.ainvoke({"question": QUESTION})
    assert [each["id"] for each in result["citations"]] == [LIGHT["id"]]
    assert {*loops} == {asyncio.get_running_loop()}
    with pytest.raises(ValueError, match="give its search a parameter `where`"):
        await graph.ainvoke({"question": QUESTION}, context=Context(where={"page": 1}))


async def test_a_missing_index_is_refused_before_any_call(fake: FakeOpenAI, tmp_path: Path) -> None:
    graph = build_graph(router=FixedRouter("B"))
    context = Context(index=str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"nowhere: build one with `hopgate index build`"):
        await graph.ainvoke({"question": QUESTION}, context=context)
    assert fake.requests == []


async def test_a_failing_retriever_gives_an_answer_without_sources(fake: FakeOpenAI) -> None:
    fake.answers(by_task(gate="[Yes]", direct="Lissmere"))
    result = await build("B", BreakingRetriever([])).ainvoke({"question": QUESTION})
    assert (result["answer"], result["citations"]) == ("Lissmere", [])
    (warning,) = result["decision"]["warnings"]
    assert "the vector store is down" in warning
    assert "without sources" in warning


async def test_a_retriever_that_fails_late_keeps_earlier_passages(fake: FakeOpenAI) -> None:
    fake.answers(by_task(gate="[Yes]", reason=[FACT], answer="Ilsabet Corrane [1]"))
    result = await build("C", BreakingRetriever([LIGHT], at=2)).ainvoke({"question": QUESTION})
    assert [each["title"] for each in result["citations"]] == ["Skerrane Light"]
    assert result["decision"]["stop_reason"] == "retriever_failed"
    assert "hop 2" in result["decision"]["warnings"][0]
    assert len(result["hops"]) == 2


@pytest.mark.parametrize("down", ["gate", "reason", "answer"])
async def test_a_model_failure_names_its_endpoint(fake: FakeOpenAI, down: str) -> None:
    replies: dict[str, Any] = {"gate": "[Yes]", **TWO_HOPS, down: Reply(status=401)}
    fake.answers(by_task(**replies))
    with pytest.raises(ModelError, match=fake.base_url):
        await build("C").ainvoke({"question": QUESTION})


async def test_a_follow_up_resumes_after_a_model_failure_in_condense(
    fake: FakeOpenAI, saver: Saver
) -> None:
    graph = build("B", checkpointer=saver)
    fake.answers(by_task(gate="[No]", direct="Corrane"))
    await graph.ainvoke({"question": "Who drew it?"}, THREAD)
    fake.answers(lambda _: Reply(status=401))
    with pytest.raises(ModelError):
        await graph.ainvoke({"question": "And when?"}, THREAD)
    fake.answers(by_task(condense="When did Corrane draw it?", gate="[No]", direct="1858"))
    result = await graph.ainvoke(None, THREAD)
    assert result["answer"] == "1858"
    assert [text for _, text in transcript(result["messages"])][2:] == ["And when?", "1858"]


# Edits by hand, and odd inputs


@pytest.mark.parametrize(
    ("edit", "hops", "label", "reason"),
    [
        ({"gate": {"retrieve": True}}, 1, "B", "A is the likeliest, but the gate decided"),
        ({"strategy": "multi"}, 2, "C", "the strategy was set in the state"),
    ],
)
async def test_a_no_from_the_gate_can_be_edited(
    fake: FakeOpenAI, saver: Saver, edit: Any, hops: int, label: str, reason: str
) -> None:
    graph = build("A", checkpointer=saver)
    fake.answers(by_task(gate="[No]", **TWO_HOPS))
    await graph.ainvoke({"question": QUESTION}, THREAD, interrupt_after=["gate"])
    await graph.aupdate_state(THREAD, {"decision": edit})
    result = await graph.ainvoke(None, THREAD)
    decision = result["decision"]
    assert (decision["route"]["label"], len(result["hops"])) == (label, hops)
    assert decision["route"]["reason"].startswith(reason)
    assert decision["gate"]["answer"] == "no"  # the model's own reply is kept


@pytest.mark.parametrize("messages", [[], [AIMessage("hello")]])
async def test_input_without_a_new_question_is_refused(
    fake: FakeOpenAI, saver: Saver, messages: list[BaseMessage]
) -> None:
    graph = build(checkpointer=saver)
    fake.answers(by_task(gate="[No]", direct="x"))
    await graph.ainvoke({"question": "One?"}, THREAD)
    requests = len(fake.requests)
    with pytest.raises(ValueError, match="no new question"):
        await graph.ainvoke({"messages": messages}, THREAD)
    assert len(fake.requests) == requests


async def test_an_empty_search_result_adds_a_warning(fake: FakeOpenAI) -> None:
    fake.answers(by_task(direct="Paris"))
    for strategy in ("single", "multi"):
        result = await build(retriever=FixedRetriever([])).ainvoke(
            {"question": QUESTION}, context=Context(strategy=strategy)
        )
        warnings = result["decision"]["warnings"]
        assert warnings == ["nothing was found; answered without sources"]


# The draft gate, with edits between its decision and the answer

DRAFT = Context(gate="draft", gate_threshold=0.2)


def draft_script(certain: bool, **replies: Any) -> Any:
    tops = [{"Tokyo": -0.01}] if certain else [{"Tokyo": -0.7, "Kyoto": -0.7}]
    return by_task(direct=Reply("Tokyo", logprobs=tops), **replies)


@pytest.mark.parametrize(("retrieve", "answer"), [(True, "Corrane [1]"), (False, "Tokyo")])
async def test_a_draft_is_the_answer_unless_the_gate_is_edited_to_retrieve(
    fake: FakeOpenAI, saver: Saver, retrieve: bool, answer: str
) -> None:
    fake.answers(draft_script(certain=retrieve, answer="Corrane [1]"))
    graph = build("A", checkpointer=saver)
    await graph.ainvoke({"question": QUESTION}, THREAD, context=DRAFT, interrupt_after=["gate"])
    await graph.aupdate_state(THREAD, {"decision": {"gate": {"retrieve": retrieve}}})
    result = await graph.ainvoke(None, THREAD, context=DRAFT)
    assert (result["answer"], len(result["hops"])) == (answer, int(retrieve))
    assert result["usage"]["llm_calls"] == len(fake.requests) == 1 + retrieve


@memory_and_sqlite
async def test_a_draft_is_dropped_with_the_next_turn(fake: FakeOpenAI, saver: Saver) -> None:
    graph = build(checkpointer=saver)
    fake.answers(draft_script(True, condense=QUESTION))
    await graph.ainvoke({"question": QUESTION}, THREAD, context=DRAFT)
    fake.answers(by_task(condense=QUESTION, direct="Kyoto"))
    result = await graph.ainvoke({"question": "Sure?"}, THREAD, context=Context(gate="never"))
    assert result["answer"] == "Kyoto"
    state = (await graph.aget_state(THREAD)).values
    assert state["draft"] is None


@pytest.mark.parametrize("certain", [True, False])
async def test_a_draft_is_streamed_only_if_it_becomes_the_answer(
    fake: FakeOpenAI, certain: bool
) -> None:
    fake.answers(draft_script(certain, answer="Corrane [1]"))
    stream = build("B").astream({"question": QUESTION}, context=DRAFT, stream_mode="messages")
    tokens = [message.text async for message, _ in stream if message.type != "human"]
    assert "".join(tokens) == ("Tokyo" if certain else "Corrane [1]")
