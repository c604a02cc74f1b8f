"""Buckets by HTTP: made and dropped as SDKs do it, and each with its own pages."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from http.client import IncompleteRead

import pytest

from headwater import testing
from headwater.testing.node import Node


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with testing.node(vbuckets=2) as running:
        yield running


def http(node: Node, method: str, path: str, body: str = "") -> tuple[int, str]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{node.port}{path}", method=method, data=body.encode() if body else None
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def test_a_bucket_is_made_has_its_pages_and_is_dropped(node: Node) -> None:
    form = "name=orders&ramQuota=256&bucketType=couchbase&replicaNumber=0&vbuckets=4"
    assert http(node, "POST", "/pools/default/buckets", form) == (202, "")
    found = json.loads(http(node, "GET", "/pools/default/buckets")[1])
    assert [each["name"] for each in found] == ["default", "orders"]
    assert [len(each["vBucketServerMap"]["vBucketMap"]) for each in found] == [2, 4]
    for page in ("buckets", "b"):
        assert json.loads(http(node, "GET", f"/pools/default/{page}/orders")[1])["name"] == "orders"
    names = json.loads(http(node, "GET", "/pools/default")[1])["bucketNames"]
    assert [name["bucketName"] for name in names] == ["default", "orders"]
    assert http(node, "POST", "/pools/default/buckets/orders/scopes", "name=shop")[0] == 200
    told = [json.loads(http(node, "GET", f"/pools/default/buckets/{name}/scopes")[1]) for name in ("default", "orders")]
    assert [len(each["scopes"]) for each in told] == [1, 2]
    assert http(node, "DELETE", "/pools/default/buckets/orders") == (200, "")
    assert http(node, "GET", "/pools/default/buckets/orders")[0] == 404
    assert http(node, "DELETE", "/pools/default/buckets/orders")[0] == 404


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("name=default", "Bucket with given name already exists"),
        ("ramQuota=100", "a name of 1 to 100"),
        ("name=a&vbuckets=many", "whole number"),
        ("name=a&quotaMiB=1", "64 is the least"),
        ("name=a&bucketType=memcached", "of type couchbase"),
        ("name=a&historyRetentionBytes=5", "1048576 is the least"),
        ("name=a&historyRetentionCollectionDefault=maybe", "historyRetentionCollectionDefault is true or false"),
    ],
)
def test_a_form_that_can_not_be_is_refused_in_words(node: Node, form: str, said: str) -> None:
    status, body = http(node, "POST", "/pools/default/buckets", form)
    assert status == 400 and said in body


def test_the_first_one_stays_and_its_quota_is_the_disk(node: Node) -> None:
    status, body = http(node, "DELETE", "/pools/default/buckets/default")
    assert status == 400 and "started with" in body
    status, body = http(node, "POST", "/pools/default/buckets/default", "ramQuota=300")
    assert status == 400 and "the disk is its quota" in json.loads(body)["errors"]["ramQuota"]


def test_of_a_bucket_the_quota_can_be_changed_and_nothing_else(node: Node) -> None:
    assert http(node, "POST", "/pools/default/buckets", "name=limited&quotaMiB=100")[0] == 202
    path = "/pools/default/buckets/limited"
    for number, name in enumerate(("ramQuota", "ramQuotaMB", "quotaMiB"), 1):
        assert json.loads(http(node, "GET", path)[1])["quota"]["ram"] == number * 100 << 20
        assert http(node, "POST", path, f"{name}={(number + 1) * 100}") == (200, "")
    for form, said in (
        ("ramQuota=10", "64 is the least"),
        ("ramQuota=-1", "whole number"),
        ("ramQuota=100&replicaNumber=2", "drop it and make another"),
        ("flushEnabled=1", "drop it and make another"),
        ("ramQuota=100&ramQuotaMB=200", "only its quota"),
    ):
        status, body = http(node, "POST", path, form)
        assert status == 400 and said in body, form
    assert http(node, "PUT", path, "ramQuota=100")[0] == 400
    assert http(node, "POST", "/pools/default/buckets/nobodys", "ramQuota=100")[0] == 404
    assert json.loads(http(node, "GET", path)[1])["quota"]["rawRAM"] == 400 << 20
    assert http(node, "DELETE", path)[0] == 200


def test_the_history_of_a_bucket_is_taken_and_shown_by_the_other_servers_names(node: Node) -> None:
    form = "name=kept&historyRetentionSeconds=60&historyRetentionCollectionDefault=true"
    assert http(node, "POST", "/pools/default/buckets", form)[0] == 202
    for name, size in (("kept", 1 << 20), ("default", 1 << 31)):
        path = f"/pools/default/buckets/{name}"
        assert http(node, "POST", path, f"historyRetentionBytes={size}") == (200, "")
        found = json.loads(http(node, "GET", path)[1])
        assert found["historyRetentionSeconds"] == (60 if name == "kept" else 0)
        assert (found["historyRetentionBytes"], found["historyRetentionCollectionDefault"]) == (size, True)
        for form, said in (
            ("historyRetentionBytes=1000", "1048576 is the least"),
            ("historyRetentionBytes=-1", "whole number"),
            ("historyRetentionSeconds=1e3", "whole number"),
            ("historyRetentionSeconds=5000000000", "4294967295 is the most"),
            ("historyRetentionCollectionDefault=2", "historyRetentionCollectionDefault is true or false"),
            ("historyRetentionSeconds=60&replicaNumber=2", "drop it and make another"),
        ):
            status, body = http(node, "POST", path, form)
            assert status == 400 and said in body, form
        assert json.loads(http(node, "GET", path)[1])["historyRetentionBytes"] == size
        assert http(node, "POST", path, "historyRetentionBytes=0&historyRetentionSeconds=0")[0] == 200
    for text, default in (("false", False), ("true", True)):
        assert http(node, "POST", path, f"historyRetentionCollectionDefault={text}")[0] == 200
        assert json.loads(http(node, "GET", path)[1])["historyRetentionCollectionDefault"] is default
    page = http(node, "GET", "/metrics")[1]
    assert 'headwater_history_retention_seconds{bucket="default"} 0.0' in page
    assert http(node, "DELETE", "/pools/default/buckets/kept")[0] == 200


def test_who_watches_a_bucket_is_let_go_with_it(node: Node) -> None:
    assert http(node, "POST", "/pools/default/buckets", "name=watched")[0] == 202
    with urllib.request.urlopen(f"http://127.0.0.1:{node.port}/pools/default/bs/watched", timeout=120) as watched:
        assert json.loads(watched.readline())["name"] == "watched"
        assert http(node, "DELETE", "/pools/default/buckets/watched")[0] == 200
        with suppress(IncompleteRead):
            assert set(watched.read()) <= {10}


def test_a_name_with_a_percent_sign_is_unescaped_once() -> None:
    with testing.node(vbuckets=2) as node:
        for form in ("name=ab&vbuckets=2", "name=a%2562&vbuckets=2"):
            assert http(node, "POST", "/pools/default/buckets", form)[0] == 202
        names = [each["name"] for each in json.loads(http(node, "GET", "/pools/default/buckets")[1])]
        assert names == ["default", "ab", "a%62"]
        assert json.loads(http(node, "GET", "/pools/default/b/a%2562")[1])["name"] == "a%62"
        assert http(node, "DELETE", "/pools/default/buckets/a%2562") == (200, "")
        names = [each["name"] for each in json.loads(http(node, "GET", "/pools/default/buckets")[1])]
        assert names == ["default", "ab"], "the bucket that was named is gone, and no other"
