"""Facts about a table for people: its sizes and numbers, and what its newest commits did."""

from __future__ import annotations

import json
from typing import Any

from headwater.lake.freshness import complete_text
from headwater.lake.iceberg import entry as iceberg
from headwater.lake.iceberg.place import CATALOG
from headwater.lake.log import FOLDER, TableLog
from headwater.lake.places import QUARANTINE, store_of


def describe(log: TableLog) -> dict[str, Any]:
    """Return facts about a table: versions, sizes, numbers of rows. A quarantine's facts are under `quarantine`."""
    facts = _table_facts(log)
    if "quarantine" in json.loads(log.state.records.get("headwater.mirror", "{}")) and facts["kind"] == "documents":
        quarantine = TableLog(store_of(f"{log.store.root}{QUARANTINE}"))
        facts["quarantine"] = _table_facts(quarantine) if quarantine.refresh().version >= 0 else None
    return facts


def _table_facts(log: TableLog) -> dict[str, Any]:
    state = log.refresh()
    files = list(state.files.values())
    mirror = json.loads(state.records.get("headwater.mirror", "{}"))
    return {
        "place": log.store.root,
        "kind": mirror.get("kind", "documents"),
        "version": state.version,
        "bucket": mirror.get("bucket"),
        "batches": mirror.get("batch"),
        # RESTORE leaves the record, whose time is not that of the rows that came back.
        "complete_until": None if log.restored else complete_text(mirror.get("end", {})),
        "files": len(files),
        "bytes": sum(file.size for file in files),
        "rows": sum((file.rows or 0) - file.dead for file in files),
        "dead_rows": sum(file.dead for file in files),
        "columns": len(state.fields),
        "formats": iceberg.formats_of(state).split(","),
        "catalog": state.properties.get(CATALOG),
        "removed_files_kept": log.count_removals(),
    }


def history(log: TableLog, count_max: int = 50) -> list[dict[str, Any]]:
    """Return facts about the newest commits, newest first, as far as the log has them.

    Each has `version`, `timestamp` (milliseconds), `operation` and `operationMetrics` (numbers as text); the last two
    are empty if a writer left them out.
    """
    commits: list[dict[str, Any]] = []
    for version in range(log.state.version, max(-1, log.state.version - count_max), -1):
        try:
            text = log.store.read(f"{FOLDER}/{version:020}.json")
        except FileNotFoundError:
            break
        infos = (json.loads(line).get("commitInfo") for line in text.splitlines() if b'"commitInfo"' in line)
        info: dict[str, Any] = next((entry for entry in infos if entry), {})
        empty = {"timestamp": 0, "operation": "", "operationMetrics": {}}
        commits.append({"version": version} | empty | info)
    return commits
