"""Reasoning models without any setting: STAND-INS on loopback that behave like their endpoints.

They have no model. As the real ones do, each thinks before it replies and takes its thoughts out of
the room for the reply; one refuses a temperature. They are asked through the clients that people
use: `openai:`, and LangChain's own for Anthropic and DeepSeek.
"""

import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from doubles import FixedRetriever, FixedRouter
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver

from hopgate import Context, build_graph
from hopgate.graphs import events
from hopgate.graphs.compiled import AdaptiveGraph
from hopgate.nodes.prompts import templates as prompts
from hopgate.retrievers.base import Hit

QUESTION = "In what year was Skerrane Light first lit?"
LIGHT = Hit(
    id="light",
    title="Skerrane Light",
    text="Skerrane Light was first lit in 1858.",
    score=1.0,
    source="",
)
SECRET = "Hm, secretly [1] could be [9]."
ROOM = 600
"""Tokens that a stand-in needs for its thoughts."""

Json = dict[str, Any]


def openai(body: Json) -> Iterator[Json] | str:
    """Behave like OpenAI's: neither temperature nor stop, and thoughts that nobody sees."""
    for name in ("temperature", "stop"):
        if name in body:
            return f"Unsupported parameter: '{name}' is not supported with this model."
    return _chunks(body, body.get("max_completion_tokens"), {})


def deepseek(body: Json) -> Iterator[Json] | str:
    """Behave like DeepSeek's: the thoughts are a field of their own."""
    return _chunks(body, body.get("max_tokens"), {"reasoning_content": SECRET})


def qwen(body: Json) -> Iterator[Json] | str:
    """Behave like Qwen's on a server without a reasoning parser: the thoughts are in the text."""
    return _chunks(body, body.get("max_completion_tokens"), {"content": f"<think>{SECRET}</think>"})


def _chunks(body: Json, limit: int | None, thoughts: Json) -> Iterator[Json]:
    def chunk(delta: Json, finish: str | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {"id": "1", "object": "chat.completion.chunk", "choices": [choice]}

    short = limit is not None and limit < ROOM
    yield chunk({"role": "assistant", "content": ""})
    if thoughts:
        yield chunk({k: v.removesuffix("</think>") if short else v for k, v in thoughts.items()})
    if not short:
        yield from (chunk({"content": each}) for each in _words(_prompt(body)))
    yield chunk({}, "length" if short else "stop")
    usage = {"prompt_tokens": 9, "completion_tokens": ROOM, "total_tokens": ROOM + 9}
    yield {**chunk({}), "choices": [], "usage": usage}


def anthropic(body: Json) -> Iterator[Json] | str:
    """Behave like Anthropic's newest models: blocks of thoughts, and no temperature."""
    if "temperature" in body:
        return "`temperature` is deprecated for this model."
    return _blocks(body)


def _blocks(body: Json) -> Iterator[Json]:
    short, usage = body["max_tokens"] < ROOM, {"input_tokens": 9, "output_tokens": ROOM}
    message = {"id": "1", "type": "message", "role": "assistant", "content": [], "usage": usage}
    yield {"type": "message_start", "message": {**message, "model": body["model"]}}
    blocks = [("thinking", [SECRET]), *([] if short else [("text", _words(_prompt(body)))])]
    for index, (kind, parts) in enumerate(blocks):
        block = {"type": kind, kind: "", **({"signature": "x"} if kind == "thinking" else {})}
        yield {"type": "content_block_start", "index": index, "content_block": block}
        for part in parts:
            delta = {"type": f"{kind}_delta", kind: part}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    reason = {"stop_reason": "max_tokens" if short else "end_turn", "stop_sequence": None}
    yield {"type": "message_delta", "delta": reason, "usage": usage}
    yield {"type": "message_stop"}


def _prompt(body: Json) -> str:
    return json.dumps([body.get("system"), body["messages"]])


def _words(prompt: str) -> list[str]:
    if json.dumps(prompts.VANILLA)[1:-1] in prompt:
        return ["[", "Yes", "]"]
    if "standalone" in prompt.lower():
        return ["Who ", "designed ", "Skerrane ", "Light?", "\n", "It", "'s"]
    return ["It was ", "first lit ", "in 1858 ", "[1]", "."]


def _whole(parts: Iterator[Json]) -> Json:
    """Return a stream's reply in one piece."""
    chunks = list(parts)
    if chunks[0].get("type") == "message_start":
        message, blocks = chunks[0]["message"], {}
        for each in chunks:
            message |= each.get("delta", {}) if each["type"] == "message_delta" else {}
            if each["type"] == "content_block_start":
                blocks[each["index"]] = each["content_block"].copy()
            elif each["type"] == "content_block_delta":
                kind = each["delta"]["type"].removesuffix("_delta")
                blocks[each["index"]][kind] += each["delta"][kind]
        return {**message, "content": list(blocks.values())}
    message = {"role": "assistant"}
    for choice in (choice for each in chunks for choice in each["choices"]):
        finish = choice["finish_reason"]
        for name, text in choice["delta"].items():
            message[name] = message.get(name, "") + text if name != "role" else text
    choice = {"index": 0, "message": message, "finish_reason": finish}
    whole = {"id": "1", "object": "chat.completion", "model": "x", "created": 0}
    return {**whole, "choices": [choice], "usage": chunks[-1]["usage"]}


StandIn = Callable[[Json], Iterator[Json] | str]


@contextmanager
def serving(stand_in: StandIn) -> Iterator[tuple[str, list[Json]]]:
    """Serve a stand-in; yields its address and the bodies of the requests."""
    requests: list[Json] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append(body)
            reply = stand_in(body)
            if isinstance(reply, str):
                error = {"type": "invalid_request_error", "message": reply}
                self._send(400, json.dumps({"type": "error", "error": error}), "application/json")
            elif body.get("stream"):
                lines = [f"event: {e.get('type', '')}\ndata: {json.dumps(e)}\n\n" for e in reply]
                if stand_in is not anthropic:
                    lines = [line.partition("\n")[2] for line in lines] + ["data: [DONE]\n\n"]
                self._send(200, "".join(lines), "text/event-stream")
            else:
                self._send(200, json.dumps(_whole(reply)), "application/json")

        def _send(self, status: int, text: str, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", requests
    finally:
        server.shutdown()
        server.server_close()


@dataclass
class Endpoint:
    """A stand-in behind a client.

    Attributes:
        context: Names its model.
        requests: The requests that reached it.
        stand_in: What answers.
    """

    context: Context
    requests: list[Json]
    stand_in: StandIn


ENDPOINTS: dict[str, tuple[str, StandIn, dict[str, str]]] = {
    "openai": ("openai:thinker", openai, {"OPENAI_BASE_URL": "/v1"}),
    "qwen": ("openai:thinker", qwen, {"OPENAI_BASE_URL": "/v1"}),
    "deepseek": ("deepseek:thinker", deepseek, {"DEEPSEEK_API_BASE": "/v1"}),
    "anthropic": ("anthropic:thinker", anthropic, {"ANTHROPIC_API_URL": ""}),
}


@pytest.fixture(params=ENDPOINTS)
async def endpoint(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Endpoint]:
    model, stand_in, addresses = ENDPOINTS[request.param]
    with serving(stand_in) as (url, requests):
        for name, path in addresses.items():
            monkeypatch.setenv(name, url + path)
        for provider in ("OPENAI", "DEEPSEEK", "ANTHROPIC"):
            monkeypatch.setenv(f"{provider}_API_KEY", "sk-stand-in")
        yield Endpoint(Context(model=model), requests, stand_in)


def graph(**parts: Any) -> AdaptiveGraph:
    return build_graph(retriever=FixedRetriever([LIGHT]), router=FixedRouter("B"), **parts)


async def test_a_reasoning_model_needs_no_setting(endpoint: Endpoint) -> None:
    """The gate's 20 tokens go to thoughts, so it is asked once more, with room."""
    app, thread = (
        graph(checkpointer=InMemorySaver()),
        RunnableConfig(configurable={"thread_id": "1"}),
    )
    result = await app.ainvoke({"question": QUESTION}, thread, context=endpoint.context)
    assert result["answer"] == "It was first lit in 1858 [1]."
    assert [each["number"] for each in result["citations"]] == [1]
    assert result["decision"]["gate"]["answer"] == "yes"
    assert "secretly" not in str((await app.aget_state(thread)).values)
    refused = endpoint.stand_in in (openai, anthropic)
    assert len(endpoint.requests) == 3 + refused
    assert result["usage"]["llm_calls"] == 3
    endpoint.requests.clear()  # all that was learnt is remembered
    result = await graph().ainvoke({"question": QUESTION}, context=endpoint.context)
    assert result["usage"]["llm_calls"] == len(endpoint.requests) == 2


async def test_the_tokens_of_a_stream_are_the_answer_s(endpoint: Endpoint) -> None:
    """Those that the endpoint leaves in the text itself come with the model's raw tokens."""
    app, modes = graph(), ["custom", "messages"]
    stream = app.astream({"question": QUESTION}, context=endpoint.context, stream_mode=modes)
    found = [event async for mode, part in stream if (event := events.read(mode, part))]
    tokens = "".join(each["text"] for each in found if each["event"] == "token")
    raw = f"<think>{SECRET}</think>" * (endpoint.stand_in is qwen)
    assert tokens == f"{raw}It was first lit in 1858 [1]."


async def test_a_follow_up_and_stop_texts(endpoint: Endpoint) -> None:
    app = graph(checkpointer=InMemorySaver())
    context = endpoint.context.model_copy(update={"stop": ("END",)})
    thread = RunnableConfig(configurable={"thread_id": "1"})
    await app.ainvoke({"question": QUESTION}, thread, context=context)
    await app.ainvoke({"question": "Who designed it?"}, thread, context=context)
    state = (await app.aget_state(thread)).values
    assert state["standalone"] == "Who designed Skerrane Light?"
    assert state["answer"] == "It was first lit in 1858 [1]."
    left_out = ["the model does not take stop: left out"] * (endpoint.stand_in is openai)
    assert state["decision"]["warnings"] == left_out
