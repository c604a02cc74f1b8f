"""The spans of a mirror's batches."""

from __future__ import annotations

from pathlib import Path

from headwater import testing
from headwater.lake.folds import FAN
from headwater.pipelines.mirror import mirror
from tests.tracing import told, traced


def test_a_batch_is_a_span_with_its_plan_tasks_and_commit(tmp_path: Path) -> None:
    with testing.node(vbuckets=4) as bucket, traced() as seen:
        with bucket.client() as client:
            assert client.set_many((f"k{i}", "v") for i in range(100)) == {}
        mirror(None, bucket.url, tmp_path, once=True, workers=0)
        count = len(seen.spans)
        mirror(None, bucket.url, tmp_path, once=True, workers=0)
        assert len(seen.spans) == count  # there was nothing to do
    batch = seen.named("batch")[0]  # another one may note that the vbuckets were read to the end of their snapshots
    assert told(batch) == {"job": "default", "batch": 1, "vbuckets": 4, "changes": 100, "rows": 100, "lag": 0}
    assert seen.below(batch) == ["batch.plan", "batch.tasks", "batch.commit"]
    tasks = seen.named("batch.tasks")[0]
    assert sorted(seen.below(tasks)) == ["batch.read", "batch.write"]
    (read,), (write,), plan = seen.named("batch.read"), seen.named("batch.write"), seen.named("batch.plan")[0]
    assert (told(read), told(write), told(plan)) == ({"task": 0}, {"task": 0, "rows": 100, "files": 1}, {"tasks": 1})
    for each in (read, write):
        assert each.start_time is not None and each.end_time is not None
        assert (batch.start_time or 0) <= each.start_time <= each.end_time <= (batch.end_time or 0)
    assert (write.start_time or 0) <= (read.end_time or 0)  # it writes while changes still come


def test_a_fold_beside_the_batches_is_a_span_of_the_one_it_came_in_with(tmp_path: Path) -> None:
    with testing.node(vbuckets=4) as bucket, traced() as seen, bucket.client() as client:
        for number in range(2 * FAN):
            client.set(f"k{number}", "v")
            mirror(None, bucket.url, tmp_path, once=True, workers=0)
            if seen.named("batch.fold"):
                break
    (fold, *_) = seen.named("batch.fold")
    assert told(fold) == {"files": FAN, "into": 1}
