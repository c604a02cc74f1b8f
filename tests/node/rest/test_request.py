"""HTTP requests, as bytes."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import RemoteProtocolError
from headwater.node.rest.request import REQUEST_BYTES_MAX, HttpRequest, looks_like_http, read

ASKED = b"GET /pools?x=1 HTTP/1.1\r\nHost: a\r\nAuthorization: Basic YW5uOnNlOmNyZXQ=\r\n\r\n"
CHUNKED = b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_a_request_tells_path_and_login() -> None:
    assert read(memoryview(ASKED)) == HttpRequest("GET", "/pools", ("ann", "se:cret"), False, len(ASKED), host="a")


def test_a_request_is_whole_with_its_body_only() -> None:
    posted = b"POST /x HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc"
    assert read(memoryview(posted + ASKED)) == HttpRequest("POST", "/x", None, False, len(posted), b"abc")
    for cut in range(len(posted)):
        assert read(memoryview(posted[:cut])) is None


def test_a_body_may_come_in_chunks_as_gos_clients_send_it() -> None:
    """Two chunks of gocb's request for a scope; the next request follows at once."""
    posted = CHUNKED + b"4\r\nname\r\n7\r\n=market\r\n0\r\n\r\n"
    assert read(memoryview(posted + ASKED)) == HttpRequest("POST", "/x", None, False, len(posted), b"name=market", "a")
    for cut in range(len(posted)):
        assert read(memoryview(posted[:cut])) is None
    empty = read(memoryview(CHUNKED + b"0\r\n\r\n"))
    assert empty is not None and empty.body == b""


@pytest.mark.parametrize("line", [b"GET / HTTP/1.0\r\n", b"GET / HTTP/1.1\r\nConnection: Close\r\n"])
def test_who_wants_the_connection_closed_says_so(line: bytes) -> None:
    asked = read(memoryview(line + b"\r\n"))
    assert asked is not None and asked.closes


@pytest.mark.parametrize(
    "told",
    [b"Basic", b"Basic !", b"Basic YW5u", b"Basic /w==", b"Basic \xff\xfe", b"Bearer YW5uOnNlOmNyZXQ="],
)
def test_a_login_that_can_not_be_read_is_none(told: bytes) -> None:
    asked = read(memoryview(b"GET / HTTP/1.1\r\nAuthorization: " + told + b"\r\n\r\n"))
    assert asked is not None and asked.login is None


@pytest.mark.parametrize(
    "bad",
    [
        b"GET /\r\n\r\n",
        b"GET / HTTP/2\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n",
        b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: identity\r\n\r\n",
        CHUNKED + b"3;name=value\r\nabc\r\n0\r\n\r\n",
        CHUNKED + b"3\r\nabcd\r\n0\r\n\r\n",
        CHUNKED + b"3\nabc\r\n0\r\n\r\n",
        CHUNKED + b"-3\r\nabc\r\n0\r\n\r\n",
        CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n",
        CHUNKED + b" 3\r\nabc\r\n0\r\n\r\n",
        CHUNKED + b"\r\nabc\r\n0\r\n\r\n",
        CHUNKED + b"00000000000000003\r\nabc\r\n0\r\n\r\n",
        CHUNKED + b"ffffffff\r\nabc",
        CHUNKED + b"3\r\nabc\r\n0\r\nTrailer: 1\r\n\r\n",
        CHUNKED + b"1\r\na\r\n" * 65 + b"0\r\n\r\n",
        CHUNKED + b"3f00\r\n" + b"x" * REQUEST_BYTES_MAX,
        b"GET /" + b"x" * REQUEST_BYTES_MAX,
        b"POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 30\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nContent-Length: 3\r\ncontent-length: 3\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nContent-Length: 3, 3\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nContent-Length: +3\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nContent-Length : 3\r\n\r\nabc",
        b"POST / HTTP/1.1\r\n Content-Length: 3\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nHost: x\r\n Content-Length: 3\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nX: y\nContent-Length: 3\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nX: y\rContent-Length: 3\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nContent-Length\0: 3\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc",
        b"GET / HTTP/1.1\r\nno field\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /\x0b HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_not_a_small_request_of_http_is_refused(bad: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        read(memoryview(bad))


def test_no_frame_looks_like_http() -> None:
    for magic in (0x80, 0x81, 0x82, 0x83, 0x08, 0x18):
        assert not looks_like_http(memoryview(bytes([magic]) + b"ET / HTTP/1.1"))
    assert looks_like_http(memoryview(ASKED)) and not looks_like_http(memoryview(b"get key\r\n"))
    assert not looks_like_http(memoryview(b"GETS")) and not looks_like_http(memoryview(b""))


@given(keep=st.integers(0, len(ASKED)), junk=st.binary(max_size=200))
def test_whatever_arrives_is_a_request_or_waited_for_or_refused(keep: int, junk: bytes) -> None:
    with suppress(RemoteProtocolError):
        asked = read(memoryview(ASKED[:keep] + junk))
        assert asked is None or asked.size <= keep + len(junk)
