"""Spans of OpenTelemetry: what a batch of a job, and a rebalance, spend their time on.

Only the API is used (`opentelemetry-api`); where it is not installed a span is nothing, and where nobody set a provider
up it is the API's own nothing. Nothing of OpenTelemetry is imported before the first span. `begin` sets a provider up
for a command when the environment asks for one, as OpenTelemetry's own variables say.

Every span that exists stands in SPANS, with what it covers and its attributes (all of them `headwater.` and a name).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any, Protocol

import headwater

__all__ = ["SPANS", "SpanAttributes", "begin", "past", "span"]

SPANS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "batch": (
        "one batch of a job, from the look at the nodes to its commit",
        ("job", "batch", "vbuckets", "changes", "rows", "lag"),
    ),
    "batch.plan": ("the nodes are asked for their seqnos, tasks are made", ("tasks",)),
    "batch.tasks": ("the tasks run, wherever they do", ()),
    "batch.read": ("one task has changes come from the nodes; it writes them meanwhile", ("task",)),
    "batch.write": ("one task writes: files, indexes, the rows that die", ("task", "rows", "files")),
    "batch.commit": ("the driver makes the commit", ()),
    "batch.fold": ("small files became larger ones, beside the batches", ("files", "into")),
    "rebalance": ("from the survey to the last map", ("moves",)),
    "rebalance.plan": ("the nodes are asked, moves are chosen", ("moves", "servers")),
    "rebalance.settle": ("open ends of an earlier run are finished", ()),
    "rebalance.move": ("one vbucket goes where it belongs", ("vbucket", "source", "target")),
    "rebalance.join": ("new replicas fill up beside the old ones", ("vbucket",)),
    "rebalance.narrow": ("all copies become level, those that are not wanted go", ("vbucket",)),
    "rebalance.finish": ("the last map, the last replicas", ()),
    "move.copy": ("changes are copied to the target", ("vbucket", "changes", "bytes")),
    "move.take_over": ("the vbucket changes hands", ("vbucket", "ownerless_seconds")),
    "move.map": ("the new owner is told to everybody", ("vbucket",)),
}
"""Name of a span -> what it covers, and its attributes."""

Value = str | int | float | bool


class SpanAttributes(Protocol):
    """A span that is under way."""

    @property
    def is_heard(self) -> bool:
        """Return True if anybody looks at it: attributes that take work need not be worked out for nobody."""

    def tell(self, **attributes: Value) -> None:
        """Add attributes that were not known at its beginning."""


class _Nothing:
    is_heard = False

    def tell(self, **attributes: Value) -> None:
        pass

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *error: object) -> None:
        return None


_NOTHING = _Nothing()


class _Span:
    """A span of OpenTelemetry."""

    def __init__(self, span: Any) -> None:
        self._span = span

    @property
    def is_heard(self) -> bool:
        return bool(self._span.is_recording())

    def tell(self, **attributes: Value) -> None:
        for name, value in attributes.items():
            self._span.set_attribute(f"headwater.{name}", value)


@cache
def _tracer() -> Any:
    """Return the tracer, None where there is no OpenTelemetry. One that is asked for before a provider is set up finds
    it when it is there: so the API has it."""
    try:
        from opentelemetry import trace  # noqa: PLC0415 - optional, and nobody waits for it at the start
    except ImportError:
        return None
    return trace.get_tracer("headwater", headwater.__version__)


def span(name: str, *, began: float | None = None, **attributes: Value) -> AbstractContextManager[SpanAttributes]:
    """Return a context that is a span, below the one that is current. An exception that leaves it is noted on it.

    Args:
        name: its name.
        began: Unix seconds, for one that has begun before.
        attributes: of it.
    """
    tracer = _tracer()
    return _NOTHING if tracer is None else _current(tracer, name, began, attributes)


@contextmanager
def _current(tracer: Any, name: str, began: float | None, attributes: Mapping[str, Value]) -> Iterator[_Span]:
    with tracer.start_as_current_span(name, start_time=None if began is None else int(began * 1e9)) as span_:
        span = _Span(span_)
        span.tell(**attributes)
        yield span


def past(name: str, began: float, ended: float, **attributes: Value) -> None:
    """Tell of a span that is over: what another process did, or what ran beside.

    Args:
        name: its name.
        began, ended: Unix seconds, by the clock of who did it.
        attributes: of it.
    """
    tracer = _tracer()
    if tracer is not None:
        span_ = tracer.start_span(name, start_time=int(began * 1e9))
        _Span(span_).tell(**attributes)
        span_.end(int(max(began, ended) * 1e9))


ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_EXPORTERS = ("otlp", "console", "none")


def begin(environment: Mapping[str, str] = os.environ) -> str:
    """Send this process's spans where OpenTelemetry's variables say, if they say it and nobody has set that up before.

    Returns: why that can't be, in words for a user; nothing if all is well.
    """
    exporter = _wanted_exporter(environment)
    if exporter == "none":
        return ""
    if exporter not in _EXPORTERS:
        message = "is not known here: otlp, console or none; others by opentelemetry-instrument"
        return f"no traces: OTEL_TRACES_EXPORTER={exporter} {message}"
    try:
        _provide(exporter)
    except ImportError as error:
        package = "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
        return f"no traces: the environment asks for them, and {error.name} is missing: pip install {package}"
    return ""


def _wanted_exporter(environment: Mapping[str, str]) -> str:
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return "none"
    has_endpoint = any(environment.get(name) for name in ENDPOINTS)
    return environment.get("OTEL_TRACES_EXPORTER", "").strip() or ("otlp" if has_endpoint else "none")


def _provide(exporter: str) -> None:
    # OpenTelemetry starts threads of a pool in each forked child, as one is on its way to Spark's Java. The pool's lock
    # is freed there in the order in which modules asked for that: its module must have asked before the provider does.
    import concurrent.futures.thread  # noqa: F401, PLC0415

    from opentelemetry import trace  # noqa: PLC0415
    from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import (  # noqa: PLC0415
        BatchSpanProcessor,
        ConsoleSpanExporter,
        SimpleSpanProcessor,
    )

    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return  # opentelemetry-instrument, or the program around this
    if exporter == "otlp":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415

        processor: Any = BatchSpanProcessor(OTLPSpanExporter())
    else:
        processor = SimpleSpanProcessor(ConsoleSpanExporter(out=sys.stderr))
    resource = Resource({SERVICE_NAME: "headwater"})
    provider = TracerProvider(resource=resource.merge(OTELResourceDetector().detect()))
    provider.add_span_processor(processor)  # what is left is sent when the process ends
    trace.set_tracer_provider(provider)
