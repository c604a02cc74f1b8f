"""The commands by which clients get the cluster map, and orchestrators set it (kv.md 1.4).

node/ownership/cluster_map.py holds the map; node/membership/ obeys a map that contains this node.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from headwater.errors import RemoteProtocolError
from headwater.node.kv.command import handles
from headwater.node.refused import CommandRefused
from headwater.wire.bootstrap import GetClusterConfig, GetClusterConfigResponse, SetClusterConfig
from headwater.wire.cluster_map import ClusterMap
from headwater.wire.datatype import Datatype
from headwater.wire.features import Feature
from headwater.wire.json_text import read_json
from headwater.wire.layout import Done
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.kv.api import Session


@handles(GetClusterConfig)
def get_cluster_config(session: Session, request: GetClusterConfig) -> GetClusterConfigResponse:
    """Answer GET_CLUSTER_CONFIG with the selected bucket's map; with an empty value if the request says that the client
    has this version or a newer one.
    """
    _, cluster = session.store_bucket, session.server.cluster
    if request.epoch is not None and request.revision is not None:
        client_version = request.epoch, request.revision
        if client_version[1] < 1 or (client_version[0] < 1 and client_version[0] != -1):
            raise CommandRefused(Status.EINVAL, "a known version has revision >= 1 and epoch >= 1 or -1")
        if client_version >= cluster.version:
            return GetClusterConfigResponse()
    session.config_seen = cluster.version
    datatype = Datatype.JSON if session.has(Feature.JSON) else 0
    return GetClusterConfigResponse(value=cluster.config(), datatype=datatype)


@handles(SetClusterConfig, of_node=True, lasts=True)
def set_cluster_config(session: Session, request: SetClusterConfig) -> Done | Awaitable[Done]:
    """Answer SET_CLUSTER_CONFIG: take an orchestrator's map, which clients then get unchanged, also with
    NOT_MY_VBUCKET. If the map contains this node, the node also keeps and obeys it (node/membership/).

    A map decides where all clients connect, to which nodes this node connects, and where its users come from. So the
    command needs `administer` in all buckets, not only in this one.
    """
    bucket = session.store_bucket
    try:
        parsed = read_json(request.value)
    except ValueError as error:
        raise CommandRefused(Status.EINVAL, f"the map is not JSON: {error}") from None
    if not isinstance(parsed, dict) or request.revision < 1:
        raise CommandRefused(Status.EINVAL, "a map is a JSON object with a revision of 1 or more")
    session.server.cluster.check_step(request.epoch, request.revision)
    if request.key not in (b"", bucket.name.encode()):
        raise CommandRefused(Status.KEY_ENOENT, "there is no such bucket")
    if session.server.membership.concerns(parsed):
        return _take(session, request, parsed)
    _check_whole(request.value)
    session.server.cluster.replace(request.epoch, request.revision, request.value)
    session.server.tell_of_map()
    _record(session, (request.epoch, request.revision))
    return Done()


def _check_whole(text: bytes) -> None:
    """Refuse a map that clients could not read. This is for maps without this node, which only clients read."""
    try:
        ClusterMap.from_json(text)
    except RemoteProtocolError as error:
        raise CommandRefused(Status.EINVAL, str(error)) from None


def _record(session: Session, version: tuple[int, int]) -> None:
    epoch, revision = version
    action = f"gave the cluster map {epoch}:{revision} of bucket {session.server.bucket.name!r}"
    session.server.record(session, action, moves=True)


async def _take(session: Session, request: SetClusterConfig, parsed: Any) -> Done:
    version = request.epoch, request.revision
    await session.server.membership.take(version, request.value, parsed)
    _record(session, version)
    session.saw_unstable()  # the answer means that the vbuckets given up by the map are given up on disk
    return Done()
