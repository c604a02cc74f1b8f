"""What a session follows, and how its vbuckets take turns."""

import pytest

from headwater.errors import CorruptStore
from headwater.protocol.tap_options import TapOptions
from headwater.wire import tap
from headwater.wire.vbucket import State
from tests.node.streams.support import spoil
from tests.node.tap.support import TapClient, TapDesk, is_data

FUTURE = 0xFFFF_FFFF_FFFF_FFFF


def test_a_dump_of_many_vbuckets_has_every_document_once(desk: TapDesk) -> None:
    for number in range(3000):
        desk.set(number % 64, f"k{number}", b"v" * 100)
    desk.commit()
    client = TapClient(desk).connect(TapOptions(dump=True, acknowledge=True, network_byte_order=True))
    frames = client.read()
    keys = [tap.Mutation.decode(frame).key for frame in frames if is_data(frame)]
    assert len(keys) == len(set(keys)) == 3000
    assert [frame.opaque for frame in frames] == list(range(1, len(frames) + 1))
    assert client.connection.finished


def test_a_vbucket_that_dies_is_followed_no_longer(desk: TapDesk) -> None:
    client = TapClient(desk).connect(TapOptions(since=FUTURE))
    client.read()
    desk.bucket.vbuckets[3].set_state(State.DEAD)
    assert 3 not in desk.tap.feeds[b"anon_1"].readers


def test_statistics_name_the_session(desk: TapDesk) -> None:
    TapClient(desk).connect(TapOptions(name=b"me", acknowledge=True)).read()
    stats = dict(desk.tap.stats([]))
    assert stats["eq_tapq:me:flags"] == "support_ack"
    assert stats["eq_tapq:me:ack_log_size"] == "0"
    assert stats["ep_tap_count"] == "1"


def test_a_session_that_meets_damage_is_disconnected_and_not_resumed(desk: TapDesk) -> None:
    client = TapClient(desk).connect(TapOptions(name=b"me", acknowledge=True))
    client.read()
    desk.set(0, "lost")
    desk.commit()
    spoil(desk)
    assert client.connection.is_closed
    assert desk.tap.feeds == {}
    again = TapClient(desk).connect(TapOptions(dump=True, vbuckets=(0,)))
    with pytest.raises(CorruptStore):
        again.read()


def test_a_session_follows_what_is_here_and_passes_over_the_rest(desk: TapDesk) -> None:
    desk.bucket.vbuckets[2].set_state(State.DEAD)
    TapClient(desk).connect(TapOptions(name=b"me", vbuckets=(1, 2, 3, 70)))
    assert sorted(desk.tap.feeds[b"me"].readers) == [1, 3]


def test_a_client_that_comes_back_wanting_keys_gets_keys(desk: TapDesk) -> None:
    first = TapClient(desk).connect(TapOptions(name=b"me", acknowledge=True, vbuckets=(0,)))
    first.read()
    first.cut()
    desk.set(0, "k", b"value")
    desk.commit()
    again = TapClient(desk).connect(TapOptions(name=b"me", acknowledge=True, vbuckets=(0,), keys_only=True))
    (message,) = [tap.Mutation.decode(frame) for frame in again.read() if is_data(frame)]
    assert (message.key, message.value) == (b"k", b"")
