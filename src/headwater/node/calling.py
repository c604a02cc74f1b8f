"""Calling another node: connect, then have one of protocol/handshake's conversations."""

from __future__ import annotations

import asyncio
import socket
from typing import TypeVar

from headwater.errors import ConnectionLost
from headwater.protocol.handshake import Conversation, expect
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame

RECEIVE_BYTES = 1 << 16
Result = TypeVar("Result")


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
    buffer = FrameBuffer()
    try:
        asked = next(conversation)
        while True:
            await loop.sock_sendall(sock, asked.encode())
            frames: list[Frame] = []
            while not frames:
                data = await loop.sock_recv(sock, RECEIVE_BYTES)
                if not data:
                    raise ConnectionLost(peer, "it hung up before the connection was set up")
                frames = buffer.receive_data(data)
            asked = conversation.send(expect(asked, frames[0]))
    except StopIteration as done:
        result: Result = done.value
        return result
