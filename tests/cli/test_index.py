"""The guide to the index, followed; the pipeline itself is tested in tests/pipelines."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from headwater import testing
from headwater.cli.app import app
from tests.cli.guides import commands, follow
from tests.pipelines.search_server import login, search_server


def test_the_guide_works_in_an_empty_folder(tmp_path: Path) -> None:
    told = commands("index.md")
    with testing.node(vbuckets=8) as node, node.client() as client, search_server() as (url, index):
        client.set("a", '{"title": "Red wine", "from": "Bordeaux"}')
        client.set("b", '{"title": "white wine"}')
        client.set("c", b"\xff no text")
        instead = {"couchbase://127.0.0.1:11210/default": node.url, "couchbase://10.0.0.7/articles": node.url}
        instead |= {"http://10.0.0.9:9200/articles": url}

        def say(number: int, beginning: str, *more: str) -> str:
            assert told[number].startswith(beginning)
            done = follow(" ".join([told[number], *more]), tmp_path, instead)
            assert (done.returncode, done.stderr) == (0, ""), done.stderr
            return done.stdout

        assert "batch 1: 3 indexed and 0 removed in " in say(0, "headwater index")
        assert say(1, "headwater search").split()[1:] == ["a", "[Red]", "[wine]", "Bordeaux"]
        assert say(2, "headwater search").count("a  [Red wine] [Bordeaux]") == 1
        assert [line.split('"')[3] for line in say(3, "headwater search").splitlines()] == ["a", "b"]
        index.login = login("me", "secret")
        instead["./search"] = "./elsewhere"
        secret = ("--engine local --once --opensearch-user me --opensearch-password secret",)
        assert "3 indexed" in say(4, "headwater index", *secret)
        index.visible = dict(index.documents)
        assert say(5, "headwater search", "--opensearch-user me --opensearch-password secret").split()[1] == "a"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "search"]


def test_a_wrong_option_or_address_is_told_in_a_line(tmp_path: Path) -> None:
    nobody = ["index", "couchbase://127.0.0.1:1/default", str(tmp_path / "x")]
    result = CliRunner().invoke(app, nobody)
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    with testing.node(vbuckets=2) as node:
        asked = ["index", node.url, str(tmp_path / "x"), "--opensearch", "http://me:secret@h:9200/x"]
        result = CliRunner().invoke(app, asked)
    assert result.exit_code == 2 and "secret" not in result.stderr and result.stderr.count("\n") == 1
    assert not (tmp_path / "x").exists()
