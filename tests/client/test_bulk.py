"""Many documents at once, against a node that answers quiet requests as told."""

import pytest

from headwater.client import bulk
from headwater.client.cluster import Cluster
from headwater.client.settings import settings_for
from headwater.errors import ConnectionLost, NotMyVbucket, OptionError, RemoteProtocolError, TemporaryFailure
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


def a_node(vbuckets: int = 4, **said: list[int]) -> Node:
    node = Node(vbuckets=vbuckets)
    node.said = {key.encode(): statuses for key, statuses in said.items()}
    return node


@pytest.fixture
def connected():
    """Connects to an address, and closes what it connected."""
    made = []

    def connect(address: str) -> Cluster:
        made.append(Cluster(settings_for(address, timeout_seconds=2.0, connect_timeout_seconds=2.0)))
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
    with serve(a_node(b=[Status.ETMPFAIL])) as address:
        failures = run(bulk.set_many(connected(address), [("a", "1"), ("b", "2"), ("c", "3")], 0, 0))
    assert list(failures) == [b"b"]
    with pytest.raises(TemporaryFailure, match='setq "b"'):
        raise failures[b"b"]


def test_keys_that_do_not_exist_are_left_out_of_what_is_read(connected):
    with serve(a_node()) as address:
        found = run(bulk.get_many(connected(address), ["a", "b"]))
    assert {key: (document.value, document.cas, document.flags) for key, document in found.items()} == {
        b"a": (b"A", 9, 7),
        b"b": (b"B", 9, 7),
    }


def test_a_read_that_was_refused_is_raised(connected):
    with serve(a_node(b=[Status.ETMPFAIL])) as address, pytest.raises(TemporaryFailure, match='getq "b"'):
        run(bulk.get_many(connected(address), ["a", "b"]))


def test_deleting_tells_which_keys_were_not_there(connected):
    with serve(a_node(b=[Status.KEY_ENOENT])) as address:
        assert list(run(bulk.delete_many(connected(address), ["a", "b"]))) == [b"b"]


def test_what_has_moved_is_sent_once_more_to_the_node_of_the_new_map(connected):
    old, new = a_node(1, a=[Status.NOT_MY_VBUCKET]), a_node(1)
    owners = [0]
    old.config = new.config = lambda _: cluster_map([old.address, new.address], owners, rev=1 + owners[0])
    with serve(old) as address, serve(new):
        cluster = connected(address)
        owners[:] = [1]
        assert run(bulk.set_many(cluster, [("a", "1"), ("b", "2")], 0, 0)) == {}
    assert (old.keys(), new.keys()) == ([b"a", b"b"], [b"a"])


def test_what_moves_again_is_a_failure_and_not_sent_for_ever(connected):
    node = a_node(1, a=[Status.NOT_MY_VBUCKET] * 9)
    with serve(node) as address:
        failures = run(bulk.set_many(connected(address), [("a", "1")], 0, 0))
    assert isinstance(failures[b"a"], NotMyVbucket) and node.keys() == [b"a", b"a"]


def test_a_vbucket_without_a_node_is_a_failure_of_its_keys(connected):
    node = a_node()
    node.config = lambda own: cluster_map([own], [-1, -1, -1, -1])
    with serve(node) as address:
        failures = run(bulk.set_many(connected(address), [("a", "1")], 0, 0))
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
