"""The controls a consumer node asks for: their order, their refusals (dcp 1 and 4)."""

import pytest

from headwater.errors import RemoteProtocolError
from headwater.protocol.dcp.events import (
    PositionNeeded,
)
from headwater.protocol.dcp.negotiation import ConsumerSettings
from headwater.wire.header import Frame, Magic
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.protocol.dcp.consumer_talk import (
    VB,
    Talk,
    add_stream,
    mutation,
)


def test_controls_are_asked_one_at_a_time_in_their_order_and_once() -> None:
    talk = Talk()
    stream, events = talk.end.add(VB, 0, add_stream())
    assert events == []
    seen, events = talk.control_all()
    assert [key for key, _ in seen] == [
        "connection_buffer_size",
        "enable_noop",
        "set_noop_interval",
        "set_priority",
        "supports_cursor_dropping_vulcan",
        "supports_hifi_MFU",
        "send_stream_end_on_client_close_stream",
        "enable_expiry_opcode",
        "flatbuffers_system_events",
        "v7_dcp_status_codes",
        "headwater_purge_seqno",
        "headwater_deleted_rev",
    ]
    assert events == [PositionNeeded(stream)]
    another, events = talk.end.add(VB + 1, 0, add_stream())
    assert events == [PositionNeeded(another)]
    assert talk.sent() == []


def test_a_refused_control_is_a_feature_that_is_absent() -> None:
    talk = Talk()
    stream = talk.open(refused=("connection_buffer_size", "enable_noop", "v7_dcp_status_codes"))
    assert talk.end.window.window_bytes == 0
    assert talk.end.deadline is None
    assert talk.one(mutation(stream.opaque, 1, vbucket=3)).status == Status.KEY_ENOENT
    assert talk.one(mutation(stream.opaque + 9, 1)).status == Status.KEY_EEXISTS


def test_a_producer_that_knows_nothing_of_our_own_controls_is_followed_all_the_same() -> None:
    talk = Talk()
    talk.end.add(VB, 0)
    seen, events = talk.control_all("headwater_purge_seqno", "headwater_deleted_rev")
    assert seen[-2:] == [("headwater_purge_seqno", "true"), ("headwater_deleted_rev", "true")]
    assert [type(event) for event in events] == [PositionNeeded]


def test_an_interval_with_fractions_is_asked_again_in_whole_seconds() -> None:
    talk = Talk(ConsumerSettings(noop_interval_seconds=1.5))
    talk.end.add(VB, 0)
    seen, _ = talk.control_all("set_noop_interval")
    assert [value for key, value in seen if key == "set_noop_interval"] == ["1.500000", "2"]


def test_a_control_answered_with_another_opaque_ends_the_connection() -> None:
    talk = Talk()
    talk.end.add(VB, 0)
    (asked,) = talk.sent()
    with pytest.raises(RemoteProtocolError, match="a control was answered"):
        talk.give(Frame(Magic.CLIENT_RESPONSE, Opcode.DCP_CONTROL, opaque=asked.opaque + 1))


def test_a_consumer_that_knows_its_name_asks_for_durable_writes_under_it() -> None:
    talk = Talk(ConsumerSettings(consumer_name="10.0.0.9:11210"))
    stream, _ = talk.end.add(VB, 0)
    seen, _ = talk.control_all()
    at = seen.index(("enable_sync_writes", "true"))
    assert seen[at - 1 : at + 2] == [
        ("enable_expiry_opcode", "true"),
        ("enable_sync_writes", "true"),
        ("consumer_name", "10.0.0.9:11210"),
    ]
    talk.sent()
    talk.end.acknowledge_prepares(stream, 5)
    (told,) = talk.sent()
    assert told.encode() == (
        bytes.fromhex("80610000 08 00")
        + VB.to_bytes(2)
        + bytes.fromhex("00000008")
        + stream.opaque.to_bytes(4)
        + bytes(8)
        + (5).to_bytes(8)
    )


def test_nothing_is_acknowledged_to_a_producer_that_knows_no_durable_writes() -> None:
    talk = Talk(ConsumerSettings(consumer_name="n"))
    stream = talk.open(refused=("enable_sync_writes", "consumer_name"))
    talk.sent()
    talk.end.acknowledge_prepares(stream, 5)
    assert talk.sent() == []


@pytest.mark.parametrize("every_version", [True, False])
def test_every_version_is_asked_for_where_it_is_kept_and_a_refusal_is_no_obstacle(every_version: bool) -> None:
    talk = Talk(ConsumerSettings(every_version=every_version))
    talk.end.add(VB, 0)
    seen, events = talk.control_all("change_streams")
    assert (("change_streams", "true") in seen) is every_version
    assert [type(event) for event in events] == [PositionNeeded]
