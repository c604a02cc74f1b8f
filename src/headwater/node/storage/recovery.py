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
from pathlib import Path

import numpy as np

from headwater.errors import CorruptStore, OptionError
from headwater.failpoints import failpoint
from headwater.node.storage import batch as batches
from headwater.node.storage.disk import Disk
from headwater.node.storage.manifest import NAME, NEXT_NAME, Entry, Manifest, ManifestFile
from headwater.node.storage.replay import Bodies, Opened
from headwater.node.storage.segment import HEADER_BYTES, Segment, SegmentHeader, name_of

__all__ = [
    "check_clean",
    "cut",
    "load_manifest",
    "open_segments",
    "remove_strangers",
    "reread",
    "verify",
]


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


def verify(segment: Segment) -> None:
    """Read a sealed segment again, checksums and all. Raises CorruptStore."""
    try:
        reread(segment)
    except batches.Torn as torn:
        raise CorruptStore(segment.path, torn.offset, torn.why) from None


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
