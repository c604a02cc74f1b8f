"""DCP against a real node on a real socket: every rollback vector by name, live streams, crashes, names."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Self

import pytest

from harness.nodes import until
from headwater import testing
from headwater.kernels import index
from headwater.node.storage.records import VBucketRecord
from headwater.node.storage.store import Store
from headwater.testing.node import Node
from headwater.wire import dcp, snappy
from headwater.wire.datatype import Datatype
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.records import decode_log
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.node.wire import Client

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "data" / "failover_vectors.json").read_text(encoding="utf-8")
)
# What a consumer says of its purge seqno and its collections stands in the value, which needs Collections.
NEEDS_VALUE = {"F36", "F37", "F38", "F39", "F40"}
PURGED_UP_TO = 100  # F41: "ignore purged tombstones", so there must be some
NAMES = count()
U64 = 0xFFFF_FFFF_FFFF_FFFF


class Consumer(Client):
    """A DCP client by hand."""

    def __init__(self, port: int, name: str = "", flags: int = 1, features: tuple[int, ...] = (0x07,)) -> None:
        super().__init__(port)
        self.name = name or f"test-{next(NAMES)}"
        self.ask(Opcode.HELLO, value=b"".join(code.to_bytes(2) for code in features))
        answer = self.ask(Opcode.DCP_OPEN, key=self.name.encode(), extras=bytes(4) + flags.to_bytes(4))
        assert answer.status == Status.SUCCESS

    def __enter__(self) -> Self:
        return self

    def request(self, vbucket: int, *, value: bytes = b"", **numbers: int) -> Frame:
        """The answer to a stream request."""
        numbers = {"start_seqno": 0, "opaque": 7} | numbers
        start = numbers["start_seqno"]
        numbers = {"snap_start_seqno": start, "snap_end_seqno": start} | numbers
        self.send(dcp.StreamRequest(vbucket=vbucket, value=value, **numbers).encode())  # type: ignore[arg-type]
        answer = self.read()
        assert answer is not None
        return answer

    def until(self, opcode: int) -> list[Frame]:
        """Frames up to and with the first of this opcode."""
        found: list[Frame] = []
        while not found or found[-1].opcode != opcode:
            frame = self.read()
            assert frame is not None, f"hung up after {found}"
            found.append(frame)
        return found


def set_value(client: Client, vbucket: int, key: bytes, value: bytes = b"v") -> None:
    assert client.ask(Opcode.SET, key=key, extras=bytes(8), value=value, vbucket=vbucket).status == 0


def set_state(client: Client, vbucket: int, state: State) -> None:
    assert client.ask(Opcode.SET_VBUCKET, extras=bytes([state]), vbucket=vbucket).status == 0


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with testing.node(vbuckets=8) as running:
        yield running


# --------------------------------------------------------------------------- rollback


def stage(store: Store, vb: int, vector: dict[str, Any]) -> None:
    """Make the vbucket of a vector: its failover table, its purge seqno, and one change at its high seqno."""
    table = tuple((entry["vb_uuid"], entry["seqno"]) for entry in vector["table"])
    purged = PURGED_UP_TO if vector["id"] == "F41" else vector["purge_seqno"]
    store.staging.mutation(vb, b"key", b"value", seqno=vector["high_seqno"], cas=1, rev_seqno=1)
    store.table[vb, index.PURGE] = purged
    store.staging.record(vb, VBucketRecord(state=State.ACTIVE, failover=table))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node whose vbucket n is that of vector n."""
    folder = tmp_path_factory.mktemp("vectors") / "data"
    store = Store.open(folder, vbuckets=64)
    for vb, vector in enumerate(VECTORS):
        stage(store, vb, vector)
    store.close(clean=True)
    running = Node(folder, {"vbuckets": 64})
    running.start()
    yield running
    running.kill()


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{vector['id']} {vector['description']}")
def test_on_the_wire_the_rollback_decision_of(prepared: Node, vector: dict[str, Any]) -> None:
    flags = dcp.StreamFlag.STRICT_VB_UUID if vector["strict"] else dcp.StreamFlag(0)
    if vector["id"] == "F41":
        flags |= dcp.StreamFlag.IGNORE_PURGED_TOMBSTONES
    numbers = ("start_seqno", "end_seqno", "vb_uuid", "snap_start_seqno", "snap_end_seqno")
    request = dcp.StreamRequest(
        vbucket=VECTORS.index(vector),
        opaque=9,
        flags=int(flags),
        value=b'{"purge_seqno":"100"}' if vector["id"] in NEEDS_VALUE else b"",
        **{name: vector[name] for name in numbers},
    )
    with Consumer(prepared.port) as consumer:
        consumer.send(request.encode())
        answer = consumer.read()
    assert answer is not None
    if vector["id"] in NEEDS_VALUE:
        assert answer.status == Status.EINVAL
    else:
        assert spoken(answer, vector["table"]) == vector["expected"]


def spoken(answer: Frame, table: list[dict[str, int]]) -> str:
    assert (answer.extras, answer.key) == (b"", b"")
    if answer.status == Status.ROLLBACK:
        return f"ROLLBACK {struct.unpack('>Q', answer.value)[0]}"
    if answer.status == Status.SUCCESS:
        assert decode_log(answer.value) == [(entry["vb_uuid"], entry["seqno"]) for entry in table]
        return "OK"
    return Status(answer.status).name


# --------------------------------------------------------------------------- streams


def test_a_live_stream_in_the_bytes_of_the_wire(node: Node) -> None:
    with Client(node.port) as writer, Consumer(node.port) as consumer:
        answer = consumer.request(0, opaque=0xD000000B)
        assert decode_log(answer.value)[0][1] == 0
        set_value(writer, 0, b"live1", b"one")
        marker, mutation = consumer.until(Opcode.DCP_MUTATION)
        assert marker.encode().hex() == (
            "805600001400000000000014d000000b0000000000000000" + "0000000000000000" + "0000000000000001" + "00000005"
        )
        assert (mutation.key, mutation.value, mutation.opaque) == (b"live1", b"one", 0xD000000B)
        assert mutation.extras.hex().startswith("0000000000000001" + "0000000000000001")
        assert writer.ask(Opcode.DELETE, key=b"live1").status == 0
        marker, deletion = consumer.until(Opcode.DCP_DELETION)
        assert marker.extras.hex() == "0000000000000001" + "0000000000000002" + "00000001"
        assert deletion.extras.hex() == "0000000000000002" + "0000000000000002" + "0000"


def test_a_change_of_state_ends_the_stream_and_begins_a_branch(node: Node) -> None:
    with Client(node.port) as admin, Consumer(node.port) as consumer:
        set_value(admin, 1, b"a")
        before = decode_log(consumer.request(1).value)
        consumer.until(Opcode.DCP_MUTATION)
        set_state(admin, 1, State.REPLICA)
        (end,) = consumer.until(Opcode.DCP_STREAM_END)
        assert int.from_bytes(end.extras) == dcp.EndReason.STATE_CHANGED
        set_state(admin, 1, State.ACTIVE)
        after = decode_log(consumer.request(1).value)
        assert (after[1:], after[0][1]) == (before, 1)


def test_a_vbucket_that_is_deleted_ends_its_streams_and_comes_back_empty(node: Node) -> None:
    with Client(node.port) as admin, Consumer(node.port) as consumer:
        set_value(admin, 2, b"a")
        old = decode_log(consumer.request(2).value)[0][0]
        consumer.until(Opcode.DCP_MUTATION)
        assert admin.ask(Opcode.DEL_VBUCKET, vbucket=2).status == 0
        (end,) = consumer.until(Opcode.DCP_STREAM_END)
        assert int.from_bytes(end.extras) == dcp.EndReason.STATE_CHANGED
        set_state(admin, 2, State.ACTIVE)
        assert consumer.request(2, start_seqno=1, vb_uuid=old).status == Status.ROLLBACK
        consumer.send(
            dcp.StreamRequest(vbucket=2, start_seqno=0, end_seqno=0, snap_start_seqno=0, snap_end_seqno=0).encode()
        )
        assert [frame.opcode for frame in consumer.until(Opcode.DCP_STREAM_END)] == [
            Opcode.DCP_STREAM_REQ,
            Opcode.DCP_STREAM_END,
        ]


def test_the_older_connection_of_a_name_is_hung_up_on(node: Node) -> None:
    with Consumer(node.port, "twice") as older, Consumer(node.port, "twice") as newer:
        assert older.read() is None
        assert newer.request(3).status == Status.SUCCESS


def test_open_controls_and_stream_in_one_segment_are_answered_in_order(node: Node) -> None:
    with Client(node.port) as client:
        set_value(client, 4, b"a")
        client.send(
            Frame(0x80, Opcode.DCP_OPEN, b"one-segment", bytes(7) + b"\1", opaque=1).encode()
            + dcp.Control(key=b"connection_buffer_size", value=b"1000000", opaque=2).encode()
            + dcp.Control(key=b"no_such_key", value=b"1", opaque=3).encode()
            + Frame(0x80, Opcode.NOOP, opaque=4).encode()
            + dcp.StreamRequest(
                vbucket=4, opaque=5, start_seqno=0, end_seqno=1, snap_start_seqno=0, snap_end_seqno=0
            ).encode()
        )
        seen = [frame for frame in (client.read() for _ in range(8)) if frame is not None]
    assert [(frame.opaque, frame.status if frame.is_response else None) for frame in seen] == [
        (1, 0),
        (2, 0),
        (3, Status.EINVAL),
        (4, 0),
        (5, 0),
        (5, None),
        (5, None),
        (5, None),
    ]


def test_after_a_crash_the_old_branch_is_remembered_and_all_is_there(tmp_path: Path) -> None:
    running = Node(tmp_path / "data", {"vbuckets": 4})
    running.start()
    with Client(running.port) as writer, Consumer(running.port) as consumer:
        for number in range(20):
            set_value(writer, 0, b"k%d" % number)
        uuid = decode_log(consumer.request(0).value)[0][0]
    running.kill()
    running.restart()
    try:
        with Consumer(running.port) as consumer:
            log = decode_log(consumer.request(0, start_seqno=20, vb_uuid=uuid).value)
            assert (log[0][1], log[1]) == (20, (uuid, 0))
        with Consumer(running.port) as consumer:
            consumer.request(0, end_seqno=20)
            assert len(consumer.until(Opcode.DCP_STREAM_END)) == 22
    finally:
        running.kill()


@pytest.mark.parametrize("flags", [0, 1], ids=["consumer", "producer"])
def test_tap_on_a_dcp_connection_is_einval(node: Node, flags: int) -> None:
    with Consumer(node.port, flags=flags) as either:
        assert either.ask(Opcode.TAP_CONNECT, key=b"mixed").status == Status.EINVAL
        assert either.ask(Opcode.NOOP).status == Status.SUCCESS


# --------------------------------------------------------------------------- what is refused, and what is not


def test_stream_ids_are_refused_until_there_are_collections_and_streams_go_on_without(node: Node) -> None:
    with Consumer(node.port) as consumer:
        assert consumer.ask(Opcode.DCP_CONTROL, key=b"enable_stream_id", value=b"true").status == Status.EINVAL
        assert consumer.request(5).status == Status.SUCCESS


def test_a_stream_id_where_those_are_not_enabled_has_a_status_of_its_own(node: Node) -> None:
    with Consumer(node.port) as consumer:
        assert consumer.request(5, value=b'{"sid":7}').status == Status.DCP_STREAMID_INVALID
        assert consumer.request(5, value=b'{"uid":"0"}').status == Status.EINVAL


def test_a_bounded_stream_has_its_end_replaced_before_that_is_looked_at(node: Node) -> None:
    with Client(node.port) as writer:
        for number in range(10):
            set_value(writer, 6, b"k%d" % number)
    latest, disk_only = int(dcp.StreamFlag.TO_LATEST), int(dcp.StreamFlag.DISK_ONLY)
    assert seqnos(node, 6, flags=latest, start_seqno=3, end_seqno=0) == [4, 5, 6, 7, 8, 9, 10]
    assert seqnos(node, 6, flags=disk_only, start_seqno=3, end_seqno=0) == [4, 5, 6, 7, 8, 9, 10]
    assert seqnos(node, 6, flags=latest, start_seqno=3, end_seqno=5) == [4, 5, 6, 7, 8, 9, 10]
    assert seqnos(node, 6, flags=disk_only, start_seqno=3, end_seqno=5) == [4, 5]
    assert seqnos(node, 6, flags=disk_only, start_seqno=3, end_seqno=99) == [4, 5, 6, 7, 8, 9, 10]


def seqnos(node: Node, vbucket: int, **numbers: int) -> list[int]:
    """Return the seqnos that a stream brings before it ends."""
    with Consumer(node.port) as consumer:
        log = decode_log(consumer.ask(Opcode.DCP_GET_FAILOVER_LOG, vbucket=vbucket).value)
        assert consumer.request(vbucket, vb_uuid=log[0][0], **numbers).status == Status.SUCCESS
        frames = consumer.until(Opcode.DCP_STREAM_END)
        return [int.from_bytes(frame.extras[:8]) for frame in frames if frame.opcode == Opcode.DCP_MUTATION]


def test_a_client_of_the_time_asks_for_compressed_values_and_extended_metadata(node: Node) -> None:
    with Client(node.port) as writer, Consumer(node.port, features=(0x01,)) as consumer:
        set_value(writer, 7, b"long", b"A" * 400)
        assert consumer.ask(Opcode.DCP_CONTROL, key=b"enable_ext_metadata", value=b"true").status == Status.SUCCESS
        compression = consumer.ask(Opcode.DCP_CONTROL, key=b"enable_value_compression", value=b"true")
        assert compression.status == Status.SUCCESS
        consumer.request(7)
        mutation = consumer.until(Opcode.DCP_MUTATION)[-1]
        assert mutation.datatype == Datatype.SNAPPY and snappy.inflate(mutation.value) == b"A" * 400
        assert int.from_bytes(mutation.extras[28:30]) == 0, "length of the extended metadata"


@pytest.mark.parametrize("datatype", [1, 2, 4, 0xFF])
def test_add_stream_with_a_datatype_is_malformed(node: Node, datatype: int) -> None:
    with Consumer(node.port, flags=0) as mover:
        answer = mover.ask(Opcode.DCP_ADD_STREAM, extras=bytes(4), vbucket=70, datatype=datatype)
        assert answer.status == Status.EINVAL


def test_which_out_of_range_it_was_stands_in_the_answer_and_in_the_log() -> None:
    with (
        testing.node(vbuckets=1, log_level="info") as running,
        Consumer(running.port, "asks-wrong", features=(0x07, 0x0B)) as consumer,
    ):
        answer = consumer.request(0, start_seqno=8, end_seqno=5)
        said = "start seqno 8 lies above end seqno 5"
        assert (answer.status, answer.datatype) == (Status.ERANGE, Datatype.JSON)
        assert json.loads(answer.value) == {"error": {"context": said}}
        answer = consumer.request(0, start_seqno=8, snap_start_seqno=9, snap_end_seqno=10)
        assert b"outside its snapshot [9, 10]" in answer.value
        assert consumer.request(0, start_seqno=8, vb_uuid=5).value == bytes(8), "of a rollback, the seqno alone"
        line = 'DCP connection "asks-wrong": DCP_STREAM_REQ of vbucket 0 is refused with ERANGE: ' + said
        assert running.log.count(line) == 1
        until(lambda: "refused with ROLLBACK: no branch of the history has vb uuid 0x5" in running.log, "it is told")


def test_a_client_without_xerror_gets_no_words_and_the_log_is_not_filled_by_one_peer() -> None:
    with testing.node(vbuckets=1, log_level="info") as running, Consumer(running.port, features=()) as consumer:
        for _ in range(100):
            assert consumer.request(0, start_seqno=8, end_seqno=5).value == b""
        assert running.log.count("start seqno 8 lies above end seqno 5") == 10
