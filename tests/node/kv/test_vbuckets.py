"""vbucket administration."""

import asyncio
from struct import pack, unpack_from
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headwater.node.durable_writes import Copies
from headwater.node.kv.api import Session
from headwater.node.kv.vbuckets import get_all_vb_seqnos
from headwater.wire.address import Address
from headwater.wire.admin import GetAllVbSeqnos, GetAllVbSeqnosResponse
from headwater.wire.cluster_map import ClusterMap
from headwater.wire.dcp import Prepare
from headwater.wire.header import Frame
from headwater.wire.vbucket import State
from tests.node.support import Desk, Talk
from tests.node.upkeep.test_compactor import Desk as BucketDesk
from tests.node.upkeep.test_compactor import run

SET_VB, GET_VB, DEL_VB, SEQNOS, LOG = 0x3D, 0x3E, 0x3F, 0x48, 0x96
OBSERVE_SEQNO = 0x91


@pytest.mark.parametrize(
    "form", [{"extras": b"\2"}, {"extras": b"\0\0\0\2"}, {"value": b"\0\0\0\2"}], ids=["1 byte", "4 bytes", "value"]
)
def test_a_state_comes_in_three_forms(talk: Talk, form: dict[str, bytes]) -> None:
    assert talk.one(SET_VB, **form).status == 0
    assert talk.one(GET_VB).value == b"\0\0\0\2"


@pytest.mark.parametrize("extras", [b"\0", b"\5", b"\0\0", bytes(8)])
def test_bad_states_are_einval(talk: Talk, extras: bytes) -> None:
    assert talk.one(SET_VB, extras=extras).status == 4


def test_a_topology_belongs_to_an_active_vbucket(talk: Talk) -> None:
    talk.hello(0x0B)
    value = b'{"topology":[["a","b"]]}'
    assert talk.one(SET_VB, extras=b"\1", value=value, datatype=1).status == 0
    assert talk.one(SET_VB, extras=b"\2", value=value, datatype=1).status == 4
    assert talk.one(SET_VB, extras=b"\1", value=b"{", datatype=1).status == 4
    assert talk.one(SET_VB, extras=b"\1", value=value).status == 4


def test_a_vbucket_can_be_forgotten_and_made_anew(talk: Talk) -> None:
    talk.one(1, key=b"k", extras=bytes(8))
    uuid = talk.one(LOG).value[:8]
    assert talk.one(DEL_VB, value=b"async=0").status == 0
    assert talk.one(GET_VB).status == talk.one(DEL_VB).status == talk.one(0, key=b"k").status == 7
    assert talk.one(SET_VB, extras=b"\1").status == 0
    assert talk.one(0, key=b"k").status == 1 and talk.one(LOG).value[:8] != uuid
    talk.hello(4)
    assert talk.one(1, key=b"k", extras=bytes(8)).extras == talk.one(LOG).value[:8] + (1).to_bytes(8, "big")


def test_an_id_beyond_the_last_is_out_of_range(talk: Talk) -> None:
    assert talk.one(SET_VB, extras=b"\1", vbucket=4).status == 0x22
    assert talk.one(DEL_VB, value=b"now").status == 4


def test_becoming_active_again_begins_a_branch(talk: Talk) -> None:
    talk.one(1, key=b"k", extras=bytes(8))
    assert len(talk.one(LOG).value) == 16
    for state in (b"\2", b"\1", b"\1"):
        talk.one(SET_VB, extras=state)
    log = talk.one(LOG).value
    assert len(log) == 32 and unpack_from(">Q", log, 8) == (1,)


def test_a_branch_is_told_in_the_answers_of_writes(talk: Talk) -> None:
    talk.hello(4)
    for state in (b"\2", b"\1"):
        talk.one(SET_VB, extras=state)
    newest = talk.one(LOG).value[:8]
    assert talk.one(1, key=b"k", extras=bytes(8)).extras[:8] == newest


def gate_of(talk: Talk, opcode: int, **sections: bytes) -> int:
    """The batch that an answer waits for."""
    talk.give(Frame(0x80, opcode, **sections).encode())
    ((_, gate),) = talk.connection.sent
    talk.connection.sent.clear()
    return gate


def test_a_state_or_a_branch_is_told_to_nobody_before_it_is_on_disk(counter: Desk) -> None:
    """The record may yet be lost with its batch; a mover would delete the old owner's copy, the only whole one."""
    operator, others = counter.session(), [counter.session() for _ in range(3)]
    counter.committer.commit()
    assert operator.one(SET_VB, extras=b"\2").status == operator.one(SET_VB, extras=b"\1").status == 0
    newest = operator.one(LOG).value[:8]
    asked = [(GET_VB, b""), (LOG, b""), (OBSERVE_SEQNO, newest)]
    batch = counter.committer.open
    told = [gate_of(talk, opcode, value=value) for talk, (opcode, value) in zip(others, asked, strict=True)]
    assert told == [batch] * 3
    counter.committer.commit()
    later = [gate_of(counter.session(), opcode, value=value) for opcode, value in asked]
    assert all(gate <= counter.committer.durable for gate in later)


def seqnos(talk: Talk, extras: bytes = b"") -> dict[int, int]:
    value = talk.one(SEQNOS, extras=extras).value
    return {unpack_from(">H", value, at)[0]: unpack_from(">Q", value, at + 2)[0] for at in range(0, len(value), 10)}


def test_seqnos_are_those_on_disk_by_vbucket_and_state(talk: Talk) -> None:
    for number in range(3):
        talk.one(1, key=b"%d" % number, extras=bytes(8), vbucket=2)
    assert seqnos(talk) == {0: 0, 1: 0, 2: 0, 3: 0}
    talk.desk.committer.commit()
    talk.one(SET_VB, extras=b"\2", vbucket=1)
    talk.one(SET_VB, extras=b"\4", vbucket=3)
    assert seqnos(talk) == seqnos(talk, bytes(4)) == {0: 0, 1: 0, 2: 3}
    assert seqnos(talk, pack(">I", 1)) == {0: 0, 2: 3}
    assert seqnos(talk, pack(">I", 2)) == {1: 0} and seqnos(talk, pack(">I", 4)) == {3: 0}
    assert talk.one(SEQNOS, extras=pack(">I", 5)).status == talk.one(SEQNOS, extras=bytes(8)).status == 4


def test_what_another_node_may_own_by_now_is_told_to_nobody_who_reads_up_to_now(talk: Talk) -> None:
    talk.one(1, key=b"k", extras=bytes(8), vbucket=2)
    talk.desk.committer.commit()
    talk.desk.bucket.fence([2])
    talk.hello(7)  # XERROR
    refusal = talk.one(SEQNOS, extras=pack(">I", 1))
    assert refusal.status == 0x86, "left out, its changes would not be missed"
    assert b"1 vbuckets may belong" in refusal.value and b"headwater cluster failover --dead" in refusal.value
    assert seqnos(talk) == {0: 0, 1: 0, 2: 1, 3: 0}
    here, other = Address("127.0.0.1", 11210), Address("127.0.0.1", 11211)
    chains = ((0, 1), (0, 1), (1, 0), (0, 1))
    talk.desk.membership.map = ClusterMap("default", "cd" * 16, 1, 7, (here, other), chains, 1, this=0)
    assert seqnos(talk, pack(">I", 1)) == {0: 0, 1: 0, 3: 0}, "readers are sent to the other one by the map"
    talk.desk.bucket.unfence(2)
    assert seqnos(talk, pack(">I", 1)) == {0: 0, 1: 0, 2: 1, 3: 0}


def test_a_state_change_is_answered_behind_its_batch(talk: Talk) -> None:
    talk.give(bytes.fromhex("803d0000010000000000000100000000000000000000000002"))
    assert talk.connection.sent[-1][1] == talk.desk.committer.open


def test_questions_about_what_is_not_here(talk: Talk) -> None:
    for opcode in (GET_VB, LOG):
        assert talk.one(opcode, vbucket=9).status == 7
    assert talk.one(GET_VB, extras=b"x").status == talk.one(LOG, key=b"x").status == 4


def test_an_answer_that_waits_for_durable_writes_still_has_the_vbuckets_of_other_workers() -> None:
    """The session forgets their answers as soon as the handler returns, and then the answer begins to wait."""

    async def story(desk: BucketDesk) -> None:
        bucket, writes = desk.bucket, desk.bucket.durable_writes
        writes.copies_of = lambda vb: Copies(2, frozenset({"one"}))
        bucket.vbuckets[0].prepares.add(Prepare(by_seqno=0, rev_seqno=1, durability_level=1, key=b"\0k", cas=1 << 16))
        await desk.committer.wait(desk.committer.wrote())
        writes.look_at(0)
        session = session_of_worker(desk, GetAllVbSeqnosResponse(seqnos=[(7, 5)]).frame())
        waiting: Any = get_all_vb_seqnos(cast("Session", session), GetAllVbSeqnos(vb_state=State.ACTIVE))
        session.others = ()  # as `KvSession.answer` does
        answer = asyncio.ensure_future(waiting)
        await asyncio.sleep(0)
        writes.acknowledged(0, "one", 1)
        assert dict((await answer).seqnos)[7] == 5

    run(story)


def session_of_worker(desk: BucketDesk, *others: Frame) -> SimpleNamespace:
    server = SimpleNamespace(
        membership=SimpleNamespace(map=None), bucket=desk.bucket, committer=desk.committer, loop=desk.loop
    )
    return SimpleNamespace(store_bucket=desk.bucket, has=lambda _: True, others=others, server=server)
