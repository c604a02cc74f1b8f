"""Machine code on disk, identified by its sources and not by their path; one process at a time compiles.

numba names a cache entry by the path of its source and dates it by its mtime, so every virtual environment compiles
anew. Here the folder's name depends on everything that matters (jit.cache_folder), and with a lock file beside each
entry a second process waits for the first instead of compiling the same.

A node that serves while its kernels are compiled (node/process/machine_code.py) needs two things more: loading without
compiling (`looking`), and no waiting while a request needs a kernel (`serving`).
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from numba.core import caching

WAIT_SECONDS, LOOK_SECONDS = 300.0, 0.05
"""How long to wait for another process that compiles the same kernel; then it counts as stuck."""
PROGRESS_SECONDS = 5.0

_caching: Any = caching  # untyped, and with other names in older releases


class NotCompiled(Exception):  # noqa: N818 - no error: an answer
    """There is no machine code of a kernel for these arguments yet, and this thread may not compile."""


class _Thread(threading.local):
    looks = builds = False


_thread = _Thread()
serving = False
"""Whether this process serves while kernels are compiled elsewhere, in another process or thread."""


@contextmanager
def looking() -> Iterator[None]:
    """Load kernels in this block, by this thread, and compile none: NotCompiled is raised for a missing one."""
    before, _thread.looks = _thread.looks, True
    try:
        yield
    finally:
        _thread.looks = before


@contextmanager
def building() -> Iterator[None]:
    """Compile or load in this block, by this thread, also while `serving`: no stand-in replaces a kernel."""
    before, _thread.builds = _thread.builds, True
    try:
        yield
    finally:
        _thread.builds = before


def does_without() -> bool:
    """Return True if this thread serves: it neither waits nor compiles a kernel that has a stand-in."""
    return serving and not (_thread.looks or _thread.builds)


class Compiling:
    """Shows why nothing happens for a while.

    Args:
        line: called with each line.
        clock: returns seconds.
    """

    def __init__(self, line: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._line, self._clock = line, clock
        self._began = self._reported = 0.0
        self.count = 0
        self.remark = ""
        """Why the usual folder is not used, to be told with the first line."""

    def begin(self, folder: str) -> None:
        """Report that a kernel is about to be compiled."""
        now = self._clock()
        if not self.count:
            self._began = self._reported = now
            kept = f"They are kept in {folder}" if folder else "They can't be kept, so each start takes as long"
            self._say(f"compiling kernels for this machine, once; it takes half a minute or so. {kept}{self.remark}")
        elif now >= self._reported + PROGRESS_SECONDS:
            self._reported = now
            self._say(f"{self.count} kernels compiled in {now - self._began:.0f} s")
        self.count += 1

    def _say(self, text: str) -> None:
        with suppress(OSError, ValueError):  # stderr may be closed
            self._line(text)

    def tell(self, line: Callable[[str], None]) -> None:
        """Send lines to another function from now on."""
        self._line = line


def _to_stderr(line: str) -> None:
    print(f"headwater: {line}", file=sys.stderr, flush=True)


compiling = Compiling(_to_stderr)
"""Of this process."""


class KernelLocator(_caching._CacheLocator):  # type: ignore[misc]
    """Finds a kernel's entries in the folder for this source, compiler and processor."""

    folder: ClassVar[str] = ""

    def __init__(self, function: Any) -> None:
        self._module, self._line = function.__module__, function.__code__.co_firstlineno

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> KernelLocator:
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
    _locator_classes: ClassVar[list[Any]] = [KernelLocator]


class KernelCache(_caching.FunctionCache):  # type: ignore[misc]
    """The cache of one kernel: loads, or takes the lock while it is compiled, then saves and releases the lock."""

    _impl_class = _Entries

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self._held: int | None = None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the code for a signature; None if this process shall compile it."""
        code = self._load(sig, target_context)
        if code is None and _thread.looks:
            raise NotCompiled
        if code is None:
            waited = self._lock()
            code = self._load(sig, target_context) if waited else None
            if code is None:
                compiling.begin(self.cache_path)
            else:
                self._unlock()
        return code

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save compiled code; if the folder can't be written, or the disk is full, only the next start takes longer."""
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
        """Take the lock of this kernel; True when another process had it meanwhile."""
        path = Path(self.cache_path, f"{self._impl.filename_base}.lock")
        self._unlock()
        try:
            self._held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:  # a folder that can only be read
            return False
        until, waited = time.monotonic() + (0 if does_without() else WAIT_SECONDS), False
        while True:
            try:
                fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
        held, self._held = self._held, None
        if held is not None:
            os.close(held)


class Unkept(_caching.NullCache):  # type: ignore[misc]
    """Replaces the cache if nothing can be saved."""

    def load_overload(self, sig: Any, target_context: Any) -> None:
        """Return None: this process shall compile it."""
        if _thread.looks:
            raise NotCompiled
        compiling.begin("")
