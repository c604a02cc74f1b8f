"""Auto CDC as its documentation promises it, in a page of Python, over the source's reader in this process."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.types import LongType, StringType, StructType

from headwater.spark.settings import parse
from headwater.spark.source import DcpStreamReader

SCHEMA = StructType()
for name in ("key", "value", "event"):
    SCHEMA.add(name, StringType())
SCHEMA.add("sequence", StructType().add("generation", LongType()).add("seqno", LongType()))
Sequence = tuple[int, int]


@dataclass
class ModelPipeline:
    """A flow of each type, whose checkpoint is in memory.

    Attributes:
        events: by key, every event that came: sequence -> value, None for a deletion.
    """

    url: str
    folder: str
    events: dict[str, dict[Sequence, str | None]] = field(default_factory=dict)
    _offset: dict[str, Any] | None = None

    def update(self, changes_max: int | None = None, *, repeats: bool = False) -> None:
        """Read everything that there is now, as a new process would.

        Args:
            changes_max: the most changes of a batch.
            repeats: True to read every batch twice, as a batch that failed the first time.
        """
        options = {"url": self.url, "undoFolder": self.folder, "keyFormat": "string", "valueFormat": "string"}
        options |= {"maxChangesPerTrigger": str(changes_max)} if changes_max else {}
        reader = DcpStreamReader(parse(options, streaming=True), SCHEMA, 2)
        try:
            reader.prepareForTriggerAvailableNow()
            offset = self._offset or reader.initialOffset()
            while (end := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
                for _ in range(1 + repeats):
                    self._take(reader, offset, json.loads(json.dumps(end)))
                offset = end
            self._offset = offset
        finally:
            reader.stop()

    def _take(self, reader: DcpStreamReader, start: dict[str, Any], end: dict[str, Any]) -> None:
        for partition in reader.partitions(start, end):
            task = pickle.loads(pickle.dumps(reader))  # noqa: S301
            for batch in task.read(pickle.loads(pickle.dumps(partition))):  # noqa: S301
                for row in batch.to_pylist():
                    self._apply(row)

    def _apply(self, row: dict[str, Any]) -> None:
        if row["key"] is None:
            raise ValueError(f"a row without a key, which Auto CDC refuses: {row}")
        sequence = (row["sequence"]["generation"], row["sequence"]["seqno"])
        value = row["value"] if row["event"] == "mutation" else None
        self.events.setdefault(row["key"], {})[sequence] = value

    def scd1(self) -> dict[str, str]:
        """Return the newest value of each key that is not deleted."""
        newest = {key: versions[max(versions)] for key, versions in self.events.items()}
        return {key: value for key, value in newest.items() if value is not None}

    def scd2(self) -> dict[str, list[tuple[str, Any, Any]]]:
        """Return (value, start, end) of each version; equal values in a row are one version."""
        return {key: rows for key, versions in self.events.items() if (rows := _intervals(versions))}


def _intervals(versions: dict[Sequence, str | None]) -> list[tuple[str, Any, Any]]:
    rows: list[tuple[str, Any, Any]] = []
    held: str | None = None
    for sequence in sorted(versions):
        value = versions[sequence]
        if value == held:
            continue
        if held is not None:
            rows[-1] = (*rows[-1][:2], sequence)
        if value is not None:
            rows.append((value, sequence, None))
        held = value
    return rows
