"""`headwater serve`: open the store, listen, report it, and run until a signal to stop.

SIGTERM and SIGINT stop the node cleanly: it accepts no new connections, commits the open batch, closes the store with
its CLEAN record, and exits with 0. Any other end is an unclean stop: the next start begins a new branch in every active
vbucket (failover.md 1).
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Final, TextIO

from headwater import invariants
from headwater.errors import DiskFull, InvariantBroken
from headwater.kernels import builds
from headwater.node.buckets.bucket import Bucket
from headwater.node.buckets.catalog import open_store
from headwater.node.committer import Committer
from headwater.node.config import NodeConfig
from headwater.node.connections.listening import try_addresses
from headwater.node.connections.loopback import is_loopback
from headwater.node.process import kernel_modules, supervisor, threads
from headwater.node.process.garbage import Collector
from headwater.node.process.memory import Trimmer, free_bytes_of_libc
from headwater.node.reporting import log_lines
from headwater.node.reporting.log_lines import event
from headwater.node.server import Server
from headwater.node.storage import unreadable
from headwater.node.storage.store import Store
from headwater.node.workers import supervising
from headwater.node.workers.layout import count_of, refuse_folder_of_workers
from headwater.node.workers.worker import NodeWorker

if TYPE_CHECKING:
    from headwater.node.process.machine_code import MachineCode

SWITCH_INTERVAL_SECONDS = 0.0005  # the commit thread gets the interpreter back sooner than the default 5 ms

# Importing it takes 30 ms, so it is imported when the node is up. It is not imported at the first scrape, because an
# upgrade may have replaced the files of the package by then.
METRICS = "headwater.node.rest.metrics"

THREADS = 8  # threads for what blocks besides commits: compaction, passwords, names of peers
ADMITTED_SECONDS = 5.0

log: Final = logging.getLogger(__name__)


def serve(config: NodeConfig, out: TextIO | None = None) -> int:
    """Run a node until SIGTERM or SIGINT; return the exit status, 0.

    Once the node listens, this prints the line `ready HOST:PORT bucket=... vbuckets=...`, or, if the log is JSON, the
    event `node.ready` as an object with `host`, `port`, `bucket`, `vbuckets`, `tls`, `http`. With several workers each
    is a separate process, and this process supervises them (workers/supervising.py).

    Args:
        config: the settings.
        out: the output for the line; None for stdout.

    Raises:
        StorageError, OptionError: the node can't start.
    """
    if count_of(config) > 1:
        return supervising.serve(config, out or sys.stdout, load, _serve_store)
    refuse_folder_of_workers(config)
    return _serve_store(config, None, out or sys.stdout)


def _serve_store(config: NodeConfig, worker: NodeWorker | None, out: TextIO) -> int:
    """Run one process with one folder."""
    log_lines.begin(config.log_level, config.log_format, worker=None if worker is None else worker.number)
    if config.log_format == "json" and builds.compiling():
        builds.numbas("cached").compiling.tell(lambda message: log.warning(message, extra=event("kernels.compiling")))
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    unreadable.end_with_a_line()
    invariants.listeners.append(_end_for)
    try:
        _run_store(config, worker, out)
    finally:
        invariants.listeners.remove(_end_for)
    log.info("stopped, and all is on disk", extra=event("node.stopped"))
    return 0


def _run_store(config: NodeConfig, worker: NodeWorker | None, out: TextIO) -> None:
    try_addresses(config)
    store = open_store(config)
    clean = False
    try:
        runner = asyncio.Runner(loop_factory=_loop_factory())
        with runner:
            runner.run(_serve(config, store, out, worker))
        clean = True
    finally:
        store.close(clean=clean)


def _end_for(broken: InvariantBroken, of_node: bool) -> None:
    """End the process if the node's log, index or vbuckets break an invariant (`of_node`), because its memory can't be
    trusted, while the disk is intact. A broken invariant of one connection ends only that connection.
    """
    if of_node:
        log.critical("%s; the node ends as in a crash", broken, extra=event("invariant.broken"))
        os._exit(1)


async def _serve(config: NodeConfig, store: Store, out: TextIO, worker: NodeWorker | None) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)  # so that SIGHUP does not end a node that is starting
    committer = Committer(store, loop)
    loop.set_default_executor(threads.pool(THREADS, "work"))
    collector, trimmer = Collector(loop), Trimmer(loop, free_bytes_of_libc())
    kernels = _compiled_meanwhile()
    server: Server | None = None
    try:
        try:
            server = _server(config, store, committer, loop, kernels, worker)
            _make_ready(server)
        except DiskFull as error:
            raise DiskFull(error.path, error.needed_bytes, error.free_bytes, starting=True) from error
        host, port = server.listen()
        loop.add_signal_handler(signal.SIGHUP, lambda: server.refresh_tls(on_request=True))
        _warn_of_the_open_network(config, host, server)
        if worker is not None:
            await _wait_for_admission(server, stop)
        _tell_ready(config, server, host, port, out)
        collector.start()
        trimmer.start()
        if not config.no_metrics:
            loop.run_in_executor(None, import_module, METRICS)
        try:
            await stop.wait()
            supervisor.tell("STOPPING=1")
            log.info("asked to stop", extra=event("node.stopping"))
        finally:
            await server.close()
    finally:
        if kernels is not None:
            kernels.stop()
        trimmer.stop()
        collector.stop()
        committer.close()
        if server is not None:  # closes the other buckets, unless an orderly stop has done so
            server.catalog.close(clean=False)


async def _wait_for_admission(server: Server, stop: asyncio.Event) -> None:
    """Wait until the other members confirm that this worker may serve its vbuckets; at most ADMITTED_SECONDS, because
    in a cluster of several machines the others may be down.
    """
    deadline = server.loop.time() + ADMITTED_SECONDS
    fence = server.first.membership.fence
    while fence is not None and not fence.is_open and not stop.is_set() and server.loop.time() < deadline:
        await asyncio.sleep(0.01)
        fence = server.first.membership.fence


def _tell_ready(config: NodeConfig, server: Server, host: str, port: int, out: TextIO) -> None:
    """Report that the node listens, and at which address: on `out`, in the log, and to the service manager."""
    host_text = f"[{host}]" if ":" in host else host
    ports = {"tls": server.tls_port, "http": server.http_port}
    facts: dict[str, object] = {"bucket": config.bucket, "vbuckets": server.first.bucket.vbucket_count}
    facts |= {name: number for name, number in ports.items() if number is not None}
    ready = event("node.ready", host=host, port=port, **facts)
    if config.log_format == "json":
        line = log_lines.json_line(log, f"ready on {host_text}:{port}", ready)
    else:
        line = f"ready {host_text}:{port} " + " ".join(f"{name}={text}" for name, text in facts.items())
    _print(line, out)
    log.info("ready on %s:%d", host_text, port, extra=ready)
    supervisor.tell(f"READY=1\nSTATUS=ready on {host_text}:{port}")


def _print(line: str, out: TextIO) -> None:
    """Print a line. If that fails, log the failure and continue.

    A failed start here would add a branch to the failover logs, which keep 25. If the output were on a full disk, a
    supervisor that restarts the node again and again would soon replace all older branches.
    """
    try:
        print(line, file=out, flush=True)
    except OSError as error:
        log.warning("the line ready is not written: %s", error.strerror or error, extra=event("node.ready_not_written"))
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, out.fileno())  # otherwise Python writes the rest of the line at exit, and fails
        os.close(silence)


def _server(  # noqa: PLR0917 - called in one place
    config: NodeConfig,
    store: Store,
    committer: Committer,
    loop: asyncio.AbstractEventLoop,
    kernels: MachineCode | None,
    worker: NodeWorker | None,
) -> Server:
    """Return a server for the bucket of a store."""
    bucket = Bucket(config.bucket, store, committer)
    bucket.recover(config)
    if worker is not None:
        worker.begin(bucket)
    with _loading():
        if kernels is not None:
            kernels.begin()
    return Server(config, bucket, committer, loop, worker)


def _compiled_meanwhile() -> MachineCode | None:
    """Return the object that compiles the kernels while the node serves; None if the wheel has machine code."""
    if not builds.compiling():
        return None
    from headwater.node.process.machine_code import MachineCode  # noqa: PLC0415 - such a wheel is without it

    return MachineCode()


def _make_ready(server: Server) -> None:
    """Open the other buckets, bind the addresses, and commit the changes of the start."""
    server.catalog.open()
    server.bind()
    # After a crash, this writes new branches. All steps that may fail come before it: a failover log keeps 25 branches,
    # and a supervisor that restarts the node again and again would soon replace all older ones.
    server.commit_now()


def _warn_of_the_open_network(config: NodeConfig, host: str, server: Server) -> None:
    if server.tls is not None and (message := server.tls.warning()):
        log.warning("%s", message, extra=event("tls.certificate"))
    if is_loopback(host):
        return
    if server.users.required and config.without_tls == "anywhere":
        warning = "listening on %s without TLS: passwords and documents can be read on the way"
        log.warning(warning, host, extra=event("node.open", host=host))
    elif not server.users.required:
        warning = "listening on %s without users: whoever can reach it may read and write everything"
        log.warning(warning, host, extra=event("node.open", host=host))


@contextmanager
def _loading() -> Iterator[None]:
    """Return a context for loading kernels, in which no garbage is collected.

    At its end all present objects are excluded from later collections.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
    gc.collect()
    gc.freeze()  # these objects stay; scanning the modules alone would take a tenth of a second


def warm_up() -> None:
    """Compile the kernels that requests need, or load them from the cache, so that no client waits."""
    with _loading():
        for name in kernel_modules.MODULES:
            kernel_modules.warm_up(name)


def load() -> None:
    """Import all modules that `serve` needs, without starting a thread: a process may fork after this."""
    warm_up()
    _loop_factory()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's factory of event loops; None, for asyncio's, if uvloop is not installed."""
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return None
    return uvloop.new_event_loop
