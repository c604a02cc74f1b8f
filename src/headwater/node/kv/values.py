"""Values in the stored form, and in the form that a connection has negotiated (wire.md 4 and 5).

Values are stored as received: a compressed value stays compressed, and extended attributes stay in front of the body.
Only the JSON bit is set by the node. A reader that has not negotiated compression or JSON gets the value inflated, or
without the JSON bit. GET never returns attributes: the SDKs negotiate them for sub-documents only, and would mistake
them for the body. Streams send attributes, and sub-document commands read them.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from headwater.errors import RemoteProtocolError
from headwater.kernels.json import SCRATCH_BYTES, valid
from headwater.node.refused import CommandRefused
from headwater.wire import snappy, xattr
from headwater.wire.datatype import Datatype
from headwater.wire.features import Feature
from headwater.wire.header import VALUE_BYTES_MAX
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.storage.records import StoredDocument

# Plain numbers, because combining an enum's flags takes longer than all other work with them here.
_JSON, _SNAPPY, _XATTR = int(Datatype.JSON), int(Datatype.SNAPPY), int(Datatype.XATTR)

Value = TypeVar("Value", bytes, memoryview)

_scratch = np.zeros(SCRATCH_BYTES, np.uint8)


def is_json(value: bytes | memoryview) -> bool:
    """Return True if the bytes are one JSON text."""
    return bool(value) and bool(valid(np.frombuffer(value, np.uint8), _scratch))


def inflate(value: bytes, datatype: int) -> bytes:
    """Return the value, inflated if its datatype says that it is compressed.

    Raises:
        CommandRefused: EINVAL if the value can't be inflated, E2BIG if it is too large when inflated.
    """
    return bytes(_inflated_value(value)) if datatype & _SNAPPY else value


def _inflated_value(value: bytes) -> memoryview:
    """Inflate a compressed value without a further copy of the result, which takes milliseconds for 20 MiB."""
    try:
        size = snappy.inflated_size(value)
        # The claimed size is checked before memory is allocated.
        if size > VALUE_BYTES_MAX:
            raise CommandRefused(Status.E2BIG, f"the value inflates to {size} bytes, {VALUE_BYTES_MAX} are allowed")
        return snappy.inflated(value)
    except RemoteProtocolError as bad:
        raise CommandRefused(Status.EINVAL, str(bad)) from None


def inflated_bytes(document: StoredDocument) -> int:
    """Return the size in bytes of a stored document's value when it is inflated.

    Raises:
        CommandRefused: EINVAL, the value can't be inflated, because a producer has sent an invalid one.
    """
    value = document.value
    if not document.datatype & _SNAPPY:
        return len(value)
    try:
        return snappy.inflated_size(value)
    except RemoteProtocolError as bad:
        raise CommandRefused(Status.EINVAL, str(bad)) from None


def split_body(value: bytes, datatype: int) -> tuple[bytes, bytes]:
    """Return (section of attributes with its length in front, body) of an uncompressed value."""
    if not datatype & _XATTR:
        return b"", value
    _, body = _split(value)
    return value[: len(value) - len(body)], body


def _split(value: Value) -> tuple[dict[str, bytes], Value]:
    try:
        return xattr.split(value, xattr.PAIRS_MAX)
    except RemoteProtocolError as bad:
        raise CommandRefused(Status.XATTR_EINVAL, str(bad)) from None


def check_attributes(value: Value) -> Value:
    """Check the attributes of an incoming value against wire.md 9; return the body after them.

    Raises:
        CommandRefused: XATTR_EINVAL for a name that looks like a computed attribute's; E2BIG for more than 1 MiB of
            system attributes, which a deletion would keep.
    """
    pairs, body = _split(value)
    virtual = next((key for key in pairs if key.startswith("$")), None)
    if virtual is not None:
        raise CommandRefused(
            Status.XATTR_EINVAL, f"attribute {virtual!r}: keys that begin with '$' are made, never stored"
        )
    section = xattr.join_system(pairs)
    if len(section) > xattr.SYSTEM_BYTES_MAX:
        raise CommandRefused(
            Status.E2BIG, f"system attributes of {len(section)} bytes, {xattr.SYSTEM_BYTES_MAX} are allowed"
        )
    return body


def accepted(value: bytes, datatype: int) -> int:
    """Check an incoming value; return the datatype to store, with the JSON bit set if the value is JSON.

    Raises:
        CommandRefused: the value can't be inflated, or its attributes are invalid.
    """
    inflated = _inflated_value(value) if datatype & _SNAPPY else memoryview(value)
    body = check_attributes(inflated) if datatype & _XATTR else inflated
    # "The server determines the JSON bit itself, ignoring what the client said" (wire 4).
    bits = datatype & (_SNAPPY | _XATTR)
    return bits | (_JSON if is_json(body) else 0)


def representation(document: StoredDocument, features: AbstractSet[int]) -> tuple[bytes, int]:
    """Return (value, datatype) of a stored document for a connection with these features."""
    value, datatype = document.value, document.datatype
    strips = datatype & _XATTR
    if datatype & _SNAPPY and (strips or Feature.SNAPPY not in features):
        value, datatype = inflate(value, datatype), datatype & ~_SNAPPY
    if strips:
        value, datatype = split_body(value, datatype)[1], datatype & ~_XATTR
    if Feature.JSON not in features:
        datatype &= ~_JSON
    return value, int(datatype)


def body_of(document: StoredDocument) -> tuple[bytes, bytes]:
    """Return (section of attributes, body) of a stored document, uncompressed."""
    return split_body(inflate(document.value, document.datatype), document.datatype)


def system_attributes(document: StoredDocument) -> bytes:
    """Return the value of a document's tombstone: its system attributes, or empty (wire.md 9)."""
    section = attributes_of(document)
    return xattr.only_system(section) if section else b""


def attributes_of(document: StoredDocument) -> bytes:
    """Return the section of a stored document's attributes, with its length in front.

    The result is empty if the value is invalid (a producer may have sent it), because an error would make it impossible
    to delete or replace the document.
    """
    if not document.datatype & _XATTR:
        return b""
    try:
        return body_of(document)[0]
    except CommandRefused:
        return b""
