"""Conditional edges: a function of the state that returns the name of the next node."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, get_args, get_type_hints

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.graph import StateGraph

Choose = Callable[[Any], str]


class Edge(Runnable[Any, str]):
    """An edge as LangGraph calls it.

    A plain function would run in a thread, which takes longer than the choice itself.
    """

    def __init__(self, choose: Choose) -> None:
        """Wrap `choose`, whose name the edge takes."""
        self.name = choose.__name__
        self._choose = choose

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> str:
        """Return the next node."""
        return self._choose(input)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> str:
        """Return the next node."""
        return self._choose(input)


def add_edges(
    builder: StateGraph[Any, Any, Any, Any],
    source: str,
    choose: Choose,
    instead: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Add an edge from a node to each of the nodes that `choose` can return.

    Args:
        builder: The graph.
        source: The node, or START.
        choose: Its return type is a `Literal` of the nodes.
        instead: Where the edge leads for a node that the graph does not have.
    """
    ends = get_args(get_type_hints(choose)["return"])
    path_map = {end: instead.get(end, end) for end in ends}
    builder.add_conditional_edges(source, Edge(choose), path_map)
