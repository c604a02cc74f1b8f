"""Streams by the map beside streams by hand."""

from __future__ import annotations

from collections.abc import Iterable

from headwater.node.calling import ProducerAddress
from headwater.node.membership.following import Following
from headwater.node.membership.map import Address

A, B = Address("a", 1), Address("b", 2)


class Dialers:
    """A Replication that notes the calls of Following."""

    def __init__(self) -> None:
        self.streams: dict[int, str] = {}
        self.begun = 0

    def wants(self, vb: int) -> bool:
        return vb in self.streams

    def start(self, source: ProducerAddress, vbuckets: Iterable[int], *, takeover: bool) -> None:
        assert not takeover
        self.begun += 1
        self.streams.update(dict.fromkeys(vbuckets, source.host))

    def leave(self, source: ProducerAddress, vbuckets: Iterable[int]) -> bool:
        for vb in vbuckets:
            assert self.streams.pop(vb) == source.host
        return True


def made() -> tuple[Dialers, Following]:
    dialers = Dialers()
    return dialers, Following(dialers, lambda at: ProducerAddress(at.host, at.port, "default"))  # type: ignore[arg-type]


def test_vbuckets_begin_together_and_end_alone() -> None:
    dialers, following = made()
    following.obey({0: A, 1: A, 2: B, 3: None}, news=[0, 1, 2, 3])
    assert dialers.streams == {0: "a", 1: "a", 2: "b"} and dialers.begun == 2
    following.obey({1: None}, news=[1])
    assert dialers.streams == {0: "a", 2: "b"} and following.of("a", 1) == [0]


def test_what_follows_already_is_left_alone_and_news_moves_it() -> None:
    dialers, following = made()
    following.obey({0: A}, news=[0])
    following.obey({0: A}, news=[0])
    following.obey({0: A}, news=[])
    assert dialers.begun == 1
    following.obey({0: B}, news=[0])
    assert dialers.streams == {0: "b"} and following.of("a", 1) == []


def test_a_stream_by_hand_goes_on_until_there_is_news() -> None:
    dialers, following = made()
    following.obey({0: A}, news=[0])
    following.by_hand([0])
    dialers.streams[0] = "hand"
    following.obey({0: A}, news=[])
    following.obey({0: None}, news=[])
    assert dialers.streams == {0: "hand"}
    following.obey({0: A}, news=[0])
    assert dialers.streams == {0: "a"}


def test_what_is_held_waits_for_news_or_a_hand() -> None:
    dialers, following = made()
    following.obey({0: A, 1: A}, news=[0, 1])
    following.hold([0, 1])
    following.obey({0: A, 1: A}, news=[])
    assert dialers.streams == {} and following.held == {0, 1}
    following.news([0])
    following.obey({0: A, 1: A}, news=[0])
    assert dialers.streams == {0: "a"}
    following.by_hand([1])
    assert following.held == set()


def test_what_a_run_held_is_held_until_another_run_begins_and_what_a_hand_held_stays() -> None:
    dialers, following = made()
    following.obey({0: A, 1: A, 2: A}, news=[0, 1, 2])
    following.hold([0])
    following.hold([1, 2], by_run=True)
    following.news([2])
    assert following.run_over() == {1}
    assert following.held == {0}
    following.obey({0: A, 1: A}, news=[])
    assert dialers.streams == {1: "a"}
    assert following.run_over() == set()


def test_a_stream_that_was_lost_is_begun_again() -> None:
    dialers, following = made()
    following.obey({0: A}, news=[0])
    dialers.streams.clear()
    following.obey({0: A}, news=[])
    assert dialers.streams == {0: "a"}
