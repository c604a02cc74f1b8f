"""Requests by HTTP that come from another page in a browser, or by a name that is not the node's."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from headwater import testing
from headwater.node.rest.callers import is_own_name
from headwater.testing.node import Node

EVIL = "evil.example"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
LOGIN = {"Authorization": "Basic YW5uOnNlY3JldA=="}
FROM_ANOTHER_PAGE = [
    {"Origin": f"http://{EVIL}"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": f"http://{EVIL}", "Sec-Fetch-Site": "cross-site", "Content-Type": "text/plain"},
]


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with testing.node(vbuckets=4) as running:
        yield running


@pytest.fixture(scope="module")
def guarded() -> Iterator[Node]:
    with testing.node(vbuckets=4, user="ann", environment={"HEADWATER_PASSWORD": "secret"}) as running:
        yield running


def ask(node: Node, method: str, path: str, headers: dict[str, str], body: str = "") -> int:
    line = http.client.HTTPConnection(node.host, node.port, timeout=120)
    try:
        line.request(method, path, body or None, headers)
        answer = line.getresponse()
        answer.read()
        return answer.status
    finally:
        line.close()


@pytest.mark.parametrize("headers", FROM_ANOTHER_PAGE)
def test_a_form_of_another_page_changes_nothing_whoever_is_logged_in(
    node: Node, guarded: Node, headers: dict[str, str]
) -> None:
    for one, login in ((node, {}), (guarded, LOGIN)):
        told = {**FORM, **login, **headers}
        assert ask(one, "POST", "/pools/default/buckets", told, "name=pwned") == 403
        assert ask(one, "POST", "/pools/default/buckets/default", told, "ramQuota=100") == 403
        assert ask(one, "POST", "/pools/default/buckets/default/scopes", told, "name=s") == 403
        assert ask(one, "DELETE", "/pools/default/buckets/default", {**login, **headers}) == 403
        assert ask(one, "GET", "/pools/default/buckets/pwned", login) == 404
    assert "another page sent this; nothing was done" in node.log


def test_a_name_that_resolves_here_of_a_sudden_reads_and_changes_nothing(node: Node) -> None:
    rebound = {"Host": f"{EVIL}:{node.port}", "Origin": f"http://{EVIL}:{node.port}", "Sec-Fetch-Site": "same-origin"}
    for path in ("/pools", "/pools/default/buckets", "/pools/default/bs/default", "/metrics", "/nothing"):
        assert ask(node, "GET", path, rebound) == 421
    assert ask(node, "DELETE", "/pools/default/buckets/default", rebound) == 421
    assert ask(node, "POST", "/pools/default/buckets", {**FORM, **rebound}, "name=pwned") == 421
    assert ask(node, "GET", "/healthz", rebound) == 200, "which tells nothing"


def test_programs_and_pages_of_the_node_itself_go_on_as_before(node: Node, guarded: Node) -> None:
    for name in (
        f"127.0.0.1:{node.port}",
        f"localhost:{node.port}",
        "LOCALHOST",
        "[::1]:1",
        "127.9.9.9",
        "x.localhost",
    ):
        assert ask(node, "GET", "/pools/default/buckets/default", {"Host": name}) == 200
        assert ask(node, "GET", "/metrics", {"Host": name}) == 200
    own = {"Host": f"localhost:{node.port}", "Origin": f"http://localhost:{node.port}", "Sec-Fetch-Site": "same-origin"}
    assert ask(node, "POST", "/pools/default/buckets/default/scopes", {**FORM, **own}, "name=own") == 200
    assert ask(node, "POST", "/pools/default/buckets/default/scopes", FORM, "name=programs") == 200
    # Prometheus, or an SDK, by a name of the network that the node was never told: the login is what counts.
    assert ask(guarded, "GET", "/metrics", {"Host": "db1.example.com:11210", **LOGIN}) == 200
    assert ask(guarded, "GET", "/metrics", {"Host": "db1.example.com:11210"}) == 401


def server(host: str, *, map_says: str | None = None, certificate: tuple[str, ...] = ()) -> object:
    known = None if map_says is None else SimpleNamespace(here=SimpleNamespace(host=map_says))
    tls = SimpleNamespace(certificate=SimpleNamespace(dns_names=certificate, addresses=())) if certificate else None
    bucket = SimpleNamespace(membership=SimpleNamespace(map=known))
    return SimpleNamespace(config=SimpleNamespace(host=host), tls=tls, buckets={"default": bucket})


@pytest.mark.parametrize(
    ("told", "name", "own"),
    [
        (server("127.0.0.1"), "10.0.0.7", False),
        (server("127.0.0.1"), "0.0.0.0", False),
        (server("localhost"), "node1", False),
        (server("127.0.0.1"), "127.0.0.1.evil.example", False),
        (server("127.0.0.1", map_says="db1.example"), "db1.example", True),
        (server("127.0.0.1", certificate=("*.db.example",)), "n1.db.example", True),
        (server("127.0.0.1", certificate=("*.db.example",)), "a.n1.db.example", False),
        (server("0.0.0.0"), "10.0.0.7", True),
        (server("0.0.0.0"), "[fe80::1]", True),
        (server("0.0.0.0"), "node1", True),
        (server("0.0.0.0"), "evil.example", False),
        (server("db1.example"), "DB1.example.".lower(), True),
        (server("0.0.0.0"), "", True),
    ],
)
def test_own_names_are_those_that_nobody_else_can_give(told: object, name: str, *, own: bool) -> None:
    assert is_own_name(told, name) is own  # type: ignore[arg-type]
