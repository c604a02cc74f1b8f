"""Spans kept in memory by OpenTelemetry's own SDK, for tests to look at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
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
        return [each.name for each in self.spans]

    def named(self, name: str) -> list[ReadableSpan]:
        return [each for each in self.spans if each.name == name]

    def below(self, parent: ReadableSpan) -> list[str]:
        """The names of a span's children, in the order of their beginnings."""
        mine = [each for each in self.spans if each.parent and each.parent.span_id == parent.context.span_id]
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
