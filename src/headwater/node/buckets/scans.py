"""Range scans of a bucket: the plan of each, its view of the vbucket, and its position.

The index has no order of keys. A scan reads all frames of its view once, sorts the wanted keys in runs of some
thousand, and returns them in order as it merges the runs; after every few hundred keys other work gets its turn. The
scan returns the state of the vbucket at its creation.

Memory is bounded: all scans of a bucket together hold at most KEPT_BYTES_MAX bytes of keys, and no scan holds more than
it leaves free for the others. A range with more keys takes several passes over the view; each pass keeps the lowest
keys that were not returned yet. A sample that does not fit is refused.

A scan is cancelled when no request continues it for a while, when the vbucket changes its state or rolls back, and when
the disk space of replaced files, which the store keeps for it, is needed.
"""

from __future__ import annotations

import random
import secrets
from array import array
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import merge
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Protocol

import numpy as np

from headwater.kernels.gather import KEEP_OPAQUE, NO_DELETES, NO_VALUE
from headwater.node.refused import CommandRefused
from headwater.node.storage.records import StoredDocument, keys_in
from headwater.wire import times
from headwater.wire.numbers import SEQNO_MAX
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.storage.api import Storage
    from headwater.node.storage.views import View
    from headwater.node.vbucket.vbucket import VBucket

SCANS_MAX = 512
IDLE_SECONDS = 180.0
KEYS_AT_LEAST = 256
SORTED_AT_ONCE = 4096
"""The most keys sorted at once, in some milliseconds. Sorting a million keys at once would stop the node for a
second.
"""
KEPT_BYTES_MAX = 256 << 20
"""The memory limit of all scans of a bucket: one sample of a million keys. Each range may exceed it by KEYS_AT_LEAST
keys."""
ENTRY_BYTES = 128
"""The bytes of a key in a list, besides its own: two objects, their place in the list, a seqno."""
PACKED_BYTES = 12
"""The bytes of a key in a run, besides its own."""
GATHERED_BYTES = 64 << 10
"""The bytes of frames, without values, that a pass reads at once: some hundred keys."""

Pause = Callable[[], Awaitable[None]]
Name = tuple[int, int]
"""The id of a scan, as two numbers of 64 bits."""


class ScansOwner(Protocol):
    """The part of a bucket that its scans need."""

    store: Storage


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The keys from `first` up to `last`.

    Attributes:
        first: the lowest key.
        last: the highest key; None for no end.
        with_first: True if the range includes `first`.
        with_last: True if the range includes `last`.
    """

    first: bytes = b""
    last: bytes | None = None
    with_first: bool = True
    with_last: bool = True

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, bytes) or key < self.first or (key == self.first and not self.with_first):
            return False
        return self.last is None or key < self.last or (key == self.last and self.with_last)


@dataclass(frozen=True, slots=True)
class RandomSample:
    """A random sample of `count` keys; equal seeds give equal samples of the same keys."""

    count: int
    seed: int = 0


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """The collection of a scan, the keys, and `key_only`: True if the scan returns keys without documents."""

    collection: int = 0
    key_only: bool = False
    keys: KeyRange | RandomSample = field(default_factory=KeyRange)


class _Run:
    """Sorted keys, each with its seqno, in packed form because there may be millions.

    Attributes:
        last: the highest key.
        size: the memory of the run in bytes.
    """

    __slots__ = ("_ends", "_keys", "_seqnos", "last", "size")

    def __init__(self, entries: list[tuple[bytes, int]]) -> None:
        self._keys = b"".join(key for key, _ in entries)
        self._ends = array("I", accumulate(len(key) for key, _ in entries))
        self._seqnos = array("Q", (seqno for _, seqno in entries))
        self.last: bytes = entries[-1][0]
        self.size: int = len(self._keys) + PACKED_BYTES * len(entries)

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[tuple[bytes, int]]:
        at = 0
        for end, seqno in zip(self._ends, self._seqnos, strict=True):
            yield self._keys[at:end], seqno
            at = end


class RangeScan:
    """A scan of a vbucket, which reads it as a stream does.

    Attributes:
        name: the id of the scan in requests.
        plan: the keys to return.
        vbucket: the scanned vbucket.
        is_cancelled: True if the scan returns no more keys.
        is_running: True while a request creates or continues the scan.
        used_at: the time of the last such request, in seconds of a monotonic clock.
    """

    def __init__(self, vbucket: VBucket, view: View, plan: ScanPlan, scans: RangeScans) -> None:
        self.name: Name = secrets.randbits(64), secrets.randbits(64)
        self.plan = plan
        self.vbucket = vbucket
        self.is_cancelled: bool = False
        self.is_running: bool = False
        self.used_at: float = 0.0
        self._view = view
        self._scans = scans
        self._kept_bytes = 0
        self._waiting: deque[tuple[bytes, int]] = deque()
        self._in_order: Iterator[tuple[bytes, int]] = iter(())
        self._after: bytes | None = None
        self._is_last = False
        vbucket.readers.add(self)

    async def next(self, pause: Pause, now: int) -> tuple[bytes, StoredDocument] | None:
        """Return the next key and its document; None at the end. Documents that have expired by `now` (Unix seconds)
        are left out.

        Args:
            pause: lets other work run; called between pieces of work.
            now: the present Unix second.

        Raises:
            CommandRefused: the scan was cancelled meanwhile.
        """
        while True:
            if not self._waiting:
                await self._refill(pause)
            if self.is_cancelled:
                raise CommandRefused(Status.RANGE_SCAN_CANCELLED, "the scan was cancelled")
            if not self._waiting:
                return None
            key, seqno = self._waiting.popleft()
            self._keep(-_bytes_of(key))
            self._after = key
            # By the seqno in the view, not by the key, because the scan shows the vbucket as it was when the scan
            # began.
            document = StoredDocument.decode(self._view.change(seqno), durable=True)
            if not times.is_expired(document.expiry, now):
                return key, document

    async def is_empty(self, pause: Pause) -> bool:
        """Return True if the scan has no keys. Call this once, before `next`.

        Raises:
            CommandRefused: the scan was cancelled meanwhile, or there is no room for its keys.
        """
        await self._refill(pause)
        if self.is_cancelled:
            raise CommandRefused(Status.RANGE_SCAN_CANCELLED, "the vbucket changed")
        return not self._waiting

    @contextmanager
    def running(self, clock: Callable[[], float]) -> Iterator[None]:
        """Return a context that marks the scan as running, and cancels the scan if an error leaves the context."""
        self.is_running = True
        try:
            yield
        except BaseException:
            self.cancel()
            raise
        finally:
            self.is_running, self.used_at = False, clock()

    def cancel(self) -> None:
        """Cancel the scan; may be called again."""
        if not self.is_cancelled:
            self.is_cancelled = True
            self.vbucket.readers.discard(self)
            self._waiting.clear()
            self._in_order = iter(())
            self._keep(-self._kept_bytes)
            # Closing the last view of replaced files frees them.
            self._view.close()
            self._scans.ended(self)

    # --- calls of the vbucket ---------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """The seqno above which the scan needs tombstones: the highest, because a scan needs none."""
        return SEQNO_MAX

    def advanced(self) -> None:
        """Do nothing, because later changes are not part of the scan."""

    def state_changed(self) -> None:
        """Cancel the scan, because only active vbuckets are scanned."""
        self.cancel()

    def rolled_back(self) -> None:
        """Cancel the scan, because its view has changes that no longer exist."""
        self.cancel()

    def damaged(self) -> None:
        """Cancel the scan, because a part of its view can't be read."""
        self.cancel()

    @property
    def holds_removed_files(self) -> bool:
        """True if the store keeps files for the scan that a compaction has replaced."""
        return self._view.holds_removed_files

    def let_go(self) -> None:
        """Cancel the scan, because the store has kept its replaced files for long enough."""
        self.cancel()

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _refill(self, pause: Pause) -> None:
        """Fill the queue with the next keys in order. Make another pass over the view when all keys of the last pass
        were returned. The queue stays empty at the end.
        """
        while not self._waiting and not self.is_cancelled:
            if some := list(islice(self._in_order, KEYS_AT_LEAST)):
                self._waiting.extend(some)
                self._keep(sum(_bytes_of(key) for key, _ in some))
                await pause()
            elif self._is_last:
                return
            else:
                is_sample = isinstance(self.plan.keys, RandomSample)
                runs = await (self._drawn(pause) if is_sample else self._lowest(pause))
                self._in_order = iter(()) if self.is_cancelled else merge(*map(self._read, runs))

    def _read(self, run: _Run) -> Iterator[tuple[bytes, int]]:
        """Yield the keys of a run, and free its memory."""
        yield from run
        self._keep(-run.size)

    def _keep(self, size: int) -> None:
        """Add `size` bytes (negative to subtract) to the bytes that the scan holds; a cancelled scan holds none."""
        # A coroutine whose scan was cancelled while it waited may still call this.
        size = -self._kept_bytes if self.is_cancelled else size
        self._kept_bytes += size
        self._scans.kept_bytes += size

    @property
    def _keeps_too_much(self) -> bool:
        """True if the scan holds more bytes than are free for other scans; the keys that will be unpacked count as
        held.
        """
        return self._kept_bytes > KEPT_BYTES_MAX - self._scans.kept_bytes - KEYS_AT_LEAST * ENTRY_BYTES

    async def _lowest(self, pause: Pause) -> list[_Run]:
        """Return the lowest keys that were not returned yet, as many as the limit allows."""
        runs: list[_Run] = []
        loose: list[tuple[bytes, int]] = []
        bound: bytes | None = None
        self._is_last = True
        self._view.rewind()
        while (some := self._some()) is not None:
            rows = [(key, seqno) for key, seqno in some if self._is_wanted(key) and (bound is None or key < bound)]
            loose += rows
            self._keep(sum(_bytes_of(key) for key, _ in rows))
            if len(loose) >= SORTED_AT_ONCE or self._keeps_too_much:
                runs += await self._packed_runs(loose, pause)
                loose = []
            # A scan keeps at least this many keys, even without room; otherwise it would read the view for ever and
            # return nothing.
            if self._keeps_too_much and sum(map(len, runs)) > KEYS_AT_LEAST:
                runs = await self._cut(runs, pause)
                # Keys above the bound are left for another pass; the kept keys are complete up to the bound.
                bound = runs[-1].last if runs else bound
            await pause()
        return runs + await self._packed_runs(loose, pause)

    async def _packed_runs(self, entries: list[tuple[bytes, int]], pause: Pause) -> list[_Run]:
        """Return keys as sorted runs, and count the memory of these in place of the entries'."""
        runs: list[_Run] = []
        for at in range(0, len(entries), SORTED_AT_ONCE):
            runs.append(_Run(sorted(entries[at : at + SORTED_AT_ONCE])))
            await pause()
        self._keep(sum(run.size for run in runs) - sum(_bytes_of(key) for key, _ in entries))
        return runs

    async def _cut(self, runs: list[_Run], pause: Pause) -> list[_Run]:
        """Return the lower half of the keys in some runs; a later pass finds the others."""
        remaining = max(KEYS_AT_LEAST, sum(map(len, runs)) // 2)
        lower_runs: list[_Run] = []
        in_order = merge(*runs)
        while not self.is_cancelled and (some := list(islice(in_order, min(remaining, SORTED_AT_ONCE)))):
            lower_runs.append(_Run(some))
            remaining -= len(some)
            await pause()
        self._keep(sum(run.size for run in lower_runs) - sum(run.size for run in runs))
        self._is_last = False
        return lower_runs

    def _is_wanted(self, key: bytes) -> bool:
        return key in self.plan.keys and (self._after is None or key > self._after)  # type: ignore[operator]

    async def _drawn(self, pause: Pause) -> list[_Run]:
        """Return a random sample of all keys, each with the same probability (Vitter's algorithm R)."""
        sample, seen = self.plan.keys, 0
        if not isinstance(sample, RandomSample):
            raise TypeError(sample)
        sample_keys: list[tuple[bytes, int]] = []
        chance = random.Random(sample.seed)  # noqa: S311 - the client gives the seed
        self._is_last = True
        self._view.rewind()
        while (some := self._some()) is not None:
            for each in some:
                seen += 1
                if len(sample_keys) < sample.count:
                    sample_keys.append(each)
                    self._keep(_bytes_of(each[0]))
                elif (at := chance.randrange(seen)) < sample.count:
                    self._keep(len(each[0]) - len(sample_keys[at][0]))
                    sample_keys[at] = each
            if self._scans.are_full:
                message = (
                    f"the scans that are open keep {KEPT_BYTES_MAX >> 20} MiB of keys: go on with them, or cancel them"
                )
                raise CommandRefused(Status.EBUSY, message)
            await pause()
        return await self._packed_runs(sample_keys, pause)

    def _some(self) -> list[tuple[bytes, int]] | None:
        """Return (key, seqno) of the next few hundred documents; None at the end."""
        if self.is_cancelled or self._view.nothing:
            return None
        out = np.empty(GATHERED_BYTES, np.uint8)
        filled = self._view.fill(out, 0, NO_VALUE | NO_DELETES | KEEP_OPAQUE)
        if filled.plain and not filled.bytes:
            frame = bytes(self._view.next_frame())
            return keys_in(frame) if not StoredDocument.decode(frame, durable=True).deleted else []
        return keys_in(out[: filled.bytes].tobytes())


class RangeScans:
    """The scans of a bucket, by id.

    Attributes:
        kept_bytes: the total size of the keys that the scans hold.
    """

    def __init__(self, bucket: ScansOwner) -> None:
        self.kept_bytes = 0
        self._bucket = bucket
        self._scans: dict[Name, RangeScan] = {}

    def __len__(self) -> int:
        return len(self._scans)

    def __iter__(self) -> Iterator[RangeScan]:
        return iter(self._scans.values())

    @property
    def are_full(self) -> bool:
        """True if the scans hold more than the limit."""
        return self.kept_bytes > KEPT_BYTES_MAX

    def create(self, vbucket: VBucket, plan: ScanPlan, now: float) -> RangeScan:
        """Begin a scan of a vbucket's durable documents; `now` is in seconds of a monotonic clock.

        Raises:
            CommandRefused: there are too many scans.
            CorruptStore: a part of the vbucket can't be read.
        """
        self.forget_idle(now)
        if len(self._scans) >= SCANS_MAX:
            raise CommandRefused(Status.EBUSY, f"{SCANS_MAX} scans are open: go on with them, or cancel them")
        view = self._bucket.store.view(vbucket.id, choice=np.array([plan.collection], np.uint64))
        scan = RangeScan(vbucket, view, plan, self)
        scan.used_at = now
        self._scans[scan.name] = scan
        return scan

    def find(self, name: Name, vbucket: int, now: float) -> RangeScan:
        """Return the scan with an id. Raises CommandRefused(KEY_ENOENT) if the vbucket has no such scan, or no
        longer.
        """
        self.forget_idle(now)
        scan = self._scans.get(name)
        if scan is None or scan.vbucket.id != vbucket:
            raise CommandRefused(Status.KEY_ENOENT, "there is no such scan, or none any more")
        return scan

    def forget_idle(self, now: float) -> None:
        """Cancel the scans that no request has continued for a while."""
        for scan in [scan for scan in self._scans.values() if now - scan.used_at > IDLE_SECONDS]:
            if not scan.is_running:
                scan.cancel()

    def ended(self, scan: RangeScan) -> None:
        """Forget a scan that was cancelled, or has returned all keys."""
        self._scans.pop(scan.name, None)


def _bytes_of(key: bytes) -> int:
    return ENTRY_BYTES + len(key)
