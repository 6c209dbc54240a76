"""The callback handler that builds one `Turn` for each run of the graph."""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID
from weakref import WeakSet

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langgraph.graph import END
from langgraph.types import Overwrite

from hopgate.common.errors import one_line
from hopgate.common.faults import fault_of, whole
from hopgate.graphs.adaptive import after_generate
from hopgate.graphs.history import LOOP
from hopgate.nodes.generate import generate
from hopgate.nodes.run.resources import RETRIEVER_FAILED
from hopgate.nodes.run.spending import RUN_USER, VISIT_USAGE, add_usage
from hopgate.nodes.run.state import NO_USAGE, Decision, merge_decision
from hopgate.nodes.start import start
from hopgate.server.observing.turns import Kind, Observer, Step, Turn, TurnOutcome

log = logging.getLogger(__name__)

FIRST_NODE = start.__name__
LAST_NODE = generate.__name__
EDIT = "UpdateState"  # suffix of LangGraph's name for an edit of the state
watchers = WeakSet["TurnWatcher"]()
"""All of this process."""
STOPPED = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt)


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
        watchers.add(self)
        # Each run, node and call that has not ended, by id: its turn, and the step that it is or
        # is part of.
        self._running: dict[UUID, tuple[Turn, Step | None]] = {}

    @property
    def in_flight(self) -> int:
        """The number of runs that have not ended."""
        return sum(run == turn.run_id for run, (turn, _) in list(self._running.items()))

    def on_chain_start(self, serialized: Any, inputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Record the start of a run or node."""
        name, data = str(kwargs.get("name") or ""), kwargs.get("metadata") or {}
        around = self._running.get(kwargs["parent_run_id"])
        if around is None:
            thread = data.get("thread_id")
            turn = Turn(run_id, str(thread) if thread else None, time.time_ns())
            turn.is_edit = name.endswith(EDIT)
            self._running[run_id] = turn, None
            return
        turn, step = around
        is_node = name == data.get("langgraph_node") and not name.startswith("__")
        if is_node and not (step and step.name == name):  # a subgraph has the name of its node
            _read_inputs(turn, name, inputs)
            step = _begin(turn, run_id, step, "node", name)
        self._running[run_id] = turn, step

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Record a node's decision and cost; at the end of the run, call the observers."""
        turn, step = self._running.pop(run_id, (None, None))
        if turn and run_id == turn.run_id:
            self._end(turn, None)
        elif turn and step and step.id == run_id:
            _read_update(turn, outputs)
            step.ended_at = time.time_ns()

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Record the error of a node or a call; at the end of the run, call the observers."""
        turn, step = self._running.pop(run_id, (None, None))
        if turn is None:
            return
        turn.user = getattr(error, RUN_USER, turn.user)
        if run_id == turn.run_id:
            self._end(turn, error)
        elif step and step.id == run_id:
            step.ended_at, step.error = time.time_ns(), type(whole(error)).__name__
            if step.kind == "node" and not turn.failed_in:  # the loop has the error of its node
                turn.failed_in = step.name
                turn.usage = add_usage(turn.usage, getattr(error, VISIT_USAGE, NO_USAGE))

    def on_chat_model_start(
        self, serialized: Any, messages: list[list[BaseMessage]], *, run_id: UUID, **kwargs: Any
    ) -> None:
        """Record the start of a model call."""
        if (found := self._running.get(kwargs["parent_run_id"])) is None:
            return
        turn, around = found
        name = str((kwargs.get("metadata") or {}).get("ls_model_name") or "model")
        self._running[run_id] = turn, _begin(turn, run_id, around, "model", name)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """Record the tokens of a model call."""
        _, step = self._running.pop(run_id, (None, None))
        if step is None:
            return
        generation = response.generations[0][0]
        step.ended_at = time.time_ns()
        message = generation.message if isinstance(generation, ChatGeneration) else None
        if isinstance(message, AIMessage) and (usage := message.usage_metadata):
            step.prompt_tokens = usage["input_tokens"]
            step.completion_tokens = usage["output_tokens"]

    on_llm_error = on_chain_error

    def _end(self, turn: Turn, error: BaseException | None) -> None:
        for each in [each for each, (owner, _) in list(self._running.items()) if owner is turn]:
            del self._running[each]
        if not turn.steps and (error is None or turn.is_edit):
            return  # an edit of the state, or nothing to resume
        turn.ended_at = time.time_ns()
        turn.outcome = _outcome(turn, error)
        if error is not None:
            turn.error = type(whole(error)).__name__
            if turn.outcome == "error":
                turn.cause = fault_of(error)
                turn.message = None if turn.cause == "input" else one_line(whole(error))
        for observer in self._observers:
            try:
                observer(turn)
            except Exception as fault:  # a failing observer must not break a run
                log.warning("an observer failed: %s", type(fault).__name__)
                log.debug("the observer's error", exc_info=fault)  # may contain texts


def _begin(turn: Turn, run_id: UUID, around: Step | None, kind: Kind, name: str) -> Step:
    step = Step(run_id, around.id if around else None, kind, name, time.time_ns())
    turn.steps.append(step)
    return step


def _read_inputs(turn: Turn, name: str, inputs: Any) -> None:
    """Read the decision before the first node, if the run resumes a turn.

    The nodes in the loop have newer values than the loop's own node.
    """
    is_first = all(each == LOOP for each in turn.visited)
    if is_first and name != FIRST_NODE and isinstance(inputs, dict):
        turn.decision = inputs.get("decision") or Decision()


def _read_update(turn: Turn, update: Any) -> None:
    """Read the decision and usage from a node's update of the state."""
    if not isinstance(update, dict):
        return
    decision = update.get("decision")
    if isinstance(decision, Overwrite):
        turn.decision = decision.value
    elif decision:
        turn.decision = merge_decision(turn.decision, decision)
    turn.usage = add_usage(turn.usage, update.get(VISIT_USAGE, NO_USAGE))
    turn.user = update.get(RUN_USER, turn.user)


def _outcome(turn: Turn, error: BaseException | None) -> TurnOutcome:
    if error is not None:
        return "cancelled" if isinstance(error, STOPPED) else "error"
    is_over = after_generate({"decision": turn.decision}) == END
    if turn.visited[-1:] != [LAST_NODE] or not is_over:
        return "paused"
    if any(RETRIEVER_FAILED in each for each in turn.decision.get("warnings", [])):
        return "unsearched"
    return "answered" if turn.decision.get("answered") else "unknown"
