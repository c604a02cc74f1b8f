"""Real nodes as an operator without tools has them: raw requests, replicas and owners made by hand, data put back.

`cluster` runs some nodes with one map, vbucket by vbucket taken over, followed or failed over. `diverge`, `keep` and
`return_to` do with one node alone what a failover does: it is put back to where a replica would have been that had not
received the last writes, and begins a branch of history of its own.
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
    """One connection that asks and reads."""

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
        """Hang up."""
        self.file.close()
        self.sock.close()

    def send(self, frame: Frame) -> None:
        """Send a frame."""
        self.sock.sendall(frame.encode())

    def read(self) -> Frame:
        """Return the next frame that comes."""
        header = self.file.read(24)
        if len(header) < 24:
            raise ConnectionError("the node hung up")
        return Frame.decode(header + self.file.read(int.from_bytes(header[8:12])))

    def call(self, opcode: int, key: bytes = b"", value: bytes = b"", extras: bytes = b"", vbucket: int = 0) -> Frame:
        """Ask, and return the answer."""
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
    """Ask a node over a connection of its own."""
    with Line(node.port) as line:
        return line.call(opcode, key, value, extras, vbucket)


def _done(answer: Frame) -> None:
    if answer.status:
        raise AssertionError(f"refused: {answer}")


def put(node: Node, vb: int, key: str, value: bytes) -> None:
    """Store a document in a vbucket, whichever its key belongs to."""
    _done(call(node, Opcode.SET, key.encode(), value, bytes(8), vb))


def replicate(node: Node, source: str, vbuckets: str, *, takeover: bool = False) -> None:
    """Let a node follow another one, at host:port, in some vbuckets such as `0-3,7`."""
    asked = {"from": source, "vbuckets": vbuckets, "takeover": takeover}
    _done(call(node, Opcode.IOCTL_SET, b"replicate", json.dumps(asked).encode()))


def leave(node: Node, source: str) -> None:
    """Let it follow no more."""
    call(node, Opcode.IOCTL_SET, b"replicate.stop", json.dumps({"from": source}).encode())


def state(node: Node, vb: int) -> State | None:
    """Return a vbucket's state on a node; None where it is not."""
    answer = call(node, Opcode.GET_VBUCKET, vbucket=vb)
    return State(int.from_bytes(answer.value)) if answer.status == 0 else None


def set_state(node: Node, vb: int, wanted: State) -> None:
    """Set a vbucket's state on a node, with or without a map."""
    _done(call(node, Opcode.SET_VBUCKET, extras=bytes([wanted]), vbucket=vb))


def failover_log(node: Node, vb: int) -> list[tuple[int, int]]:
    """Return a vbucket's branches, newest first."""
    log = call(node, Opcode.GET_FAILOVER_LOG, vbucket=vb).value
    return [(int.from_bytes(log[at : at + 8]), int.from_bytes(log[at + 8 : at + 16])) for at in range(0, len(log), 16)]


def high_seqno(node: Node, vb: int) -> int:
    """Return a vbucket's newest seqno on a node, in whatever state; -1 where it is not."""
    for number in range(1, 5):
        found = call(node, Opcode.GET_ALL_VB_SEQNOS, extras=number.to_bytes(4)).value
        for at in range(0, len(found), 10):
            if int.from_bytes(found[at : at + 2]) == vb:
                return int.from_bytes(found[at + 2 : at + 10])
    return -1


def until(condition: Callable[[], bool], what: str, seconds: float = DEADLINE_SECONDS) -> None:
    """Poll until the condition holds; fails after a deadline."""
    give_up, pause = time.monotonic() + seconds, threading.Event()
    while not condition():
        if time.monotonic() > give_up:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        pause.wait(0.02)


class HandMade:
    """Nodes and the map that they should have; `publish` gives it to some of them, or to all.

    Attributes:
        nodes: the first owns all vbuckets at the beginning.
        owners: of each vbucket, as the next map will tell. replicas: those of vbuckets that it gives any, in order.
    """

    def __init__(self, nodes: Sequence[Node], vbuckets: int) -> None:
        self.nodes, self.owners = list(nodes), [0] * vbuckets
        self.replicas: dict[int, list[int]] = {}
        # Newer than the maps that the nodes made for themselves when they were started.
        self._rev = time.time_ns() // 1_000_000 + 1_000_000_000

    @property
    def url(self) -> str:
        """For clients that start from the first node."""
        return self.nodes[0].url

    def map(self, this: int) -> bytes:
        """The map as one of the nodes gets it."""
        hosts: list[dict[str, object]] = [
            {"hostname": each.host, "services": {"kv": each.port, "mgmt": 8091}} for each in self.nodes
        ]
        hosts[this]["thisNode"] = True
        told = {
            "rev": self._rev,
            "revEpoch": 1,
            "name": "default",
            "nodeLocator": "vbucket",
            "nodesExt": hosts,
            "vBucketServerMap": {
                "hashAlgorithm": "CRC",
                "numReplicas": max(map(len, self.replicas.values()), default=0),
                "serverList": [each.address for each in self.nodes],
                "vBucketMap": [[owner, *self.replicas.get(vb, [])] for vb, owner in enumerate(self.owners)],
            },
        }
        return json.dumps(told).encode()

    def publish(self, *to: int) -> None:
        """Give a new map to these nodes, in this order; to all that run if none is named."""
        self._rev += 1
        for index in to or [place for place, each in enumerate(self.nodes) if each.is_running]:
            version = (1).to_bytes(8) + self._rev.to_bytes(8)
            _done(call(self.nodes[index], Opcode.SET_CLUSTER_CONFIG, b"", self.map(index), version))

    def take_over(self, vb: int, to: int) -> None:
        """Move a vbucket; the map still names the old owner."""
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
        """Make a replica the owner, whatever the old one thinks; the map still names the old one."""
        leave(self.nodes[to], self.nodes[self.owners[vb]].address)
        set_state(self.nodes[to], vb, State.ACTIVE)
        self.owners[vb] = to

    def client(self, *, timeout_seconds: float = 60.0) -> Client:
        """A client that starts from the first node."""
        return self.nodes[0].client(timeout_seconds=timeout_seconds)


@contextmanager
def cluster(count: int = 2, vbuckets: int = 8) -> Iterator[HandMade]:
    """Some nodes with one map, all vbuckets on the first."""
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(node(vbuckets=vbuckets, vbucket_state="none" if place else "active"))
            for place in range(count)
        ]
        made = HandMade(nodes, vbuckets)
        made.publish()
        yield made


def diverge(bucket: Node, *, lost: Callable[[], None], vbuckets: int = 4) -> None:
    """Put the node back to where it was before `lost`, as a replica that had not received those writes would be.

    It then becomes active, which begins a new branch of history. Whoever read what `lost` wrote is ahead of the branch.
    """
    kept = keep(bucket)
    lost()
    return_to(bucket, kept, vbuckets)


def keep(bucket: Node) -> Path:
    """Copy the node's data as it is now; return where to."""
    bucket.stop()
    kept = bucket.data.with_name(f"replica-{uuid4().hex}")
    shutil.copytree(bucket.data, kept)
    bucket.restart()
    return kept


def return_to(bucket: Node, kept: Path, vbuckets: int = 4) -> None:
    """Put the node back to what was kept, and make it active on a branch of its own."""
    bucket.stop()
    shutil.rmtree(bucket.data)
    kept.rename(bucket.data)
    bucket.restart()
    with bucket.client() as client:
        for vbucket in range(vbuckets):
            client.set_vbucket_state(vbucket, "replica")
            client.set_vbucket_state(vbucket, "active")
