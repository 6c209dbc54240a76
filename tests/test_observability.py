"""Each run is one turn in logs, metrics and spans, without texts."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any, TypedDict

import pytest
from doubles import CORRANE, LIGHT, FixedRetriever, FixedRouter, TalkingModel, hit
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import StateUpdate
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.parser import text_string_to_metric_families

from hopgate import Context, build_graph
from hopgate.common.faults import serving
from hopgate.server.observing import logs, metrics, spans
from hopgate.server.observing.callbacks import TurnWatcher
from hopgate.server.observing.turns import Turn
from hopgate.server.watch import watcher

# Words that occur only in texts.
QUESTION = "Where was the designer of Quetzalmoor born?"
PASSAGE = hit("Zanderfell", "Quetzalmoor was drawn by Ypsilanta Vorne.")
THOUGHT = "The designer was Ypsilanta Vorne."
ANSWER = "Xylander"
TEXTS = ("Quetzalmoor", "Zanderfell", "Ypsilanta", "Xylander", "paragraphs")
THREAD: Any = {"configurable": {"thread_id": "thread-1"}}


def say(_: int, prompt: str) -> str:
    if "determine whether" in prompt:
        return "[Yes]"
    if "go on with the reasoning" in prompt:
        return f"So the answer is: {ANSWER}." if THOUGHT in prompt else THOUGHT
    return ANSWER


class Watched:
    """A graph that records its turns."""

    def __init__(self, label: str = "C", *observers: Any, **given: Any) -> None:
        self.turns: list[Turn] = []
        self.watcher = TurnWatcher([*observers, self.turns.append])
        given.setdefault("model", TalkingModel(say=say, tokens_per_byte=0.25))
        given.setdefault("retriever", FixedRetriever([PASSAGE, LIGHT], [CORRANE]))
        graph = build_graph(InMemorySaver(), router=FixedRouter(label), **given)
        self.graph: Any = graph.with_config(callbacks=[self.watcher])

    async def ask(self, question: str | None = QUESTION, **settings: Any) -> Any:
        asked = None if question is None else {"question": question}
        stop = settings.pop("interrupt_after", None)
        context = Context(**settings)
        return await self.graph.ainvoke(asked, THREAD, context=context, interrupt_after=stop)

    async def edit_unchecked(self, values: Any, node: str | None = None) -> None:
        """Write a state that hopgate refuses today, as an older one may have stored it."""
        edits = [[StateUpdate(values, node)]]
        await CompiledStateGraph.abulk_update_state(self.graph, THREAD, edits)

    def turn(self) -> Turn:
        """The only turn so far; the watcher holds nothing of it any more."""
        (turn,) = self.turns
        assert self.watcher._running == {}
        return turn


def counted(usage: Any) -> dict[str, int]:
    return {key: value for key, value in usage.items() if key != "ms"}


def added(*turns: Turn) -> dict[str, int]:
    return {
        key: sum(turn.usage[key] for turn in turns)  # type: ignore[literal-required]
        for key in ("retrieval_steps", "llm_calls", "prompt_tokens", "completion_tokens")
    }


# Turns


async def test_a_turn_has_the_decisions_and_the_cost_of_the_run() -> None:
    watched = Watched()
    result = await watched.ask(alpha=0.7)
    turn = watched.turn()
    assert (turn.outcome, turn.thread_id, turn.alpha) == ("answered", "thread-1", 0.7)
    assert turn.decision == result["decision"]
    assert turn.usage == result["usage"]
    assert (turn.error, turn.cause, turn.failed_in) == (None, None, None)
    assert turn.ms == pytest.approx((turn.ended_at - turn.started_at) / 1e6, rel=0.5, abs=50)


async def test_steps_are_nodes_and_calls_nested_and_in_order() -> None:
    watched = Watched()
    await watched.ask()
    names = {step.id: step.name for step in watched.turn().steps}
    seen = [(step.name, names.get(step.parent)) for step in watched.turn().steps]  # type: ignore[arg-type]
    loop = [("retrieve", "multihop"), ("reason", "multihop"), ("model", "reason")]
    assert seen == [
        ("start", None),
        *[("gate", None), ("model", "gate")],
        ("route", None),
        *[("multihop", None), *loop, *loop],
        *[("generate", None), ("model", "generate")],
    ]
    assert all(step.started_at <= (step.ended_at or 0) for step in watched.turn().steps)


@pytest.mark.parametrize("after", ["start", "gate", "route", "multihop"])
async def test_a_pause_and_its_resume_are_two_runs_that_add_up(after: str) -> None:
    watched = Watched()
    await watched.ask(interrupt_after=[after])
    result = await watched.ask(None)
    first, second = watched.turns
    assert (first.outcome, second.outcome) == ("paused", "answered")
    assert added(first, second) == counted(result["usage"])
    assert second.decision == result["decision"]
    assert sum(sum(turn.usage["ms"].values()) for turn in watched.turns) == pytest.approx(
        sum(result["usage"]["ms"].values()), abs=1
    )


async def test_a_failure_in_the_loop_and_its_resume_are_two_runs() -> None:
    down = [True]

    def breaking(number: int, asked: str) -> str:
        if down[0] and THOUGHT in asked:
            raise ConnectionError("down")
        return say(number, asked)

    watched = Watched(model=TalkingModel(say=breaking, tokens_per_byte=0.25))
    with pytest.raises(RuntimeError):
        await watched.ask()
    down[0] = False
    result = await watched.ask(None)
    first, second = watched.turns
    assert (first.outcome, first.error) == ("error", "ModelError")
    assert first.cause == "model_connection"
    assert first.failed_in == "reason"
    assert (first.usage["llm_calls"], first.usage["retrieval_steps"]) == (3, 2)
    assert second.outcome == "answered"
    assert added(first, second)["llm_calls"] == result["usage"]["llm_calls"] + 1  # the failed one
    assert watched.watcher._running == {}


async def test_an_invalid_context_is_a_failure() -> None:
    watched = Watched()
    with pytest.raises(ValueError, match="alpha"):
        await watched.graph.ainvoke({"question": QUESTION}, THREAD, context={"alpha": 3})
    assert (watched.turn().cause, watched.turn().failed_in) == ("input", None)


async def test_a_cancelled_run_is_not_a_failure() -> None:
    class Slow(FixedRetriever):
        def search(self, queries: Any, k: int) -> Any:
            asyncio.run_coroutine_threadsafe(cancel(), loop).result()
            return super().search(queries, k)

    async def cancel() -> None:
        task.cancel()

    loop = asyncio.get_running_loop()
    watched = Watched(retriever=Slow([PASSAGE]))
    task = asyncio.create_task(watched.ask())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (watched.turn().outcome, watched.turn().cause) == ("cancelled", None)
    assert watched.turn().usage["llm_calls"] == 1  # the gate's


async def test_neither_an_edit_of_the_state_nor_an_empty_resume_is_a_turn() -> None:
    watched = Watched()
    await watched.ask()
    await watched.graph.aupdate_state(THREAD, {"decision": {"strategy": "none"}}, as_node="route")
    assert watched.turn().outcome == "answered"
    await watched.ask(None)
    assert await watched.ask(None)
    assert [turn.outcome for turn in watched.turns] == ["answered", "answered"]
    assert watched.watcher._running == {}


async def test_a_run_inside_another_graph_is_one_turn() -> None:
    class Outer(TypedDict):
        asked: str
        answer: str

    watched = Watched()

    async def inner(state: Outer) -> Any:
        result = await watched.graph.ainvoke({"question": state["asked"]})
        return {"answer": result["answer"]}

    builder = StateGraph(Outer)
    builder.add_node("inner", inner)
    builder.add_edge(START, "inner")
    result = await builder.compile(InMemorySaver()).ainvoke({"asked": QUESTION}, THREAD)
    assert result["answer"] == ANSWER
    assert watched.turn().outcome == "answered"
    assert watched.turn().usage["llm_calls"] == 4


async def test_concurrent_turns_do_not_mix() -> None:
    watched = Watched("A", model=TalkingModel(say=lambda _, asked: asked, tokens_per_byte=0.25))

    async def ask(number: int) -> Any:
        config = {"configurable": {"thread_id": str(number)}}
        context = Context(gate="off", alpha=number / 20)
        return await watched.graph.ainvoke({"question": f"Nr. {number}"}, config, context=context)

    await asyncio.gather(*map(ask, range(20)))
    assert sorted((int(turn.thread_id or -1), turn.alpha) for turn in watched.turns) == [
        (number, number / 20) for number in range(20)
    ]
    assert all(turn.usage["llm_calls"] == 1 for turn in watched.turns)
    assert watched.watcher._running == {}


async def test_a_failing_observer_breaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: Turn) -> None:
        raise KeyError("disk full")

    watched = Watched("C", broken)
    assert (await watched.ask())["answer"] == ANSWER
    assert watched.turn().outcome == "answered"
    assert "an observer failed: KeyError" in caplog.text


# Logs


async def test_a_run_is_one_log_line_with_fields_and_without_texts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "hopgate")
    watched = Watched("C", logs.write)
    result = await watched.ask(alpha=0.7)
    (record,) = [record for record in caplog.records if record.name == "hopgate"]
    line, fields = record.getMessage(), vars(record)
    for shown in ("outcome=answered", "alpha=0.7", "gate=yes", "label=C", "strategy=multi"):
        assert f" {shown} " in line
    assert f"stop_reason={result['decision']['stop_reason']} " in line
    usage = result["usage"]
    assert {key: fields[key] for key in counted(usage)} == counted(usage)
    assert (fields["thread_id"], fields["run_id"]) == ("thread-1", str(watched.turn().run_id))
    assert fields["model"] == "TalkingModel"
    assert fields["ms"] > 0
    assert not any(text in f"{line}{fields}" for text in TEXTS)


async def test_a_failed_run_is_a_warning_with_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    def down(*_: Any) -> str:
        raise ConnectionError("host 10.1.2.3 is down")

    watched = Watched("C", logs.write, model=TalkingModel(say=down))
    with serving(), pytest.raises(RuntimeError, match=r"^the model cannot be reached; try again"):
        await watched.ask()
    with pytest.raises(ValueError):
        await watched.ask(" ")
    failed, wrong = [record for record in caplog.records if record.name == "hopgate"]
    assert failed.levelname == "WARNING"
    assert "cause=model_connection error=ModelError failed_in=gate" in failed.getMessage()
    assert "host 10.1.2.3 is down" in vars(failed)["error_message"]
    assert (vars(wrong)["cause"], vars(wrong)["error_message"]) == ("input", None)


async def test_an_edited_state_cannot_forge_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hopgate")
    watched = Watched("C", logs.write)
    await watched.ask(interrupt_after=["route"])
    forged = {"stop_reason": "x\nturn outcome=answered ms=0", "strategy": "none"}
    await watched.edit_unchecked({"decision": forged}, "route")
    await watched.ask(None)
    _, answered = [each.getMessage() for each in caplog.records if each.name == "hopgate"]
    assert "\n" not in answered
    assert "stop_reason='x\\nturn outcome=answered ms=0' " in answered


# Metrics


def values() -> dict[tuple[str, ...], float]:
    """Every sample except histogram buckets, by name and label values."""
    families = text_string_to_metric_families(metrics.text().decode())
    return {
        (sample.name, *(sample.labels[key] for key in sorted(sample.labels))): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.endswith(("_created", "_bucket"))
    }


def grown(before: dict[tuple[str, ...], float]) -> dict[tuple[str, ...], float]:
    after = values()
    return {key: after[key] - before.get(key, 0) for key in after if after[key] != before.get(key)}


async def test_metrics_show_the_effect_of_alpha() -> None:
    before, watched = values(), Watched("C", metrics.count)
    result = await watched.ask(alpha=0.68)
    more = grown(before)
    assert more["hopgate_turns_total", "0.7", "answered", "multi"] == 1
    assert more["hopgate_gates_total", "0.7", "yes"] == 1
    assert more["hopgate_routes_total", "0.7", "C"] == 1
    assert more["hopgate_loop_stops_total", result["decision"]["stop_reason"]] == 1
    assert more["hopgate_retrievals_total", "0.7"] == result["usage"]["retrieval_steps"] == 2
    assert more["hopgate_model_calls_total", "0.7"] == result["usage"]["llm_calls"] == 4
    assert more["hopgate_tokens_total", "0.7", "prompt"] == result["usage"]["prompt_tokens"]
    assert more["hopgate_tokens_total", "0.7", "completion"] == 4
    assert more["hopgate_turn_seconds_count", "multi"] == 1
    assert more["hopgate_turn_seconds_sum", "multi"] == pytest.approx(watched.turn().ms / 1000)
    assert ("hopgate_escalations_total",) not in more


async def test_failures_and_escalations_are_counted() -> None:
    before = values()
    with pytest.raises(ValueError):
        await Watched("C", metrics.count).ask("")
    unknowing = TalkingModel(say=lambda *_: "I don't know")
    await Watched("A", metrics.count, model=unknowing).ask(gate="off", escalate=1)
    more = grown(before)
    assert more["hopgate_errors_total", "input", "start"] == 1
    assert more["hopgate_turns_total", "undecided", "error", "undecided"] == 1
    assert more["hopgate_turns_total", "0.7", "unknown", "single"] == 1
    assert more["hopgate_escalations_total",] == 1


# Spans


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    yield exporter
    exporter.shutdown()


def traced(exporter: InMemorySpanExporter, **given: Any) -> Watched:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Watched("C", spans.observer(provider.get_tracer("test")), **given)


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


async def test_a_run_is_a_trace_of_nodes_and_calls(exporter: InMemorySpanExporter) -> None:
    watched = traced(exporter)
    result = await watched.ask(alpha=0.7)
    found = exporter.get_finished_spans()
    assert len(found) == len(watched.turn().steps) + 1
    assert len({span.context.trace_id for span in found if span.context}) == 1
    root, reason = by_name(exporter)["hopgate"], by_name(exporter)["reason"]
    above = by_name(exporter)["multihop"]
    assert reason.parent and above.context and reason.parent.span_id == above.context.span_id
    assert above.start_time <= reason.start_time <= reason.end_time <= above.end_time  # type: ignore[operator]
    told = dict(root.attributes or {})
    assert told["hopgate.alpha"] == 0.7
    assert told["hopgate.gate.answer"] == "yes"
    assert (told["hopgate.route.label"], told["hopgate.route.probs.C"]) == ("C", 0.8)
    assert (told["hopgate.strategy"], told["hopgate.outcome"]) == ("multi", "answered")
    assert told["hopgate.stop_reason"] == result["decision"]["stop_reason"]
    assert told["hopgate.retrieval_steps"] == result["usage"]["retrieval_steps"]
    assert told["hopgate.prompt_tokens"] == result["usage"]["prompt_tokens"]
    assert told["gen_ai.conversation.id"] == "thread-1"
    call = dict(by_name(exporter)["chat model"].attributes or {})
    assert (call["gen_ai.operation.name"], call["gen_ai.usage.output_tokens"]) == ("chat", 1)


async def test_spans_have_no_texts_not_even_of_errors(exporter: InMemorySpanExporter) -> None:
    def down(number: int, asked: str) -> str:
        if ANSWER in asked:
            raise ConnectionError(f"refused: {ANSWER}")
        return say(number, asked)

    await traced(exporter).ask()
    with pytest.raises(RuntimeError, match="refused"):
        await traced(exporter, model=TalkingModel(say=down)).ask(f"{ANSWER}?")
    found = [span.to_json() for span in exporter.get_finished_spans()]
    assert len(found) > 12
    assert not any(text in span for text in TEXTS for span in found)
    failed = by_name(exporter)["hopgate"]
    assert (failed.attributes or {})["error.type"] == "ModelError"
    assert not failed.status.is_ok


async def test_the_server_s_watcher_has_logs_metrics_and_spans(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "hopgate")
    before = values()
    given = {"model": TalkingModel(say=say), "retriever": FixedRetriever([LIGHT])}
    graph = build_graph(router=FixedRouter("B"), **given)  # type: ignore[arg-type]
    await graph.with_config(callbacks=[watcher()]).ainvoke({"question": "x"})
    assert "turn outcome=answered" in caplog.text
    assert grown(before)["hopgate_turns_total", "0.7", "answered", "single"] == 1
