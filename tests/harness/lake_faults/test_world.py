"""All that can befall a mirror does befall it: each step once, told in a line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import polars as pl
import pytest

from harness.lake_faults import judge
from harness.lake_faults.catalog import RestCatalog, rest_catalog
from harness.lake_faults.engines import WithoutSpark
from harness.lake_faults.strangers import IcebergOnSpark
from harness.lake_faults.world import BOTH, ICEBERG, POINT_OF_LEAVING, VBUCKETS, World, iceberg_of, nodes_of
from harness.nodes import cluster
from headwater.lake.iceberg.place import CATALOG
from headwater.lake.log import TableLog
from headwater.lake.store import TableStore
from headwater.testing.node import node

ALONE = [
    *("write", "mirror", "keep", "mirror_that_dies", "mirror_that_fails", "two_mirrors", "harm_an_index"),
    *("lose_all_indexes", "optimize", "checkpoint", "vacuum", "rewrite_as_a_stranger", "delete_as_a_stranger"),
    *("purge", "kill_a_node", "go_back_twice", "mirror_that_is_overtaken"),
]
PAIR = ["write", "mirror", "cut", "write", "mirror", "fail_over", "take_over", "lose_a_branch", "kill_a_node", "purge"]


class Told(list[str]):
    """The lines of a world."""


@pytest.fixture(params=[1, 2])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    told = Told()
    if request.param == 1:
        with node(vbuckets=VBUCKETS) as alone:
            yield World(Random(5), nodes_of(alone), tmp_path, unfold=False, told=told.append)
    else:
        with cluster(2, VBUCKETS) as two:
            yield World(Random(5), two, tmp_path, unfold=False, told=told.append)


def test_each_step_happens_and_the_table_is_what_the_bucket_is(world: World) -> None:
    for name in ALONE if len(world.cluster.nodes) == 1 else PAIR:
        getattr(world, name)()
    world.mirror_that_meets([world.write])
    world.mirror_meanwhile([world.write])
    if len(world.cluster.nodes) == 1:
        world.mirror_folding([world.rewrite_as_a_stranger])
    world.check()
    told = world.told.__self__  # type: ignore[attr-defined]
    assert len(told) >= 9 and told[-1].startswith("equal: ")


def test_a_mirror_that_dies_leaves_what_it_had_done(tmp_path: Path) -> None:
    with node(vbuckets=VBUCKETS) as alone:
        world = World(Random(1), nodes_of(alone), tmp_path, unfold=False, told=lambda line: None)
        world.write()
        # The first is the change log's.
        WithoutSpark().die(world.url, world.place, "lake.before_commit=kill@2", world.options, Random(1))
        assert (TableLog(TableStore(world.place)).refresh().version, len(list(world.place.glob("part-*")))) == (0, 1)
        assert TableLog(TableStore(f"{world.place}_changes")).refresh().version == 1
        world.check()


@pytest.fixture(params=[ICEBERG, BOTH])
def published(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    with node(vbuckets=VBUCKETS) as alone, rest_catalog() as catalog:
        told = Told()
        world = World(
            Random(7), nodes_of(alone), tmp_path, unfold=False, told=told.append, form=request.param, catalog=catalog
        )
        for _ in range(3):
            world.write()
        world.mirror()
        yield world


def catalog_of(world: World) -> RestCatalog:
    assert world.catalog is not None
    return world.catalog


def test_a_table_of_iceberg_goes_through_the_same_and_what_befalls_its_catalog(published: World) -> None:
    for name in ("catalog_is_away", "write", "mirror", "catalog_loses_answers", "write", "mirror"):
        getattr(published, name)()
    catalog_of(published).server.loses = catalog_of(published).server.refuses = 0
    for name in ("commit_through_the_catalog", "drop_from_the_catalog", "write", "mirror_that_dies", "optimize"):
        getattr(published, name)()
    published.mirror_that_meets([published.write])
    published.check()
    told = published.told.__self__  # type: ignore[attr-defined]
    assert told[-2].endswith(" snapshots are versions of the log") and told[-1].startswith("equal: ")
    assert {"the catalog is away for a while", "somebody commits through the catalog"} <= set(told)


def test_readers_of_iceberg_that_see_another_row_are_noticed(published: World, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = judge.by_duckdb(iceberg_of(published.place, published.form))
    monkeypatch.setattr(judge, "by_duckdb", lambda place: [row | {"flags": 99} for row in rows])
    with pytest.raises(judge.Wrong, match="are different"):
        published.check()


def test_a_snapshot_that_is_no_version_of_the_log_is_noticed(published: World) -> None:
    published.write()
    published.mirror()
    place = iceberg_of(published.place, published.form)
    assert judge.check_snapshots(published.place, place).compared > 1
    (metadata,) = sorted(place.glob("metadata/v*.metadata.json"))[-1:]
    metadata.write_text(re.sub(r'(headwater.delta-version":\s*")\d+', r"\g<1>0", metadata.read_text()))
    with pytest.raises(judge.Wrong, match="has other rows than version 0"):
        judge.check_snapshots(published.place, place)


def test_snapshots_of_which_no_version_can_be_read_are_counted_and_not_taken_for_right(
    published: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    published.write()
    published.mirror()
    place, read = iceberg_of(published.place, published.form), pl.read_delta
    newest = TableLog(TableStore(published.place)).refresh().version

    def only(log: str, version: int, columns: list[str]) -> pl.DataFrame:
        if version != newest:
            raise FileNotFoundError(log)
        return read(log, version=version, columns=columns)

    monkeypatch.setattr(pl, "read_delta", only)
    counts = judge.check_snapshots(published.place, place)
    assert counts.compared == 1 and counts.skipped > 0
    newest = -1
    with pytest.raises(judge.Wrong, match=f"0 compared, {counts.skipped + 1} left out"):
        judge.check_snapshots(published.place, place)


def test_a_process_that_dies_while_the_table_leaves_its_catalog_costs_nothing(
    published: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for point in (f"{POINT_OF_LEAVING}=kill", ""):
        monkeypatch.setattr(published.random, "choice", lambda points, point=point: point)
        published.leave_the_catalog()
        log = published._log()
        assert not catalog_of(published).server.tables.get("table") and log is not None
        assert (CATALOG in log.state.properties) is bool(point)
        monkeypatch.undo()
        published.write()
        published.mirror()
        assert "table" in catalog_of(published).server.tables
    published.check()


def test_a_catalog_that_shows_another_state_is_noticed(published: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "of_catalog", lambda table: [])
    with pytest.raises(judge.Wrong, match="missing in the table"):
        published.check()


@pytest.mark.battery
@pytest.mark.timeout(900)
def test_what_iceberg_on_spark_writes_is_put_right_and_its_expiry_refused(published: World) -> None:
    published.strangers = IcebergOnSpark()
    if not published.strangers.is_installed:
        pytest.skip("Spark with Iceberg is not installed: python -m harness.readers setup")
    with closing(published.strangers):
        for name in ("merge_by_iceberg", "delete_by_iceberg", "rewrite_by_iceberg", "expire_by_iceberg"):
            getattr(published, name)()
            published.write()
            published.check()
    told = published.told.__self__  # type: ignore[attr-defined]
    assert [line.split(" by Iceberg")[1] for line in told if " by Iceberg" in line] == [
        "",
        "",
        "",
        " is refused or too late",
    ]
