"""HTTP on the port of everything else, over a real node."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.nodes import until
from headwater import testing
from headwater.node.rest import pages
from headwater.node.rest.made import Made
from headwater.node.rest.session import HttpSession
from headwater.node.users.logins import Users
from headwater.testing.node import Node
from headwater.wire.opcodes import Opcode
from tests.node.support import Desk, FakeConnection, desk
from tests.node.wire import Client

LOGIN = {"Authorization": "Basic YW5uOnNlY3JldA=="}


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with testing.node(vbuckets=4) as node:
        yield node


def ask(node: Node, path: str, method: str = "GET", headers: dict[str, str] | None = None) -> tuple[int, Any]:
    line = http.client.HTTPConnection(node.host, node.port, timeout=120)
    line.request(method, path, headers=headers or {})
    answer = line.getresponse()
    body = answer.read()
    line.close()
    return answer.status, json.loads(body) if answer.status == 200 and body else body


def test_the_bucket_is_told_with_its_map_and_healthy_nodes(node: Node) -> None:
    status, bucket = ask(node, "/pools/default/buckets/default")
    assert status == 200 and bucket["bucketType"] == "membase" and bucket["replicaNumber"] == 0
    assert [each["status"] for each in bucket["nodes"]] == ["healthy"]
    assert bucket["vBucketServerMap"]["vBucketMap"] == [[0]] * 4
    assert ask(node, "/pools/default/buckets")[1] == [bucket]


def test_the_pages_around_it(node: Node) -> None:
    assert ask(node, "/pools")[1]["implementationVersion"].startswith("7.6.")
    assert len(ask(node, "/pools/default")[1]["nodes"]) == 1
    assert ask(node, "/whoami", headers=LOGIN)[1] == {"id": "ann", "domain": "local"}
    assert ask(node, "/pools/default/b/default")[1]["nodesExt"][0]["services"] == {"kv": node.port, "mgmt": node.port}


def test_other_pages_buckets_and_methods_are_not_found(node: Node) -> None:
    for path in (
        "/",
        "/pools/default/buckets/other",
        "/pools/default/bs/other",
        "/pools/default/buckets/other/scopes",
        "/settings/rbac/users/local/bob",
    ):
        assert ask(node, path) == (404, b"Requested resource not found.\r\n")
    assert ask(node, "/pools", "POST")[0] == 404
    assert ask(node, "/pools", "HEAD") == (200, b"")


@pytest.mark.parametrize(
    ("method", "path", "said"),
    [
        ("POST", "/pools/default/buckets/default/controller/doFlush", "Flush is disabled"),
        ("POST", "/pools/default/buckets", "a name of 1 to 100"),
        ("DELETE", "/pools/default/buckets/default", "started with"),
        ("PUT", "/settings/rbac/users/local/bob", "--user"),
    ],
)
def test_what_can_not_be_done_here_is_refused_in_words_that_clients_look_for(
    node: Node, method: str, path: str, said: str
) -> None:
    status, body = ask(node, path, method)
    assert status == 400 and said in json.loads(body)["errors"]["_"]


def test_a_path_may_end_in_a_slash_and_be_escaped(node: Node) -> None:
    bucket = ask(node, "/pools/default/buckets/default")
    assert ask(node, "/pools/default/buckets/") == (200, [bucket[1]])
    assert ask(node, "/pools/default/buckets/d%65fault") == bucket


def test_requests_in_one_packet_are_answered_in_order(node: Node) -> None:
    with socket.create_connection((node.host, node.port), 120) as line:
        line.sendall(b"GET /nowhere HTTP/1.1\r\n\r\nGET /whoami HTTP/1.0\r\n\r\n")
        said = b"".join(iter(lambda: line.recv(4096), b""))
    assert said.index(b"404") < said.index(b"200 OK") and said.endswith(b'{"id": "", "domain": "local"}')


def test_a_watcher_is_told_each_new_map(node: Node) -> None:
    line = http.client.HTTPConnection(node.host, node.port, timeout=120)
    line.request("GET", "/pools/default/bs/default")
    stream = line.getresponse()
    first = json.loads(stream.readline())
    assert [stream.readline() for _ in range(3)] == [b"\n"] * 3
    later: dict[str, object] = {"rev": 5, "revEpoch": 9, "name": "elsewhere"}
    later["vBucketServerMap"] = {"serverList": ["a:1"], "vBucketMap": [[0]]}
    with Client(node.port) as client:
        versions = b"".join(number.to_bytes(8, "big") for number in (9, 5))
        assert client.ask(Opcode.SET_CLUSTER_CONFIG, extras=versions, value=json.dumps(later).encode()).status == 0
    assert json.loads(stream.readline()) == later and first["name"] == "default"
    line.close()


def test_who_says_nonsense_is_hung_up_on(node: Node) -> None:
    with socket.create_connection((node.host, node.port), 120) as line:
        line.sendall(b"GET nonsense\r\n\r\n" + b"x" * 100)
        said = b"".join(iter(lambda: line.recv(1000), b""))
        assert said.startswith(b"HTTP/1.1 400 Bad Request\r\n") and said.endswith(b"\r\n\r\n")
    assert ask(node, "/whoami")[0] == 200


@pytest.mark.parametrize(
    "length", [b"Content-Length: 0\r\nContent-Length: 37", b"Content-Length : 37", b"X: y\n\rX: z"]
)
def test_no_request_is_hidden_in_the_body_of_another(node: Node, length: bytes) -> None:
    """Who stands between may have read the other length, and take the second for the body of the first."""
    with socket.create_connection((node.host, node.port), 10) as line:
        line.sendall(b"GET /pools HTTP/1.1\r\n" + length + b"\r\n\r\nGET /whoami HTTP/1.1\r\nHost: hidden\r\n\r\n")
        said = b"".join(iter(lambda: line.recv(1000), b""))
    assert said.count(b"HTTP/1.1 ") == 1 and said.startswith(b"HTTP/1.1 400 ")


def test_where_there_are_users_a_page_wants_the_password() -> None:
    with testing.node(vbuckets=1, user="ann", environment={"HEADWATER_PASSWORD": "secret"}) as node:
        assert ask(node, "/pools") == (401, b"")
        assert ask(node, "/pools", headers={"Authorization": "Basic YW5uOndyb25n"}) == (401, b"")
        assert ask(node, "/pools", headers=LOGIN)[0] == 200
        until(lambda: "wrong name or password (HTTP)" in node.log, "it is told")


def test_more_requests_at_once_than_one_turn_has_time_for_are_all_answered(node: Node) -> None:
    with socket.create_connection((node.host, node.port), 120) as line:
        line.sendall(b"GET /pools HTTP/1.1\r\n\r\n" * 20000 + b"GET /pools HTTP/1.1\r\nConnection: close\r\n\r\n")
        said = b"".join(iter(lambda: line.recv(1 << 20), b""))
    assert said.count(b"HTTP/1.1 200 OK") == 20001


def test_a_change_that_breaks_is_answered_and_the_connection_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken() -> Made:
        raise RuntimeError("broken")

    monkeypatch.setattr(pages, "change", lambda *_: broken())

    async def main(counter: Desk) -> None:
        counter.loop = asyncio.get_running_loop()
        connection = FakeConnection()
        session = HttpSession(connection, counter)  # type: ignore[arg-type]
        session.receive(memoryview(b"POST /pools/default/buckets HTTP/1.1\r\nContent-Length: 0\r\n\r\n"))
        assert connection.paused == {"changing"}
        while connection.is_paused:
            await asyncio.sleep(0)
        ((answer, _),) = connection.sent
        assert answer.startswith(b"HTTP/1.1 500 ") and answer.endswith(b'"internal error"}}')

    with desk(tmp_path / "s") as counter:
        asyncio.run(main(counter))
    assert "RuntimeError: broken" in caplog.text


def test_who_waits_for_a_password_that_can_not_be_judged_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(counter: Desk) -> None:
        async def broken(*_: object) -> bool:
            raise RuntimeError("can't start new thread")

        counter.loop, counter.users = asyncio.get_running_loop(), Users({"ann": "secret"})
        monkeypatch.setattr(counter.users, "is_right", broken)
        connection = FakeConnection()
        session = HttpSession(connection, counter)  # type: ignore[arg-type]
        session.receive(memoryview(b"GET /pools HTTP/1.1\r\nAuthorization: Basic YW5uOnNlY3JldA==\r\n\r\n"))
        for _ in range(100):
            await asyncio.sleep(0)
        assert connection.dropped == "internal error" and not connection.sent

    with desk(tmp_path / "s") as counter:
        asyncio.run(main(counter))
    assert "can't start new thread" in caplog.text
