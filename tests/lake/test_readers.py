"""Tables and change logs as readers see them that are not ours: with deletion vectors, and as history."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from headwater import testing
from headwater.lake import folds, lineage, upkeep
from headwater.pipelines.mirror import mirror
from tests.guides.blocks import blocks
from tests.lake.support import Table

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the package of DuckDB's extension is for Linux")


@pytest.fixture
def duck() -> Iterator[Any]:
    """DuckDB with its extension, which comes as a package: nothing is fetched."""
    import duckdb_extension_delta  # noqa: PLC0415

    (extension,) = Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension")
    with duckdb.connect() as connection:
        connection.execute(f"LOAD '{extension}'")
        yield connection


@pytest.mark.parametrize("keeps_ids", [False, True])
def test_duckdb_sees_no_row_that_is_dead(keeps_ids: bool, duck: Any, tmp_path: Path) -> None:
    table = Table(tmp_path)
    if keeps_ids:
        lineage.begin(table.log)
    table.take(*[(f"k{key}", key % 4, 1 + key, "one") for key in range(2000)])
    table.take(*[(f"k{key}", key % 4, 3000 + key, "two") for key in range(0, 2000, 3)])
    table.take(*[(f"k{key}", key % 4, 6000 + key, None) for key in range(0, 2000, 5)])
    expected = {f"k{key}": "one" if key % 3 else "two" for key in range(2000) if key % 5}

    def seen() -> dict[str, str]:
        rows = duck.execute(f"SELECT decode(key), decode(value) FROM delta_scan('{tmp_path}')").fetchall()
        assert len(rows) == len(dict(rows))
        return dict(rows)

    assert seen() == expected
    upkeep.checkpoint(table.log)
    folds.optimize(table.log, table.indexes, everything=True)
    assert seen() == expected


def test_duckdb_takes_the_guides_query_of_a_variant(duck: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (asked,) = (
        block.text for block in blocks("docs/howto/mirror.md") if block.text.startswith("SELECT key, document.")
    )
    monkeypatch.chdir(tmp_path)
    with testing.node(vbuckets=4) as node:
        with node.client() as bucket:
            bucket.set_many({"a": '{"address": {"city": "Bern"}}', "b": "no JSON"}.items())
        mirror(None, node.url, tmp_path / "lake/default", once=True, variant=True, workers=0)
    assert sorted(duck.execute(asked).fetchall()) == [("a", "Bern"), ("b", None)]
