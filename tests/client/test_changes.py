"""Events one at a time say the same as the rows they are made from."""

from hypothesis import given
from hypothesis import strategies as st

from headwater.client.changes import ChangeFeed, Deletion, Expiration, Mutation, SnapshotMarker, StreamEnd
from headwater.client.drainer import Handout
from headwater.client.progress import Part, Positions
from headwater.kernels.columns import Arena
from headwater.protocol.dcp.drain import Drain
from headwater.protocol.dcp.position import ENDLESS, Position
from headwater.wire import dcp, xattr
from headwater.wire.datatype import Datatype

LOG = ((0xB, 30), (0xA, 0))


def a_drain(start: Position) -> Drain:
    drain = Drain(
        Arena(value_bytes=4096),
        "node:1",
        window_bytes=0,
        silence_seconds=None,
        answer_seconds=1.0,
        now=0.0,
        markers=True,
    )
    drain.request(start, ENDLESS, 0.0)
    drain.receive(dcp.StreamResponse(opaque=1, failover_log=list(LOG)).encode(), 0.0)
    return drain


def handout(drain: Drain) -> Handout:
    part = Part(drain.table.rows[:1, 0] * 0, drain.table.rows[[0]])
    events, drain.events = drain.events, []
    return Handout(drain.arena.batch(), events, Positions({}, [part], {0: LOG}))


@st.composite
def talks(draw: st.DrawFn) -> tuple[Position, list[bytes]]:
    """Where to begin; markers, some of which replace the one before too early; and changes inside of them."""
    begin = draw(st.sampled_from([Position.beginning(0), Position(0, 0xA, 4, 2, 6), Position(0, 0xA, 25, 25, 25)]))
    frames: list[bytes] = []
    last = begin.seqno
    for _ in range(draw(st.integers(1, 8))):
        start = draw(st.integers(max(0, last - 2), last + 3))
        end = max(last + 1, start) + draw(st.integers(0, 6))
        frames.append(dcp.SnapshotMarker(vbucket=0, opaque=1, start_seqno=start, end_seqno=end, flags=1).encode())
        for seqno in draw(st.lists(st.integers(max(last + 1, start), end), unique=True, max_size=4)):
            if seqno > last:
                last = seqno
                frames.append(dcp.Mutation(vbucket=0, opaque=1, by_seqno=seqno, rev_seqno=1, key=b"k").encode())
    return begin, frames


@given(talks())
def test_the_position_after_each_event_is_the_one_the_kernels_keep(talk: tuple[Position, list[bytes]]):
    begin, frames = talk
    drain, feed = a_drain(begin), ChangeFeed({0: begin})
    list(feed.take(handout(drain)))
    for frame in frames:
        drain.receive(frame, 0.0)
        list(feed.take(handout(drain)))
        assert feed.positions() == {0: drain.position(0)}


def test_each_kind_of_change_becomes_its_own_kind_of_event():
    drain = a_drain(Position.beginning(0))
    place = {"vbucket": 0, "opaque": 1, "rev_seqno": 2, "cas": 3, "key": b"k"}
    talk = (
        dcp.SnapshotMarker(vbucket=0, opaque=1, start_seqno=0, end_seqno=4, flags=2),
        dcp.Mutation(by_seqno=1, flags=5, expiration=6, datatype=1, value=b"v", **place),
        dcp.Deletion(by_seqno=2, **place),
        dcp.DeletionV2(by_seqno=3, delete_time=7, **place),
        dcp.Expiration(by_seqno=4, delete_time=8, **place),
        dcp.StreamEnd(vbucket=0, opaque=1, status=0),
    )
    drain.receive(b"".join(message.encode() for message in talk), 0.0)
    assert list(ChangeFeed({0: Position.beginning(0)}).take(handout(drain))) == [
        SnapshotMarker(0, 0, 4, 2),
        Mutation(0, 1, 2, 3, 1, b"k", b"v", 0, 4, 5, 6),
        Deletion(0, 2, 2, 3, 0, b"k", b"", 0, 4, 0),
        Deletion(0, 3, 2, 3, 0, b"k", b"", 0, 4, 7),
        Expiration(0, 4, 2, 3, 0, b"k", b"", 0, 4, 8),
        StreamEnd(0, 0),
    ]


def test_only_what_is_on_its_way_to_the_caller_is_taken_back():
    begin = Position.beginning(0)
    drain, feed = a_drain(begin), ChangeFeed({0: begin})
    marker = dcp.SnapshotMarker(vbucket=0, opaque=1, start_seqno=0, end_seqno=9, flags=1)
    changes = [dcp.Mutation(vbucket=0, opaque=1, by_seqno=seqno, rev_seqno=1, key=b"k") for seqno in (3, 5)]
    drain.receive(b"".join(each.encode() for each in (marker, *changes)), 0.0)
    _, first, _ = (feed.positions()[0].seqno for _ in feed.take(handout(drain)))
    assert (first, feed.take_back(), feed.positions()[0].seqno, feed.take_back()) == (3, True, 3, False)

    drain.receive(dcp.SeqnoAdvanced(vbucket=0, opaque=1, seqno=9).encode(), 0.0)
    assert (list(feed.take(handout(drain))), feed.take_back(), feed.positions()[0].seqno) == ([], False, 9)


def test_before_anything_was_taken_the_positions_are_those_given():
    start = Position(0, 0xDEAD, 4, 2, 6)
    assert ChangeFeed({0: start}).positions() == {0: start}


def test_a_mutation_reads_as_a_document_does_without_the_attributes_in_front():
    value = xattr.join({"_sync": b"1"}, b'{"a": 1}')
    change = Mutation(0, 1, 1, 1, Datatype.XATTR | Datatype.JSON, b"k", value, 0, 1, 0, 0)
    assert (change.json(), change.text, change.body) == ({"a": 1}, '{"a": 1}', b'{"a": 1}')
    without_value = Mutation(0, 1, 1, 1, Datatype.XATTR, b"k", b"", 0, 1, 0, 0)
    assert without_value.text == ""
    assert Mutation(0, 1, 1, 1, 0, b"k", b"plain", 0, 1, 0, 0).text == "plain"
