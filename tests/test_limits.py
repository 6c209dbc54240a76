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
OTHER: Any = {"configurable": {"thread_id": "2"}}


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
        ({"max_hop": 3}, "unknown limit 'max_hop'; use question_chars, "),
        ({"max_hops": "3"}, "max_hops is '3'; use a number or a list of allowed values"),
        ({"max_hops": []}, "max_hops is \\[\\]; use"),
        ({"index": "sample"}, "index is 'sample'; use a list of allowed values"),
        ({"gate": ["maybe"]}, "gate is 'maybe': Input should be 'auto', "),
        ({"question_chars": 0}, "question_chars is 0; use a whole number of at least 1"),
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
        ('{"max_hops": 2, "max_hops": 9}', "HOPGATE_LIMITS is not valid JSON: a name appears tw"),
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
    value = json.dumps({"max_hops": 2, "model": ["openai:small"], "question_chars": 50})
    (tmp_path / "limits.json").write_text(value, encoding="utf-8")
    monkeypatch.setenv("HOPGATE_LIMITS", str(tmp_path / "limits.json") if as_file else value)
    limits = limits_from_environment()
    assert limits.question_chars == 50
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


@pytest.mark.parametrize("name", ["standalone", "next_query"])
async def test_a_question_edited_in_the_state_is_limited_in_length(name: str) -> None:
    app = graph({"question_chars": 60})
    await app.ainvoke({"question": QUESTION}, THREAD, interrupt_after=["route"])
    refused = f"{name} has 61 characters: this server allows at most 60"
    with pytest.raises(ValueError, match=refused):
        await app.aupdate_state(THREAD, {name: "x" * 61})
    await graph({}, saver=app.checkpointer).aupdate_state(THREAD, {name: "x" * 61})
    with pytest.raises(ValueError, match=refused):
        await app.ainvoke(None, THREAD)


async def test_sub_questions_are_limited_in_length() -> None:
    def splitting(number: int, prompt: str) -> str:
        return f"1. {'Where ' * 30}?" if "Split the" in prompt else say(number, prompt)

    retriever = FixedRetriever([LIGHT], [CORRANE], [])
    limits = {"question_chars": 60, "multihop": ["decompose"]}
    app = graph(limits, model=TalkingModel(say=splitting), retriever=retriever)
    await app.ainvoke({"question": QUESTION}, THREAD)
    assert retriever.queries == [QUESTION]
    await app.ainvoke({"question": "Who?"}, OTHER, interrupt_after=["route"])
    with pytest.raises(ValueError, match="sub_questions has 61 characters: this server allows"):
        await app.aupdate_state(OTHER, {"sub_questions": ["Who?", "x" * 61]})


@pytest.mark.parametrize(
    ("limits", "edit", "node"),
    [
        ({"strategy": ["single", "none"]}, {"strategy": "multi"}, "route"),
        ({"strategy": ["single", "none"]}, {"strategy": "multi"}, "escalate"),
        ({"strategy": ["single", "none"]}, {"escalate_to": "multi"}, "generate"),
        ({"multihop": ["ircot"]}, {"multihop": "decompose"}, "route"),
    ],
)
async def test_a_decision_edited_in_the_state_is_limited(
    limits: dict[str, Any], edit: dict[str, Any], node: str
) -> None:
    app = graph(limits)
    await app.ainvoke({"question": QUESTION}, THREAD, interrupt_after=["route"])
    ((key, value),) = edit.items()
    refused = rf"decision\.{key} is '{value}': this server allows"
    with pytest.raises(ValueError, match=refused):
        await app.aupdate_state(THREAD, {"decision": edit}, as_node=node)
    await graph({}, saver=app.checkpointer).aupdate_state(THREAD, {"decision": edit}, as_node=node)
    with pytest.raises(ValueError, match=refused):
        await app.ainvoke(None, THREAD)


async def test_a_long_conversation_cannot_exceed_prompt_chars() -> None:
    model = TalkingModel(say=say)
    messages = [("user", "Who?"), ("assistant", "word " * 5_000), ("user", "And where?")]
    await graph({"prompt_chars": 6_000}, model=model).ainvoke({"messages": messages}, THREAD)
    assert model.prompts and max(map(len, model.prompts)) < 6_000


async def test_evidence_edited_in_the_state_cannot_exceed_prompt_chars() -> None:
    model = TalkingModel(say=say)
    app = graph({"prompt_chars": 5_000}, "B", model=model)
    await app.ainvoke({"question": QUESTION}, THREAD, interrupt_after=["retrieve"])
    calls = len(model.prompts)
    await app.aupdate_state(THREAD, {"evidence": [LIGHT | {"text": "x" * 6_000}]})
    with pytest.raises(ValueError, match="this server allows at most 5000"):
        await app.ainvoke(None, THREAD)
    assert len(model.prompts) == calls


# Questions


@pytest.mark.parametrize("given", ["question", "messages"])
async def test_a_message_that_is_too_long_is_refused_before_any_call(given: str) -> None:
    model, long = TalkingModel(say=say), "x" * 101
    turn = {"question": long} if given == "question" else {"messages": [("user", long)]}
    with pytest.raises(ValueError, match="message has 101 characters: this server allows at most"):
        await graph({"message_chars": 100}, model=model).ainvoke(turn, THREAD)
    assert model.prompts == []


async def test_a_long_message_is_searched_for_by_its_question_and_answered_whole() -> None:
    model, retriever = TalkingModel(say=say), FixedRetriever([LIGHT])
    app = graph({"question_chars": 40}, "B", model=model, retriever=retriever)
    story = f"I have seen many lights. {'They were far away. ' * 80}Who built them?"
    await app.ainvoke({"question": story}, THREAD)
    assert retriever.queries == ["Who built them?"]
    assert story in model.prompts[-1]


async def test_a_rewritten_follow_up_that_is_too_long_is_dropped() -> None:
    def rewriting(number: int, prompt: str) -> str:
        return f"{'Where ' * 30}?" if "Follow-up" in prompt else say(number, prompt)

    model = TalkingModel(say=rewriting)
    app = graph({"question_chars": 60}, "B", model=model)
    await app.ainvoke({"question": QUESTION}, THREAD)
    await app.ainvoke({"question": "And when was it lit?"}, THREAD)
    assert any("Follow-up" in prompt for prompt in model.prompts)
    assert (await app.aget_state(THREAD)).values["standalone"] == "And when was it lit?"


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
