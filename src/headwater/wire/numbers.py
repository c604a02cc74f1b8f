"""How high seqnos, CAS values and revisions may be when they come from somebody else.

The wire has 64 bits for each, and a number at their end leaves none for the next change: a seqno would begin at 0
again, and a CAS would be the one that means "locked". So seqnos end at half of them, and CAS values and revisions a
little below the highest, whoever tells them: what one node holds another one takes, by DCP and by SET_WITH_META, or a
backup could not be restored. So a node gives none above these either. A revision that a node gives ends at half of the
numbers, and is then the same for all versions that follow; a CAS behind the highest is the time again (wire/times.py).
"""

from __future__ import annotations

from typing import Final

__all__ = ["GIVEN_MAX", "HELD_MAX", "SEQNO_MAX"]

SEQNO_MAX: Final = (1 << 63) - 1
"""The highest seqno that is stored, whoever gave it."""
GIVEN_MAX: Final = (1 << 63) - 1
"""The highest revision that a node gives by itself."""
HELD_MAX: Final = (1 << 64) - (1 << 32) - 1
"""The highest CAS and the highest revision that are taken from anybody, and the highest CAS that a node gives."""
