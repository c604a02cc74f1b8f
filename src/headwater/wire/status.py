"""The status of a response: bytes 6-7 of its header. Source: specification, wire.md 3."""

from __future__ import annotations

from enum import IntEnum

from headwater.errors import name_statuses

__all__ = ["BODIED", "Status", "name_of", "without_xerror"]


class Status(IntEnum):
    """Every status the specification names; 0xff00 to 0xffff belong to applications."""

    SUCCESS = 0x00
    KEY_ENOENT = 0x01
    KEY_EEXISTS = 0x02
    E2BIG = 0x03
    EINVAL = 0x04
    NOT_STORED = 0x05
    DELTA_BADVAL = 0x06
    NOT_MY_VBUCKET = 0x07
    NO_BUCKET = 0x08
    LOCKED = 0x09
    DCP_STREAM_NOT_FOUND = 0x0A
    OPAQUE_NO_MATCH = 0x0B
    EWOULD_THROTTLE = 0x0C
    ECONFIG_ONLY = 0x0D
    NOT_LOCKED = 0x0E
    CAS_VALUE_INVALID = 0x0F
    AUTH_STALE = 0x1F
    AUTH_ERROR = 0x20
    AUTH_CONTINUE = 0x21
    ERANGE = 0x22
    ROLLBACK = 0x23
    EACCESS = 0x24
    NOT_INITIALIZED = 0x25
    ENCRYPTION_KEY_NOT_AVAILABLE = 0x26
    CHECKSUM_MISMATCH = 0x27
    EXPIRY_OVERFLOW = 0x28
    LOCK_EXPIRY_OVERFLOW = 0x29
    RATE_LIMITED_NETWORK_INGRESS = 0x30
    RATE_LIMITED_NETWORK_EGRESS = 0x31
    RATE_LIMITED_MAX_CONNECTIONS = 0x32
    RATE_LIMITED_MAX_COMMANDS = 0x33
    BUCKET_SIZE_LIMIT_EXCEEDED = 0x35
    BUCKET_RESIDENT_RATIO_TOO_LOW = 0x36
    BUCKET_DATA_SIZE_TOO_BIG = 0x37
    BUCKET_DISK_SPACE_TOO_LOW = 0x38
    BUCKET_PAUSED = 0x50
    CANCELLED = 0x51
    UNKNOWN_FRAME_INFO = 0x80
    UNKNOWN_COMMAND = 0x81
    ENOMEM = 0x82
    NOT_SUPPORTED = 0x83
    EINTERNAL = 0x84
    EBUSY = 0x85
    ETMPFAIL = 0x86
    XATTR_EINVAL = 0x87
    UNKNOWN_COLLECTION = 0x88
    CANNOT_APPLY_COLLECTIONS_MANIFEST = 0x8A
    UNKNOWN_SCOPE = 0x8C
    DCP_STREAMID_INVALID = 0x8D
    DURABILITY_INVALID_LEVEL = 0xA0
    DURABILITY_IMPOSSIBLE = 0xA1
    SYNC_WRITE_IN_PROGRESS = 0xA2
    SYNC_WRITE_AMBIGUOUS = 0xA3
    SYNC_WRITE_RE_COMMIT_IN_PROGRESS = 0xA4
    RANGE_SCAN_CANCELLED = 0xA5
    RANGE_SCAN_MORE = 0xA6
    RANGE_SCAN_COMPLETE = 0xA7
    VBUUID_NOT_EQUAL = 0xA8
    SUBDOC_PATH_ENOENT = 0xC0
    SUBDOC_PATH_MISMATCH = 0xC1
    SUBDOC_PATH_EINVAL = 0xC2
    SUBDOC_PATH_E2BIG = 0xC3
    SUBDOC_DOC_E2DEEP = 0xC4
    SUBDOC_VALUE_CANTINSERT = 0xC5
    SUBDOC_DOC_NOTJSON = 0xC6
    SUBDOC_NUM_ERANGE = 0xC7
    SUBDOC_DELTA_EINVAL = 0xC8
    SUBDOC_PATH_EEXISTS = 0xC9
    SUBDOC_VALUE_ETOODEEP = 0xCA
    SUBDOC_INVALID_COMBO = 0xCB
    SUBDOC_MULTI_PATH_FAILURE = 0xCC
    SUBDOC_SUCCESS_DELETED = 0xCD
    SUBDOC_XATTR_INVALID_FLAG_COMBO = 0xCE
    SUBDOC_XATTR_INVALID_KEY_COMBO = 0xCF
    SUBDOC_XATTR_UNKNOWN_MACRO = 0xD0
    SUBDOC_XATTR_UNKNOWN_VATTR = 0xD1
    SUBDOC_XATTR_CANT_MODIFY_VATTR = 0xD2
    SUBDOC_MULTI_PATH_FAILURE_DELETED = 0xD3
    SUBDOC_INVALID_XATTR_ORDER = 0xD4
    SUBDOC_XATTR_UNKNOWN_VATTR_MACRO = 0xD5
    SUBDOC_CAN_ONLY_REVIVE_DELETED_DOCUMENTS = 0xD6
    SUBDOC_DELETED_DOCUMENT_CANT_HAVE_VALUE = 0xD7
    SUBDOC_FIELD_NOT_BINARY_VALUE = 0xD8


# These carry an ordinary body although they are not SUCCESS; the body of all others is an explanation, if any.
BODIED = frozenset(
    {
        Status.SUCCESS,
        Status.AUTH_CONTINUE,
        Status.ROLLBACK,
        Status.RANGE_SCAN_MORE,
        Status.RANGE_SCAN_COMPLETE,
        Status.SUBDOC_MULTI_PATH_FAILURE,
        Status.SUBDOC_SUCCESS_DELETED,
        Status.SUBDOC_MULTI_PATH_FAILURE_DELETED,
    }
)

# What a client that did not negotiate XERROR is told instead (wire.md 3.1).
_OLD_ANSWERS: dict[int, int] = {
    Status.LOCKED: Status.KEY_EEXISTS,
    Status.CAS_VALUE_INVALID: Status.KEY_EEXISTS,
    Status.NOT_LOCKED: Status.ETMPFAIL,
    Status.SYNC_WRITE_IN_PROGRESS: Status.ETMPFAIL,
    Status.SYNC_WRITE_RE_COMMIT_IN_PROGRESS: Status.ETMPFAIL,
    Status.CANNOT_APPLY_COLLECTIONS_MANIFEST: Status.EINTERNAL,
}

# What such a client understands as it is.
_OLD_STATUSES = frozenset(
    [*range(0x00, 0x08), 0x0A, 0x0B, 0x0C, 0x20, 0x21, 0x22, 0x23, 0x26, 0x50, *range(0x81, 0x87)],
)


def without_xerror(status: int, *, collections: bool = False) -> int | None:
    """Return the status for a client without the XERROR feature, or None: it must be disconnected instead.

    Args:
        status: the intended status.
        collections: True if the client negotiated Collections; it then understands their two statuses.
    """
    if status in _OLD_STATUSES:
        return status
    if status in (Status.UNKNOWN_COLLECTION, Status.UNKNOWN_SCOPE):
        return status if collections else Status.EINVAL
    return _OLD_ANSWERS.get(status)


def name_of(status: int) -> str:
    """Return the specification's name of a status; the number as text if it has no name."""
    return Status(status).name if status in _NAMES else f"0x{status:04x}"


_NAMES = {int(status): status.name for status in Status}
name_statuses(_NAMES)
