"""The encoding of changes for a connection: its negotiated features decide which parts of a stored frame are sent.

Most frames are sent as they are stored, or with other extras; a kernel copies them in bulk (`bits`). Frames whose
datatype has a bit of `slow`, or all frames if `plain`, are encoded here one by one: values are inflated or compressed,
extended attributes removed, a stream id added.

Source: dcp 2.9 and 2.10 (layouts), 2.21 (stream ids), 11 (which xattrs, deletions and expiries are sent); wire 5.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, cast

from headwater.errors import RemoteProtocolError
from headwater.kernels.gather import COLLECTIONS, DELETE_TIMES, EXPIRY_OPCODE, KEEP_DATATYPE, NO_VALUE, UPR
from headwater.kernels.index import NAMED_MARK
from headwater.node.storage.records import told_in
from headwater.node.streams.outlet import Pieces
from headwater.node.vbucket.prepares import key_of
from headwater.wire import snappy, xattr
from headwater.wire.datatype import Datatype
from headwater.wire.dcp import (
    Abort,
    Before,
    BeforeState,
    Commit,
    Mutation,
    OpenFlag,
    Prepare,
    SystemEvent,
    SystemEventV2,
    seqno_of,
)
from headwater.wire.dialect import Dialect
from headwater.wire.header import HEADER_BYTES, Frame, Magic, lengths, vbucket_of
from headwater.wire.opcodes import Opcode
from headwater.wire.system_events import event_of, flat_message, old_message

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from headwater.node.storage.views import Replaced
    from headwater.node.streams.outlet import Outlet
    from headwater.protocol.dcp.controls import ControlSettings, Negotiated
    from headwater.wire.system_events import AnySystemEvent

_NUMBERS_BYTES = 16  # by_seqno and rev_seqno, where the extras of every change begin
_DELETE_TIME_END = 20
_UPR_MUTATION_END = 30
_MUTATION = Mutation.layout.extras_struct
_NOT_KEPT: Final = Before(by_seqno=0, state=BeforeState.NOT_KEPT)


COMPRESSED_BYTES_MAX = 4 << 20
"""A larger value is sent as it is stored: compressing 20 MiB would delay all connections by 50 ms."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """The encoding in which a stream sends each change.

    Attributes:
        xattrs: True if extended attributes are sent.
        deleted_user_xattrs: True if users' attributes in tombstones are sent too.
        no_value: True if values are not sent.
        keep_datatype: True if, without values, the datatype of the document is still sent.
        delete_times: True if deletions have the V2 layout.
        expiry_opcode: True if expirations have their own opcode; otherwise they are sent as deletions.
        snappy: True if the consumer understands compressed values; otherwise values are inflated.
        compress: True if uncompressed values are compressed when they are sent.
        framing: the stream id in encoded form; None on most connections.
        upr: True for the layouts of UPR, which has none of the above except expirations.
        collections: True if keys begin with the id of their collection, and system events are sent.
        flat_events: True if system events have version 2, otherwise 0 or 1.
        bits: these choices as flags for the kernel that copies frames in bulk.
        slow: datatype bits of frames that the kernel must leave to `encode`.
    """

    xattrs: bool = False
    deleted_user_xattrs: bool = False
    no_value: bool = False
    keep_datatype: bool = False
    delete_times: bool = False
    expiry_opcode: bool = False
    snappy: bool = False
    compress: bool = False
    framing: bytes | None = None
    upr: bool = False
    collections: bool = False
    flat_events: bool = False
    bits: int = field(init=False)
    slow: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bits", int(self._bits()))
        object.__setattr__(self, "slow", int(self._slow()))

    def _bits(self) -> int:
        bits = DELETE_TIMES * self.delete_times | EXPIRY_OPCODE * self.expiry_opcode | UPR * self.upr
        bits |= COLLECTIONS * self.collections
        if self.no_value:
            bits |= KEEP_DATATYPE if self.keep_datatype else NO_VALUE
        return bits

    def _slow(self) -> int:
        whole = self.xattrs and self.deleted_user_xattrs and not self.no_value
        looks_inside = not whole and (self.xattrs or not self.no_value)
        # "Without SNAPPY everything is sent inflated" (wire 5); a value that is not sent need not be inflated.
        inflates = not self.snappy and not self.no_value
        return Datatype.XATTR * looks_inside | Datatype.SNAPPY * inflates

    @property
    def plain(self) -> bool:
        """True if every frame is encoded by `encode`."""
        return self.framing is not None or (self.compress and not self.no_value)

    def space(self, outlet: Outlet) -> NDArray[np.uint8]:
        """Return the memory to which the kernel copies frames: in this class, that of the outlet itself."""
        return outlet.free

    def emit(self, outlet: Outlet, frames: NDArray[np.uint8], *, is_last: bool) -> int:
        """Send the frames that the kernel copied to `space`; return the bytes on the wire.

        A subclass for a dialect with another layout of changes rewrites the frames here. `is_last` is True if the
        snapshot ends with these frames.
        """
        outlet.fill(len(frames))
        return len(frames)

    def emit_one(self, outlet: Outlet, change: Pieces, *, is_last: bool) -> int:
        """Send one frame from `encode`; otherwise like `emit`."""
        outlet.write(*change)
        return len(change.head) + len(change.value)

    def encode(self, stored: bytes | memoryview, opaque: int) -> Pieces:
        """Return a stored frame as the stream `opaque` sends it; its value may share the memory of `stored`."""
        if (message := told_in(stored)) is not None:
            return self._message(message, opaque)
        frame, stored_value = _cut(stored)
        opcode, extras = self._layout(frame)
        value, datatype = self._value(frame, stored_value)
        head = Frame(
            # Stream ids travel in framing extras, which only the flexible layout has (dcp 2.21).
            magic=Magic.CLIENT_REQUEST if self.framing is None else Magic.FLEXIBLE_REQUEST,
            opcode=opcode,
            # With Collections every key begins with the id of its collection; the default one's, 0, is not stored (wire
            # 8).
            key=frame.key if not self.collections or frame.opaque & NAMED_MARK else b"\0" + frame.key,
            extras=extras,
            value=cast("bytes", value),  # which is measured, no more
            datatype=datatype,
            vbucket=frame.vbucket,
            opaque=opaque,
            cas=frame.cas,
            framing=self.framing or b"",
        ).head()
        return Pieces(head, value)

    def _message(self, message: AnySystemEvent | Prepare | Abort, opaque: int) -> Pieces:
        """Return a system event, a prepare or an abort in the form in which this connection gets it."""
        if isinstance(message, SystemEvent | SystemEventV2):
            event = self._event(message)
            frame = replace(event, opaque=opaque, framing=self.framing).frame()
            return Pieces(frame.head(), frame.value)
        if isinstance(message, Prepare) and message.datatype:
            message = self._readable(message)
        key = message.key if self.collections else key_of(message.key).key
        frame = replace(message, opaque=opaque, framing=self.framing, key=key).frame()
        return Pieces(frame.head(), frame.value)

    def _event(self, message: AnySystemEvent) -> AnySystemEvent:
        """Return a system event in the version that the consumer knows. A modification, which only version 2 has, never
        gets here for a consumer of older versions.
        """
        if isinstance(message, SystemEventV2) == self.flat_events:
            return message
        event = event_of(message)
        other = flat_message(event) if self.flat_events else old_message(event)
        return replace(other, vbucket=message.vbucket, by_seqno=message.by_seqno)

    def _readable(self, message: Prepare) -> Prepare:
        """Return a prepare whose value has the form in which the connection would get it in a document."""
        opcode = Opcode.DCP_DELETION if message.deleted else Opcode.DCP_MUTATION
        document = Frame(Magic.CLIENT_REQUEST, opcode, datatype=message.datatype)
        value, datatype = self._value(document, memoryview(message.value))
        return replace(message, value=cast("bytes", value), datatype=datatype)  # which is measured, no more

    def commit(self, stored: bytes | memoryview, opaque: int, prepared_seqno: int) -> Pieces:
        """Return the commit of a prepare that the consumer has, to be sent in place of the document."""
        frame, _ = _cut(stored)
        key = frame.key if not self.collections or frame.opaque & NAMED_MARK else b"\0" + frame.key
        seqno = seqno_of(frame.extras)
        committed = Commit(
            vbucket=frame.vbucket, opaque=opaque, key=key, prepared_seqno=prepared_seqno, commit_seqno=seqno
        )
        return Pieces(committed.encode())

    def before(self, replaced: Replaced, change: bytes | memoryview, opaque: int) -> Pieces:
        """Return the message that precedes a stored change, and says what the change replaced.

        If the replaced document can't be encoded for this connection, the message says that it was not kept.
        """
        message = _NOT_KEPT
        if replaced.state is not BeforeState.VERSION:
            message = replace(message, state=replaced.state)
        else:
            with suppress(RemoteProtocolError):
                message = self._version(replaced.stored)
        vbucket, seqno = vbucket_of(change), seqno_of(memoryview(change)[HEADER_BYTES:])
        frame = replace(message, vbucket=vbucket, opaque=opaque, framing=self.framing, by_seqno=seqno).frame()
        return Pieces(frame.head(), frame.value)

    def _version(self, stored: memoryview) -> Before:
        """Return the message about a replaced document; the value has the form in which the connection would get it."""
        frame, stored_value = _cut(stored)
        value, datatype = self._value(frame, stored_value)
        seqno, rev_seqno, flags, expiration, *_ = _MUTATION.unpack(frame.extras)
        return Before(
            by_seqno=0,
            state=BeforeState.VERSION,
            before_seqno=seqno,
            rev_seqno=rev_seqno,
            flags=flags,
            expiration=expiration,
            datatype=datatype,
            cas=frame.cas,
            value=cast("bytes", value),  # which is measured, no more
        )

    def _layout(self, frame: Frame) -> tuple[int, bytes]:
        """Return opcode and extras in which a change is sent: deletions have the V2 layout only if OPEN requested
        delete times; expirations have their own opcode only if a control requested it.
        """
        if self.upr:
            is_mutation = frame.opcode == Opcode.DCP_MUTATION
            return frame.opcode, frame.extras[:_UPR_MUTATION_END] if is_mutation else _numbers(frame)
        # "Otherwise TTL deletions are DELETIONs" (dcp 2.10): a client that never asked for the opcode need not know it.
        if frame.opcode == Opcode.DCP_MUTATION or (frame.opcode == Opcode.DCP_EXPIRATION and self.expiry_opcode):
            return frame.opcode, frame.extras
        if self.delete_times:
            return Opcode.DCP_DELETION, frame.extras[:_DELETE_TIME_END] + b"\0"
        return Opcode.DCP_DELETION, _numbers(frame)

    def _value(self, frame: Frame, stored: memoryview) -> tuple[memoryview | bytes, int]:
        """Return the value and datatype to send, by the decision table of dcp 11.

        Args:
            frame: the stored frame, without its value.
            stored: the stored value.

        Raises:
            RemoteProtocolError: the value contradicts its datatype.
        """
        datatype, looks_inside = frame.datatype, self._looks_inside(frame)
        # The compression covers attributes and body together (wire 4), so a part can't be taken out of it.
        if datatype & Datatype.SNAPPY and (not self.snappy or self.no_value or looks_inside):
            stored, datatype = snappy.inflated(stored), datatype & ~Datatype.SNAPPY
        value: memoryview | bytes = stored
        if datatype & Datatype.XATTR and looks_inside:
            value, datatype = self._attributes(frame, stored, datatype)
        elif self.no_value:
            value, datatype = b"", datatype & Datatype.JSON if self.keep_datatype else 0
        if self.compress and 0 < len(value) <= COMPRESSED_BYTES_MAX and not datatype & Datatype.SNAPPY:
            smaller = snappy.compress(value)
            # "If compression makes them smaller" (wire 5).
            if len(smaller) < len(value):
                value, datatype = smaller, datatype | Datatype.SNAPPY
        return value, datatype

    def _looks_inside(self, frame: Frame) -> bool:
        """Return True if the value has extended attributes that are not all sent."""
        if not frame.datatype & Datatype.XATTR:
            return False
        is_tombstone = frame.opcode != Opcode.DCP_MUTATION
        return not self.xattrs or self.no_value or (is_tombstone and not self.deleted_user_xattrs)

    def _attributes(self, frame: Frame, value: memoryview, datatype: int) -> tuple[memoryview | bytes, int]:
        """Return the value without the attributes or body that this connection does not get, and its datatype."""
        if frame.opcode != Opcode.DCP_MUTATION:
            return self._tombstone(value)
        attributes, body = xattr.split(value)
        if not self.xattrs:
            json_bit = datatype & Datatype.JSON
            return (b"", json_bit if self.keep_datatype else 0) if self.no_value else (body, json_bit)
        return xattr.join(attributes), datatype if self.keep_datatype else int(Datatype.XATTR)

    def _tombstone(self, value: memoryview) -> tuple[memoryview | bytes, int]:
        """Return the value and datatype of a deletion: no body, only the attributes that this connection gets (dcp
        2.9).
        """
        if not self.xattrs:
            return b"", 0
        # User attributes of a tombstone are pruned unless OPEN had 0x100 (dcp 11).
        attributes: memoryview | bytes = value if self.deleted_user_xattrs else xattr.only_system(value)
        return (attributes, int(Datatype.XATTR)) if attributes else (b"", 0)


def _cut(stored: bytes | memoryview) -> tuple[Frame, memoryview]:
    """Return a stored frame without its value, and the value as a view: a copy of 20 MiB would take milliseconds."""
    sizes = lengths(stored)
    value_at = sizes.frame - (sizes.body - sizes.extras - sizes.key)
    return Frame.cut(memoryview(stored)[:value_at], sizes), memoryview(stored)[value_at:]


def _numbers(frame: Frame) -> bytes:
    """Return the extras by_seqno, rev_seqno and nmeta, as in V1 deletions."""
    return frame.extras[:_NUMBERS_BYTES] + b"\0\0"


def encoding_of(
    negotiated: Negotiated,
    settings: ControlSettings,
    flags: int,
    framing: bytes | None = None,
    dialect: Dialect = Dialect.DCP,
) -> Encoding:
    """Return the encoding for a new stream.

    Args:
        negotiated: the features of its connection.
        settings: the control settings of its connection.
        flags: OpenFlag bits of its connection.
        framing: the stream's id in encoded form, or None.
        dialect: DCP or UPR.
    """
    if dialect is Dialect.UPR:
        return Encoding(upr=True, expiry_opcode=True)
    keep_datatype = bool(flags & OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE)
    return Encoding(
        xattrs=negotiated.xattrs,
        deleted_user_xattrs=negotiated.deleted_user_xattrs,
        no_value=keep_datatype or bool(flags & OpenFlag.NO_VALUE),
        keep_datatype=keep_datatype,
        # "the delete time is required inside the expiration packets so delete times are implicitly enabled" (dcp 4)
        delete_times=negotiated.delete_times or settings.expiry_opcode,
        expiry_opcode=settings.expiry_opcode,
        # A consumer that set the control for compression, as before 5.5, understands it: HELLO had no feature for it.
        snappy=negotiated.snappy or settings.value_compression,
        compress=settings.force_value_compression or settings.value_compression,
        framing=framing,
        collections=negotiated.collections,
        flat_events=settings.flat_events,
    )
