"""MCP with its official client: over stdin and stdout, and over HTTP on real servers."""

import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from commands import Ran, one_line
from doubles import LIGHT, FixedRetriever, FixedRouter, by_task
from fake_openai import FakeOpenAI, Reply
from langgraph_dev import Server
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from starlette.applications import Starlette
from starlette.testclient import TestClient

from hopgate import Context, build_graph
from hopgate.graphs.compiled import AdaptiveGraph
from hopgate.nodes.run.limits import Limits
from hopgate.server.mcp import Endpoint
from hopgate.server.tools import Tools, build_server

QUESTION = "In what year was Skerrane Light first lit?"
ANSWER = "It was first lit in 1858 [1]."
LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
ACCEPT = {"Accept": "application/json, text/event-stream"}


@asynccontextmanager
async def over_stdio(*options: str) -> AsyncIterator[Client]:
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "hopgate", "mcp", *options], env=dict(os.environ)
    )
    async with Client(stdio_client(command)) as client:
        yield client


@asynccontextmanager
async def over_http(server: Server, mode: Any) -> AsyncIterator[Client]:
    async with httpx2.AsyncClient(timeout=60) as http:
        transport = streamable_http_client(f"{server.url}/hopgate/mcp", http_client=http)
        async with Client(transport, mode=mode) as client:
            yield client


async def result_of(client: Client, tool: str, **arguments: Any) -> Any:
    """The structured result of a tool; its text must say the same."""
    result = await client.call_tool(tool, arguments)
    (text,) = result.content
    assert not result.is_error, text
    assert json.loads(text.text) == result.structured_content  # type: ignore[union-attr]
    return result.structured_content


async def error_of(client: Client, tool: str, **arguments: Any) -> str:
    """The message of a tool that fails."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error and result.structured_content is None
    (text,) = result.content
    message: str = text.text  # type: ignore[union-attr]
    assert "\n" not in message and "Traceback" not in message
    return message


# Over stdin and stdout, and over HTTP


@pytest.mark.parametrize("over", ["stdio", "auto", "legacy"])
async def test_a_client_asks_searches_and_routes(
    dev_server: Server, fake: FakeOpenAI, over: str
) -> None:
    """Over stdin and stdout, and over HTTP by the newest protocol and by the one before it."""
    fake.answers(by_task(gate="[Yes]", answer=ANSWER))
    async with over_stdio() if over == "stdio" else over_http(dev_server, over) as client:
        listed = (await client.list_tools()).tools
        assert [tool.name for tool in listed] == ["ask", "search", "route"]
        assert all(tool.annotations.read_only_hint for tool in listed)
        assert all(tool.description and tool.output_schema for tool in listed)

        answer = await result_of(client, "ask", question=QUESTION, alpha=0.2)
        found = await result_of(client, "search", query=QUESTION, k=2)
        route = await result_of(client, "route", question=QUESTION, alpha=1)
    assert (answer["answer"], answer["answered"], answer["strategy"]) == (ANSWER, True, "single")
    (source,) = answer["sources"]
    assert (source["number"], source["title"]) == (1, "Skerrane Light")
    assert source["source"] == "passages.jsonl"
    assert source["quote"] in source["text"]
    assert source["text"].startswith("Skerrane Light is a lighthouse on a reef 9 kilometres off")
    assert answer.keys() == {"answer", "answered", "sources", "strategy", "warnings"}
    assert len(found["passages"]) == 2
    assert found["passages"][0]["text"] == source["text"]
    assert (route["alpha"], sorted(route["probs"])) == (1, ["A", "B", "C"])
    likeliest = max(route["probs"], key=route["probs"].__getitem__)
    assert route["label"] == likeliest  # α = 1 forces nothing
    assert "locking call" not in dev_server.log.read_text()


async def test_an_error_says_how_a_model_can_act_on_it(fake: FakeOpenAI) -> None:
    fake.says(Reply(status=401, error="no such key"))
    async with Client(build_server(build_graph)) as client:
        assert "check OPENAI_API_KEY" in await error_of(client, "ask", question=QUESTION)
        assert await error_of(client, "ask") == "ask: question is missing"
        assert "question is" in await error_of(client, "ask", question=" ")
        assert "alpha is 2" in await error_of(client, "route", question=QUESTION, alpha=2)
        assert "k is 0" in await error_of(client, "search", query="light", k=0)
        assert "erase" in await error_of(client, "erase")
    assert len(fake.requests) == 1


async def test_a_project_s_own_graph_is_used_and_what_it_prints_does_not_reach_the_client(
    tmp_path: Path, fake: FakeOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "langgraph.json").write_text('{"graphs": {"mine": "./mine.py:graph"}}')
    (tmp_path / "mine.py").write_text(
        "from hopgate import Context, build_graph\n"
        "print('hello')\n"
        "graph = build_graph(context=Context(alpha=0.9, strategy='none'))\n"
    )
    fake.answers(by_task(direct="Tokyo"))
    monkeypatch.chdir(tmp_path)
    async with over_stdio("--top-k", "3") as client:
        answer = await result_of(client, "ask", question="What is the capital of Japan?")
        route = await result_of(client, "route", question=QUESTION)
    assert (answer["answer"], answer["sources"], route["alpha"]) == ("Tokyo", [], 0.9)


def test_settings_that_cannot_be_used_are_refused_before_a_client_waits(
    run: Callable[..., Ran],
) -> None:
    one_line(run("mcp", "--index", "nowhere"), 2, "nowhere")
    one_line(run("mcp", "--alpha", "3"), 2)


def test_without_its_package_the_command_names_the_extra(
    run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    ran = run("mcp")
    one_line(ran, 1)
    assert "pip install 'hopgate[mcp]'" in ran.err


# In this process


@pytest.fixture
def graph(fake: FakeOpenAI) -> AdaptiveGraph:
    retriever, limits = FixedRetriever([LIGHT]), Limits.parse({"message_chars": 60, "top_k": 3})
    return build_graph(retriever=retriever, router=FixedRouter("B"), limits=limits)


async def test_an_app_s_own_parts_and_limits_count(graph: AdaptiveGraph) -> None:
    async with Client(build_server(lambda: graph)) as client:
        found = await result_of(client, "search", query="light", k=3)
        assert [each["title"] for each in found["passages"]] == ["Skerrane Light"]
        route = await result_of(client, "route", question=QUESTION)
        assert (route["strategy"], "profile" in route) == ("single", False)
        assert "at most 3" in await error_of(client, "search", query="light", k=4)
        for tool, name in (("search", "query"), ("route", "question")):
            message = await error_of(client, tool, **{name: "x" * 61})
            assert "at most 60" in message


async def test_an_unexpected_error_shows_nothing_of_itself(
    graph: AdaptiveGraph, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any, **__: Any) -> Any:
        raise OSError("/secret/path")

    monkeypatch.setattr(type(graph), "ainvoke", broken)
    async with Client(build_server(lambda: graph)) as client:
        message = await error_of(client, "ask", question=QUESTION)
    assert message == "Error executing tool ask"
    assert "/secret/path" in caplog.text


def test_pages_of_other_sites_and_other_methods_are_refused(dev_server: Server) -> None:
    url = f"{dev_server.url}/hopgate/mcp"
    for origin, status in (
        ("https://evil.example", 403),
        ("null", 403),
        ("http://localhost:6274", 200),
    ):
        answer = httpx.post(url, json=LIST, headers={**ACCEPT, "Origin": origin})
        assert answer.status_code == status, answer.text
    assert httpx.get(url, headers=ACCEPT).status_code == 405


# Other set-ups


def app(endpoint: Endpoint) -> TestClient:
    return TestClient(Starlette(routes=[endpoint.route("/mcp")], lifespan=lambda _: endpoint.run()))


def test_a_server_without_the_package_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, graph: AdaptiveGraph
) -> None:
    monkeypatch.setattr("hopgate.server.mcp.find_spec", lambda _: None)
    with app(Endpoint(lambda: graph)) as client:
        answer = client.post("/mcp", json=LIST, headers=ACCEPT)
    assert answer.status_code == 501
    assert "pip install 'hopgate[mcp]'" in answer.json()["detail"]


def test_settings_replace_those_of_the_graph_and_a_call_s_alpha_both() -> None:
    graph = build_graph(context=Context(alpha=0.9, top_k=7))
    tools = Tools(lambda: graph, Context(top_k=2))
    assert tools.settings() == Context(alpha=0.9, top_k=2)
    assert tools.settings(0.1) == Context(alpha=0.1, top_k=2)
