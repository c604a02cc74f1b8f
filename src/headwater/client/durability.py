"""Durable writes: a node answers such a write when enough copies of the document have it.

A node carries out the requests of a connection in order, so all requests behind a durable write wait as long as it
does. Durable writes therefore have connections of their own (`Nodes.for_durable_writes`); see decision 0130.

Each attempt names a time to the node that ends before the operation does: so the answer, even "ambiguous", comes before
the client gives up. Source: wire.md 1.4; kv.md 2, "Durable mutations".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from headwater.errors import NotSupported, OptionError
from headwater.wire.durability import DURABILITY_TIMEOUT_MS_MAX, DurabilityLevel
from headwater.wire.features import Feature
from headwater.wire.framing import decode_durability, decode_framing, durability_framing
from headwater.wire.header import Frame

FEATURES = (Feature.ALT_REQUEST_SUPPORT, Feature.SYNC_REPLICATION)
"""Granted by every server that takes durable writes: frames with framing extras, and the statuses of such writes."""
SHARE = 0.9
"""The share of an operation's remaining time that a node may take; the rest is for the way of its answer."""


@dataclass(frozen=True, slots=True)
class Durability:
    """The durability of a write.

    Args:
        level: a DurabilityLevel, or its name: "majority", "majority-and-persist-to-active", "persist-to-majority".
        timeout_seconds: how long the copies may take, 0.001 to 65.534 and less than the client's `timeout_seconds`.
            None: nine tenths of the time that the operation has left.

    Raises:
        OptionError: there is no such level, or the time is out of bounds.
    """

    level: DurabilityLevel | str
    timeout_seconds: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "level", _level(self.level))
        seconds = self.timeout_seconds
        if seconds is not None and not 0.001 <= seconds <= DURABILITY_TIMEOUT_MS_MAX / 1000:
            allowed = f"0.001 to {DURABILITY_TIMEOUT_MS_MAX / 1000} seconds"
            raise OptionError("timeout_seconds", seconds, allowed)

    def framing(self) -> bytes:
        """Return the framing extras of a request."""
        seconds = self.timeout_seconds
        milliseconds = DURABILITY_TIMEOUT_MS_MAX if seconds is None else int(seconds * 1000)
        return durability_framing(_level(self.level), milliseconds)

    def framing_within(self, left_seconds: float) -> bytes:
        """Return the framing extras of a request whose operation has `left_seconds` left."""
        return _framing_within(self.framing(), left_seconds)


DurabilityChoice: TypeAlias = Durability | DurabilityLevel | str | None
"""The argument `durability` of a write: a level or its name, a Durability (a level with a time), or None for a plain
write.
"""


def _level(level: DurabilityLevel | str) -> DurabilityLevel:
    try:
        return DurabilityLevel.read(level) if isinstance(level, str) else DurabilityLevel(level)
    except ValueError:
        raise OptionError("durability", level, ", ".join(level_.label for level_ in DurabilityLevel)) from None


def as_durability(choice: DurabilityChoice, timeout_seconds: float) -> Durability | None:
    """Return the argument `durability` of a write as a Durability; None stays None.

    Args:
        timeout_seconds: the longest time of one operation of the client.

    Raises:
        OptionError: there is no such level, or the client would not wait as long as the node may take.
    """
    if choice is None:
        return None
    durability = choice if isinstance(choice, Durability) else Durability(choice)
    if durability.timeout_seconds is not None and durability.timeout_seconds >= timeout_seconds:
        allowed = f"less than {timeout_seconds:g} s, the timeout_seconds of the client"
        raise OptionError("durability", f"{durability.timeout_seconds:g} s", allowed)
    return durability


def within(write: Frame, left_seconds: float) -> Frame:
    """Return a durable write with a timeout for its node that ends before the operation does."""
    return replace(write, framing=_framing_within(write.framing, left_seconds))


def _framing_within(framing: bytes, left_seconds: float) -> bytes:
    (info,) = decode_framing(framing)
    level, timeout_ms = decode_durability(info.data)
    # A timeout of 0 is illegal (wire 1.4).
    longest_ms = max(1, min(int(left_seconds * SHARE * 1000), DURABILITY_TIMEOUT_MS_MAX))
    return durability_framing(level, longest_ms if timeout_ms is None else min(timeout_ms, longest_ms))


def check_granted(granted: frozenset[int], action: str, peer: object) -> None:
    """Check that a connection can carry a durable write.

    Args:
        action: the write in words, for the error.

    Raises:
        NotSupported: the node did not grant the features of durable writes; nothing was sent.
    """
    if not granted.issuperset(FEATURES):
        raise NotSupported(f"{action}: {peer} knows no durable writes; leave durability out")
