"""The cluster map that clients get: one node and all vbuckets, or what an orchestrator has set.

Source: kv.md 1.4; interop.md 4.0, the minimum that every client tried accepts. What a map that names this node makes
the node do is in node/membership/.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from headwater.node.kv.command import Answer, Needs, Part, Refused, Reply, command
from headwater.node.membership import notices
from headwater.wire.datatype import Datatype
from headwater.wire.features import Feature
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.bucket import Bucket
    from headwater.node.kv.session import KvSession

CAPABILITIES = ("dcp", "cccp", "cbhello", "xattr", "nodesExt", "couchapi", "touch", "dcp.IgnorePurgedTombstones")
"""Advertise a capability only if implemented; without `collections` clients send bare keys."""


class Cluster:
    """The map this node hands out: its own, or one that an administrator has set."""

    def __init__(self, port: int, bucket: Bucket) -> None:
        self.port = port
        self._bucket = bucket
        # A revision must not go backwards, over restarts neither: it begins at the time of start in milliseconds.
        self._first_revision = bucket.clock.time_ns() // 1_000_000
        self._set: tuple[int, int, bytes] | None = None

    @property
    def version(self) -> tuple[int, int]:
        """(epoch, revision); maps are compared by it."""
        return self._set[:2] if self._set else (1, self._first_revision + self._bucket.map_changes)

    @property
    def is_set(self) -> bool:
        """Whether the map was given to us."""
        return self._set is not None

    @property
    def map_in_refusals(self) -> bool:
        """Whether NOT_MY_VBUCKET carries the map: only one that names another node helps; ours would make the client
        ask us again for ever (kv.md 5, "NMVB with a map that still points to you")."""
        return self._set is not None

    def config(self) -> bytes:
        """The map as JSON."""
        return self._set[2] if self._set else json.dumps(self._own()).encode()

    def replace(self, epoch: int, revision: int, config: bytes) -> None:
        """Take a newer map; Refused(KEY_EEXISTS) for an older one."""
        if self._set and (epoch, revision) < self.version:
            raise Refused(Status.KEY_EEXISTS, f"the map here is newer: {self.version}")
        self.take((epoch, revision), config)

    def take(self, version: tuple[int, int], config: bytes) -> None:
        """Hand out this map from now on."""
        self._set = (*version, config)

    def _own(self) -> dict[str, Any]:
        bucket = self._bucket
        path = f"/pools/default/{{}}/{bucket.name}?bucket_uuid={bucket.uuid}"
        epoch, revision = self.version
        return {
            "rev": revision,
            "revEpoch": epoch,
            "name": bucket.name,
            "uuid": bucket.uuid,
            "nodeLocator": "vbucket",
            "uri": path.format("buckets"),
            "streamingUri": path.format("bucketsStreaming"),
            "bucketCapabilitiesVer": "",
            "bucketCapabilities": list(CAPABILITIES),
            "clusterCapabilitiesVer": [1, 0],
            "clusterCapabilities": {},
            "nodes": [{"hostname": f"$HOST:{self.port}", "ports": {"direct": self.port}}],
            "nodesExt": [{"services": {"kv": self.port, "mgmt": self.port}, "thisNode": True}],
            "vBucketServerMap": {
                "hashAlgorithm": "CRC",
                "numReplicas": 0,
                "serverList": [f"$HOST:{self.port}"],
                "vBucketMap": [[0 if bucket.is_active(vb) else -1] for vb in range(bucket.vbucket_count)],
            },
        }


@command(Opcode.GET_CLUSTER_CONFIG, extras=(0, 16), needs=Needs.LOGIN)
def get_cluster_config(session: KvSession, frame: Frame) -> Reply:
    """The selected bucket's map; empty when the client knows it already (epoch and revision in 16 bytes of extras)."""
    _, cluster = session.store_bucket, session.server.cluster
    if frame.extras:
        known = tuple(int.from_bytes(frame.extras[at : at + 8], "big", signed=True) for at in (0, 8))
        if known[1] < 1 or (known[0] < 1 and known[0] != -1):
            raise Refused(Status.EINVAL, "a known version has revision >= 1 and epoch >= 1 or -1")
        if known >= cluster.version:
            return Reply()
    session.config_seen = cluster.version
    datatype = Datatype.JSON if session.has(Feature.JSON) else 0
    return Reply(value=cluster.config(), datatype=datatype)


@command(Opcode.SET_CLUSTER_CONFIG, extras=(16,), key=Part.ANY, value=Part.REQUIRED, needs=Needs.LOGIN)
def set_cluster_config(session: KvSession, frame: Frame) -> Answer | Awaitable[Answer]:
    """An orchestrator's map; it is handed out as given, and goes with every NOT_MY_VBUCKET from then on. One that names
    this node is kept and obeyed as well (node/membership/)."""
    epoch, revision = (int.from_bytes(frame.extras[at : at + 8], "big", signed=True) for at in (0, 8))
    try:
        parsed = json.loads(frame.value)
    except ValueError:
        raise Refused(Status.EINVAL, "the map is not JSON") from None
    if not isinstance(parsed, dict) or revision < 1:
        raise Refused(Status.EINVAL, "a map is a JSON object with a revision of 1 or more")
    if frame.key not in (b"", session.server.bucket.name.encode()):
        raise Refused(Status.KEY_ENOENT, "there is no such bucket")
    if session.server.membership.concerns(parsed):
        return _take(session, (epoch, revision), frame.value)
    session.server.cluster.replace(epoch, revision, frame.value)
    notices.tell(session.server.connections, session.server.cluster)
    return Reply()


async def _take(session: KvSession, version: tuple[int, int], config: bytes) -> Answer:
    await session.server.membership.take(version, config)
    session.saw_unstable()  # the answer means that what was given up is given up on disk
    return Reply()
