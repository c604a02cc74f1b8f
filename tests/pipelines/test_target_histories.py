"""The histories of a copy's target, at a real node that is put back to where a replica was."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from harness.nodes import keep, return_to
from headwater.pipelines.beside import FileBeside
from headwater.pipelines.target_histories import FILE, TargetHistories
from headwater.spark.settings import parse
from headwater.testing.node import Node, node
from tests.pipelines.buckets import create


@contextmanager
def looked_at(bucket: Node, place: Path) -> Iterator[TargetHistories]:
    """As a copy that was started again looks at its target."""
    settings = parse({"url": bucket.url, "retrySeconds": "5"})
    with closing(TargetHistories(settings, FileBeside(place, FILE))) as there:
        yield there


def lost(bucket: Node, place: Path) -> list[int]:
    with looked_at(bucket, place) as there:
        return there.lost()


def note(bucket: Node, place: Path) -> None:
    with looked_at(bucket, place) as there:
        there.lost()
        assert there.note()


def write(bucket: Node, name: str, *, into: str = "_default._default") -> set[int]:
    """Write three documents; return their vbuckets."""
    with bucket.client() as client:
        keys = [f"{name}{i}" for i in range(3)]
        assert client.collection(into).set_many((key, "v") for key in keys) == {}
        return set(map(client.vbucket_of, keys))


def test_what_a_failover_took_back_is_noticed_by_the_next_look_and_by_the_next_run(tmp_path: Path) -> None:
    with node(vbuckets=8) as bucket:
        create(bucket, "shop.orders")
        write(bucket, "before")
        assert lost(bucket, tmp_path) == []  # of what was there before the copy nothing is known
        note(bucket, tmp_path)
        kept = keep(bucket)
        assert lost(bucket, tmp_path) == []  # a restart that lost nothing
        gone = write(bucket, "lost") | write(bucket, "far", into="shop.orders")
        note(bucket, tmp_path)
        bucket.kill()
        bucket.restart()
        assert lost(bucket, tmp_path) == []  # a crash takes nothing back that was answered
        with looked_at(bucket, tmp_path) as there:
            there.lost()
            return_to(bucket, kept, vbuckets=8)
            assert not there.note()  # nobody knows what of a batch it has
            assert there.lost() == sorted(gone)
        assert lost(bucket, tmp_path) == sorted(gone)
        note(bucket, tmp_path)
        assert lost(bucket, tmp_path) == []


def test_what_was_forced_is_remembered_and_a_note_that_was_cut_takes_all_for_lost(tmp_path: Path) -> None:
    with node(vbuckets=4) as bucket:
        write(bucket, "k")
        with looked_at(bucket, tmp_path) as there:
            there.lost()
            there.forced |= {3, 1}
            there.note()
        with looked_at(bucket, tmp_path) as there:
            assert there.lost() == [] and there.forced == {1, 3}
        path = tmp_path / FILE
        path.write_bytes(path.read_bytes()[:-9])
        assert lost(bucket, tmp_path) == [0, 1, 2, 3]


def test_a_vbucket_without_a_node_behind_a_batch_is_in_doubt_until_it_is_back(tmp_path: Path) -> None:
    with node(vbuckets=4) as bucket:
        write(bucket, "k")
        with looked_at(bucket, tmp_path) as there, bucket.client() as client:
            there.lost()
            client.set_vbucket_state(2, "replica")
            there.note()
            assert there.lost() == []
            there.note()
            client.set_vbucket_state(2, "active")
            assert there.lost() == [2]
            there.note()
            assert there.lost() == []


def test_a_bucket_that_was_made_anew_has_nothing_of_it(tmp_path: Path) -> None:
    with node(vbuckets=4) as bucket:
        write(bucket, "k")
        written = write(bucket, "more") | write(bucket, "k")
        note(bucket, tmp_path)
        bucket.stop()
        shutil.rmtree(bucket.data)
        bucket.restart()
        assert lost(bucket, tmp_path) == sorted(written)
