"""dcp.md and failover.md on a live socket: what no other test asks a real node."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from struct import pack

import pytest

from headwater.node.storage.records import VBucketRecord
from headwater.node.storage.store import Store
from headwater.testing import Node, node
from headwater.wire import dcp, upr
from headwater.wire.header import Frame
from headwater.wire.layout import Request
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.conformance.seeds import Line, add_stream, become_dcp, put, read_log, set_state

REQUEST = 0x80
VBUCKETS = 64
ENDLESS = (1 << 64) - 1
NAMES = count()
TAKEN = count(8)


@pytest.fixture(scope="module")
def live() -> Iterator[Node]:
    with node(vbuckets=VBUCKETS) as made:
        yield made


@pytest.fixture
def vb(live: Node) -> int:
    """An active vbucket that no other test has touched."""
    return next(TAKEN)


def open_producer(line: Line, flags: int = 1, **controls: str) -> None:
    become_dcp(line)
    line.done(dcp.Open(key=b"reader %d" % next(NAMES), flags=flags))
    for key, value in controls.items():
        line.done(Frame(REQUEST, Opcode.DCP_CONTROL, key.encode(), value=value.encode()))


def open_consumer(line: Line) -> None:
    """The node is a consumer, we are its mover and producer; its first stream is refused."""
    become_dcp(line)
    line.done(dcp.Open(key=b"producer %d" % next(NAMES), flags=0))


def asks(
    vb: int, start: int = 0, end: int = ENDLESS, *, uuid: int = 0, flags: int = 0, **numbers: int
) -> dcp.StreamRequest:
    return dcp.StreamRequest(
        vbucket=vb,
        opaque=numbers.get("opaque", 7),
        flags=flags,
        start_seqno=start,
        end_seqno=end,
        vb_uuid=uuid,
        snap_start_seqno=numbers.get("snap_start", start),
        snap_end_seqno=numbers.get("snap_end", start),
    )


def marked(frame: Frame) -> tuple[int, int, int]:
    """(start, end, flags) of a marker."""
    told = dcp.SnapshotMarker.decode(frame)
    return told.start_seqno, told.end_seqno, int(told.flags)


def log_of(live: Node, vb: int) -> list[tuple[int, int]]:
    with Line(live.port) as line:
        return read_log(line.ask(Frame(REQUEST, Opcode.GET_FAILOVER_LOG, vbucket=vb)).value)


# --------------------------------------------------------------------------- ADD_STREAM


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"extras": b"\0"},
        {"extras": bytes(3)},
        {"extras": bytes(5)},
        {"extras": bytes(8)},
        {"extras": bytes(4), "key": b"k"},
        {"extras": bytes(4), "value": b"v"},
    ],
    ids=str,
)
def test_add_stream_has_4_bytes_of_extras_and_neither_key_nor_value(live: Node, sections: dict[str, bytes]) -> None:
    with Line(live.port) as line:
        open_consumer(line)
        answer = line.ask(Frame(REQUEST, Opcode.DCP_ADD_STREAM, **sections))  # type: ignore[arg-type]
        assert (answer.opcode, answer.status) == (Opcode.DCP_ADD_STREAM, Status.EINVAL)


@pytest.mark.parametrize("vbucket", [0, VBUCKETS, 65535], ids=["active", "not here", "nowhere"])
def test_a_stream_that_the_consumer_itself_refuses_has_no_opaque(live: Node, vbucket: int) -> None:
    with Line(live.port) as line:
        open_consumer(line)
        answer = line.ask(dcp.AddStream(vbucket=vbucket, opaque=5, flags=0))
        assert (answer.status, answer.extras, answer.opaque) == (Status.NOT_MY_VBUCKET, bytes(4), 5)


def test_two_streams_of_a_connection_have_opaques_of_their_own(live: Node, vb: int) -> None:
    other = next(TAKEN)
    for each in (vb, other):
        set_state(live, each, State.REPLICA)
    with Line(live.port) as line:
        first = consuming(line, vb)
        assert add_stream(line, other) != first


def consuming(line: Line, vb: int) -> int:
    """The node consumes the vbucket from us; the opaque of its stream."""
    open_consumer(line)
    line.send(dcp.AddStream(vbucket=vb, opaque=1, flags=0))
    while (frame := line.frame()).opcode == Opcode.DCP_CONTROL:
        line.send(Frame(0x81, frame.opcode, opaque=frame.opaque))
    line.send(Frame(0x81, frame.opcode, value=pack(">QQ", 0xA, 0), opaque=frame.opaque))
    assert line.frame().status == Status.SUCCESS
    return frame.opaque


def test_a_marker_that_comes_in_the_middle_of_a_snapshot_takes_its_place(live: Node, vb: int) -> None:
    set_state(live, vb, State.REPLICA)
    with Line(live.port) as line:
        opaque = consuming(line, vb)
        line.send(
            dcp.SnapshotMarker(vbucket=vb, opaque=opaque, start_seqno=0, end_seqno=9, flags=1),
            dcp.Mutation(vbucket=vb, opaque=opaque, cas=7, key=b"k", value=b"v", by_seqno=2, rev_seqno=1),
            dcp.SnapshotMarker(vbucket=vb, opaque=opaque, start_seqno=3, end_seqno=20, flags=1),
            dcp.Mutation(vbucket=vb, opaque=opaque, cas=7, key=b"l", value=b"v", by_seqno=20, rev_seqno=1),
        )
        line.done(Frame(REQUEST, Opcode.NOOP))  # nothing was complained of
        late = dcp.Mutation(vbucket=vb, opaque=opaque, cas=7, key=b"m", value=b"v", by_seqno=21, rev_seqno=1)
        assert line.ask(late).status == Status.ERANGE


@pytest.mark.parametrize("reason", [1, 4, 99])
def test_a_stream_is_over_whatever_the_reason(live: Node, vb: int, reason: int) -> None:
    set_state(live, vb, State.REPLICA)
    with Line(live.port) as line:
        opaque = consuming(line, vb)
        assert line.ask(dcp.AddStream(vbucket=vb, opaque=9, flags=0)).status == Status.KEY_EEXISTS
        line.send(dcp.StreamEnd(vbucket=vb, opaque=opaque, status=reason))
        assert line.ask(dcp.AddStream(vbucket=vb, opaque=9, flags=0)).opcode == Opcode.DCP_STREAM_REQ


# --------------------------------------------------------------------------- STREAM_REQ

NOT_HERE, LIVE, NOOPS_WANTED = VBUCKETS, 0, 4


@pytest.mark.parametrize(
    ("flags", "wrong", "status"),
    [
        (1, {"flags": 0x8, "vb": NOT_HERE, "start": 9, "end": 5}, Status.EINVAL),
        (1 | NOOPS_WANTED, {"vb": NOT_HERE, "start": 9, "end": 5}, Status.NOT_MY_VBUCKET),
        (1 | NOOPS_WANTED, {"start": 9, "end": 5}, Status.NOT_SUPPORTED),
        (1, {"start": 9, "end": 5, "snap_end": 8}, Status.ERANGE),
        (1, {"start": 9, "snap_start": 10, "snap_end": 10}, Status.ERANGE),
        (1, {"start": 9, "uuid": 0xBAD}, Status.KEY_EEXISTS),
        (1, {"vb": 1, "start": 9, "uuid": 0xBAD}, Status.ROLLBACK),
    ],
    ids=lambda value: value.name if isinstance(value, Status) else "",
)
def test_of_several_faults_of_a_request_the_first_is_told(
    live: Node, flags: int, wrong: dict[str, int], status: Status
) -> None:
    """Each request is wrong in the way it is refused for, and in others that come later in the order of dcp 2.4."""
    with Line(live.port) as line:
        line.done(Frame(REQUEST, Opcode.HELLO, value=pack(">HH", 0x06, 0x07)))
        line.done(dcp.Open(key=b"wrong %d" % next(NAMES), flags=flags))
        if not flags & NOOPS_WANTED:
            line.done(asks(LIVE))
        request = {"vb": LIVE, "opaque": 9} | wrong
        assert line.ask(asks(**request)).status == status  # type: ignore[arg-type]


def test_a_request_that_was_refused_leaves_its_opaque_free(live: Node, vb: int) -> None:
    with Line(live.port) as line:
        open_producer(line)
        assert line.ask(asks(vb, 9, 5)).status == Status.ERANGE
        assert line.ask(asks(vb)).status == Status.SUCCESS


def test_whoever_asks_for_a_cache_transfer_gets_an_ordinary_stream(live: Node, vb: int) -> None:
    put(live, vb, b"k")
    with Line(live.port) as line:
        open_producer(line)
        refused = line.ask(Frame(REQUEST, Opcode.DCP_CONTROL, b"cache_transfer", value=b"true"))
        assert refused.status == Status.NOT_SUPPORTED
        line.done(asks(vb, flags=0x110))
        assert [line.frame().opcode, line.frame().opcode] == [Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_MUTATION]


# --------------------------------------------------------------------------- what a producer sends


def test_snapshots_say_where_they_come_from(live: Node, vb: int) -> None:
    """Backfill 0x06, the first from memory behind it 0x05, then 0x01 (dcp 8.2)."""
    put(live, vb, b"a", b"b")
    with Line(live.port) as line:
        open_producer(line)
        line.done(asks(vb))
        seen = [marked(line.frame()), line.frame().key, line.frame().key]
        for key in (b"c", b"d"):
            put(live, vb, key)
            seen += [marked(line.frame()), line.frame().key]
    assert seen == [(0, 2, 0x06), b"a", b"b", (2, 3, 0x05), b"c", (3, 4, 0x01), b"d"]


def test_two_connections_stream_one_vbucket_each_for_itself(live: Node, vb: int) -> None:
    put(live, vb, b"a")
    with Line(live.port) as one, Line(live.port) as other:
        for line, start in ((one, 0), (other, 1)):
            open_producer(line)
            uuid = log_of(live, vb)[0][0]
            line.done(asks(vb, start, uuid=uuid))
        assert (marked(one.frame())[1], one.frame().key) == (1, b"a")
        one.done(dcp.CloseStream(vbucket=vb, opaque=3))
        put(live, vb, b"b")
        assert (marked(other.frame())[1], other.frame().key) == (2, b"b")


def test_no_ops_come_through_a_window_that_is_full(live: Node, vb: int) -> None:
    put(live, vb, b"a", b"b")
    with Line(live.port) as line:
        open_producer(line, enable_noop="true", set_noop_interval="0.1", connection_buffer_size="1")
        line.done(asks(vb))
        assert line.frame().opcode == Opcode.DCP_SNAPSHOT_MARKER  # the one message that may overshoot
        for number in (10_000_001, 10_000_002):
            noop = line.frame()
            assert (noop.opcode, noop.opaque, len(noop)) == (Opcode.DCP_NOOP, number, 24)
            line.send(Frame(0x81, Opcode.DCP_NOOP, opaque=noop.opaque))


@pytest.mark.parametrize(("window", "waits"), [(26, False), (25, True)])
def test_a_state_takes_25_bytes_of_the_window(live: Node, vb: int, window: int, waits: bool) -> None:
    with Line(live.port) as line:
        open_producer(line, connection_buffer_size=str(window))
        line.done(asks(vb, flags=1))
        told = line.frame()
        assert (told.opcode, told.extras) == (Opcode.DCP_SET_VBUCKET_STATE, bytes([State.PENDING]))
        line.send(Frame(0x81, told.opcode, opaque=told.opaque))
        if waits:
            while line.ask(Frame(REQUEST, Opcode.GET_VBUCKET, vbucket=vb)).value != State.DEAD.to_bytes(4):
                pass
            line.done(Frame(REQUEST, Opcode.NOOP))  # what could have been sent would have come before this
            line.send(dcp.BufferAck(acked_bytes=1))
        assert (line.frame().extras, told.opaque) == (bytes([State.ACTIVE]), 7)


# --------------------------------------------------------------------------- failover.md


def test_a_log_keeps_its_25_newest_branches(live: Node, vb: int) -> None:
    for _ in range(30):
        set_state(live, vb, State.REPLICA)
        set_state(live, vb, State.ACTIVE)
    assert len(log_of(live, vb)) == 25


P, A, B = 0, 0xA, 0xB
UPR = {"one branch": 1, "two branches": 2}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with the tables of failover.md: 2.2's producer, and those of the UPR vectors at high seqno 300."""
    folder = tmp_path_factory.mktemp("tables") / "data"
    store = Store.open(folder, vbuckets=4)
    for vb, high, table in (
        (P, 1200, ((B, 900), (A, 0))),
        (UPR["one branch"], 300, ((A, 0),)),
        (UPR["two branches"], 300, ((B, 200), (A, 0))),
    ):
        store.staging.mutation(vb, b"key", b"value", seqno=high, cas=1, rev_seqno=1)
        store.staging.record(vb, VBucketRecord(state=State.ACTIVE, failover=table))
    store.close(clean=True)
    running = Node(folder, {"vbuckets": 4})
    running.start()
    yield running
    running.kill()


def test_a_consumer_of_the_old_branch_goes_back_to_where_the_new_one_began(prepared: Node) -> None:
    """The worked example of failover 2.2."""
    with Line(prepared.port) as line:
        open_producer(line)
        answer = line.ask(asks(P, 1000, uuid=A))
        assert (answer.status, answer.value) == (Status.ROLLBACK, pack(">Q", 900))
        answer = line.ask(asks(P, 900, uuid=A))
        assert (answer.status, read_log(answer.value)) == (Status.SUCCESS, [(B, 900), (A, 0)])
        assert (marked(line.frame())[:2], line.frame().extras[:8]) == ((900, 1200), pack(">Q", 1200))
    with Line(prepared.port) as line:
        open_producer(line)
        line.done(asks(P, 1200, uuid=B))


@pytest.mark.parametrize(
    ("table", "uuid", "high_seqno", "start", "expected"),
    [
        pytest.param("one branch", 0, 0, 0, "OK", id="U01"),
        pytest.param("one branch", A, 0, 300, "OK", id="U02"),
        pytest.param("one branch", A, 0, 301, "ROLLBACK 300", id="U03"),
        pytest.param("two branches", A, 0, 200, "OK", id="U04"),
        pytest.param("two branches", A, 0, 250, "ROLLBACK 200", id="U05"),
        pytest.param("two branches", B, 200, 250, "OK", id="U06"),
        pytest.param("two branches", B, 0, 250, "ROLLBACK 0", id="U07"),
        pytest.param("two branches", 0xABCD, 0, 10, "ROLLBACK 0", id="U08"),
    ],
)
def test_on_the_wire_the_upr_decision_of(
    prepared: Node, table: str, uuid: int, high_seqno: int, start: int, expected: str
) -> None:
    """As failover 2.1 has it; KEY_ENOENT is told as a rollback to 0 (erratum U4)."""
    with Line(prepared.port) as line:
        line.done(dcp.Open(key=b"upr %d" % next(NAMES), flags=1))
        answer = line.ask(
            upr.StreamRequest(
                vbucket=UPR[table], start_seqno=start, end_seqno=ENDLESS, vb_uuid=uuid, high_seqno=high_seqno
            )
        )
    said = f"ROLLBACK {int.from_bytes(answer.value)}" if answer.status == Status.ROLLBACK else "OK"
    assert said == expected and answer.status in (Status.SUCCESS, Status.ROLLBACK)


def test_a_replica_that_is_promoted_in_a_snapshot_sends_back_whoever_was_in_it_too(live: Node, vb: int) -> None:
    """The failover of failover 5: [1, 100] whole, 101 to 103 of [101, 110], then active."""
    set_state(live, vb, State.REPLICA)
    with Line(live.port) as line:
        opaque = consuming(line, vb)
        for start, last, end in ((0, 100, 100), (101, 103, 110)):
            line.send(dcp.SnapshotMarker(vbucket=vb, opaque=opaque, start_seqno=start, end_seqno=end, flags=1))
            for seqno in range(max(start, 1), last + 1):
                change = dcp.Mutation(vbucket=vb, opaque=opaque, cas=7, key=b"%d" % seqno, by_seqno=seqno, rev_seqno=1)
                line.send(change)
        line.done(Frame(REQUEST, Opcode.NOOP))
        set_state(live, vb, State.ACTIVE)
    branch = log_of(live, vb)[0]
    assert branch[1] == 100 and log_of(live, vb)[1:] == [(A, 0)]
    with Line(live.port) as line:
        open_producer(line)
        answer = line.ask(asks(vb, 105, uuid=A, snap_start=101, snap_end=110))
        assert (answer.status, answer.value) == (Status.ROLLBACK, pack(">Q", 100))
        line.done(asks(vb, 100, uuid=A))
        assert marked(line.frame())[1] == 103
        assert [line.frame().key for _ in range(3)] == [b"101", b"102", b"103"]


def test_a_question_about_a_log_has_no_sections_and_is_answered_with_a_value_alone(live: Node, vb: int) -> None:
    with Line(live.port) as line:
        open_producer(line)
        ask = Opcode.DCP_GET_FAILOVER_LOG
        answer = line.ask(Frame(REQUEST, ask, vbucket=vb, opaque=0xDEADBEEF))
        assert (answer.status, answer.extras, answer.key, answer.opaque) == (0, b"", b"", 0xDEADBEEF)
        assert read_log(answer.value) == log_of(live, vb)
        for sections in ({"extras": b"\0"}, {"key": b"k"}, {"value": b"v"}):
            assert line.ask(Frame(REQUEST, ask, vbucket=vb, **sections)).status == Status.EINVAL  # type: ignore[arg-type]
        for gone in (VBUCKETS, 65535):
            assert line.ask(Frame(REQUEST, ask, vbucket=gone)).status == Status.NOT_MY_VBUCKET


# --------------------------------------------------------------------------- directions

TO_A_CONSUMER_ONLY = [dcp.AddStream(flags=0), dcp.Noop(), dcp.StreamEnd(status=0), dcp.SetVbucketState(state=3)]
TO_A_PRODUCER_ONLY = [
    *(asks(0), dcp.GetFailoverLog(), dcp.BufferAck(acked_bytes=1)),
    dcp.Control(key=b"enable_noop", value=b"true"),
]


@pytest.mark.parametrize("message", TO_A_CONSUMER_ONLY, ids=lambda each: type(each).__name__)
def test_a_producer_hangs_up_on_what_only_a_consumer_takes(live: Node, message: Request) -> None:
    with Line(live.port) as line:
        open_producer(line)
        with pytest.raises(ConnectionError):
            line.ask(message)


@pytest.mark.parametrize("message", TO_A_PRODUCER_ONLY, ids=lambda each: type(each).__name__)
def test_a_consumer_hangs_up_on_what_only_a_producer_takes(live: Node, message: Request) -> None:
    with Line(live.port) as line:
        open_consumer(line)
        with pytest.raises(ConnectionError):
            line.ask(message)


def test_a_connection_of_dcp_is_told_what_is_json_without_having_asked(live: Node, vb: int) -> None:
    with Line(live.port) as line:
        line.done(Frame(REQUEST, Opcode.SET, b"json", bytes(8), b'{"a":1}', vbucket=vb))
        assert line.ask(Frame(REQUEST, Opcode.GET, b"json", vbucket=vb)).datatype == 0
        line.done(dcp.Open(key=b"no hello", flags=1))
        line.done(asks(vb))
        assert line.frame().opcode == Opcode.DCP_SNAPSHOT_MARKER
        assert line.frame().datatype == 1


# --------------------------------------------------------------------------- sections


@pytest.mark.parametrize(
    ("opcode", "sections"),
    [
        *((Opcode.DCP_STREAM_REQ, {"extras": bytes(size)}) for size in (0, 4, 8, 39, 41, 47, 49, 64)),
        (Opcode.DCP_STREAM_REQ, {"extras": bytes(48), "key": b"k"}),
        (Opcode.DCP_STREAM_REQ, {"extras": bytes(48), "value": b"v"}),
        (Opcode.DCP_STREAM_REQ, {"extras": bytes(48), "datatype": 1}),
        (Opcode.DCP_STREAM_REQ, {"extras": pack(">I", 0x08) + bytes(44)}),
        (Opcode.DCP_STREAM_REQ, {"extras": pack(">I", 0x200) + bytes(44)}),
        (Opcode.DCP_CLOSE_STREAM, {"extras": b"\0"}),
        (Opcode.DCP_CLOSE_STREAM, {"key": b"k"}),
        (Opcode.DCP_CLOSE_STREAM, {"value": b"v"}),
        (Opcode.DCP_CONTROL, {"key": b"enable_noop"}),
        (Opcode.DCP_CONTROL, {"value": b"true"}),
        (Opcode.DCP_CONTROL, {"key": b"enable_noop", "value": b"true", "extras": b"\0"}),
        (Opcode.DCP_OPEN, {"key": b"again", "extras": bytes(8)}),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value.name,
)
def test_a_request_with_other_sections_is_einval_and_the_connection_goes_on(
    live: Node, vb: int, opcode: Opcode, sections: dict[str, bytes]
) -> None:
    with Line(live.port) as line:
        open_producer(line)
        line.done(asks(vb, opaque=1))
        assert line.ask(Frame(REQUEST, opcode, vbucket=vb, **sections)).status == Status.EINVAL  # type: ignore[arg-type]
        put(live, vb, b"k")
        assert [line.frame().opcode, line.frame().opcode] == [Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_MUTATION]


@pytest.mark.parametrize(
    "sections",
    [
        *({"key": b"n", "extras": bytes(size)} for size in (0, 4, 7, 9)),
        {"extras": bytes(8)},
        {"key": b"n" * 201, "extras": bytes(8)},
        {"key": b"n", "extras": bytes(8), "value": b"v"},
        *({"key": b"n", "extras": pack(">II", 0, flags)} for flags in (0x03, 0x11, 0x49, 0x81, 0x101, 0x200, 0x401)),
    ],
    ids=lambda each: ",".join(f"{name} {value[-8:].hex()}" for name, value in each.items()),
)
def test_an_open_that_is_malformed_opens_nothing(live: Node, sections: dict[str, bytes]) -> None:
    with Line(live.port) as line:
        assert line.ask(Frame(REQUEST, Opcode.DCP_OPEN, **sections)).status == Status.EINVAL  # type: ignore[arg-type]
        assert line.ask(asks(0)).status == Status.EINVAL  # it is no connection of DCP
        line.done(dcp.Open(key=b"n" * 200, flags=1, seqno=77))
        line.done(asks(0))


def test_a_stream_that_is_closed_stops_and_its_end_is_told_if_that_was_asked_for(live: Node, vb: int) -> None:
    with Line(live.port) as line:
        open_producer(line)
        assert line.ask(dcp.CloseStream(vbucket=vb)).status == Status.KEY_ENOENT
        line.done(asks(vb))
        line.done(dcp.CloseStream(vbucket=vb))
        put(live, vb, b"k")
        line.done(Frame(REQUEST, Opcode.DCP_CONTROL, b"send_stream_end_on_client_close_stream", value=b"true"))
        line.done(asks(vb, 1, uuid=log_of(live, vb)[0][0]))
        line.done(dcp.CloseStream(vbucket=vb))
        end = dcp.StreamEnd.decode(line.frame())
        assert (end.opaque, end.status) == (7, 1)


def test_streams_that_begin_and_end_where_they_are_asked_to(live: Node, vb: int) -> None:
    """Flags of dcp 3: from a seqno, to what is on disk, to the latest, from the latest; and no end at all."""
    put(live, vb, *(b"%d" % number for number in range(10)))
    uuid = log_of(live, vb)[0][0]
    for start, end, flags, expected in (
        (4, 7, 0, [b"4", b"5", b"6"]),
        (7, 0, 0x02, [b"7", b"8", b"9"]),
        (7, 0, 0x04, [b"7", b"8", b"9"]),
        (10, 10, 0, []),
    ):
        with Line(live.port) as line:
            open_producer(line)
            line.done(asks(vb, start, end, uuid=uuid, flags=flags))
            frames = []
            while (frame := line.frame()).opcode != Opcode.DCP_STREAM_END:
                frames.append(frame)
            assert frame.extras == bytes(4)
            assert [each.key for each in frames if each.opcode == Opcode.DCP_MUTATION] == expected
    with Line(live.port) as line:
        open_producer(line)
        line.done(asks(vb, flags=0x40))
        put(live, vb, b"after")
        assert (marked(line.frame())[1], line.frame().key) == (11, b"after")
