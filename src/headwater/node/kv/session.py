"""A plain connection: key-value and administration commands, in order.

`receive` alternates between the kernel, which takes as many bulk requests as it understands, and the plain path,
which takes one request and lets the kernel go on. An answer that depends on a record that is not durable is gated; so
is every later answer of the same connection, since it tells the client that the quiet writes before it succeeded.

A handler may be a coroutine (it waits for a commit, a vbucket, a password check). The connection then pauses until it
is done: commands of one connection run in order (kv.md, "Rules common to all commands").
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING

from headwater.errors import BadMessage, CorruptStore, StorageError
from headwater.node.inbox import whole_frame
from headwater.node.kv.command import COMMANDS, Answer, Command, Needs, NoRoom, Refused, Reply
from headwater.node.kv.framing import check_framing
from headwater.node.kv.locks import with_own_cas
from headwater.node.rest.request import looks_like_http
from headwater.node.rest.session import HttpSession
from headwater.node.storage.store import ArenaFull
from headwater.wire.datatype import Datatype, legal
from headwater.wire.features import Feature
from headwater.wire.header import Frame, Magic, response
from headwater.wire.opcodes import QUIET, RETIRED, Opcode
from headwater.wire.status import BODIED, Status, without_xerror
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from headwater.node.bucket import Bucket
    from headwater.node.connection import Connection
    from headwater.node.kv.fast import FastPath
    from headwater.node.server import Server
    from headwater.node.tap.consumer import TapFed
    from headwater.node.vbucket.vbucket import VBucket

log = logging.getLogger("headwater.node")

REQUESTS = (Magic.CLIENT_REQUEST, Magic.FLEXIBLE_REQUEST)
_KNOWN = frozenset(int(opcode) for opcode in Opcode) | RETIRED
_READS = frozenset({Opcode.GET, Opcode.GETK, Opcode.GAT, Opcode.GET_META})
_NEEDED_FEATURE = {Datatype.JSON: Feature.JSON, Datatype.SNAPPY: Feature.SNAPPY, Datatype.XATTR: Feature.XATTR}


class KvSession:
    """What a plain connection knows: who, which bucket, which features; see the module's plan."""

    deadline: float | None = None

    def __init__(self, connection: Connection, server: Server) -> None:
        self.connection = connection
        self.server = server
        self.features: frozenset[int] = frozenset()
        self.agent = ""
        self.user: str | None = None
        self.login: object | None = None  # a SASL exchange in progress
        self.bucket: Bucket | None = None if server.config.users else server.bucket
        self.written_gate = 0
        self.config_seen = (-1, -1)
        self.tap: TapFed | None = None  # what a mover has piped in here
        self._task: asyncio.Task[None] | None = None
        self._fast: FastPath | None = None
        self.changed()

    # --- what others ask ----------------------------------------------------------------------------------------------

    @property
    def is_logged_in(self) -> bool:
        """Whether commands that need a login may run; without configured users everybody is."""
        return self.user is not None or not self.server.config.users

    @property
    def store_bucket(self) -> Bucket:
        """The selected bucket; Refused(NO_BUCKET) without one."""
        if self.bucket is None:
            raise Refused(Status.NO_BUCKET, "no bucket is selected")
        return self.bucket

    def has(self, feature: int) -> bool:
        """Whether HELLO granted the feature."""
        return feature in self.features

    def changed(self) -> None:
        """Features, login or bucket changed: the fast path must know."""
        usable = self.bucket is not None and self.is_logged_in
        self._fast = self.server.fast_path(self) if usable else None

    # --- Session ------------------------------------------------------------------------------------------------------

    def receive(self, data: memoryview) -> int:
        """Run every whole request in `data`; stops early when something pauses the connection."""
        offset, connection = 0, self.connection
        if looks_like_http(data):
            connection.session = HttpSession(connection, self.server)
            return 0
        while not connection.is_paused and not connection.is_closed and connection.session is self:
            if self._fast is not None:
                offset = self._fast.run(data, offset)
                if connection.is_paused:
                    break
            size = whole_frame(data, offset)
            if size == 0:
                break
            frame = Frame.decode(data[offset : offset + size])
            try:
                self.handle(frame)
            except NoRoom:
                self.wait_for_room()
                break
            offset += size
        return offset

    def pump(self) -> None:
        """Nothing is streamed on a plain connection."""

    def tick(self, now: float) -> None:
        """No deadlines either."""

    def closed(self) -> None:
        """Whatever a handler still waits for, nobody wants to know."""
        if self._task is not None:
            self._task.cancel()

    # --- requests -----------------------------------------------------------------------------------------------------

    def handle(self, frame: Frame) -> None:
        """Answer one request. Public: a DCP session passes on what is not DCP.

        Raises NoRoom when the request must be given again after the next commit.
        """
        if frame.magic not in REQUESTS:
            return  # a response to something we sent (a notification): nothing waits for it
        try:
            found = self._admit(frame)
            changes = found.writes and found.document
            answer = found.handler(self, with_own_cas(self, frame) if changes else frame)
        except Refused as refused:
            self._refuse(frame, refused)
            return
        except ArenaFull:
            raise NoRoom from None
        except CorruptStore as error:
            self._refuse(frame, Refused(Status.EINTERNAL, str(error)))
            return
        except StorageError as error:
            self._refuse(frame, Refused(Status.ETMPFAIL, str(error)))
            return
        if inspect.isawaitable(answer):
            self._park(frame, answer)
        else:
            self._answer(frame, answer)

    def wait_for_room(self) -> None:
        """Pause until the staging arena is empty again."""
        self.connection.pause("commit")
        self.server.committer.when_room(lambda: self.connection.resume("commit"))

    def wrote(self) -> None:
        """A handler (or the kernel) staged something: later answers of this connection wait for its batch."""
        self.written_gate = self.server.committer.wrote()

    def saw_unstable(self) -> None:
        """A request saw something that is not durable yet: this and all later answers wait for it."""
        self.written_gate = max(self.written_gate, self.server.committer.gate())

    def saw(self, vbucket: VBucket) -> None:
        """A request saw a state or a failover log: this and later answers wait until the vbucket's record is on disk.

        It is "persisted with the vbucket" (failover 1), and may be lost with its batch: who was told of it would go by
        what never was.
        """
        self.written_gate = max(self.written_gate, vbucket.gate)

    def send(self, data: bytes | bytearray | memoryview, gate: int = 0) -> None:
        """Queue answers; they leave after batch `gate` and after this connection's own writes."""
        self.connection.send(data, max(gate, self.written_gate))

    def reply(self, frame: Frame, reply: Reply) -> None:
        """Queue the answer of one request, unless its quiet form leaves it out."""
        if not is_silent(frame.opcode, reply.status):
            gate = self.server.committer.gate() if frame.opcode in COMMANDS and COMMANDS[frame.opcode].document else 0
            self.send(encode_reply(frame, reply), gate)

    def _admit(self, frame: Frame) -> Command:
        """Find the command and hold the request against every general rule, in the order of kv.md."""
        found = COMMANDS.get(frame.opcode)
        if not self.is_logged_in and (found is None or found.needs is not Needs.NOTHING):
            raise Refused(Status.EACCESS, "not logged in")
        if found is None:
            raise Refused(Status.NOT_SUPPORTED if frame.opcode in _KNOWN else Status.UNKNOWN_COMMAND)
        self._check_datatype(frame)
        try:
            check_framing(frame)
        except BadMessage as bad:
            raise Refused(bad.status, str(bad)) from None
        if found.needs is Needs.BUCKET:
            bucket = self.store_bucket
            found.check(frame)
            if found.document:
                self._check_vbucket(bucket, frame)
            if found.writes and found.document and bucket.is_backed_up(frame.vbucket):
                raise Refused(Status.ETMPFAIL, "the vbucket is about to move to another node")
            if found.writes and bucket.store.full:
                raise Refused(Status.ETMPFAIL, "the disk is full")
        else:
            found.check(frame)
        return found

    def _check_datatype(self, frame: Frame) -> None:
        """wire.md 4: legal values are 0..7, and a bit needs its feature; a violation is EINVAL."""
        if not legal(frame.datatype):
            raise Refused(Status.EINVAL, f"datatype 0x{frame.datatype:02x} has unknown bits")
        for bit, feature in _NEEDED_FEATURE.items():
            if frame.datatype & bit and feature not in self.features:
                raise Refused(Status.EINVAL, f"datatype {bit.name} was not negotiated by HELLO")

    def _check_vbucket(self, bucket: Bucket, frame: Frame) -> None:
        """kv.md: not on this node: 07; active: proceed; pending: park until the state changes; replica, dead: 07."""
        state = bucket.state(frame.vbucket)
        wanted = State.REPLICA if frame.opcode == Opcode.GET_REPLICA else State.ACTIVE
        if state == State.PENDING and wanted == State.ACTIVE:
            self.connection.pause("pending")
            bucket.when_state_changes(frame.vbucket, lambda: self.connection.resume("pending"))
            raise NoRoom
        if state != wanted:
            raise self.not_my_vbucket()
        if frame.vbucket in bucket.fenced:
            raise Refused(Status.ETMPFAIL, "it is not known yet whether another node owns the vbucket by now")
        if bucket.traffic_disabled:
            raise Refused(Status.ETMPFAIL, "traffic is disabled")

    def not_my_vbucket(self) -> Refused:
        """The refusal that carries the current map, so that the client finds the owner (kv.md, "07 responses")."""
        if not self.server.cluster.map_in_refusals:
            return Refused(Status.NOT_MY_VBUCKET)
        datatype = Datatype.JSON if self.has(Feature.JSON) else 0
        self.config_seen = self.server.cluster.version
        return Refused(Status.NOT_MY_VBUCKET, value=self.server.cluster.config(), datatype=datatype)

    # --- answers ------------------------------------------------------------------------------------------------------

    def _answer(self, frame: Frame, answer: Answer) -> None:
        if isinstance(answer, Reply):
            if answer.status in BODIED:
                self.reply(frame, answer)
            else:
                self._refuse(frame, Refused(answer.status))
        elif answer:
            self.send(join_frames(answer))

    def _park(self, frame: Frame, work: Awaitable[Answer]) -> None:
        """Pause the connection until a coroutine has the answer."""
        self.connection.pause("parked")
        self._task = self.server.loop.create_task(self._finish(frame, work))

    async def _finish(self, frame: Frame, work: Awaitable[Answer]) -> None:
        try:
            self._answer(frame, await work)
        except Refused as refused:
            self._refuse(frame, refused)
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("%s: opcode 0x%02x failed", self.connection.peer, frame.opcode)
            self._refuse(frame, Refused(Status.EINTERNAL))
        self._task = None
        self.connection.resume("parked")

    def _refuse(self, frame: Frame, refused: Refused) -> None:
        """Say no in words this client knows: wire.md 3.1 for those without XERROR."""
        status = refused.status
        before_login = status == Status.EACCESS and not self.is_logged_in  # "always sent as 0x24"
        if not self.has(Feature.XERROR) and not before_login:
            known = without_xerror(refused.status)
            if known is None:
                name = f"status 0x{refused.status:02x} for opcode 0x{frame.opcode:02x}"
                self.connection.drop(f"{name} can't be told to a client without XERROR: {refused.context}")
                return
            status = known
        value, datatype = refused.value, refused.datatype
        if refused.context and not value and self.has(Feature.XERROR):
            value = json.dumps({"error": {"context": refused.context}}).encode()
            datatype = Datatype.JSON if self.has(Feature.JSON) else 0
        self.reply(frame, Reply(status, value=value, datatype=datatype))


def is_silent(opcode: int, status: int) -> bool:
    """kv.md, "Quiet forms": mutations leave out success, reads leave out KEY_ENOENT."""
    loud = QUIET.get(opcode)
    if loud is None:
        return False
    return status == (Status.KEY_ENOENT if loud in _READS else Status.SUCCESS)


def encode_reply(frame: Frame, reply: Reply) -> bytes:
    """The bytes of an answer."""
    return response(
        frame,
        reply.status,
        extras=reply.extras,
        key=reply.key,
        value=reply.value,
        datatype=reply.datatype,
        cas=reply.cas,
    ).encode()


def join_frames(frames: Iterable[Frame]) -> bytes:
    """The bytes of several frames."""
    return b"".join(frame.encode() for frame in frames)
