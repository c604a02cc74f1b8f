"""Restores: points in time, conflicts, interruptions."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from headwater.backup import restore
from headwater.backup.archive import Archive
from headwater.backup.place import Folder
from headwater.backup.restore import counts, point_at, point_of
from headwater.client import WriteWithMeta, connect
from headwater.errors import BackupError, OptionError, RowsRefused
from headwater.testing import Node
from headwater.testing.embedded import WallClock, embedded
from headwater.testing.faults import FaultyDisk
from headwater.wire.xattr import join
from tests.backup.support import backed_up, fill, held, restored


def test_the_end_of_each_backup_can_be_restored(bucket: Node, empty: Node, tmp_path: Path) -> None:
    states = []
    for name in "abc":
        fill(bucket, name, 20)
        states.append((backed_up(bucket, tmp_path).id, held(bucket)))
    for backup, state in states:
        restored(tmp_path, empty, backup)
        assert held(empty) == state


def test_a_point_by_seqno_is_the_end_of_a_backup_of_each_vbucket(bucket: Node, empty: Node, tmp_path: Path) -> None:
    fill(bucket, "a", 20)
    first = backed_up(bucket, tmp_path)
    state = held(bucket)
    fill(bucket, "b", 20)
    backed_up(bucket, tmp_path)
    archive = Archive(Folder(tmp_path))
    ends = {vb: end.seqno for vb, end in first.part.ends.items()}
    point = point_at(archive, point_of(archive), ends)
    assert (point.upto, point.seqnos) == (dict.fromkeys(range(4), 1), ends)
    restored(tmp_path, empty, point=point)
    assert held(empty) == state


def test_a_refusal_advises_what_a_restore_can_do(
    bucket: Node, empty: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RowsRefused(2, b"k", "no")

    fill(bucket, "a", 20)
    backed_up(bucket, tmp_path)
    monkeypatch.setattr(restore, "write", refuse)
    with pytest.raises(RowsRefused, match=r"key b'k': no\. What was written before stays") as refused:
        restored(tmp_path, empty)
    assert "deadLetters" not in str(refused.value)


def test_a_seqno_at_which_no_backup_is_whole_is_refused_or_the_end_before_it_taken(
    bucket: Node, tmp_path: Path
) -> None:
    fill(bucket, "a", 20)
    first = backed_up(bucket, tmp_path).part.ends[0].seqno
    fill(bucket, "b", 20)
    second = backed_up(bucket, tmp_path).part.ends[0].seqno
    archive = Archive(Folder(tmp_path))
    newest = point_of(archive)
    with pytest.raises(OptionError, match=f"a seqno at which a backup is whole: 0, {first}, {second} \\(or --nearest"):
        point_at(archive, newest, {0: first + 1})
    assert point_at(archive, newest, {0: first + 1}, nearest=True).seqnos == {0: first}
    assert point_at(archive, newest, {0: second + 100}).seqnos == {0: second}
    assert point_at(archive, newest, {0: 0}).seqnos == {0: 0}
    with pytest.raises(BackupError, match="vbucket 9 is not in backup"):
        point_at(archive, newest, {9: 1})


def test_a_point_by_time_is_the_newest_backup_that_had_ended(bucket: Node, tmp_path: Path) -> None:
    first = backed_up(bucket, tmp_path)
    archive = Archive(Folder(tmp_path))
    ended = datetime.fromisoformat(first.ended)
    assert point_of(archive, at=ended).chain[-1].id == first.id
    with pytest.raises(BackupError, match="no backup had ended at"):
        point_of(archive, at=ended - timedelta(seconds=1))
    with pytest.raises(BackupError, match="backup nosuch is not there"):
        point_of(archive, "nosuch")
    with pytest.raises(BackupError, match="there is no backup here"):
        point_of(Archive(Folder(tmp_path / "nothing")), at=None)
    assert datetime.now(UTC) >= ended


def test_newer_documents_stay_unless_they_are_forced_back(bucket: Node, tmp_path: Path) -> None:
    fill(bucket, "a", 20)
    backed_up(bucket, tmp_path)
    before = held(bucket)
    with bucket.client() as client:
        client.set("a1", "newer")
        client.delete("a2")
        client.set("later", "stays")
    assert restored(tmp_path, bucket).behind == len(before)
    with bucket.client() as client:
        assert client.get("a1").value == b"newer"
    restored(tmp_path, bucket, force=True)
    after = held(bucket)
    assert after.pop(b"later").value == b"stays"
    assert after == before


def test_a_document_that_was_prolonged_is_restored_though_its_version_of_before_has_expired(
    bucket: Node, tmp_path: Path
) -> None:
    with bucket.client() as client:
        client.set("in two backups", "before", expiry=3600)
        backed_up(bucket, tmp_path)
        client.set("in two backups", "prolonged", expiry=36_000)
        client.set("over for good", "before", expiry=3600)
        backed_up(bucket, tmp_path)
    clock = WallClock()
    clock.shift_seconds = 4000
    with (
        embedded(disk=FaultyDisk(), clock=clock, vbuckets=4) as node,
        connect(url := f"couchbase://127.0.0.1:{node.port}/default") as later,
    ):
        for force in (False, True):
            restored(tmp_path, SimpleNamespace(url=url), force=force)
            found = later.get_many(["in two backups", "over for good"])
            assert {key: each.value for key, each in found.items()} == {b"in two backups": b"prolonged"}


def test_a_document_that_a_transaction_has_staged_and_not_made_yet_is_restored(
    bucket: Node, empty: Node, tmp_path: Path
) -> None:
    """Insertions are staged as attributes of tombstones: the record may say that the transaction is committed."""
    staged = join({"txn": b'{"op":{"type":"insert","stgd":{"a":1}}}', "_mine": b"1"})
    with connect(bucket.url, xattrs=True) as client:
        write = WriteWithMeta("staged", staged, 0, 0, cas=5 << 32, rev_seqno=9, datatype=4, deletes=True)
        assert client.write_many([write]) == {}
    backed_up(bucket, tmp_path)
    restored(tmp_path, empty)
    assert held(empty) == held(bucket)
    assert held(empty)[b"staged"].value == staged


def test_a_document_that_ran_out_between_two_restores_is_back_with_the_version_that_was_prolonged(
    bucket: Node, tmp_path: Path
) -> None:
    with bucket.client() as client:
        client.set("session", "kept", expiry=3600)
        first = backed_up(bucket, tmp_path)
        client.touch("session", 36_000)
        backed_up(bucket, tmp_path)
    clock = WallClock()
    with (
        embedded(disk=FaultyDisk(), clock=clock, vbuckets=4) as node,
        connect(url := f"couchbase://127.0.0.1:{node.port}/default") as later,
    ):
        restored(tmp_path, SimpleNamespace(url=url), first.id)
        clock.shift_seconds = 4000
        assert later.get_many(["session"]) == {}
        restored(tmp_path, SimpleNamespace(url=url))
        assert later.get("session").value == b"kept"


@pytest.mark.parametrize("keys_at_once", [1, restore.KEYS_AT_ONCE])
def test_what_was_forced_back_between_two_backups_is_restored_though_its_revision_is_lower(
    bucket: Node, empty: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys_at_once: int
) -> None:
    monkeypatch.setattr(restore, "KEYS_AT_ONCE", keys_at_once)
    fill(bucket, "a", 20)
    good = backed_up(bucket, tmp_path)
    with bucket.client() as client:
        for i in range(5):
            assert client.set_many((f"a{k}", f"bad {i}") for k in range(20)) == {}
        client.delete("a7")
    backed_up(bucket, tmp_path)
    restored(tmp_path, bucket, good.id, force=True)
    fill(bucket, "later", 5)
    backed_up(bucket, tmp_path)
    restored(tmp_path, empty)
    assert held(empty) == held(bucket)
    assert held(empty)[b"a8"].value == b"a 8"
    archive = Archive(Folder(tmp_path))
    assert sum(counts(archive, point_of(archive)).values()) == len(held(bucket))
    assert sum(counts(archive, point_of(archive), force=True).values()) > len(held(bucket))


@pytest.mark.parametrize("keys_at_once", [1, restore.KEYS_AT_ONCE])
def test_what_was_forced_back_while_a_full_backup_lay_unfinished_is_restored_though_its_revision_is_lower(
    bucket: Node, empty: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys_at_once: int
) -> None:
    """The backup has both versions of a key, as one that reads on for vbuckets that it had read before."""
    monkeypatch.setattr(restore, "KEYS_AT_ONCE", keys_at_once)
    fill(bucket, "a", 20)
    backed_up(bucket, tmp_path / "good")
    with bucket.client() as client:
        for i in range(5):
            assert client.set_many((f"a{k}", f"bad {i}") for k in range(20)) == {}
        client.delete("a7")

    def ends(name: str) -> None:
        if name == "backup.part_noted":
            raise InterruptedError

    with monkeypatch.context() as patch, pytest.raises(InterruptedError):
        patch.setattr("headwater.backup.create.failpoint", ends)
        backed_up(bucket, tmp_path / "full")
    restored(tmp_path / "good", bucket, force=True)
    fill(bucket, "later", 5)
    made = backed_up(bucket, tmp_path / "full")
    assert made.kind == "full" and made.rows > len(held(bucket))
    restored(tmp_path / "full", empty)
    assert held(empty) == held(bucket)
    archive = Archive(Folder(tmp_path / "full"))
    assert sum(counts(archive, point_of(archive)).values()) == len(held(bucket))


def test_a_restore_that_was_killed_is_done_again(bucket: Node, empty: Node, tmp_path: Path) -> None:
    for name in "ab":
        fill(bucket, name)
        backed_up(bucket, tmp_path)
    code = (
        "import sys; from tests.backup.support import restored; from pathlib import Path; from types import "
        "SimpleNamespace as S; restored(Path(sys.argv[2]), S(url=sys.argv[1]))"
    )
    environment = {**os.environ, "HEADWATER_FAILPOINTS": "backup.restoring=kill"}
    asked = [sys.executable, "-c", code, empty.url, str(tmp_path)]
    assert subprocess.run(asked, env=environment, capture_output=True, timeout=200, check=False).returncode == -9
    assert held(empty) != held(bucket)
    restored(tmp_path, empty)
    assert held(empty) == held(bucket)


def test_what_would_be_written_is_counted_from_checked_files(bucket: Node, tmp_path: Path) -> None:
    fill(bucket, "a")
    made = backed_up(bucket, tmp_path)
    archive = Archive(Folder(tmp_path))
    assert counts(archive, point_of(archive)) == dict(made.part.changes)
    path = next(tmp_path.rglob("*.parquet"))
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(BackupError, match="the file is damaged"):
        counts(archive, point_of(archive))
