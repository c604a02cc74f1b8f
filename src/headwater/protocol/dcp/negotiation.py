"""The controls that a consumer node requests, one at a time; each waits for its answer (dcp 1, step 3).

"Clients must treat EINVAL for an optional key as 'feature absent' and go on" (dcp 4). Any other refusal is treated in
the same way, since older producers use various ones. An answer whose opaque differs from the request's ends the
connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from headwater.errors import RemoteProtocolError
from headwater.protocol.dcp.controls import CHANGE_STREAMS, DELETED_REVS, FLAT_EVENTS, PURGE_SEQNOS
from headwater.protocol.dcp.noop import IDLE_TIMEOUT_SECONDS, INTERVAL_SECONDS_DEFAULT
from headwater.wire import dcp
from headwater.wire.dialect import Dialect
from headwater.wire.header import Frame

WINDOW = "connection_buffer_size"
NOOP = "enable_noop"
NOOP_INTERVAL = "set_noop_interval"
V7_CODES = "v7_dcp_status_codes"
SYNC_WRITES = "enable_sync_writes"
WINDOW_BYTES_DEFAULT = 10 << 20


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """The settings that a connection requests from its producer.

    Attributes:
        window_bytes: of flow control. noop_interval_seconds: interval of the producer's no-ops.
        idle_seconds: the time without a message after which the producer counts as gone (dcp 6).
        deleted_user_xattrs: True to keep users' xattrs in tombstones.
        takes_movers: True to serve ADD_STREAM; False on a connection that this node opened.
        dialect: DCP, UPR, or AUTO: DCP, then UPR if the producer refuses the first request with EINVAL.
        consumer_name: this node's name in the cluster map, under which it acknowledges the prepares of durable writes;
            empty to receive no prepares.
        every_version: True to receive all versions that the producer's history retention keeps.
    """

    window_bytes: int = WINDOW_BYTES_DEFAULT
    noop_interval_seconds: float = INTERVAL_SECONDS_DEFAULT
    idle_seconds: float = IDLE_TIMEOUT_SECONDS
    deleted_user_xattrs: bool = False
    takes_movers: bool = True
    dialect: Dialect = Dialect.AUTO
    consumer_name: str = ""
    every_version: bool = False


def wanted_controls(settings: ConsumerSettings) -> tuple[tuple[str, str], ...]:
    """Return the keys and values of the controls to request, in the order of dcp 4.

    The list has no keys whose messages this node could not handle: cache transfer. The last two keys are headwater's
    own; other servers refuse them.
    """
    durable = ((SYNC_WRITES, "true"), ("consumer_name", settings.consumer_name)) if settings.consumer_name else ()
    return (
        (WINDOW, str(settings.window_bytes)),
        (NOOP, "true"),
        (NOOP_INTERVAL, f"{settings.noop_interval_seconds:.6f}"),
        ("set_priority", "high"),
        ("supports_cursor_dropping_vulcan", "true"),
        ("supports_hifi_MFU", "true"),
        ("send_stream_end_on_client_close_stream", "true"),
        ("enable_expiry_opcode", "true"),
        *durable,
        *((("include_deleted_user_xattrs", "true"),) if settings.deleted_user_xattrs else ()),
        *(((CHANGE_STREAMS, "true"),) if settings.every_version else ()),
        (FLAT_EVENTS, "true"),
        (V7_CODES, "true"),
        (PURGE_SEQNOS, "true"),
        (DELETED_REVS, "true"),
    )


class Negotiation:
    """The controls of one connection.

    Args:
        controls: keys and values, in order.
        next_opaque: returns the opaque of each request.

    Attributes:
        accepted: the keys that took effect, with their values.
    """

    def __init__(self, controls: tuple[tuple[str, str], ...], next_opaque: Callable[[], int]) -> None:
        self.accepted: dict[str, str] = {}
        self._remaining = deque(controls)
        self._next_opaque = next_opaque
        self._pending: dcp.Control | None = None
        self._is_begun = False

    @property
    def is_over(self) -> bool:
        """True if every control was answered."""
        return self._is_begun and self._pending is None and not self._remaining

    @property
    def is_under_way(self) -> bool:
        """True if the producer owes an answer to a control."""
        return self._pending is not None

    def begin(self) -> bytes:
        """Return the first request at the first call; nothing at later calls, or without controls to request."""
        if self._is_begun:
            return b""
        self._is_begun = True
        return self._ask()

    def answered(self, answer: Frame) -> bytes:
        """Take an answer; return the next request, empty after the last.

        Raises:
            RemoteProtocolError: it does not answer the control that was sent.
        """
        control = self._pending
        # "A response whose opaque does not match the outstanding control: disconnect" (dcp 4).
        if control is None or answer.opaque != control.opaque:
            expected = "none waits" if control is None else f"{control.opaque} waits"
            raise RemoteProtocolError(f"a control was answered with opaque {answer.opaque}; {expected} for an answer")
        key, value = control.key.decode(), control.value.decode()
        # Any refusal means "feature absent, go on" (dcp 4).
        if not answer.status:
            self.accepted[key] = value
        elif key == NOOP_INTERVAL and "." in value:
            # "set_noop_interval (fractional; on failure retry whole seconds)" (dcp 4)
            self._remaining.appendleft((key, str(max(1, round(float(value))))))
        return self._ask()

    def _ask(self) -> bytes:
        if not self._remaining:
            self._pending = None
            return b""
        key, value = self._remaining.popleft()
        self._pending = dcp.Control(opaque=self._next_opaque(), key=key.encode(), value=value.encode())
        return self._pending.encode()
