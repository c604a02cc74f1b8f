"""The cluster map for clients: the map of one node with all vbuckets, or the map that an orchestrator has set.

Source: kv.md 1.4; interop.md 4.0, the minimum that all tested clients accept. node/membership/ obeys a map that
contains this node.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from headwater.errors import RemoteProtocolError
from headwater.node.refused import CommandRefused
from headwater.wire.address import Address
from headwater.wire.cluster_map import HOST, NOBODY, OWN_EPOCH, ClusterMap
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.buckets.bucket import Bucket

REVISION_STEP_MAX: Final = 1 << 32
EPOCH_STEP_MAX: Final = 1 << 10
"""The most by which a new map's revision and epoch may exceed the present ones. A node without a map counts revisions
from the time in ms."""


class ServedMap:
    """The map that this node sends to clients: its own, or one that was set.

    Args:
        port: the node's port.
        bucket: the bucket.
        tls_port: the node's port for TLS; None without TLS.

    Attributes:
        on_taken: functions to call after another map was set.
    """

    def __init__(self, port: int, bucket: Bucket, tls_port: int | None = None) -> None:
        self.port: int = port
        self.tls_port: int | None = tls_port
        self._bucket = bucket
        # A revision must not go backwards, over restarts neither: it begins at the time of start in milliseconds.
        self._first_revision = bucket.clock.time_ns() // 1_000_000
        self._set: tuple[int, int, bytes] | None = None
        self._read: ClusterMap | None = None
        self.on_taken: list[Callable[[], None]] = []

    @property
    def version(self) -> tuple[int, int]:
        """(epoch, revision), by which maps are compared."""
        return self._set[:2] if self._set else (OWN_EPOCH, self._first_revision + self._bucket.map_changes)

    @property
    def is_set(self) -> bool:
        """True if the map was set: by an operator, by a peer, or at the start from the disk."""
        return self._set is not None

    @property
    def map_in_refusals(self) -> bool:
        """True if refusals with NOT_MY_VBUCKET contain the map: only if the map was set.

        This node's own map would send the client here again and again (kv.md 5, "NMVB with a map that still points to
        you").
        """
        return self._set is not None

    def config(self) -> bytes:
        """Return the map as JSON."""
        return self._set[2] if self._set else self._own()

    def owner(self, vbucket: int) -> Address | None:
        """Return the owner of a vbucket by the map that was set; None if the vbucket has no owner, no map was set, or
        the map can't be read.
        """
        read = self._readable
        return None if read is None else read.owner(vbucket)

    def holders(self, vbucket: int) -> tuple[Address, ...]:
        """Return the nodes with a copy of a vbucket by the map that was set, the owner first; empty if no map was set,
        or it can't be read.
        """
        read = self._readable
        if read is None or vbucket >= read.vbuckets:
            return ()
        return tuple(each for each in read.chain(vbucket) if each is not None)

    @property
    def _readable(self) -> ClusterMap | None:
        if self._read is None and self._set is not None:
            with suppress(RemoteProtocolError):  # a map that only clients read may be invalid
                self._read = ClusterMap.from_json(self._set[2])
        return self._read

    def replace(self, epoch: int, revision: int, config: bytes) -> None:
        """Set a map. Raises CommandRefused(KEY_EEXISTS) if it is older than the one that was set."""
        # SDKs break when a revision goes backwards (kv.md 5).
        if self._set and (epoch, revision) < self.version:
            raise CommandRefused(Status.KEY_EEXISTS, f"the map here is newer: {self.version}")
        self.take((epoch, revision), config)

    def check_step(self, epoch: int, revision: int) -> None:
        """Raise CommandRefused(EINVAL) for a version so far above the present one that few versions would be left for
        later maps.
        """
        known_epoch, known_revision = self.version
        # After a map with a version near 2^63, no later map would have a version left.
        highest = max(known_revision, self._bucket.clock.time_ns() // 1_000_000) + REVISION_STEP_MAX
        if epoch > known_epoch + EPOCH_STEP_MAX or revision > highest:
            raise CommandRefused(
                Status.EINVAL, f"map {epoch}:{revision} is too far above {known_epoch}:{known_revision}, the one here"
            )

    def take(self, version: tuple[int, int], config: bytes) -> None:
        """Set the map, whatever its version, and call the functions in `on_taken`."""
        self._set, self._read = (*version, config), None
        for callback in self.on_taken:
            callback()

    def _own(self) -> bytes:
        bucket = self._bucket
        here = Address(HOST, self.port)
        chains = tuple((0 if bucket.is_active(vb) else NOBODY,) for vb in range(bucket.vbucket_count))
        tls_ports = {} if self.tls_port is None else {here: self.tls_port}
        return ClusterMap(bucket.name, bucket.uuid, *self.version, (here,), chains, tls_ports=tls_ports).to_json(here)
