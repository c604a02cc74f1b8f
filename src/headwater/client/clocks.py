"""Asks all nodes of a bucket to promise a time (HOLD_CLOCK); protocol/dcp/complete.py has what readers make of it."""

from __future__ import annotations

from typing import Final

from headwater.client.cluster import Cluster
from headwater.client.kv import Operations
from headwater.client.routing import Address
from headwater.errors import NotSupported, RemoteProtocolError, StatusError, TransportError, UnknownCommand
from headwater.protocol.dcp.complete import ClocksHeld
from headwater.protocol.handshake import refused
from headwater.transport.waiting import Steps
from headwater.wire.admin import HoldClock, HoldClockResponse

__all__ = ["hold_clocks"]

CONNECT_SECONDS: Final = 3.0
"""Within so long a connection must be open: a member without vbuckets that does not answer holds up who reads."""
_U64_MAX: Final = (1 << 64) - 1
_STRANGERS: Final = (UnknownCommand, NotSupported)


def hold_clocks(operations: Operations, cas: int) -> Steps[ClocksHeld]:
    """Ask all nodes of the map to promise that later changes get a CAS above `cas`; 0 only requests their clocks' time.

    A node that does not answer, or goes by a newer map, is the result's `problem`, not an error: any node of the map
    may be the next owner of any vbucket.
    """
    cluster, answers = operations.cluster, list[HoldClockResponse]()
    # Each connection may bring a newer map, whose further nodes would not be among those that were asked.
    members = cluster.map.servers
    for address in members:
        try:
            answers.append((yield from _hold_clock(cluster, address, cas)))
        except _STRANGERS:
            return (yield from _highest(operations))
        except (TransportError, StatusError, RemoteProtocolError) as error:
            return ClocksHeld(problem=f"{address} holds no clock: {error}")
    newest = max((answer.epoch, answer.revision) for answer in answers)
    now = min(answer.now for answer in answers)
    if newest > cluster.map.version:
        yield from cluster.look_around()
    # A node that joined with a newer map has promised nothing, and may be an owner by now.
    if newest > cluster.map.version or not set(members).issuperset(cluster.map.servers):
        problem = f"the cluster map {newest[0]}.{newest[1]} is new, and its nodes are asked the next time"
        return ClocksHeld(now=now, problem=problem)
    exceptions = {vb: bound - 1 if bound else 0 for answer in answers for vb, bound in answer.exceptions}
    return ClocksHeld(min(answer.held_cas for answer in answers), now, exceptions)


def _hold_clock(cluster: Cluster, address: Address, cas: int) -> Steps[HoldClockResponse]:
    link = yield from cluster.link(address, cluster.clock() + CONNECT_SECONDS)
    frame = yield from link.call(HoldClock(wanted_cas=min(cas, _U64_MAX)).frame(), cluster.deadline())
    if frame.status:
        raise refused(f"hold the clock of {address}", frame)
    return HoldClockResponse.decode(frame)


def _highest(operations: Operations) -> Steps[ClocksHeld]:
    """Return the highest CAS of each vbucket, from the statistics of its owner."""
    try:
        stats = yield from operations.vbucket_stats("vbucket-details")
        highest = {vb: int(stat["max_cas"]) for vb, stat in stats.items() if "max_cas" in stat}
    except ValueError as error:
        return ClocksHeld(problem=f"the servers promise no time, and STAT vbucket-details has an odd max_cas: {error}")
    except (TransportError, StatusError) as error:
        return ClocksHeld(problem=f"the servers promise no time, and do not say their highest CAS: {error}")
    if not highest:
        return ClocksHeld(problem="the servers promise no time, and do not say their highest CAS")
    return ClocksHeld(_U64_MAX, exceptions=highest, is_promised=False)
