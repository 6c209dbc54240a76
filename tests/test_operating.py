"""What an operator sees: faults by their cause, the start, probes, the end, rates; on real servers.

The folders, the processes and Redis are real, the faults of the model are scripted.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from aegra_servers import redis
from commands import Ran, one_line
from doubles import by_task
from fake_openai import FakeOpenAI, Reply
from langgraph_dev import Server
from starlette.applications import Starlette
from starlette.testclient import TestClient

from hopgate import Context, build_graph
from hopgate.classifiers.checkpoint import BUILTIN_FOLDER
from hopgate.common import rates
from hopgate.nodes.run.limits import Limits
from hopgate.retrievers.sources import sample_path
from hopgate.server import tokens
from hopgate.server.openai import v1

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import operator_tour as tour

QUESTION = {"model": "hopgate", "messages": [{"role": "user", "content": tour.QUESTION}]}
SECRETS = ("/tmp", "127.0.0.1", "10.1.2.3", tour.KEY, "org-17", "p-1")


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an index and a router of its own."""
    folder = tmp_path_factory.mktemp("operator")
    shutil.copytree(sample_path(), folder / "index")
    shutil.copytree(BUILTIN_FOLDER, folder / "router")
    return folder


@pytest.fixture(scope="module")
def server(_fake_server: FakeOpenAI, copied: Path) -> Iterator[Server]:
    options = ("--index", str(copied / "index"), "--router", str(copied / "router"))
    env = {"OPENAI_BASE_URL": _fake_server.base_url, "LOG_JSON": "true"}
    with tour.serving(copied, *options, "--model", "openai:fake", "--gate", "always", **env) as it:
        yield it


def failed(row: dict[str, Any]) -> dict[str, Any]:
    """The line of the failed run, after a check that the client reads nothing of the server."""
    assert not any(each in row["client"] for each in SECRETS), row["client"]
    lines = [json.loads(each) for each in row["log"]]
    (line,) = (each for each in lines if each.get("outcome") == "error")
    found: dict[str, Any] = line
    assert f'cause="{line["cause"]}"' in str(row["metrics"])
    assert f'refusals_total{{status="{row["status"]}"}}' in str(row["metrics"])
    return found


def test_a_folder_that_cannot_be_used_is_the_operator_s_fault(
    server: Server, copied: Path, fake: FakeOpenAI
) -> None:
    fake.answers(by_task(answer=tour.ANSWER))
    for fault in tour.folder_faults(copied / "index", copied / "router"):
        fault.provoke()
        row = tour.observed(server, lambda: tour.ask(server))
        ready = httpx.get(f"{server.url}/ready")
        fault.mend()
        part = fault.name.partition(" ")[0]
        line = failed(row)
        assert (row["status"], line["cause"]) == (503, part), fault.name
        assert str(copied) in line["error_message"]
        assert (ready.status_code, ready.json()["failing"]) == (503, part)
        time.sleep(1.1)  # an answer to a probe is kept for a second
    assert httpx.get(f"{server.url}/ready").status_code == 200
    assert httpx.get(f"{server.url}/live").status_code == 200


@pytest.mark.parametrize(
    ("name", "status", "cause"),
    [
        ("model 401", 502, "model_auth"),
        ("model 429", 429, "model_quota"),
        ("model 400", 502, "model_refusal"),
        ("model 500", 502, "model_error"),
        ("model garbage", 502, "model_reply"),
    ],
)
def test_a_model_s_fault_has_a_kind_and_keeps_the_provider_s_text(
    server: Server, fake: FakeOpenAI, name: str, status: int, cause: str
) -> None:
    fake.answers(lambda _: tour.REPLIES[name])
    row = tour.observed(server, lambda: tour.ask(server))
    line = failed(row)
    assert (row["status"], line["cause"], line["error"]) == (status, cause, "ModelError")
    assert row["retry_after"] == tour.REPLIES[name].retry_after
    assert fake.base_url in line["error_message"] and tour.KEY not in line["error_message"]


def test_a_connection_that_breaks_is_not_a_time_out_and_costs_nothing(tmp_path: Path) -> None:
    closed = f"http://127.0.0.1:{tour.free_port()}/v1"
    with tour.resetting() as url:
        for address, said in ((url, "reset by peer"), (closed, "Connect call failed")):
            env = {"OPENAI_BASE_URL": address, "LOG_JSON": "true"}
            with tour.serving(tmp_path, *tour.SINGLE, **env) as server:
                row = tour.observed(server, lambda at=server: tour.ask(at))  # type: ignore[misc]
                line = failed(row)
                assert httpx.get(f"{server.url}/ready").json() == (
                    {"status": "not ready", "failing": "model_connection"}
                )
            assert (row["status"], line["cause"], row["tokens"]) == (502, "model_connection", 0)
            assert said in line["error_message"]


@pytest.mark.parametrize(
    ("options", "env", "said"),
    [
        (("--index", "nowhere"), {}, "there is no index at nowhere"),
        (("--router", "nowhere"), {}, "nowhere is not a router's folder"),
        (("--model", "gpt-4o"), {}, "unknown model 'gpt-4o'"),
        (("--index", "pgvector:docs"), {}, "pgvector:docs needs an address"),
        (("--max-hops", "5"), {"HOPGATE_LIMITS": '{"max_hops": 2}'}, "max_hops is 5: this server"),
        (
            (),
            {"HOPGATE_LIMITS": '{"where": {"source": "users/{user}/*"}}'},
            "has no authenticated user",
        ),
    ],
)
def test_a_server_that_could_not_answer_does_not_start(
    tmp_path: Path, options: tuple[str, ...], env: dict[str, str], said: str
) -> None:
    for name in ("serve", "mcp"):
        command = [sys.executable, "-m", "hopgate", name, *options]
        done = subprocess.run(
            command, cwd=tmp_path, env=os.environ | env, capture_output=True, text=True
        )
        assert done.returncode == 2, done.stderr
        assert said in done.stderr and done.stderr.count("\n") == 1


def test_a_check_says_that_all_is_well(run: Callable[..., Ran], fake: FakeOpenAI) -> None:
    ran = run("serve", "--check", "--model", "openai:fake")
    assert (ran.code, fake.requests) == (0, [])
    assert "everything that is needed can be used" in ran.err


def test_a_telemetry_address_is_checked(run: Callable[..., Ran], monkeypatch: Any) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "nonsense")
    from hopgate.server.observing import spans

    with pytest.raises(ValueError, match="OTEL_EXPORTER_OTLP_ENDPOINT is 'nonsense'; use an addre"):
        spans.observer()
    one_line(run("serve", "--drain", "-1"), 2, "--drain")


def words(number: int) -> Iterator[bytes]:
    """The parts of a stream that takes a second for each word."""
    for end in [*[None] * number, "stop"]:
        choice = {"index": 0, "delta": {"content": "word "}, "finish_reason": end}
        yield f"data: {json.dumps({'id': 'x', 'choices': [choice]})}\n\n".encode()
        time.sleep(1)


def test_a_server_that_stops_lets_answers_end_and_cuts_those_that_take_too_long(
    fake: FakeOpenAI, tmp_path: Path
) -> None:
    lengths = {"short": 2, "long": 30}
    fake.answers(
        lambda sent: Reply(
            body=words(next(n for name, n in lengths.items() if name in str(sent[-1])))
        )
    )
    got: dict[tuple[str, bool], httpx.Response] = {}
    env = {"OPENAI_BASE_URL": fake.base_url}
    with tour.serving(tmp_path, *tour.SINGLE, "--drain", "4", **env) as server:

        def ask(name: str, stream: bool) -> None:
            got[name, stream] = tour.ask(server, f"{name}: {tour.QUESTION}", stream=stream)

        asked = [(name, stream) for name in lengths for stream in (False, True)]
        threads = [threading.Thread(target=ask, args=each) for each in asked]
        for thread in threads:
            thread.start()
        while len(fake.requests) < len(asked):
            time.sleep(0.05)
        server.process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        server.process.wait()
        log = server.log.read_text()
    assert [got["short", each].status_code for each in (False, True)] == [200, 200]
    assert '"error"' not in got["short", True].text
    assert got["long", False].status_code == 503
    assert got["long", False].json()["error"]["code"] == "stopping"
    *_, event, done, _ = got["long", True].text.split("\n\n")
    assert json.loads(event.removeprefix("data: "))["error"]["message"] == (
        "the server is stopping; ask again"
    )
    assert done == "data: [DONE]"
    assert log.count("outcome=answered") == 2 and log.count("cause=stopping") == 2
    assert "Traceback" not in log


def test_a_full_disk_stops_no_answer(
    fake: FakeOpenAI, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fake.answers(by_task(answer=tour.ANSWER))
    graph = build_graph()
    settings = {"model": "openai:fake", "strategy": "single"}
    routes = v1.OpenAIRoutes(lambda: graph, settings, tmp_path / "kept.sqlite")
    app = Starlette(routes=[routes.mount()], lifespan=lambda _: routes.run())
    with TestClient(app) as client:

        async def fill() -> None:
            assert routes._saver
            (pages,) = await (await routes._saver.conn.execute("PRAGMA page_count")).fetchone()  # type: ignore[misc]
            await routes._saver.conn.execute(f"PRAGMA max_page_count={pages}")

        assert client.post("/v1/chat/completions", json=QUESTION).status_code == 200
        assert not caplog.records
        assert client.portal
        client.portal.call(fill)
        for _ in range(20):
            reply = client.post("/v1/chat/completions", json=QUESTION)
            assert reply.json()["choices"][0]["message"]["content"] == tour.ANSWER
    assert "a conversation is not kept: database or disk is full" in caplog.text


def test_rates_hold_for_each_user_and_are_counted_in_redis(
    fake: FakeOpenAI, tmp_path: Path
) -> None:
    fake.answers(by_task(answer=tour.ANSWER))
    users = {tokens.digest(f"{name}-token-of-32-characters-or-so"): name for name in ("ada", "ben")}
    limits = {"requests_per_user": "3/hour", "tokens_per_user": "20/hour"}
    with redis(tmp_path) as url:
        env = {
            "OPENAI_BASE_URL": fake.base_url,
            "HOPGATE_TOKENS": json.dumps(users),
            "HOPGATE_LIMITS": json.dumps(limits),
            "HOPGATE_REDIS": url,
        }
        with (
            tour.serving(tmp_path, *tour.SINGLE, **env) as first,
            tour.serving(tmp_path, *tour.SINGLE, **env) as second,
        ):

            def ask(server: Server, name: str) -> httpx.Response:
                headers = {"Authorization": f"Bearer {name}-token-of-32-characters-or-so"}
                address = f"{server.url}/v1/chat/completions"
                return httpx.post(address, json=QUESTION, headers=headers, timeout=60)

            found = [ask(each, "ada").status_code for each in (first, second)]
            refused = ask(first, "ada")  # 28 tokens are spent
            assert (found, refused.status_code) == ([200, 200], 429)
            assert refused.json()["error"]["code"] == "rate_reached"
            assert "allows 20 tokens in 3,600 s" in refused.json()["error"]["message"]
            assert 0 < int(refused.headers["Retry-After"]) <= 3600
            assert ask(second, "ben").status_code == 200
            assert " user=ben " in second.log.read_text()


async def test_rates_hold_without_redis_and_while_it_is_down(
    fake: FakeOpenAI, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ValueError, match="requests_per_user is 'many'; use a rate such as"):
        Limits.parse({"requests_per_user": "many"})
    fake.answers(by_task(direct="In 1858."))
    graph = build_graph(limits=Limits.parse({"requests_per_user": "2/hour"}))
    ask = partial(
        graph.ainvoke, {"question": "?!"}, context=Context(strategy="none", model="openai:fake")
    )
    rates._limiter.cache_clear()
    await ask()
    await ask()
    with pytest.raises(rates.RateReached, match=r"allows 2 requests in 3,600 s; ask again in"):
        await ask()
    monkeypatch.setenv("HOPGATE_REDIS", f"redis://127.0.0.1:{tour.free_port()}")
    rates._limiter.cache_clear()
    assert (await ask())["answer"] == "In 1858."
    assert "rates are not counted" in caplog.text
    rates._limiter.cache_clear()


@pytest.mark.parametrize("rule", ["answer", "error"])
def test_a_search_that_fails_is_counted_and_may_be_an_error(
    fake: FakeOpenAI, tmp_path: Path, rule: str
) -> None:
    fake.answers(by_task(direct="In 1858.", answer=tour.ANSWER))
    renamed, down = tour.store_faults(tmp_path, fake, rule)
    assert renamed["status"] == 503
    assert "cause=index" in str(renamed["log"]) and "there is no pgvector:docs" in str(renamed)
    assert down["status"] == (200 if rule == "answer" else 503)
    assert "hopgate_failed_searches_total" in down["metrics"]
    outcome = "unsearched" if rule == "answer" else "error"
    assert f"outcome={outcome} " in str(down["log"])
    assert "pgvector" not in down["client"]
