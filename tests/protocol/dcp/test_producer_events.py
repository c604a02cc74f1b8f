"""A stream request is told with the frame that a refusal answers: as it came, in either dialect."""

import pytest

from headwater.protocol.dcp.producer_events import StreamRequested
from headwater.wire import dcp, upr
from headwater.wire.header import Frame, response
from headwater.wire.status import Status
from tests.protocol.dcp.producer_talk import producer, stream_request

OF_DCP = (
    "80530000300000070000003000000077" + "00" * 8
    + "0000000000000000" + "0000000000000001" + "0000000000000002" + "0000000000000003" + "00" * 16
)  # fmt: skip
OF_UPR = (
    "80530000280000070000002800000077" + "00" * 8
    + "0000000000000000" + "0000000000000001" + "0000000000000002" + "0000000000000003" + "0000000000000004"
)  # fmt: skip


@pytest.mark.parametrize(("kind", "hexed"), [(dcp.StreamRequest, OF_DCP), (upr.StreamRequest, OF_UPR)])
def test_a_request_is_the_frame_that_came(kind: type[dcp.StreamRequest], hexed: str) -> None:
    frame = Frame.decode(bytes.fromhex(hexed))
    assert StreamRequested(kind.decode(frame)).frame.encode().hex() == hexed


def test_a_refusal_names_the_opaque_of_what_was_asked() -> None:
    (event,) = producer().receive_frame(stream_request(opaque=0x1234), 100.0)
    assert isinstance(event, StreamRequested)
    refusal = response(event.frame, Status.NOT_MY_VBUCKET).encode()
    assert refusal.hex() == "8153000000000007" + "00000000" + "00001234" + "00" * 8
