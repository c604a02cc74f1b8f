"""Chooses how kernels are built: machine code of the wheel, numba's, or plain Python with every access checked.

Machine code is made with the wheel (machine.py), numba compiles in a checkout and keeps what it made (jit.py), and the
checked build runs kernels as Python and asks guard.py about every address.

    HEADWATER_DEBUG_KERNELS  1: the checked build (slow, for tests)

It exists per process (the variable) and side by side with another one (`debug_copy`, for tests).
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from headwater.kernels import guard, machine
from headwater.kernels.sources import PACKAGE

F = TypeVar("F", bound=Callable[..., Any])

SHARED = ("builds", "cached", "guard", "instructions", "jit", "machine", "sources")
"""Modules of the package that a debug copy does not execute anew."""

_debug = os.environ.get("HEADWATER_DEBUG_KERNELS", "") not in ("", "0")
_guarding = _debug  # whether a checked kernel exists in this process, here or in a debug copy
_machine = None if _debug else machine.functions()


def debugging() -> bool:
    """Return True if kernels defined now are the checked Python build."""
    return _debug


def compiling() -> bool:
    """Return True if numba compiles kernels in this process, or loads what it compiled before."""
    return not _debug and _machine is None


def _arrays(argument: Any) -> Iterator[NDArray[Any]]:
    """Yield the arrays of a kernel's argument: itself, or the members of a (named) tuple."""
    if isinstance(argument, np.ndarray):
        yield argument
    elif isinstance(argument, tuple):
        for member in argument:
            yield from _arrays(member)


def _checked(function: F) -> F:
    """Run as Python: the array arguments may be touched while the call lasts, and unsigned arithmetic wraps without
    the warning numpy gives for scalars."""

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        arrays = [array for argument in arguments for array in _arrays(argument)]
        with guard.registered(*arrays), np.errstate(over="ignore"):
            return function(*arguments)

    return cast(F, call)


class _Unchecked:
    """The `reachable` of the compiled build, which does nothing."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exception: object) -> None:
        return None


_UNCHECKED = _Unchecked()


def reachable(*arrays: NDArray[Any]) -> AbstractContextManager[None]:
    """Return a context for a call that passes addresses: a debug build may touch these arrays in it."""
    return guard.registered(*arrays) if _guarding else _UNCHECKED


def numbas(name: str) -> ModuleType:
    """Return a module of the package that only numba's build needs.

    Raises:
        ImportError: numba is not installed, or this wheel was made to do without it; the text says what to do.
    """
    try:
        return importlib.import_module(f"headwater.kernels.{name}")
    except ModuleNotFoundError as missing:
        here = missing.name == f"headwater.kernels.{name}"  # a wheel with machine code, for another machine than this
        others = "the wheel of headwater for all systems, which needs numba"
        remedy = others if here else "numba, or a wheel of headwater for this machine"
        raise ImportError(
            f"there is no machine code for this machine in {PACKAGE}, and {missing.name} is not installed: "
            f"pip install {remedy}"
        ) from missing


def kernel(function: F) -> F:
    """Make a kernel that Python calls: it releases the GIL, and has machine code once per signature."""
    if _debug:
        return _checked(function)
    if _machine is not None:
        return cast(F, _machine[_name(function)])
    return cast(F, numbas("jit").kernel(function))


def kernel_or(stand_in: Callable[..., Any]) -> Callable[[F], F]:
    """Make a kernel that a node can do without for a while: until it is compiled, `stand_in` is called (jit.py)."""

    def decorate(function: F) -> F:
        return cast(F, numbas("jit").kernel_or(stand_in, function)) if compiling() else kernel(function)

    return decorate


def inline_kernel(function: F) -> F:
    """Make a kernel for kernels only: inlined into its callers, at no cost of a call."""
    return cast(F, numbas("jit").inline_kernel(function)) if compiling() else function


def prepare(built: Callable[..., Any], *examples: Any) -> None:
    """Compile a kernel, or load it, for arguments of the types of these examples, without running it."""
    if compiling():
        numbas("jit").prepare(built, *examples)


def are_built(modules: Collection[str]) -> list[bool]:
    """Return, for each kernel of these modules that was imported so far, whether it has machine code."""
    if _machine is not None:
        return [True for name in _machine if name.partition(".")[0] in modules]
    built = numbas("jit").built_kernels() if compiling() else ()
    return [bool(kernel.signatures) for name, kernel in built if name.split(".")[2] in modules]


def cache_folder() -> Path | None:
    """Return where numba's machine code is kept; None if it can't be kept, or there is none."""
    folder: Path | None = numbas("jit").cache_folder() if compiling() else None
    return folder


def _name(function: Callable[..., Any]) -> str:
    return f"{function.__module__.removeprefix('headwater.kernels.')}.{function.__name__}"


def debug_copy(name: str) -> ModuleType:
    """Return a second, checked build of a kernel module, for tests.

    The module and the kernels it imports are executed anew under the debug decorators; sys.modules ends as it was.
    Classes of the copy are not those of the original.
    """
    global _debug, _guarding  # noqa: PLW0603 - the switches that decorators and `reachable` read
    if not name.startswith("headwater.kernels."):
        raise ValueError(f"{name} is not a kernel module")
    shared = {"headwater.kernels", *(f"headwater.kernels.{name}" for name in SHARED)}
    mine = {key: value for key, value in sys.modules.items() if key.startswith("headwater.kernels.")}
    originals = {key: value for key, value in mine.items() if key not in shared}
    before, package = _debug, sys.modules["headwater.kernels"]
    for key in originals:
        del sys.modules[key]
    _debug = _guarding = True
    try:
        return importlib.import_module(name)
    finally:
        _debug = before
        for key in [key for key in sys.modules if key.startswith("headwater.kernels.") and key not in shared]:
            del sys.modules[key]
            package.__dict__.pop(key.rpartition(".")[2], None)
        for key, module in originals.items():
            sys.modules[key] = module
            setattr(package, key.rpartition(".")[2], module)
