"""Chooses the addresses by which a client reaches nodes: the nodes' own, or *alternate* ones.

The map of a cluster behind a port mapping (containers, a cloud's private network) also has the names and ports by which
nodes are reached from outside, for each network; the usual network is called "external":

    nodesExt[i].alternateAddresses.<network>.hostname, .ports.kv, .ports.kvSSL

Without ports there, the node's own ports apply. Source: the output of Couchbase's `setting-alternate-address`; the
SDKs' option `network`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headwater.wire.address import Address

__all__ = ["AUTO", "DEFAULT", "as_seen_from"]

AUTO, DEFAULT = "auto", "default"
"""AUTO chooses by the address that worked; DEFAULT stands for the addresses that nodes use among themselves."""


def as_seen_from(content: Mapping[str, Any], source: Address, network: str = AUTO) -> Mapping[str, Any]:
    """Return a map's JSON with the nodes' names and ports in a network.

    AUTO selects the network that contains the address `source`. Later maps are fetched from addresses of that network,
    so the choice stays the same.

    Args:
        content: the JSON.
        source: address that the map was fetched from.
        network: name of the network, AUTO or DEFAULT.

    Raises:
        ValueError: a node has no address, or no port, in that network.
    """
    entries = content.get("nodesExt", ())
    if not any("alternateAddresses" in entry for entry in entries) and network in (AUTO, DEFAULT):
        return content
    name = _network_of(entries, source) if network == AUTO else network
    if name == DEFAULT:
        return content
    return {**content, "nodesExt": [_in_network(entry, name) for entry in entries]}


def _network_of(entries: Any, source: Address) -> str:
    """Return the network in which some node has the address `source`; the nodes' own names are searched first, as in
    the SDKs.

    DEFAULT if no network has it.
    """
    for entry in entries:
        if _is_at(entry.get("hostname", source.host), entry.get("services", {}), source):
            return DEFAULT
    for entry in entries:
        for name, alternate in _alternates(entry):
            if _is_at(alternate.get("hostname"), alternate.get("ports") or entry.get("services", {}), source):
                return name
    return DEFAULT


def _in_network(entry: Mapping[str, Any], network: str) -> dict[str, Any]:
    alternates = dict(_alternates(entry))
    if network not in alternates:
        choices = ", ".join(sorted({DEFAULT, *alternates}))
        raise ValueError(
            f'{entry.get("hostname", "a node")} has no address in the network "{network}", but in: {choices}'
        )
    alternate = alternates[network]
    ports = alternate.get("ports") or entry.get("services", {})
    if not {"kv", "kvSSL"} & ports.keys():
        raise ValueError(f'{alternate["hostname"]} has no port for key-value in the network "{network}"')
    return {**entry, "hostname": alternate["hostname"], "services": ports}


def _alternates(entry: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield from entry.get("alternateAddresses", {}).items()


def _is_at(host: object, ports: Mapping[str, Any], source: Address) -> bool:
    return host == source.host and source.port in (ports.get("kv"), ports.get("kvSSL"))
