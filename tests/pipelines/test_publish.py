"""A bucket in a real Kafka: whatever dies, a reader of committed messages sees each change once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.ivy import NotFetched
from harness.kafka import Broker, open_broker
from harness.nodes import diverge
from headwater.client import connect
from headwater.errors import ConnectionLost, LedgerError, OptionError, PublishRefused
from headwater.pipelines.jobs import Publish, PublishProgress
from headwater.pipelines.kafka import KafkaPositions, KafkaTarget, KafkaWriter, PublicationState, TopicState
from headwater.pipelines.ledger import LedgerRecord
from headwater.pipelines.publish import PublishAnswer, PublishSink
from headwater.spark.offsets import Offset
from headwater.spark.planner import Range
from headwater.testing.node import Node, node
from tests.battery import few_of
from tests.client.test_made_anew import make, make_anew
from tests.client.test_made_anew import url as url_of
from tests.pipelines.buckets import create
from tests.pipelines.publications import NUMBERS, ROOT, Topic, begin, go, killed, truth, write
from tests.pipelines.support import documents, missed

kafka = pytest.importorskip("confluent_kafka", reason="the library confluent-kafka is not installed")
admin = pytest.importorskip("confluent_kafka.admin")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    try:
        with open_broker(tmp_path_factory.mktemp("kafka"), memory="256m", quick=True) as opened:
            yield opened
    except NotFetched as reason:
        pytest.skip(f"no Kafka: {reason}")


@pytest.fixture(params=["cloudevents", "plain"])
def other(running: Broker, request: pytest.FixtureRequest) -> Topic:
    """A topic whose messages are no envelopes."""
    return Topic(running, request.param)


@pytest.fixture
def topic(running: Broker) -> Topic:
    return Topic(running)


@pytest.fixture
def bucket() -> Iterator[Node]:
    with node(vbuckets=4) as opened:
        yield opened


def test_stores_overwrites_and_deletions_are_events_in_their_order_and_there_once(bucket: Node, topic: Topic) -> None:
    begin(bucket)
    assert go(bucket, topic).published == 40
    assert {event["op"] for event in topic.events()} == {"r"}
    write(bucket, "two")
    told = go(bucket, topic)
    assert (told.published, told.deleted, told.undone, told.rollbacks) == (30, 10, 0, 0)
    assert Counter(event["op"] for event in topic.events()) == {"r": 40, "u": 30, "d": 10}
    assert topic.held() == truth(bucket)
    assert topic.twice() == []
    assert go(bucket, topic).published == 0


@pytest.mark.parametrize(
    "point", few_of(["publish.read", "publish.sent", "publish.committed"], "publish.sent", "publish.committed")
)
def test_a_publication_that_is_killed_goes_on_where_kafka_says_it_was(point: str, bucket: Node, topic: Topic) -> None:
    begin(bucket)
    write(bucket, "two")
    killed(bucket, topic, point)
    assert 0 < len(topic.held()) < len(documents(bucket))
    go(bucket, topic)
    assert topic.held() == truth(bucket)
    assert topic.twice() == []


def test_what_a_failover_took_back_is_undone_and_what_it_had_overwritten_comes_back(bucket: Node, topic: Topic) -> None:
    begin(bucket)
    go(bucket, topic)

    def lost() -> None:
        write(bucket, "lost")
        go(bucket, topic)
        assert topic.held() == truth(bucket)

    for name in ("won", "again"):  # the second time the topic has lost events that were undone before
        before = len(topic.messages())
        diverge(bucket, lost=lost)
        write(bucket, name)
        told = go(bucket, topic)
        assert told.rollbacks == 4
        # The ten that were new only: the others are overwritten or deleted again on the new branch, by its own events.
        assert told.undone == 10
        assert topic.held() == truth(bucket)
        assert topic.twice() == []
        undone = [event for event in topic.events() if event["source"]["rollback"]]
        assert {event["op"] for event in undone} == {"d"} and len(topic.messages()) > before


def test_the_value_that_holds_again_is_marked_as_undoing_something(bucket: Node, topic: Topic) -> None:
    begin(bucket)
    go(bucket, topic)

    def lost() -> None:
        write(bucket, "lost")
        go(bucket, topic)

    diverge(bucket, lost=lost)
    told = go(bucket, topic)
    assert (told.published, told.deleted, told.undone) == (0, 0, 40)
    assert topic.held() == truth(bucket)
    undone = [event for event in topic.events() if event["source"]["rollback"]]
    assert Counter(event["op"] for event in undone) == {"u": 30, "d": 10}
    assert {event["after"] for event in undone if event["op"] == "u"} == {"kept"}
    headers = [dict(message.headers()) for message in topic.messages()]
    assert sum("headwater.rollback" in header for header in headers) == 50  # ten of them are tombstones
    assert go(bucket, topic).undone == 0


def test_of_the_events_of_a_document_the_last_one_in_the_topic_counts_whatever_the_clocks_said(
    bucket: Node, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the machine that published first was ahead: its events looked newer than those that were lost."""
    begin(bucket)
    with monkeypatch.context() as patch:
        patch.setattr(kafka, "Producer", AheadOfTime)
        go(bucket, topic)

    def lost() -> None:
        write(bucket, "lost")
        go(bucket, topic)

    diverge(bucket, lost=lost)
    assert go(bucket, topic).undone == 40
    assert topic.held() == truth(bucket)


class AheadOfTime(kafka.Producer):  # type: ignore[misc, name-defined]
    """A producer on a machine whose clock is ten minutes ahead."""

    def produce(self, topic: str, *rest: Any) -> None:
        *before, _, headers = rest
        super().produce(topic, *before, int((time.time() + 600) * 1000), headers)


@pytest.mark.parametrize("point", few_of(["publish.read", "publish.sent", "publish.committed"], "publish.sent"))
def test_a_publication_that_is_killed_while_it_undoes_something_undoes_it_once(
    point: str, bucket: Node, topic: Topic
) -> None:
    begin(bucket)
    go(bucket, topic)

    def lost() -> None:
        write(bucket, "lost")
        go(bucket, topic)

    diverge(bucket, lost=lost)
    killed(bucket, topic, point, times=1)
    go(bucket, topic)
    assert topic.held() == truth(bucket)
    undone = [event for event in topic.events() if event["source"]["rollback"]]
    assert len(undone) == 40


def test_in_other_formats_as_well_each_change_is_there_once_though_the_publication_is_killed(
    bucket: Node, other: Topic
) -> None:
    begin(bucket)
    write(bucket, "two")
    with bucket.client() as client:
        client.set(b"\xff", "7")
        client.set("empty", "")
    killed(bucket, other, "publish.sent")
    go(bucket, other)
    messages = {message.key(): message.value() for message in other.messages()}
    assert {key: value for key, value in messages.items() if value is not None} == documents(bucket)
    assert other.twice() == []
    with pytest.raises(LedgerError, match=rf"was made with format '{other.format}'"):
        go(bucket, other, format="debezium")


def test_in_other_formats_as_well_a_rollback_is_undone_and_marked_once_though_the_publication_is_killed(
    bucket: Node, other: Topic
) -> None:
    begin(bucket)
    go(bucket, other)

    def lost() -> None:
        write(bucket, "lost")
        go(bucket, other)

    diverge(bucket, lost=lost)
    killed(bucket, other, "publish.sent", times=1)
    go(bucket, other)
    undone = other.undone()
    assert Counter(each.value() for each in undone) == {b'"kept"': 30, None: 10}
    diverge(bucket, lost=lost)  # and once more, over events that undid something
    go(bucket, other)
    assert other.held() == truth(bucket)
    assert len(other.undone()) == 80 and go(bucket, other).undone == 0
    ids = [dict(message.headers()).get("ce_id", message.offset()) for message in other.messages()]
    assert other.format == "plain" or len(set(ids)) == len(ids)


SHAPE = {"topic": "changes", "collections": {}, "before": "false", "format": "debezium"}


def commit(sink: PublishSink) -> None:
    """Commit a batch without changes."""
    record = sink.refresh()
    sink.commit(record.digest, record.end, [])


def has(published: int) -> Callable[[PublishProgress], bool]:
    """Return a function that says whether so many documents were published."""
    return lambda told: told.published == published


def allow(topic: Topic, *operations: str) -> None:
    """Allow everybody these operations of a topic, and nothing else."""
    place = admin.ResourceType.TOPIC, topic.name, admin.ResourcePatternType.LITERAL
    client = admin.AdminClient({"bootstrap.servers": topic.broker.address})
    every = admin.AclBindingFilter(*place, None, None, admin.AclOperation.ANY, admin.AclPermissionType.ANY)
    for acl in client.delete_acls([every]).values():
        acl.result(30)
    allowed = [(operation, "User:*") for operation in operations] or [("READ", "User:nobody")]
    bindings = [
        admin.AclBinding(*place, user, "*", admin.AclOperation[each], admin.AclPermissionType.ALLOW)
        for each, user in allowed
    ]
    for acl in client.create_acls(bindings).values():
        acl.result(30)


class Running:
    """A publication in a thread, until it is stopped or ends."""

    def __init__(self, bucket: Node, topic: Topic, **more: Any) -> None:
        self.ended: BaseException | None = None
        self.told = PublishProgress()
        self._stop = threading.Event()
        asked: dict[str, Any] = {"engine": "local", "workers": 0, "interval_seconds": 0.05, "retry_seconds": 60.0}
        self._job = Publish(bucket.url, topic.url, **(asked | more), stop=self._stop.is_set, progress=self._note)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def until(self, holds: Callable[[PublishProgress], bool]) -> None:
        until = time.monotonic() + 120
        while not holds(self.told):
            assert self._thread.is_alive() and time.monotonic() < until, (self.told, self.ended)
            time.sleep(0.05)

    def stop(self) -> BaseException | None:
        self._stop.set()
        return self.join()

    def join(self) -> BaseException | None:
        self._thread.join(120)
        assert not self._thread.is_alive()
        return self.ended

    def _note(self, told: PublishProgress) -> None:
        self.told = told

    def _run(self) -> None:
        try:
            self._job.run()
        except BaseException as error:
            self.ended = error


def test_a_process_that_was_shut_out_and_opens_its_producer_anew_publishes_nothing(
    topic: Topic, tmp_path: Path
) -> None:
    """For the small batches of a topic with a bound the producer is opened again, and that shuts the other one out."""
    topic.make(**{"max.message.bytes": "100000"})
    target = replace(Publish("couchbase://127.0.0.1:1/default", topic.url).target, seconds=10.0)
    first, second = (PublishSink(target, "default", "", SHAPE, Offset().to_json()) for _ in range(2))
    record = first.refresh()
    commit(second)
    answer = PublishAnswer(str(tmp_path / "none"), [], [], {topic.name: ["_default._default"]}, {}, 0)
    Path(answer.path).touch()
    with pytest.raises(PublishRefused, match="another process publishes under the name"):
        first.commit(record.digest, record.end, [answer])
    for each in (first, second):
        each.close()


def test_a_name_that_belongs_to_another_bucket_is_refused(topic: Topic) -> None:
    target = replace(Publish("couchbase://127.0.0.1:1/default", topic.url).target, seconds=10.0)
    first = PublishSink(target, "default", "", SHAPE, Offset().to_json())
    commit(first)
    first.close()
    with pytest.raises(LedgerError, match='publishes the bucket "default", not "other": give another --name'):
        PublishSink(target, "other", "", SHAPE, Offset().to_json())


class Forgetful:
    """A reader whose broker knows neither topics nor partitions when it is asked the first `times`, as after a start.

    Args:
        partitions: of each topic, of which one less is known at first.
    """

    def __init__(self, times: int, partitions: int = 1) -> None:
        self._times, self._partitions = times, partitions

    def get_watermark_offsets(self, place: Any, timeout: float) -> tuple[int, int]:
        if self._forgets():
            raise kafka.KafkaException(kafka.KafkaError(kafka.KafkaError.UNKNOWN_TOPIC_OR_PART))
        return 0, 5

    def list_topics(self, timeout: float) -> Any:
        count = self._partitions - self._forgets()
        known = {"changes": SimpleNamespace(partitions=dict.fromkeys(range(count)), error=None)} if count else {}
        return SimpleNamespace(topics=known)

    def _forgets(self) -> bool:
        self._times -= 1
        return self._times >= 0


class Reading(KafkaPositions):
    """Positions and events that a stub reads."""

    def __init__(self, reader: Forgetful, seconds: float = 10.0) -> None:
        super().__init__(KafkaTarget("k:9092", "changes", "n", seconds=seconds), "default", {})
        self._stub, self.spans = reader, dict[Any, Any]()

    def _reader(self, isolation: str) -> Any:
        return self._stub

    def _messages(self, spans: Any) -> Iterator[Any]:
        self.spans = spans
        return iter(())


def test_positions_that_the_broker_does_not_know_for_a_moment_are_no_new_publication() -> None:
    reading = Reading(Forgetful(2))
    reading.load()
    assert reading.spans == {("n-positions", 0): (0, 5)}
    with pytest.raises(ConnectionLost, match="k:9092: it does not know n-positions/0"):
        Reading(Forgetful(1000), seconds=0.0).load()


@pytest.mark.parametrize("partitions", [1, 3])
def test_topics_and_partitions_that_the_broker_does_not_know_for_a_moment_are_read_back(partitions: int) -> None:
    had = {"changes": {str(number): 1 for number in range(partitions)}}
    reading = Reading(Forgetful(1, partitions))
    list(reading.events(["changes"], {}, had))
    assert reading.spans == {("changes", number): (0, 5) for number in range(partitions)}


def test_a_topic_that_lacks_partitions_is_not_read_back_without_them() -> None:
    had = {"changes": {str(number): 1 for number in range(3)}}
    with pytest.raises(ConnectionLost, match="topic changes has 2 of its 3 partitions"):
        list(Reading(Forgetful(1000, 3), seconds=0.0).events(["changes"], {}, had))


class Late(KafkaWriter):
    """A writer whose broker does not know a topic at first."""

    def __init__(self) -> None:
        self.target = KafkaTarget("k:9092", "changes", "n")  # type: ignore[misc]
        self._answers = iter([{}, {"changes": "id"}])

    def _ids(self, topics: Any) -> dict[str, str]:
        return next(self._answers) if topics else {}

    def _make_missing(self, topics: Any) -> None:
        pass


def test_a_topic_that_the_broker_does_not_know_for_a_moment_is_not_taken_for_dropped() -> None:
    noted = {"changes": TopicState("id", ("_default._default",))}
    assert Late().ensure(noted) == noted


class Kept:
    """Positions whose topics have such messages."""

    def __init__(self, *messages: Any) -> None:
        self._messages = messages

    def load(self) -> PublicationState:
        return PublicationState(LedgerRecord("default", {}, 0), topics={"changes": TopicState()})

    def marks(self) -> list[Any]:
        return []

    def events(self, *wanted: Any) -> Iterator[Any]:
        return iter(self._messages)


def message(partition: int, at: int, **headers: str) -> Any:
    """Return a message of the document `a`."""
    fields = {"name": "n", "vbucket": "1", "op": "u", **headers}
    written = [(f"headwater.{name}", value.encode()) for name, value in fields.items()]
    return SimpleNamespace(
        headers=lambda: written,
        key=lambda: b"a",
        topic=lambda: "changes",
        partition=lambda: partition,
        timestamp=lambda: (1, at),
    )


def doubted(monkeypatch: pytest.MonkeyPatch, *messages: Any) -> dict[Any, Any]:
    """Return what is in doubt after vbucket 1 returned to seqno 80."""
    monkeypatch.setattr("headwater.pipelines.publish.KafkaPositions", lambda *_: Kept(*messages))
    target = KafkaTarget("k:9092", "changes", "n")
    sink = PublishSink(target, "default", "", SHAPE, Offset().to_json(), writes=False)
    return sink._doubted([Range(1, 7, 80, 100, 100, rollback=True)])[1]


def test_where_a_topic_got_partitions_no_clock_says_which_event_of_a_document_is_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clock of the machine that published the earlier event was ahead."""
    before, lost = message(0, 9000, seqno="50", op="d"), message(1, 10, seqno="90")
    for order in ((before, lost), (lost, before)):
        ((last,),) = (doubted(monkeypatch, *order).values(),)
        assert last.seqno == 90 and not last.is_deletion


def test_a_message_of_others_that_has_our_name_alone_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doubted(monkeypatch, message(0, 10)) == {}


@pytest.fixture
def begun(bucket: Node, topic: Topic) -> Iterator[Callable[[], Running]]:
    """Begins publications, which are stopped at the test's end."""
    running: list[Running] = []

    def one_more() -> Running:
        running.append(Running(bucket, topic))
        return running[-1]

    yield one_more
    for each in running:
        each.stop()


def test_of_two_processes_the_first_is_shut_out_and_nothing_is_there_twice(
    bucket: Node, topic: Topic, begun: Callable[[], Running]
) -> None:
    begin(bucket)
    first = begun()
    first.until(lambda told: told.published == 40)
    write(bucket, "two")
    second = begun()
    second.until(lambda told: bool(told.batches))
    write(bucket, "three")
    ended = first.join()
    assert isinstance(ended, PublishRefused) and "another process publishes under the name" in str(ended)
    second.until(lambda told: topic.held() == truth(bucket))
    assert second.stop() is None
    assert topic.twice() == []


def test_a_broker_that_is_killed_is_waited_for(bucket: Node, topic: Topic, begun: Callable[[], Running]) -> None:
    begin(bucket)
    running = begun()
    running.until(lambda told: told.published == 40)
    topic.broker.kill()
    write(bucket, "two")
    running.until(lambda told: bool(told.problem))
    topic.broker.start()
    running.until(lambda told: told.deleted >= 10 and not told.problem)
    assert running.stop() is None
    assert topic.held() == truth(bucket)
    assert topic.twice() == []


def test_documents_whose_deletions_were_purged_unread_are_deleted(bucket: Node, topic: Topic) -> None:
    begin(bucket)
    go(bucket, topic)
    assert missed(bucket)
    told = go(bucket, topic)
    assert told.data_loss and told.undone == 30
    assert topic.held().keys() == documents(bucket).keys()
    assert topic.twice() == []


def test_a_message_that_is_too_long_is_named_and_published_once_the_topic_takes_it(bucket: Node, topic: Topic) -> None:
    topic.make(**{"max.message.bytes": "20000"})
    begin(bucket)
    go(bucket, topic)
    with bucket.client() as client:
        # A batch of small ones is no message that is too long.
        client.set_many((f"b{i}", json.dumps(os.urandom(100).hex())) for i in range(400))
        client.set("long", json.dumps(os.urandom(40_000).hex()))
    for _ in range(2):
        with pytest.raises(PublishRefused, match=f"'long' has 80,.* bytes, and topic {topic.name} takes no") as refused:
            go(bucket, topic)
        assert str(refused.value).count("\n") == 0
    assert len(topic.held()) == 40
    topic.set("max.message.bytes", "200000")
    go(bucket, topic)
    assert topic.held() == truth(bucket)
    assert topic.twice() == []


def test_the_messages_of_an_attempt_that_failed_do_not_stay_on_the_disk(
    bucket: Node, topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt reads the batch again: where a topic lacks a replica for a night, they would fill the disk."""
    begin(bucket)
    publish, there = KafkaWriter.publish, list[int]()

    def late(writer: KafkaWriter, *batch: Any) -> None:
        there.append(len(list(tmp_path.rglob("*.messages"))))
        if len(there) < 3:
            raise ConnectionLost(topic.broker.address, "not enough replicas")
        publish(writer, *batch)

    monkeypatch.setattr(KafkaWriter, "publish", late)
    assert go(bucket, topic, staging=tmp_path, retry_seconds=60.0).published == 40
    assert there[:3] == there[:1] * 3


def test_positions_that_kafka_would_forget_are_refused(bucket: Node, topic: Topic) -> None:
    Topic(topic.broker).make()
    positions = Topic(topic.broker)
    positions.name = f"mine{topic.name}-positions"
    positions.make(**{"cleanup.policy": "delete"})
    with pytest.raises(PublishRefused, match=r"has cleanup.policy=delete.*: set it to compact"):
        go(bucket, topic, name=f"mine{topic.name}")


@pytest.mark.parametrize("again", [True, False])
def test_a_topic_that_was_dropped_with_its_events_is_named_and_nothing_is_sent(
    again: bool, bucket: Node, topic: Topic
) -> None:
    """Between a mark and a rollback: the mark's offsets are those of another topic."""
    begin(bucket)
    go(bucket, topic)

    def lost() -> None:
        write(bucket, "lost")
        go(bucket, topic)

    diverge(bucket, lost=lost)
    topic.drop()
    if again:
        topic.make()
    else:
        with bucket.client() as client:
            client.set("new", "1")
    said = f"topic {topic.name} was dropped{' and made again' if again else ''}, with all that was in it: publish under"
    for _ in range(2):
        with pytest.raises(PublishRefused, match=said):
            go(bucket, topic)
    if again:
        assert topic.messages() == []
    go(bucket, topic, name=f"other{topic.name}")
    assert topic.held() == truth(bucket)


def test_a_compacted_topic_that_would_keep_one_document_of_two_collections_is_refused(
    bucket: Node, topic: Topic
) -> None:
    topic.make(**{"cleanup.policy": "compact"})
    create(bucket, "shop.carts", "shop.orders")
    with bucket.client() as client:
        client.collection("shop.carts").set("a", "1")
    go(bucket, topic, scope="shop")
    with bucket.client() as client:
        client.collection("shop.orders").set("a", "2")
    said = f"topic {topic.name} is compacted, and of the same key in shop.carts and shop.orders it would keep one"
    with pytest.raises(PublishRefused, match=said):
        go(bucket, topic, scope="shop")
    topic.set("cleanup.policy", "delete")
    go(bucket, topic, scope="shop")
    assert [message.value() is None for message in topic.messages()] == [False, False]


def test_a_collection_that_is_dropped_and_made_again_goes_on_in_its_topic(bucket: Node, topic: Topic) -> None:
    topic.name = f"{topic.name}.carts"
    url = f"{topic.url.removesuffix('carts')}{{collection}}"
    asked: dict[str, Any] = {"engine": "local", "workers": 0, "once": True, "retry_seconds": 0.0, "scope": "shop"}
    create(bucket, "shop.carts", "shop.orders")
    for number in ("1", "2"):
        with bucket.client() as client:
            client.collection("shop.carts").set("a", number)
            client.collection("shop.carts").set(f"only{number}", "0")
        Publish(bucket.url, url, **asked).run()
        create(bucket, *(["shop.carts"] if number == "1" else []), drop=["shop.carts"])
        assert Publish(bucket.url, url, **asked).run().published == 0

    def lost() -> None:
        with bucket.client() as client:
            client.collection("shop.orders").set("b", "3")
        Publish(bucket.url, url, **asked).run()

    diverge(bucket, lost=lost)
    # Where a collection is gone nobody has deletions to send, after a failover neither.
    told = Publish(bucket.url, url, **asked).run()
    assert (told.rollbacks, told.undone) == (1, 1)
    assert [event["after"] for event in topic.events() if event["source"]["key"] == "a"] == [1, 2]
    assert len(topic.events()) == 4


@pytest.mark.parametrize("new_branch", [True, False])
def test_a_document_of_a_collection_made_anew_is_the_one_that_had_its_name(
    new_branch: bool, bucket: Node, running: Broker
) -> None:
    """The collection has another id by then, on the new branch or on the lost one; topic and key are the same."""
    topic = Topic(running, "plain")
    create(bucket, "shop.carts")

    def store(value: str) -> None:
        with bucket.client() as client:
            client.collection("shop.carts").set("a", value)

    def lost() -> None:
        if not new_branch:
            create(bucket, "shop.carts", drop=["shop.carts"])
        store("2")
        go(bucket, topic, scope="shop")
        assert topic.held() == {b"a": 2}

    if not new_branch:
        store("1")
    go(bucket, topic, scope="shop")
    diverge(bucket, lost=lost)
    if new_branch:
        create(bucket, "shop.carts", drop=["shop.carts"])
        store("1")
    go(bucket, topic, scope="shop")
    assert topic.held() == {b"a": 1}


def test_a_document_of_a_bucket_made_anew_with_more_vbuckets_is_the_last_event_of_its_key(
    bucket: Node, topic: Topic
) -> None:
    """Half of them have another vbucket: the events that undo the old one's come before the new one's, not behind."""
    asked: dict[str, Any] = {"engine": "local", "workers": 0, "once": True, "retry_seconds": 0.0}
    make(bucket, 4)
    for vbuckets, word, number in ((4, "old", 40), (8, "new", 30)):
        if vbuckets > 4:
            make_anew(bucket, vbuckets)
        with connect(url_of(bucket)) as client:
            assert client.set_many((f"a{i}", json.dumps(word)) for i in range(number)) == {}
        Publish(url_of(bucket), topic.url, **asked).run()
    assert topic.held() == {f"a{i}".encode(): "new" for i in range(30)}


def test_other_options_than_it_was_made_with_are_refused(bucket: Node, topic: Topic) -> None:
    begin(bucket)
    go(bucket, topic, name=topic.name)
    with pytest.raises(LedgerError, match=r"was made with .*: give the same options, or another --name"):
        go(bucket, topic, name=topic.name, reading={"collections": "all"})
    assert len(topic.messages()) == 40


def test_a_broker_that_is_not_there_and_a_property_that_is_none_are_named_in_a_line(bucket: Node) -> None:
    asked: dict[str, Any] = {"engine": "local", "workers": 0, "once": True, "retry_seconds": 0.0}
    with pytest.raises(ConnectionLost, match=r"^127.0.0.1:1: .*127.0.0.1:1.*refused") as away:
        Publish(bucket.url, "kafka://127.0.0.1:1/changes", **asked).run()
    assert str(away.value).count("\n") == 0
    with pytest.raises(OptionError, match=r'option "kafka": "sasl.pasword" is not a property of librdkafka'):
        Publish(bucket.url, "kafka://127.0.0.1:1/changes", **asked, kafka={"sasl.pasword": "secret"}).run()


def test_each_collection_has_its_topic_and_the_same_key_in_two_is_two_documents(bucket: Node, running: Broker) -> None:
    create(bucket, "shop.carts", "shop.orders")
    topics = {name: Topic(running) for name in ("carts", "orders")}
    prefix = f"by{next(NUMBERS)}"
    for name, topic in topics.items():
        topic.name = f"{prefix}.default.shop.{name}"
    with bucket.client() as client:
        for name in topics:
            client.collection(f"shop.{name}").set("a", json.dumps(name))
    url = f"kafka://{running.address}/{prefix}.{{bucket}}.{{scope}}.{{collection}}"
    asked: dict[str, Any] = {"engine": "local", "workers": 0, "once": True, "retry_seconds": 0.0}
    Publish(bucket.url, url, **asked, scope="shop", partitions=3).run()
    for name, topic in topics.items():
        assert topic.held() == {b"a": name}
        assert [event["source"]["collection"] for event in topic.events()] == [name]
        assert (
            len(
                admin.AdminClient({"bootstrap.servers": running.address})
                .list_topics(topic.name)
                .topics[topic.name]
                .partitions
            )
            == 3
        )


def test_from_latest_begins_with_what_is_written_then(bucket: Node, topic: Topic) -> None:
    begin(bucket)
    assert go(bucket, topic, since="latest").published == 0
    with bucket.client() as client:
        client.set("new", "1")
    assert go(bucket, topic, since="latest").published == 1
    assert topic.held() == {b"new": 1} and topic.events()[0]["op"] == "c"


def test_with_a_history_each_version_comes_with_the_one_that_it_replaced(topic: Topic) -> None:
    with node(vbuckets=2) as bucket:
        with bucket.client() as client:
            for value in ("1", "2", "3"):
                client.set("a", value)
            client.delete("a")
        go(bucket, topic, before=True)
    told = [(event["op"], event["before"], event["after"]) for event in topic.events()]
    assert told == [("c", None, 1), ("u", 1, 2), ("u", 2, 3), ("d", 3, None)]


def test_the_commands_of_the_guide(bucket: Node, topic: Topic, tmp_path: Path) -> None:
    begin(bucket)
    (tmp_path / "kafka.properties").write_text("# kafka.properties\nsecurity.protocol=PLAINTEXT\n")
    line = [sys.executable, "-m", "headwater", "publish", bucket.url, "--to", topic.url, "--engine", "local", "--once"]
    line += ["--kafka-file", str(tmp_path / "kafka.properties"), "--kafka", "linger.ms=5", "--partitions", "1"]
    for told in ("40 published and 0 deleted", "nothing to do: the topic has all changes of the bucket"):
        done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, check=True, timeout=240)
        assert told in done.stdout + done.stderr
    assert topic.held() == truth(bucket)


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that knows rights, and drops transactional ids that rest for two seconds, as others do for a week."""
    settings = {
        "transactional.id.expiration.ms": "2000",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    try:
        place = tmp_path_factory.mktemp("strict")
        with open_broker(place, memory="256m", quick=True, settings=settings) as opened:
            yield opened
    except NotFetched as reason:
        pytest.skip(f"no Kafka: {reason}")


def test_a_publication_that_rested_so_long_that_the_broker_dropped_its_id_goes_on(bucket: Node, strict: Broker) -> None:
    topic = Topic(strict)
    begin(bucket)
    running = Running(bucket, topic, name=topic.name)
    try:
        running.until(lambda told: told.published == 40)
        for number in count():
            time.sleep(3.0)  # the broker's clock
            with bucket.client() as client:
                client.set(f"late{number}", "1")
            running.until(has(41 + number))
            if running.told.retries:
                break
    finally:
        running.stop()
    assert running.ended is None
    assert topic.held() == truth(bucket)
    assert topic.twice() == []


def test_of_two_processes_whose_id_the_broker_dropped_the_one_that_others_overtook_ends(
    bucket: Node, strict: Broker
) -> None:
    topic = Topic(strict)
    begin(bucket)
    sinks = []
    for _ in range(2):
        target = replace(Publish(bucket.url, topic.url).target, seconds=10.0)
        sinks.append(PublishSink(target, "default", "", SHAPE, Offset().to_json()))
        commit(sinks[-1])
    time.sleep(4.0)  # the broker's clock
    with pytest.raises(PublishRefused, match="another process publishes under the name"):
        commit(sinks[0])
    for sink in sinks:
        sink.close()


def test_rights_that_are_taken_meanwhile_are_named_and_the_publication_goes_on_when_they_are_back(
    bucket: Node, strict: Broker
) -> None:
    topic = Topic(strict)
    begin(bucket)
    go(bucket, topic)
    write(bucket, "two")
    for operations in (("READ", "DESCRIBE", "DESCRIBE_CONFIGS"), ()):
        allow(topic, *operations)
        said = rf"opic authorization failed.*: the user needs Read, Write and Describe on the topics {topic.name} and"
        with pytest.raises(PublishRefused, match=said) as refused:
            go(bucket, topic)
        assert str(refused.value).count("\n") == 0
    allow(topic, "READ", "DESCRIBE", "DESCRIBE_CONFIGS", "WRITE")
    go(bucket, topic)
    assert topic.held() == truth(bucket)
    assert topic.twice() == []


@pytest.mark.spark
def test_spark_publishes_through_a_failover(spark: Any, bucket: Node, topic: Topic) -> None:
    begin(bucket)
    assert go(bucket, topic, engine="spark", spark=spark).published == 40

    def lost() -> None:
        write(bucket, "lost")
        go(bucket, topic, engine="spark", spark=spark)

    diverge(bucket, lost=lost)
    told = go(bucket, topic, engine="spark", spark=spark)
    assert (told.rollbacks, told.undone) == (4, 40)
    assert topic.held() == truth(bucket)
    assert topic.twice() == []
