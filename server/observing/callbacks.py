"""The callback handler that builds one `Turn` for each run of the graph."""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langgraph.graph import END
from langgraph.types import Overwrite

from hopgate.graphs.adaptive import after_generate
from hopgate.graphs.history import LOOP
from hopgate.models.chat import ModelError
from hopgate.nodes.generate import generate
from hopgate.nodes.run.spending import RUN_USAGE
from hopgate.nodes.run.state import Decision, merge_decision
from hopgate.nodes.start import start
from hopgate.server.observing.turns import Cause, Observer, Step, Turn

log = logging.getLogger(__name__)

FIRST_NODE = start.__name__
LAST_NODE = generate.__name__
QUESTION = "original_question"  # the state's key of the question as the user asked it
EDIT = "UpdateState"  # suffix of LangGraph's name for an edit of the state
STOPPED = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt)


@dataclass
class _Running:
    """A turn that has not ended yet."""

    turn: Turn
    clock: float
    steps: dict[UUID, Step] = field(default_factory=dict)
    within: dict[UUID | None, Step] = field(default_factory=dict)  # the enclosing node of each run
    is_resumed: bool | None = None  # None: its first node has not started
    is_over: bool = False
    is_edit: bool = False  # by its name, which a request can set too


class TurnWatcher(BaseCallbackHandler):
    """Builds a `Turn` for every run of the graph it is attached to, and passes it to observers.

    It sees each run start and end, also if the run fails or is cancelled.
    """

    run_inline = True  # keeps the callbacks in order
    ignore_retriever = True
    ignore_agent = True
    ignore_custom_event = True

    def __init__(self, observers: Sequence[Observer]) -> None:
        """Create a watcher that calls `observers` at the end of each run."""
        self._observers = tuple(observers)
        # By the id of every run, node and call that has started and not ended.
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
        """Record the start of a run or node."""
        name, data = str(kwargs.get("name") or ""), metadata or {}
        if parent_run_id not in self._running:
            self._running[run_id] = _start(run_id, data, is_edit=name.endswith(EDIT))
            return
        running = self._running[run_id] = self._running[parent_run_id]
        around = running.within.get(parent_run_id)
        is_node = name == data.get("langgraph_node") and not name.startswith("__")
        if is_node and not (around and around.name == name):  # a subgraph has the name of its node
            _read_inputs(running, name, inputs)
            _add(running, Step(run_id, around.id if around else None, "node", name, time.time_ns()))
        elif around:
            running.within[run_id] = around

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Record a node's decision and cost; at the end of the run, call the observers."""
        running = self._running.pop(run_id, None)
        if running is None:
            return
        if run_id == running.turn.run_id:
            self._end(running, None)
        elif run_id in running.steps:
            _read_update(running, outputs)
            if running.steps[run_id].name == LAST_NODE:
                running.is_over = after_generate({"decision": running.turn.decision}) == END
            _close(running, run_id, None)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Record the error of a node; at the end of the run, call the observers."""
        running = self._running.pop(run_id, None)
        if running is None:
            return
        running.turn.usage = getattr(error, RUN_USAGE, running.turn.usage)
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
        """Record the start of a model call."""
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
        """Record the reply and the tokens of a model call."""
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
        """Record the error of a model call."""
        self.on_chain_error(error, run_id=run_id)

    def _end(self, running: _Running, error: BaseException | None) -> None:
        turn = running.turn
        for each in [each for each, owner in list(self._running.items()) if owner is running]:
            del self._running[each]
        if not turn.steps and (error is None or running.is_edit):
            return  # an edit of the state, or nothing to resume
        _finish(running, error)
        for observer in self._observers:
            try:
                observer(turn)
            except Exception as fault:  # a failing observer must not break a run
                log.warning("an observer failed: %s", type(fault).__name__)
                log.debug("the observer's error", exc_info=fault)  # may contain texts


def _start(run_id: UUID, metadata: dict[str, Any], *, is_edit: bool) -> _Running:
    thread = metadata.get("thread_id")
    turn = Turn(run_id, str(thread) if thread else None, time.time_ns())
    return _Running(turn, time.perf_counter(), is_edit=is_edit)


def _read_inputs(running: _Running, name: str, inputs: Any) -> None:
    """Read the decision before the run's first node, if the run resumes a turn.

    The loop's node is skipped: the nodes inside it have newer values.
    """
    if running.is_resumed is not None or name == LOOP:
        return
    running.is_resumed = name != FIRST_NODE and isinstance(inputs, dict)
    if running.is_resumed:
        running.turn.decision = inputs.get("decision") or Decision()
        running.turn.question = inputs.get(QUESTION) or inputs.get("standalone") or ""


def _add(running: _Running, step: Step) -> None:
    running.steps[step.id] = running.within[step.id] = step
    running.turn.steps.append(step)


def _read_update(running: _Running, update: Any) -> None:
    """Read the decision, usage and texts from a node's update of the state."""
    if not isinstance(update, dict):
        return
    turn, decision = running.turn, update.get("decision")
    if isinstance(decision, Overwrite):
        turn.decision = decision.value
    elif decision:
        turn.decision = merge_decision(turn.decision, decision)
    turn.usage = update.get(RUN_USAGE, turn.usage)
    turn.question = update.get(QUESTION, turn.question)
    turn.answer = update.get("answer", turn.answer)


def _close(running: _Running, run_id: UUID, error: BaseException | None) -> None:
    step = running.steps.get(run_id)
    if step is None:
        return
    step.ended_at = time.time_ns()
    if error is not None:
        step.error = type(error).__name__
        if step.kind == "node" and running.turn.failed_in is None:
            running.turn.failed_in = step.name


def _finish(running: _Running, error: BaseException | None) -> None:
    turn = running.turn
    turn.ended_at = time.time_ns()
    turn.ms = round((time.perf_counter() - running.clock) * 1000, 1)
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
