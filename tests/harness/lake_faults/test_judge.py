"""The comparison: it has to find what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from harness.lake_faults.judge import Bucket, Wrong, check_changes, compare, of_nodes, of_table
from headwater.pipelines.mirror import mirror
from headwater.spark.history import BranchHistory
from headwater.testing.node import Node, node


@pytest.fixture(scope="module")
def mirrored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Path]]:
    place = tmp_path_factory.mktemp("lake") / "t"
    with node(vbuckets=2) as bucket, bucket.client() as client:
        client.set_many((f"k{i}", b"v%d" % i) for i in range(10))
        mirror(None, bucket.url, place, once=True, changelog=True, workers=0)
        client.delete("k3")
        mirror(None, bucket.url, place, once=True, changelog=True, workers=0)
        yield bucket, place


@pytest.fixture
def there(mirrored: tuple[Node, Path]) -> Bucket:
    with mirrored[0].client() as client:
        return of_nodes(client)


def test_a_table_that_is_what_the_bucket_is_passes(mirrored: tuple[Node, Path], there: Bucket) -> None:
    assert len(there.documents) == 9
    compare(of_table(mirrored[1]), there)
    check_changes(Path(f"{mirrored[1]}_changes"), there)


def test_every_kind_of_difference_is_found(there: Bucket) -> None:
    first, second, *_ = sorted(there.documents)
    other = dict(there.documents)
    other[0, b"surplus"] = other.pop(first)
    other[second] = other[second]._replace(flags=7)
    with pytest.raises(Wrong, match=r"1 are missing in the table .* 1 are only in the table .* flags 7 for 0"):
        compare(other, there)


@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        (lambda rows: pl.concat([rows, rows.head(1)]), "is there twice"),
        (lambda rows: rows.filter(pl.col("key") != b"k5"), "missing"),
        (lambda rows: rows.filter(pl.col("event") != "deletion"), "surplus"),
        (lambda rows: rows.with_columns(value=pl.lit(b"x")), "different"),
    ],
)
def test_a_change_log_that_breaks_its_promise_is_found(
    harm: Callable[[pl.DataFrame], pl.DataFrame],
    problem: str,
    mirrored: tuple[Node, Path],
    there: Bucket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = harm(pl.read_delta(f"{mirrored[1]}_changes"))
    monkeypatch.setattr(pl, "read_delta", lambda *_, **__: rows)
    with pytest.raises(Wrong, match=problem):
        check_changes(mirrored[1], there)


def test_a_row_of_a_dead_history_that_counts_is_found(mirrored: tuple[Node, Path], there: Bucket) -> None:
    shorter = {
        vb: BranchHistory(((99, 1), *history.log), history.high_seqno) for vb, history in there.histories.items()
    }
    with pytest.raises(Wrong, match="a row of a dead history counts"):
        check_changes(Path(f"{mirrored[1]}_changes"), replace(there, histories=shorter))
