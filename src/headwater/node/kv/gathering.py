"""Requests that need other workers' answers, from a client at the address that workers share.

Some requests name a vbucket but no document, and go to the worker that has the vbucket. Other requests concern all
vbuckets, or documents in several vbuckets: the other workers first answer their shares, and the worker of the client's
connection adds these answers to its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from headwater.errors import BadMessage
from headwater.node.refused import CommandRefused
from headwater.wire import admin, meta, tap
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.tap import OpaqueCode

OF_VBUCKETS: Final = frozenset({
    Opcode.GET_REPLICA, Opcode.OBSERVE_SEQNO, Opcode.GET_FAILOVER_LOG, Opcode.SEQNO_PERSISTENCE, Opcode.GET_KEYS,
    Opcode.SET_VBUCKET, Opcode.GET_VBUCKET, Opcode.DEL_VBUCKET, Opcode.COMPACT_DB,
    Opcode.RANGE_SCAN_CREATE, Opcode.RANGE_SCAN_CONTINUE, Opcode.RANGE_SCAN_CANCEL,
    Opcode.TAP_MUTATION, Opcode.TAP_DELETE, Opcode.TAP_VBUCKET_SET, Opcode.TAP_CHECKPOINT_START,
    Opcode.TAP_CHECKPOINT_END,
})  # fmt: skip
"""Requests about the vbucket in their header, whatever its state."""
_REMARKS_ON_VBUCKETS: Final = frozenset({
    OpaqueCode.INITIAL_VBUCKET_STREAM, OpaqueCode.OPEN_CHECKPOINT, OpaqueCode.CLOSE_BACKFILL,
})  # fmt: skip
"""The codes of TAP_OPAQUE messages about the vbucket in their header; other codes concern the whole feed."""
_OF_ALL: Final = frozenset({
    Opcode.GET_ALL_VB_SEQNOS, Opcode.GET_RANDOM_KEY, Opcode.DEREGISTER_TAP_CLIENT, Opcode.CHANGE_VB_FILTER,
    Opcode.TAP_FLUSH,
})  # fmt: skip
_HAS_NONE: Final = frozenset({Status.KEY_ENOENT, Status.UNKNOWN_COLLECTION})
"""Answers to GET_RANDOM_KEY that do not count as refusals: a worker has no document, or does not know the collection
yet."""
_GROUPS: Final = frozenset({
    "vbucket", "vbucket-seqno", "vbucket-details", "vbucket-copies", "failovers", "checkpoint", "durability-monitor",
    "range-scans", "collections", "dcp", "",
})  # fmt: skip
"""The groups of statistics that are gathered from all workers."""
_ONE_VBUCKET: Final = _GROUPS - {"vbucket-copies", "dcp", ""}
"""The groups that accept the number of a vbucket as argument."""
_SUMMED: Final = frozenset({
    "curr_items", "curr_connections", "total_connections", "rejected_connections", "cmd_get", "get_hits", "get_misses",
    "cmd_set", "cmd_delete", "cmd_flush", "expired", "ep_commit_num", "ep_commit_failures", "ep_removed_bytes_held",
    "ep_damaged_batches", "ep_damaged_vbuckets", "ep_prepares_waiting", "ep_range_scans", "ep_unsure_files",
    "ep_connections_memory", "ep_connections_memory_max", "ep_connections_dropped_for_memory", "ep_kernel_memory",
    "ep_strangers_memory", "ep_strangers_memory_max", "ep_strangers_dropped_for_memory", "ep_queue_size",
    "ep_dcp_count", "ep_dcp_producer_count", "ep_dcp_consumer_count", "ep_round_requests",
})  # fmt: skip
"""The statistics that are summed over the workers. Of any other statistic that several workers answer, one value is
sent."""
_SUMMED_ENDS: Final = (":items", ":data_size", ":tombstones")


def vbucket_in(frame: Frame) -> int | None:
    """Return the vbucket of a request that names a vbucket but no document; None for any other request."""
    if frame.opcode in OF_VBUCKETS or (frame.opcode == Opcode.TAP_OPAQUE and _remark(frame) in _REMARKS_ON_VBUCKETS):
        return frame.vbucket
    if frame.opcode == Opcode.STAT:
        group, _, argument = frame.key.partition(b" ")
        if group.decode("latin-1") in _ONE_VBUCKET and argument.isdigit() and len(argument) < 6:
            return int(argument)
    return None


def shares_of(
    frame: Frame, paths: Callable[[], Iterable[str]], path_of: Callable[[int], str | None]
) -> dict[str, Frame]:
    """Return the requests that other workers must answer before this worker handles a request, by the worker's path.

    Args:
        frame: the request.
        paths: returns the paths of all other workers.
        path_of: returns the path of the worker that has a vbucket; None for this worker.
    """
    if frame.opcode in _OF_ALL or (frame.opcode == Opcode.STAT and _is_of_node(frame)):
        return dict.fromkeys(paths(), frame)
    if frame.opcode == Opcode.TAP_OPAQUE and _remark(frame) is not None and vbucket_in(frame) is None:
        return dict.fromkeys(paths(), frame)
    return _observed_shares(frame, path_of) if frame.opcode == Opcode.OBSERVE else {}


def _remark(frame: Frame) -> int | None:
    """Return the code of a TAP_OPAQUE; None if the message is malformed (the handler will report this)."""
    try:
        return tap.Opaque.decode(frame).code
    except BadMessage:
        return None


def _is_of_node(frame: Frame) -> bool:
    return vbucket_in(frame) is None and frame.key.partition(b" ")[0].decode("latin-1") in _GROUPS


def _observed_shares(frame: Frame, path_of: Callable[[int], str | None]) -> dict[str, Frame]:
    try:
        keys = meta.Observe.decode(frame).keys
    except BadMessage:
        return {}  # the handler will report the malformed request
    shares: dict[str, list[tuple[int, bytes]]] = {}
    for vbucket, key in keys:
        if (path := path_of(vbucket)) is not None:
            shares.setdefault(path, []).append((vbucket, key))
    return {path: replace(frame, value=meta.Observe(keys=share).frame().value) for path, share in shares.items()}


KeyStates: TypeAlias = dict[tuple[int, bytes], tuple[int, int]]
"""The state and CAS of keys, by vbucket and key."""


@dataclass(slots=True)
class Gathering:
    """The answers of other workers to their shares of a request.

    Attributes:
        refused: the refusal if a worker can't be reached; None if all got their shares.
        answers: the answers so far.
    """

    refused: CommandRefused | None = None
    answers: list[Frame] = field(default_factory=list)

    def outcome(self) -> CommandRefused | None:
        """Return the refusal of the request if a worker refused its share, or can't be reached; otherwise None."""
        if self.refused is not None:
            return self.refused
        status = next(
            (answer.status for answer in self.answers if answer.status and not _has_none(answer)), Status.SUCCESS
        )
        return CommandRefused(status, "another process has refused it") if status else None


def _has_none(answer: Frame) -> bool:
    return answer.opcode == Opcode.GET_RANDOM_KEY and answer.status in _HAS_NONE


def seqnos_in(answers: Iterable[Frame]) -> list[tuple[int, int]]:
    """Return the (vbucket, seqno) pairs in other workers' answers to GET_ALL_VB_SEQNOS."""
    return [pair for answer in answers for pair in admin.GetAllVbSeqnosResponse.decode(answer).seqnos]


def states_in(answers: Iterable[Frame]) -> KeyStates:
    """Return the states in other workers' answers to OBSERVE: state and CAS, by vbucket and key."""
    rows = (row for answer in answers for row in meta.ObserveResponse.decode(answer).states)
    return {(vbucket, key): (state, cas) for vbucket, key, state, cas in rows}


def merged(own: Iterable[tuple[str, str]], answers: Iterable[Frame]) -> Iterable[tuple[str, str]]:
    """Yield the statistics of all workers, each name once.

    A statistic in _SUMMED is summed. Of any other statistic, this worker's value counts; if this worker has none, the
    value of the first other worker that has one.

    Args:
        own: names and values of this worker.
        answers: the other workers' answers to STAT.
    """
    others: dict[str, list[str]] = {}
    for answer in answers:
        if answer.key:
            others.setdefault(answer.key.decode("latin-1"), []).append(answer.value.decode())
    for name, value in own:
        theirs = others.pop(name, [])
        is_sum = name in _SUMMED or name.endswith(_SUMMED_ENDS)
        yield name, str(sum(map(int, (value, *theirs)))) if is_sum else value
    for name, values in others.items():
        yield name, values[0]
