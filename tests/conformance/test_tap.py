"""tap.md on a live socket: what no other test asks a real node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from struct import pack

import pytest

from headwater.protocol.tap.options import TapOptions
from headwater.testing import Node, node
from headwater.wire import dcp, tap
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.tap import MessageFlag, OpaqueCode
from headwater.wire.vbucket import State
from tests.conformance.seeds import Line, put, set_state

REQUEST = 0x80
VBUCKETS = 64
FUTURE = (1 << 64) - 1
TAKEN = count(4)
DATA = (Opcode.TAP_MUTATION, Opcode.TAP_DELETE)


@pytest.fixture(scope="module")
def live() -> Iterator[Node]:
    with node(vbuckets=VBUCKETS) as made:
        yield made


@pytest.fixture
def vb() -> int:
    """An active vbucket that no other test has touched."""
    return next(TAKEN)


def connect(line: Line, options: TapOptions) -> None:
    line.socket.sendall(options.encode())


def heard(line: Line) -> Frame:
    """The next message; what asks is answered."""
    frame = line.frame()
    if frame.extras and int.from_bytes(frame.extras[2:4]) & MessageFlag.ACK:
        line.send(Frame(0x81, frame.opcode, opaque=frame.opaque))
    return frame


def until_it_hangs_up(line: Line) -> list[Frame]:
    found = []
    try:
        while True:
            found.append(heard(line))
    except ConnectionError:
        return found


def keys(frames: Iterable[Frame]) -> list[bytes]:
    return [tap.Mutation.decode(frame).key for frame in frames if frame.opcode in DATA]


def next_keys(line: Line, wanted: int) -> list[bytes]:
    """The keys of the next changes."""
    found: list[bytes] = []
    while len(found) < wanted:
        found += keys([heard(line)])
    return found


# --------------------------------------------------------------------------- 1: TAP_CONNECT


def test_a_list_of_no_vbuckets_means_all_of_them(live: Node, vb: int) -> None:
    other = next(TAKEN)
    put(live, vb, b"here")
    put(live, other, b"there")
    with Line(live.port) as line:
        connect(line, TapOptions(dump=True, vbuckets=()))
        assert {b"here", b"there"} <= set(keys(until_it_hangs_up(line)))
    with Line(live.port) as line:
        connect(line, TapOptions(dump=True, vbuckets=(vb,)))
        assert keys(until_it_hangs_up(line)) == [b"here"]


def test_without_flags_everything_comes_and_then_what_changes(live: Node, vb: int) -> None:
    put(live, vb, b"before")
    with Line(live.port) as line:
        line.socket.sendall(Frame(REQUEST, Opcode.TAP_CONNECT).encode())
        while next_keys(line, 1) != [b"before"]:
            pass
        put(live, vb, b"after")
        while next_keys(line, 1) != [b"after"]:
            pass


def test_who_gives_no_name_is_given_one(live: Node, vb: int) -> None:
    with Line(live.port) as line, Line(live.port) as other:
        connect(line, TapOptions(since=FUTURE, vbuckets=(vb,)))
        put(live, vb, b"k")
        assert next_keys(line, 1) == [b"k"]  # by now it is connected
        assert any(name.startswith(b"eq_tapq:anon_") for name in stats(other, b"tap"))


def stats(line: Line, group: bytes) -> dict[bytes, bytes]:
    line.send(Frame(REQUEST, Opcode.STAT, group))
    found = {}
    while (answer := line.frame()).key:
        found[answer.key] = answer.value
    return found


def test_a_name_is_not_kept_unless_the_node_was_told_to(live: Node, vb: int) -> None:
    put(live, vb, b"k")
    options = TapOptions(name=b"fresh", acknowledge=True, vbuckets=(vb,))
    for _ in range(2):
        with Line(live.port) as line:
            connect(line, options)
            assert next_keys(line, 1) == [b"k"]


@pytest.mark.parametrize(
    ("name", "value"),
    [(b"nobody", pack(">HHQ", 1, 0, 0)), (b"filtered", pack(">H", 0)), (b"filtered", pack(">HH", 1, 0))],
    ids=["unknown name", "no vbuckets", "short"],
)
def test_a_filter_that_makes_no_sense_is_refused(live: Node, vb: int, name: bytes, value: bytes) -> None:
    put(live, vb, b"k")
    with Line(live.port) as line, Line(live.port) as other:
        connect(line, TapOptions(name=b"filtered", vbuckets=(vb,)))
        assert next_keys(line, 1) == [b"k"]
        assert other.ask(Frame(REQUEST, Opcode.CHANGE_VB_FILTER, name, value=value)).status == Status.EINVAL


def test_every_statistic_of_the_specification_is_told(live: Node, vb: int) -> None:
    put(live, vb, b"k")
    with Line(live.port) as line, Line(live.port) as other:
        connect(line, TapOptions(name=b"counted", acknowledge=True, vbuckets=(vb,)))
        assert next_keys(line, 1) == [b"k"]
        told = stats(other, b"tap")
    for key in (
        *("type", "created", "qlen", "rec_fetched", "idle", "total_backlog_size", "ack_seqno", "recv_ack_seqno"),
        *("seqno_ack_requested", "ack_log_size", "ack_window_full", "flags", "pending_backfill"),
        *("backfill_completed", "backfill_age", "vb_filter", "suspended", "num_tap_nack", "num_unknown", "reconnects"),
    ):
        assert b"eq_tapq:counted:" + key.encode() in told


# --------------------------------------------------------------------------- 3, 4: the node as consumer


@pytest.mark.parametrize("code", [*OpaqueCode, 4711])
def test_every_code_of_opaque_is_acknowledged_also_one_that_is_not_known(live: Node, vb: int, code: int) -> None:
    set_state(live, vb, State.REPLICA)
    with Line(live.port) as line:
        answer = line.ask(
            tap.Opaque(vbucket=vb, opaque=17, flags=int(MessageFlag.ACK), engine_specific=pack(">I", code))
        )
        assert (answer.magic, answer.opcode, answer.status, answer.opaque) == (0x81, Opcode.TAP_OPAQUE, 0, 17)


def mutation(vb: int, key: bytes, *, acknowledge: bool = True) -> tap.Mutation:
    flags = MessageFlag.NETWORK_BYTE_ORDER | (MessageFlag.ACK if acknowledge else MessageFlag(0))
    return tap.Mutation(vbucket=vb, opaque=9, cas=7, key=key, value=b"v", flags=int(flags))


def test_what_was_acknowledged_is_on_disk() -> None:
    with node(vbuckets=2) as made:
        set_state(made, 0, State.REPLICA)
        with Line(made.port) as line:
            line.done(mutation(0, b"k"))
        made.kill()
        made.restart()
        with Line(made.port) as line:
            assert line.ask(Frame(REQUEST, Opcode.GET_REPLICA, b"k")).value == b"v"


def test_what_comes_by_tap_gets_seqnos_in_its_order(live: Node, vb: int) -> None:
    set_state(live, vb, State.REPLICA)
    with Line(live.port) as line:
        line.send(tap.Opaque(vbucket=vb, opaque=1, engine_specific=pack(">I", OpaqueCode.INITIAL_VBUCKET_STREAM)))
        for key in (b"a", b"b", b"a"):
            line.send(mutation(vb, key, acknowledge=False))
        line.done(mutation(vb, b"c"))
    set_state(live, vb, State.ACTIVE)
    with Line(live.port) as line:
        line.done(dcp.Open(key=b"what came by tap", flags=1))
        line.done(
            dcp.StreamRequest(
                vbucket=vb, start_seqno=0, end_seqno=4, vb_uuid=0, snap_start_seqno=0, snap_end_seqno=0, flags=0
            )
        )
        assert line.frame().opcode == Opcode.DCP_SNAPSHOT_MARKER
        seen = [line.frame() for _ in range(3)]
    assert [(frame.key, int.from_bytes(frame.extras[:8])) for frame in seen] == [(b"b", 2), (b"a", 3), (b"c", 4)]


def test_a_state_that_comes_by_tap_makes_the_vbucket() -> None:
    with node(vbuckets=4, vbucket_state="none") as made, Line(made.port) as line:
        for state in (State.PENDING, State.ACTIVE):
            asked = tap.VbucketSet(vbucket=3, opaque=5, flags=int(MessageFlag.ACK), engine_specific=pack(">I", state))
            answer = line.ask(asked)
            assert (answer.opcode, answer.status, answer.opaque) == (Opcode.TAP_VBUCKET_SET, 0, 5)
            assert line.ask(Frame(REQUEST, Opcode.GET_VBUCKET, vbucket=3)).value == state.to_bytes(4)


def test_an_acknowledgement_may_name_the_key(live: Node, vb: int) -> None:
    """As spymemcached's do (interop 4.9)."""
    put(live, vb, b"k")
    with Line(live.port) as line:
        connect(line, TapOptions(dump=True, acknowledge=True, vbuckets=(vb,)))
        found = []
        try:
            while True:
                found.append(line.frame())
                if int.from_bytes(found[-1].extras[2:4]) & MessageFlag.ACK:
                    line.send(Frame(0x81, found[-1].opcode, b"n" * 36, opaque=found[-1].opaque))
        except ConnectionError:
            pass
    assert keys(found) == [b"k"]


# --------------------------------------------------------------------------- 5: phases


def test_a_takeover_without_acknowledgements_is_over_when_the_node_hangs_up(live: Node, vb: int) -> None:
    put(live, vb, b"k")
    with Line(live.port) as line:
        connect(line, TapOptions(vbuckets=(vb,), takeover=True))
        frames = until_it_hangs_up(line)
    states = [tap.VbucketSet.decode(frame).state for frame in frames if frame.opcode == Opcode.TAP_VBUCKET_SET]
    assert (states, keys(frames)) == ([State.PENDING, State.ACTIVE], [b"k"])
    with Line(live.port) as line:
        assert line.ask(Frame(REQUEST, Opcode.GET_VBUCKET, vbucket=vb)).value == State.DEAD.to_bytes(4)


def test_a_key_comes_once_in_a_checkpoint(live: Node, vb: int) -> None:
    with Line(live.port) as line:
        connect(line, TapOptions(acknowledge=True, vbuckets=(vb,), checkpoints={}))
        put(live, vb, *[b"k"] * 20, b"last")
        inside: list[bytes] = []
        while b"last" not in inside:
            frame = heard(line)
            if frame.opcode == Opcode.TAP_CHECKPOINT_START:
                inside = []
            inside += keys([frame])
            assert len(inside) == len(set(inside))


@pytest.mark.parametrize(
    ("sections", "status"),
    [
        *(({"extras": b"\1" * size}, Status.EINVAL) for size in (1, 2, 3, 5, 7, 12)),
        ({"value": b"v"}, Status.EINVAL),
        ({"extras": pack(">I", 4), "value": pack(">HH", 3, 1)}, Status.NOT_SUPPORTED),
        ({"extras": pack(">I", 1), "value": bytes(4)}, None),
    ],
    ids=str,
)
def test_a_connect_that_is_malformed_is_answered_and_hung_up_on(
    live: Node, sections: dict[str, bytes], status: Status | None
) -> None:
    with Line(live.port) as line:
        line.send(Frame(REQUEST, Opcode.TAP_CONNECT, b"node1", **sections))  # type: ignore[arg-type]
        assert [frame.status for frame in until_it_hangs_up(line)] == ([] if status is None else [status])
