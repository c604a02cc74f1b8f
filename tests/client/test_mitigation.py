"""The gate by itself: changes that go, that stay, and that never come."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from headwater.client.mitigation import ROW_BYTES, Gate, StreamCut
from headwater.client.routing import Address, ClusterMap
from headwater.kernels.batches import SCHEMA
from headwater.protocol.dcp.consumer_stream import ConsumerStream
from headwater.protocol.dcp.events import Advanced, Boundary, Ended, Marked
from headwater.protocol.dcp.position import ENDLESS, Position

A, B, C = Address("a", 1), Address("b", 1), Address("c", 1)
ALL = ClusterMap("default", "", 1, 1, (A, B, C), ((0, 1, 2), (1, 2, 0)), replica_count=2)
UUID = 0xA11CE
LOG = ((UUID, 0),)


def rows(*changes: tuple[int, int, int, int]) -> pa.RecordBatch:
    """Changes as (vbucket, seqno, snapshot start, snapshot end)."""
    numbers = dict.fromkeys(SCHEMA.names, 0)
    made = [
        numbers
        | {"vbucket": vb, "seqno": seqno, "snapshot_start": start, "snapshot_end": end}
        | {"opcode": 0x57, "key": b"k%d" % seqno, "value": b""}
        for vb, seqno, start, end in changes
    ]
    return pa.RecordBatch.from_pylist(made, schema=SCHEMA)


def opened(wanted="all", start=None, batch_bytes=1 << 20) -> Gate:
    gate = Gate(start or {0: Position.beginning(0), 1: Position.beginning(1)}, wanted, batch_bytes)
    for vbucket in (0, 1):
        gate.opened(vbucket, LOG)
    return gate


def say(gate: Gate, vbucket: int, known: ClusterMap = ALL, vb_uuid: int = UUID, **seqnos: int) -> None:
    for name, seqno in seqnos.items():
        gate.hear(Address(name, 1), {vbucket: (vb_uuid, seqno)}, known)


def released(gate: Gate) -> list[tuple[int, int]]:
    """Release what may go; return (vbucket, seqno) of each change."""
    batch = gate.release(0.0).records
    return [] if batch is None else list(zip(*(batch.column(n).to_pylist() for n in ("vbucket", "seqno")), strict=True))


def stream(vbucket: int) -> ConsumerStream:
    return ConsumerStream(vbucket)


# --------------------------------------------------------------------------- what goes


def test_changes_go_when_all_copies_have_the_end_of_their_snapshot():
    gate = opened()
    gate.take(rows((0, 1, 1, 3), (0, 3, 1, 3), (0, 4, 4, 4)), [], 0.0)
    say(gate, 0, a=4, b=4, c=2)
    assert not gate.is_ready and gate.holding
    say(gate, 0, c=3)
    assert gate.is_ready and released(gate) == [(0, 1), (0, 3)]
    assert not gate.is_ready and gate.holding
    say(gate, 0, c=4)
    assert released(gate) == [(0, 4)] and not gate.holding


@pytest.mark.parametrize(("wanted", "seqno"), [(1, 4), (2, 3), ("majority", 3), (3, 2), ("all", 2)])
def test_so_many_copies_have_to_have_it(wanted, seqno):
    gate = opened(wanted)
    gate.take(rows(*((0, each, each, each) for each in range(1, 6))), [], 0.0)
    say(gate, 0, a=4, b=3, c=2)
    assert released(gate)[-1] == (0, seqno)


def test_a_change_in_the_middle_of_a_snapshot_waits_for_its_end_and_so_does_its_marker():
    gate = opened()
    gate.take(rows((0, 1, 1, 9)), [(0, Marked(stream(0), 1, 9, 5))], 0.0)
    say(gate, 0, a=8, b=8, c=8)
    assert not gate.is_ready
    say(gate, 0, a=9, b=9, c=9)
    gone = gate.release(0.0)
    assert [type(event) for _, event in gone.events] == [Marked] and gone.records.num_rows == 1
    assert gone.resting[0] == Position(0, UUID, 1, 0, 9)
    gate.take(rows((0, 9, 1, 9)), [], 0.0)
    assert gate.is_ready, "the snapshot is on all disks: the rest goes as it comes"
    assert released(gate) == [(0, 9)] and gate.cut(0) == Position(0, UUID, 9, 9, 9)


def test_one_vbucket_does_not_wait_for_another():
    gate = opened()
    gate.take(rows((0, 1, 1, 1), (1, 1, 1, 1), (0, 2, 2, 2), (1, 2, 2, 2)), [], 0.0)
    say(gate, 1, a=2, b=2, c=2)
    assert released(gate) == [(1, 1), (1, 2)]
    say(gate, 0, a=2, b=2, c=2)
    assert released(gate) == [(0, 1), (0, 2)]


def test_events_keep_their_place_among_the_changes_of_their_vbucket():
    gate = opened()
    events = [(0, Marked(stream(0), 1, 2, 5)), (2, Marked(stream(0), 3, 3, 5)), (3, Advanced(stream(0), 3, (3, 3)))]
    gate.take(rows((0, 1, 1, 2), (0, 2, 1, 2), (1, 5, 5, 5)), [*events, (3, Ended(stream(0), 0))], 0.0)
    say(gate, 0, a=3, b=3, c=3)
    gone = gate.release(0.0)
    assert [(row, type(event)) for row, event in gone.events] == [(0, Marked), (2, Marked), (2, Advanced), (2, Ended)]
    assert gone.records.column("seqno").to_pylist() == [1, 2] and gone.resting[0].seqno == 3


def test_an_end_waits_for_what_came_before_it_and_for_nothing_else():
    gate = opened()
    gate.take(rows((0, 1, 1, 1)), [(1, Ended(stream(0), 0)), (1, Ended(stream(1), 0))], 0.0)
    assert [event.vbucket for _, event in gate.release(0.0).events] == [1]
    say(gate, 0, a=1, b=1, c=1)
    assert [event.vbucket for _, event in gate.release(0.0).events] == [0] and not gate.holding


def test_a_snapshot_without_an_end_goes_change_by_change():
    gate = opened()
    gate.take(rows((0, 1, 0, ENDLESS)), [(0, Boundary(stream(0), goes_on=True))], 0.0)
    gate.take(rows((0, 2, 0, ENDLESS)), [], 0.0)
    say(gate, 0, a=1, b=1, c=1)
    assert released(gate) == [(0, 1)]


def test_so_much_goes_at_once_and_the_rest_the_next_time():
    gate = opened(1, batch_bytes=10 * ROW_BYTES)
    gate.take(rows(*((0, each, each, each) for each in range(1, 31))), [], 0.0)
    say(gate, 0, a=30)
    sizes = []
    while gate.is_ready:
        sizes.append(len(released(gate)))
    assert sum(sizes) == 30 and max(sizes) <= 11 and not gate.holding


def test_held_bytes_are_those_of_the_vbuckets_that_are_asked_about():
    gate = opened()
    gate.take(rows((0, 10, 10, 10), (0, 11, 11, 11), (1, 10, 10, 10)), [], 0.0)
    one = ROW_BYTES + len(b"k10")
    assert (gate.held_bytes([0]), gate.held_bytes([1]), gate.held_bytes([0, 1, 7])) == (2 * one, one, 3 * one)
    say(gate, 0, a=10, b=10, c=10)
    gate.release(0.0)
    assert gate.held_bytes([0, 1]) == 2 * one
    gate.cut(0)
    assert gate.held_bytes([0, 1]) == one


# --------------------------------------------------------------------------- what is asked


def test_only_what_waits_is_asked_about_and_only_where_it_is():
    gate = opened()
    assert gate.queries(A, ALL) == {}
    gate.take(rows((1, 1, 1, 1)), [], 0.0)
    assert gate.queries(A, ALL) == gate.queries(C, ALL) == {1: UUID}
    without = ClusterMap("default", "", 1, 2, (A, B, C), ((0,), (1, 2)), replica_count=2)
    assert gate.queries(A, without) == {}
    say(gate, 1, without, b=1, c=1)
    assert gate.is_ready and gate.queries(C, without) == {}, "all that the map names have it"


def test_an_answer_for_an_older_branch_counts_for_nothing():
    gate = opened(1)
    gate.take(rows((0, 1, 1, 1)), [], 0.0)
    say(gate, 0, vb_uuid=0xB0B, a=1)
    assert not gate.is_ready


def test_a_stream_made_anew_begins_without_what_the_copies_said():
    gate = opened(1)
    gate.take(rows((0, 1, 1, 1)), [], 0.0)
    say(gate, 0, a=5)
    gate.release(0.0)
    gate.cut(0)
    gate.opened(0, ((0xB0B, 1), *LOG))
    gate.take(rows((0, 2, 2, 2)), [], 0.0)
    assert not gate.is_ready and gate.queries(A, ALL) == {0: 0xB0B}


# --------------------------------------------------------------------------- what never comes


def test_what_is_held_of_a_stream_that_is_cut_off_never_comes_and_the_place_is_behind_what_went():
    gate = opened()
    gate.take(rows((0, 1, 1, 1), (0, 2, 2, 2), (1, 1, 1, 1)), [], 0.0)
    say(gate, 0, a=1, b=1, c=1)
    gate.release(0.0)
    assert gate.cut(0) == Position(0, UUID, 1, 1, 1)
    say(gate, 0, a=9, b=9, c=9)
    say(gate, 1, a=9, b=9, c=9)
    assert released(gate) == [(1, 1)] and not gate.holding


def test_a_cut_among_changes_takes_those_before_it_and_leaves_those_behind():
    gate = opened()
    gate.take(rows((0, 1, 1, 1), (1, 1, 1, 1), (0, 1, 1, 1), (0, 2, 2, 2)), [(2, StreamCut(stream(0)))], 0.0)
    for vbucket in (0, 1):
        say(gate, vbucket, a=9, b=9, c=9)
    assert released(gate) == [(0, 1), (0, 2), (1, 1)]


def test_patience_is_for_each_wait_and_the_error_says_what_the_copies_said():
    gate = opened()
    gate.take(rows((0, 7, 7, 7)), [], 100.0)
    gate.take(rows((1, 1, 1, 1)), [], 130.0)
    assert gate.deadline(None) is None and gate.deadline(60.0) == 160.0
    say(gate, 0, a=7, c=5)
    gate.missed(B, OSError("b:1: Connection refused"))
    assert gate.too_long(159.9, 60.0, ALL) is None and gate.too_long(1e9, None, ALL) is None
    error = gate.too_long(160.0, 60.0, ALL)
    assert (error.vbucket, error.seqno, error.copies) == (0, 7, (1, 3))
    assert "a:1 has 7; b:1: Connection refused; c:1 has 5" in str(error) and "after 60 s" in str(error)
    gate.cut(0)
    assert gate.deadline(60.0) == 190.0


# --------------------------------------------------------------------------- a machine

COPIES = (A, B, C)
ONE = ClusterMap("default", "", 1, 1, COPIES, ((0, 1, 2),), replica_count=2)


@dataclass
class Branch:
    """The truth of the vbucket: its snapshots as (start, end), the branch they are of, and what went before."""

    uuid: int
    log: tuple[tuple[int, int], ...]
    snapshots: list[tuple[int, int]] = field(default_factory=list)

    @property
    def high(self) -> int:
        return self.snapshots[-1][1] if self.snapshots else 0


class MitigationMachine(RuleBasedStateMachine):
    """One vbucket with three copies that persist, lag, fail over; a reader whose stream is cut off at any place.

    The oracle: whatever is handed out is on the disks of as many copies as are wanted, in order and once; who waits for
    all of them is never told of a change that a failover takes back, and never has to go back himself.
    """

    def __init__(self) -> None:
        super().__init__()
        self.branch = Branch(1, ((1, 0),))
        self.disk = dict.fromkeys(COPIES, 0)  # what each copy has, all of it of the present branch
        self.knows = dict.fromkeys(COPIES, 1)  # the newest branch that each has heard of
        self.got: list[int] = []  # what was handed out
        self.read = 0  # how far the decoder is

    @initialize(wanted=st.sampled_from([1, 2, 3, "majority", "all"]))
    def begin(self, wanted) -> None:
        self.wanted = wanted
        self.count = {"majority": 2, "all": 3}.get(wanted, wanted)
        self.gate = Gate({0: Position.beginning(0)}, wanted, 1 << 20)
        self.gate.opened(0, self.branch.log)

    @rule(count=st.integers(1, 5))
    def write(self, count) -> None:
        self.branch.snapshots.append((self.branch.high + 1, self.branch.high + count))

    @rule(copy=st.sampled_from(COPIES), share=st.floats(0, 1))
    def persist(self, copy, share) -> None:
        self.knows[copy] = self.branch.uuid
        self.disk[copy] += round((self.branch.high - self.disk[copy]) * share)

    @rule(most=st.integers(1, 7))
    def receive(self, most) -> None:
        found, events = [], []
        for start, end in self.branch.snapshots:
            for seqno in range(max(start, self.read + 1), end + 1):
                if len(found) < most:
                    if seqno == start:
                        events.append((len(found), Marked(stream(0), start, end, 1)))
                    found.append((0, seqno, start, end))
        self.gate.take(rows(*found), events, 0.0)
        self.read = found[-1][1] if found else self.read

    @rule(copy=st.sampled_from(COPIES))
    def poll(self, copy) -> None:
        for vbucket, uuid in self.gate.queries(copy, ONE).items():
            knows = self.knows[copy] == uuid
            self.gate.hear(copy, {vbucket: (uuid, self.disk[copy] if knows else 0)}, ONE)

    @precondition(lambda self: self.gate.is_ready)
    @rule()
    def hand_out(self) -> None:
        gone = self.gate.release(0.0)
        batch = gone.records
        columns = [batch.column(name).to_pylist() if batch else [] for name in ("seqno", "snapshot_end")]
        for seqno, end in zip(*columns, strict=True):
            assert sorted(self.disk.values(), reverse=True)[self.count - 1] >= end
            assert seqno == len(self.got) + 1
            self.got.append(seqno)
        assert gone.resting[0].seqno == len(self.got)

    @rule()
    def lose_the_connection(self) -> None:
        assert self.gate.cut(0).seqno == len(self.got)
        self.read = len(self.got)
        self.gate.opened(0, self.branch.log)

    @rule(copy=st.sampled_from(COPIES))
    def fail_over(self, copy) -> None:
        """The copy becomes the active one with what it has; the others follow it, and give up what it never had."""
        kept, place = self.disk[copy], self.gate.cut(0)
        if place.snapshot_end > kept:
            assert self.count < 3, "all copies had what was handed out"
            self.begin(self.wanted)  # the caller goes back, here to the beginning
            self.got, self.read = [], 0
        uuid = self.branch.uuid + 1
        snapshots = [(start, min(end, kept)) for start, end in self.branch.snapshots if start <= kept]
        self.branch = Branch(uuid, ((uuid, kept), *self.branch.log), snapshots)
        self.disk = {each: min(had, kept) for each, had in self.disk.items()}
        self.knows[copy] = uuid
        self.read = len(self.got)
        self.gate.opened(0, self.branch.log)

    def teardown(self) -> None:
        """All copies catch up: then everything there is comes."""
        if not hasattr(self, "gate"):
            return
        self.receive(10_000)
        while self.gate.is_ready:  # nodes are polled while nothing is ready, as in the steps
            self.hand_out()
        for copy in COPIES:
            self.persist(copy, 1.0)
            self.poll(copy)
            while self.gate.is_ready:
                self.hand_out()
        assert self.got == list(range(1, self.branch.high + 1)) and not self.gate.holding


TestMitigationMachine = MitigationMachine.TestCase
TestMitigationMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("wanted", [1, 2, 3])
def test_what_comes_while_a_change_is_ready_is_handed_out_behind_it(wanted: int) -> None:
    """A node is not asked about a vbucket of which something is ready."""
    steps = MitigationMachine()
    steps.begin(wanted)
    steps.write(2)
    steps.receive(7)
    for copy in COPIES[:wanted]:
        steps.persist(copy, 1.0)
        steps.poll(copy)
    assert steps.gate.is_ready
    steps.write(3)
    steps.teardown()
