"""The mirror against a real node: whatever happens to the bucket, the table is what the bucket is."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from headwater.pipelines.mirror import MirrorFailed, Progress, mirror
from headwater.testing.node import Node, node
from tests.client.moving import cluster
from tests.node.replication.support import leave, put
from tests.spark.histories import diverge

pytestmark = pytest.mark.spark

LEVEL_SECONDS = 60.0


@pytest.fixture
def bucket() -> Iterator[Node]:
    with node(vbuckets=4) as running:
        yield running


def table(path: Path, *columns: str) -> dict[Any, Any]:
    """The table's rows by key, read with delta-rs: not the code that wrote them."""
    rows = DeltaTable(path).to_pyarrow_table(columns=["key", *(columns or ("value",))]).to_pylist()
    return {row.pop("key"): row if columns else row["value"] for row in rows}


def documents(bucket: Node) -> dict[bytes, bytes]:
    """What the node holds, told by its own history."""
    held: dict[bytes, bytes] = {}
    with bucket.client() as client, client.changes(until="now") as changes:
        for change in changes:
            if type(change).__name__ == "Mutation":
                held[change.key] = change.value
            elif type(change).__name__ in ("Deletion", "Expiration"):
                held.pop(change.key, None)
    return held


def seqnos(bucket: Node) -> int:
    with bucket.client() as client:
        return sum(client.seqnos().values())


def change(bucket: Node, name: str) -> None:
    """Overwrite some of `a`, remove some of it, and add some of one's own."""
    with bucket.client() as client:
        assert client.set_many((f"a{i}", name.encode()) for i in range(20)) == {}
        assert client.delete_many([f"a{i}" for i in range(20, 40)]) == {}
        assert client.set_many((f"{name}{i}", b"new") for i in range(30)) == {}


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
    log = DeltaTable(tmp_path / "t_changes").to_pyarrow_table().to_pylist()
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
        self.told, self._stop = Progress(), threading.Event()
        self.failure: BaseException | None = None
        arguments = {"interval_seconds": 0.2, "progress": self._note, "stop": self._stop.is_set, **options}
        self._thread = threading.Thread(target=self._run, args=(spark, url, to), kwargs=arguments)
        self._thread.start()

    def _run(self, *arguments: Any, **options: Any) -> None:
        try:
            mirror(*arguments, **options)
        except BaseException as failure:
            self.failure = failure

    def _note(self, told: Progress) -> None:
        self.told = told

    def wait_until_level(self, bucket: Node) -> None:
        wanted, deadline = seqnos(bucket), time.monotonic() + LEVEL_SECONDS
        while self.told.changes != wanted:
            assert self.failure is None and time.monotonic() < deadline, (self.failure, self.told, wanted)
            self._stop.wait(0.05)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(LEVEL_SECONDS)
        assert self.failure is None


def test_a_running_mirror_goes_back_no_further_than_it_must(spark: Any, bucket: Node, tmp_path: Path) -> None:
    with bucket.client() as client:
        client.set_many((f"a{i}", b"kept") for i in range(60))
    running = Running(spark, bucket.url, tmp_path / "t", changelog=True)
    try:
        running.wait_until_level(bucket)

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
    log = DeltaTable(tmp_path / "t_changes").to_pyarrow_table().to_pylist()
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
        # The last batch is in the tables, and Spark's note of it is lost; meanwhile the node has moved on.
        for note in (tmp_path / "t" / "_checkpoint" / "commits").glob("*1*"):
            note.unlink()
        client.set("k31", b"x")
    mirror(spark, bucket.url, tmp_path / "t", once=True, changelog=True)
    assert table(tmp_path / "t") == documents(bucket)
    log = DeltaTable(tmp_path / "t_changes").to_pyarrow_table().to_pylist()
    assert len({(row["vbucket"], row["vb_uuid"], row["seqno"]) for row in log}) == len(log) == 61


def test_json_documents_become_columns(spark: Any, bucket: Node, tmp_path: Path) -> None:
    with bucket.client() as client:
        client.set("f:1", b'{"carrier": "UA", "distance": 1400, "seqno": 3}')
        client.set("f:2", b'{"carrier": "AA", "stops": ["ORD", "LAX"]}')
        client.set("f:3", b"no json")
        mirror(spark, bucket.url, tmp_path / "t", once=True, json=True)
        client.set("f:1", b'{"carrier": "UA", "delay": 7.5}')
        client.set("f:4", b'{"carrier": "DL", "distance": "far"}')
        told = mirror(spark, bucket.url, tmp_path / "t", once=True, json=True)
    held = table(tmp_path / "t", "carrier", "distance", "stops", "delay", "doc_seqno")
    nothing = {"carrier": None, "distance": None, "stops": None, "delay": None, "doc_seqno": None}
    assert held["f:1"] == nothing | {"carrier": "UA", "delay": 7.5}
    assert held["f:2"] == nothing | {"carrier": "AA", "stops": ["ORD", "LAX"]}
    assert held["f:3"] == nothing
    assert held["f:4"] == nothing | {"carrier": "DL"}
    assert told.conflicts == ["distance: bigint in the table, string in documents"]


def test_a_table_without_its_checkpoint_is_refused(spark: Any, bucket: Node, tmp_path: Path) -> None:
    with bucket.client() as client:
        client.set("k", b"v")
    mirror(spark, bucket.url, tmp_path / "t", once=True)
    shutil.rmtree(tmp_path / "t" / "_checkpoint")
    with pytest.raises(MirrorFailed, match="its _checkpoint is gone"):
        mirror(spark, bucket.url, tmp_path / "t", once=True)


def test_the_reason_of_a_failure_is_one_line(spark: Any, tmp_path: Path) -> None:
    nowhere = "couchbase://127.0.0.1:1/default"
    with pytest.raises(MirrorFailed) as failed:
        mirror(spark, nowhere, tmp_path / "t", once=True, options={"retrySeconds": "0"})
    assert "127.0.0.1:1" in str(failed.value)
    assert "\n" not in str(failed.value)


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
