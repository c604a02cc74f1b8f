"""Two engines that talk to each other through nothing but bytes."""

from __future__ import annotations

import random
import ssl

import pytest

from headwater.testing.certificates import Certificates
from headwater.tls.engine import RECORD_BYTES_MAX, TlsEngine
from headwater.tls.settings import TlsSettings, load_pair


def server_context(certificates: Certificates) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_pair(made, str(certificates.node.certificate), str(certificates.node.key), ("certificate", "key"))
    return made


def pair(certificates: Certificates, host: str = "localhost") -> tuple[TlsEngine, TlsEngine]:
    context = TlsSettings(trust_store=certificates.trust_store).context()
    return TlsEngine(context, is_server=False, host=host), TlsEngine(server_context(certificates), is_server=True)


def shake(client: TlsEngine, server: TlsEngine) -> None:
    for _ in range(10):
        for one, other in ((client, server), (server, client)):
            one.shake()
            if data := one.data_to_send():
                other.receive(data)
        if client.shake() and server.shake():
            return
    raise AssertionError("no end of the handshake")


def passed(sender: TlsEngine, receiver: TlsEngine, room: bytearray) -> bytes:
    """Hand over all that the sender has sealed; return it as read in rooms of this size."""
    receiver.receive(sender.data_to_send())
    found = b""
    while count := receiver.read_into(memoryview(room)):
        found += bytes(room[:count])
    return found


@pytest.mark.parametrize("size", [1, RECORD_BYTES_MAX, RECORD_BYTES_MAX + 1, 300_000])
def test_what_is_written_at_one_end_is_read_at_the_other(certificates: Certificates, size: int) -> None:
    client, server = pair(certificates)
    shake(client, server)
    data = random.Random(size).randbytes(size)
    client.write(memoryview(data))
    assert passed(client, server, bytearray(1 << 20)) == data
    server.write(memoryview(data))
    assert passed(server, client, bytearray(1 << 20)) == data


def test_a_room_that_is_too_small_leaves_more_behind_of_which_the_network_tells_nothing(
    certificates: Certificates,
) -> None:
    client, server = pair(certificates)
    shake(client, server)
    client.write(memoryview(bytes(50_000)))
    server.receive(client.data_to_send())
    assert server.read_into(memoryview(bytearray(100))) == 100 and server.has_more
    assert server.read_into(memoryview(bytearray(60_000))) == 49_900 and not server.has_more
    assert server.read_into(memoryview(bytearray(100))) == 0


def test_records_may_come_byte_by_byte(certificates: Certificates) -> None:
    client, server = pair(certificates)
    shake(client, server)
    server.read_into(memoryview(bytearray(10)))
    client.write(memoryview(b"cut to pieces"))
    room, found = bytearray(100), b""
    for byte in client.data_to_send():
        server.receive(bytes([byte]))
        found += bytes(room[: server.read_into(memoryview(room))])
    assert found == b"cut to pieces"


def test_an_end_is_told_and_one_that_was_cut_off_is_an_end_as_well(certificates: Certificates) -> None:
    for orderly in (True, False):
        client, server = pair(certificates)
        shake(client, server)
        client.write(memoryview(b"last words"))
        if orderly:
            client.close()
        server.receive(client.data_to_send())
        if not orderly:
            server.receive_eof()
        room = bytearray(100)
        assert room[: server.read_into(memoryview(room))] == b"last words"
        assert server.read_into(memoryview(room)) == 0 and server.is_over


def test_a_record_that_was_changed_on_the_way_is_refused(certificates: Certificates) -> None:
    client, server = pair(certificates)
    shake(client, server)
    client.write(memoryview(b"pay 10"))
    data = bytearray(client.data_to_send())
    data[-1] ^= 1
    server.receive(data)
    with pytest.raises(ssl.SSLError, match="BAD_RECORD_MAC"):
        server.read_into(memoryview(bytearray(100)))
    assert server.wants_to_send, "an alert tells the other end"


def test_another_name_is_refused_before_anything_is_said(certificates: Certificates) -> None:
    client, server = pair(certificates, host="elsewhere.example")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"not valid for 'elsewhere\.example'"):
        shake(client, server)
    assert not client.is_established


def test_the_version_is_told(certificates: Certificates) -> None:
    client, server = pair(certificates)
    shake(client, server)
    assert client.version.startswith("TLSv1.3 TLS_") and client.certificate() and server.certificate() is None
