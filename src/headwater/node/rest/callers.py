"""Refuses HTTP requests that may come from a web site's page in a user's browser.

A request from another site's page is refused (403), with or without a login: a browser keeps the login of a user who
has read a page of the node, and adds it to such a request.

A node without users, which needs no login, also refuses requests to a name that is not its own (421). Such a name may
belong to a web site that lets it resolve to this machine; its page could then read and drop everything. A node with
users accepts any name, because a browser sends a login only to the name for which it was entered.

A node's own names are those in its options, its certificate and its cluster maps, and the machine's loopback names. For
a node that listens on a network (--insecure) they also include addresses, and names without a dot, which nobody can
have registered.

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
    """The refusal of a request because of its origin, with the reason.

    Attributes:
        status: the HTTP status of the answer.
    """

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def unwelcome(server: Services, request: HttpRequest, *, by_tls: bool) -> Unwelcome | None:
    """Return the refusal of a request because of its origin; None if the request is allowed."""
    host = request.host or ""
    if request.method not in READING and not is_own(host, request.origin, request.site, "https" if by_tls else "http"):
        return Unwelcome(403, "another page sent this; nothing was done")
    # A request without the field Host does not come from a browser.
    if request.host is not None and not server.users.required and not is_own_name(server, name_of(host)):
        return Unwelcome(
            421, "a node without users is called by its address, or by a name that it knows; with users by any"
        )
    return None


def is_own_name(server: Services, name: str) -> bool:
    """Return True if the name in a field Host is one of this node's."""
    bare = name.removeprefix("[").removesuffix("]").rstrip(".")
    if name in LOOPBACK or bare.endswith(".localhost") or is_loopback(bare):
        return True
    listens_to_others = server.config.host != "localhost" and not is_loopback(server.config.host)
    if listens_to_others and (_is_address(bare) or "." not in bare):
        return True
    rest = bare.partition(".")[2]
    return not {bare, f"*.{rest}"}.isdisjoint(each.lower() for each in _names(server))


def _names(server: Services) -> Iterable[str]:
    """Yield this node's names in its options, its certificate and its cluster maps, and the machine's name."""
    yield from (server.config.host, socket.gethostname())
    if server.tls is not None:
        yield from (*server.tls.certificate.dns_names, *server.tls.certificate.addresses)
    for bucket in server.buckets.values():
        if (cluster_map := bucket.membership.map) is not None and cluster_map.here is not None:
            yield cluster_map.here.host


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
