"""The checks of a request before its handler runs: every general rule, in the order of kv.md.

`admit` has that order. Clients can see the order, because a request that breaks two rules gets the error of the first;
tests compare the answers byte for byte. A rule that raises NoRoom has paused the connection, and `admit` is called
again with the request later.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headwater.errors import BadMessage, RemoteProtocolError
from headwater.kernels.choices import SYSTEM_COLLECTION
from headwater.node.kv.access import check_place, check_rights
from headwater.node.kv.command import COMMANDS, Command, refusal_of
from headwater.node.kv.framing import check_framing
from headwater.node.kv.locking import with_own_cas
from headwater.node.process.run_queue import LARGE_BYTES
from headwater.node.refused import CommandRefused, NoRoom
from headwater.wire import leb128
from headwater.wire.datatype import Datatype, legal
from headwater.wire.documents import GetLocked
from headwater.wire.features import Feature
from headwater.wire.header import HEADER_BYTES, KEY_BYTES_MAX, Frame, lengths
from headwater.wire.layout import Request
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from headwater.node.buckets.bucket import Bucket
    from headwater.node.kv.api import Session
    from headwater.wire.framing import DurabilityInfo

STRANGER_FRAME_BYTES_MAX = 64 << 10
"""The longest frame before the login: names, passwords and features are short."""

_NEEDED_FEATURE = {Datatype.JSON: Feature.JSON, Datatype.SNAPPY: Feature.SNAPPY, Datatype.XATTR: Feature.XATTR}


def admit(session: Session, frame: Frame) -> tuple[Command, Request | Frame]:
    """Find the command of a frame, and check the frame against every general rule.

    The numbered order determines which of several errors a client gets. Sets `session.durability`, and for a command
    that needs a bucket also `session.collection`.

    Returns:
        The command, and the argument of its handler.

    Raises:
        CommandRefused: a rule is broken.
        NoRoom: the connection waits for another state of the vbucket, or for its turn; call `admit` with the frame
            again.
    """
    command = _command_of(session, frame)  # 1. a handler; a stranger must not learn which commands exist
    if session.access.places is None and not command.of_node:  # 2. the rights in the bucket
        check_rights(session, frame, command.rule)
    else:
        _check_rights_elsewhere(session, frame, command)
    if frame.datatype:  # 3. its bits; nearly all frames have 0, and the check takes as long as reading a request
        _check_datatype(session, frame)
    session.durability = _durability_of(frame, command) if frame.framing else None  # 4. framing extras
    if not command.needs_bucket:
        return command, command.read(frame)
    bucket, session.collection = session.store_bucket, 0  # 5. a bucket is selected
    if not command.document:
        request = command.read(frame)
        if command.writes:
            _check_room(bucket, command)
        return command, request
    request = _admit_document(session, bucket, command, frame)
    if isinstance(request, Request):  # 14. its turn, if it asks for a large document
        _let_short_ones_first(session, bucket, request)
    return command, request


def _admit_document(session: Session, bucket: Bucket, command: Command, frame: Frame) -> Request | Frame:
    """Read a request on a document, and check it against the state of the bucket: rules 6 to 13 of `admit`."""
    if session.knows_collections:  # 6. the collection's id in front of the key
        frame = _without_collection(session, frame)
    if session.access.places is not None:  # 7. the rights in that collection
        check_place(session, frame, command.rule)
    request = command.read(frame)  # 8. the declaration: lengths, key, value, CAS
    _check_vbucket(session, bucket, frame)  # 9. the vbucket is active here
    if session.collection not in bucket.vbuckets[frame.vbucket].collections.alive:  # 10. the vbucket has the collection
        raise bucket.collections.missing_in(bucket.vbuckets[frame.vbucket], session.collection)
    if bucket.durable_writes.held or session.durability is not None:  # 11. durable writes, its own and those in flight
        _check_durability(session, bucket, command, request)
    if not command.writes:
        return request
    if bucket.is_backed_up(frame.vbucket):  # 12. room: in the vbucket, which may be about to move, and on the disk
        raise CommandRefused(Status.ETMPFAIL, "the vbucket is about to move to another node")
    _check_room(bucket, command)
    return with_own_cas(session, request) if isinstance(request, Request) else request  # 13. the lock


# --- the rules --------------------------------------------------------------------------------------------------------


def _command_of(session: Session, frame: Frame) -> Command:
    command = COMMANDS.get(frame.opcode)
    if command is not None:
        return command
    if not session.access.is_logged_in:
        raise CommandRefused(Status.EACCESS, "not logged in")
    raise CommandRefused(refusal_of(frame.opcode))


def _check_rights_elsewhere(session: Session, frame: Frame, command: Command) -> None:
    """Check the rights to a request about the whole node, or of a user who has rights in parts of the bucket only.

    In the second case a document command passes if the user has the right in any part; `check_place` follows once the
    document's collection is known.
    """
    if command.of_node:
        check_rights(session, frame, command.rule, session.server.users.rights(session.user, None))
    else:
        is_enough = command.document or command.anywhere
        rights = session.access.anywhere if is_enough else session.access.rights
        check_rights(session, frame, command.rule, rights)


def _check_datatype(session: Session, frame: Frame) -> None:
    """Check the datatype: 0 to 7, and each bit needs its HELLO feature (wire.md 4); otherwise refuse with EINVAL."""
    if not legal(frame.datatype):
        raise CommandRefused(Status.EINVAL, f"datatype 0x{frame.datatype:02x} has unknown bits")
    for bit, feature in _NEEDED_FEATURE.items():
        if frame.datatype & bit and feature not in session.features:
            raise CommandRefused(Status.EINVAL, f"datatype {bit.name} was not negotiated by HELLO")


def _durability_of(frame: Frame, command: Command) -> DurabilityInfo | None:
    try:
        return check_framing(frame, command.loud(frame.opcode))
    except BadMessage as bad:
        raise CommandRefused(bad.status, str(bad)) from None


def _without_collection(session: Session, frame: Frame) -> Frame:
    """Move the collection id from the key to `session.collection`; return the frame with the rest of the key.

    Raises:
        CommandRefused: EINVAL, the id is incomplete, overlong or above 32 bits (wire.md 8).
    """
    if not frame.key:
        return frame  # the request's declaration decides whether an empty key is allowed
    if len(frame.key) > KEY_BYTES_MAX + 1:
        raise CommandRefused(Status.EINVAL, f"the key has {len(frame.key)} bytes, {KEY_BYTES_MAX + 1} are allowed")
    try:
        session.collection, key = leb128.split_key(frame.key)
    except RemoteProtocolError as bad:
        raise CommandRefused(Status.EINVAL, str(bad)) from None
    if session.collection == SYSTEM_COLLECTION:  # "id 1 on the wire is EINVAL"
        raise CommandRefused(Status.EINVAL, "collection 1 is the system's own")
    return replace(frame, key=key)


def _check_vbucket(session: Session, bucket: Bucket, frame: Frame) -> None:
    """Check the vbucket's state (kv.md): accept the request if it is active; refuse it with status 07 if it is missing,
    a replica or dead; wait for another state if it is pending. GET_REPLICA needs a replica.
    """
    state = bucket.state(frame.vbucket)
    required = State.REPLICA if frame.opcode == Opcode.GET_REPLICA else State.ACTIVE
    if state == State.PENDING and required == State.ACTIVE:
        session.preparation.drop()  # the wait may be long, and other requests need the place for large documents
        raise session.parking.wait_for_state(bucket, frame.vbucket)
    if state != required:
        raise session.not_my_vbucket()
    # A temporary failure, not status 07: the map may name this node, and the client would retry here at once.
    if frame.vbucket in bucket.fenced:
        raise CommandRefused(Status.ETMPFAIL, "it is not known yet whether another node owns the vbucket by now")
    if bucket.traffic_disabled:
        raise CommandRefused(Status.ETMPFAIL, "traffic is disabled")


def _check_durability(session: Session, bucket: Bucket, command: Command, request: Request | Frame) -> None:
    """Check a request on a document against durable writes: its own durability, and the writes in flight."""
    writes = bucket.durable_writes
    if session.durability is not None:
        writes.check_possible(request.vbucket)
    if request.vbucket in writes.held and bucket.is_active(request.vbucket):
        # A lock is taken with a CAS that the commit is about to change, so GET_LOCKED counts as a change.
        changes = command.writes or isinstance(request, GetLocked)
        writes.refuse_in_flight(request.vbucket, session.collection, request.key, writes=changes)


def _check_room(bucket: Bucket, command: Command) -> None:
    # Deletions may use a part of the reserve, because clients could otherwise not free a full disk.
    if bucket.store.full and not (command.frees and bucket.store.staging.may_delete):
        raise CommandRefused(Status.ETMPFAIL, "the disk, or the bucket's quota, is full")


def _let_short_ones_first(session: Session, bucket: Bucket, request: Request) -> None:
    """Postpone a request for a large document, once, if other connections wait in the run queue.

    Otherwise, if hundreds of clients each requested such a document, a short request would wait for seconds.

    Raises:
        NoRoom: the request must be handled again after the other connections' turns.
    """
    connection = session.connection
    if session.preparation.done is not None or not request.key or not connection.others_wait():
        return
    if bucket.store.document_bytes(request.vbucket, request.key, session.collection) >= LARGE_BYTES:
        connection.stand_behind()
        raise NoRoom


# --- incomplete frames ------------------------------------------------------------------------------------------------


def check_stranger(data: memoryview, offset: int) -> None:
    """Check the header of a request, as soon as it is complete, on a connection that has not logged in.

    Raises:
        RemoteProtocolError: the frame is longer than any that a stranger may send.
    """
    claimed = len(data) - offset >= HEADER_BYTES and lengths(data, offset).frame
    if claimed > STRANGER_FRAME_BYTES_MAX:
        raise RemoteProtocolError(
            f"a frame of {claimed} bytes before it has logged in, {STRANGER_FRAME_BYTES_MAX} are allowed"
        )
