"""Garbage, truncated and lying frames at a real node: an error or a hang-up each time, and nobody else notices."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from headwater import testing
from headwater.wire import dcp
from headwater.wire.dcp import OpenFlag
from headwater.wire.header import HEADER, Frame
from headwater.wire.opcodes import Opcode
from tests.node.wire import Client

VBUCKETS = 8
QUIET_VBUCKET = 7  # the bystander's; no garbage is addressed to it
RSS_SLACK_BYTES = 96 << 20
ANSWER_SECONDS = 120.0
WAITS = {Opcode.SEQNO_PERSISTENCE}  # answered after up to 30 seconds, by definition
SWITCHES = {Opcode.FLUSH, Opcode.FLUSHQ, Opcode.DISABLE_TRAFFIC}  # rightly disturb everybody when they are well-formed


def plain() -> bytes:
    return b""


def producer() -> bytes:
    return dcp.Open(flags=OpenFlag.PRODUCER, opaque=1, key=b"liar").encode()


def consumer() -> bytes:
    return dcp.Open(flags=OpenFlag(0), opaque=1, key=b"lying consumer").encode()


def tap() -> bytes:
    return Frame(0x80, Opcode.TAP_CONNECT, b"lying tap", bytes(4)).encode()


def asked(vbucket: int, end: int) -> dcp.StreamRequest:
    return dcp.StreamRequest(
        vbucket=vbucket, opaque=3, start_seqno=0, end_seqno=end, snap_start_seqno=0, snap_end_seqno=0
    )


KINDS = [plain, producer, consumer, tap]


class Bystander:
    """Somebody with documents in a vbucket that no garbage is addressed to."""

    def __init__(self, node: testing.Node) -> None:
        self.node = node
        with Client(node.port) as client:
            for number in range(100):
                stored = client.ask(
                    1, key=b"d%d" % number, extras=bytes(8), value=b"%d" % number, vbucket=QUIET_VBUCKET
                )
                assert stored.status == 0

    def is_served(self) -> None:
        """All there, and writable; no read waits for ever."""
        with Client(self.node.port) as client:
            client.send(b"".join(Frame(0x80, 0, b"d%d" % n, vbucket=QUIET_VBUCKET).encode() for n in range(100)))
            assert [(client.read() or Frame(0x81, 0)).value for _ in range(100)] == [b"%d" % n for n in range(100)]
            assert client.ask(1, key=b"new", extras=bytes(8), value=b"v", vbucket=QUIET_VBUCKET).status == 0


@pytest.fixture(scope="module")
def node() -> Iterator[testing.Node]:
    with testing.node(vbuckets=VBUCKETS) as running:
        yield running


@pytest.fixture(scope="module")
def bystander(node: testing.Node) -> Bystander:
    return Bystander(node)


def resident(node: testing.Node) -> int:
    """Bytes of memory the node's process really uses; without pages of files, which the system can take back."""
    resident_pages, file_pages = Path(f"/proc/{node.pid}/statm").read_text().split()[1:3]
    return (int(resident_pages) - int(file_pages)) * 4096


def descriptors(node: testing.Node) -> int:
    return len(list(Path(f"/proc/{node.pid}/fd").iterdir()))


def all_are_gone(node: testing.Node) -> None:
    """The node has seen that everybody but who asks has hung up; what it kept for them has been given back."""
    deadline = time.monotonic() + ANSWER_SECONDS
    with Client(node.port) as client:
        while connections(client) > 1:
            assert time.monotonic() < deadline, "connections that were closed are still there"


def connections(client: Client) -> int:
    client.send(Frame(0x80, Opcode.STAT).encode())
    found = {}
    while (answer := client.read()) is not None and answer.key:
        found[answer.key] = answer.value
    return int(found[b"curr_connections"])


def talk(node: testing.Node, data: bytes) -> bytes:
    """Send, say that this is all, and return what comes until the node closes, which it must."""
    with socket.create_connection(("127.0.0.1", node.port), ANSWER_SECONDS) as sock:
        answer = b""
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            while piece := sock.recv(1 << 16):
                answer += piece
        except (ConnectionResetError, BrokenPipeError):
            pass  # it hung up before it had read everything
        return answer


@pytest.mark.parametrize("kind", KINDS)
def test_random_bytes_end_in_an_answer_or_a_hang_up(
    node: testing.Node, bystander: Bystander, kind: Callable[[], bytes]
) -> None:
    random = Random(kind.__name__)
    for _ in range(100):
        data = bytearray(random.randbytes(random.choice([1, 23, 24, 25, 100, 5000])))
        if random.random() < 0.7:
            data[0] = random.choice([0x80, 0x81, 0x08, 0x18, 0x82, 0x83])
        talk(node, kind() + bytes(data))
    bystander.is_served()


HONEST = [
    Frame(0x80, Opcode.SET, b"key", bytes(8), b"value", vbucket=1),
    Frame(0x80, Opcode.GET, b"key", vbucket=1),
    Frame(0x08, Opcode.SET, b"key", bytes(8), b"value", vbucket=1, framing=b"\x10\x00"),
    asked(1, 10).frame(),
    dcp.SnapshotMarker(vbucket=1, start_seqno=0, end_seqno=9, flags=1, opaque=3).frame(),  # type: ignore[arg-type]
]
FIELDS = {  # name: (offset, format, values)
    "magic": (0, "B", range(0, 256, 5)),
    "key length": (2, ">H", (0, 1, 4, 250, 251, 0xFF, 0x100, 0x7FFF, 0xFFFF)),
    "extras length": (4, "B", (0, 1, 4, 7, 9, 20, 31, 48, 255)),
    "datatype": (5, "B", (1, 2, 3, 4, 7, 8, 0x80, 0xFF)),
    "vbucket": (6, ">H", (0, 6, 8, 1024, 0xFFFF)),
    "body length": (8, ">I", (0, 1, 5, 15, 17, 4096, 30 << 20, (30 << 20) + 1, 0x7FFFFFFF, 0xFFFFFFFF)),
    "opaque": (12, ">I", (0, 0xFFFFFFFF)),
    "cas": (16, ">Q", (1, 1 << 63, (1 << 64) - 1)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("field", FIELDS)
def test_each_field_of_a_header_may_lie(
    node: testing.Node, bystander: Bystander, field: str, kind: Callable[[], bytes]
) -> None:
    offset, form, values = FIELDS[field]
    for honest in HONEST:
        for value in values:
            lying = bytearray(honest.encode())
            struct.pack_into(form, lying, offset, value)
            talk(node, kind() + bytes(lying) + Frame(0x80, Opcode.NOOP).encode())
    bystander.is_served()


def any_frame(random: Random, opcode: int) -> bytes:
    """A frame of this opcode with sections of any length, that add up."""
    magic = random.choice([0x80, 0x80, 0x80, 0x08, 0x81, 0x18])
    key = random.randbytes(random.choice([1, 3, 8, 16, 250, 255] if opcode in SWITCHES else [0, 1, 3, 8, 16, 250, 255]))
    extras = random.randbytes(random.choice([0, 0, 1, 4, 8, 16, 20, 21, 24, 28, 31, 40, 48, 255]))
    if random.random() < 0.5:
        extras = bytes(len(extras))
    framing = random.randbytes(random.choice([0, 1, 3])) if magic in (0x08, 0x18) else b""
    return Frame(
        magic,
        opcode,
        key,
        extras,
        random.randbytes(random.choice([0, 0, 2, 8, 16, 300])),
        datatype=random.choice([0, 0, 0, 1, 2, 4, 7, 0xFF]),
        vbucket=random.choice([0, 1, 2, 6, 8, 0xFFFF]),
        opaque=random.getrandbits(32),
        cas=random.choice([0, 0, 1, (1 << 64) - 1]),
        framing=framing,
    ).encode()


@pytest.mark.parametrize("kind", KINDS)
def test_every_opcode_with_sections_of_any_length(
    node: testing.Node, bystander: Bystander, kind: Callable[[], bytes]
) -> None:
    random = Random(kind.__name__)
    for opcode in range(256):
        if opcode in WAITS:
            continue
        for _ in range(3):
            talk(node, kind() + b"".join(any_frame(random, opcode) for _ in range(4)))
    bystander.is_served()


@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_that_breaks_off_anywhere_is_not_carried_out(
    node: testing.Node, bystander: Bystander, kind: Callable[[], bytes]
) -> None:
    whole = Frame(0x80, Opcode.SET, b"half", bytes(8), b"value", vbucket=2).encode()
    for size in range(len(whole)):
        talk(node, kind() + whole[:size])
    with Client(node.port) as client:
        assert client.ask(Opcode.GET, key=b"half", vbucket=2).status != 0
    bystander.is_served()


def test_two_hundred_claims_of_30_mib_cost_what_really_arrives(node: testing.Node, bystander: Bystander) -> None:
    before = resident(node)
    with ExitStack() as stack:
        for number in range(200):
            liar = stack.enter_context(Client(node.port))
            opcode = (Opcode.SET, Opcode.DCP_MUTATION, Opcode.HELLO, 0xFF)[number % 4]
            claim = HEADER.pack(0x80, opcode, 3, 31 if opcode == Opcode.DCP_MUTATION else 8, 0, 1, 30 << 20, 0, 0)
            liar.send(KINDS[number % 4]() + claim + b"x" * 50)
        bystander.is_served()
        assert resident(node) - before < RSS_SLACK_BYTES


def test_frames_that_break_off_after_megabytes_leave_nothing_behind(node: testing.Node, bystander: Bystander) -> None:
    before = resident(node)
    claim = HEADER.pack(0x80, Opcode.SET, 3, 8, 0, 0, 30 << 20, 0, 0)
    for number in range(32):
        with socket.create_connection(("127.0.0.1", node.port), ANSWER_SECONDS) as sock:
            sock.sendall(KINDS[number % 4]() + claim + bytes(16 << 20))
    bystander.is_served()
    all_are_gone(node)
    assert resident(node) - before < RSS_SLACK_BYTES


def test_a_value_that_claims_to_inflate_to_gibibytes_is_refused_by_its_claim(
    node: testing.Node, bystander: Bystander
) -> None:
    before = resident(node)
    bomb = b"\xff\xff\xff\xff\x07" + b"\xfe\x01\x00" * 5000  # snappy: 2 GiB - 1 of uncompressed length
    with Client(node.port) as client:
        assert client.ask(Opcode.HELLO, key=b"bomb", value=b"\x00\x0a").value == b"\x00\x0a"
        for vbucket in (1, 2):
            answer = client.ask(Opcode.SET, key=b"b", extras=bytes(8), value=bomb, datatype=2, vbucket=vbucket)
            assert answer.status != 0
    assert resident(node) - before < RSS_SLACK_BYTES
    bystander.is_served()


def test_peers_that_never_read_are_not_buffered_for(node: testing.Node, bystander: Bystander) -> None:
    """Answers and streams wait for their reader in the socket, and in 4 MiB at most behind it."""
    with Client(node.port) as client:
        for number in range(24):
            value = Random(number).randbytes(1 << 20)
            assert client.ask(1, key=b"%d" % number, extras=bytes(8), value=value, vbucket=6).status == 0
    before = resident(node)
    with ExitStack() as stack:
        for number in range(16):
            deaf = stack.enter_context(Client(node.port))
            if number % 2:
                gets = b"".join(Frame(0x80, 0, b"%d" % each, vbucket=6).encode() for each in range(24))
                deaf.send(gets * 20)
            else:
                name = b"deaf %d" % number
                deaf.send(dcp.Open(flags=OpenFlag.PRODUCER, opaque=1, key=name).encode())
                deaf.send(asked(6, (1 << 64) - 1).encode())
        bystander.is_served()
        assert resident(node) - before < 16 * (6 << 20) + RSS_SLACK_BYTES


def test_fifty_clients_that_send_a_byte_at_a_time_hold_nobody_up(node: testing.Node, bystander: Bystander) -> None:
    data = Frame(0x80, 1, b"loris", bytes(8), b"slow", vbucket=3).encode()
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(node.port)) for _ in range(50)]
        for at in range(len(data)):
            for client in clients:
                client.send(data[at : at + 1])
            if at % 10 == 0:
                bystander.is_served()
        assert [(client.read() or Frame(0x81, 0, vbucket=1)).status for client in clients] == [0] * 50


def test_five_hundred_connections_opened_and_dropped_leave_nothing_behind(
    node: testing.Node, bystander: Bystander
) -> None:
    bystander.is_served()
    before, memory, random = descriptors(node), resident(node), Random(5)
    for number in range(500):
        with socket.create_connection(("127.0.0.1", node.port), ANSWER_SECONDS) as sock:
            if number % 3 == 0:  # closed with a reset
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            talked = KINDS[number % 4]() + asked(1, 1 << 62).encode()
            sock.sendall(talked[: random.randrange(len(talked) + 1)])
    deadline = time.monotonic() + ANSWER_SECONDS
    while descriptors(node) > before + 2 and time.monotonic() < deadline:
        bystander.is_served()
    assert descriptors(node) <= before + 2 and resident(node) - memory < RSS_SLACK_BYTES
    all_are_gone(node)


def test_after_all_that_no_line_of_the_log_is_a_traceback_and_each_names_its_peer(
    node: testing.Node, bystander: Bystander
) -> None:
    bystander.is_served()
    lines = node.log.splitlines()
    assert lines and "Traceback" not in node.log
    assert [line for line in lines if " WARNING 127.0.0.1:" not in line and "lines left out" not in line] == []
