"""Addresses of this machine alone."""

import pytest

from headwater.node.connections.loopback import is_local, is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"])
def test_loopback_addresses_are_this_machines_own(host: str) -> None:
    assert is_loopback(host) and is_local(f"{host}:11210")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "fe80::1%eth0", "localhost", ""])
def test_all_others_are_not(host: str) -> None:
    assert not is_loopback(host) and not is_local(f"{host}:11210")
