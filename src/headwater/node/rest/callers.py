"""The requests by HTTP that are refused for where they come from: a page in somebody's browser can send them, too.

What another page sends changes nothing (403), login or not: a browser keeps the login of who has read a page here.
And a node without users, which lets everybody in who reaches it, is called by its own names alone (421): any other may
be a page's that has its name resolve to this machine, and could read and drop all that there is. With users a foreign
name is of no use, since a browser sends a login to the name for which it was typed; so clients may use names that a
node does not know.

On the loopback own names are the machine's there; on a network, with --insecure, addresses and names without a dot,
which nobody can have registered, too. And everywhere what the options, the certificate and the cluster map call it.

Source: docs/decisions/0096.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from ipaddress import ip_address
from typing import TYPE_CHECKING

from headwater.node.connections.loopback import is_loopback
from headwater.protocol.browser import LOOPBACK, READING, is_own, name_of

if TYPE_CHECKING:
    from headwater.node.kv.api import Services
    from headwater.node.rest.request import HttpRequest

__all__ = ["Unwelcome", "unwelcome"]


class Unwelcome(Exception):  # noqa: N818 - becomes an answer
    """A request that is refused for where it comes from: the status that says so, and why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def unwelcome(server: Services, request: HttpRequest, *, by_tls: bool) -> Unwelcome | None:
    """Return why a request is refused for where it comes from; None if it is not."""
    host = request.host or ""
    if request.method not in READING and not is_own(host, request.origin, request.site, "https" if by_tls else "http"):
        return Unwelcome(403, "another page sent this; nothing was done")
    if request.host is not None and not server.users.required and not is_own_name(server, name_of(host)):
        return Unwelcome(
            421, "a node without users is called by its address, or by a name that it knows; with users by any"
        )
    return None


def is_own_name(server: Services, name: str) -> bool:
    """Return whether a name, as a Host field has it, is this node's."""
    bare = name.removeprefix("[").removesuffix("]").rstrip(".")
    if name in LOOPBACK or bare.endswith(".localhost") or is_loopback(bare):
        return True
    listens_to_others = server.config.host != "localhost" and not is_loopback(server.config.host)
    if listens_to_others and (_is_address(bare) or "." not in bare):
        return True
    rest = bare.partition(".")[2]
    return not {bare, f"*.{rest}"}.isdisjoint(each.lower() for each in _names(server))


def _names(server: Services) -> Iterable[str]:
    """Yield the names that the options, the machine, the certificate and the maps have for this node."""
    yield from (server.config.host, socket.gethostname())
    if server.tls is not None:
        yield from (*server.tls.certificate.dns_names, *server.tls.certificate.addresses)
    for each in server.buckets.values():
        if (known := each.membership.map) is not None and known.here is not None:
            yield known.here.host


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
