"""Durable writes at real nodes: one alone, and one of three by a cluster map (dcp 2.17, 10; kv.md 2)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.nodes import until
from harness.simulation.cluster import SimCluster
from harness.simulation.sockets import Link
from headwater import testing
from headwater.accounts.roles import read_grants
from headwater.accounts.users import Account
from headwater.errors import DiskFull
from headwater.node.buckets.locks import CAS_OF_LOCKED
from headwater.node.dcp.inbound import InboundStream
from headwater.node.durable_writes import Copies
from headwater.node.kv.scans import create
from headwater.node.refused import CommandRefused
from headwater.node.users.file import UsersFile
from headwater.protocol.tap.options import TapOptions
from headwater.testing.node import Node
from headwater.wire import dcp, tap
from headwater.wire.admin import GetAllVbSeqnosResponse
from headwater.wire.dcp import EndReason, StreamFlag
from headwater.wire.framing import FrameInfo, RequestInfo, encode_framing
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.scans import RangeScanCreate
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.node.aware import COLLECTIONS, JSON, MUTATION_SEQNO, XERROR, Aware, manifest, told
from tests.node.streams.support import StreamDesk, spoil
from tests.node.wire import Client

FLEXIBLE = 0x08
ALT_REQUEST, SYNC_REPLICATION, SUBDOC_XATTR = 0x10, 0x11, 0x06
ENDLESS = 0xFFFF_FFFF_FFFF_FFFF
REPLICA, OTHER = "10.0.0.9:11210", "10.0.0.8:11210"
ONE_MS, LONG_MS = 1, 60_000


class Writer(Client):
    """A connection that asks for durability."""

    def __init__(self, port: int, *features: int) -> None:
        super().__init__(port)
        asked = (XERROR, JSON, MUTATION_SEQNO, ALT_REQUEST, SYNC_REPLICATION, *features)
        assert len(self.ask(Opcode.HELLO, value=b"".join(code.to_bytes(2) for code in asked)).value) == 2 * len(asked)

    def begin(self, opcode: int, key: bytes, *, level: int = 1, timeout_ms: int = LONG_MS, **sections: Any) -> None:
        data = bytes([level]) + timeout_ms.to_bytes(2)
        framing = encode_framing([FrameInfo(RequestInfo.DURABILITY, data)])
        self.send(Frame(FLEXIBLE, opcode, key=key, framing=framing, **sections).encode())

    def write(self, opcode: int, key: bytes, **sections: Any) -> Frame:
        self.begin(opcode, key, **sections)
        answer = self.read()
        assert answer is not None
        return answer

    def set(self, key: bytes, value: bytes, **how: Any) -> Frame:
        return self.write(Opcode.SET, key, extras=bytes(8), value=value, **how)

    def got(self, key: bytes) -> bytes | int:
        found = self.ask(Opcode.GET, key=key)
        return found.status or found.value


class Replica(Aware):
    """The end of a replica, as a connection that a test drives."""

    def __init__(self, port: int, name: str = REPLICA, *features: int) -> None:
        super().__init__(port, *(features or (COLLECTIONS, XERROR, JSON)))
        self.opens(b"replica of " + name.encode())
        assert self.control("enable_sync_writes", "true") == 0
        assert self.control("consumer_name", name) == 0

    def control(self, key: str, value: str) -> int:
        return self.request(dcp.Control(key=key.encode(), value=value.encode())).status

    def acknowledge(self, seqno: int, opaque: int) -> None:
        self.send(dcp.SeqnoAcknowledged(vbucket=0, opaque=opaque, prepared_seqno=seqno).encode())


def three(
    node: Node, replicas: int = 2, chain: tuple[int, ...] = (0, 1, 2), *, rev: int = 1, is_in: bool = True
) -> bytes:
    """A map of this node (if it is in), the replica that tests play, and one that does not exist."""
    servers = [f"127.0.0.1:{node.port}", REPLICA, OTHER][0 if is_in else 1 :]
    extended = [{"services": {"kv": int(server.split(":")[1])}, "hostname": server.split(":")[0]} for server in servers]
    if is_in:
        extended[0]["thisNode"] = True  # type: ignore[assignment]
    return json.dumps(
        {
            "rev": rev,
            "revEpoch": 9,
            "name": "default",
            "nodeLocator": "vbucket",
            "uuid": "0" * 32,
            "nodes": [{"hostname": server, "ports": {"direct": int(server.split(":")[1])}} for server in servers],
            "nodesExt": extended,
            "vBucketServerMap": {
                "hashAlgorithm": "CRC",
                "numReplicas": replicas,
                "serverList": servers,
                "vBucketMap": [list(chain)] * 4,
            },
        }
    ).encode()


def take(node: Node, config: bytes) -> None:
    with Client(node.port) as operator:
        told = json.loads(config)
        extras = int(told["revEpoch"]).to_bytes(8) + int(told["rev"]).to_bytes(8)
        assert operator.ask(Opcode.SET_CLUSTER_CONFIG, key=b"default", extras=extras, value=config).status == 0


@pytest.fixture(scope="module")
def alone() -> Iterator[Node]:
    with testing.node(vbuckets=4) as node:
        yield node


@pytest.fixture
def owner() -> Iterator[Node]:
    """The owner of a chain of three."""
    with testing.node(vbuckets=4) as node:
        take(node, three(node))
        yield node


# --- alone ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [1, 2, 3])
def test_a_node_alone_is_the_majority_of_its_one_copy(alone: Node, level: int) -> None:
    with Writer(alone.port) as writer:
        answer = writer.set(b"level%d" % level, b"v", level=level)
        assert (answer.status, len(answer.extras)) == (0, 16)
        assert writer.got(b"level%d" % level) == b"v"
        again = writer.ask(Opcode.GET, key=b"level%d" % level)
        assert again.cas == answer.cas
        observed = writer.ask(Opcode.OBSERVE_SEQNO, value=answer.extras[:8]).value
        assert observed[19:27] == answer.extras[8:]  # the commit is the newest change


@pytest.mark.parametrize(
    ("opcode", "extras", "value", "left"),
    [
        (Opcode.ADD, bytes(8), b"added", b"added"),
        (Opcode.INCREMENT, (5).to_bytes(8) + (7).to_bytes(8) + bytes(4), b"", b"7"),
        (Opcode.SUBDOC_DICT_UPSERT, b"\0\x01a\x01", b"", None),
    ],
)
def test_every_kind_of_change_can_be_durable(
    alone: Node, opcode: int, extras: bytes, value: bytes, left: bytes | None
) -> None:
    key = b"kind%d" % opcode
    with Writer(alone.port) as writer:
        if opcode == Opcode.SUBDOC_DICT_UPSERT:
            assert writer.set(key, b"{}").status == 0
            extras, value, left = b"\0\x01\0", b"a1", b'{"a":1}'
        assert writer.write(opcode, key, extras=extras, value=value).status == 0
        assert writer.got(key) == left
        assert writer.write(Opcode.APPEND, key, value=b" ").status == 0
        assert writer.write(Opcode.TOUCH, key, extras=(1000).to_bytes(4)).status == 0
        assert writer.write(Opcode.DELETE, key).status == 0
        assert writer.got(key) == Status.KEY_ENOENT


def test_the_macro_of_the_seqno_is_that_of_the_prepare(alone: Node) -> None:
    with Writer(alone.port, SUBDOC_XATTR) as writer:
        assert writer.set(b"macro", b"{}").status == 0
        named = {"extras": (1).to_bytes(2) + b"\x14", "value": b'm"${Mutation.seqno}"'}
        answer = writer.write(Opcode.SUBDOC_DICT_UPSERT, b"macro", **named)
        assert answer.status == 0
        found = writer.ask(Opcode.SUBDOC_GET, key=b"macro", extras=(1).to_bytes(2) + b"\x04", value=b"m")
        assert int(found.value.strip(b'"'), 16) + 1 == int.from_bytes(answer.extras[8:])


def test_who_did_not_ask_for_prepares_sees_the_document_and_no_more(alone: Node) -> None:
    with Writer(alone.port) as writer:
        first = writer.set(b"plain", b"1", vbucket=1)
        second = writer.set(b"plain", b"2", vbucket=1)
    seqnos = [int.from_bytes(each.extras[8:]) for each in (first, second)]
    assert seqnos == [2, 4]  # each behind its prepare
    with Aware(alone.port, XERROR) as reader:
        reader.opens(b"plain")
        assert reader.asks(vbucket=1, flags=4).status == 0
        assert told(reader.messages()) == [("marker", 0, 4), ("set", 4, b"plain"), ("end", EndReason.OK)]


def test_durable_documents_survive_a_kill_and_so_does_the_end_of_their_prepares(alone: Node) -> None:
    with testing.node(vbuckets=4) as node:
        with Writer(node.port) as writer:
            for number in range(20):
                assert writer.set(b"k%d" % number, b"v%d" % number, vbucket=number % 4).status == 0
        node.kill()
        node.restart()
        with Writer(node.port) as writer:
            for number in range(20):
                assert writer.ask(Opcode.GET, key=b"k%d" % number, vbucket=number % 4).value == b"v%d" % number
            assert writer.set(b"k1", b"again").status == 0


# --- with replicas ----------------------------------------------------------------------------------------------------


def test_a_write_waits_for_a_replica_and_nobody_sees_it_before(owner: Node) -> None:
    with Writer(owner.port) as writer, Writer(owner.port) as other, Replica(owner.port) as replica:
        assert other.ask(Opcode.SET, key=b"k", extras=bytes(8), value=b"before").status == 0
        replica.asks(flags=0)
        writer.begin(Opcode.SET, b"k", extras=bytes(8), value=b"after")
        prepare = next(each for each in replica.messages() if each.opcode == Opcode.DCP_PREPARE)
        message = dcp.Prepare.decode(prepare)
        assert (message.key, message.value, message.durability_level) == (b"\0k", b"after", 1)
        assert other.got(b"k") == b"before"
        plain = other.ask(Opcode.SET, key=b"k", extras=bytes(8), value=b"plain")
        assert plain.status == Status.SYNC_WRITE_IN_PROGRESS
        assert other.set(b"k", b"durable").status == Status.SYNC_WRITE_IN_PROGRESS
        assert other.ask(Opcode.DELETE, key=b"k").status == Status.SYNC_WRITE_IN_PROGRESS
        assert other.ask(Opcode.SET, key=b"another", extras=bytes(8), value=b"v").status == 0
        replica.acknowledge(message.by_seqno, prepare.opaque)
        answer = writer.read()
        assert answer is not None and answer.status == 0
        commit = next(each for each in replica.messages() if each.opcode == Opcode.DCP_COMMIT)
        done = dcp.Commit.decode(commit)
        assert done.key == b"\0k" and done.prepared_seqno == message.by_seqno
        assert done.commit_seqno == int.from_bytes(answer.extras[8:])
        assert other.got(b"k") == b"after"


def test_without_a_majority_in_time_the_answer_is_ambiguous_and_the_document_as_it_was(owner: Node) -> None:
    with Writer(owner.port) as writer, Replica(owner.port) as replica:
        replica.asks(flags=0)
        assert writer.set(b"k", b"v", timeout_ms=ONE_MS).status == Status.SYNC_WRITE_AMBIGUOUS
        assert writer.got(b"k") == Status.KEY_ENOENT
        seen = replica.messages()
        abort = dcp.Abort.decode(next(each for each in seen if each.opcode == Opcode.DCP_ABORT))
        assert (abort.key, abort.abort_seqno) == (b"\0k", abort.prepared_seqno + 1)
        assert writer.ask(Opcode.SET, key=b"k", extras=bytes(8), value=b"plain").status == 0


@pytest.mark.parametrize("opcode", [Opcode.SET, Opcode.DELETE, Opcode.SUBDOC_DICT_UPSERT])
def test_a_lock_stands_until_the_write_with_its_token_is_committed(owner: Node, opcode: int) -> None:
    extras, value = {
        Opcode.SET: (bytes(8), b"{}"),
        Opcode.DELETE: (b"", b""),
        Opcode.SUBDOC_DICT_UPSERT: (b"\0\x01\0", b"a1"),
    }[Opcode(opcode)]
    with Writer(owner.port) as writer, Writer(owner.port) as other, Replica(owner.port) as replica:
        before = other.ask(Opcode.SET, key=b"k", extras=bytes(8), value=b"{}")
        token = writer.ask(Opcode.GET_LOCKED, key=b"k", extras=(30).to_bytes(4)).cas
        refused = writer.write(opcode, b"k", extras=extras, value=value, cas=token, timeout_ms=ONE_MS)
        assert refused.status == Status.SYNC_WRITE_AMBIGUOUS
        assert other.ask(Opcode.GET, key=b"k").cas == CAS_OF_LOCKED, "it was taken back, and the lock is as it was"
        assert other.ask(Opcode.DELETE, key=b"k", cas=before.cas).status == Status.LOCKED
        replica.asks(flags=0)
        writer.begin(opcode, b"k", extras=extras, value=value, cas=token)
        prepare = next(message for message in replica.messages() if message.opcode == Opcode.DCP_PREPARE)
        assert other.ask(Opcode.GET, key=b"k").cas == CAS_OF_LOCKED, "until then the document is as it was"
        replica.acknowledge(dcp.Prepare.decode(prepare).by_seqno, prepare.opaque)
        answer = writer.read()
        assert answer is not None and answer.status == 0
        found = other.ask(Opcode.GET, key=b"k")
        assert found.status == Status.KEY_ENOENT or found.cas == answer.cas
        assert other.ask(Opcode.SET, key=b"k", extras=bytes(8), value=b"{}").status == 0


def test_who_holds_a_prepare_hears_that_its_abort_was_purged_also_without_collections(owner: Node) -> None:
    with Writer(owner.port) as writer, Aware(owner.port) as operator:
        for key in (b"first", b"second"):
            assert writer.set(key, b"v", timeout_ms=ONE_MS).status == Status.SYNC_WRITE_AMBIGUOUS
        assert operator.becomes(manifest(1, a=8)) == 0, "something that the replica is not shown is behind them"
        assert operator.compacts() == 0
        with Replica(owner.port, REPLICA, XERROR, JSON) as replica:
            answer = replica.asks(start=1, uuid=operator.vb_uuid(), flags=0)
            assert (answer.status, answer.value) == (Status.ROLLBACK, bytes(8))


def test_where_too_few_copies_are_on_any_node_it_is_impossible() -> None:
    with testing.node(vbuckets=4) as node:
        take(node, three(node, replicas=2, chain=(0, -1, -1)))
        with Writer(node.port) as writer:
            assert writer.set(b"k", b"v").status == Status.DURABILITY_IMPOSSIBLE
            assert writer.ask(Opcode.SET, key=b"k", extras=bytes(8), value=b"plain").status == 0


@pytest.mark.parametrize("name", ["10.0.0.7:11210", "nobody"])
def test_only_the_nodes_of_the_chain_count(owner: Node, name: str) -> None:
    with Writer(owner.port) as writer, Replica(owner.port, name) as stranger:
        stranger.asks(flags=0)
        writer.begin(Opcode.SET, b"k", extras=bytes(8), value=b"v", timeout_ms=1000)
        prepare = next(message for message in stranger.messages() if message.opcode == Opcode.DCP_PREPARE)
        stranger.acknowledge(ENDLESS >> 1, prepare.opaque)
        answer = writer.read()
        assert answer is not None and answer.status == Status.SYNC_WRITE_AMBIGUOUS


def test_what_a_replica_has_lost_with_its_disk_does_not_count_any_more() -> None:
    with testing.node(vbuckets=4) as node:
        take(node, three(node, replicas=3))  # of four copies three must have it
        with Writer(node.port) as writer, Replica(node.port) as replica, Replica(node.port, OTHER) as other:
            replica.asks(flags=0)
            other.asks(flags=0)
            writer.begin(Opcode.SET, b"k", extras=bytes(8), value=b"v")
            prepares = [each.until(Opcode.DCP_PREPARE)[-1] for each in (replica, other)]
            seqno = dcp.Prepare.decode(prepares[0]).by_seqno
            replica.acknowledge(seqno, prepares[0].opaque)
            with Replica(node.port) as emptied:
                emptied.asks(flags=0)  # from the beginning
                prepare = emptied.until(Opcode.DCP_PREPARE)[-1]
                other.acknowledge(seqno, prepares[1].opaque)
                assert other.request(dcp.GetFailoverLog(vbucket=0)).status == 0  # the acknowledgement has arrived
                with Writer(node.port) as reader:
                    assert reader.got(b"k") == Status.KEY_ENOENT
                    emptied.acknowledge(seqno, prepare.opaque)
                    answer = writer.read()
                    assert answer is not None and answer.status == 0
                    assert reader.got(b"k") == b"v"


def test_an_acknowledgement_of_who_did_not_say_who_it_is_is_einval(owner: Node) -> None:
    with Aware(owner.port) as reader:
        reader.opens(b"no name")
        assert reader.request(dcp.SeqnoAcknowledged(vbucket=0, prepared_seqno=1)).status == Status.EINVAL


def test_who_may_stream_may_not_see_prepares_nor_say_that_a_replica_has_something() -> None:
    with testing.node(vbuckets=4) as node:
        with UsersFile(node.data).editing() as accounts:
            accounts |= {"reader": Account.create("s3cret", read_grants("stream"))}

        def is_closed() -> bool:
            with Client(node.port) as stranger:
                return stranger.ask(Opcode.GET, key=b"k").status == Status.EACCESS

        until(is_closed, "the node has taken the user up")
        with Client(node.port) as reader:
            assert reader.ask(Opcode.HELLO, value=XERROR.to_bytes(2)).status == 0
            assert reader.ask(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0reader\0s3cret").status == 0
            assert reader.ask(Opcode.DCP_OPEN, key=b"reader", extras=bytes(4) + (1).to_bytes(4)).status == 0
            assert reader.ask(Opcode.DCP_CONTROL, key=b"consumer_name", value=REPLICA.encode()).status == 0
            refused = reader.ask(Opcode.DCP_CONTROL, key=b"enable_sync_writes", value=b"true")
            assert refused.status == Status.EACCESS
            assert reader.ask(Opcode.DCP_SEQNO_ACKNOWLEDGED, extras=(9).to_bytes(8)).status == Status.EACCESS


def test_who_may_not_replicate_any_more_is_sent_no_more_prepares() -> None:
    with testing.node(vbuckets=4) as node:
        with UsersFile(node.data).editing() as accounts:
            accounts |= {"copier": Account.create("s3cret", read_grants("replicate"))}

        def opens() -> bool:
            with Client(node.port) as copier:
                return copier.ask(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0copier\0s3cret").status == 0

        until(opens, "the node has taken the user up")
        with Aware(node.port, COLLECTIONS, XERROR, JSON) as copier:
            assert copier.ask(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0copier\0s3cret").status == 0
            copier.opens(b"copier")
            assert copier.request(dcp.Control(key=b"enable_sync_writes", value=b"true")).status == 0
            assert copier.asks(flags=0).status == 0
            with UsersFile(node.data).editing() as accounts:
                accounts |= {"copier": Account.create("s3cret", read_grants("stream"))}
            assert told(copier.messages()) == [("end", EndReason.LOST_PRIVILEGES)]
            assert copier.asks(flags=0).status == Status.EACCESS


def die_with_a_prepare(owner: Node) -> None:
    """Kill the owner while a write waits for its replica, and start it again."""
    with Writer(owner.port) as writer, Replica(owner.port) as replica:
        replica.asks(flags=0)
        writer.begin(Opcode.SET, b"k", extras=bytes(8), value=b"v")
        next(message for message in replica.messages() if message.opcode == Opcode.DCP_PREPARE)
        owner.kill()
    owner.restart()
    take(owner, three(owner, rev=2))  # which opens the fence


def test_a_prepare_that_was_in_flight_when_the_owner_died_is_settled_when_it_is_back(owner: Node) -> None:
    die_with_a_prepare(owner)
    with Writer(owner.port) as writer, Replica(owner.port) as replica:
        assert writer.got(b"k") == Status.SYNC_WRITE_RE_COMMIT_IN_PROGRESS
        plain = writer.ask(Opcode.SET, key=b"k", extras=bytes(8), value=b"plain")
        assert plain.status == Status.SYNC_WRITE_RE_COMMIT_IN_PROGRESS
        replica.asks(flags=0)
        prepare = next(message for message in replica.messages() if message.opcode == Opcode.DCP_PREPARE)
        replica.acknowledge(dcp.Prepare.decode(prepare).by_seqno, prepare.opaque)
        next(message for message in replica.messages() if message.opcode == Opcode.DCP_COMMIT)
        assert writer.got(b"k") == b"v"


def test_seqnos_for_readers_wait_for_what_is_being_settled(owner: Node) -> None:
    """A client may have read that it happened: who reads up to these seqnos must not lack it."""
    die_with_a_prepare(owner)
    with Writer(owner.port) as reader, Client(owner.port) as other, Replica(owner.port) as replica:
        refused = reader.ask(Opcode.GET_ALL_VB_SEQNOS, extras=State.ACTIVE.to_bytes(4))
        assert (refused.status, b"the first is 0" in refused.value) == (Status.ETMPFAIL, True)
        assert other.ask(Opcode.GET_ALL_VB_SEQNOS).status == 0, "of all copies, for operators"
        reader.send(Frame(0x80, Opcode.GET_ALL_VB_SEQNOS, extras=State.ACTIVE.to_bytes(4)).encode())
        replica.asks(flags=0)
        prepare = next(message for message in replica.messages() if message.opcode == Opcode.DCP_PREPARE)
        replica.acknowledge(dcp.Prepare.decode(prepare).by_seqno, prepare.opaque)
        commit = next(message for message in replica.messages() if message.opcode == Opcode.DCP_COMMIT)
        seqnos = dict(GetAllVbSeqnosResponse.decode(reader.read()).seqnos)
        assert seqnos[0] == dcp.Commit.decode(commit).commit_seqno


@pytest.mark.parametrize("flags", [StreamFlag.TO_LATEST, StreamFlag.DISK_ONLY])
def test_a_stream_to_the_latest_waits_for_what_is_being_settled(owner: Node, flags: StreamFlag) -> None:
    """Its end says that this is all there is: a reader would lack what another client may have read."""
    die_with_a_prepare(owner)
    with Aware(owner.port, XERROR) as reader, Replica(owner.port) as replica:
        reader.opens(b"plain")
        refused = reader.asks(flags=int(flags))
        assert (refused.status, b"being settled" in refused.value) == (Status.ETMPFAIL, True)
        replica.asks(flags=0)
        prepare = next(message for message in replica.messages() if message.opcode == Opcode.DCP_PREPARE)
        replica.acknowledge(dcp.Prepare.decode(prepare).by_seqno, prepare.opaque)
        next(message for message in replica.messages() if message.opcode == Opcode.DCP_COMMIT)
        assert reader.asks(flags=int(flags)).status == 0
        assert [message.key for message in reader.messages() if message.opcode == Opcode.DCP_MUTATION] == [b"k"]


def test_a_tap_dump_waits_for_what_is_being_settled(owner: Node) -> None:
    """Its end says that this is all there is, in the vbuckets that it chooses."""

    def dumped(client: Client, options: TapOptions) -> list[bytes]:
        client.send(options.encode())
        frames = [each for each in iter(client.read, None) if each.opcode == Opcode.TAP_MUTATION]
        return [tap.Mutation.decode(frame).key for frame in frames]

    die_with_a_prepare(owner)
    with Client(owner.port) as reader, Client(owner.port) as other, Client(owner.port) as later:
        assert other.ask(Opcode.SET, key=b"settled", extras=bytes(8), vbucket=1).status == 0
        assert reader.ask(Opcode.HELLO, value=XERROR.to_bytes(2)).status == 0
        reader.send(TapOptions(name=b"", dump=True).encode())
        refused = reader.read()
        assert refused is not None
        assert (refused.status, b"being settled" in refused.value) == (Status.ETMPFAIL, True)
        assert dumped(other, TapOptions(name=b"", vbuckets=(1,), dump=True)) == [b"settled"]
        with Replica(owner.port) as replica:
            replica.asks(flags=0)
            prepare = next(message for message in replica.messages() if message.opcode == Opcode.DCP_PREPARE)
            replica.acknowledge(dcp.Prepare.decode(prepare).by_seqno, prepare.opaque)
            next(message for message in replica.messages() if message.opcode == Opcode.DCP_COMMIT)
        assert sorted(dumped(later, TapOptions(name=b"", dump=True))) == [b"k", b"settled"]


# --- another map ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chain", "is_in"),
    [((0, 1), False), ((1, 0), True), ((1, 2), True)],
    ids=["left out", "a replica", "a member without a copy"],
)
def test_who_owns_the_vbucket_no_more_by_a_map_commits_nothing_that_waits(chain: tuple[int, ...], is_in: bool) -> None:
    with testing.node(vbuckets=4) as node:
        take(node, three(node, replicas=1, chain=(0, 2)))
        with Writer(node.port) as writer, Replica(node.port) as replica:
            replica.asks(flags=0)
            writer.begin(Opcode.SET, b"k", extras=bytes(8), value=b"v")
            prepare = next(message for message in replica.messages() if message.opcode == Opcode.DCP_PREPARE)
            replica.acknowledge(dcp.Prepare.decode(prepare).by_seqno, prepare.opaque)  # counts by the next map only
            assert replica.request(dcp.GetFailoverLog(vbucket=0)).status == 0  # the acknowledgement has arrived
            take(node, three(node, replicas=1, chain=chain, rev=2, is_in=is_in))
            answer = writer.read()
            assert answer is not None and answer.status == Status.SYNC_WRITE_AMBIGUOUS
            assert writer.set(b"k", b"w").status == Status.NOT_MY_VBUCKET
            assert writer.got(b"k") == Status.NOT_MY_VBUCKET


def test_who_is_left_out_where_nobody_owns_the_vbucket_serves_by_an_operators_word_alone() -> None:
    with testing.node(vbuckets=4) as node:
        take(node, three(node))
        take(node, three(node, replicas=0, chain=(-1,), rev=2, is_in=False))  # as a failover begins
        with Writer(node.port) as writer:
            assert writer.set(b"k", b"v").status == Status.NOT_MY_VBUCKET
            assert writer.ask(Opcode.SET, key=b"k", extras=bytes(8), value=b"plain").status == Status.NOT_MY_VBUCKET
            assert writer.ask(Opcode.SET_VBUCKET, extras=bytes([State.ACTIVE])).status == 0
            assert writer.set(b"k", b"v").status == Status.DURABILITY_IMPOSSIBLE
            assert writer.ask(Opcode.SET, key=b"k", extras=bytes(8), value=b"plain").status == 0


@pytest.mark.parametrize("chain", [(0, -1, -1), (0, 2)], ids=["alone", "with another"])
def test_a_write_of_before_waits_for_the_copies_that_are_left_and_no_others(
    owner: Node, chain: tuple[int, ...]
) -> None:
    with Writer(owner.port) as writer, Replica(owner.port) as replica:
        replica.asks(flags=0)
        writer.begin(Opcode.SET, b"k", extras=bytes(8), value=b"v")
        next(message for message in replica.messages() if message.opcode == Opcode.DCP_PREPARE)
        owner.kill()
    owner.restart()
    take(owner, three(owner, chain=chain, rev=2))
    with Writer(owner.port) as writer:
        if 2 in chain:
            assert writer.got(b"k") == Status.SYNC_WRITE_RE_COMMIT_IN_PROGRESS
        else:
            assert writer.got(b"k") == b"v"
            assert writer.ask(Opcode.SET, key=b"k", extras=bytes(8), value=b"plain").status == 0


READS_OF_ALL: dict[Opcode, dict[str, Any]] = {
    Opcode.RANGE_SCAN_CREATE: {"value": b'{"range":{"start":"YQ==","end":"eg=="}}', "datatype": 1},
    Opcode.GET_KEYS: {"key": b"a"},
    Opcode.GET_RANDOM_KEY: {},
    Opcode.OBSERVE: {"value": b"\0\0\0\1k"},
}


def test_no_list_and_no_scan_shows_what_was_before_a_write_that_a_client_may_have_been_told_of(owner: Node) -> None:
    with Writer(owner.port) as writer, Replica(owner.port) as replica:
        assert writer.ask(Opcode.SET, key=b"k", extras=bytes(8), value=b"before").status == 0
        replica.asks(flags=0)
        writer.begin(Opcode.SET, b"k", extras=bytes(8), value=b"after")
        next(message for message in replica.messages() if message.opcode == Opcode.DCP_PREPARE)
        owner.kill()
    owner.restart()
    take(owner, three(owner, chain=(0, 2), rev=2))
    with Writer(owner.port) as asked:
        refused = {opcode: asked.ask(opcode, **sections).status for opcode, sections in READS_OF_ALL.items()}
        assert set(refused.values()) <= {Status.ETMPFAIL, Status.SYNC_WRITE_RE_COMMIT_IN_PROGRESS}, refused
        take(owner, three(owner, chain=(0, -1, -1), rev=3))
        assert asked.got(b"k") == b"after"
        assert not any(asked.ask(opcode, **sections).status for opcode, sections in READS_OF_ALL.items())


def test_a_replica_acknowledges_nothing_behind_a_change_that_it_refused(tmp_path: Path) -> None:
    with closing(StreamDesk(tmp_path)) as desk:
        vbucket, told = desk.bucket.vbuckets[0], list[int]()
        vbucket.set_state(State.REPLICA)
        stream = InboundStream(vbucket, desk.bucket, lambda *_: None, lambda _, seqno: told.append(seqno))
        for seqno in (1, 3):
            vbucket.begin_snapshot(seqno, seqno)
            prepare = dcp.Prepare(by_seqno=seqno, rev_seqno=1, durability_level=1, key=b"\0k%d" % seqno, cas=1 << 16)
            vbucket.prepares.add(prepare)
            if seqno == 3:
                vbucket.miss(1)  # the second one
            desk.commit()
            stream.prepares_durable()
        assert told == [1]


def test_a_replica_acknowledges_nothing_behind_a_change_that_was_found_damaged(tmp_path: Path) -> None:
    """A failover ranks it by what it has before the damage: with it as half of a majority the owner's death alone would
    lose what was told to have happened."""
    with closing(StreamDesk(tmp_path)) as desk:
        vbucket, told = desk.bucket.vbuckets[0], list[int]()
        vbucket.set_state(State.REPLICA)
        stream = InboundStream(vbucket, desk.bucket, lambda *_: None, lambda _, seqno: told.append(seqno))
        for seqno in (1, 2, 3):
            vbucket.begin_snapshot(seqno, seqno)
            prepare = dcp.Prepare(by_seqno=seqno, rev_seqno=1, durability_level=1, key=b"\0k%d" % seqno, cas=1 << 16)
            vbucket.prepares.add(prepare)
            desk.commit()
            if seqno == 2:
                spoil(desk)
            stream.prepares_durable()
        assert told == [1, 2], "not the third"


def test_a_prepare_of_before_that_was_found_damaged_holds_up_no_other_commit_of_the_node(tmp_path: Path) -> None:
    """Another copy may commit it. Who waits for a batch of this node must hear of that one all the same."""
    with closing(StreamDesk(tmp_path)) as desk:
        vbucket, writes = desk.bucket.vbuckets[0], desk.bucket.durable_writes
        writes.copies_of = lambda vb: Copies(3, frozenset({"one", "two"}))
        vbucket.prepares.add(dcp.Prepare(by_seqno=0, rev_seqno=1, durability_level=1, key=b"\0k", cas=1 << 16))
        writes.look_at(0)
        desk.commit()
        spoil(desk)
        writes.acknowledged(0, "one", 1)
        desk.set(0, "other")
        desk.commit()
        assert vbucket.prepares.pending, "neither committed nor given up"
        with pytest.raises(CommandRefused, match="settled"):
            writes.refuse_in_flight(0, 0, b"k", writes=False)


@pytest.mark.parametrize("has_record", [False, True], ids=["of documents", "of records"])
def test_a_lost_batch_keeps_what_damage_has_made_unreadable_of_collections_and_writes(
    tmp_path: Path, has_record: bool
) -> None:
    """The collections and prepares are read anew then, and damaged ones are not in the log any more: the collection was
    gone in this vbucket, and reads of documents whose writes an owner before may have told to have happened were let
    in."""
    with closing(StreamDesk(tmp_path)) as desk:
        vbucket, writes = desk.bucket.vbuckets[0], desk.bucket.durable_writes
        writes.copies_of = lambda vb: Copies(3, frozenset({"one", "two"}))
        desk.become(0, 1, a=8)
        desk.commit()
        spoil(desk)
        desk.become(0, 2, a=8, b=9)
        desk.bucket.collections.look_at(0)
        vbucket.prepares.add(dcp.Prepare(by_seqno=0, rev_seqno=1, durability_level=1, key=b"\x08k", cas=1 << 16))
        writes.look_at(0)
        desk.commit()
        vbucket.prepares.add(dcp.Prepare(by_seqno=0, rev_seqno=1, durability_level=1, key=b"\x08lost", cas=1 << 16))
        desk.become(0, 3, a=8, b=9, c=10)
        if has_record:
            vbucket.set_state(State.REPLICA)
        lose_batch(desk)
        assert sorted(vbucket.collections.alive) == [0, 8, 9]
        assert list(vbucket.prepares.pending) == [(8, b"k")]
        spoil(desk)
        desk.set(0, "other")
        lose_batch(desk)
        with pytest.raises(CommandRefused, match="settled"):
            writes.refuse_in_flight(0, 8, b"k", writes=False)


def test_a_lost_batch_is_survived_by_a_prepare_whose_document_was_found_damaged(tmp_path: Path) -> None:
    """Whether that document was newer is not known any more; and who hears of the batch behind it must do so."""
    with closing(StreamDesk(tmp_path)) as desk:
        vbucket, writes = desk.bucket.vbuckets[0], desk.bucket.durable_writes
        writes.copies_of = lambda vb: Copies(3, frozenset({"one", "two"}))
        desk.set(0, "k")
        desk.commit()
        spoil(desk)
        vbucket.prepares.add(dcp.Prepare(by_seqno=0, rev_seqno=2, durability_level=1, key=b"\0k", cas=1 << 16))
        writes.look_at(0)
        desk.commit()
        desk.set(0, "other")
        lose_batch(desk)
        assert list(vbucket.prepares.pending) == [(0, b"k")]


def lose_batch(desk: StreamDesk) -> None:
    batch = desk.store.freeze()
    assert batch is not None
    error = OSError("gone")
    lost = desk.store.abandon(batch, error)
    for heard in desk.committer.on_failure:
        heard(error, lost)


def test_a_vbucket_is_settled_once_the_commit_of_a_write_of_before_is_on_disk(tmp_path: Path) -> None:
    with closing(StreamDesk(tmp_path)) as desk:
        vbucket, writes = desk.bucket.vbuckets[0], desk.bucket.durable_writes
        writes.copies_of = lambda vb: Copies(2, frozenset({"one"}))
        vbucket.prepares.add(dcp.Prepare(by_seqno=0, rev_seqno=1, durability_level=1, key=b"\0k", cas=1 << 16))
        writes.look_at(0)
        desk.commit()
        assert [writes.is_settled(0, each) for each in (None, {0}, {8})] == [False, False, True]
        writes.acknowledged(0, "one", 1)
        assert not vbucket.prepares.pending
        assert not writes.is_settled(0, None), "its commit is on its way to the disk"
        desk.commit()
        assert writes.is_settled(0, None)


def test_a_write_whose_time_is_over_is_answered_though_its_abort_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write stays in flight until its abort is on disk, or a majority has it after all."""

    def full(*_: object) -> None:
        raise DiskFull(tmp_path, 1)

    async def main() -> None:
        with closing(StreamDesk(tmp_path)) as desk:
            vbucket, writes = desk.bucket.vbuckets[0], desk.bucket.durable_writes
            writes.copies_of = lambda vb: Copies(2, frozenset({"one"}))
            prepare = dcp.Prepare(by_seqno=0, rev_seqno=1, durability_level=1, key=b"\0k", cas=1 << 16)
            write = writes.begin(0, prepare, LONG_MS)
            desk.commit()
            with monkeypatch.context() as patched:
                patched.setattr(vbucket.prepares, "abort", full)
                writes._out_of_time(write)
            with pytest.raises(CommandRefused, match="waits for room") as refused:
                await write.outcome
            assert refused.value.status == Status.SYNC_WRITE_AMBIGUOUS
            with pytest.raises(CommandRefused, match="in flight"):
                writes.refuse_in_flight(0, 0, b"k", writes=True)
            assert write.timer is not None and not write.timer.cancelled()
            writes._out_of_time(write)
            desk.commit()
            assert not vbucket.prepares.pending

    asyncio.run(main())


def test_a_scan_is_not_begun_before_the_commit_of_a_write_of_before_is_on_disk(tmp_path: Path) -> None:
    """A scan reads what is on disk, and would show the version before."""
    plan = RangeScanCreate(value=b'{"sampling":{"samples":9}}', datatype=1)
    with closing(StreamDesk(tmp_path)) as desk:
        kv, writes = desk.session().kv, desk.bucket.durable_writes

        async def turn() -> None:
            """Let nothing else run."""

        desk.run_queue = SimpleNamespace(turn=turn)  # type: ignore[attr-defined]
        desk.set(0, "k", b"before")
        prepare = dcp.Prepare(by_seqno=0, rev_seqno=1, durability_level=1, key=b"\0k", cas=1 << 16, value=b"after")
        desk.bucket.vbuckets[0].prepares.add(prepare)
        writes.look_at(0)
        desk.commit()
        document = desk.store.document(0, b"k")
        assert document is not None and (document.value, document.durable) == (b"after", False)
        with pytest.raises(CommandRefused) as refused:
            asyncio.run(create(kv, plan))
        assert refused.value.status == Status.ETMPFAIL
        desk.commit()
        asyncio.run(create(kv, plan))


def test_a_write_of_before_is_not_committed_again_over_a_newer_document(tmp_path: Path) -> None:
    """A replica was sent the document from disk, and the mark at the end of the prepare had no room."""
    with closing(StreamDesk(tmp_path)) as desk:
        prepares, writes = desk.bucket.vbuckets[0].prepares, desk.bucket.durable_writes
        prepares.add(dcp.Prepare(by_seqno=0, rev_seqno=1, durability_level=1, key=b"\0k", value=b"older", cas=1 << 16))
        desk.set(0, "k", b"newer")
        writes.look_at(0)
        desk.commit()
        assert not prepares.pending and not writes.held
        found = desk.store.document(0, b"k")
        assert found is not None and found.value == b"newer"


def test_a_write_that_somebody_waits_for_waits_for_the_majority_also_when_fewer_copies_are_left(owner: Node) -> None:
    with Writer(owner.port) as writer:
        writer.begin(Opcode.SET, b"k", extras=bytes(8), value=b"v", timeout_ms=300)
        take(owner, three(owner, chain=(0, -1, -1), rev=2))
        answer = writer.read()
        assert answer is not None and answer.status == Status.SYNC_WRITE_AMBIGUOUS
        assert writer.got(b"k") == Status.KEY_ENOENT


def test_a_stream_from_the_beginning_has_documents_for_what_is_over_and_prepares_for_what_is_not(owner: Node) -> None:
    with Writer(owner.port) as writer, Replica(owner.port) as replica:
        replica.asks(flags=0)
        writer.begin(Opcode.SET, b"done", extras=bytes(8), value=b"v")
        prepare = next(message for message in replica.messages() if message.opcode == Opcode.DCP_PREPARE)
        replica.acknowledge(dcp.Prepare.decode(prepare).by_seqno, prepare.opaque)
        assert writer.read() is not None
        writer.begin(Opcode.SET, b"open", extras=bytes(8), value=b"v")
        next(message for message in replica.messages() if message.opcode == Opcode.DCP_PREPARE)
        with Replica(owner.port, OTHER) as second:
            second.asks(flags=0)
            first = next(second.messages())
            marker = dcp.SnapshotMarkerV2.decode(first)
            assert (marker.end_seqno, marker.max_visible_seqno, marker.high_completed_seqno) == (3, 2, 2)
            document, waits = next(second.messages()), next(second.messages())
            assert (document.opcode, document.key) == (Opcode.DCP_MUTATION, b"\0done")
            assert (waits.opcode, waits.key) == (Opcode.DCP_PREPARE, b"\0open")
    assert told([document])[0] == ("set", 2, b"\0done")


@pytest.mark.parametrize("has_collections", [False, True])
def test_a_prepare_whose_end_was_lost_with_its_batch_is_settled_all_the_same(has_collections: bool) -> None:
    with SimCluster.running(5, vbuckets=1) as cluster:
        bucket = cluster.first
        for at in range(3):
            cluster.start(at)
        bucket.found()
        cluster.run(0.5)
        if has_collections:
            bucket.change_collections(drop=False)
            cluster.run(0.5)
        for replica in ("n1", "n2"):
            cluster.network.set_link("n0", replica, Link.STALLED)
        bucket.set_durably(0, 0, b"k", level=1, timeout_ms=50)
        cluster.run(0.04)
        cluster.hosts[0].disk.fail(1)  # the batch in which the write is given up
        cluster.run(0.5)
        assert bucket.durable_answers.total() == 0, "its connection was closed"
        for replica in ("n1", "n2"):
            cluster.network.set_link("n0", replica, Link.UP)
        cluster.run(60.0)
        found = [placed.bucket.vbuckets[0] for placed in bucket.placed]
        assert [each.prepares.pending for each in found] == [{}] * 3
        assert len({each.durable_seqno for each in found}) == 1
        bucket.set_durably(0, 0, b"k", level=1, timeout_ms=1000)
        cluster.run(2.0)
        assert bucket.durable_answers == {"SUCCESS": 1}
