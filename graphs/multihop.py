"""The loop, as a subgraph with a hop count, in one of two modes.

`ircot`: retrieve → one sentence of reasoning → stop? `decompose`: split the question, then
retrieve → answer the sub-question → stop?
"""

import math
import time
from typing import TYPE_CHECKING, Any, Literal

from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime

from hopgate.graphs import events
from hopgate.graphs.context import Context
from hopgate.graphs.events import PlanEvent, StopEvent, ThoughtEvent
from hopgate.graphs.resources import Resources, layout_for
from hopgate.graphs.state import Decision, Hop, MultihopState, spend
from hopgate.models.chat import CHARS_PER_TOKEN, Completion
from hopgate.nodes import budget
from hopgate.nodes import decompose as decomposing
from hopgate.nodes import reason as reasoning
from hopgate.nodes import retrieve as retrieving
from hopgate.nodes.reason import StopReason
from hopgate.retrievers.base import Hit

if TYPE_CHECKING:
    from langgraph.graph.state import CompiledStateGraph

Update = dict[str, Any]


class Loop:
    """The loop's nodes. Whichever ends the loop writes `decision.stop_reason`."""

    def __init__(self, resources: Resources) -> None:
        """Keep what the nodes share."""
        self._resources = resources

    async def decompose(self, state: MultihopState, runtime: Runtime[Context]) -> Update:
        """Split the question into sub-questions, one for each hop."""
        started = time.perf_counter()
        context = self._resources.admit(state, runtime)
        if self._resources.is_late(state["began"], context):
            return _deadline(state, runtime, context)
        began = self._began(state)
        model = await self._resources.model(context)
        plan, completion = await decomposing.decompose(
            model, state["standalone"], context.max_sub_questions, layout_for(model, context)
        )
        if not all(map(self._resources.limits.fits, plan)):
            plan = [state["standalone"]]
        events.send(runtime, PlanEvent(event="plan", sub_questions=plan))
        return {
            "plan": plan,
            **began,
            **_changed(state, Decision(stop_reason=None)),
            **_spent(state, "decompose", started, completion),
        }

    async def retrieve(self, state: MultihopState, runtime: Runtime[Context]) -> Update:
        """Search with the next query, and add what is new while there is room."""
        started = time.perf_counter()
        context = self._resources.admit(state, runtime)
        if self._resources.is_late(state["began"], context):
            return _deadline(state, runtime, context)
        if stop := _before_search(state, context):  # only where a person has changed the state
            return _ended(state, runtime, Decision(stop_reason=stop))
        began, query, number = self._began(state), _next_query(state), len(state["hops"]) + 1
        retriever = await self._resources.retriever(context)
        found: list[Hit] = []
        new: list[Hit] = []
        try:
            found = await retrieving.search(retriever, query, context.hop_k)
            new, decision = await self._add(state, context, found)
        except retrieving.RetrievalFailed as error:
            warnings = [*state["decision"].get("warnings", []), f"hop {number}: {error}"]
            decision = Decision(stop_reason="retriever_failed", warnings=warnings)
        hop = Hop(query=query, passage_ids=[hit["id"] for hit in found], thought="")
        events.send(runtime, events.hop(number, query, found))
        _tell_end(runtime, number, decision["stop_reason"])
        return {
            "evidence": new,
            "hops": [hop],
            "usage": spend(state["usage"], "retrieve", started, steps=1),
            **began,
            **_changed(state, decision),
            **_used(state),
        }

    async def _add(
        self, state: MultihopState, context: Context, found: list[Hit]
    ) -> tuple[list[Hit], Decision]:
        """Return what joins the evidence, and why the loop ends if nothing does.

        A sub-question may also be answered over passages that were there before.
        """
        chars = context.passage_chars
        evidence = [budget.shortened(hit, chars) for hit in state["evidence"]]
        unseen = retrieving.fresh(evidence, [budget.shortened(hit, chars) for hit in found])
        room = await self._room(state, context)
        new = budget.keep(unseen, evidence, context.max_passages, room)
        known = {hit["id"] for hit in evidence} & {hit["id"] for hit in found}
        stop: StopReason | None = None
        if not new and not (state.get("plan") and known):
            stop = "evidence_budget" if unseen else "no_new_passage"
        return new, Decision(stop_reason=stop)

    async def _room(self, state: MultihopState, context: Context) -> float:
        """Return how many bytes of evidence may be gathered in all.

        A tiny model reads what is newest and lets the rest go: it has no such limit.
        """
        tokens = context.max_evidence_tokens
        if tokens is None:
            model = await self._resources.model(context)
            if model.tiny:
                return math.inf
            tokens = model.evidence_chars // CHARS_PER_TOKEN
        return tokens * state.get("bytes_per_token", budget.FIRST_BYTES_PER_TOKEN)

    async def reason(self, state: MultihopState, runtime: Runtime[Context]) -> Update:
        """Write one sentence over the evidence and decide whether to go on."""
        started = time.perf_counter()
        context = self._resources.admit(state, runtime)
        if self._resources.is_late(state["began"], context):
            return _deadline(state, runtime, context)
        model = await self._resources.model(context)
        thought, completion = await reasoning.think(
            model,
            state["standalone"],
            state["evidence"],
            [hop["thought"] for hop in state["hops"][:-1]],
            layout_for(model, context),
        )
        spent = _spent(state, "reason", started, completion)
        return _thought(state, runtime, context, thought, spent)

    async def sub_answer(self, state: MultihopState, runtime: Runtime[Context]) -> Update:
        """Answer the hop's sub-question over its passages and decide whether to go on."""
        started = time.perf_counter()
        context = self._resources.admit(state, runtime)
        if self._resources.is_late(state["began"], context):
            return _deadline(state, runtime, context)
        model = await self._resources.model(context)
        hop, by_id = state["hops"][-1], {hit["id"]: hit for hit in state["evidence"]}
        answer, completion = await decomposing.answer(
            model,
            hop["query"],
            [by_id[each] for each in hop["passage_ids"] if each in by_id],
            layout_for(model, context),
        )
        spent = _spent(state, "sub_answer", started, completion)
        return _thought(state, runtime, context, answer, spent)

    def _began(self, state: MultihopState) -> Update:
        """Count from now on where there is no start yet."""
        now = self._resources.clock().timestamp()
        return {"began": now} if state["began"] is None else {}

    def at_start(
        self, state: MultihopState, runtime: Runtime[Context]
    ) -> Literal["decompose", "retrieve", "reason"]:
        """Follow a plan or hops that are there, else the mode that the request asks for.

        From here on the plan tells which mode it is. A search of the main graph that was not enough
        is the loop's first hop.
        """
        if state.get("plan"):
            return "retrieve"
        if hops := state["hops"]:
            return "retrieve" if hops[-1]["thought"] else "reason"
        decomposes = self._resources.context(runtime).multihop == "decompose"
        return "decompose" if decomposes else "retrieve"


def _deadline(state: MultihopState, runtime: Runtime[Context], context: Context) -> Update:
    warning = f"the loop ended at its deadline of {context.max_seconds:g} s (max_seconds)"
    warnings = [*state["decision"].get("warnings", []), warning]
    return _ended(state, runtime, Decision(stop_reason="deadline", warnings=warnings))


def _ended(state: MultihopState, runtime: Runtime[Context], decision: Decision) -> Update:
    """End the loop without another hop."""
    _tell_end(runtime, len(state["hops"]), decision["stop_reason"])
    return {"decision": decision, **_used(state)}


def _used(state: MultihopState) -> Update:
    """Forget the query that a person has set."""
    return {"next_query": ""} if state.get("next_query") else {}


def _tell_end(runtime: Runtime[Context], number: int, reason: StopReason | None) -> None:
    if reason:
        events.send(runtime, StopEvent(event="stop", number=number, stop_reason=reason))


def _spent(state: MultihopState, node: str, started: float, completion: Completion) -> Update:
    before = state.get("bytes_per_token", budget.FIRST_BYTES_PER_TOKEN)
    return {
        "usage": spend(state["usage"], node, started, [completion]),
        "bytes_per_token": budget.bytes_per_token(completion, before),
    }


def _thought(
    state: MultihopState,
    runtime: Runtime[Context],
    context: Context,
    thought: str,
    spent: Update,
) -> Update:
    """Write the newest hop's thought down, with the reason to stop if there is one."""
    *earlier, last = state["hops"]
    hops = [*earlier, Hop(**{**last, "thought": thought})]
    after = MultihopState(**{**state, "hops": hops})
    stop = _after_thought(after) or _before_search(after, context)
    events.send(runtime, ThoughtEvent(event="thought", number=len(hops), thought=thought))
    _tell_end(runtime, len(hops), stop)
    return {"hops": hops[-1:], **_changed(state, Decision(stop_reason=stop)), **spent}


def _changed(state: MultihopState, decision: Decision) -> Update:
    """Return the decision where it changes anything: each write is kept for good."""
    same = decision == {"stop_reason": state["decision"].get("stop_reason")}
    return {} if same else {"decision": decision}


def _after_thought(state: MultihopState) -> StopReason | None:
    plan, hops = state.get("plan"), state["hops"]
    thought = hops[-1]["thought"]
    if not plan:
        if not thought:
            return "no_thought"
        return "answered" if reasoning.is_final(thought) else None
    is_last = len(hops) >= len(plan)
    if not thought and (is_last or decomposing.is_needed(plan, len(hops))):
        return "no_thought"
    return "answered" if is_last else None


def _before_search(state: MultihopState, context: Context) -> StopReason | None:
    escalated = bool(state["decision"].get("escalated"))
    spent = escalated and state["usage"]["retrieval_steps"] >= context.escalate
    if spent or len(state["hops"]) >= context.max_hops:
        return "hop_limit"
    query = _next_query(state)
    if not query:
        return _after_thought(state)
    queries = [hop["query"] for hop in state["hops"]]
    return "repeated_query" if reasoning.already_asked(query, queries) else None


def _next_query(state: MultihopState) -> str:
    """Return what to search for next, empty where the plan has nothing left."""
    if query := (state.get("next_query") or "").strip():
        return query
    thoughts = [hop["thought"] for hop in state["hops"]]
    if plan := state.get("plan"):
        return decomposing.fill(plan, thoughts) if len(thoughts) < len(plan) else ""
    return reasoning.next_query(state["standalone"], thoughts)


def after_decompose(state: MultihopState) -> Literal["retrieve", "__end__"]:
    """Search for the first sub-question, unless it is too late."""
    return "__end__" if state["decision"].get("stop_reason") else "retrieve"


def after_retrieve(state: MultihopState) -> Literal["reason", "sub_answer", "__end__"]:
    """Reason over new evidence, or answer the sub-question; without any the loop ends."""
    if state["decision"].get("stop_reason"):
        return "__end__"
    return "sub_answer" if state.get("plan") else "reason"


def after_thought(state: MultihopState) -> Literal["retrieve", "__end__"]:
    """Go on until there is a reason to stop."""
    return "__end__" if state["decision"].get("stop_reason") else "retrieve"


def build_multihop(
    resources: Resources,
) -> "CompiledStateGraph[MultihopState, Context, MultihopState, MultihopState]":
    """Compile the loop, without a checkpointer of its own (the main graph's is used)."""
    loop = Loop(resources)
    builder = StateGraph(MultihopState, context_schema=Context)
    builder.add_node("decompose", loop.decompose)
    builder.add_node("retrieve", loop.retrieve)
    builder.add_node("reason", loop.reason)
    builder.add_node("sub_answer", loop.sub_answer)
    builder.add_conditional_edges(START, loop.at_start)
    builder.add_conditional_edges("decompose", after_decompose)
    builder.add_conditional_edges("retrieve", after_retrieve)
    builder.add_conditional_edges("reason", after_thought)
    builder.add_conditional_edges("sub_answer", after_thought)
    return builder.compile(name="multihop")
