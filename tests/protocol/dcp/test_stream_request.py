"""STREAM_REQ: each check of dcp 2.4, and that the first that fails is the one that answers."""

import struct

import pytest

from headwater.errors import BadMessage
from headwater.protocol.dcp.controls import ControlSettings, Negotiated
from headwater.protocol.dcp.failover import END_OF_TIME
from headwater.protocol.dcp.stream_request import Accepted, Facts, RequestRefusal, StreamKey, judge, read_stream_request
from headwater.wire.dcp import StreamFlag, StreamRequest
from headwater.wire.header import Frame
from headwater.wire.status import Status
from headwater.wire.vbucket import State

ACTIVE = Facts(State.ACTIVE, high_seqno=300, purge_seqno=0, failover_log=((0xA, 0),))
NEGOTIATED = Negotiated(connection_name="c")
COLLECTIONS = Negotiated(collections=True)
NOOPS = ControlSettings(enable_noop=True)
CAPTURED = bytes.fromhex(
    "805300003000000a00000030d000000a000000000000000000000000000000000000000000000004ffffffffffffffff"
    "00002e35eb0ccad800000000000000020000000000000005"
)


def request(
    start: int = 0,
    end: int = END_OF_TIME,
    uuid: int = 0xA,
    snapshot: tuple[int, int] | None = None,
    flags: int = 0,
    value: bytes = b"",
    datatype: int = 0,
) -> StreamRequest:
    snap_start, snap_end = snapshot if snapshot is not None else (start, start)
    return StreamRequest(
        vbucket=7,
        opaque=9,
        flags=flags,
        start_seqno=start,
        end_seqno=end,
        vb_uuid=uuid,
        snap_start_seqno=snap_start,
        snap_end_seqno=snap_end,
        value=value,
        datatype=datatype,
    )


def verdict(
    asked: StreamRequest,
    facts: Facts | None = ACTIVE,
    *,
    negotiated: Negotiated = NEGOTIATED,
    settings: ControlSettings | None = None,
    live: set[StreamKey] | None = None,
) -> Accepted | RequestRefusal:
    return judge(asked, facts, negotiated=negotiated, settings=settings or ControlSettings(), live=live or set())


def status(*args: object, **kwargs: object) -> Status:
    answer = verdict(*args, **kwargs)  # type: ignore[arg-type]
    return answer.status if isinstance(answer, RequestRefusal) else Status.SUCCESS


def test_the_request_of_a_real_client_that_resumes_inside_a_snapshot() -> None:
    asked = read_stream_request(Frame.decode(CAPTURED), collections=False)
    assert (asked.vbucket, asked.opaque, asked.start_seqno, asked.vb_uuid) == (10, 0xD000000A, 4, 0x2E35EB0CCAD8)
    assert (asked.end_seqno, asked.snap_start_seqno, asked.snap_end_seqno) == (END_OF_TIME, 2, 5)


@pytest.mark.parametrize("size", [0, 8, 40, 47, 49, 56])
def test_1_extras_are_48_bytes(size: int) -> None:
    with pytest.raises(BadMessage):
        read_stream_request(Frame(0x80, 0x53, extras=bytes(size)), collections=False)


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        (Frame(0x80, 0x53, b"key", bytes(48)), "key is 3 bytes"),
        (Frame(0x80, 0x53, extras=bytes(48), value=b"{}"), "needs Collections"),
        (Frame(0x80, 0x53, extras=struct.pack(">I", 0x08) + bytes(44)), "0x8 are unknown"),
        (Frame(0x80, 0x53, extras=struct.pack(">I", 0x200) + bytes(44)), "0x200 are unknown"),
        (Frame(0x80, 0x53, extras=struct.pack(">I", 0x100) + bytes(44)), "0x100 needs"),
    ],
)
def test_1_malformed_requests(frame: Frame, problem: str) -> None:
    with pytest.raises(BadMessage, match=problem):
        read_stream_request(frame, collections=False)


@pytest.mark.parametrize(
    ("value", "answered"),
    [
        (b'{"sid":7}', Status.DCP_STREAMID_INVALID),
        (b'{"sid":"x","uid":"0"}', Status.DCP_STREAMID_INVALID),
        (b'{"uid":"0"}', Status.EINVAL),
        (b'["sid"]', Status.EINVAL),
        (b'{"sid":', Status.EINVAL),
        (b"[" * 100_000, Status.EINVAL),
    ],
)
def test_1_without_collections_a_value_is_refused_and_a_stream_id_by_name(value: bytes, answered: Status) -> None:
    with pytest.raises(BadMessage) as refused:
        read_stream_request(Frame(0x80, 0x53, extras=bytes(48), value=value), collections=False)
    assert refused.value.status is answered


def test_3_a_vbucket_that_is_not_here() -> None:
    assert status(request(start=9, end=5), None) is Status.NOT_MY_VBUCKET


@pytest.mark.parametrize(
    ("state", "flags", "expected"),
    [
        (State.ACTIVE, 0, Status.SUCCESS),
        (State.REPLICA, 0, Status.SUCCESS),
        (State.PENDING, 0, Status.NOT_MY_VBUCKET),
        (State.DEAD, 0, Status.NOT_MY_VBUCKET),
        (State.REPLICA, StreamFlag.ACTIVE_VB_ONLY, Status.NOT_MY_VBUCKET),
        (State.ACTIVE, StreamFlag.ACTIVE_VB_ONLY, Status.SUCCESS),
    ],
)
def test_4_states_that_are_streamed(state: State, flags: int, expected: Status) -> None:
    assert status(request(flags=flags), Facts(state, 300, 0, ((0xA, 0),))) is expected


def test_4_a_vbucket_behind_the_fence_asks_to_come_again() -> None:
    fenced = ACTIVE._replace(is_fenced=True)
    assert status(request(start=9, end=5), fenced) is Status.ETMPFAIL
    assert status(request(), fenced._replace(state=State.DEAD)) is Status.NOT_MY_VBUCKET


@pytest.mark.parametrize("uuid", [0, 0xA])
def test_5_from_latest_begins_at_the_high_seqno(uuid: int) -> None:
    answer = verdict(request(start=5, snapshot=(99, 98), uuid=uuid, flags=StreamFlag.FROM_LATEST))
    assert isinstance(answer, Accepted)
    assert (answer.start_seqno, answer.snap_start_seqno, answer.end_seqno) == (300, 300, END_OF_TIME)


def test_5_from_latest_under_an_unknown_uuid_rolls_back() -> None:
    assert status(request(uuid=0xBAD, flags=StreamFlag.FROM_LATEST)) is Status.ROLLBACK


@pytest.mark.parametrize("negotiated", [Negotiated(xattrs=True), Negotiated(collections=True)])
def test_6_xattrs_and_collections_need_noops(negotiated: Negotiated) -> None:
    assert status(request(start=9, end=5), negotiated=negotiated) is Status.NOT_SUPPORTED
    assert status(request(), negotiated=negotiated, settings=NOOPS) is Status.SUCCESS


@pytest.mark.parametrize(
    ("start", "end", "snapshot"),
    [
        (8, 5, (8, 8)),
        (END_OF_TIME, 1 << 63, (END_OF_TIME, END_OF_TIME)),
        (5, 9, (6, 8)),
        (5, 9, (1, 4)),
        (5, 9, (8, 2)),
        (5, 9, (6, END_OF_TIME)),
        (0, 9, (1, 1)),
    ],
)
def test_7_and_8_ranges_that_contradict_themselves(start: int, end: int, snapshot: tuple[int, int]) -> None:
    assert status(request(start, end, snapshot=snapshot)) is Status.ERANGE


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b'{"uid":"0"}', Status.SUCCESS),
        (b'{"purge_seqno":"12"}', Status.SUCCESS),
        (b'{"collections":["0"]}', Status.SUCCESS),
        (b'{"scope":"0"}', Status.SUCCESS),
        (b"{", Status.EINVAL),
        (b"[1]", Status.EINVAL),
        (b"{}", Status.EINVAL),
        (b'{"other":1}', Status.EINVAL),
        (b'{"collections":"0"}', Status.EINVAL),
        (b'{"collections":[]}', Status.EINVAL),
        (b'{"collections":["x"]}', Status.EINVAL),
        (b'{"scope":0}', Status.EINVAL),
        (b'{"purge_seqno":12}', Status.EINVAL),
        (b'{"collections":["0"],"scope":"0"}', Status.EINVAL),
        (b'{"collections":["8"]}', Status.UNKNOWN_COLLECTION),
        (b'{"scope":"8"}', Status.UNKNOWN_SCOPE),
        (b'{"sid":0}', Status.DCP_STREAMID_INVALID),
        (b'{"sid":true}', Status.EINVAL),
        (b'{"sid":65536}', Status.EINVAL),
        (b'{"sid":7}', Status.DCP_STREAMID_INVALID),
    ],
)
def test_9_the_value_of_a_request(value: bytes, expected: Status) -> None:
    assert status(request(value=value), negotiated=COLLECTIONS, settings=NOOPS) is expected


def test_9_the_value_is_raw() -> None:
    asked = request(value=b'{"uid":"0"}', datatype=1)
    assert status(asked, negotiated=COLLECTIONS, settings=NOOPS) is Status.EINVAL


def test_10_where_stream_ids_are_enabled_each_stream_has_one() -> None:
    settings = ControlSettings(enable_noop=True, stream_ids=True)
    assert status(request(), settings=settings) is Status.DCP_STREAMID_INVALID
    answer = verdict(request(value=b'{"sid":71}'), negotiated=COLLECTIONS, settings=settings, live={(7, 70)})
    assert isinstance(answer, Accepted)
    assert answer.key == (7, 71)


def test_11_a_second_stream_of_the_vbucket() -> None:
    assert status(request(start=900, uuid=0xBAD), live={(7, None)}) is Status.KEY_EEXISTS
    assert status(request(), live={(8, None)}) is Status.SUCCESS


def test_12_the_rollback_seqno_is_a_value_of_8_bytes() -> None:
    assert verdict(request(start=400)) == RequestRefusal(
        Status.ROLLBACK, "branch 0xa ended at seqno 300 here", bytes.fromhex("000000000000012c")
    )


def test_12_purged_tombstones_and_how_to_get_by_them() -> None:
    purged = Facts(State.ACTIVE, 300, 100, ((0xA, 0),))
    assert status(request(start=50), purged) is Status.ROLLBACK
    assert status(request(start=50, flags=StreamFlag.IGNORE_PURGED_TOMBSTONES), purged) is Status.SUCCESS
    quoting = request(start=50, value=b'{"purge_seqno":"100"}')
    assert status(quoting, purged, negotiated=COLLECTIONS, settings=NOOPS) is Status.SUCCESS


def test_12_strict_checks_the_uuid_even_of_a_beginner() -> None:
    assert status(request(uuid=0xBAD)) is Status.SUCCESS
    assert status(request(uuid=0xBAD, flags=StreamFlag.STRICT_VB_UUID)) is Status.ROLLBACK


@pytest.mark.parametrize(
    ("flags", "end", "accepted"),
    [
        (StreamFlag.TO_LATEST, 25, 300),
        (StreamFlag.TO_LATEST, 0, 300),
        (StreamFlag.TO_LATEST, END_OF_TIME, 300),
        (StreamFlag.DISK_ONLY, 25, 25),
        (StreamFlag.DISK_ONLY, 0, 300),
        (StreamFlag.DISK_ONLY, 999, 300),
        (StreamFlag.TO_LATEST | StreamFlag.DISK_ONLY, 25, 300),
    ],
)
def test_13_to_latest_replaces_the_end_and_disk_only_bounds_it(flags: StreamFlag, end: int, accepted: int) -> None:
    answer = verdict(request(start=20, end=end, flags=flags))
    assert isinstance(answer, Accepted)
    assert (answer.end_seqno, answer.flags) == (accepted, flags)


def test_13_an_end_that_counts_must_not_lie_below_the_start() -> None:
    assert status(request(start=20, end=19, flags=StreamFlag.DISK_ONLY)) is Status.ERANGE
    assert status(request(start=400, end=0, flags=StreamFlag.TO_LATEST)) is Status.ROLLBACK


@pytest.mark.parametrize(
    ("start", "snapshot", "partial_end"),
    [(25, (20, 40), 40), (25, (20, 25), 0), (20, (20, 40), 0), (21, (20, 40), 40), (22, (20, 40), 40), (0, (0, 40), 0)],
)
def test_who_holds_a_part_of_a_snapshot_is_known_by_it(start: int, snapshot: tuple[int, int], partial_end: int) -> None:
    """Also with the first seqno behind its start, which a marker of another server has one behind the state before."""
    answer = verdict(request(start=start, snapshot=snapshot))
    assert isinstance(answer, Accepted)
    assert answer.partial_end_seqno == partial_end


@pytest.mark.parametrize(("start", "partial_end"), [(21, 0), (22, 40)])
def test_who_says_so_claims_a_range_that_starts_one_below_and_has_no_part_of_it(start: int, partial_end: int) -> None:
    answer = verdict(request(start=start, snapshot=(20, 40)), settings=ControlSettings(claims=True))
    assert isinstance(answer, Accepted)
    assert answer.partial_end_seqno == partial_end


def test_13_a_snapshot_end_beyond_the_high_seqno_is_ignored_when_nothing_of_it_was_received() -> None:
    answer = verdict(request(start=300, snapshot=(300, 999)))
    assert answer == Accepted((7, None), 300, END_OF_TIME, 300, StreamFlag(0))


def test_15_a_replica_without_its_first_snapshot_asks_to_come_again() -> None:
    facts = Facts(State.REPLICA, 3, 0, ((0xA, 0),), receives_first_snapshot=True)
    assert status(request(), facts) is Status.ETMPFAIL


def test_start_and_end_may_be_the_same() -> None:
    assert status(request(start=100, end=100)) is Status.SUCCESS
    assert status(request(start=0, end=0)) is Status.SUCCESS


@pytest.mark.parametrize("flags", [StreamFlag.TAKEOVER, StreamFlag.TAKEOVER | StreamFlag.TO_LATEST])
def test_a_takeover_never_ends_by_itself(flags: StreamFlag) -> None:
    accepted = verdict(request(start=10, end=0, flags=flags))
    assert isinstance(accepted, Accepted)
    assert accepted.end_seqno == END_OF_TIME


@pytest.mark.parametrize("state", [State.REPLICA, State.PENDING, State.DEAD])
def test_only_the_owner_hands_a_vbucket_over(state: State) -> None:
    assert status(request(flags=StreamFlag.TAKEOVER), ACTIVE._replace(state=state)) is Status.NOT_MY_VBUCKET


def test_a_vbucket_is_handed_over_to_one_node_at_a_time() -> None:
    busy = ACTIVE._replace(is_being_handed_over=True)
    assert status(request(flags=StreamFlag.TAKEOVER), busy) is Status.ETMPFAIL
    assert status(request(), busy) is Status.SUCCESS
