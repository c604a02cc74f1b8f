"""The key-value operations, once for the blocking and the asyncio client.

Each is a step generator over `Cluster.call`, which routes by the key's vbucket and retries what may be retried. Keys
are text or bytes; what comes back is bytes. A CAS of 0 means "whatever is there". Times are seconds: up to 30 days from
now, above that Unix time; 0 is never (wire.md 10). Source: kv.md 2 and 3.
"""

from __future__ import annotations

import datetime
import json
import math
import time
from collections.abc import Collection, Iterable, MutableMapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, NamedTuple, SupportsIndex, TypeVar

from headwater.client.cluster import Cluster
from headwater.client.collections import CollectionId
from headwater.client.durability import Durability, DurabilityChoice, as_durability
from headwater.client.routing import Address
from headwater.errors import (
    BucketMadeAnew,
    BucketNotFound,
    KeyNotFound,
    OptionError,
    RemoteProtocolError,
    StatusError,
    TransportError,
    UnknownCollection,
)
from headwater.protocol.handshake import refused
from headwater.transport.backoff import for_requests
from headwater.transport.waiting import Ready, Steps
from headwater.wire import admin, bootstrap, documents, subdoc, xattr
from headwater.wire.datatype import Datatype
from headwater.wire.header import KEY_BYTES_MAX, VALUE_BYTES_MAX, Frame
from headwater.wire.layout import Answer, Done, Request
from headwater.wire.meta import GetMeta, GetMetaResponse, Observe, ObserveResponse
from headwater.wire.opcodes import name_of
from headwater.wire.status import Status
from headwater.wire.times import RELATIVE_SECONDS_MAX
from headwater.wire.vbucket import State

Answered = TypeVar("Answered", bound=Answer)
Default = TypeVar("Default")

NO_CREATE = 0xFFFF_FFFF
STATS_MAX = 1_000_000
TABLE_OF_XATTRS = "$XTOC"
"""A pseudo-attribute with the names of all others. Source: kv.md, sub-documents."""
UNIX_SECONDS_MIN = 1_000_000_000
"""September 2001: smaller numbers are not accepted as an expiry in Unix seconds."""
JSON_FLAGS = 0x0200_0000
"""The flags with which Couchbase's SDKs mark a JSON document."""
Expiry = int | datetime.timedelta | datetime.datetime
Value = str | bytes | bytearray | memoryview
U32_MAX, U64_MAX = 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF


class Missing(Enum):
    """The type of a `default` that was not passed."""

    RAISES = 0


RAISES: Final = Missing.RAISES


class Valued:
    """Methods that read the value of a `Document` or of a `Mutation`."""

    __slots__ = ()
    value: bytes
    datatype: int

    @property
    def body(self) -> bytes:
        """The value without the extended attributes that a drain with `xattrs` has in front of it; RemoteProtocolError
        if these can't be read."""
        if not self.datatype & Datatype.XATTR or not self.value:  # a drain without values has none of them either
            return self.value
        return xattr.split(self.value)[1]

    @property
    def text(self) -> str:
        """The value as text; UnicodeDecodeError, a ValueError, when it is no UTF-8."""
        return self.body.decode()

    def json(self) -> Any:
        """Return the value as Python objects; ValueError when it is no JSON."""
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Document(Valued):
    """A document as it was read.

    Attributes:
        cas: changes with every write; give it back to write only if nobody else has.
        flags: the application's own four bytes.
        datatype: bits 1 JSON, 2 snappy, 4 xattrs.
    """

    key: bytes
    value: bytes
    cas: int
    flags: int = 0
    datatype: int = 0


class DocumentMeta(NamedTuple):
    """A document without its value.

    Attributes:
        cas, flags, datatype: as in `Document`.
        expiry: Unix seconds, 0 for never; of a tombstone the time of the deletion.
        revision: how many times the key has changed.
        deleted: whether this is a tombstone.
    """

    cas: int
    flags: int
    expiry: int
    revision: int
    datatype: int
    deleted: bool


class Observed(NamedTuple):
    """A node's answer about a key.

    Attributes:
        state: 0 in memory, 1 persisted, 0x80 not found, 0x81 deleted but not persisted.
        cas: the CAS of the key.
    """

    state: int
    cas: int


def as_key(key: str | bytes) -> bytes:
    """Return the key as bytes.

    Raises:
        OptionError: it is empty, longer than 250 bytes, or no text. TypeError: it is neither text nor bytes.
    """
    data = _as_bytes("key", key)
    if not 0 < len(data) <= KEY_BYTES_MAX:
        raise OptionError("key", data[:40], f"1 to {KEY_BYTES_MAX} bytes (it has {len(data)})")
    return data


def as_part(name: str, key: str | bytes) -> bytes:
    """Return a part of a key, maybe empty, as bytes.

    Raises:
        OptionError: it is longer than 250 bytes, or no text. TypeError: it is neither text nor bytes.
    """
    data = _as_bytes(name, key)
    if len(data) > KEY_BYTES_MAX:
        raise OptionError(name, data[:40], f"at most {KEY_BYTES_MAX} bytes (it has {len(data)})")
    return data


def as_value(value: Value) -> bytes:
    """Return the value as bytes.

    Raises:
        OptionError: it is larger than 20 MiB, or no text. TypeError: it is neither text nor bytes.
    """
    data = _as_bytes("value", value)
    if len(data) > VALUE_BYTES_MAX:
        raise OptionError("value", f"{len(data)} bytes", f"at most {VALUE_BYTES_MAX} bytes")
    return data


def as_json(value: object) -> bytes:
    """Return the value as a JSON document.

    Raises:
        OptionError: a number in it is not finite. TypeError: json.dumps does not take it.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except ValueError as error:
        raise OptionError("value", f"{value!r:.40}", f"a JSON document ({error})") from None


def _as_bytes(name: str, data: Value) -> bytes:
    if isinstance(data, str):
        try:
            return data.encode()
        except UnicodeEncodeError as error:
            advice = f"text that UTF-8 has ({data[error.start]!a} is half a character); give its bytes"
            raise OptionError(name, ascii(data[:40]), advice) from None
    # bytes(10) would be ten NUL bytes and bytes([104, 105]) would be b"hi": whatever is not bytes is refused.
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    hint = ", or use set_json" if name == "value" else ""
    raise TypeError(f"a {name} is text or bytes, not {type(data).__name__}: {data!r:.40}; give str or bytes{hint}")


def unsigned(name: str, number: int, highest: int) -> int:
    """Return the number if it is from 0 to `highest`.

    Raises:
        OptionError: it is not.
    """
    if not isinstance(number, SupportsIndex) or not 0 <= number <= highest:
        raise OptionError(name, number, f"a number from 0 to {highest}")
    return number


def check_vbuckets(cluster: Cluster, vbuckets: Iterable[int]) -> None:
    """Raise OptionError for the first number that is outside of the bucket's vbuckets."""
    count = cluster.map.vbuckets
    for vb in vbuckets:
        if not isinstance(vb, SupportsIndex) or not 0 <= vb < count:
            raise OptionError("vbuckets", vb, f"one of the bucket's {count} vbuckets, 0 to {count - 1}")


def as_expiry(expiry: Expiry, now_seconds: float | None = None) -> int:
    """Return an expiry as nodes take it: seconds from now up to 30 days, Unix seconds above, 0 for never.

    Args:
        expiry: that number; or a timedelta of any length, or a datetime with its time zone.
        now_seconds: Unix seconds; the clock of this machine by default.

    Raises:
        OptionError: it is no time, or one in the last century, such as a number of seconds a little over 30 days.
        TypeError: it is none of these.
    """
    if isinstance(expiry, datetime.timedelta) and expiry > datetime.timedelta(0):
        seconds = math.ceil(expiry.total_seconds())
        now = time.time() if now_seconds is None else now_seconds
        return unsigned("expiry", seconds if seconds <= RELATIVE_SECONDS_MAX else int(now) + seconds, U32_MAX)
    if isinstance(expiry, datetime.datetime) and expiry.tzinfo is not None:
        return unsigned("expiry", math.ceil(expiry.timestamp()), U32_MAX)
    if isinstance(expiry, bool) or not isinstance(expiry, int | datetime.timedelta | datetime.datetime):
        raise TypeError(f"an expiry is seconds, a timedelta or a datetime, not {type(expiry).__name__}: {expiry!r:.40}")
    # A node takes 60 days in seconds for a day in March 1970, and deletes the document at once.
    if isinstance(expiry, int) and (0 <= expiry <= RELATIVE_SECONDS_MAX or UNIX_SECONDS_MIN <= expiry <= U32_MAX):
        return expiry
    allowed = f"up to {RELATIVE_SECONDS_MAX} seconds (30 days) from now, a Unix time, a timedelta or a zoned datetime"
    raise OptionError("expiry", expiry, allowed)


class Operations:
    """A client's operations on documents and vbuckets; each method returns steps.

    Args:
        collection: the collection of the documents; None for the default one, on connections without Collections.
    """

    def __init__(self, cluster: Cluster, collection: CollectionId | None = None) -> None:
        self.cluster: Cluster = cluster
        self.collection: CollectionId | None = collection

    def _call(self, request: Request, answer: type[Answered], choice: DurabilityChoice = None) -> Steps[Answered]:
        """Send a request to the node that owns its key, and read the answer; `choice` makes a write durable."""
        unsigned("cas", request.cas, U64_MAX)
        durability = as_durability(choice, self.cluster.settings.timeout_seconds)
        try:
            return (yield from self._resolve(request, answer, durability))
        except BucketMadeAnew:  # nothing was done; the key has another vbucket and its collection another id by now
            return (yield from self._resolve(request, answer, durability))

    def _resolve(self, request: Request, answer: type[Answered], durability: Durability | None) -> Steps[Answered]:
        """Send a request with its collection's id in front of the key, looked up in the bucket of the newest map."""
        if durability is not None:
            self.cluster.for_durable_writes()  # and hear of its newer map
        if self.collection is None:
            return (yield from self._send(request, answer, durability))
        prefix = yield from self.collection.prefix()
        try:
            return (yield from self._send(request, answer, durability, prefix))
        except UnknownCollection as refusal:  # nothing was done; under its name there may be another by now
            prefix = yield from self.collection.prefix_after(refusal, prefix)
            return (yield from self._send(request, answer, durability, prefix))

    def _send(
        self, request: Request, answer: type[Answered], durability: Durability | None, prefix: bytes = b""
    ) -> Steps[Answered]:
        cluster = self.cluster if durability is None else self.cluster.for_durable_writes()
        if self.collection is not None and not self.collection.is_of(cluster.map):
            raise cluster.made_anew(self.cluster.map)
        request = replace(request, vbucket=cluster.map.vbucket_of(request.key))
        action = f'{name_of(request.layout.opcode).lower()} "{request.key.decode(errors="backslashreplace")}"'
        # Only these change nothing, so only these may be sent again after an answer was lost. GAT is a read that sets
        # an expiry.
        reads = isinstance(request, documents.Get | GetMeta | subdoc.SubdocGet) and not isinstance(
            request, documents.GetAndTouch
        )
        if prefix:
            request = replace(request, key=prefix + request.key)
        if durability is not None:
            request = replace(request, framing=durability.framing())
        frame = yield from cluster.call(request.vbucket, request.frame(), action, reads=reads)
        return answer.decode(frame)

    # ------------------------------------------------------------------ documents

    def get(self, key: str | bytes, default: Default | Missing = RAISES) -> Steps[Document | Default]:
        """Read a document. A missing bucket is not a missing document: it raises an error, not the default."""
        name = as_key(key)
        try:
            return document(name, (yield from self._call(documents.Get(key=name), documents.GetResponse)))
        except KeyNotFound as error:
            if isinstance(default, Missing) or isinstance(error, BucketNotFound):
                raise
            return default

    def get_meta(self, key: str | bytes) -> Steps[DocumentMeta]:
        """Read a document's metadata, or its tombstone's."""
        answer = yield from self._call(GetMeta(key=as_key(key), req_ext_meta=2), GetMetaResponse)
        return DocumentMeta(
            answer.cas,
            answer.flags,
            answer.expiration,
            answer.rev_seqno,
            answer.stored_datatype or 0,
            bool(answer.deleted & 1),
        )

    def get_xattrs(self, key: str | bytes) -> Steps[dict[str, bytes]]:
        """Read a document's extended attributes: by name their JSON text."""
        names: list[str] = json.loads((yield from self._attribute(key, TABLE_OF_XATTRS)))
        xattrs: dict[str, bytes] = {}
        for name in names:
            try:
                xattrs[name] = yield from self._attribute(key, name)
            except StatusError as error:
                if error.status != Status.SUBDOC_PATH_ENOENT:  # it went since its name was read
                    raise
        return xattrs

    def _attribute(self, key: str | bytes, name: str) -> Steps[bytes]:
        path = name.encode()
        flags = int(subdoc.PathFlag.XATTR)
        request = subdoc.SubdocGet(key=as_key(key), path_bytes=len(path), flags=flags, value=path)
        return (yield from self._call(request, subdoc.SubdocValue)).value

    def gat(self, key: str | bytes, expiry: Expiry, durability: DurabilityChoice) -> Steps[Document]:
        """Read a document and give it a new expiry."""
        request = documents.GetAndTouch(key=as_key(key), expiration=as_expiry(expiry))
        return document(request.key, (yield from self._call(request, documents.GetResponse, durability)))

    def store(
        self,
        request: type[documents.Set],
        key: str | bytes,
        value: Value,
        *,
        flags: int,
        expiry: Expiry,
        cas: int = 0,
        durability: DurabilityChoice,
    ) -> Steps[int]:
        """Send SET, ADD or REPLACE; return the new CAS."""
        command = request(
            key=as_key(key),
            value=as_value(value),
            flags=unsigned("flags", flags, U32_MAX),
            expiration=as_expiry(expiry),
            cas=cas,
        )
        answer = yield from self._call(command, documents.Stored, durability)
        return answer.cas

    def extend(
        self,
        request: type[documents.Append],
        key: str | bytes,
        value: Value,
        cas: int,
        durability: DurabilityChoice,
    ) -> Steps[int]:
        """Send APPEND or PREPEND; return the new CAS."""
        command = request(key=as_key(key), value=as_value(value), cas=cas)
        answer = yield from self._call(command, documents.Stored, durability)
        return answer.cas

    def delete(self, key: str | bytes, cas: int, durability: DurabilityChoice) -> Steps[int]:
        """Delete a document; returns the CAS of the deletion."""
        answer = yield from self._call(documents.Delete(key=as_key(key), cas=cas), documents.Stored, durability)
        return answer.cas

    def count(
        self,
        request: type[documents.Increment],
        key: str | bytes,
        delta: int,
        *,
        initial: int | None,
        expiry: Expiry,
        durability: DurabilityChoice,
    ) -> Steps[int]:
        """Send INCREMENT or DECREMENT; return the new number."""
        command = request(
            key=as_key(key),
            delta=unsigned("delta", delta, U64_MAX),
            initial=0 if initial is None else unsigned("initial", initial, U64_MAX),
            expiration=NO_CREATE if initial is None else as_expiry(expiry),
        )
        answer = yield from self._call(command, documents.IncrementResponse, durability)
        return answer.counter

    def touch(self, key: str | bytes, expiry: Expiry, durability: DurabilityChoice) -> Steps[int]:
        """Give a document a new expiry; returns its CAS."""
        request = documents.Touch(key=as_key(key), expiration=as_expiry(expiry))
        answer = yield from self._call(request, documents.TouchResponse, durability)
        return answer.cas

    def observe(self, key: str | bytes) -> Steps[Observed]:
        """Return the state and CAS of a key on the active node (OBSERVE)."""
        if self.collection is None:
            return (yield from self._observe(as_key(key)))
        prefix = yield from self.collection.prefix()
        try:
            return (yield from self._observe(as_key(key), prefix))
        except UnknownCollection as refusal:
            prefix = yield from self.collection.prefix_after(refusal, prefix)
            return (yield from self._observe(as_key(key), prefix))

    def _observe(self, name: bytes, prefix: bytes = b"") -> Steps[Observed]:
        vbucket = self.cluster.map.vbucket_of(name)
        request = Observe(keys=[(vbucket, prefix + name)], vbucket=vbucket)
        answer = ObserveResponse.decode((yield from self.cluster.call(vbucket, request.frame(), "observe", reads=True)))
        if [state[:2] for state in answer.states] != request.keys:
            raise RemoteProtocolError(f"OBSERVE (opcode 0x92): states of {len(answer.states)} keys, one was asked for")
        return Observed(*answer.states[0][2:])

    # ------------------------------------------------------------------ nodes and vbuckets

    def _ask_all(self, request: Request, answer: type[Answered]) -> Steps[list[Answered]]:
        """Send a request to every node; return the answers in the order of the nodes."""
        answers = []
        for address in self.cluster.map.servers:
            link = yield from self.cluster.link(address)
            frame = yield from link.call(request.frame(), self.cluster.deadline())
            if frame.status:
                raise refused(f"{name_of(request.layout.opcode).lower()} of {address}", frame)
            answers.append(answer.decode(frame))
        return answers

    def version(self) -> Steps[str]:
        """Return the version of the first node."""
        answers = yield from self._ask_all(bootstrap.Version(), bootstrap.VersionResponse)
        return answers[0].value.decode(errors="replace")

    def noop(self) -> Steps[None]:
        """Send a no-op to every node and wait for all answers."""
        yield from self._ask_all(bootstrap.Noop(), Done)

    def stats(self, group: str) -> Steps[dict[str, str]]:
        """Return a group of statistics, of all nodes together; a later node's numbers replace an earlier one's."""
        merged: dict[str, str] = {}
        for stats in (yield from self.stats_by_node(group)).values():
            merged |= stats
        return merged

    def stats_by_node(
        self, group: str, silent: MutableMapping[str, TransportError] | None = None
    ) -> Steps[dict[str, dict[str, str]]]:
        """Return a group of statistics of each node of the map, by "host:port".

        Args:
            silent: takes the errors of nodes that do not answer, by "host:port"; without it the first of them is
                raised.

        Raises:
            TransportError: a node does not answer. StatusError: one refused.
        """
        by_node = {}
        for address in self.cluster.map.servers:
            try:
                by_node[str(address)] = yield from self._stats_of(address, group)
            except TransportError as error:
                if silent is None:
                    raise
                silent[str(address)] = error
        return by_node

    def vbucket_stats(self, group: str, vbuckets: Collection[int] | None = None) -> Steps[dict[int, dict[str, str]]]:
        """Return a group of statistics that has lines "vb_N:name", by vbucket, each from the node that owns it.

        Args:
            vbuckets: the vbuckets to ask for, one by one; None for all, by one request to each node.
        """
        backoff, until = for_requests(), self.cluster.deadline()
        while True:
            try:
                return (yield from self._stats_of_owners(group, vbuckets))
            except BucketNotFound as error:
                moment = self.cluster.clock() + backoff.next_seconds()
                if moment >= until or not (yield from self.cluster.was_emptied(error, until)):
                    raise
            yield Ready((), moment)

    def _stats_of_owners(self, group: str, vbuckets: Collection[int] | None) -> Steps[dict[int, dict[str, str]]]:
        by_vbucket: dict[int, dict[str, str]] = {}
        cluster_map = self.cluster.map
        owners = {vb: cluster_map.owner(vb) for vb in vbuckets or ()}
        single = [(owner, f"{group} {vb}") for vb, owner in sorted(owners.items()) if owner is not None]
        for address, group_ in single if vbuckets is not None else [(owner, group) for owner in cluster_map.owning]:
            for line, value in (yield from self._stats_of(address, group_)).items():
                vbucket, _, name = line.removeprefix("vb_").partition(":")
                if vbucket.isdecimal() and cluster_map.owner(int(vbucket)) == address:
                    by_vbucket.setdefault(int(vbucket), {})[name] = value
        return by_vbucket

    def _stats_of(self, address: Address, group: str) -> Steps[dict[str, str]]:
        link = yield from self.cluster.link(address)
        request = bootstrap.Stat(key=group.encode()).frame()
        frames = yield from link.call_until(request, _ends_stats, self.cluster.deadline())
        if frames[-1].status:
            raise refused(f'stats "{group}" of {address}', frames[-1])
        if len(frames) > STATS_MAX:
            raise RemoteProtocolError(f"STAT (opcode 0x10): more than {STATS_MAX} statistics")
        return {frame.key.decode(errors="replace"): frame.value.decode(errors="replace") for frame in frames[:-1]}

    def failover_log(self, vbucket: int) -> Steps[list[tuple[int, int]]]:
        """Return the failover log of a vbucket, newest history first, as (vb uuid, seqno)."""
        check_vbuckets(self.cluster, [vbucket])
        request = admin.GetFailoverLog(vbucket=vbucket).frame()
        answer = yield from self.cluster.call(vbucket, request, "failover log", reads=True)
        return admin.GetFailoverLogResponse.decode(answer).failover_log

    def set_vbucket_state(self, vbucket: int, state: State | str) -> Steps[None]:
        """Set the state of a vbucket on the node that the map names for it (or on the only node)."""
        request = admin.SetVbucket(vbucket=unsigned("vbucket", vbucket, 0xFFFF), state=as_state(state))
        yield from self._administer(request, "set the state of", Done)

    def get_vbucket_state(self, vbucket: int) -> Steps[State]:
        """Return the state of a vbucket on its node."""
        request = admin.GetVbucket(vbucket=unsigned("vbucket", vbucket, 0xFFFF))
        answer = yield from self._administer(request, "get the state of", admin.GetVbucketResponse)
        return State(answer.state)

    def delete_vbucket(self, vbucket: int) -> Steps[None]:
        """Delete a vbucket and everything in it."""
        request = admin.DelVbucket(vbucket=unsigned("vbucket", vbucket, 0xFFFF))
        yield from self._administer(request, "delete", Done)

    def _administer(self, request: Request, action: str, answer: type[Answered]) -> Steps[Answered]:
        """Send a request to the vbucket's node in the map. NOT_MY_VBUCKET is raised here; no other node is tried."""
        owner = self.cluster.map.owner(request.vbucket) or self.cluster.map.servers[0]
        link = yield from self.cluster.link(owner)
        frame = yield from link.call(request.frame(), self.cluster.deadline())
        if frame.status:
            raise refused(f"{action} vbucket {request.vbucket} on {owner}", frame)
        return answer.decode(frame)


def as_state(state: State | str) -> State:
    """Return a vbucket state by its name or number.

    Raises:
        OptionError: there is no such state.
    """
    try:
        return State[state.upper()] if isinstance(state, str) else State(state)
    except (KeyError, ValueError):
        raise OptionError("state", state, "active, replica, pending or dead") from None


def document(key: bytes, answer: documents.GetResponse) -> Document:
    """Return the document of a node's answer."""
    return Document(key, answer.value, answer.cas, answer.flags, answer.datatype)


def _ends_stats(frame: Frame) -> bool:
    """Return True for the last answer to STAT: one without key and value, or a failure (kv.md 1.7)."""
    return bool(frame.status) or not (frame.key or frame.value)
