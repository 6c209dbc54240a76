"""The hops of a stored run, and how to go back to one and continue differently."""

from typing import TYPE_CHECKING, NamedTuple, cast

from langchain_core.runnables import RunnableConfig
from langgraph.types import Overwrite, StateSnapshot

from hopgate.common.strategies import Strategy
from hopgate.nodes.run.state import Decision, Hop, add_evidence
from hopgate.retrievers.base import Hit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from langgraph.graph.state import CompiledStateGraph

    from hopgate.nodes.run.context import Context
    from hopgate.nodes.run.state import Input, Output, State

    Graph = CompiledStateGraph[State, Context, Input, Output]

LOOP = "multihop"


class HopPoint(NamedTuple):
    """One hop of a run, and the checkpoint it searched from.

    Attributes:
        number: The hop's number, from 1.
        hop: Its query, the passages found, and the thought that followed.
        evidence: All passages known before it searched.
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
        config: The thread, for its newest run; with a `checkpoint_id`, for the run that led to
            that checkpoint.

    Returns:
        The hops that the run made itself: those of a fork start where it was forked. Empty for
        a run without the loop.
    """
    entry = await _entry(graph, config)
    if entry is None:
        return []
    loop = next(task.state for task in entry.tasks if task.name == LOOP)
    steps = [step async for step in graph.aget_state_history(cast(RunnableConfig, loop))]
    if not steps:
        return []  # the loop has not started
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
    """Return the checkpoint that a run's newest loop started from, following its parents."""
    snapshot, child = await graph.aget_state(config), None
    while LOOP not in snapshot.next or _made_by("update", child):
        if snapshot.parent_config is None or _made_by("input", snapshot):
            return None
        snapshot, child = await graph.aget_state(snapshot.parent_config), snapshot
    return snapshot


def _made_by(source: str, snapshot: StateSnapshot | None) -> bool:
    """Return whether a checkpoint comes from an `input`, or from a person's `update`."""
    return snapshot is not None and (snapshot.metadata or {}).get("source") == source


async def fork(
    graph: "Graph",
    point: HopPoint,
    *,
    query: str | None = None,
    evidence: "Sequence[Hit] | None" = None,
    strategy: Strategy = "multi",
) -> RunnableConfig:
    """Go back to right before a hop and change something; the original run stays.

    Args:
        graph: The graph that ran, with its checkpointer.
        point: The hop, from `hops`.
        query: Its new query; None keeps the old one.
        evidence: The passages known before it; None keeps those of the run.
        strategy: Where to continue: `multi` stays in the loop, `none` answers from the evidence,
            `single` searches once for the question itself.

    Returns:
        The config to continue with: `await graph.ainvoke(None, config, context=…)`. Time and
        cost count from those of the run up to that hop.

    Raises:
        ValueError: A passage is incomplete.
    """
    before = (await graph.aget_state(point.checkpoint)).values
    known = before["evidence"] if evidence is None else add_evidence([], list(evidence))
    update = {
        "hops": Overwrite(before["hops"]),
        "evidence": Overwrite(known),
        "next_query": query or before.get("next_query", ""),
        "sub_questions": before["sub_questions"],
        "usage": before["usage"],
        "decision": Decision(strategy=strategy, stop_reason=None),
    }
    return await graph.aupdate_state(point.entry, update, as_node="route")
