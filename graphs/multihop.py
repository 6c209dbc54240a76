"""The loop, a subgraph in one of two modes.

`ircot`: retrieve → one sentence of reasoning → stop? `decompose`: split the question, then
retrieve → answer the sub-question → stop?
"""

from typing import TYPE_CHECKING, Literal

from langgraph.graph import START, StateGraph

from hopgate.graphs.edges import add_edges
from hopgate.nodes.decompose import decompose
from hopgate.nodes.reason import reason
from hopgate.nodes.retrieve_hop import retrieve_hop
from hopgate.nodes.run.binding import BoundNode
from hopgate.nodes.run.context import Context
from hopgate.nodes.run.runtime import Resources
from hopgate.nodes.run.state import MultihopState
from hopgate.nodes.sub_answer import sub_answer

if TYPE_CHECKING:
    from langgraph.graph.state import CompiledStateGraph

    Loop = CompiledStateGraph[MultihopState, Context, MultihopState, MultihopState]


def build_multihop(resources: Resources) -> "Loop":
    """Compile the loop, without a checkpointer: it inherits the main graph's."""
    builder = StateGraph(MultihopState, context_schema=Context)
    builder.add_node("decompose", BoundNode(decompose, resources))
    builder.add_node("retrieve", BoundNode(retrieve_hop, resources, "retrieve"))
    builder.add_node("reason", BoundNode(reason, resources))
    builder.add_node("sub_answer", BoundNode(sub_answer, resources))
    add_edges(builder, START, at_start)
    add_edges(builder, "decompose", continue_unless_stopped)
    add_edges(builder, "retrieve", after_retrieve)
    add_edges(builder, "reason", continue_unless_stopped)
    add_edges(builder, "sub_answer", continue_unless_stopped)
    return builder.compile(name="multihop")


def at_start(state: MultihopState) -> Literal["decompose", "retrieve", "reason"]:
    """Continue with the sub-questions or hops in the state, else start in the turn's mode.

    A search of the main graph whose answer was in doubt counts as the loop's first hop.
    """
    if state.get("sub_questions"):
        return "retrieve"
    if hops := state["hops"]:
        return "retrieve" if hops[-1]["thought"] else "reason"
    return "decompose" if state["decision"].get("multihop") == "decompose" else "retrieve"


def after_retrieve(state: MultihopState) -> Literal["reason", "sub_answer", "__end__"]:
    """Reason over the evidence, or answer the sub-question, unless the loop has stopped."""
    if state["decision"].get("stop_reason"):
        return "__end__"
    return "sub_answer" if state.get("sub_questions") else "reason"


def continue_unless_stopped(state: MultihopState) -> Literal["retrieve", "__end__"]:
    """Search again until there is a reason to stop."""
    return "__end__" if state["decision"].get("stop_reason") else "retrieve"
