"""Peers to connect to, and a cluster that gives up soon."""

from headwater.client.cluster import Cluster
from headwater.client.settings import settings_for
from headwater.testing.peers import Peer, serve
from headwater.wire.header import Frame, response
from headwater.wire.opcodes import Opcode

QUICK = {"timeout_seconds": 2.0, "connect_timeout_seconds": 1.0}


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
    """An address where nobody listens (any more)."""
    with serve(Peer()) as address:
        return address


def cluster(connection: str, **settings: object) -> Cluster:
    return Cluster(settings_for(connection, **{**QUICK, **settings}))


def address_of(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)
