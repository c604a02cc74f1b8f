"""The modules of kernels that a node uses, and the number of kernels that are compiled."""

from __future__ import annotations

import importlib
from typing import Final

from headwater.kernels import builds

__all__ = ["FIRST", "LATER", "MODULES", "counts", "warm_up"]

FIRST: Final = ("index", "json")
"""Those without which neither a read nor a write is answered."""
_SOON = ("execute", "rounds", "history", "crc", "choices", "gather", "live", "paths")
LATER: Final = (*_SOON, "lookups", "values", "apply", "sweep", "compact", "tap")
"""All others."""
MODULES: Final = FIRST + LATER
"""All, in the order in which they are wanted."""


def counts() -> tuple[int, int]:
    """Return the number of a node's kernels that are compiled and loaded, and the number of all."""
    are_built = builds.are_built(MODULES)
    return sum(are_built), len(are_built)


def warm_up(module: str) -> None:
    """Load or compile the kernels of a module."""
    importlib.import_module(f"headwater.kernels.{module}").warm_up()
