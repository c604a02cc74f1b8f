"""Guests at the port for TLS: handshakes that are cut, garbled, slow, or many; plain bytes there, and TLS at other
ports.

A ClientHello of some hundred bytes costs a node a signature and 64 KiB until it notices that the guest is gone. So the
node bounds handshakes by number, by time and by turn, as everything that strangers cause.
"""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from struct import pack

from harness.attack.guest import GONE, Guest
from harness.attack.storms import MIB, SHORT_SECONDS, Place, authorization, drain, push, trusting_anybody
from headwater.wire.header import HEADER, Frame
from headwater.wire.opcodes import Opcode

NOOP = Frame(0x80, Opcode.NOOP).encode()
RECORD_BYTES_MAX = 16 << 10
HANDSHAKE, ALERT, DATA = 0x16, 0x15, 0x17
"""Types of TLS records."""


def client_hello(context: ssl.SSLContext) -> bytes:
    """Return the ClientHello of a context."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing).do_handshake()
    return outgoing.read()


def record(kind: int, data: bytes, claimed: int | None = None) -> bytes:
    """Return a record of TLS 1.2 whose header claims `claimed` bytes; None for the true length."""
    return pack(">BHH", kind, 0x0303, len(data) if claimed is None else claimed) + data


@contextmanager
def raw_crowd(place: Place, count: int, seconds: float = SHORT_SECONDS) -> Iterator[list[Guest]]:
    """Open connections to the port for TLS, without a handshake, for a block."""
    with ExitStack() as stack:
        guests = []
        for _ in range(place.some(count)):
            with suppress(*GONE):
                guests.append(stack.enter_context(Guest(place.tls_port, seconds)))
        yield guests


@contextmanager
def tls_crowd(place: Place, count: int, seconds: float = SHORT_SECONDS) -> Iterator[list[Guest]]:
    """Open connections and complete their handshakes, logged in if the place does, for a block."""
    with ExitStack() as stack:
        guests = []
        for _ in range(place.some(count)):
            with suppress(*GONE):
                guests.append(stack.enter_context(place.tls_guest(seconds)))
        yield guests


# --- the handshake ----------------------------------------------------------------------------------------------------


def tls_handshakes_that_are_cut(place: Place) -> None:
    """Send each prefix of a ClientHello, then close, reset or abandon the connection."""
    hello = client_hello(trusting_anybody())
    for number in range(place.some(1500, 40)):
        with suppress(*GONE), socket.create_connection(("127.0.0.1", place.tls_port), SHORT_SECONDS) as sock:
            if number % 3 == 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("=ii", 1, 0))
            sock.sendall(hello[: number % (len(hello) + 1)])


def tls_garbage(place: Place) -> None:
    """Send empty records of all kinds, records that lie about their length, garbled hellos, and garbage after a valid
    one.
    """
    random, hello = place.random, client_hello(trusting_anybody())
    said = [
        *(
            record(kind, random.randbytes(size))
            for kind in (HANDSHAKE, ALERT, DATA, 0x14, 0x18)
            for size in (0, 1, 300)
        ),
        *(record(kind, bytes(20), claimed) for kind in (HANDSHAKE, DATA) for claimed in (0xFFFF, RECORD_BYTES_MAX + 1)),
        record(HANDSHAKE, b"\x01\xff\xff\xff" + bytes(RECORD_BYTES_MAX - 4)) * 16,  # a hello of 16 MiB, in pieces
        record(HANDSHAKE, b"") * 5000,
        record(HANDSHAKE, b"\x01") * 5000,
        record(ALERT, b"\x01\x5a") * 5000,
        b"\x16" * 100_000,
        hello + random.randbytes(100_000),
        hello + record(DATA, random.randbytes(RECORD_BYTES_MAX)) * 20,
        hello * 200,
    ]
    for _ in range(place.some(100, 5)):
        garbled = bytearray(hello)
        for _ in range(1 + random.randrange(8)):
            garbled[random.randrange(5, len(garbled))] = random.randrange(256)
        said.append(bytes(garbled))
    for each in said:
        with suppress(*GONE), Guest(place.tls_port, 0.2) as guest:
            push(guest, each, 0.2)
            drain(guest, 0.02)


def tls_handshakes_that_stay_half_open(place: Place) -> None:
    """Send thousands of ClientHellos and nothing more: more than the node's memory for strangers holds."""
    hello = client_hello(trusting_anybody())
    with raw_crowd(place, 1500) as guests:
        for guest in guests:
            push(guest, hello, 0.2)
        time.sleep(2 * place.scale)


def tls_handshakes_that_are_slow(place: Place) -> None:
    """Send hundreds of ClientHellos, byte by byte."""
    hello = client_hello(trusting_anybody())
    with raw_crowd(place, 300) as guests:
        until = time.monotonic() + 3 * place.scale
        for at in range(len(hello)):
            if time.monotonic() > until:
                break
            for guest in guests:
                if not guest.is_gone:
                    push(guest, hello[at : at + 1], 0.1)


def tls_handshakes_by_the_hundred(place: Place) -> None:
    """Complete handshakes of both versions as fast as possible; each costs the node a signature."""
    contexts = [trusting_anybody(), trusting_anybody(ssl.TLSVersion.TLSv1_2)]
    until, number = time.monotonic() + 3 * place.scale, 0
    while time.monotonic() < until:
        number += 1
        with suppress(*GONE), Guest(place.tls_port, SHORT_SECONDS, contexts[number % 2]) as guest:
            guest.say(NOOP[: number % 25])


def tls_hellos_that_come_together(place: Place) -> None:
    """Send ClientHellos on open connections at the same moment, so that one turn needs many signatures."""
    hello = client_hello(trusting_anybody())
    for _ in range(place.some(4, 1)):
        with raw_crowd(place, 300) as guests:
            for guest in guests:
                push(guest, hello, 0.2)
            for guest in guests[:20]:
                drain(guest, 0.05)


def tls_renegotiation_and_new_keys(place: Place) -> None:
    """Request renegotiations and new keys again and again, by openssl(1); do nothing where it is not installed."""
    program = shutil.which("openssl")
    if program is None:
        return
    line = [program, "s_client", "-connect", f"127.0.0.1:{place.tls_port}"]
    running = []
    for number in range(place.some(12, 2)):
        of_one = [*line, "-tls1_2"] if number % 2 else line
        running.append(
            subprocess.Popen(of_one, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603
        )
    for number, each in enumerate(running):
        with suppress(subprocess.TimeoutExpired, OSError):
            each.communicate((b"R\n" if number % 2 else b"k\n") * 500, timeout=SHORT_SECONDS)
        each.kill()
        each.wait()


# --- the wrong port ---------------------------------------------------------------------------------------------------


def plain_bytes_to_the_port_for_tls(place: Place) -> None:
    """Send frames, HTTP and text to the port for TLS, a little and much."""
    page = b"GET /pools HTTP/1.1\r\nHost: x\r\n" + authorization(place) + b"\r\n"
    said = (
        NOOP,
        NOOP * 50_000,
        page,
        b"get key\r\n",
        b"\r\n" * 100,
        bytes(MIB),
        HEADER.pack(0x80, 1, 1, 8, 0, 0, 20 * MIB, 0, 0),
    )
    for number in range(place.some(700, 14)):
        with suppress(*GONE), Guest(place.tls_port, SHORT_SECONDS) as guest:
            push(guest, said[number % len(said)], 0.1)


def tls_to_the_port_without_it(place: Place) -> None:
    """Send hellos, whole records and halves of records to the port without TLS."""
    hello = client_hello(trusting_anybody())
    said = (hello, hello[:1], hello[:100], record(DATA, bytes(RECORD_BYTES_MAX)) * 10, record(ALERT, b"\x02\x28"))
    for number in range(place.some(700, 14)):
        with suppress(*GONE), Guest(place.port, SHORT_SECONDS) as guest:
            push(guest, said[number % len(said)], 0.1)


# --- behind the handshake ---------------------------------------------------------------------------------------------


def tls_records_of_one_byte(place: Place) -> None:
    """Send requests with each byte in a record of its own: twenty bytes for each that counts."""
    with tls_crowd(place, 10) as guests:
        for guest in guests:
            guest.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
            guest.socket.settimeout(0.5)
            with suppress(*GONE):
                for byte in NOOP * place.some(100, 4):
                    guest.socket.send(bytes((byte,)))
        for guest in guests:
            drain(guest, 0.1)


def tls_records_cut_and_garbled(place: Place) -> None:
    """Send, after a handshake, halves of records, unsealed records, and an end without close_notify."""
    random = place.random
    said = (
        record(DATA, random.randbytes(100)),
        record(DATA, random.randbytes(50), RECORD_BYTES_MAX),
        record(DATA, random.randbytes(RECORD_BYTES_MAX)) * 20,
        record(HANDSHAKE, random.randbytes(100)),
        random.randbytes(1000),
    )
    for number in range(place.some(100, 5)):
        with suppress(*GONE), place.tls_guest() as guest:
            guest.say(NOOP)
            below = socket.socket(fileno=socket.dup(guest.socket.fileno()))
            with below, suppress(*GONE):
                below.sendall(said[number % len(said)])
            time.sleep(0.002)


def tls_requests_by_the_ten_thousand(place: Place) -> None:
    """Pipeline requests on fifty connections, so that each turn opens and seals records."""
    with tls_crowd(place, 50) as guests:
        data = Frame(0x80, Opcode.GET_META, b"key-1").encode() * 400
        for guest in guests:
            push(guest, data, 1.0)
        for guest in guests:
            guest.socket.settimeout(SHORT_SECONDS)
            guest.settle()


def tls_half_frames_that_grow(place: Place) -> None:
    """Send parts of large frames on thirty connections, one MiB at a time, as without TLS."""
    claim = HEADER.pack(0x80, Opcode.SET, 1, 8, 0, 0, 20 * MIB, 0, 0) + bytes(9)
    with tls_crowd(place, 30) as guests:
        for guest in guests:
            guest.say(claim)
        for _ in range(place.some(12, 3)):
            for guest in guests:
                if not guest.is_gone:
                    push(guest, bytes(MIB), 1.0)


def tls_answers_that_nobody_reads(place: Place) -> None:
    """Request answers of 20 MiB and of a few bytes, and leave the sealed records unread."""
    with place.guest(20.0) as guest:
        guest.ask(Opcode.SET, b"deaf", bytes(8), bytes(place.some(20 * MIB, 2 * MIB)), vbucket=4)
    with tls_crowd(place, 60) as guests:
        for number, each in enumerate(guests):
            asked = (
                Frame(0x80, Opcode.GET, b"deaf", vbucket=4) if number % 2 else Frame(0x80, Opcode.STAT, b"failovers")
            )
            push(each, asked.encode() * 50, 0.1)
        time.sleep(place.some(1))


STORMS: tuple[Callable[[Place], None], ...] = (
    tls_handshakes_that_are_cut,
    tls_garbage,
    tls_handshakes_that_stay_half_open,
    tls_handshakes_that_are_slow,
    tls_handshakes_by_the_hundred,
    tls_hellos_that_come_together,
    tls_renegotiation_and_new_keys,
    plain_bytes_to_the_port_for_tls,
    tls_to_the_port_without_it,
    tls_records_of_one_byte,
    tls_records_cut_and_garbled,
    tls_requests_by_the_ten_thousand,
    tls_half_frames_that_grow,
    tls_answers_that_nobody_reads,
)
BEFORE_LOGIN = STORMS[:-2]
"""The storms that need no login."""
