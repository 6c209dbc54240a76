"""What a turn may cost and how long it may take: no request gets past it, and all of it shows."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from doubles import CORRANE, FixedRetriever, FixedRouter, FreshRetriever, TalkingModel
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, Send
from pydantic import Field

from hopgate import Context, build_graph
from hopgate.common import threads
from hopgate.common.threads import in_thread
from hopgate.graphs import events
from hopgate.nodes.run.spending import BudgetSpent, DeadlinePassed, spent_by
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


def graph(label: str = "C", **given: Any) -> Any:
    given.setdefault("model", TalkingModel(say=lambda n, _: f"[Yes] Fact {n} is new."))
    given.setdefault("retriever", FreshRetriever())
    return build_graph(InMemorySaver(), router=FixedRouter(label), **given)


async def before_answer(app: Any) -> Any:
    """The config of the checkpoint right before the answer."""
    steps = [step async for step in app.aget_state_history(THREAD)]
    return next(step.config for step in steps if step.next == ("generate",))


async def state_of(app: Any) -> Any:
    return (await app.aget_state(THREAD)).values


# One request, a thousand calls


COMMANDS: dict[str, Command[Any]] = {
    "sends": Command(goto=[Send("generate", {"standalone": "Why?"}) for _ in range(200)]),
    "one send": Command(goto=Send("generate", {"standalone": "Why?"})),
    "several places": Command(goto=["generate", "gate"]),
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
async def test_a_command_that_starts_several_nodes_is_refused(command: Command[Any]) -> None:
    model = Waiting()
    app = graph(model=model, label="A")
    await app.ainvoke(ASKED, THREAD)
    asked = len(model.calls)
    with pytest.raises(ValueError, match=r"command\.goto may name one node"):
        await app.ainvoke(command, THREAD)
    with pytest.raises(ValueError, match=r"command\.goto may name one node"):
        await app.aupdate_state(THREAD, command, as_node="gate")
    assert len(model.calls) == asked
    edit: Any = {"standalone": "Who was born in Lissmere?"}
    assert await app.ainvoke(Command(goto=None, update=edit), THREAD)  # as a server makes it
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


async def test_a_fork_counts_only_the_steps_that_led_to_it() -> None:
    app = graph(label="A")
    once = await app.ainvoke(ASKED, THREAD)
    before = await before_answer(app)
    for _ in range(3):
        result = await app.ainvoke(None, before)
        assert result["usage"]["llm_calls"] == once["usage"]["llm_calls"]


# A run that fails shows what it cost


async def test_a_failed_run_shows_its_cost() -> None:
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


@pytest.mark.parametrize("tokens", [None, 0])
async def test_tokens_that_are_not_counted_are_estimated(tokens: Any) -> None:
    result = await graph(label="A", model=Counting(tokens=tokens)).ainvoke(ASKED, THREAD)
    usage = result["usage"]
    assert 50 < usage["prompt_tokens"] < 5_000
    assert 5 < usage["completion_tokens"] < 100


async def test_a_reply_that_is_only_thoughts_counts_its_tokens() -> None:
    model = Counting(tokens=100, text="", metadata={"finish_reason": "length"})
    with pytest.raises(RuntimeError, match="tokens on thoughts and came to no reply") as caught:
        await graph(label="A", model=model).ainvoke(ASKED, THREAD)
    spent = spent_by(caught.value)
    assert spent and spent["completion_tokens"] >= 100


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
