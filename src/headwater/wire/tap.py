"""Every message of TAP. Source: specification, tap.md.

The producer sends requests with consecutive opaques; the consumer answers those with flag ACK. Between extras and key
is the engine-private section, whose length is in the first two bytes of the extras. `engine_specific` holds its bytes,
because its length differs between versions; properties read its content. `engine_len` is computed.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import Annotated

from headwater.wire.codec import NUMBERS, Counted, Number, Rest, RowsCodec, Tail
from headwater.wire.header import HEADER_BYTES, Frame
from headwater.wire.layout import (
    ENGINE,
    OPTIONAL,
    REQUIRED,
    VALUE,
    Answer,
    Done,
    Request,
    about,
    measured,
    u8,
    u16,
    u24,
    u32,
    u64,
)
from headwater.wire.opcodes import Opcode
from headwater.wire.privilege import ADMINISTER, REPLICATE, STREAM, Beyond

__all__ = ["Acknowledged", "ChangeFilter", "CheckpointEnd", "CheckpointStart", "Connect", "ConnectFlag", "ConnectWide"]
__all__ += ["Delete", "Deregister", "Flush", "MessageFlag", "Mutation", "Opaque", "OpaqueCode", "VbucketSet"]
__all__ += ["asks_for_answer", "code_or_state", "revision"]


class ConnectFlag(IntFlag):
    """Flags of TAP_CONNECT. Source: tap.md 1.1."""

    BACKFILL = 0x01
    DUMP = 0x02
    LIST_VBUCKETS = 0x04
    TAKEOVER_VBUCKETS = 0x08
    SUPPORT_ACK = 0x10
    REQUEST_KEYS_ONLY = 0x20
    CHECKPOINT = 0x40
    REGISTERED_CLIENT = 0x80
    FIX_FLAG_BYTEORDER = 0x100


_TAKES_OVER = (Beyond("takeover", ConnectFlag.TAKEOVER_VBUCKETS, ConnectFlag.TAKEOVER_VBUCKETS, REPLICATE),)


class MessageFlag(IntFlag):
    """Flags of the producer's messages. Source: tap.md 3.1."""

    ACK = 0x01
    NO_VALUE = 0x02
    NETWORK_BYTE_ORDER = 0x04


class OpaqueCode(IntEnum):
    """The meaning of a TAP_OPAQUE. Source: tap.md 3.4; unknown codes are ignored."""

    ENABLE_AUTO_NACK = 0
    INITIAL_VBUCKET_STREAM = 1
    ENABLE_CHECKPOINT_SYNC = 2
    OPEN_CHECKPOINT = 3
    COMPLETE_VB_FILTER_CHANGE = 4
    STOP_ONLINE_UPDATE = 5
    REVERT_ONLINE_UPDATE = 6
    CLOSE_TAP_STREAM = 7
    CLOSE_BACKFILL = 8


_REVISION, _FOUR_BYTES = NUMBERS[64], NUMBERS[32]
_VBUCKETS = RowsCodec((("vbucket", NUMBERS[16]),))
_CHECKPOINTS = RowsCodec((("vbucket", NUMBERS[16]), ("checkpoint_id", NUMBERS[64])))
Vbuckets = Annotated[list[int], Counted(_VBUCKETS)]
Checkpoints = Annotated[list[tuple[int, int]], Counted(_CHECKPOINTS)]
# A real server accepts CHECKPOINT without its list (tests/data/captures, 13): the client has closed none yet.
MaybeCheckpoints = Annotated[list[tuple[int, int]], Tail(Counted(_CHECKPOINTS))]
MaybeFlag = Annotated[int, Tail(NUMBERS[8])]


class _Options(Request, privilege=STREAM, beyond=_TAKES_OVER):
    """The option values of a TAP_CONNECT, in the order of the flags' bits; they follow the key (erratum T10)."""

    backfill_age: u64 | None = about(
        "changes since, Unix seconds; a future time: no backfill", default=None, place=VALUE, when=0x01
    )
    vbuckets: Vbuckets | None = about("only these vbuckets; none listed: all", default=None, place=VALUE, when=0x04)
    checkpoints: MaybeCheckpoints | None = about(
        "for each vbucket the last checkpoint the client has closed", default=None, place=VALUE, when=0x40
    )
    closed_checkpoints_only: MaybeFlag | None = about(
        "1: closed checkpoints only", default=None, place=VALUE, when=0x80
    )


class Connect(_Options, opcode=Opcode.TAP_CONNECT, key=OPTIONAL):
    """The client requests the stream; the key is its name. There is no success answer: the producer's messages
    follow.
    """

    flags: u32 | None = about("ConnectFlag bits; absent: none", default=None)


class ConnectWide(_Options, opcode=Opcode.TAP_CONNECT, key=OPTIONAL):
    """The client requests the stream with 8 bytes of flags, as in the seed's listings (erratum T2)."""

    flags: u64 = about("ConnectFlag bits")


class Acknowledged(Answer):
    """Acknowledges a message and all before it."""


class _Item(Request, answer=Acknowledged, privilege=REPLICATE):
    """The fields at the beginning of all messages of the producer."""

    engine_len: u16 = measured("bytes of the engine-private section")
    flags: u16 = about("MessageFlag bits", default=0)
    ttl: u8 = about("hops left; 0 is not applied", default=255)
    reserved: u24 = about("0", default=0)
    engine_specific: Annotated[bytes, Rest()] = about("the engine-private section", default=b"", place=ENGINE)


class Mutation(_Item, opcode=Opcode.TAP_MUTATION, key=REQUIRED, value=OPTIONAL, cas=True):
    """A document was stored; the CAS is in the header."""

    item_flags: u32 = about("the application's own flags; reversed unless flag NETWORK_BYTE_ORDER", default=0)
    item_expiration: u32 = about("Unix seconds, or 0 for never", default=0)

    @property
    def rev_seqno(self) -> int:
        """The number of changes of the key so far; 1 if the message lacks it."""
        return _revision(self.engine_specific)

    @property
    def client_flags(self) -> int:
        """The item flags as the client sent them, whatever the sender's byte order."""
        network_order = self.flags & MessageFlag.NETWORK_BYTE_ORDER
        return int.from_bytes(self.item_flags.to_bytes(4), "big" if network_order else "little")


class Delete(_Item, opcode=Opcode.TAP_DELETE, key=REQUIRED, value=OPTIONAL, cas=True):
    """A document was deleted."""

    @property
    def rev_seqno(self) -> int:
        """The number of changes of the key so far; 1 if the message lacks it."""
        return _revision(self.engine_specific)


class Flush(_Item, opcode=Opcode.TAP_FLUSH):
    """The consumer must drop all data of all vbuckets of the stream."""


class Opaque(_Item, opcode=Opcode.TAP_OPAQUE):
    """A control message of the producer, by its code."""

    @property
    def code(self) -> int | None:
        """The OpaqueCode; None if the engine-private section is too short."""
        return _number(self.engine_specific, _FOUR_BYTES)


class VbucketSet(_Item, opcode=Opcode.TAP_VBUCKET_SET):
    """Sets a vbucket's state at the consumer; ACTIVE begins a new branch of its history there."""

    @property
    def state(self) -> int | None:
        """The vbucket.State; None if the engine-private section is too short."""
        return _number(self.engine_specific, _FOUR_BYTES)


class CheckpointStart(_Item, opcode=Opcode.TAP_CHECKPOINT_START, key=OPTIONAL, extras_bytes=(8, 16)):
    """A checkpoint begins; the engine-private section may hold the highest deleted revision.

    The specification's text gives it no key; a real server sends "checkpoint_start" (and "checkpoint_end"), and so does
    this node.
    """

    item_flags: u32 | None = about("0; absent in the later public text's form", default=None)
    item_expiration: u32 | None = about("0", default=None)
    checkpoint_id: u64 = about("which", place=VALUE)

    @property
    def deleted_rev(self) -> int:
        """The highest revision of all deletions in the vbucket; 0 if the message lacks it."""
        return _number(self.engine_specific, _REVISION) or 0


class CheckpointEnd(CheckpointStart, opcode=Opcode.TAP_CHECKPOINT_END):
    """A checkpoint ends."""


class Deregister(Request, opcode=Opcode.DEREGISTER_TAP_CLIENT, privilege=ADMINISTER, key=REQUIRED, answer=Done):
    """Drops the session named by the key; retired."""


class ChangeFilter(Request, opcode=Opcode.CHANGE_VB_FILTER, privilege=ADMINISTER, key=REQUIRED, answer=Done):
    """Replaces the vbuckets of the live session named by the key; an Opaque with code 4 confirms the change.
    Retired.
    """

    checkpoints: Checkpoints = about("the vbuckets and where to begin in each", place=VALUE)


def asks_for_answer(frame: Frame) -> bool:
    """Return True if a message of the producer has the flag ACK; False if it is too short to have flags."""
    at = Flush.layout.offset("flags") - HEADER_BYTES
    return bool(int.from_bytes(frame.extras[at : at + 2]) & MessageFlag.ACK)


def revision(rev_seqno: int, nru: int | None = None) -> bytes:
    """Return the engine-private section of a Mutation (with `nru`, 9 bytes) or Delete (8 bytes)."""
    return _REVISION.write(rev_seqno) + (b"" if nru is None else NUMBERS[8].write(nru))


def code_or_state(number: int) -> bytes:
    """Return the engine-private section of an Opaque (its code) or a VbucketSet (the state)."""
    return _FOUR_BYTES.write(number)


def _revision(engine_specific: bytes) -> int:
    return _number(engine_specific, _REVISION) or 1


def _number(engine_specific: bytes, form: Number) -> int | None:
    """Read the number at the start of the engine-private section, ignoring further bytes (tap.md 2); None if it is too
    short.
    """
    return form.read(engine_specific, 0)[0] if len(engine_specific) >= form.width else None
