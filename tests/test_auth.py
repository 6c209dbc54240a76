"""A public server: tokens, ownership, limits and secrets, on a real `langgraph dev`."""

import asyncio
import hashlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import httpx
import pytest
from doubles import by_task
from fake_openai import FakeOpenAI, Reply
from langgraph_dev import CONFIG, ROOT, Server, start
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

from hopgate.classifiers.decision import DEFAULT_ALPHA
from hopgate.server import tokens
from hopgate.server.presets import PRESETS, Preset

TOKENS = {"ada": "ada-1c5f0e2b9a774d31", "bob": "bob-8e41d7c3f0b64a52"}
KEY = "sk-public-73c1d5e90f2a4b68"
PROXY = "proxy-5d0e8c71ab9f4e26"
ORIGINAL_QUESTION = "original_question"  # the state's key
QUESTION = "Who keeps the Zanderfell ledger?"
ANSWER = "Ypsilanta keeps it"
SECRETS = ("Zanderfell", "Ypsilanta", "Quetzalmoor")  # only in what ada owns
LIMITS = {
    "message_chars": 200,
    "max_hops": 2,
    "index": ["sample"],
    "body_bytes": 20_000,
}
FAKE = {"model": "openai:fake", "strategy": "none"}


def documented(key: str) -> Any:
    """The value that docs/serving.md gives for a key of langgraph.json."""
    blocks = (ROOT / "docs/serving.md").read_text(encoding="utf-8").split("```json\n")[1:]
    found = [json.loads(block.split("```")[0]) for block in blocks if f'"{key}"' in block]
    return next(block[key] for block in found if key in block)


@pytest.fixture(scope="module")
def server(_fake_server: FakeOpenAI, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`langgraph dev`, set up for public use as documented, with all settings in .env."""
    folder = tmp_path_factory.mktemp("public")
    config = json.loads(CONFIG.read_text(encoding="utf-8")) | {"auth": documented("auth")}
    (folder / "langgraph.json").write_text(json.dumps(config), encoding="utf-8")
    users = {tokens.digest(token): name for name, token in TOKENS.items()}
    env = {
        "HOPGATE_TOKENS": json.dumps(users),
        "HOPGATE_LIMITS": json.dumps(LIMITS),
        "LOG_JSON": "true",
        "OPENAI_API_KEY": KEY,
        "OPENAI_BASE_URL": _fake_server.base_url,
    }
    dotenv = "".join(f"{name}='{value}'\n" for name, value in env.items())
    (folder / ".env").write_text(dotenv, encoding="utf-8")
    with start(folder, config=folder / "langgraph.json", jobs=4) as server:
        yield server


def client_of(server: Server, user: str) -> LangGraphClient:
    """A client behind a proxy that adds its own secret."""
    headers = {"Authorization": f"Bearer {TOKENS[user]}", "X-Forwarded-Access-Token": PROXY}
    return get_client(url=server.url, api_key=None, headers=headers)


@pytest.fixture
def ada(server: Server) -> LangGraphClient:
    return client_of(server, "ada")


@pytest.fixture
def bob(server: Server) -> LangGraphClient:
    return client_of(server, "bob")


# Tokens


@pytest.fixture(scope="module")
def web(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url) as client:
        yield client


WRONG: list[dict[str, Any]] = [
    {},
    {"Authorization": b"Bearer \xff"},
    {"Authorization": "Bearer wrong"},
    {"Authorization": "Bearer"},
    {"Authorization": TOKENS["ada"]},
    {"Authorization": f"Basic {TOKENS['ada']}"},
    {"Authorization": f"Bearer {tokens.digest(TOKENS['ada'])}"},
    {"X-Api-Key": TOKENS["ada"]},
    {"X-Auth-Scheme": "langsmith"},  # Studio's way around a server's own authentication
    {"X-Auth-Scheme": "langsmith", "X-Api-Key": "anything"},
]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/threads"),
        ("POST", "/threads/search"),
        ("POST", "/runs/wait"),
        ("GET", f"/threads/{UUID(int=1)}/history"),
        ("POST", "/assistants/search"),
        ("POST", "/store/items/search"),
        ("POST", "/runs/crons/search"),
        ("POST", "/mcp/"),
        ("POST", "/a2a/hopgate"),
        ("GET", "/v1/models"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/hopgate/mcp"),
    ],
)
def test_without_a_valid_token_nothing_is_served(web: httpx.Client, method: str, path: str) -> None:
    for headers in WRONG:
        response = web.request(method, path, headers=headers, json={})
        assert response.status_code == 401, headers
        assert response.json()["detail"] == (
            "missing or wrong token; send Authorization: Bearer TOKEN"
        )


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/internal/truncate"),
        ("GET", f"/internal/debug/thread/{UUID(int=1)}"),
        ("POST", "/deploy"),
        ("GET", "/deploy"),
    ],
)
def test_the_developer_routes_are_hidden(web: httpx.Client, method: str, path: str) -> None:
    """They need no token: one deletes everything, one shows any thread, one deploys."""
    assert web.request(method, path, json={}).status_code == 404


def test_monitoring_needs_no_token(web: httpx.Client) -> None:
    for path in ("/ok", "/hopgate/", "/hopgate/metrics"):
        assert web.get(path).status_code == 200


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "names no users; create a token"),
        ('{"secret-token": "ada"}', "the key of 'ada' is not a SHA-256 in lower-case"),
        (json.dumps({hashlib.sha256(b"").hexdigest(): "ada"}), "the key of 'ada' is not a SHA-256"),
        (json.dumps({"a" * 64: "a.b"}), "a user is named 'a.b'; use letters"),
        (json.dumps({"a" * 64: "system"}), "a user is named 'system'"),  # Aegra's own
        ("/nowhere/tokens.json", "neither a JSON object nor a file"),
    ],
)
def test_malformed_users_stop_the_server_and_show_no_token(
    monkeypatch: pytest.MonkeyPatch, value: str | None, message: str
) -> None:
    monkeypatch.delenv(tokens.VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(tokens.VARIABLE, value)
    with pytest.raises(ValueError, match=f"HOPGATE_TOKENS.*{message}") as caught:
        tokens.users()
    assert "secret-token" not in str(caught.value)


def test_the_command_creates_a_token_and_its_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-m", "hopgate.server.tokens"]
    made = subprocess.run([*command, "ada"], capture_output=True, text=True, check=True).stdout
    token = made.split()[1]
    monkeypatch.setenv(tokens.VARIABLE, made.partition("HOPGATE_TOKENS: ")[2])
    assert tokens.users()[tokens.digest(token)] == "ada"
    refused = subprocess.run([*command, "a.b"], capture_output=True, text=True)
    assert (refused.returncode, refused.stdout) == (2, "")


# Ownership


class Things(NamedTuple):
    """What ada owns on the server, under the names in the server's paths."""

    thread_id: str
    run_id: str
    paused: str
    busy: str
    busy_run: str
    assistant_id: str
    cron_id: str

    def into(self, template: str) -> str:
        named = self._asdict() | {"checkpoint_id": str(uuid4()), "namespace": "multihop"}
        return template.format(**named)


@pytest.fixture
async def things(ada: LangGraphClient, fake: FakeOpenAI) -> AsyncIterator[Things]:
    """A finished run, a paused one, a running one, an assistant, a cron, an item."""
    fake.answers(by_task(direct=ANSWER))
    done, paused, busy = [(await ada.threads.create())["thread_id"] for _ in range(3)]
    asked = {"input": {"question": QUESTION}, "context": FAKE}
    await ada.runs.wait(done, "hopgate", **asked)  # type: ignore[call-overload]
    await ada.runs.wait(paused, "hopgate", **asked, interrupt_before=["generate"])  # type: ignore[call-overload]
    fake.answers(by_task(direct=Reply(ANSWER, delay=60)))
    running = await ada.runs.create(busy, "hopgate", **asked)  # type: ignore[call-overload]
    while (await ada.runs.get(busy, running["run_id"]))["status"] != "running":
        await asyncio.sleep(0.02)
    assistant = await ada.assistants.create(
        "hopgate", context={"alpha": 0.1}, name="Zanderfell helper"
    )
    cron = await ada.crons.create_for_thread(
        done, "hopgate", schedule="0 0 1 1 *", input={"question": QUESTION}, enabled=False
    )
    await ada.store.put_item(["notes"], "k", {"text": "Quetzalmoor"})
    (run,) = await ada.runs.list(done)
    cron_id = str(cron["cron_id"])  # type: ignore[typeddict-item]
    assistant_id = assistant["assistant_id"]
    yield Things(*(done, run["run_id"], paused, busy, running["run_id"], assistant_id, cron_id))
    await ada.runs.cancel(busy, running["run_id"], wait=False)
    await ada.crons.delete(cron_id)
    await ada.assistants.delete(assistant_id)


async def snapshot(ada: LangGraphClient, things: Things) -> Any:
    """Everything of ada's that another user could have changed."""
    threads = [things.thread_id, things.paused, things.busy]
    return [
        [await ada.threads.get(thread) for thread in threads],
        [await ada.threads.get_state(thread) for thread in threads[:2]],
        [await ada.runs.list(thread) for thread in threads],
        await ada.assistants.get(things.assistant_id),
        await ada.crons.search(),
        await ada.store.search_items([]),
    ]


RUN = {"assistant_id": "hopgate", "input": {"question": "?"}, "context": FAKE}
HERS = {"configurable": {"thread_id": "{thread_id}", "checkpoint_ns": ""}}
RPC = {"jsonrpc": "2.0", "id": "1"}
MESSAGE = {"role": "user", "messageId": "1", "parts": [{"kind": "text", "text": "?"}]}

ATTEMPTS: list[tuple[str, str, Any]] = [
    ("GET", "/threads/{thread_id}", None),
    ("PATCH", "/threads/{thread_id}", {"metadata": {"owner": "bob"}}),
    ("DELETE", "/threads/{thread_id}", None),
    ("GET", "/threads/{thread_id}/state", None),
    ("POST", "/threads/{thread_id}/state", {"values": {"answer": "bob was here"}}),
    ("POST", "/hopgate/feedback", {"thread_id": "{thread_id}", "thumbs": "down"}),
    ("GET", "/threads/{thread_id}/state/{checkpoint_id}", None),
    ("POST", "/threads/{thread_id}/state/checkpoint", {"checkpoint": {"checkpoint_ns": ""}}),
    ("GET", "/threads/{thread_id}/history", None),
    ("POST", "/threads/{thread_id}/history", {}),
    ("POST", "/threads/{thread_id}/copy", None),
    ("GET", "/threads/{thread_id}/storage", None),
    ("GET", "/threads/{thread_id}/stream", None),
    ("POST", "/threads/{thread_id}/stream/events", {"channels": ["values", "messages"]}),
    ("GET", "/threads/{thread_id}/runs", None),
    ("POST", "/threads/{thread_id}/runs", RUN),
    ("POST", "/threads/{thread_id}/runs/wait", RUN),
    ("POST", "/threads/{thread_id}/runs/stream", RUN),
    ("POST", "/threads/{paused}/runs/wait", RUN | {"input": None}),
    ("POST", "/threads/{busy}/runs", RUN | {"multitask_strategy": "rollback"}),
    ("POST", "/threads/{thread_id}/runs/crons", RUN | {"schedule": "* * * * *"}),
    ("GET", "/threads/{thread_id}/runs/{run_id}", None),
    ("DELETE", "/threads/{thread_id}/runs/{run_id}", None),
    ("GET", "/threads/{thread_id}/runs/{run_id}/join", None),
    ("GET", "/threads/{thread_id}/runs/{run_id}/stream", None),
    ("GET", "/threads/{busy}/runs/{busy_run}/stream", None),
    ("GET", "/threads/{busy}/runs/{busy_run}/join", None),
    ("POST", "/threads/{thread_id}/runs/{run_id}/cancel", None),
    ("POST", "/threads/{busy}/runs/{busy_run}/cancel", None),
    ("POST", "/runs/cancel", {"status": "all"}),
    ("POST", "/runs/cancel", {"thread_id": "{busy}", "run_ids": ["{busy_run}"]}),
    ("POST", "/threads/prune", {"thread_ids": ["{thread_id}"]}),
    (*("POST", "/threads/{thread_id}/commands"), {"id": 1, "method": "run.start", "params": RUN}),
    ("POST", "/threads", {"thread_id": "{thread_id}", "if_exists": "do_nothing"}),
    ("POST", "/threads/search", {"metadata": {"owner": "ada"}}),
    ("POST", "/threads/search", {"ids": ["{thread_id}"]}),
    ("POST", "/threads/search", {"values": {ORIGINAL_QUESTION: QUESTION}}),
    ("POST", "/threads/count", {"ids": ["{thread_id}"]}),
    ("GET", "/assistants/{assistant_id}", None),
    ("PATCH", "/assistants/{assistant_id}", {"name": "bob's", "metadata": {"owner": "bob"}}),
    ("DELETE", "/assistants/{assistant_id}", None),
    ("GET", "/assistants/{assistant_id}/graph", None),
    ("GET", "/assistants/{assistant_id}/subgraphs", None),
    ("GET", "/assistants/{assistant_id}/subgraphs/{namespace}", None),
    ("GET", "/assistants/{assistant_id}/schemas", None),
    ("POST", "/assistants/{assistant_id}/versions", {}),
    ("POST", "/assistants/{assistant_id}/latest", {"version": 1}),
    (
        *("POST", "/assistants"),
        {"assistant_id": "{assistant_id}", "graph_id": "hopgate", "if_exists": "do_nothing"},
    ),
    ("POST", "/assistants/search", {"metadata": {"owner": "ada"}}),
    ("POST", "/assistants/count", {"name": "Zanderfell"}),
    ("POST", "/runs/wait", RUN | {"assistant_id": "{assistant_id}"}),
    ("POST", "/runs/wait", {"assistant_id": "hopgate", "input": None, "config": HERS}),
    ("POST", "/runs/wait", RUN | {"input": None, "checkpoint": HERS["configurable"]}),
    ("POST", "/runs/wait", RUN | {"webhook": "/threads/{thread_id}/state"}),
    ("POST", "/runs/batch", [RUN | {"assistant_id": "{assistant_id}"}]),
    ("POST", "/runs/crons", RUN | {"assistant_id": "{assistant_id}", "schedule": "0 0 1 1 *"}),
    ("GET", "/runs/crons/{cron_id}", None),
    ("PATCH", "/runs/crons/{cron_id}", {"schedule": "* * * * *"}),
    ("DELETE", "/runs/crons/{cron_id}", None),
    ("POST", "/runs/crons/search", {"thread_id": "{thread_id}"}),
    ("POST", "/runs/crons/search", {}),
    ("POST", "/runs/crons/count", {"thread_id": "{thread_id}"}),
    ("GET", "/store/items?namespace=notes&key=k", None),
    ("GET", "/store/items?namespace=ada.notes&key=k", None),
    ("DELETE", "/store/items", {"namespace": ["ada", "notes"], "key": "k"}),
    ("PUT", "/store/items", {"namespace": ["ada", "notes"], "key": "k", "value": {}}),
    ("POST", "/store/items/search", {"namespace_prefix": []}),
    ("POST", "/store/items/search", {"namespace_prefix": ["ada"]}),
    ("POST", "/store/namespaces", {}),
    (
        *("POST", "/a2a/{assistant_id}"),
        RPC | {"method": "message/send", "params": {"message": MESSAGE}},
    ),
    *(
        ("POST", f"/a2a/{PRESETS[0].assistant_id}", RPC | {"method": method, "params": params})
        for method, params in (
            ("message/send", {"message": MESSAGE | {"contextId": "{thread_id}"}}),
            ("message/stream", {"message": MESSAGE | {"contextId": "{thread_id}"}}),
            ("tasks/get", {"id": "{thread_id}:{run_id}", "contextId": "{thread_id}"}),
            ("tasks/cancel", {"id": "{busy}:{busy_run}"}),
        )
    ),
    ("GET", "/a2a/{assistant_id}", None),
    ("DELETE", "/a2a/{assistant_id}", None),
    ("GET", "/a2a/{assistant_id}/.well-known/agent-card.json", None),
    ("GET", "/a2a/{assistant_id}/.well-known/agent.json", None),
]


def filled(body: Any, things: Things) -> Any:
    """A request body with the ids of ada's things."""
    if isinstance(body, dict):
        return {key: filled(value, things) for key, value in body.items()}
    if isinstance(body, list):
        return [filled(each, things) for each in body]
    return things.into(body) if isinstance(body, str) else body


async def attempt(
    client: httpx.AsyncClient, things: Things, method: str, path: str, body: Any
) -> tuple[int, str]:
    """Send a request as bob; read an endless stream for a second."""
    text = ""
    try:
        async with client.stream(
            method, things.into(path), json=filled(body, things), timeout=httpx.Timeout(30, read=1)
        ) as response:
            status = response.status_code
            async for chunk in response.aiter_text():
                text += chunk
    except httpx.ReadTimeout:
        return (status if text else 0), text
    return status, text


def is_refusal(status: int, text: str) -> bool:
    """Whether a response is empty or an error, perhaps in a stream or RPC."""
    empty = text.strip() in ("", "[]", "0", "null")
    return status >= 400 or empty or text.startswith("event: error") or '"error"' in text


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
            if leaks or not (is_refusal(status, text) or path.startswith("/store/")):
                wrong.append((method, path, body, status, text[:200]))
    assert wrong == []
    assert await snapshot(ada, things) == before


def test_the_attempts_cover_every_route_with_an_id(server: Server) -> None:
    tried = {
        (
            method,
            path.partition("?")[0].replace("paused", "thread_id").replace("busy_run", "run_id"),
        )
        for method, path, _ in ATTEMPTS
    }
    tried |= {(method, path.replace("{busy}", "{thread_id}")) for method, path in tried}
    paths = httpx.get(f"{server.url}/openapi.json").json()["paths"]
    named = {
        (method.upper(), path)
        for path, methods in paths.items()
        for method in methods
        if "_id}" in path and not path.startswith(("/internal/", "/deploy/", "/ui/"))
    }
    assert len(named) > 35
    assert named - tried == set()


async def test_users_see_only_what_they_own(
    ada: LangGraphClient, bob: LangGraphClient, things: Things
) -> None:
    own = await bob.threads.create()
    assert [each["thread_id"] for each in await bob.threads.search(ids=[own["thread_id"]])] == [
        own["thread_id"]
    ]
    hers = {each["thread_id"] for each in await ada.threads.search(limit=100)}
    assert {things.thread_id, things.paused, things.busy} <= hers
    assert own["thread_id"] not in hers
    assert not hers & {each["thread_id"] for each in await bob.threads.search(limit=100)}
    item = await ada.store.get_item(["notes"], "k")
    assert item and item["value"] == {"text": "Quetzalmoor"}
    (found,) = (await ada.store.search_items(["notes"]))["items"]
    assert await ada.store.get_item(found["namespace"], "k")  # as the search names it


async def test_nobody_can_create_in_another_user_s_name(
    ada: LangGraphClient, bob: LangGraphClient, fake: FakeOpenAI
) -> None:
    fake.answers(by_task(direct="x"))
    forged = {"owner": "ada", "created_by": "system"}
    thread = await bob.threads.create(metadata=forged)
    await bob.threads.update(thread["thread_id"], metadata=forged)
    await bob.runs.wait(
        thread["thread_id"],
        "hopgate",
        input={"question": "?!x"},
        context=FAKE,
        metadata=forged,
        config={"metadata": forged},  # type: ignore[typeddict-unknown-key]
    )
    assistant = await bob.assistants.create("hopgate", metadata=forged, name="forged")
    await bob.assistants.update(assistant["assistant_id"], metadata=forged)
    saved = [
        (await bob.threads.get(thread["thread_id"]))["metadata"],
        (await bob.assistants.get(assistant["assistant_id"]))["metadata"],
    ]
    assert [each["owner"] for each in saved] == ["bob", "bob"]  # type: ignore[index]
    assert not any("created_by" in each for each in saved)  # type: ignore[operator]
    ids = {each["assistant_id"] for each in await ada.assistants.search(limit=100)}
    assert assistant["assistant_id"] not in ids
    threads = {each["thread_id"] for each in await ada.threads.search(limit=100)}
    assert thread["thread_id"] not in threads


async def test_everyone_can_read_and_run_a_preset_and_nobody_can_change_it(
    bob: LangGraphClient, fake: FakeOpenAI
) -> None:
    fake.answers(by_task(direct="x"))

    async def use(preset: Preset) -> None:
        found = await bob.assistants.get(preset.assistant_id)
        assert (found["name"], found["context"]) == (preset.name, {"alpha": preset.alpha})
        assert (await bob.assistants.get_schemas(preset.assistant_id))["context_schema"]
        result: Any = await bob.runs.wait(
            None, preset.assistant_id, input={"question": "?!x"}, context=FAKE
        )
        assert result["decision"]["alpha"] == (
            preset.alpha if preset.alpha is not None else DEFAULT_ALPHA
        )
        for change in (
            lambda: bob.assistants.update(preset.assistant_id, context={"alpha": 0.9}),
            lambda: bob.assistants.set_latest(preset.assistant_id, 1),
            lambda: bob.assistants.delete(preset.assistant_id),
        ):
            with pytest.raises(httpx.HTTPStatusError, match="not found"):
                await change()
        assert await bob.assistants.get(preset.assistant_id) == found

    await asyncio.gather(*map(use, PRESETS))


# Limits


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("path", ["/threads/search", "/runs/wait", "/store/items/search"])
def test_a_request_that_is_too_large_is_refused_whether_it_declares_its_size_or_not(
    server: Server, path: str, declared: bool
) -> None:
    body = b" " * 20_001
    headers = {"Authorization": f"Bearer {TOKENS['bob']}"}
    content: Any = body if declared else iter([body[:10_000], body[10_000:]])
    response = httpx.post(f"{server.url}{path}", content=content, headers=headers)
    assert response.status_code == 413
    assert response.json()["detail"].endswith("at most 20000 bytes")
    assert response.headers["X-Content-Type-Options"] == "nosniff"


def test_a_server_that_asks_for_users_and_has_none_does_not_start(tmp_path: Path) -> None:
    config = json.loads(CONFIG.read_text(encoding="utf-8")) | {"auth": documented("auth")}
    (tmp_path / "langgraph.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / ".env").write_text("HOPGATE_TOKENS=\n", encoding="utf-8")
    with (
        pytest.raises(RuntimeError, match=r"ValueError: HOPGATE_TOKENS names no users; create a"),
        start(tmp_path, config=tmp_path / "langgraph.json"),
    ):
        pass


# Secrets


async def test_no_key_and_no_token_is_in_errors_states_or_logs(
    server: Server, ada: LangGraphClient, fake: FakeOpenAI
) -> None:
    """Even if the endpoint repeats the key, as OpenAI's does in part."""
    found: list[Any] = []
    thread = (await ada.threads.create())["thread_id"]
    refusal = Reply(status=401, error=f"Incorrect API key provided: {KEY}")
    for reply in (refusal, Reply(body=KEY.encode()), "x"):
        fake.answers(by_task(direct=reply))
        asked = {"question": "?!x"}
        result: Any = await ada.runs.wait(
            thread, "hopgate", input=asked, context=FAKE, raise_error=False
        )
        found.append(result)
    assert KEY in (fake.keys[0] or "")  # it was used
    assert "__error__" in found[0] and "answer" in found[2]
    found += [
        await ada.threads.get(thread),
        await ada.threads.get_state(thread),
        await ada.threads.get_history(thread, limit=50),
        await ada.runs.list(thread),
        *(httpx.get(f"{server.url}{path}").text for path in ("/metrics", "/hopgate/metrics")),
        *(
            each.read_bytes().decode(errors="replace")
            for each in server.log.parent.rglob("*")
            if each.is_file() and each.name != ".env"
        ),
    ]
    everything = json.dumps(found, default=str)
    assert len(everything) > 20_000
    assert thread in everything
    for secret in (KEY, PROXY, *TOKENS.values()):
        assert secret not in everything


def test_the_server_s_log_has_a_line_for_every_run(server: Server) -> None:
    """Runs last: the log shows the runs of the tests above, as JSON."""
    lines = [json.loads(line) for line in server.log.read_text().splitlines() if line[:1] == "{"]
    turns = [line for line in lines if line.get("logger") == "hopgate"]
    assert len(turns) > 10
    answered = next(turn for turn in turns if turn["outcome"] == "answered")
    assert (answered["model"], answered["alpha"]) == ("openai:fake", 0.7)
    assert (answered["llm_calls"], answered["prompt_tokens"]) == (1, 11)
    failed = next(turn for turn in turns if turn["error"] == "ModelError")
    assert (failed["failed_in"], failed["level"]) == ("generate", "warning")
    assert not any(secret in json.dumps(turns) for secret in SECRETS)
    assert "locking call" not in server.log.read_text()
