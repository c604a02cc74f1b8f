"""Starts a node's process: forked by the fork server of this process, which takes a tenth of a second, or plainly.

The first start creates the fork server (forkserver.py) and takes the usual time. The fork server ends with this
process, in whatever way, and its nodes end with it. A node is started plainly, as `python -m headwater serve`,

- where there is no fork server: not on Linux, or with HEADWATER_TESTING_FORK=0,
- when a variable that is read while Python and libraries load differs from what the fork server has loaded.

A forked node has the working directory and the variables of the moment it is started, as a plain one has.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Mapping
from contextlib import suppress
from threading import Lock
from typing import IO, Final, Protocol

ANSWER_SECONDS = 600.0  # the first answer waits for the kernels, which may have to be compiled, on a busy machine
END_SECONDS = 30.0

HANDLED = frozenset({"HEADWATER_FAILPOINTS", "HEADWATER_PASSWORD"})  # read by a fork anew
READ_WHILE_LOADING = (
    *("HEADWATER_", "XDG_CACHE_HOME", "HOME", "PYTHON", "LD_", "GLIBC_", "MALLOC_", "LC_", "LANG", "TZ"),
    *("NUMBA_", "LLVM", "NUMPY_", "NPY_", "OPENBLAS_", "OMP_", "MKL_"),
)


class Process(Protocol):
    """The part of a process that a node needs, with the names and meanings of subprocess.Popen."""

    @property
    def pid(self) -> int:
        """The process id."""

    @property
    def stdout(self) -> IO[bytes] | None:
        """Our end of the pipe."""

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal, or None while the process runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status once the process has ended; subprocess.TimeoutExpired after so many seconds."""

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless the process has ended."""

    def kill(self) -> None:
        """Kill the process with SIGKILL."""


def start(arguments: list[str], environment: Mapping[str, str], log: IO[bytes]) -> Process:
    """Run `headwater ARGUMENTS`: stdout is a pipe, stderr goes to `log`; return at once."""
    return fork_servers.start(arguments, environment, log) or subprocess.Popen(  # noqa: S603 - our own interpreter
        [sys.executable, "-m", "headwater", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        env=environment,
    )


class Forked:
    """A process that the fork server forked, and reaps; see Process."""

    def __init__(self, pid: int, stdout: IO[bytes], status: int) -> None:
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._status = status
        self._lock = Lock()
        weakref.finalize(self, os.close, status)

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal, or None while the process runs."""
        return self._read(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status once the process has ended; subprocess.TimeoutExpired after so many seconds."""
        if (status := self._read(timeout)) is None:
            raise subprocess.TimeoutExpired("headwater", timeout or 0.0)
        return status

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _read(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], seconds)[0]:
            with self._lock:
                if self.returncode is None:
                    # No status: the fork server died, and the kernel killed its nodes then.
                    self.returncode = int(os.read(self._status, 16) or -signal.SIGKILL)
        return self.returncode


class ForkServerProcess:
    """The fork server, as its parent sees it. Errors are OSError: it has ended, or does not answer."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.loaded_with: Final = _read_while_loading(environment)
        self._control, child_socket = socket.socketpair()
        self._control.settimeout(ANSWER_SECONDS)
        self._has_answered = False
        with child_socket:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
                [sys.executable, "-m", "headwater.testing.forkserver", str(child_socket.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**_without(environment, HANDLED), "OPENBLAS_NUM_THREADS": "1"},  # it may have no threads
                pass_fds=[child_socket.fileno()],
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def start(self, arguments: list[str], environment: Mapping[str, str], log: IO[bytes]) -> Forked:
        """Fork a process that runs `headwater ARGUMENTS`."""
        request = {"arguments": arguments, "environment": dict(environment), "directory": os.getcwd()}  # noqa: PTH109
        out, its_out = os.pipe()
        status, its_status = os.pipe()
        try:
            pid = self._ask(request, [its_out, log.fileno(), its_status])
        except OSError:
            os.close(out)
            os.close(status)
            if not self._has_answered:  # it would fork when it gets to that, beside the node that is started plainly
                self._process.kill()
            raise
        finally:
            os.close(its_out)
            os.close(its_status)
        return Forked(pid, open(out, "rb", buffering=0), status)  # noqa: PTH123 - a descriptor; Node closes it

    def _ask(self, request: Mapping[str, object], fds: list[int]) -> int:
        data = json.dumps(request).encode() + b"\n"
        sent_bytes = socket.send_fds(self._control, [data], fds)
        self._control.sendall(data[sent_bytes:])
        answer = b""
        while not answer.endswith(b"\n"):
            if not (piece := self._control.recv(4096)):
                raise ConnectionResetError("the fork server has ended")
            answer += piece
        reply, self._has_answered = json.loads(answer), True
        if "error" in reply:
            raise BlockingIOError(reply["error"])
        return int(reply["pid"])

    def end(self) -> None:
        """End the fork server, which kills its nodes; wait until it has ended."""
        self._control.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def forget(self) -> None:
        """Close the socket in a fork of this process: it must close when its owner's copy does."""
        self._control.close()
        self._process.returncode = 0


class ForkServers:
    """The fork server of this process; started by the first node that is forked."""

    def __init__(self) -> None:
        self.current: ForkServerProcess | None = None
        self._lock = Lock()
        self.broken: str = ""
        """The reason why this process can have no fork server; empty while it can."""

    def start(self, arguments: list[str], environment: Mapping[str, str], log: IO[bytes]) -> Forked | None:
        """Return a forked process, or None if it must be started plainly."""
        if sys.platform != "linux" or environment.get("HEADWATER_TESTING_FORK") == "0":
            return None
        with self._lock:
            if self.broken:
                return None
            if self.current is None:
                self.current = ForkServerProcess(environment)
            if self.current.loaded_with != _read_while_loading(environment):
                return None
            try:
                return self.current.start(arguments, environment, log)
            except OSError as error:  # whatever is wrong with it, a plain start shows it, or works
                self.broken = str(error) or type(error).__name__
                return None

    def end(self) -> None:
        """End the fork server, at the end of this process."""
        if self.current is not None:
            self.current.end()
            self.current = None

    def forget(self) -> None:
        """Forget the fork server, in a fork of this process."""
        self._lock = Lock()
        if self.current is not None:
            self.current.forget()
            self.current = None


def _without(environment: Mapping[str, str], names: frozenset[str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in names}


def _read_while_loading(environment: Mapping[str, str]) -> dict[str, str]:
    variables = _without(environment, HANDLED)
    return {name: value for name, value in variables.items() if name.startswith(READ_WHILE_LOADING)}


fork_servers: Final = ForkServers()
atexit.register(fork_servers.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=fork_servers.forget)
