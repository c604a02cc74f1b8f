"""A session without a node: a log of seqnos per vbucket, a consumer that answers as it likes, time as an argument.

Nothing is polled: a stream has a turn when its vbucket has more, when it is released, or when its wait is over.
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headwater.errors import RemoteProtocolError
from headwater.protocol.tap.ledger import ACK_INTERVAL, WINDOW_MESSAGES, TapStep
from headwater.protocol.tap.options import TapOptions
from headwater.protocol.tap.producer import (
    BACKOFF_SECONDS,
    CHECKPOINT_SEQNOS,
    GRACE_SECONDS,
    NOOP_SECONDS,
    Fate,
    MessageRefused,
    TapProducer,
    Wait,
)
from headwater.wire import tap
from headwater.wire.dialect import Dialect, decode
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.tap import OpaqueCode
from headwater.wire.vbucket import State

NOON = 1_700_000_000
Sent = tuple[int, object, bool]
"""Number, what it was ((vbucket, seqno) for a change), whether it asks."""


class Peer:
    """Both ends of a session, and the vbuckets' logs, which only grow."""

    def __init__(self, options: TapOptions, high: dict[int, int], now: float = 0.0) -> None:
        self.now = now
        self.high = high
        self.dead: set[int] = set()
        self.producer = TapProducer(options, now)
        self.sent: list[Sent] = []
        self.awake: set[int] = set()
        self.waiting: dict[Wait, set[int]] = {wait: set() for wait in Wait}
        self._seen: dict[int, int] = {}
        self.follow()

    def follow(self) -> None:
        for vb, high in self.high.items():
            if vb not in self.producer.streams:
                self.producer.follow(vb, high, 0, NOON)
                self.awake.add(vb)

    def pump(self, count: int = 1 << 30) -> list[Sent]:
        """Send what is due, changes `count` at a time; what went out."""
        before = len(self.sent)
        self._messages(self.producer.data_to_send())
        while awake := self._awake():
            for vb in awake:
                self._have_a_turn(vb, count)
        return self.sent[before:]

    def _awake(self) -> list[int]:
        """The vbuckets that have a turn now."""
        found = self.awake | {stream.vbucket for stream in self.producer.take_released()}
        found |= {vb for vb, high in self.high.items() if self._seen.get(vb) != high}
        for wait, vbs in self.waiting.items():
            if not self.producer.stops(wait):
                found |= vbs
                vbs.clear()
        self.awake, self._seen = set(), dict(self.high)
        return sorted(found)

    def _have_a_turn(self, vb: int, count: int) -> None:
        if self._turn(vb, count):
            self.awake.add(vb)
            return
        wait = self.producer.wait(self.producer.streams[vb], self.high[vb])
        if wait is not None and self.producer.stops(wait):
            self.waiting[wait].add(vb)

    def _turn(self, vb: int, count: int) -> bool:
        producer, stream, high = self.producer, self.producer.streams[vb], self.high[vb]
        if producer.asks_for_handover(stream, high):
            producer.handing_over(stream)
            self.dead.add(vb)
        if (message := producer.message(stream, high)) is not None:
            self._messages(message)
            return True
        upto = producer.until(stream, high)
        if upto is None:
            return False
        first = stream.place.seqno + 1
        seqnos = list(range(first, upto + 1))[: min(count, producer.ledger.room)]
        number, is_last = producer.ledger.sent + 1, seqnos[-1] == upto
        producer.sent(stream, seqnos, seqnos[-1], asks=is_last)
        for at, seqno in enumerate(seqnos):
            asks = (number + at) % ACK_INTERVAL == 0 or (is_last and seqno == upto)
            self.sent.append((number + at, (vb, seqno), asks))
        return True

    def _messages(self, data: bytes) -> None:
        for frame in FrameBuffer().receive_data(data):
            message = decode(frame, Dialect.TAP)
            self.sent.append((frame.opaque, message, True))

    def answer(self, number: int, status: int = 0) -> None:
        self.producer.receive_frame(Frame(0x81, 0x44, vbucket=status, opaque=number), self.now)

    def exchange(self) -> list[Sent]:
        """Pump, acknowledging everything, until nothing more comes."""
        found = []
        while more := self.pump():
            found += more
            self.answer(more[-1][0])
        return found


def told(sent: list[Sent]) -> list[object]:
    """("opaque", vb, code), ("state", vb, state), ("start" or "end", vb, id), or (vb, seqno)."""
    found: list[object] = []
    for _, what, _ in sent:
        match what:
            case tap.Opaque():
                found.append(("opaque", what.vbucket, what.code))
            case tap.VbucketSet():
                found.append(("state", what.vbucket, what.state))
            case tap.CheckpointEnd():
                found.append(("end", what.vbucket, what.checkpoint_id))
            case tap.CheckpointStart():
                found.append(("start", what.vbucket, what.checkpoint_id))
            case _:
                found.append(what)
    return found


INITIAL, CLOSE = int(OpaqueCode.INITIAL_VBUCKET_STREAM), int(OpaqueCode.CLOSE_BACKFILL)


def test_a_dump_is_framed_by_its_opaques_and_ends() -> None:
    peer = Peer(TapOptions(dump=True), {3: 2})
    assert told(peer.pump()) == [("opaque", 3, INITIAL), (3, 1), (3, 2), ("opaque", 3, CLOSE)]
    assert peer.producer.is_complete


def test_a_dump_that_is_acknowledged_ends_with_the_last_answer() -> None:
    peer = Peer(TapOptions(dump=True, acknowledge=True), {3: 2})
    assert told(peer.exchange())[0] == ("opaque", 0, 0)
    assert peer.producer.is_complete
    assert peer.producer.ledger.unacked == 0


def test_no_data_is_sent_until_the_opaques_are_acknowledged() -> None:
    peer = Peer(TapOptions(acknowledge=True), {0: 2, 1: 1})
    assert told(peer.pump()) == [("opaque", 0, 0), ("opaque", 0, INITIAL), ("opaque", 1, INITIAL)]
    peer.answer(2)
    assert peer.pump() == []
    peer.answer(3)
    assert (0, 1) in told(peer.pump())


def test_a_future_age_sends_what_is_written_from_now_on() -> None:
    peer = Peer(TapOptions(since=0xFFFF_FFFF), {0: 5})
    assert peer.pump() == []
    peer.high[0] = 7
    assert told(peer.pump()) == [(0, 6), (0, 7)]


def test_every_message_of_the_set_up_and_the_last_of_a_range_asks() -> None:
    peer = Peer(TapOptions(acknowledge=True), {0: 2100})
    sent = peer.exchange()
    assert [what for _, what, asks in sent if asks and isinstance(what, tuple)] == [(0, 998), (0, 1998), (0, 2100)]


def test_the_window_is_never_exceeded_and_its_silence_ends_the_session() -> None:
    peer = Peer(TapOptions(acknowledge=True), {0: 30_000})
    peer.pump()
    peer.answer(2)
    peer.pump()
    assert peer.producer.ledger.unacked == WINDOW_MESSAGES
    assert peer.pump() == []
    assert peer.producer.deadline == NOOP_SECONDS
    peer.now = GRACE_SECONDS
    with pytest.raises(RemoteProtocolError, match="10000 messages"):
        peer.producer.tick(peer.now)


def test_an_idle_session_says_a_noop() -> None:
    peer = Peer(TapOptions(), {0: 0})
    peer.pump()
    peer.producer.tick(NOOP_SECONDS)
    assert peer.producer.data_to_send().hex() == "800a" + "00" * 22
    assert peer.producer.deadline == 2 * NOOP_SECONDS


@pytest.mark.parametrize("status", [Status.ETMPFAIL, Status.EBUSY])
def test_a_temporary_refusal_suspends_and_sends_again_what_was_refused(status: Status) -> None:
    peer = Peer(TapOptions(acknowledge=True), {0: 4})
    peer.pump()
    peer.answer(2)
    peer.pump()
    peer.answer(4, status)  # 1 and 2 were opaques, 3 was seqno 1
    assert peer.pump() == []
    assert peer.producer.deadline == BACKOFF_SECONDS
    peer.now = BACKOFF_SECONDS
    peer.producer.tick(peer.now)
    again = peer.pump()
    assert told(again)[:3] == [(0, 2), (0, 3), (0, 4)]
    assert again[0][0] == 8


def test_a_dump_whose_last_word_was_refused_says_it_again_and_ends() -> None:
    peer = Peer(TapOptions(acknowledge=True, dump=True), {0: 1})
    peer.answer(peer.pump()[-1][0])
    *_, (last, _, _) = peer.pump()
    assert peer.producer.streams[0].place.step is TapStep.DONE
    peer.answer(last, Status.ETMPFAIL)
    assert not peer.producer.is_complete
    peer.now = BACKOFF_SECONDS
    peer.producer.tick(peer.now)
    assert told(peer.exchange()) == [("opaque", 0, CLOSE)]
    assert peer.producer.is_complete


def test_a_takeover_whose_last_word_was_refused_says_it_again_and_ends() -> None:
    peer = Peer(TapOptions(vbuckets=(0,), takeover=True, acknowledge=True), {0: 2})
    while told(sent := peer.pump()) != [("state", 0, State.ACTIVE)]:
        peer.answer(sent[-1][0])
    peer.answer(sent[-1][0], Status.EBUSY)
    assert told(peer.exchange()) == [("state", 0, State.ACTIVE)]
    assert peer.producer.is_complete


def test_vbuckets_are_handed_over_one_after_the_other() -> None:
    peer = Peer(TapOptions(vbuckets=(0, 1, 2), takeover=True, acknowledge=True), {0: 2, 1: 30, 2: 0})
    sent = told(peer.exchange())
    assert [what[1] for what in sent if what[::2] == ("state", State.ACTIVE)] == [0, 1, 2]  # type: ignore[index]
    assert peer.producer.is_complete


def test_an_answer_wakes_only_the_streams_that_it_gave_something_to_do() -> None:
    peer = Peer(TapOptions(acknowledge=True, checkpoints={}), dict.fromkeys(range(5), 0))
    peer.exchange()
    for vb in peer.high:
        peer.high[vb] = CHECKPOINT_SEQNOS
    ends = [number for number, what, _ in peer.pump() if isinstance(what, tap.CheckpointEnd)]
    assert len(ends) == 5
    peer.answer(ends[0])
    assert [stream.vbucket for stream in peer.producer.take_released()] == [0]
    assert peer.producer.take_released() == []


@pytest.mark.parametrize("status", [Status.NOT_MY_VBUCKET, Status.ENOMEM])
def test_any_other_refusal_is_the_end(status: Status) -> None:
    peer = Peer(TapOptions(acknowledge=True), {0: 4})
    peer.pump()
    peer.answer(1, status)
    assert (peer.producer.fate, peer.pump()) == (Fate.FAILED, [])


def test_an_answer_to_nothing_is_counted_and_ignored() -> None:
    peer = Peer(TapOptions(acknowledge=True), {0: 4})
    peer.answer(99)
    assert (peer.producer.unknown, peer.producer.ledger.acked) == (1, 0)


def test_a_takeover_goes_through_all_its_steps() -> None:
    peer = Peer(TapOptions(vbuckets=(0,), takeover=True, acknowledge=True), {0: 2})
    assert told(peer.exchange()) == [
        ("opaque", 0, 0),
        ("state", 0, State.PENDING),
        ("opaque", 0, INITIAL),
        (0, 1),
        (0, 2),
        ("opaque", 0, CLOSE),
        ("state", 0, State.ACTIVE),
    ]
    assert peer.dead == {0}
    assert peer.producer.is_complete


def test_active_waits_for_everything_else_to_be_acknowledged() -> None:
    peer = Peer(TapOptions(vbuckets=(0,), takeover=True, acknowledge=True), {0: 2})
    peer.answer(peer.pump()[-1][0])
    *_, (last, _, _) = peer.pump()
    assert peer.dead == {0}
    assert peer.producer.streams[0].place.step is TapStep.DRAIN
    peer.answer(last)
    assert told(peer.pump()) == [("state", 0, State.ACTIVE)]


def test_checkpoints_frame_what_is_sent_and_wait_for_their_end_to_be_acknowledged() -> None:
    peer = Peer(TapOptions(acknowledge=True, checkpoints={}), {0: CHECKPOINT_SEQNOS - 1})
    assert told(peer.exchange())[-1] == ("start", 0, 1)
    peer.high[0] += 2
    sent = told(peer.pump())
    assert sent == [(0, CHECKPOINT_SEQNOS), ("end", 0, 1)]
    assert peer.pump() == []
    peer.answer(peer.producer.ledger.sent)
    assert told(peer.pump()) == [("start", 0, 2), (0, CHECKPOINT_SEQNOS + 1)]


def test_a_client_that_names_its_last_checkpoint_goes_on_behind_it() -> None:
    peer = Peer(TapOptions(checkpoints={0: 2}), {0: 2 * CHECKPOINT_SEQNOS + 1})
    assert told(peer.pump()) == [("start", 0, 3), (0, 2 * CHECKPOINT_SEQNOS + 1)]


def test_a_checkpoint_that_is_not_there_is_backfilled() -> None:
    peer = Peer(TapOptions(checkpoints={0: 2}), {0: 5})
    assert told(peer.pump())[0] == ("opaque", 0, INITIAL)


def test_resuming_sends_what_was_not_acknowledged_under_new_numbers() -> None:
    options = TapOptions(name=b"n", acknowledge=True)
    peer = Peer(options, {0: 3})
    peer.pump()
    peer.answer(2)
    peer.pump()
    peer.answer(3)
    peer.producer.resume(options, peer.now, NOON)
    again = peer.exchange()
    assert told(again) == [("opaque", 0, 0), (0, 2), (0, 3), ("opaque", 0, CLOSE)]
    assert again[0][0] == 7


def test_resuming_with_another_age_plans_a_new_backfill() -> None:
    peer = Peer(TapOptions(name=b"n", acknowledge=True), {0: 3})
    peer.exchange()
    peer.producer.resume(TapOptions(name=b"n", acknowledge=True, since=1), peer.now, NOON)
    peer.follow()
    assert (0, 1) in told(peer.exchange())


class Sessions(RuleBasedStateMachine):
    """Writers, a consumer that answers when it likes, refusals and cuts, against a list of what is outstanding."""

    @initialize(dump=st.booleans(), vbuckets=st.integers(1, 3))
    def begin(self, dump: bool, vbuckets: int) -> None:
        self.options = TapOptions(name=b"n", acknowledge=True, dump=dump)
        self.peer = Peer(self.options, dict.fromkeys(range(vbuckets), 3))
        self.outstanding: list[Sent] = []
        self.arrived: dict[int, set[int]] = {vb: set() for vb in range(vbuckets)}
        self.expected: list[object] | None = None

    def changes(self, sent: list[Sent]) -> list[object]:
        return [what for what in told(sent) if isinstance(what, tuple) and isinstance(what[0], int)]

    @rule(vb=st.integers(0, 2), count=st.integers(1, 50))
    def write(self, vb: int, count: int) -> None:
        if vb in self.peer.high:
            self.peer.high[vb] += count

    @rule(count=st.integers(1, 20))
    def pump(self, count: int) -> None:
        sent = self.peer.pump(count)
        numbers = [number for number, _, _ in sent]
        assert numbers == sorted(numbers)
        self.outstanding += sent
        for vb in self.peer.high:
            seqnos = [what[1] for what in self.changes(self.outstanding) if what[0] == vb]  # type: ignore[index]
            assert seqnos == sorted(seqnos)

    @precondition(lambda self: self.outstanding)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.outstanding) - 1))
        self.peer.answer(self.outstanding[at][0])
        self.arrive(at + 1)

    def arrive(self, count: int) -> None:
        for what in self.changes(self.outstanding[:count]):
            self.arrived[what[0]].add(what[1])  # type: ignore[index]
        del self.outstanding[:count]

    @precondition(lambda self: self.outstanding)
    @rule(data=st.data())
    def refuse_for_now(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.outstanding) - 1))
        self.peer.answer(self.outstanding[at][0], Status.ETMPFAIL)
        self.arrive(at)
        self.outstanding.clear()
        self.outstanding = self.peer.pump()  # the set-up, if that was refused; data waits
        assert self.changes(self.outstanding) == []
        self.peer.now += BACKOFF_SECONDS
        self.peer.producer.tick(self.peer.now)

    @rule()
    def cut(self) -> None:
        """The resend set is what was sent and not acknowledged, in order within each vbucket."""
        lost = self.changes(self.outstanding)
        self.outstanding.clear()
        self.peer.producer.resume(self.options, self.peer.now, NOON)
        for vb in self.peer.high:
            mine = [what for what in lost if what[0] == vb]  # type: ignore[index]
            place = self.peer.producer.streams[vb].place
            if mine:
                assert place.seqno == mine[0][1] - 1  # type: ignore[index]

    @invariant()
    def window_holds(self) -> None:
        if hasattr(self, "peer"):
            assert self.peer.producer.ledger.unacked <= WINDOW_MESSAGES
            assert self.peer.producer.ledger.unacked >= len(self.outstanding)

    def teardown(self) -> None:
        """Answered to the end, everything has arrived, and a dump is over."""
        if not hasattr(self, "peer"):
            return
        if self.outstanding:
            self.peer.answer(self.outstanding[-1][0])
            self.arrive(len(self.outstanding))
        self.outstanding = self.peer.exchange()
        self.arrive(len(self.outstanding))
        for vb, high in self.peer.high.items():
            upto = self.peer.producer.streams[vb].upto if self.options.dump else high
            assert self.arrived[vb] >= set(range(1, upto + 1))
        assert self.peer.producer.is_complete == self.options.dump


Sessions.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestSessions = Sessions.TestCase


def test_answers_may_come_in_pieces_and_a_refusal_for_good_is_an_event() -> None:
    peer = Peer(TapOptions(acknowledge=True), {0: 4})
    peer.pump()
    answer = Frame(0x81, Opcode.TAP_MUTATION, vbucket=Status.EINVAL, opaque=2).encode()
    assert peer.producer.receive_data(answer[:10], 1.0) == []
    assert peer.producer.receive_data(answer[10:], 1.0) == [MessageRefused(Status.EINVAL)]
    assert peer.producer.fate is Fate.FAILED


def test_a_noop_is_due_an_interval_after_the_last_bytes_of_the_session() -> None:
    producer = TapProducer(TapOptions(), 0.0)
    producer.wrote(50.0)
    assert (producer.deadline, producer.tick(50.0 + NOOP_SECONDS - 1)) == (50.0 + NOOP_SECONDS, [])
    assert producer.data_to_send() == b""
    producer.tick(50.0 + NOOP_SECONDS)
    assert producer.data_to_send() != b"" and producer.deadline == 50.0 + 2 * NOOP_SECONDS
