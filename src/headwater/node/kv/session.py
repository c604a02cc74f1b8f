"""A plain connection: key-value and administration commands, in order.

The session handles bytes, order and the batches for which answers wait. admission.py admits requests by the rights in
access.py; answering.py returns answers with a status that the client knows.

`receive` alternates between the kernel, which executes as many requests as it can, and the plain path, which handles
one request before the kernel continues. An answer that depends on a record that is not durable waits for the record's
batch; so does every later answer of the same connection, because it implies that earlier quiet writes succeeded.

A handler may be a coroutine (for a commit, a vbucket, a password check). The connection then pauses until the coroutine
is done (parking.py): commands of one connection run in order (kv.md, "Rules common to all commands").
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from headwater.errors import StorageError
from headwater.node.connections.inbox import next_frame
from headwater.node.kv.access import rights_in
from headwater.node.kv.admission import admit, check_stranger
from headwater.node.kv.answering import answer_with, failure_of, send_rest, send_some
from headwater.node.kv.command import COMMANDS, Command
from headwater.node.kv.parking import Parking, refusal_of
from headwater.node.kv.preparation import Preparation
from headwater.node.kv.relay import Relay
from headwater.node.kv.rights import Access
from headwater.node.process.memory import MAPPED_BYTES_MIN
from headwater.node.refused import CommandRefused, NoRoom
from headwater.node.reporting.requests import UNKNOWN
from headwater.node.storage.store import ArenaFull
from headwater.wire.datatype import Datatype
from headwater.wire.features import Feature
from headwater.wire.header import HEADER_BYTES, Frame, Magic
from headwater.wire.layout import Answer
from headwater.wire.opcodes import Opcode, has_name
from headwater.wire.privilege import LOGIN, READ
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.buckets.bucket import Bucket
    from headwater.node.connections.connection import Connection
    from headwater.node.connections.watching import QuickPath
    from headwater.node.kv.api import FastRequests, Kept, Services
    from headwater.node.vbucket.vbucket import VBucket
    from headwater.wire.address import Address
    from headwater.wire.framing import DurabilityInfo

log: Final = logging.getLogger(__name__)

# Plain numbers, because `&` of an enum creates an enum each time, and a session needs it with each request.
_LOGIN, _READ = int(LOGIN), int(READ)
REQUESTS = (Magic.CLIENT_REQUEST, Magic.FLEXIBLE_REQUEST)
_OF_PATHS = frozenset(int(each) for each in Opcode if each.name.startswith("SUBDOC_")) - {Opcode.SUBDOC_MULTI_LOOKUP}
"""Requests that the kernels do not know; calling a kernel with one would take a tenth of the request's time."""


class KvSession:
    """The state of a plain connection: user, bucket, features, and the batches for which answers wait. `Session` in
    api.py describes the attributes.

    Args:
        connection: the socket with its queues.
        server: the node with its first bucket.
        user: the user who has logged in by a certificate; None for a stranger.
        relays: the socket path of each other worker, by its address; empty if requests are not relayed.
    """

    deadline: float | None = None
    pumps = False

    def __init__(
        self,
        connection: Connection,
        server: Services,
        user: str | None = None,
        relays: Mapping[Address, str] = MappingProxyType({}),
    ) -> None:
        self.connection = connection
        self.server: Services = server
        self.features: frozenset[int] = frozenset()
        self.agent = ""
        self.user = user
        self.access: Access = Access()
        self.login: object | None = None  # a SASL exchange in progress
        self.bucket: Bucket | None = server.bucket
        self.written_gate: int = 0
        self.collection = 0
        self.knows_collections: bool = False
        self.config_seen: tuple[int, int] = (-1, -1)
        self.preparation: Preparation = Preparation(connection)
        self.parking: Parking = Parking(connection)
        self._finishes = False
        self.durability: DurabilityInfo | None = None
        self._states: dict[type, object] = {}
        self._fast: FastRequests | None = None
        self.named_at: int = 0
        self.first_opaque: int = 0
        self.others: tuple[Frame, ...] = ()
        self.relays: Mapping[Address, str] = relays
        self.relay: Relay | None = Relay(self, self, relays) if relays else None
        self.refresh_access()

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def gate(self) -> int:
        """The number of the batch for which answers wait now; 0 if everything that they depend on is on disk."""
        return self.written_gate if self.written_gate > self.server.committer.durable else 0

    @property
    def store_bucket(self) -> Bucket:
        """The selected bucket; raises CommandRefused(NO_BUCKET) without one."""
        if self.bucket is None:
            raise CommandRefused(Status.NO_BUCKET, "no bucket is selected")
        return self.bucket

    @property
    def quick(self) -> QuickPath | None:
        """The facts with which rounds may answer requests without this session; None if it must see all requests."""
        return self._fast if self.relay is None else None

    def has(self, feature: int) -> bool:
        """Return True if HELLO granted the feature."""
        return feature in self.features

    def state_of(self, kind: type[Kept]) -> Kept:
        """Return the state that a part of the node keeps with this connection; created by `kind()` on first use."""
        state = self._states.get(kind)
        if not isinstance(state, kind):
            state = self._states[kind] = kind()
        return state

    def select(self, server: Services) -> None:
        """Select a bucket; no output may still wait for a batch of the former one."""
        if server is not self.server:
            # Each bucket numbers its own batches; `settle` has waited until no answer waits for one.
            self.connection.serve(server.committer, server.requests)
            self.server, self.written_gate = server, 0
            self._states.clear()
        self.bucket, self.config_seen = server.bucket, (-1, -1)
        self.refresh_access()

    def deselect(self) -> None:
        """Select no bucket."""
        self.bucket, self.config_seen = None, (-1, -1)
        self.refresh_access()

    def refresh_access(self) -> None:
        """Look up the user's rights again, after a change of features, user or bucket; create a new fast path."""
        users, places = self.server.users, None
        if self.bucket is not None:
            rights, places = users.rights(self.user, self.bucket.name), users.places(self.user, self.bucket.name)
            if rights <= _LOGIN and places is None:  # a stranger, or a user without a role in the bucket
                self.bucket = None
        if self.bucket is None:  # a user with rights in some bucket gets the error that no bucket is selected
            rights, places = users.rights_anywhere(self.user), None
        self.access = Access(self.user, rights, places)
        self.knows_collections = Feature.COLLECTIONS in self.features
        usable = self.bucket is not None and rights_in(self, 0) & _READ
        self._fast = self.server.fast_path(self) if usable else None
        if self.relay is not None:
            self.relay.renew()
        self.connection.know(is_known=self.access.is_logged_in, is_trusted=users.is_trusted(self.user))

    # --- calls of the connection --------------------------------------------------------------------------------------

    def receive(self, data: memoryview) -> int:
        """Execute every whole request in `data`; stop early if the connection is paused. Return the number of bytes
        consumed.
        """
        offset, connection = 0, self.connection
        while not connection.is_paused and not connection.is_closed and connection.session is self:
            if self._fast is not None and (len(data) - offset < HEADER_BYTES or data[offset + 1] not in _OF_PATHS):
                offset = self._fast.run(data, offset)
                if offset == len(data) or connection.is_paused:
                    break
            # The header is enough: a stranger's frame of 30 MiB is refused before it is kept.
            if not self.access.is_logged_in:
                check_stranger(data, offset)
            frame = next_frame(data, offset)
            if frame is None or (self.relay is not None and self.relay.holds_back(frame)):
                break
            try:
                self.answer(frame)
            except NoRoom:
                self.parking.wait_for_room(self.server.committer)
                break
            # Only after `answer`: if it raises NoRoom, the same bytes are passed again.
            offset += len(frame)
            if offset == len(data) or connection.gives_way():
                break
        if self.relay is not None:
            self.relay.flush()
        return offset

    def pump(self) -> None:
        """Continue with the answers of other workers, because the client has read all earlier output."""
        if self.relay is not None:
            self.relay.go_on()

    def pass_on(self, answer: bytes) -> None:
        """Send another worker's answer.

        Like every answer of this connection, it waits for earlier writes at this worker, which may have been quiet.
        """
        self.connection.send(answer, self.written_gate)

    def tick(self, now: float) -> None:
        """Do nothing: a plain connection has no deadlines."""

    def users_changed(self) -> None:
        """Look up the user and the roles again; drop the connection if the user was removed."""
        if self.user is not None and not self.server.users.knows(self.user):
            self.connection.drop(f"user {self.user!r} is none any more", fault=False)
        else:
            self.refresh_access()

    def closed(self) -> None:
        """Cancel the running handler, because the connection is closed; the handler of a command that `lasts`
        continues.
        """
        self.parking.end()
        self.preparation.end()
        self._fast = self.login = None  # they refer to this session
        if self.relay is not None:
            self.relay.close()

    # --- requests -----------------------------------------------------------------------------------------------------

    def answer(self, frame: Frame) -> None:
        """Answer a request here, or relay it to the worker that owns its vbucket. Raises NoRoom as `handle` does."""
        if self.relay is None:
            self.handle(frame)
        elif not self.relay.takes(frame):
            self.handle(frame)
            self.relay.handled()

    def give(self, frame: Frame) -> None:
        """Answer or relay a request that came over a DCP or TAP connection.

        Raises:
            NoRoom: the request must wait; call again with it later.
        """
        if self.relay is not None and self.relay.holds_back(frame):
            self.relay.flush()
            raise NoRoom
        self.answer(frame)

    def end_burst(self) -> None:
        """Send the queued requests to other workers."""
        if self.relay is not None:
            self.relay.flush()

    def handle(self, frame: Frame) -> None:
        """Answer one request. DCP sessions also call this, for frames of other protocols.

        Raises:
            NoRoom: the request must be handled again: after the next commit, or after the turns of other connections.
        """
        if frame.magic not in REQUESTS:
            return  # a response to a notification of this node, which needs no handling
        try:
            command, request = admit(self, frame)
            answer = command.handler(self, request)
            self.preparation.drop()
            if not isinstance(answer, Answer) and isinstance(answer, Iterator):
                answer = None if send_some(self, frame, answer) else send_rest(self, frame, answer)
        except CommandRefused as refused:
            self.turn_down(frame, refused)
            return
        except ArenaFull:
            raise NoRoom from None
        except StorageError as error:
            self.turn_down(frame, refusal_of(error))
            return
        if isinstance(answer, Answer):  # the usual case first, because the other checks take longer
            self.reply(frame, answer)
            _count(self, command, frame.opcode, answer.status)
        elif inspect.isawaitable(answer):
            self.parking.wait_for_answer(self, frame, answer, partial(answer_with, self), lasts=command.lasts)
        else:
            answer_with(self, frame, answer)
            _count(self, command, frame.opcode, Status.SUCCESS)
        if self._finishes:
            self.connection.finish()

    def finish(self) -> None:
        """Close the connection after the answer to the current request."""
        self._finishes = True

    def wrote(self) -> None:
        """Make later answers wait for the batch with the records that a handler (or the kernel) staged."""
        # The gate belongs to the connection, not to the request: a quiet write has no answer, so the next answer
        # implies that it succeeded.
        self.written_gate = self.server.committer.wrote()

    def saw_unstable(self) -> None:
        """Make this and all later answers wait for changes that a request read and that are not durable yet."""
        # "Visible means durable": a client must not read a value that a crash could undo.
        self.written_gate = max(self.written_gate, self.server.committer.gate())

    def wait_for(self, gate: int) -> None:
        """Make later answers wait for batch `gate`."""
        self.written_gate = max(self.written_gate, gate)

    def saw(self, vbucket: VBucket) -> None:
        """Make this and later answers wait until the vbucket's record is on disk, because a request read its state or
        failover log.

        The record is "persisted with the vbucket" (failover 1), but its batch may be lost. Without the wait, a client
        would then rely on a state that never existed.
        """
        self.written_gate = max(self.written_gate, vbucket.gate)

    def send(self, data: bytes | bytearray | memoryview, gate: int = 0) -> None:
        """Queue answers; they are sent after batch `gate` and after this connection's own writes are durable."""
        gate = gate if gate > self.written_gate else self.written_gate
        if self.relay is None or not self.relay.hold(data, gate):
            self.connection.send(data, gate)

    def reply(self, frame: Frame, answer: Answer) -> None:
        """Queue the answer to one request, unless the request is quiet and omits answers of this status."""
        command = COMMANDS.get(frame.opcode)
        if command is None or command.silent.get(frame.opcode) != answer.status:
            # The row that the answer reports, or reports as missing, may be in a batch that is not on disk yet.
            gate = self.server.committer.gate() if command is not None and command.document else 0
            if len(answer.value) < MAPPED_BYTES_MIN:
                self.send(self.encoded(frame, answer), gate)
            else:
                for piece in answer.answering_apart(frame):
                    self.send(piece, gate)

    def encoded(self, frame: Frame, answer: Answer) -> bytes:
        """Return an answer in the encoding of this connection's protocol."""
        return answer.answering(frame)

    def not_my_vbucket(self) -> CommandRefused:
        """Return the refusal with the current map, in which the client finds the owner (kv.md, "07 responses")."""
        if not self.server.cluster.map_in_refusals:
            return CommandRefused(Status.NOT_MY_VBUCKET)
        datatype = Datatype.JSON if self.has(Feature.JSON) else 0
        self.config_seen = self.server.cluster.version
        return CommandRefused(Status.NOT_MY_VBUCKET, value=self.server.cluster.config(), datatype=datatype)

    # --- answers ------------------------------------------------------------------------------------------------------

    def turn_down(self, frame: Frame, refused: CommandRefused) -> None:
        """Refuse a request that no handler completes, and count it."""
        self.preparation.drop()
        self.refuse(frame, refused)
        opcode = frame.opcode if has_name(frame.opcode) else UNKNOWN
        self.server.requests.answered(opcode, refused.status)
        self.server.requests.ran(opcode, 1, self.gate)

    def refuse(self, frame: Frame, refused: CommandRefused) -> None:
        """Refuse a request with a status that this client knows."""
        failure = failure_of(self, frame, refused)
        if failure is not None:
            self.reply(frame, failure)


def _count(session: KvSession, command: Command, opcode: int, status: int) -> None:
    """Count a request. Its duration ends when its answer is sent, or, if the answer waits for a batch, when that batch
    is durable.
    """
    server = session.server
    server.requests.answered(opcode, status)
    gate = max(session.gate, server.committer.gate()) if command.document else session.gate
    server.requests.ran(opcode, 1, gate)
