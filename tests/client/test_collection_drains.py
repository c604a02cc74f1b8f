"""Drains of collections at a real node, over both clients: choice, names, events in order, drops, resumes, kill -9."""

from __future__ import annotations

import pytest

from headwater import testing
from headwater.accounts.roles import read_grants
from headwater.accounts.users import Account
from headwater.client import (
    CollectionCreated,
    CollectionDropped,
    Deletion,
    Mutation,
    ScopeCreated,
    ScopeDropped,
    SnapshotMarker,
    StreamEnd,
    load_positions,
    save_positions,
)
from headwater.client.collection_columns import SCHEMA_WITH_NAMES
from headwater.errors import NoAccess, OptionError, UnknownCollection, UnknownScope
from headwater.node.users.file import UsersFile
from headwater.protocol.dcp.coverage import Coverage
from headwater.testing.node import Node
from headwater.wire.dcp import EndReason
from headwater.wire.opcodes import Opcode
from tests.node.aware import Aware, manifest
from tests.node.kv.test_rights_in_places import PASSWORD, give

A, B, AGAIN = 8, 9, 10
DEFAULT = ("_default", "_default", 0)
VBUCKETS = 4
WHOLE = "stream[default],read[other]"
"""Roles of a reader of the whole bucket; `give` tells lists of roles apart by their number."""


def put(node: Node, *names: tuple[str, int]) -> None:
    """Store a document of each (key, collection) in vbucket 0."""
    with Aware(node.port) as client:
        for name, collection in names:
            assert client.put(name.encode(), b"value of " + name.encode(), collection) == 0


def becomes(node: Node, uid: int, **collections: int | tuple[int, int]) -> None:
    with Aware(node.port) as client:
        assert client.becomes(manifest(uid, **collections)) == 0


@pytest.fixture(scope="module")
def shop():
    """vbucket 0: scope and two collections (1 to 3), then documents of all three, and one deletion (4 to 8)."""
    with testing.node(vbuckets=VBUCKETS) as node:
        becomes(node, 1, a=A, b=(B, 3600))
        put(node, ("k0", 0), ("k1", A), ("k2", B), ("k1", B))
        with Aware(node.port) as client:
            assert client.ask(0x04, key=b"\x09k2", vbucket=0).status == 0
        yield node


def seen(events) -> list[tuple[object, ...]]:
    """Events of vbucket 0 in short."""
    told: list[tuple[object, ...]] = []
    for event in events:
        if event.vbucket:
            continue
        match event:
            case Mutation() | Deletion():
                kind = type(event).__name__.lower()
                told.append((kind, event.seqno, event.key, event.scope, event.collection, event.collection_id))
            case CollectionCreated():
                told.append(("created", event.seqno, event.scope, event.collection, event.collection_id, event.max_ttl))
            case CollectionDropped():
                told.append(("dropped", event.seqno, event.scope, event.collection, event.collection_id))
            case ScopeCreated() | ScopeDropped():
                told.append((type(event).__name__, event.seqno, event.scope, event.scope_id))
            case StreamEnd():
                told.append(("end", event.reason))
    return told


SCOPE = ("ScopeCreated", 1, "shop", 8)
OF_A = [("created", 2, "shop", "a", A, None), ("mutation", 5, b"k1", "shop", "a", A)]
OF_B = [
    ("created", 3, "shop", "b", B, 3600),
    ("mutation", 7, b"k1", "shop", "b", B),
    ("deletion", 8, b"k2", "shop", "b", B),
]
OF_DEFAULT = [("mutation", 4, b"k0", *DEFAULT)]
END = ("end", EndReason.OK)


def in_order(*parts) -> list[tuple[object, ...]]:
    return [*sorted(parts, key=lambda each: each[1]), END]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({}, in_order(*OF_DEFAULT)),
        ({"collections": "all"}, in_order(SCOPE, *OF_DEFAULT, *OF_A, *OF_B)),
        ({"collections": ["shop.a"]}, in_order(*OF_A)),
        ({"collections": "shop.b,_default._default"}, in_order(*OF_DEFAULT, *OF_B)),
        ({"scope": "shop"}, in_order(SCOPE, *OF_A, *OF_B)),
        ({"scope": "_default"}, in_order(*OF_DEFAULT)),
    ],
)
def test_what_is_chosen_comes_with_its_names_and_events_in_order(driver, shop, choice, expected) -> None:
    client = driver.connect(f"{shop.address}/default")
    with client.changes(until="now", **choice) as changes:
        assert seen(changes) == expected
        positions = changes.positions
    with client.batches(until="now", **choice) as batches:
        found = list(batches)
    told = [(*key, name) for batch in found for *key, name in rows(batch)]
    of_rows = [each for each in expected if each[0] in ("mutation", "deletion")]
    assert told == [(seqno, key, scope, name, number) for _, seqno, key, scope, name, number in of_rows]
    happened = [event for batch in found for _, event in batch.collection_events]
    assert seen(happened) == [each for each in expected if each[0] in ("ScopeCreated", "created")]
    assert found[-1].positions == positions
    assert {position.seqno for vb, position in positions.items() if not vb} == {8 if choice else 4}


def rows(batch) -> list[tuple[object, ...]]:
    names = ("vbucket", "seqno", "key", "scope", "collection", "collection_id")
    if "collection_id" not in batch.records.schema.names:
        found = zip(*(batch.records[name].to_pylist() for name in names[:3]), strict=True)
        return [(*key, *DEFAULT) for vb, *key in found if not vb]
    assert batch.records.schema == SCHEMA_WITH_NAMES
    batch.records.validate(full=True)
    found = zip(*(batch.records[name].to_pylist() for name in names), strict=True)
    return [tuple(each) for vb, *each in found if not vb]


def test_an_event_of_a_batch_lies_before_its_row(driver, shop) -> None:
    client = driver.connect(f"{shop.address}/default")
    with client.batches(until="now", collections="all", vbuckets=[0]) as batches:
        placed = []
        for batch in batches:
            seqnos = batch.records["seqno"].to_pylist()
            for row, event in batch.collection_events:
                assert all(seqno < event.seqno for seqno in seqnos[:row])
                assert all(seqno > event.seqno for seqno in seqnos[row:])
                placed.append(event.seqno)
    assert placed == [1, 2, 3]


def test_every_event_leaves_a_position_from_which_the_rest_comes(driver, shop) -> None:
    client = driver.connect(f"{shop.address}/default")
    with client.changes(until="now", collections="all", vbuckets=[0], markers=False) as changes:
        places, taken = [(changes.positions, 0)], 0
        for event in changes:
            taken += not isinstance(event, StreamEnd)
            places.append((load_positions(save_positions(changes.positions)), taken))
    with client.changes(until="now", collections="all", vbuckets=[0], markers=False) as changes:
        everything = seen(changes)
    for positions, taken in places:
        with client.changes(positions, until="now", collections="all", vbuckets=[0], markers=False) as changes:
            assert seen(changes) == everything[taken:]


def test_positions_of_another_choice_are_refused(driver, shop) -> None:
    client = driver.connect(f"{shop.address}/default")
    with client.changes(until="now") as changes:
        list(changes)
        plain = changes.positions
    with client.changes(until="now", collections=["shop.a"]) as changes:
        list(changes)
        of_a = changes.positions
    for positions, choice, told in (
        (plain, {"collections": "all"}, "the default collection only"),
        (of_a, {"collections": "all"}, r"collection shop\.a"),
        (of_a, {"scope": "shop"}, r"collection shop\.a"),
        (of_a, {}, r"collection shop\.a"),
    ):
        with pytest.raises(OptionError, match=f"saved with: {told}"):
            list(driver.connect(f"{shop.address}/default").changes(positions, until="now", **choice))


@pytest.mark.parametrize(
    ("choice", "error"),
    [
        ({"collections": ["shop.shoes"]}, UnknownCollection),
        ({"collections": ["sea.shells"]}, UnknownScope),
        ({"scope": "sea"}, UnknownScope),
        ({"scope": "shop", "collections": "all"}, OptionError),
        ({"collections": ["orders"]}, OptionError),
    ],
)
def test_a_choice_that_can_not_be_is_refused_before_anything_is_asked(driver, shop, choice, error) -> None:
    client = driver.connect(f"{shop.address}/default")
    with pytest.raises(error):
        list(client.changes(until="now", **choice))
    assert client.version()


# --------------------------------------------------------------------------- while it changes


def awaited(changes, kind, count: int = 1) -> list[object]:
    """The events of vbucket 0 up to and with so many of a kind."""
    found: list[object] = []
    while sum(isinstance(event, kind) for event in found) < count:
        event = next(changes)
        if not event.vbucket and not isinstance(event, SnapshotMarker):
            found.append(event)
    return found


def test_a_collection_that_is_dropped_and_made_again_under_a_live_stream_is_two(driver) -> None:
    with testing.node(vbuckets=VBUCKETS) as node:
        becomes(node, 1, a=A, b=B)
        put(node, ("k", A))
        client = driver.connect(f"{node.address}/default")
        with client.changes(collections="all") as changes:
            awaited(changes, Mutation)
            becomes(node, 2, b=B)
            becomes(node, 3, a=AGAIN, b=B)
            put(node, ("k", AGAIN))
            assert seen(awaited(changes, Mutation)) == [
                ("dropped", 5, "shop", "a", A),
                ("created", 6, "shop", "a", AGAIN, None),
                ("mutation", 7, b"k", "shop", "a", AGAIN),
            ]
            becomes(node, 4)
            gone = seen(awaited(changes, ScopeDropped))
            assert {each[2:] for each in gone[:-1]} == {("shop", "a", AGAIN), ("shop", "b", B)}
            assert gone[-1] == ("ScopeDropped", 10, "shop", 8)


def test_a_choice_of_which_nothing_is_left_ends(driver) -> None:
    with testing.node(vbuckets=VBUCKETS) as node:
        becomes(node, 1, a=A, b=B)
        put(node, ("k", A))
        client = driver.connect(f"{node.address}/default")
        with client.changes(collections=["shop.a"]) as changes:
            awaited(changes, Mutation)
            becomes(node, 2, b=B)
            ended = list(changes)
            positions = changes.positions
        assert seen(ended) == [("dropped", 5, "shop", "a", A), ("end", EndReason.FILTER_EMPTY)]
        assert {event.vbucket for event in ended if isinstance(event, StreamEnd)} == set(range(VBUCKETS))
        with pytest.raises(UnknownCollection, match=r"no collection shop\.a"):
            list(client.changes(positions, collections=["shop.a"]))
        becomes(node, 3, a=AGAIN, b=B)
        with pytest.raises(OptionError, match="is another collection, read it from its beginning"):
            list(client.changes(positions, collections=["shop.a"]))


def test_who_was_away_while_a_part_of_his_choice_was_dropped_hears_of_it_and_goes_on(driver) -> None:
    with testing.node(vbuckets=VBUCKETS) as node:
        becomes(node, 1, a=A, b=B)
        put(node, ("k", A), ("k", B))
        client = driver.connect(f"{node.address}/default")
        with client.changes(collections=["shop.a", "shop.b"], patience_seconds=None) as changes:
            awaited(changes, Mutation, 2)
            node.kill()
            node.start()
            becomes(node, 2, b=B)
            put(node, ("later", B))
            found = seen(awaited(changes, Mutation))
            assert [each for each in found if each[0] != "dropped"] == [("mutation", 7, b"later", "shop", "b", B)]
            assert [each[2:] for each in found if each[0] == "dropped"] == [("shop", "a", A)]


def test_a_right_that_was_taken_away_is_no_drop(driver) -> None:
    """The node refuses the reader's next stream as if the collection were not there."""
    with testing.node(vbuckets=VBUCKETS, environment={"HEADWATER_ADMINISTRATORS": ""}) as node:
        becomes(node, 1, a=A, b=B)
        put(node, ("k", A), ("k", B))
        give(node, {"reader": WHOLE, "root": "administer"})
        client = driver.connect(f"{node.address}/default", "reader", PASSWORD)
        with client.changes(until="now", collections=["shop.a", "shop.b"]) as changes:
            assert [each[1:3] for each in seen(changes) if each[0] == "mutation"] == [(4, b"k"), (5, b"k")]
            positions = changes.positions
        chosen = positions[0].coverage
        give(node, {"reader": "stream[default:shop:b]", "root": "administer"})
        told: list[object] = []
        with client.changes(positions, until="now", collections=chosen) as changes:
            with pytest.raises(NoAccess, match=r"collection 0x8 is not shown to this user any more: the right to it"):
                told.extend(changes)
            assert {vb: at.seqno for vb, at in changes.positions.items()} == {
                vb: at.seqno for vb, at in positions.items()
            }
        assert not any(isinstance(event, CollectionDropped) for event in told)
        give(node, {"reader": WHOLE, "root": "administer"})
        with client.changes(positions, until="now", collections=chosen) as changes:
            assert [each[0] for each in seen(changes)] == ["end"]


def test_a_reader_whose_right_is_gone_after_a_restart_hears_its_name(driver) -> None:
    with testing.node(vbuckets=VBUCKETS, environment={"HEADWATER_ADMINISTRATORS": ""}) as node:
        becomes(node, 1, a=A, b=B)
        put(node, ("k", A), ("k", B))
        give(node, {"reader": WHOLE, "root": "administer"})
        client = driver.connect(f"{node.address}/default", "reader", PASSWORD)
        with client.changes(collections=["shop.a", "shop.b"], patience_seconds=None) as changes:
            awaited(changes, Mutation, 2)
            node.kill()
            with UsersFile(node.data).editing() as accounts:
                accounts["reader"] = Account.create(PASSWORD, read_grants("stream[default:_default]"))
            node.start()
            told: list[object] = []
            with pytest.raises(NoAccess, match=r"collections shop\.a, shop\.b are not shown to this user any more"):
                told.extend(changes)
            assert not any(isinstance(event, CollectionDropped | StreamEnd) for event in told)


def test_a_scope_in_which_the_right_was_taken_away_was_not_dropped(driver) -> None:
    with testing.node(vbuckets=VBUCKETS, environment={"HEADWATER_ADMINISTRATORS": ""}) as node:
        becomes(node, 1, a=A)
        give(node, {"reader": "stream[default:shop],read[other]", "root": "administer"})
        client = driver.connect(f"{node.address}/default", "reader", PASSWORD)
        with client.changes(until="now", scope="shop") as changes:
            chosen = list(changes) and changes.positions[0].coverage
        give(node, {"reader": "stream[default:_default]", "root": "administer"})
        with pytest.raises(NoAccess, match=r"scope 0x8 is not shown"):
            list(client.changes(until="now", collections=chosen))


def test_who_may_read_the_whole_bucket_and_no_statistics_hears_of_a_drop(driver) -> None:
    with testing.node(vbuckets=VBUCKETS, environment={"HEADWATER_ADMINISTRATORS": ""}) as node:
        becomes(node, 1, a=A, b=B)
        put(node, ("k", A), ("k", B))
        give(node, {"reader": WHOLE, "root": "administer"})
        with Aware(node.port) as client:
            login = client.ask(Opcode.SASL_AUTH, key=b"PLAIN", value=f"\0root\0{PASSWORD}".encode())
            assert (login.status, client.ask(Opcode.SELECT_BUCKET, key=b"default").status) == (0, 0)
            assert client.becomes(manifest(2, b=B)) == 0
        client = driver.connect(f"{node.address}/default", "reader", PASSWORD)
        chosen = Coverage(1, collections=(A, B))
        found = seen(client.changes(until="now", collections=chosen))
        assert [each[0] for each in found if each[0] != "mutation"] == ["dropped", "created", "end"]


def test_what_is_chosen_survives_kill_9_between_any_two_events(driver) -> None:
    with testing.node(vbuckets=VBUCKETS) as node:
        client = driver.connect(f"{node.address}/default")
        with client.changes(collections="all", patience_seconds=None) as changes:
            found: list[tuple[object, ...]] = []
            for uid, (name, number) in enumerate((("a", A), ("b", B), ("c", AGAIN)), 1):
                becomes(node, uid, **dict([("a", A), ("b", B), ("c", AGAIN)][:uid]))
                put(node, (name, number), (name, 0))
                found += seen(awaited(changes, Mutation, 2))
                node.kill()
                node.start()
    assert [each[0] for each in found] == ["ScopeCreated", *["created", "mutation", "mutation"] * 3]
    assert [each[2:] for each in found if each[0] == "mutation"] == [
        (name.encode(), *where)
        for name, number in (("a", A), ("b", B), ("c", AGAIN))
        for where in (("shop", name, number), DEFAULT)
    ]
