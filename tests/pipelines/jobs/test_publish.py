"""The publication, as users see it."""

from __future__ import annotations

import pytest

from headwater.errors import OptionError
from headwater.pipelines.jobs import Publish, PublishProgress
from headwater.pipelines.jobs.publish import read_properties

JOB = Publish("couchbase://127.0.0.1:1/orders", "kafka://127.0.0.1:1/changes")


def test_its_line_says_what_was_published_and_what_was_undone() -> None:
    progress = PublishProgress(batches=2, published=1200, deleted=3, seconds=1.25)
    assert JOB.line(progress) == "batch 2: 1,200 published and 3 deleted in 1.2 s"
    progress.rollbacks, progress.undone = 4, 10
    assert "4 vbuckets rolled back, 10 events undid that" in JOB.line(progress)
    progress.rollbacks = 0
    assert "10 events undid what was lost" in JOB.line(progress)


def test_a_batch_is_bounded_and_before_asks_for_versions() -> None:
    assert JOB.source_options()["maxChangesPerTrigger"] == "50000" and "before" not in JOB.source_options()
    assert Publish(JOB.source, JOB.to, before=True).source_options()["before"] == "true"


def test_properties_are_names_and_values() -> None:
    assert read_properties(["a.b=c=d", " e = f "]) == {"a.b": "c=d", "e": "f"}
    with pytest.raises(OptionError, match="KEY=VALUE"):
        read_properties(["secret"])
    assert "secret" not in repr(Publish(JOB.source, JOB.to, kafka={"sasl.password": "secret"}))


def test_a_wait_for_copies_on_disk_is_refused_for_a_batch_may_end_within_a_snapshot() -> None:
    waiting = Publish(JOB.source, JOB.to, reading={"minPersisted": "majority"})
    with pytest.raises(OptionError, match='option "minPersisted": "majority" is not an option of a publication'):
        waiting.check()
