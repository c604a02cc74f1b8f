import csv
import datetime
import io
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.nodes import call
from headwater import testing
from headwater.client import Mutation
from headwater.testing.peers import History, Peer, Snapshot, mutation, serve
from headwater.wire.header import Frame, response
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.cli.support import Run


def test_tail_shows_each_kind_of_change_once(run: Run) -> None:
    run("set", "tailed", '{"a": 1}')
    run("set", "binary", "-", stdin=b"\xff\x00")
    run("set", "dropped", "v")
    run("delete", "dropped")
    rows = [json.loads(line) for line in run("tail", "--once", "--json")[1].splitlines()]
    by_key = {row["key"]: row for row in rows if "key" in row}
    assert len(by_key) == len([row for row in rows if "key" in row])
    assert (by_key["tailed"]["event"], by_key["tailed"]["value"]) == ("mutation", {"a": 1})
    assert by_key["binary"]["base64"] == "/wA="
    assert by_key["dropped"]["event"] == "deletion" and "value" not in by_key["dropped"]


def test_tail_in_a_pipe_keeps_what_the_terminal_may_not_have(run: Run) -> None:
    run("set", "esc\x1b[31mkey", "-", stdin=b"\x1b[0mvalue")
    assert r" mutation esc\x1b[31mkey \x1b[0mvalue" in run("tail", "--once")[1]
    [row] = [
        row for row in map(json.loads, run("tail", "--once", "--json")[1].splitlines()) if "esc" in row.get("key", "")
    ]
    assert (row["key"], row["text"]) == ("esc\x1b[31mkey", "\x1b[0mvalue")


def test_a_key_that_is_no_text_is_base64_as_well(node: testing.Node, run: Run) -> None:
    with node.client() as bucket:
        bucket.set(b"\xff\x00raw", "v")
    rows = map(json.loads, run("tail", "--once", "--json")[1].splitlines())
    assert [row["key"] for row in rows if row.get("key_base64") == "/wByYXc="] == ["\\xff\x00raw"]


def test_tail_for_people_cuts_long_values_and_can_leave_them_out(run: Run) -> None:
    run("set", "long", "x" * 200)
    line = next(line for line in run("tail", "--once")[1].splitlines() if " long " in line)
    assert line.endswith("x" * 160 + "... (40 bytes more)")
    short = next(line for line in run("tail", "--once", "--keys-only")[1].splitlines() if line.endswith(" long"))
    assert short.split()[1:] == ["mutation", "long"]


def test_tail_from_now_shows_nothing_older(run: Run) -> None:
    run("set", "older", "v")
    assert run("tail", "--from", "now", "--once") == (0, "", "")


CHANGED = {
    b"plain": b"text",
    b"\xff\x00raw": b"\xfe\x01",
    b"spaced": b'{"a": 1.0e3,\t"a": 2}',
    b"json": b'{"a":[1,2]}',
    b"empty": b"",
    b"beyond a double": b'{"a":1e400,"b":[-1e999]}',
    b"digits": b'{"a":' + b"9" * 5000 + b"}",
    b"deep": b"[" * 300 + b"]" * 300,
}
HALF = b'{"half":"\\ud800"}'


def test_the_output_of_tail_loads_back_as_it_was(run: Run, tmp_path: Path) -> None:
    saved = tmp_path / "copy.jsonl"
    with testing.node(vbuckets=4) as source, testing.node(vbuckets=8) as target:
        with source.client() as bucket:
            for key, value in CHANGED.items():
                bucket.set(key, value, flags=0x02000006, expiry=2_000_000_000)
            bucket.set("half", HALF)
            bucket.set("gone", "v")
            bucket.delete("gone")
        saved.write_text(run("tail", "--once", "--json", "--node", source.url)[1], "utf-8")
        with target.client() as other:
            other.set("gone", "v")
            status, stdout, _ = run("load", str(saved), "--format", "changes", "--node", target.url)
            changes = [event for event in other.changes(until="now") if isinstance(event, Mutation)]
    assert (status, stdout.split(" stored")[0]) == (0, f"{len(CHANGED) + 2} documents")
    expected = {key: (value, 0x02000006, 2_000_000_000) for key, value in CHANGED.items()}
    assert {change.key: (change.value, change.flags, change.expiry) for change in changes} == expected | {
        b"half": (HALF, 0, 0)
    }


@pytest.mark.battery
def test_documents_of_collections_load_back_into_theirs(run: Run, tmp_path: Path) -> None:
    saved = tmp_path / "copy.jsonl"
    with testing.node(vbuckets=4) as source, testing.node(vbuckets=8) as target:
        for node in (source, target):
            assert run("collection", "create", "shop.orders", "--node", node.url)[0] == 0
        for whose in (["--collection", "shop.orders"], []):
            assert run("set", "one", f"of {whose}", *whose, "--node", source.url)[0] == 0
            assert run("set", "gone", "v", *whose, "--node", source.url)[0] == 0
        assert run("delete", "gone", "--collection", "shop.orders", "--node", source.url)[0] == 0
        saved.write_text(run("tail", "--once", "--json", "--node", source.url)[1], "utf-8")
        rows = [json.loads(line) for line in saved.read_text("utf-8").splitlines()]
        status, stdout, _ = run("load", str(saved), "--format", "changes", "--node", target.url)
        assert (status, stdout.split(" stored")[0]) == (0, "4 documents")
        for whose in (["--collection", "shop.orders"], []):
            assert run("get", "one", *whose, "--node", target.url)[:2] == (0, f"of {whose}")
        assert run("get", "gone", "--collection", "shop.orders", "--node", target.url)[0] == 1
        assert run("get", "gone", "--node", target.url)[:2] == (0, "v")
        assert run("collection", "drop", "shop.orders", "--yes", "--node", target.url)[0] == 0
        status, _, problem = run("load", str(saved), "--format", "changes", "--node", target.url)
        assert status == 1 and "there is no collection shop.orders" in problem and "nothing of copy.jsonl" in problem
    assert {(row["event"], row["scope"], row.get("collection"), row.get("key")) for row in rows} == {
        ("scope_created", "shop", None, None),
        ("collection_created", "shop", "orders", None),
        ("mutation", "shop", "orders", "one"),
        ("deletion", "shop", "orders", "gone"),
        ("mutation", "_default", "_default", "one"),
        ("mutation", "_default", "_default", "gone"),
    }


def test_tail_shows_the_collections_that_are_named(tmp_path: Path, run: Run) -> None:
    kept = str(tmp_path / "audit.json")
    with testing.node(vbuckets=4) as node:
        at = ("--node", node.url)
        assert (
            run("collection", "create", "shop.orders", *at)[0] == run("collection", "create", "shop.carts", *at)[0] == 0
        )
        for whose in ("shop.orders", "shop.carts", "_default._default"):
            assert run("set", "one", whose, "--collection", whose, *at)[0] == 0

        def shown(*options: str) -> list[list[str]]:
            status, stdout, problem = run("tail", "--once", *options, *at)
            assert status == 0, problem
            return sorted(line.split()[1:] for line in stdout.splitlines() if " mutation " in line)

        told = [line.split()[1:] for line in run("tail", "--once", *at)[1].splitlines() if "_created " in line]
        assert told == [
            ["scope_created", "shop"],
            ["collection_created", "shop.orders"],
            ["collection_created", "shop.carts"],
        ]
        orders, plain = ["mutation", "shop.orders", "one", "shop.orders"], ["mutation", "one", "_default._default"]
        carts = ["mutation", "shop.carts", "one", "shop.carts"]
        assert shown() == [plain, carts, orders]
        assert shown("--collection", "shop.orders", "--positions", kept) == [orders]
        assert shown("--scope", "shop") == [carts, orders]
        assert run("set", "two", "v", "--collection", "shop.orders", *at)[0] == 0
        assert run("set", "two", "v", "--collection", "shop.carts", *at)[0] == 0
        assert shown("--positions", kept) == [["mutation", "shop.orders", "two", "v"]]
        status, _, problem = run("tail", "--once", "--positions", kept, "--scope", "shop", *at)
        assert status == 2 and "what the positions were saved with: collection shop.orders" in problem
        status, _, problem = run("tail", "--once", "--collection", "shop.shoes", *at)
        assert status == 1 and "there is no collection shop.shoes" in problem


def test_tail_goes_on_behind_what_it_printed_before(run: Run, tmp_path: Path) -> None:
    kept = str(tmp_path / "audit.json")
    run("set", "first-time", "v")
    assert "first-time" in run("tail", "--once", "--positions", kept)[1]
    assert run("tail", "--once", "--positions", kept) == (0, "", "")
    run("set", "second-time", "v")
    assert run("tail", "--once", "--positions", kept)[1].split()[1:] == ["mutation", "second-time", "v"]


def test_positions_that_are_none_are_told(run: Run, tmp_path: Path) -> None:
    (tmp_path / "torn.json").write_text('[{"vbucket": 1', "utf-8")
    status, stdout, stderr = run("tail", "--once", "--positions", str(tmp_path / "torn.json"))
    assert (status, stdout, stderr.count("\n")) == (2, "", 1)
    assert "a JSON list of saved positions" in stderr


def test_tail_begins_behind_a_seqno_of_one_vbucket(run: Run) -> None:
    with testing.node(vbuckets=1) as node:
        with node.client() as bucket:
            for number in range(5):
                bucket.set(f"n{number}", "v")
        shown = run("tail", "--once", "--from", "3", "--vbuckets", "0", "--node", node.url)[1]
    assert [line.split()[0] for line in shown.splitlines()] == ["0:4", "0:5"]


def test_tail_begins_at_a_time(run: Run) -> None:
    run("set", "of-today", "v")
    tomorrow = (datetime.datetime.now() + datetime.timedelta(days=1)).isoformat(timespec="minutes")
    assert run("tail", "--once", "--from", tomorrow) == (0, "", "")
    assert "of-today" in run("tail", "--once", "--from", "1h")[1]
    assert run("tail", "--once", "--from", "0s") == (0, "", "")
    for longer in ("1.5h", "2w", "9999999999999d"):
        assert "of-today" in run("tail", "--once", "--from", longer)[1]


@pytest.mark.parametrize("where", ["yesterday", "-1", "7:3", "10x"])
def test_a_place_to_begin_that_is_none_is_told(run: Run, where: str) -> None:
    status, _, stderr = run("tail", "--once", f"--from={where}")
    assert (status, stderr.count("\n")) == (2, 1) and "is none of beginning, now, a seqno" in stderr


def test_a_seqno_belongs_to_a_vbucket(run: Run) -> None:
    assert "a seqno belongs to a vbucket: --from 7 --vbuckets 7" in run("tail", "--once", "--from", "7")[2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_tail_follows_until_a_signal_and_ends_well(node: testing.Node, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "headwater", "tail", "--node", node.url]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with node.client() as client:
        client.set("followed", str(number))
    assert process.stdout is not None
    while "followed" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(number)
    _, told = process.communicate(timeout=240)
    assert (process.returncode, told) == (0, "")


def test_deletions_that_were_purged_end_tail_or_are_an_event_and_their_vbuckets_come_again(
    run: Run, tmp_path: Path
) -> None:
    with testing.node(vbuckets=1) as alone:
        at = ("--node", alone.url)
        kept = ("tail", "--once", "--json", "--positions", str(tmp_path / "at.json"), *at)
        for key in ("gone", "stays"):
            assert run("set", key, "v", *at)[0] == 0
        assert len(run(*kept)[1].splitlines()) == 2
        run("delete", "gone", *at)
        run("set", "later", "v", *at)
        assert call(alone, Opcode.COMPACT_DB, extras=bytes(16) + b"\1" + bytes(7)).status == 0
        status, out, err = run(*kept)
        assert (status, out) == (1, "")
        assert "data loss: deletions were purged before they were read, in vbuckets 0 (to seqno 3)" in err
        status, out, _ = run(*kept, "--on-data-loss", "warn")
        rows = [json.loads(line) for line in out.splitlines()]
        assert status == 0 and rows[0] == {"event": "deletions_purged", "vbucket": 0, "seqno": 2, "purge_seqno": 3}
        assert [(row["event"], row["key"]) for row in rows[1:]] == [("mutation", "stays"), ("mutation", "later")]
        assert run(*kept) == (0, "", "")


def test_tail_shows_the_keys_that_are_asked_for(run: Run) -> None:
    for key in ("globbed:1", "globbed:2", "globbed", "other:1"):
        run("set", key, "v")
    told = run("tail", "--once", "--keys-only", "--key", "globbed:*", "--key", "othe?:[0-9]")[1]
    assert sorted(line.split()[-1] for line in told.splitlines()) == ["globbed:1", "globbed:2", "other:1"]


def test_tail_tells_what_a_template_asks_for(run: Run) -> None:
    run("set", "templated", "a\tb", "--flags", "7")
    status, told, _ = run("tail", "--once", "--key", "templated", "--format", r"{event} {key}\t{value} {flags} {{}}")
    assert (status, told) == (0, "mutation templated\ta\tb 7 {}\n")
    told = run("tail", "--once", "--key", "templated", "--format", "{time} {scope}.{collection}")[1]
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z _default\._default\n", told)


def test_tail_as_csv_is_what_load_reads(run: Run, tmp_path: Path) -> None:
    run("set", "as csv", 'a "quoted",\nline')
    status, told, _ = run("tail", "--once", "--key", "as csv", "--format", "csv")
    [row] = csv.DictReader(io.StringIO(told, newline=""))
    assert (status, row["event"], row["key"], row["value"]) == (0, "mutation", "as csv", 'a "quoted",\nline')
    run("delete", "as csv")
    (tmp_path / "gone.csv").write_text(run("tail", "--once", "--key", "as csv", "--format", "csv")[1], newline="")
    (tmp_path / "told.csv").write_text(told, newline="")
    for name, there in (("told.csv", 0), ("gone.csv", 1)):
        assert run("load", str(tmp_path / name))[0] == 0
        assert run("get", "as csv")[0] == there


@pytest.mark.parametrize("form", ["xml", "{nothing}", "{key", "{key.__class__}", "{key!r}", "{}"])
def test_a_form_that_is_none_is_told(run: Run, form: str) -> None:
    status, _, told = run("tail", "--once", "--format", form)
    assert status == 2 and "{key} {value}" in told and told.count("\n") == 1


VERSIONS = History(
    [
        Snapshot(0, 3, [mutation(3, b"order", b"shipped")], flags=0x06),
        Snapshot(4, 5, [mutation(4, b"order", b"lost"), mutation(5, b"order", b"found")], flags=0x36),
    ]
)


def test_tail_with_history_shows_every_version_and_where_there_are_none_any_more(run: Run) -> None:
    with serve(Peer(histories={0: VERSIONS})) as address:
        status, out, _ = run("tail", "--once", "--history", "--json", "--node", f"couchbase://{address}/default")
        assert status == 0
        rows = [json.loads(row) for row in out.splitlines()]
        assert rows[0] == {
            "event": "snapshot_deduplicated",
            "vbucket": 0,
            "start_seqno": 0,
            "end_seqno": 3,
            "flags": 6,
        }
        assert [(row["seqno"], row["text"]) for row in rows[1:]] == [(3, "shipped"), (4, "lost"), (5, "found")]
        _, out, _ = run("tail", "--once", "--history", "--node", f"couchbase://{address}/default")
        assert out.splitlines()[:2] == [
            "0:3 snapshot_deduplicated from seqno 0: old versions are not kept any more, the last of each follows",
            "0:3 mutation order shipped",
        ]
        status, out, err = run(
            "tail", "--once", "--history", "--format", "{value}", "--node", f"couchbase://{address}/default"
        )
        assert (out.split(), err.count("0:3 snapshot_deduplicated")) == (["shipped", "lost", "found"], 1)
        status, out, err = run("tail", "--once", "--node", f"couchbase://{address}/default")
        assert "snapshot_deduplicated" not in out + err


class WithoutVersions(Peer):
    def answers(self, request: Frame) -> Iterator[Frame]:
        if (request.opcode, request.key) == (Opcode.DCP_CONTROL, b"change_streams"):
            yield response(request, Status.NOT_SUPPORTED)
        else:
            yield from super().answers(request)


def test_tail_with_history_names_a_node_that_keeps_none(run: Run) -> None:
    with serve(WithoutVersions(histories={0: VERSIONS})) as address:
        status, out, err = run("tail", "--once", "--history", "--node", f"couchbase://{address}/default")
    assert status == 1 and not out and err.count("\n") == 1
    assert "keeps no old versions of documents" in err and address in err
    status, _, err = run("tail", "--once", "--history", "--protocol", "tap")
    assert status == 2 and "TAP has no old versions" in err


def test_tail_with_before_shows_what_each_change_replaced(run: Run) -> None:
    with testing.node(vbuckets=1) as running:
        for arguments in (("set", "k", '{"city":"Ulm"}'), ("set", "k", "two"), ("delete", "k")):
            assert run(*arguments, "--node", running.url)[0] == 0
        status, out, _ = run("tail", "--once", "--before", "--node", running.url)
        assert status == 0 and out.splitlines() == [
            '0:1 create k {"city":"Ulm"}',
            '0:2 update k two, was seqno 1: {"city":"Ulm"}',
            "0:3 delete k, was seqno 2: two",
        ]
        _, out, _ = run("tail", "--once", "--before", "--keys-only", "--node", running.url)
        assert out.splitlines()[1:] == ["0:2 update k, was seqno 1", "0:3 delete k, was seqno 2"]
        _, out, _ = run("tail", "--once", "--before", "--json", "--node", running.url)
        create, update, delete = (json.loads(row) for row in out.splitlines())
        assert (create["operation"], create["before"], create["before_known"]) == ("create", None, True)
        assert (update["operation"], update["before"]["value"]) == ("update", {"city": "Ulm"})
        assert update["before"]["cas"] == create["cas"] and delete["before"]["text"] == "two"
        keeps_tombstones = (1).to_bytes(8) + bytes(16)  # those that are younger than Unix second 1
        assert call(running, Opcode.COMPACT_DB, extras=keeps_tombstones).status == Status.SUCCESS
        _, out, _ = run("tail", "--once", "--before", "--node", running.url)
        assert out.splitlines()[-1] == "0:3 delete k, was: not kept any more"
        _, out, _ = run("tail", "--once", "--before", "--json", "--node", running.url)
        assert json.loads(out.splitlines()[-1])["before_known"] is False


@pytest.mark.parametrize("others", [("--format", "csv"), ("--format", "{key}"), ("--protocol", "tap")])
def test_what_was_replaced_is_in_no_other_form(run: Run, others: tuple[str, ...]) -> None:
    status, _, told = run("tail", "--once", "--before", *others)
    assert status == 2 and "--before" in told
