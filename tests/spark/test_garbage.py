"""The garbage collections of Spark's workers, after each task."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.spark import garbage
from headwater.spark.source import DcpBatchReader, DcpDataSource
from headwater.testing.node import Node


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of Python's collector, which are not made."""
    calls: list[str] = []
    garbage._run_once.cache_clear()
    monkeypatch.setattr(gc, "collect", lambda: calls.append("collect"))
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    return calls


def test_a_worker_sets_aside_once_what_it_has_loaded(collector: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "_is_worker", lambda: True)
    garbage.set_aside()
    garbage.set_aside()
    assert collector == ["collect", "freeze"]


def test_a_process_of_somebody_else_is_left_alone(collector: list[str]) -> None:
    garbage.set_aside()
    assert collector == []


@pytest.mark.spark
def test_spark_finds_little_to_look_through_after_a_task(spark: Any, shared_node: Node, tmp_path: Path) -> None:
    class Watched(DcpBatchReader):
        def read(self, partition: Any) -> Iterator[Any]:
            yield from super().read(partition)
            (tmp_path / str(os.getpid())).write_text(f"{gc.get_freeze_count()} {len(gc.get_objects())}")

    class WatchedSource(DcpDataSource):
        @classmethod
        def name(cls) -> str:
            return "dcp_watched"

        def reader(self, schema: Any) -> Watched:
            made = super().reader(schema)
            made.__class__ = Watched
            return made  # type: ignore[return-value]

    spark.dataSource.register(WatchedSource)
    spark.read.format("dcp_watched").load(shared_node.url).count()
    seen = [tuple(map(int, path.read_text().split())) for path in tmp_path.iterdir()]
    assert seen and all(frozen > 10 * left for frozen, left in seen), seen
