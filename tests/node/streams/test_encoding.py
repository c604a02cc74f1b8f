"""The decision table of dcp 11, and that the kernel's frames and the encoded ones are the same."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.node.storage.records import deletion_frame, mutation_frame, prepare_frame
from headwater.node.storage.store import Store
from headwater.node.streams.encoding import Encoding, encoding_of
from headwater.protocol.dcp.controls import ControlSettings, Negotiated
from headwater.wire import dcp, snappy, xattr
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode

ATTRIBUTES = {"_sync": b'{"rev":1}', "mine": b"7"}
BODY = b'{"a":1}'
WHOLE = xattr.join(ATTRIBUTES, BODY)
SECTION = xattr.join(ATTRIBUTES)
SYSTEM = xattr.join({"_sync": b'{"rev":1}'})
JSON, SNAPPY, XATTR = 1, 2, 4


def mutation(value: bytes = BODY, datatype: int = JSON) -> bytes:
    return mutation_frame(7, b"k", value, seqno=10, cas=99, rev_seqno=3, flags=6, expiry=0, datatype=datatype)


def tombstone(value: bytes = b"", datatype: int = 0, *, expired: bool = False) -> bytes:
    return deletion_frame(
        7, b"k1", value, seqno=11, cas=98, rev_seqno=4, delete_time=0x5F00_0000, datatype=datatype, expired=expired
    )


def encoded(encoding: Encoding, stored: bytes | memoryview, opaque: int = 0x77) -> bytes:
    return b"".join(encoding.encode(stored, opaque))


def sent(encoding: Encoding, stored: bytes) -> tuple[bytes, int]:
    frame = Frame.decode(encoded(encoding, stored))
    assert (frame.opaque, frame.vbucket) == (0x77, 7)
    return frame.value, frame.datatype


@pytest.mark.parametrize(
    ("encoding", "stored", "value", "datatype"),
    [
        (Encoding(), mutation(WHOLE, JSON | XATTR), BODY, JSON),
        (Encoding(xattrs=True), mutation(WHOLE, JSON | XATTR), WHOLE, JSON | XATTR),
        (Encoding(no_value=True), mutation(), b"", 0),
        (Encoding(no_value=True, xattrs=True), mutation(WHOLE, JSON | XATTR), SECTION, XATTR),
        (Encoding(no_value=True, xattrs=True), mutation(), b"", 0),
        (Encoding(no_value=True, keep_datatype=True), mutation(), b"", JSON),
        (Encoding(no_value=True, keep_datatype=True), mutation(WHOLE, JSON | XATTR), b"", JSON),
        (
            Encoding(no_value=True, keep_datatype=True, xattrs=True),
            mutation(WHOLE, JSON | XATTR),
            SECTION,
            JSON | XATTR,
        ),
        (Encoding(no_value=True), mutation(snappy.compress(BODY), JSON | SNAPPY), b"", 0),
        (Encoding(), mutation(snappy.compress(WHOLE), JSON | SNAPPY | XATTR), BODY, JSON),
        (Encoding(snappy=True), mutation(snappy.compress(BODY), JSON | SNAPPY), snappy.compress(BODY), JSON | SNAPPY),
        (Encoding(), mutation(snappy.compress(BODY), JSON | SNAPPY), BODY, JSON),
        (Encoding(snappy=True), mutation(snappy.compress(WHOLE), JSON | SNAPPY | XATTR), BODY, JSON),
        (Encoding(), tombstone(SYSTEM, XATTR), b"", 0),
        (Encoding(xattrs=True), tombstone(SYSTEM, XATTR), SYSTEM, XATTR),
        (Encoding(xattrs=True), tombstone(SECTION, XATTR), SYSTEM, XATTR),
        (Encoding(xattrs=True), tombstone(xattr.join({"mine": b"7"}), XATTR), b"", 0),
        (Encoding(xattrs=True, deleted_user_xattrs=True), tombstone(SECTION, XATTR), SECTION, XATTR),
        (Encoding(snappy=True, compress=True), mutation(b"a" * 500, 0), snappy.compress(b"a" * 500), SNAPPY),
        (Encoding(snappy=True, compress=True), mutation(b"ab", 0), b"ab", 0),
    ],
)
def test_what_of_a_value_is_sent(encoding: Encoding, stored: bytes, value: bytes, datatype: int) -> None:
    assert sent(encoding, stored) == (value, datatype)


HEAD = "8060 0002 1f %s 0007 %s 00000077 0000000000000063"  # datatype, length
NUMBERS = "000000000000000a 0000000000000003 00000006 00000000 00000000 00 %s 01"  # deleted
SQUEEZED = bytes.fromhex("07 18 7b2261223a317d")  # seven bytes, as one literal: {"a":1}


@pytest.mark.parametrize(
    ("encoding", "datatype", "value", "is_deletion", "expected"),
    [
        (Encoding(), SNAPPY | JSON, SQUEEZED, 0, ("01", "00000028", "7b2261223a317d")),
        (Encoding(xattrs=True), SNAPPY, SQUEEZED, 0, ("00", "00000028", "7b2261223a317d")),
        (Encoding(snappy=True), SNAPPY | JSON, SQUEEZED, 0, ("03", "0000002a", "07187b2261223a317d")),
        (Encoding(), JSON, BODY, 0, ("01", "00000028", "7b2261223a317d")),
        (Encoding(xattrs=True), SNAPPY | XATTR, snappy.compress(SYSTEM), 1, ("04", "00000039", SYSTEM.hex())),
        (Encoding(), SNAPPY | XATTR, snappy.compress(SYSTEM), 1, ("00", "00000021", "")),
    ],
)
def test_the_value_of_a_prepare_is_what_the_connection_agreed_to(
    encoding: Encoding, datatype: int, value: bytes, is_deletion: int, expected: tuple[str, str, str]
) -> None:
    prepare = dcp.Prepare(
        by_seqno=10,
        rev_seqno=3,
        flags=6,
        deleted=is_deletion,
        durability_level=1,
        key=b"\0k",
        value=value,
        datatype=datatype,
        cas=99,
    )
    head, numbers = HEAD % expected[:2], NUMBERS % f"{is_deletion:02x}"
    literal = bytes.fromhex(f"{head} {numbers} 006b {expected[2]}")
    assert encoded(replace(encoding, collections=True), prepare_frame(7, prepare)) == literal


LARGE = 1 << 20


@pytest.mark.parametrize("aware", [False, True])
def test_the_value_of_a_large_prepare_is_copied_once(aware: bool) -> None:
    prepare = dcp.Prepare(by_seqno=10, rev_seqno=3, durability_level=1, key=b"\0k", value=bytes(LARGE), cas=99)
    stored, encoding = prepare_frame(7, prepare), Encoding(collections=aware)
    tracemalloc.start()
    try:
        encoding.encode(stored, 0x77)
        assert LARGE < tracemalloc.get_traced_memory()[1] < 2 * LARGE
    finally:
        tracemalloc.stop()


def test_the_deletion_of_the_specification_in_both_layouts() -> None:
    v2 = Frame.decode(encoded(Encoding(delete_times=True), tombstone()))
    assert v2.extras.hex() == "000000000000000b00000000000000045f00000000"
    v1 = Frame.decode(encoded(Encoding(), tombstone()))
    assert v1.extras.hex() == "000000000000000b00000000000000040000"


@pytest.mark.parametrize(
    ("encoding", "opcode", "size"),
    [
        (Encoding(delete_times=True, expiry_opcode=True), Opcode.DCP_EXPIRATION, 20),
        (Encoding(delete_times=True), Opcode.DCP_DELETION, 21),
        (Encoding(), Opcode.DCP_DELETION, 18),
    ],
)
def test_an_expiry_is_told_as_such_only_with_the_control(encoding: Encoding, opcode: int, size: int) -> None:
    frame = Frame.decode(encoded(encoding, tombstone(expired=True)))
    assert (frame.opcode, len(frame.extras)) == (opcode, size)


def test_a_stream_id_is_framed_as_the_specification_shows() -> None:
    stored = mutation_frame(7, b"k", b"v", seqno=10, cas=1, rev_seqno=3)
    assert encoded(Encoding(framing=bytes.fromhex("220047")), stored).hex() == (
        "085703011f00000700000024000000770000000000000001220047000000000000000a"
        "00000000000000030000000000000000000000000000006b76"
    )


def test_open_and_controls_make_the_encoding() -> None:
    negotiated = Negotiated(snappy=True, xattrs=True, delete_times=True, deleted_user_xattrs=True)
    controls = ControlSettings(expiry_opcode=True, force_value_compression=True)
    flags = dcp.OpenFlag.PRODUCER | dcp.OpenFlag.NO_VALUE_WITH_UNDERLYING_DATATYPE
    encoding = encoding_of(negotiated, controls, flags)
    assert encoding == Encoding(
        xattrs=True,
        deleted_user_xattrs=True,
        no_value=True,
        keep_datatype=True,
        delete_times=True,
        expiry_opcode=True,
        snappy=True,
        compress=True,
    )
    assert encoding_of(Negotiated(), ControlSettings(), dcp.OpenFlag.PRODUCER) == Encoding()


def test_expirations_bring_delete_times_although_open_did_not_ask() -> None:
    encoding = encoding_of(Negotiated(), ControlSettings(expiry_opcode=True), dcp.OpenFlag.PRODUCER)
    assert encoding == Encoding(delete_times=True, expiry_opcode=True)


ENCODINGS = st.builds(
    Encoding,
    no_value=st.booleans(),
    keep_datatype=st.just(False),
    delete_times=st.booleans(),
    expiry_opcode=st.just(False),
) | st.builds(
    Encoding,
    xattrs=st.booleans(),
    deleted_user_xattrs=st.booleans(),
    no_value=st.just(True),
    keep_datatype=st.booleans(),
    delete_times=st.just(True),
    expiry_opcode=st.booleans(),
    snappy=st.booleans(),
)
CHANGES = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["set", "json", "snappy", "xattr", "delete", "expire"])),
    min_size=1,
    max_size=12,
)


def stage(store: Store, key: bytes, what: str, number: int) -> None:
    values = {
        "set": (b"plain", 0),
        "json": (BODY, JSON),
        "snappy": (snappy.compress(BODY), JSON | SNAPPY),
        "xattr": (WHOLE, JSON | XATTR),
    }
    if what in values:
        value, datatype = values[what]
        store.staging.mutation(0, key, value, cas=number, rev_seqno=number, datatype=datatype)
    else:
        store.staging.deletion(
            0, key, SYSTEM, datatype=XATTR, cas=number, rev_seqno=number, delete_time=9, expired=what == "expire"
        )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(encoding=ENCODINGS, changes=CHANGES)
def test_what_the_kernel_copies_is_what_would_have_been_dressed(
    tmp_path_factory: pytest.TempPathFactory, encoding: Encoding, changes: list[tuple[str, str]]
) -> None:
    store = Store.open(tmp_path_factory.mktemp("store") / "s", vbuckets=1, arena_bytes=1 << 20, segment_bytes=4 << 20)
    try:
        for number, (key, what) in enumerate(changes, start=1):
            stage(store, key.encode(), what, number)
        batch = store.freeze()
        assert batch is not None
        store.write(batch)
        store.settle(batch)
        out = np.zeros(4096, np.uint8)
        with store.view(0) as bulk, store.view(0) as single:
            while not bulk.nothing:
                filled = bulk.fill(out, 5, encoding.bits, 1, encoding.slow)
                stored = single.next_frame()
                if filled.bytes:
                    assert out[: filled.bytes].tobytes() == encoded(encoding, stored, 5)
                else:
                    assert filled.plain
                    bulk.next_frame()
    finally:
        store.close(clean=False)
