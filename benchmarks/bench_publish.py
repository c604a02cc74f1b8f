"""Events a second that `headwater publish` brings into a real broker, beside librdkafka's own producer.

A bucket of documents of 256 bytes in JSON, in a node in a process of its own; a broker with one topic of two
partitions. The reference sends the same messages (keys, envelopes and headers, made before), in transactions of as many
messages, with the same settings, from memory: what the library can do at best with these bytes. Both take turns.

The second figure is per second of the publication's own CPU, its workers included, node and broker left out: where all
share two cores, that is what a machine of one's own for it would gain. The broker's CPU is printed too: with the
reference, which has nothing else to do, it shows what the broker allows.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from benchmarks.bench_streams import VBUCKETS
from benchmarks.gauge import cost, process_seconds
from benchmarks.harness import Figure, publish
from harness.kafka import Broker, committed, open_broker
from headwater import testing
from headwater.pipelines.jobs import Publish
from headwater.pipelines.jobs.publish import CHANGES_MAX
from headwater.pipelines.kafka import PROPERTIES, Message

DOCUMENTS = 400_000
DOCUMENT_BYTES = 256
ROUNDS = 3
TARGET = 300.0
_names = count()


@dataclass(frozen=True)
class Taken:
    """The seconds that a run took: on the clock, of the sender's CPU, and of the broker's."""

    wall: float
    own: float
    broker: float


def taken(run: Callable[[], object], node: testing.Node, broker: Broker) -> Taken:
    """Run something and return what it took."""
    others = node.pid, broker.pid
    before = [process_seconds(pid) for pid in others]
    whole = cost(run)
    spent = [process_seconds(pid) - at for pid, at in zip(others, before, strict=True)]
    return Taken(whole.wall, whole.cpu - sum(spent), spent[1])


def load(node: testing.Node) -> None:
    """Store the documents."""
    filler = "x" * (DOCUMENT_BYTES - len(json.dumps({"id": 10_000_000, "text": ""})))
    with node.client() as client:
        documents = ((f"document:{i:07}", json.dumps({"id": 10_000_000 + i, "text": filler})) for i in range(DOCUMENTS))
        if client.set_many(documents):
            raise AssertionError("documents were refused")


def publishing(node: testing.Node, broker: Broker, topic: str) -> Callable[[], None]:
    """Return a function that publishes all documents, each time under another name."""

    def run() -> None:
        url = f"kafka://{broker.address}/{topic}"
        done = Publish(node.url, url, engine="local", workers=1, once=True, name=f"bench{next(_names)}").run()
        if done.published != DOCUMENTS:
            raise AssertionError(f"{done.published} documents were published")

    return run


def producing(broker: Broker, messages: Sequence[Message], topic: str) -> Callable[[], None]:
    """Return a function that sends messages in transactions, as a program in Python that has them ready."""

    def run() -> None:
        own = {"bootstrap.servers": broker.address, "transactional.id": f"bench{next(_names)}"}
        producer = Producer({**PROPERTIES, **own})
        producer.init_transactions(30.0)
        for part in _parts(messages, int(CHANGES_MAX)):
            producer.begin_transaction()
            for _, key, value, headers in part:
                producer.produce(topic, value, key, -1, None, None, 0, headers)
            producer.commit_transaction(60.0)

    return run


def _parts(messages: Sequence[Message], size: int) -> Iterator[list[Message]]:
    rest = iter(messages)
    while part := list(islice(rest, size)):
        yield part


def figure(name: str, unit: str, ours: list[float], reference: list[float], target: float | None = None) -> None:
    """Publish a rate in thousands of events."""
    rates = [DOCUMENTS / 1e3 / each for each in ours]
    others = statistics.median(DOCUMENTS / 1e3 / each for each in reference)
    middle = statistics.median(rates)
    publish(
        Figure(name, unit, middle, min(rates), max(rates), "librdkafka's producer", others, middle / others, target)
    )


def main() -> None:
    """Measure the publication beside the producer, each on the clock and by its CPU."""
    with (
        tempfile.TemporaryDirectory() as place,
        open_broker(Path(place), memory="1g") as broker,
        testing.node(vbuckets=VBUCKETS) as node,
    ):
        load(node)
        ours = publishing(node, broker, "ours")
        ours()
        messages: list[Any] = [
            ("", each.key(), each.value(), each.headers()) for each in committed(broker.address, "ours")
        ]
        reference = producing(broker, messages, "reference")
        reference()
        rounds = [(taken(ours, node, broker), taken(reference, node, broker)) for _ in range(ROUNDS)]
    mine, theirs = ([pair[at] for pair in rounds] for at in range(2))
    text = f"publish, {DOCUMENT_BYTES} B documents"
    figure(text, "k events/s", [each.wall for each in mine], [each.wall for each in theirs], TARGET)
    name = f"{text}, per second of the sender's CPU"
    figure(name, "k events", [each.own for each in mine], [each.own for each in theirs])
    name = f"{text}, per second of the broker's CPU"
    figure(name, "k events", [each.broker for each in mine], [each.broker for each in theirs])


if __name__ == "__main__":
    main()
