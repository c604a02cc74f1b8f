"""A TAP client: a node's messages one by one, acknowledged as they are processed.

    with tap.connect("couchbase://127.0.0.1/default", name="cache") as stream:
        for message in stream:
            ...

The last returned message is acknowledged at the next call, and never before: unprocessed messages come again. So do
those that an interrupt (Ctrl-C) kept from the caller. A named stream reconnects under its name; a node that keeps
sessions (`--tap-keep-alive-seconds`) continues after the last acknowledged message, another begins anew with its
backfill. One stream reads one node, the first of the address. Source: tap.md 1, 3, 4.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from headwater.client.interruptions import noting_interruptions
from headwater.client.link import Link
from headwater.client.nodes import ConnectSettings
from headwater.client.settings import settings_for
from headwater.errors import ConnectionLost, LocalProtocolError, StatusError, TransportError, error_for
from headwater.protocol.tap.consumer import (
    SILENCE_SECONDS_MAX,
    ConnectRefused,
    Received,
    TapConsumer,
    TapMessage,
    expected,
)
from headwater.protocol.tap.options import NOW, TapOptions
from headwater.transport import blocking
from headwater.transport.backoff import LONGEST_SECONDS, Backoff
from headwater.transport.waiting import Ready, Steps
from headwater.wire.header import Frame
from headwater.wire.status import Status
from headwater.wire.tap import asks_for_answer

__all__ = ["NOW", "TapStream", "closed_checkpoints", "connect", "relay"]


@dataclass(slots=True)
class PutOff:
    """A series of temporary refusals: the time of the last one, the delays between attempts, and the time to give
    up.
    """

    at: float
    backoff: Backoff
    give_up: float


class TapStream:
    """A TAP connection to one node: an iterator of messages (headwater.wire.tap), and a context manager.

    Args:
        settings: the address and the login. options: the stream to request.
        patience_seconds: how long to try to reconnect; 0 for not at all.
        on_gap: called if changes may be missing between the last returned message and the next one.

    Attributes:
        frame: the last returned message as a frame.
        reconnects: number of reconnections.
        gaps: number of reconnections that may have lost changes: drop copies of the data then.
    """

    def __init__(
        self,
        settings: ConnectSettings,
        options: TapOptions,
        *,
        patience_seconds: float,
        on_gap: Callable[[], None] = lambda: None,
    ) -> None:
        self.options = options
        self.reconnects: int = 0
        self.gaps: int = 0
        self.frame: Frame | None = None
        self._settings = settings
        self._patience_seconds = patience_seconds
        self._on_gap = on_gap
        self._was_open = False
        self._postponement: PutOff | None = None
        self._link: Link | None = None
        self._consumer = TapConsumer()
        self._torn = self._is_spoiled = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the last returned message stays unacknowledged."""
        self.frame = None
        if self._link is not None:
            self._link.close()
            self._link = None

    def open(self) -> None:
        """Connect and ask for the stream now; iterating does it as well."""
        blocking.run(self._open(), self._settings.clock)

    def __iter__(self) -> Iterator[TapMessage]:
        """Iterate over what `next` returns, all iterators together."""
        return self

    def __next__(self) -> TapMessage:
        """Return the next message; ends when the node has closed a dump or takeover.

        Raises:
            TransportError: the connection is lost, and could not be opened again in time. A dump or takeover is not
                begun again, and ends normally only when all of its vbuckets came.
            StatusError: the node does not support TAP, or refuses these options. After a temporary refusal the stream
                tries again.
        """
        try:
            message = self.next()
            if message is None:
                raise StopIteration
            return message
        except BaseException:
            self._give_up_torn()
            raise

    def next(self, timeout_seconds: float | None = None) -> TapMessage | None:
        """Return the next message; None at the end of a dump or takeover, or if none came within the timeout.

        KeyboardInterrupt may come at any point. While the stream waits it loses nothing, and the next call continues;
        at other points a message may be lost on its way to the caller, and comes again over a new connection.

        Raises:
            LocalProtocolError: a dump or takeover was interrupted at such a point, and is not begun again.
        """
        self._torn = False  # whatever was returned has reached the caller
        try:
            return self._next_message(timeout_seconds)
        except BaseException:
            self._give_up_torn()
            raise

    def _give_up_torn(self) -> None:
        """Close the connection if an interruption lost a message: the next call would acknowledge that message."""
        if self._torn:
            self._is_spoiled = self.options.ends
            self.close()

    def _next_message(self, timeout_seconds: float | None) -> TapMessage | None:
        """Return the next message; connect again, as often as patience allows, when the connection is lost."""
        clock = self._settings.clock
        until = None if timeout_seconds is None else clock() + timeout_seconds
        if self._is_spoiled:
            raise LocalProtocolError("this stream was interrupted in the middle of its work; begin another one")
        while True:
            try:
                message = blocking.run(noting_interruptions(self, self._next(until)), clock)
            except (TransportError, StatusError) as error:
                was_open = self._link is not None
                self.close()
                if self.options.ends and was_open and isinstance(error, ConnectionLost):
                    self._handle_close(error)
                    return None
                if self.options.ends or not self._patience_seconds or not error.retriable:
                    raise
                blocking.run(self._reconnect(error), clock)
            else:
                if message is not None:
                    self._postponement = None
                return message

    def answer(self, status: int = Status.SUCCESS) -> None:
        """Answer the last returned message now.

        ETMPFAIL makes the node send it again later; any other error ends the session for good.
        """
        frame, self.frame = self.frame, None
        if frame is not None and self._link is not None:
            answer = self._consumer.answer(frame, status)
            if answer is not None:
                self._link.channel.send(answer.encode())

    def forward(self, answer: Frame) -> None:
        """Send the node another node's answer to the message with the same opaque."""
        if self.frame is not None and self.frame.opaque == answer.opaque:
            self.frame = None
        if self._link is not None:
            self._link.channel.send(answer.encode())

    # --- inside -----------------------------------------------------------------------------------------------------

    def _open(self) -> Steps[Link]:
        if self._link is None:
            link = Link(self._settings.target.seeds[0], self._settings.clock, self._settings.target.tls)
            try:
                yield from link.open(self._settings.login, self._settings.connect_timeout_seconds)
                expects = (yield from self._expected_vbuckets(link)) if self.options.ends else None
                has_gap = self._was_open and (yield from self._has_gap(link))
                # After the look at the node's sessions: the request itself makes a session, which would look like a
                # kept one.
                link.channel.send(self.options.encode())
            except BaseException:
                link.close()
                raise
            self._consumer, self.frame = TapConsumer(expects, takes_over=self.options.takeover), None
            self._link, self._was_open = link, True
            if has_gap:
                self.gaps += 1
                self._on_gap()
        return self._link

    def _expected_vbuckets(self, link: Link) -> Steps[set[int] | None]:
        """Return the vbuckets that a dump or takeover must complete, since TAP marks its end only by closing; None if
        unknown.
        """
        deadline = link.clock() + self._settings.timeout_seconds
        stats = {} if self.options.takeover else (yield from link.statistics("vbucket-details", deadline))
        return expected(self.options, stats)

    def _has_gap(self, link: Link) -> Steps[bool]:
        """Return True if the stream that is requested again may lack changes.

        A session that the node kept continues after the acknowledged messages, or, without acknowledgements, after the
        messages it sent. A new session begins either with a backfill of everything, which lacks nothing, or with
        changes from now on.
        """
        stats = yield from link.statistics("tap", link.clock() + self._settings.timeout_seconds)
        session = f"eq_tapq:{self.options.name.decode()}:"
        keeps = float(stats.get("ep_tap_keepalive", "0")) > 0 and self.options.name
        if keeps and any(key.startswith(session) for key in stats):
            return not self.options.acknowledge
        return not self.options.wants_backfill(int(time.time()))

    def _handle_close(self, error: ConnectionLost) -> None:
        """Handle the closed connection of a dump or takeover.

        Raises:
            ConnectionLost: some of its vbuckets were not complete.
        """
        consumer = self._consumer
        if consumer.is_whole:
            return
        incomplete, kind = sorted(consumer.missing), "takeover" if self.options.takeover else "dump"
        if not incomplete:
            problem = "nothing came of it"
        elif len(incomplete) == 1:
            problem = f"vbucket {incomplete[0]} is not complete"
        else:
            problem = f"{len(incomplete)} of {len(incomplete) + len(consumer.completed)} vbuckets are not complete"
        raise ConnectionLost(error.peer, f"{error.reason}, and the {kind} is not whole: {problem}") from error

    def _reconnect(self, cause: TransportError | StatusError) -> Steps[None]:
        """Open again, for as long as patience lasts.

        A starting node may accept us only to refuse for now. That is no success: the patience for the refusal before
        continues, unless the stream was accepted meanwhile.
        """
        now, backoff = self._settings.clock(), Backoff()
        give_up = now + self._patience_seconds
        if isinstance(cause, StatusError):
            if self._postponement is not None and now < self._postponement.at + 2 * LONGEST_SECONDS:
                backoff, give_up = self._postponement.backoff, self._postponement.give_up
            self._postponement = PutOff(now, backoff, give_up)
            yield from self._pause(cause, backoff, give_up)
        while True:
            try:
                yield from self._open()
            except (TransportError, StatusError) as error:
                if not error.retriable:
                    raise
                yield from self._pause(error, backoff, give_up)
            else:
                self.reconnects += 1
                return

    def _pause(self, error: TransportError | StatusError, backoff: Backoff, give_up: float) -> Steps[None]:
        now = self._settings.clock()
        if now >= give_up:
            raise error
        yield Ready((), now + backoff.next_seconds())

    def _next(self, until: float | None) -> Steps[TapMessage | None]:
        link = yield from self._open()
        # The message before is acknowledged only now: that the caller is back means that it has processed it.
        self.answer()
        while True:
            while (frame := link.next_frame()) is not None:
                if (message := self._take(frame)) is not None:
                    return message
            if until is not None and link.clock() >= until:
                return None
            yield from link.receive(link.heard_at + SILENCE_SECONDS_MAX, wake_at=until)

    def _take(self, frame: Frame) -> TapMessage | None:
        for event in self._consumer.receive_frame(frame, self._settings.clock()):
            match event:
                case ConnectRefused(status=status, said=reason):
                    self.close()
                    raise error_for(status, "the node refused TAP_CONNECT" + (f": {reason}" if reason else ""))
                case Received(message=message):
                    self.frame = frame
                    return message
        if self._link is not None and (answer := self._consumer.data_to_send()):
            self._link.channel.send(answer)
        return None


def connect(
    connection: str,
    *,
    name: str = "",
    vbuckets: Iterable[int] | None = None,
    patience_seconds: float = 60.0,
    on_gap: Callable[[], None] = lambda: None,
    user: str | None = None,
    password: str | None = None,
    since: int | None = None,
    dump: bool = False,
    takeover: bool = False,
    acknowledge: bool = True,
    keys_only: bool = False,
    checkpoints: dict[int, int] | None = None,
    network_byte_order: bool = True,
) -> TapStream:
    """Return a TAP stream of a node; it connects when it is first read, or by `open`.

    Args:
        connection: "couchbase://host[:port]/bucket".
        name: the name by which the session is resumed; empty for a session that can't be resumed.
        vbuckets: only these; None for all.
        patience_seconds: how long to try to reconnect.
        on_gap: called before the first message after a reconnect that may have lost changes. That is possible in a
            stream of changes only, if the node did not keep the session or the stream acknowledges nothing.
        user, password: a login; None for none, or for that of the address.
        since, dump, takeover, keys_only, checkpoints, network_byte_order: as of `TapOptions`.
        acknowledge: acknowledge messages that ask for it, once they are processed.

    Raises:
        OptionError: an invalid value.
    """
    options = TapOptions(
        name=name.encode(),
        since=since,
        dump=dump,
        vbuckets=() if vbuckets is None else tuple(dict.fromkeys(vbuckets)),
        takeover=takeover,
        acknowledge=acknowledge,
        keys_only=keys_only,
        checkpoints=checkpoints,
        network_byte_order=network_byte_order,
    ).check()
    settings = settings_for(connection, user, password, clock=time.monotonic)
    return TapStream(settings, options, patience_seconds=patience_seconds, on_gap=on_gap)


def closed_checkpoints(stats: Mapping[str, str]) -> dict[int, int]:
    """Return the option `checkpoints` for a node that is fed by TAP: the last closed checkpoint of each of its
    vbuckets.

    Args:
        stats: the group `checkpoint` of the node that is fed.
    """
    ending = ":last_closed_checkpoint_id"
    closed = {key.removesuffix(ending): int(value) for key, value in stats.items() if key.endswith(ending)}
    return {int(key.removeprefix("vb_")): number for key, number in closed.items() if number}


def relay(stream: TapStream, target: str, *, user: str | None = None, password: str | None = None) -> int:
    """Pipe a TAP stream into another node, and its answers back; returns how many messages went through.

    The stream must acknowledge; it ends as the stream does (a dump, a takeover). A message is acknowledged to the
    source when the target has it on disk, so a broken relay loses nothing.

    Args:
        stream: the stream whose frames are sent on unchanged.
        target: "couchbase://host[:port]/bucket" of the node that is fed.

    Raises:
        StatusError: the target refused a message; the refusal is passed to the source, which ends the session.
        TransportError: either connection is lost.
    """
    settings = settings_for(target, user, password)
    link, count = Link(settings.target.seeds[0], settings.clock, settings.target.tls), 0
    try:
        blocking.run(link.open(settings.login, settings.connect_timeout_seconds), settings.clock)
        while stream.next() is not None:
            if stream.frame is not None:
                _pass_on(stream, link, stream.frame, settings)
                count += 1
    finally:
        link.close()
    return count


def _pass_on(stream: TapStream, link: Link, frame: Frame, settings: ConnectSettings) -> None:
    """Send one message on; if it asks for an answer, wait for the target's."""
    link.channel.send(frame.encode())
    if not asks_for_answer(frame):
        return
    deadline = settings.clock() + settings.timeout_seconds
    while True:
        answer = blocking.run(_answer(link, deadline), settings.clock)
        # Also that of an earlier message that asked for none and was refused: the source goes back to just that one.
        stream.forward(answer)
        if answer.status not in (Status.SUCCESS, Status.EBUSY, Status.ETMPFAIL):
            raise error_for(answer.status, f"the target refused opcode 0x{answer.opcode:02x}")
        if answer.opaque == frame.opaque:
            return


def _answer(link: Link, deadline: float) -> Steps[Frame]:
    """Return the target's next answer."""
    while True:
        frame = yield from link.frame(deadline)
        if frame.is_response:
            return frame
