"""A producer of before DCP, on a real socket, in the bytes of the UPR document: no HELLO, no map, no CONTROL, requests
of 40 bytes, bare markers, mutations of 30. What it does not know it refuses as servers of its time did.

Layouts are written out here with `struct`, not taken from the sources they are to test.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from struct import pack, unpack

from headwater.testing.peers import Peer
from headwater.wire.header import Frame, response
from headwater.wire.status import Status

GET_ALL_VB_SEQNOS, VERSION, NO_OP = 0x48, 0x0B, 0x0A
OPEN, CLOSE_STREAM, STREAM_REQ, FAILOVER_LOG = 0x50, 0x52, 0x53, 0x54
STREAM_END, MARKER, MUTATION, DELETION, EXPIRATION = 0x55, 0x56, 0x57, 0x58, 0x59
ENDLESS = 2**64 - 1
BRANCH = (0xFEEDDECA, 0)
LOG = (BRANCH, (0xDEADBEEF, 0))


@dataclass(frozen=True, slots=True)
class Change:
    """One change; without a value a deletion, or (`expired`) an expiration."""

    key: bytes
    value: bytes | None = b"v"
    rev: int = 1
    expired: bool = False

    def frame(self, vbucket: int, opaque: int, seqno: int) -> Frame:
        """As UPR sends it."""
        if self.value is not None:
            extras = pack(">QQIIIH", seqno, self.rev, 7, 0, 0, 0)
            return Frame(0x80, MUTATION, self.key, extras, self.value, vbucket=vbucket, opaque=opaque, cas=1000 + seqno)
        opcode, extras = EXPIRATION if self.expired else DELETION, pack(">QQH", seqno, self.rev, 0)
        return Frame(0x80, opcode, self.key, extras, vbucket=vbucket, opaque=opaque, cas=1000 + seqno)


@dataclass
class UprPeer(Peer):
    """A producer of UPR with snapshots of changes for each vbucket; seqnos count from 1.

    Attributes:
        held: by vbucket, snapshots in order. asked: the stream requests that came, as (vbucket, start, uuid, high).
    """

    held: dict[int, list[list[Change]]] = field(default_factory=dict)
    asked: list[tuple[int, int, int, int]] = field(default_factory=list)

    def answers(self, request: Frame) -> Iterator[Frame]:
        """Return the answers to one frame."""
        self.seen.append(request)
        if request.is_response:
            return
        match request.opcode:
            case 0x0A | 0x52:
                yield response(request)
            case 0x48:
                yield response(request, value=b"".join(pack(">HQ", vb, self.high(vb)) for vb in range(self.vbuckets)))
            case 0x50:
                yield from self._open(request)
            case 0x53:
                yield from self._stream(request)
            case 0x54:
                yield response(request, value=b"".join(pack(">QQ", *entry) for entry in LOG))
            case _:
                yield response(request, Status.UNKNOWN_COMMAND, value=b"Unknown command")

    def high(self, vbucket: int) -> int:
        """The high seqno."""
        return sum(map(len, self.held.get(vbucket, ())))

    def _open(self, request: Frame) -> Iterator[Frame]:
        """ "Only bit 0x01 is defined; key mandatory, no value"."""
        well_formed = len(request.extras) == 8 and request.key and not request.value
        _, flags = unpack(">II", request.extras) if well_formed else (0, 2)
        yield response(request) if flags in (0, 1) else response(request, Status.EINVAL, value=b"Invalid arguments")

    def _stream(self, request: Frame) -> Iterator[Frame]:
        if len(request.extras) != 40 or request.key or request.value:
            yield response(request, Status.EINVAL, value=b"Invalid arguments")
            return
        _, _, start, end, uuid, high = unpack(">IIQQQQ", request.extras)
        self.asked.append((request.vbucket, start, uuid, high))
        if start and (uuid, high) != BRANCH:
            yield response(request, Status.ROLLBACK, extras=bytes(8))  # the form of the sample: in the extras
            return
        yield response(request, value=b"".join(pack(">QQ", *entry) for entry in LOG))
        yield from self._changes(request, start, end)

    def _changes(self, request: Frame, start: int, end: int) -> Iterator[Frame]:
        seqno, vbucket, opaque = 0, request.vbucket, request.opaque
        for snapshot in self.held.get(vbucket, ()):
            first, seqno = seqno + 1, seqno + len(snapshot)
            if seqno <= start or first > end:
                continue
            yield Frame(0x80, MARKER, vbucket=vbucket, opaque=opaque)
            for at, change in enumerate(snapshot, first):
                if at > start:
                    yield change.frame(vbucket, opaque, at)
        if end != ENDLESS:
            yield Frame(0x80, STREAM_END, extras=bytes(4), vbucket=vbucket, opaque=opaque)
        else:
            yield Frame(0x80, MARKER, vbucket=vbucket, opaque=opaque)  # whole so far; more may come


def three_snapshots() -> list[list[Change]]:
    """Ten changes: "k1" to "k5", then "k1" again and "k2" gone, then "k3" run out and two more."""
    return [
        [Change(b"k%d" % number) for number in range(1, 6)],
        [Change(b"k1", b"again", rev=2), Change(b"k2", None, rev=2)],
        [Change(b"k3", None, rev=2, expired=True), Change(b"k6"), Change(b"k7", b"\0" * 3000)],
    ]
