"""Applies TAP messages that a mover sends to this node: it copies a producer's messages to an ordinary connection.

The vbuckets are replicas or pending. Their changes get new seqnos on this node, in the order of arrival, so such a
vbucket has its own history: a stream from scratch creates it again, and a new branch begins when it becomes active. A
change is answered once it is durable.

Source: tap.md 4 (consumer behaviour), 5 (steps 2, 6), 5.3 (applying).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.errors import BadMessage, StorageError
from headwater.node.changes import stage
from headwater.node.kv import values
from headwater.node.kv.command import passes
from headwater.node.kv.parking import refusal_of
from headwater.node.kv.vbuckets import set_state
from headwater.node.refused import CommandRefused
from headwater.node.storage.staging import ArenaFull
from headwater.protocol.dcp.consumer_changes import CAS_ALL_ONES, Change
from headwater.protocol.tap.consumer import MESSAGES, TapConsumer, TapMessage, hops_after
from headwater.wire import tap
from headwater.wire.header import Frame
from headwater.wire.numbers import GIVEN_MAX, HELD_MAX
from headwater.wire.status import Status
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from headwater.node.buckets.bucket import Bucket
    from headwater.node.kv.api import Session

_FED = (State.REPLICA, State.PENDING)


@passes(*MESSAGES)
def take(session: Session, frame: Frame) -> None:
    """Handle one TAP message: carry it out, then answer it if it requests an answer."""
    consumer = session.state_of(TapFed)
    status = Status.SUCCESS
    try:
        message = consumer.read(frame)
        if message is not None:
            consumer.obey(session, message)
            session.wrote()
    except BadMessage as bad:
        status = Status(bad.status)
    except CommandRefused as refused:
        status = Status(refused.status)
    except ArenaFull:
        raise  # the message is handled again after the next commit
    # "With ack support ETMPFAIL; without: disconnect" (tap.md 4): a producer that waits for no answer would go on, and
    # the change would be missing here.
    except StorageError as error:
        status = Status(refusal_of(error).status)
    answer = consumer.answer(frame, status)
    if answer is not None:
        # "Must not ack before processing" (tap.md 4): a message is processed once it is on the disk, because it is
        # never sent again once it is acknowledged.
        session.send(answer.encode(), session.server.committer.gate())


class TapFed(TapConsumer):
    """The state of a connection over which a mover sends.

    Attributes:
        fed: the vbuckets that it has sent messages for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fed: set[int] = set()

    def obey(self, session: Session, message: TapMessage) -> None:
        """Carry out a message.

        Raises:
            CommandRefused: the message is refused, with the status of the answer.
            NoRoom, ArenaFull: there is no room now; the message must be repeated after the next commit.
        """
        bucket = session.store_bucket
        # With acknowledgements this is a temporary refusal: the producer sends the message again later (tap.md 4).
        if bucket.store.full:
            raise CommandRefused(Status.ETMPFAIL, "the disk is full")
        match message:
            case tap.Mutation():
                self._store(bucket, message)
            case tap.Delete():
                self._delete(bucket, message)
            case tap.Flush():
                for vb in self.fed:
                    if bucket.state(vb) in _FED:  # one that became active meanwhile belongs to its clients
                        self._reset(bucket, vb)
            case tap.VbucketSet():
                self._set_state(session, message)
            case tap.CheckpointStart():  # also CheckpointEnd, a subclass
                self._pass_checkpoint(bucket, message)
            case tap.Opaque() if message.code == tap.OpaqueCode.INITIAL_VBUCKET_STREAM:
                self._check(bucket, message.vbucket)
                self._reset(bucket, message.vbucket)

    def _check(self, bucket: Bucket, vb: int) -> None:
        """Raise CommandRefused unless a vbucket is a replica or pending, and note that this connection feeds it.

        "Unknown vb or wrong state (data arriving for an active vb): 07, which ends the stream".
        """
        if bucket.state(vb) not in _FED:
            raise CommandRefused(Status.NOT_MY_VBUCKET, f"vbucket {vb} is not a replica here")
        self.fed.add(vb)

    def _store(self, bucket: Bucket, message: tap.Mutation) -> None:
        """Store a change. "Store unconditionally with given CAS, flags, expiry, rev seqno"."""
        self._check(bucket, message.vbucket)
        # If it were stored, it would replace a document by an empty one.
        if message.flags & tap.MessageFlag.NO_VALUE:
            raise CommandRefused(Status.EINVAL, "a message without its value is no document")  # tap.md 5.2
        datatype = values.accepted(message.value, message.datatype)
        arguments = (message.key, message.value, 0, _revision(message.rev_seqno), _cas(message), datatype)
        change = Change(*arguments, flags=message.client_flags, expiry=message.item_expiration)
        stage(bucket, message.vbucket, change, hops_after(message.ttl))

    def _delete(self, bucket: Bucket, message: tap.Delete) -> None:
        """Delete a document. "Delete with rev seqno, ignore not-found"."""
        self._check(bucket, message.vbucket)
        document = bucket.store.document(message.vbucket, message.key)
        if document is None or document.deleted:
            return
        rev_seqno = (
            _revision(message.rev_seqno) if message.engine_specific else bucket.next_revision(message.vbucket, document)
        )
        change = Change(message.key, b"", 0, rev_seqno, _cas(message), 0, deleted=True)
        stage(bucket, message.vbucket, change, hops_after(message.ttl))

    def _set_state(self, session: Session, message: tap.VbucketSet) -> None:
        """Set a vbucket's state. "Set the state (creating the vb if needed)"; active "creates a new failover entry".

        A replica that lacks changes, or whose disk lost some, does not become active: SET_VBUCKET can force that, but
        TAP can't. A replica that is sent from scratch lacks nothing.
        """
        vb, bucket = message.vbucket, session.store_bucket
        try:
            state = State(message.state or 0)
        except ValueError:
            raise CommandRefused(Status.EINVAL, f"{message.state} is no state") from None
        if vb >= bucket.vbucket_count:
            raise CommandRefused(Status.EINVAL, f"vbuckets are 0 to {bucket.vbucket_count - 1}")
        # TAP sends neither prepares nor aborts, so the former owner has ended the prepares that are still here from an
        # earlier stream.
        if set_state(session, vb, state) and state is State.ACTIVE:
            bucket.durable_writes.abort_of_before(vb)

    def _pass_checkpoint(self, bucket: Bucket, message: tap.CheckpointStart) -> None:
        """Open or close a checkpoint. "The consumer opens a checkpoint with the same id; on END it closes it" (tap.md
        5.1).

        The checkpoint that was closed last may be repeated, because its answer may have been lost. An earlier one is
        refused, because it would move the vbucket back.
        """
        vb, number = message.vbucket, message.checkpoint_id
        self._check(bucket, vb)
        closed = bucket.vbuckets[vb].checkpoint
        if number > GIVEN_MAX:
            raise CommandRefused(Status.EINVAL, f"checkpoint {number}, the highest taken is {GIVEN_MAX}")
        if number < closed:
            raise CommandRefused(Status.EINVAL, f"checkpoint {number} of vbucket {vb} after {closed} is closed")
        bucket.vbuckets[vb].note_deleted_rev(min(message.deleted_rev, HELD_MAX))
        if isinstance(message, tap.CheckpointEnd) and number > closed:
            bucket.vbuckets[vb].close_checkpoint(number)

    def _reset(self, bucket: Bucket, vb: int) -> None:
        """Create a vbucket again, without documents; its changes get seqnos from 1 again, in a new history."""
        vbucket = bucket.vbuckets.get(vb)
        if vbucket is not None and (vbucket.high_seqno or vbucket.checkpoint):
            state = vbucket.state
            # Without room for both, the message is repeated, and must find the vbucket as it was.
            bucket.store.staging.check_drop_room(anew=True)
            # Not an emptied vbucket but a new one, with another vb uuid: its seqnos begin at 1 again, and its readers
            # must notice that.
            bucket.drop_vbucket(vb)
            bucket.create_vbucket(vb, state)


def _cas(message: tap.Mutation | tap.Delete) -> int:
    """Return the message's CAS; 0 if all its bits are set.

    Raises:
        CommandRefused: the CAS is too high to be stored.
    """
    if HELD_MAX < message.cas < CAS_ALL_ONES:
        raise CommandRefused(Status.EINVAL, f"a CAS of {message.cas}, the highest taken is {HELD_MAX}")
    return 0 if message.cas == CAS_ALL_ONES else message.cas


def _revision(number: int) -> int:
    if number > HELD_MAX:
        raise CommandRefused(Status.EINVAL, f"revision {number}, the highest taken is {HELD_MAX}")
    return number
