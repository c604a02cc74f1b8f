"""Doors of nodes: who comes is known, and what is cut or stands still does so for him alone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from harness.linearizability import links as module
from harness.linearizability.links import OTHERS, Link, Links

ASKS = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), 20) as sock:
    try:
        sock.sendall(b"hello")
        print(sock.recv(5).decode() or "ended")
    except OSError:
        print("ended")
"""


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that says what it hears; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    sock, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=answer, args=(sock,), daemon=True).start()

        def answer(sock: socket.socket) -> None:
            with sock:
                try:
                    while data := sock.recv(100):
                        sock.sendall(data)
                except OSError:
                    return

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def links() -> Iterator[Links]:
    with Links() as made:
        made.owns(os.getpid(), "me")
        yield made


def ask(sock: socket.socket) -> bytes:
    sock.sendall(b"hello")
    return sock.recv(5)


def is_ended(sock: socket.socket) -> bool:
    try:
        return ask(sock) == b""
    except OSError:
        return True


def test_what_is_sent_through_a_door_comes_back_through_it(links: Links, echo: int) -> None:
    door = links.door("n0", lambda: echo)
    with socket.create_connection(("127.0.0.1", door), 20) as sock:
        assert ask(sock) == b"hello"


def test_a_link_that_is_cut_ends_connections_and_lets_none_begin(links: Links, echo: int) -> None:
    door = links.door("n0", lambda: echo)
    with socket.create_connection(("127.0.0.1", door), 20) as sock:
        assert ask(sock) == b"hello"
        links.set("me", "n0", Link.CUT)
        assert is_ended(sock)
    with socket.create_connection(("127.0.0.1", door), 20) as sock:
        assert is_ended(sock)
    links.set("me", "n0", Link.UP)
    with socket.create_connection(("127.0.0.1", door), 20) as sock:
        assert ask(sock) == b"hello"


def test_a_link_is_that_of_one_process_to_one_node(links: Links, echo: int) -> None:
    doors = [links.door(name, lambda: echo) for name in ("n0", "n1")]
    links.set("me", "n0", Link.CUT)
    with socket.create_connection(("127.0.0.1", doors[1]), 20) as sock:
        assert ask(sock) == b"hello"
    found = subprocess.run([sys.executable, "-c", ASKS, str(doors[0])], capture_output=True, text=True, check=True)
    assert found.stdout == "hello\n"
    links.set(OTHERS, "n0", Link.CUT)
    found = subprocess.run([sys.executable, "-c", ASKS, str(doors[0])], capture_output=True, text=True, check=True)
    assert found.stdout == "ended\n"


def test_a_process_that_is_registered_while_somebody_comes_disturbs_nobody(
    links: Links, echo: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    has = module._has
    for pid in (-1, -2):
        links.owns(pid, f"gone {pid}")

    def late(pid: int, what: str) -> bool:
        links.owns(-10 + pid, "late")
        return pid != os.getpid() and has(pid, what)

    monkeypatch.setattr(module, "_has", late)
    with socket.create_connection(("127.0.0.1", links.door("n0", lambda: echo)), 20) as sock:
        assert ask(sock) == b"hello"


def test_a_link_that_stands_still_keeps_what_is_sent(links: Links, echo: int) -> None:
    door = links.door("n0", lambda: echo)
    with socket.create_connection(("127.0.0.1", door), 20) as sock:
        assert ask(sock) == b"hello"
        links.set("me", "n0", Link.STALLED)
        sock.sendall(b"later")
        sock.settimeout(0.1)
        with pytest.raises(TimeoutError):
            sock.recv(5)
        sock.settimeout(20)
        links.set("me", "n0", Link.UP)
        assert sock.recv(5) == b"later"


def test_a_node_that_is_down_sends_away_who_comes(links: Links) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    door = links.door("n0", lambda: port)
    with socket.create_connection(("127.0.0.1", door), 20) as sock:
        assert is_ended(sock)
