"""Numbers of things, as people read them."""

from __future__ import annotations

__all__ = ["several"]


def several(number: int, noun: str) -> str:
    """Return `1 node` or `1,024 nodes`."""
    return f"{number:,} {noun}" + "s" * (number != 1)
