"""Administration of vbuckets and collections. Source: specification, kv.md 3 and 4."""

from __future__ import annotations

from typing import Annotated

from headwater.wire.codec import NUMBERS, Prefixed, Rows
from headwater.wire.layout import OPTIONAL, REQUIRED, VALUE, Request, Response, about, u8, u32, u56, u64
from headwater.wire.opcodes import Opcode
from headwater.wire.records import FailoverLog

__all__ = ["CompactDb", "CompactDbResponse", "DelVbucket", "DelVbucketResponse", "DisableTraffic"]
__all__ += ["DisableTrafficResponse", "EnableTraffic", "EnableTrafficResponse", "GetAllVbSeqnos"]
__all__ += ["GetAllVbSeqnosResponse", "GetCollectionId", "GetCollectionIdResponse", "GetFailoverLog"]
__all__ += ["GetFailoverLogResponse", "GetKeys", "GetKeysResponse", "GetManifest", "GetManifestResponse"]
__all__ += ["GetScopeId", "GetScopeIdResponse", "GetVbucket", "GetVbucketResponse", "SeqnoPersistence"]
__all__ += ["SeqnoPersistenceOld", "SeqnoPersistenceResponse", "SetManifest", "SetManifestResponse", "SetParam"]
__all__ += ["SetParamResponse", "SetVbucket", "SetVbucketOld", "SetVbucketOldest", "SetVbucketResponse"]
__all__ += ["StartPersistence", "StartPersistenceResponse", "StopPersistence", "StopPersistenceResponse"]


# --------------------------------------------------------------------------- vbuckets


class SetVbucket(Request, opcode=Opcode.SET_VBUCKET, value=OPTIONAL):
    """Sets a vbucket's state, making the vbucket if need be; the value is JSON (topology)."""

    state: u8 = about("vbucket.State", only=(1, 2, 3, 4))


class SetVbucketOld(Request, opcode=Opcode.SET_VBUCKET):
    """The same, from old clients."""

    state: u32 = about("vbucket.State", only=(1, 2, 3, 4))


class SetVbucketOldest(Request, opcode=Opcode.SET_VBUCKET):
    """The same, from still older ones."""

    state: u32 = about("vbucket.State", only=(1, 2, 3, 4), where=VALUE)


class SetVbucketResponse(Response, opcode=Opcode.SET_VBUCKET):
    """The state is set."""


class GetVbucket(Request, opcode=Opcode.GET_VBUCKET):
    """Asks for a vbucket's state."""


class GetVbucketResponse(Response, opcode=Opcode.GET_VBUCKET):
    """The state."""

    state: u32 = about("vbucket.State", where=VALUE)


class DelVbucket(Request, opcode=Opcode.DEL_VBUCKET, value=OPTIONAL):
    """Removes a vbucket; with the value "async=0" the answer waits until all is gone."""


class DelVbucketResponse(Response, opcode=Opcode.DEL_VBUCKET):
    """It is removed, or will be."""


class GetAllVbSeqnos(Request, opcode=Opcode.GET_ALL_VB_SEQNOS):
    """Asks for the high seqno of every vbucket."""

    vb_state: u32 | None = about("only of vbuckets in this state; 0 or absent: active, replica, pending", default=None)
    collection_id: u32 | None = about("only of this collection", default=None)


class GetAllVbSeqnosResponse(Response, opcode=Opcode.GET_ALL_VB_SEQNOS):
    """The high seqnos."""

    seqnos: Annotated[list[tuple[int, int]], Rows((("vbucket", NUMBERS[16]), ("seqno", NUMBERS[64])))] = about(
        "vbucket and its high seqno", where=VALUE
    )


class SeqnoPersistence(Request, opcode=Opcode.SEQNO_PERSISTENCE):
    """Waits until a seqno is on disk."""

    seqno: u64 = about("the seqno")


class SeqnoPersistenceOld(Request, opcode=Opcode.SEQNO_PERSISTENCE):
    """The same, from old clients."""

    seqno: u64 = about("the seqno", where=VALUE)


class SeqnoPersistenceResponse(Response, opcode=Opcode.SEQNO_PERSISTENCE):
    """It is on disk."""


class GetFailoverLog(Request, opcode=Opcode.GET_FAILOVER_LOG):
    """Asks for a vbucket's failover log on a connection that is not a DCP connection."""


class GetFailoverLogResponse(Response, opcode=Opcode.GET_FAILOVER_LOG):
    """The failover log."""

    failover_log: FailoverLog = about("(vb uuid, seqno) entries, newest first, at least one", where=VALUE)


class GetKeys(Request, opcode=Opcode.GET_KEYS, key=OPTIONAL):
    """Asks for keys in order, from the key given."""

    count: u32 | None = about("how many at most: 1000 unless given, 100000 at most", default=None)


class GetKeysResponse(Response, opcode=Opcode.GET_KEYS):
    """The keys; the public text says lengths have 4 bytes, which is wrong (erratum P10)."""

    keys: Annotated[list[bytes], Rows((("key", Prefixed()),))] = about("the keys, sorted", where=VALUE)


class CompactDb(Request, opcode=Opcode.COMPACT_DB):
    """Compacts a vbucket, dropping old tombstones."""

    purge_before_ts: u64 = about("drop tombstones older than this, Unix seconds", default=0)
    purge_before_seqno: u64 = about("drop tombstones up to this seqno", default=0)
    drop_deletes: u8 = about("1: drop all tombstones", default=0)
    pad: u56 = about("0", default=0)


class CompactDbResponse(Response, opcode=Opcode.COMPACT_DB):
    """It is compacted."""


class SetParam(Request, opcode=Opcode.SET_PARAM, key=REQUIRED, value=REQUIRED):
    """Sets a parameter of the engine: key and value are text."""

    param_type: u32 = about("1 flush, 3 checkpoint, 4 dcp, 5 vbucket")


class SetParamResponse(Response, opcode=Opcode.SET_PARAM):
    """It is set."""


class StartPersistence(Request, opcode=Opcode.START_PERSISTENCE):
    """Writes to disk again."""


class StartPersistenceResponse(Response, opcode=Opcode.START_PERSISTENCE):
    """It does."""


class StopPersistence(Request, opcode=Opcode.STOP_PERSISTENCE):
    """Stops writing to disk."""


class StopPersistenceResponse(Response, opcode=Opcode.STOP_PERSISTENCE):
    """It does."""


class EnableTraffic(Request, opcode=Opcode.ENABLE_TRAFFIC):
    """Takes document commands again."""


class EnableTrafficResponse(Response, opcode=Opcode.ENABLE_TRAFFIC):
    """It does."""


class DisableTraffic(Request, opcode=Opcode.DISABLE_TRAFFIC):
    """Answers document commands with ETMPFAIL."""


class DisableTrafficResponse(Response, opcode=Opcode.DISABLE_TRAFFIC):
    """It does."""


# --------------------------------------------------------------------------- collections


class SetManifest(Request, opcode=Opcode.COLLECTIONS_SET_MANIFEST, value=REQUIRED):
    """Sets scopes and collections: the value is the manifest, JSON."""


class SetManifestResponse(Response, opcode=Opcode.COLLECTIONS_SET_MANIFEST):
    """They are set."""


class GetManifest(Request, opcode=Opcode.COLLECTIONS_GET_MANIFEST):
    """Asks for the manifest."""


class GetManifestResponse(Response, opcode=Opcode.COLLECTIONS_GET_MANIFEST, value=REQUIRED):
    """The manifest, JSON."""


class GetCollectionId(Request, opcode=Opcode.COLLECTIONS_GET_ID, key=OPTIONAL, value=OPTIONAL):
    """Asks for the id of "scope.collection", in the value (in the key, from old clients)."""


class GetCollectionIdResponse(Response, opcode=Opcode.COLLECTIONS_GET_ID):
    """The id."""

    manifest_uid: u64 = about("the manifest it is from")
    collection_id: u32 = about("the id")


class GetScopeId(Request, opcode=Opcode.COLLECTIONS_GET_SCOPE_ID, key=OPTIONAL, value=OPTIONAL):
    """Asks for the id of a scope, in the value (in the key, from old clients)."""


class GetScopeIdResponse(Response, opcode=Opcode.COLLECTIONS_GET_SCOPE_ID):
    """The id."""

    manifest_uid: u64 = about("the manifest it is from")
    scope_id: u32 = about("the id")
