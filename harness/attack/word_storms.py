"""Guests that send text: the text protocol, HTTP, and JSON in every request that takes it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from struct import pack

from harness.attack.guest import GONE, Guest
from harness.attack.storms import MIB, Place, authorization, drain, push
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode

DEEP = (b"[" * 300_000, b'{"a":' * 60_000, b"[" * 150_000 + b"]" * 150_000, b'"' + b"\\" * 300_001)
PATHS = (
    b"a." * 400,
    b"a" + b"[0]" * 300,
    b"a." * 31 + b"a",
    b"a" + b"[0]" * 32,
    b"`" * 1000,
    b"a[-1]" * 32,
    b"\0" * 1000,
)


# --- text -------------------------------------------------------------------------------------------------------------


def text_guest(place: Place, seconds: float = 5.0) -> Guest:
    """Return a connection of the text protocol, logged in by a `set` if the place has users and logs in."""
    guest = Guest(place.port, seconds)
    if place.user is not None and place.log_in:
        told = " ".join(place.user).encode()
        guest.say(b"set auth 0 0 %d\r\n%b\r\n" % (len(told), told))
        with suppress(*GONE):
            guest.socket.recv(100)
    return guest


def text_lines_that_do_not_end(place: Place) -> None:
    """Send from a KiB to some MiB without a line's end, half data blocks, and commands whose data block never comes."""
    for said in (
        b"a" * 3000,
        b"get " + b"k" * MIB * 2,
        b"get " + b"k " * MIB,
        b"set k 0 0 20971520\r\n" + bytes(19 * MIB),
        b"set k 0 0 2147483645\r\n" + bytes(MIB),
        b"set k 0 0 99999999999999999999\r\n" + bytes(MIB),
        b"set k 0 0 -1\r\n" * 1000,
        b"ms k 20971520\r\n" + bytes(19 * MIB),
        b"mg " + b"k" * 251 + b" " + b"v " * 900 + b"\r\n",
        b"\r\n" * 100_000,
        b"\0" * 100_000,
        b"get " + b"\xff" * 250 + b"\r\n",
    ):
        for _ in range(place.some(4)):
            with suppress(*GONE), text_guest(place) as guest:
                push(guest, said, 0.3)
                drain(guest, 0.05)


def text_keys_by_the_ten_thousand(place: Place) -> None:
    """Send get, gets and gat with as many keys as a line holds, pipelined, for existing and missing keys."""
    keys = b" ".join(b"key-%d" % number for number in range(place.some(60_000, 3000)))
    for verb in (b"get ", b"gets ", b"gat 0 ", b"gats 0 "):
        with text_guest(place) as guest:
            push(guest, (verb + keys + b"\r\n") * 3, 1.0)
            drain(guest, 0.3)


def text_commands_pipelined(place: Place) -> None:
    """Send sets, counters, meta commands and statistics by the thousand, quiet ones as well, on fifty connections."""
    said = (
        b"set k 0 0 1\r\n1\r\n" * 1500,
        b"set k 0 0 1 noreply\r\n1\r\n" * 1500,
        b"incr k 1\r\ndecr k 1\r\n" * 800,
        b"ms k 1 T0 F0\r\n1\r\nmg k v f t s\r\nma k\r\nmd k q\r\nmn\r\n" * 400,
        b"stats\r\n" * 100 + b"stats items\r\nstats slabs\r\nstats vbucket-details\r\n" * 20,
        b"append k 0 0 1\r\nx\r\n" * 1500,
        b"wrong words here\r\n" * 1500,
        b"touch k 0\r\ndelete k\r\nadd k 0 0 1\r\n1\r\nreplace k 0 0 1\r\n1\r\ncas k 0 0 1 1\r\n1\r\n" * 300,
    )
    guests = [text_guest(place) for _ in range(place.some(24, 8))]
    for number, each in enumerate(guests):
        push(each, said[number % len(said)], 0.1)
    for guest in guests:
        drain(guest, 0.05)
        guest.socket.close()


def text_answers_that_nobody_reads(place: Place) -> None:
    """Request a document of 20 MiB fifty times, and statistics, on sixty connections; read no answer."""
    size = place.some(20 * MIB, 2 * MIB)
    with text_guest(place, 20.0) as guest:
        guest.say(b"set deaf 0 0 %d\r\n" % size + bytes(size) + b"\r\n")
        drain(guest, 1.0)
    guests = []
    for number in range(place.some(60)):
        with suppress(*GONE):
            guests.append(text_guest(place))
            push(guests[-1], (b"get deaf\r\n", b"stats vbucket-details\r\n")[number % 2] * 50, 0.1)
    time.sleep(place.some(1))
    for each in guests:
        each.socket.close()


# --- HTTP -------------------------------------------------------------------------------------------------------------


def pages_asked_for_slowly(place: Place) -> None:
    """Send HTTP headers line by line, without end, on hundreds of connections."""
    with place.crowd(300, 0.2) as guests:
        for number in range(place.some(20, 3)):
            for guest in guests:
                if not guest.is_gone:
                    push(
                        guest,
                        b"GET /pools HTTP/1.1\r\n" if number == 0 else b"X-%d: %b\r\n" % (number, b"y" * 500),
                        0.05,
                    )


def pages_of_strange_requests(place: Place) -> None:
    """Send chunked bodies, false and repeated lengths, endless paths, and unknown methods and versions."""
    login = authorization(place)
    begins = b"POST /pools HTTP/1.1\r\nHost: x\r\n" + login
    for said in (
        begins + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 20_000,
        begins + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n" + bytes(MIB),
        begins + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        begins + b"Content-Length: -1\r\n\r\n" + bytes(1000),
        begins + b"Content-Length: 999999999999999999999\r\n\r\n" + bytes(MIB),
        b"GET " + b"/" * 2 * MIB + b" HTTP/1.1\r\n\r\n",
        b"GET /pools?" + b"a=b&" * 4000 + b" HTTP/1.1\r\n\r\n",
        b"GET /" + b"%2e%2e%2f" * 1500 + b" HTTP/1.1\r\n\r\n",
        b"BREW /pools HTTP/1.1\r\n\r\n",
        b"GET /pools SPDY/3\r\n\r\n",
        b"GET /pools HTTP/1.1\r\n" + b"Authorization: Basic " + b"QUFB" * 3000 + b"\r\n\r\n",
        b"GET /pools HTTP/1.1\r\nAuthorization: Basic \xff\xfe\r\n\r\n",
        b"GET /pools HTTP/1.1\r\n" + b": \r\n" * 4000 + b"\r\n",
        b"GET /pools HTTP/1.1\n\n" * 2000,
        (b"GET /pools/default HTTP/1.1\r\nHost: x\r\n" + login + b"\r\n") * 300,
    ):
        for _ in range(place.some(4)):
            with suppress(*GONE), Guest(place.port, 0.3) as guest:
                push(guest, said, 0.3)
                drain(guest, 0.05)


def pages_with_wrong_passwords(place: Place) -> None:
    """Request pages with wrong passwords, whose checks take time on purpose."""
    page = b"GET /pools/default HTTP/1.1\r\nHost: x\r\nAuthorization: Basic Ym9iOndyb25n\r\n\r\n"
    with place.crowd(60, 0.2) as guests:
        for guest in guests:
            push(guest, page * 20, 0.1)
        time.sleep(2 * place.scale)


def watchers_of_pages_that_come_and_go(place: Place) -> None:
    """Watch the map over HTTP, and leave at once or send more meanwhile."""
    page = b"GET /pools/default/bucketsStreaming/default HTTP/1.1\r\nHost: x\r\n" + authorization(place) + b"\r\n"
    for number in range(place.some(400, 10)):
        with suppress(*GONE), Guest(place.port, 0.2) as guest:
            if number % 3 == 0:
                guest.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("=ii", 1, 0))
            push(guest, page + bytes(number % 7 * 10_000), 0.1)


# --- JSON -------------------------------------------------------------------------------------------------------------


def json_of_any_depth(place: Place) -> None:
    """Send deep JSON as documents by frame and by text, as subdocuments, in lookups of paths, and as operators'
    requests.
    """
    with place.guest() as guest:
        guest.hello(0x06, 0x07, 0x0B)
        for value in DEEP:
            for opcode in (Opcode.SET, Opcode.ADD, Opcode.REPLACE):
                guest.say(Frame(0x80, opcode, b"deep", bytes(8), value, vbucket=5).encode())
            for opcode in (Opcode.APPEND, Opcode.PREPEND):
                guest.say(Frame(0x80, opcode, b"deep", b"", value, vbucket=5).encode())
            guest.settle()
            for path in PATHS:
                for one in SUBDOC:
                    guest.say(subdoc(one, b"deep", path, value[:100_000]))
                guest.settle()
    with suppress(*GONE), text_guest(place) as guest:
        for value in DEEP:
            push(guest, b"set deep 0 0 %d\r\n%b\r\n" % (len(value), value), 0.5)
        drain(guest, 0.1)


def lookups_in_a_large_document(place: Place) -> None:
    """Pipeline lookups of sixteen paths, the last of a million elements, and changes behind, among and of as many."""
    whole = b'{"a":[' + b"1," * place.some(2_000_000, 20_000) + b'1],"z":{"y":1}}'
    with place.guest(20.0) as guest:
        guest.ask(Opcode.SET, b"wide", bytes(8), whole, vbucket=5)
        specs = b"".join(pack(">BBH", 0xC5, 0, 3) + b"z.y" for _ in range(16))
        look = Frame(0x80, 0xD0, b"wide", b"", specs, vbucket=5).encode()
        push(guest, look * place.some(10, 2) + subdoc(0xC8, b"wide", b"z.y", b"2") * place.some(10, 2), 5.0)
        guest.settle()
        unique = subdoc(Opcode.SUBDOC_ARRAY_ADD_UNIQUE, b"wide", b"a", b"2")
        push(guest, unique * place.some(10, 2) + subdoc(0xC8, b"wide", b"b", whole[5:-13]) * 2, 5.0)
        guest.settle()


SUBDOC = range(0xC5, 0xCF)


def subdoc(opcode: int, key: bytes, path: bytes, value: bytes) -> bytes:
    """Return a subdocument request of one path."""
    value = b"" if opcode in (0xC5, 0xC6, 0xC9) else value
    return Frame(0x80, opcode, key, pack(">HB", len(path), 0), path + value, vbucket=5).encode()


STORMS: tuple[Callable[[Place], None], ...] = (
    text_lines_that_do_not_end,
    text_keys_by_the_ten_thousand,
    text_commands_pipelined,
    text_answers_that_nobody_reads,
    pages_asked_for_slowly,
    pages_of_strange_requests,
    pages_with_wrong_passwords,
    watchers_of_pages_that_come_and_go,
    json_of_any_depth,
    lookups_in_a_large_document,
)
BEFORE_LOGIN = (
    text_lines_that_do_not_end,
    text_commands_pipelined,
    pages_asked_for_slowly,
    pages_of_strange_requests,
    pages_with_wrong_passwords,
)
