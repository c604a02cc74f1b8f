"""Checkpoints and whose they are: that of another job is refused by name, before anything is read or written."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.nodes import diverge
from headwater.errors import OptionError
from headwater.pipelines.caches import address
from headwater.pipelines.jobs import BucketCopy, Invalidation
from headwater.pipelines.owners import FILE, CheckpointOwner, JobEnd, bucket_end, claim
from headwater.spark.settings import parse
from headwater.testing.node import Node, node


@pytest.fixture(scope="module")
def three() -> Iterator[list[Node]]:
    with node(vbuckets=4) as first, node(vbuckets=4) as second, node(vbuckets=4) as third:
        yield [first, second, third]


def end(url: str) -> JobEnd:
    return bucket_end(parse({"url": url}), 5.0)


def elsewhere(bucket: Node) -> str:
    """The same bucket at another address."""
    return bucket.url.replace("127.0.0.1", "localhost")


def test_a_copy_with_the_checkpoint_of_another_source_or_target_is_refused(three: list[Node], tmp_path: Path) -> None:
    """A new target would lack all that was copied before; a new source's would be taken for a failover, and the
    target be made equal to it."""
    source, target, other = three
    unused: Any = object()
    claim(tmp_path, CheckpointOwner("copy", end(source.url), end(target.url)))
    with pytest.raises(OptionError, match=re.escape(f"it is of the copy from {source.url} to {target.url}. Take")):
        BucketCopy(source.url, other.url, tmp_path, spark=unused, retry_seconds=5.0).run()
    with pytest.raises(OptionError, match=r"remove job\.json in it"):
        BucketCopy(other.url, target.url, tmp_path, spark=unused, retry_seconds=5.0).run()
    claim(tmp_path, CheckpointOwner("copy", end(elsewhere(source)), end(elsewhere(target))))
    claim(tmp_path, CheckpointOwner("copy", end(source.url), end(target.url)))


def test_invalidation_with_the_checkpoint_of_another_cache_or_job_is_refused(three: list[Node], tmp_path: Path) -> None:
    source, target, _ = three
    unused: Any = object()
    claim(tmp_path / "a", CheckpointOwner("invalidate", end(source.url), JobEnd("redis://10.0.0.9:6379/0")))
    claim(tmp_path / "b", CheckpointOwner("copy", end(source.url), end(target.url)))
    for place, cache in (("a", "redis://10.0.0.9:6379/1"), ("a", "memcached://10.0.0.9:6379"), ("b", target.url)):
        with pytest.raises(OptionError, match="the checkpoint of this invalidate: it is of the"):
            Invalidation(source.url, cache, tmp_path / place, spark=unused, retry_seconds=5.0).run()


def test_a_bucket_that_failed_over_is_the_same_wherever_it_is(tmp_path: Path) -> None:
    with node(vbuckets=4) as source:
        before = end(source.url)
        claim(tmp_path, CheckpointOwner("invalidate", before, JobEnd("redis://h")))
        diverge(source, lost=lambda: None)
        claim(tmp_path, CheckpointOwner("invalidate", end(elsewhere(source)), JobEnd("redis://h")))


@pytest.mark.parametrize("which", ["source", "target"])
def test_a_bucket_that_was_made_anew_under_its_name_is_no_copys_any_more(which: str, tmp_path: Path) -> None:
    """An empty source would be taken for a failover, and the target be emptied; an empty target would stay so."""
    with node(vbuckets=4) as bucket, node(vbuckets=4) as other:
        ends = {"source": other.url, "target": other.url} | {which: bucket.url}
        claim(tmp_path / "copy", CheckpointOwner("copy", *map(end, ends.values())))
        claim(tmp_path / "cache", CheckpointOwner("invalidate", end(bucket.url), JobEnd("redis://h")))
        bucket.stop()
        shutil.rmtree(bucket.data)
        bucket.start()
        with pytest.raises(OptionError, match=re.escape(f"what is at {bucket.url} now") + ".* was made anew"):
            claim(tmp_path / "copy", CheckpointOwner("copy", *map(end, ends.values())))
        claim(tmp_path / "cache", CheckpointOwner("invalidate", end(bucket.url), JobEnd("redis://h")))


def test_a_note_that_nobody_can_read_is_refused(three: list[Node], tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"format": 1, "job": "copy"}')
    with pytest.raises(OptionError, match=r"a readable job\.json"):
        claim(tmp_path, CheckpointOwner("copy", JobEnd("a"), JobEnd("b")))
    (tmp_path / FILE).write_text('{"format": 2}')
    with pytest.raises(OptionError, match="which this version knows"):
        claim(tmp_path, CheckpointOwner("copy", JobEnd("a"), JobEnd("b")))


def test_a_cache_is_its_address_whoever_asks() -> None:
    plain = "redis://10.0.0.9:6379/2"
    assert address("redis://:secret@10.0.0.9:6379/2?password=x") == address("redis://10.0.0.9:6379?db=2") == plain
    assert address("memcached://a:11211,b:11211/") == "memcached://a:11211,b:11211"
