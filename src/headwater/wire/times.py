"""Expiry times and CAS values; the clock is always an argument. Source: specification, wire.md 10."""

from __future__ import annotations

from headwater.wire.numbers import HELD_MAX

__all__ = ["RELATIVE_SECONDS_MAX", "absolute_expiry", "is_expired", "next_cas"]

RELATIVE_SECONDS_MAX = 30 * 24 * 60 * 60
"""An expiry up to here counts from now: a stored expiry that small, written again, would end later than it should."""
_U32_MAX = 0xFFFF_FFFF
_LOGICAL_BITS = 0xFFFF


def absolute_expiry(expiration: int, now_seconds: int) -> int:
    """Return the Unix seconds at which a document with a client's expiry expires; 0 for never.

    Args:
        expiration: 0 for never; 1 to 2592000 (30 days) for seconds from now; above that, Unix seconds.
        now_seconds: Unix seconds.
    """
    if 0 < expiration <= RELATIVE_SECONDS_MAX:
        return min(expiration + now_seconds, _U32_MAX)
    return expiration


def is_expired(expiry: int, now_seconds: int) -> bool:
    """Return True if a document with this absolute expiry (Unix seconds, 0 for never) has expired."""
    return 0 < expiry <= now_seconds


def next_cas(last: int, now_nanoseconds: int, seqno: int) -> int:
    """Return the CAS after `last`: a hybrid logical clock.

    The CAS is the wall clock in nanoseconds, with the low 16 bits replaced by a count of changes within one tick; so
    the CAS values of a vbucket only grow, whatever the wall clock does.

    After a CAS at the upper bound (wire/numbers.py), which a peer may have sent, other nodes would refuse a higher one.
    Then the result is the time, with the last 16 bits of the change's `seqno` to tell changes of one tick apart.
    """
    # Unique and rising whatever the clock does: `last` decides where the wall clock stands still or goes back (wire
    # 10).
    clock = now_nanoseconds & ~_LOGICAL_BITS
    return max(clock, last + 1) if last < HELD_MAX else clock | seqno & _LOGICAL_BITS
