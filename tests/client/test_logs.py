"""Failover logs of many vbuckets, against nodes that answer as told."""

import pytest

from headwater.client.cluster import Cluster
from headwater.client.logs import failover_logs
from headwater.client.pipeline import Pipeline
from headwater.client.settings import settings_for
from headwater.errors import ConnectionLost, NoAccess, OptionError, RemoteProtocolError
from headwater.testing.peers import UUID, History, Peer, cluster_map, history, serve
from headwater.transport.blocking import run
from headwater.wire.header import Frame, response
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

NEWER = [(0xB, 7), (UUID, 0)]


class Node(Peer):
    """Refuses the first requests for a failover log with these statuses."""

    said: tuple[int, ...] = ()

    def answers(self, request: Frame):
        if request.opcode == Opcode.GET_FAILOVER_LOG and self.said:
            self.seen.append(request)
            status, self.said = self.said[0], self.said[1:]
            yield response(request, status, value=b"" if status else b"short")
        else:
            yield from super().answers(request)

    def asked(self) -> list[int]:
        return [frame.vbucket for frame in self.seen if frame.opcode == Opcode.GET_FAILOVER_LOG]


def a_node(*said: int, vbuckets: int = 4) -> Node:
    node = Node(vbuckets=vbuckets, histories={2: History(history(9).snapshots, NEWER)})
    node.said = said
    return node


@pytest.fixture
def connected():
    made = []

    def connect(address: str) -> Cluster:
        made.append(Cluster(settings_for(address, timeout_seconds=60.0, connect_timeout_seconds=60.0)))
        run(made[-1].connect())
        return made[-1]

    yield connect
    for cluster in made:
        cluster.close()


def test_all_vbuckets_are_asked_for_once_and_together(connected):
    node = a_node()
    with serve(node) as address:
        logs = run(failover_logs(connected(address)))
    assert logs == {0: [(UUID, 0)], 1: [(UUID, 0)], 2: NEWER, 3: [(UUID, 0)]}
    assert node.asked() == [0, 1, 2, 3]
    assert node.seen[-1].opcode == Opcode.NOOP


def test_only_those_that_are_wanted_are_asked_for(connected):
    node = a_node()
    with serve(node) as address:
        assert list(run(failover_logs(connected(address), [3, 2, 3]))) == [2, 3]
        assert run(failover_logs(connected(address), [])) == {}
    assert node.asked() == [2, 3]


def test_each_node_is_asked_for_its_own(connected):
    first, second = a_node(), a_node()
    with serve(second) as other, serve(first) as address:
        first.config = lambda me: cluster_map([me, second.address], [0, 1, 1, 0])
        assert other
        assert run(failover_logs(connected(address)))[2] == NEWER
    assert (first.asked(), second.asked()) == ([0, 3], [1, 2])


def test_what_is_refused_for_now_is_asked_for_again(connected):
    node = a_node(Status.ETMPFAIL, Status.NOT_MY_VBUCKET)
    with serve(node) as address:
        assert run(failover_logs(connected(address)))[2] == NEWER
    assert node.asked() == [0, 1, 2, 3, 0, 1]


def test_a_refusal_that_lasts_is_raised(connected):
    with serve(a_node(Status.EACCESS)) as address, pytest.raises(NoAccess, match="failover log"):
        run(failover_logs(connected(address)))


def test_a_log_that_is_none_is_told(connected):
    with serve(a_node(0)) as address, pytest.raises(RemoteProtocolError, match="8 bytes expected at offset 0 of 5"):
        run(failover_logs(connected(address)))


def test_a_connection_that_breaks_meanwhile_is_made_anew(connected, monkeypatch):
    def broken(link, bulk, deadline):
        link.close()
        raise ConnectionLost(str(link.address), "gone")
        yield

    monkeypatch.setattr(Pipeline, "finish_bulk", broken)
    node = a_node()
    with serve(node) as address:
        assert run(failover_logs(connected(address)))[2] == NEWER
    assert node.connections == 2


def test_a_vbucket_there_can_not_be_is_refused(connected):
    with serve(a_node()) as address, pytest.raises(OptionError):
        run(failover_logs(connected(address), [1 << 16]))
