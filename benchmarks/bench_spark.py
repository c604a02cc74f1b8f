"""The `dcp` source inside Spark, beside a source that has its rows ready.

Spark takes Arrow batches from Python at a rate of its own; the `dcp` source can only be slower by the time that it
adds. So the reference is a source that maps files with the very same batches into memory and yields them. Both write
two million rows to Spark's `noop` sink with two tasks, in turn. The node is a process of its own on the same machine,
so ours shares the cores with it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from benchmarks.bench_streams import load
from benchmarks.harness import measure
from headwater import testing
from headwater.pipelines.session import local_session
from headwater.spark.reader import read
from headwater.spark.schema import COLUMNS
from headwater.spark.settings import parse
from headwater.spark.source import DcpBatchReader, DcpDataSource, DcpPartition

ITEMS = 2_000_000
RATIO_MIN = 0.6
REPETITIONS = 5


def ready_source(folder: Path) -> type[DataSource]:
    """Return a source whose partitions are the Arrow files of a folder; it yields only the columns that Spark asks for.

    The class is made in this function, so that it travels to Spark by value.
    """

    class ReadyReader(DataSourceReader):
        def __init__(self, names: list[str]) -> None:
            self.names = names

        def partitions(self) -> Sequence[InputPartition]:
            return [InputPartition(str(path)) for path in sorted(folder.glob("*.arrow"))]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            with pa.memory_map(partition.value) as file:
                batches = pa.ipc.open_file(file)
                for number in range(batches.num_record_batches):
                    yield batches.get_batch(number).select(self.names)

    class ReadySource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ready"

        def schema(self) -> str:
            return DcpDataSource({"url": "couchbase://nowhere"}).schema()

        def reader(self, schema: Any) -> DataSourceReader:
            return ReadyReader(schema.names)

    return ReadySource


def prepare(spark: Any, url: str, folder: Path) -> None:
    """Write the batches that the tasks of the `dcp` source would yield, one file for each partition."""
    settings = parse({"url": url}, streaming=False)
    schema = spark.read.format("dcp").load(url).schema
    for number, partition in enumerate(DcpBatchReader(settings, schema, 2).partitions()):
        if not isinstance(partition, DcpPartition):
            raise AssertionError("a partition that is none of ours")
        batches = list(read(settings, tuple(COLUMNS), partition.parts))
        with pa.OSFile(str(folder / f"{number}.arrow"), "wb") as file, pa.ipc.new_file(file, batches[0].schema) as out:
            for batch in batches:
                out.write(batch)


def draining(spark: Any, source: str, url: str) -> Callable[[], None]:
    """Return a function that reads everything into the sink that keeps nothing. The read is planned once, as Spark does
    for a DataFrame.
    """
    frame = spark.read.format(source).load(url)
    return lambda: frame.write.format("noop").mode("append").save()


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder, testing.node(vbuckets=64) as node:
        load(node, ITEMS)
        spark = local_session("headwater-bench", cores="local[2]", memory="4g", quiet=True)
        try:
            prepare(spark, node.url, Path(folder))
            spark.dataSource.register(ready_source(Path(folder)))
            figure = measure(
                "Spark batch to noop, local[2], 256 B values",
                unit="M rows/s",
                amount=ITEMS / 1e6,
                ours=draining(spark, "dcp", node.url),
                reference=("rows ready in memory", draining(spark, "ready", node.url)),
                repetitions=REPETITIONS,
            )
        finally:
            spark.stop()
    verdict = "met" if (figure.ratio or 0) >= RATIO_MIN else "MISSED"
    print(f"target ratio {RATIO_MIN}: {verdict}", flush=True)


if __name__ == "__main__":
    main()
