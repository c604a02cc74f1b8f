"""The commands for backups, beside real nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headwater import testing
from headwater.cli.app import app
from tests.backup.support import fill, held


def run(*words: object) -> Any:
    return CliRunner().invoke(app, ["backup", *map(str, words)])


def test_a_bucket_is_backed_up_looked_at_wiped_and_restored(tmp_path: Path) -> None:
    place = tmp_path / "b"
    with testing.node(vbuckets=4) as bucket, testing.node(vbuckets=4) as empty:
        fill(bucket, "a")
        first = json.loads(run("create", place, "--node", bucket.url, "--json").stdout)
        assert (first["kind"], first["parent"], first["rolled_back"]) == ("full", None, [])
        fill(bucket, "b")
        told = run("create", place, "--node", bucket.url)
        assert (told.exit_code, told.stderr) == (0, "")
        assert f"after {first['id']}, " in told.stdout
        shown = json.loads(run("list", place, "--json").stdout)
        assert next(each["id"] for each in shown["backups"]) == first["id"]
        assert len(run("list", place).stdout.splitlines()) == 2
        looked = json.loads(run("verify", place, "--json").stdout)
        assert (looked["backups"], looked["problems"]) == (2, [])
        dry = run("restore", place, "--node", empty.url, "--dry-run")
        assert "would be written, nothing was" in dry.stdout
        assert held(empty) == {}
        assert run("restore", place, "--node", empty.url, "--json").exit_code == 0
        assert held(empty) == held(bucket)
        again = json.loads(run("restore", place, "--node", empty.url, "--json").stdout)
    assert again["stored"] == 0


def test_all_collections_are_backed_up_unless_they_are_left_out(tmp_path: Path) -> None:
    with testing.node(vbuckets=4) as bucket:
        fill(bucket, "a")
        made = CliRunner().invoke(app, ["collection", "create", "shop.orders", "--node", bucket.url])
        assert made.exit_code == 0, made.stderr
        told = run("create", tmp_path, "--node", bucket.url)
        assert told.stdout.splitlines()[1] == "  collections (manifest 2): _default._default, shop.orders"
        default = json.loads(
            run("create", tmp_path, "--node", bucket.url, "--default-collection-only", "--json").stdout
        )
        assert (default["kind"], default["collections"]) == ("full", None)
        first, second = json.loads(run("list", tmp_path, "--json").stdout)["backups"]
    assert [scope["name"] for scope in first["collections"]["scopes"]] == ["_default", "shop"]
    assert second["id"] == default["id"]


def test_a_point_is_named_by_backup_time_or_seqnos(tmp_path: Path) -> None:
    place, point = tmp_path / "b", tmp_path / "point.json"
    with testing.node(vbuckets=4) as bucket, testing.node(vbuckets=4) as empty:
        fill(bucket, "a", 20)
        first = json.loads(run("create", place, "--node", bucket.url, "--json").stdout)["id"]
        point.write_text(CliRunner().invoke(app, ["seqnos", "--json", "--node", bucket.url]).stdout)
        fill(bucket, "b", 20)
        assert run("create", place, "--node", bucket.url).exit_code == 0
        target = ("--node", empty.url, "--dry-run", "--json")
        by_name = json.loads(run("restore", place, "--backup", first, *target).stdout)
        by_seqnos = json.loads(run("restore", place, "--seqnos", point, *target).stdout)
        assert by_name["seqnos"] == by_seqnos["seqnos"] == json.loads(point.read_text())
        one = json.loads(run("restore", place, "--vbuckets", "2", *target).stdout)
        assert list(one["seqnos"]) == ["2"]
        early = run("restore", place, "--at", "2020-01-01T00:00:00Z", *target)
    assert (early.exit_code, "no backup had ended at 2020-01-01" in early.stderr) == (1, True)


def test_damage_is_told_file_by_file_and_nothing_is_restored(tmp_path: Path) -> None:
    place = tmp_path / "b"
    with testing.node(vbuckets=4) as bucket, testing.node(vbuckets=4) as empty:
        fill(bucket, "a")
        run("create", place, "--node", bucket.url)
        path = next(place.rglob("*.parquet"))
        path.write_bytes(path.read_bytes()[:-1] + b"x")
        told = run("verify", place)
        assert told.exit_code == 1
        assert f"{path.name}: the file is damaged" in told.stderr
        assert run("restore", place, "--node", empty.url).exit_code == 1
        assert held(empty) == {}


def test_old_backups_are_told_and_removed(tmp_path: Path) -> None:
    place = tmp_path / "b"
    with testing.node(vbuckets=4) as bucket:
        for _ in range(2):
            fill(bucket, "a", 5)
            assert run("create", place, "--node", bucket.url, "--full").exit_code == 0
    assert "1 backup, " in run("prune", place, "--keep", 1, "--dry-run").stdout
    assert len(json.loads(run("list", place, "--json").stdout)["backups"]) == 2
    gone = json.loads(run("prune", place, "--keep", 1, "--json").stdout)
    assert (len(gone["removed"]), len(gone["kept"]), gone["dry_run"]) == (1, 1, False)
    assert len(json.loads(run("list", place, "--json").stdout)["backups"]) == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("restore", "{}", "--backup", "x", "--at", "2020-01-01"), "give one of them"),
        (("restore", "{}", "--nearest"), "--nearest goes with --seqnos"),
        (("restore", "{}", "--at", "yesterday"), "is no time"),
        (("prune", "{}"), "--older-than is given"),
        (("prune", "{}", "--keep", "0"), "at least 1"),
        (("list", "nosuch://x/y"), "a URL that fsspec can open"),
    ],
)
def test_wrong_words_are_told_in_one_line(words: tuple[str, ...], says: str, tmp_path: Path) -> None:
    told = run(*(word.format(tmp_path) for word in words))
    assert told.exit_code == 2
    assert says in told.stderr
    assert len(told.stderr.splitlines()) == 1


def test_where_there_is_nothing_that_is_said(tmp_path: Path) -> None:
    assert run("list", tmp_path).stdout == "there is no backup here\n"
    looked = run("verify", tmp_path / "backsup")  # a name mistyped in a crontab: it was "0 backups" and all is well
    assert (looked.exit_code, looked.stderr) == (1, f"headwater: {tmp_path}/backsup: there is no backup here\n")
    told = run("restore", tmp_path)
    assert (told.exit_code, told.stderr) == (1, f"headwater: {tmp_path}: there is no backup here\n")
