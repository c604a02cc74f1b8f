"""Names: sessions that wait for their clients, are taken over, changed and dropped."""

import pytest

from headwater.protocol.tap.options import TapOptions
from headwater.wire import tap
from headwater.wire.header import Frame, response
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.node.tap.support import TapClient, TapDesk, is_data

FUTURE = 0xFFFF_FFFF_FFFF_FFFF


def test_a_malformed_connect_is_answered_and_the_connection_closed(desk: TapDesk) -> None:
    client = TapClient(desk)
    client.give(Frame(0x80, 0x40, b"n", b"\0\1").encode())
    (answer,) = client.turn()
    assert (answer.status, client.connection.finished) == (Status.EINVAL, True)


@pytest.mark.parametrize(
    "options", [TapOptions(dump=True), TapOptions(dump=True, vbuckets=(3, 4)), TapOptions(takeover=True, vbuckets=(3,))]
)
def test_what_has_an_end_is_refused_while_it_is_not_known_what_is_ours(desk: TapDesk, options: TapOptions) -> None:
    desk.bucket.fenced.add(3)
    client = TapClient(desk).connect(options)
    (answer,) = client.turn()
    assert (answer.opcode, answer.status, client.connection.finished) == (0x40, Status.ETMPFAIL, True)
    assert desk.warnings == ["no TAP dump or takeover yet: 1 vbuckets may belong to another node by now"]


@pytest.mark.parametrize("options", [TapOptions(vbuckets=(3, 4)), TapOptions(dump=True, vbuckets=(4,))])
def test_what_the_fence_takes_nothing_from_begins(desk: TapDesk, options: TapOptions) -> None:
    desk.bucket.fenced.add(3)
    TapClient(desk).connect(options)
    assert list(desk.tap.feeds) == [b"anon_1"]


def test_a_named_session_goes_on_after_a_cut_with_what_was_not_acknowledged(desk: TapDesk) -> None:
    for number in range(10):
        desk.set(0, f"k{number}")
    desk.commit()
    options = TapOptions(name=b"me", acknowledge=True, vbuckets=(0,))
    first = TapClient(desk).connect(options)
    first.read()
    desk.set(0, "later")
    desk.commit()
    assert [frame.key for frame in first.read(acknowledge=False)] == [b"\0" * 5]  # TAP's private bytes come first
    first.cut()
    desk.advance(59)
    again = TapClient(desk).connect(options).read()
    assert [tap.Mutation.decode(frame).key for frame in again if is_data(frame)] == [b"later"]


def test_a_session_that_waited_too_long_begins_anew(desk: TapDesk) -> None:
    desk.set(0, "k")
    desk.commit()
    options = TapOptions(name=b"me", acknowledge=True)
    first = TapClient(desk).connect(options)
    first.read()
    first.cut()
    desk.advance(60)
    assert desk.tap.feeds == {}
    assert [frame for frame in TapClient(desk).connect(options).read() if is_data(frame)]


def test_a_second_connection_of_a_name_closes_the_first_and_takes_over(desk: TapDesk) -> None:
    desk.set(0, "k")
    desk.commit()
    options = TapOptions(name=b"me", acknowledge=True)
    first = TapClient(desk).connect(options)
    first.read()
    second = TapClient(desk).connect(options)
    assert first.connection.is_closed
    assert [frame for frame in second.read() if is_data(frame)] == []


def test_a_fatal_refusal_ends_the_session_for_good(desk: TapDesk) -> None:
    client = TapClient(desk).connect(TapOptions(name=b"me", acknowledge=True))
    client.turn()
    client.give(Frame(0x81, Opcode.TAP_OPAQUE, vbucket=Status.NOT_MY_VBUCKET, opaque=1).encode())
    assert client.connection.is_closed
    assert desk.tap.feeds == {}


def test_deregistering_drops_a_session(desk: TapDesk) -> None:
    client = TapClient(desk).connect(TapOptions(name=b"me"))
    assert TapClient(desk).one(Opcode.DEREGISTER_TAP_CLIENT, key=b"me").status == Status.SUCCESS
    assert client.connection.is_closed


def test_a_changed_filter_is_followed_and_told(desk: TapDesk) -> None:
    for vb in (1, 2):
        desk.set(vb, f"k{vb}")
    desk.commit()
    client = TapClient(desk).connect(TapOptions(name=b"me", vbuckets=(1,)))
    client.read()
    value = tap.ChangeFilter(key=b"me", checkpoints=[(2, 0)])
    assert TapClient(desk).one(Opcode.CHANGE_VB_FILTER, key=b"me", value=Frame.decode(value.encode()).value).status == 0
    frames = client.read()
    assert tap.Opaque.decode(frames[0]).code == tap.OpaqueCode.COMPLETE_VB_FILTER_CHANGE
    assert [tap.Mutation.decode(frame).key for frame in frames if is_data(frame)] == [b"k2"]
    assert TapClient(desk).one(Opcode.CHANGE_VB_FILTER, key=b"you", value=b"\0\0").status == Status.EINVAL


def test_a_dump_under_a_kept_name_has_everything_and_ends(desk: TapDesk) -> None:
    desk.set(0, "k")
    desk.commit()
    live = TapClient(desk).connect(TapOptions(name=b"me", acknowledge=True))
    live.read()
    for acknowledge in (True, False):
        client = TapClient(desk).connect(TapOptions(name=b"me", dump=True, acknowledge=acknowledge))
        assert [tap.Mutation.decode(frame).key for frame in client.read() if is_data(frame)] == [b"k"]
        assert client.connection.finished
    assert live.connection.is_closed


def test_a_dump_that_was_cut_is_not_gone_on_with(desk: TapDesk) -> None:
    desk.set(0, "k")
    desk.commit()
    options = TapOptions(name=b"me", dump=True, acknowledge=True)
    first = TapClient(desk).connect(options)
    first.turn()
    first.cut()
    assert desk.tap.feeds == {}
    assert [frame for frame in TapClient(desk).connect(options).read() if is_data(frame)]


def test_a_takeover_under_a_kept_name_makes_the_vbucket_pending_first(desk: TapDesk) -> None:
    desk.set(0, "k")
    desk.commit()
    TapClient(desk).connect(TapOptions(name=b"me", acknowledge=True, vbuckets=(0,))).read()
    takeover = TapOptions(name=b"me", acknowledge=True, vbuckets=(0,), takeover=True)
    frames = TapClient(desk).connect(takeover).read()
    states = [tap.VbucketSet.decode(frame).state for frame in frames if frame.opcode == Opcode.TAP_VBUCKET_SET]
    assert states == [State.PENDING, State.ACTIVE]


def test_a_takeover_that_was_cut_goes_on_where_it_was(desk: TapDesk) -> None:
    desk.set(0, "k")
    desk.commit()
    takeover = TapOptions(name=b"me", acknowledge=True, vbuckets=(0,), takeover=True)
    first = TapClient(desk).connect(takeover)
    while desk.bucket.state(0) is not State.DEAD:
        for frame in first.turn():
            first.give(response(frame).encode())
    first.cut()
    frames = TapClient(desk).connect(takeover).read()
    states = [tap.VbucketSet.decode(frame).state for frame in frames if frame.opcode == Opcode.TAP_VBUCKET_SET]
    assert states == [State.ACTIVE]


def test_who_wants_changes_only_from_now_on_still_gets_those_it_has_not_heard_of(desk: TapDesk) -> None:
    desk.set(0, "k")
    desk.commit()
    first = TapClient(desk).connect(TapOptions(name=b"me", acknowledge=True, vbuckets=(0,)))
    first.read()
    first.cut()
    desk.set(0, "later")
    desk.commit()
    again = TapClient(desk).connect(TapOptions(name=b"me", acknowledge=True, vbuckets=(0,), since=FUTURE)).read()
    assert [tap.Mutation.decode(frame).key for frame in again if is_data(frame)] == [b"later"]
