"""The loop: retrieve → reason → stop? (IRCoT), as a subgraph with a hop count."""

import time
from typing import TYPE_CHECKING, Any, Literal

from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime

from hopgate.graphs.context import Context
from hopgate.graphs.resources import Resources, layout_for
from hopgate.graphs.state import Decision, Hop, MultihopState, spend
from hopgate.nodes import reason as reasoning
from hopgate.nodes import retrieve as retrieving
from hopgate.retrievers.base import Hit

if TYPE_CHECKING:
    from langgraph.graph.state import CompiledStateGraph

Update = dict[str, Any]


class Loop:
    """The loop's two nodes. Whichever ends the loop writes `decision.stop_reason`."""

    def __init__(self, resources: Resources) -> None:
        """Keep what the nodes share."""
        self._resources = resources

    async def retrieve(self, state: MultihopState, runtime: Runtime[Context]) -> Update:
        """Search with the last thought that states a fact, and add what is new."""
        started = time.perf_counter()
        context = runtime.context or Context()
        hops = state["hops"]
        query = reasoning.next_query(state["standalone"], [hop["thought"] for hop in hops])
        retriever = await self._resources.retriever(context)
        decision = Decision(stop_reason=None)
        hits: list[Hit] = []
        try:
            hits = await retrieving.search(retriever, query, context.hop_k)
        except retrieving.RetrievalFailed as error:
            warnings = [*state["decision"].get("warnings", []), f"hop {len(hops) + 1}: {error}"]
            decision = Decision(stop_reason="retriever_failed", warnings=warnings)
        evidence = retrieving.merge(state["evidence"], hits, context.max_passages)
        if not decision["stop_reason"] and len(evidence) == len(state["evidence"]):
            full = len(evidence) >= context.max_passages
            decision = Decision(stop_reason="evidence_budget" if full else "no_new_passage")
        hop = Hop(query=query, passage_ids=[hit["id"] for hit in hits], thought="")
        runtime.stream_writer({"event": "hop", "number": len(hops) + 1, **hop})
        return {
            "evidence": evidence,
            "hops": [*hops, hop],
            "decision": decision,
            "usage": spend(state["usage"], "retrieve", started, steps=1),
        }

    async def reason(self, state: MultihopState, runtime: Runtime[Context]) -> Update:
        """Write one sentence over the evidence and decide whether to go on."""
        started = time.perf_counter()
        context = runtime.context or Context()
        model = await self._resources.model(context)
        *earlier, last = state["hops"]
        thought, completion = await reasoning.think(
            model,
            state["standalone"],
            state["evidence"],
            [hop["thought"] for hop in earlier],
            layout_for(model, context),
        )
        hops = [*earlier, Hop(**{**last, "thought": thought})]
        stop = _stop_reason(state["standalone"], hops, context.max_hops)
        runtime.stream_writer(
            {"event": "thought", "number": len(hops), "thought": thought, "stop_reason": stop}
        )
        return {
            "hops": hops,
            "decision": Decision(stop_reason=stop),
            "usage": spend(state["usage"], "reason", started, [completion]),
        }


def _stop_reason(question: str, hops: list[Hop], max_hops: int) -> reasoning.StopReason | None:
    thought = hops[-1]["thought"]
    if not thought:
        return "no_thought"
    if reasoning.is_final(thought):
        return "answered"
    if len(hops) >= max_hops:
        return "hop_limit"
    query = reasoning.next_query(question, [hop["thought"] for hop in hops])
    if reasoning.already_asked(query, [hop["query"] for hop in hops]):
        return "repeated_query"
    return None


def after_retrieve(state: MultihopState) -> Literal["reason", "__end__"]:
    """Reason over new evidence; without any the loop ends."""
    return "__end__" if state["decision"].get("stop_reason") else "reason"


def after_reason(state: MultihopState) -> Literal["retrieve", "__end__"]:
    """Go on until there is a reason to stop."""
    return "__end__" if state["decision"].get("stop_reason") else "retrieve"


def build_multihop(
    resources: Resources,
) -> "CompiledStateGraph[MultihopState, Context, MultihopState, MultihopState]":
    """Compile the loop, without a checkpointer of its own (the main graph's is used)."""
    loop = Loop(resources)
    builder = StateGraph(MultihopState, context_schema=Context)
    builder.add_node("retrieve", loop.retrieve)
    builder.add_node("reason", loop.reason)
    builder.add_edge(START, "retrieve")
    builder.add_conditional_edges("retrieve", after_retrieve)
    builder.add_conditional_edges("reason", after_reason)
    return builder.compile(name="multihop")
