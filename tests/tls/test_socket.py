"""A socket that wears TLS, with a plain one at its other end that sends what it likes, or another of its kind."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from headwater.errors import TlsError
from headwater.testing.certificates import Certificates
from headwater.tls.engine import TlsEngine
from headwater.tls.settings import TlsSettings
from headwater.tls.socket import SEALED_BYTES, SEND_BYTES, TlsSocket
from tests.tls.test_engine import server_context


@pytest.fixture
def wire() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    for each in (ours, theirs):
        each.setblocking(False)
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)
    with ours, theirs:
        yield ours, theirs


def server(sock: socket.socket, certificates: Certificates) -> TlsSocket:
    engine = TlsEngine(server_context(certificates), is_server=True)
    return TlsSocket(sock, engine, "peer:1", memoryview(bytearray(SEALED_BYTES)), 11210)


def client(sock: socket.socket, settings: TlsSettings) -> TlsSocket:
    engine = TlsEngine(settings.context(), is_server=False, host="localhost")
    return TlsSocket(sock, engine, "node:1", memoryview(bytearray(SEALED_BYTES)))


def ends(wire: tuple[socket.socket, socket.socket], certificates: Certificates) -> tuple[TlsSocket, TlsSocket]:
    made = server(wire[0], certificates), client(wire[1], TlsSettings(trust_store=certificates.trust_store))
    for _ in range(10):
        shaken = [each.shake() for each in made]  # each has its turn
        if all(shaken):
            return made
    raise AssertionError("no end of the handshake")


def test_it_is_read_and_written_as_the_plain_one(
    wire: tuple[socket.socket, socket.socket], certificates: Certificates
) -> None:
    one, other = ends(wire, certificates)
    room = memoryview(bytearray(100))
    with pytest.raises(BlockingIOError):
        one.recv_into(room)
    assert other.send(b"hello") == 5 and one.recv_into(room) == 5 and bytes(room[:5]) == b"hello"
    other.close()
    assert one.recv_into(room) == 0


def test_what_the_socket_does_not_take_is_kept_sealed_and_nothing_more_is_taken_meanwhile(
    wire: tuple[socket.socket, socket.socket], certificates: Certificates
) -> None:
    one, other = ends(wire, certificates)
    data = bytes(range(256)) * (SEND_BYTES // 256 + 1)
    assert one.send(data) == SEND_BYTES and one.unsent_bytes > 0 and not one.flush()
    with pytest.raises(BlockingIOError):
        one.send(b"more")
    found, room = bytearray(), memoryview(bytearray(SEALED_BYTES))
    while len(found) < SEND_BYTES:
        select.select([other], [], [], 60)
        with suppress(BlockingIOError):
            found += room[: other.recv_into(room)]
        one.flush()
    assert found == data[:SEND_BYTES] and one.unsent_bytes == 0 and one.send(b"more") == 4


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (
            b"\x80\x0a" + bytes(22),
            "its first byte is 0x80. on the port for TLS: couchbases:// here, or",
        ),
        (b"GET / HTTP/1.1\r\n\r\n", "HTTP without TLS on the port for TLS: https:// here, or port 11210"),
        (b"\x16\x03\x01\xff\xff" + bytes(100), "TLS"),
        (b"\x16" + bytes(range(200)), "what it sends is no TLS"),
    ],
)
def test_what_is_no_tls_is_told_apart(
    wire: tuple[socket.socket, socket.socket], certificates: Certificates, sent: bytes, told: str
) -> None:
    one = server(wire[0], certificates)
    wire[1].send(sent)
    with pytest.raises(TlsError, match=told):
        one.recv_into(memoryview(bytearray(100)))


def test_who_hangs_up_in_the_handshake_is_an_error(
    wire: tuple[socket.socket, socket.socket], certificates: Certificates
) -> None:
    one = server(wire[0], certificates)
    wire[1].send(b"\x16\x03\x01")
    with pytest.raises(BlockingIOError):
        one.recv_into(memoryview(bytearray(100)))
    wire[1].close()
    with pytest.raises(TlsError, match="it hung up in the middle of the TLS handshake"):
        one.recv_into(memoryview(bytearray(100)))


def test_the_peer_hears_why_its_certificate_was_refused(
    wire: tuple[socket.socket, socket.socket], certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> None:
    stranger = Certificates(tmp_path_factory.mktemp("stranger"))
    one, other = server(wire[0], certificates), client(wire[1], TlsSettings(trust_store=stranger.trust_store))
    assert not other.shake() and not one.shake()
    with pytest.raises(TlsError, match="its certificate is refused: ") as refused:
        other.shake()
    assert refused.value.code in (19, 20)
    with pytest.raises(TlsError, match="it does not know the CA of our certificate"):
        one.shake()


def test_a_node_whose_certificate_has_expired_is_not_believed(
    wire: tuple[socket.socket, socket.socket], tmp_path_factory: pytest.TempPathFactory
) -> None:
    old = Certificates(tmp_path_factory.mktemp("old"))
    old.expired("node")
    one, other = server(wire[0], old), client(wire[1], TlsSettings(trust_store=old.trust_store))
    assert not other.shake() and not one.shake()
    with pytest.raises(TlsError, match="certificate has expired") as refused:
        other.shake()
    assert refused.value.code == 10
    with pytest.raises(TlsError, match="it takes our certificate for expired"):
        one.shake()
