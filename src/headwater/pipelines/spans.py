"""The spans of a job's batch, for every engine: the plan, the tasks' own times, and the lag.

Tasks run in other processes without a trace: their answers have the times at which they began, read and ended, and the
driver makes spans of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headwater import tracing
from headwater.pipelines.sinks import Standing
from headwater.spark.offsets import Offset
from headwater.tracing import SpanAttributes


def tell_plan(attributes: SpanAttributes, job: str, before: Standing, end: Mapping[str, Any]) -> None:
    """Add a batch's plan to a span: its number, and how many vbuckets and changes it covers."""
    if not attributes.is_heard:
        return
    start, until = Offset.from_json(before.end).positions, Offset.from_json(end).positions
    changes_by_vbucket = {vb: each.seqno - (start[vb].seqno if vb in start else 0) for vb, each in until.items()}
    vbuckets = sum(1 for seqnos in changes_by_vbucket.values() if seqnos)
    attributes.tell(
        job=job,
        batch=before.batch + 1,
        vbuckets=vbuckets,
        changes=sum(max(0, each) for each in changes_by_vbucket.values()),
    )


def tell_tasks(attributes: SpanAttributes, answers: Sequence[Any]) -> None:
    """Add the tasks' results and times to the spans, as far as they report them."""
    if not attributes.is_heard:
        return
    for number, each in enumerate(answers):
        times: Mapping[str, float] = getattr(each, "times", {})
        if "ended" not in times:
            continue
        ended = times["ended"]
        tracing.past("batch.read", times["began"], times.get("read", ended), task=number)
        attributes_ = {"task": number, "rows": _rows(each), "files": len(each.files)}
        tracing.past("batch.write", times.get("first", ended), ended, **attributes_)
    attributes.tell(rows=sum(map(_rows, answers)))


def tell_lag(attributes: SpanAttributes, end: Mapping[str, Any], latest: Mapping[str, Any] | None) -> None:
    """Add the number of changes that the nodes had beyond the end of a batch."""
    if attributes.is_heard and latest is not None:
        latest_positions, end_positions = Offset.from_json(latest).positions, Offset.from_json(end).positions
        attributes.tell(
            lag=sum(
                max(0, position.seqno - (end_positions[vb].seqno if vb in end_positions else 0))
                for vb, position in latest_positions.items()
            )
        )


def _rows(answer: Any) -> int:
    counts: Mapping[str, int] = getattr(answer, "counts", {})
    return sum(counts.get(kind, 0) for kind in ("mutations", "deletions"))
