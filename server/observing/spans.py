"""Spans: each run of the graph as an OpenTelemetry trace with its nodes and model calls.

Other instrumentations for LangChain record questions, prompts and answers by default, and error
texts, which may repeat a prompt, always. These spans hold no texts.
"""

import os
import re
from functools import partial
from importlib.metadata import version
from typing import Any
from uuid import UUID

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from hopgate.server.observing.logs import facts
from hopgate.server.observing.turns import Observer, Step, Turn

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def observer(tracer: Tracer | None = None) -> Observer:
    """Create an observer that writes each run as a trace below the current span.

    Args:
        tracer: Tracer to write to; None uses the global provider. If there is none and the
            environment names an OTLP endpoint, a provider that exports to it is set.

    Raises:
        ValueError: The endpoint is not an HTTP address.
        RuntimeError: An endpoint is named, but the exporter is not installed.
    """
    if tracer is None:
        _export_if_configured()
        tracer = trace.get_tracer("hopgate", version("hopgate"))
    return partial(_write, tracer=tracer)


def _export_if_configured() -> None:
    """Export to the OTLP endpoint in the environment, unless the app has set a provider."""
    configured = any(os.environ.get(each) for each in ENDPOINTS)
    if not configured or not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    for name in ENDPOINTS:
        if (url := os.environ.get(name)) and not re.match(r"https?://[^/\s]", url):
            raise ValueError(f"{name} is {url!r}; use an address such as http://127.0.0.1:4318")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise RuntimeError(
            f"spans cannot be exported ({error}): pip install 'hopgate[otel]'"
        ) from error

    resource = Resource.create({"service.name": "hopgate"})
    provider = TracerProvider(resource=resource.merge(OTELResourceDetector().detect()))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


def _write(turn: Turn, tracer: Tracer) -> None:
    root = tracer.start_span("hopgate", start_time=turn.started_at)
    if root.is_recording():
        root.set_attributes(_turn_attributes(turn))
    spans: dict[UUID | None, Span] = {turn.run_id: root}
    for step in turn.steps:
        context = trace.set_span_in_context(spans.get(step.parent, root))
        kind = SpanKind.CLIENT if step.kind == "model" else SpanKind.INTERNAL
        name = f"chat {step.name}" if step.kind == "model" else step.name
        span = tracer.start_span(
            name, context, kind, _step_attributes(step), start_time=step.started_at
        )
        spans[step.id] = span
    for step in reversed(turn.steps):
        _end(spans[step.id], step.error, step.ended_at or turn.ended_at)
    _end(root, turn.error, turn.ended_at)


def _end(span: Span, error: str | None, ended_at: int) -> None:
    if error:
        span.set_attribute("error.type", error)
        span.set_status(Status(StatusCode.ERROR))
    span.end(ended_at)


def _turn_attributes(turn: Turn) -> dict[str, Any]:
    gate, route = turn.part("gate"), turn.part("route")
    found = {f"hopgate.{name}": value for name, value in facts(turn).items()}
    found["gen_ai.conversation.id"] = turn.thread_id
    found |= {
        f"hopgate.gate.{key}": gate.get(key) for key in ("mode", "answer", "p_yes", "uncertainty")
    }
    found |= {f"hopgate.route.{key}": route.get(key) for key in ("label", "source", "profile")}
    for label, share in (route.get("probs") or {}).items():
        found[f"hopgate.route.probs.{label}"] = share
    return {name: value for name, value in found.items() if value not in (None, "")}


def _step_attributes(step: Step) -> dict[str, Any]:
    if step.kind == "node":
        return {"hopgate.node": step.name}
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": step.name,
        "gen_ai.usage.input_tokens": step.prompt_tokens,
        "gen_ai.usage.output_tokens": step.completion_tokens,
    }
