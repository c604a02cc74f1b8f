"""The quarantine beside a mirror's table: at each moment the documents that do not fit, whatever happened meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from harness.nodes import diverge
from headwater.errors import TableError
from headwater.lake import facts, folds, upkeep
from headwater.lake.log import TableLog
from headwater.lake.store import TableStore
from headwater.lake.unfold import is_text
from headwater.pipelines.mirror import MirrorProgress
from headwater.pipelines.mirror import mirror as run_mirror
from headwater.pipelines.quarantine import QuarantineTable
from headwater.pipelines.sink import TableSink
from headwater.testing.node import Node, node
from tests.pipelines.support import documents, folded, table

BAD = {
    "text": b"plain text",
    "empty": b"",
    "cut": b'{"a": 1',
    "array": b"[1, 2]",
    "nan": b'{"a": NaN}',
    "latin": b'{"a": "\xe9"}',
    "deep": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    b"key\xff": b'{"a": 1}',
}
REASONS = {
    b"text": "no JSON: Expecting value at character 0",
    b"empty": "no JSON: the value is empty",
    b"cut": "no JSON: Expecting ',' delimiter at character 7",
    b"array": "JSON, but no object: an array",
    b"nan": "no JSON: NaN is no value of JSON",
    b"latin": "no JSON: not UTF-8 at byte 7",
    b"deep": "JSON that is nested too deeply",
    b"key\xff": "the key is not UTF-8",
}


@pytest.fixture
def bucket() -> Iterator[Node]:
    with node(vbuckets=4) as running:
        yield running


def mirror(bucket: Node, place: Path, **options: Any) -> MirrorProgress:
    """One run, to the end of what there is."""
    asked = {"once": True, "json": True, "quarantine": True, "workers": 0, "upkeep": False} | options
    return run_mirror(None, bucket.url, place, **asked)


def beside(place: Path) -> Path:
    return Path(f"{place}_quarantine")


def quarantined(place: Path) -> dict[bytes, bytes]:
    return table(beside(place))


def misfits(bucket: Node) -> dict[bytes, bytes]:
    """The documents of a node that are no JSON object, or whose keys are no text, by its own history."""
    return {key: value for key, value in documents(bucket).items() if not (is_text(key) and _is_object(value))}


def _is_object(value: bytes) -> bool:
    try:
        return isinstance(json.loads(value), dict)
    except ValueError:
        return False


def check(bucket: Node, place: Path) -> None:
    """Table and quarantine together are what the bucket is."""
    held = documents(bucket)
    assert table(place) == {key.decode(): value for key, value in held.items() if is_text(key)}
    assert quarantined(place) == misfits(bucket)


def spoil(bucket: Node, name: str) -> None:
    """Mend some documents, spoil others, remove some of each, and add some of one's own."""
    good, bad = json.dumps({"by": name}).encode(), name.encode()
    with bucket.client() as client:
        assert client.set_many((f"a{i}", good) for i in range(10)) == {}
        assert client.set_many((f"a{i}", bad) for i in range(30, 40)) == {}
        client.delete_many([f"a{i}" for i in (*range(10, 15), *range(40, 45))])
        assert client.set_many((f"{name}{i}", bad if i % 2 else good) for i in range(10)) == {}
        assert client.set_many(((b"\xff" + f"{name}{i}".encode()), good) for i in range(3)) == {}


def seed(bucket: Node) -> None:
    """Documents of which the first half is no JSON."""
    with bucket.client() as client:
        assert client.set_many((f"a{i}", b"bad" if i < 30 else b'{"n": 1}') for i in range(60)) == {}
        assert client.set_many((b"\xfe%d" % i, b"{}") for i in range(5)) == {}


def test_each_document_that_does_not_fit_is_there_with_its_place_and_the_reason(bucket: Node, tmp_path: Path) -> None:
    with bucket.client() as client:
        assert client.set_many(BAD.items()) == {}
        client.set("good", b'{"n": 1}')
    told = mirror(bucket, tmp_path / "t")
    assert (told.quarantined, told.mutations) == (8, 8)  # the one whose key is no text has no row in the table
    rows = pl.read_delta(str(beside(tmp_path / "t"))).to_dicts()
    assert {row["key"]: row["reason"] for row in rows} == REASONS
    assert {row["key"]: row["value"] for row in rows} == {_bytes(key): value for key, value in BAD.items()}
    with bucket.client() as client:
        for row in rows:
            assert (row["vbucket"], row["cas"]) == (client.vbucket_of(row["key"]), client.get(row["key"]).cas)
    assert all(row["seqno"] > 0 and len(row["vb_uuid"]) == 16 for row in rows)
    assert table(tmp_path / "t", "n")["good"] == {"n": 1}
    assert table(tmp_path / "t")["text"] == b"plain text"  # whole, as all documents are


def _bytes(key: str | bytes) -> bytes:
    return key.encode() if isinstance(key, str) else key


def test_a_document_leaves_when_it_is_mended_or_deleted_and_comes_when_it_is_spoiled(
    bucket: Node, tmp_path: Path
) -> None:
    seed(bucket)
    mirror(bucket, tmp_path / "t")
    check(bucket, tmp_path / "t")
    for name in ("one", "two"):
        spoil(bucket, name)
        mirror(bucket, tmp_path / "t")
        check(bucket, tmp_path / "t")


def test_what_a_lost_branch_spoiled_mended_and_removed_is_put_right(bucket: Node, tmp_path: Path) -> None:
    seed(bucket)
    mirror(bucket, tmp_path / "t")

    def lost() -> None:
        spoil(bucket, "lost")
        mirror(bucket, tmp_path / "t")
        check(bucket, tmp_path / "t")

    diverge(bucket, lost=lost)
    spoil(bucket, "won")
    assert mirror(bucket, tmp_path / "t").rollbacks == 4
    check(bucket, tmp_path / "t")
    assert not any(b"lost" in key for key in quarantined(tmp_path / "t"))


def test_a_process_that_is_killed_between_the_two_commits_leaves_nothing_that_counts(
    bucket: Node, tmp_path: Path
) -> None:
    seed(bucket)
    mirror(bucket, tmp_path / "t")
    spoil(bucket, "died")
    asked = [sys.executable, "-m", "headwater", "mirror", bucket.url, "--to", str(tmp_path / "t"), "--engine", "local"]
    environment = {**os.environ, "HEADWATER_FAILPOINTS": "lake.quarantine_committed=kill"}
    command = [*asked, "--json", "--quarantine", "--once"]
    died = subprocess.run(command, env=environment, capture_output=True, timeout=540, check=False)
    assert died.returncode == -signal.SIGKILL
    assert quarantined(tmp_path / "t") == misfits(bucket)
    spoil(bucket, "after")
    environment["HEADWATER_FAILPOINTS"] = ""
    went = subprocess.run(command, env=environment, capture_output=True, timeout=540, check=True)
    assert b"put into quarantine" in went.stdout + went.stderr
    check(bucket, tmp_path / "t")


class Died(BaseException):
    """A driver that is killed."""


def _die(*_: object, **__: object) -> None:
    raise Died


@pytest.mark.parametrize("meanwhile", ["nothing", "changes", "a failover"])
def test_a_driver_that_dies_between_the_two_commits_leaves_nothing_that_counts(
    meanwhile: str, bucket: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quarantine is ahead by a batch of which the table has nothing; should a failover take that batch back, no
    rollback would tell of it."""
    seed(bucket)
    mirror(bucket, tmp_path / "t")

    def died() -> None:
        spoil(bucket, "died")
        before = quarantined(tmp_path / "t")
        with monkeypatch.context() as patched, pytest.raises(Died):
            patched.setattr(TableSink, "put", _die)
            mirror(bucket, tmp_path / "t")
        assert quarantined(tmp_path / "t") == misfits(bucket) != before

    if meanwhile == "a failover":
        diverge(bucket, lost=died)
    else:
        died()
    if meanwhile != "nothing":
        spoil(bucket, "after")
    mirror(bucket, tmp_path / "t")
    check(bucket, tmp_path / "t")
    spoil(bucket, "again")
    mirror(bucket, tmp_path / "t")
    check(bucket, tmp_path / "t")


def test_a_driver_that_died_and_a_fold_by_hand_before_the_next_one(
    bucket: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed(bucket)
    mirror(bucket, tmp_path / "t")
    spoil(bucket, "died")
    with monkeypatch.context() as patched, pytest.raises(Died):
        patched.setattr(TableSink, "put", _die)
        mirror(bucket, tmp_path / "t")
    log = TableLog(TableStore(beside(tmp_path / "t")))
    log.refresh()
    assert folds.optimize(log, None, everything=True) > 0
    upkeep.checkpoint(log)
    diverge(bucket, lost=lambda: None)
    mirror(bucket, tmp_path / "t")
    check(bucket, tmp_path / "t")


def test_folds_of_the_quarantine_change_nothing_and_are_not_taken_back(bucket: Node, tmp_path: Path) -> None:
    seed(bucket)
    for n in range(2 * folds.FAN):
        with bucket.client() as client:
            client.set_many((f"a{i}", f"bad{n}".encode()) for i in range(n, n + 20))
        mirror(bucket, tmp_path / "t", upkeep=True)
        check(bucket, tmp_path / "t")
    log = TableLog(TableStore(beside(tmp_path / "t")))
    log.refresh()
    operations = [each["operation"] for each in facts.history(log)]
    assert "OPTIMIZE" in operations and "RESTORE" not in operations


def test_two_mirrors_of_one_table_do_not_harm_its_quarantine(bucket: Node, tmp_path: Path) -> None:
    seed(bucket)
    for n in range(3):
        spoil(bucket, f"n{n}")
        runs = [threading.Thread(target=mirror, args=(bucket, tmp_path / "t")) for _ in range(2)]
        for run in runs:
            run.start()
        for run in runs:
            run.join()
        check(bucket, tmp_path / "t")


def test_a_mirror_that_opens_the_tables_between_the_commits_of_another_leaves_them_right(
    bucket: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken back is what the record that it read does not name; another committed a whole batch since."""
    seed(bucket)
    mirror(bucket, tmp_path / "t")
    spoil(bucket, "new")
    level, others = QuarantineTable.level, [1]

    def slowly(self: QuarantineTable, version: int | None) -> bool:
        if others:
            others.pop()
            mirror(bucket, tmp_path / "t")
        return level(self, version)

    monkeypatch.setattr(QuarantineTable, "level", slowly)
    TableSink(tmp_path / "t", "default")
    check(bucket, tmp_path / "t")


def test_a_mirror_that_wakes_after_another_took_its_batch_back(
    bucket: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mirror has committed to the quarantine and then sleeps; the other's restore comes in between, and its commit to
    the table is in time all the same."""
    seed(bucket)
    mirror(bucket, tmp_path / "t")
    spoil(bucket, "slow")
    append = QuarantineTable.append

    def slowly(self: QuarantineTable, *given: Any) -> int:
        version = append(self, *given)
        TableSink(tmp_path / "t", "default")  # another mirror looks at the tables, and takes back what no record names
        return version

    with monkeypatch.context() as patched:
        patched.setattr(QuarantineTable, "append", slowly)
        mirror(bucket, tmp_path / "t")
    mirror(bucket, tmp_path / "t")
    check(bucket, tmp_path / "t")
    log = TableLog(TableStore(beside(tmp_path / "t")))
    log.refresh()
    assert [each["operation"] for each in facts.history(log)].count("RESTORE") == 2


def _remove(place: Path) -> None:
    shutil.rmtree(beside(place))


def _lose_its_files(place: Path) -> None:
    for file in beside(place).glob("*.parquet"):
        file.unlink()
    log = TableLog(TableStore(beside(place)))
    state = log.refresh()
    (added,) = [file.add for file in state.files.values()][:1]
    assert log.commit([{"remove": {"path": added["path"], "deletionTimestamp": 1, "dataChange": True}}], "DELETE")


@pytest.mark.parametrize("harm", [_remove, _lose_its_files])
def test_a_quarantine_that_is_lost_is_made_anew_from_the_bucket(
    harm: Callable[[Path], None], bucket: Node, tmp_path: Path
) -> None:
    seed(bucket)
    mirror(bucket, tmp_path / "t", changelog=True)
    harm(tmp_path / "t")
    told = mirror(bucket, tmp_path / "t", changelog=True)
    assert told.rollbacks == 4  # all is read anew and replaced
    check(bucket, tmp_path / "t")
    assert folded(Path(f"{tmp_path / 't'}_changes")) == documents(bucket)


def test_a_table_that_had_none_gets_one_with_what_was_left_out_before(bucket: Node, tmp_path: Path) -> None:
    seed(bucket)
    mirror(bucket, tmp_path / "t", quarantine=False)
    assert not beside(tmp_path / "t").exists()
    mirror(bucket, tmp_path / "t")
    check(bucket, tmp_path / "t")


def test_a_table_that_has_one_keeps_it_without_being_told(bucket: Node, tmp_path: Path) -> None:
    seed(bucket)
    mirror(bucket, tmp_path / "t")
    spoil(bucket, "more")
    mirror(bucket, tmp_path / "t", quarantine=False)
    check(bucket, tmp_path / "t")


def test_a_quarantine_for_a_table_that_everything_fits_is_refused(bucket: Node, tmp_path: Path) -> None:
    with pytest.raises(TableError, match="mirror with --unfold"):
        mirror(bucket, tmp_path / "t", json=False)


def test_worker_processes_and_a_table_without_vectors_do_the_same(bucket: Node, tmp_path: Path) -> None:
    seed(bucket)
    mirror(bucket, tmp_path / "t", workers=2, copy_on_write=True)
    spoil(bucket, "more")
    mirror(bucket, tmp_path / "t", workers=2, copy_on_write=True)
    check(bucket, tmp_path / "t")
    assert facts.describe(TableLog(TableStore(tmp_path / "t")))["quarantine"]["rows"] == len(misfits(bucket))
