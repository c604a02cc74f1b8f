"""The mirror against a real node: whatever happens to the bucket, the table is what the bucket is."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable, QueryBuilder

from harness.nodes import cluster, diverge
from headwater.errors import TableError
from headwater.lake import folds
from headwater.lake.log import TableLog
from headwater.lake.store import TableStore
from headwater.pipelines.jobs import Mirror
from headwater.pipelines.mirror import MirrorFailed, MirrorProgress, mirror
from headwater.testing.node import Node, node
from tests.guides.blocks import blocks
from tests.node.replication.support import leave, put
from tests.pipelines.support import becomes, change, documents, put_into, seqnos, table

pytestmark = pytest.mark.spark

LEVEL_SECONDS = 240.0


@pytest.fixture
def bucket() -> Iterator[Node]:
    with node(vbuckets=4) as running:
        yield running


def changes_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a change log, read with Polars."""
    found: list[dict[str, Any]] = pl.read_delta(str(path)).to_dicts()
    return found


def test_the_table_follows_the_bucket_and_the_log_has_every_change_once(
    spark: Any, bucket: Node, tmp_path: Path
) -> None:
    with bucket.client() as client:
        client.set_many((f"k{i}", b"one") for i in range(50))
        first = mirror(spark, bucket.url, tmp_path / "t", once=True, changelog=True)
        assert (first.mutations, first.deletions, first.changes) == (50, 0, sum(client.seqnos().values()))
        client.set_many((f"k{i}", b"two") for i in range(10))
        client.delete_many([f"k{i}" for i in range(40, 50)])
        bucket.kill()
    bucket.restart()  # a new branch: the log of changes is read again from a safe point, and must not grow by it
    second = mirror(spark, bucket.url, tmp_path / "t", once=True, changelog=True)
    assert (second.rollbacks, second.changes) == (0, seqnos(bucket))
    held = table(tmp_path / "t")
    assert held == documents(bucket)
    assert (len(held), held[b"k3"], held[b"k30"]) == (40, b"two", b"one")
    log = changes_of(tmp_path / "t_changes")
    assert len({(row["vbucket"], row["vb_uuid"], row["seqno"]) for row in log}) == len(log) == 70


def test_what_a_lost_branch_wrote_removed_and_overwrote_is_put_right(spark: Any, bucket: Node, tmp_path: Path) -> None:
    with bucket.client() as client:
        client.set_many((f"a{i}", b"kept") for i in range(60))

    def lost() -> None:
        change(bucket, "lost")
        mirror(spark, bucket.url, tmp_path / "t", once=True)
        assert table(tmp_path / "t") == documents(bucket)

    mirror(spark, bucket.url, tmp_path / "t", once=True)
    diverge(bucket, lost=lost)
    told = mirror(spark, bucket.url, tmp_path / "t", once=True)
    assert told.rollbacks == 4
    assert table(tmp_path / "t") == documents(bucket) == {b"a%d" % i: b"kept" for i in range(60)}


class Running:
    """A mirror in a thread."""

    def __init__(self, spark: Any, url: str, to: Path, **options: Any) -> None:
        self.told, self._stop = MirrorProgress(), threading.Event()
        self.failure: BaseException | None = None
        arguments = {"interval_seconds": 0.2, "progress": self._note, "stop": self._stop.is_set, **options}
        self._thread = threading.Thread(target=self._run, args=(spark, url, to), kwargs=arguments)
        self._thread.start()

    def _run(self, *arguments: Any, **options: Any) -> None:
        try:
            mirror(*arguments, **options)
        except BaseException as failure:
            self.failure = failure

    def _note(self, told: MirrorProgress) -> None:
        self.told = told

    def wait_until_level(self, bucket: Node) -> None:
        wanted, deadline = seqnos(bucket), time.monotonic() + LEVEL_SECONDS
        while self.told.changes != wanted:
            assert self.failure is None and time.monotonic() < deadline, (self.failure, self.told, wanted)
            self._stop.wait(0.05)

    def wait_until_settled(self) -> None:
        """Wait for the commit by which a mirror without changes says that it has everything."""
        batch, deadline = self.told.batch, time.monotonic() + LEVEL_SECONDS
        while self.told.batch == batch:
            assert self.failure is None and time.monotonic() < deadline, (self.failure, self.told)
            self._stop.wait(0.05)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(LEVEL_SECONDS)
        assert self.failure is None


@pytest.mark.battery
def test_a_running_mirror_goes_back_no_further_than_it_must(spark: Any, bucket: Node, tmp_path: Path) -> None:
    with bucket.client() as client:
        client.set_many((f"a{i}", b"kept") for i in range(60))
    running = Running(spark, bucket.url, tmp_path / "t", changelog=True)
    try:
        running.wait_until_level(bucket)
        running.wait_until_settled()

        def lost() -> None:
            change(bucket, "lost")
            running.wait_until_level(bucket)

        diverge(bucket, lost=lost)
        change(bucket, "won")
        with bucket.client() as client:
            client.set("a59", b"later")
        running.wait_until_level(bucket)
        assert table(tmp_path / "t") == documents(bucket)
    finally:
        running.stop()
    log = changes_of(tmp_path / "t_changes")
    points = {row["vbucket"]: row["seqno"] for row in log if row["event"] == "rollback"}
    kept = {row["vbucket"]: 0 for row in log}
    for row in log:
        if row["value"] == b"kept":
            kept[row["vbucket"]] = max(kept[row["vbucket"]], row["seqno"])
    assert points == kept  # back to the end of what both histories share, and the documents of before came back


def test_a_batch_that_comes_twice_changes_nothing(spark: Any, bucket: Node, tmp_path: Path) -> None:
    with bucket.client() as client:
        client.set_many((f"k{i}", b"v") for i in range(30))
        mirror(spark, bucket.url, tmp_path / "t", once=True, changelog=True)
        client.set_many((f"k{i}", b"w") for i in range(30, 60))
        mirror(spark, bucket.url, tmp_path / "t", once=True, changelog=True)
        # The last batches are in the tables, and Spark's notes of them are lost; meanwhile the node has moved on.
        for note in (tmp_path / "t" / "_checkpoint" / "commits").glob("[1-9]*"):
            note.unlink()
        client.set("k31", b"x")
    mirror(spark, bucket.url, tmp_path / "t", once=True, changelog=True)
    assert table(tmp_path / "t") == documents(bucket)
    log = changes_of(tmp_path / "t_changes")
    assert len({(row["vbucket"], row["vb_uuid"], row["seqno"]) for row in log}) == len(log) == 61


@pytest.mark.battery
@pytest.mark.parametrize("lost", ["newest", "all"])
def test_a_checkpoint_that_is_older_than_the_table_or_gone_harms_nothing(
    lost: str, spark: Any, bucket: Node, tmp_path: Path
) -> None:
    """Spark plans a batch of a number that the table has, with another end: the table's record says where it stands."""
    with bucket.client() as client:
        client.set_many((f"k{i}", b"v") for i in range(60))
        mirror(spark, bucket.url, tmp_path / "t", once=True)
        client.set_many((f"k{i}", b"w") for i in range(30, 90))
        mirror(spark, bucket.url, tmp_path / "t", once=True)
        checkpoint = tmp_path / "t" / "_checkpoint"
        if lost == "all":
            shutil.rmtree(checkpoint)
        else:
            for kind in ("offsets", "commits"):
                for note in (checkpoint / kind).glob("[1-9]*"):
                    note.unlink()
        client.delete_many([f"k{i}" for i in range(20)])
        client.set_many((f"k{i}", b"x") for i in range(80, 100))
    mirror(spark, bucket.url, tmp_path / "t", once=True)
    assert table(tmp_path / "t") == documents(bucket)


def test_json_documents_become_columns(spark: Any, bucket: Node, tmp_path: Path) -> None:
    with bucket.client() as client:
        client.set("f:1", b'{"carrier": "UA", "distance": 1400, "seqno": 3}')
        client.set("f:2", b'{"carrier": "AA", "stops": ["ORD", "LAX"]}')
        client.set("f:3", b"no json")
        mirror(spark, bucket.url, tmp_path / "t", once=True, json=True)
        client.set("f:1", b'{"carrier": "UA", "delay": 7.5}')
        client.set("f:4", b'{"carrier": "DL", "distance": "far"}')
        told = mirror(spark, bucket.url, tmp_path / "t", once=True, json=True)
    held = table(tmp_path / "t", "carrier", "distance", "stops", "delay", "doc_seqno", "_rest")
    nothing = dict.fromkeys(("carrier", "distance", "stops", "delay", "doc_seqno", "_rest"))
    assert held["f:1"] == nothing | {"carrier": "UA", "delay": 7.5}
    assert held["f:2"] == nothing | {"carrier": "AA", "stops": ["ORD", "LAX"]}
    assert held["f:3"] == nothing
    assert held["f:4"] == nothing | {"carrier": "DL", "_rest": '{"distance": "far"}'}
    assert told.conflicts == ["distance: long in the table, string in documents"]
    for reader in (lambda: spark.read.format("delta").load(str(tmp_path / "t")).count(), lambda: sql(tmp_path / "t")):
        assert reader() == 4


@pytest.mark.battery
def test_documents_become_variant_and_what_is_no_json_is_in_quarantine(
    spark: Any, bucket: Node, tmp_path: Path
) -> None:
    """Spark reads what is written here, and this reads on where Spark has written the files anew."""
    place = str(tmp_path / "t")

    def read() -> dict[str, Any]:
        columns = "variant_get(document, '$.n', 'int') n, variant_get(document, '$.x[1]', 'double') x"
        columns += ", to_json(document) text, schema_of_variant(document) kind, document IS NULL none"
        columns += ", to_json(try_parse_json(CAST(value AS STRING))) parsed"
        return {row.key: row for row in spark.sql(f"SELECT key, {columns} FROM delta.`{place}`").collect()}

    with bucket.client() as client:
        texts = {"a": b'{"n": 1, "x": ["y", 2.5]}', "b": b"no JSON", "c": b"[1]", "d": b"null", b"\xff": b"{}"}
        client.set_many(texts.items())
        told = mirror(spark, bucket.url, place, once=True, variant=True, quarantine=True)
        assert (told.mutations, told.quarantined) == (4, 2)
        spark.sql(f"OPTIMIZE delta.`{place}`")
        client.set("a", b'{"n": 70000, "x": [null, -0.25], "z": 12345678901234567890}')
        mirror(spark, bucket.url, place, once=True, variant=True, quarantine=True)
    found = read()
    assert (found["a"].n, found["a"].x, found["a"].none) == (70000, -0.25, False)
    assert found["a"].kind == "OBJECT<n: BIGINT, x: ARRAY<DECIMAL(2,2)>, z: DECIMAL(20,0)>"
    assert (found["b"].none, found["b"].text) == (True, None)
    assert all(row.text == row.parsed for row in found.values())
    log = TableLog(TableStore(place))
    log.refresh()
    assert folds.optimize(log, None, everything=True) > 1  # among them a file of Spark's, whose column is annotated
    assert read() == found
    quarantined = spark.read.format("delta").load(f"{place}_quarantine").select("key", "reason").collect()
    assert {bytes(row.key) for row in quarantined} == {b"b", b"\xff"}


@pytest.mark.battery
def test_the_queries_of_the_guide(spark: Any, bucket: Node, tmp_path: Path) -> None:
    """The VARIANT and the history, as the page prints them but for the place."""
    with bucket.client() as client:
        for city in ("Bern", "Ulm"):
            client.set("a", json.dumps({"address": {"city": city}}))
            mirror(None, bucket.url, tmp_path / "lake/default", once=True, variant=True, changelog=True, workers=0)
    page = [block.text.replace("/srv", str(tmp_path)) for block in blocks("docs/howto/mirror.md")]
    (variant,) = (text for text in page if text.startswith("SELECT key, variant_get"))
    assert [tuple(row) for row in spark.sql(variant).collect()] == [("a", "Ulm")]
    (history,) = (text for text in page if text.startswith("from headwater.lake.history"))
    names: dict[str, Any] = {"spark": spark}
    exec(history.replace("spark.sql(", "found = spark.sql("), names)
    versions = {bytes(row.value): (row.valid_from, row.valid_to) for row in names["found"].collect()}
    assert versions == {b'{"address": {"city": "Bern"}}': (1, 2), b'{"address": {"city": "Ulm"}}': (2, None)}


@pytest.mark.battery
def test_each_collection_becomes_a_table_and_one_that_was_made_again_begins_anew(
    spark: Any, bucket: Node, tmp_path: Path
) -> None:
    becomes(bucket, 1, a=8, b=9)
    put_into(bucket, 8, "k1", "k2", value="a")
    put_into(bucket, 9, "k1", value="b")
    told = mirror(spark, bucket.url, tmp_path, scope="shop", once=True)
    assert (told.mutations, told.collection) == (3, "shop.b")
    assert table(tmp_path / "shop" / "a") == {b"k1": b"a", b"k2": b"a"}
    becomes(bucket, 2, b=9)
    becomes(bucket, 3, a=10, b=9)
    put_into(bucket, 10, "k3", value="again")
    put_into(bucket, 9, "k2", value="b")
    mirror(spark, bucket.url, tmp_path, scope="shop", dropped="drop", once=True)
    assert table(tmp_path / "shop" / "a") == {b"k3": b"again"}
    assert table(tmp_path / "shop" / "b") == {b"k1": b"b", b"k2": b"b"}


def sql(path: Path) -> int:
    """How many rows delta-rs's query engine counts."""
    counted = QueryBuilder().register("t", DeltaTable(path)).execute("SELECT count(*) AS rows FROM t").read_all()
    return int(counted["rows"][0].as_py())


@pytest.mark.battery
def test_what_spark_with_delta_does_to_the_table_does_not_disturb_the_mirror(
    spark: Any, bucket: Node, tmp_path: Path
) -> None:
    with bucket.client() as client:
        for n in range(3):
            client.set_many((f"k{i}", f"{n}".encode()) for i in range(n * 10, 60))
            mirror(spark, bucket.url, tmp_path / "t", once=True)
        place = str(tmp_path / "t")
        assert spark.read.format("delta").load(place).where("CAST(value AS STRING) = '2'").count() == 40
        spark.sql(f"OPTIMIZE delta.`{place}`")
        client.set_many((f"k{i}", b"later") for i in range(5, 25))
        mirror(spark, bucket.url, tmp_path / "t", once=True)
        assert table(tmp_path / "t") == documents(bucket)
        spark.sql(f"DELETE FROM delta.`{place}` WHERE vbucket = 3")
        client.set_many((f"k{i}", b"last") for i in range(60))
    mirror(spark, bucket.url, tmp_path / "t", once=True)
    held = {bytes(row.key): bytes(row.value) for row in spark.read.format("delta").load(place).collect()}
    assert held == table(tmp_path / "t") == documents(bucket)
    assert sql(tmp_path / "t") == len(held)


def test_the_reason_of_a_failure_is_one_line(spark: Any, tmp_path: Path) -> None:
    nowhere = "couchbase://127.0.0.1:1/default"
    with pytest.raises(MirrorFailed) as failed:
        mirror(spark, nowhere, tmp_path / "t", once=True, reading={"retrySeconds": "0"}, retry_seconds=0)
    assert "127.0.0.1:1" in str(failed.value)
    assert "\n" not in str(failed.value)


@pytest.mark.battery
def test_a_mirror_of_two_nodes_follows_a_takeover_and_undoes_what_a_failover_lost(spark: Any, tmp_path: Path) -> None:
    with cluster(2, 4) as two:
        bucket = two.nodes[0]
        with bucket.client() as client:
            assert client.set_many((f"a{i}", b"old") for i in range(60)) == {}
        mirror(spark, two.url, tmp_path / "t", once=True)
        two.take_over(0, 1)
        two.follow(1, 1)
        two.publish()
        change(bucket, "second")
        mirror(spark, two.url, tmp_path / "t", once=True)
        assert table(tmp_path / "t") == documents(bucket)
        leave(two.nodes[1], bucket.address)
        put(bucket, 1, "lost", b"v")
        assert mirror(spark, two.url, tmp_path / "t", once=True).rollbacks == 0
        assert b"lost" in table(tmp_path / "t")
        two.fail_over(1, 1)
        two.publish()
        put(two.nodes[1], 1, "new", b"v")
        assert mirror(spark, two.url, tmp_path / "t", once=True).rollbacks == 1
        held = table(tmp_path / "t")
        assert held == documents(bucket)
        assert b"new" in held and b"lost" not in held


def test_a_run_with_nothing_to_do_starts_no_spark(
    spark: Any, bucket: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: object, **named: object) -> Any:
        raise AssertionError("Spark is started")

    monkeypatch.setattr("headwater.pipelines.query.own_session", refused)
    with bucket.client() as client:
        client.set_many((f"k{i}", b"one") for i in range(5))
    with pytest.raises(AssertionError):
        Mirror(bucket.url, tmp_path / "t", once=True).run()
    done = mirror(spark, bucket.url, tmp_path / "t", once=True)
    assert (level := Mirror(bucket.url, tmp_path / "t", once=True).run()).changes == done.changes == 5
    assert level.batch == done.batch
    with bucket.client() as client:
        client.set("k0", b"two")
    with pytest.raises(AssertionError):
        Mirror(bucket.url, tmp_path / "t", once=True).run()
    with pytest.raises(TableError, match="not unfolded"):
        Mirror(bucket.url, tmp_path / "t", once=True, json=True).run()
