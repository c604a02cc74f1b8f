"""Administration of vbuckets and collections. Source: specification, kv.md 3 and 4."""

from __future__ import annotations

from typing import Annotated

from headwater.wire.codec import NUMBERS, Prefixed, RowsCodec
from headwater.wire.layout import OPTIONAL, REQUIRED, VALUE, Answer, Done, Request, about, i64, u8, u32, u56, u64
from headwater.wire.opcodes import Opcode
from headwater.wire.privilege import ADMINISTER, LOGIN, MONITOR, READ, REPLICATE, STREAM
from headwater.wire.records import FailoverLog
from headwater.wire.status import Status

__all__ = ["CompactDb", "DelVbucket", "DisableTraffic", "EnableTraffic", "GetAllVbSeqnos", "GetAllVbSeqnosResponse"]
__all__ += ["GetCollectionId", "GetCollectionIdResponse", "GetFailoverLog", "GetFailoverLogResponse", "GetKeys"]
__all__ += ["GetKeysResponse", "GetManifest", "GetManifestResponse", "GetScopeId", "GetScopeIdResponse", "GetVbucket"]
__all__ += ["HoldClock", "HoldClockResponse"]
__all__ += [
    "GetVbucketResponse",
    "IoctlGet",
    "IoctlGetResponse",
    "IoctlSet",
    "SeqnoPersistence",
    "SeqnoPersistenceOld",
    "SetManifest",
    "SetParam",
]
__all__ += ["SetVbucket", "SetVbucketOld", "SetVbucketOldest", "StartPersistence", "StopPersistence"]


# --------------------------------------------------------------------------- vbuckets


class SetVbucket(Request, opcode=Opcode.SET_VBUCKET, privilege=ADMINISTER, value=OPTIONAL, cas=True, answer=Done):
    """Sets a vbucket's state, and creates the vbucket if it is missing; the value is JSON (topology)."""

    state: u8 = about("vbucket.State", only=(1, 2, 3, 4))


class SetVbucketOld(Request, opcode=Opcode.SET_VBUCKET, privilege=ADMINISTER, value=OPTIONAL, cas=True, answer=Done):
    """Sets a vbucket's state, in the form of old clients."""

    state: u32 = about("vbucket.State", only=(1, 2, 3, 4))


class SetVbucketOldest(Request, opcode=Opcode.SET_VBUCKET, privilege=ADMINISTER, cas=True, answer=Done):
    """Sets a vbucket's state, in the form of the oldest clients."""

    state: u32 = about("vbucket.State", only=(1, 2, 3, 4), place=VALUE)


class GetVbucketResponse(Answer):
    """The vbucket's state."""

    state: u32 = about("vbucket.State", only=(1, 2, 3, 4), place=VALUE)


class GetVbucket(Request, opcode=Opcode.GET_VBUCKET, privilege=MONITOR, answer=GetVbucketResponse):
    """Asks for a vbucket's state."""


class DelVbucket(Request, opcode=Opcode.DEL_VBUCKET, privilege=ADMINISTER, value=OPTIONAL, cas=True, answer=Done):
    """Removes a vbucket; with the value "async=0" the answer waits until all is gone."""


class GetAllVbSeqnosResponse(Answer):
    """The high seqnos."""

    seqnos: Annotated[list[tuple[int, int]], RowsCodec((("vbucket", NUMBERS[16]), ("seqno", NUMBERS[64])))] = about(
        "vbucket and its high seqno", place=VALUE
    )


class GetAllVbSeqnos(Request, opcode=Opcode.GET_ALL_VB_SEQNOS, privilege=STREAM, answer=GetAllVbSeqnosResponse):
    """Asks for the high seqno of every vbucket."""

    vb_state: u32 | None = about("only of vbuckets in this state; 0 or absent: active, replica, pending", default=None)
    collection_id: u32 | None = about("only of this collection", default=None)


class HoldClockResponse(Answer):
    """The promise: no change that this node makes from now on has a CAS at or below the time."""

    held_cas: u64 = about("the time up to which the node promises that, as a CAS")
    now: u64 = about("the node's clock, Unix nanoseconds")
    epoch: i64 = about("epoch of the cluster map that the node goes by")
    revision: i64 = about("revision of that map")
    exceptions: Annotated[list[tuple[int, int]], RowsCodec((("vbucket", NUMBERS[16]), ("cas", NUMBERS[64])))] = about(
        "active vbuckets whose changes may have an older CAS, but none below this one", place=VALUE
    )


class HoldClock(Request, opcode=Opcode.HOLD_CLOCK, privilege=STREAM, answer=HoldClockResponse):
    """Asks a node of headwater to give no more change a CAS at or below a time, after restarts neither."""

    wanted_cas: u64 = about("the time, as a CAS; the node promises at most its own clock's time; 0 changes nothing")


class SeqnoPersistence(Request, opcode=Opcode.SEQNO_PERSISTENCE, privilege=STREAM, answer=Done):
    """Waits until a seqno is on disk."""

    seqno: u64 = about("the seqno")


class SeqnoPersistenceOld(Request, opcode=Opcode.SEQNO_PERSISTENCE, privilege=STREAM, answer=Done):
    """Waits until a seqno is on disk, in the form of old clients."""

    seqno: u64 = about("the seqno", place=VALUE)


class GetFailoverLogResponse(Answer):
    """The failover log."""

    failover_log: FailoverLog = about("(vb uuid, seqno) entries, newest first, at least one", place=VALUE)


class GetFailoverLog(Request, opcode=Opcode.GET_FAILOVER_LOG, privilege=STREAM, answer=GetFailoverLogResponse):
    """Asks for a vbucket's failover log on a connection that is not a DCP connection."""


class GetKeysResponse(Answer):
    """The keys; the public text says lengths have 4 bytes, which is wrong (erratum P10)."""

    keys: Annotated[list[bytes], RowsCodec((("key", Prefixed()),))] = about("the keys, sorted", place=VALUE)


class GetKeys(Request, opcode=Opcode.GET_KEYS, privilege=READ, key=REQUIRED, answer=GetKeysResponse):
    """Asks for the keys of a vbucket in ascending order, from the given key on; a single zero byte means the first."""

    count: u32 | None = about("how many at most: 1000 unless given, 100000 at most", default=None)


class CompactDb(Request, opcode=Opcode.COMPACT_DB, privilege=ADMINISTER, cas=True, answer=Done):
    """Compacts a vbucket, dropping old tombstones."""

    purge_before_ts: u64 = about("drop tombstones older than this, Unix seconds", default=0)
    purge_before_seqno: u64 = about("drop tombstones up to this seqno", default=0)
    drop_deletes: u8 = about("1: drop all tombstones", default=0)
    pad: u56 = about("0", default=0)


class SetParam(Request, opcode=Opcode.SET_PARAM, privilege=ADMINISTER, key=REQUIRED, value=REQUIRED, answer=Done):
    """Sets a parameter of the engine: key and value are text."""

    param_type: u32 = about("1 flush, 3 checkpoint, 4 dcp, 5 vbucket")


class StartPersistence(Request, opcode=Opcode.START_PERSISTENCE, privilege=ADMINISTER, answer=Done):
    """Starts persistence again."""


class StopPersistence(
    Request, opcode=Opcode.STOP_PERSISTENCE, refused=Status.NOT_SUPPORTED, privilege=ADMINISTER, answer=Done
):
    """Stops persistence. This node refuses: it answers a change only once it is on disk."""


class EnableTraffic(Request, opcode=Opcode.ENABLE_TRAFFIC, privilege=ADMINISTER, answer=Done):
    """Accepts document commands again, after DisableTraffic."""


class DisableTraffic(Request, opcode=Opcode.DISABLE_TRAFFIC, privilege=ADMINISTER, answer=Done):
    """Makes the server answer document commands with ETMPFAIL."""


class IoctlSet(Request, opcode=Opcode.IOCTL_SET, privilege=ADMINISTER, key=REQUIRED, value=OPTIONAL, answer=Done):
    """Sets a property of the server, named by the key. A node of headwater receives in it the producers that its
    vbuckets follow.
    """


class IoctlGetResponse(Answer, value=OPTIONAL):
    """The requested text; empty if the client has the current version."""


class IoctlGet(
    Request, opcode=Opcode.IOCTL_GET, privilege=REPLICATE, key=REQUIRED, value=OPTIONAL, answer=IoctlGetResponse
):
    """Asks for a property of the server, named by the key. A node of headwater returns the users of its cluster, with
    their verifiers, to other members and to administrators.
    """


# --------------------------------------------------------------------------- collections


class SetManifest(
    Request,
    opcode=Opcode.COLLECTIONS_SET_MANIFEST,
    privilege=ADMINISTER,
    value=REQUIRED,
    answer=Done,
):
    """Sets scopes and collections: the value is the manifest, JSON."""


class GetManifestResponse(Answer, value=REQUIRED):
    """The manifest, JSON."""


class GetManifest(
    Request,
    opcode=Opcode.COLLECTIONS_GET_MANIFEST,
    privilege=LOGIN,
    answer=GetManifestResponse,
):
    """Asks for the manifest."""


class GetCollectionIdResponse(Answer):
    """The manifest's uid and the collection's id."""

    manifest_uid: u64 = about("the manifest it is from")
    collection_id: u32 = about("the id")


class GetCollectionId(
    Request,
    opcode=Opcode.COLLECTIONS_GET_ID,
    privilege=LOGIN,
    key=OPTIONAL,
    value=OPTIONAL,
    answer=GetCollectionIdResponse,
):
    """Asks for the id of "scope.collection", in the value (in the key, from old clients)."""


class GetScopeIdResponse(Answer):
    """The manifest's uid and the scope's id."""

    manifest_uid: u64 = about("the manifest it is from")
    scope_id: u32 = about("the id")


class GetScopeId(
    Request,
    opcode=Opcode.COLLECTIONS_GET_SCOPE_ID,
    privilege=LOGIN,
    key=OPTIONAL,
    value=OPTIONAL,
    answer=GetScopeIdResponse,
):
    """Asks for the id of a scope, in the value (in the key, from old clients)."""
