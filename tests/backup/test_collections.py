"""Backups of buckets with collections: each document comes back into its own, and none into one that was made again."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from headwater import testing
from headwater.backup import create as creating
from headwater.backup.archive import Archive, ArchiveIndex, folder
from headwater.backup.collections import DEFAULT_PATH, routed
from headwater.backup.create import Choice, create
from headwater.backup.manifest import BACKUPS, INDEX, MANIFEST, BackupManifest, digest, sealed, unsealed
from headwater.backup.place import Folder
from headwater.backup.verify import verify
from headwater.cli.app import app
from headwater.client import WriteWithMeta, connect
from headwater.client.routing import Address
from headwater.cluster.collections import CollectionPath
from headwater.cluster.members import Members
from headwater.errors import BackupError, HeadwaterError
from headwater.testing import Node, processes
from headwater.testing.peers import Peer, serve
from tests.backup.support import ATTRIBUTES, Held, backed_up, fill, held, restored
from tests.node.aware import Aware, manifest
from tests.node.kv.test_rights_in_places import PASSWORD, give

OLD = Path(__file__).parents[1] / "data" / "backups" / "default-collection"
"""An archive that was made before backups knew collections: 12 documents and a deletion, then 9 and a deletion."""


def becomes(node: Node, uid: int, plain: Collection[str] = (), **collections: int | tuple[int, int]) -> None:
    """Set the collections of scope shop, those of `plain` without a history."""
    with Aware(node.port) as client:
        assert client.becomes(manifest(uid, plain, **collections)) == 0


def stored(bucket: Node, collection: str, name: str, count: int = 30) -> None:
    """Store, overwrite and delete in a collection, under the keys that others have, too."""
    with bucket.client() as client:
        of = client.collection(collection)
        assert of.set_many((f"k{i}", f"{name} {i}") for i in range(count)) == {}
        assert of.delete_many([f"k{i}" for i in range(0, count, 7)]) == {}
        of.set("flags", name, flags=0xDEADBEEF, expiry=4_000_000_000)
    with connect(bucket.url, xattrs=True) as client:
        write = WriteWithMeta("xattr", ATTRIBUTES + b"value", 7, 0, cas=5 << 32, rev_seqno=9, datatype=4, force=True)
        assert client.collection(collection).write_many([write]) == {}


def held_all(bucket: Node) -> dict[tuple[str, bytes], Held]:
    """Return every key of every collection that is there, deleted ones included."""
    found: dict[tuple[str, bytes], Held] = {}
    with bucket.client() as client:
        there = client.manifest()
        with client.batches(until="now", xattrs=True, collections="all") as batches:
            rows = [row for batch in batches for row in batch.records.to_pylist()]
    for row in rows:
        if there.has(row["collection_id"]):
            expiry = row["expiry"] if row["opcode"] == 0x57 else 0
            place = f"{row['scope']}.{row['collection']}", row["key"]
            told = {name: row[name] for name in Held._fields}
            found[place] = Held(**(told | {"expiry": expiry}))
    return found


def run(*words: object, status: int = 0) -> Any:
    told = CliRunner().invoke(app, ["backup", *map(str, words)])
    assert told.exit_code == status, told.output
    return told


def values(bucket: Node, collection: str) -> set[str]:
    """Return the first words of a collection's documents k*."""
    with bucket.client() as client:
        found = client.collection(collection).get_many(f"k{i}" for i in range(40))
    return {document.value.decode().split()[0] for document in found.values()}


def test_documents_come_back_into_their_collections_as_they_were(bucket: Node, empty: Node, tmp_path: Path) -> None:
    becomes(bucket, 1, ["carts"], orders=8, carts=(9, 5_000_000))
    for collection in ("_default._default", "shop.orders", "shop.carts"):
        stored(bucket, collection, collection)
    first = backed_up(bucket, tmp_path)
    stored(bucket, "shop.orders", "again", 10)
    second = backed_up(bucket, tmp_path)
    nothing = backed_up(bucket, tmp_path)
    assert [each.kind for each in (first, second, nothing)] == ["full", "increment", "increment"]
    assert 0 < second.rows < first.rows and nothing.rows == 0
    run("restore", tmp_path, "--node", empty.url)
    assert held_all(empty) == held_all(bucket)
    with empty.client() as client:
        carts, orders = (client.manifest().collection("shop", name) for name in ("carts", "orders"))
    assert carts is not None and (carts.max_ttl, carts.history) == (5_000_000, False)
    assert orders is not None and orders.history
    assert json.loads(run("restore", tmp_path, "--node", empty.url, "--json").stdout)["stored"] == 0
    told = run("list", tmp_path).stdout.splitlines()
    assert told[1] == "  collections (manifest 1): _default._default, shop.carts, shop.orders"
    looked = json.loads(run("verify", tmp_path, "--json").stdout)
    assert (looked["collections"], looked["problems"]) == (["_default._default", "shop.carts", "shop.orders"], [])


@pytest.mark.parametrize("default", [False, True])
def test_a_backup_that_says_nothing_of_histories_leaves_them_to_the_bucket(
    default: bool, bucket: Node, empty: Node, tmp_path: Path
) -> None:
    becomes(bucket, 1, orders=8)
    made = backed_up(bucket, tmp_path)
    forget_histories(Folder(tmp_path), made.id)
    found = Archive(Folder(tmp_path)).backups[made.id]
    assert not found.has_histories and made.has_histories
    with empty.client() as client:
        asyncio.run(give_collections_history(empty, default))
        run("restore", tmp_path, "--node", empty.url)
        orders = client.manifest().collection("shop", "orders")
    assert orders is not None and orders.history is default


async def give_collections_history(node: Node, history: bool) -> None:
    async with Members() as members:
        await members.admin(Address(node.host, node.port)).give_collections_history(history=history)


def forget_histories(place: Folder, backup: str) -> None:
    """Make a backup as a release left it that knew no histories by collection."""
    path = folder(backup, MANIFEST)
    content = unsealed(place.read(path), path)
    for scope in content["collections"]["scopes"]:
        for each in scope["collections"]:
            del each["history"]
    place.write(path, data := sealed(content))
    index = ArchiveIndex.read(place)
    assert index is not None
    place.write(INDEX, replace(index, backups=index.backups | {backup: digest(data)}).to_bytes())


def test_documents_of_a_dropped_collection_stay_out_of_the_one_that_was_made_again(
    bucket: Node, empty: Node, tmp_path: Path
) -> None:
    becomes(bucket, 1, orders=8, carts=9)
    stored(bucket, "shop.orders", "old")
    stored(bucket, "shop.carts", "gone")
    first = backed_up(bucket, tmp_path)
    becomes(bucket, 2, other=10)
    becomes(bucket, 3, other=10, orders=11)
    with bucket.client() as client:
        client.collection("shop.orders").set("k1", "new")
    second = backed_up(bucket, tmp_path)
    assert second.parent == first.id
    run("restore", tmp_path, "--node", empty.url)
    assert held_all(empty) == held_all(bucket)
    assert values(empty, "shop.orders") == {"new"}
    with empty.client() as client:
        assert client.manifest().collection("shop", "carts") is None
    # The end of the first backup is what the bucket was then.
    run("restore", tmp_path, "--node", empty.url, "--backup", first.id, "--collections", "shop.carts")
    assert (values(empty, "shop.carts"), values(empty, "shop.orders")) == ({"gone"}, {"new"})


def test_the_files_name_the_collection_of_each_row(bucket: Node, tmp_path: Path) -> None:
    becomes(bucket, 1, orders=8)
    stored(bucket, "shop.orders", "a")
    fill(bucket, "b", 5)
    made = backed_up(bucket, tmp_path)
    rows = pa.concat_tables([pq.read_table(path) for path in (tmp_path / BACKUPS / made.id).glob("*.parquet")])
    named = {(row["collection_id"], row["scope"], row["collection"]) for row in rows.to_pylist()}
    assert named == {(0, "_default", "_default"), (8, "shop", "orders")}


def test_a_backup_with_another_choice_of_collections_is_a_full_one(bucket: Node, empty: Node, tmp_path: Path) -> None:
    fill(bucket, "a", 10)
    plain = backed_up(bucket, tmp_path)
    becomes(bucket, 1, orders=8)
    stored(bucket, "shop.orders", "o")
    whole = backed_up(bucket, tmp_path)
    becomes(bucket, 2)
    still = backed_up(bucket, tmp_path)
    default = backed_up(bucket, tmp_path, default_only=True)
    assert [each.kind for each in (plain, whole, still, default)] == ["full", "full", "increment", "full"]
    assert [each.collections is None for each in (plain, whole, still, default)] == [True, False, False, True]
    assert verify(Archive(Folder(tmp_path))).problems == []
    run("restore", tmp_path, "--node", empty.url, "--backup", whole.id)
    assert values(empty, "shop.orders") == {"o"}


def test_a_choice_of_collections_is_restored(bucket: Node, empty: Node, tmp_path: Path) -> None:
    becomes(bucket, 1, orders=8, carts=9)
    for collection in ("_default._default", "shop.orders", "shop.carts"):
        stored(bucket, collection, collection)
    backed_up(bucket, tmp_path)
    run("restore", tmp_path, "--node", empty.url, "--collections", "shop.orders")
    of_orders = {place: each for place, each in held_all(bucket).items() if place[0] == "shop.orders"}
    assert held_all(empty) == of_orders
    refused = run("restore", tmp_path, "--node", empty.url, "--collections", "shop.nosuch", status=2)
    assert "_default._default, shop.carts, shop.orders" in refused.stderr
    counted = json.loads(run("restore", tmp_path, "--dry-run", "--collections", "_default._default", "--json").stdout)
    assert counted["mutations"] + counted["deletions"] == len(of_orders)


def test_a_bucket_without_collections_is_refused_unless_they_are_left_out(bucket: Node, tmp_path: Path) -> None:
    becomes(bucket, 1, orders=8)
    stored(bucket, "shop.orders", "o", 5)
    backed_up(bucket, tmp_path)
    with serve(Peer(vbuckets=4)) as url:
        refused = run("restore", tmp_path, "--node", url, status=1)
    assert "it knows no collections, and the backup has shop.orders" in refused.stderr
    assert "--collections _default._default" in refused.stderr


@pytest.mark.parametrize("step", ["begun", "part_noted", "before_manifest"])
def test_a_backup_that_was_killed_goes_on_across_a_collection_that_was_made_again(
    step: str, bucket: Node, empty: Node, tmp_path: Path
) -> None:
    becomes(bucket, 1, orders=8)
    stored(bucket, "shop.orders", "old")
    place = tmp_path / "place"
    with (tmp_path / "log").open("ab") as log:
        environment = {**os.environ, "HEADWATER_FAILPOINTS": f"backup.{step}=kill"}
        process = processes.start(["backup", "create", str(place), "--node", bucket.url], environment, log)
        assert process.stdout is not None
        with process.stdout:
            assert process.wait(200) == -9
    begun = Archive(Folder(place)).unfinished
    assert verify(Archive(Folder(place))).backups == 0
    becomes(bucket, 2, other=9)
    becomes(bucket, 3, other=9, orders=10)
    stored(bucket, "shop.orders", "new", 5)
    assert [backed_up(bucket, place).id] == begun
    run("restore", place, "--node", empty.url)
    assert held_all(empty) == held_all(bucket)
    assert values(empty, "shop.orders") == {"new"}


def test_what_was_begun_before_there_were_collections_is_not_gone_on_with(
    bucket: Node, empty: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(bucket, "a", 10)
    told = iter([False, True])
    becomes(bucket, 1, orders=8)
    stored(bucket, "shop.orders", "o")
    monkeypatch.setattr(creating, "holds_more", lambda manifest: next(told))
    made = backed_up(bucket, tmp_path)
    assert made.collections is not None
    assert len(list((tmp_path / BACKUPS).iterdir())) == 1
    run("restore", tmp_path, "--node", empty.url)
    assert held_all(empty) == held_all(bucket)


def test_who_may_stream_only_backs_up_all_collections(tmp_path: Path) -> None:
    with testing.node(vbuckets=1, environment={"HEADWATER_ADMINISTRATORS": ""}) as bucket:
        becomes(bucket, 1, orders=8)
        stored(bucket, "shop.orders", "o", 5)
        give(bucket, {"root": "administer", "saver": "stream[default]"})
        with connect(bucket.url, "saver", PASSWORD) as client:
            made = create(Folder(tmp_path), client, "default", Choice())
        assert made.collections is not None and made.collections.collection("shop", "orders") is not None


def test_who_may_read_a_part_of_the_bucket_backs_up_that_part_only_by_choice_and_it_says_so(tmp_path: Path) -> None:
    of_default = "stream[default:_default:_default]"
    with testing.node(vbuckets=1, environment={"HEADWATER_ADMINISTRATORS": ""}) as bucket:
        becomes(bucket, 1, orders=8)
        stored(bucket, "_default._default", "d", 5)
        stored(bucket, "shop.orders", "o", 5)
        give(bucket, {"saver": "stream[default],read[other]", "root": "administer", "part": of_default})
        for place, whole_before in ((tmp_path / "new", False), (tmp_path / "old", True)):
            if whole_before:
                with connect(bucket.url, "saver", PASSWORD) as client:
                    create(Folder(place), client, "default", Choice())
            with (
                connect(bucket.url, "part", PASSWORD) as client,
                pytest.raises(BackupError, match=r"may read only a part of bucket default.*role stream in all of it"),
            ):
                create(Folder(place), client, "default", Choice())
            assert len(Archive(Folder(place)).backups) == whole_before
        place = tmp_path / "part"
        for _ in range(2):
            with connect(bucket.url, "part", PASSWORD) as client:
                create(Folder(place), client, "default", Choice(default_only=True))
        with connect(bucket.url, "part", PASSWORD) as client, pytest.raises(BackupError, match="only a part"):
            create(Folder(place), client, "default", Choice())
        told = run("list", place).stdout
        assert told.count("a part of the bucket: the default collection alone") == 2
        assert "a part of the bucket" in run("verify", place).output
        assert "a part of the bucket" in run("restore", place, "--dry-run").output
        listed = json.loads(run("list", place, "--json").stdout)["backups"]
        assert [(each["kind"], each["default_only"]) for each in listed] == [("full", True), ("increment", True)]


def test_a_right_that_is_taken_while_a_backup_is_made_leaves_no_backup(tmp_path: Path) -> None:
    """The manifest at its end would lack a collection whose rows it has: a restore would leave them out."""
    with testing.node(vbuckets=1, environment={"HEADWATER_ADMINISTRATORS": ""}) as bucket:
        becomes(bucket, 1, orders=8)
        stored(bucket, "shop.orders", "o", 5)
        give(bucket, {"saver": "stream[default],read[other]", "root": "administer"})
        with connect(bucket.url, "saver", PASSWORD) as client:

            def lose(progress: Any) -> None:
                if progress.rows and progress.done == progress.total:
                    give(bucket, {"saver": "stream[default:_default]", "root": "administer"})

            with pytest.raises(HeadwaterError):
                create(Folder(tmp_path), client, "default", Choice(), lose)
        assert Archive(Folder(tmp_path)).backups == {}


def test_rows_count_by_what_their_own_vbucket_is_restored_to() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "vbucket": pa.array([0, 1, 0, 1, 0], pa.int32()),
            "collection_id": pa.array([8, 8, 0, 9, 7], pa.int64()),
            "scope": pa.array(["shop"] * 5),
            "collection": pa.array(["a"] * 5),
        }
    )
    a = CollectionPath("shop", "a")
    routes = {1: {0: DEFAULT_PATH, 8: a}, 2: {0: DEFAULT_PATH, 9: a}}
    kept = routed(batch, np.array([1, 2]), routes)
    assert kept.column("vbucket").to_pylist() == [0, 0, 1]
    assert kept.column("collection").to_pylist() == ["a", None, "a"]
    assert kept.column("scope").to_pylist() == ["shop", None, "shop"]
    assert routed(batch.slice(0, 0), np.array([1, 2]), routes).num_rows == 0


def test_an_archive_from_before_collections_is_what_it_was(empty: Node, tmp_path: Path) -> None:
    place = tmp_path / "old"
    shutil.copytree(OLD, place)
    archive = Archive(Folder(place))
    assert verify(archive).problems == []
    for name, backup in archive.backups.items():
        data = (place / BACKUPS / name / MANIFEST).read_bytes()
        assert BackupManifest.from_bytes(data, name).to_bytes() == data
        assert backup.collections is None
    restored(place, empty)
    live = {key: each.value for key, each in held(empty).items() if each.opcode == 0x57}
    expected = {f"k{i}": f"second {i}" if i >= 6 else f"first {i}" for i in range(15) if i not in (3, 9)}
    assert live == {key.encode(): value.encode() for key, value in expected.items()}


def test_a_bucket_without_collections_is_backed_up_in_the_layout_of_before(bucket: Node, tmp_path: Path) -> None:
    fill(bucket, "a", 10)
    made = backed_up(bucket, tmp_path)
    now, before = (sorted(path.rglob("*.parquet"))[0] for path in (tmp_path / BACKUPS / made.id, OLD))
    assert pq.read_schema(now) == pq.read_schema(before)
    told, old = (json.loads(path.with_name(MANIFEST).read_bytes())["content"] for path in (now, before))
    assert (told.keys(), told["format"]) == (old.keys(), 1)
    assert all("collections" not in each for each in told["ends"])


def test_increments_of_both_kinds_in_one_chain_are_a_problem(bucket: Node, tmp_path: Path) -> None:
    becomes(bucket, 1, orders=8)
    backed_up(bucket, tmp_path)
    backed_up(bucket, tmp_path)
    archive = Archive(Folder(tmp_path))
    first, second = archive.backups.values()
    object.__setattr__(second, "collections", None)
    assert verify(archive).problems == [
        f"{second.id}: of it and {first.id}, which it goes on from, only one has all collections"
    ]
    with pytest.raises(BackupError, match="is not there"):
        archive.chain("nosuch")
