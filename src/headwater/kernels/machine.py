"""Loads the kernels that were compiled when the wheel was built: a library in this folder, which needs no numba.

The library contains a hash of the sources from which it was built. A checkout has no library, and a library with
another hash is ignored.

    HEADWATER_MACHINE_CODE   path of another library, which must have been built from these sources; `no`: none, numba
                             compiles
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
    """Return the kernels by name (`scan.scan_frames`); None if there is no library built from these sources.

    Raises:
        ImportError: the library named by HEADWATER_MACHINE_CODE can't be loaded, or was built from other sources.
    """
    setting = os.environ.get(VARIABLE, "")
    if setting == "no":
        return None
    path = Path(setting) if setting else _library_path()
    if path is None:
        return None
    try:
        library = _load(path)
    # One that nobody chose may be for another system; numba compiles then.
    except ImportError:
        if setting:
            raise
        return None
    # Machine code of other sources would follow other rules, or other places of fields, than the Python around it.
    if source_hash() == library.SOURCES:
        kernels: Kernels = library.KERNELS
        return kernels
    if setting:
        raise ImportError(f"{path} was made of other sources than those in {PACKAGE}: build it again", path=str(path))
    return None


def _library_path() -> Path | None:
    """Return the library in the package's folder; None if there is none."""
    paths = (PACKAGE / f"{NAME}{suffix}" for suffix in EXTENSION_SUFFIXES)
    return next(filter(Path.exists, paths), None)


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"headwater.kernels.{NAME}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no library that Python loads", path=str(path))
    library = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(library)
    return library
