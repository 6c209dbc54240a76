"""Turns: what each run of the graph decided and cost, gathered in one place for every observer.

A `TurnWatcher` is a LangChain callback handler. Attached to the graph, it sees each run begin and
end, also by an error or by being cancelled, and hands observers (logs, metrics, spans) one
`Turn`. `watcher()` makes the one that the server's graph carries; an app may do the same:
`graph.with_config(callbacks=[watcher()])`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langgraph.graph import END
from langgraph.types import Overwrite
from pydantic import TypeAdapter, ValidationError

from hopgate.graphs.history import LOOP
from hopgate.models.chat import ModelError
from hopgate.nodes.state import NO_USAGE, Decision, Usage, merge_decision

log = logging.getLogger(__name__)

Outcome = Literal["answered", "unknown", "paused", "error", "cancelled"]
Cause = Literal["input", "model", "other"]

EDIT = "UpdateState"  # how LangGraph's name for an edit of the state ends
FIRST = "start"
LAST_EDGE = "after_generate"
USAGE = TypeAdapter(Usage)
STOPPED = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt)


@dataclass
class Step:
    """One visit to a node, or one call to a model.

    Attributes:
        id: LangChain's id of it.
        parent: That of the node that it belongs to, if to one.
        kind: Which of the two it is.
        name: The node's, or the model's.
        began: Nanoseconds since 1970.
        ended: Likewise; None where it did not end.
        error: The class of what ended it early, if so.
        prompt_tokens: Read in this call, as far as the endpoint counted.
        completion_tokens: Written, likewise.
        prompt: What was asked, for observers that may keep texts.
        reply: What came back, likewise.
    """

    id: UUID
    parent: UUID | None
    kind: Literal["node", "model"]
    name: str
    began: int
    ended: int | None = None
    error: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt: str = ""
    reply: str = ""


@dataclass
class Turn:
    """One run of the graph, from its start to its end.

    A turn that was paused and gone on with, or that failed and was taken up again, is several
    runs; each counts only what it did itself.

    Attributes:
        run_id: LangChain's id of the run, which is the server's too.
        thread_id: The conversation's, if there is one.
        began: Nanoseconds since 1970.
        ended: Likewise.
        ms: How long it took, in milliseconds.
        outcome: `answered`, `unknown` ("I don't know"), `paused` (before or after a node, as the
            request asked), `error` or `cancelled`.
        error: The class of the error, such as ModelError.
        cause: What it lies with: the request (a ValueError), the model or something else.
        failed_in: The node in which it was raised.
        decision: Every decision so far.
        usage: What this run cost.
        steps: The nodes and the model's calls, in the order in which they began.
        question: For observers that may keep texts.
        answer: Likewise.
    """

    run_id: UUID
    thread_id: str | None
    began: int
    ended: int = 0
    ms: float = 0.0
    outcome: Outcome = "paused"
    error: str | None = None
    cause: Cause | None = None
    failed_in: str | None = None
    decision: Decision = field(default_factory=Decision)
    usage: Usage = field(default_factory=NO_USAGE.copy)
    steps: list[Step] = field(default_factory=list)
    question: str = ""
    answer: str = ""

    @property
    def alpha(self) -> float | None:
        """The α that the router used, else the request's; None before the first node ended."""
        return self.part("route").get("alpha", self.decision.get("alpha"))

    def part(self, name: Literal["gate", "route"]) -> dict[str, Any]:
        """Return a part of the decision; empty where there is none, or a person wrote none."""
        part: Any = self.decision.get(name)
        return part if isinstance(part, dict) else {}


Observer = Callable[[Turn], None]


@dataclass
class _Running:
    """A turn that has not ended yet, and what is needed to end it."""

    turn: Turn
    clock: float
    steps: dict[UUID, Step] = field(default_factory=dict)
    within: dict[UUID | None, Step] = field(default_factory=dict)  # the node around everything
    before: Usage | None = None
    after: Usage | None = None
    last_edge: UUID | None = None
    is_over: bool = False
    is_edit: bool = False  # by its name, which a request can give a run too


class TurnWatcher(BaseCallbackHandler):
    """Gathers every run of the graph that it is attached to, and tells observers of its end."""

    run_inline = True  # in the order in which things happen
    ignore_retriever = True
    ignore_agent = True
    ignore_custom_event = True

    def __init__(self, observers: Sequence[Observer]) -> None:
        """Keep who is told."""
        self._observers = tuple(observers)
        # By the id of everything that has begun and not ended.
        self._running: dict[UUID, _Running] = {}

    def on_chain_start(
        self,
        serialized: dict[str, Any] | None,
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Note the start of a run, or of a node or an edge in one."""
        name, data = str(kwargs.get("name") or ""), metadata or {}
        if parent_run_id not in self._running:
            self._running[run_id] = _begin(run_id, data, is_edit=name.endswith(EDIT))
            return
        running = self._running[run_id] = self._running[parent_run_id]
        around = running.within.get(parent_run_id)
        is_node = name == data.get("langgraph_node") and not name.startswith("__")
        if name == LAST_EDGE:
            running.last_edge = run_id
        if is_node and not (around and around.name == name):  # a subgraph is named as its node
            _take_up(running, name, inputs)
            _add(running, Step(run_id, around.id if around else None, "node", name, time.time_ns()))
        elif around:
            running.within[run_id] = around

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Note what a node decided and cost; at the run's end, tell the observers."""
        running = self._running.pop(run_id, None)
        if running is None:
            return
        if run_id == running.turn.run_id:
            self._end(running, None)
        elif run_id == running.last_edge:
            running.is_over = outputs == END
        elif run_id in running.steps:
            _learn(running, outputs)
            _close(running, run_id, None)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Note what ended a node early; at the run's end, tell the observers."""
        running = self._running.pop(run_id, None)
        if running is None:
            return
        if run_id == running.turn.run_id:
            self._end(running, error)
        else:
            _close(running, run_id, error)

    def on_chat_model_start(
        self,
        serialized: dict[str, Any] | None,
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Note the start of a call to the model."""
        running = self._running.get(parent_run_id) if parent_run_id else None
        if running is None:
            return
        self._running[run_id] = running
        name = str((metadata or {}).get("ls_model_name") or "model")
        around = running.within.get(parent_run_id)
        step = Step(run_id, around.id if around else None, "model", name, time.time_ns())
        step.prompt = "\n".join(message.text for each in messages for message in each)
        _add(running, step)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """Note what a call to the model cost."""
        running = self._running.pop(run_id, None)
        if running is None:
            return
        generation = response.generations[0][0]
        step = running.steps[run_id]
        step.reply = generation.text
        message = generation.message if isinstance(generation, ChatGeneration) else None
        if isinstance(message, AIMessage) and (usage := message.usage_metadata):
            step.prompt_tokens = usage["input_tokens"]
            step.completion_tokens = usage["output_tokens"]
        _close(running, run_id, None)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Note that the model did not answer."""
        running = self._running.pop(run_id, None)
        if running is not None:
            _close(running, run_id, error)

    def _end(self, running: _Running, error: BaseException | None) -> None:
        turn = running.turn
        for each in [each for each, owner in list(self._running.items()) if owner is running]:
            del self._running[each]
        if not turn.steps and (error is None or running.is_edit):
            return  # an edit of the state, or nothing to go on with
        _finish(running, error)
        for observer in self._observers:
            try:
                observer(turn)
            except Exception as fault:  # an observer never breaks a run
                log.warning("an observer failed: %s", type(fault).__name__)
                log.debug("the observer's fault", exc_info=fault)  # it may hold texts


def watcher() -> TurnWatcher:
    """Make the watcher that tells the log, and metrics and spans where their packages are there.

    Metrics need prometheus-client (extra `metrics`), spans OpenTelemetry (extra `otel`); a
    LangGraph server brings both.
    """
    from hopgate.server import logs

    observers: list[Observer] = [logs.write]
    if find_spec("prometheus_client"):
        from hopgate.server import metrics

        observers.append(metrics.count)
    if find_spec("opentelemetry"):
        from hopgate.server import spans

        observers.append(spans.observer())
    return TurnWatcher(observers)


def _begin(run_id: UUID, metadata: dict[str, Any], *, is_edit: bool) -> _Running:
    thread = metadata.get("thread_id")
    turn = Turn(run_id, str(thread) if thread else None, time.time_ns())
    return _Running(turn, time.perf_counter(), is_edit=is_edit)


def _take_up(running: _Running, name: str, inputs: Any) -> None:
    """Keep what was decided and spent before this run's first node, if it goes on with a turn.

    The loop as a whole is no such node: where it is taken up, its own steps know more.
    """
    if running.before is not None or name == LOOP:
        return
    goes_on = name != FIRST and isinstance(inputs, dict)
    running.before = _usage_in(inputs) if goes_on else NO_USAGE
    if goes_on:
        running.turn.decision = inputs.get("decision") or Decision()
        running.turn.question = inputs.get("original_question") or inputs.get("standalone") or ""


def _usage_in(state: dict[str, Any]) -> Usage:
    """Return what was spent so far; nothing where a person wrote something else."""
    try:
        return USAGE.validate_python(state.get("usage"))
    except ValidationError:
        return NO_USAGE


def _add(running: _Running, step: Step) -> None:
    running.steps[step.id] = running.within[step.id] = step
    running.turn.steps.append(step)


def _learn(running: _Running, update: Any) -> None:
    """Take in what a node changed in the state."""
    if not isinstance(update, dict):
        return
    turn, decision = running.turn, update.get("decision")
    if isinstance(decision, Overwrite):
        turn.decision = decision.value
    elif decision:
        turn.decision = merge_decision(turn.decision, decision)
    running.after = update.get("usage", running.after)
    turn.question = update.get("original_question", turn.question)
    turn.answer = update.get("answer", turn.answer)


def _close(running: _Running, run_id: UUID, error: BaseException | None) -> None:
    step = running.steps.get(run_id)
    if step is None:
        return
    step.ended = time.time_ns()
    if error is not None:
        step.error = type(error).__name__
        if step.kind == "node" and running.turn.failed_in is None:
            running.turn.failed_in = step.name


def _finish(running: _Running, error: BaseException | None) -> None:
    turn = running.turn
    turn.ended = time.time_ns()
    turn.ms = round((time.perf_counter() - running.clock) * 1000, 1)
    turn.usage = _difference(running.before or NO_USAGE, running.after or running.before)
    if error is not None:
        turn.error = type(error).__name__
        turn.outcome = "cancelled"
        if not isinstance(error, STOPPED):
            turn.outcome, turn.cause = "error", _cause(error)
    elif running.is_over:
        turn.outcome = "answered" if turn.decision.get("answered") else "unknown"


def _cause(error: BaseException) -> Cause:
    if isinstance(error, ModelError):
        return "model"
    return "input" if isinstance(error, ValueError) else "other"


def _difference(before: Usage, after: Usage | None) -> Usage:
    """Return what was spent in between; nothing where a person lowered it."""
    after = after or before

    def spent(
        key: Literal["retrieval_steps", "llm_calls", "prompt_tokens", "completion_tokens"],
    ) -> int:
        return max(0, after[key] - before[key])

    ms = {node: round(each - before["ms"].get(node, 0.0), 1) for node, each in after["ms"].items()}
    return Usage(
        retrieval_steps=spent("retrieval_steps"),
        llm_calls=spent("llm_calls"),
        prompt_tokens=spent("prompt_tokens"),
        completion_tokens=spent("completion_tokens"),
        ms={node: each for node, each in ms.items() if each > 0},
    )
