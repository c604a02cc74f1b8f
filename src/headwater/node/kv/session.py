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
import logging
from collections.abc import Awaitable, Coroutine, Generator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from headwater.errors import BadMessage, CorruptStore, RemoteProtocolError, StorageError
from headwater.kernels.choices import SYSTEM_COLLECTION
from headwater.node.connections.inbox import next_frame
from headwater.node.kv.command import COMMANDS, Answers, Command, refusal_of
from headwater.node.kv.framing import check_framing
from headwater.node.kv.locking import with_own_cas
from headwater.node.process.memory import MAPPED_BYTES_MIN
from headwater.node.process.run_queue import LARGE_BYTES
from headwater.node.refused import CommandRefused, NoRoom
from headwater.node.reporting.log_lines import event
from headwater.node.reporting.requests import UNKNOWN
from headwater.node.storage.store import ArenaFull
from headwater.wire import leb128
from headwater.wire.datatype import Datatype, legal
from headwater.wire.documents import GetLocked
from headwater.wire.failure import Failure
from headwater.wire.features import Feature
from headwater.wire.header import HEADER_BYTES, KEY_BYTES_MAX, Frame, Magic, lengths
from headwater.wire.json_text import error_body
from headwater.wire.layout import Answer, Request
from headwater.wire.opcodes import Opcode, has_name, name_of
from headwater.wire.privilege import ADMINISTER, LOGIN, READ, Privilege, in_words
from headwater.wire.status import Status, without_xerror
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from headwater.node.buckets.bucket import Bucket
    from headwater.node.connections.connection import Connection
    from headwater.node.durable_writes import DurableWrite
    from headwater.node.kv.api import Kept, Prepared, Services, TakeRequests
    from headwater.node.kv.rights import Rule
    from headwater.node.users.places import Places
    from headwater.node.vbucket.vbucket import VBucket
    from headwater.wire.dcp import Prepare
    from headwater.wire.framing import DurabilityInfo

log = logging.getLogger(__name__)

STRANGER_FRAME_BYTES_MAX = 64 << 10
"""Before the login: names, passwords and features are short."""

# An enum's `&` makes an enum each time; a session asks with each request.
_LOGIN, _READ, _ADMINISTER = int(LOGIN), int(READ), int(ADMINISTER)
EXPIRY_MAX = 0xFFFF_FFFF
REQUESTS = (Magic.CLIENT_REQUEST, Magic.FLEXIBLE_REQUEST)
_OF_PATHS = frozenset(int(each) for each in Opcode if each.name.startswith("SUBDOC_")) - {Opcode.SUBDOC_MULTI_LOOKUP}
"""The kernels do not know these, and to ask them costs a tenth of such a request."""
ANSWERS_PER_LOOK = 32
_NEEDED_FEATURE = {Datatype.JSON: Feature.JSON, Datatype.SNAPPY: Feature.SNAPPY, Datatype.XATTR: Feature.XATTR}


class KvSession:
    """The state of a plain connection: user, bucket, features, rights; see the module's plan."""

    deadline: float | None = None
    pumps = False

    def __init__(self, connection: Connection, server: Services, user: str | None = None) -> None:
        self.connection = connection
        self.server = server
        self.features: frozenset[int] = frozenset()
        self.agent = ""
        self.user = user
        self.rights = 0
        self.places: Places | None = None
        self.login: object | None = None  # a SASL exchange in progress
        self.bucket: Bucket | None = server.bucket
        self.written_gate = 0
        self.collection = 0
        self._knows_collections = False
        self.config_seen = (-1, -1)
        self.prepared: Prepared | None = None
        self._task: asyncio.Task[None] | None = None
        self._preparation: asyncio.Task[None] | None = None
        self._pending: tuple[Bucket, int] | None = None  # whose state a request waits for
        self._lasts = False  # the command that it runs
        self._finishes = False
        self.durability: DurabilityInfo | None = None
        self._write: DurableWrite | None = None
        self._states: dict[type, object] = {}
        self._fast: TakeRequests | None = None
        self.changed()

    # --- what others ask ----------------------------------------------------------------------------------------------

    @property
    def is_logged_in(self) -> bool:
        """Whether commands that need a login may run; without users everybody is."""
        return bool(self.rights & _LOGIN)

    @property
    def gate(self) -> int:
        """The batch that answers wait for now; 0 when all that they tell of is on disk."""
        return self.written_gate if self.written_gate > self.server.committer.durable else 0

    @property
    def rights_anywhere(self) -> int:
        """The user's privileges in the bucket or in some part of it."""
        return self.rights if self.places is None else self.places.anywhere

    def rights_in(self, collection: int) -> int:
        """The user's privileges in a collection of the bucket, by its id."""
        if self.places is None:
            return self.rights
        return self.places.in_collection(self.store_bucket.collections.manifest, collection)

    @property
    def is_administrator(self) -> bool:
        """Whether commands of administrators may run; without users everybody is one."""
        return bool(self.rights & _ADMINISTER)

    @property
    def store_bucket(self) -> Bucket:
        """The selected bucket; CommandRefused(NO_BUCKET) without one."""
        if self.bucket is None:
            raise CommandRefused(Status.NO_BUCKET, "no bucket is selected")
        return self.bucket

    def sent_key(self, key: bytes) -> bytes:
        """The key of the request being handled as this connection writes it."""
        return leb128.join_key(self.collection, key) if self._knows_collections else key

    def limited(self, expiry: int) -> int:
        """An expiry as the collection of the request being handled allows it: no later than its maximum TTL."""
        bucket = self.store_bucket
        most = bucket.collections.ttl_max(self.collection)
        return expiry if most is None else min(expiry or EXPIRY_MAX, bucket.now() + most, EXPIRY_MAX)

    def has(self, feature: int) -> bool:
        """Whether HELLO granted the feature."""
        return feature in self.features

    def state_of(self, kind: type[Kept]) -> Kept:
        """Return what a part of the node keeps with this connection, made by `kind()` when first asked for."""
        found = self._states.get(kind)
        if not isinstance(found, kind):
            found = self._states[kind] = kind()
        return found

    @property
    def is_held_back(self) -> bool:
        """Whether answers may wait for a batch of the bucket."""
        return bool(self.gate or self.server.committer.gate())

    async def settle(self) -> None:
        """Wait until all that was answered from the bucket may leave: in another one its gates mean nothing."""
        committer = self.server.committer
        if not await committer.wait(max(committer.gate(), self.gate)):
            raise CommandRefused(Status.ETMPFAIL, "what was written before could not be")

    def select(self, server: Services) -> None:
        """Select a bucket. Nothing of another one may be held back."""
        if server is not self.server:
            self.connection.serve(server.committer, server.requests)
            self.server, self.written_gate = server, 0
            self._states.clear()
        self.bucket, self.config_seen = server.bucket, (-1, -1)
        self.changed()

    def deselect(self) -> None:
        """Have no bucket."""
        self.bucket, self.config_seen = None, (-1, -1)
        self.changed()

    def changed(self) -> None:
        """Features, login, bucket or rights changed: the fast path must know."""
        users = self.server.users
        if self.bucket is not None:
            self.rights = users.rights(self.user, self.bucket.name)
            self.places = users.places(self.user, self.bucket.name)
            if self.rights <= _LOGIN and self.places is None:  # a stranger, or a user who has no role in it
                self.bucket = None
        if self.bucket is None:  # so that who could read in some bucket is told that he has selected none
            self.rights, self.places = users.rights_anywhere(self.user), None
        self._knows_collections = Feature.COLLECTIONS in self.features
        usable = self.bucket is not None and self.rights_in(0) & _READ
        self._fast = self.server.fast_path(self) if usable else None
        self.connection.know(is_known=self.is_logged_in)

    # --- what the connection calls ------------------------------------------------------------------------------------

    def receive(self, data: memoryview) -> int:
        """Run every whole request in `data`; stops early when something pauses the connection."""
        offset, connection = 0, self.connection
        while not connection.is_paused and not connection.is_closed and connection.session is self:
            if self._fast is not None and (len(data) - offset < HEADER_BYTES or data[offset + 1] not in _OF_PATHS):
                offset = self._fast(data, offset)
                if offset == len(data) or connection.is_paused:
                    break
            if not self.is_logged_in:
                self._check_stranger(data, offset)
            frame = next_frame(data, offset)
            if frame is None:
                break
            try:
                self.handle(frame)
            except NoRoom:
                self.wait_for_room()
                break
            offset += len(frame)
            if offset == len(data) or connection.gives_way():
                break
        return offset

    def _check_stranger(self, data: memoryview, offset: int) -> None:
        """Judge a header as soon as it is there."""
        claimed = len(data) - offset >= HEADER_BYTES and lengths(data, offset).frame
        if claimed > STRANGER_FRAME_BYTES_MAX:
            raise RemoteProtocolError(
                f"a frame of {claimed} bytes before it has logged in, {STRANGER_FRAME_BYTES_MAX} are allowed"
            )

    def pump(self) -> None:
        """Do nothing: a plain connection streams nothing."""

    def tick(self, now: float) -> None:
        """Do nothing: a plain connection has no deadlines."""

    def users_changed(self) -> None:
        """Go by the users and roles of now; who is none any more has to leave."""
        if self.user is not None and not self.server.users.knows(self.user):
            self.connection.drop(f"user {self.user!r} is none any more", fault=False)
        else:
            self.changed()

    def closed(self) -> None:
        """Cancel the running handler, whose answer has no recipient; one that lasts is not left half done."""
        if self._task is not None and not self._lasts:
            self._task.cancel()
        if self._preparation is not None:
            self._preparation.cancel()
        self._drop_prepared()
        if self._pending is not None:
            bucket, vbucket = self._pending
            bucket.waits_no_more(vbucket, self._state_changed)
        self._fast = self.login = None  # which refer to this session

    # --- requests -----------------------------------------------------------------------------------------------------

    def handle(self, frame: Frame) -> None:
        """Answer one request. Public: a DCP session passes on what is not DCP.

        Raises NoRoom when the request must be given again: after the next commit, or when others have had their turn.
        """
        if frame.magic not in REQUESTS:
            return  # a response to something we sent (a notification): nothing waits for it
        try:
            command, request = self._admit(frame)
            if command.document and isinstance(request, Request):
                self._let_short_ones_first(request)
            answer = command.handler(self, request)
            if self._write is not None:
                write, self._write = self._write, None
                answer = _Committed(write, answer)
            self._drop_prepared()
            if not isinstance(answer, Answer) and isinstance(answer, Iterator):
                answer = None if self._send_some(frame, answer) else self._send_rest(frame, answer)
        except CommandRefused as refused:
            self._turn_down(frame, refused)
            return
        except ArenaFull:
            raise NoRoom from None
        except CorruptStore as error:
            self._turn_down(frame, CommandRefused(Status.EINTERNAL, str(error)))
            return
        except StorageError as error:
            self._turn_down(frame, CommandRefused(Status.ETMPFAIL, str(error)))
            return
        if isinstance(answer, Answer):  # nearly all; the other questions take longer
            self.reply(frame, answer)
            self._count(command, frame.opcode, answer.status)
        elif inspect.isawaitable(answer):
            self._lasts = command.lasts
            self._park(frame, answer)
        else:
            self._answer(frame, answer)
            self._count(command, frame.opcode, Status.SUCCESS)
        if self._finishes:
            self.connection.finish()

    def _let_short_ones_first(self, request: Request) -> None:
        """Put a request for a large document off while others stand in line. Hundreds of guests may ask for one each,
        which would be seconds in which a short request waits.

        Raises:
            NoRoom: it is given again when the others have had their turn.
        """
        if self.prepared is not None or not request.key or not self.connection.others_wait():
            return
        store = self.store_bucket.store
        if store.document_bytes(request.vbucket, request.key, self.collection) >= LARGE_BYTES:
            self.connection.stand_behind()
            raise NoRoom

    def finish(self) -> None:
        """Close the connection once the request being handled is answered."""
        self._finishes = True

    def wait_for_room(self) -> None:
        """Pause until the staging arena is empty again; nothing if the connection waits for something else: it is not
        for want of room, which the committer would make, that its request is to be given again."""
        if self.connection.is_paused:
            return
        self.connection.pause("commit")
        self.server.committer.when_room(lambda: self.connection.resume("commit"))

    def prepare(self, work: Coroutine[Any, Any, Prepared]) -> NoRoom:
        """Pause the connection until something is prepared for its request, which is then handled again."""
        self._drop_prepared()
        self.connection.pause("preparing")
        self._preparation = self.server.loop.create_task(self._prepare(work))
        self._preparation.add_done_callback(lambda _: work.close())  # it may be cancelled before it has begun
        return NoRoom()

    async def _prepare(self, work: Coroutine[Any, Any, Prepared]) -> None:
        try:
            self.prepared = await work
        except Exception:  # the request would meet it again and again
            told = event("node.failed", peer=self.connection.peer)
            log.exception("%s: a request could not be prepared", self.connection.peer, extra=told)
            self.connection.drop("its request could not be prepared")
        finally:
            self._preparation = None
            self.connection.resume("preparing")

    def _drop_prepared(self) -> None:
        if self.prepared is not None:
            self.prepared.drop()
            self.prepared = None

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
        self.connection.send(data, gate if gate > self.written_gate else self.written_gate)

    def reply(self, frame: Frame, answer: Answer) -> None:
        """Queue the answer of one request, unless its quiet form leaves it out."""
        command = COMMANDS.get(frame.opcode)
        if command is None or command.silent.get(frame.opcode) != answer.status:
            gate = self.server.committer.gate() if command is not None and command.document else 0
            if len(answer.value) < MAPPED_BYTES_MIN:
                self.send(self.encoded(frame, answer), gate)
            else:
                for piece in answer.answering_apart(frame):
                    self.send(piece, gate)

    def encoded(self, frame: Frame, answer: Answer) -> bytes:
        """The bytes of an answer as this connection's protocol has them."""
        return answer.answering(frame)

    def wait_for(self, vbucket: int, prepare: Prepare) -> int:
        """Stage the prepare of the request being handled, whose answer waits for its commit. Raises ArenaFull."""
        timeout = None if self.durability is None else self.durability.timeout_ms
        self._write = self.store_bucket.durable_writes.begin(vbucket, prepare, timeout)
        return self._write.seqno

    def _check_durability(self, bucket: Bucket, found: Command, request: Request | Frame) -> None:
        """Hold a request on a document against the durable writes, its own and those that wait."""
        writes = bucket.durable_writes
        if self.durability is not None:
            writes.check_possible(request.vbucket)
        if request.vbucket in writes.held and bucket.is_active(request.vbucket):
            changes = found.writes or isinstance(request, GetLocked)
            writes.refuse_in_flight(request.vbucket, self.collection, request.key, writes=changes)

    def _admit(self, frame: Frame) -> tuple[Command, Request | Frame]:
        """Find the command and hold the request against every general rule, in the order of kv.md."""
        found = COMMANDS.get(frame.opcode)
        if found is None:
            if not self.is_logged_in:
                raise CommandRefused(Status.EACCESS, "not logged in")
            raise CommandRefused(refusal_of(frame.opcode))
        if self.places is None and not found.of_node:
            self.check_rights(frame, found.rule)
        else:
            self._check_beforehand(frame, found)
        if frame.datatype:  # nearly none has one, and looking at its bits takes as long as reading a request
            self._check_datatype(frame)
        self.durability = None
        if frame.framing:
            try:
                self.durability = check_framing(frame, found.loud(frame.opcode))
            except BadMessage as bad:
                raise CommandRefused(bad.status, str(bad)) from None
        return found, self._read_for_bucket(found, frame) if found.needs_bucket else found.read(frame)

    def _read_for_bucket(self, found: Command, frame: Frame) -> Request | Frame:
        """Read a request that is about the selected bucket, and hold it against the state of that."""
        bucket, self.collection = self.store_bucket, 0
        if found.document and self._knows_collections:
            frame = self._without_collection(frame)
        if found.document and self.places is not None:
            self._check_place(frame, found.rule)
        request = found.read(frame)
        if found.document:
            self._check_vbucket(bucket, frame)
            self._check_collection(bucket.vbuckets[frame.vbucket])
        if found.document and (bucket.durable_writes.held or self.durability is not None):
            self._check_durability(bucket, found, request)
        if found.writes:
            _check_writable(bucket, found, frame.vbucket)
        if found.writes and found.document and isinstance(request, Request):
            request = with_own_cas(self, request)
        return request

    def _check_beforehand(self, frame: Frame, found: Command) -> None:
        """Check the rights to a request of the node, or of a user with rights in parts of the bucket: whether those to
        a document are of its collection is found out once that is known."""
        if found.of_node:
            self.check_rights(frame, found.rule, self.node_rights)
        else:
            is_enough = found.document or found.anywhere
            self.check_rights(frame, found.rule, self.rights_anywhere if is_enough else self.rights)

    def _check_place(self, frame: Frame, rule: Rule) -> None:
        """Refuse what the user may not do in the collection of a request: as one that is not there, if he may do
        nothing at all in it."""
        collection = self.collection if self._knows_collections else 0
        rights = self.rights_in(collection)
        if rights <= _LOGIN and self._knows_collections:
            raise self._not_to_be_seen(collection, name_of(frame.opcode))
        self.check_rights(frame, rule, rights)

    def check_collection(self, collection: int, needed: Privilege) -> None:
        """Refuse a request that names a collection elsewhere than in its key, where its user lacks a privilege."""
        if self.places is None or not needed & ~(rights := self.rights_in(collection)):
            return
        if rights <= _LOGIN:
            raise self._not_to_be_seen(collection, in_words(needed))
        self.server.audit(self, f"may not {in_words(needed)} collection 0x{collection:x}")
        raise CommandRefused(Status.EACCESS, f"it needs {in_words(needed)} in collection 0x{collection:x}")

    def _not_to_be_seen(self, collection: int, what: str) -> CommandRefused:
        """The refusal of a user who has no right at all in a collection: it is not there for him."""
        self.server.audit(self, f"may not {what} in collection 0x{collection:x}")
        return self.store_bucket.collections.unknown_collection(collection)

    @property
    def node_rights(self) -> int:
        """The user's privileges in all buckets, those to come included."""
        return self.server.users.rights(self.user, None)

    def check_rights(self, frame: Frame, rule: Rule, rights: int | None = None) -> None:
        """Refuse (EACCESS) what the user may not do, and have it written down; the one place where that is decided."""
        needed, rights = rule.needed(frame) if rule.cases else rule.privilege, self.rights if rights is None else rights
        if not needed & ~rights:
            return
        if not self.is_logged_in:
            raise CommandRefused(Status.EACCESS, "not logged in")
        missing = f"needs {in_words(needed & ~rights)}"
        self.server.audit(self, f"may not {name_of(frame.opcode)}: it {missing}")
        raise CommandRefused(Status.EACCESS, f"{name_of(frame.opcode)} {missing}")

    def _check_datatype(self, frame: Frame) -> None:
        """wire.md 4: legal values are 0..7, and a bit needs its feature; a violation is EINVAL."""
        if not legal(frame.datatype):
            raise CommandRefused(Status.EINVAL, f"datatype 0x{frame.datatype:02x} has unknown bits")
        for bit, feature in _NEEDED_FEATURE.items():
            if frame.datatype & bit and feature not in self.features:
                raise CommandRefused(Status.EINVAL, f"datatype {bit.name} was not negotiated by HELLO")

    def _without_collection(self, frame: Frame) -> Frame:
        """Take the collection's id off a key; one that is cut, overlong or beyond 32 bits is EINVAL (wire.md 8)."""
        if not frame.key:
            return frame  # which the declaration may allow, or not
        if len(frame.key) > KEY_BYTES_MAX + 1:
            raise CommandRefused(Status.EINVAL, f"the key has {len(frame.key)} bytes, {KEY_BYTES_MAX + 1} are allowed")
        try:
            self.collection, key = leb128.split_key(frame.key)
        except RemoteProtocolError as bad:
            raise CommandRefused(Status.EINVAL, str(bad)) from None
        if self.collection == SYSTEM_COLLECTION:  # "id 1 on the wire is EINVAL"
            raise CommandRefused(Status.EINVAL, "collection 1 is the system's own")
        return replace(frame, key=key)

    def _check_collection(self, vbucket: VBucket) -> None:
        """kv.md 2: "Collections: key prefix checked; unknown id 88"; the vbucket's own log says which there are."""
        if self.collection not in vbucket.collections.alive:
            raise self.store_bucket.collections.unknown_collection(self.collection)

    def _state_changed(self) -> None:
        self._pending = None
        self.connection.resume("pending")

    def _check_vbucket(self, bucket: Bucket, frame: Frame) -> None:
        """kv.md: not on this node: 07; active: proceed; pending: park until the state changes; replica, dead: 07."""
        state = bucket.state(frame.vbucket)
        wanted = State.REPLICA if frame.opcode == Opcode.GET_REPLICA else State.ACTIVE
        if state == State.PENDING and wanted == State.ACTIVE:
            self._drop_prepared()  # others want the place while it waits, however long that takes
            self.connection.pause("pending")
            self._pending = bucket, frame.vbucket
            bucket.when_state_changes(frame.vbucket, self._state_changed)
            raise NoRoom
        if state != wanted:
            raise self.not_my_vbucket()
        if frame.vbucket in bucket.fenced:
            raise CommandRefused(Status.ETMPFAIL, "it is not known yet whether another node owns the vbucket by now")
        if bucket.traffic_disabled:
            raise CommandRefused(Status.ETMPFAIL, "traffic is disabled")

    def not_my_vbucket(self) -> CommandRefused:
        """The refusal that carries the current map, so that the client finds the owner (kv.md, "07 responses")."""
        if not self.server.cluster.map_in_refusals:
            return CommandRefused(Status.NOT_MY_VBUCKET)
        datatype = Datatype.JSON if self.has(Feature.JSON) else 0
        self.config_seen = self.server.cluster.version
        return CommandRefused(Status.NOT_MY_VBUCKET, value=self.server.cluster.config(), datatype=datatype)

    # --- answers ------------------------------------------------------------------------------------------------------

    def _answer(self, frame: Frame, answer: Answers) -> None:
        if isinstance(answer, Answer):
            self.reply(frame, answer)
        elif answer:
            self.send(b"".join(self.encoded(frame, each) for each in answer))

    def _send_some(self, frame: Frame, answers: Iterator[Answer]) -> bool:
        """Send as many answers as this turn has time for; whether those were all."""
        out = bytearray()
        for count, each in enumerate(answers, 1):
            out += self.encoded(frame, each)
            if count % ANSWERS_PER_LOOK == 0 and self.connection.turn_is_over():
                self.send(out)
                return False
        self.send(out)
        return True

    async def _send_rest(self, frame: Frame, answers: Iterator[Answer]) -> None:
        is_done = False
        while not is_done:
            await self.server.run_queue.turn()  # others first
            self.connection.begin_turn()
            is_done = self._send_some(frame, answers)

    def _park(self, frame: Frame, work: Awaitable[Answers]) -> None:
        """Pause the connection until a coroutine has the answer."""
        self.connection.pause("parked")
        self._task = self.server.loop.create_task(self._finish(frame, work, self.server.requests.begun_at))

    async def _finish(self, frame: Frame, work: Awaitable[Answers], begun_at: float) -> None:
        try:
            answer = await work
            self._answer(frame, answer)
            status = _status(answer)
        except CommandRefused as refused:
            self._refuse(frame, refused)
            status = refused.status
        except asyncio.CancelledError:
            raise
        except Exception:
            told = event("node.failed", peer=self.connection.peer, opcode=frame.opcode)
            log.exception("%s: opcode 0x%02x failed", self.connection.peer, frame.opcode, extra=told)
            self._refuse(frame, CommandRefused(Status.EINTERNAL))
            status = Status.EINTERNAL
        self.server.requests.answered(frame.opcode, status)
        self.server.requests.finished(frame.opcode, begun_at)
        self._task = None
        self.connection.resume("parked")

    def _count(self, command: Command, opcode: int, status: int) -> None:
        """Count a request whose answer waits for its batch, if it waits for one (see `reply`)."""
        server = self.server
        server.requests.answered(opcode, status)
        gate = max(self.gate, server.committer.gate()) if command.document else self.gate
        server.requests.ran(opcode, 1, gate)

    def _turn_down(self, frame: Frame, refused: CommandRefused) -> None:
        """Say no at once."""
        self._drop_prepared()
        self._refuse(frame, refused)
        opcode = frame.opcode if has_name(frame.opcode) else UNKNOWN
        self.server.requests.answered(opcode, refused.status)
        self.server.requests.ran(opcode, 1, self.gate)

    def _refuse(self, frame: Frame, refused: CommandRefused) -> None:
        """Say no in words this client knows: wire.md 3.1 for those without XERROR."""
        status = refused.status
        before_login = status == Status.EACCESS and not self.is_logged_in  # "always sent as 0x24"
        if not self.has(Feature.XERROR) and not before_login:
            known = without_xerror(refused.status, collections=self._knows_collections)
            if known is None:
                name = f"status 0x{refused.status:02x} for opcode 0x{frame.opcode:02x}"
                self.connection.drop(f"{name} can't be told to a client without XERROR: {refused.context}")
                return
            status = known
        value, datatype = refused.value, refused.datatype
        if refused.context and not value and self.has(Feature.XERROR):
            value = error_body(refused.context)
            datatype = Datatype.JSON if self.has(Feature.JSON) else 0
        self.reply(frame, Failure(status=status, value=value, datatype=datatype))


def _check_writable(bucket: Bucket, found: Command, vbucket: int) -> None:
    if found.document and bucket.is_backed_up(vbucket):
        raise CommandRefused(Status.ETMPFAIL, "the vbucket is about to move to another node")
    if bucket.store.full and not (found.frees and bucket.store.staging.may_delete):
        raise CommandRefused(Status.ETMPFAIL, "the disk, or the bucket's quota, is full")


class _Committed:
    """The answer of a durable write, to be awaited: its place in history is that of the commit.

    No coroutine: one that nobody comes to await, for the connection is gone, would complain.
    """

    def __init__(self, write: DurableWrite, answer: Answers | Awaitable[Answers]) -> None:
        self._write, self._answer = write, answer

    def __await__(self) -> Generator[Any, None, Answers]:
        seqno = yield from self._write.outcome.__await__()
        answer = self._answer
        if not isinstance(answer, Answer) or getattr(answer, "seqno", None) is None:
            return cast("Answers", answer)
        return replace(answer, seqno=seqno)  # type: ignore[call-arg]


def _status(answer: Answers) -> int:
    """The status that a command is counted with: of several answers, and of none, it is success."""
    return answer.status if isinstance(answer, Answer) else Status.SUCCESS
