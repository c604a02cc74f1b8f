"""Tables of every kind, each read by a reader that is here: rows are those of the bucket."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness.readers.environments import READERS, python_of
from harness.readers.kinds import KINDS, Kind, written
from harness.readers.matrix import cells
from tests.battery import few_of

HERE = ("polars-delta", "pyiceberg", "duckdb-iceberg")
FEW = [each for each in KINDS if each.name in {"whole documents, with deletion vectors", "`--changelog`"}]
CANNOT = {
    ("`--unfold --widen`", "polars-delta"): "refuses",
    ("`--row-ids`: the ids", "polars-delta"): "refuses",
    ("`--row-ids`: the ids", "pyiceberg"): "refuses",
}
"""Refusals of these readers, as the page has them."""


@pytest.mark.skipif(sys.platform != "linux", reason="the packages of DuckDB's extensions are for Linux")
@pytest.mark.parametrize("kind", few_of(KINDS, *FEW), ids=lambda kind: kind.name)
def test_readers_see_what_the_bucket_has(kind: Kind, tmp_path: Path) -> None:
    tables = list(written(tmp_path, (kind,), ("delta,iceberg",)))
    found = list(cells([reader for reader in READERS if reader.program in HERE], tables, tmp_path))
    programs = {(reader.name, reader.form): reader.program for reader in READERS}
    for cell in found:
        wanted = CANNOT.get((cell.kind, programs[cell.reader, cell.reads]), "right")
        assert (cell.outcome, cell.words) == (wanted, cell.words if wanted == "refuses" else ""), cell
    assert found or kind.name == "`--variant`"


@pytest.mark.battery
@pytest.mark.timeout(900)
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: f"{reader.program}, {reader.name}")
def test_every_reader_that_is_installed_reads_whole_documents(reader: object, tmp_path: Path) -> None:
    (chosen,) = (each for each in READERS if each is reader)
    if python_of(chosen) is None:
        pytest.skip(f"{chosen.name} is not installed: python -m harness.readers setup")
    tables = list(written(tmp_path, (KINDS[0],), ("delta,iceberg",)))
    assert [(cell.outcome, cell.words) for cell in cells([chosen], tables, tmp_path)] == [("right", "")]
