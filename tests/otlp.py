"""A FAKE collector on loopback that records the spans exported to it over OTLP."""

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector:
    """A context manager that serves in threads.

    Attributes:
        spans: Every span so far.
        services: The service name of each span.
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: list[str] = []

    def __enter__(self) -> "Collector":
        handler = type("Handler", (_Handler,), {"collector": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    @property
    def endpoint(self) -> str:
        """The value for OTEL_EXPORTER_OTLP_TRACES_ENDPOINT."""
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1/traces"

    def record(self, request: ExportTraceServiceRequest) -> None:
        for each in request.resource_spans:
            names = {pair.key: pair.value.string_value for pair in each.resource.attributes}
            for scope in each.scope_spans:
                self.spans += scope.spans
                self.services += [names["service.name"]] * len(scope.spans)


class _Handler(BaseHTTPRequestHandler):
    collector: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Content-Encoding"] == "gzip":
            body = gzip.decompress(body)
        self.collector.record(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass
