"""Documents: get, set, delete, count, touch, lock. Source: specification, kv.md 2.

A quiet form is the same message under another opcode, whose usual answer is not sent: success for mutations, KEY_ENOENT
for reads. Keys begin with the collection id (`headwater.wire.leb128`) on connections that negotiated Collections.
`flags` are the application's own four bytes; `expiration` is in seconds from now up to 30 days, above that Unix
seconds, and 0 is never (wire.md 10). Answers other than success are a `Failure`.
"""

from __future__ import annotations

from headwater.wire.layout import OPTIONAL, REQUIRED, VALUE, Answer, Done, Request, about, u8, u32, u64
from headwater.wire.opcodes import Opcode
from headwater.wire.privilege import ADMINISTER, READ, WRITE
from headwater.wire.status import Status

__all__ = ["Add", "Append", "Decrement", "Delete", "EvictKey", "EvictKeyResponse", "Flush", "Get", "GetAndTouch"]
__all__ += ["GetKey", "GetKeyResponse", "GetLocked", "GetRandomKey", "GetReplica", "GetResponse", "Increment"]
__all__ += ["TRANSACTIONS", "IncrementResponse", "Prepend", "Replace", "Set", "Stored", "Touch", "TouchResponse"]
__all__ += ["Unlock"]

TRANSACTIONS = b"_txn:"
"""The beginning of keys of the records that SDKs keep of their transactions: attempts, and who cleans up after them."""


# --------------------------------------------------------------------------- reading


class GetResponse(Answer, value=OPTIONAL):
    """A document, its CAS in the header; after GetLocked the CAS is the token that unlocks the document."""

    flags: u32 = about("the application's own flags")


class GetKeyResponse(GetResponse, key=OPTIONAL):
    """A document and its key; GET_RANDOM_KEY's printed example lacks flags and value (erratum P10)."""


class Get(
    Request,
    opcode=Opcode.GET,
    privilege=READ,
    quiet=Opcode.GETQ,
    silent=Status.KEY_ENOENT,
    key=REQUIRED,
    answer=GetResponse,
):
    """Asks for a document."""


class GetKey(Get, opcode=Opcode.GETK, quiet=Opcode.GETKQ, answer=GetKeyResponse):
    """As Get; the answer repeats the key."""


class GetReplica(Get, opcode=Opcode.GET_REPLICA):
    """As Get, from a replica vbucket."""


class GetAndTouch(Get, opcode=Opcode.GAT, privilege=READ | WRITE, quiet=Opcode.GATQ):
    """Asks for a document and sets its expiry."""

    expiration: u32 = about("the new expiry")


class GetLocked(Get, opcode=Opcode.GET_LOCKED, privilege=READ | WRITE):
    """Asks for a document and locks it."""

    lock_seconds: u32 | None = about("how long, at most 30; 0 or absent is 15", default=None)


class GetRandomKey(Request, opcode=Opcode.GET_RANDOM_KEY, privilege=READ, answer=GetKeyResponse):
    """Asks for any document."""

    collection_id: u32 | None = about("of this collection, with Collections", default=None)
    include_xattr: u8 | None = about("1: with extended attributes", default=None)


# --------------------------------------------------------------------------- writing


class Stored(Answer, extras_bytes=(0, 16)):
    """The answer to a mutation: the new CAS in the header (deletions have one, too) and, if MutationSeqno was
    negotiated, the vb uuid and seqno of the change.
    """

    vb_uuid: u64 | None = about("the vbucket's history, with MutationSeqno", default=None)
    seqno: u64 | None = about("place of the mutation in it, with MutationSeqno", default=None)


class Set(
    Request,
    opcode=Opcode.SET,
    privilege=WRITE,
    quiet=Opcode.SETQ,
    key=REQUIRED,
    value=OPTIONAL,
    cas=True,
    answer=Stored,
):
    """Stores a document; a CAS other than 0 must be the current one."""

    flags: u32 = about("the application's own flags", default=0)
    expiration: u32 = about("when it runs out", default=0)


class Add(Set, opcode=Opcode.ADD, quiet=Opcode.ADDQ, cas=False):
    """Stores a document unless one exists."""


class Replace(Set, opcode=Opcode.REPLACE, quiet=Opcode.REPLACEQ):
    """Stores a document if one exists."""


class Delete(
    Request, opcode=Opcode.DELETE, privilege=WRITE, quiet=Opcode.DELETEQ, key=REQUIRED, cas=True, answer=Stored
):
    """Deletes a document; a CAS other than 0 must be the current one."""


class Append(
    Request,
    opcode=Opcode.APPEND,
    privilege=WRITE,
    quiet=Opcode.APPENDQ,
    key=REQUIRED,
    value=OPTIONAL,
    cas=True,
    answer=Stored,
):
    """Adds bytes to the end of a document."""


class Prepend(Append, opcode=Opcode.PREPEND, quiet=Opcode.PREPENDQ):
    """Adds bytes to the start of a document."""


class IncrementResponse(Stored):
    """The value of the counter after the change."""

    counter: u64 = about("the number now", place=VALUE)


class Increment(
    Request,
    opcode=Opcode.INCREMENT,
    privilege=READ | WRITE,
    quiet=Opcode.INCREMENTQ,
    key=REQUIRED,
    answer=IncrementResponse,
):
    """Adds to a decimal number; wraps at 2^64."""

    delta: u64 = about("how much")
    initial: u64 = about("value of a document that has to be made", default=0)
    expiration: u32 = about("its expiry; 0xffffffff: do not make one", default=0)


class Decrement(Increment, opcode=Opcode.DECREMENT, quiet=Opcode.DECREMENTQ):
    """Subtracts from a decimal number; stops at 0."""


class TouchResponse(Answer):
    """The expiry is set."""

    flags: u32 | None = about("the application's own flags, from old servers only", default=None)


class Touch(Request, opcode=Opcode.TOUCH, privilege=WRITE, key=REQUIRED, answer=TouchResponse):
    """Sets a document's expiry."""

    expiration: u32 = about("the new expiry")


class Unlock(Request, opcode=Opcode.UNLOCK_KEY, privilege=WRITE, key=REQUIRED, cas=True, answer=Done):
    """Unlocks a document; the CAS is the token GetLocked gave."""


class EvictKeyResponse(Answer, value=OPTIONAL):
    """The value is not kept in memory (any more); the body is text."""


class EvictKey(Request, opcode=Opcode.EVICT_KEY, privilege=ADMINISTER, key=REQUIRED, answer=EvictKeyResponse):
    """Drops a document from memory, not from disk."""


class Flush(Request, opcode=Opcode.FLUSH, privilege=ADMINISTER, quiet=Opcode.FLUSHQ, answer=Done):
    """Deletes everything; retired."""

    expiration: u32 | None = about("seconds to wait before", default=None)
