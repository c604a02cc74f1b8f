"""Opening a store: read the manifest, verify every byte, index everything, cut the end of an interrupted write.

Recovery is replay: the segments in the manifest's order, in each the batches, in each the frames. What may be wrong,
and what is done about it:

* the last batch of the last segment is bad and no valid batch lies behind it: the write was cut off before its sync
  returned, nobody was told of it. It is cut.
* anything else is bad: CorruptStore with file and offset. Nothing is skipped, nothing is changed on disk.
* files that no manifest names: left over from an interrupted roll or compaction. They are removed.

Everything here may be interrupted and run again: the cut is the only change to data, and it is the same each time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headwater.errors import CorruptStore, OptionError
from headwater.failpoints import failpoint
from headwater.kernels import history, index
from headwater.node.storage import batch as batches
from headwater.node.storage.columns import Index
from headwater.node.storage.disk import Disk
from headwater.node.storage.manifest import NAME, NEXT_NAME, Entry, Manifest, ManifestFile
from headwater.node.storage.records import Control, VBucketRecord, control_of
from headwater.node.storage.segment import HEADER_BYTES, Segment, SegmentHeader, name_of
from headwater.node.storage.slots import Slots

__all__ = [
    "Opened",
    "Replay",
    "check_clean",
    "current",
    "cut",
    "load_manifest",
    "open_segments",
    "remove_strangers",
    "reread",
    "restore",
]

Bodies = NDArray[np.int64]

_REASONS = {
    history.BAD_LENGTH: "a frame is longer than its batch",
    history.BAD_VBUCKET: "a frame is of vbucket {0}, which the store does not have",
    history.BAD_SEQNO: "the seqno of a frame of vbucket {0} is not above the one before it",
    history.BAD_KIND: "a frame has an opcode or extras that this version never writes",
}


def load_manifest(disk: Disk, folder: Path, vbuckets: int, random: Callable[[int], bytes]) -> ManifestFile:
    """The manifest of the store in `folder`, which is made when the folder holds no store."""
    names = disk.names(folder)
    if NAME in names:
        content = Manifest.decode(disk.read(folder / NAME), folder / NAME)
        if content.vbuckets != vbuckets:
            raise OptionError("vbuckets", vbuckets, f"{content.vbuckets}, with which the store in {folder} was made")
        return ManifestFile(disk, folder, content)
    if any(name.endswith(".log") for name in names):
        raise CorruptStore(folder / NAME, 0, "the manifest is missing, though there are segments")
    file = ManifestFile(disk, folder, Manifest(random(16), vbuckets, generation=0))
    file.change(lambda manifest: manifest)
    return file


def remove_strangers(disk: Disk, folder: Path, manifest: Manifest) -> None:
    """Remove what an interrupted roll or compaction left."""
    known = {name_of(entry.id) for entry in manifest.segments}
    for name in disk.names(folder):
        if name == NEXT_NAME or (name.endswith(".log") and name not in known):
            disk.remove(folder / name)


@dataclass(slots=True)
class Opened:
    """A segment that was read: where the frames of its batches are, and where a cut is due (0: nowhere)."""

    segment: Segment
    bodies: Bodies
    torn_end: int = 0


def open_segments(disk: Disk, folder: Path, manifest: Manifest, segment_bytes: int) -> list[Opened]:
    """Open and verify all segments. Raises CorruptStore; opens nothing then."""
    opened: list[Opened] = []
    try:
        for entry in manifest.segments:
            opened.append(_open_segment(disk, folder, manifest, entry, segment_bytes))
    except BaseException:
        for one in opened:
            one.segment.close()
        raise
    return opened


def _open_segment(disk: Disk, folder: Path, manifest: Manifest, entry: Entry, segment_bytes: int) -> Opened:
    path = folder / name_of(entry.id)
    try:
        file = disk.open(path)
    except FileNotFoundError:
        raise CorruptStore(path, 0, "the file is missing, the manifest names it") from None
    try:
        size = file.size()
        if entry.bytes is not None and size < entry.bytes:
            raise CorruptStore(path, size, f"the file ends here, it was sealed with {entry.bytes} bytes")
        if entry.bytes is None and size < segment_bytes:
            file.truncate(segment_bytes)
        segment = Segment(path, SegmentHeader.decode(bytes(file.map()[: min(size, HEADER_BYTES)]), path), file)
        header = segment.header
        if (header.store, header.id, header.salt) != (manifest.store, entry.id, entry.salt):
            raise CorruptStore(path, 0, f"this is segment {header.id} of store {header.store.hex()}, another one")
        return _verify_sealed(segment, entry.bytes) if entry.bytes is not None else _verify_open(segment)
    except BaseException:
        file.close()
        raise


def _walk(segment: Segment, end: int) -> tuple[Bodies, batches.Torn | None]:
    """All valid batches up to `end`, counted in the segment, and what stopped before it."""
    bodies: list[tuple[int, int]] = []
    torn = None
    data, header = segment.memory.data, segment.header
    try:
        for one in batches.walk(data, HEADER_BYTES, end, header.salt, header.first_batch):
            bodies.append((one.start, one.end))
            segment.end = one.end
            segment.batches += 1
    except batches.Torn as found:
        torn = found
    segment.reserved = segment.end
    return np.array(bodies, np.int64).reshape(-1, 2), torn


def _verify_sealed(segment: Segment, end: int) -> Opened:
    segment.writable().populate(segment.memory, end)
    bodies, torn = _walk(segment, end)
    if torn is not None:
        raise CorruptStore(segment.path, torn.offset, torn.why)
    segment.close()
    return Opened(segment, bodies)


def _verify_open(segment: Segment) -> Opened:
    file = segment.writable()
    file.populate(segment.memory, file.data_end(0))
    bodies, torn = _walk(segment, segment.size)
    if torn is None:
        return Opened(segment, bodies)
    written = file.data_end(torn.offset)
    data, salt = segment.memory.data, segment.header.salt
    if later := batches.find_later(data, torn.offset, written, salt, segment.next_number):
        why = f"{torn.why}; batch {later.number} at byte {later.offset} is whole, so this was no interrupted write"
        raise CorruptStore(segment.path, torn.offset, why)
    return Opened(segment, bodies, torn.offset if segment.memory[torn.offset : written].any() else 0)


def reread(segment: Segment) -> Opened:
    """Where the frames of a segment's durable batches are."""
    data, header = segment.memory.data, segment.header
    found = batches.walk(data, HEADER_BYTES, segment.end, header.salt, header.first_batch)
    return Opened(segment, np.array([(one.start, one.end) for one in found], np.int64).reshape(-1, 2))


def check_clean(opened: list[Opened], manifest: Manifest, clean: bool) -> None:
    """A store that was closed in order must be as long as it was then."""
    if manifest.clean is not None and opened:
        segment = opened[-1].segment
        if segment.end != manifest.clean or not clean:
            why = f"the log ends here, {manifest.clean} bytes were written before the store was closed in order"
            raise CorruptStore(segment.path, segment.end, why)


def cut(opened: Opened) -> None:
    """Remove the bytes of a write that was cut off; the same again when this is interrupted."""
    if opened.torn_end:
        file, size = opened.segment.writable(), opened.segment.size
        file.truncate(opened.torn_end)
        file.truncate(size)
        file.sync()
        failpoint("recover.cut")


class Replay:
    """Puts the frames of segments into an index, in order.

    Attributes:
        records: the newest record of each vbucket.
        clean: the last frame so far says that the store was closed in order.
    """

    def __init__(self, into: Index, slots: Slots) -> None:
        self.records: dict[int, VBucketRecord] = {}
        self.clean = False
        self._index = into
        self._slots = slots

    def segment(self, opened: Opened) -> None:
        """Index one segment. Raises CorruptStore when a frame makes no sense."""
        segment, bodies = opened.segment, opened.bodies
        self._slots.register(segment)
        self.clean = self.clean and not len(bodies)
        batch, offset = 0, int(bodies[0, 0]) if len(bodies) else 0
        while batch < len(bodies):
            code, batch, offset, more = history.replay(
                self._index.table, self._slots.table, segment.slot, bodies, batch, offset
            )
            if code == history.GROW:
                self._index.grow(int(more), factor=2.0)
            elif code == history.CONTROL:
                self._control(segment, int(offset), int(more))
                offset = int(offset) + int(more)
                self.clean = self.clean and offset == segment.end
            elif code != history.DONE:
                raise CorruptStore(segment.path, int(offset), _REASONS[int(code)].format(int(more)))

    def finish(self) -> None:
        """All that was read is durable; what growing left over is given back."""
        table = self._index.table
        for vb in range(len(table)):
            if self._index.rows(vb):
                self._index.fit(vb)
        for durable, frozen, now in (
            (index.DURABLE_ROWS, index.FROZEN_ROWS, index.ROWS),
            (index.DURABLE_HIGH, index.FROZEN_HIGH, index.HIGH),
        ):
            table[:, durable] = table[:, now]
            table[:, frozen] = table[:, now]

    def _control(self, segment: Segment, offset: int, length: int) -> None:
        frame = bytes(segment.memory[offset : offset + length])
        vb = int.from_bytes(frame[6:8], "big")
        try:
            control, content = control_of(frame)
        except ValueError as error:
            raise CorruptStore(segment.path, offset, str(error)) from None
        if vb >= len(self._index.table):
            raise CorruptStore(segment.path, offset, f"a record is of vbucket {vb}, which the store does not have")
        self.clean = control is Control.CLEAN
        if isinstance(content, VBucketRecord):
            self.records[vb] = content
            restore(self._index, vb, content)
        elif isinstance(content, tuple):
            self._rollback(vb, *content)
        elif control is Control.DROP:
            self._index.reset(vb)
            self._index.table[vb, index.STATE] = 0
            self.records.pop(vb, None)

    def _rollback(self, vb: int, seqno: int, high: int) -> None:
        if seqno == 0:
            self._index.reset(vb)
        else:
            keep = self._index.rows_up_to(vb, seqno)
            history.undo_rows(self._index.table, vb, self._slots.table, keep)
        self._index.table[vb, index.HIGH] = high
        if vb in self.records:
            self.records[vb] = current(self._index, vb, self.records[vb])


def current(into: Index, vb: int, record: VBucketRecord) -> VBucketRecord:
    """The record with the numbers that are the store's own, as they are now."""
    row = into.table[vb]
    return replace(
        record,
        purge_seqno=int(row[index.PURGE]),
        rollback_floor=int(row[index.FLOOR]),
        high_seqno=int(row[index.HIGH]),
    )


def restore(into: Index, vb: int, record: VBucketRecord) -> None:
    """Put what a record says about a vbucket into the table."""
    row = into.table[vb]
    row[index.STATE] = record.state
    row[index.PURGE] = record.purge_seqno
    row[index.FLOOR] = record.rollback_floor
    row[index.CAS] = max(int(row[index.CAS]), record.max_cas)
    row[index.HIGH] = max(int(row[index.HIGH]), record.high_seqno)
