"""How high seqnos, CAS values and revisions may be when they come from somebody else.

The wire has 64 bits for each, and a number at their end leaves none for the next change: a seqno would begin at 0
again, a CAS would be the one that means "locked", and go down. So what a client gives ends at half of them (as
nanoseconds the year 2262), and what a producer tells leaves room for four billion changes more: it may have counted
on from there. A revision that a node gives ends there as well, and is then the same for all versions that follow: else
it would give what SET_WITH_META of another node refuses.
"""

from __future__ import annotations

from typing import Final

__all__ = ["GIVEN_MAX", "HELD_MAX", "SEQNO_MAX"]

SEQNO_MAX: Final = (1 << 63) - 1
"""The highest seqno that is stored, whoever gave it."""
GIVEN_MAX: Final = (1 << 63) - 1
"""The highest CAS that a client may give a document, and the highest revision that a node gives by itself."""
HELD_MAX: Final = (1 << 64) - (1 << 32) - 1
"""The highest CAS that is taken from a producer, and the highest revision from anybody."""
