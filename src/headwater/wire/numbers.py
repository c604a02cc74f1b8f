"""Upper bounds of seqnos, CAS values and revisions that come from others.

The wire has 64 bits for each, and a number at their end leaves none for the next change: a seqno would begin at 0
again, and the CAS would be the one that means "locked". So seqnos end at half of the range, and CAS values and
revisions a little below the highest, whatever their source: what one node holds another must accept, by DCP and by
SET_WITH_META, or a backup could not be restored. A node itself stays within these bounds. A revision that a node gives
ends at half of the range, and then stays; after the highest CAS comes the time again (wire/times.py).
"""

from __future__ import annotations

from typing import Final

__all__ = ["GIVEN_MAX", "HELD_MAX", "SEQNO_MAX"]

SEQNO_MAX: Final = (1 << 63) - 1
"""The highest seqno that is stored, whatever its source."""
GIVEN_MAX: Final = (1 << 63) - 1
"""The highest revision that a node gives by itself."""
HELD_MAX: Final = (1 << 64) - (1 << 32) - 1
"""The highest CAS and the highest revision that are accepted, and the highest CAS that a node gives."""
