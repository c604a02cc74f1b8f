"""Relay requests on documents of other workers' vbuckets, from a connection at the address that workers share.

    request for another worker's vbucket --number instead of opaque--> that worker, over a unix socket
    its answer, with that number         --original opaque----> its place among the answers

The connection to the other worker is used for this client only, and begins with the client's user, bucket and features:
the other worker checks rights, locks and order as if the client were connected to it. Answers are sent in the order of
the requests, so this worker's own answers wait here for earlier answers of other workers. A NOOP ends each burst; its
answer shows that the quiet requests before it get no answer. The next burst is read when this one is answered.

The messages of a TAP feed are relayed too: to the worker of their vbucket, or to all workers if they concern the whole
feed. Each worker keeps state of the feed, so a feed must start again if it loses a worker.

A worker that can't be reached, or refuses the introduction, has executed no request; the client's requests are refused
as temporary failures. If a worker is lost with unanswered requests, this worker can't know which of them were executed,
and closes the client's connection, as if the client had been connected to the lost worker.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from headwater.errors import CorruptStore
from headwater.node.connections.worker_call import RECEIVE_BYTES, WorkerCall
from headwater.node.kv.admin import check_decided
from headwater.node.kv.admission import admit
from headwater.node.kv.answering import failure_of
from headwater.node.kv.command import COMMANDS
from headwater.node.kv.gathering import Gathering, shares_of, vbucket_in
from headwater.node.refused import CommandRefused
from headwater.protocol.tap.consumer import MESSAGES
from headwater.wire.address import Address
from headwater.wire.features import Feature
from headwater.wire.header import HEADER_BYTES, Frame, Magic, frame_bytes, opaque_of, put_opaque
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    import asyncio

    from headwater.node.kv.api import Session

__all__ = ["ANSWERS", "AWAY", "Relay", "introduction", "others_of", "path_of", "refusal"]

HELD_BYTES_MAX: Final = 1 << 20
"""The most bytes of a worker's answers that wait here for earlier answers; above this, that worker is not read."""
UNASKED: Final = frozenset({
    Feature.DUPLEX, Feature.CLUSTERMAP_CHANGE_NOTIFICATION, Feature.CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF
})  # fmt: skip
"""Features by which a node sends messages without a request; this worker sends them, so others need not."""
_REQUESTS = (Magic.CLIENT_REQUEST, Magic.FLEXIBLE_REQUEST)
ANSWERS = (Magic.CLIENT_RESPONSE, Magic.FLEXIBLE_RESPONSE)
_HERE = (State.ACTIVE, State.PENDING, State.REPLICA)
_FLUSHES = (Opcode.FLUSH, Opcode.FLUSHQ)
AWAY: Final = "the process that has it can't take it now: it is being started again, is full, or is not in the map"


class Relaying(Protocol):
    """The interface of a session that sends the answers of other workers."""

    pumps: bool

    def pass_on(self, answer: bytes) -> None:
        """Send another worker's answer."""

    def turn_down(self, frame: Frame, refused: CommandRefused) -> None:
        """Refuse a request at once."""


@dataclass(slots=True)
class _Place:
    """The place of a relayed request's answers in the order of all answers.

    Attributes:
        call: the connection to the worker.
        number: the request's number on that connection, in place of the opaque.
        opcode: the request's opcode.
        opaque: the client's opaque.
        is_inner: True if the answers are for this worker, not for the client.
        is_over: True if no more answers will come.
        answers: the answers that were received and not sent yet.
    """

    call: _Call
    number: int
    opcode: int
    opaque: int
    is_inner: bool = False
    is_over: bool = False
    answers: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class _Flush:
    """A FLUSH before this worker executes it. All other workers first answer a NOOP, then delete their documents.

    Attributes:
        refused: the refusal for the client, if this worker refuses the FLUSH or can't reach another one; None
            otherwise.
        paths: the paths of the other workers.
        are_there: True once all have answered the NOOP, and the FLUSH was sent to them.
        statuses: the statuses of the answers to the last request.
    """

    refused: CommandRefused | None
    paths: tuple[str, ...]
    are_there: bool = False
    statuses: list[int] = field(default_factory=list)

    def outcome(self) -> CommandRefused | None:
        """Return None if all workers have answered with success; otherwise the refusal for the client."""
        if self.refused is not None:
            return self.refused
        status = next(filter(None, self.statuses), Status.SUCCESS)
        if status == Status.SUCCESS and len(self.statuses) < len(self.paths):
            status = Status.ETMPFAIL
        return CommandRefused(status, "another process has refused it") if status else None


class Relay:
    """The connections to other workers for one client, and the order of the answers.

    Args:
        session: the client's session.
        relaying: the same session, for sending answers.
        paths: the socket path of each other worker, by its address.
    """

    def __init__(self, session: Session, relaying: Relaying, paths: Mapping[Address, str]) -> None:
        self._session, self._relaying, self._paths = session, relaying, paths
        self._calls: dict[str, _Call] = {}
        self._waiting: deque[_Place | tuple[bytes, int]] = deque()
        self._flush: _Flush | None = None
        self._gathering: Gathering | None = None
        self._is_stale = self._feeds = self._feeds_as_another = False
        self._feeds_as: tuple[object, ...] = ()
        self._held_bytes = 0

    @property
    def is_waiting(self) -> bool:
        """True if another worker has not answered yet, or answers wait here to be sent."""
        return bool(self._waiting)

    def renew(self) -> None:
        """Introduce the client to the workers again, once all answers have come, because its user, bucket or features
        may have changed.

        If they are the same (another user's roles changed), a TAP feed continues.
        """
        self._is_stale = True
        self._feeds_as_another = self._feeds_as_another or (self._feeds and self._client != self._feeds_as)

    def close(self) -> None:
        """Close the connections to other workers."""
        self._waiting.clear()
        for call in tuple(self._calls.values()):
            call.close()
        self._calls.clear()

    # --- requests -----------------------------------------------------------------------------------------------------

    def holds_back(self, frame: Frame) -> bool:
        """Return True if a request must wait for answers of other workers.

        A request without a vbucket waits for all earlier answers, because it may change the user or the bucket. A FLUSH
        waits until the other workers have deleted their documents. A request whose answer covers all workers waits for
        their shares of the answer.
        """
        if self._waiting:
            return not _is_of_a_vbucket(frame)
        if frame.magic not in _REQUESTS or not self._may_ask:
            return False
        if frame.opcode in _FLUSHES:
            self._go_on_flushing(frame)
        elif self._gathering is None:
            self._gather(frame)
        return bool(self._waiting)

    def takes(self, frame: Frame) -> bool:
        """Relay a request for another worker's vbucket, or refuse it if that worker can't be reached; return False if
        it is for this worker.
        """
        if frame.opcode in _FLUSHES and self._flush is not None:
            refused = self._flush.outcome()
            if refused is None:
                return False
            self._flush = None
            self._relaying.turn_down(frame, refused)
            return True
        if self._gathering is not None:
            return self._is_refused(frame, self._gathering)
        path = self._path_of(frame)
        if path is None:
            return False
        call = self._call(path)
        if call is None:
            self._fail(frame, CommandRefused(Status.ETMPFAIL, AWAY))
        else:
            self._waiting.append(call.ask(frame))
            self._note_feed(frame)
        return True

    def _fail(self, frame: Frame, refused: CommandRefused) -> None:
        """Refuse a request. If it is a message of a TAP feed, drop the connection instead: these messages have no
        answer, so the producer would continue as if the message had arrived.
        """
        if frame.opcode in MESSAGES:
            self._session.connection.drop(f"a message of its feed is lost: {refused.context}", fault=False)
        else:
            self._relaying.turn_down(frame, refused)

    def handled(self) -> None:
        """Note that this worker has executed the current request.

        Only now are the other workers' answers forgotten: for lack of room, this worker may have to handle a FLUSH
        several times, but the others must get it only once.
        """
        self._flush = self._gathering = None
        self._session.others = ()

    def flush(self) -> None:
        """End the burst: send the requests, and stop reading until they are answered."""
        if self._waiting:
            self._relaying.pumps = True
            self._session.connection.pause("relayed")
            for call in tuple(self._calls.values()):
                call.flush()
            self.weigh()

    def _note_feed(self, frame: Frame) -> None:
        if frame.opcode in MESSAGES and not self._feeds:
            self._feeds, self._feeds_as = True, self._client

    @property
    def _client(self) -> tuple[object, ...]:
        """The client's present user, bucket and features, with which it is introduced to workers."""
        return self._session.user, self._session.bucket, self._session.features

    @property
    def _may_ask(self) -> bool:
        return self._session.access.is_logged_in and self._session.bucket is not None

    def _path_of(self, frame: Frame) -> str | None:
        """Return the socket path of the worker that owns a request's vbucket; None if this worker does."""
        if not self._may_ask or frame.magic not in _REQUESTS:
            return None
        if (vbucket := vbucket_in(frame)) is not None:
            return path_of(self._session, vbucket)
        command, session = COMMANDS.get(frame.opcode), self._session
        if command is None or not command.document:
            return None
        if session.store_bucket.state(frame.vbucket) in (State.ACTIVE, State.PENDING):
            return None
        owner = session.server.cluster.owner(frame.vbucket)
        return None if owner is None else self._paths.get(owner)

    def _paths_of_others(self) -> Iterable[str]:
        return others_of(self._session).values()

    def _gather(self, frame: Frame) -> None:
        """Request the other workers' shares of the answer, if the request needs any."""
        shares = shares_of(frame, self._paths_of_others, partial(path_of, self._session))
        if not shares or self._path_of(frame) is not None:
            return
        self._gathering = Gathering()
        if self._ask_all(shares):
            self._note_feed(frame)
        else:
            self._gathering.refused = CommandRefused(Status.ETMPFAIL, AWAY)
        self.flush()

    def _is_refused(self, frame: Frame, gathering: Gathering) -> bool:
        """Return True, and refuse the request, if another worker refused its share; otherwise keep all shares for the
        handler and return False.
        """
        if (refused := gathering.outcome()) is None:
            self._session.others = tuple(gathering.answers)
            return False
        self._gathering = None
        self._fail(frame, refused)
        return True

    def _go_on_flushing(self, frame: Frame) -> None:
        """Take the next step of a FLUSH: check it here; then send a NOOP to all other workers; then send them the
        FLUSH.

        If a step before the last one fails, no document was deleted.
        """
        flush, request = self._flush, Frame(Magic.CLIENT_REQUEST, Opcode.NOOP)
        if flush is None:
            # Checked here first: a FLUSH that this worker refuses must not have emptied the others.
            flush = self._flush = _Flush(self._refused_here(frame), tuple(self._paths_of_others()))
        elif flush.are_there or flush.outcome() is not None:
            return
        else:
            flush.are_there, request = True, Frame(Magic.CLIENT_REQUEST, Opcode.FLUSH, extras=frame.extras)
        flush.statuses.clear()
        if flush.refused is None and not self._ask_all(dict.fromkeys(flush.paths, request)):
            flush.refused = CommandRefused(Status.ETMPFAIL, AWAY)
        self.flush()

    def _refused_here(self, frame: Frame) -> CommandRefused | None:
        """Return the refusal with which this worker would answer a FLUSH; None if it would execute the FLUSH."""
        session = self._session
        try:
            _, request = admit(session, frame)
            if not getattr(request, "expiration", 0):
                check_decided(session)
                session.store_bucket.check_sound()
        except CommandRefused as refused:
            return refused
        except CorruptStore as damage:
            return CommandRefused(Status.EINTERNAL, str(damage))
        return None

    def _ask_all(self, requests: Mapping[str, Frame]) -> bool:
        """Queue requests to other workers, by path, whose answers are not for the client. If a worker can't be reached,
        queue none and return False.
        """
        calls = {path: self._call(path) for path in requests}
        reachable = {path: call for path, call in calls.items() if call is not None}
        if len(reachable) < len(calls):
            return False
        self._waiting.extend([call.ask(requests[path], is_inner=True) for path, call in reachable.items()])
        return True

    def _call(self, path: str) -> _Call | None:
        """Return the connection to a worker, opened if need be; None if the worker can't be reached."""
        if self._is_stale and not self._waiting:
            if self._feeds_as_another:  # the other workers would need the feed again from its beginning
                self._session.connection.drop("its user, bucket or features have changed amid a feed", fault=False)
                return None
            if not self._feeds:
                self.close()
            self._is_stale = False
        if path not in self._calls:
            try:
                self._calls[path] = _Call(self, self._session.server.loop, path, introduction(self._session))
            except OSError:
                return None
        return self._calls[path]

    # --- answers ------------------------------------------------------------------------------------------------------

    def hold(self, data: bytes | bytearray | memoryview, gate: int) -> bool:
        """Queue an answer of this worker after the outstanding answers of other workers; return False if there are
        none.
        """
        if not self._waiting:
            return False
        self._waiting.append((bytes(data), gate))
        self._held_bytes += len(data)
        if self._held_bytes > HELD_BYTES_MAX:
            self._session.connection.pause("relayed")
        return True

    def go_on(self) -> None:
        """Send the answers at the front of the queue, as far as they are complete. Then read only from workers whose
        answers come next, or may wait here.
        """
        waiting, connection = self._waiting, self._session.connection
        while waiting and not connection.is_closed:
            front = waiting[0]
            if isinstance(front, tuple):
                self._held_bytes -= len(front[0])
                connection.send(*front)
            else:
                self._send(front)
                if not front.is_over:
                    break
            waiting.popleft()
        front_call = waiting[0].call if waiting and isinstance(waiting[0], _Place) else None
        for call in tuple(self._calls.values()):
            if not waiting or (connection.writable and (call is front_call or call.held_bytes <= HELD_BYTES_MAX)):
                call.watch()
            else:
                call.unwatch()
        self.weigh()
        if not waiting:
            self._relaying.pumps = False
            connection.resume("relayed")

    def weigh(self) -> None:
        """Add the bytes that wait here, in both directions, to the account of the client's connection; this may drop
        it.
        """
        held_bytes = self._held_bytes + sum(call.memory_bytes for call in self._calls.values())
        self._session.connection.keeps_relayed(held_bytes)

    def _send(self, place: _Place) -> None:
        answers, place.answers = place.answers, []
        for answer in answers:
            place.call.held_bytes -= len(answer)
            if not place.is_inner:
                self._relaying.pass_on(answer)
            elif self._flush is not None:
                self._flush.statuses.append(Frame.decode(answer).status)
            elif self._gathering is not None:
                self._gathering.answers.append(Frame.decode(answer))

    def turned_away(self, call: _Call) -> None:
        """Refuse the requests to a worker that did not accept the connection, as temporary failures: it has executed
        none of them.
        """
        self._forget(call)
        if self._feeds:
            self._session.connection.drop("a worker can't take its feed", fault=False)
            return
        for place in self._waiting:
            if isinstance(place, _Place) and place.call is call:
                request = Frame(Magic.CLIENT_REQUEST, place.opcode, opaque=place.opaque)
                failure = failure_of(self._session, request, CommandRefused(Status.ETMPFAIL, AWAY))
                call.give(place, b"" if failure is None else failure.answering(request))
                place.is_over = True
        self.go_on()

    def _forget(self, call: _Call) -> None:
        self._calls = {path: each for path, each in self._calls.items() if each is not call}

    def lost(self, call: _Call) -> None:
        """Forget a lost worker; drop the client's connection if an answer of the worker is missing."""
        self._forget(call)
        # The lost worker may have executed some of the unanswered requests; an error would claim that it executed none.
        if self._feeds or any(
            isinstance(each, _Place) and each.call is call and not each.is_over for each in self._waiting
        ):
            self._session.connection.drop("the worker that had its requests is gone", fault=False)


class _Call(WorkerCall):
    """A connection to another worker, for one client."""

    def __init__(self, relay: Relay, loop: asyncio.AbstractEventLoop, path: str, begin: bytes) -> None:
        super().__init__(loop, path, begin)
        self._relay = relay
        self._owed: deque[_Place] = deque()
        self._number = 0
        self._is_asked = False
        self.held_bytes = 0

    @property
    def memory_bytes(self) -> int:
        """The memory of waiting requests, incomplete answers, and answers that wait for earlier ones, in bytes."""
        return self.kept_bytes + self.held_bytes

    def ask(self, frame: Frame, *, is_inner: bool = False) -> _Place:
        """Queue a request; `flush` sends it, or an earlier write if many bytes wait."""
        place = _Place(self, self._next(), frame.opcode, frame.opaque, is_inner)
        self._put(frame, place.number)
        self._owed.append(place)
        self._is_asked = True
        if len(self._out) >= RECEIVE_BYTES:
            self._write()
        return place

    def flush(self) -> None:
        """Send all requests, and a NOOP, whose answer shows that no other answer will follow."""
        if self._is_asked:
            self._is_asked = False
            # "Send a NOOP to flush a pipeline" (kv.md): quiet requests have no answer of their own.
            self._put(Frame(Magic.CLIENT_REQUEST, Opcode.NOOP), self._next())
            self._write()

    def _next(self) -> int:
        self._number = (self._number + 1) & 0xFFFF_FFFF
        return self._number

    def _put(self, frame: Frame, number: int) -> None:
        begin = len(self._out)
        self._out += frame.encode()
        put_opaque(self._out, number, begin)

    def _wrote(self) -> None:
        self._relay.weigh()

    def _lost(self) -> None:
        self._relay.lost(self)

    def _taken(self) -> None:
        self._relay.go_on()

    def _take(self, data: bytearray) -> int:
        at = 0
        while len(data) - at >= HEADER_BYTES and (end := at + frame_bytes(data, at)) <= len(data):
            if data[at] in ANSWERS and data[at + 1] == Opcode.HELLO:
                self.close()
                self._relay.turned_away(self)
                break
            if data[at] in ANSWERS:
                self._answered(opaque_of(data, at), at, end)
            at = end
        return at

    def _answered(self, number: int, at: int, end: int) -> None:
        """Handle an answer; requests before it get no more answers."""
        while self._owed and self._owed[0].number != number:  # a NOOP's number matches no request, so all are over
            self._owed.popleft().is_over = True
        if self._owed:
            place = self._owed[0]
            put_opaque(self._in, place.opaque, at)
            self.give(place, bytes(memoryview(self._in)[at:end]))

    def give(self, place: _Place, answer: bytes) -> None:
        """Keep an answer at its place until all earlier answers have been sent."""
        place.answers.append(answer)
        self.held_bytes += len(answer)


def _is_of_a_vbucket(frame: Frame) -> bool:
    command = COMMANDS.get(frame.opcode)
    return command is not None and (command.document or vbucket_in(frame) is not None)


def path_of(session: Session, vbucket: int) -> str | None:
    """Return the path of the worker that has a vbucket by the map; None if this worker has it, or no worker has."""
    if session.store_bucket.state(vbucket) in _HERE:
        return None
    holders = session.server.cluster.holders(vbucket)
    return next((session.relays[holder] for holder in holders if holder in session.relays), None)


def others_of(session: Session) -> dict[Address, str]:
    """Return the paths of the other workers in the bucket's map, by address; of all other workers if there is no map.

    Workers outside of the map are omitted, because a worker that is going to join may not have the bucket yet.
    """
    map_ = session.server.membership.map
    return {each: path for each, path in session.relays.items() if map_ is None or each in map_.servers}


def introduction(session: Session, first_opaque: int = 0) -> bytes:
    """Return the first frame of a connection to another worker, which names the client: a HELLO of a private form. The
    worker answers it only to refuse the connection (`refusal`).

    Args:
        session: the client's session.
        first_opaque: the worker's requests to the client have opaques above this one.
    """
    who = {
        "peer": session.connection.peer,
        "user": session.user,
        "bucket": session.store_bucket.name,
        "named_at": session.named_at,
        "first_opaque": first_opaque,
        "features": sorted({int(feature) for feature in session.features} - {int(each) for each in UNASKED}),
    }
    return Frame(Magic.CLIENT_REQUEST, Opcode.HELLO, value=json.dumps(who).encode()).encode()


def refusal() -> bytes:
    """Return the answer with which a worker refuses an introduction; the worker does not read later frames."""
    return Frame(Magic.CLIENT_RESPONSE, Opcode.HELLO, vbucket=Status.ETMPFAIL).encode()
