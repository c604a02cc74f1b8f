"""Readers of every kind, at the owner of a vbucket and at a replica in the midst of a snapshot, cut off anywhere.

The state at the end of each snapshot is held against the history: it is what was there at that seqno, of what the
reader asked for. Who is cut off inside of a snapshot goes on inside of it, also with an end before the snapshot's; who
is sent back by a copy that took over held a whole state there. And once nothing is under way everybody has everything,
and whoever asked for an end has come to it.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from headwater.node.streams.snapshot import PREPARE_COUNTS_MORE
from headwater.protocol.dcp.position import history_at
from headwater.wire import dcp, leb128
from headwater.wire.dcp import EndReason, SnapshotFlag
from headwater.wire.header import Frame
from headwater.wire.manifest import EventKind
from headwater.wire.opcodes import Opcode
from headwater.wire.records import log_entries
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.node.streams.history import SCOPE, Copy, Feed, History, Key, Owner
from tests.node.streams.support import COLLECTIONS, U64, Producer
from tests.node.support import discard

KEYS = st.tuples(st.sampled_from([0, 0, 0, 8, 9]), st.sampled_from("abcdefgh"))
CHANGES = st.tuples(
    st.sampled_from([*["set"] * 12, *["delete"] * 3, *["prepare", "commit", "abort"] * 2, "drop"]), KEYS
)
HIDDEN = [*[("set", (8, key)) for key in "abcd"], *[(what, (0, "h")) for what in ("prepare", "abort") * 3]]
"""Changes that a reader without collections and prepares is not shown."""
STAY = st.tuples(
    st.booleans(), st.sampled_from([1, 1, 0]), st.sampled_from([None, 1, 3, 5, 8]), st.sampled_from([2, 3, 4, 5, 12])
)
"""At the replica or not, the window, how far behind the last seqno the end is (None: no end), and turns to read."""


@dataclass(frozen=True)
class Kind:
    """The choice of a reader."""

    name: str
    aware: bool = True
    value: bytes = b""
    prepares: bool = False
    flags: int = 0x21
    versions: bool = False

    def wants(self, key: Key, scopes: dict[int, int]) -> bool:
        collection = key[0]
        if b"scope" in self.value:
            return scopes[collection] == SCOPE
        if b"collections" in self.value:
            return collection == 8
        return self.aware or collection == 0


KINDS = [
    Kind("plain", aware=False),
    Kind("plain without deletions at first", aware=False, flags=0x221),
    Kind("plain, with prepares", aware=False, prepares=True),
    Kind("everything"),
    Kind("everything and prepares", prepares=True),
    Kind("a scope", value=b'{"scope":"8"}'),
    Kind("a collection", value=b'{"collections":["8"]}'),
    Kind("every version", versions=True),
]
SHARE = st.sampled_from([0, 30, 60, 90, 100])
"""Percent of what waits for the replica."""
READER = st.integers(0, len(KINDS) - 1)
Whole = tuple[dict[Key, int], dict[Key, int]]
"""The documents and the prepares of a state."""


@dataclass
class Reader:
    """One of a kind: what it holds, and where it stands, as it would save that."""

    kind: Kind
    documents: dict[Key, int] = field(default_factory=dict)
    prepares: dict[Key, int] = field(default_factory=dict)
    whole: dict[int, Whole] = field(default_factory=lambda: {0: ({}, {})})
    log: tuple[tuple[int, int], ...] = ()
    last: int = 0
    start: int = 0
    end: int = 0
    flags: int = 0
    copy: Copy | None = None
    until: int = U64
    over: bool = False

    def begin(self, copy: Copy, window: int, until: int) -> None:
        self.producer = Producer(copy.desk, self.kind.name, self.kind.flags, (7, 8, COLLECTIONS)[: 2 + self.kind.aware])
        self.producer.control("connection_buffer_size", str(window))
        if self.kind.prepares:
            assert self.producer.control("enable_sync_writes", "true") == 0
        if self.kind.versions:
            assert self.producer.control("change_streams", "true") == 0
        self.until, self.window, self.unacked = until, window, 0
        for _ in range(3):  # once more after a rollback, and after a rollback to nothing
            answer = self._ask(until)
            if answer.status != Status.ROLLBACK:
                break
            self._go_back(int.from_bytes(answer.value))
        if answer.status == Status.SUCCESS:
            self.copy, self.log = copy, tuple(log_entries(answer.value))
        elif answer.status in (Status.UNKNOWN_COLLECTION, Status.UNKNOWN_SCOPE):
            self.forget()
        else:
            assert answer.status in (Status.ETMPFAIL, Status.ERANGE), answer

    def _ask(self, until: int) -> Frame:
        is_inside = self.start <= self.last < self.end
        start, end = (self.start, self.end) if is_inside else (self.last, self.last)
        return self.producer.request(
            value=self.kind.value,
            start_seqno=self.last,
            snap_start_seqno=start,
            snap_end_seqno=end,
            end_seqno=max(until, self.last),
            vb_uuid=history_at(self.log, end) if self.last else 0,
        )

    def forget(self) -> None:
        self.documents, self.prepares, self.whole = {}, {}, {0: ({}, {})}
        self.last = self.start = self.end = 0

    def _go_back(self, common: int) -> None:
        if common == self.start < self.last < self.end:
            assert common in self.whole, "sent back to where it never held a state"
        self.whole = {seqno: state for seqno, state in self.whole.items() if seqno <= common}
        self.last = self.start = self.end = max(self.whole)
        self.documents, self.prepares = map(dict, self.whole[self.last])

    def cut(self) -> None:
        if self.copy is not None:
            self.producer.connection.drop("cut", fault=False)
            self.copy = None

    def turn(self, history: History) -> int:
        """Take what one turn of the connection sends; returns how much that was."""
        frames = self.producer.turn()
        for frame in frames:
            more = PREPARE_COUNTS_MORE if frame.opcode == Opcode.DCP_PREPARE else 0
            self.unacked += len(frame) + more if self.window else 0
            self._take(frame, history)
        return len(frames)

    def acknowledge(self) -> None:
        self.producer.ack(self.unacked)
        self.unacked = 0

    def _take(self, frame: Frame, history: History) -> None:
        extras = frame.extras
        match frame.opcode:
            case Opcode.DCP_SNAPSHOT_MARKER:
                numbers = extras if len(extras) > 1 else frame.value
                start, end = int.from_bytes(numbers[:8]), int.from_bytes(numbers[8:16])
                assert start <= self.last < end
                self.start, self.end, self.flags = start, end, int.from_bytes(numbers[16:20])
            case Opcode.DCP_STREAM_END:
                self._ended(dcp.StreamEnd.decode(frame).status)
            case Opcode.DCP_COMMIT:
                del self.prepares[self._key(frame)]
                self.documents[self._key(frame)] = int.from_bytes(extras[8:16])
                self._move(int.from_bytes(extras[8:16]), history)
            case Opcode.DCP_ABORT:  # its prepare may never have come
                self.prepares.pop(self._key(frame), None)
                self._move(int.from_bytes(extras[8:16]), history)
            case _:
                seqno = int.from_bytes(extras[:8])
                self._change(frame, seqno)
                self._move(seqno, history)

    def _change(self, frame: Frame, seqno: int) -> None:
        match frame.opcode:
            case Opcode.DCP_MUTATION:
                self.documents[self._key(frame)] = seqno
                self.prepares.pop(self._key(frame), None)
            case Opcode.DCP_DELETION:
                self.documents.pop(self._key(frame), None)
            case Opcode.DCP_PREPARE:
                self.prepares[self._key(frame)] = seqno
            case Opcode.DCP_SYSTEM_EVENT:
                event = dcp.SystemEvent.decode(frame)
                if event.event == EventKind.DROP_COLLECTION:
                    self._forget_collection(event.collection_id)
            case _:
                assert frame.opcode == Opcode.DCP_SEQNO_ADVANCED

    def _forget_collection(self, collection: int | None) -> None:
        """A drop ends the prepares of a collection as well: how they ended may not be shown any more."""
        self.documents = {key: at for key, at in self.documents.items() if key[0] != collection}
        self.prepares = {key: at for key, at in self.prepares.items() if key[0] != collection}

    def _key(self, frame: Frame) -> Key:
        collection, key = leb128.split_key(frame.key) if self.kind.aware else (0, frame.key)
        return collection, key.decode()

    def _move(self, seqno: int, history: History) -> None:
        assert self.last < seqno <= self.end
        if self.flags & SnapshotFlag.HISTORY:
            assert self.kind.versions and self._skipped(history, seqno) == []
        self.last = seqno
        if seqno == self.end:
            self.start = seqno
            self.check(history, seqno)
            self.whole[seqno] = dict(self.documents), dict(self.prepares)

    def _skipped(self, history: History, seqno: int) -> list[int]:
        """The versions of documents between the last seqno and this one, but for those of dropped collections."""
        alive, kinds = history.alive(self.end), ("set", "delete")
        between = {at: entry for at, entry in history.entries.items() if self.last < at < seqno}
        return [at for at, entry in between.items() if entry.kind in kinds and entry.key[0] in alive]

    def check(self, history: History, seqno: int) -> None:
        """Compare what is held with what was there at a seqno."""
        scopes = history.alive(seqno)
        expected = {key: at for key, at in history.documents(seqno).items() if self.kind.wants(key, scopes)}
        assert self.documents == expected, (self.kind.name, seqno)
        if self.kind.prepares:
            pending = {key: at for key, at in history.pending(seqno).items() if self.kind.wants(key, scopes)}
            assert self.prepares == pending, (self.kind.name, seqno)

    def _ended(self, reason: int) -> None:
        self.copy = None
        if reason == EndReason.FILTER_EMPTY:
            self.forget()
            return
        assert reason in (EndReason.OK, EndReason.STATE_CHANGED, EndReason.ROLLBACK)


class Reading(RuleBasedStateMachine):
    """An owner, a replica that it feeds, and a reader of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.count = 0
        self.history = History()
        self.owner = Owner(self._copy(), self.history)
        self.readers = [Reader(kind) for kind in KINDS]
        self.all_copies = [self.owner.copy]
        self._feed_a_new_replica()

    def _copy(self) -> Copy:
        self.count += 1
        return Copy(self.folder / f"store-{self.count}", first_uuid=self.count << 8)

    def _feed_a_new_replica(self) -> None:
        self.replica, self.seen = self._copy(), set()
        self.replica.vbucket.set_state(State.REPLICA)
        self.all_copies.append(self.replica)
        self.feed = Feed(self.owner.copy, self.replica, self.seen)

    @initialize()
    def begin(self) -> None:
        self.owner.become(8)
        self.owner.set((0, "a"))
        self.settle()

    # --- the copies -------------------------------------------------------------------------------------------------

    @rule(changes=st.lists(CHANGES, min_size=10, max_size=24), share=SHARE)
    def write(self, changes: list[tuple[str, Key]], share: int) -> None:
        """Changes of one snapshot, of which a part comes to the replica."""
        for change, key in changes:
            match change:
                case "set":
                    self.owner.set(key)
                case "delete":
                    self.owner.delete(key)
                case "prepare":
                    self.owner.prepare(key)
                case "drop":
                    self.owner.become(*(self.owner.collections.keys() - {0, key[0]}))
                case _:
                    self.owner.finish(commits=change == "commit")
        self._replicate(share)

    def _replicate(self, share: int) -> None:
        self.owner.copy.desk.commit()
        if not self.feed.is_open:
            self._feed_again()
        self.feed.take()
        self.feed.deliver(len(self.feed.waiting) * share // 100)
        self.replica.desk.commit()

    @rule(what=st.sampled_from(["settle", "compact", "make", "cut the feed", "fail over"]), share=SHARE)
    def happen(self, what: str, share: int) -> None:
        match what:
            case "settle":
                self.settle()
            case "compact":
                (self.owner.copy if share < 50 else self.replica).compact()
            case "make":
                self.owner.become(8, 9)
            case "cut the feed":
                self._feed_again()
            case "fail over":
                self._fail_over()
        self._replicate(share)

    def _feed_again(self) -> None:
        self.feed.close()
        self.feed = Feed(self.owner.copy, self.replica, self.seen)

    def _fail_over(self) -> None:
        """The owner is gone, the replica takes over with what it has, and gets a replica of its own."""
        self.feed.close()
        vbucket = self.replica.vbucket
        self.replica.desk.commit()
        whole = vbucket.complete_seqno
        self.history.branch(whole, {seqno for seqno in self.seen if whole < seqno <= vbucket.high_seqno})
        for reader in self.readers:
            if reader.copy is self.owner.copy:
                reader.cut()
        vbucket.set_state(State.ACTIVE)
        self.replica.desk.bucket.durable_writes.held.clear()
        self.owner = Owner(self.replica, self.history)
        self.replica.desk.commit()
        self._feed_a_new_replica()

    # --- the readers ------------------------------------------------------------------------------------------------

    @rule(number=READER, stays=st.lists(STAY, min_size=1, max_size=3))
    def visit(self, number: int, stays: list[tuple[bool, int, int | None, int]]) -> None:
        """A reader comes, perhaps from another copy, goes on where it stands, and reads a little; more than once."""
        reader = self.readers[number]
        for at_replica, window, more, turns in stays:
            reader.cut()
            until = U64 if more is None else reader.last + more
            reader.begin(self.replica if at_replica else self.owner.copy, window, until)
            for _ in range(turns):
                if reader.copy is not None:
                    reader.turn(self.history)
                    reader.acknowledge()

    @rule(number=READER, changes=st.lists(CHANGES, min_size=3, max_size=8), more=st.sampled_from([None, 3, 8]))
    def visit_amidst(self, number: int, changes: list[tuple[str, Key]], more: int | None) -> None:
        """A reader meets the replica in the midst of a snapshot, whose last changes are hidden from some."""
        self.settle()
        self.write([*changes, *HIDDEN], 60)
        self.visit(number, [(True, 0, more, 3)])

    def teardown(self) -> None:
        try:
            self.settle()
        finally:
            for copy in self.all_copies:
                copy.desk.close()
                discard(copy.desk.store.path)
            shutil.rmtree(self.folder)

    def settle(self) -> None:
        """Everything comes to the replica, and to every reader."""
        self.owner.copy.desk.commit()
        if not self.feed.is_open:
            self._feed_again()
        self.feed.take()
        self.feed.deliver(len(self.feed.waiting))
        self.replica.desk.commit()
        high = self.owner.high_seqno
        assert self.replica.vbucket.high_seqno == self.replica.vbucket.complete_seqno == high
        for reader in self.readers:
            self._drain(reader)
            if reader.copy is not None:
                assert reader.until > high, f"{reader.kind.name}: no end"
                assert reader.last in (reader.start, reader.end), f"{reader.kind.name}: left inside of a snapshot"
                reader.check(self.history, high)

    def _drain(self, reader: Reader) -> None:
        while reader.copy is not None:
            if reader.turn(self.history) == 0 and not reader.unacked:
                return
            if reader.copy is not None:
                reader.acknowledge()


TestReading = Reading.TestCase
TestReading.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)


class ReadingVersions(Reading):
    """The same of a bucket that keeps a history, which its replicas get and show when they take over."""

    def _copy(self) -> Copy:
        copy = super()._copy()
        copy.desk.store.declarations.keep_history(0, 1 << 30)
        return copy

    def _fail_over(self) -> None:
        expected = self.replica.vbucket.held_versions_after
        super()._fail_over()
        assert self.owner.copy.vbucket.versions_after <= max(expected, self.owner.high_seqno)


TestReadingVersions = ReadingVersions.TestCase
TestReadingVersions.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)


@pytest.mark.parametrize("more", [None, 8])
@pytest.mark.parametrize("number", range(len(KINDS)))
def test_a_reader_that_met_a_snapshot_in_its_midst_comes_out_of_it(number: int, more: int | None) -> None:
    walk = Reading()
    walk.begin()
    walk.visit_amidst(number, [("set", (0, key)) for key in "abcdefgh"], more)
    walk.teardown()
