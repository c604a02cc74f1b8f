"""Peers to connect to, and a cluster of them."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from headwater.client.cluster import Cluster
from headwater.client.settings import settings_for
from headwater.testing.peers import Peer, cluster_map, serve
from headwater.wire.header import Frame, response
from headwater.wire.manifest import CollectionsManifest
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


class Knowing(Peer):
    """Knows collections by `manifest`; while that is None it hangs up on who asks for it, and answers all else. It has
    no statistics."""

    manifest: CollectionsManifest | None = None

    def answers(self, request: Frame):
        if request.opcode == Opcode.STAT:
            yield response(request)
            return
        if request.opcode != Opcode.COLLECTIONS_GET_MANIFEST:
            yield from super().answers(request)
            return
        self.seen.append(request)
        if self.manifest is None:
            raise ConnectionAbortedError
        yield response(request, value=self.manifest.encode())


@contextmanager
def two_that_know(*manifests: CollectionsManifest | None) -> Iterator[tuple[Knowing, Knowing]]:
    """A cluster of two nodes with a vbucket each, and what they know of collections."""
    nodes = Knowing(vbuckets=2), Knowing(vbuckets=2)
    for node, manifest in zip(nodes, manifests, strict=True):
        node.manifest = manifest
        node.config = lambda _: cluster_map([node.address for node in nodes], [0, 1])
    with serve(nodes[0]), serve(nodes[1]):
        yield nodes


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
