"""The operator's limits on requests, and that they cannot be bypassed."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from doubles import CORRANE, LIGHT, FixedRetriever, FixedRouter, TalkingModel
from langgraph.checkpoint.memory import InMemorySaver
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from hopgate import Context, build_graph
from hopgate.nodes.run.limits import Limits, limits_from_environment
from hopgate.server.access.bodies import BodyLimit

QUESTION = "Where was the designer of Skerrane Light born?"
THREAD: Any = {"configurable": {"thread_id": "1"}}


def say(_: int, prompt: str) -> str:
    return "Some sentence." if "reasoning" in prompt else "[Yes]"


def graph(limits: dict[str, Any], label: str = "C", **given: Any) -> Any:
    given.setdefault("model", TalkingModel(say=say))
    given.setdefault("retriever", FixedRetriever([LIGHT], [CORRANE], []))
    limited = Limits.parse(limits)
    saver = given.pop("saver", None) or InMemorySaver()
    return build_graph(saver, router=FixedRouter(label), limits=limited, **given)


# Reading limits


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_hop": 3}, "unknown limit 'max_hop'; use message_chars, "),
        ({"max_hops": "3"}, "max_hops is '3'; use a number or a list of allowed values"),
        ({"max_hops": []}, "max_hops is \\[\\]; use"),
        ({"index": "sample"}, "index is 'sample'; use a list of allowed values"),
        ({"gate": ["maybe"]}, "gate is 'maybe': Input should be 'auto', "),
        ({"message_chars": 0}, "message_chars is 0; use a whole number of at least 1"),
    ],
)
def test_a_wrong_limit_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Limits.parse(given)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{", "HOPGATE_LIMITS is not valid JSON"),
        ("[1]", r"HOPGATE_LIMITS: \[1\] is neither a JSON object nor a file"),
        ("/nowhere/limits.json", "/nowhere/limits.json is neither a JSON object nor a file"),
        ('{"max_hops": 0}', "HOPGATE_LIMITS: max_hops is 0: Input should be greater"),
    ],
)
def test_build_graph_refuses_a_wrong_variable(
    monkeypatch: pytest.MonkeyPatch, value: str, message: str
) -> None:
    monkeypatch.setenv("HOPGATE_LIMITS", value)
    with pytest.raises(ValueError, match=message):
        build_graph()


@pytest.mark.parametrize("as_file", [False, True])
def test_limits_are_read_from_a_variable_or_the_file_it_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, as_file: bool
) -> None:
    value = json.dumps({"max_hops": 2, "model": ["openai:small"], "message_chars": 50})
    (tmp_path / "limits.json").write_text(value, encoding="utf-8")
    monkeypatch.setenv("HOPGATE_LIMITS", str(tmp_path / "limits.json") if as_file else value)
    limits = limits_from_environment()
    assert limits.message_chars == 50
    assert limits.apply(Context()) == Context(max_hops=2, model="openai:small")


@pytest.mark.parametrize("value", [None, "", "  "])
def test_without_limits_everything_is_allowed(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv("HOPGATE_LIMITS", raising=False)
    if value is not None:
        monkeypatch.setenv("HOPGATE_LIMITS", value)
    widest = Context(alpha=1, max_hops=10, index="/srv", escalate=20)
    assert limits_from_environment().apply(widest) is widest


# Applying limits to a context


@pytest.mark.parametrize(
    ("limits", "context", "after"),
    [
        ({"max_hops": 2}, {}, {"max_hops": 2}),  # a default above the limit becomes the limit
        ({"max_seconds": 60}, {}, {"max_seconds": 60}),  # so does an unset value
        ({"index": ["/srv/a", "sample"]}, {}, {"index": "sample"}),
        ({"escalate": 4}, {}, {"escalate": 0}),
        ({"today": ["2026-01-01", None]}, {}, {"today": None}),
    ],
)
def test_a_context_is_limited(
    limits: dict[str, Any], context: dict[str, Any], after: dict[str, Any]
) -> None:
    assert Limits.parse(limits).apply(Context(**context)) == Context(**(context | after))


@pytest.mark.parametrize(
    ("limits", "context", "message"),
    [
        ({"max_hops": 4}, {"max_hops": 5}, "max_hops is 5: this server allows at most 4"),
        ({"alpha": [0, 0.4]}, {"alpha": 0.3}, "alpha is 0.3: this server allows 0.0 or 0.4"),
        (
            {"max_hops": 1, "top_k": 5},
            {"max_hops": 3, "top_k": 50},
            "max_hops is 3: this server allows at most 1; top_k is 50: this server allows at mos",
        ),
    ],
)
async def test_a_setting_above_its_limit_is_refused_before_any_call(
    limits: dict[str, Any], context: dict[str, Any], message: str
) -> None:
    model = TalkingModel(say=say)
    with pytest.raises(ValueError) as caught:
        await graph(limits, model=model).ainvoke(
            {"question": QUESTION}, THREAD, context=Context(**context)
        )
    assert str(caught.value).startswith(message)
    assert model.prompts == []


# Attempts to bypass limits


@pytest.mark.parametrize("after", ["start", "gate", "route", "retrieve", "generate"])
async def test_limits_apply_to_a_resumed_run(after: str) -> None:
    label = "B" if after in ("retrieve", "generate") else "C"
    model = TalkingModel(say=lambda _, prompt: "I don't know" if "Passages" in prompt else "[Yes]")
    app = graph({"max_hops": 2, "escalate": 4}, label, model=model)
    doubtful = Context(escalate=4, max_hops=2)
    await app.ainvoke({"question": QUESTION}, THREAD, context=doubtful, interrupt_after=[after])
    assert (await app.aget_state(THREAD)).next
    with pytest.raises(ValueError, match="max_hops is 10: this server allows at most 2"):
        await app.ainvoke(None, THREAD, context=Context(max_hops=10, escalate=4))


async def test_limits_apply_to_a_fork_of_an_old_checkpoint() -> None:
    app = graph({"alpha": 0.4}, "B")
    await app.ainvoke({"question": QUESTION}, THREAD)
    steps = [step async for step in app.aget_state_history(THREAD)]
    gate = next(step for step in steps if step.next == ("gate",))
    with pytest.raises(ValueError, match="alpha is 1"):
        await app.ainvoke(None, gate.config, context=Context(alpha=1))


# Questions


@pytest.mark.parametrize("given", ["question", "messages"])
async def test_a_message_that_is_too_long_is_refused_before_any_call(given: str) -> None:
    model, long = TalkingModel(say=say), "x" * 101
    turn = {"question": long} if given == "question" else {"messages": [("user", long)]}
    with pytest.raises(ValueError, match="message has 101 characters: this server allows at most"):
        await graph({"message_chars": 100}, model=model).ainvoke(turn, THREAD)
    assert model.prompts == []


# Request bodies


async def count(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(len(await request.body())))


async def chunks(sizes: list[int]) -> AsyncIterator[bytes]:
    for size in sizes:
        yield b"x" * size


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("sizes", "status"), [([50, 50], 200), ([50, 51], 413)])
async def test_a_body_is_limited_whether_its_size_is_declared_or_not(
    sizes: list[int], status: int, streamed: bool
) -> None:
    app = Starlette(
        routes=[Route("/", count, methods=["POST"])],
        middleware=[Middleware(BodyLimit, max_bytes=100)],
    )
    body: Any = chunks(sizes) if streamed else b"x" * sum(sizes)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        response = await client.post("/", content=body)
    assert response.status_code == status
    assert response.text == "100" if status == 200 else "at most 100 bytes" in response.text
