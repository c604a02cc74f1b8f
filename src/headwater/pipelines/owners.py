"""The job that a checkpoint is of: what it read and where to, noted beside it.

A checkpoint says how far a job is and nothing about its other end. With another target everything from before would be
missing there, without a word; with another source a copy would take it for a failover, and make the target equal to it.
So the note says both ends. The nodes of a bucket may get other addresses: it is the same one while a vbucket has a
branch of its history that it had before.
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
        url: without a login.
        bucket: its name; empty for what is no bucket.
        histories: vb uuids of each vbucket's branches, in hex; empty where nobody was asked.
    """

    url: str
    bucket: str = ""
    histories: Mapping[str, list[str]] = field(default_factory=dict)

    def is_same(self, now: JobEnd) -> bool:
        """Return True if `now` is what this was, perhaps at other addresses."""
        return self.url == now.url or (self.bucket == now.bucket and self._shares(now))

    def was_made_anew(self, now: JobEnd) -> bool:
        """Return True if the bucket at the same address is another one by now: of the vbuckets that had a node both
        times none has a branch that it had."""
        return self.url == now.url and bool(self.histories.keys() & now.histories.keys()) and not self._shares(now)

    def _shares(self, now: JobEnd) -> bool:
        return any(set(uuids) & set(now.histories.get(vb, ())) for vb, uuids in self.histories.items())


def bucket_end(settings: SourceSettings, patience_seconds: float) -> JobEnd:
    """Return a bucket as an end, with the branches of the vbuckets that have a node.

    Raises:
        TransportError, StatusError: nobody answers.
    """
    from headwater.client.routing import parse

    def ask() -> dict[str, list[str]]:
        with connect(settings) as client:
            logs = client.failover_logs(client.seqnos())
        return {str(vb): [hex_uuid(uuid) for uuid, _ in log] for vb, log in sorted(logs.items())}

    return JobEnd(settings.url, parse(settings.url).bucket, patiently(ask, patience_seconds))


@dataclass(frozen=True)
class CheckpointOwner:
    """A job as its checkpoint is of it."""

    job: str
    source: JobEnd
    target: JobEnd

    def __str__(self) -> str:
        return f"{self.job} from {self.source.url} to {self.target.url}"


def claim(checkpoint: str | Path, now: CheckpointOwner, spark: SparkSession | None = None) -> None:
    """Note whose a checkpoint is; one without a note, which is new or of an older release, becomes this job's.

    Raises:
        OptionError: it is another job's, or has another source or target; of a copy also where one of them was made
            anew under its name.
    """
    file = FileBeside(checkpoint, FILE, spark)
    before = _read(file)
    if before is not None:
        same = before.job == now.job and before.source.is_same(now.source) and before.target.is_same(now.target)
        if not same:
            message = f"the checkpoint of this {now.job}: it is of the {before}. Take another one"
            more = f"if only addresses have changed, remove {FILE} in it"
            raise OptionError("checkpoint", file.place, f"{message}; {more}")
        if now.job == COPY:
            _refuse_made_anew(file, before, now)
    file.write(json.dumps({"format": FORMAT} | asdict(now)))


def _refuse_made_anew(file: FileBeside, before: CheckpointOwner, now: CheckpointOwner) -> None:
    """A source that lost its disk would be taken for a failover to nothing, and all that was copied be removed; a
    target that did would lack it."""
    for was, end in ((before.source, now.source), (before.target, now.target)):
        if was.was_made_anew(end):
            wanted = f"the checkpoint of what is at {end.url} now: its vbuckets have no branch of before, so the "
            wanted += f"bucket was made anew. Take another one; if it is the same bucket, remove {FILE} in it"
            raise OptionError("checkpoint", file.place, wanted)


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
