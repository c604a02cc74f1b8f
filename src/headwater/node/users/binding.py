"""The tie between the proof of the members' secret and the connection that it is made for.

Who is called by a member could pass its login on to another node, or back to the member itself, and keep the session:
SCRAM by itself proves who knows the password, and not to whom. So a member binds its proof to the node it has called:

    over TLS    tls-server-end-point   the hash of the certificate that the called node has shown (RFC 5929, 4)
    without     headwater-address      "NAME ADDRESS": what the cluster map calls that node, where the call has arrived

and the node that was called takes it only if that is its own certificate, or if one of the two is its own: the name by
its map, or the address at which the connection came in (which some address translation may have changed).

Without TLS this is as good as the network: who answers at a member's own address is between the two all the time.

Source: RFC 5802, 6; docs/decisions/0095.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Container
from dataclasses import replace

from headwater.node.users.roles import CLUSTER_USER
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
    """Return a login whose proof counts for the node at the other end of a socket alone, if it is the members' own.

    Args:
        called: the node's name, as the map has it.
    """
    if login.user != CLUSTER_USER:
        return login
    if isinstance(sock, TlsSocket):
        shown = sock.engine.certificate()
        return replace(login, binding=Binding(END_POINT, b"" if shown is None else read_der(shown).end_point))
    return replace(login, binding=Binding(ADDRESS, f"{called} {_text(sock.getpeername())}".encode()))


def sees(sock: TlsSocket | None, called_at: object, names: Container[str], kind: str, data: bytes) -> bool:
    """Return whether a proof that is bound to `data` is for the connection that it came over.

    Args:
        sock: the connection's end of TLS; None without TLS. called_at: the address at which it came in.
        names: what maps call this node.
    """
    if sock is not None:
        end_point = sock.engine.end_point
        return kind == END_POINT and bool(end_point) and data == end_point
    name, _, address = data.decode("utf-8", "replace").partition(" ")
    return kind == ADDRESS and (name in names or (address == _text(called_at) != ""))


def why_for_another(sock: TlsSocket | None, called_at: object, names: Collection[str], data: bytes) -> str:
    """Return, for the log, why `sees` says no, and what to do where nobody passed the login on; arguments as there."""
    if sock is not None:
        return f"{_FOR_ANOTHER}; it is not for the certificate of this node: does something between the two end TLS?"
    whom = data[:_SHOWN_BYTES_MAX].decode("utf-8", "replace")
    known = f"by its map this node is {' or '.join(sorted(names))}" if names else "this node has no map"
    return (
        f'{_FOR_ANOTHER}; it is for "{whom}", and {known}, called at {_text(called_at) or "no address"}: behind a'
        " translation of addresses give it the members' map, or call it by TLS"
    )


def _text(address: object) -> str:
    """A socket's address; empty for a socket without one."""
    if not isinstance(address, tuple):
        return ""
    return str(Address(str(address[0]).removeprefix(_MAPPED), int(address[1])))
