"""Expired documents that nobody asks for."""

from struct import pack

from headwater.node.pager import Pager
from tests.node.support import Desk, Talk


def test_what_has_expired_becomes_an_expiration_and_nothing_else(talk: Talk, counter: Desk) -> None:
    for number in range(30):
        talk.one(1, key=b"k%d" % number, extras=pack(">II", 0, 10 + number % 3 * 100), vbucket=number % 2)
    pager = Pager(counter.bucket, None, interval_seconds=0)  # type: ignore[arg-type]
    assert pager.page() == 0
    counter.clock.seconds += 50
    assert pager.page() == 10 and pager.page() == 0
    assert counter.store.items(0) + counter.store.items(1) == 20
    counter.clock.seconds += 100
    assert pager.page(limit=4) == 4 and pager.page() == 6


def test_replicas_expire_nothing_by_themselves(talk: Talk, counter: Desk) -> None:
    talk.one(1, key=b"k", extras=pack(">II", 0, 10))
    talk.one(0x3D, extras=b"\2")
    counter.clock.seconds += 50
    assert Pager(counter.bucket, None, interval_seconds=0).page() == 0  # type: ignore[arg-type]
