"""A real `langgraph dev`, called through langgraph_sdk as Studio and other clients do."""

import asyncio
from typing import Any

import httpx
import pytest
from doubles import by_task
from fake_openai import FakeOpenAI, Reply
from langgraph_dev import Server
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from openai import AsyncOpenAI
from otlp import Collector
from pydantic import TypeAdapter

from hopgate import Context
from hopgate.nodes.run.events import Event

QUESTION = "Where was the designer of Skerrane Light born?"


@pytest.fixture
def client(dev_server: Server) -> LangGraphClient:
    return get_client(url=dev_server.url)


@pytest.fixture(scope="module")
def default(dev_server: Server) -> str:
    """The id of the assistant that the server creates for the graph."""
    query = {"metadata": {"created_by": "system"}}
    (found,) = httpx.post(f"{dev_server.url}/assistants/search", json=query).json()
    return str(found["assistant_id"])


@pytest.fixture(scope="module")
def schemas(dev_server: Server, default: str) -> Any:
    return httpx.get(f"{dev_server.url}/assistants/{default}/schemas").json()


# What Studio shows: the graph, its settings, assistants


@pytest.mark.parametrize("name", list(Context.model_fields))
def test_every_setting_is_shown_with_its_default_range_and_description(
    schemas: Any, name: str
) -> None:
    shown = schemas["context_schema"]["properties"][name]
    assert shown == TypeAdapter(Context).json_schema()["properties"][name]
    assert Context(**{name: shown["default"]}) == Context()
    assert len(shown["description"]) > 20
    kinds = shown.get("anyOf", [shown])
    for kind in kinds:
        if kind["type"] in ("number", "integer"):
            assert {"minimum", "exclusiveMinimum"} & set(kind) and "maximum" in kind
        if kind["type"] == "string":
            assert {"enum", "maxLength", "format"} & set(kind)


async def test_the_drawn_graph_has_the_nodes_and_edges_of_the_loop_too(
    client: LangGraphClient, default: str
) -> None:
    drawn = await client.assistants.get_graph(default, xray=True)
    nodes = {str(node["id"]) for node in drawn["nodes"]}
    assert nodes == {
        *("__start__", "start", "condense", "gate", "route"),
        *("retrieve", "generate", "escalate", "__end__"),
        *(f"multihop:{node}" for node in ("__start__", "decompose", "retrieve", "reason")),
        *("multihop:sub_answer", "multihop:__end__"),
    }
    edges = {(edge["source"], edge["target"]) for edge in drawn["edges"]}
    assert edges >= {("gate", "route"), ("multihop:reason", "multihop:retrieve")}
    subgraphs = await client.assistants.get_subgraphs(default, recurse=True)
    assert list(subgraphs) == ["multihop"]


# Runs


async def test_a_threaded_run_streams_events_from_inside_the_loop(client: LangGraphClient) -> None:
    """All parts are real: the embedded model, MiniLM, FAISS, the sample."""
    thread = await client.threads.create()
    context = {
        **{"strategy": "multi", "model": "local:smollm2", "gate": "always"},
        **{"max_hops": 1, "hop_k": 1},
    }
    parts = client.runs.stream(
        thread["thread_id"],
        "hopgate",
        input={"question": QUESTION},
        context=context,
        stream_mode=["custom", "messages-tuple"],
        stream_subgraphs=True,
    )
    seen = [(part.event, part.data) async for part in parts]
    events = [(event, data) for event, data in seen if event.startswith("custom")]
    shape: TypeAdapter[Event] = TypeAdapter(Event)
    assert [shape.validate_python(data, strict=True) for _, data in events] == [
        data for _, data in events
    ]
    names = [data["event"] for _, data in events]
    assert names[:3] == ["gate", "route", "hop"], seen
    assert names[-3:] == ["stop", "answering", "answer"]
    assert all(
        event.startswith("custom|multihop:") == (data["event"] in ("hop", "thought", "stop"))
        for event, data in events
    )
    spoken = [data[0] for event, data in seen if event.startswith("messages")]
    chunks = [message for message in spoken if message["type"] == "AIMessageChunk"]
    assert len({message["id"] for message in chunks}) == 1
    tokens = [message["content"] for message in chunks if message["content"]]
    assert len(tokens) > 1
    assert events[-1][1]["text"] in "".join(tokens)
    history = await client.threads.get_history(thread["thread_id"], limit=50)
    assert [state["next"] for state in history][::-1] == [
        ["__start__"],
        *([node] for node in ("start", "gate", "route", "multihop", "generate")),
        [],
    ]


async def test_a_run_is_cancelled_during_a_model_call_and_the_thread_can_resume(
    client: LangGraphClient, fake: FakeOpenAI, dev_server: Server
) -> None:
    fake.answers(by_task(direct=Reply("late", delay=60)))
    thread = (await client.threads.create())["thread_id"]
    context = {"strategy": "none", "model": "openai:fake"}
    asked = {"question": QUESTION}
    run = (await client.runs.create(thread, "hopgate", input=asked, context=context))["run_id"]
    while not fake.requests:
        await asyncio.sleep(0.05)
    await client.runs.cancel(thread, run, wait=True)
    assert (await client.runs.get(thread, run))["status"] == "interrupted"
    assert f"turn outcome=cancelled run_id={run}" in dev_server.log.read_text()
    fake.answers(by_task(direct="in time"))
    result: Any = await client.runs.wait(thread, "hopgate", input=None, context=context)
    assert result["answer"] == "in time"


# A chat client


async def test_a_chat_client_sends_messages_and_gets_the_answer_appended(
    client: LangGraphClient, fake: FakeOpenAI
) -> None:
    """As chat front ends do: content in blocks, ids of their own, streamed tokens."""
    fake.answers(by_task(direct="Ilsabet Corrane"))
    thread = (await client.threads.create())["thread_id"]
    context = {"strategy": "none", "model": "openai:fake"}
    blocks = [{"type": "text", "text": "Who designed Skerrane Light?"}]
    asked: Any = {"type": "human", "content": blocks, "id": "mine-1"}
    parts = client.runs.stream(
        thread,
        "hopgate",
        input={"messages": [asked]},
        context=context,
        stream_mode=["values", "messages-tuple"],
    )
    seen = [(part.event, part.data) async for part in parts]
    chunks = [data[0] for event, data in seen if event == "messages"]
    tokens = [chunk for chunk in chunks if chunk["type"] == "AIMessageChunk"]
    assert "".join(chunk["content"] for chunk in tokens) == "Ilsabet Corrane"
    *_, (_, last) = ((event, data) for event, data in seen if event == "values")
    assert [(each["type"], each["id"]) for each in last["messages"]] == [
        ("human", "mine-1"),
        ("ai", tokens[0]["id"]),
    ]
    assert last["messages"][1]["content"] == "Ilsabet Corrane"


async def test_a_client_of_openai_s_gets_a_stream(dev_server: Server, fake: FakeOpenAI) -> None:
    fake.answers(by_task(gate="[No]", direct="It has eight"))
    async with AsyncOpenAI(base_url=f"{dev_server.url}/v1", api_key="none") as client:
        assert "balanced" in [each.id async for each in client.models.list()]
        stream = await client.chat.completions.create(
            model="cheapest",
            messages=[{"role": "user", "content": "How many legs has a spider?"}],
            stream=True,
        )
        pieces = [each.choices[0].delta.content or "" async for each in stream]
    assert "".join(pieces) == "It has eight"


async def test_settings_in_configurable_count_beside_langgraph_s_own_keys(
    client: LangGraphClient, fake: FakeOpenAI
) -> None:
    fake.answers(by_task(direct="x"))
    own = {"alpha": 0.9, "strategy": "none", "model": "openai:fake", "thread_id": "x"}
    result: Any = await client.runs.wait(
        None, "hopgate", input={"question": QUESTION}, config={"configurable": own}
    )
    assert result["decision"]["alpha"] == 0.9
    assert result["decision"]["warnings"] == []


# What operators see


async def test_metrics_are_on_hopgate_s_own_page_and_on_the_server_s(
    client: LangGraphClient, fake: FakeOpenAI, dev_server: Server
) -> None:
    fake.answers(by_task(direct="x"))
    context = {"strategy": "none", "model": "openai:fake", "alpha": 0.3}
    await client.runs.wait(None, "hopgate", input={"question": QUESTION}, context=context)
    own = httpx.get(f"{dev_server.url}/hopgate/metrics")
    counted = 'hopgate_turns_total{alpha="0.3",outcome="answered",strategy="none"}'
    assert counted in own.text
    assert counted in httpx.get(f"{dev_server.url}/metrics").text
    assert own.headers["Content-Type"].startswith("text/plain")
    assert own.headers["X-Content-Type-Options"] == "nosniff"
    assert all(line.startswith(("#", "hopgate_")) for line in own.text.splitlines())
    assert "Skerrane" not in own.text


async def test_a_run_s_trace_is_exported_to_the_endpoint_in_the_environment(
    client: LangGraphClient, fake: FakeOpenAI, collector: Collector
) -> None:
    fake.answers(by_task(reason="So it is: x", answer="x [1]"))
    thread = (await client.threads.create())["thread_id"]
    context = {"strategy": "multi", "model": "openai:fake", "alpha": 0.65}
    await client.runs.wait(thread, "hopgate", input={"question": QUESTION}, context=context)

    def root() -> Any:
        return next((span for span in collector.spans if thread in str(span)), None)

    while root() is None:
        await asyncio.sleep(0.05)
    attributes = {pair.key: pair.value for pair in root().attributes}
    assert attributes["hopgate.alpha"].double_value == 0.65
    assert attributes["hopgate.strategy"].string_value == "multi"
    trace = [span for span in collector.spans if span.trace_id == root().trace_id]
    names = [span.name for span in trace if not span.name.startswith("worker.")]
    assert sorted(names) == sorted(
        [
            *("hopgate", "start", "gate", "route"),
            *("multihop", "retrieve", "reason", "generate"),
            *("chat fake", "chat fake"),
        ]
    )
    assert set(collector.services) == {"hopgate"}
    assert "Skerrane" not in str(collector.spans)


def test_nothing_blocked_the_event_loop(dev_server: Server) -> None:
    """Runs last: the log has the runs of the tests above."""
    log = dev_server.log.read_text()
    assert "hopgate" in log
    assert "locking call" not in log
    assert "BlockingError" not in log
    assert dev_server.process.poll() is None
