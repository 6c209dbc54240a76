"""Escalation: an answer in doubt sends the turn one strategy deeper."""

from typing import Any

import pytest
from doubles import CORRANE, FERRY, LIGHT, Clock, FixedRetriever, FixedRouter, TalkingModel, by_task
from fake_openai import FakeOpenAI

from hopgate import Context, build_graph

QUESTION = "Where was the designer of Skerrane Light born?"
FACT = "Skerrane Light was designed by Ilsabet Corrane."
UNKNOWN = "I don't know"
THREAD: Any = {"configurable": {"thread_id": "1"}}


async def ask(retriever: FixedRetriever, context: Context, label: str = "B") -> dict[str, Any]:
    graph = build_graph(router=FixedRouter(label), retriever=retriever)
    result: dict[str, Any] = await graph.ainvoke({"question": QUESTION}, context=context)
    return result


async def test_an_unknown_direct_answer_leads_to_a_search(fake: FakeOpenAI) -> None:
    fake.answers(by_task(gate="[No]", direct=UNKNOWN, answer="Lissmere [1]"))
    result = await ask(FixedRetriever([CORRANE]), Context(escalate=3))
    assert result["answer"] == "Lissmere [1]"
    decision = result["decision"]
    assert decision["strategy"] == "single"
    assert decision["escalated"] == [
        {"from": "none", "to": "single", "reason": "the model does not know the answer"}
    ]
    assert decision["doubt"] is None
    assert decision["warnings"] == []
    assert [message.text for message in result["messages"]] == [QUESTION, "Lissmere [1]"]
    assert result["usage"]["retrieval_steps"] == 1
    assert result["usage"]["llm_calls"] == len(fake.requests) == 3


async def test_the_withdrawn_answer_s_warnings_are_dropped(fake: FakeOpenAI) -> None:
    fake.answers(
        by_task(gate="[Yes]", answer=["Peru [9]", "Lissmere [1]"], reason="The answer is.")
    )
    result = await ask(FixedRetriever([CORRANE]), Context(escalate=2))
    assert result["decision"]["escalated"]
    assert result["decision"]["warnings"] == []


async def test_the_loop_continues_from_the_single_search(fake: FakeOpenAI) -> None:
    script = by_task(
        gate="[Yes]", answer=[UNKNOWN, "Lissmere [1]"], reason=[FACT, "So the answer is: Lissmere."]
    )
    fake.answers(script)
    retriever = FixedRetriever([LIGHT], [CORRANE])
    result = await ask(retriever, Context(escalate=3))
    assert result["answer"] == "Lissmere [1]"
    assert retriever.queries == [QUESTION, FACT]
    assert [hop["thought"] for hop in result["hops"]] == [FACT, "So the answer is: Lissmere."]
    assert result["decision"]["stop_reason"] == "answered"
    assert [step["to"] for step in result["decision"]["escalated"]] == ["multi"]


async def test_escalation_goes_from_none_to_single_to_multi(fake: FakeOpenAI) -> None:
    script = by_task(
        gate="[No]", direct=UNKNOWN, answer=[UNKNOWN, "Lissmere [1]"], reason=[FACT, "It is so."]
    )
    fake.answers(script)
    result = await ask(FixedRetriever([LIGHT], [CORRANE], [FERRY]), Context(escalate=2))
    assert [step["to"] for step in result["decision"]["escalated"]] == ["single", "multi"]
    assert result["usage"]["retrieval_steps"] == 2
    assert result["decision"]["stop_reason"] == "hop_limit"


async def test_unsupported_citations_escalate(fake: FakeOpenAI) -> None:
    script = by_task(
        gate="[Yes]", answer=["Vossberg [1]", "Lissmere [1]"], reason="So the answer is: Lissmere."
    )
    fake.answers(script)
    result = await ask(FixedRetriever([CORRANE]), Context(escalate=2))
    (step,) = result["decision"]["escalated"]
    assert step["reason"] == "[1] does not support “Vossberg”"
    assert result["answer"] == "Lissmere [1]"


async def test_decompose_starts_with_no_hops_after_an_escalation(fake: FakeOpenAI) -> None:
    script = by_task(
        gate="[Yes]",
        answer=[UNKNOWN, "Lissmere [1]"],
        decompose="1. Who designed Skerrane Light?\n2. Where was {1} born?",
        sub_answer=["Ilsabet Corrane", "Lissmere"],
    )
    fake.answers(script)
    retriever = FixedRetriever([FERRY], [LIGHT], [CORRANE])
    result = await ask(retriever, Context(escalate=5, multihop="decompose"))
    assert [hop["query"] for hop in result["hops"]] == [
        "Who designed Skerrane Light?",
        "Where was Ilsabet Corrane born?",
    ]
    assert result["usage"]["retrieval_steps"] == 3
    assert result["answer"] == "Lissmere [1]"


@pytest.mark.parametrize(
    ("settings", "label"),
    [
        ({}, "B"),
        ({"escalate": 1}, "B"),
        ({"escalate": 5, "strategy": "single"}, "B"),
        ({"escalate": 5}, "C"),
    ],
    ids=["off", "budget used up", "strategy forced", "already multi"],
)
async def test_no_escalation(fake: FakeOpenAI, settings: dict[str, Any], label: str) -> None:
    fake.answers(by_task(gate="[Yes]", answer=UNKNOWN, reason="So the answer is: nothing."))
    result = await ask(FixedRetriever([CORRANE]), Context(**settings), label)
    assert result["answer"] == UNKNOWN
    assert result["decision"]["escalated"] == []
    assert result["decision"]["doubt"] == "the model does not know the answer"


@pytest.mark.parametrize(("label", "searches"), [("A", 0), ("B", 1)])
async def test_no_escalation_after_the_deadline(label: str, searches: int) -> None:
    clock, retriever = Clock(), FixedRetriever([CORRANE])

    def say(*_: Any) -> str:
        clock.advance(10)
        return UNKNOWN

    model, router = TalkingModel(say=say), FixedRouter(label)
    graph = build_graph(model=model, router=router, retriever=retriever, clock=clock)
    context = Context(gate="off", escalate=5, max_seconds=13)
    result = await graph.ainvoke({"question": QUESTION}, context=context)
    assert (len(model.prompts), len(retriever.queries)) == (1, searches)
    assert result["decision"]["escalated"] == []


async def test_a_search_that_found_nothing_is_not_repeated(fake: FakeOpenAI) -> None:
    fake.answers(by_task(gate="[Yes]", direct=UNKNOWN))
    retriever = FixedRetriever([])
    await ask(retriever, Context(escalate=5))
    assert retriever.queries == [QUESTION]


async def test_the_stream_announces_an_escalation_between_the_two_answers(fake: FakeOpenAI) -> None:
    fake.answers(by_task(gate="[No]", direct=UNKNOWN, answer="Lissmere [1]"))
    graph = build_graph(router=FixedRouter("B"), retriever=FixedRetriever([CORRANE]))
    stream = graph.astream(
        {"question": QUESTION}, context=Context(escalate=2), stream_mode="custom"
    )
    events = [event async for event in stream]
    answer = ["answering", "answer"]
    assert [event["event"] for event in events] == ["gate", *answer, "escalate", "hop", *answer]
    assert events[3]["to"] == "single"
