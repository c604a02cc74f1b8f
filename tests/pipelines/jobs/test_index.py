"""The declaration of the index. Its work is tested beside its function."""

from __future__ import annotations

from headwater.pipelines.jobs import IndexProgress, TextIndex

URL = "couchbase://127.0.0.1:1/b"


def test_a_batch_is_small_unless_the_source_is_told_otherwise() -> None:
    assert TextIndex(URL, "x").source_options()["maxChangesPerTrigger"] == "50000"
    assert TextIndex(URL, "x", reading={"maxChangesPerTrigger": "7"}).source_options()["maxChangesPerTrigger"] == "7"


def test_the_line_has_what_there_is_to_tell() -> None:
    assert TextIndex(URL, "x").line(IndexProgress(batches=2, indexed=1000)) == (
        "batch 2: 1,000 indexed and 0 removed in 0.0 s"
    )
    told = TextIndex(URL, "x").line(IndexProgress(aside=1, behind=2, rollbacks=3, seconds=1.25))
    assert told == "batch 0: 0 indexed and 0 removed, 1 kept aside, 2 not needed, 3 vbuckets rolled back in 1.2 s"
