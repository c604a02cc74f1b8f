"""The index in a real OpenSearch: what a server of our own making would not tell us."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from typer.testing import CliRunner

from headwater import testing
from headwater.cli.app import app
from headwater.client import Client
from headwater.errors import ConnectionLost
from headwater.pipelines.opensearch import Item, SearchClient, SearchServer, version
from tests.pipelines.opensearch_server import opensearch

pytestmark = [pytest.mark.battery, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("opensearch")


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[str]:
    with opensearch(home) as url:
        yield url


def ask(method: str, url: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url, data, {"content-type": "application/json"}, method=method), timeout=60.0) as answer:
        return json.loads(answer.read() or b"null")


class Shelf:
    """A bucket whose documents are brought into an index of the server, and searched there."""

    def __init__(self, node: testing.Node, client: Client, index: str, folder: Path) -> None:
        self.node, self.client, self.index, self.folder = node, client, index, folder

    def bring(self) -> None:
        self._run("index", self.node.url, str(self.folder), "--opensearch", self.index, "--engine", "local", "--once")

    def found(self, words: str, *options: str) -> list[str]:
        ask("POST", f"{self.index}/_refresh")  # or it is found a second later
        lines = self._run("search", str(self.folder), words, "--json", *options).splitlines()
        return sorted(json.loads(line)["key"] for line in lines)

    def refused(self) -> str:
        words = ("index", self.node.url, str(self.folder), "--opensearch", self.index, "--engine", "local", "--once")
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 1
        return done.stderr

    def _run(self, *words: str) -> str:
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0 or done.stderr == "headwater: nothing was found\n", done.output
        return done.stdout


@pytest.fixture
def shelf(server: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shelf]:
    with testing.node(vbuckets=8) as node, node.client() as client:
        name = request.node.name.replace("[", "-").rstrip("]")
        yield Shelf(node, client, f"{server}/{name}", tmp_path / "search")


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


def test_an_index_that_the_server_made_by_itself_is_another_one(shelf: Shelf) -> None:
    """The server makes one of the first document that comes; all that was indexed before is missing there."""
    shelf.client.set_many({"a": '"red wine"', "b": '"white wine"'})
    shelf.bring()
    shelf.client.set("c", '"rose"')
    ask("DELETE", shelf.index)
    assert "is gone, and the batches that were in it are not" in shelf.refused()
    ask("PUT", f"{shelf.index}/_doc/c", {"body": "rose"})
    assert "another index is called test_an_index_that" in shelf.refused()
    ask("DELETE", shelf.index)
    shutil.rmtree(shelf.folder)
    shelf.bring()
    assert shelf.found("wine") == ["a", "b"]


def test_an_index_with_documents_is_none_for_a_new_folder_nor_is_a_name_for_others(shelf: Shelf, server: str) -> None:
    shelf.client.set("a", '"red wine"')
    shelf.bring()
    shutil.rmtree(shelf.folder)
    assert "has 1 documents, of which this folder knows nothing" in shelf.refused()
    ask("POST", f"{shelf.index}/_alias/wines")
    shelf.index, shelf.folder = f"{server}/wines", shelf.folder / "other"
    assert "wines is no index but a name for test_an_index_with" in shelf.refused()


def test_an_index_that_is_closed_and_restored_keeps_its_id_and_is_refused(shelf: Shelf, server: str) -> None:
    """The documents of the batches since the snapshot are missing in it for good."""
    shelf.client.set("a", '"red wine"')
    shelf.bring()
    ask("PUT", f"{server}/_snapshot/kept", {"type": "fs", "settings": {"location": "kept"}})
    name = shelf.index.rpartition("/")[2]
    wanted = {"indices": name, "include_global_state": False}
    ask("PUT", f"{server}/_snapshot/kept/one?wait_for_completion=true", wanted)
    shelf.client.set("b", '"white wine"')
    shelf.bring()
    ask("POST", f"{shelf.index}/_close")
    ask("POST", f"{shelf.index}/_open")
    shelf.bring()  # it has the history that it had
    ask("POST", f"{shelf.index}/_close")
    ask("POST", f"{server}/_snapshot/kept/one/_restore?wait_for_completion=true", wanted)
    assert "was put back to an older state" in shelf.refused()


@pytest.mark.parametrize("dynamic", ["strict", "false"])
def test_an_index_without_the_fields_of_documents_is_refused(shelf: Shelf, dynamic: str) -> None:
    ask("PUT", shelf.index, {"mappings": {"dynamic": dynamic, "properties": {"body": {"type": "text"}}}})
    shelf.client.set("a", '"red wine"')
    assert f"has no field key in its mapping, and adds none (dynamic: {dynamic})" in shelf.refused()


def test_an_index_whose_mapping_becomes_strict_keeps_its_documents_and_says_what_it_lacks(shelf: Shelf) -> None:
    ask("PUT", shelf.index)
    shelf.bring()
    ask("PUT", f"{shelf.index}/_mapping", {"dynamic": "strict"})
    shelf.client.set("a", '"red wine"')
    assert "has no field key in its mapping, and adds none (dynamic: strict)" in shelf.refused()


def test_an_index_made_by_hand_with_nothing_in_its_mapping_is_found_by_all_fields(shelf: Shelf) -> None:
    ask("PUT", shelf.index)
    for words in ("red", "white"):
        shelf.client.set("a", f'"{words} wine"')
        shelf.bring()
    assert shelf.found("wine") == ["a"] and shelf.found("red") == []


def test_an_index_made_by_hand_keeps_deletions_for_an_hour(shelf: Shelf) -> None:
    """Left to itself it forgets one after 60 s, and takes what an earlier attempt sends after that."""
    ask("PUT", shelf.index)
    shelf.client.set("a", '"red wine"')
    shelf.bring()
    (told,) = ask("GET", f"{shelf.index}/_settings").values()
    assert told["settings"]["index"]["gc_deletes"] == "1h"


def test_a_shard_that_is_away_is_not_taken_for_one_without_documents(server: str, home: Path) -> None:
    """A search shows the documents of the other shards; of a lost branch the rest would be found for good."""
    place = f"{server}/shards"
    ask("PUT", place, {"settings": {"number_of_shards": 2, "number_of_replicas": 0}})
    lost = {"generation": 0, "vbucket": 3, "seqno": 1, "body": "lost"}
    client = SearchClient(SearchServer(place, retry_seconds=0.0))
    assert client.bulk(Item(b"k%d" % n, version(0, 1), lost) for n in range(40)).stored == 40
    (shard,) = home.glob(f"node/**/indices/{client.check(None).split()[0]}/0")
    shutil.rmtree(shard)
    away = {"index": "shards", "shard": 0, "node": "Node 1", "allow_primary": True}
    ask("POST", f"{server}/_cluster/reroute", {"commands": [{"cancel": away}]})
    with pytest.raises(ConnectionLost, match=r"503|shards of index shards are away"):
        client.remove_older(3, 1)
    with pytest.raises(ConnectionLost, match="503"):
        client.search("lost", limit=40, any_of=False)
    ask("DELETE", place)
    client.close()
