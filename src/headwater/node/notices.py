"""Notify the clients that asked for it of a new map (kv.md 1.4, notification).

"To connections with Duplex and 0x0d/0x1f": connections with a bucket, once for each map that they have not seen, those
that have become DCP connections as well, since a DCP client that was granted 0x0d asks for no map by itself; and those
that watch the map by HTTP. Nothing waits for their answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headwater.node.dcp.end import DcpEnd
from headwater.node.kv.session import KvSession
from headwater.node.rest.session import HttpSession
from headwater.wire.bootstrap import ClustermapChange
from headwater.wire.datatype import Datatype
from headwater.wire.features import Feature

if TYPE_CHECKING:
    from headwater.node.connections.connection import Connection
    from headwater.node.kv.api import Services
    from headwater.node.ownership.cluster_map import ServedMap


def tell(connections: Iterable[Connection], server: Services) -> None:
    """Send the notification to all clients with this bucket that asked for it."""
    cluster = server.cluster
    for connection in tuple(connections):
        session = connection.session.key_value if isinstance(connection.session, DcpEnd) else connection.session
        if not isinstance(session, KvSession | HttpSession) or session.server is not server:
            continue
        if isinstance(session, HttpSession):
            session.map_changed()
        elif _wants(session) and session.config_seen < cluster.version:
            session.config_seen = cluster.version
            session.send(notification(session, cluster))


def _wants(session: KvSession) -> bool:
    is_asked_for = session.has(Feature.CLUSTERMAP_CHANGE_NOTIFICATION) or session.has(
        Feature.CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF
    )
    return is_asked_for and session.has(Feature.DUPLEX) and session.bucket is not None and session.access.is_logged_in


def notification(session: KvSession, cluster: ServedMap) -> bytes:
    """ "ext 16 epoch, revision, key = bucket, value = JSON (full) or empty (brief)"; 0x1f wins over 0x0d."""
    epoch, revision = cluster.version
    brief = session.has(Feature.CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF)
    message = ClustermapChange(
        epoch=epoch,
        revision=revision,
        key=session.store_bucket.name.encode(),
        value=b"" if brief else cluster.config(),
        datatype=Datatype.JSON if session.has(Feature.JSON) and not brief else Datatype(0),
    )
    return message.encode()
