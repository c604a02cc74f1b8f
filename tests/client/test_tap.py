"""The TAP client and the node's producer, over a real socket."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from headwater import testing
from headwater.client import Client, tap
from headwater.errors import OptionError, TransportError
from headwater.wire.framing import FrameBuffer
from headwater.wire.tap import CheckpointStart, Delete, Mutation, OpaqueCode
from headwater.wire.tap import Opaque as OpaqueMessage
from tests.wire.test_vectors import VECTORS

FUTURE = 0xFFFF_FFFF_FFFF_FFFF


@pytest.fixture(scope="module")
def node() -> Iterator[testing.Node]:
    with testing.node(vbuckets=16, tap_keep_alive_seconds=60) as made, made.client() as bucket:
        bucket.set_many((f"k{number}", b"v" * 50) for number in range(8000))
        yield made


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


def test_a_named_session_resumes_after_cuts_with_nothing_missing(node: testing.Node) -> None:
    seen: set[bytes] = set()
    with tap.connect(node.url, name="resumed", patience_seconds=30) as stream:
        count = 0
        while len(seen) < 8000:
            message = stream.next(timeout_seconds=30)
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
        late = [message := stream.next(timeout_seconds=30)]
        while not isinstance(message, Delete):
            late.append(message := stream.next(timeout_seconds=30))
            assert message is not None


def test_nothing_comes_twice_to_who_acknowledged_it(node: testing.Node) -> None:
    with tap.connect(node.url, name="twice", vbuckets=[3]) as stream:
        while True:
            message = stream.next(timeout_seconds=30)
            if isinstance(message, OpaqueMessage) and message.code == OpaqueCode.CLOSE_BACKFILL:
                break
        stream.answer()
        shut(stream)
        stream.close()
    with tap.connect(node.url, name="twice", vbuckets=[3], patience_seconds=0) as stream:
        codes = []
        while (message := stream.next(timeout_seconds=1)) is not None:
            codes.append(message)
        assert [message.code for message in codes if isinstance(message, OpaqueMessage)] in ([0], [0, 8])
        assert not [message for message in codes if isinstance(message, Mutation)]


@pytest.mark.parametrize(
    "vector",
    [vector for vector in VECTORS if vector["name"].startswith(("tap_connect", "tap_doc_connect"))],
    ids=lambda vector: str(vector["name"]),
)
def test_a_live_node_understands_every_published_connect(node: testing.Node, vector: dict[str, str]) -> None:
    printed_wrong = "as_printed" in vector["name"]
    with socket.create_connection((node.host, node.port), timeout=30) as sock:
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
        assert closed == {0: 1}
        with tap.connect(source.url, checkpoints=closed, acknowledge=False) as stream:
            start, change = stream.next(timeout_seconds=10), stream.next(timeout_seconds=10)
    assert isinstance(start, CheckpointStart)
    assert start.checkpoint_id == 2
    assert isinstance(change, Mutation)
    assert change.key == b"k1000"


def wait_for_seqno(reader: Client, seqno: int, fed: threading.Thread) -> None:
    deadline = time.monotonic() + 60
    while reader.stats("vbucket-details")["vb_0:high_seqno"] != str(seqno):
        assert time.monotonic() < deadline
        fed.join(timeout=0.02)


def relay_quietly(stream: tap.TapStream, target: str) -> None:
    """A mover that is cut off."""
    stream._patience_seconds = 0
    with suppress(TransportError):
        tap.relay(stream, target)
