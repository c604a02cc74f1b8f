"""Guests at the port for TLS: handshakes that are cut, garbled, slow, or many; plain bytes there, and TLS elsewhere.

What costs a guest little (a ClientHello is some hundred bytes) costs a node a signature and 64 KiB until it learns that
nobody is there: so it is bounded by number, by time and by turn, as everything of strangers is.
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
    """The bytes with which a client begins."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing).do_handshake()
    return outgoing.read()


def record(kind: int, data: bytes, claimed: int | None = None) -> bytes:
    """A record of TLS 1.2 that claims to have `claimed` bytes."""
    return pack(">BHH", kind, 0x0303, len(data) if claimed is None else claimed) + data


@contextmanager
def raw_crowd(place: Place, count: int, seconds: float = SHORT_SECONDS) -> Iterator[list[Guest]]:
    """Connections to the port for TLS that speak none yet."""
    with ExitStack() as stack:
        guests = []
        for _ in range(place.some(count)):
            with suppress(*GONE):
                guests.append(stack.enter_context(Guest(place.tls_port, seconds)))
        yield guests


@contextmanager
def tls_crowd(place: Place, count: int, seconds: float = SHORT_SECONDS) -> Iterator[list[Guest]]:
    """Connections whose handshake is over, logged in where that is done here."""
    with ExitStack() as stack:
        guests = []
        for _ in range(place.some(count)):
            with suppress(*GONE):
                guests.append(stack.enter_context(place.tls_guest(seconds)))
        yield guests


# --- the handshake ----------------------------------------------------------------------------------------------------


def tls_handshakes_that_are_cut(place: Place) -> None:
    """After each number of bytes of a ClientHello; closed, reset, or left to its time."""
    hello = client_hello(trusting_anybody())
    for number in range(place.some(1500, 40)):
        with suppress(*GONE), socket.create_connection(("127.0.0.1", place.tls_port), SHORT_SECONDS) as sock:
            if number % 3 == 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("=ii", 1, 0))
            sock.sendall(hello[: number % (len(hello) + 1)])


def tls_garbage(place: Place) -> None:
    """Records of all kinds that hold nothing, or lie about their length; garbled hellos; garbage behind a good one."""
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
    """Thousands that have said hello, and do not go on: more than strangers have memory for."""
    hello = client_hello(trusting_anybody())
    with raw_crowd(place, 1500) as guests:
        for each in guests:
            push(each, hello, 0.2)
        time.sleep(2 * place.scale)


def tls_handshakes_that_are_slow(place: Place) -> None:
    """Hundreds that say their hello byte by byte."""
    hello = client_hello(trusting_anybody())
    with raw_crowd(place, 300) as guests:
        until = time.monotonic() + 3 * place.scale
        for at in range(len(hello)):
            if time.monotonic() > until:
                break
            for each in guests:
                if not each.is_gone:
                    push(each, hello[at : at + 1], 0.1)


def tls_handshakes_by_the_hundred(place: Place) -> None:
    """Whole ones, as fast as they go, of both versions; each is a signature of the node's."""
    contexts = [trusting_anybody(), trusting_anybody(ssl.TLSVersion.TLSv1_2)]
    until, number = time.monotonic() + 3 * place.scale, 0
    while time.monotonic() < until:
        number += 1
        with suppress(*GONE), Guest(place.tls_port, SHORT_SECONDS, contexts[number % 2]) as guest:
            guest.say(NOOP[: number % 25])


def tls_hellos_that_come_together(place: Place) -> None:
    """Connections that are there already say hello at once: many signatures wanted in one turn."""
    hello = client_hello(trusting_anybody())
    for _ in range(place.some(4, 1)):
        with raw_crowd(place, 300) as guests:
            for each in guests:
                push(each, hello, 0.2)
            for each in guests[:20]:
                drain(each, 0.05)


def tls_renegotiation_and_new_keys(place: Place) -> None:
    """Asked for again and again, by openssl(1), which knows how; nothing where there is none."""
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
    """Frames, HTTP and text, a little and much."""
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
    """Hellos, whole records and halves of them."""
    hello = client_hello(trusting_anybody())
    said = (hello, hello[:1], hello[:100], record(DATA, bytes(RECORD_BYTES_MAX)) * 10, record(ALERT, b"\x02\x28"))
    for number in range(place.some(700, 14)):
        with suppress(*GONE), Guest(place.port, SHORT_SECONDS) as guest:
            push(guest, said[number % len(said)], 0.1)


# --- behind the handshake ---------------------------------------------------------------------------------------------


def tls_records_of_one_byte(place: Place) -> None:
    """Requests whose every byte comes in a record of its own: twenty for each that counts."""
    with tls_crowd(place, 10) as guests:
        for each in guests:
            each.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
            each.socket.settimeout(0.5)
            with suppress(*GONE):
                for byte in NOOP * place.some(100, 4):
                    each.socket.send(bytes((byte,)))
        for each in guests:
            drain(each, 0.1)


def tls_records_cut_and_garbled(place: Place) -> None:
    """Behind a good handshake: halves of records, records that nobody sealed, an end without a farewell."""
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
    """Pipelined on fifty connections: each turn opens and seals."""
    with tls_crowd(place, 50) as guests:
        data = Frame(0x80, Opcode.GET_META, b"key-1").encode() * 400
        for each in guests:
            push(each, data, 1.0)
        for each in guests:
            each.socket.settimeout(SHORT_SECONDS)
            each.settle()


def tls_half_frames_that_grow(place: Place) -> None:
    """A mebibyte at a time on thirty connections, as without TLS."""
    claim = HEADER.pack(0x80, Opcode.SET, 1, 8, 0, 0, 20 * MIB, 0, 0) + bytes(9)
    with tls_crowd(place, 30) as guests:
        for each in guests:
            each.say(claim)
        for _ in range(place.some(12, 3)):
            for each in guests:
                if not each.is_gone:
                    push(each, bytes(MIB), 1.0)


def tls_answers_that_nobody_reads(place: Place) -> None:
    """Of 20 MiB and of a few bytes, sealed and waiting."""
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
"""Those that a stranger can do as well."""
