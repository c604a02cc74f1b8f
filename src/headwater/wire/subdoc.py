"""Sub-documents: parts of a JSON document, or of its extended attributes, by path.

A request names one path, or up to 16 in `specs`. `path_bytes` is the length of the path in the value; the value to
store follows it. A path with the flag `XATTR` leads into an attribute, named by the first part of the path. Answers to
several paths have a status for each; the answer's own status is SUBDOC_MULTI_PATH_FAILURE if any of them failed.
Operations on a tombstone (`ACCESS_DELETED`) are answered with SUBDOC_SUCCESS_DELETED instead of SUCCESS. Source:
specification, kv.md 6.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag
from struct import Struct
from typing import Annotated, Any, ClassVar

from headwater.wire.codec import NUMBERS
from headwater.wire.documents import Stored
from headwater.wire.layout import ANY_STATUS, OPTIONAL, REQUIRED, VALUE, Answer, Request, about, u8, u16, u32
from headwater.wire.opcodes import Opcode
from headwater.wire.privilege import READ, WRITE
from headwater.wire.status import Status

__all__ = ["PATH_BYTES_MAX", "PATH_DEPTH_MAX", "RESULT_BYTES", "SPECS_MAX", "SPEC_BYTES", "DocumentFlag"]
__all__ += ["LookupSpec", "MutationSpec", "PathFlag", "SubdocArrayAddUnique", "SubdocArrayInsert"]
__all__ += ["SubdocArrayPushFirst", "SubdocArrayPushLast", "SubdocCounter", "SubdocDelete", "SubdocDictAdd"]
__all__ += ["SubdocDictUpsert", "SubdocExists", "SubdocGet", "SubdocGetCount", "SubdocLookup", "SubdocMultiLookup"]
__all__ += ["SubdocMultiLookupResponse", "SubdocMultiMutation", "SubdocMultiStored", "SubdocMutation"]
__all__ += ["SubdocPathFailure", "SubdocReplace", "SubdocStored", "SubdocValue"]

_SPEC, _SPEC_WITH_VALUE = Struct(">BBH"), Struct(">BBHI")
_RESULT, _RESULT_WITH_INDEX = Struct(">HI"), Struct(">BHI")

SPEC_BYTES, RESULT_BYTES = _SPEC.size, _RESULT.size
"""Sizes of a lookup's spec without the path, and of a result without the value."""

PATH_BYTES_MAX, PATH_DEPTH_MAX = 1024, 32
SPECS_MAX = 16


class PathFlag(IntFlag):
    """Flags of a path."""

    MKDIR_P = 0x01  # make the dictionaries on the way
    XATTR = 0x04  # of an extended attribute
    EXPAND_MACROS = 0x10  # the value may be a macro; attributes only


class DocumentFlag(IntFlag):
    """Flags of the document, for all paths of a request."""

    MKDOC = 0x01  # make it if there is none
    ADD = 0x02  # make it, there must be none
    ACCESS_DELETED = 0x04  # a tombstone will do
    CREATE_AS_DELETED = 0x08  # what is made is a tombstone with attributes
    REVIVE_DOCUMENT = 0x10  # make the tombstone a document again


LookupSpec = tuple[int, int, bytes]
"""Opcode, PathFlag bits, path."""
MutationSpec = tuple[int, int, bytes, bytes]
"""Opcode, PathFlag bits, path, value."""


@dataclass(frozen=True, slots=True)
class Specs:
    """Paths up to the end of the value, each after its lengths. `has_value` is True if each has a value to store as
    well.
    """

    has_value: bool
    size: ClassVar[None] = None

    def write(self, value: Any) -> bytes:
        """Return the specs one after the other."""
        return b"".join(map(self._encoded, value))

    def _encoded(self, spec: Any) -> bytes:
        opcode, flags, *parts = spec
        lengths = NUMBERS[16].write(len(parts[0]))
        if self.has_value:
            lengths += NUMBERS[32].write(len(parts[1]))
        return NUMBERS[8].write(opcode) + NUMBERS[8].write(flags) + lengths + b"".join(parts)

    def read(self, data: bytes, at: int) -> tuple[list[Any], int]:
        """Return the specs, at most one more than SPECS_MAX."""
        head = _SPEC_WITH_VALUE if self.has_value else _SPEC
        specs: list[Any] = []
        while at < len(data) and len(specs) <= SPECS_MAX:
            if len(data) - at < head.size:
                raise ValueError(f"{head.size} bytes expected at offset {at} of {len(data)}")
            opcode, flags, *sizes = head.unpack_from(data, at)
            at += head.size
            if len(data) - at < sum(sizes):
                raise ValueError(f"path {len(specs) + 1}: {sum(sizes)} bytes expected at offset {at} of {len(data)}")
            parts = []
            for size in sizes:
                parts.append(data[at : at + size])
                at += size
            specs.append((opcode, flags, *parts))
        return specs, len(data)

    def __str__(self) -> str:
        lengths = "u16 path length, u32 value length, path, value" if self.has_value else "u16 path length, path"
        return f"n x (u8 opcode, u8 flags, {lengths})"


@dataclass(frozen=True, slots=True)
class Results:
    """A status and a value for each path, up to the end. `indexed` is True if only some paths have a result, with their
    index.
    """

    indexed: bool
    size: ClassVar[None] = None

    def write(self, value: Any) -> bytes:
        """Return the results one after the other."""
        if self.indexed:
            return b"".join(map(self._encoded, value))
        return b"".join([_RESULT.pack(status, len(part)) + part for status, part in value])

    def _encoded(self, result: Any) -> bytes:
        *numbers, part = result
        return _RESULT_WITH_INDEX.pack(*numbers, len(part)) + bytes(part)

    def read(self, data: bytes, at: int) -> tuple[list[Any], int]:
        """Return all results; a last one cut short is an error."""
        head = _RESULT_WITH_INDEX if self.indexed else _RESULT
        results: list[Any] = []
        while at < len(data):
            if len(data) - at < head.size:
                raise ValueError(f"{head.size} bytes expected at offset {at} of {len(data)}")
            *numbers, size = head.unpack_from(data, at)
            at += head.size
            if len(data) - at < size:
                raise ValueError(f"result {len(results) + 1}: {size} bytes expected at offset {at} of {len(data)}")
            results.append((*numbers, data[at : at + size]))
            at += size
        return results, at

    def __str__(self) -> str:
        return f"n x ({'u8 index, ' if self.indexed else ''}u16 status, u32 length, bytes)"


# --------------------------------------------------------------------------- looking up


class SubdocValue(Answer, status=ANY_STATUS, value=OPTIONAL):
    """The value at a path, as in the document; empty for EXISTS."""


class SubdocLookup(Request, privilege=READ, key=REQUIRED, value=OPTIONAL):
    """Asks for one path; the value is the path."""

    path_bytes: u16 = about("length of the path")
    flags: u8 = about("PathFlag bits", default=0)
    doc_flags: u8 | None = about("DocumentFlag bits", default=None)


class SubdocGet(SubdocLookup, opcode=Opcode.SUBDOC_GET, answer=SubdocValue):
    """Asks for the value at a path."""


class SubdocExists(SubdocLookup, opcode=Opcode.SUBDOC_EXISTS, answer=SubdocValue):
    """Asks whether there is a value at a path."""


class SubdocGetCount(SubdocLookup, opcode=Opcode.SUBDOC_GET_COUNT, answer=SubdocValue):
    """Asks for the number of members or elements at a path."""


class SubdocMultiLookupResponse(Answer, status=ANY_STATUS):
    """The values at the paths, in their order."""

    results: Annotated[list[tuple[int, bytes]], Results(indexed=False)] = about("status and value", place=VALUE)


class SubdocMultiLookup(
    Request,
    opcode=Opcode.SUBDOC_MULTI_LOOKUP,
    privilege=READ,
    key=REQUIRED,
    extras_bytes=(0, 1),
    answer=SubdocMultiLookupResponse,
):
    """Asks for up to 16 paths; the opcode of one is SUBDOC_GET, _EXISTS, _GET_COUNT, or GET for the whole body."""

    doc_flags: u8 | None = about("DocumentFlag bits", default=None)
    specs: Annotated[list[LookupSpec], Specs(has_value=False)] = about("the paths", place=VALUE)


# --------------------------------------------------------------------------- changing


class SubdocStored(Stored, status=ANY_STATUS, value=OPTIONAL):
    """The document was changed; the value is the sum of a counter."""


class SubdocMultiStored(Stored, status=ANY_STATUS):
    """The document was changed; each path with a result has an entry."""

    results: Annotated[list[tuple[int, int, bytes]], Results(indexed=True)] = about("sums of counters", place=VALUE)


class SubdocPathFailure(Answer, status=Status.SUBDOC_MULTI_PATH_FAILURE):
    """The document was not changed, because one of several paths could not be changed."""

    index: u8 = about("which path, from 0", place=VALUE)
    path_status: u16 = about("why", place=VALUE)


class SubdocMutation(
    Request, privilege=READ | WRITE, key=REQUIRED, value=REQUIRED, cas=True, extras_bytes=(3, 4, 7, 8)
):
    """Changes one path; the value is the path, then the value to store."""

    path_bytes: u16 = about("length of the path")
    flags: u8 = about("PathFlag bits", default=0)
    expiration: u32 | None = about("when the document runs out", default=None)
    doc_flags: u8 | None = about("DocumentFlag bits", default=None)


class SubdocDictAdd(SubdocMutation, opcode=Opcode.SUBDOC_DICT_ADD, answer=SubdocStored):
    """Adds a member; an error if it exists."""


class SubdocDictUpsert(SubdocMutation, opcode=Opcode.SUBDOC_DICT_UPSERT, answer=SubdocStored):
    """Adds or replaces a member."""


class SubdocDelete(SubdocMutation, opcode=Opcode.SUBDOC_DELETE, answer=SubdocStored):
    """Removes a member or an element."""


class SubdocReplace(SubdocMutation, opcode=Opcode.SUBDOC_REPLACE, answer=SubdocStored):
    """Replaces the value at a path."""


class SubdocArrayPushLast(SubdocMutation, opcode=Opcode.SUBDOC_ARRAY_PUSH_LAST, answer=SubdocStored):
    """Adds elements to the end of an array."""


class SubdocArrayPushFirst(SubdocMutation, opcode=Opcode.SUBDOC_ARRAY_PUSH_FIRST, answer=SubdocStored):
    """Adds elements to the start of an array."""


class SubdocArrayInsert(SubdocMutation, opcode=Opcode.SUBDOC_ARRAY_INSERT, answer=SubdocStored):
    """Inserts elements before the element at the path."""


class SubdocArrayAddUnique(SubdocMutation, opcode=Opcode.SUBDOC_ARRAY_ADD_UNIQUE, answer=SubdocStored):
    """Adds an element to an array of simple values unless the array contains it."""


class SubdocCounter(SubdocMutation, opcode=Opcode.SUBDOC_COUNTER, answer=SubdocStored):
    """Adds to a whole number; the value is the signed decimal difference."""


class SubdocMultiMutation(
    Request,
    opcode=Opcode.SUBDOC_MULTI_MUTATION,
    privilege=READ | WRITE,
    key=REQUIRED,
    cas=True,
    extras_bytes=(0, 1, 4, 5),
    answer=(SubdocMultiStored, SubdocPathFailure),
):
    """Changes up to 16 paths, all or none; attributes come first.

    The opcode of a path is one of the mutations above; for the whole body SET, ADD, DELETE or REPLACE_BODY_WITH_XATTR.
    """

    expiration: u32 | None = about("when the document runs out", default=None)
    doc_flags: u8 | None = about("DocumentFlag bits", default=None)
    specs: Annotated[list[MutationSpec], Specs(has_value=True)] = about("paths and values", place=VALUE)
