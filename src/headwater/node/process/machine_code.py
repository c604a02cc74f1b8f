"""A node's kernels before they are compiled: in a checkout, at the first start on a machine or after an upgrade.

Compiling all of them takes a quarter of a minute of a core, and a node can answer long before: `begin` compiles the few
kernels that every read or write needs, and a process of low priority, the helper, compiles the rest into the cache. The
helper prints the name of each compiled module; a thread of the node then loads the module, in milliseconds, and later
calls use it.

Until then requests are answered one by one in Python (the stand-ins of kernels/execute.py), and other kernels are
compiled at their first call. If the helper can't be started, dies, or can't save its results (a full disk), the thread
compiles the rest. Recovery, which comes first, waits for the kernels that it needs.

A wheel with machine code does not contain this file (hatch_build.py), and a node with machine code never imports it.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from typing import IO, Final

from headwater.kernels import builds, cached
from headwater.node.process.kernel_modules import FIRST, LATER, MODULES, counts, warm_up
from headwater.node.reporting.log_lines import event

HELPER_ORDER: Final = (*reversed(FIRST), *LATER)
"""The order in which the helper compiles modules: it begins with those that the node itself would compile last."""
HELPER_NICENESS: Final = 5
STOP_SECONDS: Final = 60.0

log: Final = logging.getLogger(__name__)


def missing(modules: tuple[str, ...]) -> list[str]:
    """Load the cached kernels; return the modules with kernels that are not in the cache."""
    uncached = []
    for name in modules:
        try:
            with cached.looking():
                warm_up(name)
        except cached.NotCompiled:
            uncached.append(name)
    return uncached


class MachineCode:
    """Compiles a node's kernels while the node serves."""

    def __init__(self) -> None:
        self._left: list[str] = []
        self._helper: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    def begin(self) -> None:
        """Load the cached kernels, compile those that every node needs, and start the helper and the thread for the
        rest.
        """
        self._left = missing(MODULES) if builds.compiling() else []
        if not self._left:
            return
        # The helper first: it compiles at the same time as this process, in another order.
        self._helper = self._started()
        for name in [name for name in FIRST if name in self._left]:
            warm_up(name)
            self._left.remove(name)
        # From here on no call waits for a compiler: requests take the plain path until a kernel is loaded.
        cached.serving = True
        self._tell(logging.WARNING)
        self._thread = threading.Thread(target=self._run, name="kernels", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Kill the helper, and wait for the thread, at most STOP_SECONDS; the thread ends after the kernel that it is
        compiling.
        """
        self._stopping.set()
        if self._helper is not None:
            self._helper.kill()  # finished kernels stay in the cache, and an incomplete entry is ignored
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    def _started(self) -> subprocess.Popen[str] | None:
        """Start and return the helper; None if it can't be started, or there is no folder for its results."""
        if builds.cache_folder() is None or not sys.executable:
            return None
        command = [sys.executable, "-m", "headwater.kernels.warming", "--niceness", str(HELPER_NICENESS)]
        try:
            return subprocess.Popen(  # noqa: S603 - this very Python
                [*command, *HELPER_ORDER],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        except OSError as error:
            log.warning("no process can be started to compile kernels: %s", error, extra=event("kernels.alone"))
            return None

    def _run(self) -> None:
        try:
            if self._helper is not None and self._helper.stdout is not None:
                self._follow(self._helper, self._helper.stdout)
            self._compile_the_rest()
            if not self._left:
                self._tell(logging.WARNING)
        except Exception:  # an error of the compiler or the disk, or no memory: the node is slower without machine code
            log.exception("kernels can't be compiled; the node stays slower", extra=event("kernels.failed"))
        finally:
            cached.serving = False  # the first call of a kernel that is still missing compiles it

    def _follow(self, helper: subprocess.Popen[str], lines: IO[str]) -> None:
        """Load each module that the helper has compiled; return when the helper has ended."""
        with lines:
            for name in map(str.strip, lines):
                # An entry that the helper could not save is not in the cache; it is compiled here later.
                if name in self._left and not missing((name,)):
                    self._left.remove(name)
                    if self._left:
                        self._tell()
        if (status := helper.wait()) and not self._stopping.is_set():
            log.warning(
                "the process that compiled kernels ended with status %d; the node compiles what is left itself",
                status,
                extra=event("kernels.alone", status=status),
            )

    def _compile_the_rest(self) -> None:
        """Compile the kernels that the helper did not compile, or could not save."""
        while self._left and not self._stopping.is_set():
            with cached.building():
                warm_up(self._left.pop(0))
            if self._left:
                self._tell()

    def _tell(self, level: int = logging.INFO) -> None:
        compiled, total = counts()
        until = "" if compiled == total else "; until the others are, the node is slower"
        log.log(
            level,
            "%d of %d kernels compiled%s",
            compiled,
            total,
            until,
            extra=event("kernels.compiled", done=compiled, of=total),
        )
