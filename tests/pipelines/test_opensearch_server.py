"""The index in a real OpenSearch: what a server of our own making would not tell us."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from typer.testing import CliRunner

from headwater import testing
from headwater.cli.app import app
from headwater.client import Client
from tests.pipelines.opensearch_server import opensearch

pytestmark = [pytest.mark.battery, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with opensearch(tmp_path_factory.mktemp("opensearch")) as url:
        yield url


class Shelf:
    """A bucket whose documents are brought into an index of the server, and searched there."""

    def __init__(self, node: testing.Node, client: Client, index: str, folder: Path) -> None:
        self.node, self.client, self.index, self.folder = node, client, index, folder

    def bring(self) -> None:
        self._run("index", self.node.url, str(self.folder), "--opensearch", self.index, "--engine", "local", "--once")

    def found(self, words: str, *options: str) -> list[str]:
        refresh = Request(f"{self.index}/_refresh", method="POST")
        urlopen(refresh, timeout=60.0).close()  # or it is found a second later
        lines = self._run("search", str(self.folder), words, "--json", *options).splitlines()
        return sorted(json.loads(line)["key"] for line in lines)

    def _run(self, *words: str) -> str:
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0 or done.stderr == "headwater: nothing was found\n", done.output
        return done.stdout


@pytest.fixture
def shelf(server: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shelf]:
    with testing.node(vbuckets=8) as node, node.client() as client:
        yield Shelf(node, client, f"{server}/{request.node.name}", tmp_path / "search")


def test_documents_are_found_changed_and_gone(shelf: Shelf) -> None:
    shelf.client.set_many({"a": '"red wine"', "b": '"white wine"', b"\xff": '"bytes"'})
    shelf.bring()
    assert shelf.found("wine") == ["a", "b"] and shelf.found('"red wine"') == ["a"]
    assert shelf.found("bytes") == ["\\xff"]
    shelf.client.set("a", '"rose"')
    shelf.client.delete("b")
    shelf.bring()
    assert shelf.found("wine") == [] and shelf.found("rose") == ["a"]


def test_case_and_accents_do_not_matter_as_in_an_index_of_ours(shelf: Shelf) -> None:
    shelf.client.set("straße", '"Grüße aus Köln"')
    shelf.bring()
    for words in ("Köln", "koln", "KÖLN", "kö*", "GRÜSSE", "strasse"):
        assert shelf.found(words) == ["straße"], words


def test_a_document_of_more_than_a_million_characters_hides_no_other(shelf: Shelf) -> None:
    shelf.client.set_many({"large": json.dumps("lorem ipsum " * 200_000 + "wine"), "small": '"wine"'})
    shelf.bring()
    assert shelf.found("wine") == ["large", "small"]
