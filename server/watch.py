"""The watcher that the server's graph carries: every run goes to logs, metrics and spans.

An app can do the same: `graph.with_config(callbacks=[watcher()])`.
"""

from importlib.util import find_spec

from hopgate.server.observing import logs
from hopgate.server.observing.callbacks import TurnWatcher
from hopgate.server.observing.turns import Observer


def watcher() -> TurnWatcher:
    """Create a watcher that writes logs, and metrics and spans if their packages are installed.

    Metrics need prometheus-client (extra `metrics`), spans need OpenTelemetry (extra `otel`); a
    LangGraph server installs both.
    """
    observers: list[Observer] = [logs.write]
    if find_spec("prometheus_client"):
        from hopgate.server.observing import metrics

        observers.append(metrics.count)
    if find_spec("opentelemetry"):
        from hopgate.server.observing import spans

        observers.append(spans.observer())
    return TurnWatcher(observers)
