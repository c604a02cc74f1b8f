"""Loopback addresses, which other machines can neither listen on nor connect to."""

from __future__ import annotations

import ipaddress

__all__ = ["is_local", "is_loopback", "loopback_like"]


def is_loopback(host: str) -> bool:
    """Return True if a numeric address is a loopback address, including those of IPv4 in IPv6 form."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def loopback_like(host: str) -> str:
    """Return the loopback address of the same family as a listening address; the address itself if it is a loopback
    address.
    """
    if is_loopback(host):
        return host
    return "::1" if ":" in host else "127.0.0.1"


def is_local(peer: str) -> bool:
    """Return True if a peer, host:port, is on this machine."""
    return is_loopback(peer.rpartition(":")[0].strip("[]"))
