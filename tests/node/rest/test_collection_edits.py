"""The pages by which SDKs make and drop scopes and collections."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from headwater import testing
from headwater.testing.node import Node

SCOPES = "/pools/default/buckets/default/scopes"


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with testing.node(vbuckets=4) as node:
        yield node


def ask(node: Node, method: str, path: str = SCOPES, form: str = "") -> tuple[int, Any]:
    line = http.client.HTTPConnection(node.host, node.port, timeout=120)
    line.request(method, path, form, {"Content-Type": "application/x-www-form-urlencoded"})
    answer = line.getresponse()
    told = json.loads(answer.read())
    line.close()
    return answer.status, told


def test_scopes_and_collections_are_made_listed_and_dropped(node: Node) -> None:
    assert ask(node, "POST", form="name=shop") == (200, {"uid": "1"})
    assert ask(node, "POST", f"{SCOPES}/shop/collections", "name=a") == (200, {"uid": "2"})
    assert ask(node, "POST", f"{SCOPES}/shop/collections", "name=b%2Dc&maxTTL=60") == (200, {"uid": "3"})
    made = {"uid": "8", "name": "shop"}
    known = [{"uid": "8", "name": "a", "history": True}, {"uid": "9", "name": "b-c", "maxTTL": 60, "history": True}]
    made["collections"] = known  # type: ignore[assignment]
    assert ask(node, "GET")[1]["scopes"][1] == made
    assert ask(node, "DELETE", f"{SCOPES}/shop/collections/a") == (200, {"uid": "4"})
    assert ask(node, "DELETE", f"{SCOPES}/shop") == (200, {"uid": "5"})
    assert [each["name"] for each in ask(node, "GET")[1]["scopes"]] == ["_default"]
    assert ask(node, "POST", form="name=shop") == (200, {"uid": "6"})
    assert ask(node, "GET")[1]["scopes"][1]["uid"] == "9"  # an id is given once
    assert ask(node, "DELETE", f"{SCOPES}/shop")[0] == 200


def test_minus_one_is_no_expiry_whatever_the_bucket_has(node: Node) -> None:
    assert ask(node, "POST", f"{SCOPES}/_default/collections", "name=lasting&maxTTL=-1")[0] == 200
    made = next(each for each in ask(node, "GET")[1]["scopes"][0]["collections"] if each["name"] == "lasting")
    assert "maxTTL" not in made
    assert ask(node, "DELETE", f"{SCOPES}/_default/collections/lasting")[0] == 200


def histories(node: Node) -> dict[str, bool]:
    return {each["name"]: each["history"] for each in ask(node, "GET")[1]["scopes"][0]["collections"]}


def test_a_history_is_given_and_taken_away_and_without_a_word_as_the_bucket_says(node: Node) -> None:
    path = f"{SCOPES}/_default/collections"
    bucket = SCOPES.removesuffix("/scopes")
    for name, form, default in (
        ("with", "&history=true", "false"),
        ("without", "&history=false", "true"),
        ("said", "", "false"),
        ("old", "", "true"),
    ):
        assert ask_plain(node, bucket, f"historyRetentionCollectionDefault={default}") == 200
        assert ask(node, "POST", path, f"name={name}&maxTTL=60{form}")[0] == 200
    assert histories(node) == {"_default": True, "with": True, "without": False, "said": False, "old": True}
    assert ask(node, "PATCH", f"{path}/with", "history=false")[0] == 200
    assert ask(node, "PATCH", f"{path}/without", "history=1&maxTTL=60")[0] == 200
    assert ask(node, "PATCH", f"{path}/_default", "history=false")[0] == 200
    node.kill()
    node.restart()
    assert histories(node) == {"_default": False, "with": False, "without": True, "said": False, "old": True}
    assert ask(node, "PATCH", f"{path}/_default", "history=true")[0] == 200
    for name in ("with", "without", "said", "old"):
        assert ask(node, "DELETE", f"{path}/{name}")[0] == 200


def ask_plain(node: Node, path: str, form: str) -> int:
    line = http.client.HTTPConnection(node.host, node.port, timeout=120)
    line.request("POST", path, form, {"Content-Type": "application/x-www-form-urlencoded"})
    status = line.getresponse().status
    line.close()
    return status


@pytest.mark.parametrize(
    ("method", "path", "form", "status", "said"),
    [
        ("POST", "", "name=_default", 400, "can't name a scope"),
        ("POST", "", "", 400, "can't name a scope"),
        ("POST", "", "name=%FF", 400, "can't name a scope"),
        ("POST", "/_default/collections", "name=_default", 400, "can't name a collection"),
        ("POST", "/_default/collections", "name=x&maxTTL=-2", 400, "is not a number of seconds"),
        ("POST", "/_default/collections", "name=x&maxTTL=9999999999", 400, "maxTTL"),
        ("POST", "/none/collections", "name=x", 404, 'Scope with name "none" is not found'),
        ("DELETE", "/none", "", 404, 'Scope with name "none" is not found'),
        ("DELETE", "/_default", "", 400, "not allowed"),
        ("POST", "/_default/collections", "name=x&history=maybe", 400, "neither true nor false"),
        ("PATCH", "/_default/collections/_default", "history=2", 400, "neither true nor false"),
        ("PATCH", "/_default/collections/_default", "", 400, "can be given a history"),
        ("PATCH", "/_default/collections/_default", "maxTTL=60", 400, "is given when it is made, and stays"),
        ("PATCH", "/_default/collections/none", "history=true", 404, 'Collection with name "none"'),
        ("PATCH", "/_default/collections/none", "maxTTL=60", 404, 'Collection with name "none"'),
        (
            "DELETE",
            "/_default/collections/none",
            "",
            404,
            'Collection with name "none" in scope "_default" is not found',
        ),
    ],
)
def test_what_can_not_be_made_or_dropped_is_refused_in_words_that_clients_look_for(
    node: Node, method: str, path: str, form: str, status: int, said: str
) -> None:
    answered, told = ask(node, method, SCOPES + path, form)
    assert answered == status and said in next(iter(told["errors"].values()))


def test_what_is_there_is_told_in_words_that_clients_look_for(node: Node) -> None:
    assert ask(node, "POST", form="name=twice")[0] == 200
    assert ask(node, "POST", form="name=twice") == (
        400,
        {"errors": {"name": 'Scope with name "twice" already exists'}},
    )
    assert ask(node, "POST", f"{SCOPES}/twice/collections", "name=x")[0] == 200
    told = 'Collection with name "x" in scope "twice" already exists'
    assert ask(node, "POST", f"{SCOPES}/twice/collections", "name=x") == (400, {"errors": {"name": told}})
