"""The TAP client and the node's producer, over a real socket."""

import inspect
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import partial

import pytest

from headwater import testing
from headwater.client import Client, tap
from headwater.errors import ConnectionLost, LocalProtocolError, NoAccess, OptionError, TemporaryFailure, TransportError
from headwater.protocol.tap.consumer import MESSAGES, TapMessage
from headwater.protocol.tap.options import TapOptions
from headwater.testing.peers import Peer, serve
from headwater.testing.proxy import Fault, FaultProxy, Way
from headwater.transport.backoff import Backoff
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame, response
from headwater.wire.layout import Request
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.tap import CheckpointStart, Delete, Mutation, OpaqueCode
from headwater.wire.tap import Opaque as OpaqueMessage
from tests.client.seeds import refusing_port
from tests.client.test_interruptions import NEVER, Interrupting, in_each_line, tracing
from tests.wire.test_vectors import VECTORS

FUTURE = 0xFFFF_FFFF_FFFF_FFFF


@pytest.fixture(scope="module")
def node() -> Iterator[testing.Node]:
    with testing.node(vbuckets=16, tap_keep_alive_seconds=60) as made, made.client() as bucket:
        bucket.set_many((f"k{number}", b"v" * 50) for number in range(8000))
        yield made


@contextmanager
def peer(messages: Sequence[Request]) -> Iterator[int]:
    """A producer of one connection that knows TAP only: it sends this, then closes; with nothing to send, at once."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=speak, args=(server, messages))
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            thread.join()


def speak(server: socket.socket, messages: Sequence[Request]) -> None:
    sock, _ = server.accept()
    frames = FrameBuffer()
    with sock:
        while messages and (data := sock.recv(1 << 16)):
            for frame in frames.receive_data(data):
                if frame.opcode == Opcode.TAP_CONNECT:
                    sock.sendall(b"".join(message.encode() for message in messages))
                    return
                sock.sendall(response(frame, Status.UNKNOWN_COMMAND).encode())


def shut(stream: tap.TapStream) -> None:
    """Cut the connection below the client."""
    link = stream._link
    assert link is not None
    with socket.socket(fileno=socket.dup(link.channel.fileno())) as sock:
        sock.shutdown(socket.SHUT_RDWR)


def test_a_dump_ends_and_has_everything(node: testing.Node) -> None:
    for acknowledge in (True, False):
        with tap.connect(node.url, dump=True, acknowledge=acknowledge) as stream:
            keys = [message.key for message in stream if isinstance(message, Mutation)]
        assert len(keys) == 8000
        assert len(set(keys)) == 8000


def everything(url: str, **options: object) -> list[TapMessage]:
    """All messages of a dump, or of a takeover."""
    with tap.connect(url, **{"dump": "takeover" not in options, **options}) as stream:  # type: ignore[arg-type]
        return list(stream)


@pytest.mark.parametrize("acknowledge", [True, False])
def test_a_dump_of_nobody_is_an_error(acknowledge: bool) -> None:
    with pytest.raises(ConnectionLost, match="refused"):
        everything(f"couchbase://{refusing_port()}/b", acknowledge=acknowledge)


def test_a_dump_of_one_who_accepts_and_closes_is_an_error() -> None:
    with peer([]) as port, pytest.raises(ConnectionLost):
        everything(f"couchbase://127.0.0.1:{port}/b")


@pytest.mark.parametrize("acknowledge", [True, False])
def test_a_dump_of_an_empty_bucket_is_whole(acknowledge: bool) -> None:
    with testing.node(vbuckets=16) as empty:
        assert not [message for message in everything(empty.url, acknowledge=acknowledge) if message.key]


def test_a_dump_of_a_producer_without_statistics_is_whole_once_a_vbucket_came() -> None:
    opened, closed = (OpaqueMessage(vbucket=3, engine_specific=bytes([0, 0, 0, code])) for code in (1, 8))
    with peer([opened, Mutation(vbucket=3, key=b"k"), closed]) as port:
        assert len(everything(f"couchbase://127.0.0.1:{port}/b", acknowledge=False)) == 3
    with peer([opened, Mutation(vbucket=3, key=b"k")]) as port, pytest.raises(ConnectionLost, match="vbucket 3"):
        everything(f"couchbase://127.0.0.1:{port}/b", acknowledge=False)


def test_a_dump_that_breaks_between_two_vbuckets_is_an_error(node: testing.Node) -> None:
    """All that came was completed; what did not come was never begun."""
    whole = pytest.raises(ConnectionLost, match="not whole: 15 of 16 vbuckets")
    with FaultProxy(node.address, cut_between_vbuckets()) as proxy, whole:
        everything(f"couchbase://{proxy.address}/default", acknowledge=False)


@pytest.mark.parametrize("acknowledge", [True, False])
def test_a_dump_of_a_node_that_is_killed_on_the_way_is_an_error(acknowledge: bool) -> None:
    with testing.node(vbuckets=16) as mortal, mortal.client() as writer:
        writer.set_many((f"k{number}", b"v" * 500_000) for number in range(100))  # more than sockets hold
        with tap.connect(mortal.url, dump=True, acknowledge=acknowledge) as stream:
            stream.open()
            while not isinstance(stream.next(), Mutation):
                pass
            mortal.kill()
            with pytest.raises(ConnectionLost, match="the dump is not whole"):
                list(stream)


def cut_between_vbuckets() -> Callable[[Way, Frame], Fault]:
    """The producer dies behind the first vbucket: of the others no message has come."""
    kept: list[int] = []

    def judge(way: Way, frame: Frame) -> Fault:
        if way is Way.UP or frame.is_response or frame.opcode not in MESSAGES:
            return Fault.NONE
        kept[:] = kept or [frame.vbucket]
        if frame.vbucket != kept[0]:
            return Fault.DROP
        return Fault.CUT_AFTER if code(frame) == OpaqueCode.CLOSE_BACKFILL else Fault.NONE

    return judge


def code(frame: Frame) -> int | None:
    return OpaqueMessage.decode(frame).code if frame.opcode == Opcode.TAP_OPAQUE else None


def test_a_vbucket_that_is_not_active_there_is_an_error_if_it_was_asked_for(node: testing.Node) -> None:
    for options in ({"vbuckets": [3, 99]}, {"vbuckets": [99], "takeover": True}):
        with pytest.raises(ConnectionLost, match="vbucket 99"):
            everything(node.url, **options)


def test_a_named_session_resumes_after_cuts_with_nothing_missing(node: testing.Node) -> None:
    seen: set[bytes] = set()
    with tap.connect(node.url, name="resumed", patience_seconds=30) as stream:
        count = 0
        while len(seen) < 8000:
            message = stream.next(timeout_seconds=120)
            assert message is not None
            if isinstance(message, Mutation):
                seen.add(message.key)
            count += 1
            if count in (500, 7500):
                shut(stream)
        assert stream.reconnects >= 1
        with node.client() as bucket:
            bucket.set("late", "1")
            bucket.delete("late")
        late = [message := stream.next(timeout_seconds=120)]
        while not isinstance(message, Delete):
            late.append(message := stream.next(timeout_seconds=120))
            assert message is not None


@pytest.mark.parametrize("form", ["next", "__next__"])
def test_a_thread_that_is_interrupted_in_any_line_of_a_return_misses_no_message(form: str) -> None:
    keys = {b"k%d" % number for number in range(5)}
    with testing.node(vbuckets=1, tap_keep_alive_seconds=60) as few, few.client() as bucket:
        bucket.set_many((key.decode(), b"v") for key in keys)
        for interrupt, interrupts in in_each_line(3, "next_frame"):
            with tap.connect(few.url, name=f"{form} {interrupt.left}") as stream:
                assert keys_through(stream, form, interrupts) == keys, interrupt.place


def keys_through(stream: tap.TapStream, form: str, interrupts: Iterator[Interrupting]) -> set[bytes]:
    """Read on through interrupts, to the end of the backfill."""
    seen = set[bytes]()
    message: TapMessage | None = None
    while not (isinstance(message, OpaqueMessage) and message.code == OpaqueCode.CLOSE_BACKFILL):
        try:
            with tracing(next(interrupts, Interrupting(NEVER))):
                got = getattr(stream, form)()
            message = got
        except KeyboardInterrupt:
            continue
        if isinstance(message, Mutation):
            seen.add(message.key)
    return seen


def test_a_dump_that_is_interrupted_with_a_message_on_its_way_is_not_begun_again(node: testing.Node) -> None:
    with tap.connect(node.url, dump=True) as stream:
        with pytest.raises(KeyboardInterrupt), tracing(Interrupting(1, "_take")):
            stream.next()
        with pytest.raises(LocalProtocolError, match="begin another"):
            stream.next()


def test_nothing_comes_twice_to_who_acknowledged_it(node: testing.Node) -> None:
    with tap.connect(node.url, name="twice", vbuckets=[3]) as stream:
        while True:
            message = stream.next(timeout_seconds=120)
            if isinstance(message, OpaqueMessage) and message.code == OpaqueCode.CLOSE_BACKFILL:
                break
        stream.answer()
        shut(stream)
        stream.close()
    with tap.connect(node.url, name="twice", vbuckets=[3], patience_seconds=0) as stream:
        codes = []
        while (message := stream.next(timeout_seconds=1 if codes else 120)) is not None:
            codes.append(message)
        assert [message.code for message in codes if isinstance(message, OpaqueMessage)] in ([0], [0, 8])
        assert not [message for message in codes if isinstance(message, Mutation)]


def after_a_cut(node: testing.Node, *, comes: bool = False, **options: object) -> tuple[list[str], bytes | None]:
    """Return the messages of a stream that is cut while "meanwhile" is written, and its first change after that.

    Unless it is known that one comes, a second without any, once it is connected again, means that there is none.
    """
    told: list[str] = []
    with node.client() as writer, tap.connect(node.url, on_gap=lambda: told.append("gap"), **options) as stream:
        opened(stream)
        shut(stream)
        writer.set("meanwhile", "1")
        while not isinstance(message := stream.next(timeout_seconds=1), Mutation):
            if message is None and stream.reconnects and not comes:
                break
        assert stream.gaps == len(told)
    return told, message.key if isinstance(message, Mutation) else None


def opened(stream: tap.TapStream) -> None:
    """Read until the node follows."""
    stream.open()
    message = stream.next(timeout_seconds=120)
    while message is not None:
        assert isinstance(message, OpaqueMessage | Mutation)
        message = stream.next(timeout_seconds=0.5)


def test_a_client_of_changes_only_is_told_when_a_cut_may_have_cost_it_something() -> None:
    with testing.node(vbuckets=4) as forgets:
        assert after_a_cut(forgets, since=tap.NOW, name="x") == (["gap"], None)
        assert after_a_cut(forgets, since=tap.NOW) == (["gap"], None)
        assert after_a_cut(forgets, comes=True) == ([], b"meanwhile")  # all there is comes again


def test_a_client_that_is_resumed_is_told_of_no_gap_unless_it_does_not_acknowledge() -> None:
    with testing.node(vbuckets=4, tap_keep_alive_seconds=60) as keeps:
        assert after_a_cut(keeps, comes=True, since=tap.NOW, name="x") == ([], b"meanwhile")
        assert after_a_cut(keeps, since=tap.NOW) == (["gap"], None)
        told, _ = after_a_cut(keeps, name="y", acknowledge=False)
        assert told == ["gap"]


@pytest.mark.parametrize(
    "vector",
    [vector for vector in VECTORS if vector["name"].startswith(("tap_connect", "tap_doc_connect"))],
    ids=lambda vector: str(vector["name"]),
)
def test_a_live_node_understands_every_published_connect(node: testing.Node, vector: dict[str, str]) -> None:
    printed_wrong = "as_printed" in vector["name"]
    with socket.create_connection((node.host, node.port), timeout=120) as sock:
        sock.sendall(bytes.fromhex(vector["hex"]))
        if not printed_wrong:
            sock.shutdown(socket.SHUT_WR) if "dump" in vector["name"] else None
        buffer, frames = FrameBuffer(), []
        sock.settimeout(0.3)
        try:
            while data := sock.recv(1 << 16):
                frames += buffer.receive_data(data)
        except (TimeoutError, ConnectionResetError):
            pass
    assert all(not frame.is_response for frame in frames) or printed_wrong
    assert {frame.opcode for frame in frames if not frame.is_response} <= {0x41, 0x42, 0x44, 0x45, 0x46, 0x47}


@pytest.mark.parametrize(
    "options", [{"name": "n" * 251}, {"vbuckets": [70_000]}, {"takeover": True}, {"since": -1}], ids=str
)
def test_options_that_cannot_be_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(OptionError):
        tap.connect("couchbase://127.0.0.1:1/b", **options)  # type: ignore[arg-type]


def test_each_option_of_a_stream_is_a_keyword_of_connect() -> None:
    without_effect = {"registered", "closed_checkpoints_only"}
    options = {field.name for field in fields(TapOptions)} - without_effect
    assert options - inspect.signature(tap.connect).parameters.keys() == set()


def test_a_feed_goes_on_behind_the_checkpoint_that_the_target_has_whole() -> None:
    with (
        testing.node(vbuckets=1) as source,
        testing.node(vbuckets=1) as target,
        source.client() as writer,
        target.client() as reader,
    ):
        reader.set_vbucket_state(0, "replica")
        with tap.connect(source.url, checkpoints={}) as stream:
            fed = threading.Thread(target=relay_quietly, args=(stream, target.url))
            fed.start()
            for first, end in ((0, 500), (500, 1500)):  # the first may be backfill, which belongs to no checkpoint
                writer.set_many((f"k{number}", "v") for number in range(first, end))
                wait_for_seqno(reader, end, fed)
            shut(stream)
            fed.join()
        closed = tap.closed_checkpoints(reader.stats("checkpoint"))
        assert {vb: named & 0xFFFF_FFFF for vb, named in closed.items()} == {0: 1}  # above the number: its branch
        with tap.connect(source.url, checkpoints=closed, acknowledge=False) as stream:
            start, change = stream.next(timeout_seconds=120), stream.next(timeout_seconds=120)
    assert isinstance(start, CheckpointStart)
    assert start.checkpoint_id == closed[0] + 1
    assert isinstance(change, Mutation)
    assert change.key == b"k1000"


def wait_for_seqno(reader: Client, seqno: int, fed: threading.Thread) -> None:
    deadline = time.monotonic() + 120
    while reader.stats("vbucket-details")["vb_0:high_seqno"] != str(seqno):
        assert time.monotonic() < deadline
        fed.join(timeout=0.02)


def relay_quietly(stream: tap.TapStream, target: str) -> None:
    """A mover that is cut off."""
    stream._patience_seconds = 0
    with suppress(TransportError):
        tap.relay(stream, target)


class Starting(Peer):
    """A producer whose answers to SELECT_BUCKET and TAP_CONNECT are told, by the connection; at the end it sends one
    document."""

    selects: list[int]
    taps: list[int]

    def answers(self, request: Frame) -> Iterator[Frame]:
        said = {Opcode.SELECT_BUCKET: self.selects, Opcode.TAP_CONNECT: self.taps}.get(Opcode(request.opcode), [])
        if said and (status := said.pop(0)):
            yield response(request, status)
        elif request.opcode == Opcode.TAP_CONNECT:
            yield Frame.decode(Mutation(vbucket=0, key=b"k", engine_specific=bytes(8)).encode())
        else:
            yield from super().answers(request)


def starting(selects: list[int], taps: list[int]) -> Starting:
    made = Starting(vbuckets=1)
    made.selects, made.taps = selects, taps
    return made


def test_a_node_that_is_starting_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tap, "Backoff", partial(Backoff, 0.0005, 0.002))
    peer = starting([0, Status.ETMPFAIL, Status.ETMPFAIL], [0, Status.ETMPFAIL, Status.EBUSY])
    with serve(peer) as address, tap.connect(address, acknowledge=False) as stream:
        for _ in range(2):
            message = stream.next(timeout_seconds=60)
            assert message is not None and message.key == b"k"
            shut(stream)
    assert (peer.selects, peer.taps, stream.reconnects) == ([], [], 3)


def test_a_node_that_goes_on_starting_for_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tap, "Backoff", partial(Backoff, 0.0005, 0.002))
    peer = starting([], [Status.ETMPFAIL] * 10_000)
    with (
        serve(peer) as address,
        tap.connect(address, patience_seconds=0.1) as stream,
        pytest.raises(TemporaryFailure, match="refused TAP_CONNECT"),
    ):
        stream.next()


def test_a_node_that_refuses_for_good_is_asked_once() -> None:
    peer = starting([], [Status.EACCESS])
    with serve(peer) as address, tap.connect(address) as stream, pytest.raises(NoAccess):
        stream.next()
    assert peer.connections == 1
