"""The graph that a LangGraph server serves: hopgate's graph with logs, metrics and spans."""

from hopgate.graphs import adaptive
from hopgate.server.watch import watcher

graph = adaptive.graph.with_config(callbacks=[watcher()])
