import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from headwater import testing
from headwater.cli.failures import CommandError
from headwater.cli.load import DOCUMENTS_PER_CALL, Load, _stored_rows
from headwater.cli.load import _refusal_text as said_of_refused
from headwater.cli.readers import InputDocument
from headwater.client import Durability, bulk, connect, writes
from headwater.client.bulk import BulkWriter
from headwater.errors import SyncWriteAmbiguous, TooBig
from tests.cli.support import Run
from tests.client.test_made_anew import make, make_anew, url
from tests.pipelines.support import becomes


def until(true: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not in {seconds} s: {what}"
        time.sleep(0.02)


def test_a_loaded_file_is_stored_row_by_row(run: Run, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("id,n\n" + "".join(f"k{number},{number}\n" for number in range(300)))
    status, told, _ = run("load", str(rows), "--key", "id", "--prefix", "row:")
    assert status == 0 and told.startswith("300 documents stored in ")
    assert json.loads(run("get", "row:k299")[1]) == {"id": "k299", "n": "299"}


def test_a_column_s_type_is_given_or_inferred(run: Run, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("zip,n\n00501,7\n")
    for option in (["--types", "n=int"], ["--infer"]):
        assert run("load", str(rows), "--key", "zip", *option)[0] == 0
        assert json.loads(run("get", "00501")[1]) == {"zip": "00501", "n": 7}


@pytest.mark.parametrize(
    ("types", "why"),
    [
        ("n", "'n' is not COLUMN=TYPE"),
        ("n=long", "'long' is none of text, int, float, bool"),
        ("m=int", "--types names 'm'"),
    ],
)
def test_a_type_that_is_none_is_told(run: Run, tmp_path: Path, types: str, why: str) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("zip,n\n00501,7\n")
    status, _, told = run("load", str(rows), "--key", "zip", "--types", types)
    assert status in (1, 2) and why in told and told.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("deep.jsonl", b'{"id":1,"v":' + b"[" * 200_000),
        ("quote.csv", b"id,x\n" + b"1,2\n" * 1000 + b'2,"' + b"x" * (1 << 20)),
        ("cut.jsonl.gz", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03abcdefgh"),
        ("none.parquet", b"PAR1" + b"\xff" * 100 + b"PAR1"),
    ],
)
def test_a_file_that_was_made_to_break_it_ends_in_one_line(run: Run, tmp_path: Path, name: str, text: bytes) -> None:
    (tmp_path / name).write_bytes(text)
    for option in ([], ["--dry-run"], ["--skip-bad"]):
        status, _, told = run("load", str(tmp_path / name), "--key", "id", *option)
        assert told.startswith((f"headwater: {tmp_path / name}", f"{tmp_path / name}")), told
        assert status == (0 if name == "deep.jsonl" and option == ["--skip-bad"] else 1)
        assert "Traceback" not in told


def test_an_encoding_that_nobody_knows_is_told(run: Run, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("id\n1\n")
    status, _, told = run("load", str(rows), "--key", "id", "--encoding", "latin-99")
    assert status == 2 and "latin-99" in told and told.count("\n") == 1


def test_standard_input_is_loaded(node: testing.Node, run: Run) -> None:
    command = [sys.executable, "-m", "headwater", "load", "-", "--format", "csv", "--key", "id", "--node", node.url]
    done = subprocess.run(command, input=b"id,n\nfrom-stdin,007\n", capture_output=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(run("get", "from-stdin")[1]) == {"id": "from-stdin", "n": "007"}


def test_standard_input_has_no_name_to_tell_its_format(run: Run) -> None:
    status, _, told = run("load", "-", "--key", "id")
    assert status == 1 and "say --format jsonl, csv, tsv or parquet" in told


def test_a_file_that_is_not_there_is_told(run: Run, tmp_path: Path) -> None:
    status, _, told = run("load", str(tmp_path / "none.csv"), "--key", "id")
    assert status == 2 and "none.csv' does not exist" in told and told.count("\n") == 1


def test_a_failed_load_says_what_is_durable_and_goes_on_behind_it(run: Run, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"id": "part-{n}"}}\n' for n in range(7)) + "nonsense\n")
    status, _, told = run("load", str(rows), "--key", "id")
    assert status == 1 and "line 8: is not JSON" in told
    assert "7 documents of it are stored; go on behind them with --skip 7" in told and told.count("\n") == 1
    assert run("get", "part-6")[0] == 0
    rows.write_text(rows.read_text().replace("nonsense", '{"id": "part-7"}'))
    assert run("load", str(rows), "--key", "id", "--skip", "7")[1].startswith("1 documents stored")


@pytest.mark.parametrize("name", ["rows.jsonl", "copy.jsonl"])
def test_a_file_is_loaded_onto_a_majority_of_the_copies(
    run: Run, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[object] = []

    class Noted(BulkWriter):
        def __init__(self, *given: object) -> None:
            chosen.append(given[3])
            super().__init__(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(bulk, "BulkWriter", Noted)
    monkeypatch.setattr(writes, "BulkWriter", Noted)
    path = tmp_path / name
    assert run("set", "copied", "v")[0] == 0
    key: tuple[str, ...] = ("--key", "id")
    if name == "copy.jsonl":
        assert run("export", str(path))[0] == 0
        key = ()
    else:
        path.write_text('{"id": "durable-1"}\n{"id": "durable-2"}\n')
    assert run("load", str(path), *key, "--durability", "majority", "--durability-timeout", "2.5")[0] == 0
    assert chosen and set(chosen) == {Durability("majority", 2.5)}
    assert run("load", str(path), *key, "--durability", "most")[0] == 2
    assert run("load", str(path), *key, "--durability-timeout", "2")[0] == 2


def test_documents_of_which_nobody_knows_whether_they_were_stored_are_counted() -> None:
    errors = [SyncWriteAmbiguous("set"), SyncWriteAmbiguous("set"), TooBig("set")]
    told = said_of_refused({b"k%d" % place: error for place, error in enumerate(errors)})
    assert told.startswith(
        "1 documents were refused, and of 2 it is not known whether they were stored, the first is 'k0'"
    )
    told = said_of_refused({b"k": errors[0]})
    assert told.startswith("of 1 it is not known whether they were stored, the first is 'k': set: SYNC_WRITE_AMBIGUOUS")
    told = said_of_refused({b"k": errors[2]})
    assert told.startswith("1 documents were refused, the first is 'k': set: ")


def test_a_stopped_load_says_what_is_durable(node: testing.Node, tmp_path: Path) -> None:
    pipe = tmp_path / "rows.jsonl"
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "headwater", "load", str(pipe), "--key", "id", "--node", node.url]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as load, pipe.open("wb") as feed:
        feed.write(
            b"".join(b'{"id":"s%d","pad":"%s"}\n' % (row, b"x" * 99) for row in range(2 * DOCUMENTS_PER_CALL + 20_000))
        )
        feed.flush()
        with node.client() as bucket:
            # The load counts the first part when it is answered; then it sends the second one.
            until(lambda: bool(bucket.get_many([f"s{DOCUMENTS_PER_CALL}"])), "the second part is begun")
        load.send_signal(signal.SIGINT)
        assert load.stderr is not None
        told = load.stderr.read()
        assert load.wait(120) == 130
    assert told.startswith("headwater: stopped by SIGINT") and "documents of it are stored; go on" in told


def rows_of(*keys: bytes) -> list[InputDocument]:
    return [InputDocument(key, b"{}", position) for position, key in enumerate(keys, start=1)]


def test_a_load_ends_when_its_collection_is_made_again_between_two_parts() -> None:
    """The earlier parts have gone with the collection, so that no --skip leads behind them."""
    with testing.node(vbuckets=4) as node, node.client() as client:
        becomes(node, 1, a=8, b=9)
        load = Load("rows.jsonl", node.url, 0, _stored_rows)
        end = r"shop\.a .* had id 0x8, and has 0xa.*; load rows\.jsonl from its beginning"
        with pytest.raises(CommandError, match=end), load.reported_end():
            load.store(client, "shop.a", b"", rows_of(b"k1", b"k2"))
            becomes(node, 2, a=10, b=9)
            load.store(client, "shop.a", b"", rows_of(b"k3"))


@pytest.mark.parametrize("collection", [None, "shop.a"])
def test_a_load_ends_when_its_bucket_is_made_again_between_two_parts(collection: str | None) -> None:
    with testing.node(vbuckets=4) as node:
        make(node, 8, "a")
        with connect(url(node)) as client:
            load = Load("rows.jsonl", url(node), 0, _stored_rows)
            end = r"was dropped and made again.*; load rows\.jsonl from its beginning"
            with pytest.raises(CommandError, match=end), load.reported_end():
                load.store(client, collection, b"", rows_of(b"k1", b"k2"))
                make_anew(node, 8, "a")
                load.store(client, collection, b"", rows_of(b"k3"))


def test_a_file_that_is_broken_in_the_middle_is_told(run: Run, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"id": 1}\n{"n": 2}\n')
    status, _, told = run("load", str(rows), "--key", "id")
    assert status == 1 and f"{rows}, line 2: has no field 'id'" in told and told.count("\n") == 1


def test_a_key_may_be_a_member_of_a_member(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "nested.jsonl"
    rows = [{"order": {"id": "o-1"}}, {"order.id": "o-2"}, {"a.b": 1, "order": {"id": 3}}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    assert run("load", str(path), "--key", "order.id")[0] == 0
    assert run("get", "o-1")[0] == run("get", "o-2")[0] == run("get", "3")[0] == 0


def test_a_dry_run_reads_all_and_stores_nothing(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "dry.jsonl"
    path.write_text('{"id": "dry-1"}\n{"id": "dry-2"}\n', "utf-8")
    assert run("load", str(path), "--key", "id", "--dry-run") == (0, "2 documents, nothing was stored\n", "")
    assert run("get", "dry-1")[0] == 1
    path.write_text('{"id": "dry-1"}\n{"no": 1}\n', "utf-8")
    status, stdout, stderr = run("load", str(path), "--key", "id", "--dry-run")
    assert (status, stdout) == (1, "") and "line 2: has no field 'id'" in stderr


BAD = {
    "bad.jsonl": '{"id": "ok-1"}\nnot json\n{"no": 1}\n{"id": "ok-2"}\n',
    "bad.csv": 'id\nok-1\n""\n""\nok-2\n',
}


@pytest.mark.parametrize(("name", "text"), BAD.items())
def test_bad_rows_are_left_out_when_asked_and_each_is_told(run: Run, tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text, "utf-8")
    status, stdout, stderr = run("load", str(path), "--key", "id", "--skip-bad")
    assert (status, stdout.split(" in ")[0]) == (0, "2 documents stored") and stdout.endswith("; 2 rows left out\n")
    assert stderr.count("; left out\n") == 2
    assert run("get", "ok-1")[0] == run("get", "ok-2")[0] == 0


NO_CHANGES = [
    '{"event": "mutation"}',
    '{"event": "flood", "key": "k"}',
    '{"event": "mutation", "key": "k", "base64": "*"}',
    '{"event": "mutation", "key": ""}',
]


@pytest.mark.parametrize("line", NO_CHANGES)
def test_a_line_that_is_no_change_is_told(run: Run, tmp_path: Path, line: str) -> None:
    path = tmp_path / "changes.jsonl"
    path.write_text(line + "\n", "utf-8")
    status, _, stderr = run("load", str(path), "--format", "changes")
    assert (status, stderr.count("\n")) == (1, 1) and "changes.jsonl, line 1: " in stderr


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "rows.parquet"])
def test_a_file_of_rows_needs_the_name_of_its_key(run: Run, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text('{"id": 1}\n' if name.endswith("jsonl") else "id,n\n1,2\n", "utf-8")
    if name.endswith("parquet"):
        parquet.write_table(pa.table({"id": [1]}), path)
    status, _, stderr = run("load", str(path))
    assert status == 1 and "--key FIELD names the field whose value becomes the key" in stderr


def test_a_field_of_csv_may_have_line_ends(run: Run, tmp_path: Path) -> None:
    """More than Arrow looks at at a time, which are cut where a line ends."""
    rows = tmp_path / "rows.csv"
    rows.write_text("id,text\n" + 'k,"a\nb"\n' * 200_000)
    status, told, _ = run("load", str(rows), "--key", "id", "--dry-run")
    assert (status, told) == (0, "200,000 documents, nothing was stored\n")


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("k,v,x", "has 3 fields, the first line names 4"),
        ("k,v,-1,0", "flags is '-1'"),
        ("k,v,0,4294967296", "expiry is"),
    ],
)
def test_a_row_that_export_did_not_write_is_told(run: Run, tmp_path: Path, row: str, why: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"key,value,flags,expiry\nk,v,0,0\n{row}\n")
    status, _, told = run("load", str(path), "--dry-run")
    assert status == 1 and "rows.csv, row 2: " in told and why in told
    status, out, told = run("load", str(path), "--dry-run", "--skip-bad")
    assert status == 0 and "1 documents, nothing was stored; 1 rows left out" in out
