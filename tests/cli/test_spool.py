"""The documents that count, when a bucket changed while it was read."""

from pathlib import Path
from typing import Any

from headwater import testing
from headwater.cli.spool import Spool, read_into


def test_what_changed_while_it_was_read_counts_once(tmp_path: Path) -> None:
    """Batches of several snapshots: a later one may replace or delete what came in the first."""
    with testing.node(vbuckets=4) as node, node.client() as bucket, Spool((tmp_path / "spool").open("w+b")) as spool:
        bucket.set_many({"kept": "1", "replaced": "1", "deleted": "1"})
        drain = bucket.batches(max_wait_seconds=0.2)
        with drain:
            seen = 0
            while seen < 3:
                seen += spool_some(spool, next(drain))
            bucket.set("replaced", "2")
            bucket.delete("deleted")
            while seen < 5:
                seen += spool_some(spool, next(drain))
        read_into(spool, iter(()), lambda reached: None)
        kept = {row["key"]: row["value"] for batch in spool.batches() for row in batch.to_pylist()}
        assert (kept, sum(map(len, spool.batches()))) == ({b"kept": b"1", b"replaced": b"2"}, 2)


def test_a_batch_may_have_no_document_at_all(tmp_path: Path) -> None:
    with testing.node(vbuckets=4) as node, node.client() as bucket, Spool((tmp_path / "spool").open("w+b")) as spool:
        with bucket.batches(max_wait_seconds=0.2) as drain:
            for change in (
                lambda: bucket.set("deleted", "1"),
                lambda: bucket.delete("deleted"),
                lambda: bucket.set("kept", "1"),
            ):
                change()
                while not spool_some(spool, next(drain)):
                    pass
        read_into(spool, iter(()), lambda reached: None)
        assert [key for batch in spool.batches() for key in batch.column("key").to_pylist()] == [b"kept"]


def spool_some(spool: Any, batch: Any) -> int:
    spool.add(batch)
    return sum(key.as_py() in (b"kept", b"replaced", b"deleted") for key in batch.records.column("key")) if batch else 0


def test_only_keys_with_the_prefix_are_kept(tmp_path: Path) -> None:
    with testing.node(vbuckets=4) as node, node.client() as bucket:
        bucket.set_many({"a:1": "1", "a:2": "2", "b:1": "3"})
        told: list[int] = []
        with Spool((tmp_path / "spool").open("w+b"), b"a:") as spool, bucket.batches(until="now") as batches:
            read_into(spool, batches, told.append)
            assert {key for batch in spool.batches() for key in batch.column("key").to_pylist()} == {b"a:1", b"a:2"}
        assert told[-1] == spool.reached == 3
