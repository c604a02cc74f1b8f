"""Numbers as a command line names them: those of seeds, and of a run's steps."""

from __future__ import annotations

__all__ = ["numbers_of"]


def numbers_of(text: str) -> list[int]:
    """Return the numbers that a list of numbers and ranges names, such as `0-19,40`.

    Raises:
        ValueError: a part is neither.
    """
    named: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        named += range(int(first), int(last or first) + 1)
    return named
