"""Publishes a Delta table's state as an Iceberg snapshot, in one atomic step.

    vectors -> manifests -> manifest list -> v<n>.metadata.json -> version-hint.text

Each file is on disk before the next one names it. The metadata file is created only if there is none of its number, and
only behind the metadata that was read: that is the commit, on a folder and on an object store alike. Before it nothing
is visible, after it everything is. The hint may be behind; readers who follow it then find the table's previous state.
Files that a killed process left are found by their age (`unneeded`).

A publication compares the files that the newest manifests list with those of the log, and writes the difference,
whatever its cause: a batch, a fold, a RESTORE, a commit of Spark, several versions at once, or a snapshot of another
writer, which is replaced. So it needs no memory, and may be repeated. Where there is no difference the metadata notes
the version, and gets no snapshot.

The order of reads makes it safe with several processes: first the newest metadata, then the log. A process that has
read an older log has also read older metadata, and can create no file behind that any more.
"""

from __future__ import annotations

import json
import re
import secrets
import struct
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Final
from weakref import WeakKeyDictionary

import pyarrow as pa

from headwater.errors import CorruptStore, TableAway, UnsupportedTable
from headwater.failpoints import failpoint
from headwater.invariants import invariant
from headwater.lake import freshness, vectors
from headwater.lake.iceberg import manifests, metadata, puffin
from headwater.lake.iceberg.manifests import Content, EntryStatus, Listed, ListedManifest, ManifestEntry
from headwater.lake.iceberg.metadata import Metadata
from headwater.lake.iceberg.place import PROPERTY, IcebergPlace, data_location, path_of, place_of, uri
from headwater.lake.iceberg.schema import NAME_MAPPING, FieldIds, UnknownTypeError, integers
from headwater.lake.log import AWAY, DOMAIN, DataFile, TableLog, TableState, identity
from headwater.lake.row_ids import IdColumns, sequence_of
from headwater.lake.store import Listed as ListedFile
from headwater.lake.store import TableStore

ENTRIES_MAX: Final = 1000
"""The number of files in a manifest. A commit writes as many of them anew at most, besides manifests that lose some."""

KEPT_SECONDS: Final = 86_400.0
"""The time for which a file that no snapshot needs any more stays, for readers that began with one that did."""

UNDER_WAY_SECONDS: Final = 3600.0
"""The longest time that a publication may be under way, from its first file to its last."""

_METADATA: Final = re.compile(r"v(\d+)\.metadata\.json")


@dataclass
class LoadedManifest:
    """A manifest of the current snapshot, and the files that it lists as live."""

    manifest: ListedManifest
    entries: list[ManifestEntry]


@dataclass
class MetadataHead:
    """The newest metadata that there is.

    Attributes:
        number: number of its file; 0 if there is none.
        content: the file's bytes; empty if there is none.
        metadata: None if there is none, or none that can be read.
        hinted: the number in the hint; 0 if there is none.
        loaded: the current snapshot's manifests; None before they are read.
        sources: identities in the Delta log of the vectors in Puffin files, by location and offset.
    """

    number: int = 0
    content: bytes = b""
    metadata: Metadata | None = None
    hinted: int = 0
    loaded: list[LoadedManifest] | None = None
    sources: dict[tuple[str, int], str] = field(default_factory=dict)

    @property
    def digest(self) -> bytes:
        """A digest of the file."""
        return blake2b(self.content, digest_size=16).digest()


_heads: WeakKeyDictionary[TableLog, MetadataHead] = WeakKeyDictionary()
"""The newest metadata that this process wrote or read, by the log that it follows."""


class _PartedError(Exception):
    """The metadata that was read is not the newest any more."""


def publish(log: TableLog) -> None:
    """Bring the Iceberg table to the state of the log; the log is refreshed.

    Raises:
        UnsupportedTable: a column of a type that can't be published.
        TableAway: the table is away.
        HeadwaterError, OSError: the publication failed, before or after its commit; the next call completes it.
    """
    while True:
        place = place_of(log)
        head = _heads.get(log) or read_head(place)
        # After the head, see above: the other order could publish an older version behind newer metadata.
        state = _refreshed(log)
        if head.metadata is not None and is_shown(head.metadata, state, place):
            # A process that died between its commit and its hint left the hint behind.
            _hint(place, head)
            _heads[log] = head
            return
        following = _Publication(place, state, head, put_back=log.restored)
        try:
            new_head = following.write()
            failpoint("iceberg.before_commit")
            put(place, head, new_head)
        except BaseException as error:
            # What this process remembers is of no use after a lost race or an answer that did not come: the head is
            # read anew.
            _heads.pop(log, None)
            # The files stay: the metadata that names them may have been put, and only its answer lost.
            if not isinstance(error, _PartedError):
                raise
            following.discard()
            continue
        _heads[log] = new_head
        return


def expire(log: TableLog, seconds: float, now: float) -> None:
    """Publish the log's state without the snapshots that are older than `seconds`.

    Raises: as `publish`.
    """
    while True:
        publish(log)
        head = _heads[log]
        invariant(head.metadata is not None, "{}: nothing is published", log.store.root)
        place = place_of(log)
        oldest, before = int(1000 * (now - seconds)), uri(log.store, place.file_of(head.number))
        trimmed = metadata.without_old(head.metadata or {}, oldest, int(1000 * now), before)
        if trimmed is None:
            return
        new_head = replace(head, number=head.number + 1, content=metadata.encode(trimmed), metadata=trimmed)
        # Another process published meanwhile; its metadata is the base of the next try.
        with suppress(_PartedError):
            put(place, head, new_head)
            _heads[log] = new_head
            return
        _heads.pop(log, None)


def number_of(log: TableLog) -> int:
    """Return the number of the metadata file that this process published or saw last; 0 before that."""
    head = _heads.get(log)
    return head.number if head is not None else 0


def next_row(log: TableLog) -> int:
    """Return the first id of a row that the newest metadata has not given out; 0 if there is none."""
    metadata_now = read_head(place_of(log)).metadata
    return int(metadata_now["next-row-id"]) if metadata_now is not None else 0


def _refreshed(log: TableLog) -> TableState:
    """Refresh the log and return its state.

    Raises:
        TableAway: the log is gone, or another table has taken its place; nothing is published into that table's folder.
    """
    state = log.refresh(sure=True)
    if state.version < 0:
        raise TableAway(log.store.root, AWAY)
    return state


def is_shown(head: Metadata, state: TableState, place: IcebergPlace) -> bool:
    """Return True if metadata shows this version of the Delta table."""
    is_continued = metadata.is_continued(head, state.id, place.location)
    return is_continued and metadata.version_of(head) == (state.id, state.version)


def read_head(place: IcebergPlace) -> MetadataHead:
    """Read the newest metadata, also if the hint is behind. Damaged metadata counts as none, since it is written anew
    from the log.
    """
    store, number = place.store, _hinted(place)
    hinted, content = number, _content(store, place.file_of(number)) if number else None
    if content is None:
        numbers = (_METADATA.fullmatch(file.path.rpartition("/")[2]) for file in store.list(place.own))
        number = max((int(match[1]) for match in numbers if match), default=0)
        content = _content(store, place.file_of(number)) if number else None
    # The hint is written after the commit and may be behind, or a process may have died before it.
    while (following := _content(store, place.file_of(number + 1))) is not None:
        number, content = number + 1, following
    if content is None:
        return MetadataHead(number, hinted=hinted)
    try:
        return MetadataHead(number, content, metadata.decode(content), hinted)
    except ValueError:
        return MetadataHead(number, content, hinted=hinted)


def _hinted(place: IcebergPlace) -> int:
    text = (_content(place.store, place.hint) or b"").strip()
    return int(text) if text.isdigit() else 0


def _content(store: TableStore, path: str) -> bytes | None:
    try:
        return store.read(path)
    except FileNotFoundError:
        return None


def put(place: IcebergPlace, head: MetadataHead, new_head: MetadataHead) -> None:
    """Commit metadata behind the newest one, and note its number for readers.

    Raises:
        _PartedError: another process was first; nothing was committed.
    """
    invariant(new_head.number == head.number + 1, "metadata {} is written behind {}", new_head.number, head.number)
    store, name = place.store, place.file_of(new_head.number)

    def check(content: bytes | None) -> None:
        if content is None or blake2b(content, digest_size=16).digest() != head.digest:
            raise _PartedError

    before = (place.file_of(head.number), check) if head.number else None
    try:
        # The name may be taken by our own file, of which the answer was lost: no two have the same snapshot's id.
        if not store.create(name, new_head.content, before) and _content(store, name) != new_head.content:
            raise _PartedError
    except FileNotFoundError:
        raise _PartedError from None
    failpoint("iceberg.after_commit")
    _hint(place, new_head)


def _hint(place: IcebergPlace, head: MetadataHead) -> None:
    """Write the number of the newest metadata file to the hint, for readers."""
    if head.hinted != head.number:
        place.store.write(place.hint, str(head.number).encode())
        head.hinted = head.number


def loaded_manifests(store: TableStore, snapshot: dict[str, Any]) -> list[LoadedManifest]:
    """Read a snapshot's manifests.

    Raises:
        CorruptStore: one that is damaged. FileNotFoundError: one that is missing.
    """
    return [
        LoadedManifest(manifest, _live(listed_in(store, manifest))) for manifest in listed_manifests(store, snapshot)
    ]


def _live(entries: Iterable[Listed]) -> list[ManifestEntry]:
    return [entry for status, entry in entries if status is not EntryStatus.DELETED]


def listed_in(store: TableStore, manifest: ListedManifest) -> list[Listed]:
    """Read a manifest; raises as `loaded_manifests`."""
    path = path_of(store, manifest.path)
    try:
        return manifests.decode(store.read(path), manifest)
    except ValueError as error:
        raise CorruptStore(store.full(path), 0, str(error)) from None


def listed_manifests(store: TableStore, snapshot: dict[str, Any]) -> list[ListedManifest]:
    """Read a snapshot's manifest list; raises as `loaded_manifests`."""
    path = path_of(store, snapshot["manifest-list"])
    try:
        return manifests.decode_list(store.read(path))
    except ValueError as error:
        raise CorruptStore(store.full(path), 0, str(error)) from None


def sources_of(store: TableStore, path: str) -> dict[tuple[str, int], str]:
    """Return the identities in the Delta log of the vectors in a Puffin file, by location and offset."""
    try:
        blobs = puffin.blobs_of(store.read(path_of(store, path)))
    except ValueError as error:
        raise CorruptStore(path, 0, str(error)) from None
    return {(path, blob.offset): blob.source for blob in blobs}


class _Publication:
    """One try to publish a state behind some metadata.

    Args:
        place: of the Iceberg table.
        state: the version of the Delta table.
        head: the newest metadata.
        put_back: True if somebody put the rows back to an older version: the record's time is not theirs.
    """

    def __init__(self, place: IcebergPlace, state: TableState, head: MetadataHead, *, put_back: bool = False) -> None:
        self._put_back = put_back
        self._place, self._store, self._state, self._head = place, place.store, state, head
        self._token = uuid.uuid4().hex
        self._written_paths: list[str] = []
        self._snapshot = secrets.randbits(62) + 1
        self._sources = dict(head.sources)
        self._base_metadata, self._base_manifests = self._base()
        last: int = self._base_metadata["last-sequence-number"]
        self._sequence: int = last + 1
        self._next_row: int = self._base_metadata["next-row-id"]
        if state.gives_row_ids:
            # In a folder that was moved the version that was shown is shown once more, with the number that it had: the
            # next one would stay ahead of the versions for good, and rows look older than their snapshot.
            self._sequence = max(last if self._was_moved() else last + 1, sequence_of(state.version))
            self._next_row = max(self._next_row, state.next_row)
        self._listed_anew = not self._ids_agree()
        if self._listed_anew:
            self._base_manifests = []

    def _base(self) -> tuple[Metadata, list[LoadedManifest]]:
        """Return the metadata and the manifests to continue: the newest ones, or a table that begins anew."""
        before, place = self._head.metadata, self._place.location
        if before is None or not metadata.is_continued(before, self._state.id, place):
            return metadata.renewed_metadata(before, self._state.id, place), []
        try:
            snapshot = metadata.current_snapshot(before)
            loaded = self._head.loaded
            if loaded is None:
                loaded = loaded_manifests(self._store, snapshot) if snapshot else []
                for path in {entry.path for manifest in loaded for entry in manifest.entries if _is_vector(entry)}:
                    self._sources |= sources_of(self._store, path)
            return before, loaded
        # Whatever is lost of the Iceberg table can be made from the log again; only an outage, which may pass, goes on
        # to the caller.
        except (CorruptStore, FileNotFoundError):
            return metadata.renewed_metadata(before, self._state.id, place), []

    def _was_moved(self) -> bool:
        """Return True if the newest metadata shows the same version of this table at another location."""
        before = self._head.metadata
        if before is None or before["location"] == self._place.location:
            return False
        at_this_place = before | {"location": self._place.location}
        return is_shown(at_this_place, self._state, self._place)

    def _ids_agree(self) -> bool:
        """Return True if the files that are listed have the ids that the log gives to their rows. When a table begins
        to keep ids, all of its files get some, and are listed anew."""
        if not self._state.gives_row_ids:
            return True
        ids_by_path = {data_location(self._store, file): _ids(file) for file in self._state.files.values()}
        data_entries = (entry for manifest in self._base_manifests for entry in manifest.entries if entry.content == 0)
        return all(ids_by_path.get(entry.path) in (None, (entry.first_row, entry.sequence)) for entry in data_entries)

    def write(self) -> MetadataHead:
        """Write all files except the metadata; return the metadata to commit.

        Raises: as `publish`.
        """
        try:
            return self._write()
        except BaseException:
            self.discard()
            raise

    def _write(self) -> MetadataHead:
        with_columns = metadata.with_property(self._with_columns(), freshness.PROPERTY, self._complete_until())
        schema = metadata.current_schema(with_columns)
        invariant(schema is not None, "{}: a table without a schema", self._store.root)
        files_by_location = {data_location(self._store, file): file for file in self._state.files.values()}
        data_manifests = self._of_data(files_by_location, schema or {})
        vector_manifests = self._of_vectors(files_by_location, schema or {})
        failpoint("iceberg.manifests_written")
        loaded = [*data_manifests, *vector_manifests]
        now_ms = int(time.time() * 1000)
        before = uri(self._store, self._place.file_of(self._head.number)) if self._head.number else None
        if self._changes_no_row(with_columns):
            new_metadata = metadata.with_version(with_columns, self._state.version, now_ms, before)
        else:
            new_metadata = metadata.with_snapshot(with_columns, self._snapshot_of(loaded), now_ms, before)
        # As late as possible before the metadata names them.
        self._check_written()
        sources = self._sources_of(loaded)
        return MetadataHead(
            self._head.number + 1, metadata.encode(new_metadata), new_metadata, self._head.hinted, loaded, sources
        )

    def _changes_no_row(self, with_columns: Metadata) -> bool:
        """Return True if the current snapshot has the rows and the columns of this version: no manifest was written.

        A quiet mirror commits its time once a minute. With a snapshot each, the few that are kept would be those of the
        last minutes, and whoever reads an older state would lose it.
        """
        snapshot = metadata.current_snapshot(self._base_metadata)
        if (
            snapshot is None
            or self._written_paths
            or (metadata.version_of(self._base_metadata) or ("",))[0] != self._state.id
        ):
            return False
        return bool(snapshot.get("schema-id") == with_columns["current-schema-id"])

    def _complete_until(self) -> str | None:
        return None if self._put_back else freshness.complete_text_of(self._state.records.get(DOMAIN))

    def _with_columns(self) -> Metadata:
        ids = FieldIds(self._base_metadata["last-column-id"])
        schema = metadata.current_schema(self._base_metadata)
        try:
            fields = ids.fields(self._state.fields, schema["fields"] if schema else ())
        except UnknownTypeError as error:
            advice = "drop the column"
            if self._place.folder:
                advice = f"ALTER TABLE ... UNSET TBLPROPERTIES ('{PROPERTY}') ends the publishing"
            raise UnsupportedTable(
                self._store.root, f"Iceberg gets no column of this type, {error}: {advice}"
            ) from None
        # Whoever continues a mapping knows the columns of all files; only for a new one they are looked for.
        file_names = () if NAME_MAPPING in self._base_metadata["properties"] else _columns_in(self._store, self._state)
        columns = IdColumns.of(self._state.properties)
        return metadata.with_schema(self._base_metadata, fields, ids.last, columns, file_names)

    def _of_data(self, files_by_location: dict[str, DataFile], schema: dict[str, Any]) -> list[LoadedManifest]:
        """Return the manifests of data files; write those that change."""
        loaded = [manifest for manifest in self._base_manifests if manifest.manifest.content is Content.DATA]
        listed_paths = {entry.path for manifest in loaded for entry in manifest.entries}
        columns = integers(schema["fields"])
        new_entries = [
            _data_entry(self._store, path, file, columns)
            for path, file in files_by_location.items()
            if path not in listed_paths
        ]
        if self._state.gives_row_ids:
            new_entries = [_with_ids(entry, files_by_location[entry.path]) for entry in new_entries]
        return self._revised(loaded, lambda entry: entry.path in files_by_location, new_entries, Content.DATA, schema)

    def _of_vectors(self, files_by_location: dict[str, DataFile], schema: dict[str, Any]) -> list[LoadedManifest]:
        """Return the manifests of deletion vectors; write those that change, and the Puffin file of new vectors."""
        loaded = [manifest for manifest in self._base_manifests if manifest.manifest.content is Content.DELETES]
        marked = {path: identity(file.add)[1] for path, file in files_by_location.items() if file.vector}

        def stays(entry: ManifestEntry) -> bool:
            # A vector stays only if it was copied from exactly the one that the log has now. Of another writer's nobody
            # knows what it was made of, so it is replaced.
            source = self._source(entry) if _is_vector(entry) else None
            return source is not None and source == marked.get(entry.data_file or "")

        listed_vectors = {entry.data_file for manifest in loaded for entry in manifest.entries if stays(entry)}
        new_vectors = {path: source for path, source in marked.items() if path not in listed_vectors}
        new_entries = self._puffin(new_vectors, files_by_location) if new_vectors else []
        return self._revised(loaded, stays, new_entries, Content.DELETES, schema)

    def _source(self, entry: ManifestEntry) -> str | None:
        return self._sources.get((entry.path, entry.offset or 0)) or None

    def _puffin(self, new_vectors: dict[str, str], files_by_location: dict[str, DataFile]) -> list[ManifestEntry]:
        copied = []
        for path, source in new_vectors.items():
            descriptor = files_by_location[path].vector or {}
            copied.append((path, int(descriptor["cardinality"]), source, vectors.body(self._store, descriptor)))
        content, blobs = puffin.encode(copied)
        place = self._put(f"{self._token}-deletes.puffin", content)
        failpoint("iceberg.vectors_written")
        self._sources |= {(place, blob.offset): blob.source for blob in blobs}
        return [
            ManifestEntry(
                place,
                blob.cardinality,
                len(content),
                data_file=blob.data_file,
                offset=blob.offset,
                length=blob.length,
                kind="puffin",
                content=1,
            )
            for blob in blobs
        ]

    def _revised(
        self,
        loaded: Sequence[LoadedManifest],
        stays: Callable[[ManifestEntry], bool],
        new_entries: Sequence[ManifestEntry],
        content: Content,
        schema: dict[str, Any],
    ) -> list[LoadedManifest]:
        """Return the manifests of one kind with the new entries, and without the entries that don't stay.

        Manifests that lose none are kept as they are. The live files of others, and of small ones, are listed anew
        together with the added ones, so that a table has few manifests and a commit writes few entries.
        """
        revised: list[LoadedManifest] = []
        rewritten: list[LoadedManifest] = []
        for manifest in loaded:
            if not manifest.entries:
                continue  # it only said what the snapshot before had lost
            is_unchanged = manifest.manifest.spec == 0 and all(map(stays, manifest.entries))
            (revised if is_unchanged else rewritten).append(manifest)
        if not (rewritten or new_entries):
            return revised
        room = ENTRIES_MAX - len(new_entries) - sum(len(manifest.entries) for manifest in rewritten)
        for each in sorted(revised, key=lambda each: len(each.entries)):
            if (room := room - len(each.entries)) < 0:
                break
            rewritten.append(each)
        names = {manifest.manifest.path for manifest in rewritten}
        entries: list[Listed] = []
        for entry in (entry for manifest in rewritten for entry in manifest.entries):
            if stays(entry):
                entries.append((EntryStatus.EXISTING, entry))
            # Deletes by value have no place in a list of vectors; they were another writer's, and the log knows nothing
            # of them.
            elif entry.content < 2:
                entries.append((EntryStatus.DELETED, replace(entry, snapshot=self._snapshot)))
        entries += [(EntryStatus.ADDED, replace(entry, snapshot=self._snapshot)) for entry in new_entries]
        new = [self._manifest(part, content, schema) for part in _parts(entries)]
        return [*(manifest for manifest in revised if manifest.manifest.path not in names), *new]

    def _manifest(self, entries: list[Listed], content: Content, schema: dict[str, Any]) -> LoadedManifest:
        packed = manifests.encode(entries, content, schema, secrets.token_bytes(manifests.SYNC_BYTES))
        place = self._put(f"{self._token}-m{len(self._written_paths)}.avro", packed)
        # The manifest's first id is taken before its own files count it up.
        first = self._next_row if content is Content.DATA else None
        manifest = manifests.described(place, packed, content, entries, self._sequence, self._snapshot, first)
        return LoadedManifest(
            manifest, _live((status, self._numbered_entry(status, entry, content)) for status, entry in entries)
        )

    def _numbered_entry(self, status: EntryStatus, entry: ManifestEntry, content: Content) -> ManifestEntry:
        """Return an entry with the sequence numbers and row ids that the snapshot assigns to an added file, unless the
        log has assigned them; others unchanged.

        Readers get the snapshot's from the manifest list.
        """
        if status is not EntryStatus.ADDED:
            return entry
        sequence = self._sequence if entry.sequence is None else entry.sequence
        numbered = replace(entry, sequence=sequence, file_sequence=self._sequence)
        if content is Content.DATA and entry.first_row is None:
            numbered = replace(numbered, first_row=self._next_row)
            self._next_row += entry.rows
        return numbered

    def _snapshot_of(self, loaded: Sequence[LoadedManifest]) -> dict[str, Any]:
        """Write the manifest list; return the snapshot."""
        parent = metadata.current_snapshot(self._base_metadata)
        first = self._base_metadata["next-row-id"]
        above = None if parent is None else parent["snapshot-id"]
        listed_manifests = [manifest.manifest for manifest in loaded]
        marker = secrets.token_bytes(manifests.SYNC_BYTES)
        packed = manifests.encode_list(listed_manifests, self._snapshot, above, self._sequence, first, marker)
        snapshot = {
            "snapshot-id": self._snapshot,
            "sequence-number": self._sequence,
            "manifest-list": self._put(f"snap-{self._snapshot}-{self._token}.avro", packed),
            "summary": self._summary(loaded),
            "first-row-id": first,
            "added-rows": self._next_row - first,
        }
        return snapshot | ({} if above is None else {"parent-snapshot-id": above})

    def _summary(self, loaded: Sequence[LoadedManifest]) -> dict[str, str]:
        own_manifests = [manifest.manifest for manifest in loaded if manifest.manifest.snapshot == self._snapshot]
        by_kind = {kind: [manifest for manifest in own_manifests if manifest.content is kind] for kind in Content}
        added_count, removed_count = (
            sum(manifest.files[status] for manifest in by_kind[Content.DATA]) for status in (1, 2)
        )
        vectors_changed = sum(manifest.files[1] + manifest.files[2] for manifest in by_kind[Content.DELETES])
        live = [entry for manifest in loaded for entry in manifest.entries]
        totals = {kind: [entry for entry in live if min(entry.content, 1) == kind] for kind in Content}
        numbers = {
            "added-data-files": added_count,
            "deleted-data-files": removed_count,
            "added-records": sum(manifest.rows[1] for manifest in by_kind[Content.DATA]),
            "deleted-records": sum(manifest.rows[2] for manifest in by_kind[Content.DATA]),
            "total-data-files": len(totals[Content.DATA]),
            "total-records": sum(entry.rows for entry in totals[Content.DATA]),
            "total-delete-files": len(totals[Content.DELETES]),
            "total-position-deletes": sum(entry.rows for entry in totals[Content.DELETES]),
            "total-equality-deletes": 0,
            metadata.VERSION: self._state.version,
        }
        # "append -- Only data files were added and no files were removed."
        operation = "overwrite" if removed_count or vectors_changed or self._listed_anew else "append"
        fields = {"operation": operation, "engine-name": "headwater", metadata.TABLE: self._state.id}
        return fields | {name: str(number) for name, number in numbers.items()}

    def _sources_of(self, loaded: Iterable[LoadedManifest]) -> dict[tuple[str, int], str]:
        places = {
            (entry.path, entry.offset or 0) for manifest in loaded for entry in manifest.entries if _is_vector(entry)
        }
        return {place: source for place, source in self._sources.items() if place in places}

    def _put(self, name: str, content: bytes) -> str:
        """Write a file, durably; return its location."""
        path = f"{self._place.own}/{name}"
        # Noted before it is written, so that `discard` also finds the file of a write whose answer was lost.
        self._written_paths.append(path)
        self._store.write(path, content)
        return uri(self._store, path)

    def _check_written(self) -> None:
        """Check that all files of this publication still exist.

        If this process stood still for a day, another one may have removed them by their age; metadata that names a
        missing file can't be read.

        Raises:
            FileNotFoundError: one is gone.
        """
        for path in self._written_paths:
            if not self._store.exists(path):
                raise FileNotFoundError(f"{self._store.full(path)} was removed before it was published; try again")

    def discard(self) -> None:
        """Remove the files that were written, as far as that is possible."""
        for path in self._written_paths:
            # What is left is removed by its age; the error that ends the publication is the one that counts.
            with suppress(Exception):
                self._store.remove(path)


def _is_vector(entry: ManifestEntry) -> bool:
    return entry.content == 1 and entry.kind == "puffin" and entry.data_file is not None


def _parts(entries: list[Listed]) -> Iterator[list[Listed]]:
    for at in range(0, len(entries), ENTRIES_MAX):
        yield entries[at : at + ENTRIES_MAX]


def _columns_in(store: TableStore, state: TableState) -> Iterator[str]:
    """Yield the names of the columns in the table's data files; reads the end of each."""
    for file in state.files.values():
        # A file that is lost or damaged is `lake verify`'s to name: nobody reads it, whatever its columns were.
        with suppress(FileNotFoundError, pa.ArrowException), store.parquet(file.path) as parquet_file:
            yield from parquet_file.schema_arrow.names


def _data_entry(store: TableStore, path: str, file: DataFile, columns: dict[str, tuple[int, int]]) -> ManifestEntry:
    stats = json.loads(file.add["stats"]) if file.add.get("stats") else {}
    lower, upper = (_bounds(stats.get(side) or {}, columns) for side in ("minValues", "maxValues"))
    return ManifestEntry(path, _rows_in(store, file), file.size, lower, upper)


def _ids(file: DataFile) -> tuple[int, int] | None:
    """Return the id of a file's first row and the sequence number of its rows, if the log has them."""
    return None if file.first_row is None or file.commit is None else (file.first_row, sequence_of(file.commit))


def _with_ids(entry: ManifestEntry, file: DataFile) -> ManifestEntry:
    """Return a file's entry with the ids that the log gives to its rows."""
    first, sequence = _ids(file) or (None, None)
    return replace(entry, first_row=first, sequence=sequence)


def _bounds(values: dict[str, Any], columns: dict[str, tuple[int, int]]) -> dict[int, bytes]:
    packed = {4: struct.Struct("<i"), 8: struct.Struct("<q")}
    bounds = {}
    for name, (number, size) in columns.items():
        # A bool is an int to Python, and no bound of a number.
        if type(value := values.get(name)) is int:
            bounds[number] = packed[size].pack(value)
    return bounds


def _rows_in(store: TableStore, file: DataFile) -> int:
    """Return the number of rows in a file, dead ones included; read from the file if the log does not have it."""
    if file.rows is not None:
        return file.rows
    with store.parquet(file.path) as parquet_file:
        return int(parquet_file.metadata.num_rows)


def unneeded(log: TableLog, now: float) -> list[ListedFile]:
    """Return the Iceberg table's own files that no snapshot needs and that are older than a day; none if a manifest is
    damaged.

    Args:
        log: of the table, which is published.
        now: Unix seconds.
    """
    place = place_of(log)
    # Listed before the head is read: a file of a publication that commits in between is in the list, and needed by the
    # head that is read.
    own_files = log.store.list(place.own)
    head = read_head(place)
    if head.metadata is None:
        return []
    try:
        paths = _needed_paths(place, head.number, head.metadata)
    except (CorruptStore, FileNotFoundError):
        return []
    # By the clock, but the clock may be wrong: nothing goes that may be of a publication under way.
    newest = max((file.modified for file in own_files if file.path == place.file_of(head.number)), default=0.0)
    oldest = min(now - KEPT_SECONDS, newest - UNDER_WAY_SECONDS)
    return [file for file in own_files if file.path not in paths and file.modified < oldest]


def _needed_paths(place: IcebergPlace, number: int, head: Metadata) -> set[str]:
    """Return the paths of the Iceberg table's own files that the newest metadata needs, and of the metadata files it
    names.
    """
    store, numbers = place.store, range(max(number - metadata.SNAPSHOTS_MAX, 1), number + 1)
    paths = {place.hint, *map(place.file_of, numbers)}
    manifests_of: dict[str, ListedManifest] = {}
    for snapshot in head["snapshots"]:
        paths.add(path_of(store, snapshot["manifest-list"]))
        manifests_of |= {manifest.path: manifest for manifest in listed_manifests(store, snapshot)}
    for manifest in manifests_of.values():
        paths.add(path_of(store, manifest.path))
        if manifest.content is Content.DELETES:
            paths |= {path_of(store, entry.path) for _, entry in listed_in(store, manifest)}
    return paths
