"""Requests the persisted seqnos of vbuckets from their copies: OBSERVE_SEQNO, all vbuckets of a node at once (kv.md 2).

The requests to a node are sent together with a no-op after them (pipeline.py): a thousand vbuckets cost one round trip.
A vbucket that the node does not have, or refuses temporarily, counts as not persisted and is requested again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headwater.client.cluster import Cluster
from headwater.client.nodes import Nodes
from headwater.client.routing import Address
from headwater.errors import RemoteProtocolError, StatusError, TransportError
from headwater.protocol.dcp.persistence import MinPersisted, copies_needed, persisted, persisted_by
from headwater.protocol.handshake import refused
from headwater.transport.waiting import Ready, Steps
from headwater.wire.header import Frame
from headwater.wire.meta import ObserveSeqno, ObserveSeqnoFailedOver, ObserveSeqnoResponse
from headwater.wire.opcodes import Opcode, name_of
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.client.mitigation import Gate  # which needs arrow: not for key-value work alone

POLL_SECONDS = 0.1
"""The interval of queries to a node while something waits for it, as in other clients."""


def poll(nodes: Nodes, cluster: Cluster, address: Address, gate: Gate) -> Steps[None]:
    """Request the persisted seqnos that the gate waits for from one node, for ever; a node that is away is tried again.

    Args:
        nodes: connections for this task alone: on shared ones it would have to wait for answers to other requests.
        cluster: knows the map.

    Raises:
        StatusError: the node refuses the request permanently.
    """
    while True:
        queries = gate.queries(address, cluster.map)
        if not queries:
            yield Ready()
            continue
        try:
            seqnos = yield from observe(nodes, address, queries)
            gate.hear(address, {vb: (queries[vb], seqno) for vb, seqno in seqnos.items()}, cluster.map)
        except (TransportError, StatusError) as error:
            if not error.retriable:
                raise
            gate.missed(address, error)
        until = cluster.clock() + POLL_SECONDS
        while cluster.clock() < until:
            yield Ready((), until)


def observe(nodes: Nodes, address: Address, queries: Mapping[int, int]) -> Steps[dict[int, int]]:
    """Return the seqno up to which a node has each branch on disk; `queries`: vbucket to vb uuid.

    Raises:
        TransportError: no connection, or no answer in time. StatusError: the node refused.
    """
    link = yield from nodes.link(address)
    vbuckets = list(queries)
    first = link.reserve(len(vbuckets) + 1)
    requests = (
        ObserveSeqno(vbucket=vb, vb_uuid=queries[vb], opaque=first + at).encode() for at, vb in enumerate(vbuckets)
    )
    bulk = link.send_bulk(first, len(vbuckets), b"".join(requests))
    seqnos = dict.fromkeys(vbuckets, 0)
    for frame in (yield from link.finish_bulk(bulk, nodes.deadline())):
        vbucket = vbuckets[frame.opaque - first]
        seqnos[vbucket] = _seqno_of(frame, vbucket, queries[vbucket])
    return seqnos


def _seqno_of(frame: Frame, vbucket: int, vb_uuid: int) -> int:
    if frame.opcode != Opcode.OBSERVE_SEQNO:
        raise RemoteProtocolError(f"{name_of(frame.opcode)}: the answer to OBSERVE_SEQNO (opcode 0x91)")
    # The node does not know this branch, so it has nothing of it.
    if frame.status == Status.KEY_ENOENT:
        return 0
    if frame.status:
        refusal = refused(f"how far vbucket {vbucket} is persisted", frame)
        if refusal.retriable:
            return 0
        raise refusal
    # The first byte is the format: 1 for a vbucket that has gone on under another uuid since (kv 2).
    failed_over = frame.value[:1] == b"\x01"
    return persisted((ObserveSeqnoFailedOver if failed_over else ObserveSeqnoResponse).decode(frame), vb_uuid)


def persisted_seqnos(
    cluster: Cluster, vb_uuids: Mapping[int, int], min_persisted: MinPersisted
) -> Steps[dict[int, int]]:
    """Return the seqno up to which enough copies have each of these branches on disk now.

    A copy that does not answer counts as having nothing.

    Args:
        vb_uuids: vbucket to the vb uuid of the branch. min_persisted: how many copies.

    Raises:
        StatusError: a node refused.
    """
    cluster_map, by_copy = cluster.map, dict[int, dict[Address, int]]()
    for address in cluster_map.servers:
        queries = {vb: uuid for vb, uuid in vb_uuids.items() if address in cluster_map.copies(vb)}
        try:
            seqnos = (yield from observe(cluster, address, queries)) if queries else {}
        except (TransportError, StatusError) as error:
            if not error.retriable:
                raise
            continue
        for vb, seqno in seqnos.items():
            by_copy.setdefault(vb, {})[address] = seqno
    counts = {
        vb: copies_needed(min_persisted, len(cluster_map.copies(vb)), 1 + cluster_map.replica_count) for vb in vb_uuids
    }
    return {vb: persisted_by(counts[vb], cluster_map.copies(vb), by_copy.get(vb, {})) for vb in vb_uuids}
