"""Builds kernels: compiled and cached, or plain Python with every access checked.

The compiled build is numba's `njit(nogil=True)` with a cache of our own (cached.py). numba's keeps one entry per source
file and does not notice when a function that was inlined from *another* file changes: after an upgrade (or an edit) a
caller could run the old callee for ever. Hence the cache folder is named by a hash of every source whose constants or
code can end up in machine code, this package and `headwater.wire`, and by that of the compiler, Python and processor.
Another of these is another folder; a stale kernel cannot be found, and the same one is found from any environment.

    HEADWATER_CACHE          the folder to keep caches in; else XDG_CACHE_HOME/headwater, else ~/.cache/headwater, else
                             one of this user in the system's folder for temporary files
    HEADWATER_DEBUG_KERNELS  1: no compiling; kernels run as Python and guard.py checks every address (slow, for tests)

The debug build exists per process (the variable) and side by side with the compiled one (`debug_copy`, for tests).
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
import platform
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

import llvmlite.binding
import numba
import numpy as np
from numpy.typing import NDArray

from headwater.kernels import cached, guard

F = TypeVar("F", bound=Callable[..., Any])

PACKAGE = Path(__file__).parent
CACHES_KEPT = 6  # source versions whose machine code stays on disk: an upgrade, its rollback and some branches

_debug = os.environ.get("HEADWATER_DEBUG_KERNELS", "") not in ("", "0")
_guarding = _debug  # whether a checked kernel exists in this process, here or in a debug copy
_built: list[tuple[str, Any]] = []


def debugging() -> bool:
    """Return True if kernels defined now are the checked Python build."""
    return _debug


def source_hash(folders: tuple[Path, ...] = (PACKAGE, PACKAGE.parent / "wire")) -> str:
    """Return sixteen hex digits that change with any byte of the kernels' sources."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in folders for path in folder.glob("*.py")):
        digest.update(f"{path.parent.name}/{path.name}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def cache_home() -> Path:
    """Return the folder of all caches of this user; HEADWATER_CACHE overrides it."""
    if override := os.environ.get("HEADWATER_CACHE"):
        return Path(override)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "headwater"


def prune(home: Path, keep: int = CACHES_KEPT) -> list[Path]:
    """Delete all but the `keep` kernel caches used last; return the deleted ones. A process that still uses a deleted
    cache has its code in memory and writes its folder anew when it compiles more."""
    dated: list[tuple[float, Path]] = []
    for path in home.glob("kernels-*"):
        with suppress(FileNotFoundError):  # another process prunes as well
            dated.append((path.stat().st_mtime, path))
    gone = [path for _, path in sorted(dated, reverse=True)[keep:]]
    for path in gone:
        shutil.rmtree(path, ignore_errors=True)
    return gone


@functools.cache
def toolchain() -> str:
    """Return eight hex digits for everything else that machine code depends on: compiler, Python, processor."""
    features = sorted(name for name, there in llvmlite.binding.get_host_cpu_features().items() if there)
    parts = [numba.__version__, llvmlite.__version__, sys.implementation.cache_tag, platform.machine()]
    parts += [llvmlite.binding.get_host_cpu_name(), *features]
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:8]


@functools.cache
def cache_folder() -> Path | None:
    """Return the folder for the machine code of this source; None if there is none and none can be created (then every
    process compiles for itself). A read-only folder will do if it has content."""
    reasons = []
    for home in _homes():
        try:
            folder = home() / f"kernels-{source_hash()}-{toolchain()}"
            if folder.is_dir() and not os.access(folder, os.W_OK) and any(folder.iterdir()):
                return folder
            folder.mkdir(parents=True, exist_ok=True)
            os.utime(folder)
            prune(folder.parent)
        except (OSError, RuntimeError) as error:  # RuntimeError: no home directory
            reasons.append(str(error))
            continue
        if reasons:
            cached.compiling.remark = f" ({reasons[0]}; HEADWATER_CACHE names another folder)"
        return folder
    cached.compiling.remark = f" ({reasons[0]}; HEADWATER_CACHE names a folder to keep them in)"
    return None


def _homes() -> tuple[Callable[[], Path], ...]:
    return cache_home, temporary_home


def temporary_home() -> Path:
    """Return a folder of this user alone among the system's temporary files.

    Raises:
        OSError: others may write to the path: code is loaded from it.
    """
    home = Path(tempfile.gettempdir()) / f"headwater-{os.getuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    status = home.lstat()
    if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o022:
        raise PermissionError(f"{home} is not this user's alone")
    return home


def _njit(**options: bool) -> Any:
    """Return njit without the entry for C, a fifth of the compiling."""
    njit: Any = numba.njit  # whose types do not know all options
    return njit(nogil=True, no_cfunc_wrapper=True, **options)


def _compile(function: Callable[..., Any]) -> Any:
    """Return a dispatcher with the cache in our folder."""
    built = _njit()(function)
    folder = cache_folder()
    if folder is None:
        built._cache = cached.Unkept()
    else:
        cached.KernelLocator.folder = str(folder)
        built._cache = cached.KernelCache(function)
    return built


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


def kernel(function: F) -> F:
    """Make a kernel that Python calls: it releases the GIL, is compiled once per signature and cached on disk."""
    if _debug:
        return _checked(function)
    built = _compile(function)
    _built.append((f"{function.__module__}.{function.__name__}", built))
    return cast(F, built)


def kernel_or(stand_in: Callable[..., Any]) -> Callable[[F], F]:
    """Make a kernel that a node can do without for a while: until it is compiled, `stand_in` is called instead if the
    thread serves (cached.does_without). Once compiled, a call is as quick as any kernel's."""

    def decorate(function: F) -> F:
        built: Any = kernel(function)
        if not _debug:
            compile_for = built._compile_for_args

            def first(*arguments: Any) -> Any:
                """Return the code that numba calls, asked when it has none for such arguments."""
                return stand_in if cached.does_without() else compile_for(*arguments)

            built._compile_for_args = first
        return cast(F, built)

    return decorate


def inline_kernel(function: F) -> F:
    """Make a kernel for kernels only: inlined into its callers, at no cost of a call, without a cache."""
    if _debug:
        return function
    built = _njit(forceinline=True, no_cpython_wrapper=True)(function)

    def refuse(*arguments: Any) -> Any:
        raise TypeError(f"{function.__module__}.{function.__name__} is for kernels; Python can't call it")

    # What numba compiles for kernels has no entry for Python: it would call address 0 and end the process.
    built._insert = lambda *code: None
    built._compile_for_args = refuse
    return cast(F, built)


def prepare(built: Callable[..., Any], *examples: Any) -> None:
    """Compile a kernel, or load it, for arguments of the types of these examples, without running it."""
    if not _debug:
        typeof: Any = numba.typeof  # untyped
        cast(Any, built).compile(tuple(typeof(example) for example in examples))


def built_kernels() -> list[tuple[str, Any]]:
    """Return (name, dispatcher) of every compiled `@kernel` that was imported so far, in order."""
    return list(_built)


def debug_copy(name: str) -> ModuleType:
    """Return a second, checked build of a kernel module, for tests.

    The module and the kernels it imports are executed anew under the debug decorators; sys.modules ends as it was.
    Classes of the copy are not those of the original.
    """
    global _debug, _guarding  # noqa: PLW0603 - the switches that decorators and `reachable` read
    if not name.startswith("headwater.kernels."):
        raise ValueError(f"{name} is not a kernel module")
    shared = {"headwater.kernels", __name__, guard.__name__}
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
