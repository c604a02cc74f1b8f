"""The messages that may be sent on a stream, and when: markers, changes, ends, stream ids."""

import pytest

from headwater.errors import LocalProtocolError
from headwater.protocol.dcp.controls import Negotiated
from headwater.protocol.dcp.producer_events import (
    StreamRequested,
)
from headwater.protocol.dcp.producer_stream import TRANSITIONS, ProducerState
from headwater.wire.dcp import EndReason
from tests.protocol.dcp.producer_talk import (
    FACTS,
    LOG,
    MARKER,
    control,
    producer,
    say,
    stream,
    stream_request,
)


def test_nothing_leads_out_of_the_end() -> None:
    assert TRANSITIONS[ProducerState.ENDED] == {}
    assert set(ProducerState) == set(TRANSITIONS)


def test_changes_without_a_marker_are_refused() -> None:
    end = producer()
    made = stream(end)
    with pytest.raises(LocalProtocolError, match="seqno 1 after 0, in a snapshot that ends at 0"):
        end.sent_changes(made, 60, 1)


@pytest.mark.parametrize("seqno", [5, 4, 10])
def test_seqnos_rise_and_stay_inside_the_snapshot(seqno: int) -> None:
    end = producer()
    made = stream(end)
    end.marker(made, 0, 9, MARKER)
    end.sent_changes(made, 60, 5)
    with pytest.raises(LocalProtocolError, match=f"seqno {seqno} after 5"):
        end.sent_changes(made, 60, seqno)


def test_a_marker_in_the_middle_of_a_snapshot_replaces_it() -> None:
    end = producer()
    made = stream(end)
    end.marker(made, 0, 9, MARKER)
    end.sent_changes(made, 60, 5)
    end.marker(made, 6, 12, MARKER)
    end.sent_changes(made, 60, 9)
    assert made.snapshot_end_seqno == 12
    with pytest.raises(LocalProtocolError, match="a marker"):
        end.marker(made, 0, 9, MARKER)
    end.marker(made, 0, 10, MARKER)  # one that ends earlier than was announced, but behind what was sent
    end.sent_changes(made, 60, 10)
    assert made.state is ProducerState.BETWEEN


@pytest.mark.parametrize(("start", "last"), [(5, 4), (0, 0)])
def test_a_marker_that_brings_nothing_is_refused(start: int, last: int) -> None:
    end = producer()
    with pytest.raises(LocalProtocolError, match="a marker"):
        end.marker(stream(end), start, last, MARKER)


def test_a_stream_ends_well_only_after_a_whole_snapshot() -> None:
    end = producer()
    made = stream(end)
    end.marker(made, 0, 9, MARKER)
    with pytest.raises(LocalProtocolError, match="the end that was asked for"):
        end.end_stream(made, EndReason.OK)
    end.sent_changes(made, 60, 9)
    end.end_stream(made, EndReason.OK)
    with pytest.raises(LocalProtocolError, match="on a stream that is ended"):
        end.end_stream(made, EndReason.OK)


def test_a_stream_id_frames_every_message_of_its_stream() -> None:
    end = producer(Negotiated(collections=True, xerror=True))
    control(end, b"enable_noop", b"true")
    control(end, b"enable_stream_id", b"true")
    (event,) = end.receive_frame(stream_request(value=b'{"sid":71}'), 100.0)
    assert isinstance(event, StreamRequested)
    made = end.answer_stream(event, FACTS, LOG)
    assert made is not None
    end.data_to_send()
    assert end.marker(made, 0, 9, MARKER).hex().startswith("0856030014000007" + "00000017" + "00000077")
    assert say(end, "80520000000000070000000000000001" + "00" * 8)[12:16] == "008d"
    other = "0852030000000007000000030000000100000000000000002200" + "48"
    assert say(end, other)[12:16] == "008d"
    assert say(end, other[:-2] + "47")[12:16] == "0000"
