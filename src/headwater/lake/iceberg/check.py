"""A comparison of the Iceberg table with the log, file by file and vector by vector."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from headwater.errors import CorruptStore
from headwater.lake import vectors
from headwater.lake.iceberg import metadata, puffin
from headwater.lake.iceberg.manifests import ManifestEntry
from headwater.lake.iceberg.place import data_location, path_of, place_of
from headwater.lake.iceberg.publish import (
    LoadedManifest,
    is_shown,
    loaded_manifests,
    read_head,
)
from headwater.lake.log import DataFile, TableLog
from headwater.lake.store import TableStore


def differences(log: TableLog) -> list[str]:
    """Return the differences between the Iceberg table and the log, a line each. `log` must have been refreshed.

    A mirror that is running may be between its two commits: then the line says that the newest version is not
    published.
    """
    place = place_of(log)
    head = read_head(place)
    if head.metadata is None:
        return ["Iceberg: nothing is published that can be read; the mirror's next start publishes it"]
    if not is_shown(head.metadata, log.state, place):
        return [f"Iceberg: version {log.state.version} is not published; the mirror's next batch or start does it"]
    snapshot = metadata.current_snapshot(head.metadata)
    try:
        loaded = loaded_manifests(log.store, snapshot) if snapshot else []
        return [f"Iceberg: {line}" for line in _problems(log, loaded, head.metadata["next-row-id"])]
    except (CorruptStore, FileNotFoundError) as error:
        return [f"Iceberg: {error}"]


def _problems(log: TableLog, loaded: list[LoadedManifest], next_row: int) -> Iterator[str]:
    logged_files = {data_location(log.store, file): file for file in log.state.files.values()}
    entries = [entry for manifest in loaded for entry in manifest.entries]
    data = [entry for entry in entries if entry.content == 0]
    vectors_by_file = {entry.data_file: entry for entry in entries if entry.content != 0}
    yield from _duplicates([entry.path for entry in data], "the data file")
    yield from _duplicates([str(entry.data_file) for entry in entries if entry.content != 0], "a vector for")
    shown_files = {entry.path: entry for entry in data}
    for path in sorted(shown_files.keys() ^ logged_files.keys()):
        place = "no snapshot" if path in logged_files else "the snapshot and not in the log"
        yield f"the data file {path} is in {place}"
    for path in sorted(shown_files.keys() & logged_files.keys()):
        yield from _of_file(log.store, path, logged_files[path], shown_files[path], vectors_by_file.pop(path, None))
    yield from (f"there is a vector for {path}, which is no data file" for path in vectors_by_file)
    yield from _of_rows(data, next_row)


def _duplicates(paths: list[str], kind: str) -> Iterator[str]:
    yield from (f"{kind} {path} is listed twice" for path, count in sorted(Counter(paths).items()) if count > 1)


def _of_file(
    store: TableStore, path: str, file: DataFile, entry: ManifestEntry, vector: ManifestEntry | None
) -> Iterator[str]:
    if entry.size != file.size or (file.rows is not None and entry.rows != file.rows):
        yield f"{path} has {entry.rows} rows and {entry.size} bytes, in the log {file.rows} and {file.size}"
    if file.first_row is not None and file.first_row != entry.first_row:
        yield f"{path} has rows from id {entry.first_row}, in the log {file.first_row}"
    if (vector is None) is not (file.vector is None):
        yield f"{path} has {file.dead} dead rows and {'no' if vector is None else 'a'} vector"
    elif vector is not None and file.vector is not None:
        try:
            body = _body_of(store, vector)
        except (ValueError, FileNotFoundError) as error:
            yield f"the vector of {path} in {vector.path}: {error}"
        else:
            if body != vectors.body(store, file.vector) or vector.rows != file.dead:
                yield f"the vector of {path} is not that of the log"
            if (vector.sequence or 0) < (entry.sequence or 0):
                yield f"the vector of {path} is older than the file, and readers leave it out"


def _body_of(store: TableStore, vector: ManifestEntry) -> bytes:
    """Return the body of a vector.

    Raises:
        ValueError: the vector or its file is damaged, or the footer has the vector at another place: the manifest "must
            exactly match the offset and length stored in the Puffin footer". FileNotFoundError: there is no such file.
    """
    content = store.read(path_of(store, vector.path))
    if len(content) != vector.size:
        raise ValueError(f"the file has {len(content)} bytes, the manifest says {vector.size}")
    body = puffin.body_of(content, vector.offset or 0, vector.length or 0)
    places = [(blob.data_file, blob.offset, blob.length) for blob in puffin.blobs_of(content)]
    if (vector.data_file, vector.offset, vector.length) not in places:
        raise ValueError(f"the footer has no vector of {vector.length} bytes at {vector.offset} for this file")
    return body


def _of_rows(data: list[ManifestEntry], next_row: int) -> Iterator[str]:
    """Yield a line for each data file whose row ids overlap those of another or exceed the table's next row id.

    "next-row-id must always be higher than any assigned row ID in the table".
    """
    last = 0
    for entry in sorted(data, key=lambda entry: entry.first_row if entry.first_row is not None else -1):
        if entry.first_row is None or entry.first_row < last or entry.first_row + entry.rows > next_row:
            yield f"{entry.path} has rows from id {entry.first_row}, the last before it is {last}, the next {next_row}"
        else:
            last = entry.first_row + entry.rows
