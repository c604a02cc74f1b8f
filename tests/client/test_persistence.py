"""Drains that wait for copies to have it on disk, against scripted nodes; and the question they ask."""

import pytest

from headwater.client import Mutation, StreamEnd
from headwater.errors import NotPersisted, OptionError, UnknownCommand
from headwater.protocol.dcp.position import Position
from headwater.testing.peers import UUID, Peer, cluster_map, history, serve
from headwater.wire import dcp
from headwater.wire.bootstrap import Hello
from headwater.wire.features import Feature
from headwater.wire.header import Frame
from headwater.wire.meta import ObserveSeqno
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status


def seqnos(events) -> list[int]:
    return [event.seqno for event in events if isinstance(event, Mutation)]


def two_copies(other: tuple[str, int]):
    """A map in which this node owns all and another one has the replica."""

    def told(address: tuple[str, int]) -> dict[str, object]:
        made = cluster_map([address, other], [0])
        made["vBucketServerMap"] = {"numReplicas": 1, "vBucketMap": [[0, 1]]}
        return made

    return told


def test_all_comes_when_all_of_it_is_on_disk(driver):
    with serve(Peer(vbuckets=2, histories={0: history(12), 1: history(3)})) as address:
        client = driver.connect(address)
        with client.changes(until="now", min_persisted="all") as changes:
            events = list(changes)
        assert seqnos(event for event in events if event.vbucket == 0) == list(range(1, 13))
        assert sum(isinstance(event, StreamEnd) for event in events) == 2
        assert changes.positions == {0: Position(0, UUID, 12, 12, 12), 1: Position(1, UUID, 3, 3, 3)}


def test_what_is_not_on_disk_does_not_come_and_the_error_says_what_is_missing(driver):
    with serve(Peer(histories={0: history(12)}, persisted={0: 7})) as address:
        client = driver.connect(address)
        changes = client.changes(until="now", min_persisted=1, patience_seconds=1.0)
        got = []
        with changes, pytest.raises(NotPersisted, match=r"seqno 10 is on the disk of 0 of 1 copies .* has 7"):
            got.extend(changes)
            for event in changes:
                got.append(event)
        assert changes.positions == {0: Position(0, UUID, 5, 5, 5)}


def test_it_comes_once_the_disk_is_that_far(driver):
    peer = Peer(histories={0: history(12)}, persisted={0: 5})
    with serve(peer) as address:
        client = driver.connect(address)
        with client.batches(until="now", min_persisted="majority") as batches:
            first = next(batches)
            assert first.records["seqno"].to_pylist() == [1, 2, 3, 4, 5] and first.positions[0].seqno == 5
            peer.persisted[0] = 12
            assert [seqno for batch in batches for seqno in batch.records["seqno"].to_pylist()] == list(range(6, 13))


def test_a_drain_waits_for_the_replica_that_the_map_names(driver):
    replica = Peer(histories={0: history(12)}, persisted={0: 10})
    with serve(replica), serve(Peer(histories={0: history(12)}, config=two_copies(replica.address))) as address:
        client = driver.connect(address)
        with client.batches(until="now", min_persisted="all") as batches:
            assert next(batches).positions[0].seqno == 10
            replica.persisted[0] = 12
            assert [len(batch) for batch in batches] == [2]
        with client.batches(until="now", min_persisted=1) as batches:
            assert sum(map(len, batches)) == 12


def test_nodes_are_asked_up_to_where_they_are_complete(driver):
    peer = Peer(histories={0: history(12)})
    with serve(peer) as address:
        client = driver.connect(address)
        with client.batches(until="now", min_persisted=1) as batches:
            assert sum(map(len, batches)) == 12
    hellos = [Hello.decode(frame).features for frame in peer.seen if frame.opcode == Opcode.HELLO]
    assert Feature.COMPLETE_SEQNOS in hellos[0], "or a copy that fills up counts with what a failover to it takes back"


def test_a_replica_that_left_the_branch_counts_with_what_it_had_of_it(driver):
    other = history(12)
    other.failover_log = [(0xB0B, 6), (UUID, 0)]
    replica = Peer(histories={0: other})
    with serve(replica), serve(Peer(histories={0: history(12)}, config=two_copies(replica.address))) as address:
        client = driver.connect(address)
        with client.batches(min_persisted=2, max_wait_seconds=0.5) as batches:
            assert next(batches).positions[0].seqno == 5, "of the snapshot 6 to 10 it had one change only"
            assert len(next(batches)) == 0


def test_a_branch_that_a_replica_does_not_know_is_nowhere_near_its_disk(driver):
    other = history(12)
    other.failover_log = [(0xB0B, 0)]
    replica = Peer(histories={0: other})
    with serve(replica), serve(Peer(histories={0: history(12)}, config=two_copies(replica.address))) as address:
        client = driver.connect(address)
        changes = client.changes(until="now", min_persisted=2, patience_seconds=0.5)
        with changes, pytest.raises(NotPersisted, match="1 of 2 copies"):
            next(changes)


def test_a_replica_that_is_away_is_named_by_the_error(driver):
    with serve(gone := Peer()):
        pass
    with serve(Peer(histories={0: history(3)}, config=two_copies(gone.address))) as address:
        client = driver.connect(address)
        changes = client.changes(until="now", min_persisted="all", patience_seconds=1.0)
        with changes, pytest.raises(NotPersisted, match=rf"{gone.address[1]}: connection refused"):
            next(changes)


def test_a_node_that_does_not_know_the_question_ends_the_drain(driver):
    peer = Peer(histories={0: history(3)})
    peer.mutate = lambda frame: (
        Frame(0x81, frame.opcode, vbucket=Status.UNKNOWN_COMMAND, opaque=frame.opaque)
        if frame.opcode == Opcode.OBSERVE_SEQNO
        else frame
    ).encode()
    with serve(peer) as address:
        client = driver.connect(address)
        changes = client.changes(min_persisted=1, patience_seconds=10.0)
        with changes, pytest.raises(UnknownCommand, match="how far vbucket 0"):
            next(changes)


def test_a_connection_that_breaks_under_what_waits_loses_and_repeats_nothing(driver):
    peer = Peer(histories={0: history(200)}, persisted={0: 100}, cuts=[10**9, 4000])
    with serve(peer) as address:
        client = driver.connect(address)
        got = []
        with client.batches(until="now", min_persisted=1) as batches:
            for batch in batches:
                got += batch.records["seqno"].to_pylist()
                peer.persisted[0] = 200
        assert got == list(range(1, 201))


def test_what_waits_is_not_acknowledged_so_the_node_stops(driver):
    peer = Peer(histories={0: history(300, per_snapshot=300, value=b"v" * 500)}, persisted={0: 299})
    with serve(peer) as address:
        client = driver.connect(address)
        with client.batches(min_persisted=1, window_bytes=20_000, max_wait_seconds=0.5) as batches:
            assert len(next(batches)) == 0
            acked = (f for f in peer.seen if f.opcode == Opcode.DCP_BUFFER_ACKNOWLEDGEMENT)
            assert sum(dcp.BufferAck.decode(frame).acked_bytes for frame in acked) == 0
            peer.persisted[0] = 300
            assert len(next(batches)) == 300
            assert len(next(batches)) == 0
    acked = (f for f in peer.seen if f.opcode == Opcode.DCP_BUFFER_ACKNOWLEDGEMENT)
    assert sum(dcp.BufferAck.decode(frame).acked_bytes for frame in acked) > 0.7 * 300 * 555


def test_a_node_is_asked_about_all_its_vbuckets_in_one_go(driver):
    peer = Peer(vbuckets=64, histories={vb: history(2) for vb in range(64)}, persisted={0: 0})
    with serve(peer) as address:
        client = driver.connect(address)
        with client.batches(min_persisted=1, max_wait_seconds=0.5) as batches:
            while len(next(batches)):
                pass
    asked = [at for at, frame in enumerate(peer.seen) if frame.opcode == Opcode.OBSERVE_SEQNO]
    rounds = [at for at, frame in enumerate(peer.seen) if frame.opcode == Opcode.NOOP]
    assert {ObserveSeqno.decode(peer.seen[at]).vb_uuid for at in asked} == {UUID}
    assert {peer.seen[at].vbucket for at in asked} == set(range(64))
    assert len(rounds) < 64, "a round trip for many vbuckets"
    assert {peer.seen[at].vbucket for at in asked if at > rounds[-2]} == {0}, (
        "what waits for nothing is not asked about"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"min_persisted": 2}, "at most 1, the copies that the bucket keeps"),
        ({"min_persisted": "some"}, '1 to 4, "majority" or "all"'),
        ({"min_persisted": 1, "window_bytes": 0}, "above 0 with min_persisted"),
    ],
)
def test_what_can_not_be_is_refused_before_anything_is_read(driver, options, said):
    with serve(Peer()) as address:
        client = driver.connect(address)
        with pytest.raises(OptionError, match=said):
            client.changes(**options)
