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
    made["collections"] = [{"uid": "8", "name": "a"}, {"uid": "9", "name": "b-c", "maxTTL": 60}]  # type: ignore[assignment]
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
