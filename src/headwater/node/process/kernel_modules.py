"""The modules of kernels that a node uses, and the number of kernels that are compiled."""

from __future__ import annotations

import importlib
from typing import Final

from headwater.kernels import builds

__all__ = ["FIRST", "LATER", "MODULES", "counts", "warm_up"]

FIRST: Final = ("index", "json")
"""The modules that every read or write needs."""
_SOON = ("execute", "rounds", "history", "crc", "choices", "gather", "live", "paths")
LATER: Final = (*_SOON, "lookups", "values", "apply", "sweep", "compact", "tap")
"""All other modules of a node."""
MODULES: Final = FIRST + LATER
"""All modules, in the order in which a node should compile them."""


def counts() -> tuple[int, int]:
    """Return how many of a node's kernels are compiled and loaded, and how many kernels it has."""
    are_built = builds.are_built(MODULES)
    return sum(are_built), len(are_built)


def warm_up(module: str) -> None:
    """Load or compile the kernels of a module."""
    importlib.import_module(f"headwater.kernels.{module}").warm_up()
