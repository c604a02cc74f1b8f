"""A small producer to test clients against: it answers correctly, unless a test sets one of its faults.

    peer = Peer(vbuckets=4, histories={0: history(100)})
    with serve(peer) as address: ...

`Peer` answers frames and holds no socket: the bootstrap of a node without users, a cluster map of one node, the
commands around vbuckets, and DCP streams with one snapshot each. `serve` puts it on a loopback port, a thread for each
connection. Faults:

    peer.cuts       a connection takes the next number from it and is closed after so many bytes to the client
    peer.mutate     a function from each frame to the bytes sent instead of it (None: nothing is sent)
    peer.refuse     status of the answer to stream requests, by vbucket
    peer.ends       each accepted stream takes the next (seqno, reason) from it and ends early, before that seqno
    peer.silent     opcodes that are not answered
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from headwater.protocol.dcp.failover import Claim, Ok, Rollback, decide
from headwater.wire import bootstrap, dcp
from headwater.wire.admin import GetAllVbSeqnosResponse
from headwater.wire.features import Feature
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame, response
from headwater.wire.meta import ObserveSeqno, ObserveSeqnoFailedOver, ObserveSeqnoResponse
from headwater.wire.opcodes import Opcode
from headwater.wire.records import encode_log
from headwater.wire.status import Status

UUID = 0xA11CE
RECEIVE_BYTES = 64 * 1024

Mutator = Callable[[Frame], bytes | None]


@dataclass(slots=True)
class Snapshot:
    """A snapshot of one vbucket: its range, marker flags and changes (frames with a seqno each, any opaque)."""

    start: int
    end: int
    changes: Sequence[Frame]
    flags: int = 0x05


@dataclass(slots=True)
class History:
    """A peer's data of one vbucket: snapshots in order, and the failover log, newest first."""

    snapshots: list[Snapshot] = field(default_factory=list)
    failover_log: list[tuple[int, int]] = field(default_factory=lambda: [(UUID, 0)])

    @property
    def high_seqno(self) -> int:
        """The last seqno."""
        return self.snapshots[-1].end if self.snapshots else 0


def mutation(seqno: int, key: bytes, value: bytes = b"") -> Frame:
    """Return a DCP mutation; the peer fills in vbucket and opaque."""
    return dcp.Mutation(by_seqno=seqno, rev_seqno=1, vbucket=0, cas=seqno, key=key, value=value).frame()


def history(count: int, *, per_snapshot: int = 5, value: bytes = b"v") -> History:
    """Return a history of `count` mutations, key "k1" to "k<count>", in snapshots of a few."""
    changes = [mutation(seqno, f"k{seqno}".encode(), value) for seqno in range(1, count + 1)]
    parts = [changes[at : at + per_snapshot] for at in range(0, count, per_snapshot)]
    return History([Snapshot(_seqno(part[0]), _seqno(part[-1]), part) for part in parts])


def _seqno(frame: Frame) -> int:
    return dcp.seqno_of(frame.extras)


@dataclass
class Peer:
    """A producer; see the module for its faults.

    Attributes:
        vbuckets: number of vbuckets in the map; all of them are this node's, unless `config` returns another map.
        histories: its data; vbuckets without a history are empty.
        config: returns the cluster map for the peer's address; None for the map of one node.
        persisted: the seqno up to which a vbucket is on this node's disk; a vbucket that is missing is persisted whole.
        seen: every request that arrived, in order; complete once `serve` has ended.
        connections: number of accepted connections.
    """

    vbuckets: int = 1
    histories: Mapping[int, History] = field(default_factory=dict)
    config: Callable[[tuple[str, int]], Mapping[str, object]] | None = None
    cuts: list[int] = field(default_factory=list)
    mutate: Mutator | None = None
    refuse: dict[int, int] = field(default_factory=dict)
    ends: list[tuple[int, int]] = field(default_factory=list)
    silent: set[int] = field(default_factory=set)
    persisted: dict[int, int] = field(default_factory=dict)
    address: tuple[str, int] = ("127.0.0.1", 0)
    seen: list[Frame] = field(default_factory=list)
    connections: int = 0

    def history(self, vbucket: int) -> History:
        """Return the peer's history of a vbucket."""
        return self.histories.get(vbucket, History())

    def answers(self, request: Frame) -> Iterator[Frame]:
        """Yield the peer's answers to one frame."""
        self.seen.append(request)
        if request.is_response or request.opcode in self.silent:
            return
        handler = _ANSWERS.get(request.opcode)
        if handler is not None:
            yield from handler(self, request)
        elif request.opcode != Opcode.DCP_BUFFER_ACKNOWLEDGEMENT:
            yield response(request, Status.UNKNOWN_COMMAND)

    def _agree(self, request: Frame) -> Iterator[Frame]:
        yield response(request)

    def _hello(self, request: Frame) -> Iterator[Frame]:
        """Grant all features but Collections: the keys of a history are bare."""
        hello = bootstrap.Hello.decode(request)
        granted = [code for code in hello.features if code != Feature.COLLECTIONS]
        yield response(request, value=bootstrap.HelloResponse(features=granted).frame().value)

    def _map(self, request: Frame) -> Iterator[Frame]:
        if self.config is None:
            content: Mapping[str, object] = cluster_map([self.address], [0] * self.vbuckets)
        else:
            content = self.config(self.address)
        yield response(request, value=json.dumps(content).encode(), datatype=1)

    def _seqnos(self, request: Frame) -> Iterator[Frame]:
        entries = ((vb, self.history(vb).high_seqno) for vb in range(self.vbuckets))
        yield response(request, value=GetAllVbSeqnosResponse(seqnos=list(entries)).frame().value)

    def _log(self, request: Frame) -> Iterator[Frame]:
        yield response(request, value=encode_log(self.history(request.vbucket).failover_log))

    def _persisted_answers(self, request: Frame) -> Iterator[Frame]:
        """Answer with format 0 for the newest branch, 1 for an older one, KEY_ENOENT for an unknown one (kv.md 2)."""
        query = ObserveSeqno.decode(request)
        history = self.history(query.vbucket)
        log, high = history.failover_log, history.high_seqno
        ends = {uuid: end for (uuid, _), end in zip(log, [high, *(begins for _, begins in log)], strict=False)}
        on_disk = min(high, self.persisted.get(query.vbucket, high))
        if query.vb_uuid not in ends:
            yield response(request, Status.KEY_ENOENT)
            return
        fields: dict[str, Any] = {
            "vbucket": query.vbucket,
            "vb_uuid": log[0][0],
            "persisted_seqno": on_disk,
            "current_seqno": high,
        }
        if query.vb_uuid == log[0][0]:
            yield response(request, value=ObserveSeqnoResponse(**fields).frame().value)
            return
        older: dict[str, Any] = {"old_vb_uuid": query.vb_uuid, "last_received_seqno": ends[query.vb_uuid]}
        yield response(request, value=ObserveSeqnoFailedOver(**fields, **older).frame().value)

    def _stream(self, request: Frame) -> Iterator[Frame]:
        query, history = dcp.StreamRequest.decode(request), self.history(request.vbucket)
        if status := self.refuse.get(request.vbucket):
            yield response(request, status)
            return
        claim = Claim(query.start_seqno, query.end_seqno, query.vb_uuid, query.snap_start_seqno, query.snap_end_seqno)
        match decide(claim, history.failover_log, history.high_seqno):
            case Ok():
                yield response(request, value=encode_log(history.failover_log))
                yield from self._until_end(query, _stream_frames(query, history))
            case Rollback(seqno):
                yield response(request, Status.ROLLBACK, value=dcp.StreamRollback(rollback_seqno=seqno).frame().value)
            case _:
                yield response(request, Status.ERANGE)

    def _until_end(self, query: dcp.StreamRequest, frames: Iterator[Frame]) -> Iterator[Frame]:
        seqno, reason = self.ends.pop(0) if self.ends else (None, 0)
        for frame in frames:
            if frame.opcode == Opcode.DCP_MUTATION and _seqno(frame) == seqno:
                yield dcp.StreamEnd(vbucket=query.vbucket, opaque=query.opaque, status=reason).frame()
                return
            yield frame


def _stream_frames(query: dcp.StreamRequest, history: History) -> Iterator[Frame]:
    """Yield the history after the start seqno; the first marker begins at the requested snapshot start, if that is
    later.
    """
    vbucket, opaque = query.vbucket, query.opaque
    for part in history.snapshots:
        if part.end <= query.start_seqno or part.start > query.end_seqno:
            continue
        start = max(part.start, query.snap_start_seqno)
        marker = dcp.SnapshotMarker(
            vbucket=vbucket, opaque=opaque, start_seqno=start, end_seqno=part.end, flags=part.flags
        )
        yield marker.frame()
        yield from (
            replace(change, vbucket=vbucket, opaque=opaque)
            for change in part.changes
            if _seqno(change) > query.start_seqno
        )
    if history.high_seqno >= query.end_seqno or query.start_seqno == query.end_seqno:
        yield dcp.StreamEnd(vbucket=vbucket, opaque=opaque, status=0).frame()


def cluster_map(nodes: Sequence[tuple[str, int]], owners: Sequence[int], rev: int = 1) -> dict[str, object]:
    """Return a cluster map.

    Args:
        nodes: host and port of each node. owners: for each vbucket the index of its owner.
    """
    return {
        "rev": rev,
        "name": "default",
        "nodeLocator": "vbucket",
        "nodes": [{} for _ in nodes],
        "nodesExt": [{"hostname": host, "services": {"mgmt": 8091, "kv": port}} for host, port in nodes],
        "vBucketServerMap": {"numReplicas": 0, "vBucketMap": [[owner] for owner in owners]},
    }


_ANSWERS: dict[int, Callable[[Peer, Frame], Iterator[Frame]]] = {
    Opcode.HELLO: Peer._hello,
    Opcode.SELECT_BUCKET: Peer._agree,
    Opcode.NOOP: Peer._agree,
    Opcode.GET_CLUSTER_CONFIG: Peer._map,
    Opcode.GET_ALL_VB_SEQNOS: Peer._seqnos,
    Opcode.GET_FAILOVER_LOG: Peer._log,
    Opcode.OBSERVE_SEQNO: Peer._persisted_answers,
    Opcode.DCP_OPEN: Peer._agree,
    Opcode.DCP_CONTROL: Peer._agree,
    Opcode.DCP_STREAM_REQ: Peer._stream,
}


@contextmanager
def serve(peer: Peer) -> Iterator[str]:
    """Serve a peer on a free loopback port for a block; yield "127.0.0.1:port"."""
    listener = socket.create_server(("127.0.0.1", 0))
    peer.address = listener.getsockname()[:2]
    open_sockets: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            open_sockets.append(connection)
            limit = peer.cuts.pop(0) if peer.cuts else None
            peer.connections += 1
            threads.append(threading.Thread(target=_converse, args=(peer, connection, limit), daemon=True))
            threads[-1].start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield f"127.0.0.1:{peer.address[1]}"
    finally:
        _shut_down(listener)
        listener.close()
        acceptor.join()
        # Not closed from here: each thread first reads what had come by then.
        for each, thread in zip(open_sockets, threads, strict=True):
            _shut_down(each)
            thread.join()


def _shut_down(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)


def _converse(peer: Peer, connection: socket.socket, limit: int | None) -> None:
    """Answer one connection until it ends, or until `limit` bytes were sent."""
    buffer = FrameBuffer()
    with connection, suppress(OSError):
        while data := connection.recv(RECEIVE_BYTES):
            out = b"".join(
                peer.mutate(frame) or b"" if peer.mutate else frame.encode()
                for request in buffer.receive_data(data)
                for frame in peer.answers(request)
            )
            if limit is not None and len(out) >= limit:
                connection.sendall(out[:limit])
                connection.shutdown(socket.SHUT_RDWR)
                return
            limit = None if limit is None else limit - len(out)
            if out:  # whoever has shut the connection down is still listened to
                connection.sendall(out)
