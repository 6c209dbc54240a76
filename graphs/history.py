"""The hops of a run that was checkpointed, and how to go back to one and on from there."""

from typing import TYPE_CHECKING, NamedTuple, cast

from langchain_core.runnables import RunnableConfig
from langgraph.types import Overwrite, StateSnapshot

from hopgate.graphs.state import Decision, Hop, add_evidence
from hopgate.nodes.reason import already_asked
from hopgate.nodes.route import Strategy
from hopgate.retrievers.base import Hit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langgraph.graph.state import CompiledStateGraph

    from hopgate.graphs.context import Context
    from hopgate.graphs.state import Input, Output, State

    Graph = CompiledStateGraph[State, Context, Input, Output]

LOOP = "multihop"


class HopPoint(NamedTuple):
    """One hop of a run, and the checkpoint from which it searched.

    Attributes:
        number: Which hop, counted from 1.
        hop: What it searched for, what it found, what was thought of it.
        evidence: Every passage that was known before it searched.
        checkpoint: The loop's checkpoint right before it searched.
        entry: The main graph's checkpoint right before the loop.
    """

    number: int
    hop: Hop
    evidence: list[Hit]
    checkpoint: RunnableConfig
    entry: RunnableConfig


async def hops(graph: "Graph", config: RunnableConfig) -> list[HopPoint]:
    """List the hops of a run, in order.

    Args:
        graph: The graph that ran, with its checkpointer.
        config: The run's thread: its newest run; or, with a `checkpoint_id`, the run that
            led to that checkpoint.

    Returns:
        The hops that the run made itself: a fork's begin where it was forked. Empty for a
        run without the loop.
    """
    entry = await _entry(graph, config)
    if entry is None:
        return []
    loop = next(task.state for task in entry.tasks if task.name == LOOP)
    steps = [step async for step in graph.aget_state_history(cast(RunnableConfig, loop))]
    if not steps:
        return []  # the loop has not begun
    found: list[Hop] = steps[0].values["hops"]
    before = {len(step.values["hops"]): step for step in steps if step.next == ("retrieve",)}
    return [
        HopPoint(
            number=number + 1,
            hop=found[number],
            evidence=step.values["evidence"],
            checkpoint=step.config,
            entry=entry.config,
        )
        for number, step in sorted(before.items())
        if number < len(found)
    ]


async def _entry(graph: "Graph", config: RunnableConfig) -> StateSnapshot | None:
    """Find the checkpoint from which a run's newest loop went, up the chain of its parents."""
    snapshot, child = await graph.aget_state(config), None
    while LOOP not in snapshot.next or _is_edit(child):
        if snapshot.parent_config is None or _is_input(snapshot):
            return None
        snapshot, child = await graph.aget_state(snapshot.parent_config), snapshot
    return snapshot


def _is_edit(snapshot: StateSnapshot | None) -> bool:
    """Tell whether a person, not the run, went on from the checkpoint before."""
    return snapshot is not None and (snapshot.metadata or {}).get("source") == "update"


def _is_input(snapshot: StateSnapshot) -> bool:
    return (snapshot.metadata or {}).get("source") == "input"


async def fork(
    graph: "Graph",
    point: HopPoint,
    *,
    query: str | None = None,
    evidence: "Sequence[Hit] | None" = None,
    strategy: Strategy = "multi",
) -> RunnableConfig:
    """Go back to right before a hop, with something changed; what is there stays.

    Args:
        graph: The graph that ran, with its checkpointer.
        point: The hop, of `hops`.
        query: What it shall search for; None: what it did.
        evidence: The passages known before it; None: those that were.
        strategy: Where to go from here: `multi` on with the loop, `none` straight to the
            answer, over the evidence, `single` to one search for the question itself.

    Returns:
        Where to go on: `await graph.ainvoke(None, config, context=…)`. A deadline counts from
        then.

    Raises:
        ValueError: The query is empty, or an earlier hop asked it, up to case, punctuation and
            word order; or a passage is not whole.
    """
    before = (await graph.aget_state(point.checkpoint)).values
    if query is not None:
        _check(query, before["hops"])
    known = before["evidence"] if evidence is None else add_evidence([], list(evidence))
    update = {
        "hops": Overwrite(before["hops"]),
        "evidence": Overwrite(known),
        "next_query": query or before.get("next_query", ""),
        "plan": before["plan"],
        "usage": before["usage"],
        "began": None,
        "decision": Decision(strategy=strategy, stop_reason=None),
    }
    return await graph.aupdate_state(point.entry, update, as_node="route")


def _check(query: str, earlier: list[Hop]) -> None:
    if not query.strip():
        raise ValueError("query is empty; give the hop something to search for")
    if already_asked(query, [hop["query"] for hop in earlier]):
        raise ValueError(f"query is {query!r}, which an earlier hop asked; give another")
