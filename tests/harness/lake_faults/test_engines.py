"""Mirrors that die, fail and meet something else, on a real Spark; without it they are tried in test_world.py."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any

import pytest

from harness.lake_faults.engines import OnSpark
from harness.lake_faults.world import VBUCKETS, World, nodes_of
from headwater.testing.node import node
from tests.spark.conftest import spark

__all__ = ["spark"]

pytestmark = [pytest.mark.spark, pytest.mark.battery, pytest.mark.timeout(900)]


def test_a_world_on_spark_has_the_same_steps_and_strangers_of_its_own(spark: Any, tmp_path: Path) -> None:
    told: list[str] = []
    with node(vbuckets=VBUCKETS) as alone:
        engine = OnSpark(spark)
        world = World(Random(5), nodes_of(alone), tmp_path, unfold=False, told=told.append, engine=engine)
        world.write()
        met: list[int] = []
        with engine.met("lake.reading", lambda: met.append(os.getpid())):
            world.mirror()
        assert met == [os.getpid()]
        with engine.met("lake.before_commit", lambda: met.append(0)):
            world.write()
            world.mirror()
        world.optimize_by_spark()
        world.delete_by_spark()
        world.check()
    assert met == [os.getpid(), 0]
    assert "OPTIMIZE by Spark" in told and "DELETE by Spark" in told and told[-1].startswith("equal: ")
