"""The fast path of one connection: the kernels of kernels/execute.py and lookups.py answer chunks of requests.

This module passes the kernels everything that they need: the received bytes, the shared arena for answers, the store's
index and staging arena, the clock, the connection's features.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from headwater.kernels import execute as kernel
from headwater.kernels import lookups
from headwater.kernels.json import SCRATCH_BYTES
from headwater.node.kv.access import rights_in
from headwater.wire.features import Feature
from headwater.wire.header import EXTRAS_LENGTH_AT, HEADER_BYTES, KEY_LENGTH_AT, OPCODE_AT
from headwater.wire.opcodes import Opcode
from headwater.wire.privilege import WRITE

if TYPE_CHECKING:
    from headwater.node.buckets.bucket import Bucket
    from headwater.node.connections.watching import Rounds
    from headwater.node.kv.api import Session

OUT_BYTES = 256 << 10
_WROTE = int(kernel.FLAG_WROTE)  # converted once, because numpy's numbers are slow
_DONE = (kernel.STOP_MORE, kernel.STOP_PLAIN)
_LOOKUP = int(Opcode.SUBDOC_MULTI_LOOKUP)


class Workspace:
    """Memory shared by all connections of a node: the arena for answers, the kernel's state, scratch for JSON."""

    def __init__(self) -> None:
        self.out: Final = np.zeros(OUT_BYTES, np.uint8)
        self.out_view: Final = self.out.data
        self.state: Final = np.zeros(kernel.STATE_FIELDS, np.uint64)
        self.fields: Final = self.state.data  # the same memory as a memoryview, whose items are plain, fast integers
        self.scratch: Final = np.zeros(SCRATCH_BYTES, np.uint8)

    def begin(self, bucket: Bucket) -> None:
        """Set the kernel's inputs: the time, and the free part of the staging arena."""
        if bucket.needs_refresh:
            bucket.refresh()
        if bucket.collections.is_stale:
            bucket.collections.refresh()
        staging, fields, now = bucket.store.staging, self.fields, bucket.clock.time_ns()
        fields[kernel.STAGED], fields[kernel.LIMIT] = staging.filled()
        fields[kernel.ARENA] = staging.slot
        fields[kernel.NOW_NS], fields[kernel.NOW] = now, now // 1_000_000_000

    def counts(self) -> Iterator[tuple[int, int, int]]:
        """Yield (opcode, status, count) of all requests that the kernels have answered."""
        tally = self.fields[kernel.TALLY :]
        for at, count in enumerate(tally):
            place, status = divmod(at, kernel.STATUSES)
            if count and place == kernel.LOOKUP:
                yield _LOOKUP, lookups.STATUSES[status], count
            elif count:
                yield place, status, count


class FastPath:
    """Runs the kernels for one session on one bucket; the session replaces it when its features or bucket change.

    Args:
        session: the session.
        bucket: the selected bucket.
        workspace: the memory that all connections share.
        rounds: the bucket's rounds; None if there are none.
    """

    def __init__(self, session: Session, bucket: Bucket, workspace: Workspace, rounds: Rounds | None = None) -> None:
        self.rounds = rounds
        self._session = session
        self._bucket = bucket
        self._workspace = workspace
        self._ran = session.server.requests.ran
        self._stopped: int | None = None
        self._may_write = int(kernel.FEATURE_WRITE) if rights_in(session, 0) & WRITE else 0
        self._features = int(kernel.FEATURE_HELLO) if session.features else 0
        if session.has(Feature.JSON):
            self._features |= int(kernel.FEATURE_JSON)
        if session.has(Feature.MUTATION_SEQNO):
            self._features |= int(kernel.FEATURE_SEQNO)
        if session.has(Feature.COLLECTIONS):
            self._features |= int(kernel.FEATURE_COLLECTIONS)
        if session.access.places is None:
            self._features |= int(kernel.FEATURE_NAMED)

    @property
    def features(self) -> int:
        """The connection's features in the kernels' encoding, including the right to write."""
        return self._features | self._may_write

    def resume(self, stop: int) -> None:
        """Prepare the next `run` for bytes that a round has executed in part; `stop` (STOP_*) says why the round
        stopped.
        """
        self._stopped = stop

    def wait_for(self, gate: int) -> None:
        """Make later answers of the session wait for batch `gate`, because an answer of a round waits for it."""
        self._session.wait_for(gate)

    def run(self, data: memoryview, offset: int) -> int:
        """Answer the requests of `data` from `offset` on; return the offset of the first request that the kernel did
        not execute.
        """
        bucket, ran = self._bucket, self._stopped
        self._stopped = None
        if ran is None and not kernels_may_run(bucket):
            return offset
        looks_up = _begins_lookup(data, offset)
        if looks_up and not _is_simple(data, offset):
            return offset
        requests = np.frombuffer(data, np.uint8)
        connection = self._session.connection
        while not connection.is_paused:
            begun = offset
            if ran is None:
                stop = self._call(requests, offset, looks_up)
            else:
                stop, ran = ran, None
                self._heed()
            offset = self._workspace.fields[kernel.OFFSET]
            if stop in _DONE:
                if stop == kernel.STOP_PLAIN and _begins_lookup(data, offset) != looks_up:
                    looks_up = not looks_up  # the other kernel handles this request
                    continue
                break
            if stop == kernel.STOP_STAGE_FULL and offset == begun:
                break  # the plain path asks for as much room as this one request needs
            if stop == kernel.STOP_GROW:
                bucket.store.staging.grow(self._workspace.fields[kernel.GROW])
                # If clients fill all vbuckets evenly, the columns of a thousand vbuckets grow at the same time; each
                # takes milliseconds.
                connection.gives_way()
            elif stop == kernel.STOP_STAGE_FULL:
                self._session.parking.wait_for_room(self._session.server.committer)
        return offset

    def _call(self, requests: np.ndarray[Any, np.dtype[np.uint8]], offset: int, looks_up: bool) -> int:
        """Call a kernel once, and handle its results."""
        work, bucket = self._workspace, self._bucket
        store, fields = bucket.store, work.fields
        work.begin(bucket)
        fields[kernel.OFFSET] = offset
        # On a full disk the kernel only reads; the plain path decides which writes are still accepted.
        fields[kernel.FEATURES] = self._features if store.full else self._features | self._may_write
        stop: int
        plain = bucket.collections.plain
        if looks_up:
            stop = lookups.look_up(requests, work.out, store.table, store.segments, plain, work.scratch, work.state)
        else:
            stop = kernel.execute(
                requests, work.out, store.table, store.segments, bucket.uuids, plain, work.scratch, work.state
            )
        self._heed()
        return stop

    def _heed(self) -> None:
        """Handle the results of a kernel call: the staging arena's fill, the batch, the answers."""
        work, bucket = self._workspace, self._bucket
        fields = work.fields
        flags = fields[kernel.FLAGS]
        if flags & _WROTE:
            bucket.store.staging.use(fields[kernel.STAGED])
            # Before `send`: the answers below wait for the batch with the changes that the same call has staged.
            self._session.wrote()
        elif flags:
            self._session.saw_unstable()
        if seen := fields[kernel.SEEN]:
            self._count(seen)
        bucket.count(fields[kernel.GETS], fields[kernel.HITS], fields[kernel.SETS], fields[kernel.DELETES])
        if answered := fields[kernel.ANSWERED]:
            self._session.send(work.out_view[:answered])

    def _count(self, seen: int) -> None:
        """Count the requests of each opcode; most calls have one opcode."""
        fields, gate = self._workspace.fields, self._session.gate
        while seen:
            opcode = (seen & -seen).bit_length() - 1
            self._ran(_LOOKUP if opcode == kernel.LOOKUP else opcode, fields[kernel.CALLED + opcode], gate)
            seen &= seen - 1


def kernels_may_run(bucket: Bucket) -> bool:
    """Return True unless requests on a bucket need checks that only the plain path makes: of locks, fences, damage, or
    disabled traffic.
    """
    # The kernels check states, collections, keys and CAS only.
    if bucket.traffic_disabled or bucket.fenced or bucket.store.quarantine.vbuckets:
        return False
    return not (bucket.locks.held and bucket.locks.any(bucket.clock.monotonic()))


def _begins_lookup(data: memoryview, offset: int) -> bool:
    """Return True if the request at `offset` is for kernels/lookups.py."""
    return len(data) - offset >= HEADER_BYTES and data[offset + OPCODE_AT] == _LOOKUP


def _is_simple(data: memoryview, offset: int) -> bool:
    """Return True if a lookup's first path has no flags: the kernel does not support attributes."""
    key = offset + KEY_LENGTH_AT
    first = offset + HEADER_BYTES + data[offset + EXTRAS_LENGTH_AT] + (data[key] << 8 | data[key + 1])
    return first + 1 < len(data) and not data[first + 1]
