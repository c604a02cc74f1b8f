"""The binding of a login with the members' secret to the connection for which it is made.

A machine that a member calls could pass the member's login on to another node, or back to the member itself, and use
the session: SCRAM alone proves knowledge of the password, but not to which node. So a member binds its proof to the
node that it has called:

    over TLS    tls-server-end-point   the hash of the certificate that the called node has shown (RFC 5929, 4)
    without     headwater-address      "NAME ADDRESS": that node's name in the cluster map, and the called address

The called node accepts the proof only if this is its own certificate, or if one of the two is its own: the name in its
map, or the address at which the connection came in (which an address translation may have changed).

Without TLS this is as safe as the network: a machine that answers at a member's own address is always between the two.

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
"""IPv6's form of an address of IPv4: one end may see the one, and the other the other."""


def bound(login: Login, sock: socket.socket | TlsSocket, called: Address) -> Login:
    """Return a login whose proof is valid only for the node at the other end of a socket, if it is the members' own
    login; return any other login unchanged.

    Args:
        called: the node's name in the map.
    """
    if login.user != CLUSTER_USER:
        return login
    if isinstance(sock, TlsSocket):
        shown = sock.engine.certificate()
        return replace(login, binding=Binding(END_POINT, b"" if shown is None else read_der(shown).end_point))
    return replace(login, binding=Binding(ADDRESS, f"{called} {_text(sock.getpeername())}".encode()))


def sees(sock: TlsSocket | None, called_at: object, names: Container[str], kind: str, data: bytes) -> bool:
    """Return True if a proof bound to `data` is for the connection over which it came.

    Args:
        sock: this node's end of TLS; None without TLS. called_at: the address at which the connection came in.
        names: this node's names in the maps.
    """
    if sock is not None:
        end_point = sock.engine.end_point
        # An empty end point matches nothing: two ends without a certificate would otherwise agree.
        return kind == END_POINT and bool(end_point) and data == end_point
    name, _, address = data.decode("utf-8", "replace").partition(" ")
    return kind == ADDRESS and (name in names or (address == _text(called_at) != ""))


def why_for_another(sock: TlsSocket | None, called_at: object, names: Collection[str], data: bytes) -> str:
    """Return, for the log, the reason why `sees` returns False, and the remedy if the login was not passed on; the
    arguments are those of `sees`.
    """
    if sock is not None:
        return f"{_FOR_ANOTHER}; it is not for the certificate of this node: does something between the two end TLS?"
    whom = data[:_SHOWN_BYTES_MAX].decode("utf-8", "replace")
    known = f"by its map this node is {' or '.join(sorted(names))}" if names else "this node has no map"
    return (
        f'{_FOR_ANOTHER}; it is for "{whom}", and {known}, called at {_text(called_at) or "no address"}: behind a'
        " translation of addresses give it the members' map, or call it by TLS"
    )


def _text(address: object) -> str:
    """Return a socket's address; empty for a socket without one."""
    if not isinstance(address, tuple):
        return ""
    return str(Address(str(address[0]).removeprefix(_MAPPED), int(address[1])))
