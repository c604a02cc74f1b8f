"""The writer for Spark: `df.write.format("dcp")` and `writeStream.format("dcp")`.

Spark writes in tasks, and may run a task twice; no row is held back until a commit, since buckets have no commits. So
each write can be repeated (writing.py); a commit checks that all tasks wrote to one bucket, and an abort does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headwater.errors import BucketMadeAnew, OptionError
from headwater.spark.brief import brief
from headwater.spark.rows import check_columns
from headwater.spark.settings import WriteSettings, parse_write


@dataclass
class WrittenByTask(WriterCommitMessage):
    """A task's message to the driver.

    Attributes:
        counts: `writing.WriteCounts` by name.
        bucket: uuid and number of vbuckets of the bucket that the task has written to.
        collections: the ids of the collections that it has written to, by their names.
    """

    counts: dict[str, int]
    bucket: tuple[str, int]
    collections: dict[str, int] = field(default_factory=dict)


class _Writing:
    """The base of both writers: the settings, the columns, and a task's work."""

    def __init__(self, options: Any, schema: StructType) -> None:
        from headwater.spark.deadletters import located  # noqa: PLC0415 -- Arrow: not for reading

        settings = parse_write(options)
        if settings.dead_letters is not None:
            settings = replace(settings, dead_letters=located(settings.dead_letters))
        self.settings: WriteSettings = settings
        columns = [(column.name, column.dataType.simpleString()) for column in schema.fields]
        self.names: tuple[str, ...] = check_columns(columns, with_meta=settings.with_meta)
        self.job: str = uuid4().hex

    @brief
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Write a partition; runs in a task."""
        from headwater.spark.deadletters import task_name  # noqa: PLC0415 -- Arrow
        from headwater.spark.writing import write  # noqa: PLC0415 -- Arrow and the client: for tasks only

        buckets, collections = set[tuple[str, int]](), dict[str, int]()
        name = task_name(self.job)
        counts = write(self.settings, self.names, iterator, name, buckets=buckets, collections=collections)
        return WrittenByTask(vars(counts), buckets.pop(), collections)

    def check_bucket(self, messages: list[WriterCommitMessage | None]) -> None:
        """Check that all tasks wrote to one bucket, and to one collection of each name.

        A task that meets a bucket that was created again fails, and Spark repeats it; tasks that had ended are not
        repeated, and their rows are gone with the old bucket.

        Raises:
            BucketMadeAnew: tasks wrote to two buckets of one name. CollectionMadeAnew: to two collections of one name.
        """
        from headwater.client.collections import check_ids  # noqa: PLC0415 -- Spark loads the source in every session

        # A server without maps reports no uuid: then there is nothing to compare.
        buckets = dict.fromkeys(
            message.bucket for message in messages if isinstance(message, WrittenByTask) and message.bucket[0]
        )
        if len(buckets) > 1:
            before, now, *_ = buckets
            raise BucketMadeAnew(self.settings.url, before, now)
        ids = dict[str, int]()
        for message in messages:
            if isinstance(message, WrittenByTask):
                check_ids(ids, message.collections)


class DcpBatchWriter(_Writing, DataSourceArrowWriter):
    """The writer of a DataFrame."""

    def __init__(self, options: Any, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            allowed = "possible: a bucket is not emptied by a write. append stores and deletes row by row"
            raise OptionError("mode", "overwrite", allowed)
        super().__init__(options, schema)

    @brief
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Check that all rows, which are written by now, are in one bucket."""
        self.check_bucket(messages)


class DcpStreamWriter(_Writing, DataSourceStreamArrowWriter):
    """The writer of a stream's micro-batches. With output mode complete all rows of the result are stored each time."""

    @brief
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Check that all rows, which are written by now, are in one bucket; otherwise fail, so that the batch is
        written again.
        """
        self.check_bucket(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: the batch is written again."""
