"""The contents of one node, whatever the map says: every copy of every vbucket, read over a DCP stream of its own."""

from __future__ import annotations

from typing import NamedTuple

from headwater.wire import dcp
from headwater.wire.dialect import Dialect, decode
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.vbucket import State

from ..node.wire import Client

PRODUCER = 1
CHANGES = (dcp.Mutation, dcp.DeletionV2, dcp.Deletion, dcp.Expiration)


class Held(NamedTuple):
    """A document or a tombstone; value None: deleted."""

    seqno: int
    cas: int
    rev_seqno: int
    flags: int
    value: bytes | None


class Copy(NamedTuple):
    """A vbucket on a node: its history's newest uuid, and the newest version of every key."""

    state: State
    uuid: int
    high_seqno: int
    keys: dict[bytes, Held]


def vbuckets(port: int) -> dict[int, State]:
    """The vbuckets of a node."""
    with Client(port) as client:
        client.send(Frame(0x80, Opcode.STAT, key=b"vbucket").encode())
        found = {}
        while (frame := client.read()) is not None and frame.key:
            found[int(frame.key.removeprefix(b"vb_"))] = State[frame.value.decode().upper()]
    return found


def copies(port: int) -> dict[int, Copy]:
    """All vbuckets of a node with all they hold."""
    states = vbuckets(port)
    with Client(port) as client:
        seqnos = {}
        for state in State:
            told = client.ask(Opcode.GET_ALL_VB_SEQNOS, extras=int(state).to_bytes(4)).value
            entries = [told[at : at + 10] for at in range(0, len(told), 10)]
            seqnos |= {int.from_bytes(entry[:2]): int.from_bytes(entry[2:]) for entry in entries}
        answer = client.ask(Opcode.DCP_OPEN, key=f"reader-{port}".encode(), extras=bytes(4) + PRODUCER.to_bytes(4))
        assert answer.status == 0
        return {vb: _copy(client, vb, states[vb], seqnos.get(vb, 0)) for vb in sorted(states)}


def _copy(client: Client, vb: int, state: State, high: int) -> Copy:
    asked = dcp.StreamRequest(
        vbucket=vb, opaque=vb, start_seqno=0, end_seqno=high, snap_start_seqno=0, snap_end_seqno=0
    )
    client.send(asked.encode())
    keys: dict[bytes, Held] = {}
    uuid = 0
    while (frame := client.read()) is not None:
        if frame.opcode == Opcode.DCP_STREAM_REQ:
            assert frame.status == 0, f"vbucket {vb}: status {frame.status:#x}"
            uuid = int.from_bytes(frame.value[:8])
        elif frame.opcode == Opcode.DCP_STREAM_END:
            return Copy(state, uuid, high, keys)
        elif frame.opcode != Opcode.DCP_SNAPSHOT_MARKER:
            _note(keys, frame)
    raise AssertionError(f"vbucket {vb}: the node hung up")


def _note(keys: dict[bytes, Held], frame: Frame) -> None:
    told = decode(frame, Dialect.DCP)
    assert isinstance(told, CHANGES), told
    value = bytes(frame.value) if isinstance(told, dcp.Mutation) else None
    flags = told.flags if isinstance(told, dcp.Mutation) else 0
    keys[bytes(frame.key)] = Held(told.by_seqno, frame.cas, told.rev_seqno, flags, value)


def check_cluster(ports: list[int]) -> dict[bytes, bytes]:
    """Each vbucket has one owner, and every other copy is the same; returns all documents."""
    nodes = [copies(port) for port in ports]
    documents: dict[bytes, bytes] = {}
    for vb in sorted({vb for node in nodes for vb in node}):
        there = [node[vb] for node in nodes if vb in node]
        owners = [copy for copy in there if copy.state is State.ACTIVE]
        assert len(owners) == 1, f"vbucket {vb}: {[copy.state.name for copy in there]}"
        for copy in there:
            assert copy.state in (State.ACTIVE, State.REPLICA), f"vbucket {vb}: {copy.state.name}"
            assert copy[1:] == owners[0][1:], f"vbucket {vb}: a replica differs from its active"
        documents |= {key: held.value for key, held in owners[0].keys.items() if held.value is not None}
    return documents
