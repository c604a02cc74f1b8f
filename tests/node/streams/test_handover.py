"""The owner's side of a takeover, step by step (failover 4), without sockets."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headwater.errors import InvariantBroken
from headwater.node.durable_writes import Copies
from headwater.node.storage.staging import ArenaFull
from headwater.wire import dcp
from headwater.wire.dcp import EndReason
from headwater.wire.header import Frame, Magic
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.node.streams.support import COLLECTIONS, Producer, StreamDesk, told
from tests.node.test_durable_writes import lose_batch


def answer(reader: Producer, opcode: int, status: int = 0) -> None:
    reader.give(Frame(Magic.CLIENT_RESPONSE, opcode, vbucket=status, opaque=7).encode())


def begin(desk: StreamDesk, name: str = "c") -> Producer:
    reader = Producer(desk, name)
    reader.stream(flags=1)
    return reader


def states(frames: list[Frame]) -> list[int]:
    return [frame.extras[0] for frame in frames if frame.opcode == Opcode.DCP_SET_VBUCKET_STATE]


def state(desk: StreamDesk) -> State:
    return desk.bucket.vbuckets[0].state


def test_the_twelve_steps(desk: StreamDesk) -> None:
    desk.set(0, "a")
    desk.commit()
    reader = begin(desk)
    frames = reader.read()
    assert told(frames[:2]) == [("marker", 0, 1, 0x06), ("mutation", 1, "a")]
    assert states(frames) == [State.PENDING]
    desk.set(0, "b")  # written between steps 5 and 8
    desk.commit()
    assert reader.read() == []
    answer(reader, Opcode.DCP_SET_VBUCKET_STATE)
    assert state(desk) is State.DEAD
    assert told(reader.read()) == [("marker", 1, 2, 0x0D), ("mutation", 2, "b")]
    answer(reader, Opcode.DCP_SNAPSHOT_MARKER)
    desk.commit()
    assert states(reader.read()) == [State.ACTIVE]
    answer(reader, Opcode.DCP_SET_VBUCKET_STATE)
    assert told(reader.read()) == [("end", 0)]
    assert len(desk.bucket.vbuckets[0].failover) == 1


@pytest.mark.parametrize(
    "copies",
    [Copies(3, frozenset({"b:1", "c:1"})), Copies(3, is_member=False)],
    ids=["others have not said that they have it", "the map leaves this node out"],
)
def test_what_a_former_owner_may_have_told_to_have_happened_goes_along_as_a_document(
    desk: StreamDesk, copies: Copies
) -> None:
    writes = desk.bucket.durable_writes
    writes.copies_of = lambda _: copies
    prepare = dcp.Prepare(by_seqno=0, rev_seqno=1, durability_level=1, key=b"\0k", value=b"v", cas=1 << 16)
    desk.bucket.vbuckets[0].prepares.add(prepare)
    writes.look_at(0)
    desk.commit()
    assert writes.held == {0}
    reader = Producer(desk, "c", features=(COLLECTIONS,))
    reader.stream(flags=1)
    frames = reader.read()
    answer(reader, Opcode.DCP_SNAPSHOT_MARKER)
    frames += reader.read()
    assert states(frames) == [State.PENDING] and not writes.held
    answer(reader, Opcode.DCP_SET_VBUCKET_STATE)
    desk.commit()
    assert [(item.key, item.value) for item in reader.read() if item.opcode == Opcode.DCP_MUTATION] == [(b"\0k", b"v")]


class Later:
    """A loop whose callbacks wait until the test runs them."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def call_later(self, _: float, callback: Callable[[], None]) -> None:
        self.calls.append(callback)

    def run(self) -> None:
        for callback in self.calls:
            callback()


def of_before(desk: StreamDesk) -> None:
    """A durable write of a former owner waits for copies that have not said that they have it."""
    desk.bucket.durable_writes.copies_of = lambda _: Copies(3, frozenset({"b:1", "c:1"}))
    prepare = dcp.Prepare(by_seqno=0, rev_seqno=1, durability_level=1, key=b"\0k", value=b"v", cas=1 << 16)
    desk.bucket.vbuckets[0].prepares.add(prepare)
    desk.bucket.durable_writes.look_at(0)
    desk.commit()


def catches_up(reader: Producer) -> list[int]:
    """The states that are sent once the consumer has all there is."""
    frames = reader.read()
    answer(reader, Opcode.DCP_SNAPSHOT_MARKER)
    return states(frames + reader.read())


def documents(frames: list[Frame]) -> list[tuple[bytes, bytes]]:
    return [(frame.key, frame.value) for frame in frames if frame.opcode == Opcode.DCP_MUTATION]


def test_what_was_settled_for_a_hand_over_and_lost_with_its_batch_is_settled_again(desk: StreamDesk) -> None:
    """The write was aborted, as what waits is: its document, of which a client may have been told, was gone."""
    of_before(desk)
    reader = Producer(desk, "c", features=(COLLECTIONS,))
    reader.stream(flags=1)
    assert catches_up(reader) == [State.PENDING]
    lose_batch(desk)
    answer(reader, Opcode.DCP_SET_VBUCKET_STATE)
    desk.commit()
    assert state(desk) is State.DEAD and documents(reader.read()) == [(b"\0k", b"v")]


@pytest.mark.parametrize("asked", [False, True], ids=["while it catches up", "while it asks"])
def test_a_fenced_vbucket_is_not_handed_over_before_what_was_written_before_is_settled(
    desk: StreamDesk, asked: bool
) -> None:
    of_before(desk)
    reader = Producer(desk, "c", features=(COLLECTIONS,))
    reader.stream(flags=1)
    if asked:
        assert catches_up(reader) == [State.PENDING]
        lose_batch(desk)
        desk.bucket.fence([0])
        answer(reader, Opcode.DCP_SET_VBUCKET_STATE)
        assert told(reader.read())[-1] == ("end", 2) and state(desk) is State.ACTIVE
        return
    desk.bucket.fence([0])
    assert catches_up(reader) == []
    later, reader.connection.woken = Later(), False
    desk.bucket.durable_writes.start(later)  # type: ignore[arg-type]
    desk.bucket.unfence(0)
    later.run()
    assert reader.connection.woken and states(reader.read()) == [State.PENDING]
    answer(reader, Opcode.DCP_SET_VBUCKET_STATE)
    desk.commit()
    assert documents(reader.read()) == [(b"\0k", b"v")]


def test_a_hand_over_that_waits_for_room_goes_on_once_there_is_some(
    desk: StreamDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing may become durable after that by which it would be woken."""

    def full(_: int) -> None:
        raise ArenaFull(1)

    desk.bucket.durable_writes.copies_of = lambda _: Copies(3, frozenset({"b:1", "c:1"}))
    prepare = dcp.Prepare(by_seqno=0, rev_seqno=1, durability_level=1, key=b"\0k", value=b"v", cas=1 << 16)
    desk.bucket.vbuckets[0].prepares.add(prepare)
    desk.bucket.durable_writes.look_at(0)
    desk.commit()
    reader = Producer(desk, "c", features=(COLLECTIONS,))
    reader.stream(flags=1)
    with monkeypatch.context() as patched:
        patched.setattr(desk.store.prepares, "check_room", full)
        reader.read()
        answer(reader, Opcode.DCP_SNAPSHOT_MARKER)
        assert states(reader.read()) == []
    reader.connection.woken = False
    desk.commit()
    assert reader.connection.woken
    assert states(reader.read()) == [State.PENDING]


def test_active_is_not_told_before_dead_is_on_disk(desk: StreamDesk) -> None:
    reader = begin(desk)
    reader.read()
    answer(reader, Opcode.DCP_SET_VBUCKET_STATE)
    reader.connection.sent.clear()
    reader.session.pump()
    ((data, gate),) = reader.connection.sent
    assert Frame.decode(data).extras == bytes([State.ACTIVE])
    assert gate == desk.committer.open > desk.committer.durable


def test_pending_waits_for_the_answers_to_markers(desk: StreamDesk) -> None:
    reader = begin(desk)
    desk.set(0, "a")
    desk.commit()
    assert told(reader.read()) == [("marker", 0, 1, 0x0D), ("mutation", 1, "a")]
    assert reader.read() == []
    answer(reader, Opcode.DCP_SNAPSHOT_MARKER)
    assert states(reader.read()) == [State.PENDING]


def test_a_refusal_to_become_pending_ends_the_stream(desk: StreamDesk) -> None:
    reader = begin(desk)
    assert states(reader.read()) == [State.PENDING]
    answer(reader, Opcode.DCP_SET_VBUCKET_STATE, Status.EINVAL)
    assert told(reader.read()) == [("end", 2)]
    assert state(desk) is State.ACTIVE


def test_a_refusal_to_become_active_puts_everything_back(desk: StreamDesk) -> None:
    reader = begin(desk)
    reader.read()
    answer(reader, Opcode.DCP_SET_VBUCKET_STATE)
    reader.read()
    answer(reader, Opcode.DCP_SET_VBUCKET_STATE, Status.EINVAL)
    assert told(reader.read()) == [("end", 2)]
    assert state(desk) is State.ACTIVE
    assert len(desk.bucket.vbuckets[0].failover) == 1


def test_a_lost_connection_leaves_the_owner_as_it_is(desk: StreamDesk) -> None:
    reader = begin(desk)
    reader.read()
    reader.connection.drop("cut")
    assert state(desk) is State.ACTIVE
    reader = begin(desk)
    reader.read()
    answer(reader, Opcode.DCP_SET_VBUCKET_STATE)
    reader.connection.drop("cut")
    assert state(desk) is State.DEAD


def test_one_takeover_at_a_time(desk: StreamDesk) -> None:
    first = begin(desk)
    second = Producer(desk, "d")
    assert second.request(flags=1).status == Status.ETMPFAIL
    first.connection.drop("cut")
    assert second.request(flags=1).status == Status.SUCCESS


def test_other_streams_of_the_vbucket_drain_while_it_is_handed_over(desk: StreamDesk) -> None:
    other = Producer(desk, "d")
    other.stream()
    reader = begin(desk)
    reader.read()
    desk.set(0, "late")
    answer(reader, Opcode.DCP_SET_VBUCKET_STATE)
    desk.commit()
    assert told(other.read()) == [("marker", 0, 1, 0x05), ("mutation", 1, "late")]


def test_other_streams_end_once_the_vbucket_is_handed_over(desk: StreamDesk) -> None:
    other, reader = Producer(desk, "other"), begin(desk)
    other.stream()
    other.read()
    reader.read()
    answer(reader, Opcode.DCP_SET_VBUCKET_STATE)
    desk.commit()
    assert other.read() == []  # "outbound streams are not ended": they drain
    assert states(reader.read()) == [State.ACTIVE]
    answer(reader, Opcode.DCP_SET_VBUCKET_STATE)
    assert told(reader.read()) == [("end", 0)]
    assert told(other.read()) == [("end", EndReason.STATE_CHANGED)]


def test_other_streams_end_when_the_hand_over_breaks_off_with_nobody_active(desk: StreamDesk) -> None:
    other, reader = Producer(desk, "other"), begin(desk)
    other.stream()
    other.read()
    reader.read()
    answer(reader, Opcode.DCP_SET_VBUCKET_STATE)
    reader.session.closed()
    assert told(other.read()) == [("end", EndReason.STATE_CHANGED)]


def test_an_answer_nobody_waits_for_is_ignored(desk: StreamDesk) -> None:
    reader = Producer(desk)
    reader.stream()
    answer(reader, Opcode.DCP_SET_VBUCKET_STATE)
    assert state(desk) is State.ACTIVE
    assert reader.read() == []


def test_after_the_time_limit_writes_are_refused_until_it_is_over(desk: StreamDesk) -> None:
    reader = begin(desk)
    reader.read()
    assert reader.session.deadline == desk.time.now + 60
    desk.time.now += 60
    reader.session.tick(desk.time.now)
    writer = desk.session()
    writer.hello(0x07)
    assert writer.one(Opcode.SET, key=b"k", extras=bytes(8)).status == Status.ETMPFAIL
    assert writer.one(Opcode.GET, key=b"k").status == Status.KEY_ENOENT
    reader.give(dcp.CloseStream(vbucket=0, opaque=9).encode())
    assert writer.one(Opcode.SET, key=b"k", extras=bytes(8)).status == Status.SUCCESS


def test_the_other_node_is_never_told_to_own_what_is_not_dead_here(
    desk: StreamDesk, broken_invariants: list[InvariantBroken]
) -> None:
    desk.set(0, "a")
    desk.commit()
    reader = begin(desk)
    assert states(reader.read()) == [State.PENDING]
    answer(reader, Opcode.DCP_SET_VBUCKET_STATE)
    desk.bucket.vbuckets[0].state = State.ACTIVE  # as no schedule should have it
    with pytest.raises(InvariantBroken, match="vbucket 0 is handed over while ACTIVE"):
        reader.read()
    broken_invariants.clear()
    assert states(reader.buffer.receive_data(reader.bytes_sent())) == []
