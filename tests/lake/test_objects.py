"""Tables on an object store, against a server of its own."""

from __future__ import annotations

import multiprocessing
import os
import socket
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from headwater.errors import ConnectionLost, TableAway, TableError, TransportError
from headwater.lake import folds, objects, upkeep
from headwater.lake.files import DataWriter
from headwater.lake.index import Indexes, hashes_of, index_of
from headwater.lake.log import FOLDER, TableLog
from headwater.lake.places import store_of
from headwater.lake.vacuum import vacuum
from headwater.pipelines.failures import passes
from tests.lake.s3_server import AUTHORISED, BUCKET, make_bucket, options_of, s3_server
from tests.lake.support import SEED, Table, rows


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    with s3_server() as environment, pytest.MonkeyPatch.context() as patch:
        for name, text in environment.items():
            patch.setenv(name, text)
        make_bucket()
        yield environment


@pytest.fixture
def place(server: dict[str, str]) -> str:
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


def write(place: str, made: Any, environment: dict[str, str]) -> None:
    """Write an object and leave a draft; the server of processes may be older than what the environment says now."""
    os.environ.update(environment)
    store = store_of(place)
    Path(store.draft("one")).write_bytes(b"1")
    store.publish("one")
    Path(store.draft("two")).write_bytes(b"2")
    made.put(store.draft("two"))
    made.close()
    made.join_thread()
    keep_for_ever.append(store)


keep_for_ever: list[Any] = []


def test_a_process_of_a_pool_leaves_no_drafts_behind_and_who_only_reads_makes_no_folder(
    place: str, server: dict[str, str]
) -> None:
    forked = multiprocessing.get_context("forkserver")  # where a mirror's workers come from
    made = forked.Queue()
    writer = forked.Process(target=write, args=(place, made, server))
    writer.start()
    draft = Path(made.get(timeout=120))
    writer.join(120)
    assert writer.exitcode == 0 and not draft.parent.exists()
    assert (reader := store_of(place)).read("one") == b"1"
    assert "_drafts" not in vars(reader)


def test_of_all_who_create_an_object_one_succeeds(place: str) -> None:
    one, two = store_of(place), store_of(place)
    assert [one.create("log/1", b"one"), two.create("log/1", b"two"), one.create("log/1", b"three")] == [
        True,
        False,
        False,
    ]
    assert two.read("log/1") == b"one"
    assert [listed.path for listed in one.list("log")] == ["log/1"]
    assert one.list() == one.list("_delta_log") == []  # what it asked the store with is gone


def test_a_commit_to_a_log_that_is_removed_while_it_is_put_is_taken_back(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another mirror, whose collection was dropped: the next table would grow into it."""
    table = Table(place)
    put: Any = table.store._put_new  # type: ignore[attr-defined]

    def removed(path: str, content: bytes) -> Any:
        for listed in store_of(place).list(FOLDER):
            table.store.remove(listed.path)
        return put(path, content)

    monkeypatch.setattr(table.store, "_put_new", removed)
    with pytest.raises(TableAway, match="the table that was here is away"):
        table.log.commit([], "ONE")
    assert table.store.list(FOLDER) == []


def test_a_commit_stays_where_the_store_does_not_say_afterwards_behind_what_it_is(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another mirror goes on from it while the look is tried again and again: without it there would be a gap."""
    table, other = Table(place), Table(place)
    put: Any = table.store._put_new  # type: ignore[attr-defined]

    def silent(path: str) -> bytes:
        other.log.refresh()
        assert other.log.commit([], "TWO")
        raise ConnectionLost(place, "no answer")

    def put_once(path: str, content: bytes) -> Any:
        done = put(path, content)
        monkeypatch.setattr(table.store, "read", silent)
        return done

    monkeypatch.setattr(table.store, "_put_new", put_once)
    with pytest.raises(ConnectionLost):
        table.log.commit([], "ONE")
    log = TableLog(store_of(place))
    assert log.refresh().version == other.log.state.version == table.log.state.version + 2


def test_a_store_that_overwrites_all_the_same_is_refused(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "_ways", {})
    store: Any = store_of(place)
    put = store._files.pipe_file
    monkeypatch.setattr(store._files, "pipe_file", lambda key, content, mode=None: put(key, content))
    with pytest.raises(TableError, match="If-None-Match"):
        store.create("x", b"1")
    assert not store.exists("x")


def test_a_lost_answer_is_not_taken_for_a_store_without_conditions(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library puts again, and the store refuses that: the first put was done."""
    monkeypatch.setattr(objects, "_ways", {})
    store: Any = store_of(place)
    put, lost = store._files.pipe_file, [True]

    def cut_off(key: str, content: bytes, mode: str) -> Any:
        put(key, content, mode=mode)
        return put(key, content, mode=mode) if lost and lost.pop() else None

    monkeypatch.setattr(store._files, "pipe_file", cut_off)
    assert store.create("x", b"1")
    assert store.list("_delta_log") == []


def test_each_stores_own_word_for_when_an_object_was_put_is_known() -> None:
    """s3fs, gcsfs, adlfs: one that is not known is never old, and nothing is ever removed."""
    then = datetime(2026, 11, 23, tzinfo=UTC)
    for name in ("LastModified", "mtime", "updated", "last_modified"):
        assert objects._modified({"name": "x", name: then}) == then.timestamp()
    assert objects._modified({"updated": then.isoformat()}) == then.timestamp()
    assert objects._modified({}) == float("inf")


def test_a_put_that_is_not_decided_yet_is_asked_again(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 answers 409 while another put of the same name is under way, whichever of them will be first."""
    store: Any = store_of(place)
    assert store.create("first", b"1")
    put, answers = store._files.pipe_file, [objects._UNDECIDED] * 2

    def undecided(*args: Any, **options: Any) -> Any:
        if answers:
            raise OSError(22, answers.pop())
        return put(*args, **options)

    monkeypatch.setattr(objects, "UNDECIDED_SECONDS", 0.0)
    monkeypatch.setattr(store._files, "pipe_file", undecided)
    assert (store.create("second", b"1"), store.create("first", b"2"), answers) == (True, False, [])


def test_a_bucket_that_is_not_there_is_no_outage(server: dict[str, str]) -> None:
    with pytest.raises(TableError, match="s3://nowhere/t: there is no such bucket"):
        store_of("s3://nowhere/t").create("x", b"1")


def test_credentials_that_are_refused_are_no_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server(**AUTHORISED) as environment:
        for name, text in environment.items():
            monkeypatch.setenv(name, text)
        with pytest.raises(TableError, match=r"s3://lake/t: the store refuses: .*look at the credentials"):
            store_of("s3://lake/t").create("x", b"1")


def test_credentials_that_are_missing_are_no_outage(server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(TableError, match=r"NoCredentialsError: .*look at the credentials"):
        store_of("s3://lake/t").create("x", b"1")


def test_a_server_that_is_away_is_an_outage(server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as refusing:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{refusing.getsockname()[1]}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises((OSError, TransportError)) as lost:
        store_of("s3://lake/t").read("x")
    assert passes(lost.value) and not isinstance(lost.value, FileNotFoundError)


@pytest.mark.parametrize("error", [OSError(16, "SlowDown"), OSError("Forbidden"), RuntimeError("HttpError 503")])
def test_a_store_that_is_busy_while_a_checkpoint_is_read_is_an_outage_and_no_damage(
    error: Exception, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first commit of the table is gone, as after a month: without the checkpoint there is nothing to read."""
    table = Table(place)
    table.take(("k", 0, 1, "v"), fresh=[0])
    upkeep.checkpoint(table.log)
    table.store.remove("_delta_log/00000000000000000000.json")

    def busy(*_: Any, **__: Any) -> bytes:
        raise error

    monkeypatch.setattr("s3fs.core.S3File._fetch_range", busy)
    with pytest.raises(ConnectionLost) as lost:
        TableLog(store_of(place)).refresh()
    assert passes(lost.value)
    monkeypatch.undo()
    assert TableLog(store_of(place)).refresh().version == table.log.state.version


def test_objects_are_read_written_listed_and_removed(place: str) -> None:
    store = store_of(place)
    store.write("a", b"one")
    store.write("a", b"anew")
    assert (store.read("a"), store.exists("a"), store.exists("b")) == (b"anew", True, False)
    mapped = store.mapped("a")
    assert mapped is not None and mapped[:] == b"anew"
    assert store.mapped("b") is None
    (listed,) = store.list()
    assert (listed.path, listed.size) == ("a", 4) and listed.modified > 1.6e9
    store.remove("a")
    store.remove("a")
    with pytest.raises(FileNotFoundError):
        store.read("a")


def test_data_files_and_indexes_come_back(place: str) -> None:
    store = store_of(place)
    batch = rows(*[(f"k{number}", number % 4, number, "v") for number in range(500)]).select(
        ["key", "vbucket", "seqno"]
    )
    out = DataWriter(store, batch.schema)
    out.add(batch)
    (file,) = out.close()
    with store.parquet(file.path) as opened:
        assert opened.read().equals(pa.Table.from_batches([batch]))
        of_python = opened.reader  # s3fs's file, which no thread of Arrow's may have when the interpreter ends
    assert of_python.closed
    assert [(listed.path, listed.size) for listed in store.list()] == [(file.path, file.size)]
    hashes = hashes_of(batch.column("key"), batch.column("vbucket").to_numpy(), SEED)
    Indexes(store, "table", SEED).write(file.path, index_of(hashes, np.arange(500)), 500)
    again = Indexes(store_of(place), "table", SEED)
    assert sorted(again.of(file.path).find(index_of(hashes, np.arange(500)).hashes).tolist()) == list(range(500))
    assert again.rebuilt == 0


def test_a_failed_writer_leaves_nothing(place: str) -> None:
    store = store_of(place)
    batch = rows(("k", 1, 1, "v"))
    out = DataWriter(store, batch.schema, group_bytes=1)
    out.add(batch)
    out.discard()
    assert store.list() == []


def test_a_table_is_written_folded_and_read_by_somebody_else(place: str) -> None:
    table = Table(place)
    for number in range(10):
        table.take(*[(f"k{key}", key % 4, 1 + number * 100 + key, f"{number}") for key in range(number, 40)])
    table.take(("k0", 0, 5000, None))
    folds.optimize(table.log, table.indexes)
    upkeep.checkpoint(table.log)
    assert len(table.log.state.files) < 8
    fresh = TableLog(store_of(place)).refresh()
    assert fresh.files.keys() == table.log.state.files.keys()
    found = pl.read_delta(place, columns=["key", "value"], storage_options=options_of(place)).to_dicts()
    expected = {f"k{key}".encode(): f"{min(key, 9)}".encode() for key in range(1, 40)}
    assert {row["key"]: row["value"] for row in found} == expected and len(found) == 39
    assert vacuum(table.log) == []
