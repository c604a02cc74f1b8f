"""Who watches a socket: the event loop, or rounds where the session lets them."""

from __future__ import annotations

from typing import Any

from headwater.node.connections.watching import SocketWatch

FD = 7


class PlayedLoop:
    def __init__(self) -> None:
        self.readers: set[int] = set()

    def add_reader(self, descriptor: int, work: Any) -> None:
        self.readers.add(descriptor)

    def remove_reader(self, descriptor: int) -> None:
        self.readers.discard(descriptor)


class PlayedRounds:
    def __init__(self, *, has_room: bool = True) -> None:
        self.has_room, self.watched, self.allowed = has_room, set[int](), dict[int, int | None]()
        self.kept: tuple[bytes, int] | None = None

    def join(self, connection: Any, descriptor: int) -> bool:
        if self.has_room:
            self.watched.add(descriptor)
        return self.has_room

    def leave(self, descriptor: int) -> None:
        self.watched.discard(descriptor)

    def allow(self, descriptor: int, features: int | None) -> None:
        self.allowed[descriptor] = features

    def take_back(self, descriptor: int) -> tuple[bytes, int] | None:
        kept, self.kept = self.kept, None
        return kept

    def stirred_at(self, descriptor: int) -> float:
        return 20.0


class Quick:
    features = 3

    def __init__(self, rounds: PlayedRounds | None) -> None:
        self.rounds, self.gates = rounds, list[int]()

    def wait_for(self, gate: int) -> None:
        self.gates.append(gate)


class Peer:
    """A connection, and its session as well."""

    def __init__(self, quick: Quick | None) -> None:
        self.quick, self.session = quick, self

    def readable(self) -> None:
        raise AssertionError("nothing comes")


def begun(quick: Quick | None, *, may_join: bool = True) -> tuple[SocketWatch, PlayedLoop, Peer, bool]:
    loop, peer = PlayedLoop(), Peer(quick)
    watch = SocketWatch(loop, FD, may_join=may_join)  # type: ignore[arg-type]
    return watch, loop, peer, watch.begin(peer, lambda add, work: add(FD, work))  # type: ignore[arg-type]


def test_rounds_watch_the_socket_of_a_session_that_lets_them_and_the_loop_does_not() -> None:
    rounds = PlayedRounds()
    watch, loop, _, by_rounds = begun(Quick(rounds))
    assert (by_rounds, rounds.watched, loop.readers, watch.is_on) == (True, {FD}, set(), True)
    watch.allow(is_at_rest=True)
    assert rounds.allowed == {FD: 3}
    watch.allow(is_at_rest=False)
    assert rounds.allowed == {FD: None}
    watch.end()
    assert (rounds.watched, loop.readers, watch.is_on) == (set(), set(), False)


def test_the_loop_watches_it_where_rounds_can_not() -> None:
    no_room = PlayedRounds(has_room=False)
    for quick, may_join in ((None, True), (Quick(None), True), (Quick(no_room), True), (Quick(PlayedRounds()), False)):
        watch, loop, _, by_rounds = begun(quick, may_join=may_join)
        assert (by_rounds, loop.readers) == (False, {FD})
        watch.allow(is_at_rest=True)
        assert (watch.take_back(), watch.stirred_at(5.0)) == (None, 5.0)
        watch.end()
        assert loop.readers == set()


def test_an_answer_that_is_kept_is_taken_back_once_and_later_answers_wait_for_its_batch() -> None:
    rounds = PlayedRounds()
    quick = Quick(rounds)
    watch, *_ = begun(quick)
    rounds.kept = (b"answer", 9)
    assert (watch.take_back(), quick.gates) == ((b"answer", 9), [9])
    assert (watch.take_back(), quick.gates) == (None, [9])


def test_what_rounds_have_answered_counts_as_heard() -> None:
    watch, *_ = begun(Quick(PlayedRounds()))
    assert (watch.stirred_at(5.0), watch.stirred_at(30.0)) == (20.0, 30.0)


def test_other_facts_of_the_session_want_another_watch_while_anybody_watches() -> None:
    quick = Quick(PlayedRounds())
    watch, _, peer, _ = begun(quick)
    assert not watch.is_outdated(peer)  # type: ignore[arg-type]
    peer.quick = Quick(PlayedRounds())
    assert watch.is_outdated(peer)  # type: ignore[arg-type]
    watch.end()
    assert not watch.is_outdated(peer)  # type: ignore[arg-type]


def test_a_session_is_forgotten_with_its_facts() -> None:
    rounds = PlayedRounds()
    watch, *_ = begun(Quick(rounds))
    watch.forget_session()
    watch.allow(is_at_rest=True)
    assert (watch.quick, rounds.allowed) == (None, {})
