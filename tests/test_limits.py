"""What an operator allows a request to ask for, and that no way leads around it."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from doubles import CORRANE, LIGHT, Clock, FixedRetriever, FixedRouter, FreshRetriever, TalkingModel
from langgraph.checkpoint.memory import InMemorySaver
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from hopgate import Context, build_graph
from hopgate.nodes.limits import Limits, from_environment
from hopgate.server.guards import BodyLimit

QUESTION = "Where was the designer of Skerrane Light born?"
THREAD: Any = {"configurable": {"thread_id": "1"}}
OTHER: Any = {"configurable": {"thread_id": "2"}}


def say(_: int, asked: str) -> str:
    return "Some sentence." if "reasoning" in asked else "[Yes]"


def graph(limits: dict[str, Any], label: str = "C", **given: Any) -> Any:
    given.setdefault("model", TalkingModel(say=say))
    given.setdefault("retriever", FixedRetriever([LIGHT], [CORRANE], []))
    limited = Limits.parse(limits)
    saver = given.pop("saver", None) or InMemorySaver()
    return build_graph(saver, router=FixedRouter(label), limits=limited, **given)


# Reading them


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"max_hop": 3}, "unknown limit 'max_hop'; use question_chars, "),
        ({"max_hops": "3"}, "max_hops is '3'; use a number or a list of allowed values"),
        ({"max_hops": True}, "max_hops is True; use a number"),
        ({"max_hops": 99}, "max_hops is 99: Input should be less than or equal to 10"),
        ({"max_hops": []}, "max_hops is \\[\\]; use"),
        ({"index": "sample"}, "index is 'sample'; use a list of allowed values"),
        ({"gate": ["maybe"]}, "gate is 'maybe': Input should be 'auto', "),
        ({"gate_date": 1}, "gate_date is 1; use a list"),
        ({"question_chars": 0}, "question_chars is 0; use a whole number of at least 1"),
        ({"prompt_chars": 2.5}, "prompt_chars is 2.5; use a whole number"),
    ],
)
def test_a_wrong_limit_is_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Limits.parse(given)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("{", "HOPGATE_LIMITS is not valid JSON"),
        ("[1]", r"HOPGATE_LIMITS: \[1\] is neither a JSON object nor a file"),
        ("/nowhere/limits.json", "/nowhere/limits.json is neither a JSON object nor a file"),
        ('{"max_hops": 0}', "HOPGATE_LIMITS: max_hops is 0: Input should be greater"),
        ('{"max_hops": 2, "max_hops": 9}', "HOPGATE_LIMITS is not valid JSON: a name appears tw"),
    ],
)
def test_a_wrong_variable_stops_the_graph_from_being_built(
    monkeypatch: pytest.MonkeyPatch, value: str, said: str
) -> None:
    monkeypatch.setenv("HOPGATE_LIMITS", value)
    with pytest.raises(ValueError, match=said):
        build_graph()


def test_the_command_line_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPGATE_LIMITS", '{"max_hop": 2}')
    command = [sys.executable, "-m", "hopgate", "ask", "Why?"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("hopgate: HOPGATE_LIMITS: unknown limit 'max_hop'")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("as_file", [False, True])
def test_limits_come_from_a_variable_or_the_file_that_it_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, as_file: bool
) -> None:
    value = json.dumps({"max_hops": 2, "model": ["openai:small"], "question_chars": 50})
    (tmp_path / "limits.json").write_text(value, encoding="utf-8")
    monkeypatch.setenv("HOPGATE_LIMITS", str(tmp_path / "limits.json") if as_file else value)
    limits = from_environment()
    assert limits.question_chars == 50
    assert limits.apply(Context()) == Context(max_hops=2, model="openai:small")


@pytest.mark.parametrize("value", [None, "", "  "])
def test_without_any_everything_is_allowed(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv("HOPGATE_LIMITS", raising=False)
    if value is not None:
        monkeypatch.setenv("HOPGATE_LIMITS", value)
    widest = Context(alpha=1, max_hops=10, index="/srv", escalate=20)
    assert from_environment().apply(widest) is widest


# What they do to a context


@pytest.mark.parametrize(
    ("limits", "context", "after"),
    [
        ({"max_hops": 4}, {"max_hops": 4}, {"max_hops": 4}),
        ({"max_hops": 2}, {}, {"max_hops": 2}),  # a default beyond a limit takes it
        ({"max_seconds": 60}, {}, {"max_seconds": 60}),  # and so does none at all
        ({"max_seconds": 60}, {"max_seconds": 5}, {"max_seconds": 5}),
        ({"alpha": [0, 0.4]}, {"alpha": 0}, {"alpha": 0}),
        ({"alpha": 0.3}, {}, {"alpha": 0.3}),
        ({"index": ["/srv/a", "sample"]}, {}, {"index": "sample"}),
        ({"index": ["/srv/a", "/srv/b"]}, {}, {"index": "/srv/a"}),
        ({"escalate": 4}, {}, {"escalate": 0}),
        ({"rerank": [""]}, {}, {"rerank": ""}),
        ({"today": ["2026-01-01", None]}, {}, {"today": None}),
    ],
)
def test_a_context_is_kept_within_its_limits(
    limits: dict[str, Any], context: dict[str, Any], after: dict[str, Any]
) -> None:
    assert Limits.parse(limits).apply(Context(**context)) == Context(**(context | after))


@pytest.mark.parametrize(
    ("limits", "context", "said"),
    [
        ({"max_hops": 4}, {"max_hops": 5}, "max_hops is 5: this server allows at most 4"),
        ({"alpha": [0, 0.4]}, {"alpha": 0.3}, "alpha is 0.3: this server allows 0.0 or 0.4"),
        ({"index": ["sample"]}, {"index": "/etc"}, "index is '/etc': this server allows only 'sam"),
        ({"rerank": [""]}, {"rerank": "x/y"}, "rerank is 'x/y': this server allows only ''"),
        (
            {"max_hops": 1, "top_k": 5},
            {"max_hops": 3, "top_k": 50},
            "max_hops is 3: this server allows at most 1; top_k is 50: this server allows at mos",
        ),
    ],
)
async def test_what_is_beyond_is_refused_before_anything_is_paid_for(
    limits: dict[str, Any], context: dict[str, Any], said: str
) -> None:
    model = TalkingModel(say=say)
    with pytest.raises(ValueError) as caught:
        await graph(limits, model=model).ainvoke(
            {"question": QUESTION}, THREAD, context=Context(**context)
        )
    assert str(caught.value).startswith(said)
    assert model.asked == []


async def test_an_unset_deadline_is_the_limit() -> None:
    clock = Clock()

    def slow(number: int, asked: str) -> str:
        clock.spend(20)
        return say(number, asked)

    app = graph({"max_seconds": 30}, model=TalkingModel(say=slow), clock=clock)
    result = await app.ainvoke({"question": QUESTION}, THREAD)
    assert result["decision"]["stop_reason"] == "deadline"
    assert "deadline of 30 s" in result["decision"]["warnings"][0]


# Ways around them


@pytest.mark.parametrize("after", ["condense", "gate", "route", "retrieve", "generate"])
async def test_a_run_that_is_resumed_is_held_to_the_limits(after: str) -> None:
    label = "B" if after in ("retrieve", "generate") else "C"
    app = graph({"max_hops": 2, "escalate": 4}, label)
    doubtful = Context(escalate=4, max_hops=2)
    await app.ainvoke({"question": QUESTION}, THREAD, context=doubtful, interrupt_after=[after])
    assert (await app.aget_state(THREAD)).next
    with pytest.raises(ValueError, match="max_hops is 10: this server allows at most 2"):
        await app.ainvoke(None, THREAD, context=Context(max_hops=10, escalate=4))


async def test_so_is_one_that_failed_inside_the_loop() -> None:
    down = [True]

    def breaking(number: int, asked: str) -> str:
        if down[0] and "reasoning" in asked:
            raise ConnectionError("down")
        return say(number, asked)

    app = graph({"max_hops": 2}, model=TalkingModel(say=breaking))
    with pytest.raises(RuntimeError, match="down"):
        await app.ainvoke({"question": QUESTION}, THREAD)
    down[0] = False
    with pytest.raises(ValueError, match="max_hops is 10: this server allows at most 2"):
        await app.ainvoke(None, THREAD, context=Context(max_hops=10))
    result = await app.ainvoke(None, THREAD)
    assert result["decision"]["stop_reason"] == "hop_limit"
    assert len(result["hops"]) == 2


async def test_a_fork_of_an_old_checkpoint_is_held_to_them_too() -> None:
    app = graph({"alpha": 0.4}, "B")
    await app.ainvoke({"question": QUESTION}, THREAD)
    steps = [step async for step in app.aget_state_history(THREAD)]
    gate = next(step for step in steps if step.next == ("gate",))
    with pytest.raises(ValueError, match="alpha is 1"):
        await app.ainvoke(None, gate.config, context=Context(alpha=1))


@pytest.mark.parametrize("name", ["standalone", "next_query"])
async def test_a_question_edited_in_the_state_is_held_to_its_size(name: str) -> None:
    app = graph({"question_chars": 60})
    await app.ainvoke({"question": QUESTION}, THREAD, interrupt_after=["route"])
    refused = f"{name} has 61 characters: this server allows at most 60"
    with pytest.raises(ValueError, match=refused):
        await app.aupdate_state(THREAD, {name: "x" * 61})
    await graph({}, saver=app.checkpointer).aupdate_state(THREAD, {name: "x" * 61})
    with pytest.raises(ValueError, match=refused):
        await app.ainvoke(None, THREAD)


async def test_sub_questions_are_held_to_the_size_of_a_question() -> None:
    def splitting(number: int, asked: str) -> str:
        return f"1. {'Where ' * 30}?" if "Split the" in asked else say(number, asked)

    retriever = FixedRetriever([LIGHT], [CORRANE], [])
    limits = {"question_chars": 60, "multihop": ["decompose"]}
    app = graph(limits, model=TalkingModel(say=splitting), retriever=retriever)
    await app.ainvoke({"question": QUESTION}, THREAD)
    assert retriever.queries == [QUESTION]
    await app.ainvoke({"question": "Who?"}, OTHER, interrupt_after=["route"])
    with pytest.raises(ValueError, match="sub_questions has 61 characters: this server allows"):
        await app.aupdate_state(OTHER, {"sub_questions": ["Who?", "x" * 61]})


async def test_a_strategy_edited_into_the_state_is_held_to_the_request_s() -> None:
    app = graph({"strategy": ["single", "none"]})
    await app.ainvoke({"question": QUESTION}, THREAD, interrupt_after=["route"])
    with pytest.raises(ValueError, match=r"decision\.strategy is 'multi': this server allows"):
        await app.aupdate_state(THREAD, {"decision": {"strategy": "multi"}}, as_node="route")
    with pytest.raises(ValueError, match=r"decision\.strategy is 'multi'"):
        await app.aupdate_state(THREAD, {"decision": {"strategy": "multi"}}, as_node="escalate")
    assert (await app.ainvoke(None, THREAD))["decision"]["strategy"] == "single"


async def test_a_start_edited_into_the_future_gives_no_time_without_end() -> None:
    retriever = FreshRetriever()
    clock = Clock()
    app = graph({"max_seconds": 30}, retriever=retriever, clock=clock)
    await app.ainvoke({"question": QUESTION}, THREAD, interrupt_after=["route"])
    await app.aupdate_state(THREAD, {"started_at": datetime(3000, 1, 1, tzinfo=UTC).timestamp()})
    result = await app.ainvoke(None, THREAD)
    assert result["decision"]["stop_reason"] == "deadline"
    assert retriever.queries == []


async def test_a_long_conversation_is_no_way_to_a_long_prompt() -> None:
    model = TalkingModel(say=say)
    messages = [("user", "Who?"), ("assistant", "word " * 5_000), ("user", "And where?")]
    with pytest.raises(ValueError, match=r"a prompt has \d+ characters: this server allows at mos"):
        await graph({"prompt_chars": 20_000}, model=model).ainvoke({"messages": messages}, THREAD)
    assert model.asked == []


async def test_evidence_edited_into_the_state_is_no_way_either() -> None:
    model = TalkingModel(say=say)
    app = graph({"prompt_chars": 5_000}, "B", model=model)
    await app.ainvoke({"question": QUESTION}, THREAD, interrupt_after=["retrieve"])
    calls = len(model.asked)
    await app.aupdate_state(THREAD, {"evidence": [LIGHT | {"text": "x" * 6_000}]})
    with pytest.raises(ValueError, match="this server allows at most 5000"):
        await app.ainvoke(None, THREAD)
    assert len(model.asked) == calls


# The question


@pytest.mark.parametrize("given", ["question", "messages"])
async def test_a_question_that_is_too_long_costs_nothing(given: str) -> None:
    model, long = TalkingModel(say=say), "x" * 101
    asked = {"question": long} if given == "question" else {"messages": [("user", long)]}
    with pytest.raises(ValueError, match="question has 101 characters: this server allows at most"):
        await graph({"question_chars": 100}, model=model).ainvoke(asked, THREAD)
    assert model.asked == []


async def test_a_follow_up_that_was_rewritten_too_long_stays_as_it_was_asked() -> None:
    def rewriting(number: int, asked: str) -> str:
        return f"{'Where ' * 30}?" if "Follow-up" in asked else say(number, asked)

    model = TalkingModel(say=rewriting)
    app = graph({"question_chars": 60}, "B", model=model)
    await app.ainvoke({"question": QUESTION}, THREAD)
    await app.ainvoke({"question": "And when was it lit?"}, THREAD)
    assert any("Follow-up" in asked for asked in model.asked)
    assert (await app.aget_state(THREAD)).values["standalone"] == "And when was it lit?"


# Bodies


async def count(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(len(await request.body())))


async def chunks(sizes: list[int]) -> AsyncIterator[bytes]:
    for size in sizes:
        yield b"x" * size


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("sizes", "status"), [([50, 50], 200), ([50, 51], 413)])
async def test_a_body_is_read_up_to_the_limit_whether_its_size_is_declared_or_not(
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
