"""Range scans at a real node (KV engine, docs/range_scans)."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest

from headwater import testing
from headwater.node.buckets import scans
from headwater.testing.node import Node
from headwater.wire import leb128
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.node.aware import Aware, manifest

KEYS = [b"k%03d" % number for number in range(300)]
LONG = b"z" * 200
SHOP = 8


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """vbucket 0: KEYS written in another order, some twice, some deleted; one in a collection; vbucket 1: nothing."""
    with testing.node(vbuckets=4) as node:
        with Aware(node.port) as client:
            assert client.becomes(manifest(1, a=SHOP)) == 0
            for key in [*KEYS[::2], *reversed(KEYS[1::2]), LONG, b"gone"]:
                assert client.put(key, b"first") == 0
            for key in KEYS[10:20]:
                assert client.put(key, b"second") == 0
            assert client.ask(Opcode.DELETE, key=b"\0gone").status == 0
            assert client.put(b"k000", b"theirs", SHOP) == 0
        yield node


def text(key: bytes) -> str:
    return b64encode(key).decode()


EVERYTHING: dict[str, Any] = {"range": {"start": text(b"\0"), "end": text(b"\xff")}}


class Scanner(Aware):
    """A connection that scans vbucket 0."""

    def create(self, told: object, vbucket: int = 0, datatype: int = 1) -> tuple[int, bytes]:
        value = told if isinstance(told, bytes) else json.dumps(told).encode()
        answer = self.ask(Opcode.RANGE_SCAN_CREATE, value=value, vbucket=vbucket, datatype=datatype)
        return answer.status, answer.value

    def go_on(self, name: bytes, items: int = 0, ms: int = 0, size: int = 0) -> tuple[int, list[tuple[bytes, ...]]]:
        """The last status, and all keys or (key, value) of one continue."""
        found: list[tuple[bytes, ...]] = []
        extras = name + items.to_bytes(4) + ms.to_bytes(4) + size.to_bytes(4)
        answer = self.ask(Opcode.RANGE_SCAN_CONTINUE, extras=extras)
        while True:
            if answer.extras:
                found += items_of(answer.value, is_documents=answer.extras == b"\0\0\0\x01")
            if answer.status != 0:
                return answer.status, found
            following = self.read()
            assert following is not None
            answer = following

    def scanned(self, told: object, **limits: int) -> list[tuple[bytes, ...]]:
        """All that a scan brings, however many requests it takes."""
        status, name = self.create(told)
        assert status == 0, name
        found: list[tuple[bytes, ...]] = []
        status = int(Status.RANGE_SCAN_MORE)
        while status == Status.RANGE_SCAN_MORE:
            status, some = self.go_on(name, **limits)
            assert some or status == Status.RANGE_SCAN_COMPLETE
            found += some
        assert status == Status.RANGE_SCAN_COMPLETE
        assert self.go_on(name) == (Status.KEY_ENOENT, [])
        return found

    def keys(self, told: dict[str, Any], **limits: int) -> list[bytes]:
        return [each[0] for each in self.scanned({**told, "key_only": True}, **limits)]


def items_of(value: bytes, *, is_documents: bool) -> list[tuple[bytes, ...]]:
    found: list[tuple[bytes, ...]] = []
    at = 0
    while at < len(value):
        parts = []
        metadata = value[at : at + 25 * is_documents]
        at += 25 * is_documents
        for _ in range(1 + is_documents):
            size, taken = leb128.decode(value[at : at + 5])
            parts.append(value[at + taken : at + taken + size])
            at += taken + size
        found.append((*parts, metadata) if is_documents else tuple(parts))
    return found


@pytest.fixture
def scanner(node: Node) -> Iterator[Scanner]:
    with Scanner(node.port) as made:
        yield made


@pytest.mark.parametrize("limits", [{}, {"items": 1}, {"items": 7}, {"size": 1}, {"size": 100}, {"ms": 1}])
def test_keys_come_in_order_each_once_whatever_the_limits(scanner: Scanner, limits: dict[str, int]) -> None:
    assert scanner.keys(EVERYTHING, **limits) == [*KEYS, LONG]


def test_documents_come_as_they_were_when_the_scan_was_created(scanner: Scanner) -> None:
    status, name = scanner.create({"range": {"start": text(b"k009"), "end": text(b"k010")}})
    assert status == 0
    stored = scanner.ask(Opcode.GET, key=b"\0k010")
    status, ((first, value, _), (second, other, metadata)) = scanner.go_on(name)
    assert (status, first, value, second, other) == (Status.RANGE_SCAN_COMPLETE, b"k009", b"first", b"k010", b"second")
    assert metadata[:8] == bytes(8) and metadata[16:24] == stored.cas.to_bytes(8) and metadata[24] == 0
    assert int.from_bytes(metadata[8:16]) > 0


def test_what_is_written_later_is_not_in_it(node: Node, scanner: Scanner) -> None:
    with Aware(node.port) as writer:
        assert [writer.put(key, b"1", vbucket=2) for key in (b"a", b"b")] == [0, 0]
        status, name = scanner.create(EVERYTHING, vbucket=2)
        assert status == 0
        assert [writer.put(key, b"2", vbucket=2) for key in (b"b", b"c")] == [0, 0]
    answer = scanner.ask(Opcode.RANGE_SCAN_CONTINUE, extras=name + bytes(12), vbucket=2)
    assert [each[:2] for each in items_of(answer.value, is_documents=True)] == [(b"a", b"1"), (b"b", b"1")]


@pytest.mark.parametrize(
    ("told", "first", "last"),
    [
        ({"start": "k010", "end": "k020"}, 10, 20),
        ({"excl_start": "k010", "end": "k020"}, 11, 20),
        ({"start": "k010", "excl_end": "k020"}, 10, 19),
        ({"excl_start": "k010", "excl_end": "k020"}, 11, 19),
        ({"start": "k01", "end": "k01\xff"}, 10, 19),
        ({"start": "k299", "end": "k299"}, 299, 299),
    ],
)
def test_ends_belong_to_the_range_or_not(scanner: Scanner, told: dict[str, str], first: int, last: int) -> None:
    asked = {name: text(key.encode("latin-1")) for name, key in told.items()}
    assert scanner.keys({"range": asked}) == KEYS[first : last + 1]


def test_a_scan_of_a_collection_that_is_dropped_brings_nothing_more() -> None:
    with testing.node(vbuckets=1) as node, Scanner(node.port) as scanner:
        assert scanner.becomes(manifest(1, a=SHOP)) == 0
        assert [scanner.put(key, b"theirs", SHOP) for key in (b"a", b"b")] == [0, 0]
        status, name = scanner.create({**EVERYTHING, "collection": "8"})
        assert (status, scanner.go_on(name, items=1)[0]) == (0, Status.RANGE_SCAN_MORE)
        assert scanner.becomes(manifest(2)) == 0
        assert scanner.go_on(name) == (Status.UNKNOWN_COLLECTION, [])
        assert scanner.go_on(name) == (Status.KEY_ENOENT, [])


def test_a_collection_has_its_own_keys(scanner: Scanner) -> None:
    assert scanner.scanned({**EVERYTHING, "collection": "8"})[0][:2] == (b"k000", b"theirs")
    assert scanner.create({**EVERYTHING, "collection": "9"})[0] == Status.UNKNOWN_COLLECTION


def test_a_sample_is_the_same_for_the_same_seed_and_all_where_there_are_not_more(scanner: Scanner) -> None:
    first, again, other = (scanner.keys({"sampling": {"samples": 20, "seed": seed}}) for seed in (1, 1, 2))
    assert first == again != other and len(first) == 20 and set(first) <= {*KEYS, LONG}
    assert scanner.keys({"sampling": {"samples": 5000}}) == [*KEYS, LONG]


@pytest.mark.parametrize(
    ("told", "datatype"),
    [
        (b"{", 1),
        (b"[]", 1),
        ({}, 1),
        ({**EVERYTHING, "sampling": {"samples": 1}}, 1),
        ({"range": []}, 1),
        ({"range": {"start": "YQ=="}}, 1),
        ({"range": {"start": "YQ==", "excl_start": "YQ==", "end": "YQ=="}}, 1),
        ({"range": {"start": "!", "end": "YQ=="}}, 1),
        ({"range": {"start": 1, "end": "YQ=="}}, 1),
        ({"range": {"start": "Yg==", "end": "YQ=="}}, 1),
        ({"range": {"excl_start": "YQ==", "end": "YQ=="}}, 1),
        ({"sampling": {}}, 1),
        ({"sampling": {"samples": 0}}, 1),
        ({"sampling": {"samples": True}}, 1),
        ({"sampling": {"samples": 1, "seed": -1}}, 1),
        ({**EVERYTHING, "key_only": 1}, 1),
        ({**EVERYTHING, "collection": 8}, 1),
        ({**EVERYTHING, "collection": "x"}, 1),
        ({**EVERYTHING, "collection": "100000000"}, 1),
        ({**EVERYTHING, "snapshot_requirements": {"vb_uuid": 1, "seqno": 1}}, 1),
        ({**EVERYTHING, "snapshot_requirements": {"vb_uuid": "1"}}, 1),
        (EVERYTHING, 0),
    ],
)
def test_what_can_not_be_is_einval(scanner: Scanner, told: object, datatype: int) -> None:
    assert scanner.create(told, datatype=datatype)[0] == Status.EINVAL


def test_a_snapshot_must_be_what_is_asked_for(scanner: Scanner) -> None:
    log = scanner.ask(Opcode.GET_FAILOVER_LOG).value
    uuid, high = str(int.from_bytes(log[:8])), scanner.seqno()

    def status(**needs: object) -> int:
        return scanner.create({**EVERYTHING, "snapshot_requirements": {"vb_uuid": uuid, "seqno": high, **needs}})[0]

    assert status() == 0
    assert status(seqno_exists=True) == 0
    assert status(vb_uuid="1") == Status.VBUUID_NOT_EQUAL
    assert status(seqno=high + 1) == Status.ETMPFAIL
    assert status(seqno=high + 1, timeout_ms=20) == Status.ETMPFAIL
    assert status(seqno=4, seqno_exists=True) == 0
    assert status(seqno=3 + 6, seqno_exists=True) == Status.NOT_STORED  # k012 was written again


def test_a_scan_waits_for_a_seqno_that_is_about_to_come(node: Node, scanner: Scanner) -> None:
    with Aware(node.port) as writer:
        uuid, high = str(int.from_bytes(writer.ask(Opcode.GET_FAILOVER_LOG, vbucket=3).value[:8])), 0
        high = writer.seqno(vbucket=3)
        needs = {"vb_uuid": uuid, "seqno": high + 1, "timeout_ms": 30_000}
        told = json.dumps({**EVERYTHING, "snapshot_requirements": needs}).encode()
        scanner.send(Frame(0x80, Opcode.RANGE_SCAN_CREATE, value=told, vbucket=3, datatype=1).encode())
        assert writer.put(b"late", b"v", vbucket=3) == 0
        answer = scanner.read()
        assert answer is not None and answer.status == 0 and len(answer.value) == 16


def test_a_vbucket_without_such_keys_and_one_that_is_not_here(scanner: Scanner) -> None:
    assert scanner.create(EVERYTHING, vbucket=1)[0] == Status.KEY_ENOENT
    assert scanner.create({"range": {"start": text(b"x"), "end": text(b"y")}})[0] == Status.KEY_ENOENT
    assert scanner.create(EVERYTHING, vbucket=9)[0] == Status.NOT_MY_VBUCKET


def test_a_cancelled_scan_is_none_any_more_nor_one_of_another_vbucket(scanner: Scanner) -> None:
    status, name = scanner.create(EVERYTHING)
    assert status == 0
    assert scanner.ask(Opcode.RANGE_SCAN_CANCEL, extras=name, vbucket=1).status == Status.KEY_ENOENT
    assert scanner.ask(Opcode.RANGE_SCAN_CANCEL, extras=name).status == 0
    assert scanner.go_on(name) == (Status.KEY_ENOENT, [])
    assert scanner.ask(Opcode.RANGE_SCAN_CANCEL, extras=name).status == Status.KEY_ENOENT


def test_a_scan_ends_when_its_vbucket_has_another_state(node: Node, scanner: Scanner) -> None:
    with Aware(node.port) as operator:
        assert operator.put(b"k", b"v", vbucket=3) == 0
        status, name = scanner.create(EVERYTHING, vbucket=3)
        assert status == 0
        assert operator.ask(Opcode.SET_VBUCKET, extras=b"\x02", vbucket=3).status == 0
        extras = name + bytes(12)
        assert scanner.ask(Opcode.RANGE_SCAN_CONTINUE, extras=extras, vbucket=3).status == Status.NOT_MY_VBUCKET
        assert operator.ask(Opcode.SET_VBUCKET, extras=b"\x01", vbucket=3).status == 0
        assert scanner.ask(Opcode.RANGE_SCAN_CONTINUE, extras=extras, vbucket=3).status == Status.KEY_ENOENT


def test_there_are_so_many_scans_at_once_and_no_more(node: Node) -> None:
    with Scanner(node.port) as scanner:
        statuses = [scanner.create(EVERYTHING) for _ in range(scans.SCANS_MAX + 1)]
        assert statuses[-1][0] == Status.EBUSY
        for status, name in statuses:
            if status == 0:
                assert scanner.ask(Opcode.RANGE_SCAN_CANCEL, extras=name).status == 0
        status, name = scanner.create(EVERYTHING)
        assert status == 0 and scanner.ask(Opcode.RANGE_SCAN_CANCEL, extras=name).status == 0
