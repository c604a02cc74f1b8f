"""Extended attributes in paths: stored attributes, computed attributes, and macros.

`$document`, `$vbucket` and `$XTOC` are computed when they are read. A macro is a value that the node replaces:
`"${Mutation.CAS}"` is stored as the CAS of the change that stores it. Source: specification, kv.md 6.4.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

from headwater.kernels.crc import crc32c
from headwater.node.kv.subdoc.path import Path
from headwater.node.refused import CommandRefused
from headwater.node.storage.records import StoredDocument
from headwater.wire.datatype import Datatype
from headwater.wire.status import Status
from headwater.wire.xattr import XATTR_KEY_BYTES_MAX


class ChangeNumbers(NamedTuple):
    """The CAS and seqno of a change in progress, and the new body, from which macros compute its checksum."""

    cas: int
    seqno: int
    body: bytes = b""


def name_of(path: Path) -> str:
    """Return the attribute's name, the first component of a path.

    Raises:
        CommandRefused: XATTR_EINVAL for an impossible name, SUBDOC_XATTR_UNKNOWN_VATTR for an unknown computed
            attribute.
    """
    name = path[0] if path else ""
    if not isinstance(name, str) or not 1 <= len(name.encode()) <= XATTR_KEY_BYTES_MAX or "\0" in name:
        raise CommandRefused(Status.XATTR_EINVAL, f"an attribute's name has 1 to {XATTR_KEY_BYTES_MAX} bytes, none 0")
    if name.startswith("$") and name not in ("$document", "$vbucket", "$XTOC"):
        raise CommandRefused(Status.SUBDOC_XATTR_UNKNOWN_VATTR, f"there is no {name}")
    return name


def document_attribute(document: StoredDocument, body: bytes, vb_uuid: int) -> str:
    """Return `$document`: the metadata of a document."""
    attribute = {
        "CAS": _hex(document.cas),
        "datatype": _datatypes(document.datatype),
        "deleted": document.deleted,
        "exptime": document.expiry,
        "flags": document.flags,
        "last_modified": str(document.cas // 1_000_000_000),
        "revid": str(document.rev_seqno),
        "seqno": _hex(document.seqno),
        "value_bytes": len(body),
        "value_crc32c": _crc(body),
        "vbucket_uuid": _hex(vb_uuid),
    }
    return json.dumps(attribute)


def vbucket_attribute(now_seconds: int) -> str:
    """Return `$vbucket`: the clock from which CAS values come."""
    return json.dumps({"HLC": {"now": str(now_seconds), "mode": "real"}})


def contents_attribute(names: Iterable[str]) -> str:
    """Return `$XTOC`: the names of the stored attributes."""
    return json.dumps(list(names))


def _datatypes(datatype: int) -> list[str]:
    names = [each.name.lower() for each in Datatype if datatype & each and each.name]
    return names or ["raw"]


def _hex(number: int) -> str:
    return f"0x{number:016x}"


def _crc(body: bytes) -> str:
    return f"0x{crc32c(body):08x}"


def needs_body(value: bytes) -> bool:
    """Return True if a macro can only be expanded once the new body is known."""
    return b"crc32c" in value


def expanded(value: bytes, change: ChangeNumbers, old: StoredDocument | None) -> bytes:
    """Return the expansion of a macro, as JSON.

    `${Mutation.CAS}` is the CAS as hex digits in little-endian order, for compatibility. `${$document...}` is a value
    of `$document` before the change.

    Args:
        value: the macro.
        change: the numbers of the change that stores the expansion.
        old: the document before the change; None if there is none.

    Raises:
        CommandRefused: SUBDOC_XATTR_UNKNOWN_MACRO, the value is no known macro.
    """
    macros = {
        b'"${Mutation.CAS}"': f"0x{change.cas.to_bytes(8, 'little').hex()}",
        b'"${Mutation.seqno}"': _hex(change.seqno),
        b'"${Mutation.value_crc32c}"': _crc(change.body),
    }
    if value in macros:
        return json.dumps(macros[value]).encode()
    if old is not None and value.startswith(b'"${$document') and value.endswith(b'}"'):
        return _of_document(value[3:-2].decode(errors="replace"), old)
    raise CommandRefused(Status.SUBDOC_XATTR_UNKNOWN_MACRO, f"{value[:60]!r} is no macro")


def _of_document(path: str, old: StoredDocument) -> bytes:
    values = {
        "$document.CAS": _hex(old.cas),
        "$document.exptime": old.expiry,
        "$document.flags": old.flags,
        "$document.revid": str(old.rev_seqno),
        "$document.seqno": _hex(old.seqno),
    }
    if path not in values:
        raise CommandRefused(Status.SUBDOC_XATTR_UNKNOWN_MACRO, f"there is no macro {path!r}")
    return json.dumps(values[path]).encode()
