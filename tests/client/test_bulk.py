"""Many documents at once, against a node that answers quiet requests as told."""

import pytest

from headwater.client import bulk
from headwater.client.cluster import Cluster
from headwater.client.settings import settings_for
from headwater.errors import (
    BucketNotFound,
    ConnectionLost,
    InternalError,
    NotMyVbucket,
    OptionError,
    RemoteProtocolError,
    TemporaryFailure,
    TooBig,
)
from headwater.testing.peers import Peer, cluster_map, serve
from headwater.transport.blocking import run
from headwater.wire.header import Frame, response
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

QUIET = (Opcode.SETQ, Opcode.GETQ, Opcode.DELETEQ)


class Node(Peer):
    """Answers quiet requests with the next status for their key, as a server does: only what is worth saying."""

    said: dict[bytes, list[int]]

    def answers(self, request: Frame):
        if request.opcode not in QUIET:
            yield from super().answers(request)
            return
        self.seen.append(request)
        left = self.said.get(request.key, [])
        status = left.pop(0) if left else Status.SUCCESS
        if status:
            yield response(request, status)
        elif request.opcode == Opcode.GETQ:
            yield response(request, value=request.key.upper(), extras=(7).to_bytes(4), cas=9)

    def keys(self) -> list[bytes]:
        return [request.key for request in self.seen if request.opcode in QUIET]


class Emptied(Peer):
    """Has no bucket."""

    def answers(self, request: Frame):
        if request.opcode == Opcode.SELECT_BUCKET:
            yield response(request, Status.KEY_ENOENT)
        else:
            yield from super().answers(request)


def a_node(vbuckets: int = 4, **said: list[int]) -> Node:
    node = Node(vbuckets=vbuckets)
    node.said = {key.encode(): statuses for key, statuses in said.items()}
    return node


@pytest.fixture
def connected():
    """Connects to an address, and closes what it connected."""
    made = []

    def connect(address: str, timeout_seconds: float = 60.0) -> Cluster:
        made.append(Cluster(settings_for(address, timeout_seconds=timeout_seconds, connect_timeout_seconds=60.0)))
        run(made[-1].connect())
        return made[-1]

    yield connect
    for cluster in made:
        cluster.close()


def test_what_all_went_well_has_no_failures(connected):
    node = a_node()
    with serve(node) as address:
        assert run(bulk.set_many(connected(address), [("a", "1"), (b"b", b"2")], 3, 60)) == {}
    first = next(request for request in node.seen if request.opcode == Opcode.SETQ)
    assert (first.key, first.value, first.extras.hex()) == (b"a", b"1", "000000030000003c")


def test_each_failure_comes_back_by_its_key_and_the_others_are_stored(connected):
    with serve(a_node(b=[Status.E2BIG])) as address:
        failures = run(bulk.set_many(connected(address), [("a", "1"), ("b", "2"), ("c", "3")], 0, 0))
    assert list(failures) == [b"b"]
    with pytest.raises(TooBig, match='setq "b"'):
        raise failures[b"b"]


def test_what_is_refused_for_now_is_sent_again_until_it_is_taken(connected):
    node = a_node(b=[Status.ETMPFAIL, Status.EBUSY, Status.ETMPFAIL])
    with serve(node) as address:
        assert run(bulk.set_many(connected(address), [("a", "1"), ("b", "2"), ("c", "3")], 0, 0)) == {}
    assert node.keys() == [b"a", b"b", b"c", b"b", b"b", b"b"]


def test_what_is_refused_for_good_says_how_often_it_was_tried_and_later_items_are_not_held_up_again(connected):
    node = a_node(1, a=[Status.ETMPFAIL] * 999, b=[Status.ETMPFAIL] * 999)
    value = bytes(bulk.CHUNK_BYTES)
    with serve(node) as address:
        items = [("a", value), *((f"k{i}", value) for i in range(4)), ("b", value)]
        failures = run(bulk.set_many(connected(address, timeout_seconds=1.0), items, 0, 0))
    assert list(failures) == [b"a", b"b"] and node.keys().count(b"b") == 1
    with pytest.raises(TemporaryFailure, match=r'setq "a" \(\d+ attempts in \d+\.\d s\)'):
        raise failures[b"a"]


def test_a_later_value_wins_although_an_earlier_one_was_refused_for_now(connected):
    node = a_node(1, a=[Status.ETMPFAIL])
    with serve(node) as address:
        assert run(bulk.set_many(connected(address), [("a", "1"), ("a", "2")], 0, 0)) == {}
    assert [request.value for request in node.seen if request.opcode == Opcode.SETQ] == [b"1", b"2"]


def test_of_two_values_that_were_both_refused_for_now_the_later_is_sent_again(connected):
    node = a_node(1, a=[Status.ETMPFAIL] * 2)
    with serve(node) as address:
        assert run(bulk.set_many(connected(address), [("a", "1"), ("a", "2")], 0, 0)) == {}
    assert [request.value for request in node.seen if request.opcode == Opcode.SETQ] == [b"1", b"2", b"2"]


def test_keys_that_do_not_exist_are_left_out_of_what_is_read(connected):
    with serve(a_node()) as address:
        found = run(bulk.get_many(connected(address), ["a", "b"]))
    assert {key: (document.value, document.cas, document.flags) for key, document in found.items()} == {
        b"a": (b"A", 9, 7),
        b"b": (b"B", 9, 7),
    }


def test_a_read_that_was_refused_is_raised(connected):
    with serve(a_node(b=[Status.EINTERNAL])) as address, pytest.raises(InternalError, match='getq "b"'):
        run(bulk.get_many(connected(address), ["a", "b"]))


def test_deleting_tells_which_keys_were_not_there(connected):
    with serve(a_node(b=[Status.KEY_ENOENT])) as address:
        assert list(run(bulk.delete_many(connected(address), ["a", "b"]))) == [b"b"]


def test_a_text_is_no_list_of_keys(connected):
    """The letters would be keys: `delete_many("abc")` deleted three documents that nobody meant."""
    node = a_node()
    with serve(node) as address:
        for work in (bulk.get_many, bulk.delete_many):
            for text in ("abc", b"abc"):
                with pytest.raises(TypeError, match=r"give \[key\]"):
                    run(work(connected(address), text))
    assert node.keys() == []


@pytest.mark.parametrize("items", [["ab"], "ab", [b"ab"], [("a", "b", "c")], [("a",)]])
def test_what_is_no_pair_is_no_document(connected, items):
    """A text of two letters came apart into key and value."""
    node = a_node()
    with serve(node) as address, pytest.raises(TypeError, match=r"a pair \(key, value\)"):
        run(bulk.set_many(connected(address), items, 0, 0))
    assert node.keys() == []


def test_what_has_moved_is_sent_once_more_to_the_node_of_the_new_map(connected):
    old, new = a_node(1, a=[Status.NOT_MY_VBUCKET]), a_node(1)
    owners = [0]
    old.config = new.config = lambda _: cluster_map([old.address, new.address], owners, rev=1 + owners[0])
    with serve(old) as address, serve(new):
        cluster = connected(address)
        owners[:] = [1]
        assert run(bulk.set_many(cluster, [("a", "1"), ("b", "2")], 0, 0)) == {}
    assert (old.keys(), new.keys()) == ([b"a", b"b"], [b"a"])


@pytest.mark.parametrize("taken_over", [True, False])
def test_where_a_node_has_no_such_bucket_the_others_are_asked_who_took_its_place(connected, taken_over):
    """Its disk was replaced, and it waits to join again: it knows of no bucket, and the bucket is there."""
    emptied, left = Emptied(vbuckets=1), a_node(1)
    owners = [0]
    left.config = lambda own: cluster_map([emptied.address, own], owners, rev=1 + owners[0])
    with serve(emptied), serve(left) as address:
        cluster = connected(f"{address}/beer", timeout_seconds=10.0 if taken_over else 0.3)
        if taken_over:
            owners[:] = [1]
            assert run(bulk.set_many(cluster, [("a", "1")], 0, 0)) == {}
            assert left.keys() == [b"a"]
        else:
            with pytest.raises(BucketNotFound, match='select bucket "beer"'):
                run(bulk.set_many(cluster, [("a", "1")], 0, 0))


def test_what_moves_again_and_again_is_followed(connected):
    nodes = [a_node(1, a=[Status.NOT_MY_VBUCKET] * 3) for _ in range(2)]
    rev = 1

    def config(_):
        nonlocal rev
        rev += 1
        return cluster_map([node.address for node in nodes], [rev % 2], rev)

    nodes[0].config = nodes[1].config = config
    with serve(nodes[0]) as address, serve(nodes[1]):
        assert run(bulk.set_many(connected(address), [("a", "1")], 0, 0)) == {}
    assert len(nodes[0].keys() + nodes[1].keys()) > 4


def test_a_map_that_keeps_pointing_to_the_wrong_node_is_a_failure_and_no_busy_loop(connected):
    node = a_node(1, a=[Status.NOT_MY_VBUCKET] * 999)
    with serve(node) as address:
        failures = run(bulk.set_many(connected(address, timeout_seconds=1.0), [("a", "1")], 0, 0))
    with pytest.raises(NotMyVbucket, match=r'setq "a": vbucket 0 is not active on .* \(\d+ attempts in'):
        raise failures[b"a"]
    assert 2 < len(node.keys()) < 200


def test_a_node_that_is_gone_for_good_is_an_error_with_numbers(connected):
    with serve(a_node(1)) as address:
        cluster = connected(address, timeout_seconds=0.5)
    with pytest.raises(ConnectionLost, match=rf"{address}: .* \(\d+ attempts in \d+\.\d s\)"):
        run(bulk.set_many(cluster, [("a", "1")], 0, 0))


@pytest.mark.parametrize("opcode", [Opcode.GETQ, Opcode.SETQ])
def test_writes_whose_answers_were_lost_are_not_repeated_and_reads_are(connected, opcode: int):
    node = a_node(1)
    with serve(node) as address:
        cluster = connected(address)
        (link,) = cluster._links.values()

        def lost_once(bulk, deadline):
            link.close()
            raise ConnectionLost(address, "reset")
            yield

        link.finish_bulk = lost_once
        if opcode == Opcode.GETQ:
            assert list(run(bulk.get_many(cluster, ["a"]))) == [b"a"]
        else:
            with pytest.raises(ConnectionLost, match=r"whether 1 SETQ requests, the first for b'a' was stored is not"):
                run(bulk.set_many(cluster, [("a", "1")], 0, 0))


def test_a_vbucket_without_a_node_is_a_failure_of_its_keys(connected):
    node = a_node()
    node.config = lambda own: cluster_map([own], [-1, -1, -1, -1])
    with serve(node) as address:
        failures = run(bulk.set_many(connected(address, timeout_seconds=0.2), [("a", "1")], 0, 0))
    assert isinstance(failures[b"a"], NotMyVbucket) and node.keys() == []


def test_many_chunks_go_out_in_order_and_every_one_ends_with_a_no_op(connected):
    node = a_node(1)
    value, count = bytes(bulk.CHUNK_BYTES // 4), 21
    with serve(node) as address:
        assert run(bulk.set_many(connected(address), ((f"k{i}", value) for i in range(count)), 0, 0)) == {}
    assert node.keys() == [b"k%d" % i for i in range(count)]
    assert [request.opcode for request in node.seen].count(Opcode.NOOP) == 6  # four to a chunk, one left


def test_nothing_to_do_sends_nothing(connected):
    node = a_node()
    with serve(node) as address:
        assert run(bulk.set_many(connected(address), [], 0, 0)) == {}
    assert Opcode.NOOP not in {request.opcode for request in node.seen}


def test_a_connection_that_breaks_is_an_error(connected):
    node = a_node()
    with serve(node) as address:
        cluster = connected(address)
        node.mutate = lambda frame: b"\x55" * 24
        with pytest.raises((RemoteProtocolError, ConnectionLost)):
            run(bulk.set_many(cluster, [("a", "1")], 0, 0))


def test_an_answer_to_another_command_is_an_error(connected):
    node = a_node(a=[Status.ETMPFAIL])
    with serve(node) as address:
        cluster = connected(address)
        node.mutate = lambda frame: (
            frame.encode()[:1] + b"\x12" + frame.encode()[2:] if frame.status else frame.encode()
        )
        with pytest.raises(RemoteProtocolError, match=r"opcode 0x12 answers a request 0x11 \(opaque \d+\)"):
            run(bulk.set_many(cluster, [("a", "1")], 0, 0))


@pytest.mark.parametrize(
    ("items", "flags", "expiry"), [([("", "v")], 0, 0), ([("k" * 251, "v")], 0, 0), ([], -1, 0), ([], 0, 1 << 32)]
)
def test_what_can_not_be_sent_is_refused_here(connected, items, flags: int, expiry: int):
    node = a_node()
    with serve(node) as address, pytest.raises(OptionError):
        run(bulk.set_many(connected(address), items, flags, expiry))
    assert node.keys() == []
