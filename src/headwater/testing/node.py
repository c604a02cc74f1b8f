"""A real node in a process of its own, for tests: `with node() as n: ...`.

    with testing.node(vbuckets=16) as n:
        n.client().set(b"k", b"v")
        n.kill()                      SIGKILL, as a crash would
        n.restart()                   the same data, the same port

The port is free and on 127.0.0.1, the data lies in a directory that is removed with the block. A node that does not
start, or that left a traceback, fails the test with its log. Each node but the first starts within a tenth of a second
or two (see processes.py).
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

from headwater.client.options import refuse_unknown
from headwater.testing import processes
from headwater.testing.certificates import Certificates
from headwater.testing.processes import Process

if TYPE_CHECKING:
    from headwater.client import Client

READY_SECONDS = 300.0  # a first start compiles the kernels, which takes minutes on a busy machine
STOP_SECONDS = 60.0


class NodeError(AssertionError):
    """The node did not start, or broke; the message has its log."""


class Node:
    """A node's process; created by `node`.

    Attributes:
        data: its directory.
        port, tls_port, http_port: its ports, fixed after the first start; None for a port that it does not have.
        options: the options of `serve`.
        environment: variables added to the process's environment.
        certificates: those of `tls=True`; None otherwise.
    """

    def __init__(self, data: Path, options: dict[str, object], environment: dict[str, str] | None = None) -> None:
        self.data = data
        self.port: int = 0
        self.tls_port: int | None = None
        self.http_port: int | None = None
        self.certificates: Certificates | None = None
        self.options = options
        self.environment: dict[str, str] = environment or {}
        self._log = data.with_suffix(".log")
        self._process: Process | None = None
        self._held_sockets: list[socket.socket] = []
        weakref.finalize(self, _close, self._held_sockets)

    def __repr__(self) -> str:
        return f"<Node {self.url}, {f'process {self.pid}' if self.is_running else 'not running'}>"

    @property
    def host(self) -> str:
        """The loopback address."""
        return "127.0.0.1"

    @property
    def address(self) -> str:
        """The address as host:port."""
        return f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The connection string couchbase://host:port/bucket, for clients, Spark and the command line."""
        return f"couchbase://{self.address}/{self.options.get('bucket', 'default')}"

    @property
    def tls_url(self) -> str:
        """The connection string for TLS, couchbases://host:port/bucket?trust_store=..."""
        store = f"?trust_store={self.certificates.trust_store}" if self.certificates is not None else ""
        return f"couchbases://{self.host}:{self.tls_port}/{self.options.get('bucket', 'default')}{store}"

    @property
    def pid(self) -> int:
        """The id of the running process."""
        if self._process is None:
            raise NodeError("the node is not running")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """True if the process is running."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """The node's stderr as text, over all its starts."""
        return self._log.read_text("utf-8", "replace") if self._log.exists() else ""

    def start(self) -> Node:
        """Start the node; return when it is ready."""
        arguments = ["serve", "--port", str(self.port), "--data", str(self.data)]
        for name, value in self.options.items():
            arguments += [f"--{name.replace('_', '-')}={value}"]
        if self.tls_port is not None:
            arguments.append(f"--tls-port={self.tls_port}")
        if self.http_port is not None:
            arguments.append(f"--http-port={self.http_port}")
        with self._log.open("ab") as log:
            self._process = processes.start(arguments, {**os.environ, **self.environment}, log)
        ports = _ready_of(self._ready_line(self._process))
        self.tls_port = int(ports["tls"]) if "tls" in ports else None
        self.http_port = int(ports["http"]) if "http" in ports else None
        if self.options.get("without_tls") != "nobody":
            self.port = int(ports["port"])
        self.let_go()
        return self

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process is gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Send SIGTERM; return the exit status."""
        return self._end(signal.SIGTERM)

    def wait(self, seconds: float = STOP_SECONDS) -> int:
        """Wait until the process ends by itself, as at a failpoint; return the exit status, negative for a signal."""
        if self._process is None:
            raise NodeError("the node is not running")
        status = self._process.wait(seconds)
        self._forget()
        return status

    def restart(self) -> Node:
        """Stop the node if it is running, and start it with the same data and port."""
        if self.is_running:
            self.stop()
        return self.start()

    def save(self) -> Path:
        """Copy the store as it is on disk now, for `go_back`; the node is killed for the copy, and started again.

        Returns: the copy's folder, which is removed with the node's own.
        """
        self.kill()
        copy = self.data.with_name(f"saved-{sum(1 for _ in self.data.parent.glob('saved-*'))}")
        shutil.copytree(self.data, copy)
        self.start()
        return copy

    def go_back(self, saved: Path) -> Node:
        """Restore the store of `save`: all later changes are lost, as after a failover to a replica that lacked them.

        Clients that have read later changes must roll back.
        """
        self.kill()
        shutil.rmtree(self.data)
        shutil.copytree(saved, self.data)
        return self.start()

    def client(
        self,
        user: str | None = None,
        password: str | None = None,
        *,
        tls: bool = False,
        connect_timeout_seconds: float = 30.0,
        timeout_seconds: float = 60.0,
    ) -> Client:
        """Return a client connected to the node (headwater.client), by TLS or not."""
        from headwater import client  # noqa: PLC0415 - most tests speak bytes

        return client.connect(
            self.tls_url if tls else self.url,
            user,
            password,
            connect_timeout_seconds=connect_timeout_seconds,
            timeout_seconds=timeout_seconds,
        )

    def _end(self, number: signal.Signals) -> int:
        process = self._process
        if process is None:
            return 0
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        try:
            status = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise NodeError(f"the node did not stop in {STOP_SECONDS:.0f} s:\n{self.log}") from None
        self._forget()
        return status

    def _forget(self) -> None:
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None
        self._hold_ports()

    def _hold_ports(self) -> None:
        """Bind the node's ports between two starts, so that the system gives them to no other process.

        Linux lets two sockets with SO_REUSEADDR bind one port as long as one of them, this one, does not listen.
        """
        for port in filter(None, (self.port, self.tls_port, self.http_port)) if sys.platform == "linux" else ():
            socket_ = socket.socket()
            socket_.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._held_sockets.append(socket_)
            with contextlib.suppress(OSError):  # somebody was quicker, or the node listens on another address
                socket_.bind((self.host, port))

    def let_go(self) -> None:
        """Release the ports that are held for the next start."""
        _close(self._held_sockets)

    def _ready_line(self, process: Process) -> str:
        """Return the line that the node prints once it listens."""
        out = process.stdout
        if out is None:
            raise NodeError("the node has no output")
        data, deadline = b"", time.monotonic() + READY_SECONDS
        while not data.endswith(b"\n"):
            readable, _, _ = select.select([out], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(out.fileno(), 4096) if readable else b""
            if not piece:
                process.kill()
                status = process.wait()
                self._forget()
                reason = "ended" if readable else f"was not ready after {READY_SECONDS:g} s"
                raise NodeError(f"the node did not come up (status {status}): it {reason}\n{self.log}")
            data += piece
        return data.decode()


def _ready_of(line: str) -> dict[str, str]:
    """Return the fields of the node's line `ready`, in either form: `port`, and `tls` and `http` if there are such
    ports.
    """
    if line.startswith("{"):
        return {name: str(value) for name, value in json.loads(line).items()}
    _, address, *words = line.split()
    return dict(word.partition("=")[::2] for word in words) | {"port": address.rpartition(":")[2]}


def _close(sockets: list[socket.socket]) -> None:
    while sockets:
        sockets.pop().close()


_OWN = frozenset({"environment", "tls"})
"""Arguments of `node` that are no options of a node."""


def node(
    *,
    vbuckets: int = 64,
    tls: bool = False,
    environment: dict[str, str] | None = None,
    config: str | Path | None = None,
    host: str | None = None,
    http_port: int | None = None,
    workers: int | None = None,
    worker_port: int | None = None,
    bucket: str | None = None,
    vbucket_state: str | None = None,
    connections_max: int | None = None,
    idle_seconds: int | None = None,
    login_seconds: int | None = None,
    administrators: str | None = None,
    cluster_secret_file: str | Path | None = None,
    group: str | None = None,
    memory_mib: int | None = None,
    connection_memory_mib: int | None = None,
    segment_mib: int | None = None,
    compact_dead_percent: int | None = None,
    purge_age_seconds: int | None = None,
    scrub_interval_seconds: int | None = None,
    scrub_mib_per_second: int | None = None,
    expiry_pager_seconds: int | None = None,
    loop_watch_ms: int | None = None,
    no_metrics: bool | None = None,
    takeover_seconds: int | None = None,
    slow_stream_seconds: int | None = None,
    tap_keep_alive_seconds: int | None = None,
    upr_states: str | None = None,
    plain: str | None = None,
    tls_certificate: str | Path | None = None,
    tls_key: str | Path | None = None,
    tls_port: int | None = None,
    tls_ca: str | Path | None = None,
    tls_clients: str | None = None,
    tls_user: str | None = None,
    tls_minimum: str | None = None,
    without_tls: str | None = None,
    insecure: bool | None = None,
    log_level: str | None = None,
    log_format: str | None = None,
    user: str | None = None,
    password_file: str | Path | None = None,
    users_file: str | Path | None = None,
    **unknown: Never,
) -> contextlib.AbstractContextManager[Node]:
    """Run a node for a block, on a free port, in a directory that is removed with the block.

    Args:
        vbuckets: of the store; fewer than a real bucket's 1024, since most tests need few.
        tls: True to serve TLS as well, on a port of its own, with a certificate of a CA that is made for the block
            (`tls_url`, `certificates`). The node accepts clients' certificates of that CA (`certificates.user`).
        environment: added to the process's environment, e.g. HEADWATER_FAILPOINTS.
        Others: the options of `headwater serve` (docs/reference/cli.md); None for the command's default.

    Raises:
        OptionError: there is no option of this name.
        NodeError: the node did not start, or left a traceback; with its log.
    """
    return _running(_serve_options(locals()), environment, tls=tls)


def _serve_options(arguments: dict[str, Any]) -> dict[str, object]:
    """Return the options of `serve` among the arguments of `node`, without those that are None.

    Raises:
        OptionError: there is no option of this name.
    """
    refuse_unknown(arguments.pop("unknown"), [name for name in inspect.signature(node).parameters if name != "unknown"])
    return {name: value for name, value in arguments.items() if value is not None and name not in _OWN}


@contextlib.contextmanager
def _running(options: dict[str, object], environment: dict[str, str] | None, *, tls: bool) -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="headwater-node-") as folder:
        certificates = Certificates(Path(folder) / "tls") if tls else None
        if certificates is not None:
            options = {**certificates.options, **options}
        running = Node(Path(folder) / "data", options, environment)
        running.certificates = certificates
        running.start()
        try:
            yield running
        finally:
            # Killed, not stopped: a test that failed must not wait for a node that hangs.
            running.kill()
            running.let_go()
        if "Traceback" in running.log:
            raise NodeError(f"the node left a traceback behind:\n{running.log}")
