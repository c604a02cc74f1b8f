"""The datatype byte of the header: the encoding of the value. Source: specification, wire.md 4."""

from __future__ import annotations

from enum import IntFlag

__all__ = ["DATATYPES", "Datatype", "legal"]


class Datatype(IntFlag):
    """Bits of the datatype byte; each needs its HELLO feature on the connection."""

    RAW = 0
    JSON = 1
    SNAPPY = 2
    XATTR = 4


DATATYPES = Datatype.JSON | Datatype.SNAPPY | Datatype.XATTR


def legal(datatype: int) -> bool:
    """Return True if a datatype byte has known bits only (0 to 7); others are answered with EINVAL."""
    return not datatype & ~int(DATATYPES)
