"""The controls a consumer node asks for, one at a time, each waiting for its reply (dcp 1, step 3).

"Clients must treat EINVAL for an optional key as 'feature absent' and go on" (dcp 4); any other refusal is taken the
same way, since older producers answer this or that. An answer whose opaque is not that of the question ends the
connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from headwater.errors import RemoteProtocolError
from headwater.protocol.dcp.controls import DELETED_REVS, PURGE_SEQNOS
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
    """The settings a connection asks of its producer.

    Attributes:
        window_bytes: of flow control. noop_interval_seconds: how often the producer is to show that it lives.
        idle_seconds: without any message for so long, it is taken for dead (dcp 6).
        deleted_user_xattrs: users' xattrs in tombstones are kept.
        takes_movers: ADD_STREAM is served; not on a connection that this node opened.
        dialect: DCP, UPR, or AUTO: DCP, and UPR to a producer that does not understand.
        consumer_name: this node's, as the cluster map has it: prepares of durable writes are wanted and acknowledged.
            Empty: they are not.
    """

    window_bytes: int = WINDOW_BYTES_DEFAULT
    noop_interval_seconds: float = INTERVAL_SECONDS_DEFAULT
    idle_seconds: float = IDLE_TIMEOUT_SECONDS
    deleted_user_xattrs: bool = False
    takes_movers: bool = True
    dialect: Dialect = Dialect.AUTO
    consumer_name: str = ""


def wanted_controls(settings: ConsumerSettings) -> tuple[tuple[str, str], ...]:
    """The keys and values in the order of dcp 4.

    Left out are those whose messages this node could not take: system events of version 2, change streams, cache
    transfer. The last two are our own, and refused by everybody else.
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
        (V7_CODES, "true"),
        (PURGE_SEQNOS, "true"),
        (DELETED_REVS, "true"),
    )


class Negotiation:
    """The controls of one connection.

    Args:
        wanted: keys and values, in order.
        next_opaque: gives the opaque of each request.

    Attributes:
        accepted: the keys that took effect, with their values.
    """

    def __init__(self, wanted: tuple[tuple[str, str], ...], next_opaque: Callable[[], int]) -> None:
        self.accepted: dict[str, str] = {}
        self._left = deque(wanted)
        self._next_opaque = next_opaque
        self._asked: dcp.Control | None = None
        self._begun = False

    @property
    def is_over(self) -> bool:
        """Whether every control was answered."""
        return self._begun and self._asked is None and not self._left

    @property
    def is_under_way(self) -> bool:
        """Whether the producer owes an answer to a control."""
        return self._asked is not None

    def begin(self) -> bytes:
        """The first request, at the first call; later, and when there is nothing to ask for, nothing."""
        if self._begun:
            return b""
        self._begun = True
        return self._ask()

    def answered(self, answer: Frame) -> bytes:
        """Take an answer; returns the next request, empty after the last.

        Raises:
            RemoteProtocolError: it answers something else than what was asked.
        """
        asked = self._asked
        if asked is None or answer.opaque != asked.opaque:
            waiting = "none waits" if asked is None else f"{asked.opaque} waits"
            raise RemoteProtocolError(f"a control was answered with opaque {answer.opaque}; {waiting} for an answer")
        key, value = asked.key.decode(), asked.value.decode()
        if not answer.status:
            self.accepted[key] = value
        elif key == NOOP_INTERVAL and "." in value:
            # "set_noop_interval (fractional; on failure retry whole seconds)" (dcp 4)
            self._left.appendleft((key, str(max(1, round(float(value))))))
        return self._ask()

    def _ask(self) -> bytes:
        if not self._left:
            self._asked = None
            return b""
        key, value = self._left.popleft()
        self._asked = dcp.Control(opaque=self._next_opaque(), key=key.encode(), value=value.encode())
        return self._asked.encode()
