"""Upper bounds of seqnos, CAS values and revisions that peers send.

The wire has 64 bits for each, but the highest numbers leave none for the next change: a seqno would wrap to 0, and the
highest CAS means "locked". So seqnos end at half of the range, and CAS values and revisions a little below the highest,
whatever their source. A node's own numbers have the same bounds: otherwise another node could not accept them by DCP or
SET_WITH_META, and a backup could not be restored. Revisions that a node assigns stop at half of the range; after the
highest CAS a node returns to the time (wire/times.py).
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
