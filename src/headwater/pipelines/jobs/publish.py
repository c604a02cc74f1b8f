"""The publication of a bucket in Kafka, as users see it: its options, its progress and its line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from headwater.errors import OptionError
from headwater.options import option
from headwater.pipelines.jobs.declared import JobProgress, OnEngines, check_states, losses_line

if TYPE_CHECKING:
    from headwater.pipelines.kafka import KafkaTarget

CHANGES_MAX = "50000"
"""Changes of a batch, unless the job says otherwise: readers of the topic see none of them before all are there."""


def read_properties(arguments: Mapping[str, str] | Sequence[str]) -> dict[str, str]:
    """Return properties of librdkafka from the command line's KEY=VALUE. Raises OptionError."""
    if isinstance(arguments, Mapping):
        return dict(arguments)
    properties = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not equals or not name.strip():
            raise OptionError("kafka", name, "KEY=VALUE, such as security.protocol=SASL_SSL")
        properties[name.strip()] = value.strip()
    return properties


@dataclass
class PublishProgress(JobProgress):
    """Progress of a publication, reported after each batch.

    Attributes:
        published: documents stored, as events in Kafka.
        deleted: deletions and expirations.
        undone: events that set right what a failover took back.
    """

    ROWS: ClassVar[tuple[str, ...]] = ("published", "deleted", "undone")

    published: int = 0
    deleted: int = 0
    undone: int = 0


@dataclass
class Publish(OnEngines[PublishProgress]):
    """Publish the changes of a bucket in Kafka, each exactly once for readers of committed messages.

    What a failover takes back is undone there by further events. Of the default collection, unless others are chosen.
    Ended at any moment, it goes on where it was: how far it is stands in Kafka, too, and is committed with the events.
    """

    NAME: ClassVar[str] = "publish"
    PART: ClassVar[tuple[str, int]] = ("follow", 70)
    WORK: ClassVar[str] = "headwater.pipelines.publish:work"
    PROGRESS = PublishProgress
    DONE: ClassVar[str] = "in the topic"
    LEVEL: ClassVar[str] = "the topic has all changes of the bucket"
    EXAMPLES: ClassVar[tuple[str, ...]] = (
        "headwater publish couchbase://127.0.0.1:11210/default --to kafka://127.0.0.1:9092/changes",
        "headwater publish couchbase://10.0.0.7/orders --to kafka://k1:9092,k2:9092/orders --engine local --before",
        "headwater publish couchbase://10.0.0.7/store --to kafka://10.0.0.9/{bucket}.{scope}.{collection}"
        " --collections all --kafka-file ./kafka.properties",
    )

    source: str = option(..., "couchbase://HOST:PORT/BUCKET", positional=True, metavar="URL")
    to: str = option(
        ...,
        "kafka://BROKER:PORT/TOPIC, or several brokers with commas; {bucket}, {scope} and {collection} are filled in.",
        metavar="URL",
    )
    _: KW_ONLY
    since: str | None = option(
        None,
        "Of a new publication: earliest, all documents first; or latest, what is written from now on.",
        flag="from",
        choices=("earliest", "latest"),
        text="startingOffsets",
    )
    format: str = option(
        "debezium",
        "Of messages: Debezium's envelope, that with a schema for Kafka Connect, CloudEvents, or plain documents.",
        choices=("debezium", "connect", "cloudevents", "plain"),
    )  # fmt: skip
    before: bool = option(False, "Each version, with the one that it replaced; the bucket keeps a history.")
    name: str | None = option(
        None, "Whose positions these are in Kafka; made of bucket and topic if left out.", metavar="NAME"
    )
    partitions: int | None = option(
        None, "Partitions of a topic that is made; the broker's default if left out.", metavar="N", least=1
    )
    kafka: Mapping[str, str] = option(
        {}, "A property of librdkafka, for the producer and the reader; repeatable.",
        metavar="KEY=VALUE", many=True, secret=True, read=read_properties,
    )  # fmt: skip
    kafka_file: str | None = option(None, "A file of such properties, a line each.", metavar="FILE")
    staging: str | Path | None = option(
        None, "Keep the messages of a batch there until they are sent; all workers see it.", metavar="DIR"
    )

    def source_options(self) -> dict[str, str]:
        """Return the options of the source, with the size of a batch."""
        versions = {"before": "true"} if self.before else {}
        return {"maxChangesPerTrigger": CHANGES_MAX, **versions, **super().source_options()}

    def beginning(self) -> dict[str, Any]:
        """Return the offset at which a new publication begins. Raises OptionError."""
        from headwater.spark.settings import parse

        return parse(self.source_options(), streaming=True).starting_offsets.to_json()

    def check(self) -> None:
        """Check each option, the address of the topic, and that the library is installed. Raises OptionError."""
        super().check()
        _ = self.target
        # Of a change that a later one replaced within a snapshot nobody would know.
        check_states(self, "a publication", "what a failover takes back is undone")

    @property
    def target(self) -> KafkaTarget:
        """The end of the publication. Raises OptionError."""
        from headwater.pipelines.kafka import target_of

        return target_of(self.to, self.bucket, self.name, self.kafka, self.kafka_file, self.partitions)

    def line(self, progress: PublishProgress) -> str:
        """Return the progress after a batch as a line for people."""
        parts = [f"batch {progress.batches}: {progress.published:,} published and {progress.deleted:,} deleted"]
        if progress.rollbacks:
            parts.append(f"{progress.rollbacks} vbuckets rolled back, {progress.undone:,} events undid that")
        elif progress.undone:
            parts.append(f"{progress.undone:,} events undid what was lost")
        parts += losses_line(progress.data_loss)
        return ", ".join(parts) + f" in {progress.seconds:.1f} s"
