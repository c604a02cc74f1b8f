"""Builds kernels by numba, and caches them on disk: in a checkout, and on machines without a wheel of their own.

The build is numba's `njit(nogil=True)` with another cache. numba's own cache does not notice that a function inlined
from *another* file has changed: after an upgrade (or an edit) a caller could run the old function indefinitely. So the
name of the cache folder contains a hash of every source whose constants or code can become machine code (this package
and `headwater.wire`), and a hash of compiler, Python and processor. A change of any of these leads to another folder:
no stale kernel is loaded, and all environments share one cache.

    HEADWATER_CACHE          the folder for caches; else XDG_CACHE_HOME/headwater, else ~/.cache/headwater, else
                             a folder of this user among the system's temporary files
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import platform
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, TypeVar, cast

import llvmlite.binding
import numba
from numba.core import caching

from headwater.kernels import cached
from headwater.kernels.sources import NUMBAS, PACKAGE, hash_of, source_hash

F = TypeVar("F", bound=Callable[..., Any])

_caching: Any = caching  # untyped, and with other names in older releases

CACHES_KEPT = 6  # source versions whose machine code stays on disk: an upgrade, its rollback and some branches

WAIT_SECONDS, LOOK_SECONDS = 300.0, 0.05
"""The longest wait for another process that compiles the same kernel, and the pause between two looks at it."""
_built: list[tuple[str, Any]] = []


def cache_home() -> Path:
    """Return the folder of all caches of this user; HEADWATER_CACHE overrides it."""
    if override := os.environ.get("HEADWATER_CACHE"):
        return Path(override)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "headwater"


def prune(home: Path, keep: int = CACHES_KEPT) -> list[Path]:
    """Delete all but the `keep` kernel caches used last; return the deleted ones.

    A process that still uses a deleted cache has its code in memory, and creates the folder again when it compiles
    more.
    """
    dated: list[tuple[float, Path]] = []
    for path in home.glob("kernels-*"):
        with suppress(FileNotFoundError):  # another process prunes as well
            dated.append((path.stat().st_mtime, path))
    old_caches = [path for _, path in sorted(dated, reverse=True)[keep:]]
    for path in old_caches:
        shutil.rmtree(path, ignore_errors=True)
    return old_caches


@functools.cache
def toolchain() -> str:
    """Return eight hex digits, a hash of everything but the sources that machine code depends on: compiler and its
    options, Python, processor.
    """
    features = sorted(name for name, is_present in llvmlite.binding.get_host_cpu_features().items() if is_present)
    parts = [numba.__version__, llvmlite.__version__, sys.implementation.cache_tag, platform.machine()]
    parts += [llvmlite.binding.get_host_cpu_name(), *features, hash_of(PACKAGE / f"{name}.py" for name in NUMBAS)]
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:8]


@functools.cache
def cache_folder() -> Path | None:
    """Return the folder for the machine code of these sources; None if it can't be created (then every process
    compiles).

    A read-only folder is used if it has content.
    """
    reasons = []
    for home in _homes():
        try:
            folder = home() / f"kernels-{source_hash()}-{toolchain()}"
            if folder.is_dir() and not os.access(folder, os.W_OK) and any(folder.iterdir()):
                return folder
            folder.mkdir(parents=True, exist_ok=True)
            # By this time `prune` knows which folders were used last.
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
    """Return this user's own folder among the system's temporary files.

    Raises:
        OSError: another user could write to the folder, from which code is loaded.
    """
    home = Path(tempfile.gettempdir()) / f"headwater-{os.getuid()}"
    home.mkdir(mode=0o700, exist_ok=True)
    status = home.lstat()
    # Looked at by `lstat` after it is there: somebody else may have made the folder, or a link, before us.
    if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o022:
        raise PermissionError(f"{home} is not this user's alone")
    return home


class _KernelLocator(_caching._CacheLocator):  # type: ignore[misc]
    """Finds a kernel's entries in the folder for this source, compiler and processor."""

    folder: ClassVar[str] = ""

    def __init__(self, function: Any) -> None:
        self._module, self._line = function.__module__, function.__code__.co_firstlineno

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> _KernelLocator:
        """Return the locator of a kernel."""
        return cls(py_func)

    def get_cache_path(self) -> str:
        """Return the folder."""
        return self.folder

    def get_source_stamp(self) -> str:
        """Return the folder's name, which changes with the sources."""
        return Path(self.folder).name

    def get_disambiguator(self) -> str:
        """Return text that distinguishes functions of the same name."""
        return f"{self._module}-{self._line}"


class _Entries(_caching.CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes: ClassVar[list[Any]] = [_KernelLocator]


class _KernelCache(_caching.FunctionCache):  # type: ignore[misc]
    """The cache of one kernel: loads its code, or holds a lock while it is compiled and saved."""

    _impl_class = _Entries

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self._lock_descriptor: int | None = None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the code for a signature; None if this process must compile it."""
        code = self._load(sig, target_context)
        if code is None and cached.looks():
            raise cached.NotCompiled
        if code is None:
            waited = self._lock()
            code = self._load(sig, target_context) if waited else None
            if code is None:
                cached.compiling.begin(self.cache_path)
            else:
                self._unlock()
        return code

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save compiled code; ignore errors (a read-only folder, a full disk), which only make the next start
        slower.
        """
        try:
            with suppress(OSError):
                super().save_overload(sig, data)
        finally:
            self._unlock()

    def _load(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # whatever is wrong with a file, it is compiled anew and replaced
            with suppress(OSError):
                self.flush()
            return None

    def _lock(self) -> bool:
        """Take the lock of this kernel, waiting for a limited time; return True if another process held it
        meanwhile.
        """
        path = Path(self.cache_path, f"{self._impl.filename_base}.lock")
        self._unlock()
        try:
            self._lock_descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:  # a folder that can only be read
            return False
        # A thread that serves must not stand still for another process: it compiles, or does without.
        until, waited = time.monotonic() + (0 if cached.does_without() else WAIT_SECONDS), False
        while True:
            try:
                fcntl.flock(self._lock_descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waited = True
            except OSError:  # a file system without locks
                break
            else:
                break
            if time.monotonic() >= until:
                break
            time.sleep(LOOK_SECONDS)
        return waited

    def _unlock(self) -> None:
        descriptor, self._lock_descriptor = self._lock_descriptor, None
        if descriptor is not None:
            os.close(descriptor)


class _Unkept(_caching.NullCache):  # type: ignore[misc]
    """Replaces the cache if code can't be saved."""

    def load_overload(self, sig: Any, target_context: Any) -> None:
        """Return None: this process must compile the kernel."""
        if cached.looks():
            raise cached.NotCompiled
        cached.compiling.begin("")


def _njit(**options: bool) -> Any:
    """Return numba's njit with these options, without the entry point for C, a fifth of the compile time."""
    njit: Any = numba.njit  # whose types do not know all options
    return njit(nogil=True, no_cfunc_wrapper=True, **options)


def _compile(function: Callable[..., Any]) -> Any:
    """Return numba's dispatcher of a function, with a cache in `cache_folder`."""
    built = _njit()(function)
    folder = cache_folder()
    if folder is None:
        built._cache = _Unkept()
    else:
        _KernelLocator.folder = str(folder)
        built._cache = _KernelCache(function)
    return built


def kernel(function: F) -> F:
    """Return a dispatcher that compiles a kernel once per signature, and saves its code on disk."""
    built = _compile(function)
    _built.append((f"{function.__module__}.{function.__name__}", built))
    return cast(F, built)


def kernel_or(stand_in: Callable[..., Any], function: F) -> F:
    """Return a dispatcher of a kernel with a stand-in.

    Until the kernel is compiled, a thread that serves (cached.does_without) calls `stand_in` instead. Afterwards a call
    costs no more than that of any kernel.
    """
    built: Any = kernel(function)
    compile_for = built._compile_for_args

    def first(*arguments: Any) -> Any:
        """Return the code that numba calls for arguments without machine code: the stand-in, or compiled code."""
        return stand_in if cached.does_without() else compile_for(*arguments)

    built._compile_for_args = first
    return cast(F, built)


def inline_kernel(function: F) -> F:
    """Return the form of a function that numba inlines into kernels; it has no cache."""
    built = _njit(forceinline=True, no_cpython_wrapper=True)(function)

    def refuse(*arguments: Any) -> Any:
        raise TypeError(f"{function.__module__}.{function.__name__} is for kernels; Python can't call it")

    # What numba compiles for kernels has no entry for Python: it would call address 0 and end the process.
    built._insert = lambda *code: None
    built._compile_for_args = refuse
    return cast(F, built)


def prepare(built: Callable[..., Any], *examples: Any) -> None:
    """Compile or load a kernel for arguments of the types of `examples`, without running it."""
    typeof: Any = numba.typeof  # untyped
    cast(Any, built).compile(tuple(typeof(example) for example in examples))


def built_kernels() -> list[tuple[str, Any]]:
    """Return (name, dispatcher) of every kernel that was imported so far, in order."""
    return list(_built)
