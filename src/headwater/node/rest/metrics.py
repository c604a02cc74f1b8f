"""The node's metrics: one table, from which the page /metrics and its reference are generated.

Values are read at each scrape, so they cost nothing without scrapes. The first scrape imports this module, whose
library takes 30 ms. Only two things are recorded as they happen: requests are counted (requests.py explains why that is
cheap), and the durations of commits and of turns of the event loop are noted, a few hundred a second at most.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from headwater.node.kv.admin import VERSION_TEXT
from headwater.node.process import kernel_modules
from headwater.node.reporting.requests import UNKNOWN
from headwater.wire.opcodes import name_of as opcode_name
from headwater.wire.status import name_of as status_name
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from headwater.node.kv.api import Services
    from headwater.node.reporting.durations import Durations

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Values: TypeAlias = "Iterable[tuple[tuple[str, ...], float]]"
"""A metric's series: pairs of the values of its labels and its number."""
Histories: TypeAlias = "Iterable[tuple[tuple[str, ...], Durations]]"
"""A histogram's series: pairs of the values of its labels and its durations."""
COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"


@dataclass(frozen=True, slots=True)
class NodeMetric:
    """One metric.

    Attributes:
        name: the name without `headwater_`; a counter's ends in `_total`.
        kind: COUNTER, GAUGE or HISTOGRAM.
        about: the meaning and the unit, for the reader of the page.
        labels: the names of the labels, without that of the bucket.
        read: returns the metric's series: Histories for a histogram, Values for the others. For a metric of buckets it
            is called once for each bucket.
        is_of_node: True for a metric of the node; a metric of buckets has the bucket as its first label.
    """

    name: str
    kind: str
    about: str
    labels: tuple[str, ...]
    read: Callable[[Services], Any]
    is_of_node: bool = False

    @property
    def all_labels(self) -> tuple[str, ...]:
        """The labels, the bucket's name included."""
        return self.labels if self.is_of_node else ("bucket", *self.labels)

    def values(self, node: Services, bucket_names: Container[str]) -> Iterator[tuple[tuple[str, ...], Any]]:
        """Yield each series as (values of the labels, value): of the node, or of each bucket in `bucket_names`."""
        if self.is_of_node:
            yield from self.read(node)
            return
        for name, served in node.buckets.items():
            if name not in bucket_names:
                continue
            for labels, value in self.read(served):
                yield (name, *labels), value

    @property
    def full_name(self) -> str:
        """The name in Prometheus."""
        return f"headwater_{self.name}"


def _single(read: Callable[[Services], float]) -> Callable[[Services], Values]:
    return lambda node: [((), read(node))]


def _figure(name: str) -> Callable[[Services], float]:
    """Return a function that reads the figure `name` of the node's STAT."""
    return lambda node: float(dict(node.figures())[name])


def _info(node: Services) -> Values:
    return [((VERSION_TEXT.decode(),), 1)]


def _kernels(node: Services) -> Values:
    compiled, total = kernel_modules.counts()
    return [(("compiled",), compiled), (("waiting",), total - compiled)]


def _by_state(node: Services) -> Values:
    counts = Counter(vbucket.state for vbucket in node.bucket.vbuckets.values())
    return [((state.name.lower(),), counts[state]) for state in State]


def _documents(node: Services) -> Values:
    counts = dict.fromkeys(State, 0)
    for vbucket in node.bucket.vbuckets.values():
        counts[vbucket.state] += node.bucket.store.index.items(vbucket.id)
    return [((state.name.lower(),), count) for state, count in counts.items()]


def _commands(node: Services) -> Values:
    counters = node.bucket.counters
    return [((name,), counters[f"cmd_{name}"]) for name in ("get", "set", "delete", "flush")]


def _durable_writes(node: Services) -> Values:
    return [((level.label,), count) for level, count in node.bucket.durable_writes.begun.items()]


def _memory(what: str) -> Callable[[Services], Values]:
    def read(node: Services) -> Values:
        figures = dict(node.figures())
        return [((whose,), float(figures[f"ep_{whose}_{what}"])) for whose in ("connections", "strangers")]

    return read


def _dcp(node: Services) -> Values:
    counts = Counter(session.is_producer for session in node.dcp.sessions.values())
    return [(("producer",), counts[True]), (("consumer",), counts[False])]


def _streams(what: Callable[[list[int]], float]) -> Callable[[Services], Values]:
    def read(node: Services) -> Values:
        sessions = tuple(node.dcp.sessions.items())
        return [((name.decode("latin-1"),), what(list(each.backlog()))) for name, each in sessions if each.is_producer]

    return read


def _refused(node: Services) -> float:
    return sum(vbucket.refused_changes for vbucket in node.bucket.vbuckets.values())


def _loop(name: str) -> Callable[[Services], float]:
    return lambda node: float(dict(node.bucket.stat_groups["loop"]([]))[name]) / 1e6


def _requests(node: Services) -> Values:
    return [
        ((_opcode_name(opcode), status_name(status)), count)
        for (opcode, status), count in node.requests.counts().items()
    ]


def _request_seconds(node: Services) -> Histories:
    return [((_opcode_name(opcode),), durations) for opcode, durations in node.requests.durations.items()]


def _opcode_name(opcode: int) -> str:
    return "unknown" if opcode == UNKNOWN else opcode_name(opcode)


def _unsent_seconds(node: Services) -> Values:
    now = node.bucket.clock.time_ns()
    for name, each in tuple(node.dcp.sessions.items()):
        if each.is_producer:
            oldest = each.oldest_unsent_ns()
            yield (name.decode("latin-1"),), 0.0 if oldest is None else max(0, now - oldest) / 1e9


def _followed(node: Services) -> Values:
    for producer, progress in node.replication.following():
        yield (producer, "open"), progress.open
        yield (producer, "waiting"), progress.waiting


def _following(what: str) -> Callable[[Services], Values]:
    return lambda node: [((name,), getattr(progress, what)) for name, progress in node.replication.following()]


def _certificate_ends(node: Services) -> Values:
    return [] if node.tls is None else [((), node.tls.certificate.ends.timestamp())]


def _worst(backlogs: list[int]) -> int:
    return max(backlogs, default=0)


def _gauge(name: str, about: str, read: Callable[[Services], Any], *labels: str) -> NodeMetric:
    return NodeMetric(name, GAUGE, about, labels, read if labels else _single(read))


def _counter(name: str, about: str, read: Callable[[Services], Any], *labels: str) -> NodeMetric:
    return NodeMetric(f"{name}_total", COUNTER, about, labels, read if labels else _single(read))


def _histogram(name: str, about: str, read: Callable[[Services], Histories], *labels: str) -> NodeMetric:
    return NodeMetric(name, HISTOGRAM, about, labels, read)


def _node_gauge(name: str, about: str, read: Callable[[Services], Any], *labels: str) -> NodeMetric:
    return replace(_gauge(name, about, read, *labels), is_of_node=True)


def _node_counter(name: str, about: str, read: Callable[[Services], Any], *labels: str) -> NodeMetric:
    return replace(_counter(name, about, read, *labels), is_of_node=True)


METRICS: tuple[NodeMetric, ...] = (
    _gauge("info", "1, with the version and the bucket", _info, "version"),
    _node_gauge("uptime_seconds", "since the node began to listen", _figure("uptime")),
    _node_gauge("kernels", "compiled, or still waiting for it after a first start", _kernels, "state"),
    _node_gauge("connections", "connections that are open", _figure("curr_connections")),
    _node_counter("connections_accepted", "connections taken", _figure("total_connections")),
    _node_counter(
        "connections_rejected", "connections closed at once, over the limit", _figure("rejected_connections")
    ),
    _node_gauge("connection_memory_bytes", "unfinished requests, unread answers", _memory("memory"), "of"),
    _node_gauge("connection_memory_limit_bytes", "how much that may be", _memory("memory_max"), "of"),
    _node_counter("connections_dropped", "closed for holding most of it", _memory("dropped_for_memory"), "of"),
    _counter("commands", "documents read, stored, deleted; buckets emptied", _commands, "command"),
    _counter("requests", "requests answered, by the status they would have with XERROR", _requests, "opcode", "status"),
    _histogram("request_seconds", "from its coming until its answer may leave", _request_seconds, "opcode"),
    _counter("received_bytes", "bytes that came, without TLS's own", lambda node: node.requests.received_bytes),
    _counter("sent_bytes", "bytes that left, without TLS's own", lambda node: node.requests.sent_bytes),
    _counter("round_requests", "requests that rounds of the kernel answered", _figure("ep_round_requests")),
    _counter("get_hits", "reads that found a document", lambda node: node.bucket.counters["get_hits"]),
    _counter("expired", "documents that ran out", lambda node: node.bucket.counters["expired"]),
    _counter("commits", "batches on disk", lambda node: node.committer.commits),
    _counter("commit_failures", "batches lost to a disk error", lambda node: node.committer.failures),
    _histogram(
        "commit_seconds", "from a batch's freezing to its being on disk", lambda node: [((), node.committer.durations)]
    ),
    _counter("written_bytes", "bytes of these batches", lambda node: node.bucket.store.committing.written_bytes),
    _gauge("vbuckets", "vbuckets by state", _by_state, "state"),
    _gauge("documents", "documents by the state of their vbucket", _documents, "state"),
    _gauge("log_bytes", "bytes of the log's files", lambda node: node.bucket.store.log.bytes),
    _gauge("live_bytes", "of them the newest version of each key", lambda node: node.bucket.store.index.live_bytes),
    _gauge("dropped_bytes", "of these, documents of dropped collections", lambda node: node.compactor.dropped.bytes),
    _gauge(
        "history_bytes",
        "superseded versions that retention keeps, when last measured",
        _figure("ep_db_history_file_size"),
    ),
    _gauge(
        "history_retention_seconds",
        "how far back versions are kept; 0: no limit",
        _figure("ep_history_retention_seconds"),
    ),
    _gauge("history_retention_bytes", "how many bytes of them; 0: no limit", _figure("ep_history_retention_bytes")),
    _gauge("index_bytes", "memory of the index", lambda node: node.bucket.store.index.nbytes()),
    _node_gauge("system_buffer_bytes", "memory of the system for sockets", _figure("ep_kernel_memory")),
    _gauge("tap_kept_bytes", "memory of TAP sessions whose clients are away", _figure("ep_tap_kept_memory")),
    _gauge("held_bytes", "replaced files that streams still read", lambda node: node.bucket.store.slots.retired_bytes),
    _node_gauge("disk_free_bytes", "room on the store's disk", lambda node: shutil.disk_usage(node.config.data).free),
    _gauge(
        "disk_full", "1 while writes are refused for want of room", lambda node: node.bucket.store.staging.lacks_room
    ),
    _node_gauge("unsure_files", "files that may hold a change that was refused", _figure("ep_unsure_files")),
    _counter("compactions", "runs of compaction", lambda node: node.compactor.runs),
    _gauge("compacting", "1 while compaction is under way", lambda node: node.compactor.is_running),
    _counter("compaction_seconds", "time that runs of compaction took", lambda node: node.compactor.seconds),
    _counter("compaction_freed_bytes", "bytes they gave back", lambda node: node.compactor.freed_bytes),
    _counter("streams_ended_slow", "streams ended for holding files too long", _figure("ep_slow_streams_ended")),
    _counter("scrubs", "times all of the log was verified", _figure("ep_scrub_runs")),
    _counter("scrubbed_bytes", "bytes of the log that were verified", _figure("ep_scrub_bytes")),
    _gauge("damaged_batches", "damaged batches of the log", lambda node: node.bucket.store.damaged_batches),
    _gauge("damaged_vbuckets", "vbuckets that lost changes", lambda node: len(node.bucket.store.quarantine.vbuckets)),
    _gauge("prepares_waiting", "durable writes that are not over", lambda node: node.bucket.prepares_waiting),
    _counter("durable_writes", "durable writes begun, by the level asked for", _durable_writes, "level"),
    _gauge("range_scans", "range scans that are open", lambda node: len(node.bucket.scans)),
    _gauge("refused_changes", "changes of producers that replicas here refused", _refused),
    _gauge("dcp_connections", "DCP connections by this node's part", _dcp, "part"),
    _gauge("dcp_streams", "streams of a producing connection", _streams(len), "connection"),
    _gauge("dcp_backlog_changes", "changes that its open streams have yet to be sent", _streams(sum), "connection"),
    _gauge("dcp_backlog_changes_max", "the same of its worst stream", _streams(_worst), "connection"),
    _gauge("dcp_backlog_seconds", "the age of the oldest of them", _unsent_seconds, "connection"),
    _gauge("replica_vbuckets", "vbuckets that follow a producer", _followed, "producer", "stream"),
    _gauge(
        "replica_behind_changes",
        "still to come of its snapshots",
        _following("behind_changes"),
        "producer",
    ),
    _gauge("replica_silent_seconds", "since when nothing came from it", _following("silent_seconds"), "producer"),
    NodeMetric(
        "tls_certificate_ends_seconds",
        GAUGE,
        "Unix time until which it is valid",
        (),
        _certificate_ends,
        is_of_node=True,
    ),
    NodeMetric(
        "loop_late_seconds",
        HISTOGRAM,
        "how late the event loop was, wall time",
        (),
        lambda node: [((), node.loop_watch.durations)],
        is_of_node=True,
    ),
    _node_gauge("loop_late_seconds_max", "the longest turn of the event loop, wall time", _loop("ep_loop_late_max")),
    _node_gauge("loop_busy_seconds_max", "the same in processor time", _loop("ep_loop_busy_max")),
)


class _LookedUpMetrics(Collector):
    """The metrics of the table, for Prometheus' library; their values are read when they are collected."""

    def __init__(self, node: Services, bucket_names: Container[str], of_node: bool) -> None:
        self._node, self._visible, self._of_node = node, bucket_names, of_node

    def collect(self) -> Iterator[Metric]:
        for metric in METRICS:
            if self._of_node or not metric.is_of_node:
                families = _histories if metric.kind == HISTOGRAM else _numbers
                yield families(metric, self._node, self._visible)

    def describe(self) -> Iterator[Metric]:
        """Describe nothing in advance, because that would read all values."""
        return iter(())


def _numbers(metric: NodeMetric, node: Services, bucket_names: Container[str]) -> Metric:
    family = CounterMetricFamily if metric.kind == COUNTER else GaugeMetricFamily
    numbers = family(metric.full_name, metric.about, labels=metric.all_labels)
    for labels, value in metric.values(node, bucket_names):
        numbers.add_metric(list(labels), value)
    return numbers


def _histories(metric: NodeMetric, node: Services, bucket_names: Container[str]) -> Metric:
    histogram = HistogramMetricFamily(metric.full_name, metric.about, labels=metric.all_labels)
    for labels, durations in metric.values(node, bucket_names):
        histogram.add_metric(list(labels), durations.at_most(), durations.total_seconds)
    return histogram


def page(node: Services, bucket_names: Container[str] | None = None, *, of_node: bool = True) -> bytes:
    """Return the metrics in Prometheus' text format.

    Args:
        node: the node.
        bucket_names: the names of the buckets whose metrics are included; None for all.
        of_node: True to include the metrics of the node and its process.
    """
    registry = CollectorRegistry()
    registry.register(_LookedUpMetrics(node, tuple(node.buckets) if bucket_names is None else bucket_names, of_node))
    if of_node:
        ProcessCollector(registry=registry)
    return generate_latest(registry)
