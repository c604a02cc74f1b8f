"""The kernel that looks up paths: beside the plain path, and in the bounds-checked build."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.kernels import execute as kernel
from headwater.kernels import lookups
from headwater.kernels.builds import debug_copy
from headwater.kernels.guard import registered
from headwater.kernels.json import SCRATCH_BYTES
from headwater.wire import subdoc
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.kernels.test_execute import PLAIN, PREFIXES, SHORT_LIVED, _columns, become, pair
from tests.node.support import NOON, Desk, Talk, desk

checked = debug_copy("headwater.kernels.lookups")

GET, EXISTS, COUNT = int(Opcode.SUBDOC_GET), int(Opcode.SUBDOC_EXISTS), int(Opcode.SUBDOC_GET_COUNT)
NAMES = ["a", "b", "ab", "", "é", 'q"', "back\\slash", "a.b", "a[0]", "`", "\t", " "]

names = st.sampled_from(NAMES)
scalars = st.none() | st.booleans() | st.integers(-9, 10**19) | st.floats(allow_nan=False) | st.text(max_size=12)
values = st.recursive(
    scalars | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)
texts = st.builds(
    lambda value, indent, ascii_only: json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode(),
    values,
    st.sampled_from([None, 1]),
    st.booleans(),
)
garbled = st.builds(
    lambda text, at, byte: text[:at] + bytes([byte]) + text[at + 1 :], texts, st.integers(0, 40), st.integers(0, 255)
)
documents = texts | garbled | st.binary(max_size=12) | st.sampled_from([b'{"a":1,"a":2}', b"[" * 1100 + b"]" * 1100])

components = st.sampled_from(
    ["a", ".a", ".b", ".ab", "[0]", "[1]", "[-1]", "[01]", "[9999999999]", ".", "[", "]", "`a.b`", "\t"]
)
odd_components = st.sampled_from(
    [".é", ".`", '.q"', ".back\\slash", "[٣]", "[-2]", "[ 0]", "[0", "a", "..", ". ", "\x00"]
)
paths = st.one_of(
    st.sampled_from([b"a", b"b", b"a.b", b"a[0]", b"[0]", b"[0].a", b"[1][0]", b"a.a.a", b"ab.b"]),
    st.lists(components | odd_components, max_size=4).map(lambda parts: "".join(parts).encode()),
    st.binary(max_size=4),
    st.sampled_from([b"a" * 1024, b"a" * 1025, b"[0]" * 32, b"[0]" * 33, b".".join([b"a"] * 33)]),
)
opcodes = st.sampled_from([GET, GET, GET, EXISTS, EXISTS, COUNT, int(Opcode.GET), int(Opcode.SUBDOC_DICT_ADD)])
specs = st.tuples(st.sampled_from([GET, EXISTS]), st.just(0), paths) | st.tuples(
    opcodes, st.sampled_from([0, 0, 0, 4, 1]), paths
)


def lookup(specs: list[tuple[int, int, bytes]], key: bytes = b"k", **sections: Any) -> bytes:
    value = subdoc.SubdocMultiLookup(key=b"k", specs=specs).frame().value
    return Frame(0x80, Opcode.SUBDOC_MULTI_LOOKUP, key, value=value, **sections).encode()


def put(text: bytes, key: bytes = b"k", expiry: int = 0) -> bytes:
    return Frame(0x80, Opcode.SET, key, bytes(4) + expiry.to_bytes(4, "big"), text).encode()


requests = st.one_of(
    st.builds(
        lookup, st.lists(specs, min_size=1, max_size=4), st.sampled_from([b"k", b"k", b"k", b"none", b"gone", b""])
    ),
    st.builds(lookup, st.lists(specs, min_size=15, max_size=18)),
    st.builds(
        lambda asked, sections: lookup(asked, **sections),
        st.lists(specs, max_size=2),
        st.sampled_from(
            [
                {"vbucket": 9},
                {"cas": 5},
                {"datatype": 1},
                {"opaque": 0xDEADBEEF},
                {"extras": b"\4"},
                {"extras": b"\0"},
                {"extras": b"xx"},
            ]
        ),
    ),
    st.builds(lambda asked, cut: _cut(lookup(asked), cut), st.lists(specs, min_size=1, max_size=2), st.integers(1, 9)),
    st.sampled_from([Frame(0x80, Opcode.GET, b"k").encode(), Frame(0x80, Opcode.NOOP).encode(), put(b'{"a":[7]}')]),
)


def _cut(request: bytes, count: int) -> bytes:
    """A request whose specs end too early, with a header that is true."""
    body = max(len(request) - count, 25)
    return request[:8] + (body - 24).to_bytes(4, "big") + request[12:body]


def test_the_kernel_says_what_the_plain_path_does() -> None:
    def try_one(features: tuple[int, ...], text: bytes, expires: bool, stream: bytes, cuts: list[int]) -> None:
        talks = [desk.session() for desk in desks]
        for talk in talks:
            prepare(talk, features, text, expires)
        before = [told(desk) for desk in desks]
        fast, plain = talks
        assert feed(fast, stream, cuts) == feed(plain, stream, [])
        by_kernel, by_plain = (told(each) - was for each, was in zip(desks, before, strict=True))
        assert by_kernel == by_plain

    @given(st.data())
    @settings(max_examples=200)
    def try_any(data: st.DataObject) -> None:
        features = data.draw(st.sampled_from([(), (4, 6, 7, 0x0B, 0x12), (7,), (6, 7)]))
        text, expires = data.draw(documents), data.draw(st.sampled_from([False, False, False, True]))
        stream = b"".join(data.draw(st.lists(requests, min_size=1, max_size=6)))
        try_one(features, text, expires, stream, data.draw(st.lists(st.integers(0, len(stream)), max_size=3)))

    one_of_each = lookup([(GET, 0, b"a")]) + lookup([(GET, 0, b"a")], b"none") + lookup([(GET, 0, b"z")])
    with pair() as both:
        desks = [talk.desk for talk in both]
        try_one((6, 7), b'{"a":1}', False, one_of_each, [])
        assert all(answered_by_kernel(desks[0]).get(status) for status in lookups.STATUSES)
        try_any()


def feed(talk: Talk, data: bytes, cuts: list[int]) -> tuple[bytes, bool]:
    """Hand bytes over cut anywhere; what was said, and whether the connection was ended over it."""
    waiting = b""
    for start, end in itertools.pairwise([0, *sorted(cuts), len(data)]):
        waiting += data[start:end]
        if not talk.connection.is_closed:
            waiting = waiting[talk.give(waiting) :]
    assert talk.connection.is_closed or waiting == b""
    return talk.bytes_sent(), talk.connection.is_closed


def told(counter: Desk) -> Counter[object]:
    """Return what statistics and metrics say of the requests so far."""
    return Counter({**counter.bucket.counters, **counter.requests.counts()})


def prepare(talk: Talk, features: tuple[int, ...], text: bytes, expires: bool) -> None:
    """A document `k`, which is over if it expires, and a tombstone `gone`."""
    talk.hello(*features)
    prefix, counter = b"\0" if 0x12 in features else b"", talk.desk
    expiry = int(counter.clock.seconds) + 100 if expires else 0
    gone = Frame(0x80, Opcode.DELETE, prefix + b"gone").encode()
    talk.give(put(text, prefix + b"k", expiry) + put(b"{}", prefix + b"gone") + gone)
    counter.committer.commit()
    counter.clock.seconds += 200 if expires else 0
    talk.bytes_sent()


def answered_by_kernel(counter: Desk) -> dict[int, int]:
    """How many lookups the kernel answered, by status."""
    found = counter.workspace.counts()
    return {status: many for opcode, status, many in found if opcode == Opcode.SUBDOC_MULTI_LOOKUP}


def results(talk: Talk, *specs: tuple[int, int, bytes], key: bytes = b"k") -> tuple[int, list[tuple[int, bytes]]]:
    talk.give(lookup(list(specs), key))
    (answer,) = (Frame.decode(talk.bytes_sent()),)
    return answer.status, subdoc.SubdocMultiLookupResponse.decode(answer).results if answer.status != 1 else []


def test_simple_lookups_are_the_kernels_found_or_not(tmp_path: Path) -> None:
    with desk(tmp_path) as counter:
        talk = counter.session()
        talk.give(put(b' {"a": {"b": [1, {"c": "x,}]"}]}, "n": 12.5}'))
        talk.bytes_sent()
        assert results(talk, (GET, 0, b"a.b[1].c"), (GET, 0, b"n")) == (0, [(0, b'"x,}]"'), (0, b"12.5")])
        assert results(talk, (EXISTS, 0, b"a.b[0]")) == (0, [(0, b"")])
        assert results(talk, (GET, 0, b"a.z"), (GET, 0, b"a[0]"), (GET, 0, b"n")) == (
            Status.SUBDOC_MULTI_PATH_FAILURE,
            [(Status.SUBDOC_PATH_ENOENT, b""), (Status.SUBDOC_PATH_MISMATCH, b""), (0, b"12.5")],
        )
        assert results(talk, (GET, 0, b"a"), key=b"none") == (Status.KEY_ENOENT, [])
        assert answered_by_kernel(counter) == {0: 2, Status.KEY_ENOENT: 1, Status.SUBDOC_MULTI_PATH_FAILURE: 1}


def test_lookups_in_named_collections_are_the_kernels_and_say_what_the_plain_path_does() -> None:
    keys = [prefix + key for prefix in PREFIXES for key in (b"k", b"none", b"")]
    stream = b"".join(lookup([(GET, 0, b"a"), (EXISTS, 0, b"b")], key) for key in keys)
    with pair() as both:
        for talk in both:
            become(talk.desk, 1, a=8, b=(9, 100))
            talk.hello(0x12, 0x0B, 7)
            for prefix in (b"\0", PLAIN, SHORT_LIVED):
                talk.give(put(b'{"a":1}', prefix + b"k"))
            talk.bytes_sent()
        fast, plain = both
        assert feed(fast, stream, []) == feed(plain, stream, [])
        # The default collection and, twice, the plain one; one with a maximum TTL is for Python.
        assert answered_by_kernel(fast.desk) == {Status.SUBDOC_MULTI_PATH_FAILURE: 3, Status.KEY_ENOENT: 3}


@pytest.mark.parametrize(
    "spec",
    [(COUNT, 0, b"a"), (GET, 4, b"$document"), (GET, 0, b"a[-1]"), (GET, 0, b"`a`"), (GET, 0, b""), (GET, 0, b"a.")],
)
def test_an_unusual_path_is_for_python(tmp_path: Path, spec: tuple[int, int, bytes]) -> None:
    with desk(tmp_path) as counter:
        talk = counter.session()
        talk.give(put(b'{"a":[1]}') + lookup([(GET, 0, b"a"), spec]))
        assert answered_by_kernel(counter) == {}


def test_reads_and_lookups_in_turn_stay_with_the_kernels(tmp_path: Path) -> None:
    with desk(tmp_path) as counter:
        talk = counter.session()
        talk.give(put(b'{"a":1}'))
        stream = (Frame(0x80, Opcode.GET, b"k").encode() + lookup([(GET, 0, b"a")])) * 3
        assert talk.give(stream) == len(stream)
        counts = {(opcode, status): many for opcode, status, many in counter.workspace.counts()}
        assert counts[Opcode.GET, 0] == counts[Opcode.SUBDOC_MULTI_LOOKUP, 0] == 3


def test_a_call_looks_through_so_many_bytes_and_leaves_the_next_to_python(tmp_path: Path) -> None:
    with desk(tmp_path) as counter:
        talk = counter.session()
        talk.give(put(json.dumps({"text": "x" * (lookups.WALKED_MAX // 2 - 64), "a": 1}).encode()))
        talk.bytes_sent()
        stream = lookup([(GET, 0, b"a")]) * 4
        assert talk.give(stream) == len(stream)
        assert talk.bytes_sent().count(b"\x81\xd0") == 4
        assert answered_by_kernel(counter) == {0: 3}  # two, then one by Python, and one of another call


def test_a_request_that_looks_through_a_large_document_for_many_paths_is_for_python(tmp_path: Path) -> None:
    with desk(tmp_path) as counter:
        talk = counter.session()
        text = b'{"text":"%b","a":1}' % (b"x" * (lookups.REQUEST_WALKED_MAX // 4))
        talk.give(put(text))
        talk.bytes_sent()
        assert results(talk, *[(GET, 0, b"a")] * 2) == (0, [(0, b"1")] * 2)
        assert answered_by_kernel(counter) == {0: 1}
        assert results(talk, *[(GET, 0, b"a")] * 3) == (0, [(0, b"1")] * 3)
        assert answered_by_kernel(counter) == {0: 1}


def test_an_answer_waits_for_the_document_it_tells_of(tmp_path: Path) -> None:
    with desk(tmp_path) as counter:
        counter.session().give(put(b'{"a":1}'))
        reader = counter.session()
        reader.give(lookup([(GET, 0, b"a")]))
        assert reader.connection.sent[-1][1] == counter.committer.open
        counter.committer.commit()
        late = counter.session()
        late.give(lookup([(GET, 0, b"a")]))
        assert late.connection.sent[-1][1] == 0


@pytest.mark.parametrize("out_bytes", [24, 30, 34])
def test_an_answer_that_does_not_fit_stops_before_its_request(tmp_path: Path, out_bytes: int) -> None:
    with desk(tmp_path) as counter:
        counter.session().give(put(b'{"a":"12345"}'))
        request = lookup([(GET, 0, b"a")])
        stop, state = _run_checked(counter, request * 2, 24 + 6 + 7 + out_bytes)
        assert (stop, state[kernel.OFFSET], state[kernel.ANSWERED]) == (kernel.STOP_OUT_FULL, len(request), 37)
        stop, state = _run_checked(counter, request, out_bytes)
        assert (stop, state[kernel.OFFSET], state[kernel.ANSWERED]) == (kernel.STOP_PLAIN, 0, 0)


@given(texts, st.lists(requests, max_size=3), st.binary(max_size=40), st.integers(0, 200), st.integers(0, 255))
@settings(max_examples=25)
def test_lying_lengths_and_garbage_touch_no_memory_they_should_not(
    text: bytes, whole: list[bytes], junk: bytes, place: int, byte: int
) -> None:
    """The bounds-checked build raises KernelFault when a single byte outside of the buffers is touched."""
    data = bytearray(b"".join(whole) + junk)
    if place < len(data):
        data[place] = byte
    with tempfile.TemporaryDirectory() as folder, desk(Path(folder) / "s") as counter:
        counter.session().give(put(text))
        _run_checked(counter, bytes(data), 300)


def _run_checked(counter: Desk, data: bytes, out_bytes: int) -> tuple[int, np.ndarray]:
    store = counter.store
    counter.bucket.refresh()
    counter.bucket.collections.refresh()
    arena, _ = store.staging.room()
    state = np.zeros(kernel.STATE_FIELDS, np.uint64)
    state[kernel.NOW] = NOON
    buffer, out = np.frombuffer(bytearray(data) or bytearray(1), np.uint8)[: len(data)], np.zeros(out_bytes, np.uint8)
    for vb in range(4):
        store.staging.grow(vb)
    with registered(arena, *(column for vb in range(4) for column in _columns(counter, vb))):
        stop = checked.look_up(
            buffer, out, store.table, store.segments, counter.bucket.collections.plain,
            np.zeros(SCRATCH_BYTES, np.uint8), state,
        )  # fmt: skip
    return int(stop), state
