"""Each difference between the Iceberg table and the log is a line."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from headwater.lake.iceberg import check, entry
from headwater.lake.iceberg.manifests import Content, ManifestEntry
from headwater.lake.iceberg.place import OWN
from headwater.lake.iceberg.publish import LoadedManifest, loaded_manifests
from tests.lake.iceberg.support import published
from tests.lake.support import Table


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Two data files, the first with a vector."""
    made = published(tmp_path)
    made.take(*[(f"k{key}", 0, 1 + key, "one") for key in range(20)])
    made.take(("k3", 0, 100, "two"))
    return made


def test_a_table_that_is_right_has_none(table: Table) -> None:
    assert entry.differences(table.log) == []


def test_nothing_and_an_older_version_are_told_apart(table: Table, tmp_path: Path) -> None:
    table.log.commit([table.record.to_action()], "MIRROR")
    assert entry.differences(table.log) == [
        f"Iceberg: version {table.log.state.version} is not published; the mirror's next batch or start does it"
    ]
    for path in (tmp_path / OWN).iterdir():
        path.unlink()
    assert entry.differences(table.log) == [
        "Iceberg: nothing is published that can be read; the mirror's next start publishes it"
    ]


Change = Callable[[list[ManifestEntry]], Sequence[ManifestEntry]]


@pytest.mark.parametrize(
    ("content", "change", "problem"),
    [
        (Content.DATA, lambda entries: entries[1:], "is in no snapshot"),
        (
            Content.DATA,
            lambda entries: [*entries, replace(entries[0], path="x")],
            "x is in the snapshot and not",
        ),
        (Content.DATA, lambda entries: [*entries, entries[0]], "is listed twice"),
        (Content.DATA, lambda entries: [replace(entries[0], rows=7), *entries[1:]], "has 7 rows"),
        (Content.DATA, lambda entries: [replace(entries[0], size=7), *entries[1:]], "and 7 bytes"),
        (Content.DATA, lambda entries: [replace(entries[0], first_row=None), *entries[1:]], "rows from id None"),
        (Content.DATA, lambda entries: [replace(entries[0], first_row=10**6), *entries[1:]], "rows from id 1000000"),
        (Content.DATA, lambda entries: [replace(entries[0], sequence=99), *entries[1:]], "is older than the file"),
        (Content.DELETES, lambda entries: [], "has 1 dead rows and no vector"),
        (
            Content.DELETES,
            lambda entries: [replace(entries[0], data_file="x")],
            "for x, which is no data file",
        ),
        (Content.DELETES, lambda entries: [*entries, entries[0]], "a vector for .* is listed twice"),
        (Content.DELETES, lambda entries: [replace(entries[0], rows=2)], "is not that of the log"),
        (Content.DELETES, lambda entries: [replace(entries[0], offset=5)], "size or checksum"),
        (Content.DELETES, lambda entries: [replace(entries[0], size=5)], "the manifest says 5"),
        (Content.DELETES, lambda entries: [replace(entries[0], path="file:///gone")], "No such file"),
    ],
)
def test_each_is_a_line(
    content: Content, change: Change, problem: str, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(*given: object) -> list[LoadedManifest]:
        loaded = loaded_manifests(*given)  # type: ignore[arg-type]
        for manifest in loaded:
            if manifest.manifest.content is content:
                manifest.entries = list(change(sorted(manifest.entries, key=lambda entry: entry.first_row or 0)))
        return loaded

    monkeypatch.setattr(check, "loaded_manifests", changed)
    lines = "\n".join(entry.differences(table.log))
    assert re.search(problem, lines), lines
