import numpy as np
import pytest

from headwater.kernels import tap as kernel
from headwater.node.streams.outlet import Outlet, Pieces
from headwater.node.tap.encoding import encoding_of
from headwater.protocol.tap.ledger import TapPlace, TapStep
from headwater.protocol.tap.options import TapOptions
from headwater.protocol.tap.producer import TapProducer
from headwater.wire import dcp, tap
from headwater.wire.datatype import Datatype
from headwater.wire.framing import FrameBuffer
from headwater.wire.tap import MessageFlag

kernel.warm_up()
STORED = [
    dcp.Mutation(vbucket=3, by_seqno=41, rev_seqno=2, key=b"one", value=b"v", cas=7, datatype=1, flags=5).encode(),
    dcp.DeletionV2(vbucket=3, by_seqno=43, rev_seqno=9, key=b"two", cas=8, delete_time=1).encode(),
]
DUMP = TapOptions(dump=True)


class Sink:
    def __init__(self) -> None:
        self.data = b""
        self.taken: list[bytes | bytearray | memoryview] = []

    def send(self, data: bytes | bytearray | memoryview, gate: int = 0) -> None:
        self.data += bytes(data)
        self.taken.append(data)


def session(options: TapOptions) -> tuple[TapProducer, Outlet, Sink]:
    producer, sink, outlet = TapProducer(options, 0.0), Sink(), Outlet()
    producer.follow(3, 50, 0, 1_700_000_000)
    outlet.begin(sink)
    return producer, outlet, sink


def test_changes_leave_as_messages_and_are_entered_in_the_ledger() -> None:
    producer, outlet, sink = session(TapOptions(acknowledge=True, network_byte_order=True))
    stream, before = producer.streams[3], producer.ledger.sent
    encoding = encoding_of(producer, stream, Datatype.JSON)
    space, frames = encoding.space(outlet), b"".join(STORED)
    space[: len(frames)] = np.frombuffer(frames, np.uint8)
    size = encoding.emit(outlet, space[: len(frames)], is_last=True)
    assert outlet.flush() == size == len(sink.data)
    one, two = FrameBuffer().receive_data(sink.data)
    first, second = tap.Mutation.decode(one), tap.Delete.decode(two)
    assert (first.key, first.value, first.client_flags, first.rev_seqno, first.datatype) == (b"one", b"v", 5, 2, 1)
    assert (second.key, second.rev_seqno, second.cas) == (b"two", 9, 8)
    assert [first.opaque, second.opaque] == [before + 1, before + 2]
    assert (first.flags, second.flags) == (MessageFlag.NETWORK_BYTE_ORDER, MessageFlag.ACK)
    assert (stream.place.seqno, producer.ledger.ack_request) == (43, before + 2)
    assert producer.ledger.runs[-1].seqnos == [41, 43]


def test_without_acknowledgements_only_how_many_there_were_is_kept() -> None:
    producer, outlet, sink = session(TapOptions())
    stream = producer.streams[3]
    size = encoding_of(producer, stream, 0).emit_one(outlet, Pieces(STORED[0]), is_last=True)
    outlet.flush()
    assert len(sink.data) == size
    message = tap.Mutation.decode(sink.data)
    assert (message.flags, message.datatype, message.item_flags) == (0, 0, 5 << 24)
    assert (producer.ledger.sent, stream.acked_seqno, producer.ledger.runs) == (1, 41, ())


def test_a_large_change_leaves_as_the_same_message_by_the_kernel_that_is_built() -> None:
    built = len(kernel.reshape.signatures)
    large = dcp.Mutation(vbucket=3, by_seqno=41, rev_seqno=2, key=b"one", value=b"large" * 200_000, cas=7, flags=5)
    producer, outlet, sink = session(TapOptions(acknowledge=True))
    encoding = encoding_of(producer, producer.streams[3], 0)
    size = encoding.emit_one(outlet, encoding.encode(large.encode(), 0), is_last=True)
    outlet.flush()
    message = tap.Mutation.decode(sink.data)
    assert (message.key, message.value, message.rev_seqno, message.flags) == (
        *(b"one", large.value, 2),
        MessageFlag.ACK,
    )
    assert (len(sink.data), len(kernel.reshape.signatures)) == (size, built), "compiling stops the loop for a second"


def test_the_value_of_a_large_change_leaves_from_where_it_is_stored() -> None:
    stored = dcp.Mutation(vbucket=3, by_seqno=41, rev_seqno=2, key=b"one", value=b"large" * 200_000, opaque=3).encode()
    producer, outlet, sink = session(TapOptions())
    encoding = encoding_of(producer, producer.streams[3], 0)
    encoding.emit_one(outlet, encoding.encode(stored, 0), is_last=True)
    assert tap.Mutation.decode(sink.data).value == b"large" * 200_000
    assert np.shares_memory(np.frombuffer(sink.taken[-1], np.uint8), np.frombuffer(stored, np.uint8))


@pytest.mark.parametrize("keys_only", [False, True])
def test_a_client_of_keys_gets_no_values_and_hears_that_there_are(keys_only: bool) -> None:
    producer, outlet, _ = session(TapOptions(keys_only=keys_only))
    encoding = encoding_of(producer, producer.streams[3], 0)
    assert encoding.no_value is keys_only
    encoding.emit_one(outlet, encoding.encode(STORED[0], 0), is_last=False)
    assert producer.ledger.sent == 1


def test_nothing_to_send_is_no_message() -> None:
    producer, outlet, _ = session(TapOptions())
    encoding = encoding_of(producer, producer.streams[3], 0)
    assert encoding.emit(outlet, encoding.space(outlet)[:0], is_last=True) == 0
    assert producer.ledger.sent == 0


def test_what_came_through_too_many_nodes_is_passed_on_by_a_dump_only() -> None:
    worn = dcp.Mutation(vbucket=3, by_seqno=51, rev_seqno=1, key=b"one", cas=7, opaque=255).encode()
    for options, step, sent in (
        (TapOptions(), TapStep.LIVE, 0),
        (TapOptions(), TapStep.BACKFILL, 1),
        (DUMP, TapStep.LIVE, 1),
    ):
        producer, outlet, _ = session(options)
        stream = producer.streams[3]
        stream.place = TapPlace(step, 50)
        encoding = encoding_of(producer, stream, 0)
        size = encoding.emit_one(outlet, encoding.encode(worn, 0), is_last=True)
        assert (bool(size), producer.ledger.sent) == (bool(sent), sent)
