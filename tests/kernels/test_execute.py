"""The kernel that answers chunks of requests: beside the plain path, beside a dict, and in the bounds-checked build."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.kernels import execute as kernel
from headwater.kernels.builds import debug_copy
from headwater.kernels.guard import registered
from headwater.kernels.json import SCRATCH_BYTES
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from tests.node.support import NOON, QUIET, Desk, Talk, desk

checked = debug_copy("headwater.kernels.execute")

KEYS = [b"a", b"bb", b"c" * 250]
CHANGES = [Opcode.SET, Opcode.SETQ, Opcode.ADD, Opcode.ADDQ, Opcode.REPLACE, Opcode.REPLACEQ]
READS = [Opcode.GET, Opcode.GETQ, Opcode.GETK, Opcode.GETKQ]

keys = st.sampled_from(KEYS)
vbuckets = st.integers(0, 2)
opaques = st.integers(0, 0xFFFF_FFFF)
cas = st.sampled_from([0, 0, 0, 1, 2, 12345]) | st.just((NOON * 1_000_000_000) & ~0xFFFF)
values = st.sampled_from([b"", b"x", b'{"a":1}', b"12", b"[1,2", b"\x80" * 300, '"é"'.encode()])
expiries = st.sampled_from([0, 0, 0, 1, 100, 2592000, 2592001, NOON - 1, NOON, NOON + 5, 0xFFFF_FFFF])
flags = st.sampled_from([0, 0xDEADBEEF])


def _change(opcode: int, key: bytes, vb: int, opaque: int, token: int, value: bytes, flag: int, expiry: int) -> bytes:
    extras = flag.to_bytes(4, "big") + expiry.to_bytes(4, "big")
    return Frame(0x80, opcode, key, extras, value, vbucket=vb, opaque=opaque, cas=token).encode()


requests = st.one_of(
    st.builds(_change, st.sampled_from(CHANGES), keys, vbuckets, opaques, cas, values, flags, expiries),
    st.builds(
        lambda opcode, key, vb, opaque: Frame(0x80, opcode, key, vbucket=vb, opaque=opaque).encode(),
        st.sampled_from(READS),
        keys,
        vbuckets,
        opaques,
    ),
    st.builds(
        lambda opcode, key, vb, opaque, token: Frame(0x80, opcode, key, vbucket=vb, opaque=opaque, cas=token).encode(),
        st.sampled_from([Opcode.DELETE, Opcode.DELETEQ]),
        keys,
        vbuckets,
        opaques,
        cas,
    ),
    st.builds(lambda opaque: Frame(0x80, Opcode.NOOP, opaque=opaque).encode(), opaques),
)

ODD = st.sampled_from(
    [
        Frame(0x80, Opcode.GET, b"k", vbucket=77).encode(),
        Frame(0x80, Opcode.GET, b"k", extras=b"\0").encode(),
        Frame(0x80, Opcode.GET).encode(),
        Frame(0x80, Opcode.GET, b"k" * 251).encode(),
        Frame(0x80, Opcode.SET, b"k", extras=bytes(4)).encode(),
        Frame(0x80, Opcode.SET, b"k", extras=bytes(8), datatype=1).encode(),
        Frame(0x80, Opcode.SET, b"k", extras=bytes(8), datatype=9).encode(),
        Frame(0x80, Opcode.ADD, b"k", extras=bytes(8), cas=5).encode(),
        Frame(0x80, Opcode.DELETE, b"k", value=b"v").encode(),
        Frame(0x80, Opcode.NOOP, value=b"x").encode(),
        Frame(0x80, Opcode.VERSION).encode(),
        Frame(0x08, Opcode.SET, b"a", extras=bytes(8), framing=b"\x00").encode(),
        Frame(0x08, Opcode.SET, b"a", extras=bytes(8), framing=b"\x50").encode(),
        Frame(0x80, 0xEE).encode(),
        Frame(0x81, Opcode.GET).encode(),
    ]
)


@contextmanager
def pair() -> Iterator[tuple[Talk, Talk]]:
    """The same node twice: once with the kernel, once without."""
    with (
        tempfile.TemporaryDirectory() as folder,
        desk(Path(folder) / "fast", fast=True) as fast,
        desk(Path(folder) / "plain", fast=False) as plain,
    ):
        yield fast.session(), plain.session()


def give_in_pieces(talk: Talk, data: bytes, cuts: list[int]) -> None:
    """Hand bytes over cut anywhere, the way a connection does: what is left comes again with what follows."""
    waiting = b""
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
        waiting += data[start:end]
        waiting = waiting[talk.give(waiting) :]
    assert waiting == b""


@given(st.data())
@settings(max_examples=60)
def test_the_kernel_says_and_stores_what_the_plain_path_does(data: st.DataObject) -> None:
    features = data.draw(st.sampled_from([(), (4, 7, 0x0B), (7,), (0x0B,)]))
    with pair() as (fast, plain):
        for talk in (fast, plain):
            talk.hello(*features)
        for _ in range(data.draw(st.integers(1, 3))):
            stream = b"".join(data.draw(st.lists(requests | ODD, max_size=12)))
            cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=4))
            give_in_pieces(fast, stream, cuts)
            give_in_pieces(plain, stream, [])
            assert fast.bytes_sent() == plain.bytes_sent()
            step = data.draw(st.sampled_from([0, 1, 200]))
            for talk in (fast, plain):
                talk.desk.clock.seconds += step
                talk.desk.committer.commit()
        for vb in range(3):
            assert _frames(fast.desk, vb) == _frames(plain.desk, vb)


def _frames(counter: Desk, vb: int) -> list[bytes]:
    """The vbucket's stream, every change as stored."""
    out = np.zeros(1 << 16, np.uint8)
    with counter.store.view(vb) as view:
        filled = view.fill(out, 0, 3, len(out))
        assert filled.done
    return [frame.encode() for frame in FrameBuffer().receive_data(out[: filled.bytes].tobytes())]


@dataclass
class Model:
    """A dict that answers the same requests (no CAS, no expiry)."""

    documents: dict[tuple[int, bytes], tuple[bytes, bytes]]

    def status(self, frame: Frame) -> int:
        loud = QUIET.get(frame.opcode, frame.opcode)
        place, live = (frame.vbucket, frame.key), (frame.vbucket, frame.key) in self.documents
        if loud == Opcode.ADD and live:
            return 2
        if loud in (Opcode.REPLACE, Opcode.DELETE, Opcode.GET) and not live:
            return 1
        if loud == Opcode.DELETE:
            del self.documents[place]
        elif loud != Opcode.GET:
            self.documents[place] = (frame.extras[:4], frame.value)
        return 0


simple = st.one_of(
    st.builds(_change, st.sampled_from(CHANGES), keys, vbuckets, opaques, st.just(0), values, flags, st.just(0)),
    st.builds(
        lambda opcode, key, vb: Frame(0x80, opcode, key, vbucket=vb).encode(),
        st.sampled_from([Opcode.GET, Opcode.DELETE, Opcode.DELETEQ]),
        keys,
        vbuckets,
    ),
)


@given(st.lists(simple, max_size=30))
def test_the_kernel_agrees_with_a_dict(stream: list[bytes]) -> None:
    model = Model({})
    with tempfile.TemporaryDirectory() as folder, desk(Path(folder) / "s") as counter:
        talk = counter.session()
        for request in stream:
            frame = Frame.decode(request)
            expected = model.status(frame)
            assert talk.give(request) == len(request)
            answers = FrameBuffer().receive_data(talk.bytes_sent())
            if frame.opcode in QUIET and expected == 0:
                assert answers == []
                continue
            (answer,) = answers
            assert answer.status == expected
            if frame.opcode == Opcode.GET and expected == 0:
                assert (answer.extras, answer.value) == model.documents[frame.vbucket, frame.key]


@given(st.binary(max_size=60), st.lists(requests, max_size=4), st.integers(0, 300), st.integers(0, 0xFFFF_FFFF))
@settings(max_examples=40)
def test_lying_lengths_and_garbage_touch_no_memory_they_should_not(
    junk: bytes, whole: list[bytes], place: int, number: int
) -> None:
    """The bounds-checked build raises KernelFault when a single byte outside of the buffers is touched."""
    data = bytearray(b"".join(whole) + junk)
    at = min(place, max(0, len(data) - 4))
    data[at : at + 4] = number.to_bytes(4, "big")
    with tempfile.TemporaryDirectory() as folder, desk(Path(folder) / "s") as counter:
        _run_checked(counter, bytes(data), out_bytes=512, arena_bytes=700)


def _run_checked(counter: Desk, data: bytes, *, out_bytes: int, arena_bytes: int) -> tuple[int, np.ndarray]:
    store = counter.store
    counter.bucket.refresh()
    arena, used = store.staging.room()
    state = np.zeros(kernel.STATE_FIELDS, np.uint64)
    state[kernel.ARENA], state[kernel.STAGED] = store.staging.slot, used
    state[kernel.LIMIT] = min(len(arena), used + arena_bytes)
    state[kernel.NOW_NS], state[kernel.NOW] = counter.clock.time_ns(), counter.bucket.now()
    state[kernel.FEATURES] = int(kernel.FEATURE_WRITE)
    buffer, out = np.frombuffer(bytearray(data) or bytearray(1), np.uint8)[: len(data)], np.zeros(out_bytes, np.uint8)
    for vb in range(4):
        store.staging.grow(vb)
    columns = [column for vb in range(4) for column in _columns(counter, vb)]
    with registered(arena, *columns):
        stop = checked.execute(
            buffer, out, store.table, store.segments, counter.bucket.uuids, np.zeros(SCRATCH_BYTES, np.uint8), state
        )
    store.staging.use(int(state[kernel.STAGED]))
    return int(stop), state


def _columns(counter: Desk, vb: int) -> list[np.ndarray]:
    columns = counter.store.index.columns[vb]
    return [columns.seq, columns.loc, columns.hash, columns.prev, columns.next, columns.slots]


def _set(key: bytes, value: bytes, opcode: int = Opcode.SET) -> bytes:
    return Frame(0x80, opcode, key, bytes(8), value).encode()


@pytest.mark.parametrize("room", [0, 54, 57])
def test_what_does_not_fit_into_the_arena_has_not_happened(tmp_path: Path, room: int) -> None:
    with desk(tmp_path) as counter:
        stop, state = _run_checked(counter, _set(b"k", b"vv"), out_bytes=100, arena_bytes=room)
        assert stop == kernel.STOP_STAGE_FULL
        assert (state[kernel.OFFSET], state[kernel.ANSWERED], state[kernel.FLAGS]) == (0, 0, 0)
        assert counter.store.index.high_seqno(0) == 0


def test_a_change_that_fits_exactly_happens(tmp_path: Path) -> None:
    with desk(tmp_path) as counter:
        request = _set(b"k", b"vv")
        stop, state = _run_checked(counter, request, out_bytes=40, arena_bytes=58)
        assert (stop, state[kernel.OFFSET], state[kernel.ANSWERED]) == (kernel.STOP_MORE, len(request), 24)
        assert counter.store.index.high_seqno(0) == 1


def test_an_answer_that_does_not_fit_stops_before_its_request(tmp_path: Path) -> None:
    with desk(tmp_path) as counter:
        counter.session().give(_set(b"k", b"v" * 100))
        stop, state = _run_checked(
            counter, Frame(0x80, 0x0A).encode() + Frame(0x80, 0, b"k").encode(), out_bytes=100, arena_bytes=0
        )
        assert (stop, state[kernel.OFFSET], state[kernel.ANSWERED]) == (kernel.STOP_OUT_FULL, 24, 24)


def test_a_document_larger_than_the_answers_arena_is_for_the_plain_path(tmp_path: Path) -> None:
    with desk(tmp_path) as counter:
        talk = counter.session()
        talk.give(_set(b"k", b"v" * 300_000))
        talk.bytes_sent()
        assert talk.one(0x00, key=b"k").value == b"v" * 300_000


@given(st.integers(1, 400))
@settings(max_examples=10)
def test_many_keys_grow_the_index_under_the_kernel(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder, desk(Path(folder) / "s", vbuckets=1) as counter:
        talk = counter.session()
        talk.give(b"".join(_set(b"key-%d" % number, b"v", Opcode.SETQ) for number in range(count)))
        assert talk.bytes_sent() == b""
        assert counter.store.index.items(0) == counter.store.index.high_seqno(0) == count


def test_answers_are_held_back_until_the_batch_of_their_writes_is_durable(talk_and_desk: tuple[Talk, Desk]) -> None:
    talk, counter = talk_and_desk
    reader = counter.session()
    reader.give(Frame(0x80, 0x00, b"k").encode())
    assert reader.connection.sent[-1][1] == 0  # nothing was written: the miss leaves at once
    talk.give(_set(b"k", b"v", Opcode.SETQ) + Frame(0x80, 0x0A).encode())
    assert talk.connection.sent[-1][1] == counter.committer.open
    reader.give(Frame(0x80, 0x00, b"k").encode())
    assert reader.connection.sent[-1][1] == counter.committer.open  # it saw what is not durable yet
    counter.committer.commit()
    late = counter.session()
    late.give(Frame(0x80, 0x00, b"k").encode())
    assert late.connection.sent[-1][1] == 0


@pytest.fixture
def talk_and_desk(tmp_path: Path) -> Iterator[tuple[Talk, Desk]]:
    with desk(tmp_path / "s") as counter:
        yield counter.session(), counter
