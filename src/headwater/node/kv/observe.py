"""Watching durability, and looking around: OBSERVE, OBSERVE_SEQNO, GET_KEYS, GET_RANDOM_KEY (kv.md 2, 3)."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headwater.node.kv import documents
from headwater.node.kv.command import Part, Refused, Reply, command
from headwater.node.kv.vbuckets import vbucket
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from headwater.node.bucket import Bucket
    from headwater.node.kv.session import KvSession

KEYS_DEFAULT, KEYS_MAX = 1000, 100_000
_IN_MEMORY, _PERSISTED, _NOT_FOUND, _LOGICALLY_DELETED = 0x00, 0x01, 0x80, 0x81


@command(Opcode.OBSERVE_SEQNO, value=Part.REQUIRED)
def observe_seqno(session: KvSession, frame: Frame) -> Reply:
    """Persisted and current seqno of a branch; works in any state but dead.

    Format 1 when the uuid asked for is an older entry of the failover table: it adds the last seqno known for that one.
    """
    if len(frame.value) != 8:
        raise Refused(Status.EINVAL, "a vb uuid is 8 bytes")
    found, asked = vbucket(session, frame), int.from_bytes(frame.value, "big")
    if found.state is State.DEAD:
        raise session.not_my_vbucket()
    session.saw(found)
    high = found.durable_seqno
    last = found.failover.last_seqno_for_uuid(asked, high)
    if last is None:
        raise Refused(Status.KEY_ENOENT)
    newest = found.failover.newest.vb_uuid
    numbers = newest.to_bytes(8, "big") + high.to_bytes(8, "big") + high.to_bytes(8, "big")
    vb = frame.vbucket.to_bytes(2, "big")
    if asked == newest:
        return Reply(value=b"\0" + vb + numbers)
    return Reply(value=b"\1" + vb + numbers + asked.to_bytes(8, "big") + last.to_bytes(8, "big"))


@command(Opcode.OBSERVE, value=Part.REQUIRED)
def observe(session: KvSession, frame: Frame) -> Reply:
    """State and CAS of keys. What is not durable is told as such rather than gated: that is what the command is for."""
    bucket, answer = session.store_bucket, b""
    for vb, key in _observed(frame.value):
        if not bucket.is_active(vb) and bucket.state(vb) is not State.REPLICA:
            raise session.not_my_vbucket()
        state, cas = _observe_one(bucket, vb, key)
        answer += vb.to_bytes(2, "big") + len(key).to_bytes(2, "big") + key + bytes([state]) + cas.to_bytes(8, "big")
    return Reply(value=answer)


def _observed(value: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(value):
        vb, size = int.from_bytes(value[at : at + 2], "big"), int.from_bytes(value[at + 2 : at + 4], "big")
        if len(value) - at < 4 + size or size == 0:
            raise Refused(Status.EINVAL, f"a key of {size} bytes at offset {at} of {len(value)}")
        yield vb, value[at + 4 : at + 4 + size]
        at += 4 + size


def _observe_one(bucket: Bucket, vb: int, key: bytes) -> tuple[int, int]:
    found = bucket.store.document(vb, key)
    if found is None:
        return _NOT_FOUND, 0
    if found.deleted or documents.is_expired(found, bucket.now()):
        return (_NOT_FOUND if found.durable else _LOGICALLY_DELETED), found.cas
    return (_PERSISTED if found.durable else _IN_MEMORY), found.cas


@command(Opcode.GET_KEYS, extras=(0, 4), key=Part.REQUIRED)
def get_keys(session: KvSession, frame: Frame) -> Reply:
    """(u16 length, key) pairs in order, from the start key on; 1,000 unless the extras say otherwise."""
    if not session.store_bucket.is_active(vbucket(session, frame).id):
        raise session.not_my_vbucket()
    wanted = int.from_bytes(frame.extras, "big") if frame.extras else KEYS_DEFAULT
    bucket = session.store_bucket
    session.saw_unstable()
    keys = sorted(key for key in bucket.live_keys(frame.vbucket) if key >= frame.key)
    chosen = keys[: min(wanted, KEYS_MAX)]
    return Reply(value=b"".join(len(key).to_bytes(2, "big") + key for key in chosen))


@command(Opcode.GET_RANDOM_KEY, extras=(0,))
def get_random_key(session: KvSession, frame: Frame) -> Reply:
    """Any document of any active vbucket: the first live one that follows a random place."""
    bucket = session.store_bucket
    active = [vb for vb in bucket.vbuckets if bucket.is_active(vb) and bucket.store.items(vb)]
    while active:
        vb = active.pop(secrets.randbelow(len(active)))
        if key := bucket.random_key(vb):
            document = bucket.store.document(vb, key)
            if document is not None and not document.deleted and document.durable:
                return documents.found_reply(session, document, key)
    raise Refused(Status.KEY_ENOENT)
