"""Guests that demand much at once: each storm is the behaviour of one kind of guest, for a few seconds at most.

A storm is a function of a `Place`; `scale` 1.0 is as much as a guest can do, less is for a test that must be short.
"""

from __future__ import annotations

import base64
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from random import Random
from struct import pack

from harness.attack import limits
from harness.attack.guest import GONE, Guest
from headwater.wire import dcp
from headwater.wire.header import BODY_BYTES_MAX, HEADER, Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.tap import ConnectFlag

MIB = 1 << 20
SHORT_SECONDS = 5.0
PRODUCER = pack(">II", 0, 1)
CONSUMER = pack(">II", 0, 0)
KEYS = 100_000
GROUPS = (
    b"vbucket-details",
    b"failovers",
    b"",
    b"tap",
    b"dcp",
    b"dcp-vbtakeover 0 x",
    b"checkpoint",
    b"cluster",
    b"loop",
)
HELLO_OF_DATATYPES = (0x06, 0x07, 0x08, 0x0A, 0x0B, 0x04)
"""Features by which a client gets documents with their datatypes (JSON, snappy, attributes), and sequence numbers."""


@dataclass(frozen=True, slots=True)
class Place:
    """The target of a storm.

    Attributes:
        port, tls_port, vbuckets: of the node.
        user: name and password; None on a node without users.
        log_in: True if the guests log in.
        scale: the factor of all counts.
    """

    port: int
    vbuckets: int
    random: Random
    scale: float = 1.0
    user: tuple[str, str] | None = None
    log_in: bool = True
    tls_port: int = 0

    def guest(self, seconds: float = SHORT_SECONDS) -> Guest:
        """Return a new connection, logged in if `log_in`."""
        return self._admitted(Guest(self.port, seconds))

    def tls_guest(self, seconds: float = SHORT_SECONDS) -> Guest:
        """Return a new connection by TLS, logged in if `log_in`."""
        return self._admitted(Guest(self.tls_port, seconds, trusting_anybody()))

    def _admitted(self, made: Guest) -> Guest:
        if self.user is not None and self.log_in:
            made.log_in(*self.user)
        return made

    def some(self, count: int, least: int = 1) -> int:
        """Return a count multiplied by the scale, `least` at least."""
        return max(least, round(count * self.scale))

    @contextmanager
    def crowd(self, count: int, seconds: float = SHORT_SECONDS) -> Iterator[list[Guest]]:
        """Open several connections for a block; those that the node refuses are missing."""
        with ExitStack() as stack:
            guests = []
            for _ in range(self.some(count)):
                with suppress(*GONE):
                    guests.append(stack.enter_context(self.guest(seconds)))
            yield guests


def trusting_anybody(version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    """Return a TLS context that accepts any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if version is not None:
        context.maximum_version = version
    return context


def push(guest: Guest, data: bytes, seconds: float = 1.0) -> None:
    """Send as much as the node accepts, until it accepts no more for `seconds`."""
    guest.socket.settimeout(seconds)
    guest.say(data)


def at_once(guests: list[Guest], work: Callable[[Guest], object]) -> None:
    """Run `work` with every guest at the same time, in a thread each."""
    threads = [threading.Thread(target=work, args=(guest,), daemon=True) for guest in guests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# --- lists and statistics ---------------------------------------------------------------------------------------------


def observe_of_80_000_keys(place: Place) -> None:
    """Send OBSERVE of 80,000 keys in one request, which is refused, and in several that are accepted."""
    keys = b"".join(pack(">HH", 0, len(key)) + key for key in (b"key-%d" % n for n in range(place.some(80_000, 4000))))
    with place.guest() as guest:
        guest.ask(Opcode.OBSERVE, value=keys[: BODY_BYTES_MAX - 100])
        pieces = [keys[at : at + 60_000] for at in range(0, len(keys), 60_000)]
        push(guest, b"".join(Frame(0x80, Opcode.OBSERVE, value=piece).encode() for piece in pieces))
        guest.settle()


def pipelined_statistics(place: Place) -> None:
    """Request each group of statistics a hundred times, pipelined."""
    for group in GROUPS:
        with place.guest() as guest:
            guest.say(Frame(0x80, Opcode.STAT, group).encode() * place.some(100, 2))
            guest.settle()


def statistics_of_many(place: Place) -> None:
    """Request the longest group of statistics from fifty guests at the same time."""
    with place.crowd(50) as guests:
        for guest in guests:
            guest.say(Frame(0x80, Opcode.STAT, b"vbucket-details").encode())
        for guest in guests:
            guest.settle()


def keys_and_seqnos(place: Place) -> None:
    """Send GET_KEYS, GET_ALL_VB_SEQNOS, GET_RANDOM_KEY and GET_META, pipelined."""
    asked = (
        (10, Frame(0x80, Opcode.GET_KEYS, b"key-", pack(">I", 0xFFFF_FFFF))),
        (10, Frame(0x80, Opcode.GET_KEYS, b"key-5", pack(">I", 3))),
        (300, Frame(0x80, Opcode.GET_ALL_VB_SEQNOS)),
        (300, Frame(0x80, Opcode.GET_RANDOM_KEY)),
        (3000, Frame(0x80, Opcode.GET_META, b"key-1")),
        (300, Frame(0x80, Opcode.GET_ERROR_MAP, value=pack(">H", 2))),
        (300, Frame(0x80, Opcode.GET_CLUSTER_CONFIG)),
    )
    for count, each in asked:
        with place.guest() as guest:
            push(guest, each.encode() * place.some(count, 3))
            guest.settle()


def hello_of_many_features(place: Place) -> None:
    """Send HELLO with one feature more than is allowed, up to a whole frame of them, and many small ones in a row."""
    for count in (513, 30_000, 500_000, BODY_BYTES_MAX // 2 - 10):
        with place.guest() as guest:
            guest.say(Frame(0x80, Opcode.HELLO, value=b"\0\xee" * count).encode())
            guest.settle()
    with place.guest() as guest:
        push(guest, Frame(0x80, Opcode.HELLO, b"n" * 250, value=b"\0\x07" * 400).encode() * place.some(3000, 100))
        guest.settle()


def a_hundred_busy_connections(place: Place) -> None:
    """Pipeline plain requests without end on a hundred connections: a bystander waits for all of them."""
    with place.crowd(100) as guests:
        data = Frame(0x80, Opcode.GET_META, b"key-1").encode() * 1500
        for guest in guests:
            push(guest, data, 0.01)
        for guest in guests:
            guest.socket.settimeout(SHORT_SECONDS)
            guest.settle()


def drain(guest: Guest, seconds: float) -> None:
    """Read until nothing more comes for so many seconds."""
    guest.socket.settimeout(seconds)
    with suppress(*GONE):
        while guest.socket.recv(1 << 20):
            pass


# --- large ------------------------------------------------------------------------------------------------------------


def large_documents(place: Place) -> None:
    """Write documents of 20 MiB, read them in every form, change and compare them, and send them to a stream."""
    size = place.some(20 * MIB, 2 * MIB)
    for number, (datatype, value) in enumerate(limits.values(place.random, size)):
        key = b"large-%d" % number
        with place.guest(20.0) as guest, place.guest(20.0) as plain:
            guest.hello(*HELLO_OF_DATATYPES)
            guest.say(Frame(0x80, Opcode.SET, key, bytes(8), value, datatype=datatype, vbucket=2).encode())
            guest.settle()
            for each in (guest, plain):
                for opcode, extras in ((Opcode.GET, b""), (Opcode.GAT, bytes(4)), (Opcode.GET_REPLICA, b"")):
                    each.say(Frame(0x80, opcode, key, extras, vbucket=2).encode())
                    each.settle()
            for opcode in (Opcode.APPEND, Opcode.PREPEND):
                guest.say(Frame(0x80, opcode, key, b"", b" ", vbucket=2).encode())
            guest.say(Frame(0x80, Opcode.SET, key, bytes(8), b"over", vbucket=2).encode())
            guest.say(Frame(0x80, Opcode.TOUCH, key, pack(">I", 60), vbucket=2).encode())
            guest.say(Frame(0x80, Opcode.INCREMENT, key, bytes(20), vbucket=2).encode())
            guest.say(Frame(0x80, Opcode.DELETE, key, vbucket=2).encode())
            guest.settle()


def streams_of_large_documents(place: Place) -> None:
    """Send two documents of 20 MiB of each kind, by DCP and by TAP, to readers of every sort."""
    size = place.some(20 * MIB, 2 * MIB)
    with place.guest(20.0) as guest:
        guest.hello(*HELLO_OF_DATATYPES)
        for number, (datatype, value) in enumerate(limits.values(place.random, size)):
            key = b"streamed-%d" % number
            guest.say(Frame(0x80, Opcode.SET, key, bytes(8), value, datatype=datatype, vbucket=3).encode())
        guest.settle()
    controls: tuple[tuple[bytes, bytes], ...] = (
        (b"force_value_compression", b"true"),
        (b"enable_expiry_opcode", b"true"),
    )
    for flags in (1, 1 | 4, 1 | 8):  # all of it, with attributes, without values
        for features in ((), HELLO_OF_DATATYPES):
            with place.guest(20.0) as reader:
                reader.hello(*features)
                reader.ask(Opcode.DCP_OPEN, b"large", pack(">II", 0, flags))
                for key, value in controls:
                    reader.ask(Opcode.DCP_CONTROL, key, value=value)
                reader.say(stream_request(3).encode())
                drain(reader, 0.5)
    with place.guest(20.0) as reader:
        reader.say(tap_connect(b"large", ConnectFlag.DUMP))
        drain(reader, 0.5)
    with place.guest(20.0) as guest:
        for number in range(len(limits.values(place.random, 64 << 10))):
            guest.say(Frame(0x80, Opcode.DELETE, b"streamed-%d" % number, vbucket=3).encode())
        guest.settle()


def half_frames_on_many_connections(place: Place) -> None:
    """Send 19 of a frame's 20 MiB on many connections, and wait."""
    claim = HEADER.pack(0x80, Opcode.SET, 1, 8, 0, 0, 20 * MIB, 0, 0) + bytes(9)
    with place.crowd(40) as guests:
        for guest in guests:
            push(guest, claim + bytes(19 * MIB), 2.0)


def half_frames_that_grow_together(place: Place) -> None:
    """Send parts of large frames on many connections, one MiB at a time, all in turn; then close them."""
    claim = HEADER.pack(0x80, Opcode.SET, 1, 8, 0, 0, 20 * MIB, 0, 0) + bytes(9)
    with place.crowd(60) as guests:
        for guest in guests:
            guest.say(claim)
        for _ in range(place.some(15, 4)):
            for guest in guests:
                if not guest.is_gone:
                    push(guest, bytes(MIB), 1.0)


def answers_that_nobody_reads(place: Place) -> None:
    """Request a document of 20 MiB fifty times on each of forty connections, and read no answer."""
    with place.guest(20.0) as guest:
        guest.ask(Opcode.SET, b"deaf", bytes(8), bytes(place.some(20 * MIB, 2 * MIB)), vbucket=4)
    with place.crowd(40) as guests:
        for each in guests:
            push(each, Frame(0x80, Opcode.GET, b"deaf", vbucket=4).encode() * 50)
        time.sleep(place.some(1))


def small_answers_that_nobody_reads(place: Place) -> None:
    """Send requests on a thousand connections until their kernel buffers are full of unread answers."""
    with place.crowd(600) as guests:
        data = Frame(0x80, Opcode.STAT, b"vbucket-details").encode() * 40
        for guest in guests:
            push(guest, data, 0.05)
        time.sleep(2 * place.scale)


def requests_that_wait_in_the_kernel(place: Place) -> None:
    """Open six hundred connections whose session waits, so that their further requests stay in the kernel."""
    with place.crowd(600) as guests:
        data = Frame(0x80, Opcode.GET, b"deaf", vbucket=4).encode() * 2000
        for guest in guests:
            push(guest, data, 0.02)
        time.sleep(2 * place.scale)


def wrong_json(place: Place) -> None:
    """Send deep and large documents in every request that takes JSON."""
    for value in (b"[" * 900_000, b'{"a":' * 180_000, b"[" * 400_000 + b"]" * 400_000, b"[1," * 300_000 + b"1]"):
        for opcode, key, extras in (
            (Opcode.SET_CLUSTER_CONFIG, b"default", pack(">qq", 1, 10**15)),
            (Opcode.SET_VBUCKET, b"", b"\1"),
            (Opcode.IOCTL_SET, b"replicate", b""),
            (Opcode.DCP_OPEN, b"deep", PRODUCER),
            (Opcode.COLLECTIONS_SET_MANIFEST, b"", b""),
            (Opcode.SET, b"deep", bytes(8)),
        ):
            with place.guest() as guest:
                guest.say(Frame(0x80, opcode, key, extras, value, vbucket=5).encode())
                guest.settle()


# --- DCP and TAP ------------------------------------------------------------------------------------------------------


def stream_request(vbucket: int, start: int = 0, end: int = (1 << 64) - 1) -> Frame:
    """Return a stream request for a range of a vbucket; by default all of it."""
    told = dcp.StreamRequest(
        vbucket=vbucket, opaque=vbucket, start_seqno=start, end_seqno=end, snap_start_seqno=start, snap_end_seqno=start
    )
    return told.frame()


def tap_connect(name: bytes, flags: int, vbuckets: list[int] | None = None) -> bytes:
    """Return TAP_CONNECT, for some vbuckets or (None) all."""
    value = b""
    if vbuckets is not None:
        flags |= ConnectFlag.LIST_VBUCKETS
        value = pack(f">H{len(vbuckets)}H", len(vbuckets), *vbuckets)
    return Frame(0x80, Opcode.TAP_CONNECT, name, pack(">I", flags), value).encode()


def dcp_open_storm(place: Place) -> None:
    """Send DCP_OPEN with new names and used ones, a second one on the same connection, and controls, as fast as
    possible.
    """
    with place.crowd(50) as guests:
        for number, each in enumerate(guests):
            data = Frame(0x80, Opcode.DCP_OPEN, b"storm-%d" % (number % 7), PRODUCER).encode()
            data += Frame(0x80, Opcode.DCP_CONTROL, b"connection_buffer_size", value=b"100000").encode() * 200
            each.say(data + Frame(0x80, Opcode.DCP_OPEN, b"again", CONSUMER).encode())
        for guest in guests:
            guest.settle()


def stream_request_storm(place: Place) -> None:
    """Request every vbucket's stream on each of twenty connections, close them and request them again; acknowledge
    nothing.
    """
    asked = b"".join(stream_request(vb).encode() for vb in range(place.vbuckets))
    closed = b"".join(Frame(0x80, Opcode.DCP_CLOSE_STREAM, vbucket=vb).encode() for vb in range(place.vbuckets))
    with place.crowd(20) as guests:
        for number, each in enumerate(guests):
            each.ask(Opcode.DCP_OPEN, b"streams-%d" % number, PRODUCER)
        at_once(guests, lambda each: push(each, (asked + closed) * 5, 3.0))
        for each in guests:
            each.settle()


def wrong_stream_requests(place: Place) -> None:
    """Request streams with impossible seqnos, filters that are no JSON, and vbuckets that do not exist."""
    random = place.random
    with place.guest() as guest:
        guest.ask(Opcode.DCP_OPEN, b"wrong", PRODUCER)
        for _ in range(place.some(2000, 100)):
            numbers = [random.choice((0, 1, 1 << 62, (1 << 64) - 1, random.getrandbits(64))) for _ in range(5)]
            extras = pack(">II5Q", random.getrandbits(32) & random.getrandbits(32), 0, *numbers)
            value = random.choice((b"", b"{}", b"[" * 50_000, b'{"sid":1}', b'{"collections":["8"]}'))
            guest.say(
                Frame(0x80, Opcode.DCP_STREAM_REQ, b"", extras, value, vbucket=random.choice((0, 1, 2000))).encode()
            )
        guest.settle()


def consumer_names_of_25_mib(place: Place) -> None:
    """Send a consumer's name of 25 MiB, and other controls with arbitrary values."""
    with place.crowd(8, 20.0) as guests:
        for number, each in enumerate(guests):
            each.ask(Opcode.DCP_OPEN, b"named-%d" % number, PRODUCER)
            for key in (b"consumer_name", b"x" * 60_000, b"set_priority", b"max_marker_version"):
                push(each, Frame(0x80, Opcode.DCP_CONTROL, key, value=b"9" * (25 * MIB)).encode(), 2.0)
        for guest in guests:
            guest.settle()


def deaf_streams(place: Place) -> None:
    """Open hundreds of producers' connections whose client reads nothing."""
    asked = b"".join(stream_request(vb).encode() for vb in range(min(64, place.vbuckets)))
    with place.crowd(300) as guests:
        for number, each in enumerate(guests):
            each.say(Frame(0x80, Opcode.DCP_OPEN, b"deaf-%d" % number, PRODUCER).encode() + asked)
        time.sleep(2 * place.scale)


def a_consumer_that_is_fed(place: Place) -> None:
    """Play a producer: announce snapshots, and send changes by the ten thousand to a replica."""
    with place.guest() as guest:
        guest.ask(Opcode.SET_VBUCKET, b"", b"\2", vbucket=6)
        guest.ask(Opcode.DCP_OPEN, b"feeding", CONSUMER)
        guest.say(dcp.AddStream(vbucket=6, opaque=9, flags=0).encode())
        asked = guest.hear()
        while asked is not None and asked.opcode != Opcode.DCP_STREAM_REQ:
            asked = guest.hear()
        if asked is None:
            return
        guest.say(Frame(0x81, Opcode.DCP_STREAM_REQ, value=pack(">QQ", 77, 0), opaque=asked.opaque).encode())
        count = place.some(50_000, 2000)
        frames = [
            dcp.SnapshotMarker(vbucket=6, opaque=asked.opaque, start_seqno=1, end_seqno=count + 4, flags=1).frame()
        ]
        frames += [_fed(asked.opaque, n, b"fed-%d" % n, b"v") for n in range(1, count)]
        large = place.some(20 * MIB, 2 * MIB)
        frames += [_fed(asked.opaque, count + n, b"large", bytes(large)) for n in range(4)]
        push(guest, b"".join(frame.encode() for frame in frames), 10.0)
        guest.settle()


def _fed(opaque: int, seqno: int, key: bytes, value: bytes) -> Frame:
    told = dcp.Mutation(vbucket=6, opaque=opaque, cas=1 << 40, key=key, value=value, by_seqno=seqno, rev_seqno=1)
    return told.frame()


def tap_connect_of_many_vbuckets(place: Place) -> None:
    """Send TAP_CONNECT with all vbuckets, with repeated ones, and with more than a list may have; leave named sessions
    behind.
    """
    many = list(range(place.vbuckets))
    with place.crowd(40) as guests:
        for number, each in enumerate(guests):
            listed = (many, many * 20, [5] * 30_000, None)[number % 4]
            each.say(tap_connect(b"tap-%d" % number, (0, 2, 16, 1)[number // 4 % 4], listed))
        for guest in guests:
            drain(guest, 0.05)


def tap_sessions_that_are_left_behind(place: Place) -> None:
    """Leave hundreds of named sessions of all vbuckets behind, which wait for their clients."""
    for number in range(place.some(400, 20)):
        with suppress(*GONE), place.guest() as guest:
            guest.say(tap_connect(b"left-%d" % number, ConnectFlag.SUPPORT_ACK) + Frame(0x80, Opcode.NOOP).encode())
            guest.socket.settimeout(0.02)
            with suppress(*GONE):
                guest.socket.recv(1 << 16)
    with place.guest() as guest:
        guest.say(Frame(0x80, Opcode.STAT, b"tap").encode() * 3)
        guest.settle()


def tap_changes_of_filters(place: Place) -> None:
    """Send CHANGE_VB_FILTER and DEREGISTER, pipelined, during a session."""
    vbuckets = range(place.vbuckets)
    rows = pack(">H", len(vbuckets)) + b"".join(pack(">HQ", vb, 1) for vb in vbuckets)
    with place.guest() as tap, place.guest() as guest:
        tap.say(tap_connect(b"changing", 0))
        change = Frame(0x80, Opcode.CHANGE_VB_FILTER, b"changing", value=rows).encode()
        push(guest, change * place.some(100, 5) + Frame(0x80, Opcode.DEREGISTER_TAP_CLIENT, b"changing").encode(), 3.0)
        guest.settle()


# --- logging in, maps, HTTP -------------------------------------------------------------------------------------------


def sasl_in_all_orders(place: Place) -> None:
    """Send SASL steps before their start, other mechanisms, unknown names, and malformed messages."""
    random = place.random
    said = [
        Frame(0x80, Opcode.SASL_LIST_MECHS),
        Frame(0x80, Opcode.SASL_STEP, b"SCRAM-SHA512", value=b"c=biws,r=x,p=AAAA"),
        *(Frame(0x80, Opcode.SASL_AUTH, b"SCRAM-%b" % each, value=b"n,,n=bob,r=xyz") for each in (b"SHA1", b"SHA512")),
        Frame(0x80, Opcode.SASL_AUTH, b"SCRAM-SHA256", value=b"n,,n=nobody,r=xyz"),
        Frame(0x80, Opcode.SASL_AUTH, b"PLAIN", value=b"\0bob\0wrong"),
        Frame(0x80, Opcode.SASL_AUTH, b"PLAIN", value=b"\0" * 60_000),
        Frame(0x80, Opcode.SASL_AUTH, b"x" * 60_000, value=b"y"),
        Frame(0x80, Opcode.SASL_AUTH, b"SCRAM-SHA1", value=b"n,,n=" + b"a" * 50_000 + b",r=b"),
        Frame(0x80, Opcode.HELLO, b"agent", value=b"\0\7"),
        Frame(0x80, Opcode.GET, b"k"),
        Frame(0x80, Opcode.DCP_OPEN, b"early", PRODUCER),
    ]
    with place.crowd(30, 0.5) as guests:
        for guest in guests:
            random.shuffle(said)
            guest.say(b"".join(frame.encode() for frame in said))
        for guest in guests:
            drain(guest, 0.1)


def watchers_of_maps_that_do_not_read(place: Place) -> None:
    """Watch the cluster map over HTTP and by GET_CLUSTER_CONFIG without reading, while it changes."""
    page = b"GET /pools/default/bucketsStreaming/default HTTP/1.1\r\nHost: x\r\n" + authorization(place) + b"\r\n"
    with place.crowd(40) as guests:
        for number, each in enumerate(guests):
            each.hello(0x06, 0x07, 0x0C, 0x0D)
            push(each, page if number % 2 else Frame(0x80, Opcode.GET_CLUSTER_CONFIG).encode() * 500, 0.2)
        with place.guest() as guest:
            revision = time.time_ns() // 1_000_000 + 60_000
            for number in range(place.some(30, 3)):
                guest.say(map_frame(place, revision + number).encode())
                guest.settle()


def map_frame(place: Place, revision: int) -> Frame:
    """Return SET_CLUSTER_CONFIG with a map of nearly a MiB that names this node."""
    table = {
        "hashAlgorithm": "CRC",
        "numReplicas": 0,
        "serverList": [f"127.0.0.1:{place.port}"],
        "vBucketMap": [[0]] * place.vbuckets,
    }
    told = {
        "rev": revision,
        "revEpoch": 1,
        "name": "default",
        "nodesExt": [{"services": {"kv": place.port}, "thisNode": True, "hostname": "127.0.0.1"}],
        "vBucketServerMap": table,
        "pad": "x" * (900 << 10),
    }
    return Frame(0x80, Opcode.SET_CLUSTER_CONFIG, b"default", pack(">qq", 1, revision), json.dumps(told).encode())


def authorization(place: Place) -> bytes:
    """Return the HTTP header that logs in; empty on a node without users."""
    if place.user is None or not place.log_in:
        return b""
    return b"Authorization: Basic " + base64.b64encode(":".join(place.user).encode()) + b"\r\n"


def pages_pipelined(place: Place) -> None:
    """Send a thousand requests for the largest page in one piece, and half requests on many connections."""
    page = b"GET /pools/default/buckets/default HTTP/1.1\r\nHost: x\r\n" + authorization(place) + b"\r\n"
    with place.guest() as guest:
        push(guest, page * place.some(1000, 20), 2.0)
        drain(guest, 0.5)
    with place.crowd(100) as guests:
        for each in guests:
            push(each, page[: place.random.randrange(1, len(page))], 0.2)


def connections_that_come_and_go(place: Place) -> None:
    """Open connections, use them half-way, and reset them."""
    for number in range(place.some(1500, 50)):
        with suppress(*GONE), socket.create_connection(("127.0.0.1", place.port), SHORT_SECONDS) as sock:
            if number % 3 == 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("=ii", 1, 0))
            sock.sendall(Frame(0x80, Opcode.NOOP).encode()[: number % 25] + tap_connect(b"go", 0)[: number % 31])


def faults_by_the_thousand(place: Place) -> None:
    """Send requests that the node refuses and drops the connection for, as fast as possible."""
    until = time.monotonic() + 2 * place.scale
    while time.monotonic() < until:
        with suppress(*GONE), place.guest() as guest:
            push(guest, HEADER.pack(0x80, Opcode.GET, 9, 9, 0, 0, 1, 0, 0) + bytes(24), 0.1)


STORMS: tuple[Callable[[Place], None], ...] = (
    observe_of_80_000_keys,
    pipelined_statistics,
    statistics_of_many,
    keys_and_seqnos,
    hello_of_many_features,
    a_hundred_busy_connections,
    large_documents,
    streams_of_large_documents,
    half_frames_on_many_connections,
    half_frames_that_grow_together,
    answers_that_nobody_reads,
    small_answers_that_nobody_reads,
    requests_that_wait_in_the_kernel,
    wrong_json,
    dcp_open_storm,
    stream_request_storm,
    wrong_stream_requests,
    consumer_names_of_25_mib,
    deaf_streams,
    a_consumer_that_is_fed,
    tap_connect_of_many_vbuckets,
    tap_sessions_that_are_left_behind,
    tap_changes_of_filters,
    sasl_in_all_orders,
    pages_pipelined,
    connections_that_come_and_go,
    faults_by_the_thousand,
    watchers_of_maps_that_do_not_read,
)
"""All storms of this module. The last one changes which node owns the vbuckets."""
