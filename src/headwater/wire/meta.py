"""Documents with their metadata, and observing how far they got. Source: specification, kv.md 2 (from GET_META on)."""

from __future__ import annotations

from enum import IntFlag
from typing import Annotated

from headwater.wire.codec import NUMBERS, Prefixed, Rows
from headwater.wire.documents import Stored
from headwater.wire.layout import OPTIONAL, REQUIRED, VALUE, Request, Response, about, u8, u16, u32, u64
from headwater.wire.opcodes import Opcode

__all__ = ["AddWithMeta", "AddWithMetaQuiet", "AddWithMetaResponse", "DelWithMeta", "DelWithMetaQuiet"]
__all__ += ["DelWithMetaResponse", "GetMeta", "GetMetaQuiet", "GetMetaQuietResponse", "GetMetaResponse", "MetaOption"]
__all__ += ["Observe", "ObserveResponse", "ObserveSeqno", "ObserveSeqnoFailedOver", "ObserveSeqnoResponse"]
__all__ += ["ReturnMeta", "ReturnMetaResponse", "SetWithMeta", "SetWithMetaQuiet", "SetWithMetaResponse"]


class MetaOption(IntFlag):
    """Options of the with-meta commands."""

    FORCE = 0x01
    FORCE_ACCEPT = 0x02
    REGENERATE_CAS = 0x04
    SKIP_CONFLICT_RESOLUTION = 0x08
    IS_EXPIRATION = 0x10


class GetMeta(Request, opcode=Opcode.GET_META, key=REQUIRED):
    """Asks for a document's metadata, or its tombstone's."""

    req_ext_meta: u8 | None = about("2: add the datatype; 1: legacy", default=None)


class GetMetaQuiet(GetMeta, opcode=Opcode.GETQ_META):
    """As GetMeta; silent when there is none."""


class GetMetaResponse(Response, opcode=Opcode.GET_META):
    """The metadata; the CAS is in the header."""

    deleted: u32 = about("bit 0: this is a tombstone")
    flags: u32 = about("the application's own flags")
    expiration: u32 = about("Unix seconds, 0 for never; of a tombstone the time of deletion")
    rev_seqno: u64 = about("how many times this key has changed")
    stored_datatype: u8 | None = about("datatype of the document, if asked for", default=None)


class GetMetaQuietResponse(GetMetaResponse, opcode=Opcode.GETQ_META):
    """The metadata."""


class SetWithMeta(Request, opcode=Opcode.SET_WITH_META, key=REQUIRED, value=OPTIONAL, extras_bytes=(24, 26, 28, 30)):
    """Stores a document as it is elsewhere; the header's CAS is that of the document it may replace."""

    flags: u32 = about("the application's own flags", default=0)
    expiration: u32 = about("Unix seconds, 0 for never; for a deletion its time", default=0)
    rev_seqno: u64 = about("revision to store")
    stored_cas: u64 = about("CAS to store")
    options: u32 | None = about("MetaOption bits", default=None)
    nmeta: u16 | None = about("bytes of extended metadata at the end of the value", default=None)


class SetWithMetaQuiet(SetWithMeta, opcode=Opcode.SETQ_WITH_META):
    """As SetWithMeta; silent on success."""


class SetWithMetaResponse(Stored, opcode=Opcode.SET_WITH_META):
    """The document is stored."""


class AddWithMeta(SetWithMeta, opcode=Opcode.ADD_WITH_META):
    """As SetWithMeta, unless there is a live document."""


class AddWithMetaQuiet(SetWithMeta, opcode=Opcode.ADDQ_WITH_META):
    """As AddWithMeta; silent on success."""


class AddWithMetaResponse(Stored, opcode=Opcode.ADD_WITH_META):
    """The document is stored."""


class DelWithMeta(SetWithMeta, opcode=Opcode.DEL_WITH_META):
    """Stores a deletion as it is elsewhere; the value holds extended attributes at most."""


class DelWithMetaQuiet(SetWithMeta, opcode=Opcode.DELQ_WITH_META):
    """As DelWithMeta; silent on success."""


class DelWithMetaResponse(Stored, opcode=Opcode.DEL_WITH_META):
    """The deletion is stored."""


class ReturnMeta(Request, opcode=Opcode.RETURN_META, key=REQUIRED, value=OPTIONAL):
    """Stores, adds or deletes, and asks for the place in history."""

    mutation_type: u32 = about("1 set, 2 add, 3 delete", only=(1, 2, 3))
    flags: u32 = about("the application's own flags", default=0)
    expiration: u32 = about("when it runs out", default=0)


class ReturnMetaResponse(Stored, opcode=Opcode.RETURN_META):
    """It is done."""


_KEY = (("vbucket", NUMBERS[16]), ("key", Prefixed()))


class Observe(Request, opcode=Opcode.OBSERVE):
    """Asks how far keys got."""

    keys: Annotated[list[tuple[int, bytes]], Rows(_KEY)] = about("vbucket and key", where=VALUE)


class ObserveResponse(Response, opcode=Opcode.OBSERVE):
    """How far they got; the header's CAS holds two mean times in milliseconds (persist, replicate)."""

    states: Annotated[list[tuple[int, bytes, int, int]], Rows((*_KEY, ("state", NUMBERS[8]), ("cas", NUMBERS[64])))] = (
        about("state: 0 in memory, 1 persisted, 0x80 not found, 0x81 deleted but not yet persisted", where=VALUE)
    )


class ObserveSeqno(Request, opcode=Opcode.OBSERVE_SEQNO):
    """Asks how far a vbucket got."""

    vb_uuid: u64 = about("the history the client knows", where=VALUE)


class ObserveSeqnoResponse(Response, opcode=Opcode.OBSERVE_SEQNO):
    """How far it got; the history is the one asked for."""

    format: u8 = about("0", default=0, only=(0,), where=VALUE)
    vbucket: u16 = about("the vbucket", where=VALUE)
    vb_uuid: u64 = about("its history", where=VALUE)
    persisted_seqno: u64 = about("highest seqno on disk", where=VALUE)
    current_seqno: u64 = about("highest seqno", where=VALUE)


class ObserveSeqnoFailedOver(ObserveSeqnoResponse):
    """How far it got; the history asked for is an older one."""

    format: u8 = about("1", default=1, only=(1,), where=VALUE)
    old_vb_uuid: u64 = about("the history asked for", where=VALUE)
    last_received_seqno: u64 = about("last seqno known of that history", where=VALUE)
