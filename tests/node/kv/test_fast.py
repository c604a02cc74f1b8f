"""The fast path's bookkeeping around the kernel."""

import pytest

from headwater.wire.header import Frame
from tests.node.support import Desk, Talk


def test_totals_are_the_same_on_both_paths(counter: Desk) -> None:
    def use(talk: Talk) -> dict[str, int]:
        before = dict(counter.bucket.counters)
        talk.ask(1, key=b"k", extras=bytes(8))
        talk.ask(0, key=b"k")
        talk.ask(9, key=b"absent")
        talk.ask(4, key=b"k")
        return {name: value - before[name] for name, value in counter.bucket.counters.items()}

    fast = use(counter.session())
    counter.fast = False
    assert use(counter.session()) == fast and fast["cmd_get"] == 2 and fast["get_hits"] == fast["cmd_delete"] == 1


def test_a_pause_in_the_middle_leaves_the_rest_for_later(talk: Talk) -> None:
    noop = Frame(0x80, 0x0A).encode()
    talk.connection.pause("test")
    assert talk.give(noop) == 0
    talk.connection.resume("test")
    assert talk.give(noop + noop) == 48


def test_a_new_branch_is_known_to_the_kernel_at_once(talk: Talk, counter: Desk) -> None:
    talk.hello(4)
    counter.bucket.vbuckets[0].failover.create(0)
    counter.bucket.vbuckets[0].set_state(counter.bucket.vbuckets[0].state.__class__(2))
    counter.bucket.vbuckets[0].set_state(counter.bucket.vbuckets[0].state.__class__(1))
    newest = counter.bucket.vbuckets[0].failover.newest.vb_uuid
    assert talk.one(1, key=b"k", extras=bytes(8)).extras[:8] == newest.to_bytes(8, "big")


def test_vbuckets_that_grow_together_do_not_all_grow_in_one_turn(
    talk: Talk, counter: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each copies all of its columns, for milliseconds; hundreds of them held everybody up for 0.3 s."""
    requests = b"".join(
        Frame(0x80, 0x11, b"%d" % number, bytes(8), b"v", vbucket=number % 4).encode() for number in range(2000)
    )
    grown, grow = [0], counter.store.staging.grow

    def counted(vbucket: int) -> None:
        grown[0] += 1
        grow(vbucket)

    def gives_way() -> bool:
        talk.connection.pause("turn")
        return True

    monkeypatch.setattr(counter.store.staging, "grow", counted)
    monkeypatch.setattr(talk.connection, "gives_way", gives_way)
    offset = 0
    for _ in range(120):
        before = grown[0]
        offset += talk.give(requests[offset:])
        assert grown[0] - before <= 1
        talk.connection.resume("turn")
    assert offset == len(requests) and grown[0] > 4
