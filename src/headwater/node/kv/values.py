"""Values as they are stored and as a connection may see them (wire.md 4 and 5).

Stored as received: a compressed value stays compressed, extended attributes stay in front of the body. The JSON bit
is ours to decide. What the reader did not negotiate is taken away: compression undone, attributes stripped, the JSON
bit dropped.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

import numpy as np

from headwater.errors import RemoteProtocolError
from headwater.kernels.json import SCRATCH_BYTES, valid
from headwater.node.kv.command import Refused
from headwater.wire import snappy, xattr
from headwater.wire.datatype import Datatype
from headwater.wire.features import Feature
from headwater.wire.header import VALUE_BYTES_MAX
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.storage.records import Document

_scratch = np.zeros(SCRATCH_BYTES, np.uint8)


def is_json(value: bytes) -> bool:
    """Whether the bytes are one JSON text."""
    return bool(value) and bool(valid(np.frombuffer(bytearray(value), np.uint8), _scratch))


def inflate(value: bytes, datatype: int) -> bytes:
    """The value without its compression. Refused with EINVAL when it does not inflate, E2BIG when to more than fits."""
    if not datatype & Datatype.SNAPPY:
        return value
    try:
        size = snappy.inflated_size(value)
        if size > VALUE_BYTES_MAX:
            raise Refused(Status.E2BIG, f"the value inflates to {size} bytes, {VALUE_BYTES_MAX} are allowed")
        return snappy.inflate(value)
    except RemoteProtocolError as bad:
        raise Refused(Status.EINVAL, str(bad)) from None


def split_body(value: bytes, datatype: int) -> tuple[bytes, bytes]:
    """(extended attributes with their length in front, body) of an inflated value."""
    if not datatype & Datatype.XATTR:
        return b"", value
    try:
        _, body = xattr.split(value)
    except RemoteProtocolError as bad:
        raise Refused(Status.XATTR_EINVAL, str(bad)) from None
    return value[: len(value) - len(body)], body


def accepted(value: bytes, datatype: int) -> int:
    """The datatype to store an incoming value with: checked, and with the JSON bit decided here."""
    _, body = split_body(inflate(value, datatype), datatype)
    kept = datatype & (Datatype.SNAPPY | Datatype.XATTR)
    return kept | (Datatype.JSON if is_json(body) else 0)


def shown(document: Document, features: AbstractSet[int]) -> tuple[bytes, int]:
    """(value, datatype) of a stored document for a connection with these features."""
    value, datatype = document.value, document.datatype
    strips = datatype & Datatype.XATTR and Feature.XATTR not in features
    if datatype & Datatype.SNAPPY and (strips or Feature.SNAPPY not in features):
        value, datatype = inflate(value, datatype), datatype & ~Datatype.SNAPPY
    if strips:
        value, datatype = split_body(value, datatype)[1], datatype & ~Datatype.XATTR
    if Feature.JSON not in features:
        datatype &= ~Datatype.JSON
    return value, int(datatype)


def body_of(document: Document) -> tuple[bytes, bytes]:
    """(extended attributes, body) of a stored document, inflated."""
    return split_body(inflate(document.value, document.datatype), document.datatype)


def system_attributes(document: Document) -> bytes:
    """What a deletion keeps of a document: its system attributes, or nothing (wire.md 9)."""
    section, _ = body_of(document)
    return xattr.only_system(section) if section else b""
