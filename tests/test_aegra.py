"""Two real processes of Aegra with real PostgreSQL and Redis; the model is the fake endpoint."""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from aegra_servers import Cluster, cluster, configuration, interpreter
from commands import Ran, one_line
from doubles import by_task
from fake_openai import FakeOpenAI, Messages, Reply, _stream
from langgraph_dev import Server
from langgraph_sdk.client import LangGraphClient
from pydantic import TypeAdapter
from test_auth import (
    ATTEMPTS,
    SECRETS,
    TOKENS,
    Things,
    attempt,
    client_of,
    documented,
    is_refusal,
    snapshot,
    things,
)

from hopgate.nodes.run.events import Event
from hopgate.server.presets import PRESETS
from hopgate.server.tokens import digest

__all__ = ["things"]  # a fixture

QUESTION = "What is produced in the birthplace of the designer of Skerrane Light?"
THOUGHTS = [
    "Skerrane Light was designed by Ilsabet Corrane.",
    "Ilsabet Corrane was born in Lissmere.",
    "Lissmere produces sea salt.",
    "So the answer is: sea salt.",
]
CALLS = len(THOUGHTS) + 1  # and the answer
CONTEXT = {"model": "openai:fake", "strategy": "multi", "hop_k": 6}  # each hop finds something new
ASKED: dict[str, Any] = {"input": {"question": QUESTION}, "context": CONTEXT}
JOBS = 4  # runs at a time in a process


def looping() -> Any:
    """A script of a run through the loop, whose replies depend on the prompt alone."""

    def thought(prompt: str) -> str:
        return THOUGHTS[sum(each in prompt for each in THOUGHTS)]

    return by_task(gate="[Yes]", reason=thought, answer="Sea salt [1]", direct="x")


@pytest.fixture(scope="module")
def aegra(
    _fake_server: FakeOpenAI, postgres: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Two processes with users, set up as documented."""
    interpreter()
    folder = tmp_path_factory.mktemp("aegra")
    users = {digest(token): name for name, token in TOKENS.items()}
    with cluster(
        folder,
        postgres,
        AEGRA_CONFIG=str(configuration(folder, auth=documented("auth"))),
        HOPGATE_TOKENS=json.dumps(users),
        N_JOBS_PER_WORKER=str(JOBS),
        OPENAI_API_KEY="sk-aegra",
        OPENAI_BASE_URL=_fake_server.base_url,
        WORKER_COUNT="1",
    ) as made:
        made.start()
        made.start()
        yield made


@pytest.fixture
def servers(aegra: Cluster) -> list[Server]:
    """Two running processes, also after a test that killed one."""
    aegra.start(2 - len(aegra.servers))
    return list(aegra.servers.values())


@pytest.fixture
def server(servers: list[Server]) -> Server:
    return servers[0]


@pytest.fixture
def ada(server: Server) -> LangGraphClient:
    return client_of(server, "ada")


async def thread_of(client: LangGraphClient) -> str:
    return str((await client.threads.create())["thread_id"])


async def test_the_presets_exist_once_for_every_user(servers: list[Server]) -> None:
    """Both processes have created them."""
    for server in servers:
        for user in TOKENS:
            search = client_of(server, user).assistants.search
            found = await search(metadata={"created_by": "hopgate"})
            assert {each["assistant_id"]: each["context"] for each in found} == {
                each.assistant_id: {"alpha": each.alpha} for each in PRESETS
            }
            assert len(await search()) == len(PRESETS) + 1
            assert found[0]["name"] == "balanced"


async def test_a_run_streams_events_and_tokens_from_inside_the_loop(
    ada: LangGraphClient, fake: FakeOpenAI
) -> None:
    fake.answers(looping())
    thread = await thread_of(ada)
    parts = ada.runs.stream(
        thread,
        "hopgate",
        **ASKED,
        stream_mode=["custom", "messages-tuple", "tasks"],
        stream_subgraphs=True,
    )
    seen = [(part.event, part.data) async for part in parts]
    shape: TypeAdapter[Event] = TypeAdapter(Event)
    events = [(event, shape.validate_python(data)) for event, data in seen if "custom" in event]
    names = [data["event"] for _, data in events]
    hops = ["hop", "thought"] * len(THOUGHTS)
    assert names == ["gate", "route", *hops, "stop", "answering", "answer"], seen
    assert all(
        event.startswith("custom|multihop:") == (data["event"] in ("hop", "thought", "stop"))
        for event, data in events
    )
    tokens = [data[0]["content"] for event, data in seen if event.startswith("messages")]
    assert "Sea salt [1]" in tokens
    state: Any = (await ada.threads.get_state(thread))["values"]
    assert [hop["query"] for hop in state["hops"]] == [QUESTION, *THOUGHTS[:-1]]
    assert len(await ada.threads.get_history(thread, limit=50)) == 7


def test_feedback_is_kept_and_harvested_by_its_user_alone(
    server: Server,
    fake: FakeOpenAI,
    tmp_path: Path,
    run: Callable[..., Ran],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake.answers(looping())
    hers, his = ({"Authorization": f"Bearer {TOKENS[user]}"} for user in ("ada", "bob"))
    with httpx.Client(base_url=server.url, timeout=60) as web:
        thread = web.post("/threads", json={}, headers=hers).json()["thread_id"]
        body = {"thread_id": thread, "thumbs": "down", "answer": "Salt"}
        early = web.post("/hopgate/feedback", json=body, headers=hers)
        assert (early.status_code, "no answer yet" in early.text) == (404, True)
        asked = {"assistant_id": "hopgate", **ASKED}
        web.post(f"/threads/{thread}/runs/wait", json=asked, headers=hers).raise_for_status()
        assert web.post("/hopgate/feedback", json=body, headers=his).status_code == 404
        assert web.post("/hopgate/feedback", json=body).status_code == 401
        kept = web.post("/hopgate/feedback", json=body, headers=hers)
        assert (kept.status_code, kept.json()["feedback"]["thumbs"]) == (200, "down")
    monkeypatch.setattr("hopgate.evaluation.learning.threads.STATES_PAGE", 3)
    monkeypatch.setenv("HOPGATE_TOKEN", TOKENS["ada"])
    out = tmp_path / "questions.jsonl"
    assert run("harvest", server.url, "--out", out).code == 0
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    (row,) = (each for each in rows if each["question"] == QUESTION)
    assert row["answers"] == ["Salt"]
    monkeypatch.setenv("HOPGATE_TOKEN", "wrong")
    refused = run("harvest", server.url, "--out", tmp_path / "none")
    one_line(refused, 1, "refused to show threads (401); set HOPGATE_TOKEN")


async def test_bob_can_neither_read_list_change_nor_run_what_ada_owns(
    server: Server, ada: LangGraphClient, things: Things
) -> None:
    before = await snapshot(ada, things)
    wrong = []
    headers = {"Authorization": f"Bearer {TOKENS['bob']}"}
    async with httpx.AsyncClient(base_url=server.url, headers=headers) as client:
        for method, path, body in ATTEMPTS:
            status, text = await attempt(client, things, method, path, body)
            leaks = any(secret in text for secret in SECRETS)
            nothing = is_refusal(status, text) or text == '{"deleted":0,"pruned":0}'
            if leaks or not (nothing or path.startswith("/store/")):
                wrong.append((method, path, body, status, text[:200]))
    assert wrong == []
    assert await snapshot(ada, things) == before


async def test_both_processes_work_on_the_queue(
    aegra: Cluster, ada: LangGraphClient, fake: FakeOpenAI
) -> None:
    """One process cannot hold more than its slots, so the calls meet only if both work."""
    meeting = threading.Barrier(JOBS + 1)

    def met() -> Iterator[bytes]:
        meeting.wait(60)
        yield _stream(Reply("x"))

    fake.answers(lambda _: Reply(body=met()))
    context = {"model": "openai:fake", "strategy": "none"}
    threads = [await thread_of(ada) for _ in range(JOBS + 1)]
    runs = [
        await ada.runs.create(each, "hopgate", input={"question": QUESTION}, context=context)
        for each in threads
    ]
    holders = Counter(aegra.holder(run["run_id"]).url for run in runs)
    assert len(holders) == 2
    for thread, run in zip(threads, runs, strict=True):
        await ada.runs.join(thread, run["run_id"])
        assert (await ada.runs.get(thread, run["run_id"]))["status"] == "success"


async def test_a_killed_process_s_run_is_finished_by_the_other_with_no_call_repeated(
    aegra: Cluster, servers: list[Server], fake: FakeOpenAI
) -> None:
    """Killed while the fourth call, in the loop, waits for its reply."""
    reply_to, started, calls = looping(), threading.Event(), 0
    found: dict[str, Server] = {}

    def script(messages: Messages) -> Reply | str:
        nonlocal calls
        reply = str(reply_to(messages))
        if not any(QUESTION in each["content"] for each in messages):
            return reply  # to the rest of bob's attempts
        calls += 1
        if calls == 4:
            started.wait()
            aegra.kill(found["holder"])
        return reply

    fake.answers(script)
    before = len(servers)
    client = client_of(servers[0], "ada")
    thread = await thread_of(client)
    run_id = (await client.runs.create(thread, "hopgate", **ASKED))["run_id"]
    found["holder"] = await asyncio.to_thread(aegra.holder, run_id)
    started.set()
    (left,) = [each for each in servers if each != found["holder"]]
    other = client_of(left, "ada")
    while (status := (await other.runs.get(thread, run_id))["status"]) in ("pending", "running"):
        await asyncio.sleep(0.1)
    assert (status, before, len(aegra.servers)) == ("success", 2, 1)
    state: Any = (await other.threads.get_state(thread))["values"]
    assert state["answer"] == "Sea salt [1]"
    assert [hop["query"] for hop in state["hops"]] == [QUESTION, *THOUGHTS[:-1]]
    prompts = [each for each in fake.prompts if QUESTION in each]
    assert sorted(Counter(prompts).values()) == [1] * (CALLS - 1) + [2]
    assert prompts[3] == prompts[4]  # the one that was waiting


def test_without_its_users_a_process_does_not_start(
    aegra: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RuntimeError, match="ValueError: HOPGATE_TOKENS names no users; create"):
        aegra.start(HOPGATE_TOKENS="")
