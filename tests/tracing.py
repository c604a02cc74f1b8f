"""Spans for tests to look at: kept in memory by OpenTelemetry's own SDK, or sent to a collector of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headwater import tracing


class Traced:
    """The spans of a block."""

    def __init__(self, kept: InMemorySpanExporter) -> None:
        self._kept = kept

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        """All that have ended, in the order of their ends."""
        return self._kept.get_finished_spans()

    def names(self) -> list[str]:
        return [span.name for span in self.spans]

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def below(self, parent: ReadableSpan) -> list[str]:
        """The names of a span's children, in the order of their beginnings."""
        mine = [span for span in self.spans if span.parent and span.parent.span_id == parent.context.span_id]
        return [each.name for each in sorted(mine, key=lambda each: each.start_time or 0)]


def told(span: ReadableSpan) -> dict[str, Any]:
    """Return a span's attributes, without what is before each name."""
    return {name.removeprefix("headwater."): value for name, value in (span.attributes or {}).items()}


@contextmanager
def traced() -> Iterator[Traced]:
    """Keep the spans of a block, without a word to the rest of the process."""
    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracing, "_tracer", lambda: provider.get_tracer("headwater"))
        yield Traced(kept)


@contextmanager
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """A collector that keeps what is posted to it."""
    kept: list[ExportTraceServiceRequest] = []

    class Kept(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            kept.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Kept) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", kept
        server.shutdown()
        thread.join()


def arrived(kept: list[ExportTraceServiceRequest]) -> tuple[list[Span], set[str]]:
    """Return the spans that were posted, and the names of the services that sent them."""
    resources = [resource for each in kept for resource in each.resource_spans]
    services = {
        label.value.string_value
        for resource in resources
        for label in resource.resource.attributes
        if label.key == "service.name"
    }
    return [span for resource in resources for scope in resource.scope_spans for span in scope.spans], services
