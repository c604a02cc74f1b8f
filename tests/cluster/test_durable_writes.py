"""Durable writes in a cluster of processes that are killed: what was answered with success is nowhere missing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

from headwater.cluster.admin import Endpoint
from headwater.cluster.failover import Failover
from headwater.cluster.members import Members
from headwater.cluster.mover import Mover
from headwater.testing.node import Node
from headwater.wire.admin import GetAllVbSeqnos, GetAllVbSeqnosResponse
from headwater.wire.cluster_map import vbucket_of
from headwater.wire.status import Status
from tests.node.aware import COLLECTIONS, Aware, manifest
from tests.node.membership.support import cluster_map, follows, nodes, send_map, stats
from tests.node.replication.support import until
from tests.node.test_durable_writes import Writer

from .nodes import VBUCKETS, at, empty_nodes, init, until_level

DOCUMENTS = 400
WAIT_SECONDS = 120


class DurableWriter(Thread):
    """Writes durably to the vbuckets of one node until that is gone; knows what was answered."""

    def __init__(self, node: Node, vbuckets: set[int], name: bytes) -> None:
        super().__init__(daemon=True)
        self.successes: dict[bytes, bytes] = {}
        self.statuses: set[int] = set()
        self._writer = Writer(node.port)
        self._vbuckets, self._name = vbuckets, name

    def run(self) -> None:
        with self._writer:
            self._write_on()

    def _write_on(self) -> None:
        number = 0
        while True:
            key, value = b"%s-%d" % (self._name, number % DOCUMENTS), b"the %dth" % number
            number += 1
            vbucket = vbucket_of(key, VBUCKETS)
            if vbucket not in self._vbuckets:
                continue
            try:
                self._writer.begin(1, key, extras=bytes(8), value=value, vbucket=vbucket)
                answer = self._writer.read()
            except OSError:
                return
            if answer is None:
                return
            self.statuses.add(answer.status)
            if answer.status == 0:
                self.successes[key] = value

    def until(self, count: int) -> None:
        give_up = time.monotonic() + WAIT_SECONDS
        while len(self.successes) < count:
            assert self.is_alive() and time.monotonic() < give_up, (self.statuses, len(self.successes))
            time.sleep(0.01)


def owned(node: Node) -> set[int]:
    with Writer(node.port) as asked:
        asked.send(GetAllVbSeqnos(vb_state=1).encode())
        answer = asked.read()
        assert answer is not None
        return {vb for vb, _ in GetAllVbSeqnosResponse.decode(answer).seqnos}


def fail_over(seed: Node, dead: Node) -> None:
    async def work() -> None:
        async with Members() as members:
            await Failover(members, at(seed), at(dead)).run()

    asyncio.run(work())


def found(nodes: list[Node], keys: list[bytes]) -> dict[bytes, bytes]:
    """The documents as their owners have them, once none is in doubt any more."""
    got: dict[bytes, bytes] = {}
    give_up = time.monotonic() + WAIT_SECONDS
    for node in nodes:
        mine = owned(node)
        with Writer(node.port) as reader:
            for key in keys:
                vbucket = vbucket_of(key, VBUCKETS)
                if vbucket not in mine:
                    continue
                answer = reader.ask(0, key=key, vbucket=vbucket)
                while answer.status == Status.SYNC_WRITE_RE_COMMIT_IN_PROGRESS:
                    assert time.monotonic() < give_up, key
                    time.sleep(0.01)
                    answer = reader.ask(0, key=key, vbucket=vbucket)
                if answer.status == 0:
                    got[key] = answer.value
    return got


def test_no_write_that_was_answered_with_success_is_missing_after_the_owner_was_killed() -> None:
    with empty_nodes(3) as nodes:
        init(*nodes, replicas=2)
        until_level(*nodes)
        one, two, three = nodes
        writers = [DurableWriter(one, owned(one), b"w%d" % number) for number in range(3)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.until(60)
        one.kill()
        for writer in writers:
            writer.join(WAIT_SECONDS)
        fail_over(two, one)
        for writer in writers:
            assert writer.statuses == {0}
            got = found([two, three], list(writer.successes))
            for key, value in writer.successes.items():
                # of a key that was being written when the node died the later value may be there
                assert got[key] == value or int(got[key][4:-2]) > int(value[4:-2]), key
        with Writer(two.port) as writer:
            vbucket = min(owned(two))
            assert writer.set(b"after", b"v", vbucket=vbucket).status == 0


def test_a_replica_that_was_killed_catches_up_with_what_waits_and_what_is_over() -> None:
    with empty_nodes(2) as nodes:
        init(*nodes, replicas=1)
        until_level(*nodes)
        one, two = nodes
        vbucket = min(owned(one))
        with Writer(one.port) as writer:
            assert writer.set(b"first", b"1", vbucket=vbucket).status == 0
            two.kill()
            writer.begin(1, b"second", extras=bytes(8), value=b"2", vbucket=vbucket)
            two.restart()
            answer = writer.read()
            assert answer is not None and answer.status == 0
            assert writer.set(b"first", b"3", vbucket=vbucket).status == 0
        until_level(*nodes)
        two_has = {}
        with Writer(two.port) as reader:
            for key in (b"first", b"second"):
                two_has[key] = reader.ask(0x83, key=key, vbucket=vbucket).value
        assert two_has == {b"first": b"3", b"second": b"2"}


# --- a vbucket that moves ---------------------------------------------------------------------------------------------

GHOSTS = ["10.0.0.8:11210", "10.0.0.9:11210"]
"""Members that nobody reaches: a chain with both of them has no majority."""


@contextmanager
def owner_and_replica(ghosts: int) -> Iterator[tuple[Node, Node]]:
    """Two nodes, the first of which owns all vbuckets and is followed, and members that are not there."""
    with nodes(2) as (one, two):
        chain = list(range(2 + ghosts))
        addresses = [one.address, two.address, *GHOSTS[:ghosts]]
        for at, node in enumerate((one, two)):
            assert send_map(node, 1, cluster_map(1, addresses, [chain] * 4, at)) == 0
        until(lambda: follows(one, two, 0), "the replica is there")
        yield one, two


def prepares_waiting(node: Node) -> int:
    return int(stats(node, "")["ep_prepares_waiting"])


def move(source: Node, target: Node, *, takeover: bool, during: Callable[[], None] = lambda: None) -> None:
    """Move vbucket 0, or copy it and do something while the copy goes on."""

    async def work() -> None:
        ends = (Endpoint(*at(node), "default") for node in (source, target))
        async with Mover(*ends) as mover:
            await mover.move(0, takeover=takeover)
            await asyncio.to_thread(during)

    asyncio.run(work())


def test_who_takes_over_has_no_write_in_flight_that_the_former_owner_has_given_up() -> None:
    with owner_and_replica(ghosts=2) as (one, two), Writer(one.port) as writer, Writer(two.port) as other:
        writer.begin(1, b"k", extras=bytes(8), value=b"v")
        until(lambda: follows(one, two, 0), "the replica has the prepare")
        move(one, two, takeover=True)
        answer = writer.read()
        assert answer is not None and answer.status == Status.SYNC_WRITE_AMBIGUOUS
        assert other.got(b"k") == Status.KEY_ENOENT
        assert other.ask(1, key=b"k", extras=bytes(8), value=b"plain").status == 0
        assert other.got(b"k") == b"plain"


def test_a_drop_of_its_collection_ends_a_write_in_flight_at_the_owner_and_at_its_replica() -> None:
    with (
        owner_and_replica(ghosts=2) as (one, two),
        Writer(one.port, COLLECTIONS) as writer,
        Aware(one.port) as operator,
    ):
        assert operator.becomes(manifest(1, a=9)) == 0
        writer.begin(1, b"\x09k", extras=bytes(8), value=b"v")
        until(lambda: prepares_waiting(two) == 1, "the replica has the prepare")
        assert operator.becomes(manifest(2)) == 0
        answer = writer.read()
        assert answer is not None and answer.status == Status.SYNC_WRITE_AMBIGUOUS
        assert prepares_waiting(one) == 0
        until(lambda: prepares_waiting(two) == 0, "the replica has the drop")


def test_a_replica_says_what_it_has_also_while_a_mover_copies_to_it() -> None:
    def write() -> None:
        with Writer(one.port) as writer:
            assert writer.set(b"k", b"v", timeout_ms=5000).status == 0

    with owner_and_replica(ghosts=0) as (one, two):
        move(one, two, takeover=False, during=write)
