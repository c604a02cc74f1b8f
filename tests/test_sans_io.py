"""The page on sans-I/O is run as it stands: its drain against a node, its producer against its drain and a node."""

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headwater import client, testing
from headwater.protocol.dcp.events import Ended, Opened, Rows
from headwater.protocol.dcp.position import Position
from headwater.protocol.end import PeerGone
from headwater.protocol.handshake import Conversation, Handshake, Login, greet
from headwater.wire.admin import IoctlSet, SeqnoPersistence, SetVbucket
from headwater.wire.vbucket import State

PAGE = Path(__file__).parent.parent / "docs" / "howto" / "sans-io.md"
CODE = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL))


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "sans_io"}
    exec(compile(CODE, str(PAGE), "exec"), names)
    return names


@contextmanager
def producing(page: dict[str, Any]) -> Iterator[int]:
    """The page's producer for one connection; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(120)

        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                page["produce"](sock)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(120)
        assert not thread.is_alive()


def test_the_drain_of_the_page_reads_all_that_a_node_holds(page: dict[str, Any]) -> None:
    documents = {f"key-{number}".encode(): b"x" * number * 100 for number in range(300)}
    with testing.node(vbuckets=16) as node:
        with client.connect(node.url) as bucket:
            for key, value in documents.items():
                bucket.set(key, value)
        changes = list(page["drain"]("127.0.0.1", node.port, "default"))
    assert {change["key"]: change["value"] for change in changes} == documents
    assert len({change["vbucket"] for change in changes}) == 16


def test_the_drain_of_the_page_gets_more_than_its_window_because_it_acknowledges(page: dict[str, Any]) -> None:
    value = bytes(100_000)
    with testing.node(vbuckets=16) as node:
        with client.connect(node.url) as bucket:
            for number in range(40):
                bucket.set(f"key-{number}", value)
        sizes = [len(change["value"]) for change in page["drain"]("127.0.0.1", node.port, "default")]
    assert sum(sizes) == 4_000_000 > 3 * page["WINDOW_BYTES"]


def test_the_producer_of_the_page_is_read_by_the_conversations_of_the_page(page: dict[str, Any]) -> None:
    with producing(page) as port, socket.create_connection(("127.0.0.1", port)) as sock:
        greeting = page["agree"](sock, page["greet"](page["Login"]("test", "default", wants_map=False)))
        assert greeting.features == frozenset()
        page["agree"](sock, page["open_producer"](page["Opening"]("test", page["OpenFlag"].PRODUCER)))
        now = page["time"].monotonic()  # the page's conversations go by this clock
        end = page["Drain"](
            page["Arena"](), "producer", window_bytes=0, silence_seconds=None, answer_seconds=30.0, now=now
        )
        end.request(Position.beginning(0), 100, now)
        seen = []
        for event in page["converse"](end, sock):
            seen.append(event)
            if isinstance(event, Ended):
                break
    assert [type(event) for event in seen] == [Opened, Rows, Ended]
    assert seen[1].records["seqno"].to_pylist() == list(range(1, 101))
    assert end.position(0) == Position(0, 0xA11CE, 100, 100, 100, ((0xA11CE, 0),))


def following(port: int) -> Conversation[None]:
    """Make vbucket 0 of a node a replica of whoever listens at `port`, and active when it has all."""
    order = json.dumps({"from": f"127.0.0.1:{port}/default", "vbuckets": "0"}).encode()
    for request in (
        SetVbucket(vbucket=0, state=State.REPLICA),
        IoctlSet(key=b"replicate", value=order),
        SeqnoPersistence(vbucket=0, seqno=100),
        SetVbucket(vbucket=0, state=State.ACTIVE),
    ):
        answer = yield request.frame()
        assert answer.status == 0, (request, answer)


def test_a_node_follows_the_producer_of_the_page_and_serves_what_it_got(page: dict[str, Any]) -> None:
    with testing.node(vbuckets=16) as node, producing(page) as port:
        with socket.create_connection(("127.0.0.1", node.port)) as sock:
            page["agree"](sock, page["greet"](page["Login"]("test", "default", wants_map=False)))
            page["agree"](sock, following(port))
        changes = list(page["drain"]("127.0.0.1", node.port, "default"))
    assert [(change["key"], change["value"], change["seqno"]) for change in changes] == [
        (b"key-%d" % seqno, b"%d" % seqno, seqno) for seqno in range(1, 101)
    ]


def test_a_consumer_that_hangs_up_and_one_that_says_nothing_are_told_alike(page: dict[str, Any]) -> None:
    for seconds_max, expected in ((0.05, [PeerGone(0.05, "HELLO")]), (30.0, [PeerGone(None, "HELLO")])):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            if seconds_max == 30.0:
                theirs.shutdown(socket.SHUT_WR)
            end = Handshake(greet(Login("test")), now=page["time"].monotonic(), seconds_max=seconds_max)
            conversation = page["converse"](end, ours)
            assert [next(conversation)] == expected
