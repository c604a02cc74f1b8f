"""The key-value operations, once for the blocking and the asyncio client.

Each is a step generator over `Cluster.call`, which routes by the key's vbucket and retries what may be retried. Keys
are text or bytes; what comes back is bytes. A CAS of 0 means "whatever is there". Times are seconds: up to 30 days from
now, above that Unix time; 0 is never (wire.md 10). Source: kv.md 2 and 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from headwater.client.cluster import Cluster
from headwater.client.routing import Address
from headwater.errors import OptionError, RemoteProtocolError
from headwater.protocol.handshake import refused, request
from headwater.transport.waiting import Steps
from headwater.wire.header import KEY_BYTES_MAX, VALUE_BYTES_MAX, Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.vbucket import State

FLAGS_EXPIRY = Struct(">II")
COUNTER = Struct(">QQI")
LOG_ENTRY = Struct(">QQ")
NO_CREATE = 0xFFFF_FFFF
STATS_MAX = 1_000_000
U32_MAX, U64_MAX = 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF


@dataclass(frozen=True, slots=True)
class Document:
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


class Observed(NamedTuple):
    """What a node knows of a key: `state` 0 in memory, 1 persisted, 0x80 not found, 0x81 deleted, not persisted."""

    state: int
    cas: int


def as_key(key: str | bytes) -> bytes:
    """Return the key as bytes.

    Raises:
        OptionError: it is empty or longer than 250 bytes.
    """
    data = key.encode() if isinstance(key, str) else bytes(key)
    if not 0 < len(data) <= KEY_BYTES_MAX:
        raise OptionError("key", data[:40], f"1 to {KEY_BYTES_MAX} bytes (it has {len(data)})")
    return data


def as_value(value: str | bytes) -> bytes:
    """Return the value as bytes.

    Raises:
        OptionError: it is larger than 20 MiB.
    """
    data = value.encode() if isinstance(value, str) else bytes(value)
    if len(data) > VALUE_BYTES_MAX:
        raise OptionError("value", f"{len(data)} bytes", f"at most {VALUE_BYTES_MAX} bytes")
    return data


def unsigned(name: str, number: int, highest: int) -> int:
    """Return the number if it fits.

    Raises:
        OptionError: it does not.
    """
    if not 0 <= number <= highest:
        raise OptionError(name, number, f"a number from 0 to {highest}")
    return number


class Operations:
    """What a client can do with documents and vbuckets; all methods return steps."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def _call(self, opcode: int, key: bytes, *, extras: bytes = b"", value: bytes = b"", cas: int = 0) -> Steps[Frame]:
        vbucket = self.cluster.map.vbucket_of(key)
        unsigned("cas", cas, U64_MAX)
        asked = Frame(0x80, opcode, key, extras, value, vbucket=vbucket, cas=cas)
        what = f'{Opcode(opcode).name.lower()} "{key.decode(errors="backslashreplace")}"'
        return self.cluster.call(vbucket, asked, what, reads=opcode == Opcode.GET)

    # ------------------------------------------------------------------ documents

    def get(self, key: str | bytes) -> Steps[Document]:
        """Read a document."""
        name = as_key(key)
        return _document(name, (yield from self._call(Opcode.GET, name)))

    def gat(self, key: str | bytes, expiry: int) -> Steps[Document]:
        """Read a document and give it a new expiry."""
        name = as_key(key)
        extras = unsigned("expiry", expiry, U32_MAX).to_bytes(4)
        return _document(name, (yield from self._call(Opcode.GAT, name, extras=extras)))

    def store(
        self, opcode: int, key: str | bytes, value: str | bytes, *, flags: int, expiry: int, cas: int = 0
    ) -> Steps[int]:
        """SET, ADD or REPLACE; returns the new CAS."""
        extras = FLAGS_EXPIRY.pack(unsigned("flags", flags, U32_MAX), unsigned("expiry", expiry, U32_MAX))
        answer = yield from self._call(opcode, as_key(key), extras=extras, value=as_value(value), cas=cas)
        return answer.cas

    def extend(self, opcode: int, key: str | bytes, value: str | bytes, cas: int) -> Steps[int]:
        """APPEND or PREPEND; returns the new CAS."""
        answer = yield from self._call(opcode, as_key(key), value=as_value(value), cas=cas)
        return answer.cas

    def delete(self, key: str | bytes, cas: int) -> Steps[int]:
        """Delete a document; returns the CAS of the deletion."""
        answer = yield from self._call(Opcode.DELETE, as_key(key), cas=cas)
        return answer.cas

    def count(self, opcode: int, key: str | bytes, delta: int, initial: int | None, expiry: int) -> Steps[int]:
        """INCREMENT or DECREMENT; returns the new number."""
        created = (0, NO_CREATE) if initial is None else (unsigned("initial", initial, U64_MAX), expiry)
        extras = COUNTER.pack(unsigned("delta", delta, U64_MAX), created[0], unsigned("expiry", created[1], U32_MAX))
        answer = yield from self._call(opcode, as_key(key), extras=extras)
        if len(answer.value) != 8:
            raise RemoteProtocolError(
                f"opcode 0x{opcode:02x}: the new number comes in {len(answer.value)} bytes, expected 8"
            )
        return int.from_bytes(answer.value)

    def touch(self, key: str | bytes, expiry: int) -> Steps[int]:
        """Give a document a new expiry; returns its CAS."""
        extras = unsigned("expiry", expiry, U32_MAX).to_bytes(4)
        answer = yield from self._call(Opcode.TOUCH, as_key(key), extras=extras)
        return answer.cas

    def observe(self, key: str | bytes) -> Steps[Observed]:
        """Ask the active node whether a key is persisted."""
        name = as_key(key)
        vbucket = self.cluster.map.vbucket_of(name)
        record = vbucket.to_bytes(2) + len(name).to_bytes(2) + name
        asked = request(Opcode.OBSERVE, value=record, vbucket=vbucket)
        answer = yield from self.cluster.call(vbucket, asked, "observe", reads=True)
        if len(answer.value) != len(record) + 9 or not answer.value.startswith(record):
            raise RemoteProtocolError(f"OBSERVE (opcode 0x92): {len(answer.value)} bytes for one key of {len(name)}")
        return Observed(answer.value[-9], int.from_bytes(answer.value[-8:]))

    # ------------------------------------------------------------------ nodes and vbuckets

    def ask_all(self, opcode: int) -> Steps[list[Frame]]:
        """Send an empty request to every node; returns their answers."""
        answers = []
        for address in self.cluster.map.nodes:
            link = yield from self.cluster.link(address)
            answer = yield from link.call(request(opcode), self.cluster.deadline())
            if answer.status:
                raise refused(f"{Opcode(opcode).name.lower()} of {address}", answer)
            answers.append(answer)
        return answers

    def version(self) -> Steps[str]:
        """Return the version of the first node."""
        answers = yield from self.ask_all(Opcode.VERSION)
        return answers[0].value.decode(errors="replace")

    def noop(self) -> Steps[None]:
        """Make sure that every node answers."""
        yield from self.ask_all(Opcode.NOOP)

    def stats(self, group: str) -> Steps[dict[str, str]]:
        """Return a group of statistics, of all nodes together; a later node's numbers replace an earlier one's."""
        found: dict[str, str] = {}
        for address in self.cluster.map.nodes:
            found |= yield from self._stats_of(address, group)
        return found

    def vbucket_stats(self, group: str) -> Steps[dict[int, dict[str, str]]]:
        """Return a group of statistics that has lines "vb_N:name", by vbucket, each from the node that owns it."""
        found: dict[int, dict[str, str]] = {}
        asked = self.cluster.map
        for address in asked.owning:
            for line, told in (yield from self._stats_of(address, group)).items():
                vbucket, _, name = line.removeprefix("vb_").partition(":")
                if vbucket.isdecimal() and asked.owner(int(vbucket)) == address:
                    found.setdefault(int(vbucket), {})[name] = told
        return found

    def _stats_of(self, address: Address, group: str) -> Steps[dict[str, str]]:
        link = yield from self.cluster.link(address)
        asked = request(Opcode.STAT, group.encode())
        frames = yield from link.call_until(asked, _ends_stats, self.cluster.deadline())
        if frames[-1].status:
            raise refused(f'stats "{group}" of {address}', frames[-1])
        if len(frames) > STATS_MAX:
            raise RemoteProtocolError(f"STAT (opcode 0x10): more than {STATS_MAX} statistics")
        return {frame.key.decode(errors="replace"): frame.value.decode(errors="replace") for frame in frames[:-1]}

    def failover_log(self, vbucket: int) -> Steps[list[tuple[int, int]]]:
        """Return the failover log of a vbucket, newest history first, as (vb uuid, seqno)."""
        unsigned("vbucket", vbucket, 0xFFFF)
        asked = request(Opcode.GET_FAILOVER_LOG, vbucket=vbucket)
        answer = yield from self.cluster.call(vbucket, asked, "failover log", reads=True)
        return read_log(answer)

    def set_vbucket_state(self, vbucket: int, state: State | str) -> Steps[None]:
        """Set the state of a vbucket on the node that the map names for it (or on the only node)."""
        extras = as_state(state).to_bytes(1)
        yield from self._administer(Opcode.SET_VBUCKET, vbucket, "set the state of", extras)

    def get_vbucket_state(self, vbucket: int) -> Steps[State]:
        """Return the state of a vbucket on its node."""
        answer = yield from self._administer(Opcode.GET_VBUCKET, vbucket, "get the state of")
        if len(answer.value) != 4 or int.from_bytes(answer.value) not in set(State):
            raise RemoteProtocolError(f"GET_VBUCKET (opcode 0x3e): state {answer.value[:8].hex()}, expected 1 to 4")
        return State(int.from_bytes(answer.value))

    def delete_vbucket(self, vbucket: int) -> Steps[None]:
        """Delete a vbucket and everything in it."""
        yield from self._administer(Opcode.DEL_VBUCKET, vbucket, "delete")

    def _administer(self, opcode: int, vbucket: int, what: str, extras: bytes = b"") -> Steps[Frame]:
        """Ask the node of a vbucket; NOT_MY_VBUCKET is an answer here, not a reason to look elsewhere."""
        unsigned("vbucket", vbucket, 0xFFFF)
        owner = self.cluster.map.owner(vbucket) or self.cluster.map.nodes[0]
        link = yield from self.cluster.link(owner)
        asked = request(opcode, extras=extras, vbucket=vbucket)
        answer = yield from link.call(asked, self.cluster.deadline())
        if answer.status:
            raise refused(f"{what} vbucket {vbucket} on {owner}", answer)
        return answer


def read_log(answer: Frame) -> list[tuple[int, int]]:
    """Return the (vb uuid, seqno) pairs of an answer to GET_FAILOVER_LOG, newest history first."""
    if not answer.value or len(answer.value) % LOG_ENTRY.size:
        raise RemoteProtocolError(
            f"GET_FAILOVER_LOG (opcode 0x96): {len(answer.value)} bytes, expected 16 for each entry"
        )
    return list(LOG_ENTRY.iter_unpack(answer.value))


def as_state(state: State | str) -> State:
    """Return a vbucket state by its name or number.

    Raises:
        OptionError: there is no such state.
    """
    try:
        return State[state.upper()] if isinstance(state, str) else State(state)
    except (KeyError, ValueError):
        raise OptionError("state", state, "active, replica, pending or dead") from None


def _document(key: bytes, answer: Frame) -> Document:
    if len(answer.extras) != 4:
        raise RemoteProtocolError(f"GET (opcode 0x00): extras are {len(answer.extras)} bytes, expected 4")
    return Document(key, answer.value, answer.cas, int.from_bytes(answer.extras), answer.datatype)


def _ends_stats(frame: Frame) -> bool:
    """STAT answers end with one that has neither key nor value, or with a failure (kv.md 1.7)."""
    return bool(frame.status) or not (frame.key or frame.value)
