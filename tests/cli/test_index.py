"""The guide to the index, followed; the pipeline itself is tested in tests/pipelines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headwater import testing
from headwater.cli.app import app
from tests.cli.guides import commands, follow
from tests.pipelines.search_server import login, search_server


def test_the_guide_works_in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = commands("index.md")
    with testing.node(vbuckets=8) as node, node.client() as client, search_server() as (url, index):
        client.set("a", '{"title": "Red wine", "from": "Bordeaux"}')
        client.set("b", '{"title": "white wine"}')
        client.set("c", b"\xff no text")
        instead = {"couchbase://127.0.0.1:11210/default": node.url, "couchbase://10.0.0.7/articles": node.url}
        instead |= {"http://10.0.0.9:9200/articles": url}
        assert "batch 1: 3 indexed and 0 removed in " in follow(told[0], instead)
        assert follow(told[1], instead).split()[1:] == ["a", "[Red]", "[wine]", "Bordeaux"]
        assert follow(told[2], instead).endswith("  a  [Red wine] [Bordeaux]\n")
        assert {line.split('"')[3] for line in follow(told[3], instead).splitlines()} == {"a", "b"}
        with testing.node(vbuckets=4) as store, store.client() as shop:
            assert CliRunner().invoke(app, ["collection", "create", "shop.orders", "--node", store.url]).exit_code == 0
            assert CliRunner().invoke(app, ["collection", "create", "shop.carts", "--node", store.url]).exit_code == 0
            shop.collection("shop.orders").set("one", '"red wine"')
            shop.collection("shop.carts").set("one", '"red wine"')
            instead["couchbase://10.0.0.7/store"] = store.url
            assert "2 indexed" in follow(told[4], instead)
            assert follow(told[5], instead).split()[1:] == ["shop.orders", "one", "[red]", "[wine]"]
            (found,) = follow(f"{told[5]} --json", instead).splitlines()
            assert (json.loads(found)["scope"], json.loads(found)["collection"]) == ("shop", "orders")
        index.login = login("me", "secret")
        who = " --opensearch-user me --opensearch-password secret"
        instead["./search"] = "./elsewhere"
        assert "3 indexed" in follow(f"{told[6]} --engine local --once{who}", instead)
        index.visible = dict(index.documents)
        assert follow(told[7] + who, instead).split()[1] == "a"
    assert len(told) == 8
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "search", "search-store"]


def test_a_wrong_option_or_address_is_told_in_a_line(tmp_path: Path) -> None:
    nobody = ["index", "couchbase://127.0.0.1:1/default", str(tmp_path / "x")]
    result = CliRunner().invoke(app, nobody)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    with testing.node(vbuckets=2) as node:
        asked = ["index", node.url, str(tmp_path / "x"), "--opensearch", "http://me:secret@h:9200/x"]
        result = CliRunner().invoke(app, asked)
    assert result.exit_code == 2 and "secret" not in result.stderr and result.stderr.count("\n") == 1
    assert not (tmp_path / "x").exists()
