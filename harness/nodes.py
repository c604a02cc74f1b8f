"""Real nodes under raw requests: replicas and owners set by hand, and data restored to an older state.

`cluster` runs some nodes with one map, whose vbuckets a test moves, replicates or fails over one by one. `diverge`,
`keep` and `return_to` do with one node alone what a failover does: it gets the data of a replica that had not received
the last writes, and begins a branch of history of its own.
"""

from __future__ import annotations

import json
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from uuid import uuid4

from headwater.client import Client
from headwater.node.users.binding import ADDRESS
from headwater.protocol.scram import Binding, Scram
from headwater.testing.node import Node, node
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.vbucket import State

DEADLINE_SECONDS = 120.0


class Line:
    """One connection for requests and answers."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), DEADLINE_SECONDS)
        self.file = self.sock.makefile("rb")

    def __enter__(self) -> Line:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self.file.close()
        self.sock.close()

    def send(self, frame: Frame) -> None:
        """Send a frame."""
        self.sock.sendall(frame.encode())

    def read(self) -> Frame:
        """Return the next frame."""
        header = self.file.read(24)
        if len(header) < 24:
            raise ConnectionError("the node hung up")
        return Frame.decode(header + self.file.read(int.from_bytes(header[8:12])))

    def call(self, opcode: int, key: bytes = b"", value: bytes = b"", extras: bytes = b"", vbucket: int = 0) -> Frame:
        """Send a request, and return its answer."""
        self.send(Frame(0x80, opcode, key, extras, value, vbucket=vbucket, opaque=7))
        return self.read()

    def log_in_as_member(self, secret: str) -> None:
        """Log in as nodes do at each other: by a proof of the members' secret that is bound to this connection."""
        address, key = "{}:{}".format(*self.sock.getpeername()), b"SCRAM-SHA256-PLUS"
        scram = Scram("SCRAM-SHA256", "@cluster", secret, "abcdef", Binding(ADDRESS, f"node {address}".encode()))
        challenge = self.call(Opcode.SASL_AUTH, key, scram.first())
        scram.verify(self.call(Opcode.SASL_STEP, key, scram.final(challenge.value)).value)


def call(  # noqa: PLR0917 -- a frame's parts
    node: Node, opcode: int, key: bytes = b"", value: bytes = b"", extras: bytes = b"", vbucket: int = 0
) -> Frame:
    """Send a node a request over a connection of its own, and return the answer."""
    with Line(node.port) as line:
        return line.call(opcode, key, value, extras, vbucket)


def _done(answer: Frame) -> None:
    if answer.status:
        raise AssertionError(f"refused: {answer}")


def put(node: Node, vb: int, key: str, value: bytes) -> None:
    """Store a document in a vbucket, also one that its key does not belong to."""
    _done(call(node, Opcode.SET, key.encode(), value, bytes(8), vb))


def replicate(node: Node, source: str, vbuckets: str, *, takeover: bool = False) -> None:
    """Let a node follow another one, at host:port, in some vbuckets such as `0-3,7`."""
    options = {"from": source, "vbuckets": vbuckets, "takeover": takeover}
    _done(call(node, Opcode.IOCTL_SET, b"replicate", json.dumps(options).encode()))


def leave(node: Node, source: str) -> None:
    """Let a node stop following another one."""
    call(node, Opcode.IOCTL_SET, b"replicate.stop", json.dumps({"from": source}).encode())


def state(node: Node, vb: int) -> State | None:
    """Return a vbucket's state on a node; None if it is not there."""
    answer = call(node, Opcode.GET_VBUCKET, vbucket=vb)
    return State(int.from_bytes(answer.value)) if answer.status == 0 else None


def set_state(node: Node, vb: int, wanted: State) -> None:
    """Set a vbucket's state on a node, with or without a map."""
    _done(call(node, Opcode.SET_VBUCKET, extras=bytes([wanted]), vbucket=vb))


def failover_log(node: Node, vb: int) -> list[tuple[int, int]]:
    """Return a vbucket's failover log, newest branch first."""
    log = call(node, Opcode.GET_FAILOVER_LOG, vbucket=vb).value
    return [(int.from_bytes(log[at : at + 8]), int.from_bytes(log[at + 8 : at + 16])) for at in range(0, len(log), 16)]


def high_seqno(node: Node, vb: int) -> int:
    """Return a vbucket's high seqno on a node, in any state; -1 if it is not there."""
    for number in range(1, 5):
        found = call(node, Opcode.GET_ALL_VB_SEQNOS, extras=number.to_bytes(4)).value
        for at in range(0, len(found), 10):
            if int.from_bytes(found[at : at + 2]) == vb:
                return int.from_bytes(found[at + 2 : at + 10])
    return -1


def until(condition: Callable[[], bool], what: str, seconds: float = DEADLINE_SECONDS) -> None:
    """Poll until the condition holds; fail after `seconds`, with `what` as the message."""
    give_up, pause = time.monotonic() + seconds, threading.Event()
    while not condition():
        if time.monotonic() > give_up:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        pause.wait(0.02)


class HandMade:
    """Nodes and the map that they should have; `publish` sends it to some of them, or to all.

    Attributes:
        nodes: the first owns all vbuckets at the beginning.
        owners: of each vbucket, for the next map.
        replicas: by vbucket, in order, for vbuckets that have any in the map.
    """

    def __init__(self, nodes: Sequence[Node], vbuckets: int) -> None:
        self.nodes, self.owners = list(nodes), [0] * vbuckets
        self.replicas: dict[int, list[int]] = {}
        # Newer than the maps that the nodes made for themselves when they were started.
        self._rev = time.time_ns() // 1_000_000 + 1_000_000_000

    @property
    def url(self) -> str:
        """The connection string with the first node."""
        return self.nodes[0].url

    def map(self, this: int) -> bytes:
        """Return the map as one of the nodes gets it."""
        hosts: list[dict[str, object]] = [
            {"hostname": node.host, "services": {"kv": node.port, "mgmt": 8091}} for node in self.nodes
        ]
        hosts[this]["thisNode"] = True
        config = {
            "rev": self._rev,
            "revEpoch": 1,
            "name": "default",
            "nodeLocator": "vbucket",
            "nodesExt": hosts,
            "vBucketServerMap": {
                "hashAlgorithm": "CRC",
                "numReplicas": max(map(len, self.replicas.values()), default=0),
                "serverList": [node.address for node in self.nodes],
                "vBucketMap": [[owner, *self.replicas.get(vb, [])] for vb, owner in enumerate(self.owners)],
            },
        }
        return json.dumps(config).encode()

    def publish(self, *to: int) -> None:
        """Send a new map to these nodes, in this order; to all that run if none is named."""
        self._rev += 1
        for index in to or [place for place, each in enumerate(self.nodes) if each.is_running]:
            version = (1).to_bytes(8) + self._rev.to_bytes(8)
            _done(call(self.nodes[index], Opcode.SET_CLUSTER_CONFIG, b"", self.map(index), version))

    def take_over(self, vb: int, to: int) -> None:
        """Move a vbucket by takeover; the map still names the old owner."""
        source, target = self.nodes[self.owners[vb]], self.nodes[to]
        if state(target, vb) is State.DEAD:
            set_state(target, vb, State.REPLICA)
        replicate(target, source.address, str(vb), takeover=True)
        until(lambda: state(target, vb) is State.ACTIVE, f"vbucket {vb} is taken over")
        leave(target, source.address)
        self.owners[vb] = to

    def follow(self, vb: int, to: int) -> None:
        """Make another node a replica of a vbucket, and wait until it is level."""
        owner = self.nodes[self.owners[vb]]
        replicate(self.nodes[to], owner.address, str(vb))
        until(lambda: high_seqno(self.nodes[to], vb) == high_seqno(owner, vb), f"the replica of vbucket {vb} is level")

    def fail_over(self, vb: int, to: int) -> None:
        """Make a replica the owner without the old owner; the map still names the old one."""
        leave(self.nodes[to], self.nodes[self.owners[vb]].address)
        set_state(self.nodes[to], vb, State.ACTIVE)
        self.owners[vb] = to

    def client(self, *, timeout_seconds: float = 60.0) -> Client:
        """Return a client that starts from the first node."""
        return self.nodes[0].client(timeout_seconds=timeout_seconds)


@contextmanager
def cluster(count: int = 2, vbuckets: int = 8) -> Iterator[HandMade]:
    """Run some nodes with one map, all vbuckets on the first, for a block."""
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(node(vbuckets=vbuckets, vbucket_state="none" if place else "active"))
            for place in range(count)
        ]
        made = HandMade(nodes, vbuckets)
        made.publish()
        yield made


def diverge(bucket: Node, *, lost: Callable[[], None], vbuckets: int = 4) -> None:
    """Restore the node to its state before `lost`, as a replica has it that had not received those writes.

    It then becomes active, which begins a new branch of history. A reader of the lost writes is ahead of the branch.
    """
    kept = keep(bucket)
    lost()
    return_to(bucket, kept, vbuckets)


def keep(bucket: Node) -> Path:
    """Copy the node's present data; return the copy's folder."""
    bucket.stop()
    kept = bucket.data.with_name(f"replica-{uuid4().hex}")
    shutil.copytree(bucket.data, kept)
    bucket.restart()
    return kept


def return_to(bucket: Node, kept: Path, vbuckets: int = 4) -> None:
    """Restore the node to a copy of `keep`, and make it active on a branch of its own."""
    bucket.stop()
    shutil.rmtree(bucket.data)
    kept.rename(bucket.data)
    bucket.restart()
    with bucket.client() as client:
        for vbucket in range(vbuckets):
            client.set_vbucket_state(vbucket, "replica")
            client.set_vbucket_state(vbucket, "active")
