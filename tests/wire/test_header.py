"""The 24 bytes in front of everything."""

import pytest

from headwater.errors import BadFrame, LocalProtocolError
from headwater.wire.header import (
    BODY_BYTES_MAX,
    HEADER,
    HEADER_BYTES,
    Frame,
    Lengths,
    Magic,
    frame_bytes,
    lengths,
    plain_response,
    response,
)

GET = bytes.fromhex("800000050000000000000005000000000000000000000000") + b"Hello"


def header(magic=0x80, opcode=1, key=0, extras=0, body=0):
    return HEADER.pack(magic, opcode, key, extras, 0, 0, body, 0, 0)


def test_the_get_of_the_specification_both_ways():
    frame = Frame(Magic.CLIENT_REQUEST, 0x00, key=b"Hello")
    assert frame.encode() == GET and Frame.decode(GET) == frame
    assert len(frame) == len(GET) == 29


def test_every_section_has_its_place():
    frame = Frame(
        Magic.FLEXIBLE_REQUEST,
        0x57,
        key=b"key",
        extras=b"extras",
        value=b"value",
        datatype=5,
        vbucket=1023,
        opaque=0xDEADBEEF,
        cas=1 << 63,
        framing=b"\x22\x00\x47",
    )
    data = frame.encode()
    assert data[24:] == b"\x22\x00\x47extraskeyvalue"
    assert lengths(data) == Lengths(framing=3, extras=6, key=3, body=17)
    assert Frame.decode(data) == frame
    assert Frame.decode(memoryview(bytearray(data))) == frame


def test_a_response_reads_bytes_6_and_7_as_status():
    request = Frame(Magic.CLIENT_REQUEST, 0x53, vbucket=7, opaque=0x1000)
    answer = response(request, 0x23, value=bytes(8))
    assert answer.encode().hex() == "8153000000000023000000080000100000000000000000000000000000000000"
    assert answer.status == 0x23 and answer.is_response and not request.is_response


def test_a_servers_request_is_answered_with_its_own_magic():
    assert response(Frame(Magic.SERVER_REQUEST, 1, opaque=5)).magic == Magic.SERVER_RESPONSE


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (header(magic=0x61), "byte 0x61, which is no magic"),
        (header(key=5, extras=8, body=12), "0 bytes of framing, 8 of extras and 5 of key do not fit into a body of 12"),
        (
            header(magic=0x08, key=0x0401, body=4),
            "4 bytes of framing, 0 of extras and 1 of key do not fit into a body of 4",
        ),
        (header(body=BODY_BYTES_MAX + 1), "a body of 31457281 bytes; 31457280 are allowed"),
        (header(body=1), "25 bytes declared, 24 bytes given"),
        (GET + b"!", "29 bytes declared, 30 bytes given"),
        (b"\x80", "24 bytes of header, here are 1"),
    ],
)
def test_lengths_that_lie_are_refused_with_numbers(data, text):
    with pytest.raises(BadFrame, match=text):
        Frame.decode(data)


def test_a_body_of_exactly_30_mib_is_allowed():
    assert lengths(header(body=BODY_BYTES_MAX)).frame == BODY_BYTES_MAX + HEADER_BYTES


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (Frame(0x61, 0), "magic 0x61"),
        (Frame(0x80, 256), "opcode is 256"),
        (Frame(0x80, 0, vbucket=65536), "vbucket or status is 65536, allowed are 0 to 65535"),
        (Frame(0x80, 0, opaque=-1), "opaque is -1"),
        (Frame(0x80, 0, cas=1 << 64), "cas is 18446744073709551616"),
        (Frame(0x80, 0, framing=b"x"), "framing length is 1, allowed are 0 to 0"),
        (Frame(0x08, 0, key=bytes(256)), "key length is 256, allowed are 0 to 255"),
        (Frame(0x80, 0, extras=bytes(256)), "extras length is 256"),
        (Frame(0x80, 0, value=bytes(BODY_BYTES_MAX + 1)), "body length is 31457281"),
    ],
)
def test_what_does_not_fit_the_header_never_leaves(frame, text):
    with pytest.raises(LocalProtocolError, match=text):
        frame.encode()


def test_a_plain_response_has_the_bytes_of_the_response() -> None:
    request = Frame(0x80, 0x53, vbucket=9, opaque=0xDEADBEEF)
    assert plain_response(0x53, 0xDEADBEEF, b"value") == response(request, value=b"value").encode()


def test_a_frames_length_is_read_without_judging_it():
    data = b"before" + Frame(0x80, 0x57, b"key", b"extras", b"value").encode()
    assert frame_bytes(data, 6) == 24 + 14
    assert frame_bytes(b"\xff" * 8 + (1 << 31).to_bytes(4) + bytes(12)) == 24 + (1 << 31)
