"""Peers to connect to, and a cluster of them."""

import socket

from headwater.client.cluster import Cluster
from headwater.client.settings import settings_for
from headwater.testing.peers import Peer
from headwater.wire.header import Frame, response
from headwater.wire.opcodes import Opcode

PATIENT = {"timeout_seconds": 60.0, "connect_timeout_seconds": 60.0}
_DEAF: list[socket.socket] = []


class Node(Peer):
    """Answers GET with "v", and other opcodes with the statuses in `says`."""

    says: dict[int, int]

    def answers(self, request: Frame):
        if request.opcode in self.says:
            self.seen.append(request)
            yield response(request, self.says[request.opcode])
        elif request.opcode == Opcode.GET:
            self.seen.append(request)
            yield response(request, value=b"v", extras=bytes(4))
        else:
            yield from super().answers(request)


def a_node(says: dict[int, int] | None = None, **options: object) -> Node:
    peer = Node(**options)
    peer.says = says or {}
    return peer


def refusing_port() -> str:
    """An address where nobody listens, and that nobody else is given meanwhile."""
    _DEAF.append(deaf := socket.socket())
    deaf.bind(("127.0.0.1", 0))
    return "{}:{}".format(*deaf.getsockname())


def cluster(connection: str, **settings: object) -> Cluster:
    return Cluster(settings_for(connection, **{**PATIENT, **settings}))


def address_of(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)
