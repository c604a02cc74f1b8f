"""The surface of all ends: the same five names, however bytes are cut, and one way to say that a peer is gone."""

import pytest

from headwater.errors import BadFrame, RemoteProtocolError
from headwater.kernels.columns import Arena
from headwater.protocol.dcp.consumer import Consumer
from headwater.protocol.dcp.controls import Negotiated
from headwater.protocol.dcp.drain import Drain
from headwater.protocol.dcp.negotiation import ConsumerSettings
from headwater.protocol.dcp.producer import Producer
from headwater.protocol.end import End, PeerGone, each_frame
from headwater.protocol.handshake import Handshake, Login, greet
from headwater.protocol.tap.consumer import TapConsumer
from headwater.protocol.tap.options import TapOptions
from headwater.protocol.tap.producer import TapProducer
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame, Magic
from headwater.wire.opcodes import Opcode

FRAMES = [Frame(Magic.CLIENT_REQUEST, Opcode.NOOP, opaque=number) for number in (1, 2, 3)]


def a_drain() -> Drain:
    return Drain(
        Arena(value_bytes=4096, key_bytes=4096),
        "node:11210",
        window_bytes=0,
        silence_seconds=240.0,
        answer_seconds=10.0,
        now=0.0,
    )


def ends() -> dict[str, End[object]]:
    return {
        "handshake": Handshake(greet(Login("test")), now=0.0, seconds_max=10.0),
        "drain": a_drain(),
        "consumer": Consumer(Negotiated(), ConsumerSettings(), now=0.0),
        "producer": Producer(Negotiated(), now=0.0),
        "tap consumer": TapConsumer(now=0.0),
        "tap producer": TapProducer(TapOptions(), now=0.0),
    }


every_end = pytest.mark.parametrize("name", list(ends()))


@every_end
def test_every_end_says_in_the_same_way_that_its_peer_closed_the_connection(name: str) -> None:
    (event,) = ends()[name].receive_eof()
    assert isinstance(event, PeerGone) and event.silent_seconds is None


@every_end
def test_every_end_waits_for_the_rest_of_a_frame_and_has_nothing_more_to_send(name: str) -> None:
    end = ends()[name]
    end.data_to_send()
    assert list(end.receive_data(b"\x80", 1.0)) == []
    assert list(end.tick(1.0)) == []
    assert end.data_to_send() == b""
    assert end.deadline is None or end.deadline > 1.0


@every_end
def test_what_is_no_frame_is_the_peers_mistake_at_every_end(name: str) -> None:
    end = ends()[name]
    with pytest.raises(RemoteProtocolError):
        end.receive_data(b"\x55" * 64, 1.0)


def test_a_peer_that_is_gone_is_told_with_the_time_and_the_reason() -> None:
    assert str(PeerGone()) == "closed the connection"
    assert str(PeerGone(40.0)) == "has been silent for 40 s"
    told = "has been silent for 30 s (stream request for vbucket 0)"
    assert str(PeerGone(30.0, "stream request for vbucket 0")) == told


@pytest.mark.parametrize("cut", range(0, 72, 7))
def test_frames_are_taken_whole_wherever_the_bytes_were_cut(cut: int) -> None:
    data, buffer, seen = b"".join(frame.encode() for frame in FRAMES), FrameBuffer(), []
    for piece in (data[:cut], data[cut:]):
        seen += each_frame(buffer, piece, 5.0, lambda frame, now: [(frame.opaque, now)])
    assert seen == [(1, 5.0), (2, 5.0), (3, 5.0)]


def test_what_is_no_frame_is_an_error_after_the_frames_before_it_were_taken() -> None:
    seen: list[Frame] = []
    with pytest.raises(BadFrame):
        each_frame(FrameBuffer(), FRAMES[0].encode() + b"\x55" * 24, 0.0, lambda frame, now: seen.append(frame) or [])
    assert seen == FRAMES[:1]
