"""The time of a get while other clients log in, beside that of the same gets while nobody logs in, in turn, in one run.

    python -m benchmarks logins

One connection, already logged in, gets a document again and again, with pauses of a thousandth of a second. Meanwhile
another process opens connections and logs in, RATE times a second: with SCRAM-SHA512; with PLAIN and the right
password, which the node remembers; and with PLAIN and a wrong password from one address after another, for which the
node has to derive a key each time. The guests' own share of SCRAM is computed once, so that it takes no processor from
the node.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import secrets
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from multiprocessing.synchronize import Event
from typing import TypeAlias

from benchmarks.harness import Figure, publish
from headwater import testing
from headwater.protocol.scram import Scram, plain
from headwater.wire import bootstrap, documents
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame
from headwater.wire.layout import Request

RATE = 100  # logins a second
SECONDS = 4.0  # of a round
ROUNDS = 5
ADDRESSES = 62_500  # of this machine, from which wrong passwords come
START_SECONDS_MAX = 60.0  # of the process of the guests
USER, PASSWORD = "ann", "secret"

Ask: TypeAlias = Callable[[Request], Frame]


@contextmanager
def connection(port: int, source: str = "127.0.0.1") -> Iterator[Ask]:
    """Connect from an address of this machine; yield a function that sends a request and returns its answer."""
    with socket.create_connection(("127.0.0.1", port), source_address=(source, 0)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader = FrameBuffer()

        def ask(request: Request) -> Frame:
            sock.sendall(request.encode())
            while not (found := reader.receive_data(sock.recv(1 << 16))):
                pass
            return found[0]

        yield ask


def by_scram(port: int, number: int) -> None:
    """Log in with SCRAM-SHA512."""
    exchange = Scram("SCRAM-SHA512", USER, PASSWORD, f"nonce-of-eighteen-{number}")
    with connection(port) as ask:
        challenge = ask(bootstrap.SaslAuth(key=b"SCRAM-SHA512", value=exchange.first())).value
        outcome = ask(bootstrap.SaslStep(key=b"SCRAM-SHA512", value=exchange.final(challenge)))
        exchange.verify(outcome.value)


def by_plain(port: int, number: int) -> None:
    """Log in with PLAIN."""
    with connection(port) as ask:
        if ask(bootstrap.SaslAuth(key=b"PLAIN", value=plain(USER, PASSWORD))).status:
            raise AssertionError("the password is right")


def by_guess(port: int, number: int) -> None:
    """Fail to log in with PLAIN, from an address of which the node knows no failures."""
    address = f"127.1.{number // 250 % 250}.{number % 250 + 1}"
    with connection(port, address) as ask:
        if not ask(bootstrap.SaslAuth(key=b"PLAIN", value=plain(USER, f"guess {number}"))).status:
            raise AssertionError("the password is wrong")


LOGINS: dict[str, Callable[[int, int], None]] = {
    "SCRAM-SHA512": by_scram,
    "PLAIN": by_plain,
    "PLAIN, wrong": by_guess,
}


def log_in(port: int, how: str, going: Event, stopping: Event, done: multiprocessing.Queue[float]) -> None:
    """Log in RATE times a second until `stopping` is set. `going` is set after the first login; the number of logins a
    second is put into `done`.
    """
    hashlib.pbkdf2_hmac = lru_cache(hashlib.pbkdf2_hmac)  # type: ignore[assignment]
    begun, count, first = time.perf_counter(), 0, secrets.randbelow(ADDRESSES)
    while not stopping.is_set():
        LOGINS[how](port, first + count)
        count += 1
        going.set()
        time.sleep(max(0.0, begun + count / RATE - time.perf_counter()))
    done.put(count / (time.perf_counter() - begun))


def slowest_ms(port: int) -> float:
    """Ask for a document for SECONDS; return the 99th percentile of the times that the answers took, in
    milliseconds.
    """
    with connection(port) as ask:
        if ask(bootstrap.SaslAuth(key=b"PLAIN", value=plain(USER, PASSWORD))).status:
            raise AssertionError("the password is right")
        asked, took, until = documents.Get(key=b"k"), [], time.perf_counter() + SECONDS
        while (begun := time.perf_counter()) < until:
            ask(asked)
            took.append(time.perf_counter() - begun)
            time.sleep(0.001)
    return statistics.quantiles(took, n=100)[98] * 1e3


def beside(port: int, how: str) -> tuple[float, float]:
    """Return the 99th percentile of gets while others log in, in milliseconds, and how many logins a second there
    were.
    """
    context = multiprocessing.get_context("spawn")
    going, stopping, done = context.Event(), context.Event(), context.Queue()
    guest = context.Process(target=log_in, args=(port, how, going, stopping, done))
    guest.start()
    try:
        if not going.wait(START_SECONDS_MAX):
            raise AssertionError("nobody logs in")
        found = slowest_ms(port)
    finally:
        stopping.set()
    return found, done.get(timeout=START_SECONDS_MAX)


def main() -> None:
    """Measure each way to log in in turn, with a measurement before each while nobody logs in."""
    with testing.node(vbuckets=1, user=USER, environment={"HEADWATER_PASSWORD": PASSWORD}) as node:
        alone: list[float] = []
        found: dict[str, list[tuple[float, float]]] = {how: [] for how in LOGINS}
        for _ in range(ROUNDS):
            for how, taken in found.items():
                alone.append(slowest_ms(node.port))
                taken.append(beside(node.port, how))
    nobody = statistics.median(alone)
    for how, taken in found.items():
        waits = [wait for wait, _ in taken]
        rate = statistics.median(rate for _, rate in taken)
        title = f"get, 99th percentile, beside {rate:.0f} logins a second with {how}"
        median = statistics.median(waits)
        publish(Figure(title, "ms", median, min(waits), max(waits), "nobody logs in", nobody, median / nobody))


if __name__ == "__main__":
    main()
