"""How high seqnos, CAS values and revisions may be when they come from somebody else.

The wire has 64 bits for each, and a number at their end leaves none for the next change: a seqno would begin at 0
again, a CAS would be the one that means "locked", and go down. So what a client gives ends at half of them (as
nanoseconds the year 2262), and what a producer tells leaves room for four billion changes more: it may have counted
on from there.
"""

from __future__ import annotations

from typing import Final

__all__ = ["GIVEN_MAX", "HELD_MAX", "SEQNO_MAX"]

SEQNO_MAX: Final = (1 << 63) - 1
"""The highest seqno that is stored, whoever gave it."""
GIVEN_MAX: Final = (1 << 63) - 1
"""The highest CAS and revision that a client may give a document."""
HELD_MAX: Final = (1 << 64) - (1 << 32) - 1
"""The highest CAS and revision that is taken from a producer, and stored."""
