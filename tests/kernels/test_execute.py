"""The kernel that answers chunks of requests: beside the plain path, beside a dict, and in the bounds-checked build."""

from __future__ import annotations

import json
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
from headwater.kernels.gather import COLLECTIONS as ENCODES_COLLECTIONS
from headwater.kernels.guard import registered
from headwater.kernels.json import SCRATCH_BYTES
from headwater.node.storage.views import DEFAULT_ONLY, Shown
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame
from headwater.wire.manifest import CollectionsManifest
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.node.aware import manifest
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


COLLECTIONS = 0x12
EVERY = np.array([0, 8, 9, 12, 300], np.uint64)
PLAIN, SHORT_LIVED, WIDE, UNKNOWN = b"\x08", b"\x09", b"\xac\x02", b"\x0a"
PREFIXES = [b"\0", PLAIN, PLAIN, WIDE, SHORT_LIVED, UNKNOWN, b"\x01", b"\x88\0", b"\xff", b""]
NAMED_KEYS = [b"", b"a", b"bb", b"c" * 249, b"c" * 250]
prefixed = st.builds(lambda prefix, key: prefix + key, st.sampled_from(PREFIXES), st.sampled_from(NAMED_KEYS))
named_requests = st.one_of(
    st.builds(_change, st.sampled_from(CHANGES), prefixed, vbuckets, opaques, cas, values, flags, expiries),
    st.builds(
        lambda opcode, key, vb: Frame(0x80, opcode, key, vbucket=vb).encode(),
        st.sampled_from([*READS, Opcode.DELETE, Opcode.DELETEQ]),
        prefixed,
        vbuckets,
    ),
)


def become(counter: Desk, uid: int, **collections: int | tuple[int, int]) -> None:
    """Give a node and its vbuckets these collections."""
    held = counter.bucket.collections
    held.manifest = CollectionsManifest.decode(manifest(uid, **collections))
    for vb in counter.bucket.vbuckets:
        held._bring_up(vb)
    counter.committer.commit()


@given(st.data())
@settings(max_examples=60)
def test_the_kernel_serves_named_collections_as_the_plain_path_does(data: st.DataObject) -> None:
    features = data.draw(st.sampled_from([(), (4, 7, 0x0B), (0x0B,)]))
    with pair() as (fast, plain):
        for talk in (fast, plain):
            talk.hello(COLLECTIONS, *features)
        for uid in range(1, data.draw(st.integers(2, 4))):
            # The second manifest drops a collection, of which nothing may be read or written any more.
            present = {"a": 8, "c": 300} if uid != 2 else {"c": 300}
            for talk in (fast, plain):
                become(talk.desk, uid, b=(9, 100), **(present if uid < 3 else {"c": 300, "d": 12}))
            stream = b"".join(data.draw(st.lists(named_requests, max_size=12)))
            cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=4))
            give_in_pieces(fast, stream, cuts)
            give_in_pieces(plain, stream, [])
            assert fast.bytes_sent() == plain.bytes_sent()
            for talk in (fast, plain):
                talk.desk.committer.commit()
        for vb in range(3):
            assert _frames(fast.desk, vb, EVERY, 3 | ENCODES_COLLECTIONS) == _frames(
                plain.desk, vb, EVERY, 3 | ENCODES_COLLECTIONS
            )


def test_documents_of_named_collections_need_no_python(tmp_path: Path) -> None:
    with desk(tmp_path) as counter:
        become(counter, 1, a=8, b=(9, 100))
        talk = counter.session()
        talk.hello(COLLECTIONS, 0x0B)
        for key in (b"\0k", b"\x08k", b"\x09k"):
            talk.give(Frame(0x80, Opcode.SET, key, bytes(8), b"v").encode())
            talk.give(Frame(0x80, Opcode.GET, key).encode())
        counts = {(opcode, status): count for opcode, status, count in counter.workspace.counts()}
        # A collection with a maximum TTL is for Python, which knows it.
        assert counts == {(Opcode.SET, 0): 2, (Opcode.GET, 0): 2}


def test_a_default_collection_that_is_gone_takes_no_other_off_the_kernel(tmp_path: Path) -> None:
    gone = json.dumps(
        {
            "uid": "2",
            "scopes": [
                {"uid": "0", "name": "_default", "collections": []},
                {"uid": "8", "name": "shop", "collections": [{"uid": "8", "name": "a"}]},
            ],
        }
    )
    with desk(tmp_path) as counter:
        become(counter, 1, a=8)
        old, new = counter.session(), counter.session()
        new.hello(COLLECTIONS, 7)
        old.hello(7)
        lookup = {"extras": bytes(1), "value": b"\xc5\0\0\1x"}
        assert old.one(Opcode.SET, key=b"k", extras=bytes(8), value=b'{"x":1}').status == 0
        counter.bucket.collections.manifest = CollectionsManifest.decode(gone.encode())
        for vb in counter.bucket.vbuckets:
            counter.bucket.collections._bring_up(vb)
        assert new.one(Opcode.SET, key=b"\x08k", extras=bytes(8)).status == 0
        unknown = Status.UNKNOWN_COLLECTION
        assert [new.one(Opcode.GET, key=b"\0k").status, old.one(Opcode.GET, key=b"k").status] == [unknown, unknown]
        # A lookup behind a request that the kernel took, and one alone.
        data = Frame(0x80, Opcode.NOOP).encode() + Frame(0x80, Opcode.SUBDOC_MULTI_LOOKUP, b"k", **lookup).encode()
        old.give(data)
        assert [answer.status for answer in FrameBuffer().receive_data(old.bytes_sent())] == [0, unknown]
        assert counter.workspace.fields[kernel.TALLY + Opcode.SET * kernel.STATUSES] == 2


def _frames(counter: Desk, vb: int, choice: Shown = DEFAULT_ONLY, encoding: int = 3) -> list[bytes]:
    """The vbucket's stream of these collections, every change as stored."""
    out = np.zeros(1 << 16, np.uint8)
    with counter.store.view(vb, choice=choice) as view:
        filled = view.fill(out, 0, encoding, len(out))
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
    counter.bucket.collections.refresh()
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
            buffer, out, store.table, store.segments, counter.bucket.uuids, counter.bucket.collections.plain,
            np.zeros(SCRATCH_BYTES, np.uint8), state,
        )  # fmt: skip
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
