"""Backups of real nodes: full and increments, after a failover, and killed at each step."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest

from harness.nodes import call, cluster, diverge, keep, return_to
from headwater.backup import create, manifest
from headwater.backup.archive import Archive, folder
from headwater.backup.manifest import BACKUPS, MANIFEST, BackupManifest, RolledBack
from headwater.backup.place import Folder, place_of
from headwater.backup.restore import point_of, rows_of
from headwater.backup.verify import verify
from headwater.errors import BackupError, PeerSilent
from headwater.testing import Node, node, processes
from headwater.wire.opcodes import Opcode
from tests.backup.support import backed_up, fill, held, restored
from tests.battery import few_of

STEPS = ("begun", "file_written", "part_noted", "before_manifest", "after_manifest", "entered")
KILLS = [*((step, "full") for step in STEPS), ("part_noted", "increment"), ("after_manifest", "increment")]


def test_a_full_backup_and_its_increments_restore_every_key_as_it_was(
    bucket: Node, empty: Node, tmp_path: Path
) -> None:
    fill(bucket, "a")
    first = backed_up(bucket, tmp_path)
    fill(bucket, "b")
    with bucket.client() as client:
        client.set_many((f"a{i}", "again") for i in range(10))
        client.delete_many(f"a{i}" for i in range(10, 14))
    second = backed_up(bucket, tmp_path)
    nothing = backed_up(bucket, tmp_path)
    assert [first.kind, second.kind, nothing.kind] == ["full", "increment", "increment"]
    assert (second.parent, nothing.parent) == (first.id, second.id)
    assert (nothing.rows, nothing.part.files) == (0, ())
    assert second.rows < first.rows + 20
    assert verify(Archive(Folder(tmp_path))).problems == []
    restored(tmp_path, empty)
    assert held(empty) == held(bucket)


def test_a_backup_that_was_lost_during_a_run_is_not_forgotten(
    bucket: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index is written anew by what is there; it alone tells that something is missing."""
    fill(bucket, "a")
    first, second = backed_up(bucket, tmp_path), backed_up(bucket, tmp_path)

    def damage(place: str) -> None:
        if place == "backup.before_manifest":
            (tmp_path / BACKUPS / first.id / MANIFEST).unlink(missing_ok=True)

    monkeypatch.setattr(create, "failpoint", damage)
    with pytest.raises(BackupError, match=f"{first.id}/{MANIFEST}: the file is missing"):
        backed_up(bucket, tmp_path)
    assert {first.id, second.id} <= Archive(Folder(tmp_path)).index.backups.keys()  # type: ignore[union-attr]
    assert any("the file is missing" in problem for problem in verify(Archive(Folder(tmp_path))).problems)


@pytest.mark.parametrize("parts", [1, 2])
def test_a_bucket_that_was_made_anew_between_two_parts_is_read_again_from_its_beginning(
    parts: int, bucket: Node, empty: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the last part as well: what was read before is of no bucket that there is."""
    fill(bucket, "old")
    noted: list[str] = []

    def make_anew(place: str) -> None:
        noted.append(place)
        if noted.count("backup.part_noted") == parts and place == "backup.part_noted":
            bucket.stop()
            shutil.rmtree(bucket.data)
            bucket.restart()
            fill(bucket, "new", 120)  # it comes to all ends that were planned

    monkeypatch.setattr(create, "failpoint", make_anew)
    made = backed_up(bucket, tmp_path, part_changes=100_000 if parts == 1 else 1)
    assert verify(Archive(Folder(tmp_path))).problems == [] and made.kind == "full"
    restored(tmp_path, empty)
    assert held(empty) == held(bucket)


def test_a_bucket_that_has_less_than_was_planned_after_a_failover_is_not_waited_for(
    bucket: Node, empty: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(bucket, "a")
    kept = [keep(bucket)]
    fill(bucket, "lost")
    whole = create._Run._drain

    def drain(self: create._Run, *given: Any) -> Any:
        if kept:
            return_to(bucket, kept.pop())
            raise PeerSilent("a drain with an end", 60.0)  # as a drain that stands still says
        return whole(self, *given)

    monkeypatch.setattr(create._Run, "_drain", drain)
    backed_up(bucket, tmp_path)
    restored(tmp_path, empty)
    assert held(empty) == held(bucket) != {}


def test_the_files_are_plain_parquet_for_polars_and_duckdb(bucket: Node, tmp_path: Path) -> None:
    fill(bucket, "a")
    made = backed_up(bucket, tmp_path)
    files = str(tmp_path / BACKUPS / made.id / "*.parquet")
    rows = pl.read_parquet(files)
    live = {key: each for key, each in held(bucket).items() if each.opcode == 0x57}
    stored = rows.filter(pl.col("event") == "mutation")
    assert dict(zip(stored["key"], stored["value"], strict=True)) == {key: each.value for key, each in live.items()}
    counted = duckdb.sql(f"select event, count(*) from '{files}' group by event").fetchall()
    assert dict(counted)["mutation"] == len(live)
    assert set(rows["vb_uuid"]) <= {f"{end.vb_uuid:016x}" for end in made.part.ends.values()}


def test_parts_and_files_end_where_they_are_told_to(bucket: Node, empty: Node, tmp_path: Path) -> None:
    fill(bucket, "a")
    made = backed_up(bucket, tmp_path, part_changes=1, file_bytes=1)
    assert len(made.part.files) == 4
    assert [file.path[:11] for file in made.part.files] == [f"0000{n}-00000" for n in range(4)]
    restored(tmp_path, empty)
    assert held(empty) == held(bucket)


def test_what_a_failover_took_back_is_read_again_from_where_a_backup_was_whole(
    bucket: Node, empty: Node, tmp_path: Path
) -> None:
    fill(bucket, "a")
    first = backed_up(bucket, tmp_path)

    def lost() -> None:
        fill(bucket, "lost")
        backed_up(bucket, tmp_path)

    diverge(bucket, lost=lost)
    fill(bucket, "won", 20)
    third = backed_up(bucket, tmp_path)
    had = Archive(Folder(tmp_path)).backups[third.parent].part.ends
    assert third.rolled_back == tuple(
        RolledBack(vb, had[vb].seqno, first.part.ends[vb].seqno, first.part.ends[vb].seqno) for vb in range(4)
    )
    assert not any(key.startswith(b"lost") for key in held(bucket))
    restored(tmp_path, empty)
    assert held(empty) == held(bucket)


def test_a_backup_that_was_killed_behind_a_failover_says_still_what_that_took_back(
    bucket: Node, tmp_path: Path
) -> None:
    fill(bucket, "a")
    backed_up(bucket, tmp_path)

    def lost() -> None:
        fill(bucket, "lost")
        backed_up(bucket, tmp_path)

    diverge(bucket, lost=lost)
    fill(bucket, "won", 20)
    assert command(bucket, tmp_path, "backup.part_noted=kill") == -9
    made = backed_up(bucket, tmp_path)
    assert [rollback.vbucket for rollback in made.rolled_back] == list(range(4))
    assert Archive(Folder(tmp_path)).backups[made.id] == made


def test_a_failover_that_left_nothing_is_backed_up_as_nothing(bucket: Node, empty: Node, tmp_path: Path) -> None:
    kept = keep(bucket)
    fill(bucket, "a")
    backed_up(bucket, tmp_path)
    return_to(bucket, kept)
    made = backed_up(bucket, tmp_path)
    assert [rollback.vbucket for rollback in made.rolled_back] == list(range(4))
    restored(tmp_path, empty)
    assert held(empty) == held(bucket) == {}
    assert verify(Archive(Folder(tmp_path))).problems == [] and backed_up(bucket, tmp_path).rows == 0


def test_a_failover_behind_every_backup_reads_the_vbucket_from_its_beginning(
    bucket: Node, empty: Node, tmp_path: Path
) -> None:
    fill(bucket, "a", 10)

    def lost() -> None:
        fill(bucket, "a", 30)
        backed_up(bucket, tmp_path)

    diverge(bucket, lost=lost)
    second = backed_up(bucket, tmp_path)
    assert [(rollback.vbucket, rollback.read_from) for rollback in second.rolled_back] == [(vb, 0) for vb in range(4)]
    restored(tmp_path, empty)
    assert held(empty) == held(bucket)


def test_an_increment_behind_purged_deletions_reads_their_vbuckets_whole_and_keeps_nothing_that_was_deleted(
    bucket: Node, empty: Node, tmp_path: Path
) -> None:
    fill(bucket, "a", 40)
    first = backed_up(bucket, tmp_path)
    with bucket.client() as client:
        client.delete_many(f"a{i}" for i in range(20))
        client.set_many((f"later{i}", "v") for i in range(40))
    for vbucket in range(4):
        assert call(bucket, Opcode.COMPACT_DB, extras=bytes(16) + b"\1" + bytes(7), vbucket=vbucket).status == 0
    with bucket.client() as client:
        told = client.vbucket_stats("vbucket-seqno")
    second = backed_up(bucket, tmp_path)
    assert second.kind == "increment" and second.parent == first.id
    assert second.rolled_back == tuple(
        RolledBack(vb, first.part.ends[vb].seqno, 0, 0, int(told[vb]["purge_seqno"])) for vb in range(4)
    )
    restored(tmp_path, empty)
    assert held(empty) == held(bucket) and b"a0" not in held(empty) and b"a20" in held(empty)


def command(bucket: Node, place: Path, points: str = "") -> int:
    """Make a backup in a process of its own, forked as the nodes are; return how it ended."""
    environment = {**os.environ, "HEADWATER_FAILPOINTS": points}
    with place.with_name("command.log").open("ab") as log:
        process = processes.start(["backup", "create", str(place), "--node", bucket.url], environment, log)
        assert process.stdout is not None
        with process.stdout:
            return process.wait(200)


def in_parts(bucket: Node, place: Path, points: str) -> int:
    """The same, noted after every vbucket."""
    code = (
        "import sys; from pathlib import Path; from headwater import client; "
        "from headwater.backup.create import Choice, create; from headwater.backup.place import Folder; "
        "create(Folder(sys.argv[2]), client.connect(sys.argv[1]), 'default', Choice(part_changes=10))"
    )
    asked = [sys.executable, "-c", code, bucket.url, str(place)]
    environment = {**os.environ, "HEADWATER_FAILPOINTS": points}
    return subprocess.run(asked, env=environment, capture_output=True, timeout=200, check=False).returncode


@pytest.mark.parametrize(
    ("step", "kind"),
    few_of(KILLS, ("part_noted", "full"), ("before_manifest", "full"), ("after_manifest", "increment")),
)
def test_a_backup_that_was_killed_goes_on_and_never_counts_by_half(
    step: str, kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tmp_path = tmp_path_factory.mktemp("archive") / "place"
    with node(vbuckets=4) as bucket, node(vbuckets=4) as empty:
        fill(bucket, "a")
        before = [backed_up(bucket, tmp_path).id] if kind == "increment" else []
        fill(bucket, "b")
        assert command(bucket, tmp_path, f"backup.{step}=kill") == -9
        found = Archive(Folder(tmp_path))
        finished = step in ("after_manifest", "entered")
        assert len(found.backups) == len(before) + finished
        assert verify(found).problems == []
        with bucket.client() as client:
            client.set_many((f"b{i}", "after the crash") for i in range(30))
        assert command(bucket, tmp_path) == 0
        whole = Archive(Folder(tmp_path))
        assert (whole.unfinished, verify(whole).problems) == ([], [])
        assert set(whole.index.backups if whole.index else ()) == set(whole.backups)
        restored(tmp_path, empty)
        assert held(empty) == held(bucket)


def test_a_backup_that_goes_on_reads_what_was_noted_only_once(bucket: Node, tmp_path: Path) -> None:
    fill(bucket, "a")
    assert in_parts(bucket, tmp_path, "backup.part_noted=kill@3") == -9
    name = Archive(Folder(tmp_path)).unfinished[0]
    before = {path: path.stat().st_ino for path in (tmp_path / BACKUPS / name).glob("*.parquet")}
    made = backed_up(bucket, tmp_path)
    assert made.id == name
    assert len(before) == 3
    assert {path: path.stat().st_ino for path in before} == before
    assert made.rows == len(list(held(bucket)))


def test_a_part_that_was_noted_before_a_failover_is_read_again(bucket: Node, empty: Node, tmp_path: Path) -> None:
    fill(bucket, "a", 10)

    def lost() -> None:
        fill(bucket, "lost")
        assert command(bucket, tmp_path, "backup.before_manifest=kill") == -9

    diverge(bucket, lost=lost)
    fill(bucket, "won", 5)
    made = backed_up(bucket, tmp_path)
    assert made.rolled_back == ()
    restored(tmp_path, empty)
    assert held(empty) == held(bucket)
    archive = Archive(Folder(tmp_path))
    keys = {key for batch in rows_of(archive, point_of(archive)) for key in batch.column("key").to_pylist()}
    assert not any(key.startswith(b"lost") for key in keys)


def test_what_was_topped_up_is_read_from_its_beginning_when_a_failover_voids_the_part_before_it(
    bucket: Node, empty: Node, tmp_path: Path
) -> None:
    """All vbuckets are in the part that was noted; the history of one is lost, of which the first knows nothing."""
    fill(bucket, "a")
    kept = keep(bucket)
    write_into(bucket, 3, "lost")
    assert command(bucket, tmp_path, "backup.part_noted=kill") == -9
    return_to(bucket, kept)
    write_into(bucket, 0, "won")
    made = backed_up(bucket, tmp_path, part_changes=1)
    assert set(made.part.starts.values()) == {0}
    assert verify(Archive(Folder(tmp_path))).problems == []
    restored(tmp_path, empty)
    assert held(empty) == held(bucket)


@pytest.mark.parametrize("gone", ["note", "file"])
def test_a_part_that_is_gone_takes_with_it_what_went_on_from_it(
    gone: str, bucket: Node, empty: Node, tmp_path: Path
) -> None:
    fill(bucket, "a")
    assert command(bucket, tmp_path, "backup.part_noted=kill") == -9
    (note,) = (tmp_path / BACKUPS).glob("*/part-*.json")
    files = list(note.parent.glob("*.parquet"))
    fill(bucket, "b")
    assert command(bucket, tmp_path, "backup.part_noted=kill") == -9
    for each in [note] if gone == "note" else files:
        each.unlink()
    backed_up(bucket, tmp_path)
    restored(tmp_path, empty)
    assert held(empty) == held(bucket)


def write_into(bucket: Node, vbucket: int, name: str) -> None:
    """Store some documents in one vbucket."""
    with bucket.client() as client:
        keys = [key for key in (f"{name}{n}" for n in range(100)) if client.vbucket_of(key.encode()) == vbucket]
        assert keys and client.set_many((key, name) for key in keys) == {}


def test_a_full_backup_asked_for_begins_a_chain_of_its_own(bucket: Node, tmp_path: Path) -> None:
    fill(bucket, "a")
    backed_up(bucket, tmp_path)
    second = backed_up(bucket, tmp_path, full=True)
    assert (second.kind, len(Archive(Folder(tmp_path)).chain(second.id))) == ("full", 1)
    assert second.rows


def test_the_manifest_of_each_backup_is_taken_apart_once_in_a_run(
    bucket: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three times for each backup of the archive, and each time written out again to be compared, were 82 ms of 1,024
    vbuckets."""
    for _ in range(3):
        backed_up(bucket, tmp_path)
    read: list[str] = []
    checked: list[str] = []
    from_bytes, sealing = BackupManifest.from_bytes, manifest.sealed

    def counted(data: bytes, path: str, *, is_sound: bool = False) -> BackupManifest:
        read.append(path)
        return from_bytes(data, path, is_sound=is_sound)

    def sealed(content: dict[str, Any]) -> bytes:
        checked.extend([content["id"]] if "id" in content else [])
        return sealing(content)

    monkeypatch.setattr(BackupManifest, "from_bytes", counted)
    monkeypatch.setattr(manifest, "sealed", sealed)
    made = backed_up(bucket, tmp_path)
    assert len(read) == len(set(read)) == 4
    assert set(checked) == {made.id}


def test_a_manifest_that_changes_while_a_backup_is_made_is_read_again(bucket: Node, tmp_path: Path) -> None:
    first = backed_up(bucket, tmp_path)
    known = Archive(Folder(tmp_path))
    path = tmp_path / folder(first.id, MANIFEST)
    path.write_bytes(path.read_bytes().replace(b'"bucket"', b'"bucKet"'))
    assert first.id not in Archive(Folder(tmp_path), known).backups


def test_an_archive_of_another_bucket_is_refused(bucket: Node, tmp_path: Path) -> None:
    backed_up(bucket, tmp_path)
    with node(vbuckets=8) as other, pytest.raises(BackupError, match="holds bucket default with 4 vbuckets"):
        backed_up(other, tmp_path)


def test_vbuckets_without_a_node_are_no_backup(tmp_path: Path) -> None:
    with node(vbuckets=4) as bucket:
        with bucket.client() as client:
            client.set_vbucket_state(2, "dead")
        with pytest.raises(BackupError, match="1 of 4 vbuckets have no active node, the first is 2"):
            backed_up(bucket, tmp_path)
        made = backed_up(bucket, tmp_path, vbuckets=(0, 1, 3))
        assert sorted(made.part.ends) == [0, 1, 3]


def test_only_one_process_at_a_time_changes_an_archive(bucket: Node, tmp_path: Path) -> None:
    with Folder(tmp_path).lock(), pytest.raises(BackupError, match="another process is changing this archive"):
        backed_up(bucket, tmp_path)


def test_a_damaged_archive_is_not_gone_on_from(bucket: Node, tmp_path: Path) -> None:
    made = backed_up(bucket, tmp_path)
    (tmp_path / BACKUPS / made.id / MANIFEST).unlink()
    with pytest.raises(BackupError, match="the file is missing"):
        backed_up(bucket, tmp_path)


def test_a_bucket_on_several_nodes_is_backed_up_whole(empty: Node, tmp_path: Path) -> None:
    with cluster(2, vbuckets=4) as nodes:
        for vb in (1, 3):
            nodes.take_over(vb, 1)
        nodes.publish()
        with nodes.client() as client:
            assert client.set_many((f"k{i}", "v") for i in range(100)) == {}
        backed_up(nodes.nodes[0], tmp_path)
        restored(tmp_path, empty)
    with empty.client() as client:
        assert len(client.get_many(f"k{i}" for i in range(100))) == 100


def test_an_archive_can_lie_wherever_fsspec_writes(bucket: Node, empty: Node) -> None:
    place = place_of("memory://archive/orders")
    fill(bucket, "a")
    backed_up(bucket, place)
    fill(bucket, "b")
    backed_up(bucket, place)
    assert verify(Archive(place)).problems == []
    restored(place, empty)
    assert held(empty) == held(bucket)
