"""By which of its addresses a client finds a node: those that nodes have among themselves, or *alternate* ones.

A cluster behind a port mapping (containers, a cloud's private network) tells in its map under which names and ports it
is reached from outside, network by network, as a rule one that is called "external":

    nodesExt[i].alternateAddresses.<network>.hostname, .ports.kv, .ports.kvSSL

Ports that are left out altogether are the node's own. Source: what Couchbase's `setting-alternate-address` makes; the
SDKs' option `network`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headwater.wire.address import Address

__all__ = ["AUTO", "DEFAULT", "as_seen_from"]

AUTO, DEFAULT = "auto", "default"
"""Find out by the address that worked; the addresses that nodes have among themselves."""


def as_seen_from(content: Mapping[str, Any], source: Address, network: str = AUTO) -> Mapping[str, Any]:
    """Return a map's JSON with the nodes' names and ports in a network.

    With AUTO it is the network in which the node that the map was fetched from is called what we called it. Whoever
    chose once is answered by addresses of that network from then on, so it stays with it.

    Args:
        content: the JSON.
        source: where it was fetched from.
        network: its name, AUTO or DEFAULT.

    Raises:
        ValueError: a node has no address, or no port, in that network.
    """
    entries = content.get("nodesExt", ())
    if not any("alternateAddresses" in entry for entry in entries) and network in (AUTO, DEFAULT):
        return content
    chosen = _network_of(entries, source) if network == AUTO else network
    if chosen == DEFAULT:
        return content
    return {**content, "nodesExt": [_in_network(entry, chosen) for entry in entries]}


def _network_of(entries: Any, source: Address) -> str:
    """The network in which some node has this address; its own names come first, as with the SDKs."""
    for entry in entries:
        if _is_at(entry.get("hostname", source.host), entry.get("services", {}), source):
            return DEFAULT
    for entry in entries:
        for name, told in _alternates(entry):
            if _is_at(told.get("hostname"), told.get("ports") or entry.get("services", {}), source):
                return name
    return DEFAULT


def _in_network(entry: Mapping[str, Any], network: str) -> dict[str, Any]:
    found = dict(_alternates(entry))
    if network not in found:
        known = ", ".join(sorted({DEFAULT, *found}))
        raise ValueError(
            f'{entry.get("hostname", "a node")} has no address in the network "{network}", but in: {known}'
        )
    told = found[network]
    ports = told.get("ports") or entry.get("services", {})
    if not {"kv", "kvSSL"} & ports.keys():
        raise ValueError(f'{told["hostname"]} has no port for key-value in the network "{network}"')
    return {**entry, "hostname": told["hostname"], "services": ports}


def _alternates(entry: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield from entry.get("alternateAddresses", {}).items()


def _is_at(host: object, ports: Mapping[str, Any], source: Address) -> bool:
    return host == source.host and source.port in (ports.get("kv"), ports.get("kvSSL"))
