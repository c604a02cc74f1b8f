"""One connection to one node: opened, greeted, and then used frame by frame or by a drain.

All methods with `yield` are step generators (transport/waiting.py): they yield what they wait for. Every wait has a
deadline, so a node that accepts and then is silent is an error, never a hang.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from headwater.client.routing import Address
from headwater.errors import CertificateRefused, ConnectionLost, HeadwaterError, PeerSilent, TlsError
from headwater.protocol.handshake import Conversation, Greeting, Login, expect, greet
from headwater.tls.certificates import read_der
from headwater.tls.engine import TlsEngine
from headwater.tls.settings import TlsSettings
from headwater.tls.words import next_step
from headwater.transport.channel import Channel, SocketAddress
from headwater.transport.inbox import Inbox
from headwater.transport.waiting import Ready, Resolve, Signal, Steps
from headwater.wire.bootstrap import Stat
from headwater.wire.header import HEADER_BYTES, Frame, lengths
from headwater.wire.opcodes import Opcode

Result = TypeVar("Result")
NONCE_BYTES = 18
ADDRESS_SECONDS_MIN = 1.0
"""The shortest time for each of several addresses of a host."""


class Link:
    """A connection to a node, from before its opening until it is closed.

    Args:
        tls: trusted CAs and the client's certificate; None for a connection without TLS.

    Attributes:
        address: the node.
        greeting: results of `open`.
        inbox: received bytes.
        heard_at: time of the last arrival.
    """

    def __init__(self, address: Address, clock: Callable[[], float], tls: TlsSettings | None = None) -> None:
        self.address: Address = address
        self.clock: Callable[[], float] = clock
        self.tls: TlsSettings | None = tls
        self.inbox: Inbox = Inbox()
        self.greeting: Greeting = Greeting(frozenset(), None)
        self._channel: Channel | None = None
        self.heard_at: float = clock()
        self._opaque = 0

    @property
    def channel(self) -> Channel:
        """The socket.

        Raises:
            ConnectionLost: the link is not open.
        """
        if self._channel is None or self._channel.fileno() < 0:
            raise ConnectionLost(str(self.address), "the connection is closed")
        return self._channel

    @property
    def is_open(self) -> bool:
        """True if there is a connection."""
        return self._channel is not None and self._channel.fileno() >= 0

    def close(self) -> None:
        """Close the connection; may be called again."""
        if self._channel is not None:
            self._channel.close()

    def open(self, login: Login, timeout_seconds: float) -> Steps[None]:
        """Connect and greet, all of it within the timeout.

        Raises:
            TransportError: no connection, or no answer in time; CertificateRefused: the node is not to be trusted.
            StatusError, RemoteProtocolError: as `greet`. OptionError: a file of TLS can't be read.
        """
        deadline = self.clock() + timeout_seconds
        try:
            yield from self._connect(deadline)
            new_login = replace(login, nonce=secrets.token_urlsafe(NONCE_BYTES))
            self.greeting = yield from self.converse(greet(new_login), deadline)
        except BaseException:
            self.close()
            raise

    def _connect(self, deadline: float) -> Steps[None]:
        targets = yield Resolve(*self.address)
        if isinstance(targets, OSError):
            raise ConnectionLost(str(self.address), targets.strerror or str(targets)) from None
        last_error: ConnectionLost | PeerSilent | TlsError | None = None
        for number, target in enumerate(targets):
            # One address that swallows all that comes, as IPv6 often does where it is half set up, must leave time for
            # the others.
            now = self.clock()
            share = (deadline - now) / (len(targets) - number)
            try:
                yield from self._reach(target, self.tls, min(deadline, now + max(share, ADDRESS_SECONDS_MIN)))
            except TlsError as error:
                # An error of the certificate, not of the connection: other addresses of the name would show the same
                # one.
                if error.code:
                    raise (yield from self._certificate_error(error, target, deadline)) from None
                last_error = error
            except (ConnectionLost, PeerSilent) as error:
                last_error = error
            else:
                return
        raise last_error or ConnectionLost(str(self.address), "the name has no address")

    def _reach(self, target: SocketAddress, tls: TlsSettings | None, deadline: float) -> Steps[None]:
        engine = None if tls is None else TlsEngine(tls.context(), is_server=False, host=self.address.host)
        self._channel = Channel(str(self.address), target, engine)
        while not self._channel.connected():
            yield from self.wait(deadline)

    def _certificate_error(self, error: TlsError, target: SocketAddress, deadline: float) -> Steps[CertificateRefused]:
        """Return the error for a certificate that is not trusted, with a description of the certificate.

        The certificate is fetched over another connection without verification, since OpenSSL does not keep a refused
        one. No request is sent on that connection.
        """
        description = "which it shows no more"
        try:
            yield from self._reach(target, TlsSettings(verify="none"), deadline)
            der = None if self.channel.tls is None else self.channel.tls.engine.certificate()
            description = description if der is None else str(read_der(der))
        except (HeadwaterError, ValueError):
            pass
        self.close()
        return CertificateRefused(
            error.peer, f"{error.reason}; it is {description}{next_step(error.code, self.address.host)}", error.code
        )

    def check(self, deadline: float) -> None:
        """Check that the deadline lies in the future.

        Raises:
            PeerSilent: the deadline has passed; the connection is closed.
        """
        now = self.clock()
        if now >= deadline:
            self.close()
            raise PeerSilent(str(self.address), now - self.heard_at)

    def wait(self, deadline: float, signal: Signal | None = None, wake_at: float | None = None) -> Steps[None]:
        """Wait for the channel, for `signal` or until `wake_at`, whichever comes first; PeerSilent at the deadline."""
        self.check(deadline)
        yield Ready((self.channel,), deadline if wake_at is None else min(deadline, wake_at), signal)

    def converse(self, conversation: Conversation[Result], deadline: float) -> Steps[Result]:
        """Run a conversation of requests and answers; return its result."""
        try:
            request = next(conversation)
            while True:
                answer = yield from self.ask(request, deadline)
                request = conversation.send(answer)
        except StopIteration as stop:
            result: Result = stop.value
            return result

    def ask(self, request: Frame, deadline: float) -> Steps[Frame]:
        """Send one request and return its answer; no-ops of the peer are answered meanwhile."""
        self._opaque = (self._opaque + 1) & 0xFFFF_FFFF
        numbered = replace(request, opaque=self._opaque)
        self.channel.send(numbered.encode())
        while True:
            frame = yield from self.frame(deadline)
            if frame.is_response or frame.opcode != Opcode.DCP_NOOP:
                return expect(numbered, frame)
            # A no-op of the peer may come before the answer, and a peer without its answer hangs up (dcp 2.13).
            self.channel.send(replace(frame, magic=0x81).encode())

    def statistics(self, group: str, deadline: float) -> Steps[dict[str, str]]:
        """Return a group of statistics; empty if the node has no such group, or refuses it to our user."""
        stats: dict[str, str] = {}
        answer = yield from self.ask(Stat(key=group.encode()).frame(), deadline)
        while not answer.status and (answer.key or answer.value):
            stats[answer.key.decode(errors="replace")] = answer.value.decode(errors="replace")
            answer = yield from self.frame(deadline)
        return {} if answer.status else stats

    def frame(self, deadline: float) -> Steps[Frame]:
        """Wait for the next whole frame. Errors as `receive`."""
        while (frame := self.next_frame()) is None:
            yield from self.receive(deadline)
        return frame

    def next_frame(self) -> Frame | None:
        """Take the next whole frame out of the inbox, None when there is none.

        Raises:
            BadFrame: the bytes are no frames.
        """
        unread = self.inbox.unread
        if len(unread) < HEADER_BYTES:
            return None
        size = lengths(unread).frame
        if len(unread) < size:
            return None
        frame = Frame.decode(unread[:size])
        self.inbox.consume(size)
        return frame

    def receive(self, deadline: float, signal: Signal | None = None, wake_at: float | None = None) -> Steps[None]:
        """Receive available bytes into the inbox; if there are none, wait once. Bytes that wait to be sent go out
        meanwhile.

        The caller checks again for its frame: another task on this connection may have read it.

        Raises:
            ConnectionLost: the peer closed the connection.
            PeerSilent: nothing came until the deadline.
        """
        count = self.fill()
        if count is None:
            self.channel.flush()
            yield from self.wait(deadline, signal, wake_at)
        elif count == 0:
            self.close()
            raise ConnectionLost(str(self.address), "the node closed the connection")

    def fill(self, byte_count: int = 0) -> int | None:
        """Receive the bytes available now; as `Inbox.fill`."""
        unread = self.inbox.unread
        if not byte_count and len(unread) >= HEADER_BYTES:
            # Room for the whole frame that has begun: else a large one would never fit.
            byte_count = lengths(unread).frame
        count = self.inbox.fill(self.channel, byte_count or HEADER_BYTES)
        if count:
            self.heard_at = self.clock()
        return count
