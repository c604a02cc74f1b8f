"""Requests at the address that workers have in common are answered as one process answers them."""

from __future__ import annotations

import json
import os
import signal
import socket
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from harness.nodes import until
from headwater import testing
from headwater.accounts.roles import read_grants
from headwater.accounts.users import Account
from headwater.node.users.file import UsersFile
from headwater.testing.node import Node
from headwater.wire import tap
from headwater.wire.features import Feature
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State, vbucket_of
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
            assert {path.name for path in (node.data / "relays").iterdir()} == {"worker-0", "worker-1"}
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
        for client in clients:
            client.socket.close()


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
                client.ask(Opcode.HELLO, value=b"".join(int(feature).to_bytes(2, "big") for feature in features))
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


def test_what_names_a_vbucket_and_no_document_is_answered_by_its_worker() -> None:
    with testing.node(vbuckets=VBUCKETS, workers=2) as node, Client(node.port) as client:
        for key in KEYS:
            vb = vbucket_of(key, VBUCKETS)
            assert client.ask(Opcode.SET, key=key, vbucket=vb, extras=SET_EXTRAS, value=b"1").status == 0
            assert client.ask(Opcode.GET_REPLICA, key=key, vbucket=vb).status == Status.NOT_MY_VBUCKET  # it is active
        for vb in range(VBUCKETS):
            log = client.ask(Opcode.GET_FAILOVER_LOG, vbucket=vb)
            assert (log.status, len(log.value)) == (0, 16)
            seen = client.ask(Opcode.OBSERVE_SEQNO, vbucket=vb, value=log.value[:8])
            high = seen.value[-8:]
            assert seen.status == 0 and int.from_bytes(high) > 0
            assert client.ask(Opcode.SEQNO_PERSISTENCE, vbucket=vb, extras=high).status == 0
            assert b"key-" in client.ask(Opcode.GET_KEYS, key=b"a", vbucket=vb).value
            assert client.ask(Opcode.GET_VBUCKET, vbucket=vb).status == 0
        assert client.ask(Opcode.GET, key=b"k", vbucket=VBUCKETS).status == Status.NOT_MY_VBUCKET
        assert client.ask(Opcode.GET_FAILOVER_LOG, vbucket=VBUCKETS).status == Status.NOT_MY_VBUCKET


def test_a_vbucket_that_is_deleted_and_made_again_stays_with_its_worker() -> None:
    with testing.node(vbuckets=VBUCKETS, workers=2) as node, Client(node.port) as client:
        for vb in (0, 1):
            assert client.ask(Opcode.DEL_VBUCKET, vbucket=vb).status == 0
            assert client.ask(Opcode.GET_VBUCKET, vbucket=vb).status == Status.NOT_MY_VBUCKET
            assert client.ask(Opcode.SET_VBUCKET, vbucket=vb, extras=b"\1").status == 0
        with Client(node.port) as other:
            for vb in (0, 1):
                assert other.ask(Opcode.GET_FAILOVER_LOG, vbucket=vb).status == 0
    for vb in (0, 1):
        assert f"set vbucket {vb} " not in node.log  # nobody is logged in


def test_a_scan_of_another_workers_vbucket_brings_its_documents() -> None:
    with testing.node(vbuckets=VBUCKETS, workers=2) as node, Client(node.port) as client:
        client.ask(Opcode.HELLO, value=int(Feature.JSON).to_bytes(2, "big"))
        for key in KEYS:
            vb = vbucket_of(key, VBUCKETS)
            assert client.ask(Opcode.SET, key=key, vbucket=vb, extras=SET_EXTRAS, value=b"v").status == 0
        scanned = []
        for vb in range(VBUCKETS):
            wish = {"range": {"start": b64encode(b"\0").decode(), "end": b64encode(b"\xff").decode()}, "key_only": True}
            made = client.ask(Opcode.RANGE_SCAN_CREATE, vbucket=vb, datatype=1, value=json.dumps(wish).encode())
            assert made.status == 0, made
            while True:
                client.send(Frame(0x80, Opcode.RANGE_SCAN_CONTINUE, vbucket=vb, extras=made.value + bytes(12)).encode())
                answer = client.read()
                assert answer is not None
                scanned.append(answer.value)
                if answer.status == Status.RANGE_SCAN_COMPLETE:
                    break
                assert answer.status in (0, Status.RANGE_SCAN_MORE)
        assert sum(each.count(b"key-") for each in scanned) == len(KEYS)


def statistics(client: Client, group: bytes) -> dict[bytes, bytes]:
    client.send(Frame(0x80, Opcode.STAT, group).encode())
    told: dict[bytes, bytes] = {}
    while True:
        answer = client.read()
        assert answer is not None and answer.status == 0, answer
        if not answer.key:
            return told
        assert answer.key not in told, "each has one value"
        told[answer.key] = answer.value


def test_seqnos_statistics_and_observed_keys_are_those_of_all_workers() -> None:
    with testing.node(vbuckets=VBUCKETS, workers=3) as node:
        with Client(node.port) as client:
            for key in KEYS:
                vb = vbucket_of(key, VBUCKETS)
                assert client.ask(Opcode.SET, key=key, vbucket=vb, extras=SET_EXTRAS, value=b"v").status == 0
        for _ in range(3):
            with Client(node.port) as client:
                rows = client.ask(Opcode.GET_ALL_VB_SEQNOS, extras=(1).to_bytes(4)).value
                seqnos = {rows[at + 1]: int.from_bytes(rows[at + 2 : at + 10]) for at in range(0, len(rows), 10)}
                assert list(seqnos) == list(range(VBUCKETS)) and sum(seqnos.values()) == len(KEYS)
                told = statistics(client, b"vbucket-seqno")
                assert {vb: int(told[b"vb_%d:high_seqno" % vb]) for vb in range(VBUCKETS)} == seqnos
                assert set(statistics(client, b"vbucket")) == {b"vb_%d" % vb for vb in range(VBUCKETS)}
                for vb in range(VBUCKETS):
                    assert set(statistics(client, b"vbucket %d" % vb)) == {b"vb_%d" % vb}
                general = statistics(client, b"")
                assert (general[b"curr_items"], general[b"cmd_set"]) == (b"%d" % len(KEYS),) * 2
                asked = b"".join(
                    vbucket_of(key, VBUCKETS).to_bytes(2) + len(key).to_bytes(2) + key for key in [*KEYS, b"nobody"]
                )
                states = client.ask(Opcode.OBSERVE, value=asked).value
                assert states.count(b"key-") == len(KEYS) and b"nobody\x80" in states
                assert client.ask(Opcode.OBSERVE, value=b"?").status == Status.EINVAL
                client.send(Frame(0x80, Opcode.STAT, b"nothing").encode())
                refused = client.read()
                assert refused is not None and refused.status == Status.KEY_ENOENT


ACK = tap.MessageFlag.ACK | tap.MessageFlag.NETWORK_BYTE_ORDER


def fed(client: Client, *messages: tap.Mutation | tap.Flush | tap.Opaque | tap.VbucketSet) -> list[int]:
    """Send messages of a TAP feed that ask for answers; the statuses, in order."""
    client.send(b"".join(replace(each, flags=ACK, opaque=at).encode() for at, each in enumerate(messages)))
    answers = [client.read() for _ in messages]
    assert [answer.opaque for answer in answers if answer is not None] == list(range(len(messages)))
    return [answer.status for answer in answers if answer is not None]


def give(node: Node, roles: dict[str, str]) -> None:
    """Give users roles; on return both workers know of it."""
    seen = node.log.count("users changed")
    with UsersFile(node.data).editing() as accounts:
        for name, text in roles.items():
            accounts[name] = Account.create("secret", read_grants(text))
    until(lambda: node.log.count("users changed") == seen + 2, "both workers know the users")


def state(vb: int, state_: State) -> tap.VbucketSet:
    return tap.VbucketSet(vbucket=vb, engine_specific=tap.code_or_state(state_))


def change(vb: int, key: bytes) -> tap.Mutation:
    return tap.Mutation(vbucket=vb, key=key, value=b"v")


def documents_of(client: Client, vb: int, *keys: bytes) -> list[bool]:
    return [client.ask(Opcode.GET, key=key, vbucket=vb).status == 0 for key in keys]


def test_a_feed_by_tap_fills_the_vbuckets_of_all_workers() -> None:
    with testing.node(vbuckets=VBUCKETS, workers=2) as node:
        for _ in range(2):  # each worker has one of the connections
            with Client(node.port) as feed, Client(node.port) as client:
                assert fed(feed, *(state(vb, State.REPLICA) for vb in range(VBUCKETS))) == [0] * VBUCKETS
                assert fed(feed, *(change(vb, b"a") for vb in range(VBUCKETS) for _ in range(3))) == [0] * 3 * VBUCKETS
                feed.send(b"".join(change(vb, b"quiet").encode() for vb in range(VBUCKETS)))
                begins = tap.code_or_state(tap.OpaqueCode.INITIAL_VBUCKET_STREAM)
                assert fed(feed, tap.Opaque(vbucket=1, engine_specific=begins), change(1, b"b")) == [0, 0]
                assert fed(feed, *(state(vb, State.ACTIVE) for vb in range(4))) == [0] * 4
                assert documents_of(client, 0, b"a", b"quiet", b"b") == [True, True, False]
                assert documents_of(client, 1, b"a", b"quiet", b"b") == [False, False, True], "from scratch"
                assert fed(feed, tap.Flush(), *(state(vb, State.ACTIVE) for vb in range(4, 8))) == [0] * 5
                assert [documents_of(client, vb, b"a") for vb in range(VBUCKETS)] == [
                    [True], [False], [True], [True], *[[False]] * 4,
                ]  # fmt: skip
                assert fed(feed, change(1, b"c"), change(2, b"c")) == [Status.NOT_MY_VBUCKET] * 2, "they are active"
                feed.send(tap.Opaque(engine_specific=bytes(4)).encode())  # errors are answered from now on
                for vb in (1, 2):
                    feed.send(change(vb, b"c").encode())
                    answer = feed.read()
                    assert answer is not None and answer.status == Status.NOT_MY_VBUCKET


@pytest.mark.parametrize("vb", [0, 1])
def test_a_feed_is_over_when_a_worker_dies_that_has_heard_of_it(vb: int) -> None:
    """The worker forgets what it has heard: a flush would leave documents there that the producer has dropped."""
    with testing.node(vbuckets=VBUCKETS, workers=2) as node:
        with Client(node.port) as feed:
            assert fed(feed, state(0, State.REPLICA), state(1, State.REPLICA)) == [0, 0]
            os.kill(workers_of(node)[vb], signal.SIGKILL)
            assert feed.read() is None
        until(lambda: f"worker {vb} ended by signal 9" in node.log, "its death")


def test_a_feed_goes_on_when_another_user_comes_and_ends_when_its_own_user_loses_the_bucket() -> None:
    """The feed was cut by each change of the list of users, and began anew."""
    with testing.node(vbuckets=VBUCKETS, workers=2) as node:
        give(node, {"root": "administer", "ann": "administer"})
        for guest in ("bob", "joe"):  # each worker has one of the connections
            with Client(node.port) as feed:
                assert feed.ask(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0ann\0secret").status == 0
                assert feed.ask(Opcode.SELECT_BUCKET, key=b"default").status == 0
                assert fed(feed, state(0, State.REPLICA), state(1, State.REPLICA)) == [0, 0]
                give(node, {guest: "read"})
                assert fed(feed, change(0, b"a"), change(1, b"a")) == [0, 0]
                give(node, {"ann": "administer[elsewhere]"})
                give(node, {"ann": "administer"})
                feed.send(Frame(0x80, Opcode.SELECT_BUCKET, key=b"default").encode())
                feed.send(b"".join(change(vb, b"b").encode() for vb in (0, 1)))
                while feed.read() is not None:
                    pass


def test_a_random_document_is_one_of_any_worker() -> None:
    with testing.node(vbuckets=VBUCKETS, workers=2) as node:
        assert random_keys(node, 6) == {None}
        with Client(node.port) as client:
            for vb, key in ((1, b"odd"), (2, b"even")):
                assert client.ask(Opcode.SET, key=key, vbucket=vb, extras=SET_EXTRAS, value=b"v").status == 0
                if vb == 1:
                    assert random_keys(node, 6) == {b"odd"}
            assert {client.ask(Opcode.GET_RANDOM_KEY).key for _ in range(60)} == {b"odd", b"even"}
        assert random_keys(node, 6) <= {b"odd", b"even"}


def random_keys(node: Node, connections: int) -> set[bytes | None]:
    """The keys that some connections get, which the workers take in turn; None for the answer that there is none."""
    keys = set[bytes | None]()
    for _ in range(connections):
        with Client(node.port) as client:
            answer = client.ask(Opcode.GET_RANDOM_KEY, opaque=9)
            assert answer.opaque == 9 and answer.status in (0, Status.KEY_ENOENT)
            keys.add(None if answer.status else answer.key)
    return keys


def test_what_concerns_all_workers_fails_for_now_while_one_is_away_and_the_connection_stays() -> None:
    with testing.node(vbuckets=VBUCKETS, workers=2) as node, reaching(node, KEYS[0]) as client:
        assert client.ask(Opcode.GET_ALL_VB_SEQNOS).status == 0
        (node.data / "relays" / f"worker-{vbucket_of(KEYS[0], VBUCKETS) % 2}").unlink()
        with reaching(node, KEYS[0]) as late:
            assert late.ask(Opcode.GET_ALL_VB_SEQNOS).status == Status.ETMPFAIL
            assert late.ask(Opcode.STAT, key=b"vbucket").status == Status.ETMPFAIL
            assert late.ask(Opcode.NOOP).status == 0


def test_a_dcp_connection_gets_answers_of_all_workers_too() -> None:
    with testing.node(vbuckets=VBUCKETS, workers=2) as node, Client(node.port) as client:
        assert client.ask(Opcode.DCP_OPEN, key=b"d", extras=bytes(7) + b"\1").status == 0
        for at, key in enumerate(KEYS):
            client.send(of_key(Opcode.SET, key, at, extras=SET_EXTRAS, value=b"v").encode())
        client.send(Frame(0x80, Opcode.NOOP, opaque=END).encode())
        heard = [client.read() for _ in range(len(KEYS) + 1)]
        assert [(each.opaque, each.status) for each in heard if each] == [(at, 0) for at in (*range(len(KEYS)), END)]
        assert len(client.ask(Opcode.GET_ALL_VB_SEQNOS).value) == 10 * VBUCKETS
        for vb in range(VBUCKETS):
            assert client.ask(Opcode.GET_FAILOVER_LOG, vbucket=vb).status == 0
