"""The declaration of an invalidation. Its work is tested beside its function."""

from __future__ import annotations

import pytest

from headwater.errors import TransportError
from headwater.pipelines.jobs import Invalidation, InvalidationProgress

URL = "couchbase://127.0.0.1:1/b"


def test_a_cache_that_does_not_answer_is_told_before_the_work() -> None:
    with pytest.raises(TransportError, match="127"):
        Invalidation(URL, "memcached://127.0.0.1:1", "x").reach()


def test_the_line_has_what_there_is_to_tell() -> None:
    told = Invalidation(URL, "redis://h", "x").line(InvalidationProgress(batches=1, changes=2, asked=3, there=1))
    assert told == "batch 1: 2 changes, 3 keys deleted, 1 of them were there in 0.0 s"
    told = Invalidation(URL, "redis://h", "x").line(InvalidationProgress(rollbacks=2, data_loss=[7]))
    assert "2 vbuckets rolled back, data loss in vbuckets 7: deletions were purged unread, and their keys may" in told
