"""Call another node: open a connection, then run one of the conversations of protocol/handshake."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

from headwater.errors import ConnectionLost, HeadwaterError, TlsError
from headwater.protocol.handshake import Agreed, Conversation, Handshake
from headwater.tls.socket import TlsSocket
from headwater.transport.backoff import Backoff
from headwater.transport.channel import refuse_itself

RECEIVE_BYTES = 1 << 16
ADDRESS_SECONDS_MAX = 1.0
"""The time for a connection to each address of a host except the last; the caller limits the time for the last one."""
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ProducerAddress:
    """A producer's address and bucket, and the login for it.

    Attributes:
        host: its host.
        port: its port without TLS, which identifies it together with `host`.
        bucket: the bucket.
        user: the user to log in as; None for a producer without users.
        password: the user's password; None without a user.
        tls_port: its port for TLS; None to connect without TLS.
    """

    host: str
    port: int
    bucket: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls_port: int | None = None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}/{self.bucket}"


class FollowProgress(NamedTuple):
    """The progress of the vbuckets that follow a producer.

    Attributes:
        open: the number of vbuckets that have a stream.
        waiting: the number of vbuckets that wait for a stream.
        behind_changes: the number of seqnos in announced snapshots that have not come yet.
        silent_seconds: the seconds since the producer's last message; a producer sends one at least every five seconds.
    """

    open: int
    waiting: int
    behind_changes: int
    silent_seconds: float


class TlsEnd(Protocol):
    """Creates the client's end of TLS connections."""

    def call(self, sock: socket.socket, host: str, peer: str) -> TlsSocket:
        """Return TLS over a connected socket; the peer's certificate must contain the name `host`."""


async def call(
    loop: asyncio.AbstractEventLoop, host: str, port: int, tls_port: int | None, tls: TlsEnd | None
) -> socket.socket | TlsSocket:
    """Connect to a node, and complete the TLS handshake if `tls_port` is not None.

    Args:
        loop: the event loop.
        host: the node's host.
        port: its port without TLS.
        tls_port: its port for TLS; None to connect without TLS.
        tls: this node's TLS; None if it has none.

    Raises:
        TlsError: `tls` is None although TLS is needed, or the handshake failed.
        OSError: no node answers.
    """
    if tls_port is None:
        return await connect(loop, host, port)
    peer = f"{host}:{tls_port}"
    if tls is None:
        raise TlsError(peer, "it is to be called by TLS, and this node has no --tls-certificate")
    wrapped = tls.call(await connect(loop, host, tls_port), host, peer)
    try:
        while not wrapped.shake():
            await _ready(loop, wrapped)
    except BaseException:
        wrapped.close()
        raise
    return wrapped


async def _ready(loop: asyncio.AbstractEventLoop, sock: TlsSocket) -> None:
    """Wait until the socket has bytes to read, or, if encrypted bytes wait, room for them."""
    descriptor, woken = sock.fileno(), loop.create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    loop.add_reader(descriptor, wake)
    if sock.unsent_bytes:
        loop.add_writer(descriptor, wake)
    try:
        await woken
    finally:
        loop.remove_reader(descriptor)
        loop.remove_writer(descriptor)


async def connect(loop: asyncio.AbstractEventLoop, host: str, port: int) -> socket.socket:
    """Return a non-blocking socket that is connected to the first address of a host that answers. Raises OSError if no
    address answers.
    """
    try:
        addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:  # a part of the name is empty, too long or has invalid characters
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known") from None
    *others, last = ((family, address) for family, _, _, _, address in addresses)
    for family, address in others:
        with suppress(OSError):  # TimeoutError is one
            async with asyncio.timeout(ADDRESS_SECONDS_MAX):
                return await _connected(loop, family, address)
    return await _connected(loop, *last)


async def _connected(loop: asyncio.AbstractEventLoop, family: int, address: Any) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await loop.sock_connect(sock, address)
        refuse_itself(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


async def converse(
    loop: asyncio.AbstractEventLoop, sock: socket.socket | TlsSocket, conversation: Conversation[Result], peer: str
) -> Result:
    """Run a conversation over a socket; return its result.

    Raises:
        ConnectionLost: the peer closed the connection.
        HeadwaterError: the conversation failed.
    """
    end = Handshake(conversation)
    while True:
        if request := end.data_to_send():  # sending no bytes would fail on a socket that the peer has closed
            await _send(loop, sock, request)
        data = await _receive(loop, sock)
        for event in end.receive_data(data, loop.time()) if data else end.receive_eof():
            if isinstance(event, Agreed):
                return event.result
            raise ConnectionLost(peer, "it hung up before the connection was set up")


async def keep_asking(
    ask: Callable[[], Awaitable[None]],
    failed: Callable[[Exception], None],
    backoff: Backoff,
    again_seconds: float = 0.0,
    pausing: Callable[[float], Awaitable[None]] | None = None,
) -> None:
    """Send a request to another node again and again, until this task is cancelled.

    Args:
        ask: sends the request once, and handles the answer.
        failed: called with the OSError, TimeoutError or HeadwaterError of a failed attempt.
        backoff: the pauses after failed attempts; reset after a successful attempt.
        again_seconds: the longest pause after a successful attempt.
        pausing: waits for so many seconds, or less; None for asyncio.sleep.
    """
    again = Backoff(again_seconds, again_seconds)  # random pauses, so that the nodes of a cluster do not ask at once
    while True:
        try:
            await ask()
        except (OSError, TimeoutError, HeadwaterError) as error:
            failed(error)
            pause = backoff.next_seconds()
        else:
            backoff.reset()
            pause = again.next_seconds()
        await (pausing or asyncio.sleep)(pause)


async def _send(loop: asyncio.AbstractEventLoop, sock: socket.socket | TlsSocket, data: bytes) -> None:
    if not isinstance(sock, TlsSocket):
        await loop.sock_sendall(sock, data)
        return
    rest = memoryview(data)
    while rest or not sock.flush():
        try:
            rest = rest[sock.send(rest) :]
        except BlockingIOError:
            await _ready(loop, sock)


async def _receive(loop: asyncio.AbstractEventLoop, sock: socket.socket | TlsSocket) -> bytes:
    if not isinstance(sock, TlsSocket):
        return await loop.sock_recv(sock, RECEIVE_BYTES)
    room = memoryview(bytearray(RECEIVE_BYTES))
    while True:
        try:
            return bytes(room[: sock.recv_into(room)])
        except BlockingIOError:
            await _ready(loop, sock)
