"""The events of a run: their types and their order."""

import re
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
from doubles import CORRANE, LIGHT, BreakingRetriever, Clock, FixedRetriever, FixedRouter, by_task
from fake_openai import FakeOpenAI, Reply
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import TypeAdapter

from hopgate import Context, build_graph
from hopgate.graphs import events
from hopgate.nodes.run.events import Event

README = Path(__file__).parents[1] / "README.md"
QUESTION = "Where was the designer of Skerrane Light born?"
FACT = "Skerrane Light was designed by Ilsabet Corrane."
TWO_HOPS: dict[str, Any] = {
    "gate": "[Yes]",
    "reason": [FACT, "So the answer is: Lissmere."],
    "answer": "Lissmere [1]",
}
SHAPE: TypeAdapter[Event] = TypeAdapter(Event)


async def events_of(graph: Any, context: Context | None = None, config: Any = None) -> list[Any]:
    """Stream a run and return its events, each validated against its type."""
    parts = graph.astream(
        {"question": QUESTION},
        config,
        context=context,
        stream_mode=["custom", "messages"],
        subgraphs=True,
    )
    seen = [events.read(mode, part) async for _, mode, part in parts]
    found = [event for event in seen if event]
    assert [SHAPE.validate_python(event, strict=True) for event in found] == found
    return found


def build(label: str, *found: Any, **options: Any) -> Any:
    retriever = FixedRetriever(*(found or ([LIGHT], [CORRANE])))
    return build_graph(router=FixedRouter(label), **{"retriever": retriever, **options})


def passage(hit: Any) -> dict[str, Any]:
    return {"id": hit["id"], "title": hit["title"], "score": hit["score"]}


async def test_every_decision_sends_an_event(fake: FakeOpenAI) -> None:
    fake.answers(by_task(**TWO_HOPS))
    gate, route, *rest, answer = await events_of(build("C"))
    assert (gate["event"], gate["answer"], gate["retrieve"]) == ("gate", "yes", True)
    assert (route["event"], route["strategy"]) == ("route", "multi")
    assert route["probs"] == {"A": 0.1, "B": 0.1, "C": 0.8}
    assert rest == [
        {"event": "hop", "number": 1, "query": QUESTION, "passages": [passage(LIGHT)]},
        {"event": "thought", "number": 1, "thought": FACT},
        {"event": "hop", "number": 2, "query": FACT, "passages": [passage(CORRANE)]},
        {"event": "thought", "number": 2, "thought": "So the answer is: Lissmere."},
        {"event": "stop", "number": 2, "stop_reason": "answered"},
        {"event": "answering", "passages": 2, "full": True, "thoughts": False, "may_search": False},
        {"event": "token", "text": "Lissmere [1]"},
    ]
    assert (answer["event"], answer["text"]) == ("answer", "Lissmere [1]")
    assert [each["title"] for each in answer["citations"]] == [CORRANE["title"]]


async def test_sub_questions_send_a_plan_event(fake: FakeOpenAI) -> None:
    fake.answers(
        by_task(
            gate="[Yes]",
            decompose="1. Who designed Skerrane Light?\n2. Where was {1} born?",
            sub_answer=["Ilsabet Corrane", "Lissmere"],
            answer="Lissmere [1]",
        )
    )
    seen = await events_of(build("C"), Context(multihop="decompose"))
    names = [event["event"] for event in seen]
    loop = ["plan", "hop", "thought", "hop", "thought", "stop"]
    assert names == ["gate", "route", *loop, "answering", "token", "answer"]
    assert seen[2]["sub_questions"] == ["Who designed Skerrane Light?", "Where was {1} born?"]
    assert seen[5]["query"] == "Where was Ilsabet Corrane born?"


class SlowRetriever(FixedRetriever):
    """A retriever that takes 80 seconds by its clock."""

    def __init__(self, *found: Any) -> None:
        super().__init__(*found)
        self.clock = Clock()

    def search(self, queries: Any, k: int) -> Any:
        self.clock.advance(80)
        return super().search(queries, k)


SLOW = SlowRetriever([LIGHT])
STOPS: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "answered": ({}, {}, 2),
    "hop_limit": ({}, {"max_hops": 1}, 1),
    "no_new_passage": ({"retriever": FixedRetriever([])}, {}, 1),
    "retriever_failed": ({"retriever": BreakingRetriever([LIGHT], at=2)}, {}, 2),
    "deadline": ({"clock": SLOW.clock, "retriever": SLOW}, {"max_seconds": 100}, 1),
}


@pytest.mark.parametrize("reason", STOPS)
async def test_the_loop_sends_one_stop_event_with_the_reason_in_the_state(
    fake: FakeOpenAI, reason: str
) -> None:
    options, settings, hops = STOPS[reason]
    fake.answers(by_task(**TWO_HOPS, direct="x"))
    graph = build("C", checkpointer=InMemorySaver(), **options)
    config = {"configurable": {"thread_id": reason}}
    seen = await events_of(graph, Context(**settings), config)
    stops = [event for event in seen if event["event"] == "stop"]
    assert stops == [{"event": "stop", "number": hops, "stop_reason": reason}]
    state = (await graph.aget_state(config)).values
    assert (state["decision"]["stop_reason"], len(state["hops"])) == (reason, hops)


async def test_a_run_without_the_loop_sends_no_stop_event(fake: FakeOpenAI) -> None:
    fake.answers(by_task(gate=["[Yes]", "[No]"], answer="Corrane [1]", direct="x"))
    single, none = await events_of(build("B")), await events_of(build("B"))
    answer = ["answering", "token", "answer"]
    assert [event["event"] for event in single] == ["gate", "route", "hop", *answer]
    assert [event["event"] for event in none] == ["gate", *answer]


async def test_a_follow_up_streams_only_its_own_answer(fake: FakeOpenAI) -> None:
    fake.answers(by_task(gate="[No]", condense="Why?", direct=["First", "Second"]))
    graph = build("B", checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "1"}}
    for answer in ("First", "Second"):
        tokens = [
            event for event in await events_of(graph, None, config) if event["event"] == "token"
        ]
        assert tokens == [{"event": "token", "text": answer}]


async def test_a_draft_that_becomes_the_answer_sends_no_token_events(fake: FakeOpenAI) -> None:
    fake.answers(by_task(direct=Reply("Tokyo", logprobs=[{"Tokyo": -0.01}])))
    context = Context(gate="draft", gate_threshold=0.2)
    gate, _, answer = await events_of(build("B"), context)
    assert (gate["mode"], gate["reply"]) == ("draft", "Tokyo")
    assert answer == {"event": "answer", "text": "Tokyo", "citations": []}


@pytest.mark.parametrize("label", ["B", "C"])
async def test_a_model_inside_the_retriever_sends_no_token_events(
    fake: FakeOpenAI, label: str
) -> None:
    class Rewriting(FixedRetriever):
        """A retriever that calls its own model, as LangChain's MultiQueryRetriever does."""

        def search(self, queries: Any, k: int) -> Any:
            list(GenericFakeChatModel(messages=iter([AIMessage("other words")])).stream("again"))
            return super().search(queries, k)

    fake.answers(by_task(**TWO_HOPS))
    seen = await events_of(build(label, retriever=Rewriting([LIGHT], [CORRANE])))
    tokens = [event["text"] for event in seen if event["event"] == "token"]
    assert tokens == ["Lissmere [1]"]


async def test_the_example_in_the_readme_runs(
    fake: FakeOpenAI, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.answers(by_task(**TWO_HOPS))
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    (code,) = [block for block in blocks if "events.read" in block]
    names: dict[str, Any] = {"graph": build("C")}
    exec(f"async def example():\n{indent(code, '    ')}", names)
    await names["example"]()
    shown = capsys.readouterr().out
    assert f"2 {FACT} → ['Ilsabet Corrane']" in shown
    assert "Lissmere [1]" in shown
