"""A cache that is kept honest, inside a real Spark, between real nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from harness.nodes import diverge
from headwater.errors import HeadwaterError, OptionError
from headwater.pipelines.invalidate import CacheTarget, deleted
from headwater.pipelines.jobs import Invalidation, InvalidationProgress
from headwater.spark.settings import parse
from headwater.testing.node import Node, node
from tests.pipelines.buckets import create
from tests.pipelines.support import documents


@pytest.fixture
def pair() -> Iterator[tuple[Node, Node]]:
    with node(vbuckets=4) as bucket, node(vbuckets=4) as cache:
        yield bucket, cache


def go(spark: Any, pair: tuple[Node, Node], place: Path, **more: Any) -> InvalidationProgress:
    asked: dict[str, Any] = {"once": True, "retry_seconds": 0.0, "templates": ["user:{key}"]} | more
    return Invalidation(pair[0].url, pair[1].url, place / "checkpoint", spark=spark, **asked).run()


def fill(cache: Node, *keys: str) -> None:
    with cache.client() as client:
        assert client.set_many((key, "cached") for key in keys) == {}


@pytest.mark.battery
@pytest.mark.spark
def test_no_change_is_left_out_when_the_cache_dies_and_nothing_else_is_deleted(
    spark: Any, pair: tuple[Node, Node], tmp_path: Path
) -> None:
    bucket, cache = pair
    go(spark, pair, tmp_path)
    with bucket.client() as client:
        client.set_many((f"k{i}", "v") for i in range(100))
        client.delete("k5")
    fill(cache, "k1", *(f"user:k{i}" for i in range(120)))
    cache.kill()
    with pytest.raises(HeadwaterError, match=str(cache.port)):
        go(spark, pair, tmp_path)
    cache.restart()
    told = go(spark, pair, tmp_path)
    assert (told.asked, told.there, told.rollbacks) == (101, 100, 0) or told.asked == told.there == 100
    assert set(documents(cache)) == {b"k1", *(b"user:k%d" % i for i in range(100, 120))}


@pytest.mark.spark
def test_after_a_failover_all_keys_of_the_vbucket_are_deleted(
    spark: Any, pair: tuple[Node, Node], tmp_path: Path
) -> None:
    bucket, cache = pair

    def lost() -> None:
        with bucket.client() as client:
            client.set_many((f"k{i}", "lost") for i in range(20))
        go(spark, pair, tmp_path)
        fill(cache, *(f"user:k{i}" for i in range(40)))  # some of it was read from the lost branch

    with bucket.client() as client:
        client.set_many((f"k{i}", "v") for i in range(40))
    diverge(bucket, lost=lost)
    assert go(spark, pair, tmp_path).rollbacks == 4
    assert documents(cache) == {}


PLACES = {"seqno": [4, 5], "snapshot_end": [9, 9]}


def test_a_task_deletes_what_its_rows_name_and_counts(pair: tuple[Node, Node]) -> None:
    bucket, cache = pair
    fill(cache, "a:page", "b:page", "other")
    batch = pa.RecordBatch.from_pydict(
        {"vbucket": [0, 1], "event": ["mutation", "deletion"], "key": [b"a", b"never"], **PLACES},
    )
    target = CacheTarget(cache.url, None, None, (b"{key}:page",), 5.0)
    told = deleted(parse({"url": bucket.url}), target, [batch])
    assert told == {"changes": 2, "asked": 2, "there": 1, "rollbacks": 0, "data_loss": []}
    assert set(documents(cache)) == {b"b:page", b"other"}


def test_a_template_names_collections_and_a_lost_branch_is_dealt_with_in_each(pair: tuple[Node, Node]) -> None:
    bucket, cache = pair
    create(bucket, "shop.orders", "shop.carts")
    with bucket.client() as client:
        for path in ("shop.orders", "shop.carts"):
            assert client.collection(path).set_many((f"k{i}", "v") for i in range(8)) == {}
    fill(cache, "orders:a", "carts:a", "a", *(f"{name}:k{i}" for name in ("orders", "carts") for i in range(8)))
    columns = {"vbucket": [0, 1], "event": ["mutation", "mutation"], "key": [b"a", b"a"], **PLACES}
    columns |= {"scope": ["shop", None], "collection": ["orders", None]}  # the second is gone, name and all
    target = CacheTarget(cache.url, None, None, (b"{collection}:{key}",), 5.0)
    source = parse({"url": bucket.url, "collections": "shop.orders"})
    assert deleted(source, target, [pa.RecordBatch.from_pydict(columns)])["there"] == 1
    assert b"carts:a" in documents(cache) and b"a" in documents(cache) and b"orders:a" not in documents(cache)
    back = {"vbucket": [0, 1, 2, 3], "event": ["rollback"] * 4, "key": pa.nulls(4, pa.binary())}
    back |= {"seqno": [0, 0, 7, 0], "snapshot_end": [0, 12, 7, 3]}
    back |= dict.fromkeys(("scope", "collection"), pa.nulls(4, pa.string()))
    told = deleted(source, target, [pa.RecordBatch.from_pydict(back)])
    assert told == {"changes": 0, "asked": 8, "there": 8, "rollbacks": 4, "data_loss": [1, 3]}
    assert set(documents(cache)) == {b"a", b"carts:a", *(b"carts:k%d" % i for i in range(8))}


def test_a_template_with_collections_needs_a_choice_of_them(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="choose some"):
        Invalidation("couchbase://a/b", "redis://b", tmp_path, templates=["{scope}:{key}"]).run()


def test_a_run_that_would_delete_no_key_of_any_document_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="without any nothing would be deleted"):
        Invalidation("couchbase://a/b", "redis://b", tmp_path, templates=[]).run()


def test_the_password_in_a_caches_url_is_not_shown() -> None:
    assert "secret" not in repr(CacheTarget("redis://:secret@a", None, "secret", (b"{key}",), 5.0))
