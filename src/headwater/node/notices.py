"""Notify clients of a new map, if they have requested notifications (kv.md 1.4, notification).

"To connections with Duplex and 0x0d/0x1f": connections with a selected bucket get each map once, unless they have it
already. DCP connections get it, too, because a DCP client with feature 0x0d does not request maps itself; so do HTTP
connections that watch the map. The node does not wait for answers.
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
    """Send the map to those of the connections that have selected this bucket, have requested notifications, and do not
    have this map yet.
    """
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
    """Return the encoded notification of the present map for a session.

    "ext 16 epoch, revision, key = bucket, value = JSON (full) or empty (brief)"; feature 0x1f (brief) overrides 0x0d.
    """
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
