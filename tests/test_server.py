"""A real `langgraph dev`, spoken to with langgraph_sdk, as Studio and other clients do."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from doubles import by_task
from fake_openai import FakeOpenAI
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from pydantic import TypeAdapter

from hopgate import Context
from hopgate.graphs.events import Event

ROOT = Path(__file__).parents[1]
START_SECONDS = 60
QUESTION = "Where was the designer of Skerrane Light born?"


class Server(NamedTuple):
    url: str
    log: Path
    process: subprocess.Popen[bytes]


@pytest.fixture(scope="module")
def server(_fake_server: FakeOpenAI, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`langgraph dev` with the repository's langgraph.json, blocking calls refused.

    `openai:fake` reaches the fake endpoint, `local:smollm2` the real embedded model.
    """
    folder = tmp_path_factory.mktemp("server")
    log = folder / "log"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        *(str(Path(sys.executable).with_name("langgraph")), "dev"),
        *("--config", str(ROOT / "langgraph.json")),
        *("--no-browser", "--no-reload", "--host", "127.0.0.1", "--port", str(port)),
        *("--n-jobs-per-worker", "2"),
    ]
    environment = os.environ | {
        "HOPGATE_HOME": str(folder),
        "LANGGRAPH_CLI_NO_ANALYTICS": "1",
        "LANGGRAPH_NO_VERSION_CHECK": "true",
        "OPENAI_API_KEY": "sk-server",
        "OPENAI_BASE_URL": _fake_server.base_url,
    }
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    started = Server(f"http://127.0.0.1:{port}", log, process)
    try:
        _wait(started)
        yield started
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait(server: Server) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and server.process.poll() is None:
        try:
            if httpx.get(f"{server.url}/ok", timeout=1).is_success:
                return
        except httpx.HTTPError:
            time.sleep(0.2)
    raise RuntimeError(f"langgraph dev did not start:\n{server.log.read_text()[-3000:]}")


@pytest.fixture
def client(server: Server) -> LangGraphClient:
    return get_client(url=server.url)


async def test_schemas_show_what_a_person_can_turn(client: LangGraphClient) -> None:
    (assistant,) = await client.assistants.search(graph_id="hopgate")
    schemas = await client.assistants.get_schemas(assistant["assistant_id"])
    assert set(schemas["input_schema"]["properties"]) == {"question", "messages"}
    output = set(schemas["output_schema"]["properties"])
    assert {"answer", "citations", "decision", "hops", "usage"} <= output
    fields = schemas["context_schema"]["properties"]
    assert set(fields) == set(Context.__dataclass_fields__)
    assert all(field["description"] for field in fields.values())
    assert all("default" in field for field in fields.values())
    alpha = fields["alpha"]
    assert (alpha["minimum"], alpha["maximum"], alpha["default"]) == (0, 1, 0.4)
    assert "0 cheapest, 1 most reliable" in alpha["description"]
    assert fields["strategy"]["enum"] == ["auto", "none", "single", "multi"]
    assert "ta-are" in fields["gate"]["enum"]
    assert (fields["max_hops"]["minimum"], fields["max_hops"]["maximum"]) == (1, 10)


async def test_the_drawing_has_the_loop(client: LangGraphClient) -> None:
    (assistant,) = await client.assistants.search(graph_id="hopgate")
    drawn = await client.assistants.get_graph(assistant["assistant_id"], xray=True)
    nodes = {str(node["id"]) for node in drawn["nodes"]}
    assert {"condense", "gate", "route", "retrieve", "generate"} <= nodes
    assert {"multihop:retrieve", "multihop:reason"} <= nodes


async def test_a_threaded_run_streams_events_from_inside_the_loop(client: LangGraphClient) -> None:
    """The whole of it on real parts: the embedded model, MiniLM, FAISS, the sample."""
    thread = await client.threads.create()
    context = {"strategy": "multi", "model": "local:smollm2", "max_hops": 2, "hop_k": 1}
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
    assert names[-2:] == ["stop", "answer"]
    assert all(
        event.startswith("custom|multihop:") == (data["event"] in ("hop", "thought", "stop"))
        for event, data in events
    )
    hop = next(data for _, data in events if data["event"] == "hop")
    assert hop["query"] == QUESTION
    assert len(hop["passages"]) == 1

    spoken = [data[0] for event, data in seen if event.startswith("messages")]
    chunks = [message for message in spoken if message["type"] == "AIMessageChunk"]
    assert len({message["id"] for message in chunks}) == 1
    tokens = [message["content"] for message in chunks if message["content"]]
    assert len(tokens) > 1
    assert events[-1][1]["text"] in "".join(tokens)

    values = (await client.threads.get_state(thread["thread_id"]))["values"]
    assert isinstance(values, dict)
    assert values["answer"]
    assert values["decision"]["stop_reason"]
    assert len(values["hops"]) == names.count("hop") <= 2
    history = await client.threads.get_history(thread["thread_id"], limit=50)
    assert [state["next"] for state in history][::-1] == [
        ["__start__"],
        ["condense"],
        ["gate"],
        ["route"],
        ["multihop"],
        ["generate"],
        [],
    ]


async def test_a_strategy_edited_at_route_is_followed_on_resume(
    client: LangGraphClient, fake: FakeOpenAI
) -> None:
    fake.answers(by_task(direct="Nobody knows"))
    thread = (await client.threads.create())["thread_id"]
    context = {"strategy": "multi", "model": "openai:fake"}
    await client.runs.wait(
        thread,
        "hopgate",
        input={"question": QUESTION},
        context=context,
        interrupt_after=["route"],
    )
    assert (await client.threads.get_state(thread))["next"] == ["multihop"]
    await client.threads.update_state(thread, {"decision": {"strategy": "none"}})
    assert (await client.threads.get_state(thread))["next"] == ["generate"]
    result: Any = await client.runs.wait(thread, "hopgate", input=None, context=context)
    assert result["answer"] == "Nobody knows"
    assert result["hops"] == []
    assert result["decision"]["strategy"] == "none"
    assert result["decision"]["route"]["label"] == "C"  # what the router had said stays
    assert len(fake.requests) == 1


async def test_a_follow_up_on_a_thread_is_condensed(
    client: LangGraphClient, fake: FakeOpenAI
) -> None:
    fake.answers(by_task(direct="Ilsabet Corrane", condense="When was Skerrane Light lit?"))
    thread = (await client.threads.create())["thread_id"]
    context = {"strategy": "none", "model": "openai:fake"}
    for question in ("Who designed Skerrane Light?", "And when was it lit?"):
        message = {"role": "user", "content": question}
        await client.runs.wait(thread, "hopgate", input={"messages": [message]}, context=context)
    values: Any = (await client.threads.get_state(thread))["values"]
    assert values["asked"] == "And when was it lit?"
    assert values["standalone"] == "When was Skerrane Light lit?"
    assert len(values["messages"]) == 4
    assert len(fake.requests) == 3


async def test_the_gate_s_pool_and_time_zone_are_the_run_s(
    client: LangGraphClient, fake: FakeOpenAI, tmp_path: Path
) -> None:
    pool = tmp_path / "pool.jsonl"
    pool.write_text('{"question": "Who designed Farrick Head Lighthouse?", "answer": "Yes"}\n')
    fake.answers(by_task(gate="[No]", direct="x"))
    settings = {"gate": "ta-are", "demos": str(pool), "timezone": "Asia/Kolkata"}
    result: Any = await client.runs.wait(
        None,
        "hopgate",
        input={"question": QUESTION},
        context={"model": "openai:fake", **settings},
    )
    assert result["answer"] == "x"
    assert fake.prompts[0].startswith("Today is ")
    assert "Question: Who designed Farrick Head Lighthouse?\nAnswer: [Yes]" in fake.prompts[0]


async def test_runs_at_once_do_not_mix(client: LangGraphClient, fake: FakeOpenAI) -> None:
    fake.answers(by_task(direct=lambda asked: asked.splitlines()[-2]))

    async def ask(number: int) -> Any:
        return await client.runs.wait(
            None,
            "hopgate",
            input={"question": f"Number {number}?"},
            context={"strategy": "none", "model": "openai:fake"},
        )

    results = await asyncio.gather(*map(ask, range(6)))
    assert [f"Number {number}?" in each["answer"] for number, each in enumerate(results)] == [
        True
    ] * 6


@pytest.mark.parametrize(
    ("context", "parts"),
    [
        ({"alpha": 1.5}, ["alpha", "1.5"]),
        ({"gate": "maybe"}, ["gate", "maybe"]),
        ({"strategy": "none", "model": "nonsense"}, ["nonsense", "openai:NAME"]),
        ({"strategy": "none", "index": "/nowhere"}, ["/nowhere", "hopgate index build"]),
    ],
)
async def test_a_bad_context_fails_the_run_and_says_why(
    client: LangGraphClient, context: dict[str, Any], parts: list[str]
) -> None:
    with pytest.raises(Exception) as caught:
        await client.runs.wait(None, "hopgate", input={"question": QUESTION}, context=context)
    assert all(part in str(caught.value) for part in parts), caught.value


async def test_a_model_that_refuses_fails_the_run_and_names_its_endpoint(
    client: LangGraphClient, fake: FakeOpenAI
) -> None:
    fake.says()
    with pytest.raises(Exception, match=fake.base_url):
        await client.runs.wait(
            None,
            "hopgate",
            input={"question": QUESTION},
            context={"strategy": "none", "model": "openai:fake"},
        )


def test_nothing_blocked_the_event_loop(server: Server) -> None:
    """Runs last: what the tests above did is in the log."""
    log = server.log.read_text()
    assert "hopgate" in log
    assert "locking call" not in log
    assert "BlockingError" not in log
    assert server.process.poll() is None
