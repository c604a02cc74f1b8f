"""The command byte of the header. Source: specification, wire.md 2.

One byte names the command for requests and responses alike. The DCP numbers are the UPR numbers under newer names.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = ["RETIRED", "Opcode", "ServerOpcode", "has_name", "name_of"]


class Opcode(IntEnum):
    """The requests of clients, and of either end of a TAP, UPR or DCP connection."""

    GET = 0x00
    SET = 0x01
    ADD = 0x02
    REPLACE = 0x03
    DELETE = 0x04
    INCREMENT = 0x05
    DECREMENT = 0x06
    QUIT = 0x07
    FLUSH = 0x08  # retired
    GETQ = 0x09
    NOOP = 0x0A
    VERSION = 0x0B
    GETK = 0x0C
    GETKQ = 0x0D
    APPEND = 0x0E
    PREPEND = 0x0F
    STAT = 0x10
    SETQ = 0x11
    ADDQ = 0x12
    REPLACEQ = 0x13
    DELETEQ = 0x14
    INCREMENTQ = 0x15
    DECREMENTQ = 0x16
    QUITQ = 0x17
    FLUSHQ = 0x18  # retired
    APPENDQ = 0x19
    PREPENDQ = 0x1A
    VERBOSITY = 0x1B
    TOUCH = 0x1C
    GAT = 0x1D
    GATQ = 0x1E
    HELLO = 0x1F
    SASL_LIST_MECHS = 0x20
    SASL_AUTH = 0x21
    SASL_STEP = 0x22
    IOCTL_GET = 0x23
    IOCTL_SET = 0x24
    CONFIG_VALIDATE = 0x25
    CONFIG_RELOAD = 0x26
    AUDIT_PUT = 0x27
    AUDIT_CONFIG_RELOAD = 0x28
    SHUTDOWN = 0x29
    SET_BUCKET_THROTTLE_PROPERTIES = 0x2A
    SET_BUCKET_DATA_LIMIT_EXCEEDED = 0x2B
    SET_ACTIVE_ENCRYPTION_KEYS = 0x2D
    PRUNE_ENCRYPTION_KEYS = 0x2E
    REGISTER_AUTH_TOKEN = 0x2F
    SET_VBUCKET = 0x3D
    GET_VBUCKET = 0x3E
    DEL_VBUCKET = 0x3F
    TAP_CONNECT = 0x40
    TAP_MUTATION = 0x41
    TAP_DELETE = 0x42
    TAP_FLUSH = 0x43
    TAP_OPAQUE = 0x44
    TAP_VBUCKET_SET = 0x45
    TAP_CHECKPOINT_START = 0x46
    TAP_CHECKPOINT_END = 0x47
    GET_ALL_VB_SEQNOS = 0x48
    GET_EX = 0x49
    GET_EX_REPLICA = 0x4A
    MUTATE_WITH_META = 0x4B
    DCP_OPEN = 0x50
    DCP_ADD_STREAM = 0x51
    DCP_CLOSE_STREAM = 0x52
    DCP_STREAM_REQ = 0x53
    DCP_GET_FAILOVER_LOG = 0x54
    DCP_STREAM_END = 0x55
    DCP_SNAPSHOT_MARKER = 0x56
    DCP_MUTATION = 0x57
    DCP_DELETION = 0x58
    DCP_EXPIRATION = 0x59
    DCP_FLUSH = 0x5A  # retired
    DCP_SET_VBUCKET_STATE = 0x5B
    DCP_NOOP = 0x5C
    DCP_BUFFER_ACKNOWLEDGEMENT = 0x5D
    DCP_CONTROL = 0x5E
    DCP_SYSTEM_EVENT = 0x5F
    DCP_PREPARE = 0x60
    DCP_SEQNO_ACKNOWLEDGED = 0x61
    DCP_COMMIT = 0x62
    DCP_ABORT = 0x63
    DCP_SEQNO_ADVANCED = 0x64
    DCP_OSO_SNAPSHOT = 0x65
    DCP_CACHE_TRANSFER = 0x66
    DCP_CACHE_TRANSFER_END = 0x67
    DCP_BEFORE = 0x6F  # headwater's own
    STOP_PERSISTENCE = 0x80
    START_PERSISTENCE = 0x81
    SET_PARAM = 0x82
    GET_REPLICA = 0x83
    SET_CHRONICLE_AUTH_TOKEN = 0x84
    CREATE_BUCKET = 0x85
    DELETE_BUCKET = 0x86
    LIST_BUCKETS = 0x87
    SELECT_BUCKET = 0x89
    PAUSE_BUCKET = 0x8A
    RESUME_BUCKET = 0x8B
    VALIDATE_BUCKET_CONFIG = 0x8C
    OBSERVE_SEQNO = 0x91
    OBSERVE = 0x92
    EVICT_KEY = 0x93
    GET_LOCKED = 0x94
    UNLOCK_KEY = 0x95
    GET_FAILOVER_LOG = 0x96
    LAST_CLOSED_CHECKPOINT = 0x97  # retired
    DEREGISTER_TAP_CLIENT = 0x9E  # retired
    RESET_REPLICATION_CHAIN = 0x9F  # retired
    GET_META = 0xA0
    GETQ_META = 0xA1
    SET_WITH_META = 0xA2
    SETQ_WITH_META = 0xA3
    ADD_WITH_META = 0xA4
    ADDQ_WITH_META = 0xA5
    SNAPSHOT_VB_STATES = 0xA6  # retired
    VBUCKET_BATCH_COUNT = 0xA7  # retired
    DEL_WITH_META = 0xA8
    DELQ_WITH_META = 0xA9
    CREATE_CHECKPOINT = 0xAA  # retired
    NOTIFY_VBUCKET_UPDATE = 0xAC  # retired
    ENABLE_TRAFFIC = 0xAD
    DISABLE_TRAFFIC = 0xAE
    IFCONFIG = 0xAF
    CHANGE_VB_FILTER = 0xB0  # retired
    CHECKPOINT_PERSISTENCE = 0xB1  # retired
    RETURN_META = 0xB2
    COMPACT_DB = 0xB3
    SET_CLUSTER_CONFIG = 0xB4
    GET_CLUSTER_CONFIG = 0xB5
    GET_RANDOM_KEY = 0xB6
    SEQNO_PERSISTENCE = 0xB7
    GET_KEYS = 0xB8
    COLLECTIONS_SET_MANIFEST = 0xB9
    COLLECTIONS_GET_MANIFEST = 0xBA
    COLLECTIONS_GET_ID = 0xBB
    COLLECTIONS_GET_SCOPE_ID = 0xBC
    SUBDOC_GET = 0xC5
    SUBDOC_EXISTS = 0xC6
    SUBDOC_DICT_ADD = 0xC7
    SUBDOC_DICT_UPSERT = 0xC8
    SUBDOC_DELETE = 0xC9
    SUBDOC_REPLACE = 0xCA
    SUBDOC_ARRAY_PUSH_LAST = 0xCB
    SUBDOC_ARRAY_PUSH_FIRST = 0xCC
    SUBDOC_ARRAY_INSERT = 0xCD
    SUBDOC_ARRAY_ADD_UNIQUE = 0xCE
    SUBDOC_COUNTER = 0xCF
    SUBDOC_MULTI_LOOKUP = 0xD0
    SUBDOC_MULTI_MUTATION = 0xD1
    SUBDOC_GET_COUNT = 0xD2
    SUBDOC_REPLACE_BODY_WITH_XATTR = 0xD3
    RANGE_SCAN_CREATE = 0xDA
    RANGE_SCAN_CONTINUE = 0xDB
    RANGE_SCAN_CANCEL = 0xDC
    PREPARE_SNAPSHOT = 0xE0
    RELEASE_SNAPSHOT = 0xE1
    DOWNLOAD_SNAPSHOT = 0xE2
    GET_FILE_FRAGMENT = 0xE3
    HOLD_CLOCK = 0xEF  # headwater's own
    SCRUB = 0xF0  # retired
    ISASL_REFRESH = 0xF1
    GET_CMD_TIMER = 0xF3
    SET_CTRL_TOKEN = 0xF4
    GET_CTRL_TOKEN = 0xF5
    UPDATE_EXTERNAL_USER_PERMISSIONS = 0xF6
    RBAC_REFRESH = 0xF7
    AUTH_PROVIDER = 0xF8
    DROP_PRIVILEGE = 0xFB
    GET_ERROR_MAP = 0xFE


class ServerOpcode(IntEnum):
    """The requests of a server to a client that negotiated Duplex (magic 0x82)."""

    CLUSTERMAP_CHANGE_NOTIFICATION = 0x01
    AUTHENTICATE = 0x02
    ACTIVE_EXTERNAL_USERS = 0x03
    GET_AUTHORIZATION = 0x04


# Once assigned, now answered with NOT_SUPPORTED; what was never assigned is answered with UNKNOWN_COMMAND.
RETIRED = frozenset(
    (
        *(Opcode.FLUSH, Opcode.FLUSHQ, Opcode.DCP_FLUSH),
        *(0x2C, *range(0x30, 0x3D), 0xC1, 0xC2, 0xF2),  # throttling, range operations, drift counters: no names left
        *(0x97, 0x9E, 0x9F, 0xA6, 0xA7, 0xAA, 0xAC, 0xB0, 0xB1, 0xF0),  # of the TAP era
    )
)

_NAMES = {int(opcode): opcode.name for opcode in Opcode}


def has_name(opcode: int) -> bool:
    """Return True if the specification names an opcode."""
    return opcode in _NAMES


def name_of(opcode: int) -> str:
    """Return the specification's name of an opcode; the number as text if it has no name."""
    return _NAMES.get(opcode, f"0x{opcode:02x}")
