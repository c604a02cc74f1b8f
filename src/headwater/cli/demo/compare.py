"""Node and table side by side, key by key.

Nothing is sampled: every key of either must be in both, with the same bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

SHOWN_MAX = 3


@dataclass(frozen=True, slots=True)
class Comparison:
    """The difference between two sets of documents; `left` and `right` are their sizes."""

    left: int
    right: int
    missing: tuple[bytes, ...]
    surplus: tuple[bytes, ...]
    different: tuple[bytes, ...]

    @property
    def equal(self) -> bool:
        """True if both hold the same keys with the same values."""
        return not (self.missing or self.surplus or self.different)

    def describe(self) -> str:
        """Return one line: the counts, and the first keys of each kind of difference."""
        kinds = {"missing": self.missing, "surplus": self.surplus, "different": self.different}
        differences = [f"{len(keys):,} {kind}{_first(keys)}" for kind, keys in kinds.items()]
        return ", ".join(differences)


def compare(expected: Mapping[bytes, bytes], actual: Mapping[bytes, bytes]) -> Comparison:
    """Compare the expected documents (`left`) with the actual ones (`right`)."""
    return Comparison(
        left=len(expected),
        right=len(actual),
        missing=tuple(sorted(expected.keys() - actual.keys())),
        surplus=tuple(sorted(actual.keys() - expected.keys())),
        different=tuple(sorted(key for key in expected.keys() & actual.keys() if expected[key] != actual[key])),
    )


def _first(keys: tuple[bytes, ...]) -> str:
    if not keys:
        return ""
    return (
        " ("
        + " ".join(key.decode(errors="backslashreplace") for key in keys[:SHOWN_MAX])
        + (" ...)" if len(keys) > SHOWN_MAX else ")")
    )
