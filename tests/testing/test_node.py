"""The node in a process of its own."""

import inspect
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from headwater import testing
from headwater.errors import OptionError
from headwater.node.config import OPTIONS
from headwater.wire.opcodes import Opcode
from tests.node.wire import Client


def test_a_node_starts_stops_and_starts_again_on_the_same_port_and_data() -> None:
    with testing.node(vbuckets=4) as node:
        port = node.port
        assert node.address == f"127.0.0.1:{port}" and node.is_running
        with Client(port) as client:
            assert client.ask(Opcode.SET, key=b"k", extras=bytes(8), value=b"v").status == 0
        assert node.stop() == 0 and not node.is_running
        node.start()
        assert node.port == port
        with Client(port) as client:
            assert client.ask(Opcode.GET, key=b"k").value == b"v"
        node.kill()
        node.restart()
        with Client(port) as client:
            assert client.ask(Opcode.GET, key=b"k").value == b"v"
        pid, data = node.pid, node.data
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIG_DFL)
    assert not Path(data).exists()


@pytest.mark.skipif(sys.platform != "linux", reason="others do not let two sockets have a port of which one listens")
def test_the_ports_of_a_node_that_is_down_are_kept_for_it() -> None:
    with testing.node(vbuckets=1, http_port=0) as node:
        node.kill()
        for port in (node.port, node.http_port):
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind((node.host, port))
        node.start()
        node.stop()
        ports = (node.port, node.http_port)
    for port in ports:
        with socket.create_server((node.host, port or 0)):
            pass


def test_a_node_takes_every_option_of_serve_but_those_it_chooses_itself() -> None:
    by_environment = {"no_request_rounds"}  # for comparisons: HEADWATER_NO_REQUEST_ROUNDS
    options = {option.field for option in OPTIONS} - {"port", "data"} - by_environment
    assert set(inspect.signature(testing.node).parameters) - {"environment", "tls", "unknown"} == options


def test_an_option_that_serve_does_not_have_is_refused_before_anything_is_started() -> None:
    with pytest.raises(OptionError, match='did you mean "vbuckets"'), testing.node(vbukets=4):  # type: ignore[arg-type]
        pass


def test_a_node_that_can_not_start_shows_its_log() -> None:
    with pytest.raises(testing.NodeError, match="a power of two"), testing.node(vbuckets=3):
        pass
