"""OBSERVE, OBSERVE_SEQNO, GET_KEYS, GET_RANDOM_KEY."""

import asyncio
from collections.abc import Awaitable, Callable
from struct import pack, unpack

import pytest

from headwater.node.kv import observe as module
from headwater.node.refused import CommandRefused
from headwater.wire.admin import GetKeys, GetKeysResponse
from headwater.wire.features import Feature
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.node.streams.support import spoil
from tests.node.support import Desk, Talk

OBSERVE_SEQNO, OBSERVE, KEYS, RANDOM = 0x91, 0x92, 0xB8, 0xB6


def uuid(talk: Talk, vb: int = 0) -> bytes:
    return talk.one(0x96, vbucket=vb).value[:8]


def test_a_branch_in_27_bytes_and_an_older_one_in_43(talk: Talk) -> None:
    first = uuid(talk, 1)
    for number in range(3):
        talk.one(1, key=b"%d" % number, extras=bytes(8), vbucket=1)
    talk.desk.committer.commit()
    answer = talk.one(OBSERVE_SEQNO, value=first, vbucket=1).value
    assert answer == b"\0\0\1" + first + pack(">QQ", 3, 3)
    for state in (b"\2", b"\1"):
        talk.one(0x3D, extras=state, vbucket=1)
    talk.one(1, key=b"x", extras=bytes(8), vbucket=1)
    talk.desk.committer.commit()
    answer = talk.one(OBSERVE_SEQNO, value=first, vbucket=1).value
    assert answer == b"\1\0\1" + uuid(talk, 1) + pack(">QQ", 4, 4) + first + pack(">Q", 3)


def test_a_replica_within_a_snapshot_has_persisted_what_it_received_and_is_complete_up_to_where_that_began(
    talk: Talk,
) -> None:
    replica = talk.desk.bucket.vbuckets[1]
    talk.one(1, key=b"old", extras=bytes(8), vbucket=1)
    talk.one(0x3D, extras=b"\2", vbucket=1)
    replica.begin_snapshot(2, 9)
    for seqno in (2, 3, 4):
        talk.desk.store.staging.mutation(1, b"%d" % seqno, b"v", cas=seqno, rev_seqno=1)
    talk.desk.committer.commit()
    branch = uuid(talk, 1)
    assert talk.one(OBSERVE_SEQNO, value=branch, vbucket=1).value[11:] == pack(">QQ", 4, 4)
    talk.hello(Feature.COMPLETE_SEQNOS)
    assert talk.one(OBSERVE_SEQNO, value=branch, vbucket=1).value[11:] == pack(">QQ", 1, 4)
    (told,) = (each for each in talk.ask(0x10, key=b"vbucket-details 1") if each.key == b"vb_1:complete_seqno")
    assert told.value == b"1"


def test_a_replica_whose_disk_lost_a_change_is_complete_up_to_before_that(talk: Talk) -> None:
    """A failover goes by that: who was handed more, as two copies had it, is rolled back by the owner's death."""
    for number in range(3):
        talk.one(1, key=b"%d" % number, extras=bytes(8), vbucket=1)
        talk.desk.committer.commit()
        if number == 1:
            spoil(talk.desk)
    talk.hello(Feature.COMPLETE_SEQNOS)
    branch = uuid(talk, 1)
    assert talk.one(OBSERVE_SEQNO, value=branch, vbucket=1).value[11:] == pack(">QQ", 3, 3), "it is the owner"
    talk.one(0x3D, extras=b"\2", vbucket=1)
    assert talk.one(OBSERVE_SEQNO, value=branch, vbucket=1).value[11:] == pack(">QQ", 1, 3)
    details = {each.key: each.value for each in talk.ask(0x10, key=b"vbucket-details")}
    assert (details[b"vb_1:complete_seqno"], details[b"vb_1:acknowledged_seqno"]) == (b"1", b"3"), "it was the owner"
    assert b"vb_0:acknowledged_seqno" not in details


def test_unknown_branches_and_wrong_sizes(talk: Talk) -> None:
    assert talk.one(OBSERVE_SEQNO, value=bytes(8)).status == 1
    assert talk.one(OBSERVE_SEQNO, value=bytes(7)).status == 4
    assert talk.one(OBSERVE_SEQNO, value=bytes(8), vbucket=9).status == 7
    branch = uuid(talk)
    talk.one(0x3D, extras=b"\4")
    assert talk.one(OBSERVE_SEQNO, value=branch).status == 7


def observe(talk: Talk, key: bytes) -> tuple[int, int]:
    answer = talk.one(OBSERVE, value=pack(">HH", 0, len(key)) + key).value
    assert answer[:4] == pack(">HH", 0, len(key)) and answer[4 : 4 + len(key)] == key
    state, cas = unpack(">BQ", answer[4 + len(key) :])
    return state, cas


def test_a_key_goes_from_memory_to_disk_to_deleted(talk: Talk) -> None:
    assert observe(talk, b"k") == (0x80, 0)
    cas = talk.one(1, key=b"k", extras=bytes(8)).cas
    assert observe(talk, b"k") == (0, cas)
    talk.desk.committer.commit()
    assert observe(talk, b"k") == (1, cas)
    talk.one(4, key=b"k")
    assert observe(talk, b"k")[0] == 0x81
    talk.desk.committer.commit()
    assert observe(talk, b"k")[0] == 0x80


def test_observed_keys_that_overrun_are_einval(talk: Talk) -> None:
    for value in (b"\0", pack(">HH", 0, 5) + b"abc", pack(">HH", 0, 0)):
        assert talk.one(OBSERVE, value=value).status == 4


def keys(talk: Talk, start: bytes, count: int | None = None) -> list[bytes]:
    value = talk.one(KEYS, key=start, extras=b"" if count is None else pack(">I", count)).value
    found = []
    while value:
        size = int.from_bytes(value[:2], "big")
        found.append(value[2 : 2 + size])
        value = value[2 + size :]
    return found


def test_a_fenced_vbucket_has_no_answer_yet_and_no_other_owner(talk: Talk) -> None:
    """The map that a refusal would carry names this very node."""
    talk.one(1, key=b"k", extras=bytes(8))
    talk.desk.bucket.fenced.add(0)
    for opcode, sections in ((OBSERVE, {"value": pack(">HH", 0, 1) + b"k"}), (KEYS, {"key": b"\0"})):
        assert talk.one(opcode, **sections).status == Status.ETMPFAIL
    talk.desk.bucket.fenced.clear()
    assert keys(talk, b"\0") == [b"k"]


def test_keys_come_in_order_from_the_start_key_on(talk: Talk) -> None:
    for key in (b"b", b"a", b"dd", b"c" * 250):
        talk.one(1, key=key, extras=bytes(8))
    talk.one(4, key=b"b")
    talk.one(1, key=b"expired", extras=pack(">II", 0, 1))
    talk.desk.clock.seconds += 2
    assert keys(talk, b"\0") == [b"a", b"c" * 250, b"dd"]
    assert keys(talk, b"b", 1) == [b"c" * 250]
    assert talk.one(KEYS, key=b"a", vbucket=9).status == 7
    assert talk.one(KEYS).status == 4  # the key to begin at is needed


def test_thousands_of_keys_take_several_sweeps(talk: Talk) -> None:
    wanted = sorted(b"%0200d" % number for number in range(900))
    for key in wanted:
        talk.ask(0x11, key=key, extras=bytes(8))
    assert keys(talk, b"\0", 5000) == wanted


def test_a_random_key_is_some_durable_document(talk: Talk) -> None:
    assert talk.one(RANDOM).status == 1
    for collection in (bytes(4), bytes(5)):  # what Collections would allow
        assert talk.one(RANDOM, extras=collection).status == 4
    for number in range(5):
        talk.one(1, key=b"k%d" % number, extras=bytes(8), value=b"v%d" % number, vbucket=number % 3)
    assert talk.one(RANDOM).status == 1
    for collection in (bytes(4), bytes(5)):  # what Collections would allow
        assert talk.one(RANDOM, extras=collection).status == 4
    talk.desk.committer.commit()
    seen = set()
    for _ in range(200):
        answer = talk.one(RANDOM)
        assert answer.value == b"v" + answer.key[1:] and len(answer.extras) == 4
        seen.add(answer.key)
    assert len(seen) > 1


def keys_while(talk: Talk, happens: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The keys of vbucket 1, which are so many that something else happens while they are read."""
    todo = [happens]

    class OneBreath:
        def __init__(self, *_: object) -> None:
            pass

        async def breathe(self) -> None:
            if todo:
                todo.pop()()

    for number in range(3):
        talk.one(1, key=b"k%d" % number, extras=bytes(8), vbucket=1)
    talk.desk.committer.commit()
    monkeypatch.setattr(module, "AT_ONCE", 0)
    monkeypatch.setattr(module, "Slices", OneBreath)
    talk.desk.run_queue = None  # type: ignore[attr-defined]

    async def listed() -> GetKeysResponse:
        found = module.get_keys(talk.kv, GetKeys(key=b"k", vbucket=1))
        assert isinstance(found, Awaitable)
        return await found

    return asyncio.run(listed()).keys


def drop(desk: Desk) -> None:
    desk.bucket.drop_vbucket(1)


def make_anew(desk: Desk) -> None:
    drop(desk)
    desk.bucket.create_vbucket(1, State.REPLICA)


def give_away(desk: Desk) -> None:
    desk.bucket.vbuckets[1].set_state(State.DEAD)


def fence(desk: Desk) -> None:
    desk.bucket.fence([1])


@pytest.mark.parametrize(
    ("happens", "status"),
    [
        (drop, Status.NOT_MY_VBUCKET),
        (make_anew, Status.NOT_MY_VBUCKET),
        (give_away, Status.NOT_MY_VBUCKET),
        (fence, Status.ETMPFAIL),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_the_keys_of_a_vbucket_that_leaves_while_they_are_read_are_not_told(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, happens: Callable[[Desk], None], status: Status
) -> None:
    """An empty list would say that there are none."""
    with pytest.raises(CommandRefused) as refused:
        keys_while(talk, lambda: happens(talk.desk), monkeypatch)
    assert refused.value.status == status


def test_a_key_that_comes_while_keys_are_read_is_told_once_it_is_on_the_disk(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = talk.desk.session()

    def put() -> None:
        other.one(1, key=b"k3", extras=bytes(8), vbucket=1)

    assert b"k3" in keys_while(talk, put, monkeypatch)
    assert talk.kv.written_gate == talk.desk.committer.open > talk.desk.committer.durable
