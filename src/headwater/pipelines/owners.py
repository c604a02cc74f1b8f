"""The job that a checkpoint belongs to: its source and its target, noted beside it.

A checkpoint has a job's position, and does not name its target. Another target would silently lack all earlier changes;
another source would look like a failover, and a copy would make the target equal to it. So the note has both ends. The
nodes of a bucket may get other addresses: a bucket is the same while a vbucket still has one of its earlier branches.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headwater.errors import OptionError
from headwater.pipelines.beside import FileBeside
from headwater.spark.nodes import connect, patiently
from headwater.spark.offsets import hex_uuid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.spark.settings import SourceSettings

FILE: Final = "job.json"
FORMAT: Final = 1
COPY: Final = "copy"
"""The job that makes its target equal to its source."""


@dataclass(frozen=True)
class JobEnd:
    """One end of a job.

    Args:
        url: its url without a login.
        bucket: the name of the bucket; empty for another kind of end.
        histories: vb uuids of each vbucket's branches, in hex, by vbucket; empty for another kind of end.
    """

    url: str
    bucket: str = ""
    histories: Mapping[str, list[str]] = field(default_factory=dict)

    def is_same(self, now: JobEnd) -> bool:
        """Return True if `now` is the same end, perhaps at other addresses."""
        return self.url == now.url or (self.bucket == now.bucket and self._shares(now))

    def was_made_anew(self, now: JobEnd) -> bool:
        """Return True if the bucket at the same address was dropped and created again.

        Then no vbucket that had a node both times has one of its former branches.
        """
        return self.url == now.url and bool(self.histories.keys() & now.histories.keys()) and not self._shares(now)

    def _shares(self, now: JobEnd) -> bool:
        return any(set(uuids) & set(now.histories.get(vb, ())) for vb, uuids in self.histories.items())


def bucket_end(settings: SourceSettings, patience_seconds: float) -> JobEnd:
    """Return a bucket as an end, with the branches of the vbuckets that have a node.

    Raises:
        TransportError, StatusError: no node answers.
    """
    from headwater.client.routing import parse

    def ask() -> dict[str, list[str]]:
        with connect(settings) as client:
            logs = client.failover_logs(client.seqnos())
        return {str(vb): [hex_uuid(uuid) for uuid, _ in log] for vb, log in sorted(logs.items())}

    return JobEnd(settings.url, parse(settings.url).bucket, patiently(ask, patience_seconds))


@dataclass(frozen=True)
class CheckpointOwner:
    """The job that owns a checkpoint."""

    job: str
    source: JobEnd
    target: JobEnd

    def __str__(self) -> str:
        return f"{self.job} from {self.source.url} to {self.target.url}"


def claim(checkpoint: str | Path, now: CheckpointOwner, spark: SparkSession | None = None) -> None:
    """Note the owner of a checkpoint.

    A checkpoint without a note, which is new or of an older release, becomes this job's.

    Raises:
        OptionError: it belongs to another job, or has another source or target; for a copy also if one of the two
            buckets was created again under its name.
    """
    file = FileBeside(checkpoint, FILE, spark)
    before = _read(file)
    if before is not None:
        same = before.job == now.job and before.source.is_same(now.source) and before.target.is_same(now.target)
        if not same:
            message = f"the checkpoint of this {now.job}: it is of the {before}. Take another one"
            hint = f"if only addresses have changed, remove {FILE} in it"
            raise OptionError("checkpoint", file.place, f"{message}; {hint}")
        if now.job == COPY:
            _refuse_made_anew(file, before, now)
    # Written at each start, with the branches of now: after some failovers a vbucket would have none of the first ones.
    file.write(json.dumps({"format": FORMAT} | asdict(now)))


def _refuse_made_anew(file: FileBeside, before: CheckpointOwner, now: CheckpointOwner) -> None:
    """Check that neither bucket of a copy was created again since the note.

    A source that lost its disk would look like a failover to nothing, and all copied documents would be removed; a new
    target would lack all earlier documents.

    Raises:
        OptionError: one was created again.
    """
    for was, end in ((before.source, now.source), (before.target, now.target)):
        if was.was_made_anew(end):
            allowed = f"the checkpoint of what is at {end.url} now: its vbuckets have no branch of before, so the "
            allowed += f"bucket was made anew. Take another one; if it is the same bucket, remove {FILE} in it"
            raise OptionError("checkpoint", file.place, allowed)


def _read(file: FileBeside) -> CheckpointOwner | None:
    text = file.read()
    if text is None:
        return None
    try:
        content = json.loads(text)
        if content["format"] != FORMAT:
            raise OptionError("checkpoint", content["format"], f"of format {FORMAT}, which this version knows")
        return CheckpointOwner(content["job"], _end(content["source"]), _end(content["target"]))
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, OptionError):
            raise
        content = f"one with a readable {FILE}: take another checkpoint, or remove that file if it is this job's"
        raise OptionError("checkpoint", file.place, content) from None


def _end(content: Any) -> JobEnd:
    return JobEnd(str(content["url"]), str(content["bucket"]), dict(content["histories"]))
