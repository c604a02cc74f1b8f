"""Simulated connections: cut anywhere, never reordered; stalled, refused, reset and silent."""

from __future__ import annotations

import pytest

from harness.simulation.scheduler import Schedule, SimLoop
from harness.simulation.sockets import BUFFER_BYTES, Link, Network, SimSocket


@pytest.fixture
def network() -> Network:
    return Network(Schedule(seed=3))


def joined(network: Network, caller: str = "client", target: str = "n0") -> tuple[SimSocket, SimSocket]:
    """Both ends of a connection; who listens has accepted it."""
    listener = network.listeners.get(target) or network.listener(target)
    near = network.socket(caller)
    network.join(near, target)
    far, address = listener.accept()
    assert address == network.address(caller)
    return near, far


def passed(network: Network, seconds: float = 1.0) -> None:
    network.schedule.run(seconds)


def test_bytes_arrive_in_order_and_in_pieces(network: Network) -> None:
    near, far = joined(network)
    sent = bytes(range(256)) * 4
    for at in range(0, len(sent), 64):
        assert near.send(sent[at : at + 64]) == 64
    with pytest.raises(BlockingIOError):
        far.recv(10)
    pieces: list[bytes] = []
    loop = SimLoop(network.schedule, network, "n0")
    loop.add_reader(far.fileno(), lambda: pieces.append(far.recv(1 << 20)))
    passed(network)
    assert b"".join(pieces) == sent and len(pieces) > 1


def test_who_watches_is_called_as_long_as_there_is_something(network: Network) -> None:
    near, far = joined(network)
    loop, seen = SimLoop(network.schedule, network, "n0"), list[bytes]()
    near.send(b"abc")
    passed(network)
    loop.add_reader(far.fileno(), lambda: seen.append(far.recv(1)))
    passed(network)
    assert seen == [b"a", b"b", b"c"]
    assert loop.remove_reader(far.fileno()) and not loop.remove_reader(far.fileno())


def test_who_does_not_read_makes_the_other_end_wait(network: Network) -> None:
    near, far = joined(network)
    assert near.send(bytes(BUFFER_BYTES + 5)) == BUFFER_BYTES
    with pytest.raises(BlockingIOError):
        near.send(b"x")
    loop, told = SimLoop(network.schedule, network, "client"), list[int]()
    loop.add_writer(near.fileno(), lambda: told.append(near.send(bytes(BUFFER_BYTES))))
    passed(network)
    assert told == []
    assert len(far.recv(100)) == 100
    passed(network)
    assert told == [100]


def test_a_stalled_link_keeps_what_it_has_until_it_is_up(network: Network) -> None:
    near, far = joined(network)
    network.set_link("client", "n0", Link.STALLED)
    near.send(b"late")
    near.close()
    passed(network)
    with pytest.raises(BlockingIOError):
        far.recv(10)
    network.set_link("n0", "client", Link.UP)
    assert far.recv(10) == b"late"
    passed(network, 2.0)
    assert far.recv(10) == b""


def test_a_link_that_lets_so_much_through_keeps_the_rest_until_it_is_up(network: Network) -> None:
    near, far = joined(network)
    network.let_through("client", "n0", 6)
    near.send(b"torn in ")
    near.send(b"two")
    far.send(b"the other way")
    passed(network)
    assert (far.recv(20), near.recv(20)) == (b"torn i", b"the other way")
    with pytest.raises(BlockingIOError):
        far.recv(20)
    network.set_link("n0", "client", Link.UP)
    assert far.recv(20) == b"n two"
    near.send(b"more")
    passed(network)
    assert far.recv(20) == b"more"


def test_of_what_waits_on_a_stalled_link_a_part_can_be_let_through(network: Network) -> None:
    near, far = joined(network)
    network.set_link("client", "n0", Link.STALLED)
    near.send(b"torn")
    passed(network)
    network.let_through("client", "n0", 3)
    assert far.recv(20) == b"tor"
    network.set_link("client", "n0", Link.UP)
    assert far.recv(20) == b"n"


def test_the_end_comes_after_the_data(network: Network) -> None:
    near, far = joined(network)
    near.send(b"last")
    near.close()
    passed(network)
    assert (far.recv(10), far.recv(10), near.fileno()) == (b"last", b"", -1)
    with pytest.raises(BrokenPipeError):
        far.send(b"x")


def test_a_cut_is_a_reset_at_both_ends_and_what_was_there_is_gone(network: Network) -> None:
    near, far = joined(network)
    near.send(b"lost")
    passed(network)
    network.cut("client", "n0")
    for end in (near, far):
        with pytest.raises(ConnectionResetError):
            end.recv(10)
        assert end.recv(10) == b""


def test_nobody_is_joined_over_a_link_that_is_not_up_or_where_nobody_listens(network: Network) -> None:
    with pytest.raises(ConnectionRefusedError, match="nobody listens at n0"):
        network.join(network.socket("client"), "n0")
    joined(network)
    for link in (Link.DOWN, Link.STALLED):
        network.set_link("client", "n0", link)
        with pytest.raises(ConnectionRefusedError):
            network.join(network.socket("client"), "n0")


def test_who_calls_over_a_stalled_link_waits(network: Network) -> None:
    network.listener("n0")
    network.set_link("n1", "n0", Link.STALLED)
    loop, near = SimLoop(network.schedule, network, "n1"), network.socket("n1")
    task = loop.create_task(loop.sock_connect(near, network.address("n0")))
    assert not network.schedule.run(5.0, task.done)
    network.set_link("n1", "n0", Link.UP)
    assert network.schedule.run(1.0, task.done) and near.peer is not None


@pytest.mark.parametrize("silent", [False, True])
def test_peers_are_told_of_a_process_that_ends_but_not_of_a_power_cut(network: Network, silent: bool) -> None:
    near, _ = joined(network)
    network.vanish("n0", silent)
    passed(network)
    if silent:
        near.send(b"anybody there?")
        passed(network)
        with pytest.raises(BlockingIOError):
            near.recv(10)
        network.listener("n0")  # the machine is up again
        near.send(b"anybody there?")
        passed(network)
    with pytest.raises(ConnectionResetError):
        near.recv(10)


def test_what_was_sent_arrives_when_its_sender_has_asked_again_and_his_new_connection_is_as_ever(
    network: Network,
) -> None:
    near, far = joined(network)
    assert network.callers("n0") == ["client"]
    held = network.hold("client", "n0")
    near.send(b"once")
    far.send(b"heard by nobody")
    passed(network)
    network.lose(held)
    with pytest.raises(ConnectionResetError):
        near.recv(20)
    near.close()
    again, anew = joined(network)
    again.send(b"once more")
    passed(network, 5.0)
    assert anew.recv(20) == b"once more"
    with pytest.raises(BlockingIOError):
        far.recv(20)
    network.release(held)
    assert far.recv(20) == b"once"
    passed(network, 2.0)
    assert far.recv(20) == b""
