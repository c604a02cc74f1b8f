"""Drains against a scripted node that tells the truth, cuts the line, lies, moves away and falls silent."""

from types import SimpleNamespace

import pytest

from headwater.client import Deletion, Mutation, SnapshotMarker, StreamEnd
from headwater.client.collections import CollectionNames, StreamedCollections
from headwater.client.drainer import Drainer, Pace, UnassignedVbucket
from headwater.client.losses import ReadAgain
from headwater.client.mapwatch import REFRESH_SECONDS
from headwater.client.options import DrainOptions
from headwater.client.routing import Address
from headwater.client.worker import Task, Worker
from headwater.errors import (
    BucketNotFound,
    ConnectionLost,
    DataLoss,
    InvalidArguments,
    NoAccess,
    NotSupported,
    OptionError,
    PeerSilent,
    RemoteProtocolError,
    RollbackRequired,
    TemporaryFailure,
)
from headwater.protocol.dcp.coverage import Coverage
from headwater.protocol.dcp.drain import Drain
from headwater.protocol.dcp.position import ENDLESS, Position, load_positions, safe_point, save_positions
from headwater.testing import node
from headwater.testing.clock import FakeClock
from headwater.testing.peers import UUID, History, Peer, Snapshot, cluster_map, history, mutation, serve
from headwater.transport.waiting import Ready
from headwater.wire import dcp
from headwater.wire.header import HEADER_BYTES, response
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.battery import few_of
from tests.client import seeds
from tests.protocol.dcp.drain_talk import ACCEPTED, change, marker, purged_marker


def seqnos(events) -> list[int]:
    return [event.seqno for event in events if isinstance(event, Mutation)]


def drained(driver, peer: Peer, start=None, until="now", **options) -> list:
    with serve(peer) as address:
        client = driver.connect(address)
        with client.changes(start, until=until, **options) as changes:
            return list(changes)


# --------------------------------------------------------------------------- the truth


def test_the_whole_history_comes_in_order_with_its_markers_and_its_end(driver):
    events = drained(driver, Peer(histories={0: history(7)}))
    assert seqnos(events) == [1, 2, 3, 4, 5, 6, 7]
    assert events[0] == SnapshotMarker(0, 1, 5, 5) and events[6] == SnapshotMarker(0, 6, 7, 5)
    assert events[1] == Mutation(0, 1, 1, 1, 0, b"k1", b"v", 1, 5, 0, 0) and events[-1] == StreamEnd(0, 0)


def test_many_vbuckets_end_each_for_itself(driver):
    events = drained(driver, Peer(vbuckets=4, histories={vb: history(vb + 1) for vb in range(4)}))
    assert sorted(event.vbucket for event in events if isinstance(event, StreamEnd)) == [0, 1, 2, 3]
    assert len(seqnos(events)) == 1 + 2 + 3 + 4


def test_only_the_vbuckets_asked_for_are_drained(driver):
    events = drained(driver, Peer(vbuckets=4, histories={vb: history(3) for vb in range(4)}), vbuckets=[1, 3])
    assert {event.vbucket for event in events} == {1, 3}


def test_batches_hold_the_rows_and_the_positions_after_them(driver):
    with serve(Peer(vbuckets=2, histories={0: history(300), 1: history(2)})) as address:
        client = driver.connect(address)
        with client.batches(until="now") as batches:
            got = list(batches)
    assert sum(len(batch) for batch in got) == 302
    assert got[-1].positions == {0: Position(0, UUID, 300, 300, 300), 1: Position(1, UUID, 2, 2, 2)}
    assert [end.vbucket for batch in got for end in batch.ended] in ([0, 1], [1, 0])
    assert batches.positions == got[-1].positions


def test_the_end_may_lie_inside_a_snapshot_and_all_of_it_is_delivered(driver):
    assert seqnos(drained(driver, Peer(histories={0: history(10)}), until={0: 3})) == [1, 2, 3, 4, 5]


def test_an_empty_bucket_has_nothing_but_ends(driver):
    assert drained(driver, Peer(vbuckets=2)) == [StreamEnd(0, 0), StreamEnd(1, 0)]


def test_from_now_on_means_nothing_of_what_was(driver):
    with serve(Peer(histories={0: history(5)})) as address:
        client = driver.connect(address)
        with client.changes("now", until="now") as changes:
            assert list(changes) == [StreamEnd(0, 0)]
            assert changes.positions == {0: Position(0, UUID, 5, 5, 5)}


def test_after_every_change_the_drain_can_be_left_and_resumed(driver):
    with serve(Peer(histories={0: history(12)})) as address:
        client = driver.connect(address)
        for leave_after in range(1, 13):
            first = client.changes(until="now")
            got: list[int] = []
            while len(got) < leave_after:
                got += seqnos([next(first)])
            saved = save_positions(first.positions)
            first.close()
            with client.changes(load_positions(saved), until="now") as second:
                assert got + seqnos(second) == list(range(1, 13))


def test_positions_of_batches_cover_what_was_returned_and_nothing_else(driver):
    with serve(Peer(histories={0: history(2000, value=b"v" * 100)})) as address:
        client = driver.connect(address)
        seen = 0
        with client.batches(until="now", batch_bytes=10_000) as batches:
            assert batches.positions[0].seqno == 0
            for batch in batches:
                seen += len(batch)
                assert batches.positions[0].seqno == seen == batch.positions[0].seqno
    assert seen == 2000


def test_a_batch_keeps_its_rows_while_later_ones_come(driver):
    with serve(Peer(histories={0: history(3000, value=b"v" * 50)})) as address:
        client = driver.connect(address)
        kept = list(client.batches(until="now", batch_bytes=5000))
    assert [seqno for batch in kept for seqno in batch.records["seqno"].to_pylist()] == list(range(1, 3001))


def test_a_value_of_twenty_mebibytes_passes_through_a_small_window(driver):
    held = History([Snapshot(1, 1, [mutation(1, b"big", bytes(20 << 20))])])
    events = drained(driver, Peer(histories={0: held}), window_bytes=65_536, batch_bytes=65_536)
    assert [len(event.value) for event in events if isinstance(event, Mutation)] == [20 << 20]


def test_deletions_tell_when(driver):
    gone = dcp.DeletionV2(vbucket=0, by_seqno=1, rev_seqno=3, delete_time=1_700_000_000, cas=9, key=b"k").frame()
    events = drained(driver, Peer(histories={0: History([Snapshot(0, 1, [gone])])}))
    assert events[1] == Deletion(0, 1, 3, 9, 0, b"k", b"", 0, 1, 1_700_000_000)


def test_what_was_processed_is_acknowledged(driver):
    peer = Peer(histories={0: history(200, value=b"v" * 500)})
    drained(driver, peer, window_bytes=20_000, batch_bytes=10_000)
    acked = sum(dcp.BufferAck.decode(f).acked_bytes for f in peer.seen if f.opcode == Opcode.DCP_BUFFER_ACKNOWLEDGEMENT)
    assert acked > 0.7 * 200 * 555


# --------------------------------------------------------------------------- cuts


def conversation_bytes() -> int:
    """About how much a node says to a drain of nine changes."""
    return 9 * (55 + 3) + 2 * 44 + 28 + 40 + 400


@pytest.mark.parametrize("part", few_of(range(8), 3))
def test_a_line_cut_at_any_byte_loses_nothing_and_invents_nothing(driver, part):
    for cut in range(part, conversation_bytes(), 8):
        peer = Peer(histories={0: history(9)}, cuts=[10_000, cut])
        events = drained(driver, peer)
        assert seqnos(events) == list(range(1, 10)), f"cut after {cut} bytes"
        assert events.count(StreamEnd(0, 0)) == 1


def test_a_line_that_is_cut_again_and_again_comes_to_its_end(driver):
    cuts = [10_000, *(cut for step in range(20) for cut in (700, 10_000))]
    assert seqnos(drained(driver, Peer(histories={0: history(200)}, cuts=cuts))) == list(range(1, 201))


def test_a_node_that_never_comes_back_is_given_up_after_a_while(driver):
    with serve(Peer(histories={0: history(5)})) as address:
        client = driver.connect(address)
        changes = client.changes(patience_seconds=0.3)
        assert seqnos([next(changes) for _ in range(6)]) == [1, 2, 3, 4, 5]
    with pytest.raises(ConnectionLost, match=address):
        list(changes)
    assert changes.positions == {0: Position(0, UUID, 5, 5, 5)}


def test_a_node_that_falls_silent_is_an_error_and_not_a_hang(driver):
    with serve(Peer(histories={0: history(5)})) as address:
        client = driver.connect(address)
        with client.changes(noop_interval_seconds=0.1, patience_seconds=0.5) as changes, pytest.raises(PeerSilent):
            list(changes)


@pytest.mark.parametrize("opcode", [Opcode.DCP_OPEN, Opcode.DCP_CONTROL, Opcode.DCP_STREAM_REQ])
def test_a_node_that_does_not_answer_is_an_error_and_not_a_hang(driver, opcode):
    with serve(Peer(histories={0: history(5)}, silent={opcode})) as address:
        client = driver.connect(address, connect_timeout_seconds=1.0)
        with pytest.raises(PeerSilent):
            list(client.changes(until={0: 5}, patience_seconds=0.3, answer_seconds=0.1))


def test_a_drain_with_an_end_that_stands_still_is_an_error_and_not_a_hang(driver):
    with serve(Peer(histories={0: history(5)})) as address:
        client = driver.connect(address)
        with pytest.raises(PeerSilent, match="a drain with an end"):
            list(client.changes(until={0: 50}, patience_seconds=0.3))


def test_a_caller_may_look_at_the_clock_while_nothing_comes(driver):
    with serve(Peer(histories={0: history(5)})) as address:
        client = driver.connect(address)
        with client.batches(max_wait_seconds=0.05) as batches:
            found = 0
            while found < 5:
                found += len(next(batches))
            assert len(next(batches)) == 0 == len(next(batches))


# --------------------------------------------------------------------------- histories


def test_a_history_that_left_ours_says_where_and_why(driver):
    held = history(9)
    held.failover_log = [(0xB, 7), (UUID, 0)]
    peer = Peer(vbuckets=2, histories={0: held, 1: history(3)})
    start = {0: Position(0, UUID, 9, 9, 9), 1: Position.beginning(1)}
    with serve(peer) as address:
        client = driver.connect(address)
        changes = client.changes(start, until="now")
        with pytest.raises(RollbackRequired) as caught:
            list(changes)
        assert (caught.value.vbucket, caught.value.requested, caught.value.common) == (0, 9, 7)
        assert changes.positions[0] == start[0]
        saved = [Position(0, UUID, 5, 5, 5), start[0]]
        resumed = changes.positions | {0: safe_point(saved, 0, caught.value.common)}
        events = list(client.changes(resumed, until="now"))
    assert [e.seqno for e in events if isinstance(e, Mutation) and e.vbucket == 0] == [6, 7, 8, 9]


def test_a_history_nobody_knows_goes_back_to_the_beginning(driver):
    with pytest.raises(RollbackRequired) as caught:
        drained(driver, Peer(histories={0: history(9)}), {0: Position(0, 0xDEAD, 5, 5, 5)})
    assert caught.value.common == 0


def test_one_who_is_ahead_of_a_bounded_end_is_still_compared(driver):
    with pytest.raises(RollbackRequired) as caught:
        drained(driver, Peer(histories={0: history(9)}), {0: Position(0, UUID, 50, 50, 50)})
    assert caught.value.common == 9


# --------------------------------------------------------------------------- ends and refusals


@pytest.mark.parametrize("reason", [1, 2, 4, 5, 6, 99])
def test_a_stream_that_ended_early_is_asked_for_again(driver, reason):
    peer = Peer(histories={0: history(9)}, ends=[(4, reason), (4, reason), (8, reason)])
    events = drained(driver, peer, until={0: 9})
    assert seqnos(events) == list(range(1, 10)) and events.count(StreamEnd(0, 0)) == 1
    starts = [dcp.StreamRequest.decode(f).start_seqno for f in peer.seen if f.opcode == Opcode.DCP_STREAM_REQ]
    assert starts == [0, 3, 3, 7]


def test_lost_privileges_end_the_drain(driver):
    def end(frame):
        if frame.opcode == Opcode.DCP_STREAM_END:
            return dcp.StreamEnd(vbucket=frame.vbucket, opaque=frame.opaque, status=8).encode()
        return frame.encode()

    with pytest.raises(NoAccess, match="vbucket 0"):
        drained(driver, Peer(histories={0: history(3)}, mutate=end))


def test_a_refusal_is_an_error_that_says_what_was_asked(driver):
    with pytest.raises(InvalidArguments, match="stream request for vbucket 0"):
        drained(driver, Peer(histories={0: history(3)}, refuse={0: Status.EINVAL}))


def test_not_now_is_asked_again_and_given_up_with_its_own_error(driver):
    peer = Peer(histories={0: history(3)}, refuse={0: Status.ETMPFAIL})
    with pytest.raises(TemporaryFailure):
        drained(driver, peer, patience_seconds=1.0)
    assert sum(frame.opcode == Opcode.DCP_STREAM_REQ for frame in peer.seen) > 1


def test_a_vbucket_that_moves_is_followed_to_its_new_node(driver):
    first, second = (Peer(vbuckets=2, histories={0: history(4), 1: history(4)}) for _ in range(2))
    owners = [0, 1]
    first.config = second.config = lambda _: cluster_map([first.address, second.address], owners, rev=10 - sum(owners))
    with serve(first) as address, serve(second):
        client = driver.connect(address)
        second.refuse = {1: Status.NOT_MY_VBUCKET}
        changes = client.changes(until={0: 4, 1: 4})
        owners[:] = [0, 0]
        events = list(changes)
    assert len(seqnos(events)) == 8
    asked = [frame.vbucket for frame in first.seen if frame.opcode == Opcode.DCP_STREAM_REQ]
    assert sorted(asked) == [0, 1]


class Emptied(Peer):
    """Has no bucket any more, as a node whose disk was replaced; or `has_bucket` for now."""

    has_bucket = False

    def answers(self, request):
        if request.opcode == Opcode.SELECT_BUCKET and not self.has_bucket:
            self.seen.append(request)
            yield response(request, Status.KEY_ENOENT)
        else:
            yield from super().answers(request)


@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_node_that_was_emptied_is_left_for_who_takes_its_place(driver, is_dropped):
    """The drain ended, though the bucket was there: at the others, which did not know yet who would own it."""
    emptied, left = Emptied(), Emptied(histories={0: history(4)})
    left.has_bucket = True
    left.config = lambda _: cluster_map(
        [emptied.address, left.address], [int(len(emptied.seen) > 2)], 1 + len(emptied.seen)
    )
    with serve(emptied), serve(left) as address:
        client = driver.connect(f"{address}/beer")
        left.has_bucket = not is_dropped
        if is_dropped:
            with pytest.raises(BucketNotFound):
                list(client.changes(until={0: 4}))
        else:
            assert seqnos(client.changes(until={0: 4})) == [1, 2, 3, 4]


def test_each_node_is_asked_for_its_own_vbuckets(driver):
    first, second = (Peer(vbuckets=4, histories={vb: history(vb + 1) for vb in range(4)}) for _ in range(2))
    first.config = second.config = lambda _: cluster_map([first.address, second.address], [0, 1, 0, 1])
    with serve(first) as address, serve(second):
        events = list(driver.connect(address).changes(until="now"))
    assert len(seqnos(events)) == 10
    for peer, own in ((first, [0, 2]), (second, [1, 3])):
        assert [frame.vbucket for frame in peer.seen if frame.opcode == Opcode.DCP_STREAM_REQ] == own


def test_a_vbucket_without_a_node_is_waited_for_and_then_named(driver):
    peer = Peer(vbuckets=2)
    peer.config = lambda address: cluster_map([address], [0, -1])
    with pytest.raises(Exception, match="vbucket 1 has no active node"):
        drained(driver, peer, until={0: 0, 1: 0}, patience_seconds=0.1)


# --------------------------------------------------------------------------- lies


def field_lies() -> list[tuple[int, int]]:
    """(opcode, byte of the frame) for each byte of header and extras of what a producer sends."""
    sizes = {
        Opcode.DCP_STREAM_REQ: 16,
        Opcode.DCP_SNAPSHOT_MARKER: 20,
        Opcode.DCP_MUTATION: 31,
        Opcode.DCP_STREAM_END: 4,
    }
    return [(opcode, place) for opcode, extras in sizes.items() for place in range(HEADER_BYTES + extras)]


def test_a_lie_in_any_field_is_an_error_or_the_right_seqnos(driver):
    """Every byte of header and extras of every kind of stream message, wrong once: never a seqno twice or lost."""
    harmless = 0
    for opcode, place in field_lies():
        told: list[int] = []

        def lie(frame, opcode=opcode, place=place, told=told):
            data = bytearray(frame.encode())
            if frame.opcode == opcode and not told:
                told.append(1)
                data[place] ^= 0x11
            return bytes(data)

        peer = Peer(histories={0: history(6)}, mutate=lie)
        try:
            events = drained(driver, peer, until={0: 6}, patience_seconds=0.05, answer_seconds=0.02)
        except (RemoteProtocolError, RollbackRequired, PeerSilent, ConnectionLost, OptionError, ValueError):
            continue
        except Exception as error:
            raise AssertionError(f"byte {place} of opcode 0x{opcode:02x}") from error
        harmless += 1
        # A flipped bit in a range or an end can end the stream early; what was delivered is still right.
        assert seqnos(events) == list(range(1, 7)), (hex(opcode), place)
    assert 20 < harmless < 120


def test_garbage_is_a_protocol_error_and_what_was_delivered_stays(driver):
    def garble(frame):
        if frame.opcode == Opcode.DCP_MUTATION and int.from_bytes(frame.extras[:8]) == 6:
            return b"\x55" * 100
        return frame.encode()

    with serve(Peer(histories={0: history(9)}, mutate=garble)) as address:
        changes = driver.connect(address).changes(until="now")
        with pytest.raises(RemoteProtocolError, match="magic"):
            list(changes)
        assert changes.positions[0].seqno in (0, 5)
        with pytest.raises(RemoteProtocolError, match="magic"):  # whoever asks again hears the same
            next(changes)


def test_a_drain_that_was_closed_is_at_its_end(driver):
    with serve(Peer(histories={0: history(9)})) as address:
        changes = driver.connect(address).changes()
        next(changes)
        changes.close()
        assert len(list(changes)) <= 10 and list(changes) == []


def test_a_map_that_makes_no_sense_ends_the_drain(driver):
    peer = Peer(histories={0: history(3)}, refuse={0: Status.NOT_MY_VBUCKET})
    with serve(peer) as address:
        changes = driver.connect(address).changes()
        peer.config = lambda _: {"vBucketServerMap": 5}
        for _ in range(2):
            with pytest.raises(RemoteProtocolError, match="cluster map"):
                next(changes)


def test_options_that_make_no_sense_are_refused_before_anything_is_asked(driver):
    with serve(Peer(vbuckets=4)) as address:
        client = driver.connect(address)
        for wrong in (
            {"vbuckets": [4]},
            {"start": {0: Position(1)}},
            {"start": "yesterday"},
            {"until": "tomorrow"},
            {"window_bytes": -1},
            {"noop_interval_seconds": 0.01},
            {"name": "n" * 201},
            {"batch_bytes": 0},
        ):
            with pytest.raises(OptionError):
                client.changes(**wrong)


def test_while_a_map_is_asked_for_nothing_wakes_for_the_vbuckets_that_wait_for_it() -> None:
    """The time to ask for them again has passed: each turn would be over at once, all of a processor, for seconds.

    Found by seed 1 of `python -m harness.world`: a node was killed, and another one was silent to who asked for a map.
    """
    drainer = object.__new__(Drainer)
    drainer._steward, drainer._watch, drainer._workers = Task(iter(())), Task(iter(())), {}
    drainer._unassigned = {0: UnassignedVbucket(1.0, None)}
    drainer.options, drainer._gate, drainer._bounded, drainer._linger_until = DrainOptions(), None, False, None
    drainer._watch.wait = Ready()
    drainer._steward.wait = Ready((), 9.0)
    assert drainer._next_wait().deadline == 9.0
    drainer._steward.wait = Ready()
    assert drainer._next_wait().deadline == 1.0


def test_all_nodes_are_asked_for_a_missing_bucket_as_seldom_as_for_the_map() -> None:
    """Vbuckets fail one by one, and to ask takes as long as an operation where one of the nodes is silent."""
    clock, asked = FakeClock(), []

    def was_emptied(error, _until):
        asked.append(error)
        yield Ready((), clock.now)
        return True

    drainer = object.__new__(Drainer)
    drainer.clock, drainer._refreshed_at, drainer._assign = clock, float("-inf"), lambda _: None
    drainer.cluster = SimpleNamespace(was_emptied=was_emptied, deadline=lambda: 10.0, refresh=lambda: iter(()))
    missing = BucketNotFound("select bucket")
    drainer._unassigned = {vb: UnassignedVbucket(clock.now, missing, stale_map=True) for vb in range(3)}
    rounds = drainer._house()
    for _ in range(5):
        next(rounds)
    assert asked == [missing]
    clock.now += REFRESH_SECONDS
    for _ in range(5):
        next(rounds)
    assert asked == [missing] * 2


class Scripted(Worker):
    """A worker whose node says only what the test says: a piece at each step."""

    def __init__(self, drainer: Drainer, vbucket: int, *pieces: bytes) -> None:
        super().__init__(Address("node", 11210 + vbucket), drainer.cluster, drainer.arena, drainer.options)
        with_ids = drainer.streamed is not None
        self.drain = Drain(
            drainer.arena,
            str(self.address),
            window_bytes=0,
            silence_seconds=None,
            answer_seconds=60.0,
            now=0.0,
            with_ids=with_ids,
            checks_purges=with_ids,
        )
        self.drain.request(drainer.progress[vbucket].position, ENDLESS, 0.0)
        self.vbuckets[vbucket], self.wait = None, Ready()
        self._vbuckets_max = vbucket + 1
        self._pieces = iter(pieces)

    def step(self):
        yield from ()
        for piece in self._pieces:
            assert self.drain.receive(piece, 0.0) == len(piece)
            return True
        return False


def driven_by(drainer: Drainer, *workers: Worker) -> Drainer:
    """Let a drain read these workers, instead of those that it would begin."""
    drainer._unassigned.clear()
    drainer._workers = {worker.address: worker for worker in workers}
    return drainer


def handed_out(drainer: Drainer):
    """The next rows and events of a drain whose workers have all that they wait for."""
    steps = drainer.advance()
    with pytest.raises(StopIteration) as done:
        next(steps)
    return done.value.value


def test_a_broken_rule_returns_no_batch_that_would_skip_what_it_dropped():
    """Two nodes: rows of both are decoded when one breaks a rule, and the other has more. All that was decoded since
    the last batch goes, so the positions must not move: a batch with the rest of the second node would skip its first
    row."""
    opened = [ACCEPTED + marker(0, 9, vbucket=vb) + change(1, vbucket=vb) for vb in (0, 1)]
    cluster = seeds.cluster("127.0.0.1:1")
    drainer = Drainer(cluster, {0: Position(0), 1: Position(1)}, {}, DrainOptions(map_poll_seconds=None))
    drainer._pace = Pace(60.0, 0.0, 1.0)
    driven_by(
        drainer, Scripted(drainer, 0, opened[0], change(1)), Scripted(drainer, 1, opened[1], change(2, vbucket=1))
    )
    with pytest.raises(RemoteProtocolError, match="seqno 1"):
        handed_out(drainer)
    assert {vb: place.seqno for vb, place in drainer.positions.by_vbucket().items()} == {0: 0, 1: 0}


HELD = Position(0, UUID, 50, 50, 50)
WITHOUT_A_DELETION = purged_marker(61, 90, 70) + change(80, key=b"\x00later")


def told_of_a_loss(**options):
    """A drain of the whole bucket that has been given seqno 60 when a snapshot begins in which the deletions up to 70
    are purged."""
    whole = StreamedCollections(Coverage(1), CollectionNames())
    options = DrainOptions(map_poll_seconds=None, **options)
    drainer = Drainer(seeds.cluster("127.0.0.1:1"), {0: HELD}, {}, options, whole)
    drainer._pace = Pace(0.0, 0.0, 1.0)
    begun = ACCEPTED + marker(50, 60) + change(60, key=b"\x00held")
    driven_by(drainer, Scripted(drainer, 0, begun, WITHOUT_A_DELETION))
    assert handed_out(drainer).records["seqno"].to_pylist() == [60]
    return drainer


def test_changes_that_come_without_the_deletions_before_them_are_not_returned():
    """A reader that had them would go on behind the purge, where no node can tell that something is missing."""
    drainer = told_of_a_loss()
    with pytest.raises(DataLoss) as caught:
        handed_out(drainer)
    assert (caught.value.purged, caught.value.requested) == ({0: 70}, 60)
    assert drainer.positions.by_vbucket() == {0: Position(0, UUID, 60, 60, 60, coverage=Coverage(1))}


def test_changes_that_come_without_deletions_come_with_the_news_that_all_is_read_again():
    drainer = told_of_a_loss(on_data_loss="read_again")
    batch = handed_out(drainer)
    assert batch.records["seqno"].to_pylist() == [80]
    ((row, event),) = batch.events
    assert (row, type(event), event.vbucket, event.seqno, event.purge_seqno) == (1, ReadAgain, 0, 60, 70)
    assert drainer.positions.by_vbucket() == {0: Position(0, coverage=Coverage(1))}
    assert list(drainer._unassigned) == [0] and not drainer._workers


# --------------------------------------------------------------------------- every version


def versions_of_two_keys() -> History:
    """A node's history of two keys: what came before its retention deduplicated, then every version."""
    old = Snapshot(0, 4, [mutation(3, b"a", b"a3"), mutation(4, b"b", b"b4")], flags=0x06)
    kept = [mutation(seqno, b"ab"[seqno % 2 :][:1], b"v%d" % seqno) for seqno in range(5, 13)]
    live = [mutation(seqno, b"a", b"v%d" % seqno) for seqno in (13, 14)]
    return History([old, Snapshot(5, 12, kept, flags=0x36), Snapshot(13, 14, live, flags=0x11)])


def test_every_version_that_a_node_keeps_comes_in_order_also_within_a_snapshot(driver):
    peer = Peer(histories={0: versions_of_two_keys()})
    events = drained(driver, peer, history=True)
    assert seqnos(events) == [3, 4, *range(5, 15)]
    versions = [event.seqno for event in events if isinstance(event, Mutation) and event.key == b"a"]
    assert versions == [3, 6, 8, 10, 12, 13, 14]
    markers = [event for event in events if isinstance(event, SnapshotMarker)]
    assert [(marker.flags, marker.is_deduplicated) for marker in markers] == [
        (0x06, True),
        (0x36, False),
        (0x11, False),
    ]
    controls = [frame.encode()[24:] for frame in peer.seen if frame.opcode == Opcode.DCP_CONTROL]
    assert b"change_streamstrue" in controls


def test_who_does_not_ask_for_versions_takes_what_comes(driver):
    """Flags that were not asked for change nothing."""
    peer = Peer(histories={0: versions_of_two_keys()})
    assert seqnos(drained(driver, peer)) == [3, 4, *range(5, 15)]
    assert not [frame for frame in peer.seen if frame.key == b"change_streams"]


def test_batches_say_which_snapshots_have_the_last_versions_alone(driver):
    with serve(Peer(histories={0: versions_of_two_keys()})) as address:
        client = driver.connect(address)
        with client.batches(until="now", history=True) as batches:
            read = list(batches)
        assert [seqno for batch in read for seqno in batch.records["seqno"].to_pylist()] == [3, 4, *range(5, 15)]
        assert [told for batch in read for told in batch.deduplicated] == [(0, SnapshotMarker(0, 0, 4, 0x06))]
        with client.batches(until="now") as batches:
            assert not [told for batch in batches for told in batch.deduplicated]


def test_markers_that_only_the_drain_wants_are_no_events(driver):
    events = drained(driver, Peer(histories={0: versions_of_two_keys()}), history=True, markers=False)
    assert [type(event) for event in events] == [Mutation] * 12 + [StreamEnd]


def test_within_a_snapshot_of_versions_a_drain_can_be_left_and_resumed_anywhere(driver):
    with serve(Peer(histories={0: versions_of_two_keys()})) as address:
        client = driver.connect(address)
        for leave_after in range(1, 13):
            first = client.changes(until="now", history=True)
            got: list[int] = []
            while len(got) < leave_after:
                got += seqnos([next(first)])
            saved = save_positions(first.positions)
            first.close()
            with client.changes(load_positions(saved), until="now", history=True) as second:
                assert got + seqnos(second) == [3, 4, *range(5, 15)]


class WithoutVersions(Peer):
    """A server that keeps the last version of each document alone, as Couchbase's with couchstore."""

    def answers(self, request):
        if (request.opcode, request.key) == (Opcode.DCP_CONTROL, b"change_streams"):
            yield response(request, Status.NOT_SUPPORTED)
        else:
            yield from super().answers(request)


@pytest.mark.parametrize("read", ["changes", "batches"])
def test_a_node_that_keeps_no_versions_is_named(driver, read):
    """A reading without them is none that the caller asked for, and nobody would notice."""
    with serve(WithoutVersions(histories={0: history(3)})) as address:
        feed = getattr(driver.connect(address), read)(until="now", history=True)
        with feed, pytest.raises(NotSupported) as refused:
            list(feed)
    said = str(refused.value)
    assert f"history: {address} keeps no old versions" in said and "\n" not in said


def test_a_node_sends_every_version_that_its_log_has(driver):
    with node(vbuckets=1) as running, running.client() as writer:
        for number in range(5):
            writer.set("k", str(number))
        writer.delete("k")
        reader = driver.connect(running.url)
        with reader.changes(until="now", history=True) as changes:
            events = list(changes)
        assert [event.value for event in events if isinstance(event, Mutation)] == [b"0", b"1", b"2", b"3", b"4"]
        assert [(event.seqno, event.key) for event in events if isinstance(event, Deletion)] == [(6, b"k")]
        assert not [event for event in events if isinstance(event, SnapshotMarker) and event.is_deduplicated]
        with reader.changes(until="now") as changes:
            assert [event.seqno for event in changes if isinstance(event, Mutation | Deletion)] == [6]
