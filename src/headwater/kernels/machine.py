"""Loads kernels that were compiled when the wheel was built: a library beside this file, for which nobody needs numba.

The library names the sources it was made of. In a checkout there is none, and one of other sources is passed over.

    HEADWATER_MACHINE_CODE   a library elsewhere, which must be of these sources; `no`: none, numba compiles
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from headwater.kernels.sources import PACKAGE, source_hash

NAME: Final = "_machine"
VARIABLE: Final = "HEADWATER_MACHINE_CODE"

Kernels = Mapping[str, Callable[..., Any]]


def functions() -> Kernels | None:
    """Return the kernels by name (`scan.scan_frames`); None if there is no library of these sources.

    Raises:
        ImportError: the library that the variable names can't be loaded, or is of other sources.
    """
    chosen = os.environ.get(VARIABLE, "")
    if chosen == "no":
        return None
    path = Path(chosen) if chosen else _library_path()
    if path is None:
        return None
    try:
        library = _load(path)
    # One that nobody chose may be for another system; numba compiles then.
    except ImportError:
        if chosen:
            raise
        return None
    # Machine code of other sources would follow other rules, or other places of fields, than the Python around it.
    if source_hash() == library.SOURCES:
        kernels: Kernels = library.KERNELS
        return kernels
    if chosen:
        raise ImportError(f"{path} was made of other sources than those in {PACKAGE}: build it again", path=str(path))
    return None


def _library_path() -> Path | None:
    """Return the library in the package's folder."""
    paths = (PACKAGE / f"{NAME}{suffix}" for suffix in EXTENSION_SUFFIXES)
    return next(filter(Path.exists, paths), None)


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"headwater.kernels.{NAME}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no library that Python loads", path=str(path))
    library = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(library)
    return library
