"""The proxy that breaks connections, before a server that echoes frames."""

import socket
import threading
from collections.abc import Iterator

import pytest

from headwater.testing.proxy import Fault, FaultProxy, Way
from headwater.wire.header import Frame

PING = Frame(0x80, 0x0A, b"key", b"", b"value", opaque=7)


@pytest.fixture
def echo() -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            with sock:
                while data := sock.recv(4096):
                    sock.sendall(data)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def ask(proxy: FaultProxy, seconds: float = 120.0) -> bytes:
    """Return the answer to one frame; empty when the proxy hangs up."""
    with socket.create_connection(("127.0.0.1", proxy.port), seconds) as sock:
        try:
            sock.sendall(PING.encode())
            return sock.recv(4096)
        except ConnectionError:
            return b""


def test_frames_pass_both_ways(echo: str) -> None:
    seen: list[Way] = []
    with FaultProxy(echo, lambda way, frame: seen.append(way) or Fault.NONE) as proxy:
        assert ask(proxy) == PING.encode()
        assert seen == [Way.UP, Way.DOWN]
        assert proxy.connections == 1


def test_a_cut_is_seen_by_the_client_before_the_frame(echo: str) -> None:
    with FaultProxy(echo, lambda way, frame: Fault.CUT if way is Way.DOWN else Fault.NONE) as proxy:
        assert ask(proxy) == b""


def test_a_corrupted_frame_has_no_magic(echo: str) -> None:
    with FaultProxy(echo, lambda way, frame: Fault.CORRUPT if way is Way.DOWN else Fault.NONE) as proxy:
        assert ask(proxy) == b"\x42" + PING.encode()[1:]


@pytest.mark.parametrize("fault", [Fault.STALL, Fault.DROP])
def test_a_stalled_link_stays_open_and_silent(echo: str, fault: Fault) -> None:
    with FaultProxy(echo, lambda way, frame: fault) as proxy, pytest.raises(TimeoutError):
        ask(proxy, 0.1)


def test_refused_connections_end_at_once(echo: str) -> None:
    with FaultProxy(echo) as proxy:
        proxy.refuses = True
        assert ask(proxy) == b""


def test_all_connections_can_be_cut_at_once(echo: str) -> None:
    with FaultProxy(echo) as proxy, socket.create_connection(("127.0.0.1", proxy.port), 120) as sock:
        sock.sendall(PING.encode())
        assert sock.recv(4096) == PING.encode()
        assert proxy.cut() == 1
        assert sock.recv(4096) == b""
