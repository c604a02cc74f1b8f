"""The process that starts the workers of a node, and restarts one that dies. It serves no client itself.

    layout, addresses taken --> kernels loaded --> a fork for each worker --> all of them serve: the line `ready`
    a worker ends           --> it alone is started again, after a pause that grows; the others continue
    SIGTERM, SIGINT         --> all end in order, and so does this process

This process has a single thread and no event loop, so that it may be forked. Whatever ends it also ends its workers: a
worker that lived on would have the folder of one that the next supervisor starts. The node's own address is bound here,
once, and all workers accept connections on that one socket. So the next connection goes to a worker that is free, and
the end of a worker loses no connection that was not accepted yet.
"""

from __future__ import annotations

import ctypes
import logging
import os
import secrets
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TextIO

from headwater.errors import HeadwaterError, OptionError, StorageError
from headwater.node.config import NodeConfig
from headwater.node.connections.listening import bound, queue_up
from headwater.node.process import supervisor
from headwater.node.reporting import log_lines
from headwater.node.reporting.log_lines import event
from headwater.node.workers.layout import WorkersLayout, layout_of
from headwater.node.workers.resizing import resized, spares
from headwater.node.workers.worker import NodeWorker
from headwater.wire.address import Address

__all__ = ["serve"]

PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h
RESTART_SECONDS_MIN: Final = 0.1
RESTART_SECONDS_MAX: Final = 30.0
"""The longest pause before a worker's restart: each start after a crash begins a new branch in the failover logs of its
vbuckets, and a failover log keeps only 25."""
LONG_LIFE_SECONDS: Final = 60.0
TAKEN_SECONDS: Final = 3.0
"""The time in which the workers of a killed supervisor must have ended, so that their addresses are free."""
RELAYS_NAME: Final = "relays"
SOCKET_NAME_LONGEST: Final = "worker-65535"
SOCKET_PATH_BYTES_MAX: Final = 107  # linux/un.h, without the zero behind it
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)

Start = Callable[[NodeConfig, NodeWorker, TextIO], int]

log: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class _Life:
    """One worker of the node, through all its processes.

    Attributes:
        number: the worker's number.
        pid: its process; 0 while it has none.
        pipe: the descriptor at which the process reports that it serves; -1 once it has.
        born_at: the time at which the process was started.
        is_ready: True once the process has reported that it serves.
        pause_seconds: the pause before the next restart.
        start_at: the time at which the next process is to be started; None while one runs.
    """

    number: int
    pid: int = 0
    pipe: int = -1
    born_at: float = 0.0
    is_ready: bool = False
    pause_seconds: float = RESTART_SECONDS_MIN
    start_at: float | None = 0.0


def serve(config: NodeConfig, out: TextIO, load: Callable[[], None], start: Start) -> int:
    """Run the workers of a node until SIGTERM or SIGINT.

    Args:
        config: the node's settings.
        out: gets the line `ready ...` once all workers serve.
        load: imports and loads what workers need; must not start a thread.
        start: runs a worker in its process, and returns the process's exit status.

    Returns:
        The exit status: 0, or that of a worker that could not start and has printed the reason.

    Raises:
        OptionError: an option is wrong for this folder, or an address can't be bound.
        StorageError: the folder is damaged, or can't be read or written.
    """
    if sys.platform != "linux":
        raise OptionError("workers", config.workers, "1, on a system where processes can't be told to end together")
    log_lines.begin(config.log_level, config.log_format)
    with ExitStack() as resources:
        layout = layout_of(config)
        for port in (*layout.ports, *layout.tls_ports):  # bound so that no other node takes them; workers listen there
            resources.enter_context(_bound("worker-port", config.host, port, layout))
        public = resources.enter_context(_public("port", config, config.port, layout))
        with_tls = _public("tls-port", config, config.tls_port, layout) if config.tls_certificate else None
        pages = _public("http-port", config, config.http_port, layout) if config.http_port >= 0 else None
        for each in filter(None, (with_tls, pages)):
            resources.enter_context(each)
        # Only now that all addresses are bound: no worker of this folder can be running, so its files may be changed.
        had, layout = layout, resized(config, layout)
        for port in {*layout.ports, *layout.tls_ports} - {*had.ports, *had.tls_ports}:
            resources.enter_context(_bound("worker-port", config.host, port, layout))
        relays = _relay_folder(config.data, layout.uuid)
        descriptor = os.open(relays, os.O_RDONLY | os.O_DIRECTORY)
        resources.callback(os.close, descriptor)
        # Before the forks, so that all workers share the memory of what is loaded.
        load()
        config = replace(config, group_secret=secrets.token_hex(32))
        group = config.group or layout.group
        first = NodeWorker(0, layout, group, config.data, public, with_tls, _reached(relays, descriptor), pages)
        try:
            return Supervisor(config, first, start).run(out)
        finally:
            _remove(relays)


def _bound(option: str, host: str, port: int, layout: WorkersLayout) -> socket.socket:
    """Return a socket that is bound to an address; wait a moment for the previous processes to release it."""
    deadline = time.monotonic() + (TAKEN_SECONDS if layout.complete else 0.0)
    while True:
        try:
            return bound(option, host, port)
        except OptionError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.05)


def _public(option: str, config: NodeConfig, port: int, layout: WorkersLayout) -> socket.socket:
    listener = _bound(option, config.host, port, layout)
    queue_up(listener, option, config.host, port)
    return listener


def _relay_folder(data: Path, uuid: str) -> Path:
    """Create the folder of the sockets at which workers call each other, and return its path.

    It lies in the folder that the service manager has given to the node, or else in the data folder. It must belong to
    this user, and no other user may have access to it: in a public folder another user could have created it first.
    """
    runtime_folder = os.environ.get("RUNTIME_DIRECTORY", "").split(":")[0]
    folder = Path(runtime_folder) / f"headwater-{uuid[:16]}" if runtime_folder else data.absolute() / RELAYS_NAME
    try:
        folder.mkdir(0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise StorageError(f"{folder}: {error.strerror or error}") from error
    if status.st_uid != os.geteuid() or status.st_mode & 0o170077 != 0o040000:
        raise StorageError(f"{folder}: it has to be a folder of this user's alone; remove it")
    return folder


def _reached(folder: Path, descriptor: int) -> Path:
    """Return a path to the folder of sockets that is short enough: the system limits the length of a socket's path.

    If its own path is too long, the result is a path by its descriptor, which the workers inherit.
    """
    is_short = len(os.fsencode(folder / SOCKET_NAME_LONGEST)) <= SOCKET_PATH_BYTES_MAX
    return folder if is_short else Path(f"/proc/self/fd/{descriptor}")


def _remove(folder: Path) -> None:
    with suppress(OSError):
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


class Supervisor:
    """The workers' processes.

    In the supervisor's process `run` returns once all workers have ended; in a fork it never returns.
    """

    def __init__(self, config: NodeConfig, first: NodeWorker, start: Start) -> None:
        self._config, self._first, self._start = config, first, start
        self._layout = first.layout
        self._lives = [_Life(number) for number in range(len(first.layout.ports))]
        self._pid = os.getpid()
        self._wakes, self._woken = socket.socketpair()
        self._is_told = self._stops = False
        self._status = 0

    def run(self, out: TextIO) -> int:
        """Start all workers, supervise them until the end, and return the exit status."""
        for each in (self._wakes, self._woken):
            each.setblocking(False)
        # A signal writes its number to a socket, which wakes `select`; a handler in Python might run too late.
        signal.set_wakeup_fd(self._woken.fileno(), warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, lambda *_: None)  # its number arrives through the socket
        while True:
            self._start_due()
            if self._stops and not any(life.pid for life in self._lives):
                return self._status
            self._wait()
            self._reap()
            if not self._is_told and not self._stops and all(life.is_ready for life in self._lives):
                self._tell_ready(out)

    # --- starting -----------------------------------------------------------------------------------------------------

    def _start_due(self) -> None:
        now = time.monotonic()
        for life in self._lives if not self._stops else ():
            if life.start_at is not None and life.start_at <= now:
                life.start_at = None
                self._fork(life, now)

    def _fork(self, life: _Life, now: float) -> None:
        reader, writer = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # until the fork has handlers of its own
        try:
            pid = os.fork()
            if pid == 0:
                # Without the parent's clean-up: its open files, locks and `finally` blocks are not for this process to
                # end.
                os._exit(self._become(life.number, writer))
        except OSError as error:  # the system has no room for another process now
            os.close(reader)
            log.error("worker %d can't be started: %s", life.number, error.strerror, extra=event("worker.ended"))
            self._again(life, now)
            return
        finally:
            os.close(writer)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        life.pid, life.pipe, life.born_at, life.is_ready = pid, reader, now, False

    def _become(self, number: int, pipe: int) -> int:
        """Run a worker in this process, which was just forked; return the exit status."""
        # The system kills this process if the supervisor dies: otherwise the next supervisor's worker would open a
        # folder that this one still uses.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self._pid:  # the supervisor died before prctl
            return 1
        signal.set_wakeup_fd(-1)
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        self._wakes.close()
        self._woken.close()
        os.environ.pop("NOTIFY_SOCKET", None)  # the supervisor reports to the service manager, for all workers
        worker = replace(self._first, number=number, layout=self._layout)
        try:
            self._layout.check_store(self._config.data, number)
            with open(pipe, "w", closefd=False, encoding="utf-8") as out:
                return self._start(self._layout.config(self._config, number), worker, out)
        except (HeadwaterError, OSError) as error:
            log.error("%s", error, extra=event("node.refused"))
            return 2 if isinstance(error, OptionError) else 1
        except BaseException:  # the fork must not run the supervisor's code that follows
            log.exception("it could not go on", extra=event("node.failed"))
            return 1

    # --- tending ------------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Wait for a signal, a line from a worker, or the time to restart a worker."""
        pipes = {life.pipe: life for life in self._lives if life.pipe >= 0}
        due = [life.start_at for life in self._lives if life.start_at is not None and not self._stops]
        seconds = max(0.0, min(due) - time.monotonic()) if due else None
        wakes = self._wakes.fileno()
        readable, _, _ = select.select([wakes, *pipes], [], [], seconds)
        for each in set(readable) - {wakes}:
            self._hear(pipes[each])
        if wakes in readable:
            for number in set(self._wakes.recv(4096)):
                self._obey(number)

    def _hear(self, life: _Life) -> None:
        """Read a worker's report that it serves; the end of its pipe without one means that it has failed."""
        life.is_ready = os.read(life.pipe, 4096).startswith((b"ready", b"{"))
        os.close(life.pipe)
        life.pipe = -1

    def _obey(self, number: int) -> None:
        if number == signal.SIGHUP:
            self._signal(signal.SIGHUP)
        elif number in (signal.SIGTERM, signal.SIGINT):
            supervisor.tell("STOPPING=1")
            self._stop()

    def _stop(self) -> None:
        self._stops = True
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        for life in self._lives:
            if life.pid:
                os.kill(life.pid, number)

    def _reap(self) -> None:
        for life in self._lives:
            if not life.pid:
                continue
            # Only the workers' own pids, so that code that waits for another child still gets that child's status.
            pid, status = os.waitpid(life.pid, os.WNOHANG)
            if pid:
                self._bury(life, os.waitstatus_to_exitcode(status))

    def _bury(self, life: _Life, status: int) -> None:
        """Schedule the restart of a worker whose process has ended.

        There is no restart if all workers are to end. If the node is not ready yet, the worker could not start: then
        the others are ended too.
        """
        life.pid, life.is_ready = 0, False
        if life.pipe >= 0:
            os.close(life.pipe)
            life.pipe = -1
        if self._stops:
            self._status = self._status or (status and 1)
        elif not self._is_told:  # it could not start, and has printed the reason; no client uses the others yet
            self._status = status if status > 0 else 1
            self._stop()
        else:
            now = time.monotonic()
            if now - life.born_at >= LONG_LIFE_SECONDS:
                life.pause_seconds = RESTART_SECONDS_MIN
            how = f"ended by signal {-status}" if status < 0 else f"ended with status {status}"
            text = "worker %d %s; it is started again in %g s, the others go on"
            fields = event("worker.ended", worker=life.number, status=status)
            log.error(text, life.number, how, life.pause_seconds, extra=fields)
            self._again(life, now)

    def _again(self, life: _Life, now: float) -> None:
        life.start_at = now + life.pause_seconds
        life.pause_seconds = min(2 * life.pause_seconds, RESTART_SECONDS_MAX)

    def _tell_ready(self, out: TextIO) -> None:
        """Report that all workers serve, and record it in the layout: from now on a worker's missing store is
        an error.
        """
        self._is_told = True
        if not self._layout.complete or self._layout.joining:
            self._layout = replace(self._layout, complete=True, joining=0)
            self._layout.save(self._config.data)
        host, port = self._first.public.getsockname()[:2]
        host_text = f"[{host}]" if ":" in host else host
        facts: dict[str, object] = {"bucket": self._layout.bucket, "vbuckets": self._layout.vbuckets}
        facts["workers"] = len(self._lives)
        for name, listener in (("tls", self._first.public_tls), ("http", self._first.public_pages)):
            if listener is not None:
                facts[name] = listener.getsockname()[1]
        if self._config.log_format == "json":
            extra = event("node.ready", host=host, port=port, **facts)
            line = log_lines.json_line(log, f"ready on {host_text}:{port}", extra)
        else:
            line = f"ready {host_text}:{port} " + " ".join(f"{name}={text}" for name, text in facts.items())
        with suppress(OSError):  # nobody reads it any more, but the workers serve
            print(line, file=out, flush=True)
        supervisor.tell(f"READY=1\nSTATUS=ready on {host_text}:{port}")
        self._tell_spares(f"{host_text}:{port}")

    def _tell_spares(self, address: str) -> None:
        """Log how workers that the cluster map does not name get vbuckets."""
        left_out = list[Address]()
        with suppress(StorageError):  # which the worker tells at its next start, and goes on with what it knows
            left_out = spares(self._config.data, self._layout)
        if not left_out:
            return
        names, add = ", ".join(map(str, left_out)), " ".join(f"--add {number}" for number in left_out)
        text = (
            "the cluster map has no %s: `headwater cluster rebalance %s %s` lets them join, and a start with --workers"
            " %d goes on without them"
        )
        fields = event("worker.spare", workers=len(left_out))
        log.warning(text, names, address, add, len(self._layout.ports) - len(left_out), extra=fields)
