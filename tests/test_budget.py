"""What a turn may cost and how long it may take: no request gets past it, and all of it shows."""

import asyncio
import operator
import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any, TypedDict

import pytest
from doubles import CORRANE, Clock, FixedRetriever, FixedRouter, FreshRetriever, TalkingModel
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Overwrite, Send
from pydantic import Field

from hopgate import Context, build_graph
from hopgate.common import threads
from hopgate.common.threads import in_thread
from hopgate.graphs import events
from hopgate.graphs.history import fork, hops
from hopgate.nodes.run.limits import NO_LIMITS, Limits
from hopgate.nodes.run.spending import BudgetSpent, DeadlinePassed, spent_by
from hopgate.nodes.run.state import NO_USAGE
from hopgate.retrievers.base import Hit

QUESTION = "Where was the designer of Skerrane Light born?"
THREAD: Any = {"configurable": {"thread_id": "1"}}
ASKED: Any = {"question": QUESTION}


class Waiting(BaseChatModel):
    """A FAKE chat model that answers "x" after some seconds, and counts its calls."""

    seconds: float = 0
    calls: list[int] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "waiting"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        self.calls.append(1)
        await asyncio.sleep(self.seconds)
        return ChatResult(generations=[ChatGeneration(message=AIMessage("Some fact."))])


class Outer(TypedDict):
    """The state of a graph that asks several questions at once."""

    calls: Annotated[list[int], operator.add]


def graph(limits: dict[str, Any] | None = None, label: str = "C", **given: Any) -> Any:
    given.setdefault("model", TalkingModel(say=lambda n, _: f"[Yes] Fact {n} is new."))
    given.setdefault("retriever", FreshRetriever())
    limited = Limits.parse(limits) if limits else NO_LIMITS
    return build_graph(InMemorySaver(), router=FixedRouter(label), limits=limited, **given)


async def before_answer(app: Any) -> Any:
    """The config of the checkpoint right before the answer."""
    steps = [step async for step in app.aget_state_history(THREAD)]
    return next(step.config for step in steps if step.next == ("generate",))


async def state_of(app: Any) -> Any:
    return (await app.aget_state(THREAD)).values


# One request, a thousand calls


def thousand(state: dict[str, Any]) -> Command[Any]:
    return Command(goto=[Send("generate", state) for _ in range(200)])


async def test_sends_make_no_more_calls_than_a_turn_may() -> None:
    model = Waiting()
    app = graph(model=model, label="A")
    await app.ainvoke(ASKED, THREAD)
    asked = len(model.calls)
    with pytest.raises(BudgetSpent, match="50 of 50 \\(max_calls\\)") as caught:
        await app.ainvoke(thousand(await state_of(app)), THREAD)
    assert len(model.calls) == 50
    spent = spent_by(caught.value)
    assert spent and spent["llm_calls"] == 50 > asked


async def test_sends_and_several_places_are_refused_where_limits_are_set() -> None:
    model = Waiting()
    app = graph({"max_hops": 9}, model=model, label="A")
    await app.ainvoke(ASKED, THREAD)
    asked = len(model.calls)
    for command in (thousand(await state_of(app)), Command(goto=["generate", "gate"])):
        with pytest.raises(ValueError, match=r"command\.goto may name one node here"):
            await app.ainvoke(command, THREAD)
    assert len(model.calls) == asked
    assert await app.ainvoke(Command(goto="generate"), THREAD)


@pytest.mark.parametrize(
    ("setting", "value", "name"),
    [("max_calls", 1, "llm_calls"), ("max_retrievals", 1, "retrieval_steps")],
)
async def test_a_turn_ends_with_an_error_that_names_the_setting(
    setting: str, value: int, name: str
) -> None:
    app = graph(label="B", retriever=FixedRetriever([CORRANE]))
    command = Command(goto="retrieve")
    context = Context(gate="always", **{setting: value})  # type: ignore[arg-type]
    await app.ainvoke(ASKED, THREAD, context=context)
    with pytest.raises(BudgetSpent, match=rf"used 1 of 1 \({setting}\), and needs 1 more; raise"):
        await app.ainvoke(command, THREAD, context=context)
        await app.ainvoke(Command(goto="generate"), THREAD, context=context)
    assert (await state_of(app))["usage"][name] == 1


async def test_the_loop_leaves_a_call_for_the_answer() -> None:
    app = graph()
    result = await app.ainvoke(ASKED, THREAD, context=Context(gate="always", max_calls=3))
    assert result["decision"]["stop_reason"] == "budget"
    assert "max_calls" in result["decision"]["warnings"][0]
    assert (result["usage"]["llm_calls"], len(result["hops"])) == (3, 3)
    assert result["answer"]


# What a turn has cost cannot be edited, resumed or forked away


NOTHING: Any = {key: 0 for key in NO_USAGE} | {"ms": {}}
SENDS: list[Any] = [Send("generate", {"usage": NOTHING})] * 30
REPLACED = Overwrite(NOTHING)
WAYS_ROUND: dict[str, tuple[Any, str | None]] = {
    "replaced": ({"usage": REPLACED}, "generate"),
    "replaced, as JSON": ({"usage": {"__overwrite__": NOTHING}}, "generate"),
    "command": (Command(update={"usage": REPLACED}), "generate"),
    "pairs": (Command(update=[("usage", REPLACED)]), "generate"),
    "list of commands": ([Command(update={"usage": REPLACED})], "generate"),
    "copied checkpoint": ([[{"usage": {"__overwrite__": NOTHING}}, "generate"]], "__copy__"),
    "sends": (Command(goto=SENDS), "gate"),
    "one send": (SENDS[0], "gate"),
    "LangGraph's channel": (Command(update={"branch:to:generate": None}), "gate"),
}


@pytest.mark.parametrize(("edit", "node"), WAYS_ROUND.values(), ids=WAYS_ROUND)
async def test_where_limits_are_set_no_edit_replaces_the_cost_or_sends(
    edit: Any, node: str | None
) -> None:
    app = graph({"max_calls": 3}, label="A")
    before = (await app.ainvoke(ASKED, THREAD))["usage"]
    with pytest.raises(
        ValueError, match=r"usage cannot be replaced|goto may name|type Send|not a key"
    ):
        await app.aupdate_state(THREAD, edit, as_node=node)
    if node != "__copy__":
        command = Command(update=edit, goto="generate") if isinstance(edit, dict) else edit
        with pytest.raises(ValueError, match=r"usage cannot be replaced|goto may name|not a key"):
            await app.ainvoke(command, THREAD)
    state = await app.aget_state(THREAD)
    assert (state.values["usage"], state.next) == (before, ())


async def test_a_start_that_fails_opens_no_new_budget() -> None:
    model = Waiting()
    app = graph({"max_calls": 6}, model=model, label="A")
    await app.ainvoke(ASKED, THREAD)
    before = await before_answer(app)
    for again in (before, THREAD):
        for _ in range(10):
            with suppress(BudgetSpent):
                await app.ainvoke(None, before)
            with pytest.raises((ValueError, BudgetSpent), match=r"no new question|max_calls"):
                await app.ainvoke(Command(goto="start"), again)
            with pytest.raises(ValueError, match="no new question"):
                await app.ainvoke({"messages": []}, THREAD)
    assert len(model.calls) == 6


async def test_a_command_without_a_place_goes_on_where_limits_are_set() -> None:
    app = graph({"max_calls": 9}, label="A")
    await app.ainvoke(ASKED, THREAD, interrupt_before=["generate"])
    edit: Any = {"standalone": "Who was born in Lissmere?"}
    result = await app.ainvoke(Command(goto=None, update=edit), THREAD)  # as a server makes it
    assert result["answer"]


async def test_a_run_can_be_forked_where_limits_are_set() -> None:
    app = graph({"max_calls": 20})
    context = Context(gate="always", max_hops=2)
    await app.ainvoke(ASKED, THREAD, context=context)
    _, second = await hops(app, THREAD)
    branch = await fork(app, second, query="something else")
    result = await app.ainvoke(None, branch, context=context)
    assert result["usage"]["retrieval_steps"] == 2


@pytest.mark.parametrize("limits", [None, {"max_calls": 20}])
async def test_a_loop_that_is_left_early_is_still_counted(limits: Any) -> None:
    def say(number: int, _: str) -> str:
        if number == 2:
            raise ConnectionError("down")
        return f"Fact {number} is new."

    model = TalkingModel(say=say, tokens_per_byte=1)
    app = graph(limits, model=model)
    context = Context(gate="always", max_hops=6)
    with pytest.raises(RuntimeError, match="down"):
        await app.ainvoke(ASKED, THREAD, context=context)
    result = await app.ainvoke(Command(goto="generate"), THREAD, context=context)
    assert result["usage"]["llm_calls"] == len(model.prompts)


async def test_forks_of_a_turn_share_the_operators_budget() -> None:
    model = Waiting()
    app = graph({"max_calls": 6}, model=model, label="A")
    await app.ainvoke(ASKED, THREAD)
    before = await before_answer(app)
    with pytest.raises(BudgetSpent, match=r"used 6 of 6 \(max_calls\)"):
        for _ in range(20):
            await app.ainvoke(None, before)
    assert len(model.calls) == 6
    await app.ainvoke({"question": "Who?"}, THREAD)  # a new turn has a budget of its own
    assert len(model.calls) > 6


async def test_runs_inside_one_run_of_another_graph_have_a_budget_each() -> None:
    down = [True]

    def say(number: int, prompt: str) -> str:
        if down[0] and number >= 4:
            raise ConnectionError("down")
        return "[No] Some fact."

    limits = Limits.parse({"max_calls": 4})
    model = TalkingModel(say=say)
    inner = build_graph(
        model=model, retriever=FreshRetriever(), router=FixedRouter("A"), limits=limits
    )

    async def ask(question: str) -> dict[str, Any]:
        result = await inner.ainvoke({"question": question}, context=Context(gate="ta-are"))
        return {"calls": [result["usage"]["llm_calls"]]}

    outer = StateGraph(Outer)
    outer.add_node("ask", ask)  # type: ignore[type-var]
    outer.add_conditional_edges(START, lambda _: [Send("ask", f"Who is {n}?") for n in range(4)])
    app = outer.compile(InMemorySaver())
    with pytest.raises(RuntimeError, match="down"):
        await app.ainvoke({"calls": []}, THREAD)
    down[0] = False
    result = await app.ainvoke(None, THREAD)
    assert len(result["calls"]) == 4
    made = len(model.prompts)  # calls that were cancelled before they were sent count too
    assert made <= sum(result["calls"]) <= made + 3


async def test_without_limits_a_fork_counts_only_the_steps_that_led_to_it() -> None:
    app = graph(label="A")
    once = await app.ainvoke(ASKED, THREAD)
    before = await before_answer(app)
    for _ in range(3):
        result = await app.ainvoke(None, before)
        assert result["usage"]["llm_calls"] == once["usage"]["llm_calls"]


# A run that fails shows what it cost


async def test_a_failed_run_shows_its_cost_and_the_next_one_counts_it() -> None:
    down = [True]

    def say(number: int, prompt: str) -> str:
        if down[0] and "Skerrane" in prompt and number:
            raise TimeoutError("down")
        return "[No]"

    app = graph(label="A", model=TalkingModel(say=say, tokens_per_byte=1))
    seen: list[Any] = []
    with pytest.raises(RuntimeError, match="down"):
        async for mode, part in app.astream(ASKED, THREAD, stream_mode=["custom"], subgraphs=False):
            seen.append(events.read(mode, part))
    failed = seen[-1]
    assert (failed["event"], failed["node"]) == ("failed", "generate")
    assert failed["usage"]["llm_calls"] == 2
    stored = (await state_of(app))["usage"]
    assert stored["llm_calls"] == 1
    assert failed["usage"]["prompt_tokens"] > stored["prompt_tokens"]
    down[0] = False
    result = await app.ainvoke(None, THREAD)
    assert result["usage"]["llm_calls"] == 3


ODD_COUNTS: list[Any] = [-1_000_000, 10**30, 1.5, float("nan"), float("inf"), "7", None, True]


class Counting(Waiting):
    """A FAKE chat model that reports whatever tokens a test gives it."""

    tokens: Any = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    text: str = "[No] Some fact."

    async def _agenerate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        self.calls.append(1)
        reply = AIMessage(self.text, response_metadata=self.metadata)
        odd: Any = {"input_tokens": self.tokens, "output_tokens": self.tokens, "total_tokens": 0}
        object.__setattr__(reply, "usage_metadata", odd)  # some clients check nothing
        return ChatResult(generations=[ChatGeneration(message=reply)])


@pytest.mark.parametrize("tokens", ODD_COUNTS, ids=str)
async def test_counts_that_cannot_be_true_are_estimated(tokens: Any) -> None:
    result = await graph(label="A", model=Counting(tokens=tokens)).ainvoke(ASKED, THREAD)
    usage = result["usage"]
    assert all(type(usage[name]) is int for name in ("prompt_tokens", "completion_tokens"))
    assert 50 < usage["prompt_tokens"] < 5_000
    assert 5 < usage["completion_tokens"] < 100


async def test_a_reply_that_is_only_thoughts_counts_its_tokens() -> None:
    model = Counting(tokens=100, text="", metadata={"finish_reason": "length"})
    with pytest.raises(RuntimeError, match="tokens on thoughts and came to no reply") as caught:
        await graph(label="A", model=model).ainvoke(ASKED, THREAD)
    spent = spent_by(caught.value)
    assert spent and spent["completion_tokens"] >= 100


async def test_a_cancelled_call_counts_as_many_tokens_as_it_could_write() -> None:
    model = Waiting(seconds=600)
    app = graph(label="A", model=model)
    run = asyncio.create_task(app.ainvoke(ASKED, THREAD, context=Context(gate="never")))
    while not model.calls:
        await asyncio.sleep(0.01)
    run.cancel()
    await asyncio.gather(run, return_exceptions=True)
    model.seconds = 0
    result = await app.ainvoke(None, THREAD, context=Context(gate="never"))
    assert result["usage"]["llm_calls"] == len(model.calls) == 2
    assert result["usage"]["completion_tokens"] > 100


# A model, a retriever or a router that hangs


class Hanging(FixedRetriever):
    """A FAKE retriever that never returns."""

    def search(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        threading.Event().wait()
        raise AssertionError


async def timed(app: Any, context: Context) -> tuple[Any, float]:
    began = time.monotonic()
    result = await app.ainvoke(ASKED, THREAD, context=context)
    return result, time.monotonic() - began


@pytest.mark.parametrize("node", ["gate", "generate"])
async def test_a_model_that_hangs_ends_the_turn_at_its_deadline(node: str) -> None:
    app = graph(model=Waiting(seconds=600), label="A")
    context = Context(gate="ta-are" if node == "gate" else "never", max_seconds=0.3)
    began = time.monotonic()
    with pytest.raises(DeadlinePassed, match=rf"{node} did not end within the turn's 0.3 s"):
        await app.ainvoke(ASKED, THREAD, context=context)
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("strategy", ["single", "multi"])
async def test_a_retriever_that_hangs_costs_the_sources_not_the_answer(strategy: Any) -> None:
    result, seconds = await timed(
        graph(model=Waiting(), retriever=Hanging([])), Context(strategy=strategy, max_seconds=1)
    )
    assert result["answer"] == "Some fact."
    assert "max_seconds" in " ".join(result["decision"]["warnings"])
    assert seconds < 20


async def test_a_router_that_hangs_ends_the_turn_at_its_deadline() -> None:
    class Stuck(FixedRouter):
        def route(self, questions: Sequence[str], alpha: float) -> list[dict[str, float]]:
            threading.Event().wait()
            raise AssertionError

    app = build_graph(model=Waiting(), retriever=FreshRetriever(), router=Stuck("A"))
    with pytest.raises(DeadlinePassed, match="route did not end"):
        await app.ainvoke(ASKED, context=Context(gate="off", max_seconds=0.3))


async def test_a_clock_that_goes_back_gains_no_time() -> None:
    class GoingBack(Clock):
        def __call__(self) -> datetime:
            self.advance(-3_600)
            return self.now

    app = graph(model=Waiting(seconds=0.4), clock=GoingBack())
    context = Context(gate="always", max_hops=9, max_seconds=1)
    with suppress(DeadlinePassed):
        result = await app.ainvoke(ASKED, THREAD, context=context)
        assert result["decision"]["stop_reason"] == "deadline"


async def test_a_store_that_hangs_takes_no_threads_from_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threads, "AT_ONCE", 3)
    stuck = graph(model=Waiting(), retriever=Hanging([]))
    context = Context(strategy="single", max_seconds=0.5)
    for number in range(4):
        config: Any = {"configurable": {"thread_id": f"stuck {number}"}}
        with suppress(DeadlinePassed):
            await stuck.ainvoke(ASKED, config, context=context)
    context = Context(gate="always")
    for retriever in (FixedRetriever([CORRANE]), None):  # None: the sample index
        app = graph(model=Waiting(), retriever=retriever, label="B")
        result = await app.ainvoke(ASKED, THREAD, context=context)
        assert result["hops"][0]["passage_ids"]


def test_a_plain_script_ends_although_its_retriever_hangs() -> None:
    app = build_graph(model=Waiting(), retriever=Hanging([]), router=FixedRouter("B"))
    result = app.invoke(ASKED, context=Context(strategy="single", max_seconds=0.5))
    assert result["answer"] == "Some fact."


async def test_a_forked_process_starts_threads_of_its_own() -> None:
    assert await in_thread("a", int, "1") == 1
    child = os.fork()
    if not child:  # pragma: no cover
        signal.alarm(20)
        found = asyncio.new_event_loop().run_until_complete(in_thread("a", int, "2"))
        os._exit(0 if found == 2 else 1)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert status == 0
