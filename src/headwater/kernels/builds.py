"""Chooses how kernels are built: machine code of the wheel, machine code by numba, or plain Python with every access
checked.

A wheel contains machine code (machine.py). In a checkout numba compiles the kernels and caches them on disk (jit.py).
The checked build runs kernels as Python, and guard.py checks every address.

    HEADWATER_DEBUG_KERNELS  1: the checked build (slow, for tests)

The variable selects the checked build for the whole process; `debug_copy` (for tests) loads it in addition to another
build.
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
    """Return True if numba compiles kernels in this process, or loads them from its cache."""
    return not _debug and _machine is None


def _arrays(argument: Any) -> Iterator[NDArray[Any]]:
    """Yield the arrays of a kernel's argument: itself, or the members of a (named) tuple."""
    if isinstance(argument, np.ndarray):
        yield argument
    elif isinstance(argument, tuple):
        for member in argument:
            yield from _arrays(member)


def _checked_kernel(function: F) -> F:
    """Return a function that runs a kernel as Python: its array arguments are accessible during the call, and unsigned
    arithmetic wraps without numpy's warning.
    """

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        arrays = [array for argument in arguments for array in _arrays(argument)]
        with guard.registered(*arrays), np.errstate(over="ignore"):
            return function(*arguments)

    return cast(F, call)


class _Unchecked:
    """The context that `reachable` returns in builds without checks; does nothing."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exception: object) -> None:
        return None


_UNCHECKED = _Unchecked()


def reachable(*arrays: NDArray[Any]) -> AbstractContextManager[None]:
    """Return a context for a call that passes addresses; inside it the debug build allows access to these arrays."""
    return guard.registered(*arrays) if _guarding else _UNCHECKED


def numbas(name: str) -> ModuleType:
    """Import a module of the package that only numba's build needs.

    Raises:
        ImportError: numba is not installed, or this wheel has machine code of another machine; the text names the
            remedy.
    """
    try:
        return importlib.import_module(f"headwater.kernels.{name}")
    except ModuleNotFoundError as error:
        is_kernel = (
            error.name == f"headwater.kernels.{name}"
        )  # a wheel with machine code, for another machine than this
        universal_wheel = "the wheel of headwater for all systems, which needs numba"
        remedy = universal_wheel if is_kernel else "numba, or a wheel of headwater for this machine"
        raise ImportError(
            f"there is no machine code for this machine in {PACKAGE}, and {error.name} is not installed: "
            f"pip install {remedy}"
        ) from error


def kernel(function: F) -> F:
    """Build a kernel that Python calls; it releases the GIL, and numba compiles it once per signature."""
    if _debug:
        return _checked_kernel(function)
    if _machine is not None:
        return cast(F, _machine[_name(function)])
    return cast(F, numbas("jit").kernel(function))


def kernel_or(stand_in: Callable[..., Any]) -> Callable[[F], F]:
    """Build a kernel with a stand-in: until the kernel is compiled, a serving node calls `stand_in` instead
    (jit.py).
    """

    def decorate(function: F) -> F:
        return cast(F, numbas("jit").kernel_or(stand_in, function)) if compiling() else kernel(function)

    return decorate


def inline_kernel(function: F) -> F:
    """Build a function that only kernels call: it is inlined into them, so a call costs nothing."""
    return cast(F, numbas("jit").inline_kernel(function)) if compiling() else function


def prepare(built: Callable[..., Any], *examples: Any) -> None:
    """Compile or load a kernel for arguments of the types of `examples`, without running it."""
    if compiling():
        numbas("jit").prepare(built, *examples)


def are_built(modules: Collection[str]) -> list[bool]:
    """Return, for each kernel that was imported from these modules, True if it has machine code."""
    if _machine is not None:
        return [True for name in _machine if name.partition(".")[0] in modules]
    built = numbas("jit").built_kernels() if compiling() else ()
    return [bool(kernel.signatures) for name, kernel in built if name.split(".")[2] in modules]


def cache_folder() -> Path | None:
    """Return the folder of numba's cached machine code; None if it can't be cached, or numba does not compile."""
    folder: Path | None = numbas("jit").cache_folder() if compiling() else None
    return folder


def _name(function: Callable[..., Any]) -> str:
    return f"{function.__module__.removeprefix('headwater.kernels.')}.{function.__name__}"


def debug_copy(name: str) -> ModuleType:
    """Return a second, checked build of a kernel module, for tests.

    The module and the kernels that it imports are executed again with the decorators of the checked build; sys.modules
    is restored. Classes of the copy differ from those of the original.
    """
    global _debug, _guarding  # noqa: PLW0603 - the switches that decorators and `reachable` read
    if not name.startswith("headwater.kernels."):
        raise ValueError(f"{name} is not a kernel module")
    shared_modules = {"headwater.kernels", *(f"headwater.kernels.{name}" for name in SHARED)}
    our_modules = {key: value for key, value in sys.modules.items() if key.startswith("headwater.kernels.")}
    originals = {key: value for key, value in our_modules.items() if key not in shared_modules}
    before, package = _debug, sys.modules["headwater.kernels"]
    for key in originals:
        del sys.modules[key]
    _debug = _guarding = True
    try:
        return importlib.import_module(name)
    finally:
        _debug = before
        for key in [key for key in sys.modules if key.startswith("headwater.kernels.") and key not in shared_modules]:
            del sys.modules[key]
            package.__dict__.pop(key.rpartition(".")[2], None)
        for key, module in originals.items():
            sys.modules[key] = module
            setattr(package, key.rpartition(".")[2], module)
