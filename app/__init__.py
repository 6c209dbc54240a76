"""hopgate: adaptive retrieval as a LangGraph package.

>>> from hopgate import Context, graph
>>> result = await graph.ainvoke({"question": "…"}, context=Context(alpha=0.4))
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hopgate.graphs.adaptive import build_graph, graph
    from hopgate.nodes.context import Context

__all__ = ["Context", "build_graph", "graph"]


def __getattr__(name: str) -> Any:
    """Import the public names when they are first used, so that `import hopgate` is light."""
    if name == "Context":
        from hopgate.nodes.context import Context

        return Context
    if name in ("build_graph", "graph"):
        from hopgate.graphs import adaptive

        return getattr(adaptive, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
