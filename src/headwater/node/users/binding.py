"""The binding of a login with the members' secret to the connection for which it is made.

A machine that a member calls could pass the member's login on to another node, or back to the member itself, and then
use that session: SCRAM alone proves that the client knows the password, but not for which node the proof is meant. So a
member binds its proof to the node that it has called:

    over TLS    tls-server-end-point   the hash of the certificate that the called node has shown (RFC 5929, 4)
    without     headwater-address      "NAME ADDRESS": that node's name in the cluster map, and the called address

Over TLS the called node accepts the proof only if the hash is that of its own certificate. Without TLS it accepts the
proof only if the name is its own in its map, or the address is the one at which the connection arrived; one of them is
enough, because a translation of addresses may have changed the address.

Without TLS the binding is only as safe as the network: it does not stop a machine that has taken over a member's
address.

Source: RFC 5802, 6; docs/decisions/0095.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Container
from dataclasses import replace

from headwater.accounts.roles import CLUSTER_USER
from headwater.protocol.handshake import Login
from headwater.protocol.scram import Binding
from headwater.tls.certificates import read_der
from headwater.tls.socket import TlsSocket
from headwater.wire.address import Address

__all__ = ["ADDRESS", "END_POINT", "bound", "sees", "why_for_another"]

END_POINT = "tls-server-end-point"
ADDRESS = "headwater-address"
_FOR_ANOTHER = "a proof that was made for another node, or passed on"
_SHOWN_BYTES_MAX = 300
_MAPPED = "::ffff:"
"""The prefix of an IPv4 address in its IPv6 form: the two ends of a connection may see different forms."""


def bound(login: Login, sock: socket.socket | TlsSocket, called: Address) -> Login:
    """Return a login whose proof is valid only for the node at the other end of a socket.

    Only the login of members is bound; any other login is returned unchanged.

    Args:
        login: the login.
        sock: the connection to the node.
        called: the node's address in the map, by which it is named.
    """
    if login.user != CLUSTER_USER:
        return login
    if isinstance(sock, TlsSocket):
        certificate = sock.engine.certificate()
        return replace(
            login, binding=Binding(END_POINT, b"" if certificate is None else read_der(certificate).end_point)
        )
    return replace(login, binding=Binding(ADDRESS, f"{called} {_text(sock.getpeername())}".encode()))


def sees(sock: TlsSocket | None, called_at: object, names: Container[str], kind: str, data: bytes) -> bool:
    """Return True if a proof that a client has bound is meant for the connection on which it arrived.

    Args:
        sock: this node's end of TLS; None without TLS.
        called_at: this node's address on the connection.
        names: this node's names in the maps.
        kind: the kind of the binding, END_POINT or ADDRESS.
        data: the client's view of the connection, to which the proof is bound.
    """
    if sock is not None:
        end_point = sock.engine.end_point
        # An empty end point matches nothing: two ends without a certificate would otherwise agree.
        return kind == END_POINT and bool(end_point) and data == end_point
    name, _, address = data.decode("utf-8", "replace").partition(" ")
    return kind == ADDRESS and (name in names or (address == _text(called_at) != ""))


def why_for_another(sock: TlsSocket | None, called_at: object, names: Collection[str], data: bytes) -> str:
    """Return the reason why `sees` has returned False, for the log, with the remedy if nobody has passed the login on.

    Args:
        sock: as for `sees`.
        called_at: as for `sees`.
        names: as for `sees`.
        data: as for `sees`.
    """
    if sock is not None:
        return f"{_FOR_ANOTHER}; it is not for the certificate of this node: does something between the two end TLS?"
    whom = data[:_SHOWN_BYTES_MAX].decode("utf-8", "replace")
    own_names = f"by its map this node is {' or '.join(sorted(names))}" if names else "this node has no map"
    return (
        f'{_FOR_ANOTHER}; it is for "{whom}", and {own_names}, called at {_text(called_at) or "no address"}: behind a'
        " translation of addresses give it the members' map, or call it by TLS"
    )


def _text(address: object) -> str:
    """Return a socket's address as text; empty for a socket that has no address of a network."""
    if not isinstance(address, tuple):
        return ""
    return str(Address(str(address[0]).removeprefix(_MAPPED), int(address[1])))
