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
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from harness.ivy import NotFetched
from harness.kafka import Broker, committed, open_broker
from harness.nodes import diverge
from headwater.errors import ConnectionLost, LedgerError, OptionError, PublishRefused
from headwater.pipelines.jobs import Publish, PublishProgress
from headwater.pipelines.kafka import KafkaWriter
from headwater.testing.node import Node, node
from tests.battery import few_of
from tests.pipelines.buckets import create
from tests.pipelines.support import documents, missed

kafka = pytest.importorskip("confluent_kafka", reason="the library confluent-kafka is not installed")
admin = pytest.importorskip("confluent_kafka.admin")
ROOT = Path(__file__).parents[2]
NUMBERS = count()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    try:
        with open_broker(tmp_path_factory.mktemp("kafka"), memory="256m", quick=True) as opened:
            yield opened
    except NotFetched as reason:
        pytest.skip(f"no Kafka: {reason}")


class Topic:
    """A topic of a broker, and what readers of committed messages have of it."""

    def __init__(self, running: Broker) -> None:
        self.broker, self.name = running, f"changes{next(NUMBERS)}"

    @property
    def url(self) -> str:
        return f"kafka://{self.broker.address}/{self.name}"

    def messages(self) -> list[Any]:
        return committed(self.broker.address, self.name)

    def events(self) -> list[dict[str, Any]]:
        """The envelopes, each partition in its order."""
        return [json.loads(each.value()) for each in self.messages() if each.value() is not None]

    def held(self) -> dict[bytes, Any]:
        """The documents that a reader of the topic has at its end; each deletion comes with its tombstone."""
        held: dict[bytes, Any] = {}
        for each in self.messages():
            value = None if each.value() is None else json.loads(each.value())
            if value is None:
                assert each.key() not in held
            elif value["op"] == "d":
                held.pop(each.key(), None)
            else:
                held[each.key()] = value["after"]
        return held

    def twice(self) -> list[Any]:
        """Changes that are there more than once."""
        places = Counter(
            (told["headwater.vbucket"], told["headwater.vb_uuid"], told["headwater.seqno"], told["headwater.op"], what)
            for each in self.messages()
            if "headwater.rollback" not in (told := dict(each.headers()))
            for what in [each.value() is None]
        )
        return [place for place, times in places.items() if times > 1]

    def make(self, **settings: str) -> None:
        client = admin.AdminClient({"bootstrap.servers": self.broker.address})
        client.create_topics([admin.NewTopic(self.name, 2, 1, config=settings)])[self.name].result(30)

    def set(self, name: str, value: str) -> None:
        client = admin.AdminClient({"bootstrap.servers": self.broker.address})
        place = admin.ConfigResource(admin.ConfigResource.Type.TOPIC, self.name)
        place.add_incremental_config(admin.ConfigEntry(name, value, incremental_operation=admin.AlterConfigOpType.SET))
        client.incremental_alter_configs([place])[place].result(30)


@pytest.fixture
def topic(running: Broker) -> Topic:
    return Topic(running)


@pytest.fixture
def bucket() -> Iterator[Node]:
    with node(vbuckets=4) as opened:
        yield opened


def go(bucket: Node, topic: Topic, **more: Any) -> PublishProgress:
    asked: dict[str, Any] = {"engine": "local", "workers": 0, "once": True, "retry_seconds": 0.0}
    return Publish(bucket.url, topic.url, **(asked | more)).run()


def write(bucket: Node, name: str) -> None:
    """Overwrite some documents, remove some, add some."""
    with bucket.client() as client:
        assert client.set_many((f"a{i}", json.dumps(f"{name} over")) for i in range(20)) == {}
        client.delete_many([f"a{i}" for i in range(20, 30)])
        assert client.set_many((f"{name}{i}", json.dumps(f"{name} new")) for i in range(10)) == {}


def begin(bucket: Node) -> None:
    with bucket.client() as client:
        assert client.set_many((f"a{i}", '"kept"') for i in range(40)) == {}


def truth(bucket: Node) -> dict[bytes, Any]:
    return {key: json.loads(value) for key, value in documents(bucket).items()}


SCRIPT = """
import sys
from headwater import failpoints
from headwater.pipelines.jobs import Publish
failpoints.arm(sys.argv[3])
Publish(sys.argv[1], sys.argv[2], engine="local", workers=0, once=True, reading={"maxChangesPerTrigger": "10"}).run()
"""


def killed(bucket: Node, topic: Topic, point: str, times: int = 2) -> None:
    line = [sys.executable, "-c", SCRIPT, bucket.url, topic.url, f"{point}=kill@{times}"]
    assert subprocess.run(line, cwd=ROOT, env=os.environ, check=False, timeout=240).returncode == -9


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
    headers = [dict(each.headers()) for each in topic.messages()]
    assert sum("headwater.rollback" in each for each in headers) == 50  # ten of them are tombstones
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


class AheadOfTime(kafka.Producer):  # type: ignore[misc]
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
    for name, each in topics.items():
        each.name = f"{prefix}.default.shop.{name}"
    with bucket.client() as client:
        for name in topics:
            client.collection(f"shop.{name}").set("a", json.dumps(name))
    url = f"kafka://{running.address}/{prefix}.{{bucket}}.{{scope}}.{{collection}}"
    asked: dict[str, Any] = {"engine": "local", "workers": 0, "once": True, "retry_seconds": 0.0}
    Publish(bucket.url, url, **asked, scope="shop", partitions=3).run()
    for name, each in topics.items():
        assert each.held() == {b"a": name}
        assert [event["source"]["collection"] for event in each.events()] == [name]
        assert (
            len(
                admin.AdminClient({"bootstrap.servers": running.address})
                .list_topics(each.name)
                .topics[each.name]
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
