"""The differences between UPR and DCP, as tables and small functions. Source: dcp 14.

A connection's dialect is AUTO until its first stream request, whose length decides; HELLO, a flag of OPEN that UPR does
not have, or any CONTROL sets it to DCP before. Layouts are in `headwater.wire.upr`, the form of changes in
kernels/gather.py; everything else is the same as in DCP.
"""

from __future__ import annotations

from typing import Final

from headwater.protocol.dcp.failover import Claim
from headwater.protocol.dcp.position import Position
from headwater.wire import dcp, upr
from headwater.wire.dcp import EndReason, StreamFlag
from headwater.wire.dialect import Dialect
from headwater.wire.header import Frame
from headwater.wire.vbucket import State

StreamRequest = dcp.StreamRequest | upr.StreamRequest

_UPR: Final = Dialect.UPR  # a member by its enum is slow to look up
_BY_EXTRAS = {40: Dialect.UPR, 48: Dialect.DCP}
_FLAGS = int(StreamFlag.TAKEOVER | StreamFlag.DISK_ONLY | StreamFlag.TO_LATEST)
_STATES_AS_PRINTED = {State.ACTIVE: 1, State.PENDING: 2, State.REPLICA: 3, State.DEAD: 4}


def settled_by(request: Frame, dialect: Dialect) -> Dialect:
    """Return the dialect after a stream request; still AUTO if the length of the extras is neither UPR's nor DCP's."""
    return _BY_EXTRAS.get(len(request.extras), dialect) if dialect is Dialect.AUTO else dialect


def claim_of(request: StreamRequest) -> Claim:
    """Return the claim in a stream request of either dialect.

    "UPR: derive snap start = snap end = start and look up (uuid, high seqno)" (dcp 14): UPR consumers know no snapshot
    ranges, and continue from ends of snapshots only.
    """
    start, end, uuid = request.start_seqno, request.end_seqno, request.vb_uuid
    if isinstance(request, upr.StreamRequest):
        return Claim(start, end, uuid, start, start, branch_seqno=request.high_seqno)
    return Claim(start, end, uuid, request.snap_start_seqno, request.snap_end_seqno)


def begins_at(position: Position, vb_uuid: int) -> int:
    """Return the seqno at which a branch began, from a position's failover log; 0 if the log does not have the uuid."""
    return next((seqno for uuid, seqno in position.failover_log if uuid == vb_uuid), 0)


def known_flags(flags: int) -> int:
    """Return the flags that UPR knows: "UPR connection: ignore unknown bits" (erratum A3)."""
    return flags & _FLAGS


def end_status(reason: EndReason, dialect: Dialect) -> int:
    """Return the number of a stream end's reason. UPR has only 0 (OK) and 1 (any other reason)."""
    return int(bool(reason)) if dialect is _UPR else int(reason)


def state_number(state: State, *, as_printed: bool) -> int:
    """Return the wire number of a state; `as_printed` selects those of UPR's text, which swaps two (erratum U9)."""
    return _STATES_AS_PRINTED[state] if as_printed else int(state)


def state_of(number: int, *, as_printed: bool) -> State:
    """Return the state with a wire number from 1 to 4; `as_printed` as in `state_number`."""
    return next(state for state in State if state_number(state, as_printed=as_printed) == number)
