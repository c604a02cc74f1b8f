"""The process that nodes are forked from: `python -m headwater.testing.forkserver FD`, started by processes.py.

Python, numpy, our modules and, in a checkout, numba cost a node most of its first second. This process pays that once;
a node is then a fork of it, which continues as `python -m headwater serve` does; any other command can be run in the
same way. So that forking is safe, it has one thread and no event loop, ever. Linux only (pidfds, PR_SET_PDEATHSIG).

On the socket whose descriptor is FD, in JSON lines:

    -> {"arguments": [...], "environment": {...}, "directory": "..."}    with stdout, stderr and a pipe for the status
    <- {"pid": 1234}  or  {"error": "Resource temporarily unavailable"}

The exit status of a node, negative for a signal, is written into its pipe as a line of text. When the socket closes,
the process that started this one is gone: running nodes are killed, as they are when this process dies in any other
way.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import runpy
import select
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from headwater.errors import OptionError
from headwater.node import main as node
from headwater.node import run

PR_SET_PDEATHSIG = 1  # linux/prctl.h
FDS = 3  # stdout, stderr, the pipe for the status
PIECE_BYTES = 1 << 16

_libc = ctypes.CDLL(None)


class ForkServer:
    """A server that forks on request. `run` returns in this process only at the end; in each fork it returns its
    arguments.
    """

    def __init__(self, control: socket.socket, interrupt: Any) -> None:
        self._control = control
        self._interrupt = interrupt
        self._pid = os.getpid()
        self._born: dict[int, tuple[int, int]] = {}  # by pidfd: pid, and the pipe its status goes into

    def run(self) -> list[str] | None:
        """Serve requests; return the arguments in a node's process, and None in this one, at the end."""
        control = self._control.fileno()
        while True:
            ready, _, _ = select.select([control, *self._born], [], [])
            for each in set(ready) - {control}:
                self._reap(each)
            if control in ready:
                if (request := self._receive()) is None:
                    self._end()
                    return None
                if (arguments := self._fork(*request)) is not None:
                    return arguments

    def _receive(self) -> tuple[dict[str, Any], list[int]] | None:
        """Return a request and its descriptors; None when the socket is closed."""
        data = b""
        fds: list[int] = []
        while not data.endswith(b"\n"):
            piece, new_fds, _, _ = socket.recv_fds(self._control, PIECE_BYTES, FDS)
            if not piece:
                return None
            data += piece
            fds += new_fds
        return json.loads(data), fds

    def _fork(self, request: dict[str, Any], fds: list[int]) -> list[str] | None:
        try:
            check_alone()
            pid = os.fork()
        except OSError as error:
            self._answer(error=error.strerror)
            for fd in fds:
                os.close(fd)
            return None
        if pid == 0:
            return self._become(request, fds)
        for fd in fds[:2]:
            os.close(fd)
        self._born[os.pidfd_open(pid)] = pid, fds[2]
        self._answer(pid=pid)
        return None

    def _answer(self, **answer: object) -> None:
        self._control.sendall(json.dumps(answer).encode() + b"\n")

    def _become(self, request: dict[str, Any], fds: list[int]) -> list[str]:
        """Give the child everything that a fresh process has: output, folder, environment; return its arguments."""
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self._pid:  # it died before that was said
            os._exit(1)
        self._control.close()
        for pidfd, (_, pipe) in self._born.items():
            os.close(pidfd)
            os.close(pipe)
        os.dup2(fds[0], 1)
        os.dup2(fds[1], 2)
        for fd in fds:
            os.close(fd)
        signal.signal(signal.SIGINT, self._interrupt)
        os.chdir(request["directory"])
        os.environ.clear()
        os.environ.update(request["environment"])
        draw_anew()
        arguments: list[str] = request["arguments"]
        return arguments

    def _reap(self, pidfd: int) -> None:
        pid, pipe = self._born.pop(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        with suppress(BrokenPipeError):  # nobody wants to know any more
            os.write(pipe, b"%d\n" % os.waitstatus_to_exitcode(status))
        os.close(pipe)

    def _end(self) -> None:
        for pid, _ in self._born.values():
            os.kill(pid, signal.SIGKILL)
        for pidfd in list(self._born):
            self._reap(pidfd)


def check_alone() -> None:
    """Check that this process has one thread: a fork would inherit the locks of other threads, but not the threads.

    Raises:
        BlockingIOError: there are other threads, Python's or a library's.
    """
    names = [(task / "comm").read_text("utf-8").strip() for task in Path("/proc/self/task").iterdir()]
    if len(names) > 1:
        raise BlockingIOError(errno.EDEADLK, f"threads in the process that forks: {', '.join(names)}")


def draw_anew() -> None:
    """Seed numpy's random numbers again, which a fork would share with its siblings. Python's `random` does so by
    itself.
    """
    if random := sys.modules.get("numpy.random"):
        random.seed()


def _run(arguments: list[str]) -> int:
    """Run `python -m headwater` with these arguments, for any command; return the exit status."""
    from headwater import failpoints  # noqa: PLC0415 - only a fork needs it

    try:
        failpoints.arm_from_environment()
    except OptionError as error:
        return node.failed(error)
    sys.argv[1:] = arguments
    runpy.run_module("headwater", run_name="__main__", alter_sys=True)
    raise AssertionError("the command ends with its exit status")


def main() -> int:
    """Run until the socket closes; a fork runs its command and returns that exit status."""
    control = socket.socket(fileno=int(sys.argv[1]))
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the nodes
    run.load()
    arguments = ForkServer(control, interrupt).run()
    return 0 if arguments is None else _run(arguments)


if __name__ == "__main__":
    sys.exit(main())
