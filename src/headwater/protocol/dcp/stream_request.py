"""STREAM_REQ at the producer: the checks of dcp 2.4 in their order; the first that fails gives the answer.

    1 malformed                  5 from latest            11 a live stream is there already
    2 superseded (the node)      6 no-ops needed          12 rollback (failover.py)
    3 not on this node           7, 8 ranges              13 to latest, disk only: end on disk now
    4 not active or replica,     9, 10 value, stream id   15 still receiving its first snapshot
      or fenced

A refused request changes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from headwater.errors import BadMessage
from headwater.protocol.dcp.controls import ControlSettings, Negotiated
from headwater.protocol.dcp.failover import END_OF_TIME, Claim, Erange, Rollback, check_ranges, decide
from headwater.protocol.dcp.upr import StreamRequest, claim_of, known_flags
from headwater.wire import dcp, upr
from headwater.wire.datatype import Datatype
from headwater.wire.dcp import StreamFlag
from headwater.wire.dialect import Dialect
from headwater.wire.header import HEADER_BYTES, Frame
from headwater.wire.json_text import read_json
from headwater.wire.manifest import EMPTY, CollectionsManifest
from headwater.wire.status import Status
from headwater.wire.vbucket import State

STREAM_ID_MAX = 65_535
PLAIN_REQUEST_BYTES = HEADER_BYTES + 48
"""The size of the fields that `read_plain_request` reads."""
StreamKey = tuple[int, int | None]
"""The key of a stream on its connection: vbucket, and stream id if these are enabled."""

# Plain numbers: with an IntFlag every & costs as much as the rest of a request.
_KNOWN = int(sum(StreamFlag))
_TAKEOVER = int(StreamFlag.TAKEOVER)
_FROM_LATEST = int(StreamFlag.FROM_LATEST)
_STRICT = int(StreamFlag.STRICT_VB_UUID)
_IGNORE_PURGED = int(StreamFlag.IGNORE_PURGED_TOMBSTONES)
_CACHE_TRANSFER = int(StreamFlag.CACHE_TRANSFER)
_THOUGHT = ~_KNOWN | _CACHE_TRANSFER
_CACHE_TRANSFER_NEEDS = int(StreamFlag.TAKEOVER | StreamFlag.ACTIVE_VB_ONLY)
_OWNER = int(StreamFlag.ACTIVE_VB_ONLY | StreamFlag.TAKEOVER)
_TO_LATEST = int(StreamFlag.TO_LATEST)
_DISK_ONLY = int(StreamFlag.DISK_ONLY)
_FINITE = _TO_LATEST | _DISK_ONLY
_OWNED, _HELD = (State.ACTIVE,), (State.ACTIVE, State.REPLICA)
_NOT_OWNED_WHOLE = "a vbucket with collections is handed over on a connection with Collections only"
_VALUE_KEYS = {"collections", "scope", "uid", "sid", "purge_seqno", "cts"}


@dataclass(frozen=True, slots=True)
class StreamFilter:
    """The value of a stream request (dcp 5).

    Attributes:
        stream_id: None if stream ids are not enabled. purge_seqno: purge seqno of the last marker that the consumer
            saw; 0 for none.
        collections: ids of the chosen collections; scope: id of the chosen scope; None for no such choice.
    """

    stream_id: int | None = None
    purge_seqno: int = 0
    collections: frozenset[int] | None = None
    scope: int | None = None

    @property
    def chooses(self) -> bool:
        """True if the request chooses some collections or a scope."""
        return self.collections is not None or self.scope is not None


_NO_FILTER = StreamFilter()


class Facts(NamedTuple):
    """The facts about a vbucket that decide about a stream request.

    Attributes:
        state: active, replica, pending or dead.
        high_seqno: the newest seqno that may be sent, that is, the newest on disk.
        purge_seqno: the highest tombstone seqno that was purged.
        failover_log: (vb uuid, seqno), newest first.
        receives_first_snapshot: True for a replica that has no consistent state yet.
        is_being_handed_over: True if another stream is taking the vbucket over.
        is_fenced: True if the vbucket is active here, but another node may own it by now.
        manifest: its collections, as far as they may be sent.
        last_seqno_of: returns the newest seqno of a change that passes a filter; for None, of a change for a client
            without Collections. None if the vbucket has only ever had the default collection.
        denied: returns the reason and the status if the user may not read the collections of a filter. None for a user
            who may read the whole bucket.
        is_settled: returns True if no durable write of a former owner in these collections (None: in all) waits to be
            committed or aborted. None for True.
    """

    state: State
    high_seqno: int
    purge_seqno: int
    failover_log: Collection[tuple[int, int]]
    receives_first_snapshot: bool = False
    is_being_handed_over: bool = False
    is_fenced: bool = False
    manifest: CollectionsManifest = EMPTY
    last_seqno_of: Callable[[StreamFilter | None], int] | None = None
    denied: Callable[[StreamFilter], tuple[str, Status] | None] | None = None
    is_settled: Callable[[Collection[int] | None], bool] | None = None


class Accepted(NamedTuple):
    """An accepted stream: it begins after `start_seqno`; its first snapshot is announced from `snap_start_seqno`.

    Attributes:
        key: vbucket, and stream id or None.
        flags: StreamFlag bits. filter: the value of the request.
        partial_end_seqno: end of the snapshot that the consumer holds in part; 0 if it holds whole snapshots only.
    """

    key: StreamKey
    start_seqno: int
    end_seqno: int
    snap_start_seqno: int
    flags: int
    filter: StreamFilter = _NO_FILTER
    partial_end_seqno: int = 0


@dataclass(frozen=True, slots=True)
class RequestRefusal:
    """A refusal: `status` and value of the answer; `reason` is for people."""

    status: Status
    reason: str
    value: bytes = b""


def read_stream_request(frame: Frame, *, collections: bool, dialect: Dialect = Dialect.DCP) -> StreamRequest:
    """Read and check the form of a stream request (check 1).

    Raises:
        BadMessage: the request is malformed.
    """
    if dialect is Dialect.UPR:
        request = upr.StreamRequest.decode(frame)
        return replace(request, flags=known_flags(request.flags))
    return _read_dcp(frame, collections=collections)


def read_plain_request(data: memoryview, offset: int) -> dcp.StreamRequest | None:
    """Return the stream request at `offset` if it has the plain form of DCP, as nearly all have.

    None for any other frame; `read_stream_request` reads those.
    """
    request = dcp.StreamRequest.read_plain(data, offset)
    return None if request is None or request.flags & _THOUGHT else request


def _read_dcp(frame: Frame, *, collections: bool) -> dcp.StreamRequest:
    request = dcp.StreamRequest.decode(frame)
    flags, problem, status = request.flags, "", Status.EINVAL
    if flags & ~_KNOWN:
        problem = f"flags 0x{flags & ~_KNOWN:x} are unknown or retired"
    elif flags & _CACHE_TRANSFER and not flags & _CACHE_TRANSFER_NEEDS:
        problem = "flag 0x100 needs flag 0x01 or 0x10"
    elif request.value and not collections:
        problem = f"a value of {len(request.value)} bytes needs Collections"
        if _names_stream_id(request.value):
            problem, status = "stream ids are not enabled on this connection", Status.DCP_STREAMID_INVALID
    if problem:
        raise BadMessage("StreamRequest", frame.opcode, problem, status)
    return request


def _names_stream_id(value: bytes) -> bool:
    """Return True if the JSON value contains a stream id; its errors have their own status (dcp 2.4, check 10)."""
    try:
        value_read = read_json(value)
    except ValueError:
        return False
    return isinstance(value_read, dict) and "sid" in value_read


def judge(
    request: StreamRequest,
    facts: Facts | None,
    *,
    negotiated: Negotiated,
    settings: ControlSettings,
    live: Collection[StreamKey],
) -> Accepted | RequestRefusal:
    """Apply checks 3 to 16 to a well-formed request.

    Args:
        request: the result of `read_stream_request`.
        facts: facts about the vbucket; None if this node does not have it.
        negotiated, settings: those of the connection.
        live: keys of the streams that are open on the connection.
    """
    if facts is None:
        return RequestRefusal(Status.NOT_MY_VBUCKET, f"vbucket {request.vbucket} is not here")
    needs_noops = (negotiated.xattrs or negotiated.collections) and not settings.enable_noop
    if (unfit := _unfit(request, facts, needs_noops=needs_noops)) is not None:
        return unfit
    # The order is the specification's: a consumer tells from the status which of several faults it has to mend first
    # (dcp 2.4, "first failing check wins").
    claim = _claim(request, facts)
    if (contradiction := check_ranges(claim)) is not None:
        return RequestRefusal(Status.ERANGE, contradiction.reason)
    try:
        filtered = _read_value(request, settings)
        if negotiated.collections:
            _check_there(filtered, facts.manifest)
        # A client without Collections reads the default collection alone; once that is dropped there is nothing to
        # stream (dcp 2.4, check 9).
        elif facts.manifest is not EMPTY and not facts.manifest.has(0):
            raise _ValueError("the default collection was dropped", Status.UNKNOWN_COLLECTION)
        # In front of all that concerns the history: a user without the right learns nothing of it.
        if facts.denied is not None and (denial := facts.denied(filtered)) is not None:
            raise _ValueError(*denial)
    except _ValueError as error:
        return RequestRefusal(error.status, str(error), _manifest_uid(error.status, facts))
    key = (request.vbucket, filtered.stream_id)
    if key in live:
        return RequestRefusal(Status.KEY_EEXISTS, f"a stream of vbucket {request.vbucket} is open on this connection")
    partial_end = _partial_end(claim, claims=settings.claims)
    return _stream_place(request, claim, facts, key, filtered, partial_end=partial_end, aware=negotiated.collections)


def _unfit(request: StreamRequest, facts: Facts, *, needs_noops: bool) -> RequestRefusal | None:
    """Apply checks 4 and 6: refuse a wrong state, a fenced vbucket, a connection without no-ops."""
    # Only its owner can hand a vbucket over: were a replica to do so, there would be two (failover 4, step 1).
    allowed = _OWNED if request.flags & _OWNER else _HELD
    if facts.state not in allowed:
        states = f"{facts.state.name.lower()}, not {' or '.join(state.name.lower() for state in allowed)}"
        return RequestRefusal(Status.NOT_MY_VBUCKET, f"vbucket {request.vbucket} is {states}")
    # "ETMPFAIL: can not now, may later": what is true of it now may not be once its peers have been heard (kv.md 5).
    if facts.is_fenced:
        return RequestRefusal(
            Status.ETMPFAIL, f"vbucket {request.vbucket} is not served until the other nodes were heard"
        )
    if needs_noops:
        return RequestRefusal(
            Status.NOT_SUPPORTED, "xattrs and Collections need no-ops: send CONTROL enable_noop first"
        )
    return None


def _claim(request: StreamRequest, facts: Facts) -> Claim:
    """Return the numbers of the request; with FROM_LATEST (check 5), those of a consumer that holds everything.

    For a takeover, TO_LATEST, or DISK_ONLY with end 0, the end seqno is replaced by endless; `_stream_place` sets the
    actual end (check 13). So the end in such a request is never compared with its start (erratum A6).
    """
    claim, flags = claim_of(request), request.flags
    # "Takeover forces end = endless" (dcp 2.4).
    if flags & (_TAKEOVER | _TO_LATEST) or (flags & _DISK_ONLY and not claim.end_seqno):
        claim = claim._replace(end_seqno=END_OF_TIME)
    if not request.flags & _FROM_LATEST:
        return claim
    high = facts.high_seqno
    uuid = claim.vb_uuid or next(iter(facts.failover_log))[0]
    return claim._replace(start_seqno=high, snap_start_seqno=high, snap_end_seqno=high, vb_uuid=uuid)


def _stream_place(
    request: StreamRequest,
    claim: Claim,
    facts: Facts,
    key: StreamKey,
    filtered: StreamFilter,
    *,
    partial_end: int,
    aware: bool,
) -> Accepted | RequestRefusal:
    """Apply checks 12 to 16: find the start and the end of the stream in the history."""
    flags = request.flags
    last = None if facts.last_seqno_of is None else _last_seqno(filtered, facts.last_seqno_of, aware=aware)
    match decide(
        claim,
        facts.failover_log,
        facts.high_seqno,
        # The flag is the client's own risk: it keeps documents whose deletions were purged (dcp 3, 0x80).
        purge_seqno=0 if flags & _IGNORE_PURGED else facts.purge_seqno,
        remote_purge_seqno=filtered.purge_seqno,
        strict=bool(flags & _STRICT),
        collection_high_seqno=last,
    ):
        case Rollback(seqno=seqno, reason=reason):
            # The seqno is the value: 8 bytes, no extras (errata S11, U3).
            return RequestRefusal(Status.ROLLBACK, reason, dcp.StreamRollback(rollback_seqno=seqno).frame().value)
        case Erange(reason=reason):
            return RequestRefusal(Status.ERANGE, reason)
    # 13. Both mean what is on disk now: TO_LATEST as the end, DISK_ONLY if the end asked for lies behind it.
    is_finite = flags & _FINITE and not flags & _TAKEOVER
    # At least the start: a collection that did not change since is an empty stream, not ERANGE.
    newest = facts.high_seqno if last is None or not flags & _TO_LATEST else max(last, claim.start_seqno)
    end = min(newest, claim.end_seqno) if is_finite else claim.end_seqno
    if claim.start_seqno > end:
        return RequestRefusal(Status.ERANGE, f"start seqno {claim.start_seqno} lies above end seqno {end}")
    if (not_now := _not_now(request, facts, aware=aware)) is not None:
        return not_now
    # A client may have read from the former owner that the write happened. A stream that ends at what is on the disk
    # now would lack it, and its reader would take that for the whole vbucket; GET_ALL_VB_SEQNOS waits for the same.
    if is_finite and end == newest and not _is_settled(facts, filtered, aware=aware):
        cause = f"durable writes of a former owner of vbucket {request.vbucket} are being settled"
        return RequestRefusal(Status.ETMPFAIL, f"{cause}; its replicas must be up, or failed over")
    return Accepted(key, claim.start_seqno, end, claim.snap_start_seqno, flags, filtered, partial_end)


def _is_settled(facts: Facts, filtered: StreamFilter, *, aware: bool) -> bool:
    if facts.is_settled is None:
        return True
    everything = filtered.scope is not None or (aware and not filtered.chooses)
    return facts.is_settled(None if everything else filtered.collections or frozenset({0}))


def _partial_end(claim: Claim, *, claims: bool) -> int:
    """Return the end of the snapshot that a consumer holds in part; 0 if it holds whole snapshots only.

    A snapshot that starts one below the start seqno counts as held in part: markers of other servers and of headwater's
    earlier releases start one above the previous snapshot's end, and the change at that seqno may have been replaced by
    a newer version. If the consumer has set controls.CLAIMS, such a range is only a claim to check (ClaimedPosition),
    and the result is 0.
    """
    if claims and claim.snap_start_seqno + 1 == claim.start_seqno:
        return 0
    return claim.snap_end_seqno if claim.snap_start_seqno < claim.start_seqno < claim.snap_end_seqno else 0


def _not_now(request: StreamRequest, facts: Facts, *, aware: bool) -> RequestRefusal | None:
    """Apply check 15, and refuse a takeover that is not possible now."""
    # Later than the rollback test, as in dcp 2.4: who must roll back hears so even from a node that can't serve yet.
    if facts.receives_first_snapshot:
        return RequestRefusal(Status.ETMPFAIL, f"vbucket {request.vbucket} still receives its first snapshot")
    if not request.flags & _TAKEOVER:
        return None
    if facts.is_being_handed_over:
        return RequestRefusal(Status.ETMPFAIL, f"vbucket {request.vbucket} is being handed over to somebody else")
    # The target would get the default collection alone, and the others would be gone with the former owner's copy.
    if facts.last_seqno_of is not None and not aware:
        return RequestRefusal(Status.NOT_SUPPORTED, _NOT_OWNED_WHOLE)
    return None


def _last_seqno(filtered: StreamFilter, seqno_of: Callable[[StreamFilter | None], int], *, aware: bool) -> int | None:
    """Return the newest seqno that the stream will send; None for a stream of all collections."""
    if aware and not filtered.chooses:
        return None
    return seqno_of(filtered if aware else None)


class _ValueError(Exception):
    """The value of a request is refused with this status."""

    def __init__(self, problem: str, status: Status = Status.EINVAL) -> None:
        super().__init__(problem)
        self.status = status


def _read_value(request: StreamRequest, settings: ControlSettings) -> StreamFilter:
    """Apply checks 9 and 10: read the JSON value. It must contain a stream id exactly if stream ids are enabled."""
    filtered = _parse_value(request) if request.value else _NO_FILTER
    if (filtered.stream_id is not None) != settings.stream_ids:
        rule = "needed" if settings.stream_ids else "not enabled"
        raise _ValueError(f"a stream id is {rule} on this connection", Status.DCP_STREAMID_INVALID)
    # A replica that lacked some collections could not stand in for its owner (dcp 2.4, check 10).
    if settings.sync_writes and (filtered.collections is not None or filtered.scope is not None):
        raise _ValueError("durable writes are streamed of all collections only", Status.NOT_SUPPORTED)
    return filtered


def _parse_value(request: StreamRequest) -> StreamFilter:
    if request.datatype != Datatype.RAW:
        raise _ValueError("the datatype of the value must be RAW")
    try:
        value = read_json(request.value)
    except ValueError:
        raise _ValueError("the value is not JSON") from None
    if not isinstance(value, dict) or not value.keys() & _VALUE_KEYS:
        raise _ValueError(f"the value is no JSON object with one of {', '.join(sorted(_VALUE_KEYS))}")
    _check_filter(value)
    collections = frozenset(int(each, 16) for each in value["collections"]) if "collections" in value else None
    scope = int(value["scope"], 16) if "scope" in value else None
    purge_seqno = _purge_seqno(value.get("purge_seqno", "0"))
    return StreamFilter(_stream_id(value.get("sid")), purge_seqno, collections, scope)


def _check_filter(value: dict[str, Any]) -> None:
    """Check the form of a filter. The uid is "informational, not checked" (dcp 5)."""
    if "collections" in value and "scope" in value:
        raise _ValueError("collections and scope exclude each other")
    collections = value.get("collections", ["0"])
    if not isinstance(collections, list) or not collections or not all(map(_is_hex, collections)):
        raise _ValueError("collections is not an array of hex strings")
    if not _is_hex(value.get("scope", "0")) or not _is_hex(value.get("uid", "0")):
        raise _ValueError("scope and uid are hex strings")


def _check_there(filtered: StreamFilter, manifest: CollectionsManifest) -> None:
    """Check that the chosen collections and scope exist."""
    if unknown_ids := (filtered.collections or frozenset()) - manifest.by_id().keys():
        raise _ValueError(f"there is no collection 0x{min(unknown_ids):x}", Status.UNKNOWN_COLLECTION)
    if filtered.scope is not None and manifest.scope_by_id(filtered.scope) is None:
        raise _ValueError(f"there is no scope 0x{filtered.scope:x}", Status.UNKNOWN_SCOPE)


def _manifest_uid(status: Status, facts: Facts) -> bytes:
    """Return the value of a refusal that concerns the manifest: its uid (kv.md 4)."""
    if status not in (Status.UNKNOWN_COLLECTION, Status.UNKNOWN_SCOPE):
        return b""
    return json.dumps({"manifest_uid": f"{facts.manifest.uid:x}"}).encode()


def _is_hex(text: object) -> bool:
    return isinstance(text, str) and re.fullmatch(r"[0-9a-fA-F]{1,16}", text) is not None


def _stream_id(number: object) -> int | None:
    """Return a stream id from 1 to 65535 (errata P13); 0 has a status of its own."""
    if number is None:
        return None
    # bool is an int in Python, and `"sid": true` is none in JSON.
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= STREAM_ID_MAX:
        raise _ValueError(f"sid is not a number from 1 to {STREAM_ID_MAX}")
    if number == 0:
        raise _ValueError("sid 0 is no stream id", Status.DCP_STREAMID_INVALID)
    return number


def _purge_seqno(text: object) -> int:
    if not isinstance(text, str) or not re.fullmatch(r"[0-9]{1,20}", text):
        raise _ValueError("purge_seqno is not a decimal string")
    return int(text)
