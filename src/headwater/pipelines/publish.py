"""A bucket's changes in Kafka: each is there once for readers of committed messages, whatever dies.

    node -> task: messages (envelopes.py), in a file -> driver: a transaction of messages and record (kafka.py)

A batch is planned from the record in Kafka, and the record moves in the transaction of the batch.

What a failover took back can't be taken out of a topic, so it is undone there. The topics themselves say what was
lost: the driver reads back which documents have an event of a vbucket above the seqno to which it returns. The task
reads such a vbucket from 0 and sends, for each of these documents, the version that holds again, or a deletion where
there is none; then the changes of the new branch follow. Where deletions were purged before they were read, the
documents that the topics have and the bucket has not are deleted in the same way.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import uuid4

from headwater.errors import LedgerError, PublishRefused, TableChanged
from headwater.failpoints import failpoint
from headwater.pipelines.attempts import patience
from headwater.pipelines.envelopes import DELETE, ChangedDocument, Envelopes, HeaderNames, Identity
from headwater.pipelines.formats import FORMATS
from headwater.pipelines.job import follow_into
from headwater.pipelines.jobs import Publish, PublishProgress
from headwater.pipelines.kafka import (
    CALL_SECONDS,
    MARK_SECONDS,
    IdForgotten,
    KafkaPositions,
    KafkaTarget,
    KafkaWriter,
    Mark,
    Message,
    PublicationState,
    TopicState,
    fenced,
)
from headwater.pipelines.ledger import LedgerRecord
from headwater.pipelines.tasks import advanced, reached_rows, whole
from headwater.protocol.dcp.position import Position
from headwater.spark.offsets import Offset, hex_uuid
from headwater.spark.planner import Range, pack, ranges
from headwater.spark.reader import further, read
from headwater.spark.settings import SourceSettings

CHUNK = 1000
"""Messages that lie in a task's file as one piece."""
_STAGED = "headwater-publish-"


class Published(NamedTuple):
    """The last event that the topics have of a document.

    Attributes:
        seqno: the seqno of the change; of a deletion that undid something, where the vbucket returned to.
        is_deletion: True if readers know the document as deleted.
        collection_id: that of the collection which had the name then.
    """

    seqno: int
    is_deletion: bool
    topic: str
    collection_id: int = 0

    @classmethod
    def of(cls, message: Any, fields: Mapping[str, bytes], names: HeaderNames) -> Published:
        """Return a message's event; `fields` are its headers, which have such names."""
        id_ = int(fields.get(names.collection_id, 0))
        return cls(int(fields[names.seqno]), fields[names.op] == DELETE, message.topic(), id_)

    def union(self, other: Published) -> Published:
        """Return what may be the last event of a document if this or another one is."""
        return self._replace(seqno=max(self.seqno, other.seqno), is_deletion=self.is_deletion and other.is_deletion)


@dataclass(frozen=True)
class PublishTask:
    """The work of one task; travels to it pickled.

    Args:
        staging: the folder of files with messages.
        settings: the settings of the source, with the nodes that the planner knows.
        parts: ranges to read.
        had: by vbucket, the position up to which all changes are published.
        maker: makes messages of changes.
        doubted: by vbucket that is to be set right, the documents that may have to be.
    """

    staging: str
    settings: SourceSettings
    parts: tuple[Range, ...]
    had: Mapping[int, Position]
    maker: Envelopes
    doubted: Mapping[int, Mapping[Identity, Published]] = field(default_factory=dict)

    def answer(self) -> bytes:
        """Read changes and write their messages to a file; return the result as JSON."""
        path = Path(self.staging) / f"{uuid4().hex}.messages"
        work = _Messages(self)
        with path.open("wb") as file:
            for chunk in _chunks(work.all()):
                pickle.dump(chunk, file, pickle.HIGHEST_PROTOCOL)
        failpoint("publish.read")
        return json.dumps({"path": str(path), **work.result()}).encode()


class _Messages:
    """The messages of a task as they are made, with counts."""

    def __init__(self, task: PublishTask) -> None:
        self._task = task
        self._unread_vbuckets: set[int] = set()
        self._positions_reached = further(task.settings)
        self._standing: dict[int, int] = dict.fromkeys(task.doubted, 0)
        self._repairs = {part.vbucket: _Repair(task, part) for part in task.parts if part.vbucket in task.doubted}
        self._counts = dict.fromkeys(("published", "deleted", "undone"), 0)
        self._topics: dict[str, set[str]] = {}

    def all(self) -> Iterator[Message]:
        """Yield the messages, those of a vbucket in the order of its history."""
        task = self._task
        parts = [whole(part) if part.vbucket in self._repairs else replace(part, rollback=False) for part in task.parts]
        batches = read(
            task.settings,
            task.maker.columns,
            parts,
            unread=self._unread_vbuckets,
            reached=self._positions_reached,
            had=task.had,
            kept_seqnos=self._standing,
        )
        for batch in batches:
            for change in task.maker.changes(batch):
                repair = self._repairs.get(change.vbucket)
                if repair is not None:
                    if repair.holds(change, self._standing[change.vbucket]):
                        continue
                    yield from self._undone(repair, repair.returned())
                kind = "deleted" if change.is_deletion else "published"
                yield from self._noted(kind, change, task.maker.messages(change))
        for vb, repair in self._repairs.items():
            yield from self._undone(repair, (*repair.returned(), *repair.gone(self._standing[vb])))

    def result(self) -> dict[str, Any]:
        """Return the answer of the task, without its file."""
        return {
            "unread": sorted(self._unread_vbuckets),
            "reached": reached_rows(self._positions_reached),
            "topics": {topic: sorted(names) for topic, names in self._topics.items()},
            "counts": self._counts,
            "rollbacks": sum(part.rollback for part in self._task.parts),
        }

    def _undone(self, repair: _Repair, changes: Iterable[tuple[ChangedDocument, str]]) -> Iterator[Message]:
        for change, topic in changes:
            yield from self._noted("undone", change, self._task.maker.messages(change, repair.to, topic))

    def _noted(self, kind: str, change: ChangedDocument, messages: list[Message]) -> list[Message]:
        self._counts[kind] += 1
        self._topics.setdefault(messages[0][0], set()).add(f"{change.scope}.{change.collection}")
        return messages


class _Repair:
    """Finds what holds of the documents of a vbucket of which changes were lost, while the vbucket is read from 0.

    Args:
        part: the vbucket's range as it was planned.

    Attributes:
        to: the seqno to which the vbucket returned.
    """

    def __init__(self, task: PublishTask, part: Range) -> None:
        self.to: Final = part.start_seqno
        self._part = part
        self._doubted = task.doubted[part.vbucket]
        self._states: dict[Identity, ChangedDocument] = {}
        self._changed_later: set[Identity] = set()
        self._seqno_max = 0
        self._returned = False

    def holds(self, change: ChangedDocument, seqno_max: int) -> bool:
        """Return True if a change is published and was not taken back; note it if its document is in doubt.

        Args:
            seqno_max: the seqno up to which the published history still stands.
        """
        self._seqno_max = seqno_max
        doubted = change.identity in self._doubted
        if change.seqno > seqno_max:
            if doubted:
                self._changed_later.add(change.identity)
            return False
        if doubted:
            self._states[change.identity] = change
        return True

    def returned(self) -> Iterator[tuple[ChangedDocument, str]]:
        """Yield the versions that hold again, once, before the first change of the new branch."""
        if self._returned:
            return
        self._returned = True
        for identity, change in self._states.items():
            last = self._doubted[identity]
            if last.seqno > self._seqno_max and not (last.is_deletion and change.is_deletion):
                yield change._replace(before=None), last.topic

    def gone(self, seqno_max: int) -> Iterator[tuple[ChangedDocument, str]]:
        """Yield a deletion for each document in doubt that the bucket no longer has.

        A document whose last event was not taken back counts only if purged deletions were the reason for the repair.
        """
        for identity, last in self._doubted.items():
            is_lost = last.seqno > seqno_max or self._part.purged > 0
            if (
                is_lost
                and not last.is_deletion
                and identity not in self._states
                and identity not in self._changed_later
            ):
                yield self._deletion(identity, last), last.topic

    def _deletion(self, identity: Identity, last: Published) -> ChangedDocument:
        scope, collection, key = identity
        uuid = hex_uuid(self._part.vb_uuid)
        return ChangedDocument(
            self._part.vbucket,
            self.to,
            uuid,
            "deletion",
            key,
            None,
            0,
            0,
            0,
            0,
            None,
            last.collection_id,
            scope,
            collection,
        )


def _chunks(messages: Iterable[Message]) -> Iterator[list[Message]]:
    chunk: list[Message] = []
    for message in messages:
        chunk.append(message)
        if len(chunk) >= CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def staged(path: str) -> Iterator[Message]:
    """Yield the messages of a task, from its file, which only our own tasks write.

    Raises:
        LedgerError: this process does not see the file.
    """
    try:
        file = Path(path).open("rb")  # noqa: SIM115 -- closed below
    except FileNotFoundError:
        text = "a task wrote its messages there, and this process does not see them: --staging is a folder that all see"
        raise LedgerError(path, text) from None
    with file:
        while True:
            try:
                chunk: list[Message] = pickle.load(file)  # noqa: S301
            except EOFError:
                return
            yield from chunk


@dataclass(frozen=True)
class PublishAnswer:
    """The result of a task.

    Attributes:
        path: the file with its messages.
        unread: vbuckets that could not be read as planned.
        reached: (vbucket, vb uuid, seqno) of vbuckets that were read further than planned.
        topics: where the messages go, and whose they are: topic -> collections.
        counts: events by kind.
        rollbacks: vbuckets that rolled back.
    """

    path: str
    unread: list[int]
    reached: list[list[int]]
    topics: dict[str, list[str]]
    counts: dict[str, int]
    rollbacks: int


@dataclass(frozen=True)
class PublishOpening:
    """A publication in a form that travels to the process that plans; see `PublishSink`."""

    target: KafkaTarget
    bucket: str
    staging: str
    shape: Mapping[str, Any]
    beginning: Mapping[str, Any]

    def open(self) -> PublishSink:
        """Return the publication, without a producer: it plans and reads, and the driver writes."""
        return PublishSink(self.target, self.bucket, self.staging, self.shape, self.beginning, writes=False)


class PublishSink:
    """A publication as the engines update it.

    Args:
        target: where it is.
        bucket: the bucket of the changes.
        staging: a folder for the messages of a batch.
        shape: options that can't change: `topic`, `collections`, `before` and `format`.
        beginning: the offset of a new publication.
        writes: True to shut out whoever else publishes under this name.

    Raises:
        PublishRefused, ConnectionLost: as `KafkaWriter`.
        LedgerError: the publication was made with another shape, or of another bucket.
    """

    def __init__(
        self,
        target: KafkaTarget,
        bucket: str,
        staging: str,
        shape: Mapping[str, Any],
        beginning: Mapping[str, Any],
        *,
        writes: bool = True,
    ) -> None:
        self._target, self._bucket, self._staging = target, bucket, staging
        self._shape, self._beginning = shape, beginning
        # The order counts: what was read before others are shut out could be older than what they commit.
        self._writer = KafkaWriter(target) if writes else None
        self._positions = KafkaPositions(target, bucket, beginning)
        self._noted = self._positions.load()
        self._check()

    @property
    def place(self) -> str:
        """The address of the topic."""
        return self._target.url

    def opening(self) -> PublishOpening:
        """Return the opening by which another process plans for the same publication."""
        return PublishOpening(self._target, self._bucket, self._staging, self._shape, self._beginning)

    def refresh(self) -> LedgerRecord:
        """Return the record. Where this process writes it is known: nobody else can commit."""
        if self._writer is None:
            self._noted = self._positions.load()
        return self._noted.record

    def begun(self) -> None:
        """Return None: a batch has no effect before its commit."""

    def tasks(self, end: Mapping[str, Any], settings: SourceSettings, count: int) -> list[PublishTask]:
        """Return the tasks of the batch that ends at `end`."""
        record_offset = Offset.from_json(self.refresh().end)
        parts = ranges(record_offset, Offset.from_json(end))
        maker = self._format(
            self._target.name,
            self._bucket,
            self._target,
            settings.chooses,
            settings.before,
            {int(vb): seqno for vb, seqno in self._reads(end).items()},
            self._noted.record.batch,
        )
        doubted = self._doubted([part for part in parts if part.rollback])
        return [
            PublishTask(
                self._staging,
                settings,
                tuple(group),
                {part.vbucket: record_offset.position(part.vbucket) for part in group},
                maker,
                {part.vbucket: doubted[part.vbucket] for part in group if doubted.get(part.vbucket)},
            )
            for group in _packed(parts, count)
        ]

    def read(self, answer: bytes) -> PublishAnswer:
        """Read a task's answer."""
        return PublishAnswer(**json.loads(answer))

    def commit(
        self,
        after: str,
        end: Mapping[str, Any],
        answers: Sequence[PublishAnswer],
        transaction: tuple[str, int] | None = None,
    ) -> LedgerRecord:
        """Add a batch to the topics: messages and record in one transaction.

        Raises:
            TableChanged: it was planned from another record, or from another history than a node has by now.
            PublishRefused, ConnectionLost: as `KafkaWriter.publish`.
        """
        try:
            return self._commit(after, end, answers)
        finally:
            # Of a batch that is not in the topics as well: the next attempt reads it again.
            for answer in answers:
                Path(answer.path).unlink(missing_ok=True)

    def _commit(self, after: str, end: Mapping[str, Any], answers: Sequence[PublishAnswer]) -> LedgerRecord:
        if self._writer is None:
            raise TypeError("this process plans, it does not write")
        if any(answer.unread for answer in answers):
            raise TableChanged(self.place, "vbuckets have another history than the batch was planned for")
        record = self._noted.record
        if record.digest != after:
            message = f"it is at batch {record.batch} by now and this one was planned from another place"
            raise TableChanged(self.place, message)
        if any(answer.rollbacks for answer in answers):
            self._writer.check_not_made_again(self._noted.topics)
        openings = self._writer.openings
        topics = {**self._noted.topics, **self._writer.ensure(_gathered(self._noted.topics, answers))}
        if self._writer.openings > openings:
            # Opened anew, the producer is let in again, though another process may have shut this one out before.
            self._check_alone()
        mark = self._mark()
        end_reached = advanced(end, [place for answer in answers for place in answer.reached])
        noted = PublicationState(
            LedgerRecord(self._bucket, end_reached, record.batch + 1),
            self._shape,
            topics,
            _unfinished(self._reads(end), end_reached),
            self._noted.marked if mark is None else (time.time(), self._noted.marked[1] + 1),
        )
        try:
            self._writer.publish((message for answer in answers for message in staged(answer.path)), noted, mark)
        except IdForgotten:
            self._check_alone()
            raise
        self._noted = noted
        return noted.record

    def _check_alone(self) -> None:
        """Raise PublishRefused if somebody else has published since: who opens a producer is shut out by nobody, and a
        broker that has forgotten both shuts nobody out.
        """
        if self._positions.load().record != self._noted.record:
            raise PublishRefused(self._target.brokers, fenced(self._target.name))

    def count(self, progress: PublishProgress, answers: Sequence[PublishAnswer]) -> None:
        """Add a committed batch to the job's progress."""
        for answer in answers:
            progress.rollbacks += answer.rollbacks
            for kind, count in answer.counts.items():
                setattr(progress, kind, getattr(progress, kind) + count)

    def close(self) -> None:
        """Close the connections; what is not committed is dropped."""
        self._positions.close()
        if self._writer is not None:
            self._writer.close()

    def _check(self) -> None:
        bucket = self._noted.record.bucket
        if bucket != self._bucket:
            text = f'publishes the bucket "{bucket}", not "{self._bucket}": give another --name, which begins anew'
            raise LedgerError(self.place, f'the publication "{self._target.name}" {text}')
        recorded_shape = {"format": "debezium", **self._noted.shape}
        if self._noted.record.batch and recorded_shape != dict(self._shape):
            names = [
                name for name in {*recorded_shape, *self._shape} if recorded_shape.get(name) != self._shape.get(name)
            ]
            text = ", ".join(f"{name} {recorded_shape.get(name)!r}" for name in sorted(names))
            advice = "give the same options, or another --name, which begins anew"
            raise LedgerError(self.place, f'the publication "{self._target.name}" was made with {text}: {advice}')

    def _reads(self, end: Mapping[str, Any]) -> Mapping[str, int]:
        """Return how far documents are read and not watched: in the first batch, up to the end that its plan saw."""
        start = Offset.from_json(self._noted.record.end)
        if self._noted.record.batch or start.latest:
            return self._noted.reads
        places = Offset.from_json(end).positions.items()
        return {str(vb): at.snapshot_end for vb, at in places if not start.position(vb).seqno}

    def _mark(self) -> Mark | None:
        """Return how far the topics are before the batch; None if the last mark is new enough."""
        if time.time() - self._noted.marked[0] < MARK_SECONDS:
            return None
        record = self._noted.record
        positions = Offset.from_json(record.end).positions
        seqnos = {str(vb): place.seqno for vb, place in positions.items()}
        return Mark(record.batch, seqnos, self._positions.ends(self._noted.topics))

    def _doubted(self, parts: Sequence[Range]) -> dict[int, dict[Identity, Published]]:
        """Return, by vbucket, the documents with an event above the place to which the vbucket returns."""
        if not parts:
            return {}
        offsets: Mapping[str, Mapping[str, int]] = {}
        marks = self._positions.marks()
        for mark in marks:
            # Whatever the topics had of a document then, its change was not above these seqnos.
            if all(mark.seqnos.get(str(part.vbucket), 0) <= part.start_seqno for part in parts):
                offsets = mark.ends
                break
        names = self._format.NAMES
        required = {names.vbucket, names.seqno, names.op}
        floors = {part.vbucket: part.start_seqno for part in parts}
        # A partition is read in its order, whatever the clocks of producers said.
        results: dict[int, dict[tuple[Identity, int], Published]] = {vb: {} for vb in floors}
        for message in self._positions.events(self._noted.topics, offsets, marks[0].ends if marks else {}):
            fields = dict(message.headers() or ())
            # Others may write into the topic, too, and a program that copies messages takes a part of the headers.
            is_ours = fields.get(names.name) == self._name and required <= fields.keys()
            if is_ours and (vb := int(fields[names.vbucket])) in results:
                identity = _identity(fields.get(names.collection, b""), message.key())
                results[vb][identity, message.partition()] = Published.of(message, fields, names)
        return {vb: _documents_above(by_partition, floors[vb]) for vb, by_partition in results.items()}

    @property
    def _format(self) -> type[Envelopes]:
        return FORMATS[self._shape["format"]]

    @property
    def _name(self) -> bytes:
        return self._target.name.encode()


def _packed(parts: Sequence[Range], count: int) -> list[Sequence[Range]]:
    """Pack ranges for tasks, `count` for those that roll back and as many for the others behind them.

    In a bucket that was made anew with more vbuckets a document may have another vbucket than before. Its deletion,
    which undoes what the old one had, goes before what the new one has, for the last event of a key is what holds.
    """
    parts_of = {rolls_back: [part for part in parts if part.rollback is rolls_back] for rolls_back in (True, False)}
    return [group for part in parts_of.values() for group in pack(part, count)]


def _identity(collection: bytes, key: bytes) -> Identity:
    """Return a document's identity; publications without chosen collections name none."""
    scope, _, name = (collection.decode() or "_default._default").partition(".")
    return scope, name, key


def _documents_above(by_partition: Mapping[tuple[Identity, int], Published], floor: int) -> dict[Identity, Published]:
    """Return the documents of which the last event of a partition is above a seqno.

    A document has events in two partitions only if its topic got more of them. Which one is newer nobody can say, for
    clocks of producers may be wrong: it is set right once too often rather than not at all.
    """
    results: dict[Identity, Published] = {}
    for (identity, _), last in by_partition.items():
        before = results.get(identity)
        results[identity] = last if before is None else last.union(before)
    return {identity: last for identity, last in results.items() if last.seqno > floor}


def _gathered(noted: Mapping[str, TopicState], answers: Sequence[PublishAnswer]) -> dict[str, TopicState]:
    """Return the topics of a batch, each with all collections that have events there by then."""
    names: dict[str, set[str]] = {}
    for topic, collections in (place for answer in answers for place in answer.topics.items()):
        collections_before = noted.get(topic, TopicState()).collections
        names.setdefault(topic, set(collections_before)).update(collections)
    return {
        topic: TopicState(noted.get(topic, TopicState()).id, tuple(sorted(names[topic]))) for topic in sorted(names)
    }


def _unfinished(reads: Mapping[str, int], end: Mapping[str, Any]) -> dict[str, int]:
    """Return the entries of vbuckets that are not past them."""
    places = Offset.from_json(end)
    return {vb: seqno for vb, seqno in reads.items() if places.position(int(vb)).seqno < seqno}


def _staging_of(place: str | Path | None) -> str:
    """Make a folder for this run's messages, and remove those of processes that were killed."""
    parent = Path(place or tempfile.gettempdir()).absolute()
    parent.mkdir(parents=True, exist_ok=True)
    for folder in parent.glob(f"{_STAGED}{os.uname().nodename}-*"):
        number = folder.name.removeprefix(f"{_STAGED}{os.uname().nodename}-").partition("-")[0]
        if number.isdecimal() and not Path(f"/proc/{number}").exists() and Path("/proc/self").exists():
            shutil.rmtree(folder, ignore_errors=True)
    return tempfile.mkdtemp(prefix=f"{_STAGED}{os.uname().nodename}-{os.getpid()}-", dir=parent)


def work(job: Publish) -> PublishProgress:
    """Publish a bucket's changes in Kafka, until `job.stop` returns True; return the last progress.

    Raises:
        OptionError: an option is wrong.
        LedgerError: the publication was made with other options.
        PublishRefused: Kafka refuses for good, or another process publishes under the same name.
        HeadwaterError: a failure that does not pass; the next run continues from the record in Kafka.
    """
    import confluent_kafka  # noqa: F401 -- missing, it is named before anything begins

    options = job.source_options()
    seconds = max(min(CALL_SECONDS, patience(job.retry_seconds, once=job.once)), 5.0)
    target = replace(job.target, seconds=seconds)
    choice = {name: options[name] for name in ("collections", "scope") if name in options}
    shape = {"topic": target.topic, "collections": choice, "before": options.get("before", "false")}
    shape["format"] = job.format
    sinks: list[PublishSink] = []

    def sink() -> PublishSink:
        while sinks:
            sinks.pop().close()
        sinks.append(PublishSink(target, job.bucket, staging, shape, job.beginning()))
        return sinks[0]

    staging = _staging_of(job.staging)
    try:
        return follow_into(job, sink)
    finally:
        while sinks:
            sinks.pop().close()
        shutil.rmtree(staging, ignore_errors=True)
