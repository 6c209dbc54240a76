"""The graph that a LangGraph server serves: hopgate's, with what operators see of each turn."""

from hopgate.graphs import adaptive
from hopgate.server.turns import watcher

graph = adaptive.graph.with_config(callbacks=[watcher()])
