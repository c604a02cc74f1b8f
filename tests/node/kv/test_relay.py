"""Requests at the address that workers have in common are answered as one process answers them."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from harness.nodes import until
from headwater import testing
from headwater.testing.node import Node
from headwater.wire.features import Feature
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import vbucket_of
from tests.cluster.nodes import command
from tests.node.wire import Client
from tests.node.workers.test_supervising import workers_of

VBUCKETS = 8
KEYS = [f"key-{number}".encode() for number in range(64)]
END = 0xFFFF
SET_EXTRAS = bytes(8)


def of_key(opcode: int, key: bytes, opaque: int, **sections: object) -> Frame:
    """A request of a document."""
    return Frame(0x80, opcode, key, vbucket=vbucket_of(key, VBUCKETS), opaque=opaque, **sections)  # type: ignore[arg-type]


def conversation() -> Iterator[Frame]:
    """Requests of each kind on keys of all vbuckets, quiet ones and such that are about no document between them."""
    opaque = iter(range(1, END))
    yield Frame(0x80, Opcode.FLUSH, opaque=next(opaque))
    for key in KEYS[:40]:
        yield of_key(Opcode.SET, key, next(opaque), extras=SET_EXTRAS, value=b"1" + key)
        yield of_key(Opcode.SETQ, key + b"q", next(opaque), extras=SET_EXTRAS, value=b"quiet")
        yield of_key(Opcode.GETQ, key + b"?", next(opaque))
    yield Frame(0x80, Opcode.NOOP, opaque=next(opaque))
    for key in KEYS:
        yield of_key(Opcode.GET, key, next(opaque))
        yield of_key(Opcode.GETKQ, key + b"q", next(opaque))
        yield of_key(Opcode.ADDQ, key, next(opaque), extras=SET_EXTRAS, value=b"added")
        yield of_key(Opcode.INCREMENT, key + b"n", next(opaque), extras=(5).to_bytes(8) + bytes(7) + b"\x07" + bytes(4))
        yield of_key(Opcode.GET, key, next(opaque), extras=b"?")  # which is refused
    yield Frame(0x80, Opcode.VERBOSITY, extras=bytes(4), opaque=next(opaque))
    yield of_key(Opcode.DELETEQ, KEYS[0], next(opaque))
    yield Frame(0x80, Opcode.FLUSHQ, opaque=next(opaque))
    for key in KEYS:
        yield of_key(Opcode.GET, key, next(opaque))
    yield Frame(0x80, Opcode.NOOP, opaque=END)


def answers(client: Client, data: bytes) -> list[Frame]:
    """The answers up to that of the last request, but for what no two nodes have in common."""
    client.send(data)
    heard: list[Frame] = []
    while not heard or heard[-1].opaque != END:
        answer = client.read()
        assert answer is not None, "the node hung up"
        heard.append(replace(answer, cas=0))
    return heard


def test_a_conversation_has_the_answers_of_one_process_however_it_is_cut() -> None:
    whole = b"".join(frame.encode() for frame in conversation())
    with testing.node(vbuckets=VBUCKETS) as plain, testing.node(vbuckets=VBUCKETS, workers=2) as node:
        with Client(plain.port) as client:
            expected = answers(client, whole)
        for _ in range(4):  # each worker gets some of them
            with Client(node.port) as client:
                assert answers(client, whole) == expected
        with Client(node.port) as client:
            client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for at in range(0, len(whole) - 100, 97):
                client.send(whole[at : at + 97])
            assert answers(client, whole[len(range(0, len(whole) - 100, 97)) * 97 :]) == expected


def test_who_sends_no_more_gets_all_answers() -> None:
    with testing.node(vbuckets=VBUCKETS, workers=2) as node, Client(node.port) as client:
        for at, key in enumerate(KEYS):
            client.send(of_key(Opcode.SET, key, at, extras=SET_EXTRAS, value=b"v").encode())
        client.socket.shutdown(socket.SHUT_WR)
        heard = iter(client.read, None)
        assert [(each.opaque, each.status) for each in heard if each] == [(at, 0) for at in range(len(KEYS))]


def test_workers_call_each_other_however_long_the_name_of_their_folder_is() -> None:
    with TemporaryDirectory(prefix="headwater-relays-") as folder:
        node = Node(Path(folder) / ("long" * 40) / "data", {"vbuckets": VBUCKETS, "workers": 2})
        node.data.parent.mkdir()
        try:
            with reaching(node.start(), KEYS[0]) as client:
                assert client.ask(Opcode.GET, key=KEYS[0], vbucket=vbucket_of(KEYS[0], VBUCKETS)).status == 1
            assert {each.name for each in (node.data / "relays").iterdir()} == {"worker-0", "worker-1"}
            assert node.stop() == 0 and not (node.data / "relays").exists()
        finally:
            if node.is_running:
                node.kill()
            node.let_go()


def test_large_documents_reach_a_client_that_reads_slowly_whole_and_in_order() -> None:
    value = os.urandom(1 << 20)
    with testing.node(vbuckets=VBUCKETS, workers=2) as node, Client(node.port) as client:
        for key in KEYS:
            assert client.ask(
                Opcode.SET, key=key, vbucket=vbucket_of(key, VBUCKETS), extras=SET_EXTRAS, value=value + key
            )
        for _ in range(2):
            client.send(b"".join(of_key(Opcode.GET, key, at).encode() for at, key in enumerate(KEYS)))
            for at, key in enumerate(KEYS):
                answer = client.read()
                assert answer is not None and (answer.opaque, answer.status) == (at, 0) and answer.value == value + key


def test_the_text_protocol_has_the_answers_of_one_process() -> None:
    lines = b"".join(b"set %b 3 0 5\r\nhello\r\nadd %b 0 0 1\r\nx\r\nincr %b 1\r\n" % (key, key, key) for key in KEYS)
    lines += (
        b"get "
        + b" ".join([*KEYS, b"nobody"])
        + b"\r\nget "
        + KEYS[5]
        + b"\r\nset "
        + KEYS[1]
        + b" 0 0 1 noreply\r\n7\r\n"
    )
    lines += b"incr " + KEYS[1] + b" 2\r\nflush_all\r\nget " + b" ".join(KEYS) + b"\r\nmn\r\nquit\r\n"
    with testing.node(vbuckets=VBUCKETS) as plain, testing.node(vbuckets=VBUCKETS, workers=2) as node:
        expected = typed(plain, lines)
        assert expected.count(b"STORED\r\n") > len(KEYS) and b"\r\n9\r\nOK\r\nEND\r\nMN\r\n" in expected
        assert {typed(node, lines) for _ in range(4)} == {expected}


def typed(node: Node, lines: bytes) -> bytes:
    """All that a node answers to lines, of which the last one ends the connection."""
    with socket.create_connection((node.host, node.port), timeout=120) as sock:
        sock.sendall(lines)
        return b"".join(iter(lambda: sock.recv(1 << 16), b""))


@contextmanager
def reaching(node: Node, key: bytes) -> Iterator[Client]:
    """A connection to a worker that has not the key's vbucket."""
    first = node.data / "worker-0"
    assert first.exists()
    clients: list[Client] = []
    try:
        while True:
            clients.append(Client(node.port))
            config = clients[-1].ask(Opcode.GET_CLUSTER_CONFIG).value
            entries = config.split(b'"nodesExt":')[1].split(b'"services"')
            here = next(at for at, each in enumerate(entries[1:]) if b'"thisNode":true' in each)
            if here != vbucket_of(key, VBUCKETS) % 2:
                yield clients[-1]
                return
    finally:
        for each in clients:
            each.socket.close()


def test_a_worker_that_dies_with_a_request_takes_the_clients_connection_with_it_and_no_other() -> None:
    key = KEYS[0]
    with testing.node(vbuckets=VBUCKETS, workers=2) as node, reaching(node, key) as client:
        owner = workers_of(node)[vbucket_of(key, VBUCKETS) % 2]
        assert client.ask(Opcode.SET, key=key, vbucket=vbucket_of(key, VBUCKETS), extras=SET_EXTRAS).status == 0
        with reaching(node, key) as idle:
            assert idle.ask(Opcode.GET, key=key, vbucket=vbucket_of(key, VBUCKETS)).status == 0
            os.kill(owner, signal.SIGSTOP)
            client.send(of_key(Opcode.GET, key, 1).encode())
            with pytest.raises(TimeoutError):
                client.socket.settimeout(0.2)
                client.read()
            os.kill(owner, signal.SIGKILL)
            client.socket.settimeout(60)
            assert client.read() is None  # nobody knows what was done
            assert idle.ask(Opcode.NOOP).status == 0
            until(lambda: is_answered(node, key), "it is back")
            assert idle.ask(Opcode.GET, key=key, vbucket=vbucket_of(key, VBUCKETS)).status == 0


def is_answered(node: Node, key: bytes) -> bool:
    """True if a new connection to the other worker gets the document; it ends where its owner is just gone."""
    with reaching(node, key) as client:
        client.send(of_key(Opcode.GET, key, 1).encode())
        answer = client.read()
        return answer is not None and answer.status == 0


def test_users_buckets_and_features_of_a_client_hold_at_the_other_worker() -> None:
    with testing.node(vbuckets=VBUCKETS, workers=2) as node:
        assert command("bucket", "create", "second", "--node", node.address)[0] == 0
        for key in KEYS[:6]:
            vb = vbucket_of(key, VBUCKETS)
            with Client(node.port) as client:
                assert client.ask(Opcode.SET, key=key, vbucket=vb, extras=SET_EXTRAS, value=b"first").status == 0
                features = (Feature.SELECT_BUCKET, Feature.MUTATION_SEQNO, Feature.COLLECTIONS, Feature.XERROR)
                client.ask(Opcode.HELLO, value=b"".join(int(each).to_bytes(2, "big") for each in features))
                stored = client.ask(Opcode.SET, key=b"\0" + key, vbucket=vb, extras=SET_EXTRAS, value=b"again")
                assert stored.status == 0 and len(stored.extras) == 16
                assert client.ask(Opcode.GET, key=b"\x63" + key, vbucket=vb).status == Status.UNKNOWN_COLLECTION
                assert client.ask(Opcode.SELECT_BUCKET, key=b"second").status == 0
                assert client.ask(Opcode.GET, key=b"\0" + key, vbucket=vb).status == Status.KEY_ENOENT
                assert client.ask(Opcode.SELECT_BUCKET, key=b"default").status == 0
                assert client.ask(Opcode.GET, key=b"\0" + key, vbucket=vb).value == b"again"
        secret = node.data.parent / "password"
        secret.write_text("secret")
        secret.chmod(0o600)
        for name, roles in (("ann", "administer"), ("bob", "read")):
            line = ("user", "add", name, "--roles", roles, "--data", str(node.data), "--password-file", str(secret))
            assert command(*line)[0] == 0
        until(lambda: node.log.count("users changed") >= 4 or node.log.count("bob") >= 2, "all workers know them")
        for key in KEYS[:6]:
            with Client(node.port) as client:
                vb = vbucket_of(key, VBUCKETS)
                assert client.ask(Opcode.GET, key=key, vbucket=vb).status == Status.EACCESS
                client.ask(Opcode.HELLO, value=int(Feature.XERROR).to_bytes(2, "big"))
                assert client.ask(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0bob\0secret").status == 0
                assert client.ask(Opcode.SELECT_BUCKET, key=b"default").status == 0
                assert client.ask(Opcode.GET, key=key, vbucket=vb).value == b"again"
                assert client.ask(Opcode.SET, key=key, vbucket=vb, extras=SET_EXTRAS).status == Status.EACCESS
                assert client.ask(Opcode.FLUSH).status == Status.EACCESS


def test_what_is_no_document_is_answered_where_it_came_in() -> None:
    with testing.node(vbuckets=VBUCKETS, workers=2) as node, Client(node.port) as client:
        refused = [client.ask(Opcode.GET_FAILOVER_LOG, vbucket=vb).status for vb in range(VBUCKETS)]
        assert sorted(refused) == [Status.SUCCESS] * 4 + [Status.NOT_MY_VBUCKET] * 4
        assert client.ask(Opcode.GET, key=b"k", vbucket=VBUCKETS).status == Status.NOT_MY_VBUCKET
