"""The keys of a vbucket that begin with a prefix, a page at a time, by range scans of its node.

A range scan covers one vbucket on one node, and ends when that vbucket moves or changes its state. So each page has a
scan of its own, which starts after the last known key and is cancelled when the page is full: no scan stays open on the
node between two pages, and a vbucket that has moved is read on from its new node.

Source: KV engine, docs/range_scans.
"""

from __future__ import annotations

import json
from base64 import b64encode
from contextlib import suppress
from dataclasses import dataclass

from headwater.client.cluster import Cluster, tried
from headwater.client.collections import CollectionId
from headwater.client.kv import check_vbuckets
from headwater.client.pipeline import Pipeline
from headwater.errors import (
    BucketNotFound,
    ConnectionLost,
    HeadwaterError,
    KeyNotFound,
    NotMyVbucket,
    RemoteProtocolError,
    StatusError,
    UnknownCollection,
)
from headwater.protocol.handshake import refused
from headwater.transport.backoff import for_requests
from headwater.transport.waiting import Ready, Steps
from headwater.wire import leb128
from headwater.wire.datatype import Datatype
from headwater.wire.header import KEY_BYTES_MAX, Frame
from headwater.wire.scans import RangeScanCancel, RangeScanContinue, RangeScanCreate, RangeScanCreated, RangeScanPart
from headwater.wire.status import Status

KEYS_MAX = 10_000
"""The most keys of one page; a node sends 1 MiB of them at a time."""
BYTES_MAX = 1 << 20
_HIGHEST = b"\xff" * KEY_BYTES_MAX
"""Behind a prefix: no key that begins with it is higher."""
_MORE = frozenset({Status.SUCCESS, Status.RANGE_SCAN_MORE, Status.RANGE_SCAN_COMPLETE})
_GONE = frozenset({Status.KEY_ENOENT, Status.RANGE_SCAN_CANCELLED, Status.NOT_MY_VBUCKET})
"""Refusals that concern only the scan: its vbucket moved, or was rolled back."""


@dataclass(frozen=True, slots=True)
class KeyPage:
    """Keys of a vbucket in their order; `is_last` is True if no more keys follow them."""

    keys: list[bytes]
    is_last: bool


class _ScanGoneError(Exception):
    """The scan can't continue; a new one begins in its place."""

    def __init__(self, refusal: StatusError) -> None:
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class WantedKeys:
    """A request for keys: the first `most` keys of a vbucket that begin with `prefix` and follow `after`."""

    vbucket: int
    prefix: bytes = b""
    after: bytes = b""
    most: int = 100

    def description(self, collection: int) -> bytes:
        """Return the JSON value of RANGE_SCAN_CREATE. The lowest key is one zero byte, since no key is empty."""
        is_behind = self.after >= self.prefix and self.after != b""
        first = {
            "excl_start" if is_behind else "start": _base64_text(self.after if is_behind else self.prefix or b"\0")
        }
        last = {"end": _base64_text(self.prefix + _HIGHEST)}
        return json.dumps({"collection": f"{collection:x}", "key_only": True, "range": first | last}).encode()


def keys_page(cluster: Cluster, collection: CollectionId | None, query: WantedKeys) -> Steps[KeyPage]:
    """Return keys of documents that are durable, and have not expired, when the node begins to look.

    Raises:
        OptionError: it is no vbucket of the bucket. NoAccess: the user may not read. UnknownCommand, NotSupported: the
            node knows no range scans. TransportError, StatusError: as `Cluster.call`.
    """
    check_vbuckets(cluster, [query.vbucket])
    if query.after >= query.prefix + _HIGHEST:
        return KeyPage([], is_last=True)
    began, backoff = cluster.clock(), for_requests()
    deadline = cluster.deadline()
    while True:
        prefix = b"\0" if collection is None else (yield from collection.prefix())
        try:
            return (yield from _page(cluster, leb128.decode(prefix)[0], query, deadline))
        except UnknownCollection as refusal:  # under its name there may be another by now
            if collection is None:
                raise
            yield from collection.prefix_after(refusal, prefix)
            continue
        except ConnectionLost as error:
            last_error: StatusError | ConnectionLost = error
        except _ScanGoneError as gone_error:
            last_error = gone_error.refusal
        moment = cluster.clock() + backoff.next_seconds()
        if moment >= deadline:
            raise tried(last_error, backoff.failures, cluster.clock() - began)
        yield Ready((), moment)


def _base64_text(key: bytes) -> str:
    return b64encode(key).decode()


def _page(cluster: Cluster, collection: int, query: WantedKeys, deadline: float) -> Steps[KeyPage]:
    description = query.description(collection)
    request = RangeScanCreate(vbucket=query.vbucket, value=description, datatype=int(Datatype.JSON))
    try:
        answer = yield from cluster.call(query.vbucket, request.frame(), "list keys", reads=True)
    except KeyNotFound as error:
        if isinstance(error, BucketNotFound):
            raise
        # The node answers so when no key lies in the range: there was nothing to scan.
        return KeyPage([], is_last=True)
    except StatusError as error:
        if error.status == Status.RANGE_SCAN_CANCELLED:  # its vbucket changed hands while the node looked
            raise _ScanGoneError(error) from None
        raise
    created = RangeScanCreated.decode(answer)
    owner = cluster.map.owner(query.vbucket)
    if owner is None:  # it moved while the answer was on its way
        raise _ScanGoneError(cluster.ownerless(query.vbucket, "list keys"))
    link = yield from cluster.link(owner, deadline)
    return (yield from _collect(link, query, created, deadline))


def _collect(link: Pipeline, query: WantedKeys, created: RangeScanCreated, deadline: float) -> Steps[KeyPage]:
    """Continue a scan until the page is full or the scan is complete; an unfinished scan is cancelled.

    Raises:
        _ScanGoneError: the node ended the scan or refused it temporarily. StatusError: it refused permanently.
    """
    keys: list[bytes] = []
    while len(keys) < query.most:
        request = RangeScanContinue(
            vbucket=query.vbucket,
            scan_high=created.scan_high,
            scan_low=created.scan_low,
            item_limit=query.most - len(keys),
            byte_limit=BYTES_MAX,
        )
        frames = yield from link.call_until(request.frame(), _ends, deadline)
        last = frames[-1]
        if last.status in _GONE:
            action = f"list the keys of vbucket {query.vbucket}: the scan was ended by its node"
            raise _ScanGoneError(NotMyVbucket(action))
        if last.status not in _MORE:
            refusal = refused(f"list the keys of vbucket {query.vbucket}", last)
            yield from _cancel(link, query, created, deadline)
            raise _ScanGoneError(refusal) if refusal.retriable else refusal
        part = [key for frame in frames for key in keys_of(RangeScanPart.decode(frame).value)]
        keys += part
        if last.status == Status.RANGE_SCAN_COMPLETE:
            return KeyPage(keys, is_last=True)
        if not part:
            raise RemoteProtocolError("RANGE_SCAN_CONTINUE (opcode 0xdb): there is more, and no key came")
    yield from _cancel(link, query, created, deadline)
    return KeyPage(keys, is_last=False)


def _cancel(link: Pipeline, query: WantedKeys, created: RangeScanCreated, deadline: float) -> Steps[None]:
    over = RangeScanCancel(vbucket=query.vbucket, scan_high=created.scan_high, scan_low=created.scan_low)
    with suppress(HeadwaterError):  # the node gives up what nobody goes on with, later
        yield from link.call(over.frame(), deadline)


def _ends(frame: Frame) -> bool:
    """Return True for the last answer to RANGE_SCAN_CONTINUE; all before it have status SUCCESS."""
    return frame.status != Status.SUCCESS


def keys_of(value: bytes) -> list[bytes]:
    """Return the keys in the value of one answer to RANGE_SCAN_CONTINUE.

    Raises:
        RemoteProtocolError: the value ends within a key, or a key is empty or longer than keys are.
    """
    keys, at = [], 0
    while at < len(value):
        size, width = leb128.decode(value[at : at + 5])
        at += width
        if not 0 < size <= KEY_BYTES_MAX or at + size > len(value):
            raise RemoteProtocolError(f"RANGE_SCAN_CONTINUE (opcode 0xdb): a key of {size} bytes at {at}")
        keys.append(value[at : at + size])
        at += size
    return keys
