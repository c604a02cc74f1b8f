"""A change log with every version, and with what each change replaced: equal to a ledger of what was written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyiceberg.table import StaticTable

from harness.lake_faults import judge
from harness.nodes import keep, return_to
from headwater.errors import OptionError
from headwater.lake.history import query
from headwater.pipelines.changelog import ChangeLog
from headwater.pipelines.jobs import Mirror
from headwater.pipelines.mirror import mirror
from headwater.pipelines.sink import TableSink
from headwater.testing.node import Node, node
from tests.lake.iceberg.support import iceberg_of
from tests.pipelines.test_changelog import follow_and_die_between_the_commits

KEYS = [f"k{number}".encode() for number in range(12)]
ROUNDS = 5
ROOT = Path(__file__).parents[2]


@pytest.fixture
def bucket() -> Iterator[Node]:
    with node(vbuckets=4) as running:
        yield running


def follow(bucket: Node, place: Path, **options: Any) -> None:
    mirror(None, bucket.url, place / "t", once=True, workers=0, **{"changelog": True, **options})


def overwrite(bucket: Node, word: bytes) -> None:
    """Write each key several times, and delete every third."""
    with bucket.client() as client:
        for number in range(ROUNDS):
            assert client.set_many((key, b"%s-%d" % (word, number)) for key in KEYS) == {}
        for key in KEYS[::3]:
            client.delete(key)


def log_of(place: Path) -> list[dict[str, Any]]:
    rows = pl.read_delta(str(place / "t_changes")).to_dicts()
    return sorted(rows, key=lambda row: (row["vbucket"], row["batch"], row["seqno"]))


def written(bucket: Node) -> set[tuple[int, int, bytes, bytes | None]]:
    """Return each version that the node has: vbucket, seqno, key and value, None for a deletion."""
    with bucket.client() as client, client.changes(until="now", history=True) as changes:
        found = [change for change in changes if type(change).__name__ in ("Mutation", "Deletion")]
    values = (change.value if type(change).__name__ == "Mutation" else None for change in found)
    return {(change.vbucket, change.seqno, change.key, value) for change, value in zip(found, values, strict=True)}


def check(bucket: Node, place: Path) -> None:
    with bucket.client() as client:
        there = judge.of_nodes(client)
    judge.compare(judge.of_table(place / "t"), there)
    judge.check_changes(place / "t_changes", there)


def check_befores(rows: list[dict[str, Any]]) -> None:
    """Check that each change names the version that the change before it of the same key left, if it names any."""
    last: dict[tuple[int, bytes], dict[str, Any] | None] = {}
    for row in rows:
        place = row["vbucket"], row["key"]
        before = last.get(place)
        if before is None:
            assert row["before"] is None
        elif row["before_known"]:
            assert {name: row["before"][name] for name in row["before"]} == {
                name: before[name] for name in row["before"]
            }
        is_gone = row["event"] != "mutation"
        if row["before_known"]:
            assert row["operation"] == ("delete" if is_gone else "update" if before is not None else "create")
        last[place] = None if is_gone else row


def test_with_history_each_version_is_a_row(bucket: Node, tmp_path: Path) -> None:
    overwrite(bucket, b"one")
    follow(bucket, tmp_path, history=True)
    overwrite(bucket, b"two")
    follow(bucket, tmp_path, history=True)
    rows = [(row["vbucket"], row["seqno"], row["key"], row["value"]) for row in log_of(tmp_path)]
    assert len(rows) == len(set(rows)) == 2 * (len(KEYS) * ROUNDS + len(KEYS[::3]))
    assert set(rows) == written(bucket)
    check(bucket, tmp_path)


def test_without_history_it_has_the_last_versions_alone(bucket: Node, tmp_path: Path) -> None:
    overwrite(bucket, b"one")
    follow(bucket, tmp_path)
    assert len(log_of(tmp_path)) == len(KEYS)
    check(bucket, tmp_path)


def test_the_query_for_the_history_shows_each_version_from_its_seqno_to_that_of_the_next(
    bucket: Node, tmp_path: Path
) -> None:
    overwrite(bucket, b"one")
    follow(bucket, tmp_path, history=True)
    log = DeltaTable(str(tmp_path / "t_changes"))
    found = QueryBuilder().register("changes", log).execute(query("changes")).read_all()
    columns = [found.column(name).to_pylist() for name in ("key", "valid_from", "valid_to", "value")]
    of_key = sorted(row[1:] for row in zip(*columns, strict=True) if row[0] == KEYS[0])
    assert [value for _, _, value in of_key] == [b"one-%d" % number for number in range(ROUNDS)]
    assert [end for _, end, _ in of_key[:-1]] == [start for start, _, _ in of_key[1:]] and of_key[-1][1] is not None


@pytest.mark.parametrize("form", ["delta", "iceberg", "delta,iceberg"])
def test_with_before_each_version_is_a_row_with_what_it_replaced(form: str, bucket: Node, tmp_path: Path) -> None:
    overwrite(bucket, b"one")
    follow(bucket, tmp_path, before=True, format=form)
    overwrite(bucket, b"two")
    follow(bucket, tmp_path, before=True, format=form)
    rows = log_of(tmp_path) if form != "iceberg" else iceberg_log_of(tmp_path)
    check_befores(rows)
    assert all(row["before_known"] for row in rows)
    assert {(row["vbucket"], row["seqno"], row["key"], row["value"]) for row in rows} == written(bucket)
    if form == "delta,iceberg":
        assert iceberg_log_of(tmp_path) == rows


def iceberg_log_of(place: Path) -> list[dict[str, Any]]:
    rows = StaticTable.from_metadata(iceberg_of(place / "t_changes")).scan().to_arrow().to_pylist()
    return sorted(rows, key=lambda row: (row["vbucket"], row["batch"], row["seqno"]))


def test_a_log_that_exists_gets_the_columns_and_keeps_them_without_the_option(bucket: Node, tmp_path: Path) -> None:
    overwrite(bucket, b"one")
    follow(bucket, tmp_path)
    overwrite(bucket, b"two")
    follow(bucket, tmp_path, before=True)
    overwrite(bucket, b"three")
    follow(bucket, tmp_path)
    rows = log_of(tmp_path)
    counts = Counter(row["before_known"] for row in rows)
    assert counts == {None: len(KEYS), True: 2 * (len(KEYS) * ROUNDS + len(KEYS[::3]))}
    (first,) = [row for row in rows if (row["key"], row["value"]) == (KEYS[1], b"two-0")]
    assert (first["operation"], first["before"]["value"]) == ("update", b"one-%d" % (ROUNDS - 1))
    check(bucket, tmp_path)


def test_the_query_of_the_guide_shows_what_documents_were(bucket: Node, tmp_path: Path) -> None:
    overwrite(bucket, b"one")
    follow(bucket, tmp_path, before=True)
    guide = (ROOT / "docs/howto/mirror.md").read_text()
    statement = guide.partition("```sql\nSELECT key, CAST(before.value")[2].partition("```")[0]
    changes = pl.read_delta(str(tmp_path / "t_changes")).to_arrow()
    rows = duckdb.sql(f"SELECT key, CAST(before.value{statement}").fetchall()
    of_key = sorted((was, became) for key, was, became, _ in rows if key == KEYS[1])
    assert of_key == [(f"one-{number}", f"one-{number + 1}") for number in range(ROUNDS - 1)]
    assert changes.num_rows == len(KEYS) * ROUNDS + len(KEYS[::3])


def test_a_base_says_nothing_of_what_was_replaced(bucket: Node, tmp_path: Path) -> None:
    overwrite(bucket, b"one")
    follow(bucket, tmp_path, changelog=False)
    follow(bucket, tmp_path, before=True)
    rows = log_of(tmp_path)
    assert len(rows) == len(KEYS) - len(KEYS[::3])
    assert {(row["before"], row["before_known"], row["operation"]) for row in rows} == {(None, None, None)}
    overwrite(bucket, b"two")
    follow(bucket, tmp_path, before=True)
    (first,) = [row for row in log_of(tmp_path) if (row["key"], row["value"]) == (KEYS[1], b"two-0")]
    assert first["before"]["value"] == b"one-%d" % (ROUNDS - 1)
    check(bucket, tmp_path)


def test_after_a_failover_the_first_versions_name_what_the_living_history_had(bucket: Node, tmp_path: Path) -> None:
    overwrite(bucket, b"kept")
    follow(bucket, tmp_path, before=True)
    then = keep(bucket)
    overwrite(bucket, b"lost")
    follow(bucket, tmp_path, before=True)
    return_to(bucket, then)
    overwrite(bucket, b"won")
    follow(bucket, tmp_path, before=True)
    check(bucket, tmp_path)
    counting = judge.counting(log_of(tmp_path))
    assert not [row for row in counting if row["value"] and row["value"].startswith(b"lost")]
    check_befores(counting)
    won = [row for row in counting if row["value"] and row["value"].startswith(b"won")]
    assert len(won) == len(KEYS) * ROUNDS and all(row["before_known"] for row in won)
    assert {row["before"]["value"] for row in won if row["before"]} >= {b"kept-4", b"won-0"}


def test_changes_that_a_crash_left_in_the_log_alone_come_once(
    bucket: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overwrite(bucket, b"one")
    follow(bucket, tmp_path, before=True)
    overwrite(bucket, b"two")
    follow_and_die_between_the_commits(bucket, tmp_path, monkeypatch)
    overwrite(bucket, b"three")
    follow(bucket, tmp_path, before=True, reading={"maxChangesPerTrigger": "7"})
    check(bucket, tmp_path)
    check_befores(sorted(log_of(tmp_path), key=lambda row: (row["vbucket"], row["seqno"])))


def test_each_collection_has_versions_of_its_own(bucket: Node, tmp_path: Path) -> None:
    with bucket.client() as client:
        client.set(b"k", b"one")
        client.set(b"k", b"two")
    follow(bucket, tmp_path, before=True, collections="all")
    rows = pl.read_delta(str(tmp_path / "t" / "_default" / "_default_changes")).to_dicts()
    assert [(row["value"], row["operation"]) for row in sorted(rows, key=lambda row: row["seqno"])] == [
        (b"one", "create"),
        (b"two", "update"),
    ]


@pytest.mark.parametrize("moment", ["between batches", "amid a batch"])
def test_a_mirror_fills_the_columns_that_another_one_added_meanwhile(
    moment: str, bucket: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows without them would look like those of before."""
    overwrite(bucket, b"one")
    follow(bucket, tmp_path)
    overwrite(bucket, b"two")
    others, name = iter([True]), "tasks" if moment == "between batches" else "commit"
    done = getattr(TableSink, name)

    def late(sink: TableSink, *arguments: Any, **options: Any) -> Any:
        if next(others, False):
            ChangeLog(f"{sink.place}_changes", "default", befores=True)
        return done(sink, *arguments, **options)

    monkeypatch.setattr(TableSink, name, late)
    follow(bucket, tmp_path)
    check(bucket, tmp_path)
    counts = Counter(row["before_known"] for row in log_of(tmp_path))
    assert counts == {None: len(KEYS), True: len(KEYS) * ROUNDS + len(KEYS[::3])}


@pytest.mark.parametrize("name", ["history", "before"])
def test_versions_are_for_the_change_log_alone(name: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=f"{name}.*given with --changelog"):
        Mirror("couchbase://127.0.0.1/default", tmp_path / "t", **{name: True}).check()  # type: ignore[arg-type]
