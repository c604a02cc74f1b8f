"""The answers to a stream request, and what is said about a frame that is wrong."""

import pytest

from headwater.errors import BadMessage, RemoteProtocolError
from headwater.kernels.columns import Stop, StreamTable
from headwater.protocol.dcp.answers import (
    KnownEvent,
    SystemNews,
    complaint,
    read_any_system_event,
    read_failover_log,
    read_rollback,
)
from headwater.wire.dcp import SystemEvent
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

ENTRY = (0xA).to_bytes(8) + (7).to_bytes(8)


def answer(value: bytes = b"", status: int = 0, extras: bytes = b"") -> Frame:
    return Frame(0x81, Opcode.DCP_STREAM_REQ, extras=extras, value=value, vbucket=status)


def test_a_log_is_read_newest_first() -> None:
    assert read_failover_log(answer(ENTRY + bytes(16))) == ((0xA, 7), (0, 0))
    assert len(read_failover_log(answer(ENTRY * 1024))) == 1024


@pytest.mark.parametrize("size", [0, 15, 17, 16 * 1025])
def test_a_log_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"a failover log of {size} bytes; expected 16 each for 1 to 1024"):
        read_failover_log(answer(bytes(size)))


@pytest.mark.parametrize(
    ("frame", "seqno"),
    [
        (answer((400).to_bytes(8), Status.ROLLBACK), 400),
        (answer(b"", Status.ROLLBACK, (400).to_bytes(8)), 400),
        (answer(b"", Status.KEY_ENOENT), 0),
    ],
)
def test_a_rollback_is_found_in_value_and_extras(frame: Frame, seqno: int) -> None:
    assert read_rollback(frame) == seqno


@pytest.mark.parametrize("size", [0, 7, 9, 16])
def test_a_rollback_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"a rollback of {size} bytes, expected 8"):
        read_rollback(answer(bytes(size), Status.ROLLBACK))


def test_a_complaint_tells_the_numbers_of_the_frame_and_of_its_stream() -> None:
    table = StreamTable()
    table.open(3, 77, 5, 5, 5)
    table.enter(3, 6, 9)
    frame = Frame(0x80, Opcode.DCP_MUTATION, b"k", (12).to_bytes(8) + bytes(23), vbucket=3, opaque=77).encode()
    assert complaint(memoryview(frame), Stop.SEQNO_OUTSIDE_SNAPSHOT, table) == (
        "DCP_MUTATION (opcode 0x57): vbucket 3, opaque 77: seqno outside snapshot; extras 31 bytes, seqno 12; "
        "last 5, snapshot 6 to 9, stream 77"
    )


def test_a_header_that_lies_is_not_read_any_further() -> None:
    frame = bytes.fromhex("55570000ff00000000000010") + bytes(12)
    assert complaint(memoryview(frame), Stop.BAD_MAGIC, StreamTable()) == (
        "opcode 0x57: bad magic (magic 0x55, 255 extras, body 16 bytes)"
    )


# --------------------------------------------------------------------------- system events of any version

# Tables as flatbuffers 25.12 for Python writes them after kv_engine's events.fbs.
MODIFIED = (
    "1c00000000000000000012002000140010000c000000000004000b00120000001c000000000000010c00000008000000"
    "0a0000000000000000000000060000006f72646572730000"
)
DROPPED = "140000000000000000000a0014000c00080004000a0000000c000000080000000b00000000000000"
SCOPE = (
    "140000000000000000000a0018000c00080004000a00000014000000090000000c00000000000000000000000400000073686f7000000000"
)
DROPPED_SCOPE = "1000000000000000080010000800040008000000090000000d00000000000000"


def system_event(event: int, value: str | bytes = b"", *, version: int = 2, key: bytes = b"") -> Frame:
    extras = (77).to_bytes(8) + event.to_bytes(4) + bytes([version])
    data = bytes.fromhex(value.replace(" ", "")) if isinstance(value, str) else value
    return Frame(0x80, Opcode.DCP_SYSTEM_EVENT, key, extras, data, vbucket=3)


def known(frame: Frame) -> SystemEvent:
    told = read_any_system_event(frame)
    assert isinstance(told, KnownEvent)
    return told.message


def test_what_version_2_says_that_others_say_too_is_the_same_event() -> None:
    dropped = known(system_event(1, DROPPED))
    assert (dropped.by_seqno, dropped.event, dropped.manifest_uid) == (77, 1, 11)
    assert (dropped.scope_id, dropped.collection_id, dropped.vbucket) == (8, 12, 3)
    scope = known(system_event(3, SCOPE))
    assert (scope.event, scope.manifest_uid, scope.scope_id, scope.key) == (3, 12, 9, b"shop")
    gone = known(system_event(4, DROPPED_SCOPE))
    assert (gone.event, gone.manifest_uid, gone.scope_id, gone.collection_id) == (4, 13, 9, None)
    made = known(system_event(0, MODIFIED))
    assert (made.event, made.collection_id, made.key, made.max_ttl) == (0, 12, b"orders", None)
    histories = [read_any_system_event(system_event(kind, MODIFIED)) for kind in (0, 1)]
    assert [history.history for history in histories if isinstance(history, KnownEvent)] == [True, None]


def test_a_collection_that_was_modified_says_what_it_is_now() -> None:
    news = read_any_system_event(system_event(5, MODIFIED, key=b"orders"))
    assert news == SystemNews(77, 5, 2, b"orders", bytes.fromhex(MODIFIED), 10, 8, 12, b"orders", None, history=True)


@pytest.mark.parametrize(
    "frame",
    [
        system_event(5, "1c000000"),
        system_event(5),
        system_event(0, b"\xff" * 40),
        system_event(6, MODIFIED),
        system_event(2, DROPPED, version=0),
        system_event(0, MODIFIED, version=3, key=b"orders"),
        system_event(5, b"", version=1),
    ],
)
def test_what_is_not_understood_comes_whole_and_keeps_its_seqno(frame: Frame) -> None:
    news = read_any_system_event(frame)
    assert isinstance(news, SystemNews) and news.by_seqno == 77 and news.collection_id is None
    assert (news.key, news.value) == (frame.key, frame.value)


def test_events_of_older_versions_are_held_to_their_layout_as_before() -> None:
    with pytest.raises(BadMessage):
        read_any_system_event(system_event(0, b"too short", version=0, key=b"orders"))
