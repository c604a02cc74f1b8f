"""The first map: nodes without a common map become a cluster.

Nodes without data are equal: the vbuckets are spread over them, replicas included, and they can serve at once. If one
node has data, it owns everything at first, and a rebalance spreads it. Two nodes with data can't become one cluster.

The map is sent first, then the vbuckets are made active on their owners by that map: a vbucket never has two owners,
and the run after a killed one finds its map in the nodes and continues with it. A cluster that has accepted documents
meanwhile is not changed any more: a node that lacks a vbucket of the map may have lost its disk, and the others have
the only copies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headwater.client.routing import Address
from headwater.cluster.admin import vbucket_list
from headwater.cluster.balance import balance, checked_replicas
from headwater.cluster.bucket_settings import bring_settings, share_settings
from headwater.cluster.collections import refuse_foreign
from headwater.cluster.encryption import check_encryption
from headwater.cluster.members import Members
from headwater.cluster.survey import NodeView
from headwater.cluster.users import share
from headwater.errors import ClusterError, OptionError
from headwater.failpoints import failpoint
from headwater.wire.cluster_map import NOBODY, ClusterMap
from headwater.wire.vbucket import State


@dataclass(frozen=True, slots=True)
class NewCluster:
    """The new cluster.

    Attributes:
        map: the map that every node has now.
        data_on: the node that had data and owns everything; None if all were empty.
    """

    map: ClusterMap
    data_on: Address | None


def first_map(
    views: Sequence[NodeView], bucket: str, replicas: int, *, encrypted: bool = False
) -> tuple[ClusterMap, Address | None]:
    """Return the map for nodes that have none, and the node that has data (None if all are empty).

    Raises:
        ClusterError: a node does not answer or is in a cluster; numbers of vbuckets differ; two nodes have data.
    """
    _check(views)
    maps = [view.map for view in views if view.map is not None]
    if maps:  # an earlier run was killed: its map is taken as it is
        return max(maps, key=lambda map_: map_.version), None
    servers = tuple(view.address for view in views)
    with_data = [view for view in views if view.has_data]
    if len(with_data) > 1:
        raise ClusterError(
            f"{' and '.join(str(view.address) for view in with_data)} both have documents",
            "begin with one of them, and let empty nodes join it",
        )
    owner = with_data[0] if with_data else None
    if owner and owner.count(State.ACTIVE) != len(owner.states):
        raise ClusterError(
            f"{owner.address} owns {owner.count(State.ACTIVE)} of the {len(owner.states)} vbuckets it has",
            "begin with a node that owns all it has (SET_VBUCKET, DEL_VBUCKET)",
        )
    head = NOBODY if owner is None else servers.index(owner.address)
    empty = ClusterMap(
        bucket=bucket,
        # The bucket keeps the uuid of the node with documents: callers that are bound to that uuid can continue.
        uuid=(owner or views[0]).uuid,
        # Above the epoch of all maps that nodes make for themselves: those count from the time of their start, so one
        # that comes back without its disk would have the newest map, and lead clients away from the members.
        epoch=max(view.version[0] for view in views) + 1,
        rev=max(view.version[1] for view in views) + 1,
        servers=servers,
        chains=((head,),) * views[0].vbuckets,
        replica_count=checked_replicas(replicas),
        tls_ports={view.address: view.tls_port for view in views if view.tls_port is not None},
        groups={view.address: view.group for view in views if view.group},
        encrypted=encrypted,
    )
    check_encryption(empty)
    return (empty, owner.address) if owner else (balance(empty, servers), None)


def _check(views: Sequence[NodeView]) -> None:
    if not views:
        raise OptionError("NODE", "", "at least one node")
    addresses = {view.address for view in views}
    for view in views:
        if not view.answers:
            raise ClusterError(view.complaint, view.advice)
        if view.vbuckets != views[0].vbuckets:
            raise ClusterError(
                f"{view.address} has {view.vbuckets} vbuckets, {views[0].address} has {views[0].vbuckets}",
                "all nodes of a cluster are served with the same --vbuckets",
            )
        if view.map is not None and set(view.map.servers) != addresses:
            members = ", ".join(map(str, view.map.servers))
            raise ClusterError(
                f"{view.address} is in a cluster with {members} already",
                "let others join it: headwater cluster rebalance --add",
            )


def _check_unused(cluster_map: ClusterMap, views: Sequence[NodeView]) -> None:
    """Check that no vbucket with a history on any node would be made active or deleted.

    Raises:
        ClusterError: one would be; `rebalance` finds out which copy is newest.
    """
    used = {vb for view in views for vb, seqno in view.seqnos.items() if seqno}
    for view in views:
        owned_vbuckets, replicas = cluster_map.held_by(view.address)
        lacking = {vb for vb in owned_vbuckets if view.states.get(vb) is not State.ACTIVE}
        if wrong := used & (lacking | view.states.keys() - {*owned_vbuckets, *replicas}):
            raise ClusterError(
                f"{view.address} has vbuckets {vbucket_list(wrong)}, which are in use, not as its cluster's map says",
                "this cluster was made before: headwater cluster status tells how it is, rebalance or failover mend it",
            )


async def found_cluster(
    members: Members, nodes: Sequence[Address], replicas: int, *, encrypted: bool = False
) -> NewCluster:
    """Make a cluster of these nodes.

    Args:
        encrypted: True if the nodes use TLS with each other.

    Raises:
        ClusterError, OptionError: as `first_map`; or the collections of two nodes are not of one bucket.
        TransportError, StatusError: a node failed; call this again to continue.
    """
    addresses = await members.identified(nodes)
    async with members.alone("init", addresses):
        return await _found_cluster(members, addresses, replicas, encrypted=encrypted)


async def planned(members: Members, nodes: Sequence[Address], replicas: int, *, encrypted: bool = False) -> NewCluster:
    """Return the result of `found_cluster` without changing anything; raises the same errors."""
    _, founded = await _look_at_nodes(members, await members.identified(nodes), replicas, encrypted=encrypted)
    return founded


async def _look_at_nodes(
    members: Members, nodes: Sequence[Address], replicas: int, *, encrypted: bool
) -> tuple[Sequence[NodeView], NewCluster]:
    """Return the present state of the nodes and the cluster that they would become, after a check that their
    collections fit together.
    """
    views = await asyncio.gather(*(members.view(node) for node in nodes))
    first, data_on = first_map(views, members.bucket, replicas, encrypted=encrypted)
    owners = [node for node in nodes if data_on in (None, node)]
    await refuse_foreign(
        [members.admin(node) for node in owners], [members.admin(node) for node in nodes if node not in owners]
    )
    return views, NewCluster(first, data_on)


async def _found_cluster(members: Members, nodes: Sequence[Address], replicas: int, *, encrypted: bool) -> NewCluster:
    views, founded = await _look_at_nodes(members, nodes, replicas, encrypted=encrypted)
    first = founded.map
    # Only a cluster that was made before can be in use here: without any map one node at most has documents.
    if any(view.map is not None for view in views):
        _check_unused(first, views)
    # Before the map makes members of them: the run after a killed one finds no node with data, only those with the map.
    await _bring_settings(members, views, founded.data_on)
    if any(view.version != first.version or view.map is None for view in views):
        first = replace(first, rev=max(first.rev, *(view.version[1] + 1 for view in views)))
        await members.send(first)
        failpoint("init.map_sent")
    for view in views:
        owned_vbuckets, replicas_here = first.held_by(view.address)
        inactive = {vb: State.ACTIVE for vb in owned_vbuckets if view.states.get(vb) is not State.ACTIVE}
        await members.set_states(view.address, inactive)
        # These are empty: a node with documents owns, by this map, all that it has.
        await members.delete(view.address, sorted(set(view.states) - set(owned_vbuckets) - set(replicas_here)))
    await share(members, nodes)
    return replace(founded, map=first)


async def _bring_settings(members: Members, views: Sequence[NodeView], data_on: Address | None) -> None:
    """Give the nodes without the map the settings of the nodes with it. If no node has the map yet, they get the
    settings of the node with data; if all are empty, those of the first node that has any.
    """
    nodes = [view.address for view in views]
    founders = [view.address for view in views if view.map is not None or view.address == data_on]
    if founders:
        await bring_settings(members, founders, [node for node in nodes if node not in founders])
    else:
        await share_settings(members, nodes)
