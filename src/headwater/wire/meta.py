"""Documents with their metadata, and the progress of their persistence. Source: specification, kv.md 2 (from GET_META
on).
"""

from __future__ import annotations

from enum import IntFlag
from typing import Annotated

from headwater.wire.codec import NUMBERS, Prefixed, RowsCodec
from headwater.wire.documents import Stored
from headwater.wire.layout import OPTIONAL, REQUIRED, VALUE, Answer, Request, about, u8, u16, u32, u64
from headwater.wire.opcodes import Opcode
from headwater.wire.privilege import READ, REPLICATE, WRITE
from headwater.wire.status import Status

__all__ = ["AddWithMeta", "DelWithMeta", "GetMeta", "GetMetaResponse", "MetaOption", "Observe", "ObserveResponse"]
__all__ += ["ObserveSeqno", "ObserveSeqnoFailedOver", "ObserveSeqnoResponse", "ReturnMeta", "SetWithMeta"]


class MetaOption(IntFlag):
    """Options of the with-meta commands."""

    FORCE = 0x01
    FORCE_ACCEPT = 0x02
    REGENERATE_CAS = 0x04
    SKIP_CONFLICT_RESOLUTION = 0x08
    IS_EXPIRATION = 0x10


class GetMetaResponse(Answer):
    """The metadata; the CAS is in the header."""

    deleted: u32 = about("bit 0: this is a tombstone")
    flags: u32 = about("the application's own flags")
    expiration: u32 = about("Unix seconds, 0 for never; of a tombstone the time of deletion")
    rev_seqno: u64 = about("how many times this key has changed")
    stored_datatype: u8 | None = about("datatype of the document, if asked for", default=None)


class GetMeta(
    Request,
    opcode=Opcode.GET_META,
    privilege=READ,
    quiet=Opcode.GETQ_META,
    silent=Status.KEY_ENOENT,
    key=REQUIRED,
    answer=GetMetaResponse,
):
    """Asks for a document's metadata, or its tombstone's."""

    req_ext_meta: u8 | None = about("2: add the datatype; 1: legacy", default=None, only=(1, 2))


class SetWithMeta(
    Request,
    opcode=Opcode.SET_WITH_META,
    privilege=WRITE | REPLICATE,
    quiet=Opcode.SETQ_WITH_META,
    key=REQUIRED,
    value=OPTIONAL,
    cas=True,
    answer=Stored,
    extras_bytes=(24, 26, 28, 30),
):
    """Stores a document with given metadata, from another cluster; the header's CAS is that of the document it may
    replace.
    """

    flags: u32 = about("the application's own flags", default=0)
    expiration: u32 = about("Unix seconds, 0 for never; for a deletion its time", default=0)
    rev_seqno: u64 = about("revision to store")
    stored_cas: u64 = about("CAS to store")
    options: u32 | None = about("MetaOption bits", default=None)
    nmeta: u16 | None = about("bytes of extended metadata at the end of the value", default=None)


class AddWithMeta(SetWithMeta, opcode=Opcode.ADD_WITH_META, quiet=Opcode.ADDQ_WITH_META):
    """As SetWithMeta, unless there is a live document."""


class DelWithMeta(SetWithMeta, opcode=Opcode.DEL_WITH_META, quiet=Opcode.DELQ_WITH_META):
    """Stores a deletion with given metadata, from another cluster; the value holds extended attributes at most."""


class ReturnMeta(
    Request, opcode=Opcode.RETURN_META, privilege=WRITE, key=REQUIRED, value=OPTIONAL, cas=True, answer=Stored
):
    """Stores, adds or deletes a document, and returns the vb uuid and seqno of the change."""

    mutation_type: u32 = about("1 set, 2 add, 3 delete", only=(1, 2, 3))
    flags: u32 = about("the application's own flags", default=0)
    expiration: u32 = about("when it runs out", default=0)


_KEY = (("vbucket", NUMBERS[16]), ("key", Prefixed()))


class ObserveResponse(Answer):
    """The states of the requested keys; the header's CAS holds two mean times in milliseconds (persist, replicate)."""

    states: Annotated[
        list[tuple[int, bytes, int, int]], RowsCodec((*_KEY, ("state", NUMBERS[8]), ("cas", NUMBERS[64])))
    ] = about("state: 0 in memory, 1 persisted, 0x80 not found, 0x81 deleted but not yet persisted", place=VALUE)


class Observe(Request, opcode=Opcode.OBSERVE, privilege=READ, answer=ObserveResponse):
    """Asks for the states of keys: found, persisted, deleted."""

    keys: Annotated[list[tuple[int, bytes]], RowsCodec(_KEY, rows_min=1)] = about(
        "vbucket and key, at least one", place=VALUE
    )


class ObserveSeqnoResponse(Answer):
    """The progress of persistence; the requested vb uuid is the vbucket's newest one."""

    format: u8 = about("0", default=0, only=(0,), place=VALUE)
    vbucket: u16 = about("the vbucket", place=VALUE)
    vb_uuid: u64 = about("its history", place=VALUE)
    persisted_seqno: u64 = about("highest seqno on disk", place=VALUE)
    current_seqno: u64 = about("highest seqno", place=VALUE)


class ObserveSeqnoFailedOver(ObserveSeqnoResponse):
    """The progress of persistence; the requested vb uuid is an older one."""

    format: u8 = about("1", default=1, only=(1,), place=VALUE)
    old_vb_uuid: u64 = about("the history asked for", place=VALUE)
    last_received_seqno: u64 = about("last seqno known of that history", place=VALUE)


class ObserveSeqno(
    Request, opcode=Opcode.OBSERVE_SEQNO, privilege=READ, answer=(ObserveSeqnoResponse, ObserveSeqnoFailedOver)
):
    """Asks for the progress of persistence of a vbucket."""

    vb_uuid: u64 = about("the history the client knows", place=VALUE)
