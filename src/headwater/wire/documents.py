"""Documents: get, set, delete, count, touch, lock. Source: specification, kv.md 2.

A quiet form is the same message under another opcode, which leaves out the uninteresting answer: mutations are silent
on success, reads on KEY_ENOENT. Keys begin with the collection id (`headwater.wire.leb128`) on connections that
negotiated Collections. `flags` are the application's own four bytes; `expiration` is in seconds from now up to 30
days, above that Unix seconds, and 0 is never (wire.md 10). Answers other than success are a `Failure`.
"""

from __future__ import annotations

from headwater.wire.layout import OPTIONAL, REQUIRED, VALUE, Request, Response, about, u8, u32, u64
from headwater.wire.opcodes import Opcode

__all__ = ["Add", "AddQuiet", "AddResponse", "Append", "AppendQuiet", "AppendResponse", "Decrement"]
__all__ += ["DecrementQuiet", "DecrementResponse", "Delete", "DeleteQuiet", "DeleteResponse", "EvictKey"]
__all__ += ["EvictKeyResponse", "Flush", "FlushQuiet", "FlushResponse", "Get", "GetAndTouch", "GetAndTouchQuiet"]
__all__ += ["GetAndTouchQuietResponse", "GetAndTouchResponse", "GetKey", "GetKeyQuiet", "GetKeyQuietResponse"]
__all__ += ["GetKeyResponse", "GetLocked", "GetLockedResponse", "GetQuiet", "GetQuietResponse", "GetRandomKey"]
__all__ += ["GetRandomKeyResponse", "GetReplica", "GetReplicaResponse", "GetResponse", "Increment", "IncrementQuiet"]
__all__ += ["IncrementResponse", "Prepend", "PrependQuiet", "PrependResponse", "Replace", "ReplaceQuiet"]
__all__ += ["ReplaceResponse", "Set", "SetQuiet", "SetResponse", "Stored", "Touch", "TouchResponse", "Unlock"]
__all__ += ["UnlockResponse"]


# --------------------------------------------------------------------------- reading


class Get(Request, opcode=Opcode.GET, key=REQUIRED):
    """Asks for a document."""


class GetQuiet(Get, opcode=Opcode.GETQ):
    """As Get; silent when there is none."""


class GetKey(Get, opcode=Opcode.GETK):
    """As Get; the answer repeats the key."""


class GetKeyQuiet(Get, opcode=Opcode.GETKQ):
    """As GetKey; silent when there is none."""


class GetReplica(Get, opcode=Opcode.GET_REPLICA):
    """As Get, of a replica vbucket."""


class GetResponse(Response, opcode=Opcode.GET, value=OPTIONAL):
    """The document, its CAS in the header."""

    flags: u32 = about("the application's own flags")


class GetQuietResponse(GetResponse, opcode=Opcode.GETQ):
    """The document."""


class GetKeyResponse(GetResponse, opcode=Opcode.GETK, key=OPTIONAL):
    """The document and its key."""


class GetKeyQuietResponse(GetKeyResponse, opcode=Opcode.GETKQ):
    """The document and its key."""


class GetReplicaResponse(GetResponse, opcode=Opcode.GET_REPLICA):
    """The document as the replica has it."""


class GetAndTouch(Request, opcode=Opcode.GAT, key=REQUIRED):
    """Asks for a document and sets its expiry."""

    expiration: u32 = about("the new expiry")


class GetAndTouchQuiet(GetAndTouch, opcode=Opcode.GATQ):
    """As GetAndTouch; silent when there is none."""


class GetAndTouchResponse(GetResponse, opcode=Opcode.GAT):
    """The document."""


class GetAndTouchQuietResponse(GetResponse, opcode=Opcode.GATQ):
    """The document."""


class GetLocked(Request, opcode=Opcode.GET_LOCKED, key=REQUIRED):
    """Asks for a document and locks it."""

    lock_seconds: u32 | None = about("how long, at most 30; 0 or absent is 15", default=None)


class GetLockedResponse(GetResponse, opcode=Opcode.GET_LOCKED):
    """The document; the CAS is the token that unlocks it."""


class GetRandomKey(Request, opcode=Opcode.GET_RANDOM_KEY):
    """Asks for any document."""

    collection_id: u32 | None = about("of this collection, with Collections", default=None)
    include_xattr: u8 | None = about("1: with extended attributes", default=None)


class GetRandomKeyResponse(GetResponse, opcode=Opcode.GET_RANDOM_KEY, key=OPTIONAL):
    """A document and its key; the printed example lacks flags and value (erratum P10)."""


# --------------------------------------------------------------------------- writing


class Stored(Response, extras_bytes=(0, 16)):
    """What mutations are answered with: the new CAS in the header and, with MutationSeqno, the place in history."""

    vb_uuid: u64 | None = about("the vbucket's history, with MutationSeqno", default=None)
    seqno: u64 | None = about("place of the mutation in it, with MutationSeqno", default=None)


class Set(Request, opcode=Opcode.SET, key=REQUIRED, value=OPTIONAL):
    """Stores a document; a CAS other than 0 must be the current one."""

    flags: u32 = about("the application's own flags", default=0)
    expiration: u32 = about("when it runs out", default=0)


class SetQuiet(Set, opcode=Opcode.SETQ):
    """As Set; silent on success."""


class SetResponse(Stored, opcode=Opcode.SET):
    """The document is stored."""


class Add(Set, opcode=Opcode.ADD):
    """Stores a document unless there is one."""


class AddQuiet(Set, opcode=Opcode.ADDQ):
    """As Add; silent on success."""


class AddResponse(Stored, opcode=Opcode.ADD):
    """The document is stored."""


class Replace(Set, opcode=Opcode.REPLACE):
    """Stores a document if there is one."""


class ReplaceQuiet(Set, opcode=Opcode.REPLACEQ):
    """As Replace; silent on success."""


class ReplaceResponse(Stored, opcode=Opcode.REPLACE):
    """The document is stored."""


class Delete(Request, opcode=Opcode.DELETE, key=REQUIRED):
    """Deletes a document; a CAS other than 0 must be the current one."""


class DeleteQuiet(Delete, opcode=Opcode.DELETEQ):
    """As Delete; silent on success."""


class DeleteResponse(Stored, opcode=Opcode.DELETE):
    """The document is deleted; the CAS is the deletion's."""


class Append(Request, opcode=Opcode.APPEND, key=REQUIRED, value=OPTIONAL):
    """Adds bytes to the end of a document."""


class AppendQuiet(Append, opcode=Opcode.APPENDQ):
    """As Append; silent on success."""


class AppendResponse(Stored, opcode=Opcode.APPEND):
    """The bytes are added."""


class Prepend(Append, opcode=Opcode.PREPEND):
    """Adds bytes to the start of a document."""


class PrependQuiet(Append, opcode=Opcode.PREPENDQ):
    """As Prepend; silent on success."""


class PrependResponse(Stored, opcode=Opcode.PREPEND):
    """The bytes are added."""


class Increment(Request, opcode=Opcode.INCREMENT, key=REQUIRED):
    """Adds to a decimal number; wraps at 2^64."""

    delta: u64 = about("how much")
    initial: u64 = about("value of a document that has to be made", default=0)
    expiration: u32 = about("its expiry; 0xffffffff: do not make one", default=0)


class IncrementQuiet(Increment, opcode=Opcode.INCREMENTQ):
    """As Increment; silent on success."""


class IncrementResponse(Stored, opcode=Opcode.INCREMENT):
    """The sum."""

    counter: u64 = about("the number now", where=VALUE)


class Decrement(Increment, opcode=Opcode.DECREMENT):
    """Takes from a decimal number; stops at 0."""


class DecrementQuiet(Increment, opcode=Opcode.DECREMENTQ):
    """As Decrement; silent on success."""


class DecrementResponse(IncrementResponse, opcode=Opcode.DECREMENT):
    """The difference."""


class Touch(Request, opcode=Opcode.TOUCH, key=REQUIRED):
    """Sets a document's expiry."""

    expiration: u32 = about("the new expiry")


class TouchResponse(Response, opcode=Opcode.TOUCH):
    """The expiry is set."""

    flags: u32 | None = about("the application's own flags, from old servers only", default=None)


class Unlock(Request, opcode=Opcode.UNLOCK_KEY, key=REQUIRED):
    """Unlocks a document; the CAS is the token GetLocked gave."""


class UnlockResponse(Response, opcode=Opcode.UNLOCK_KEY):
    """The document is unlocked."""


class EvictKey(Request, opcode=Opcode.EVICT_KEY, key=REQUIRED):
    """Drops a document from memory, not from disk."""


class EvictKeyResponse(Response, opcode=Opcode.EVICT_KEY, value=OPTIONAL):
    """It is dropped; the value is text."""


class Flush(Request, opcode=Opcode.FLUSH):
    """Deleted everything; retired."""

    expiration: u32 | None = about("seconds to wait before", default=None)


class FlushQuiet(Flush, opcode=Opcode.FLUSHQ):
    """As Flush; silent on success."""


class FlushResponse(Response, opcode=Opcode.FLUSH):
    """Everything is deleted."""
