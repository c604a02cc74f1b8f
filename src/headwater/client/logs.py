"""Failover logs of many vbuckets, with one round trip for each node.

The requests to a node are sent together with a no-op after them (pipeline.py); vbuckets without an answer, because they
moved, the connection broke or their node was emptied, are asked for one at a time, with the patience of `Cluster.call`.
"""

from __future__ import annotations

from collections.abc import Iterable

from headwater.client.cluster import Cluster
from headwater.client.kv import Operations, check_vbuckets
from headwater.client.routing import Address
from headwater.errors import BucketNotFound, ConnectionLost, RemoteProtocolError
from headwater.protocol.handshake import refused
from headwater.transport.waiting import Steps
from headwater.wire.admin import GetFailoverLog, GetFailoverLogResponse
from headwater.wire.opcodes import Opcode, name_of

Log = list[tuple[int, int]]


def failover_logs(cluster: Cluster, vbuckets: Iterable[int] | None = None) -> Steps[dict[int, Log]]:
    """Return the failover logs of these vbuckets, of all by default, each newest history first.

    Raises:
        StatusError: a node refused, or a vbucket still has no active node at the deadline.
        TransportError: no connection, or no answer in time.
    """
    numbers = range(cluster.map.vbuckets) if vbuckets is None else sorted(set(vbuckets))
    check_vbuckets(cluster, numbers)
    vbuckets_by_owner: dict[Address, list[int]] = {}
    for vbucket in numbers:
        if (owner := cluster.map.owner(vbucket)) is not None:
            vbuckets_by_owner.setdefault(owner, []).append(vbucket)
    logs: dict[int, Log] = {}
    for owner, owned_vbuckets in vbuckets_by_owner.items():
        try:
            logs |= yield from _logs_of(cluster, owner, owned_vbuckets)
        # Its vbuckets are asked for one at a time below, where the wait for their new owner has its patience.
        except (ConnectionLost, BucketNotFound):
            continue
    one_by_one = Operations(cluster)
    for vbucket in numbers:
        if vbucket not in logs:
            logs[vbucket] = yield from one_by_one.failover_log(vbucket)
    return {vbucket: logs[vbucket] for vbucket in numbers}


def _logs_of(cluster: Cluster, owner: Address, vbuckets: list[int]) -> Steps[dict[int, Log]]:
    """Request the failover logs of vbuckets from one node; a vbucket that is refused temporarily is not in the
    result.
    """
    link = yield from cluster.link(owner)
    first = link.reserve(len(vbuckets) + 1)
    requests = (GetFailoverLog.encode_plain(vbucket, first + at) for at, vbucket in enumerate(vbuckets))
    bulk = link.send_bulk(first, len(vbuckets), b"".join(requests))
    logs = {}
    for frame in (yield from link.finish_bulk(bulk, cluster.deadline())):
        vbucket = vbuckets[frame.opaque - first]
        if frame.opcode != Opcode.GET_FAILOVER_LOG:
            raise RemoteProtocolError(f"{name_of(frame.opcode)}: the answer to GET_FAILOVER_LOG (opcode 0x96)")
        if not frame.status:
            logs[vbucket] = GetFailoverLogResponse.decode(frame).failover_log
        elif not (refusal := refused(f"failover log (vbucket {vbucket})", frame)).retriable:
            raise refusal
    return logs
