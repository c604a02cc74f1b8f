"""The model of a store: a list of changes per vbucket, and helpers to drive a store in tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random

import numpy as np

from headwater.node.storage.compaction import Compaction
from headwater.node.storage.disk import Disk
from headwater.node.storage.records import StoredDocument
from headwater.node.storage.store import Store
from headwater.node.storage.views import View

FOLDER = Path("/store")
SMALL = {"segment_bytes": 1, "arena_bytes": 8192}  # segments of 16 KiB: the smallest that hold two batches


def open_store(disk: Disk, vbuckets: int = 2, path: Path = FOLDER, **options: int) -> Store:
    """A small store that depends on nothing random."""
    random, clock = Random(7), count()
    return Store.open(
        path,
        vbuckets=vbuckets,
        disk=disk,
        random=random.randbytes,
        clock=lambda: float(next(clock)),
        **{**SMALL, **options},
    )


def commit(store: Store) -> None:
    """Make everything staged durable."""
    batch = store.freeze()
    if batch is not None:
        store.write(batch)
        store.settle(batch)


def compact(store: Store, history_rows: int = 0, purge_before: int = 0, part: slice = slice(None)) -> None:
    """A whole compaction, with nothing in between; what is staged is committed."""
    commit(store)
    store.log.seal()
    job = store.compact(history_rows=lambda vb: history_rows, purge_before=purge_before, part=part)
    if job is not None:
        finish(store, job)


def finish(store: Store, job: Compaction) -> None:
    """All steps of a compaction that was begun."""
    job.survey()
    job.announce()
    commit(store)
    job.copy()
    for _ in job.swap():
        pass
    job.remove()
    job.forget()


def frames(view: View) -> Iterator[StoredDocument]:
    """The changes of a view, by the plain path, which is also the fast path's reference."""
    while not view.nothing:
        yield StoredDocument.decode(view.next_frame(), durable=True)


def filled(view: View, size: int = 1 << 16, **options: int) -> bytes:
    """The bytes of a view, by the fast path."""
    out, parts, done = np.zeros(size, np.uint8), [], view.nothing
    while not done:
        got = view.fill(out, 0xABCD, **options)
        assert not got.plain
        parts.append(out[: got.bytes].tobytes())
        done = got.done
    return b"".join(parts)


@dataclass(frozen=True)
class Change:
    """One stored change; value None: a deletion."""

    seqno: int
    key: bytes
    value: bytes | None


@dataclass
class History:
    """A vbucket, by its changes in seqno order."""

    changes: list[Change] = field(default_factory=list)
    high: int = 0

    def copy(self) -> History:
        """The same, to be kept."""
        return History(list(self.changes), self.high)

    def newest(self, end: int | None = None) -> dict[bytes, Change]:
        """The newest change of each key, of those up to `end`, in seqno order."""
        found: dict[bytes, Change] = {}
        for change in self.changes:
            if end is None or change.seqno <= end:
                found.pop(change.key, None)
                found[change.key] = change
        return found

    def add(self, seqno: int, key: bytes, value: bytes | None) -> None:
        """A change happened."""
        self.changes.append(Change(seqno, key, value))
        self.high = seqno

    def keep(self, seqno: int, high: int) -> None:
        """Take back what lies above `seqno`."""
        self.changes = [change for change in self.changes if change.seqno <= seqno]
        self.high = high


def check_view(store: Store, vb: int, history: History, end: int | None = None) -> None:
    """Check that a view shows the history, save for tombstones that may be purged."""
    expected = list(history.newest(end).values())
    with store.view(vb, 0, (1 << 64) - 1 if end is None else end) as view:
        seen = [Change(one.seqno, one.key, None if one.deleted else one.value) for one in frames(view)]
    purge = store.index.purge_seqno(vb)
    missing = [one for one in expected if one not in seen]
    assert [one for one in expected if one in seen] == seen, (vb, end, expected, seen)
    assert all(one.value is None and one.seqno <= purge for one in missing), (vb, end, missing, purge)


def check_documents(store: Store, vb: int, history: History) -> None:
    """Every key's newest version, and the numbers of the vbucket."""
    newest = history.newest()
    for key, change in newest.items():
        found = store.document(vb, key)
        if found is None:
            assert change.value is None and change.seqno <= store.index.purge_seqno(vb), (vb, change)
        else:
            assert (found.seqno, found.key, found.deleted) == (change.seqno, key, change.value is None)
            assert found.value == (change.value or b"")
    assert store.index.items(vb) == sum(change.value is not None for change in newest.values())
    assert store.index.high_seqno(vb) == history.high
