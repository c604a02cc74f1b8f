"""Several real nodes, and the orchestrator's part: maps that are made, marked for each node and sent."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from struct import pack

from headwater.testing.node import Node, node
from headwater.wire.opcodes import Opcode
from headwater.wire.vbucket import State
from tests.node.replication.support import Line, call, high_seqno, state

UUID = "0123456789abcdef" * 2
EPOCH = 2  # newer than any map that a node made of itself
VBUCKETS = 4
Chains = Sequence[Sequence[int]]
ALL_ON_FIRST = [[0, 1]] * VBUCKETS
KEY_EEXISTS, EINVAL, NOT_MY_VBUCKET, ETMPFAIL = 0x02, 0x04, 0x07, 0x86


def cluster_map(rev: int, addresses: Sequence[str], chains: Chains, this: int | None = None) -> bytes:
    """A map of the smallest form that names its nodes."""
    entries: list[dict[str, object]] = []
    for index, address in enumerate(addresses):
        host, _, port = address.rpartition(":")
        entries.append(
            {"services": {"kv": int(port)}, "hostname": host} | ({"thisNode": True} if index == this else {})
        )
    table = {"hashAlgorithm": "CRC", "numReplicas": 1, "serverList": list(addresses), "vBucketMap": list(chains)}
    told = {"rev": rev, "revEpoch": EPOCH, "name": "default", "uuid": UUID, "nodesExt": entries}
    return json.dumps({**told, "vBucketServerMap": table}, separators=(",", ":")).encode()


def send_map(to: Node, rev: int, config: bytes, epoch: int = EPOCH) -> int:
    return call(to, Opcode.SET_CLUSTER_CONFIG, b"default", config, pack(">qq", epoch, rev)).status


def spread(rev: int, nodes: Sequence[Node], chains: Chains, to: Iterable[Node] | None = None) -> None:
    """Send a map of these nodes to all of them, or to some."""
    addresses = [node.address for node in nodes]
    for each in nodes if to is None else to:
        assert send_map(each, rev, cluster_map(rev, addresses, chains, nodes.index(each))) == 0


def stats(of: Node, group: str) -> dict[str, str]:
    found = {}
    with Line(of.port) as line:
        frame = line.call(Opcode.STAT, group.encode())
        while frame.key:
            found[frame.key.decode()] = frame.value.decode()
            frame = line.read()
    return found


def known_map(of: Node) -> dict[str, object]:
    found: dict[str, object] = json.loads(call(of, Opcode.GET_CLUSTER_CONFIG).value)
    return found


def follows(one: Node, two: Node, vb: int) -> bool:
    """Whether the second is a replica with all that the first has."""
    return high_seqno(one, vb) == high_seqno(two, vb) and state(two, vb) is State.REPLICA


@contextmanager
def nodes(count: int) -> Iterator[list[Node]]:
    """The first has all vbuckets, the others none."""
    with ExitStack() as stack:
        states = ["active"] + ["none"] * (count - 1)
        yield [stack.enter_context(node(vbuckets=VBUCKETS, vbucket_state=state)) for state in states]
