"""Metrics for Prometheus: decisions and cost by α, without texts and with few series.

They are also in the process's default registry, so the LangGraph server's own `/metrics` shows
them, even in a worker without web routes.
"""

from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path

from prometheus_client import (
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

from hopgate.graphs.history import LOOP
from hopgate.nodes.run.resources import search_observers
from hopgate.retrievers.index.manifest import info
from hopgate.server.observing.callbacks import watchers
from hopgate.server.observing.turns import Turn

UNDECIDED = "undecided"
SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300)

registry = CollectorRegistry()
counter = partial(Counter, registry=registry)
gauge = partial(Gauge, registry=registry)
histogram = partial(Histogram, buckets=SECONDS, registry=registry)

turns = counter("hopgate_turns", "Runs by outcome", ["outcome", "strategy", "alpha"])
seconds = histogram("hopgate_turn_seconds", "Duration of runs", ["strategy"])
node_seconds = counter("hopgate_node_seconds", "Time in each node", ["node"])
gates = counter("hopgate_gates", "Decisions of the gate", ["verdict", "alpha"])
routes = counter("hopgate_routes", "Decisions of the router", ["label", "alpha"])
stops = counter("hopgate_loop_stops", "Stop reasons of the loop", ["reason"])
escalations = counter("hopgate_escalations", "Answers in doubt, repeated with a deeper strategy")
retrievals = counter("hopgate_retrievals", "Retrieval steps", ["alpha"])
calls = counter("hopgate_model_calls", "Model calls", ["alpha"])
tokens = counter("hopgate_tokens", "Model tokens", ["kind", "alpha"])
errors = counter("hopgate_errors", "Runs that failed, by node and cause", ["node", "cause"])

in_flight = gauge("hopgate_turns_in_flight", "Runs that have not ended")
in_flight.set_function(lambda: sum(each.in_flight for each in watchers))
search_seconds = histogram("hopgate_search_seconds", "Duration of searches")
failed_searches = counter("hopgate_failed_searches", "Searches that failed")
refusals = counter("hopgate_refusals", "Error responses of hopgate's own routes", ["status"])
unkept = counter("hopgate_unkept", "Steps of conversations that --keep could not write")
index_version = gauge("hopgate_index_version", "Changes of the index")
index_changed = gauge("hopgate_index_changed_timestamp_seconds", "Time of its last change")

REGISTRY.register(registry)
search_observers += [
    lambda seconds, _: search_seconds.observe(seconds),
    lambda _, failed: failed_searches.inc(failed),
]


def count(turn: Turn) -> None:
    """Count the decisions that a run made itself, and its cost."""
    decision, usage = turn.decision, turn.usage
    visited = turn.visited
    alpha = _tenth(turn.alpha)
    strategy = decision.get("strategy") or UNDECIDED
    turns.labels(turn.outcome, strategy, alpha).inc()
    seconds.labels(strategy).observe(turn.ms / 1000)
    if "gate" in visited:
        gates.labels(turn.part("gate").get("answer") or UNDECIDED, alpha).inc()
    if "route" in visited:
        routes.labels(turn.part("route").get("label") or UNDECIDED, alpha).inc()
    if LOOP in visited:
        stops.labels(decision.get("stop_reason") or UNDECIDED).inc()
    escalations.inc(visited.count("escalate"))
    retrievals.labels(alpha).inc(usage["retrieval_steps"])
    calls.labels(alpha).inc(usage["llm_calls"])
    tokens.labels("prompt", alpha).inc(usage["prompt_tokens"])
    tokens.labels("completion", alpha).inc(usage["completion_tokens"])
    for node in set(visited) & set(usage["ms"]):
        node_seconds.labels(node).inc(usage["ms"][node] / 1000)
    if turn.cause:
        errors.labels(turn.failed_in or "start", turn.cause).inc()


def text(index: Path | None = None) -> bytes:
    """Return hopgate's metrics alone, in the text format of Prometheus.

    Args:
        index: The folder of the index whose version and age are shown.
    """
    if index:
        with suppress(ValueError):  # missing or damaged: it keeps its last values
            manifest = info(index)
            index_version.set(manifest["version"])
            index_changed.set(datetime.fromisoformat(manifest["created"]).timestamp())
    return generate_latest(registry)


def _tenth(alpha: float | None) -> str:
    return UNDECIDED if alpha is None else f"{alpha:.1f}"
