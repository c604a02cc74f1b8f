"""The vbuckets that a session follows, and how they take turns."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from headwater.errors import CorruptStore
from headwater.node.streams.outlet import Outlet
from headwater.node.tap.reader import TapReader
from headwater.protocol.tap.options import TapOptions
from headwater.protocol.tap.producer import BACKOFF_SECONDS, checkpoint_id
from headwater.wire import tap
from headwater.wire.dialect import Dialect, decode
from headwater.wire.header import Frame, response
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.node.streams.support import fill, spoil
from tests.node.tap.support import TapClient, TapDesk, is_data

FUTURE = 0xFFFF_FFFF_FFFF_FFFF


def test_a_dump_of_many_vbuckets_has_every_document_once(desk: TapDesk) -> None:
    for number in range(3000):
        desk.set(number % 64, f"k{number}", b"v" * 100)
    desk.commit()
    client = TapClient(desk).connect(TapOptions(dump=True, acknowledge=True, network_byte_order=True))
    frames = client.read()
    keys = [tap.Mutation.decode(frame).key for frame in frames if is_data(frame)]
    assert len(keys) == len(set(keys)) == 3000
    assert [frame.opaque for frame in frames] == list(range(1, len(frames) + 1))
    assert client.connection.finished


@pytest.mark.parametrize("status", [Status.ETMPFAIL, Status.EBUSY])
@pytest.mark.parametrize("dump", [False, True])
def test_what_was_refused_for_now_is_sent_again_after_the_back_off(desk: TapDesk, status: Status, dump: bool) -> None:
    desk.set(3, "k")
    desk.commit()
    client = TapClient(desk).connect(TapOptions(acknowledge=True, dump=dump))
    refused = next(frame for frame in client.until_data() if is_data(frame))
    client.give(response(refused, status).encode())
    assert client.read() == []
    client.connection.woken = False
    desk.advance(BACKOFF_SECONDS)
    client.tick()
    assert client.connection.woken
    assert [tap.Mutation.decode(frame).key for frame in client.read() if is_data(frame)] == [b"k"]
    assert client.connection.finished is dump


def test_a_fatal_refusal_is_told_with_its_name(desk: TapDesk) -> None:
    client = TapClient(desk).connect(TapOptions(acknowledge=True))
    client.give(response(client.turn()[0], Status.ENOMEM).encode())
    assert client.connection.dropped == "the TAP client answered ENOMEM"


@pytest.mark.parametrize(
    "options", [{"dump": True}, {"checkpoints": {}}, {"takeover": True, "vbuckets": tuple(range(64))}], ids=str
)
def test_an_answer_costs_no_turn_of_those_who_wait_for_another(
    desk: TapDesk, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each CLOSE_BACKFILL is answered before anybody else's data may go: as many waits as vbuckets."""
    for vb in range(64):
        desk.set(vb, f"k{vb}")
    desk.commit()
    turns = 0
    take_turn = TapReader.take_turn

    def counted(reader: TapReader, outlet: Outlet, quantum_bytes: int) -> None:
        nonlocal turns
        turns += 1
        take_turn(reader, outlet, quantum_bytes)

    monkeypatch.setattr(TapReader, "take_turn", counted)
    client = TapClient(desk).connect(TapOptions(acknowledge=True, **options))
    assert len([frame for frame in client.read() if is_data(frame)]) == 64
    assert turns <= 6 * 64


ALL, LISTED = TapOptions(), TapOptions(vbuckets=(3, 5))
CHANGES_ONLY = TapOptions(since=FUTURE)


def heard_of(frames: list[Frame]) -> list[object]:
    """("begin" or "done", vbucket) for the opaques of a backfill, and the keys of changes."""
    found: list[object] = []
    names = {tap.OpaqueCode.INITIAL_VBUCKET_STREAM: "begin", tap.OpaqueCode.CLOSE_BACKFILL: "done"}
    for frame in frames:
        match decode(frame, Dialect.TAP):
            case tap.Opaque() as opaque if opaque.code in names:
                found.append((names[tap.OpaqueCode(opaque.code)], opaque.vbucket))
            case tap.Mutation() | tap.Delete() as change:
                found.append(change.key)
    return found


def without(desk: TapDesk, *vbuckets: int) -> None:
    for vb in vbuckets:
        desk.bucket.drop_vbucket(vb)
    desk.commit()


@pytest.mark.parametrize("options", [ALL, LISTED, CHANGES_ONLY], ids=["all", "listed", "changes only"])
@pytest.mark.parametrize("state", [State.ACTIVE, State.REPLICA, State.PENDING])
def test_a_vbucket_that_is_made_is_followed(desk: TapDesk, options: TapOptions, state: State) -> None:
    without(desk, 3)
    client = TapClient(desk).connect(options)
    client.read()
    desk.bucket.create_vbucket(3, state)
    desk.set(3, "k")
    assert client.connection.woken
    desk.commit()
    wanted: list[object] = [b"k"] if options is CHANGES_ONLY else [("begin", 3), b"k", ("done", 3)]
    assert heard_of(client.read()) == wanted


def test_a_vbucket_that_is_made_and_not_listed_is_not_followed(desk: TapDesk) -> None:
    without(desk, 3, 4)
    client = TapClient(desk).connect(LISTED)
    client.read()
    for vb in (3, 4):
        desk.bucket.create_vbucket(vb, State.ACTIVE)
    desk.commit()
    assert heard_of(client.read()) == [("begin", 3), ("done", 3)]


def test_a_vbucket_that_was_dead_for_a_moment_goes_on_where_it_was(desk: TapDesk) -> None:
    client = TapClient(desk).connect(ALL)
    client.read()
    for state in (State.DEAD, State.ACTIVE):
        desk.bucket.vbuckets[3].set_state(state)
    desk.set(3, "k")
    desk.commit()
    assert heard_of(client.read()) == [b"k"]


def test_what_a_vbucket_had_when_it_died_still_goes_out(desk: TapDesk) -> None:
    client = TapClient(desk).connect(ALL)
    client.read()
    desk.set(3, "last")
    desk.commit()
    desk.bucket.vbuckets[3].set_state(State.DEAD)
    assert heard_of(client.read()) == [b"last"]


def test_a_vbucket_that_was_dead_at_the_connect_is_followed_once_it_is_active(desk: TapDesk) -> None:
    desk.bucket.vbuckets[3].set_state(State.DEAD)
    client = TapClient(desk).connect(CHANGES_ONLY)
    client.read()
    desk.bucket.vbuckets[3].set_state(State.ACTIVE)
    desk.set(3, "k")
    desk.commit()
    assert heard_of(client.read()) == [b"k"]


def test_a_vbucket_that_is_made_anew_is_sent_from_scratch(desk: TapDesk) -> None:
    for number in range(5):
        desk.set(3, f"old{number}")
    desk.commit()
    client = TapClient(desk).connect(TapOptions(vbuckets=(3,)))
    client.read()
    desk.bucket.drop_vbucket(3)
    desk.bucket.create_vbucket(3, State.ACTIVE)
    desk.set(3, "new")
    desk.commit()
    assert heard_of(client.read()) == [("begin", 3), b"new", ("done", 3)]


def closed_in(frames: list[Frame]) -> dict[int, int]:
    """The last checkpoint of each vbucket that came whole."""
    ends = [decode(frame, Dialect.TAP) for frame in frames if frame.opcode == Opcode.TAP_CHECKPOINT_END]
    return {end.vbucket: end.checkpoint_id for end in ends if isinstance(end, tap.CheckpointEnd)}


def fail_over(desk: TapDesk, vb: int) -> None:
    """Lose the last writes of an owner in a failover."""
    vbucket = desk.bucket.vbuckets[vb]
    vbucket.set_state(State.REPLICA)
    vbucket.roll_back(900)
    vbucket.set_state(State.ACTIVE)


def make_anew(desk: TapDesk, vb: int) -> None:
    desk.bucket.drop_vbucket(vb)
    desk.bucket.create_vbucket(vb, State.ACTIVE)


@pytest.mark.parametrize(
    ("meanwhile", "told"),
    [(None, b"k500"), (fail_over, ("begin", 3)), (make_anew, ("begin", 3))],
    ids=["nothing", "fail-over", "made-anew"],
)
def test_a_checkpoint_counts_in_the_history_that_it_was_closed_in(
    desk: TapDesk, meanwhile: Callable[[TapDesk, int], None] | None, told: object
) -> None:
    options = TapOptions(vbuckets=(3,), acknowledge=True, checkpoints={3: 0})
    fill(desk, 3, 500)
    first = TapClient(desk).connect(options)
    first.read()
    fill(desk, 3, 501)
    closed = closed_in(first.read())
    first.cut()
    if meanwhile is not None:
        meanwhile(desk, 3)
        fill(desk, 3, 1001)
    assert closed.keys() == {3} and desk.bucket.vbuckets[3].high_seqno > 1000
    client = TapClient(desk).connect(replace(options, checkpoints=closed))
    assert heard_of(client.read())[0] == told


def test_the_checkpoint_that_a_client_named_is_not_one_of_a_vbucket_made_anew(desk: TapDesk) -> None:
    fill(desk, 3, 1001)
    here = checkpoint_id(1, desk.bucket.vbuckets[3].failover.newest.vb_uuid)
    options = TapOptions(vbuckets=(3,), acknowledge=True, checkpoints={3: here})
    client = TapClient(desk).connect(options)
    assert heard_of(client.read()) == [b"k1000"]
    desk.bucket.drop_vbucket(3)
    desk.bucket.create_vbucket(3, State.ACTIVE)
    fill(desk, 3, 1001)
    assert heard_of(client.read())[0] == ("begin", 3)


def test_a_vbucket_is_followed_once_it_is_known_to_be_ours(desk: TapDesk) -> None:
    desk.bucket.fenced.update((3, 4))
    client = TapClient(desk).connect(CHANGES_ONLY)
    client.read()
    desk.bucket.unfence(3)
    for vb in (3, 4):
        desk.set(vb, f"k{vb}")
    desk.commit()
    assert heard_of(client.read()) == [b"k3"]


def test_a_session_whose_client_is_away_has_what_came_meanwhile(desk: TapDesk) -> None:
    without(desk, 3)
    options = TapOptions(name=b"me", acknowledge=True, vbuckets=(3, 5))
    first = TapClient(desk).connect(options)
    first.read()
    first.cut()
    desk.bucket.create_vbucket(3, State.ACTIVE)
    desk.set(3, "k")
    desk.commit()
    assert heard_of(TapClient(desk).connect(options).read()) == [("begin", 3), b"k", ("done", 3)]


def test_a_dump_has_the_vbucket_that_dies_meanwhile_and_none_that_comes(desk: TapDesk) -> None:
    without(desk, 4)
    desk.set(3, "k")
    desk.commit()
    client = TapClient(desk).connect(TapOptions(dump=True, acknowledge=True))
    client.turn()
    desk.bucket.vbuckets[3].set_state(State.DEAD)
    desk.bucket.create_vbucket(4, State.ACTIVE)
    desk.set(4, "late")
    desk.commit()
    client.give(response(Frame(0x80, Opcode.TAP_OPAQUE, opaque=2)).encode())
    assert heard_of(client.read()) == [b"k", ("done", 3)]
    assert client.connection.finished


@pytest.mark.parametrize("options", [{"dump": True}, {"takeover": True}], ids=str)
def test_a_session_with_an_end_that_lost_a_vbucket_does_not_look_whole(desk: TapDesk, options: dict[str, Any]) -> None:
    desk.set(3, "k")
    desk.commit()
    client = TapClient(desk).connect(TapOptions(acknowledge=True, vbuckets=(3, 4), **options))
    client.turn()
    desk.bucket.drop_vbucket(3)
    assert client.connection.dropped == "vbucket 3 was deleted before the TAP client b'anon_1' had all of it"
    assert not client.connection.finished
    assert desk.tap.feeds == {}


def test_statistics_name_the_session(desk: TapDesk) -> None:
    TapClient(desk).connect(TapOptions(name=b"me", acknowledge=True)).read()
    stats = dict(desk.tap.stats([]))
    assert stats["eq_tapq:me:flags"] == "support_ack"
    assert stats["eq_tapq:me:ack_log_size"] == "0"
    assert stats["ep_tap_count"] == "1"


def test_a_session_that_meets_damage_is_disconnected_and_not_resumed(desk: TapDesk) -> None:
    client = TapClient(desk).connect(TapOptions(name=b"me", acknowledge=True))
    client.read()
    desk.set(0, "lost")
    desk.commit()
    spoil(desk)
    assert client.connection.is_closed
    assert desk.tap.feeds == {}
    again = TapClient(desk).connect(TapOptions(dump=True, vbuckets=(0,)))
    with pytest.raises(CorruptStore):
        again.read()


def test_a_session_follows_what_is_here_and_passes_over_the_rest(desk: TapDesk) -> None:
    desk.bucket.vbuckets[2].set_state(State.DEAD)
    TapClient(desk).connect(TapOptions(name=b"me", vbuckets=(1, 2, 3, 70)))
    assert sorted(desk.tap.feeds[b"me"].readers) == [1, 3]


def test_a_client_that_comes_back_wanting_keys_gets_keys(desk: TapDesk) -> None:
    first = TapClient(desk).connect(TapOptions(name=b"me", acknowledge=True, vbuckets=(0,)))
    first.read()
    first.cut()
    desk.set(0, "k", b"value")
    desk.commit()
    again = TapClient(desk).connect(TapOptions(name=b"me", acknowledge=True, vbuckets=(0,), keys_only=True))
    (message,) = [tap.Mutation.decode(frame) for frame in again.read() if is_data(frame)]
    assert (message.key, message.value) == (b"k", b"")
