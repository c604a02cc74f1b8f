"""The addresses on which a node listens, and the sockets bound to them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

from headwater.errors import OptionError
from headwater.node.config import NodeConfig
from headwater.node.connections.loopback import loopback_like

__all__ = ["address_error", "bound", "queue_up", "try_addresses"]

SOCKET_BUFFER_BYTES = 1 << 20
BACKLOG = 1024


def bound(option: str, host: str, port: int, check: Callable[[str], None] = lambda host: None) -> socket.socket:
    """Return a socket bound to an address; `check` may refuse the address once its name is looked up.

    Raises:
        OptionError: the address can't be bound; the error names the option.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, _, _, address = addresses[0]
        check(str(address[0]))
        listener = socket.socket(family, kind)
    except UnicodeError:
        raise address_error(option, host, port, OSError("it is no name")) from None
    except OSError as error:
        raise address_error(option, host, port, error) from None
    try:
        # A node that is started again at once must get its port although old connections are in TIME_WAIT.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise address_error(option, host, port, error) from None
    return listener


def queue_up(listener: socket.socket, option: str, host: str, port: int) -> None:
    """Listen on a bound socket; accepted connections inherit its buffer sizes.

    Raises:
        OptionError: another process has the address; the error names the option.
    """
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
    try:
        listener.listen(BACKLOG)  # fails if another process has bound the same address and listens already
    except OSError as error:
        listener.close()
        raise address_error(option, host, port, error) from None
    listener.setblocking(False)


def address_error(option: str, host: str, port: int, error: OSError) -> OptionError:
    """Return the error for an address that can't be bound."""
    return OptionError(option, f"{host}:{port}", f"an address to listen on ({error.strerror or error})")


def try_addresses(config: NodeConfig) -> None:
    """Bind each address for a moment, to report a bad one before the store is opened and kernels are compiled.

    Raises: as `bound`.
    """
    for option, host, port in _wanted(config):
        bound(option, host, port).close()


def _wanted(config: NodeConfig) -> Iterator[tuple[str, str, int]]:
    host = config.host if config.without_tls == "anywhere" else loopback_like(config.host)
    if config.without_tls != "nobody":
        yield "port", host, config.port
    if config.tls_certificate:
        yield "tls-port", config.host, config.tls_port
    if config.http_port >= 0:
        yield "http-port", host, config.http_port
