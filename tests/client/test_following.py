"""Clients on a bucket of three real nodes whose vbuckets move, fail over and stand still while they are used."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from harness.nodes import HandMade, call, cluster, failover_log
from headwater.client import Deletion, Mutation, aio, connect
from headwater.errors import ConnectionLost, NothingCame, NotMyVbucket, RollbackRequired
from headwater.protocol.dcp.position import safe_point
from headwater.testing.node import node
from headwater.wire.header import Frame
from headwater.wire.meta import ObserveSeqnoFailedOver, ObserveSeqnoResponse
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.node.replication.support import high_seqno, leave, put, replicate, set_state, until

VBUCKETS = 8
LATE_SECONDS = 0.3


@pytest.fixture(scope="module")
def three() -> Iterator[HandMade]:
    with cluster(3, VBUCKETS) as made:
        yield made


@pytest.fixture
def two() -> Iterator[HandMade]:
    """Two nodes of one's own, for tests that leave them broken."""
    with cluster(2, VBUCKETS) as made:
        yield made


class Writing(threading.Thread):
    """Stores and deletes until told to stop; `held` is what was acknowledged last, by key: None for a deletion."""

    def __init__(self, of: HandMade, prefix: str) -> None:
        super().__init__(daemon=True)
        self.held: dict[bytes, bytes | None] = {}
        self.error: Exception | None = None
        self._of, self._prefix, self._over = of, prefix, threading.Event()

    def run(self) -> None:
        try:
            with self._of.client() as client:
                number = 0
                while not self._over.wait(0.0005):
                    key = b"%s-%d" % (self._prefix.encode(), number % 60)
                    if number % 7 == 6 and self.held.get(key) is not None:
                        client.delete(key)
                        self.held[key] = None
                    else:
                        client.set(key, b"%d" % number)
                        self.held[key] = b"%d" % number
                    number += 1
        except Exception as error:  # the test asks for it
            self.error = error

    def finish(self) -> dict[bytes, bytes | None]:
        self._over.set()
        self.join(120)
        if self.error is not None:
            raise self.error
        return self.held


class Following(threading.Thread):
    """Drains until told to stop; `seqnos` is every one that came, by vbucket, `held` the state it leads to."""

    def __init__(self, of: HandMade, **options: object) -> None:
        super().__init__(daemon=True)
        self.seqnos: dict[int, list[int]] = {vb: [] for vb in range(VBUCKETS)}
        self.held: dict[bytes, bytes | None] = {}
        self.error: Exception | None = None
        self._of, self._options, self._over = of, options, threading.Event()

    def run(self) -> None:
        try:
            with self._of.client() as client, client.batches(max_wait_seconds=0.05, **self._options) as batches:
                for batch in batches:
                    self._take(batch.records)
                    if self._over.is_set() and not len(batch):
                        return
        except Exception as error:  # the test asks for it
            self.error = error

    def _take(self, records) -> None:
        for row in records.select(["vbucket", "seqno", "opcode", "key", "value"]).to_pylist():
            self.seqnos[row["vbucket"]].append(row["seqno"])
            self.held[row["key"]] = row["value"] if row["opcode"] == 0x57 else None

    def finish(self, high: dict[int, int]) -> None:
        """Wait for everything up to these seqnos, then stop."""
        until(lambda: self.error or all(self.seqnos[vb][-1:] >= [high[vb]] or not high[vb] for vb in high), "all came")
        self._over.set()
        self.join(120)
        if self.error is not None:
            raise self.error


def late(run) -> threading.Timer:
    """Do something a little later."""
    timer = threading.Timer(LATE_SECONDS, run)
    timer.start()
    return timer


def has_prefix(held: dict[bytes, bytes | None], prefix: str) -> dict[bytes, bytes | None]:
    return {key: value for key, value in held.items() if key.startswith(prefix.encode())}


# --------------------------------------------------------------------------- takeovers


@pytest.mark.parametrize("told", ["all", "new owner", "old owner", "late"])
def test_writes_and_drains_go_on_through_takeovers_and_nothing_is_lost_or_invented(three: HandMade, told: str) -> None:
    writing, following = Writing(three, told), Following(three)
    writing.start()
    following.start()
    for round_ in range(2):
        for vb in range(VBUCKETS):
            before, to = three.owners[vb], (vb + round_) % 3
            if before == to:
                continue
            three.take_over(vb, to)
            if told == "late":
                late(three.publish).join()
            else:
                three.publish(*{"all": (), "new owner": (to,), "old owner": (before,)}[told])
    three.publish()
    until(lambda: writing.error or len(writing.held) == 60, "every key was written")
    held = writing.finish()
    with three.client() as client:
        high = client.seqnos()
        found = {key: document.value for key, document in client.get_many(held).items()}
    following.finish(high)
    assert found == {key: value for key, value in held.items() if value is not None}
    assert has_prefix(following.held, told) == held
    for vb, seqnos in following.seqnos.items():
        assert seqnos == sorted(set(seqnos)), f"vbucket {vb}: a seqno twice, or out of order"


def test_many_tasks_of_one_client_follow_together(three: HandMade) -> None:
    async def counting(client: aio.AsyncClient, name: str, moving: threading.Thread) -> int:
        count = 0
        while moving.is_alive() or count < 10:
            count = await client.incr(name, initial=1)
        return count

    async def main(moving: threading.Thread) -> list[tuple[int, bytes]]:
        names = [f"task-{number}" for number in range(40)]
        async with await aio.connect(three.url) as client:
            moving.start()
            counts = await asyncio.gather(*(counting(client, name, moving) for name in names))
            return [(count, (await client.get(name)).value) for count, name in zip(counts, names, strict=True)]

    def move() -> None:
        for vb in range(VBUCKETS):
            three.take_over(vb, (three.owners[vb] + 1) % 3)
            three.publish()

    counted = asyncio.run(main(threading.Thread(target=move)))
    assert [b"%d" % count for count, _ in counted] == [value for _, value in counted]


def test_bulk_writes_and_bulk_deletes_follow(three: HandMade) -> None:
    keys = [f"bulk-{number}" for number in range(20_000)]
    with three.client() as client:
        for vb in range(VBUCKETS):
            to = (three.owners[vb] + 1) % 3
            mover = threading.Thread(target=lambda vb=vb, to=to: (three.take_over(vb, to), three.publish()))
            mover.start()
            while mover.is_alive():
                assert client.set_many((key, f"{key}-{vb}") for key in keys) == {}
            mover.join()
        assert client.set_many((key, f"{key}-last") for key in keys) == {}
        assert {document.value for document in client.get_many(keys[:50]).values()} == {
            f"{key}-last".encode() for key in keys[:50]
        }
        three.take_over(0, (three.owners[0] + 1) % 3)
        late(three.publish)
        assert client.delete_many(keys) == {}
        assert client.get_many(keys) == {}


def test_what_is_there_now_is_read_whole_while_vbuckets_move(three: HandMade) -> None:
    keys = {f"now-{number}".encode() for number in range(3000)}
    with three.client() as client:
        assert client.set_many((key, "v") for key in keys) == {}
        for vb in range(VBUCKETS):
            three.take_over(vb, (three.owners[vb] + 1) % 3)
            late(three.publish)
            with client.changes(until="now") as changes:
                found = {event.key for event in changes if isinstance(event, Mutation)}
            assert keys <= found
        assert sorted(client.seqnos()) == list(range(VBUCKETS))


def test_a_position_from_before_a_takeover_goes_on_after_it_without_rollback(three: HandMade) -> None:
    with three.client() as client:
        client.set("before", "1")
        vb = client.vbucket_of("before")
        with client.changes(until="now", vbuckets=[vb]) as changes:
            assert list(changes)
            positions = changes.positions
        three.take_over(vb, (three.owners[vb] + 1) % 3)
        three.publish()
        client.set("before", "2")
        with client.changes(positions, until="now", vbuckets=[vb]) as changes:
            values = [event.value for event in changes if isinstance(event, Mutation)]
        assert values == [b"2"] and changes.positions[vb].vb_uuid == positions[vb].vb_uuid


# --------------------------------------------------------------------------- nobody has it, or nobody says who


def test_a_map_that_keeps_naming_the_wrong_node_ends_in_an_error_that_says_so(two: HandMade) -> None:
    two.take_over(3, 1)
    with two.client(timeout_seconds=2.0) as client:
        key = next(f"k{number}" for number in range(99) if client.vbucket_of(f"k{number}") == 3)
        with pytest.raises(NotMyVbucket, match=r"vbucket 3 is not active on .*\(\d+ attempts in \d+\.\d s\)"):
            client.get(key)
        with pytest.raises(NotMyVbucket, match=r"1 of 8 vbuckets, the first is 3, are active on no node"):
            client.seqnos()
        with pytest.raises(NotMyVbucket, match=r"vbucket 3 to .*\(\d+ attempts in \d+\.\d s\)"):
            list(client.changes(vbuckets=[3], patience_seconds=0.5))
    two.publish()
    with two.client() as client:
        client.set(key, "v")
        assert client.get(key).value == b"v"


def test_a_vbucket_that_nobody_has_for_a_while_is_waited_for(two: HandMade) -> None:
    two.follow(3, 1)
    following = Following(two)
    following.start()
    with two.client() as client:
        key = next(f"k{number}" for number in range(99) if client.vbucket_of(f"k{number}") == 3)
        client.set(key, "before")
        until(lambda: following.seqnos[3], "the first change")
        until(lambda: high_seqno(two.nodes[1], 3) == 1, "the replica has it, or the next one would have its seqno")
        set_state(two.nodes[0], 3, State.DEAD)
        late(lambda: (two.fail_over(3, 1), two.publish()))
        client.set(key, "after")
        following.finish(client.seqnos())
    assert following.held[key.encode()] == b"after"


def test_a_node_that_is_gone_for_good_is_an_error_with_numbers(two: HandMade) -> None:
    two.take_over(3, 1)
    two.publish()
    with two.client() as writer, two.client(timeout_seconds=2.0) as client:
        key = next(f"k{number}" for number in range(99) if client.vbucket_of(f"k{number}") == 3)
        writer.set(key, "v")
        two.nodes[1].kill()
        gone = rf"{two.nodes[1].address}: .*\(\d+ attempts in \d+\.\d s\)"
        for ask in (
            lambda: client.get(key),
            lambda: client.set_many([(key, "w")]),
            client.seqnos,
            lambda: list(client.changes(vbuckets=[3], patience_seconds=0.5)),
        ):
            with pytest.raises(ConnectionLost, match=gone):
                ask()
        other = next(f"k{number}" for number in range(99) if client.vbucket_of(f"k{number}") == 4)
        writer.set(other, "v")  # the others are not concerned
        two.nodes[1].start()
        until(lambda: writer.get(key).value == b"v", "it is back")


# --------------------------------------------------------------------------- failovers


def test_a_failover_that_lost_changes_is_a_rollback_to_what_both_share(two: HandMade) -> None:
    for number in range(5):
        put(two.nodes[0], 3, f"kept-{number}", b"v")
    two.follow(3, 1)
    with two.client() as client:
        with client.changes(until="now", vbuckets=[3]) as changes:
            list(changes)
            saved = changes.positions[3]
        leave(two.nodes[1], two.nodes[0].address)
        put(two.nodes[0], 3, "lost", b"v")
        drain = client.changes({3: saved}, vbuckets=[3])
        while not isinstance(event := next(drain), Mutation):
            pass
        assert event.key == b"lost"
        two.fail_over(3, 1)
        put(two.nodes[1], 3, "new", b"v")
        two.publish()
        with pytest.raises(RollbackRequired) as caught:
            list(drain)
        assert (caught.value.vbucket, caught.value.common) == (3, 5)
        point = safe_point([saved, drain.positions[3]], 3, caught.value.common)
        with client.changes({3: point}, vbuckets=[3], until="now") as changes:
            assert [event.key for event in changes if isinstance(event, Mutation | Deletion)] == [b"new"]


def test_an_old_owner_that_was_not_told_is_left_when_another_node_knows_better(two: HandMade) -> None:
    put(two.nodes[0], 3, "kept", b"v")
    two.follow(3, 1)
    following = Following(two, map_poll_seconds=0.1)
    following.start()
    until(lambda: following.seqnos[3], "the first change")
    two.fail_over(3, 1)
    two.publish(1)  # the old owner is cut off from whoever runs the cluster, but not from us
    put(two.nodes[1], 3, "new", b"v")
    until(lambda: following.error or b"new" in following.held, "the new owner is found")
    following.finish({3: 2})


def test_a_replica_that_is_promoted_after_its_owner_died_is_found() -> None:
    """Two nodes without a map of both: the client sees the second first when nothing there is active yet."""
    with node(vbuckets=4) as first, node(vbuckets=4, vbucket_state="none") as second:
        put(first, 1, "k", b"v")
        replicate(second, first.address, "0-3")
        until(lambda: high_seqno(second, 1) == 1, "the replica is level")
        with connect(f"couchbase://{first.address},{second.address}/default") as client:
            first.kill()
            assert client.seqnos() == {}
            leave(second, first.address)
            for vbucket in range(4):
                set_state(second, vbucket, State.ACTIVE)
            assert client.seqnos() == {0: 0, 1: 1, 2: 0, 3: 0}


# --------------------------------------------------------------------------- changes that copies have to have


@pytest.fixture
def replicated() -> Iterator[HandMade]:
    """Three nodes: the first owns vbucket 3, the others have replicas of it."""
    with cluster(3, VBUCKETS) as made:
        for number in range(5):
            put(made.nodes[0], 3, f"kept-{number}", b"v")
        made.replicas[3] = [1, 2]
        made.publish()
        for replica in (1, 2):
            made.follow(3, replica)
        yield made


def keys(events) -> list[bytes]:
    return [event.key for event in events if isinstance(event, Mutation | Deletion)]


KEPT = [b"kept-%d" % number for number in range(5)]


def more(changes) -> list[bytes]:
    """The key of the next event, if it has one; nothing if none came for a while."""
    try:
        return keys([next(changes)])
    except NothingCame:
        return []


def undo(three: HandMade) -> None:
    """Kill the owner, promote a replica, and write to that one."""
    three.nodes[0].kill()
    three.fail_over(3, 1)
    three.replicas[3] = []
    put(three.nodes[1], 3, "new", b"v")
    three.publish()


def test_who_waits_for_the_copies_never_sees_what_a_failover_takes_back(replicated: HandMade) -> None:
    three = replicated
    with three.client() as client:
        patient = client.changes(vbuckets=[3], min_persisted="all", max_wait_seconds=0.5, map_poll_seconds=0.1)
        hasty = client.changes(vbuckets=[3], map_poll_seconds=0.1)
        seen: list[bytes] = []
        while len(seen) < 5:
            seen += more(patient)
        for replica in (1, 2):
            leave(three.nodes[replica], three.nodes[0].address)
        put(three.nodes[0], 3, "lost", b"v")
        put(three.nodes[0], 3, "kept-0", b"lost")
        told: list[bytes] = []
        while len(told) < 6:  # the first kept-0 was replaced, or came before
            told += keys([next(hasty)])
        with pytest.raises(NothingCame):
            while True:
                seen += keys([next(patient)])
        assert seen == KEPT and b"lost" in told
        undo(three)
        with pytest.raises(RollbackRequired) as caught:
            list(hasty)
        assert caught.value.common == 5
        while b"new" not in seen:
            seen += more(patient)
        assert seen == [*KEPT, b"new"]
        patient.close()


def test_a_replica_that_lags_holds_its_changes_back_and_no_others(replicated: HandMade) -> None:
    three = replicated
    with three.client() as client:
        leave(three.nodes[2], three.nodes[0].address)
        put(three.nodes[0], 3, "later", b"v")
        until(lambda: high_seqno(three.nodes[1], 3) == 6, "one replica has it")
        with client.changes(until={3: 6}, vbuckets=[3], min_persisted="majority") as changes:
            assert keys(changes) == [*KEPT, b"later"]
        with client.changes(until={3: 6}, vbuckets=[3], min_persisted="all", max_wait_seconds=0.3) as changes:
            with pytest.raises(NothingCame):
                keys(changes)
            assert changes.positions[3].seqno == 0, "it came in one snapshot, whose end was not everywhere"
            three.follow(3, 2)
            seen: list[bytes] = []
            while len(seen) < 6:
                seen += more(changes)
            assert seen == [*KEPT, b"later"]


def test_a_replica_answers_for_the_branch_it_follows_and_for_the_one_it_left(replicated: HandMade) -> None:
    three = replicated
    branch = failover_log(three.nodes[0], 3)[0][0]

    def asked(node: int, vb_uuid: int) -> Frame:
        return call(three.nodes[node], Opcode.OBSERVE_SEQNO, value=vb_uuid.to_bytes(8), vbucket=3)

    until(lambda: asked(1, branch).status == 0, "the replica knows the branch")
    told = ObserveSeqnoResponse.decode(asked(1, branch))
    assert (told.format, told.vb_uuid, told.persisted_seqno, told.current_seqno) == (0, branch, 5, 5)
    assert asked(1, 0xB0B).status == Status.KEY_ENOENT
    undo(three)
    newest = failover_log(three.nodes[1], 3)[0][0]
    left = ObserveSeqnoFailedOver.decode(asked(1, branch))
    assert (left.format, left.vb_uuid, left.persisted_seqno) == (1, newest, 6)
    assert (left.old_vb_uuid, left.last_received_seqno) == (branch, 5)
    assert asked(2, newest).status == Status.KEY_ENOENT, "that replica follows nobody: it has not heard of it"
