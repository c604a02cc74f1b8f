"""Collections by command at a real node: manifests, ids, keys in front of which the collection stands (kv.md 4)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from headwater import testing
from headwater.testing.node import Node
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.node.aware import COLLECTIONS, JSON, MUTATION_SEQNO, XERROR, Aware, manifest

A, B = 8, 9


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with testing.node(vbuckets=4) as node:
        with Aware(node.port) as client:
            assert client.becomes(manifest(1, a=A, b=(B, 100))) == 0
        yield node


@pytest.fixture
def client(node: Node) -> Iterator[Aware]:
    with Aware(node.port) as client:
        yield client


def test_the_manifest_is_told_as_it_was_set(client: Aware) -> None:
    found = client.ask(Opcode.COLLECTIONS_GET_MANIFEST)
    assert json.loads(found.value) == json.loads(manifest(1, a=A, b=(B, 100)))


def test_names_have_ids_in_the_value_and_from_old_clients_in_the_key(client: Aware) -> None:
    expected = "0000000000000001" + "00000008"
    assert client.ask(Opcode.COLLECTIONS_GET_ID, value=b"shop.a").extras.hex() == expected
    assert client.ask(Opcode.COLLECTIONS_GET_ID, key=b"shop.a").extras.hex() == expected
    assert client.ask(Opcode.COLLECTIONS_GET_SCOPE_ID, value=b"shop").extras.hex() == expected
    assert client.ask(Opcode.COLLECTIONS_GET_SCOPE_ID, value=b"shop.a").extras.hex() == expected
    for default in (b".", b"_default.", b"._default", b"_default._default"):
        assert client.ask(Opcode.COLLECTIONS_GET_ID, value=default).extras.hex() == "0000000000000001" + "00000000"


@pytest.mark.parametrize(
    ("opcode", "name", "status"),
    [
        (Opcode.COLLECTIONS_GET_ID, b"shop.x", Status.UNKNOWN_COLLECTION),
        (Opcode.COLLECTIONS_GET_ID, b"x.a", Status.UNKNOWN_SCOPE),
        (Opcode.COLLECTIONS_GET_SCOPE_ID, b"x", Status.UNKNOWN_SCOPE),
        (Opcode.COLLECTIONS_GET_ID, b"shop", Status.EINVAL),
        (Opcode.COLLECTIONS_GET_ID, b"shop.a.b", Status.EINVAL),
        (Opcode.COLLECTIONS_GET_ID, b"shop.$", Status.EINVAL),
        (Opcode.COLLECTIONS_GET_ID, b"\xff.a", Status.EINVAL),
        (Opcode.COLLECTIONS_GET_SCOPE_ID, b"%", Status.EINVAL),
    ],
)
def test_what_has_no_id_is_refused_with_the_manifest_uid(
    client: Aware, opcode: Opcode, name: bytes, status: Status
) -> None:
    answer = client.ask(opcode, value=name)
    assert answer.status == status
    if status != Status.EINVAL:
        assert json.loads(answer.value)["manifest_uid"] == "1"


@pytest.mark.parametrize(
    ("told", "status"),
    [
        (b"{", Status.EINVAL),
        (b"{}", Status.EINVAL),
        (manifest(0, a=A, b=(B, 100)), Status.ERANGE),
        (manifest(1, a=A), Status.ERANGE),
        (manifest(2, c=A, b=(B, 100)), Status.CANNOT_APPLY_COLLECTIONS_MANIFEST),
        (manifest(2, a=A, b=(B, 101)), Status.CANNOT_APPLY_COLLECTIONS_MANIFEST),
        (manifest(1, a=A, b=(B, 100)), Status.SUCCESS),
    ],
)
def test_a_manifest_that_goes_backwards_or_breaks_a_rule_is_refused(client: Aware, told: bytes, status: Status) -> None:
    assert client.becomes(told) == status


def test_more_collections_than_may_be_are_refused_before_they_are_read(client: Aware) -> None:
    refused = client.ask(Opcode.COLLECTIONS_SET_MANIFEST, value=manifest(2, **{f"*{at}": at for at in range(8, 1210)}))
    assert refused.status == Status.EINVAL
    assert b"1203 collections in 2 scopes; 1200 of each are allowed" in refused.value


def test_one_key_in_three_collections_is_three_documents(node: Node, client: Aware) -> None:
    for collection in (0, A, B):
        assert client.put(b"k", b"of %d" % collection, collection) == 0
    assert [client.got(b"k", collection) for collection in (0, A, B)] == [b"of 0", b"of 8", b"of 9"]
    with Aware(node.port, XERROR) as plain:  # whose key begins with what is an id elsewhere
        assert plain.ask(Opcode.GET, key=b"k").value == b"of 0"
        assert plain.ask(Opcode.GET, key=b"\x08k").status == Status.KEY_ENOENT
        assert plain.ask(Opcode.SET, key=b"\x08k", extras=bytes(8), value=b"bare").status == 0
    assert [client.got(b"k", A), client.got(b"\x08k")] == [b"of 8", b"bare"]
    assert client.ask(Opcode.DELETE, key=b"\x08k").status == 0
    assert [client.got(b"k", A), client.got(b"k"), client.got(b"\x08k")] == [Status.KEY_ENOENT, b"of 0", b"bare"]


@pytest.mark.parametrize("prefix", [b"", b"\x08", b"\xac\x02"])
@pytest.mark.parametrize("opcode", [Opcode.GETK, Opcode.GETKQ])
def test_a_key_comes_back_as_the_connection_writes_it(client: Aware, prefix: bytes, opcode: Opcode) -> None:
    key = (prefix or b"\0") + b"echo"
    status = client.ask(Opcode.SET, key=key, extras=bytes(8), value=b"v").status
    if prefix == b"\xac\x02":
        assert status == Status.UNKNOWN_COLLECTION
    else:
        assert client.ask(opcode, key=key).key == key


@pytest.mark.parametrize(
    ("key", "status"),
    [
        (b"", Status.EINVAL),
        (b"\0", Status.EINVAL),
        (b"\x08", Status.EINVAL),
        (b"\x80", Status.EINVAL),
        (b"\x88\x80", Status.EINVAL),
        (b"\x88\x00k", Status.EINVAL),  # overlong
        (b"\x80\x80\x80\x80\x80k", Status.EINVAL),
        (b"\xff\xff\xff\xff\x10k", Status.EINVAL),  # 33 bits
        (b"\x01k", Status.EINVAL),  # system events are no documents
        (b"\x07k", Status.UNKNOWN_COLLECTION),
        (b"\xff\xff\xff\xff\x0fk", Status.UNKNOWN_COLLECTION),
        (b"\0" + b"k" * 251, Status.EINVAL),
        (b"\x08" + b"k" * 251, Status.EINVAL),
    ],
)
@pytest.mark.parametrize(
    ("opcode", "extras"),
    [
        (Opcode.GET, b""),
        (Opcode.SET, bytes(8)),
        (Opcode.DELETE, b""),
        (Opcode.TOUCH, bytes(4)),
        (Opcode.GET_META, b""),
        (Opcode.SUBDOC_EXISTS, bytes(3)),
        (Opcode.SET_WITH_META, bytes(7) + b"\1" + bytes(7) + b"\1" + bytes(7) + b"\1"),
    ],
)
def test_ids_that_are_cut_overlong_too_large_or_unknown_are_refused(
    client: Aware, key: bytes, status: Status, opcode: Opcode, extras: bytes
) -> None:
    value = b"path" if opcode == Opcode.SUBDOC_EXISTS else b""
    extras = b"\0\4\0" if opcode == Opcode.SUBDOC_EXISTS else extras
    answer = client.ask(opcode, key=key, extras=extras, value=value)
    assert answer.status == status, answer
    if status == Status.UNKNOWN_COLLECTION:
        assert json.loads(answer.value)["manifest_uid"] == "1"


def test_the_longest_keys(client: Aware) -> None:
    assert client.put(b"k" * 250, b"v") == 0
    assert client.put(b"k" * 250, b"v", A) == 0
    assert client.got(b"k" * 250, A) == b"v"


def test_no_document_of_a_collection_outlives_its_maximum(client: Aware) -> None:
    def expiry(collection: int) -> int:
        found = client.ask(Opcode.GET_META, key=bytes([collection]) + b"t")
        return int.from_bytes(found.extras[8:12])

    for asked in (0, 50, 5000):
        for collection in (A, B):
            assert client.put(b"t", b"v", collection, expiry=asked) == 0
        free, limited = expiry(A), expiry(B)
        if asked == 0:
            assert free == 0 < limited
        elif asked == 50:
            assert abs(free - limited) < 30  # the seconds that may lie between two requests
        else:
            assert free - limited > 4000
    assert client.ask(Opcode.TOUCH, key=b"\x09t", extras=bytes(4)).status == 0
    assert 0 < expiry(B) < free


def test_the_same_version_from_elsewhere_is_behind_however_its_expiry_was_cut(client: Aware) -> None:
    """Else whoever tells it again, after a lost answer, would write it again and let its time begin anew."""
    meta = bytes(4) + (4_000_000_000).to_bytes(4) + (5).to_bytes(8) + (1 << 20).to_bytes(8)
    statuses = [client.ask(Opcode.SET_WITH_META, key=b"\x09copied", extras=meta, value=b"v").status for _ in range(3)]
    assert statuses == [Status.SUCCESS, Status.KEY_EEXISTS, Status.KEY_EEXISTS]
    newer = meta[:-8] + (1 << 21).to_bytes(8)
    assert client.ask(Opcode.SET_WITH_META, key=b"\x09copied", extras=newer, value=b"v").status == 0


def test_observe_takes_keys_with_their_collection(client: Aware) -> None:
    client.put(b"seen", b"v", A)
    asked = b"".join(bytes(2) + len(key).to_bytes(2) + key for key in (b"\x08seen", b"\x09seen"))
    found = client.ask(Opcode.OBSERVE, value=asked).value
    assert found[4 : 4 + 6] == b"\x08seen\x01" and b"\x09seen\x80" in found
    for key in (b"\x88\0k", b"\0"):
        wrong = bytes(2) + len(key).to_bytes(2) + key
        assert client.ask(Opcode.OBSERVE, value=wrong).status == Status.EINVAL
    unknown = bytes(2) + b"\0\3\x0akk"
    assert client.ask(Opcode.OBSERVE, value=unknown).status == Status.UNKNOWN_COLLECTION


def test_keys_are_listed_and_drawn_by_collection(client: Aware) -> None:
    for key in (b"x1", b"x2", b"x3"):
        client.put(key, b"v", B, vbucket=2)
    client.put(b"x4", b"v", A, vbucket=2)
    client.put(b"x5", b"v", vbucket=2)

    def keys(start: bytes) -> list[bytes]:
        told, found = client.ask(Opcode.GET_KEYS, key=start, vbucket=2).value, []
        while told:
            size = int.from_bytes(told[:2])
            found.append(told[2 : 2 + size])
            told = told[2 + size :]
        return found

    assert keys(b"\x09x2") == [b"\x09x2", b"\x09x3"] and keys(b"\x08") == [b"\x08x4"] and keys(b"\0") == [b"\0x5"]
    assert client.ask(Opcode.GET_KEYS, key=b"\x0a").status == Status.UNKNOWN_COLLECTION
    assert client.ask(Opcode.GET_KEYS, key=b"\x80").status == Status.EINVAL
    drawn = client.ask(Opcode.GET_RANDOM_KEY, extras=b"\0\0\0\x09").key
    assert drawn[:1] == b"\x09"
    assert client.ask(Opcode.GET_RANDOM_KEY, extras=b"\0\0\0\x0a").status == Status.UNKNOWN_COLLECTION


def test_high_seqnos_are_told_by_collection_and_without_collections_of_the_default_one(
    node: Node, client: Aware
) -> None:
    vb = 3
    for collection in (0, A, B, A):
        client.put(b"s", b"v", collection, vbucket=vb)
    events = client.seqno(vbucket=vb) - 4
    assert [client.seqno(each, vb) for each in (0, A, B)] == [events + 1, events + 4, events + 3]
    with Aware(node.port, XERROR) as plain:
        assert plain.seqno(vbucket=vb) == events + 1
        assert plain.ask(Opcode.GET_ALL_VB_SEQNOS, extras=bytes(8)).status == Status.EINVAL
    assert client.ask(Opcode.GET_ALL_VB_SEQNOS, extras=bytes(7) + b"\x63").status == Status.UNKNOWN_COLLECTION


def test_statistics_count_each_collection(client: Aware) -> None:
    def counted(name: str) -> dict[str, str]:
        client.send(b"\x80\x10" + len(name).to_bytes(2) + bytes(4) + len(name).to_bytes(4) + bytes(12) + name.encode())
        found: dict[str, str] = {}
        while (answer := client.read()) is not None and answer.key:
            found[answer.key.decode()] = answer.value.decode()
        return found

    client.put(b"counted", b"v", A)
    before = counted("collections")
    client.put(b"counted again", b"v", A)
    client.ask(Opcode.DELETE, key=b"\x08counted")
    after = counted("collections")
    assert (before["manifest_uid"], before["0x8:0x8:name"], before["0x8:0x9:maxTTL"]) == ("0x1", "a", "100")
    assert before["0x8:0x8:history"] == "true"
    assert int(after["0x8:0x8:items"]) == int(before["0x8:0x8:items"])
    assert int(after["0x8:0x8:tombstones"]) == int(before["0x8:0x8:tombstones"]) + 1
    assert counted("scopes") == {
        "manifest_uid": "0x1",
        "next_collection": "0xa",
        "next_scope": "0x9",
        "0x0:name": "_default",
        "0x0:collections": "1",
        "0x8:name": "shop",
        "0x8:collections": "2",
    }


def test_events_are_no_documents(client: Aware) -> None:
    with testing.node(vbuckets=2) as fresh, Aware(fresh.port) as client:
        client.becomes(manifest(1, a=A))
        items = [stat for stat in client_stats(client) if stat[0] == "curr_items"]
        assert items == [("curr_items", "0")]
        assert client.ask(Opcode.GET_RANDOM_KEY).status == Status.KEY_ENOENT
        client.put(b"k", b"v", A)
        assert ("curr_items", "1") in client_stats(client)
        assert client.ask(Opcode.FLUSH).status == 0
        assert client.got(b"k", A) == Status.KEY_ENOENT and ("curr_items", "0") in client_stats(client)


def client_stats(client: Aware) -> list[tuple[str, str]]:
    client.send(b"\x80\x10" + bytes(22))
    found: list[tuple[str, str]] = []
    while (answer := client.read()) is not None and answer.key:
        found.append((answer.key.decode(), answer.value.decode()))
    return found


def test_a_client_without_collections_that_has_no_words_for_it_is_told_einval() -> None:
    with testing.node(vbuckets=2) as fresh, Aware(fresh.port) as client:
        bare = {"uid": "1", "scopes": [{"uid": "0", "name": "_default", "collections": []}]}
        assert client.put(b"k", b"v") == 0
        assert client.becomes(json.dumps(bare).encode()) == 0
        assert client.got(b"k") == Status.UNKNOWN_COLLECTION
        with Aware(fresh.port, MUTATION_SEQNO) as plain:
            assert plain.ask(Opcode.GET, key=b"k").status == Status.EINVAL
        with Aware(fresh.port, COLLECTIONS, JSON) as known:
            assert known.got(b"k") == Status.UNKNOWN_COLLECTION
