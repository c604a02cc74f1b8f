"""Words to the service manager: of a socket here, and of a real node."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from headwater import testing
from headwater.node.process.supervisor import tell


@pytest.mark.parametrize("name", ["{}/notify", "@headwater-test-{}"])
def test_words_reach_the_manager(tmp_path: Path, name: str) -> None:
    address = name.format(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address.replace("@", "\0", 1))
        manager.settimeout(60)
        assert tell("READY=1", {"NOTIFY_SOCKET": address})
        assert manager.recv(100) == b"READY=1"


@pytest.mark.parametrize("address", ["", "vsock:2:1", "/nowhere/at/all"])
def test_without_a_manager_nothing_is_said(address: str) -> None:
    assert not tell("READY=1", {"NOTIFY_SOCKET": address} if address else {})


def test_a_node_says_when_it_is_ready_and_when_it_stops(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(60)
        with testing.node(vbuckets=1, environment={"NOTIFY_SOCKET": address}) as node:
            assert manager.recv(100).split(b"\n")[0] == b"READY=1"
            assert node.stop() == 0
            assert manager.recv(100) == b"STOPPING=1"
