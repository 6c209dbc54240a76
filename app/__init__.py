"""hopgate: adaptive retrieval as a LangGraph package.

>>> from hopgate import Context, graph
>>> result = await graph.ainvoke({"question": "…"}, context=Context(alpha=0.7))
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hopgate.graphs.adaptive import build_graph, graph
    from hopgate.middleware import AdaptiveMiddleware
    from hopgate.nodes.run.context import Context
    from hopgate.retriever import AdaptiveRetriever

__all__ = ["AdaptiveMiddleware", "AdaptiveRetriever", "Context", "build_graph", "graph"]

_MODULES = {
    "AdaptiveMiddleware": "hopgate.middleware",
    "AdaptiveRetriever": "hopgate.retriever",
    "Context": "hopgate.nodes.run.context",
    "build_graph": "hopgate.graphs.adaptive",
    "graph": "hopgate.graphs.adaptive",
}


def __getattr__(name: str) -> Any:
    """Import the public names when they are first used, so that `import hopgate` is light."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    """List the public names too before they are used."""
    return sorted({*globals(), *__all__})


# A LangGraph server looks graphs up in a module's `__dict__`, where `__getattr__` does not reach.
# Where LangGraph is loaded already, importing the graph costs little.
if "langgraph.graph" in sys.modules:
    __getattr__("graph")
