"""TLS among the nodes of a cluster: the map has the setting, and each node obeys the map it has.

A node whose map demands TLS connects to the others by TLS only; a node with an older map continues without TLS until it
gets the new one. No node stops listening without TLS because of it: that is each node's own option, --without-tls.
"""

from __future__ import annotations

from collections.abc import Sequence

from headwater.client.routing import Address
from headwater.cluster.members import Members
from headwater.errors import ClusterError
from headwater.wire.cluster_map import ClusterMap

__all__ = ["check_encryption", "set_encryption"]


async def set_encryption(members: Members, seeds: Sequence[Address], *, encrypted: bool) -> ClusterMap:
    """Send the nodes of a cluster a map that lets them use TLS with each other, or stop it; return that map.

    The map gets the present ports for TLS as well.

    Raises:
        ClusterError: a node does not answer, or does not support TLS; or another operator changes the cluster.
        TransportError, StatusError: a node did not accept the map.
    """
    survey = await members.survey(seeds)
    if survey.silent:
        silent_node = survey.silent[0]
        raise ClusterError(silent_node.complaint, silent_node.advice)
    new_map = survey.map.with_tls(survey.tls_ports, encrypted=encrypted).after(survey.latest_rev())
    check_encryption(new_map)
    await members.send(new_map)
    return new_map


def check_encryption(new_map: ClusterMap) -> None:
    """Check that all nodes of a map that demands TLS support it.

    Raises:
        ClusterError: a node does not.
    """
    without_tls = [server for server in new_map.servers if server not in new_map.tls_ports]
    if new_map.encrypted and without_tls:
        raise ClusterError(
            f"{without_tls[0]} speaks no TLS", "start it with --tls-certificate and --tls-ca, then type this again"
        )
