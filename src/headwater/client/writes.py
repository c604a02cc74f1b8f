"""Upserts and deletions of all kinds in one pipelined run: each write with its own flags, expiry, CAS or metadata.

A `Write` is an application's request; a `WriteWithMeta` is a document from another bucket with its revision and CAS,
which the server accepts only if it is newer than its own (kv.md 2, conflict resolution).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from headwater.client.bulk import BulkItem, BulkWriter
from headwater.client.cluster import Cluster
from headwater.client.collections import CollectionId
from headwater.client.durability import DurabilityChoice
from headwater.client.kv import U32_MAX, U64_MAX, Expiry, Value, as_expiry, as_key, as_value, unsigned
from headwater.errors import OptionError, StatusError
from headwater.transport.waiting import Steps
from headwater.wire.documents import Delete, Set
from headwater.wire.layout import Request
from headwater.wire.meta import DelWithMeta, MetaOption, SetWithMeta

# Requests are put together by the thousand, so none is made as an object. With-meta extras have several lengths; this
# is the one with options (kv.md 2): flags, expiry, revision, CAS, options. A test compares it with the declaration.
_SET, _META = Set.layout.extras_struct, SetWithMeta.layout.struct_of(28)


def _quiet_opcode(request: type[Request]) -> int:
    code = request.layout.quiet
    assert code is not None, "each of these has a quiet form"  # noqa: S101
    return int(code)


_SETQ, _DELETEQ, _SETQ_META, _DELETEQ_META = map(_quiet_opcode, (Set, Delete, SetWithMeta, DelWithMeta))


@dataclass(frozen=True, slots=True)
class Write:
    """A document to store, or to delete.

    Args:
        key: 1 to 250 bytes.
        value: None deletes.
        flags: the application's own 32 bits.
        expiry: as `Client.set`; 0 is never. Deletions have none.
        cas: write only over this version; 0 for any version.
    """

    key: str | bytes
    value: Value | None
    flags: int = 0
    expiry: Expiry = 0
    cas: int = 0

    def item(self, place: int) -> BulkItem:
        """Return the request; OptionError if it is impossible."""
        key, cas = as_key(self.key), unsigned("cas", self.cas, U64_MAX)
        if self.value is None:
            return BulkItem(key, opcode=_DELETEQ, cas=cas, place=place, stands_alone=not cas)
        extras = _SET.pack(unsigned("flags", self.flags, U32_MAX), as_expiry(self.expiry))
        return BulkItem(key, extras, as_value(self.value), _SETQ, cas, place=place, stands_alone=not cas)


@dataclass(frozen=True, slots=True)
class WriteWithMeta:
    """A document, or a deletion, as it is in another bucket.

    Args:
        value: None for a deletion. Of a deletion's value only extended attributes are kept, if `datatype` has bit 4.
        expiry: Unix seconds, 0 is never; of a deletion its time.
        cas, rev_seqno: those of the other bucket. The version with the higher (rev_seqno, cas) wins; KeyExists if that
            is the version already here.
        datatype: bit 4: `value` begins with extended attributes; needs a client that was connected with `xattrs`.
        deletes: True for a deletion whose `value` holds attributes; a `value` of None is a deletion anyway.
        expired: True for the deletion of a document that expired.
        force: True to win against any version.
    """

    key: str | bytes
    value: Value | None
    flags: int
    expiry: int
    cas: int
    rev_seqno: int
    datatype: int = 0
    deletes: bool = False
    expired: bool = False
    force: bool = False

    def item(self, place: int) -> BulkItem:
        """Return the request; OptionError if it is impossible."""
        deletes = self.deletes or self.value is None
        options = MetaOption.FORCE * self.force | MetaOption.IS_EXPIRATION * (self.expired and deletes)
        extras = _META.pack(
            unsigned("flags", self.flags, U32_MAX),
            unsigned("expiry", self.expiry, U32_MAX),
            unsigned("rev_seqno", self.rev_seqno, U64_MAX),
            unsigned("cas", self.cas, U64_MAX),
            options,
        )
        code = _DELETEQ_META if deletes else _SETQ_META
        value = b"" if self.value is None else as_value(self.value)
        # By force a write with metadata replaces any version, and only then makes an earlier one of its key void.
        return BulkItem(as_key(self.key), extras, value, code, 0, self.datatype, place, self.force, has_meta=True)


Failed: TypeAlias = dict[int, StatusError | OptionError]
"""Failures by the place of the write."""


def write_many(
    cluster: Cluster,
    writes: Iterable[Write | WriteWithMeta],
    collection: CollectionId | None = None,
    durability: DurabilityChoice = None,
) -> Steps[Failed]:
    """Carry out writes; return the failures, including KeyNotFound of deletions and impossible requests."""
    impossible: Failed = {}

    def items() -> Iterator[BulkItem]:
        for place, write in enumerate(writes):
            try:
                if durability is not None and isinstance(write, WriteWithMeta):
                    raise OptionError("durability", durability, "None for a write with metadata: it is no durable one")
                yield write.item(place)
            except OptionError as error:
                impossible[place] = error

    writer = BulkWriter(cluster, Set, collection, durability)
    yield from writer.run(items())
    return impossible | writer.failed
