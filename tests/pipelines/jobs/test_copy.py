"""The declaration of a copy. Its work is tested beside its function."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.errors import OptionError
from headwater.pipelines.carried import Carried, CarriedFile
from headwater.pipelines.jobs import BucketCopy, CopyProgress

A, B = "couchbase://127.0.0.1:1/a", "couchbase://127.0.0.1:1/b"


def test_who_reads_writes_as_well_unless_another_does() -> None:
    alone = BucketCopy(A, B, "x", user="ann", password="secret")
    assert (alone.source_options()["user"], alone.target_options()["user"]) == ("ann", "ann")
    both = BucketCopy(A, B, "x", user="ann", target_user="bob", target_password="other", dead_letters="./d", into="s.c")
    assert both.target_options() == {
        "url": B,
        "withMeta": "true",
        "user": "bob",
        "password": "other",
        "deadLetters": "./d",
        "collection": "s.c",
    }
    assert BucketCopy(A, B, "x", user="ann", writing={"user": "eve"}).target_options()["user"] == "eve"


def test_a_source_that_may_not_roll_back_says_so() -> None:
    assert "rollbackPolicy" not in BucketCopy(A, B, "x").source_options()
    assert BucketCopy(A, B, "x", rollback="fail").source_options()["rollbackPolicy"] == "fail"


def test_a_copy_of_before_collections_says_what_it_leaves_out(tmp_path: Path) -> None:
    job = BucketCopy(A, B, tmp_path)
    assert [bucket.say_unread for bucket in job.buckets()] == [False, False]
    CarriedFile(tmp_path).save(Carried())
    assert [(bucket.url, bucket.say_unread) for bucket in job.buckets()] == [(A, True), (B, False)]


def test_a_checkpoint_is_where_this_process_sees_it_or_a_url(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert BucketCopy(A, B, "x").place == str(tmp_path / "x")
    assert BucketCopy(A, B, "s3a://b/x").place == "s3a://b/x"


def test_options_that_cannot_be_are_refused_before_anything_begins() -> None:
    with pytest.raises(OptionError, match="another bucket"):
        BucketCopy(A, A, "x").run()
    with pytest.raises(OptionError, match="one of restore, keep, fail"):
        BucketCopy(A, B, "x", rollback="undo").run()


def test_the_line_has_what_there_is_to_tell() -> None:
    shown = BucketCopy(A, B, "x").line(
        CopyProgress(batches=1, stored=2, refused=3, left_out=4, rollbacks=5, restored=6000)
    )
    assert shown == (
        "batch 1: 2 stored and 0 deleted, 0 not needed, 3 refused, 4 of collections that are gone, "
        "5 vbuckets rolled back, 6,000 keys put right in 0.0 s"
    )
