"""Open a store: read the manifest, verify every byte, index everything, cut an interrupted write.

Recovery replays the segments in the manifest's order, in each segment its batches, in each batch its frames. Possible
faults, and their consequences:

* The last batch of the last segment is bad, no valid batch follows it, and it was not recorded as synced (synced.py):
  the write was interrupted before its sync returned, and no client got an answer. The batch is cut.
* The last batch is whole, and was not recorded as synced: it may be in the page cache only. It is written and synced
  again before it counts.
* Anything else is bad: CorruptStore with file and offset. No data is skipped, and no file is changed.
* The manifest does not name a file: an interrupted roll or compaction has left it. It is removed.

All of this may be interrupted and run again: the cut is the only change to data, and it is the same each time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from headwater.errors import CorruptStore, OptionError
from headwater.failpoints import failpoint
from headwater.node.reporting.log_lines import event
from headwater.node.storage import batch as batches
from headwater.node.storage.disk import Disk
from headwater.node.storage.manifest import NAME, NEXT_NAME, Entry, Manifest, ManifestFile
from headwater.node.storage.replay import Bodies, OpenedSegment
from headwater.node.storage.segment import SEGMENT_HEADER_BYTES, Segment, SegmentHeader, name_of
from headwater.node.storage.synced import NEXT_NAME as NEXT_SYNCED
from headwater.node.storage.synced import Note
from headwater.wire.vbucket import VBUCKETS_NEW

CUT_BYTES = 1 << 20

log: Final = logging.getLogger(__name__)

__all__ = [
    "check_clean",
    "check_synced",
    "cut",
    "load_manifest",
    "make_durable",
    "open_segments",
    "remove_orphans",
    "reread",
    "verify",
]


def load_manifest(disk: Disk, folder: Path, vbuckets: int, random: Callable[[int], bytes]) -> ManifestFile:
    """Return the manifest of the store in `folder`; create a manifest if the folder has no store.

    Args:
        disk: the disk of the folder.
        folder: the folder.
        vbuckets: the number of vbuckets; 0 for the number of an existing store, or VBUCKETS_NEW for a new one.
        random: returns n random bytes, for the id of a new store.

    Raises:
        CorruptStore: the manifest is damaged, or missing though there are segments.
        OptionError: the store was created with another number of vbuckets.
    """
    names = disk.names(folder)
    if NAME in names:
        content = Manifest.decode(disk.read(folder / NAME), folder / NAME)
        if vbuckets not in {0, content.vbuckets}:
            raise OptionError("vbuckets", vbuckets, f"{content.vbuckets}, with which the store in {folder} was made")
        return ManifestFile(disk, folder, content)
    # A new manifest here would make the segments orphans, and `remove_orphans` would delete the data.
    if any(name.endswith(".log") for name in names):
        raise CorruptStore(folder / NAME, 0, "the manifest is missing, though there are segments")
    file = ManifestFile(disk, folder, Manifest(random(16), vbuckets or VBUCKETS_NEW, generation=0))
    file.change(lambda manifest: manifest)
    return file


def remove_orphans(disk: Disk, folder: Path, manifest: Manifest) -> None:
    """Remove files that the manifest does not name, left by an interrupted roll or compaction."""
    # Called only after every segment was verified: a start that is refused changes nothing, so that a copy of the
    # folder can still be examined.
    named_files = {name_of(entry.id) for entry in manifest.segments}
    for name in disk.names(folder):
        if name in (NEXT_NAME, NEXT_SYNCED) or (name.endswith(".log") and name not in named_files):
            disk.remove(folder / name)


def open_segments(disk: Disk, folder: Path, manifest: Manifest) -> list[OpenedSegment]:
    """Open and verify all segments. After CorruptStore no segment is open."""
    opened: list[OpenedSegment] = []
    try:
        for entry in manifest.segments:
            opened.append(_open_segment(disk, folder, manifest, entry))
    except BaseException:
        for segment_ in opened:
            segment_.segment.close()
        raise
    return opened


def _open_segment(disk: Disk, folder: Path, manifest: Manifest, entry: Entry) -> OpenedSegment:
    path = folder / name_of(entry.id)
    try:
        file = disk.open(path)
    except FileNotFoundError:
        raise CorruptStore(path, 0, "the file is missing, the manifest names it") from None
    try:
        size = file.size()
        # A longer file is allowed: bytes of a failed write after the sealed length never count.
        if entry.bytes is not None and size < entry.bytes:
            raise CorruptStore(path, size, f"the file ends here, it was sealed with {entry.bytes} bytes")
        segment = Segment(path, SegmentHeader.decode(bytes(file.map()[: min(size, SEGMENT_HEADER_BYTES)]), path), file)
        header = segment.header
        # The salt reveals an older file with the same number, such as one from a backup that was copied over the
        # folder.
        if (header.store, header.id, header.salt) != (manifest.store, entry.id, entry.salt):
            raise CorruptStore(path, 0, f"this is segment {header.id} of store {header.store.hex()}, another one")
        # An open segment keeps its first size until it is sealed, so somebody has cut a shorter file, perhaps with
        # acknowledged batches.
        if entry.bytes is None and size < header.size:
            raise CorruptStore(path, size, f"the file ends here, it was made with {header.size} bytes")
        return _verify_sealed(segment, entry.bytes) if entry.bytes is not None else _verify_open(segment)
    except BaseException:
        file.close()
        raise


def _walk(segment: Segment, end: int) -> tuple[Bodies, batches.Torn | None]:
    """Read the valid batches up to `end`; return the places of their frames, and the error of the first bad batch, or
    None.
    """
    bodies: list[tuple[int, int]] = []
    torn = None
    data, header = segment.memory.data, segment.header
    try:
        for batch in batches.walk(data, SEGMENT_HEADER_BYTES, end, header.salt, header.first_batch):
            bodies.append((batch.start, batch.end))
            segment.end = batch.end
            segment.batches += 1
    except batches.Torn as found:
        torn = found
    segment.reserved = segment.end
    return np.array(bodies, np.int64).reshape(-1, 2), torn


def _verify_sealed(segment: Segment, end: int) -> OpenedSegment:
    segment.writable().populate(segment.memory, end)
    bodies, torn = _walk(segment, end)
    if torn is not None:
        raise CorruptStore(segment.path, torn.offset, torn.why)
    segment.close()
    return OpenedSegment(segment, bodies)


def _verify_open(segment: Segment) -> OpenedSegment:
    file = segment.writable()
    file.populate(segment.memory, file.data_end(0))
    # The walk always ends with Torn, at the latest in the hole behind the last batch; the bytes there show whether a
    # write was interrupted.
    bodies, torn = _walk(segment, segment.size)
    if torn is None:
        return OpenedSegment(segment, bodies)
    written = file.data_end(torn.offset)
    data, salt = segment.memory.data, segment.header.salt
    # Each batch is written after the sync of the previous one. So a valid batch after a bad one proves that the bad one
    # was whole and acknowledged.
    if later := batches.find_later(data, torn.offset, segment.size, salt, segment.next_number, written=written):
        why = f"{torn.why}; batch {later.number} at byte {later.offset} is whole, so this was no interrupted write"
        raise CorruptStore(segment.path, torn.offset, why)
    # Zeros need no cut: they are what a write that never reached the disk leaves.
    rest = np.flatnonzero(segment.memory[torn.offset : written])
    return (
        OpenedSegment(segment, bodies, torn.offset, int(rest[-1]) + 1) if len(rest) else OpenedSegment(segment, bodies)
    )


def reread(segment: Segment) -> OpenedSegment:
    """Read a segment's durable batches again; return the places of their frames. Raises Torn at a bad batch."""
    data, header = segment.memory.data, segment.header
    walked = batches.walk(data, SEGMENT_HEADER_BYTES, segment.end, header.salt, header.first_batch)
    return OpenedSegment(segment, np.array([(batch.start, batch.end) for batch in walked], np.int64).reshape(-1, 2))


def verify(segment: Segment) -> OpenedSegment:
    """Read a sealed segment again and verify its checksums; return the places of its frames. Raises CorruptStore at a
    bad batch.
    """
    try:
        return reread(segment)
    except batches.Torn as torn:
        raise CorruptStore(segment.path, torn.offset, torn.why) from None


def check_clean(opened: list[OpenedSegment], manifest: Manifest, clean: bool) -> None:
    """Raise CorruptStore if the log of a cleanly closed store has another end than when the store was closed."""
    if manifest.clean is not None and opened:
        segment = opened[-1].segment
        # After an orderly close there is no interrupted write, so even a missing last batch is damage here.
        if segment.end != manifest.clean or not clean:
            why = f"the log ends here, {manifest.clean} bytes were written before the store was closed in order"
            raise CorruptStore(segment.path, segment.end, why)


def check_synced(opened: list[OpenedSegment], note: Note | None) -> None:
    """Raise CorruptStore if batches are missing that a note names as synced. A note about another segment than the last
    one is not checked: that segment was sealed or compacted since.
    """
    for last in opened[-1:]:
        segment = last.segment
        # The note is written after the sync and before the answers, so the missing batches may have been acknowledged.
        if note is not None and note.segment == segment.header.id and note.end > segment.end:
            why = f"the log ends here, batches up to byte {note.end} were on disk (to number {note.next_number - 1})"
            raise CorruptStore(segment.path, segment.end, why)


def cut(opened: OpenedSegment) -> None:
    """Overwrite an interrupted write with zeros; do nothing if there was none.

    If this is interrupted, the next start does the same again. The file keeps its length and its reserved room, so this
    works on a full disk.
    """
    if opened.torn_end:
        message = (
            "%s: byte %d: the last write was cut off by a crash: %d bytes of it are removed; nobody was told of it"
        )
        told_with = event("log.cut", file=str(opened.segment.path), offset=opened.torn_end, bytes=opened.torn_bytes)
        log.warning(message, opened.segment.path, opened.torn_end, opened.torn_bytes, extra=told_with)
        # Zeros in place of a shorter file: its room stays set aside, and a full disk can't refuse the start.
        file, end = opened.segment.writable(), opened.segment.writable().data_end(opened.torn_end)
        for at in range(opened.torn_end, end, CUT_BYTES):
            file.write([bytes(min(CUT_BYTES, end - at))], at)
        # Before any new batch is written there: a half-cut end under a good batch would look like damage at the next
        # start.
        file.sync()
        failpoint("recover.cut")


def make_durable(disk: Disk, folder: Path, opened: list[OpenedSegment], note: Note | None) -> None:
    """Make durable what an earlier process may have left in the page cache only: the manifest's name, and the last
    batch if no note names it as synced.

    Raises:
        OSError: the disk has failed; the next start does the same again.
    """
    # The process may have died between a manifest's rename and the sync of the folder. A power cut would bring the
    # older manifest back, which does not name the segment that the next batches go to.
    disk.sync_directory(folder)
    for last in opened[-1:]:
        segment, file = last.segment, last.segment.writable()
        # Batches are synced one after the other, so only the last one may not be synced.
        begin = int(last.bodies[-2, 1]) if len(last.bodies) > 1 else SEGMENT_HEADER_BYTES
        if segment.batches and not (note is not None and (note.segment, note.end) == (segment.header.id, segment.end)):
            # Written again, not only synced: after a failed sync in the earlier process, the kernel counts the pages as
            # written, and another sync would succeed without writing them.
            for at in range(begin, segment.end, CUT_BYTES):
                file.write([bytes(segment.memory[at : min(segment.end, at + CUT_BYTES)])], at)
            file.sync()
