"""One small Spark and one small node for all tests marked `spark`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from headwater.pipelines import query
from headwater.pipelines.session import DELTA_SPARK, local_session
from headwater.testing.node import Node, node


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    if shutil.which("java") is None:
        pytest.fail("these tests start a local Spark and need Java 17 or newer; leave them out with -m 'not spark'")
    delta = version("pyspark").startswith(DELTA_SPARK)  # the source is tested on newer ones as well
    session = local_session("headwater-tests", cores="local[2,2]", quiet=True, delta=delta)
    yield session
    session.stop()


@pytest.fixture
def lent_spark(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The Spark that is there, lent to programs that make one in this process and stop it: a JVM less for each."""
    monkeypatch.setattr(type(spark), "stop", lambda session: None)
    monkeypatch.setattr(query, "_end_jvm", lambda archive: None)
    return spark


@pytest.fixture(scope="module")
def shared_node() -> Iterator[Node]:
    with node(vbuckets=16) as running:
        yield running


@pytest.fixture
def drain(spark: Any, tmp_path: Path) -> Callable[..., list[Any]]:
    """Run a stream until it has what there was when it began; return (batch, row) pairs."""

    def run(url: str, checkpoint: str = "checkpoint", **options: str) -> list[Any]:
        rows: list[Any] = []

        def take(batch: Any, number: int) -> None:
            rows.extend((number, row) for row in batch.collect())

        stream = spark.readStream.format("dcp").options(**options).load(url)
        query = (
            stream.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(400)
        return rows

    return run
