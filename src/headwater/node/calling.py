"""Calling another node: connect, then have one of protocol/handshake's conversations."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field
from typing import TypeVar

from headwater.errors import ConnectionLost
from headwater.protocol.handshake import Agreed, Conversation, Handshake

RECEIVE_BYTES = 1 << 16
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ProducerAddress:
    """A producer: where it listens, which bucket, and as whom to log in (None: it lets everybody in)."""

    host: str
    port: int
    bucket: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}/{self.bucket}"


async def connect(loop: asyncio.AbstractEventLoop, host: str, port: int) -> socket.socket:
    """Open a non-blocking socket to a node; OSError when nobody answers there."""
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, address = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        await loop.sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


async def converse(
    loop: asyncio.AbstractEventLoop, sock: socket.socket, conversation: Conversation[Result], peer: str
) -> Result:
    """Have a conversation over a socket.

    Raises:
        ConnectionLost: the peer hung up; and what the conversation raises.
    """
    end = Handshake(conversation)
    while True:
        if request := end.data_to_send():  # to send nothing would be an error on a socket that the peer has closed
            await loop.sock_sendall(sock, request)
        data = await loop.sock_recv(sock, RECEIVE_BYTES)
        for event in end.receive_data(data, loop.time()) if data else end.receive_eof():
            if isinstance(event, Agreed):
                return event.result
            raise ConnectionLost(peer, "it hung up before the connection was set up")
