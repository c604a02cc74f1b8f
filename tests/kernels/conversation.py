"""Conversations of a producer for the tests of the decoders: those that obey the rules, nearly obey them, or lie.

`talks()` draws frames of three vbuckets; a model keeps their seqnos right except where a slip is drawn. `garbled()`
takes such a talk and overwrites length fields and other header bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from hypothesis import strategies as st

from headwater.wire import dcp, leb128, upr
from headwater.wire.header import Frame, Magic
from headwater.wire.layout import Message

VBUCKETS = (0, 7, 65535)
OPENED_AT = 5  # every stream is opened after this seqno
SNAPSHOTS = ("v1", "v2", "v2.2", "bare")
CHANGES = ("mutation", "upr mutation", "deletion", "deletion v2", "expiration", "upr expiration")
FOLLOWERS = ("advanced", "event", "prepare", "commit")  # controls that take a seqno
OTHERS = (*FOLLOWERS, "noop", "end", "state", "answer", "notification")
HEADER_FIELDS = ((0, 1), (1, 1), (2, 2), (3, 1), (4, 1), (6, 2), (8, 4), (11, 1), (12, 4))  # offset and bytes
SLIPS = (*[""] * 60, "seqno 0", "old seqno", "beyond", "opaque", "nmeta", "extras", "no key")
BEFORE_SLIPS = ("before none", "before other", "before lies", "before twice", "before noop")

PLAIN_KEYS = st.binary(min_size=1, max_size=6)
NAMED_KEYS = st.builds(
    leb128.join_key, st.integers(0, 300) | st.integers(0, 0xFFFF_FFFF), st.binary(min_size=1, max_size=5)
)
"""Keys that begin with the id of a collection."""


def opaque_of(vbucket: int) -> int:
    """The opaque of the stream that the tests open for a vbucket."""
    return 1000 + vbucket


@dataclass
class Producer:
    """Numbers the frames of each vbucket: the last seqno sent and the end of the snapshot it lies in."""

    last: dict[int, int] = field(default_factory=lambda: dict.fromkeys(VBUCKETS, OPENED_AT))
    end: dict[int, int] = field(default_factory=lambda: dict.fromkeys(VBUCKETS, 0))
    says_before: bool = False

    def say(self, what: str, vbucket: int, step: int, key: bytes, value: bytes, slip: str) -> list[bytes]:
        """The frames for one drawn item: a snapshot is announced first where a change would need one."""
        said = []
        unannounced = what in (*CHANGES, *FOLLOWERS) and self.last[vbucket] + step > self.end[vbucket]
        if what in SNAPSHOTS or unannounced:
            said.append(self._marker(what if what in SNAPSHOTS else "v1", vbucket, step + 20, slip))
        if what not in SNAPSHOTS:
            said.append(self._frame(what, vbucket, step, key, value, slip))
        return said

    def _marker(self, version: str, vbucket: int, width: int, slip: str) -> bytes:
        start, end = self.last[vbucket] + 1, self.last[vbucket] + width
        if slip == "beyond":
            start, end = end, start
        if slip == "old seqno":
            start, end = 1, 2
        common = {"vbucket": vbucket, "opaque": opaque_of(vbucket) + (slip == "opaque")}
        self.end[vbucket] = end
        if version == "bare":
            self.end[vbucket] = 1 << 60
            return upr.SnapshotMarker(**common).encode()
        numbers = {"start_seqno": start, "end_seqno": end, "flags": 1}
        if version == "v1":
            return dcp.SnapshotMarker(**numbers, **common).encode()
        numbers |= {"max_visible_seqno": end, "high_completed_seqno": 0}
        if version == "v2":
            return dcp.SnapshotMarkerV2(**numbers, **common).encode()
        return dcp.SnapshotMarkerV22(**numbers, purge_seqno=0, high_prepared_seqno=0, **common).encode()

    def _seqno(self, vbucket: int, step: int, slip: str) -> int:
        right = self.last[vbucket] + step
        self.last[vbucket] = right if slip not in ("seqno 0", "old seqno", "beyond") else self.last[vbucket]
        return {"seqno 0": 0, "old seqno": self.last[vbucket], "beyond": self.end[vbucket] + 1}.get(slip, right)

    def _frame(self, what: str, vbucket: int, step: int, key: bytes, value: bytes, slip: str) -> bytes:
        ours = {"vbucket": vbucket, "opaque": opaque_of(vbucket) + (slip == "opaque")}
        if what in CHANGES:
            change = self._change(what, vbucket, step, key, value, slip)
            return self._before(change, step, slip) + _spoil(change, slip)
        if what in FOLLOWERS:
            return _spoil(self._follower(what, self._seqno(vbucket, step, slip), key, value, ours), slip)
        others: dict[str, Message] = {
            "noop": dcp.Noop(opaque=10_000_001),
            "end": dcp.StreamEnd(status=0, **ours),
            "state": dcp.SetVbucketState(state=1, **ours),
            "answer": dcp.StreamResponse(failover_log=[(0xFEED, 0)], opaque=ours["opaque"]),
        }
        if what == "notification":
            return Frame(Magic.SERVER_REQUEST, 0x01, key, b"\0" * 4, value).encode()
        return others[what].encode()

    def _before(self, change: Message, step: int, slip: str) -> bytes:
        """The message in front of a change: a version, none, or that none is kept, by its step; wrong by some slips."""
        if not self.says_before or slip == "before none":
            return b""
        seqno = change.by_seqno + (slip == "before other")  # type: ignore[attr-defined]
        place = {"vbucket": change.vbucket, "opaque": change.opaque, "by_seqno": seqno, "framing": change.framing}
        if step % 3:
            before = dcp.Before(state=1 + step % 3, before_seqno=int(slip == "before lies"), **place)
        else:
            version = {"before_seqno": seqno if slip == "before lies" else max(seqno - step, 1), "rev_seqno": step}
            before = dcp.Before(state=1, cas=step, flags=9, expiration=step, value=b"was" * step, **version, **place)
        twice = slip == "before twice"
        noop = dcp.Noop(opaque=10_000_002).encode() if slip == "before noop" else b""
        return before.encode() * (1 + twice) + noop

    def _follower(self, what: str, seqno: int, key: bytes, value: bytes, ours: dict[str, int]) -> Message:
        if what == "advanced":
            return dcp.SeqnoAdvanced(seqno=seqno, **ours)
        if what == "event":
            return dcp.SystemEventV2(by_seqno=seqno, event=0, key=key, value=value, **ours)
        if what == "commit":
            return dcp.Commit(prepared_seqno=1, commit_seqno=seqno, key=key, **ours)
        return dcp.Prepare(by_seqno=seqno, rev_seqno=1, durability_level=1, key=key, value=value, cas=9, **ours)

    def _change(self, what: str, vbucket: int, step: int, key: bytes, value: bytes, slip: str) -> Message:
        common = {"vbucket": vbucket, "opaque": opaque_of(vbucket) + (slip == "opaque"), "key": key, "value": value}
        common |= {"by_seqno": self._seqno(vbucket, step, slip), "rev_seqno": step, "cas": 77 + step, "datatype": 1}
        common["framing"] = b"\x22\x00\x05" if step % 5 == 0 else None
        if what == "mutation":
            return dcp.Mutation(flags=0x2000006, expiration=step * 1000, nmeta=slip == "nmeta", nru=2, **common)
        if what == "upr mutation":
            return upr.Mutation(flags=3, expiration=step, nmeta=slip == "nmeta", **common)
        if what == "deletion v2":
            return dcp.DeletionV2(delete_time=1_700_000_000 + step, **common)
        if what == "expiration":
            return dcp.Expiration(delete_time=1_700_000_000 + step, **common)
        kind = dcp.Deletion if what == "deletion" else upr.Expiration
        return kind(nmeta=slip == "nmeta", **common)


def _spoil(message: Message, slip: str) -> bytes:
    frame = message.frame()
    if slip == "extras":
        frame = Frame(**{name: getattr(frame, name) for name in frame.__slots__} | {"extras": frame.extras + b"\0"})
    if slip == "no key":
        frame = Frame(**{name: getattr(frame, name) for name in frame.__slots__} | {"key": b""})
    return frame.encode()


@st.composite
def talks(
    draw: st.DrawFn,
    *,
    slips: bool = True,
    frames: int = 25,
    keys: st.SearchStrategy[bytes] = PLAIN_KEYS,
    befores: bool = False,
) -> bytes:
    """The bytes of a conversation; with `befores` each change comes behind what it replaced."""
    producer = Producer(says_before=befores)
    one = st.tuples(
        st.sampled_from(CHANGES * 3 + SNAPSHOTS + OTHERS),
        st.sampled_from(VBUCKETS),
        st.integers(1, 12),
        keys,
        st.binary(max_size=12),
        st.sampled_from(SLIPS + BEFORE_SLIPS * befores) if slips else st.just(""),
    )
    return b"".join(frame for item in draw(st.lists(one, max_size=frames)) for frame in producer.say(*item))


@st.composite
def garbled(draw: st.DrawFn, *, befores: bool = False) -> bytes:
    """A conversation in which length fields and other header bytes were overwritten."""
    data = bytearray(draw(talks(slips=False, befores=befores)))
    starts, at = [], 0
    while at < len(data):
        starts.append(at)
        at += 24 + struct.unpack_from(">I", data, at + 8)[0]
    for _ in range(draw(st.integers(1, 3))) if starts else ():
        start = draw(st.sampled_from(starts))
        offset, width = draw(
            st.sampled_from([(0, 1), (1, 1), (2, 2), (3, 1), (4, 1), (8, 4), (11, 1), (12, 4), (6, 2)])
        )
        lie = st.one_of(st.integers(0, 255 if width == 1 else 90), st.integers(0, (1 << 8 * width) - 1))
        data[start + offset : start + offset + width] = draw(lie).to_bytes(width)
    return bytes(data)
