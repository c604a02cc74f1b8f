"""Kafka as the end of a publication: a producer with transactions, and what was committed before, read back.

All of a batch is one transaction: its events, and behind them the *record* (how far the publication is), as a message
in a topic of its own, NAME-positions. Readers of committed messages see both or neither. A start ends whatever an
earlier process left open and shuts that process out, for both have the same transactional id, and then reads the
newest record. So it is Kafka that knows whether the last batch was committed, and no file has to be believed.

Once a minute a batch also writes a *mark*: how far the publication was, and where the topics ended then. Of the marks
the newest of each power of two is kept, so that a rollback reads the topics back from a place near enough.

No other file imports confluent_kafka. Its documentation: https://docs.confluent.io/platform/current/clients/
"""

from __future__ import annotations

import json
import logging
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from headwater.errors import ConnectionLost, OptionError, PublishRefused
from headwater.failpoints import failpoint
from headwater.pipelines.ledger import LedgerRecord

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer

T = TypeVar("T")
Message = tuple[str, bytes, "bytes | None", list[tuple[str, bytes]]]
"""A message: topic, key, value (None for a tombstone), headers."""

_library: logging.Logger = logging.getLogger(f"{__name__}.library")
"""Gets librdkafka's lines about each connection; its errors come as our own, in one line."""
_library.setLevel(logging.CRITICAL)

PORT = 9092
PLACES = ("bucket", "scope", "collection")
RESERVED = frozenset({"bootstrap.servers", "transactional.id", "enable.idempotence", "isolation.level", "group.id"})
"""Properties that make the promise of the job, or that its address names."""
PROPERTIES: Mapping[str, Any] = {
    "linger.ms": 20,
    "compression.type": "lz4",
    "transaction.timeout.ms": 300_000,
    # What is too long says the topic, and the broker by it.
    "message.max.bytes": 256 << 20,
    "queue.buffering.max.messages": 500_000,
    "queue.buffering.max.kbytes": 256 << 10,
    # As Kafka's own clients in Java: the same key is in the same partition, whoever wrote it.
    "partitioner": "murmur2_random",
}
BATCH_BYTES, BATCH_BYTES_MIN, OVERHEAD = 1_000_000, 1_000, 512
CALL_SECONDS = 15.0
"""The longest wait for one answer of a broker; then the job says so, and tries again."""
POLL_SECONDS = 0.1
MARK_SECONDS = 60.0
RECORD, MARK, FORMAT = b"record", b"mark", 1
_TAIL = 64
"""Messages at the end of the positions in which the newest record is looked for first."""
_NAME = re.compile(r"[A-Za-z0-9._-]{1,230}")
_NO_ID = "A" * 22
"""The id of a topic of a broker that knows none: sixteen zeros."""
_LEGAL = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True)
class KafkaTarget:
    """The end of a publication.

    Attributes:
        brokers: "host:port", with commas between them.
        topic: the topic's name, or a template of names with {bucket}, {scope} and {collection}.
        name: the publication's name, which its transactions and its positions have.
        properties: of librdkafka.
        partitions: of topics that are made; None for the broker's default.
        seconds: the longest wait for an answer.
    """

    brokers: str
    topic: str
    name: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    partitions: int | None = None
    seconds: float = CALL_SECONDS

    @property
    def url(self) -> str:
        """The address of the topic."""
        return f"kafka://{self.brokers}/{self.topic}"

    @property
    def positions(self) -> str:
        """The topic of the record and the marks."""
        return f"{self.name}-positions"

    def topic_of(self, bucket: str, scope: str = "_default", collection: str = "_default") -> str:
        """Return the topic of a collection's events."""
        names = dict(zip(PLACES, (bucket, scope, collection), strict=True))
        return _LEGAL.sub("_", self.topic.format_map(names))


def target_of(
    to: str,
    bucket: str,
    name: str | None = None,
    properties: Mapping[str, str] | None = None,
    file: str | None = None,
    partitions: int | None = None,
) -> KafkaTarget:
    """Return the end of a publication.

    Args:
        to: kafka://host:port/topic.
        bucket: the bucket, after which the publication is named unless `name` is given.
        properties: of librdkafka, beside those of a `file`, before which they come.
        partitions: of topics that are made.

    Raises:
        OptionError: the address, the name, a property or the file of properties is none.
    """
    brokers, topic = _read_url(to)
    own_name = name or _LEGAL.sub("_", f"headwater-{bucket}-{topic.format_map(_Same())}")
    if not _NAME.fullmatch(own_name):
        raise OptionError(
            "name", own_name, "1 to 230 letters, digits, dots, dashes or underscores, as Kafka's names are"
        )
    target = KafkaTarget(brokers, topic, own_name, {**_file_of(file), **_allowed(properties or {})}, partitions)
    if topic == target.positions:
        raise OptionError("name", own_name, f"a name whose positions, in the topic {topic}, are not among the events")
    return target


class _Same(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return name


def _read_url(url: str) -> tuple[str, str]:
    allowed = "an address with a topic, such as kafka://10.0.0.7:9092/orders"
    scheme, _, remainder = url.partition("://")
    hosts, _, topic = remainder.partition("/")
    if scheme != "kafka" or not hosts or not topic or any(letter.isspace() for letter in url):
        raise OptionError("to", url, allowed)
    if "@" in hosts:
        text = "without a name and a password in it: --kafka-file has sasl.username and sasl.password"
        raise OptionError("to", f"kafka://...@{hosts.rpartition('@')[2]}/{topic}", text)
    try:
        example = topic.format_map(dict.fromkeys(PLACES, "x"))
    except (KeyError, ValueError, IndexError, AttributeError):
        raise OptionError("to", url, "a topic, of which {bucket}, {scope} and {collection} are replaced") from None
    if not _NAME.fullmatch(example) or example in (".", ".."):
        raise OptionError("to", url, f"{allowed}: of letters, digits, dots, dashes and underscores")
    return ",".join(_with_port(host, url, allowed) for host in hosts.split(",")), topic


def _with_port(host: str, url: str, allowed: str) -> str:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::([0-9]{1,5}))?", host)
    if match is None or not 0 < int(match[2] or PORT) < 1 << 16:
        raise OptionError("to", url, allowed)
    return f"{match[1]}:{match[2] or PORT}"


def _allowed(properties: Mapping[str, str]) -> dict[str, str]:
    for name in properties:
        if name in RESERVED:
            raise OptionError("kafka", name, "a property that may be chosen: the job sets it itself")
    return dict(properties)


def _file_of(path: str | None) -> dict[str, str]:
    """Return the properties of a file: KEY=VALUE, a line each; lines that begin with # are remarks."""
    if path is None:
        return {}
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise OptionError("kafka-file", path, f"a file of properties that can be read: {reason}") from None
    properties = {}
    for number, line in enumerate(map(str.strip, lines), 1):
        name, equals, value = line.partition("=")
        if not line or line.startswith("#"):
            continue
        if not equals or not name.strip():
            raise OptionError("kafka-file", f"{path}, line {number}", "KEY=VALUE")
        properties[name.strip()] = value.strip()
    return _allowed(properties)


class KafkaPositions:
    """The committed record and marks of a publication, and its events, as a reader sees them.

    Args:
        target: the end of the publication.
        bucket: the bucket of the changes.
        beginning: the offset of a new publication.

    Raises:
        PublishRefused, ConnectionLost: as `calls`.
    """

    def __init__(self, target: KafkaTarget, bucket: str, beginning: Mapping[str, Any]) -> None:
        self.target: Final = target
        self._bucket, self._beginning = bucket, beginning
        self._readers: dict[str, Consumer] = {}
        self._troubles: list[str] = []
        self._latest: tuple[int, PublicationState] | None = None

    def load(self) -> PublicationState:
        """Return what the last committed batch wrote."""
        end = self._end(self.target.positions)
        if self._latest is None or self._latest[0] != end:
            text = self._newest(end)
            self._latest = (
                end,
                PublicationState.read(text)
                if text
                else PublicationState(LedgerRecord(self._bucket, self._beginning, 0)),
            )
        return self._latest[1]

    def marks(self) -> list[Mark]:
        """Return the marks, the newest first."""
        results: dict[bytes, Mark] = {}
        for message in self._messages({(self.target.positions, 0): (0, self._end(self.target.positions))}):
            key, value = message.key(), message.value()
            if key.startswith(MARK) and value is not None:
                results[key] = Mark(**json.loads(zlib.decompress(value)))
        return sorted(results.values(), key=lambda mark: -mark.batch)

    def ends(self, topics: Iterable[str]) -> dict[str, dict[str, int]]:
        """Return where topics end: topic -> partition -> offset."""
        results: dict[str, dict[str, int]] = {}
        for topic in topics:
            results[topic] = {str(number): self._end(topic, number) for number in self._partitions(topic)}
        return results

    def events(
        self,
        topics: Iterable[str],
        offsets: Mapping[str, Mapping[str, int]],
        ends_before: Mapping[str, Mapping[str, int]],
    ) -> Iterator[Any]:
        """Yield the committed messages of topics from some offsets on, up to the present ends.

        Args:
            ends_before: the partitions that topics had at the newest mark. None can be taken away.

        Raises:
            ConnectionLost: the broker does not know all partitions of a topic, or does not answer.
        """
        spans = {
            (topic, number): (offsets.get(topic, {}).get(str(number), 0), self._end(topic, number))
            for topic in topics
            for number in self._all_partitions(topic, len(ends_before.get(topic, ())))
        }
        return self._messages(spans)

    def close(self) -> None:
        """Close the connection."""
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    def _newest(self, end: int) -> bytes | None:
        """Return the value of the newest record: it is near the end, behind it are a few marks at most."""
        tail = _TAIL
        while True:
            begin, newest = max(0, end - tail), None
            for message in self._messages({(self.target.positions, 0): (begin, end)}):
                if message.key() == RECORD:
                    newest = message.value()
            if newest is not None or begin == 0:
                return newest
            tail *= 8

    def _messages(self, spans: Mapping[tuple[str, int], tuple[int, int]]) -> Iterator[Any]:
        """Yield the committed messages in some spans of offsets of partitions.

        A reader of committed messages gets no further than to the first transaction that is open. All below the ends
        was written before the call, so this waits until ours are decided, and those of others.

        Raises:
            ConnectionLost: nothing came for `seconds`.
        """
        ends = {place: end for place, (begin, end) in spans.items() if begin < end}
        if not ends:
            return
        self._assign({place: spans[place][0] for place in ends})
        until = time.monotonic() + self.target.seconds
        while ends:
            batch = self._consumed()
            for message in batch:
                place, offset = (message.topic(), message.partition()), message.offset()
                end = ends.get(place, 0)
                if message.error() is None and offset < end:
                    yield message
                # Markers of transactions have offsets and are no messages: the end of a partition is told for itself.
                if offset >= end - (message.error() is None):
                    ends.pop(place, None)
            until = time.monotonic() + self.target.seconds if batch else until
            if ends and time.monotonic() >= until:
                topic, number = next(iter(ends))
                raise ConnectionLost(
                    self.target.brokers,
                    _reason_with_trouble(f"what is in {topic}/{number} does not come", self._troubles),
                )

    def _assign(self, places: Mapping[tuple[str, int], int]) -> None:
        from confluent_kafka import TopicPartition

        with calls(self.target, self._troubles):
            reader = self._reader("read_committed")
            reader.assign([TopicPartition(*place, offset) for place, offset in places.items()])

    def _consumed(self) -> list[Any]:
        """Return messages, and the ends of partitions, as they come."""
        with calls(self.target, self._troubles):
            results = self._reader("read_committed").consume(1000, POLL_SECONDS)
        wrong = [
            result for result in results if result.error() is not None and result.error().name() != "_PARTITION_EOF"
        ]
        self._troubles += [each.error().str() for each in wrong]
        return [result for result in results if result not in wrong]

    def _end(self, topic: str, number: int = 0) -> int:
        """Return the offset behind the last message of a partition, committed or not.

        Raises:
            ConnectionLost: the broker does not know the partition, which does not mean that it is empty.
        """
        end = _patiently(self.target, lambda: self._known_end(topic, number), lambda end: end is not None)
        if end is None:
            raise ConnectionLost(self.target.brokers, f"it does not know {topic}/{number}")
        return end

    def _known_end(self, topic: str, number: int) -> int | None:
        from confluent_kafka import KafkaException, TopicPartition

        with calls(self.target, self._troubles):
            try:
                # Of a reader of committed messages it would be the first open transaction.
                reader = self._reader("read_uncommitted")
                return int(reader.get_watermark_offsets(TopicPartition(topic, number), self.target.seconds)[1])
            except KafkaException as error:
                if _code(error) in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"):
                    return None
                raise

    def _all_partitions(self, topic: str, partitions_min: int) -> list[int]:
        """Return the partitions of a topic; none of one that is unknown for so long that it was dropped."""
        numbers = _patiently(
            self.target, lambda: self._partitions(topic), lambda numbers: len(numbers) >= max(partitions_min, 1)
        )
        if 0 < len(numbers) < partitions_min:
            text = f"topic {topic} has {len(numbers)} of its {partitions_min} partitions"
            raise ConnectionLost(self.target.brokers, f"{text}: a broker that has just started may learn of the others")
        return numbers

    def _partitions(self, topic: str) -> list[int]:
        with calls(self.target, self._troubles):
            metadata = self._reader("read_uncommitted").list_topics(timeout=self.target.seconds).topics.get(topic)
        return sorted(metadata.partitions) if metadata is not None and metadata.error is None else []

    def _reader(self, isolation: str) -> Consumer:
        from confluent_kafka import Consumer

        if isolation not in self._readers:
            own_properties = {"isolation.level": isolation, "group.id": self.target.name, "enable.auto.commit": False}
            # What is asked for is there already: a broker need not wait for more of it.
            own_properties |= {"enable.partition.eof": True, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 20}
            self._readers[isolation] = _client_of(
                Consumer, self.target, {**self.target.properties, **own_properties}, self._troubles
            )
        return self._readers[isolation]


def _patiently(target: KafkaTarget, get: Callable[[], T], is_whole: Callable[[T], bool]) -> T:
    """Return the broker's answer as soon as it is whole, or the last one after `target.seconds`.

    A broker that has just started does not know all topics and partitions yet.
    """
    until = time.monotonic() + target.seconds
    while not is_whole(answer := get()) and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
    return answer


class TopicState(NamedTuple):
    """A topic with events of a publication.

    Attributes:
        id: by which Kafka tells it from one of the same name that is made later; "" if the broker does not say.
        collections: "scope.collection" of its events.
    """

    id: str = ""
    collections: tuple[str, ...] = ()

    @classmethod
    def read(cls, recorded: Any) -> dict[str, TopicState]:
        """Return topics as `PublicationState.text` writes them; earlier versions wrote names alone."""
        if isinstance(recorded, list):
            return {name: cls() for name in recorded}
        return {name: cls(id_, tuple(collections)) for name, (id_, collections) in recorded.items()}


@dataclass(frozen=True)
class PublicationState:
    """The state of a publication, as Kafka has it.

    Attributes:
        record: how far it is.
        shape: options that can't change.
        topics: the topics that have its events, by name.
        reads: by vbucket, the seqno up to which the first read of all documents goes.
        marked: when the last mark was written, in seconds since 1970, and the number of marks.
    """

    record: LedgerRecord
    shape: Mapping[str, Any] = field(default_factory=dict)
    topics: Mapping[str, TopicState] = field(default_factory=dict)
    reads: Mapping[str, int] = field(default_factory=dict)
    marked: tuple[float, int] = (0.0, 0)

    @classmethod
    def read(cls, recorded: bytes) -> PublicationState:
        """Read what `text` wrote.

        Raises:
            PublishRefused: a later version wrote it.
        """
        content = json.loads(zlib.decompress(recorded))
        if content["format"] != FORMAT:
            raise PublishRefused(
                "kafka", f"positions are of format {content['format']}, and this version writes {FORMAT}"
            )
        record = LedgerRecord(content["bucket"], content["end"], content["batch"])
        return cls(
            record, content["shape"], TopicState.read(content["topics"]), content["reads"], tuple(content["marked"])
        )

    def text(self) -> bytes:
        """Return it as a message's value."""
        record = {"format": FORMAT, "bucket": self.record.bucket, "end": self.record.end, "batch": self.record.batch}
        fields = {"shape": self.shape, "topics": self.topics, "reads": self.reads, "marked": self.marked}
        return zlib.compress(json.dumps(record | fields, sort_keys=True).encode(), 1)


@dataclass(frozen=True)
class Mark:
    """A place of a publication: how far it was, and the ends of its topics then.

    Attributes:
        batch: the number of batches.
        seqnos: by vbucket, the seqno up to which the changes were published; those left out were at 0.
        ends: topic -> partition -> offset.
    """

    batch: int
    seqnos: Mapping[str, int]
    ends: Mapping[str, Mapping[str, int]]

    def text(self) -> bytes:
        """Return it as a message's value."""
        return zlib.compress(json.dumps({"batch": self.batch, "seqnos": self.seqnos, "ends": self.ends}).encode(), 1)


def slot_of(number: int) -> int:
    """Return the slot that keeps the mark with this number (from 1 on): slot n keeps the newest mark whose number is an
    odd multiple of 2**n.
    """
    return (number & -number).bit_length() - 1


class KafkaWriter:
    """The only producer of a publication; opening it aborts an earlier process's transaction and fences that process.

    Attributes:
        openings: how often it was opened; each opening fences a producer that had taken over meanwhile.

    Raises:
        PublishRefused, ConnectionLost, OptionError: as `calls`.
    """

    def __init__(self, target: KafkaTarget) -> None:
        self.target: Final = target
        self.openings = 0
        self._troubles: list[str] = []
        self._undelivered: list[str] = []
        self._topics: set[str] = set()
        self._policies: dict[str, str] = {}
        self._batch_bytes = BATCH_BYTES
        with calls(target, self._troubles):
            self._admin = _admin_of(target, self._troubles)
            self._make(target.positions, 1, {"cleanup.policy": "compact"})
        policy = self._setting(target.positions, "cleanup.policy")
        if policy not in ("", "compact"):
            text = f"topic {target.positions} has cleanup.policy={policy}, which removes positions that are needed"
            raise PublishRefused(target.brokers, f"{text}: set it to compact, or publish under another --name")
        self._producer = self._open()

    def ensure(self, topics: Mapping[str, TopicState]) -> dict[str, TopicState]:
        """Make topics that are missing; return all of them with their present ids.

        Raises:
            PublishRefused: the broker does not let us make one, one with earlier events was dropped, or one is
                compacted although its collections have the same keys.
        """
        has = [topic for topic, noted in topics.items() if noted.id]
        ids = _patiently(self.target, lambda: self._ids(topics), lambda ids: ids.keys() >= set(has))
        for topic, noted in topics.items():
            self._check(topic, noted, ids.get(topic))
        self._make_missing(topics)
        for topic, noted in topics.items():
            self._check_shared(topic, noted.collections)
        ids |= self._ids([topic for topic in topics if topic not in ids])
        return {topic: TopicState(ids.get(topic) or noted.id, noted.collections) for topic, noted in topics.items()}

    def check_not_made_again(self, topics: Mapping[str, TopicState]) -> None:
        """Check that each topic is still the topic to which the events were sent that a rollback must undo.

        Raises:
            PublishRefused: a topic was dropped and made again: its events are gone, and offsets mean something else.
        """
        for topic, present in self._ids(topics).items():
            self._check(topic, topics[topic], present)

    def _check(self, topic: str, noted: TopicState, present: str | None) -> None:
        if topic == self.target.positions:
            raise PublishRefused(self.target.brokers, f"topic {topic} has the positions, it can't have events too")
        if noted.id and present not in ("", noted.id):
            text = f"topic {topic} was dropped{'' if present is None else ' and made again'}, with all that was in it"
            text = f"{text}: publish under another --name, which begins anew"
            raise PublishRefused(self.target.brokers, text)

    def _check_shared(self, topic: str, collections: Sequence[str]) -> None:
        if len(collections) < 2:
            return
        if topic not in self._policies:
            self._policies[topic] = self._setting(topic, "cleanup.policy")
        if "compact" in self._policies[topic]:
            text = (
                f"topic {topic} is compacted, and of the same key in {' and '.join(collections[:2])} it would keep one"
            )
            text = f"{text} document: name topics by {{scope}}.{{collection}}, or set cleanup.policy to delete"
            raise PublishRefused(self.target.brokers, text)

    def _ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the ids of topics that are there; "" for one whose id the broker does not say."""
        from confluent_kafka import KafkaException, TopicCollection

        results: dict[str, str] = {}
        if not topics:
            return results
        with calls(self.target, self._troubles):
            answers = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=self.target.seconds)
            for topic, answer in answers.items():
                try:
                    number = str(answer.result().topic_id)
                except KafkaException as error:
                    if _code(error) != "UNKNOWN_TOPIC_OR_PART":
                        raise
                else:
                    results[topic] = "" if number == _NO_ID else number
        return results

    def _make_missing(self, topics: Iterable[str]) -> None:
        for topic in sorted(set(topics) - self._topics):
            with calls(self.target, self._troubles):
                self._make(topic, self.target.partitions or -1, {})
            self._topics.add(topic)
            bound = int(self._setting(topic, "max.message.bytes") or BATCH_BYTES + OVERHEAD) - OVERHEAD
            if bound < self._batch_bytes:
                # A broker refuses a batch of messages as if it were one that long.
                self._batch_bytes = max(bound, BATCH_BYTES_MIN)
                self._producer = self._open()

    def _make(self, topic: str, partitions: int, settings: Mapping[str, str]) -> None:
        """Make a topic if it is missing."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import NewTopic

        seconds = self.target.seconds
        if topic in self._listed_topics():
            return
        new_topic = NewTopic(topic, partitions, -1, config=dict(settings))
        try:
            self._admin.create_topics([new_topic], operation_timeout=seconds, request_timeout=seconds)[topic].result()
        except KafkaException as error:
            if _code(error) == "TOPIC_ALREADY_EXISTS":
                return
            if error.args[0].retriable() or _code(error) in _AWAY:
                raise
            advice = "compacted, with 1 partition" if settings else "or let this user create it"
            text = f"topic {topic} is missing, and the broker does not make it ({error.args[0].str()})"
            raise PublishRefused(self.target.brokers, f"{text}: make it, {advice}") from None

    def _listed_topics(self) -> Any:
        from confluent_kafka import KafkaException

        try:
            return self._admin.list_topics(timeout=self.target.seconds).topics
        except KafkaException:
            self._admin.poll(0)  # the reason below
            raise

    def _setting(self, topic: str, name: str) -> str:
        """Return a setting of a topic; "" if the user may not see it.

        A broker that has just started, or of which another one has just made the topic, may not know it yet.
        """
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import ConfigResource

        place, seconds = ConfigResource(ConfigResource.Type.TOPIC, topic), self.target.seconds
        until = time.monotonic() + seconds
        with calls(self.target, self._troubles):
            while True:
                try:
                    results = self._admin.describe_configs([place], request_timeout=seconds)[place].result()
                    return str(results[name].value)
                except KafkaException as error:
                    if "AUTHORIZATION" in _code(error):
                        return ""
                    if _code(error) != "UNKNOWN_TOPIC_OR_PART" or time.monotonic() >= until:
                        raise
                    time.sleep(POLL_SECONDS)

    def publish(self, messages: Iterable[Message], noted: PublicationState, mark: Mark | None) -> None:
        """Write a batch and its record in one transaction.

        Raises:
            PublishRefused: a message is too long, or another process publishes under the same name.
            ConnectionLost: the broker did not answer. Whether the batch is in the topics shows the record that the next
                writer finds.
        """
        try:
            with calls(self.target, self._troubles):
                self._send(messages, noted, mark)
        except (PublishRefused, ConnectionLost) as error:
            # What became of each message is told by itself; the transaction's end only knows that it failed.
            self._producer.flush(1.0)
            if self._undelivered:
                raise PublishRefused(self.target.brokers, self._undelivered[0]) from error
            raise

    def close(self) -> None:
        """Drop what is not committed."""
        from confluent_kafka import KafkaException

        with suppress(KafkaException):
            self._producer.purge()
            self._producer.abort_transaction(1.0)

    def _send(self, messages: Iterable[Message], noted: PublicationState, mark: Mark | None) -> None:
        producer = self._producer
        producer.begin_transaction()
        produce = producer.produce
        for topic, key, value, headers in messages:
            try:
                produce(topic, value, key, -1, None, None, 0, headers)
            except BufferError:
                self._produce_later(topic, key, value, headers)
        if mark is not None:
            key = MARK + b"/%d" % slot_of(noted.marked[1])
            self._produce_later(self.target.positions, key, mark.text(), [])
        self._produce_later(self.target.positions, RECORD, noted.text(), [])
        failpoint("publish.sent")
        self._commit()
        failpoint("publish.committed")

    def _produce_later(self, topic: str, key: bytes, value: bytes | None, headers: list[tuple[str, bytes]]) -> None:
        """Add a message to the queue as soon as that has room."""
        until = time.monotonic() + self.target.seconds
        while True:
            try:
                self._producer.produce(topic, value, key, -1, None, None, 0, headers)
                return
            except BufferError:
                if self._producer.poll(POLL_SECONDS):
                    until = time.monotonic() + self.target.seconds
                if self._undelivered:
                    raise PublishRefused(self.target.brokers, self._undelivered[0]) from None
                if time.monotonic() >= until:
                    raise ConnectionLost(
                        self.target.brokers, _reason_with_trouble("it takes no messages", self._troubles)
                    ) from None

    def _commit(self) -> None:
        from confluent_kafka import KafkaException

        until = time.monotonic() + self.target.seconds
        while True:
            try:
                self._producer.commit_transaction(self.target.seconds)
                return
            except KafkaException as error:
                # A commit that may be repeated is the same one: it can't happen twice.
                if not error.args[0].retriable() or time.monotonic() >= until:
                    raise

    def _note_undelivered(self, error: Any, message: Any) -> None:
        if error is None:
            return
        key, size = message.key() or b"", len(message.value() or b"")
        name = key[:80].decode(errors="backslashreplace")
        if error.name() in ("MSG_SIZE_TOO_LARGE", "_MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"):
            text = f"the event of key {name!r} has {size:,} bytes, and topic {message.topic()} takes no message so long"
            self._undelivered.append(f"{text}: raise its max.message.bytes; nothing is left out, it goes on here")
        elif error.name() not in ("_PURGE_QUEUE", "_PURGE_INFLIGHT", "_FENCED", "_FATAL"):
            self._troubles.append(f"key {name!r} of topic {message.topic()}: {error.str()}")

    def _open(self) -> Producer:
        from confluent_kafka import Producer

        own_properties = {"transactional.id": self.target.name, "batch.size": self._batch_bytes}
        own_properties |= {"on_delivery": self._note_undelivered, "delivery.report.only.error": True}
        with calls(self.target, self._troubles):
            producer = _client_of(
                Producer, self.target, {**PROPERTIES, **self.target.properties, **own_properties}, self._troubles
            )
            producer.init_transactions(self.target.seconds)
        self.openings += 1
        return producer


_FENCED = ("_FENCED", "_FATAL", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH")
_FORGOTTEN = ("INVALID_PRODUCER_ID_MAPPING", "UNKNOWN_PRODUCER_ID")
"""Answers of a broker that has dropped a transactional id; librdkafka lets such a transaction be aborted."""
_AWAY = ("_TRANSPORT", "_TIMED_OUT", "_ALL_BROKERS_DOWN", "_RESOLVE", "REQUEST_TIMED_OUT", "_TIMED_OUT_QUEUE")
_FOR_GOOD = ("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "_SSL", "_INVALID_ARG", "UNSUPPORTED_SASL_MECHANISM")
_LATER = ("COORDINATOR", "CONCURRENT_TRANSACTIONS", "NOT_ENOUGH_REPLICAS")


class IdForgotten(ConnectionLost):
    """The broker has dropped a transactional id that was not in use for long. A new producer may go on with it, unless
    another process has done so meanwhile.
    """


def fenced(name: str) -> str:
    """Return the message for a publication that another producer has fenced, and that therefore ends."""
    reason = f'another process publishes under the name "{name}", or a transaction took longer than'
    return f"{reason} transaction.timeout.ms: this one ends, and nothing is there twice"


@contextmanager
def calls(target: KafkaTarget, troubles: list[str]) -> Iterator[None]:
    """Convert the library's errors.

    Raises:
        PublishRefused: Kafka refuses for good, or another process has taken over.
        ConnectionLost: it may be well a little later.
    """
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as error:
        code, text = _code(error), _reason_with_trouble(error.args[0].str(), troubles)
        if code in _FENCED or error.args[0].fatal():
            raise PublishRefused(target.brokers, fenced(target.name)) from error
        if code in _FORGOTTEN:
            text = f'it had dropped the id "{target.name}", which was not in use for transactional.id.expiration.ms'
            raise IdForgotten(target.brokers, f"{text}: a new start goes on where Kafka says") from error
        if "AUTHORIZATION" in code:
            raise PublishRefused(target.brokers, f"{text}: {_rights(target, code)}") from error
        if code in _FOR_GOOD:
            raise PublishRefused(target.brokers, text) from error
        raise ConnectionLost(target.brokers, text) from error


def _rights(target: KafkaTarget, code: str) -> str:
    if "TRANSACTIONAL_ID" in code:
        return f"the user needs Write and Describe on the transactional id {target.name}"
    return f"the user needs Read, Write and Describe on the topics {target.topic} and {target.positions}"


def _code(error: Any) -> str:
    return str(error.args[0].name())


def _reason_with_trouble(text: str, troubles: list[str]) -> str:
    """Return a reason with the last thing that went wrong below it, which it often does not name."""
    last = troubles[-1] if troubles else ""
    troubles.clear()
    return f"{text} ({last})" if last and last not in text else text


def _client_of(kind: Callable[..., T], target: KafkaTarget, properties: Mapping[str, Any], troubles: list[str]) -> T:
    """Return a client of the library.

    Raises:
        OptionError: a property is unknown to the library, or can't have its value.
    """
    from confluent_kafka import KafkaException

    def note(error: Any) -> None:
        troubles.append(error.str())

    own_properties = {"bootstrap.servers": target.brokers, "client.id": "headwater", "error_cb": note}
    try:
        return kind({**properties, **own_properties}, logger=_library)
    except KafkaException as error:
        # The text names the property and its value, which may be a secret.
        property_ = next((name for name in target.properties if name in error.args[0].str()), "")
        raise OptionError("kafka", property_, "a property of librdkafka with a value that it can have") from None


def _admin_of(target: KafkaTarget, troubles: list[str]) -> Any:
    from confluent_kafka.admin import AdminClient

    return _client_of(AdminClient, target, dict(target.properties), troubles)
