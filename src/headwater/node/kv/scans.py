"""Commands of range scans: create, continue, cancel. node/buckets/scans.py has the scans.

A request continues a scan in a coroutine, which lets other work run in between. One answer has at most about
CONTINUE_BYTES_MAX, so that not more waits for a slow reader. Source: KV engine, docs/range_scans.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from headwater.node.buckets.scans import KeyRange, RandomSample, RangeScan, ScanPlan
from headwater.node.kv import values
from headwater.node.kv.access import check_collection
from headwater.node.kv.command import handles
from headwater.node.kv.vbuckets import check_served
from headwater.node.refused import CommandRefused
from headwater.wire import leb128
from headwater.wire import scans as wire
from headwater.wire.datatype import Datatype
from headwater.wire.json_text import read_json
from headwater.wire.layout import Done
from headwater.wire.privilege import READ
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.kv.api import Session
    from headwater.node.storage.records import StoredDocument
    from headwater.node.vbucket.vbucket import VBucket

CONTINUE_BYTES_MAX = 1 << 20
PART_BYTES = 16 << 10
ITEMS_AT_ONCE = 64
"""After so many documents, other work has its turn."""
TIMEOUT_MS_MAX = 30_000
SAMPLES_MAX = 1_000_000
UUID_DIGITS_MAX = 20


@handles(wire.RangeScanCreate, anywhere=True)
async def create(session: Session, request: wire.RangeScanCreate) -> wire.RangeScanCreated:
    """Answer RANGE_SCAN_CREATE with the new scan's name; with KEY_ENOENT if the scan has no keys.

    If the request has snapshot requirements, the answer waits until the vbucket meets them.
    """
    if not request.datatype & Datatype.JSON:
        raise CommandRefused(Status.EINVAL, "the value must be JSON, and its datatype say so")
    content = _object(request.value)
    plan = _plan(content)
    check_collection(session, plan.collection, READ)
    vbucket = _active(session, request.vbucket)
    bucket = session.store_bucket
    _check_alive(session, vbucket, plan.collection)
    if (needs := content.get("snapshot_requirements")) is not None:
        vbucket = await _meet(session, vbucket, needs)
        _check_alive(session, vbucket, plan.collection)
    bucket.durable_writes.refuse_unsettled(vbucket.id, plan.collection, on_disk=True)
    scan = bucket.scans.create(vbucket, plan, session.server.loop.time())
    with scan.running(session.server.loop.time):
        if await scan.is_empty(_pausing(session)):
            raise CommandRefused(Status.KEY_ENOENT, "there is no such key")
    return wire.RangeScanCreated(scan_high=scan.name[0], scan_low=scan.name[1])


@handles(wire.RangeScanContinue, anywhere=True)
async def go_on(session: Session, request: wire.RangeScanContinue) -> list[wire.RangeScanPart]:
    """Answer RANGE_SCAN_CONTINUE with the scan's next keys or documents; with EBUSY while another request
    continues it.
    """
    vbucket = _active(session, request.vbucket)
    scan = _find(session, request)
    if scan.plan.collection not in vbucket.collections.alive:
        scan.cancel()  # documents of a dropped collection must not be shown, although the view still has them
    _check_alive(session, vbucket, scan.plan.collection)
    if scan.is_running:
        raise CommandRefused(Status.EBUSY, "another request goes on with this scan")
    with scan.running(session.server.loop.time):
        return await _Parts(session, request, scan).collect()


@handles(wire.RangeScanCancel, anywhere=True)
def cancel(session: Session, request: wire.RangeScanCancel) -> Done:
    """Cancel a scan, even if another request is continuing it."""
    _active(session, request.vbucket)
    _find(session, request).cancel()
    return Done()


class _Parts:
    """The parts of the answer to one continue request."""

    def __init__(self, session: Session, request: wire.RangeScanContinue, scan: RangeScan) -> None:
        self._session, self._request, self._scan = session, request, scan
        self._parts: list[wire.RangeScanPart] = []
        self._part = bytearray()
        self._items = self._bytes = 0

    async def collect(self) -> list[wire.RangeScanPart]:
        """Return the parts of the answer: the next keys or documents, up to the limits of the request, but at least
        one.
        """
        loop, limit = self._session.server.loop, self._request.time_limit_ms / 1000
        begun, pause, now = loop.time(), _pausing(self._session), self._session.store_bucket.now()
        while (batch := await self._scan.next(pause, now)) is not None:
            self._add(*batch)
            if self._is_full or (limit and loop.time() >= begun + limit):
                return self._ended(Status.RANGE_SCAN_MORE)
            if self._items % ITEMS_AT_ONCE == 0:
                await pause()
        self._scan.cancel()
        return self._ended(Status.RANGE_SCAN_COMPLETE)

    @property
    def _is_full(self) -> bool:
        most = min(self._request.byte_limit or CONTINUE_BYTES_MAX, CONTINUE_BYTES_MAX)
        return self._bytes >= most or self._items == self._request.item_limit

    def _add(self, key: bytes, document: StoredDocument) -> None:
        if self._scan.plan.key_only:
            item = wire.scanned_key(key)
        else:
            value, datatype = values.representation(document, self._session.features)
            numbers = document.flags, document.expiry, document.seqno, document.cas, datatype
            item = wire.scanned_document(key, value, *numbers)
        if self._part and len(self._part) + len(item) > PART_BYTES:
            self._parts.append(self._answer_part(Status.SUCCESS))
        self._part += item
        self._items += 1
        self._bytes += len(item)

    def _ended(self, status: Status) -> list[wire.RangeScanPart]:
        return [*self._parts, self._answer_part(status)]

    def _answer_part(self, status: Status) -> wire.RangeScanPart:
        value, self._part = bytes(self._part), bytearray()
        return wire.RangeScanPart(status=status, flags=int(not self._scan.plan.key_only), value=value)


def _pausing(session: Session) -> Callable[[], Awaitable[None]]:
    return session.server.run_queue.turn


def _active(session: Session, vbucket: int) -> VBucket:
    """Return the vbucket if it is active here and not fenced; raise CommandRefused otherwise."""
    check_served(session, vbucket)
    return session.store_bucket.vbuckets[vbucket]


def _check_alive(session: Session, vbucket: VBucket, collection: int) -> None:
    if collection not in vbucket.collections.alive:
        raise session.store_bucket.collections.missing_in(vbucket, collection)


def _find(session: Session, request: wire.RangeScanContinue | wire.RangeScanCancel) -> RangeScan:
    name = request.scan_high, request.scan_low
    scan = session.store_bucket.scans.find(name, request.vbucket, session.server.loop.time())
    check_collection(session, scan.plan.collection, READ)
    return scan


# --- reading requests -------------------------------------------------------------------------------------------------


def _object(value: bytes) -> dict[str, Any]:
    try:
        content = read_json(value)
    except ValueError as bad:
        raise CommandRefused(Status.EINVAL, f"the value is not JSON: {bad}") from None
    if not isinstance(content, dict):
        raise CommandRefused(Status.EINVAL, "the value is not a JSON object")
    return content


def _plan(content: Mapping[str, Any]) -> ScanPlan:
    collection, key_only = content.get("collection", "0"), content.get("key_only", False)
    try:
        number = int(collection, 16) if isinstance(collection, str) else -1
    except ValueError:
        number = -1
    if not 0 <= number <= leb128.COLLECTION_ID_MAX:
        raise CommandRefused(Status.EINVAL, "collection is not the hexadecimal id of one")
    if not isinstance(key_only, bool):
        raise CommandRefused(Status.EINVAL, "key_only is neither true nor false")
    if ("range" in content) == ("sampling" in content):
        raise CommandRefused(Status.EINVAL, "either range or sampling is needed")
    keys = _range(content["range"]) if "range" in content else _sample(content["sampling"])
    return ScanPlan(number, key_only, keys)


def _range(content: Any) -> KeyRange:
    if not isinstance(content, dict):
        raise CommandRefused(Status.EINVAL, "range is not a JSON object")
    first, with_first = _end(content, "start")
    last, with_last = _end(content, "end")
    if last < first or (first == last and not (with_first and with_last)):
        raise CommandRefused(Status.EINVAL, "the range ends before it starts")
    return KeyRange(first, last, with_first, with_last)


def _end(content: Mapping[str, Any], name: str) -> tuple[bytes, bool]:
    """Return one end of a range (`name`: "start" or "end"), and True if the end belongs to the range."""
    member_names = [each for each in (name, f"excl_{name}") if each in content]
    if len(member_names) != 1 or not isinstance(content[member_names[0]], str):
        raise CommandRefused(Status.EINVAL, f"range needs either {name} or excl_{name}, a text")
    try:
        return b64decode(content[member_names[0]], validate=True), member_names[0] == name
    except ValueError:
        raise CommandRefused(Status.EINVAL, f"{member_names[0]} is not base64") from None


def _sample(content: Any) -> RandomSample:
    if not isinstance(content, dict):
        raise CommandRefused(Status.EINVAL, "sampling is not a JSON object")
    count = _number(content, "samples")
    if not 0 < count <= SAMPLES_MAX:
        raise CommandRefused(Status.EINVAL, f"samples is not a number from 1 to {SAMPLES_MAX}")
    return RandomSample(count, _number(content, "seed", 0))


def _number(content: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = content.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise CommandRefused(Status.EINVAL, f"{name} is not a number of 0 or more")
    return value


async def _meet(session: Session, vbucket: VBucket, needs: Any) -> VBucket:
    """Wait until the vbucket meets the snapshot requirements (`needs`) of a request, for as long as these allow.

    Returns:
        The vbucket after the wait: a new object if the vbucket was dropped and created again meanwhile.

    Raises:
        CommandRefused: the requirements are invalid, or the vbucket does not meet them.
    """
    if not isinstance(needs, dict):
        raise CommandRefused(Status.EINVAL, "snapshot_requirements is not a JSON object")
    uuid, exists = needs.get("vb_uuid"), needs.get("seqno_exists", False)
    seqno, timeout = _number(needs, "seqno"), _number(needs, "timeout_ms", 0)
    if not isinstance(uuid, str) or not uuid.isdecimal() or len(uuid) > UUID_DIGITS_MAX:
        raise CommandRefused(Status.EINVAL, "vb_uuid is not a decimal number, as a text")
    _check_history(vbucket, int(uuid))
    vbucket = await _reach(session, vbucket.id, seqno, min(timeout, TIMEOUT_MS_MAX) / 1000)
    # Once more: during the wait, a failover or a rollback may have given the vbucket another history.
    _check_history(vbucket, int(uuid))
    if exists:
        with session.store_bucket.store.view(vbucket.id) as view:
            if not view.has(seqno):
                raise CommandRefused(Status.NOT_STORED, f"seqno {seqno} is none, or was overwritten")
    return vbucket


def _check_history(vbucket: VBucket, vb_uuid: int) -> None:
    if vb_uuid != vbucket.failover.newest.vb_uuid:
        raise CommandRefused(Status.VBUUID_NOT_EQUAL, "the vbucket has another history")


async def _reach(session: Session, vbucket: int, seqno: int, seconds: float) -> VBucket:
    """Wait until a seqno of a vbucket is durable; return the vbucket. Raises CommandRefused with ETMPFAIL after
    `seconds`.
    """
    loop, committer = session.server.loop, session.server.committer
    give_up = loop.time() + seconds
    while (vbucket_ := _active(session, vbucket)).durable_seqno < seqno:
        remaining_seconds = give_up - loop.time()
        if remaining_seconds <= 0:
            raise CommandRefused(Status.ETMPFAIL, f"seqno {seqno} is not durable yet")
        try:
            async with asyncio.timeout(remaining_seconds):
                await committer.wait(committer.durable + 1)
        except TimeoutError:
            continue
    return vbucket_
