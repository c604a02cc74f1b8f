"""An export that is loaded again: everything is as it was."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from headwater import testing
from headwater.client import Client, Mutation, Write
from tests.battery import few_of
from tests.cli.support import Run

FORMATS = ("x.jsonl", "x.csv", "x.tsv", "x.parquet", "x.jsonl.gz", "x.csv.zst")
VALUES = {
    b"plain": b"text",
    b"\xff\x00raw": b"\xfe\x01",
    b"spaced": b'{"a": 1.0e3,\t"a": 2}',
    b"json": b'{"a":[1,2],"half":"\\ud800"}',
    b"empty": b"",
    b"lines": b'a "quoted",\r\nfield\n\rof\tfour\x00lines',
    "Müller \N{SNOWMAN}".encode(): "Zürich \N{SNOWMAN}".encode(),
    b"long": b"x" * 300_000,
    b"beyond a double": b'{"a":1e400}',
    b"digits": b'{"a":' + b"9" * 5000 + b"}",
    b"deep": b"[" * 300 + b"]" * 300,
}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class Pair:
    """A node to export and one to load into."""

    def __init__(self, source: testing.Node, target: testing.Node, run: Run) -> None:
        self.source, self.target, self._run = source, target, run

    def fill(self, writes: list[Write]) -> None:
        with self.source.client() as bucket, self.target.client() as other:
            for each in (bucket, other):
                clear(each)
            assert not bucket.write_many(writes)

    def there_and_back(self, file: Path, *options: str, reading: tuple[str, ...] = ()) -> dict[bytes, Any]:
        export = self._run("export", str(file), *options, "--overwrite", "--node", self.source.url)
        assert export[0] == 0, export
        load = self._run("load", str(file), *(reading or options), "--node", self.target.url)
        assert load[0] == 0, load
        with self.target.client() as other:
            return held(other)


def held(bucket: Client) -> dict[bytes, Any]:
    with bucket.changes(until="now") as changes:
        events: dict[bytes, Any] = {change.key: change for change in changes if hasattr(change, "key")}
    found = {key: event for key, event in events.items() if isinstance(event, Mutation)}
    return {key: (each.value, each.flags, each.expiry) for key, each in found.items()}


def clear(bucket: Client) -> None:
    bucket.delete_many(list(held(bucket)))


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[testing.Node, testing.Node]]:
    with testing.node(vbuckets=4) as source, testing.node(vbuckets=8) as target:
        yield source, target


@pytest.fixture
def pair(nodes: tuple[testing.Node, testing.Node], run: Run) -> Pair:
    return Pair(*nodes, run)


@pytest.mark.parametrize(
    ("name", "encoding"),
    [*((name, "utf-8") for name in FORMATS), ("x.csv", "latin-1"), ("x.csv.zst", "utf-16"), ("x.jsonl", "utf-16")],
)
def test_what_is_exported_loads_back_as_it_was(pair: Pair, tmp_path: Path, name: str, encoding: str) -> None:
    pair.fill([Write(key, value, 0x02000006, 2_000_000_000) for key, value in VALUES.items()])
    found = pair.there_and_back(tmp_path / name, "--encoding", encoding)
    assert found == {key: (value, 0x02000006, 2_000_000_000) for key, value in VALUES.items()}


DOCUMENTS = st.dictionaries(
    st.binary(min_size=1, max_size=20)
    | st.text(min_size=1, max_size=5).map(lambda text: text.encode(errors="replace")),
    st.tuples(
        st.binary(max_size=40) | st.text(max_size=20).map(lambda text: text.encode(errors="replace")),
        st.integers(0, 2**32 - 1),
        st.sampled_from([0, 2_000_000_000, 2**32 - 1]),
    ),
    max_size=12,
)


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(documents=DOCUMENTS, name=st.sampled_from(FORMATS), encoding=st.sampled_from(["utf-8", "cp1252", "shift_jis"]))
def test_any_bytes_come_back(
    pair: Pair, tmp_path: Path, documents: Mapping[bytes, Any], name: str, encoding: str
) -> None:
    pair.fill([Write(key, *rest) for key, rest in documents.items()])
    assert pair.there_and_back(tmp_path / name, "--encoding", encoding) == documents


@pytest.mark.parametrize("name", few_of(["x.jsonl", "x.csv", "x.parquet"], "x.jsonl"))
def test_documents_of_collections_load_back_into_theirs(run: Run, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    with testing.node(vbuckets=4) as source, testing.node(vbuckets=4) as target:
        for node in (source, target):
            assert run("collection", "create", "shop.orders", "--node", node.url)[0] == 0
        assert run("collection", "create", "shop.gone", "--node", source.url)[0] == 0
        for whose in (["--collection", "shop.orders"], ["--collection", "shop.gone"], []):
            assert run("set", "one", f"of {whose}", *whose, "--node", source.url)[0] == 0
        assert run("collection", "drop", "shop.gone", "--yes", "--node", source.url)[0] == 0
        assert run("export", str(file), "--node", source.url)[:2] == (0, run_told(2))
        assert run("load", str(file), "--node", target.url)[0] == 0
        for whose in (["--collection", "shop.orders"], []):
            assert run("get", "one", *whose, "--node", target.url)[:2] == (0, f"of {whose}")
        rows = tmp_path / "rows.jsonl"
        run("set", "two", "{}", "--collection", "shop.orders", "--node", source.url)
        status, _, told = run("export", str(rows), "--key", "id", "--skip-bad", "--node", source.url)
        assert status == 0 and "only the default collection is written; left out: 1 collection of scope shop" in told


class run_told:  # noqa: N801 - reads as a value
    """Equal to the report of so many documents."""

    def __init__(self, documents: int) -> None:
        self._begins = f"{documents} document{'s' * (documents != 1)} written in "

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and other.startswith(self._begins)

    __hash__ = None  # type: ignore[assignment]


# ---------------------------------------------------------------------- rows

ROWS = {"00501": {"id": "00501", "n": 1, "price": 1.5, "ok": True, "tags": ["a"], "where": {"zip": "1", "no": None}}}
ROWS["é"] = {"id": "é", "n": 2**63 - 1, "price": 2.25, "ok": False, "tags": [], "where": {"zip": "2", "no": None}}


def rows(pair: Pair, documents: Mapping[str, Any]) -> None:
    pair.fill([Write(key, json.dumps(value)) for key, value in documents.items()])


def parsed(found: Mapping[bytes, Any]) -> dict[str, Any]:
    return {key.decode(): json.loads(value) for key, (value, *_) in found.items()}


@pytest.mark.parametrize("name", ["x.jsonl", "x.parquet", "x.jsonl.bz2"])
def test_rows_keep_their_types(pair: Pair, tmp_path: Path, name: str) -> None:
    rows(pair, ROWS)
    assert parsed(pair.there_and_back(tmp_path / name, "--key", "id")) == ROWS


def test_rows_of_csv_are_text_whose_types_are_given(pair: Pair, tmp_path: Path) -> None:
    rows(pair, {key: {name: row[name] for name in ("id", "n", "price", "ok")} for key, row in ROWS.items()})
    types = ("--types", "n=int,price=float,ok=bool")
    found = pair.there_and_back(tmp_path / "x.csv", "--key", "id", reading=("--key", "id", *types))
    assert parsed(found) == {key: {name: row[name] for name in ("id", "n", "price", "ok")} for key, row in ROWS.items()}


TEXT_ROWS = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8),
    st.tuples(*[st.text(st.characters(exclude_categories=["Cs"]), max_size=12)] * 2),
    min_size=1,
    max_size=8,
)


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(documents=TEXT_ROWS, name=st.sampled_from(["x.csv", "x.tsv", "x.jsonl", "x.parquet"]))
def test_any_text_comes_back_in_rows(pair: Pair, tmp_path: Path, documents: Mapping[str, Any], name: str) -> None:
    rows(pair, {key: {"id": key, "a": a, "b": b} for key, (a, b) in documents.items()})
    found = parsed(pair.there_and_back(tmp_path / name, "--key", "id"))
    assert found == {key: {"id": key, "a": a, "b": b} for key, (a, b) in documents.items()}


def test_a_field_that_is_missing_is_empty_or_null(pair: Pair, run: Run, tmp_path: Path) -> None:
    rows(pair, {"1": {"a": "x"}, "2": {"b": [1, {"c": 2}], "a": None}})
    at = ("--key", "id", "--node", pair.source.url)
    assert run("export", str(tmp_path / "x.csv"), *at)[0] == 0
    with (tmp_path / "x.csv").open(newline="") as file:
        found = {row["id"]: (row["a"], row["b"]) for row in csv.DictReader(file)}
    assert found == {"1": ("x", ""), "2": ("", '[1,{"c":2}]')}
    assert run("export", str(tmp_path / "x.parquet"), *at)[0] == 0
    table = {row["id"]: (row["a"], row["b"]) for row in parquet.read_table(tmp_path / "x.parquet").to_pylist()}
    assert table == {"1": ("x", None), "2": (None, '[1,{"c":2}]')}  # a number and an object in one array: as JSON


def test_numbers_keep_every_digit_in_csv(pair: Pair, run: Run, tmp_path: Path) -> None:
    pair.fill([Write("k", b'{"id":"k","a":1.50,"b":12345678901234567890,"c":0.1234567890123456789}')])
    assert run("export", str(tmp_path / "x.csv"), "--key", "id", "--node", pair.source.url)[0] == 0
    assert (tmp_path / "x.csv").read_text().splitlines()[1] == "k,1.50,12345678901234567890,0.1234567890123456789"


def test_a_prefix_chooses_keys_and_is_left_out_of_the_field(pair: Pair, tmp_path: Path) -> None:
    rows(pair, {"person:1": {"id": "1"}, "person:2": {"n": "two"}, "other": {"id": "other"}})
    found = pair.there_and_back(tmp_path / "x.csv", "--key", "id", "--prefix", "person:")
    assert parsed(found) == {"person:1": {"id": "1", "n": ""}, "person:2": {"id": "2", "n": "two"}}


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("k", "[1]", "is a list and no JSON object"),
        ("k", "text", "is no JSON"),
        ("k", '{"id": "other"}', "holds 'other' in 'id', which is not its key"),
        (b"\xff", "{}", "has a key that is no UTF-8"),
        ("k", '{"a": 1e999}', "beyond what 64 bits hold"),
    ],
)
def test_a_document_that_is_no_row_is_told_or_left_out(
    pair: Pair, run: Run, tmp_path: Path, key: str | bytes, value: str, why: str
) -> None:
    pair.fill([Write(key, value), Write("good", "{}")])
    file = tmp_path / "x.csv"
    at = ("export", str(file), "--key", "id", "--node", pair.source.url)
    status, _, told = run(*at)
    assert status == 1 and why in told and told.count("\n") == 1 and names(tmp_path) == []
    status, out, told = run(*at, "--skip-bad")
    assert status == 0 and "1 document written" in out and "; 1 document left out" in out and why in told


def test_what_an_encoding_has_not_is_told(pair: Pair, run: Run, tmp_path: Path) -> None:
    rows(pair, {"1": {"a": "\N{SNOWMAN}"}})
    at = ("--key", "id", "--encoding", "latin-1", "--node", pair.source.url)
    status, _, told = run("export", str(tmp_path / "x.csv"), *at)
    assert status == 1 and "'\N{SNOWMAN}' has no place in latin-1; --encoding utf-8 has all" in told
    assert run("export", str(tmp_path / "x.jsonl"), *at)[0] == 0
    assert json.loads((tmp_path / "x.jsonl").read_text("latin-1")) == {"id": "1", "a": "\N{SNOWMAN}"}


def test_a_type_of_a_column_is_given(pair: Pair, run: Run, tmp_path: Path) -> None:
    rows(pair, {"1": {"zip": 501}})
    at = ("export", str(tmp_path / "x.parquet"), "--key", "id", "--node", pair.source.url)
    assert run(*at, "--types", "zip=text")[0] == 0
    assert parquet.read_table(tmp_path / "x.parquet").to_pylist() == [{"id": "1", "zip": "501"}]
    assert "the columns are id, zip" in run(*at, "--overwrite", "--types", "zap=int")[2]


# ---------------------------------------------------------------------- where to


@pytest.mark.battery
def test_standard_output_is_a_file_like_any(pair: Pair, tmp_path: Path) -> None:
    rows(pair, {"1": {"a": "x"}})
    for name in ("csv", "parquet"):
        command = [sys.executable, "-m", "headwater", "export", "-", "--format", name, "--key", "id"]
        done = subprocess.run([*command, "--node", pair.source.url], capture_output=True, timeout=240, check=False)
        assert done.returncode == 0 and b"1 document written" in done.stderr
        if name == "csv":
            assert done.stdout == b"id,a\r\n1,x\r\n"
        else:
            assert parquet.read_table(io.BytesIO(done.stdout)).to_pylist() == [{"id": "1", "a": "x"}]


@pytest.mark.parametrize(
    ("file", "why"),
    [
        ("there.csv", "exists; --overwrite puts the new one in its place"),
        (".", "is a folder; name a file in it"),
        ("none/x.csv", "there is no folder"),
        ("s3://bucket/x.csv", "headwater backup writes to object stores"),
        ("x.txt", "say --format jsonl, csv, tsv or parquet"),
    ],
)
def test_a_place_that_is_none_is_told(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.csv").write_text("mine")
    status, _, told = run("export", file)
    assert status == 2 and why in told and told.count("\n") == 1
    assert (tmp_path / "there.csv").read_text() == "mine" and names(tmp_path) == ["there.csv"]


def test_an_export_is_its_owners_alone(pair: Pair, run: Run, tmp_path: Path) -> None:
    """As the store is that it was read from; and so it is where a file that all may read was there."""
    rows(pair, {"1": {"a": "x"}})
    file = tmp_path / "x.csv"
    for _ in range(2):
        assert run("export", str(file), "--overwrite", "--node", pair.source.url)[0] == 0
        assert file.stat().st_mode & 0o777 == 0o600
        file.chmod(0o644)


def test_a_dry_run_writes_nothing(pair: Pair, run: Run, tmp_path: Path) -> None:
    rows(pair, {"1": {"a": "x"}})
    status, out, _ = run("export", str(tmp_path / "x.csv"), "--dry-run", "--node", pair.source.url)
    assert (status, out) == (0, "1 document, nothing was written\n") and names(tmp_path) == []


@pytest.mark.parametrize("number", few_of([signal.SIGINT, signal.SIGTERM], signal.SIGTERM))
def test_an_export_that_is_ended_leaves_nothing(pair: Pair, tmp_path: Path, number: signal.Signals) -> None:
    pair.fill([Write("k", "v")])
    process = begun(tmp_path, pair.source, "stop")
    wait_for(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    assert [name for name in names(tmp_path) if name != "x.csv"] == names(tmp_path) != []
    process.send_signal(number)
    process.send_signal(signal.SIGCONT)
    _, told = process.communicate(timeout=240)
    assert process.returncode == 128 + number and told == f"headwater: stopped by {number.name}\n"
    assert names(tmp_path) == []


def test_an_export_that_is_killed_leaves_no_file_of_its_name(pair: Pair, tmp_path: Path) -> None:
    pair.fill([Write("k", "v")])
    process = begun(tmp_path, pair.source, "kill")
    process.communicate(timeout=240)
    assert process.returncode == -signal.SIGKILL and not (tmp_path / "x.csv").exists()


def test_a_full_disk_is_told_with_what_it_has_and_leaves_nothing(pair: Pair, tmp_path: Path) -> None:
    pair.fill([Write("k", "v")])
    process = begun(tmp_path, pair.source, "enospc")
    _, told = process.communicate(timeout=240)
    assert process.returncode == 1 and "MiB" in told and told.count("\n") == 1 and names(tmp_path) == []


def begun(folder: Path, node: testing.Node, action: str) -> "subprocess.Popen[str]":
    """An export to x.csv to which this happens when the file is written in part."""
    command = [sys.executable, "-m", "headwater", "export", "x.csv", "--node", node.url]
    environment = os.environ | {"HEADWATER_FAILPOINTS": f"export.written={action}"}
    return subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)


def wait_for(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)
