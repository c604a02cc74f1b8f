"""CONTROL: the settings that a consumer may change on a producer connection, as a table.

Each key has one rule: it reads the value, and either changes the settings or returns the status of a refusal. A key
that is not in the table is EINVAL. Source: DCP, control.md; dcp 4.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from headwater.protocol.dcp.flow import WINDOW_BYTES_MAX
from headwater.protocol.dcp.noop import INTERVAL_SECONDS_DEFAULT, INTERVAL_SECONDS_MAX, INTERVAL_SECONDS_MIN
from headwater.wire.status import Status

TRUE = "true"
PURGE_SEQNOS = "headwater_purge_seqno"
"""A key between nodes of headwater: markers have the seqno up to which tombstones were purged, in layout V2.2, which
MARKER_VERSION grants to Collections only. Other servers answer EINVAL, which is "feature absent" (dcp 4).
"""

CHANGE_STREAMS = "change_streams"
"""A key with which a consumer gets every version of a document that the producer still keeps, not the last one of each
snapshot."""
FLAT_EVENTS = "flatbuffers_system_events"
"""A key with which a consumer gets system events of version 2, which also report modified collections."""

BEFORE = "headwater_before"
"""A key from clients of headwater that have set CHANGE_STREAMS: a message Before, with the version that a change
replaced, comes in front of each change. Other servers answer EINVAL.
"""

MARKER_VERSION = "max_marker_version"
"""Key and, below, value with which a consumer gets markers in layout V2.2, which have the producer's purge seqno."""
LATEST_MARKER_VERSION = "2.2"

CONSUMER_NAME_BYTES_MAX = 200  # as of a connection's

DELETED_REVS = "headwater_deleted_rev"
"""A key between nodes of headwater: these markers also have the highest revision of all tombstones, purged or not."""


CLAIMS = "headwater_claims"
"""A key from clients of headwater: a snapshot that starts one below the start seqno of a request is a claim
(position.py, `ClaimedPosition`), not a snapshot that the consumer holds in part."""


@dataclass(slots=True)
class Negotiated:
    """The facts settled before the first CONTROL: HELLO features, and the name and flags of OPEN.

    `speaks_dcp` is True if a feature was negotiated that UPR does not have. `upr_states_as_printed` is True if states
    are sent to a UPR consumer with the numbers of UPR's text (erratum U9).
    """

    snappy: bool = False
    collections: bool = False
    xerror: bool = False
    xattrs: bool = False
    delete_times: bool = False
    deleted_user_xattrs: bool = False
    connection_name: str = ""
    speaks_dcp: bool = False
    upr_states_as_printed: bool = False
    json: bool = False


@dataclass(slots=True)
class ControlSettings:
    """The settings of a connection; the defaults hold until a CONTROL changes them."""

    enable_noop: bool = False
    noop_interval_seconds: float = INTERVAL_SECONDS_DEFAULT
    window_bytes: int = 0
    priority: str = "medium"
    backfill_order: str = "round-robin"
    value_compression: bool = False
    force_value_compression: bool = False
    cursor_dropping: bool = True
    hifi_mfu: bool = False
    stream_end_on_client_close: bool = False
    expiry_opcode: bool = False
    stream_ids: bool = False
    out_of_order_snapshots: str = ""
    v7_status_codes: bool = False
    purge_seqnos: bool = False
    deleted_revs: bool = False
    claims: bool = False
    consumer_name: str = ""
    sync_writes: bool = False
    every_version: bool = False
    flat_events: bool = False
    befores: bool = False

    @property
    def acknowledges(self) -> bool:
        """True if the consumer is a replica that may acknowledge prepares (dcp 2.17)."""
        return self.sync_writes and bool(self.consumer_name)


def settings_for(negotiated: Negotiated) -> ControlSettings:
    """Return the settings of a fresh connection: cursor dropping is on unless the name says replication (dcp 4)."""
    return ControlSettings(cursor_dropping="replication" not in negotiated.connection_name)


Rule = Callable[[ControlSettings, Negotiated, str], Status]


class ControlRule(NamedTuple):
    """One key: a description of its valid values, and the rule that applies a value."""

    allowed: str
    rule: Rule


def apply(settings: ControlSettings, negotiated: Negotiated, key: bytes, value: bytes) -> Status:
    """Apply one CONTROL request; the settings change only if the answer is SUCCESS.

    Both key and value must be present; they are text (dcp 2.15).
    """
    if not key or not value:
        return Status.EINVAL
    # latin-1 takes any byte: a key that is no text is simply none of ours.
    control = CONTROLS.get(key.decode("latin-1"))
    if control is None:
        return Status.EINVAL
    return control.rule(settings, negotiated, value.decode("latin-1"))


def why_refused(key: bytes) -> str:
    """Return the explanation sent with a refused CONTROL."""
    control = CONTROLS.get(key.decode("latin-1"))
    return f"{key!r} is no control" if control is None else f"control {key.decode('latin-1')} takes: {control.allowed}"


def _switch(name: str) -> Rule:
    """Make the rule of a switch: `true` switches on, anything else off."""

    def rule(settings: ControlSettings, _: Negotiated, value: str) -> Status:
        setattr(settings, name, value == TRUE)
        return Status.SUCCESS

    return rule


def _one_way(name: str, otherwise: Status) -> Rule:
    """Make the rule of a switch that stays on: other values change nothing and are answered with `otherwise`."""

    def rule(settings: ControlSettings, _: Negotiated, value: str) -> Status:
        if value != TRUE:
            return otherwise
        setattr(settings, name, True)
        return Status.SUCCESS

    return rule


def _choice(name: str, *values: str) -> Rule:
    """Make the rule that a value is one of a few words."""

    def rule(settings: ControlSettings, _: Negotiated, value: str) -> Status:
        if value not in values:
            return Status.EINVAL
        setattr(settings, name, value)
        return Status.SUCCESS

    return rule


def _window(settings: ControlSettings, _: Negotiated, value: str) -> Status:
    """Set the window, a decimal u32; 0 is off, and it may change at any time."""
    # The digits are counted before they become a number: int() of megabytes of them takes seconds.
    if not re.fullmatch(r"[0-9]{1,10}", value) or int(value) > WINDOW_BYTES_MAX:
        return Status.EINVAL
    settings.window_bytes = int(value)
    return Status.SUCCESS


def _noop_interval(settings: ControlSettings, _: Negotiated, value: str) -> Status:
    """Set the interval of no-ops: decimal seconds, fractions allowed (errata P19)."""
    if not re.fullmatch(r"[0-9]{1,5}(\.[0-9]{1,9})?", value):
        return Status.EINVAL
    if not INTERVAL_SECONDS_MIN <= float(value) <= INTERVAL_SECONDS_MAX:
        return Status.EINVAL
    settings.noop_interval_seconds = float(value)
    return Status.SUCCESS


def _force_value_compression(settings: ControlSettings, negotiated: Negotiated, value: str) -> Status:
    """Switch forced compression of values on or off; EINVAL unless SNAPPY was negotiated."""
    if not negotiated.snappy:
        return Status.EINVAL
    settings.force_value_compression = value == TRUE
    return Status.SUCCESS


def _stream_ids(settings: ControlSettings, negotiated: Negotiated, value: str) -> Status:
    """Switch stream ids on; EINVAL without Collections, NOT_SUPPORTED with durable writes.

    Every stream request must then have an id in its JSON value, which needs Collections (dcp 5). Without them no stream
    could be opened, so the answer is the same as from a producer that does not know the key.
    """
    if value != TRUE or not negotiated.collections:
        return Status.EINVAL
    # Stream ids and sync writes exclude each other, since PREPARE, COMMIT and ABORT carry none (dcp 2.21).
    if settings.sync_writes:
        return Status.NOT_SUPPORTED
    settings.stream_ids = True
    return Status.SUCCESS


def _accept_any(_: ControlSettings, __: Negotiated, ___: str) -> Status:
    """Accept the value, without effect."""
    return Status.SUCCESS


def _deleted_user_xattrs(_: ControlSettings, negotiated: Negotiated, value: str) -> Status:
    """Answer SUCCESS if OPEN's flag 0x100 is in force, otherwise EINVAL; this control changes nothing."""
    return Status.SUCCESS if value == TRUE and negotiated.deleted_user_xattrs else Status.EINVAL


def _max_marker_version(settings: ControlSettings, negotiated: Negotiated, value: str) -> Status:
    """Select markers of version 2.2, which have the purge seqno and need Collections."""
    if not negotiated.collections:
        return Status.NOT_SUPPORTED
    if value != LATEST_MARKER_VERSION:
        return Status.EINVAL
    settings.purge_seqnos = True
    return Status.SUCCESS


def _not_supported(_: ControlSettings, __: Negotiated, ___: str) -> Status:
    """Refuse a key that is known but not supported here."""
    return Status.NOT_SUPPORTED


def _sync_writes(settings: ControlSettings, _: Negotiated, value: str) -> Status:
    """Switch on durable writes: the producer sends prepares, commits and aborts. NOT_SUPPORTED with stream ids, and
    with messages Before.
    """
    if settings.stream_ids or settings.befores:
        return Status.NOT_SUPPORTED
    if value != TRUE:
        return Status.EINVAL
    settings.sync_writes = True
    return Status.SUCCESS


def _switch_befores_on(settings: ControlSettings, _: Negotiated, value: str) -> Status:
    """Switch on messages Before. EINVAL unless every version is sent: otherwise the version that a change replaced may
    never have been sent. NOT_SUPPORTED with durable writes: a commit, which replicas get, replaces nothing that could
    be shown.
    """
    if value != TRUE or not settings.every_version:
        return Status.EINVAL
    if settings.sync_writes:
        return Status.NOT_SUPPORTED
    settings.befores = True
    return Status.SUCCESS


def _consumer_name(settings: ControlSettings, _: Negotiated, value: str) -> Status:
    """Set the name, in the cluster map, of the replica that acknowledges prepares."""
    if len(value) > CONSUMER_NAME_BYTES_MAX:
        return Status.EINVAL
    settings.consumer_name = value
    return Status.SUCCESS


CONTROLS = {  # what may be set, what it takes, and who obeys
    "enable_noop": ControlRule("true, else off", _switch("enable_noop")),
    "set_noop_interval": ControlRule(f"seconds, {INTERVAL_SECONDS_MIN} to {INTERVAL_SECONDS_MAX:g}", _noop_interval),
    "connection_buffer_size": ControlRule("bytes, 0 to 4294967295; 0 is off", _window),
    "stream_buffer_size": ControlRule("nothing: flow control is per connection", _not_supported),
    "set_priority": ControlRule("high, medium, low", _choice("priority", "high", "medium", "low")),
    "backfill_order": ControlRule("round-robin, sequential", _choice("backfill_order", "round-robin", "sequential")),
    "enable_value_compression": ControlRule(
        "true, else off; of servers before 5.5: no SNAPPY needed", _switch("value_compression")
    ),
    "enable_ext_metadata": ControlRule("anything; of servers before 5.5: there is none to send", _accept_any),
    "force_value_compression": ControlRule("true, else off; needs SNAPPY", _force_value_compression),
    "supports_cursor_dropping": ControlRule("true, else off", _switch("cursor_dropping")),
    "supports_cursor_dropping_vulcan": ControlRule("true, else off", _switch("cursor_dropping")),
    "supports_hifi_MFU": ControlRule("true, else off", _switch("hifi_mfu")),
    "send_stream_end_on_client_close_stream": ControlRule(
        "true; one-way", _one_way("stream_end_on_client_close", Status.SUCCESS)
    ),
    "enable_expiry_opcode": ControlRule("true, else off; brings delete times", _switch("expiry_opcode")),
    "enable_stream_id": ControlRule("true; one-way; needs Collections", _stream_ids),
    "enable_sync_writes": ControlRule(
        "true; one-way; not with stream ids or headwater_before; needs the role replicate", _sync_writes
    ),
    "consumer_name": ControlRule("a name", _consumer_name),
    "enable_out_of_order_snapshots": ControlRule(
        "true, true_with_seqno_advanced", _choice("out_of_order_snapshots", TRUE, "true_with_seqno_advanced")
    ),
    "include_deleted_user_xattrs": ControlRule("true; needs OPEN flag 0x100", _deleted_user_xattrs),
    "v7_dcp_status_codes": ControlRule("true", _one_way("v7_status_codes", Status.EINVAL)),
    FLAT_EVENTS: ControlRule("true; one-way", _one_way("flat_events", Status.EINVAL)),
    CHANGE_STREAMS: ControlRule("true; one-way", _one_way("every_version", Status.EINVAL)),
    MARKER_VERSION: ControlRule("2.2; needs Collections", _max_marker_version),
    "cache_transfer": ControlRule("nothing: no cache to transfer", _not_supported),
    PURGE_SEQNOS: ControlRule("true, else off; headwater's own", _switch("purge_seqnos")),
    DELETED_REVS: ControlRule("true, else off; headwater's own", _switch("deleted_revs")),
    BEFORE: ControlRule(
        "true; one-way; needs change_streams; not with enable_sync_writes; headwater's own", _switch_befores_on
    ),
    CLAIMS: ControlRule("true, else off; headwater's own", _switch("claims")),
}
