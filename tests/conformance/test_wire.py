"""wire.md on a live socket: framing, numbers, datatypes, times."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from struct import pack

import pytest

from headwater.testing import Node, node
from headwater.wire import snappy, xattr
from headwater.wire.features import Feature
from headwater.wire.header import Frame
from headwater.wire.opcodes import RETIRED, Opcode
from headwater.wire.status import Status
from tests.conformance.seeds import Line
from tests.conformance.spec import numbers

REQUEST, FLEXIBLE = 0x80, 0x08
MIB = 1 << 20
VALUED = {Opcode.SET, Opcode.ADD, Opcode.REPLACE, Opcode.APPEND, Opcode.PREPEND}
EXTRAS = {
    **dict.fromkeys((Opcode.SET, Opcode.ADD, Opcode.REPLACE), 8),
    **dict.fromkeys((Opcode.INCREMENT, Opcode.DECREMENT), 20),
    **dict.fromkeys((Opcode.TOUCH, Opcode.GAT), 4),
}


@pytest.fixture(scope="module")
def live() -> Iterator[Node]:
    with node(vbuckets=4) as made:
        yield made


@pytest.fixture
def line(live: Node) -> Iterator[Line]:
    with Line(live.port) as made:
        made.done(hello(Feature.XERROR, Feature.XATTR, Feature.JSON, Feature.SNAPPY))
        yield made


def hello(*features: int) -> Frame:
    return Frame(REQUEST, Opcode.HELLO, value=b"".join(pack(">H", code) for code in features))


def request(opcode: int, framing: bytes = b"", key: bytes = b"k") -> Frame:
    """A request that is well formed, as far as framing and sections go."""
    magic = FLEXIBLE if framing else REQUEST
    value = b"1" if opcode in VALUED else b""
    return Frame(magic, opcode, key, bytes(EXTRAS.get(Opcode(opcode), 0)), value, framing=framing)


# --------------------------------------------------------------------------- 1: framing


@pytest.mark.parametrize("opcode", [Opcode.NOOP, Opcode.GET, Opcode.SUBDOC_GET, Opcode.HELLO, Opcode.DCP_CONTROL, 0xEE])
@pytest.mark.parametrize("magic", [REQUEST, FLEXIBLE])
def test_an_answer_copies_opcode_and_opaque_whatever_it_says(line: Line, magic: int, opcode: int) -> None:
    answer = line.ask(Frame(magic, opcode, opaque=0xDEADBEEF))
    assert (answer.magic, answer.opcode, answer.opaque) == (0x81, opcode, 0xDEADBEEF)


@pytest.mark.parametrize(
    "asked",
    [
        Frame(REQUEST, Opcode.GETK, b"missing"),
        Frame(REQUEST, Opcode.GAT, b"missing", bytes(4)),
        Frame(REQUEST, Opcode.GET_META, b"missing"),
        Frame(REQUEST, Opcode.GET_LOCKED, b"missing"),
        Frame(REQUEST, Opcode.SET, b"k", bytes(8), b"v", cas=1),
        Frame(REQUEST, Opcode.SET, b"k", bytes(7), b"v"),
        Frame(REQUEST, Opcode.GET, b"k", vbucket=99),
        Frame(REQUEST, Opcode.DCP_STREAM_REQ, extras=bytes(48)),
        Frame(REQUEST, 0xEE),
    ],
    ids=str,
)
def test_a_refusal_has_no_extras_and_no_key_and_a_value_that_is_empty_or_says_why(line: Line, asked: Frame) -> None:
    answer = line.ask(asked)
    assert answer.status != Status.SUCCESS and (answer.extras, answer.key) == (b"", b"")
    if answer.value:
        assert answer.datatype == 1 and json.loads(answer.value)["error"]["context"]


DURABLE = (
    *(Opcode.SET, Opcode.ADD, Opcode.REPLACE, Opcode.DELETE, Opcode.INCREMENT, Opcode.DECREMENT),
    *(Opcode.APPEND, Opcode.PREPEND, Opcode.TOUCH, Opcode.GAT),
)
KEEPS_TTL = (Opcode.SET, Opcode.REPLACE, Opcode.INCREMENT, Opcode.DECREMENT, Opcode.APPEND, Opcode.PREPEND)
NEITHER = (Opcode.GET, Opcode.GETK, Opcode.GET_META, Opcode.UNLOCK_KEY, Opcode.NOOP, Opcode.GET_VBUCKET)


@pytest.mark.parametrize("opcode", DURABLE + NEITHER)
def test_durability_is_kept_where_it_is_allowed_and_einval_elsewhere(line: Line, opcode: int) -> None:
    line.ask(Frame(REQUEST, Opcode.DELETE, b"durable"))
    if opcode != Opcode.ADD:
        line.done(Frame(REQUEST, Opcode.SET, b"durable", bytes(8), b"1"))
    expected = Status.SUCCESS if opcode in DURABLE else Status.EINVAL
    assert line.ask(request(opcode, b"\x11\x01", b"durable")).status == expected


@pytest.mark.parametrize("opcode", {*DURABLE, *NEITHER})
def test_an_expiry_is_preserved_where_that_is_allowed_and_not_supported_elsewhere(line: Line, opcode: int) -> None:
    line.done(Frame(REQUEST, Opcode.SET, b"counter", pack(">II", 0, 100), b"1"))
    answer = line.ask(request(opcode, b"\x50", b"counter"))
    assert answer.status == (Status.SUCCESS if opcode in KEEPS_TTL else Status.NOT_SUPPORTED)
    if opcode in KEEPS_TTL:
        meta = line.ask(Frame(REQUEST, Opcode.GET_META, b"counter"))
        assert abs(int.from_bytes(meta.extras[8:12]) - time.time() - 100) < 60


@pytest.mark.parametrize("framing", [b"\x43ann", b"\x61a", b"\x72\x00\x01"], ids=["user", "privilege", "token"])
def test_nobody_acts_for_another(line: Line, framing: bytes) -> None:
    assert line.ask(request(Opcode.GET, framing)).status == Status.EACCESS


# --------------------------------------------------------------------------- 2, 7: numbers

OLD_BUT_SERVED = {Opcode.FLUSH, Opcode.FLUSHQ, Opcode.DEREGISTER_TAP_CLIENT, Opcode.CHANGE_VB_FILTER, Opcode.DCP_FLUSH}


@pytest.mark.parametrize("opcode", sorted(RETIRED - OLD_BUT_SERVED))
def test_a_retired_opcode_is_not_supported(line: Line, opcode: int) -> None:
    assert line.ask(Frame(REQUEST, opcode)).status == Status.NOT_SUPPORTED


def test_an_opcode_that_was_never_assigned_is_unknown(line: Line) -> None:
    assigned = set(numbers("wire", "2.1")) | set(numbers("wire", "2.2")) | set(numbers("wire", "2.3")) | RETIRED
    of_headwater = {0x6F, 0xEF}  # DCP_BEFORE, which no one sends to a node: it is refused, not unknown; HOLD_CLOCK
    out_of_scope = set(range(0x70, 0x7A)) | {0xFC, 0xFD, 0xFF} | of_headwater
    for opcode in set(range(256)) - assigned - out_of_scope:
        assert line.ask(Frame(REQUEST, opcode)).status == Status.UNKNOWN_COMMAND, hex(opcode)


def test_hello_grants_what_is_implemented_and_nothing_else(line: Line) -> None:
    granted = line.ask(hello(*range(0x30))).value
    codes = [int.from_bytes(granted[at : at + 2]) for at in range(0, len(granted), 2)]
    assert set(codes) == {
        *(Feature.TCP_NODELAY, Feature.MUTATION_SEQNO, Feature.XATTR, Feature.XERROR, Feature.SELECT_BUCKET),
        *(Feature.SNAPPY, Feature.JSON, Feature.DUPLEX, Feature.CLUSTERMAP_CHANGE_NOTIFICATION),
        *(Feature.ALT_REQUEST_SUPPORT, Feature.PRESERVE_TTL),
        *(Feature.GET_CLUSTER_CONFIG_WITH_KNOWN_VERSION, Feature.CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF),
        *(Feature.VATTR, Feature.SUBDOC_CREATE_AS_DELETED, Feature.SUBDOC_DOCUMENT_MACRO_SUPPORT),
        *(Feature.SUBDOC_REPLACE_BODY_WITH_XATTR, Feature.SUBDOC_ALLOWS_ACCESS_ON_MULTIPLE_XATTR_KEYS),
        *(Feature.COLLECTIONS, Feature.SYNC_REPLICATION),
    }


# --------------------------------------------------------------------------- 4, 5: datatypes


@pytest.mark.parametrize(
    ("datatype", "feature", "value"),
    [
        (1, Feature.JSON, b"{}"),
        (2, Feature.SNAPPY, snappy.compress(b"value")),
        (4, Feature.XATTR, xattr.join({"_s": b"1"}, b"body")),
    ],
    ids=["JSON", "SNAPPY", "XATTR"],
)
def test_a_bit_of_the_datatype_needs_its_feature(live: Node, datatype: int, feature: int, value: bytes) -> None:
    with Line(live.port) as line:
        for features, status in (((), Status.EINVAL), ((feature,), Status.SUCCESS)):
            line.done(hello(*features))
            asked = Frame(REQUEST, Opcode.SET, b"typed", bytes(8), value, datatype)
            assert line.ask(asked).status == status
        shown = 0 if feature == Feature.XATTR else datatype  # attributes are never shown with the body (kv.md 6.4)
        assert line.ask(Frame(REQUEST, Opcode.GET, b"typed")).datatype == shown
        line.done(hello())
        assert line.ask(Frame(REQUEST, Opcode.GET, b"typed")).datatype == 0


@pytest.mark.parametrize("datatype", [8, 0x10, 0x80, 0xFF])
def test_a_bit_that_has_no_meaning_is_einval(line: Line, datatype: int) -> None:
    assert line.ask(Frame(REQUEST, Opcode.SET, b"typed", bytes(8), b"v", datatype)).status == Status.EINVAL


# --------------------------------------------------------------------------- 9, 10: attributes, times


def store(line: Line, value: bytes, datatype: int = 4) -> int:
    return line.ask(Frame(REQUEST, Opcode.SET, b"attributed", bytes(8), value, datatype)).status


def test_a_virtual_attribute_is_never_stored(line: Line) -> None:
    assert store(line, xattr.join({"$document": b"1"}, b"body")) == Status.XATTR_EINVAL


def test_system_attributes_have_one_mebibyte_and_the_users_what_the_value_has(line: Line) -> None:
    text = b'"' + b"x" * MIB + b'"'
    assert store(line, xattr.join({"mine": text}, b"body")) == Status.SUCCESS
    assert store(line, xattr.join({"_system": text}, b"body")) == Status.E2BIG
    half = b'"' + b"x" * (MIB // 2) + b'"'
    assert store(line, xattr.join({"_one": half}, b"body")) == Status.SUCCESS
    assert store(line, xattr.join({"_one": half, "_two": half}, b"body")) == Status.E2BIG


def test_attributes_count_in_the_20_mib_of_a_value(line: Line) -> None:
    assert store(line, xattr.join({"_s": b"1"}, bytes(20 * MIB - 20))) == Status.SUCCESS
    assert store(line, xattr.join({"_s": b"1"}, bytes(20 * MIB))) == Status.E2BIG


def test_a_document_that_is_stored_with_a_time_of_the_past_is_gone_at_once(line: Line) -> None:
    line.done(Frame(REQUEST, Opcode.SET, b"past", pack(">II", 0, 30 * 86400 + 1), b"v"))
    assert line.ask(Frame(REQUEST, Opcode.GET, b"past")).status == Status.KEY_ENOENT
