"""Results are kept reader by reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.readers.__main__ import keep


def results(reader: str, reads: str, outcome: str) -> dict[str, Any]:
    cell = {"kind": "k", "form": "delta", "reader": reader, "reads": reads, "outcome": outcome, "words": ""}
    return {"versions": [{"reader": reader, "reads": reads, "versions": "1"}], "cells": [cell]}


def test_what_a_reader_saw_stands_in_place_of_what_it_saw_before_and_beside_others(tmp_path: Path) -> None:
    place = tmp_path / "results.json"
    keep(place, results("DuckDB", "iceberg", "wrong"))
    keep(place, results("DuckDB", "delta", "right"))
    keep(place, results("DuckDB", "iceberg", "right"))
    kept = json.loads(place.read_text())
    assert [(each["reads"], each["outcome"]) for each in kept["cells"]] == [("delta", "right"), ("iceberg", "right")]
    assert len(kept["versions"]) == 2
