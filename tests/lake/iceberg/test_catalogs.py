"""A catalog follows the table, of REST, of Glue, and of SQL where its library is, whatever is lost on the way."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws
from pyiceberg.catalog import Catalog, MetastoreCatalog, load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.update import SetPropertiesUpdate, SetSnapshotRefUpdate
from pyiceberg.typedef import IcebergBaseModel

from harness.rest_catalog import RestCatalogServer, rest_server
from headwater.errors import ConnectionLost, TableAway, TableChanged, TableError
from headwater.failpoints import armed
from headwater.lake import facts, folds, freshness, lineage
from headwater.lake.iceberg import catalogs, entry
from headwater.lake.iceberg.place import CATALOG, CatalogName
from headwater.lake.iceberg.schema import NAME_MAPPING
from headwater.lake.layout import OF_ICEBERG
from headwater.lake.log import schema_string
from headwater.lake.shape import delta_field
from headwater.lake.vacuum import vacuum
from tests.lake.iceberg.support import configure
from tests.lake.support import Table, restore, row_ids

DAY = 86_400
NAMED = CatalogName("tests", ("shop", "orders"))


@pytest.fixture
def server() -> Iterator[RestCatalogServer]:
    with rest_server() as running:
        yield running


@pytest.fixture(params=["rest", "glue", "sql"])
def catalog(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Catalog]:
    """A catalog, as pyiceberg finds it by its name."""
    if request.param == "rest":
        server = request.getfixturevalue("server")
        yield from configured(monkeypatch, type="rest", uri=server.url)
    elif request.param == "glue":
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "tests")
        with mock_aws():
            boto3.client("glue", region_name="eu-west-1")
            yield from configured(monkeypatch, **{"type": "glue", "glue.region": "eu-west-1"})
    elif find_spec("sqlalchemy") is None:
        pytest.skip("no library for SQL")
    else:
        yield from configured(monkeypatch, type="sql", uri=f"sqlite:///{tmp_path}/catalog.db")


def configured(monkeypatch: pytest.MonkeyPatch, **properties: str) -> Iterator[Catalog]:
    configure(monkeypatch, NAMED.catalog, **properties)
    yield load_catalog(NAMED.catalog, **properties)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table that a catalog shall follow."""
    table = Table(tmp_path / "t", OF_ICEBERG)
    configuration = dict(table.log.state.properties) | {CATALOG: str(NAMED)}
    assert table.log.commit([{"metaData": table.log.state.metadata | {"configuration": configuration}}], "SET")
    return table


def anew(table: Table) -> Table:
    """The same table as another process finds it."""
    return Table(table.place)


def read(catalog: Catalog) -> dict[str, str]:
    rows = catalog.load_table(NAMED.identifier).scan(selected_fields=("key", "value")).to_arrow().to_pylist()
    found = {row["key"].decode(): row["value"].decode() for row in rows}
    assert len(found) == len(rows), "a key has two rows"
    return found


def check(table: Table, catalog: Catalog) -> None:
    """The catalog's readers see what the log says."""
    table.log.refresh()
    assert entry.differences(table.log) == []
    assert read(catalog) == table.held()


def test_a_catalog_follows_each_commit(table: Table, catalog: Catalog) -> None:
    table.take(("a", 0, 1, "one"), ("b", 0, 2, "one"))
    check(table, catalog)
    table.take(("a", 0, 3, "two"), ("b", 0, 4, None))
    check(table, catalog)
    folds.optimize(table.log, table.indexes, everything=True)
    check(table, catalog)
    table.take(("c", 0, 5, "three"))
    check(table, catalog)
    assert len(catalog.load_table(NAMED.identifier).metadata.snapshots) == 4


def test_a_column_that_comes_is_in_the_catalogs_schema(table: Table, catalog: Catalog) -> None:
    table.take(("a", 0, 1, "one"))
    schema = schema_string([*table.log.state.fields, delta_field("more", "long")])
    assert table.log.commit([{"metaData": table.log.state.metadata | {"schemaString": schema}}], "ADD COLUMNS")
    table.take(("a", 0, 2, "two"))
    check(table, catalog)
    assert "more" in catalog.load_table(NAMED.identifier).schema().column_names


def test_snapshots_that_are_dropped_before_a_vacuum_are_dropped_in_the_catalog(table: Table, catalog: Catalog) -> None:
    for number in range(3):
        table.take(("a", 0, number + 1, f"{number}"))
    entry.expire(table.log, 0.0, 1e11)
    check(table, catalog)
    assert len(catalog.load_table(NAMED.identifier).metadata.snapshots) == 1


def test_a_catalog_that_lost_its_table_gets_it_again(table: Table, catalog: Catalog) -> None:
    table.take(("a", 0, 1, "one"))
    catalog.drop_table(NAMED.identifier)
    assert "has no table shop.orders" in entry.differences(table.log)[0]
    table.take(("a", 0, 2, "two"))
    check(table, catalog)


def test_a_start_brings_what_a_process_that_died_did_not(table: Table, catalog: Catalog) -> None:
    table.take(("a", 0, 1, "one"))
    for point in ("before", "after"):
        with armed(f"iceberg.{point}_catalog=eio"), pytest.raises(OSError, match="injected"):
            table.take(("a", 0, 2 if point == "before" else 3, point))
        if point == "before":
            assert "the newest snapshot is not there" in entry.differences(table.log)[0]
        entry.publish(anew(table).log)
        check(table, catalog)


def test_a_slow_process_does_not_put_an_older_state_over_a_newer_one(
    table: Table, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.take(("a", 0, 1, "one"))
    fast, newest = anew(table), catalogs._newest

    def stalled(place: Any) -> Any:
        found = newest(place)
        monkeypatch.setattr(catalogs, "_newest", newest)
        fast.take(("a", 0, 3, "three"))
        return found

    monkeypatch.setattr(catalogs, "_newest", stalled)
    table.take(("a", 0, 2, "two"))
    check(table, catalog)
    assert read(catalog) == {"a": "three"}


def test_a_table_of_another_id_is_not_replaced(table: Table, catalog: Catalog, tmp_path: Path) -> None:
    table.take(("a", 0, 1, "one"))
    other = Table(tmp_path / "other", OF_ICEBERG)
    configuration = dict(other.log.state.properties) | {CATALOG: str(NAMED)}
    assert other.log.commit([{"metaData": other.log.state.metadata | {"configuration": configuration}}], "SET")
    with pytest.raises(TableError, match=r"tests:shop\.orders: it has another table of this name"):
        other.take(("b", 0, 1, "two"))
    assert read(catalog) == {"a": "one"}


def test_a_batch_between_the_drop_and_the_forgotten_name_brings_no_table_back(
    table: Table, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.take(("a", 0, 1, "one"))
    other, drop = anew(table), catalogs.drop

    def dropped(*given: Any) -> None:
        drop(*given)
        monkeypatch.setattr(catalogs, "drop", drop)
        other.take(("a", 0, 2, "two"))

    monkeypatch.setattr(catalogs, "drop", dropped)
    entry.leave_catalog(table.log)
    assert entry.catalog_of(anew(table).log.state) is None, "the other's commit took the version"
    assert catalogs._loaded_table(catalog, NAMED) is None


@pytest.mark.parametrize("moved", [False, True])
def test_who_registers_a_table_that_has_left_meanwhile_drops_it_again(
    moved: bool, table: Table, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    if moved and not isinstance(catalog, MetastoreCatalog):
        pytest.skip("the server reads the file to which it points")
    table.take(("a", 0, 1, "one"))
    catalog.drop_table(NAMED.identifier)
    newest, register = catalogs._newest, type(catalog).register_table

    def left(place: Any) -> Any:
        monkeypatch.setattr(catalogs, "_newest", newest)
        entry.leave_catalog(anew(table).log)
        return newest(place)

    def registered(*given: Any) -> Any:
        answer = register(*given)
        if moved:
            Path(table.place).rename(f"{table.place}.dropped-8")
        return answer

    monkeypatch.setattr(catalogs, "_newest", left)
    monkeypatch.setattr(type(catalog), "register_table", registered)
    with pytest.raises(TableAway) if moved else nullcontext():
        table.take(("a", 0, 2, "two"))
    assert catalogs._loaded_table(catalog, NAMED) is None


def test_a_process_that_dies_before_the_name_is_forgotten_is_gone_on_with(table: Table, catalog: Catalog) -> None:
    table.take(("a", 0, 1, "one"))
    with armed("iceberg.left_catalog=eio"), pytest.raises(OSError, match="injected"):
        entry.leave_catalog(table.log)
    assert catalogs._loaded_table(catalog, NAMED) is None
    entry.leave_catalog(anew(table).log)
    assert entry.catalog_of(anew(table).log.state) is None


def test_a_copy_that_leaves_does_not_take_the_original_with_it(table: Table, catalog: Catalog, tmp_path: Path) -> None:
    table.take(("a", 0, 1, "one"))
    shutil.copytree(table.place, tmp_path / "copy")
    entry.leave_catalog(Table(tmp_path / "copy").log)
    check(table, catalog)


def test_a_time_that_a_record_has_no_more_leaves_the_catalog(table: Table, catalog: Catalog) -> None:
    for end, wanted in (({"completeUntil": 1_700_000_000_123_456_789}, "2023-11-14T22:13:20.123Z"), ({}, None)):
        assert table.log.commit([replace(table.record, end=end).to_action()], "REPAIR")
        entry.publish(table.log)
        assert catalog.load_table(NAMED.identifier).properties.get(freshness.PROPERTY) == wanted


def test_a_table_that_was_put_back_promises_no_time(table: Table, catalog: Catalog) -> None:
    table.take(("a", 0, 1, "one"))
    before = table.log.state.version
    table.take(("a", 0, 2, "two"))
    ended = replace(table.record, end={"completeUntil": 1_700_000_000_123_456_789})
    assert table.log.commit([ended.to_action()], "MIRROR")
    assert facts.describe(table.log)["complete_until"] == "2023-11-14T22:13:20.123Z"
    restore(table.log, before)
    entry.publish(table.log)
    assert facts.describe(table.log)["complete_until"] is None
    assert freshness.PROPERTY not in catalog.load_table(NAMED.identifier).properties


def test_what_others_commit_is_undone_by_the_next_batch(table: Table, catalog: Catalog) -> None:
    """Of a catalog of pointers: a commit to it without our folder; of REST: a branch that was put back."""
    table.take(("a", 0, 1, "one"))
    table.take(("a", 0, 2, "two"))
    theirs = catalog.load_table(NAMED.identifier)
    if catalog.properties["type"] == "rest":
        first = theirs.metadata.snapshots[0].snapshot_id
        back = {"ref-name": "main", "type": "branch", "snapshot-id": first}
        catalog.commit_table(theirs, (), (SetSnapshotRefUpdate.model_validate(back),))
        assert read(catalog) == {"a": "one"}
    else:
        catalog.drop_table(NAMED.identifier)
        catalog.register_table(NAMED.identifier, theirs.metadata.metadata_log[-1].metadata_file)
        assert read(catalog) == {"a": "one"}
    table.take(("b", 0, 3, "three"))
    check(table, catalog)


class OfRest:
    """A REST catalog in particular."""

    @pytest.fixture
    def catalog(self, server: RestCatalogServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Catalog]:
        yield from configured(monkeypatch, type="rest", uri=server.url)


class TestRest(OfRest):
    """Updates, and what is lost on the way."""

    def test_a_commit_has_one_snapshot_on_condition_of_the_branch(
        self, table: Table, catalog: Catalog, server: RestCatalogServer
    ) -> None:
        for number in range(3):
            table.take(("a", 0, number + 1, f"{number}"))
        assert server.commits == [["add-snapshot", "set-snapshot-ref"]] * 2

    def test_an_answer_that_was_lost_is_looked_up(
        self, table: Table, catalog: Catalog, server: RestCatalogServer
    ) -> None:
        table.take(("a", 0, 1, "one"))
        server.loses = 1
        with pytest.raises(ConnectionLost, match="catalog tests"):
            table.take(("a", 0, 2, "two"))
        entry.publish(anew(table).log)
        check(table, catalog)
        assert len(server.commits) == 1, "it is not sent twice"

    def test_a_catalog_that_is_away_is_named_as_such_and_gets_all_later(
        self, table: Table, catalog: Catalog, server: RestCatalogServer
    ) -> None:
        table.take(("a", 0, 1, "one"))
        server.is_away = True
        for number in (2, 3):
            with pytest.raises(ConnectionLost, match="ServiceUnavailableError"):
                table.take(("a", 0, number, "more"))
        with pytest.raises(ConnectionLost):
            vacuum(table.log, 0.0, 1e11)
        server.is_away = False
        table.take(("a", 0, 4, "four"))
        check(table, catalog)

    def test_a_vacuum_keeps_the_metadata_file_to_which_a_catalog_points_that_went_away_meanwhile(
        self, table: Table, catalog: Catalog, server: RestCatalogServer
    ) -> None:
        for number in (1, 2):
            table.take(("a", 0, number, f"{number}"))
        now = time.time()
        for file in Path(server.tables["orders"].removeprefix("file://")).parent.iterdir():
            os.utime(file, (now - 2 * DAY, now - 2 * DAY))
        entry.expire(table.log, 7.0 * DAY, now)  # the vacuum begins, and the catalog is where the folder is
        server.is_away = True
        with pytest.raises(ConnectionLost):
            table.take(("a", 0, 3, "3"))
        with pytest.raises(ConnectionLost):
            entry.unneeded(table.log, now)
        server.is_away = False
        for each in entry.unneeded(table.log, now):
            table.log.store.remove(each.path)
        entry.publish(anew(table).log)
        check(table, catalog)

    def test_numbers_that_somebody_else_took_make_the_table_be_registered_anew(
        self, table: Table, catalog: Catalog, server: RestCatalogServer
    ) -> None:
        """A snapshot of another writer has the sequence number that ours has next."""
        table.take(("a", 0, 1, "one"))
        theirs = server.metadata("orders")
        raised = theirs.model_copy(update={"last_sequence_number": 9})
        other = Path(server.tables["orders"].removeprefix("file://") + ".other")
        other.write_text(IcebergBaseModel.model_dump_json(raised))
        server.tables["orders"] += ".other"
        table.take(("a", 0, 2, "two"))
        check(table, catalog)

    def test_who_is_never_first_says_so(self, table: Table, catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
        table.take(("a", 0, 1, "one"))

        def parted(*_: Any) -> None:
            raise CommitFailedException("elsewhere")

        monkeypatch.setattr(catalogs, "_update", parted)
        with pytest.raises(TableChanged, match="others were first 10 times at the catalog tests"):
            table.take(("a", 0, 2, "two"))

    def test_a_refusal_names_the_entry_in_the_configuration(
        self, table: Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.undo()
        with pytest.raises(TableError, match=r"catalog tests: .*PYICEBERG_CATALOG__TESTS__URI"):
            table.take(("a", 0, 1, "one"))

    def test_properties_follow(self, table: Table, catalog: Catalog, server: RestCatalogServer) -> None:
        table.take(("a", 0, 1, "one"))
        loaded = catalog.load_table(NAMED.identifier)
        catalog.commit_table(loaded, (), (SetPropertiesUpdate(updates={"gc.enabled": "true"}),))
        table.take(("a", 0, 2, "two"))
        assert server.metadata("orders").properties["gc.enabled"] == "false"


def ids_agree(table: Table, catalog: Catalog) -> None:
    """The catalog's metadata gives out the ids that the log does, and knows the columns of files that keep them."""
    check(table, catalog)
    theirs, state = catalog.load_table(NAMED.identifier).metadata, table.log.state
    assert theirs.next_row_id == state.next_row  # type: ignore[union-attr]
    assert theirs.current_snapshot().sequence_number == state.version + 1  # type: ignore[union-attr]
    assert state.id_columns is not None and state.id_columns.row in theirs.properties[NAME_MAPPING]


def test_a_catalog_follows_a_table_that_begins_to_keep_ids_and_keeps_them(table: Table, catalog: Catalog) -> None:
    table.take(("a", 0, 1, "one"), ("b", 0, 2, "one"))
    check(table, catalog)
    lineage.begin(table.log)
    ids_agree(table, catalog)
    first = {key: number for key, (number, _) in row_ids(table.place).items()}
    table.take(("a", 0, 3, "two"), ("c", 0, 4, "two"))
    ids_agree(table, catalog)
    folds.optimize(table.log, table.indexes, everything=True)
    ids_agree(table, catalog)
    now = {key: number for key, (number, _) in row_ids(table.place).items()}
    assert now == first | {"c": max(first.values()) + 2}  # the second of the two rows of that batch
    table.take(("b", 0, 5, None))
    table.take(("b", 0, 6, "back"), ("a", 0, 7, "three"))
    ids_agree(table, catalog)


def test_a_catalog_follows_a_table_with_ids_whose_folder_was_moved(table: Table, catalog: Catalog) -> None:
    lineage.begin(table.log)
    table.take(("a", 0, 1, "one"), ("b", 0, 2, "one"))
    Path(table.place).rename(f"{table.place}-moved")
    moved = Table(f"{table.place}-moved")
    if isinstance(catalog, MetastoreCatalog):  # one of REST keeps metadata of its own
        with pytest.raises(TableError, match=r"moved, drop the table shop\.orders there"):
            entry.publish(moved.log)
    catalog.drop_table(NAMED.identifier)
    entry.publish(moved.log)
    ids_agree(moved, catalog)
    moved.take(("a", 0, 3, "two"))
    ids_agree(moved, catalog)
