"""Openings travel to processes that open a sink for themselves."""

from __future__ import annotations

from pathlib import Path

from headwater.pipelines.sink import TableOpening, TableSink
from headwater.pipelines.sinks import from_text, to_text


def test_an_opening_comes_out_of_its_text_and_opens_the_same_place(tmp_path: Path) -> None:
    table = TableSink(tmp_path / "t", "b", changelog=tmp_path / "t_changes")
    again = from_text(to_text(table.opening()))
    assert again == TableOpening(table.place, "b", str(tmp_path / "t_changes"))
    opened = again.open()
    assert (opened.place, opened.refresh().digest, opened.begun()) == (table.place, table.record.digest, None)
