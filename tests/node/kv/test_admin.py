"""Small commands, FLUSH, and what is not served."""

import pytest

from headwater.node.storage.scrub import Damage
from headwater.wire.address import Address
from headwater.wire.cluster_map import ClusterMap
from headwater.wire.opcodes import RETIRED, Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.node.support import NOON, Talk

FLUSH, FLUSHQ, QUIT, QUITQ = 0x08, 0x18, 0x07, 0x17
OFFSET_MASK = (1 << 40) - 1


def test_noop_version_and_verbosity(talk: Talk) -> None:
    assert talk.one(0x0A, opaque=0xDEADBEEF).opaque == 0xDEADBEEF
    assert talk.one(0x0B).value[:1].isdigit()
    assert talk.one(0x1B, extras=bytes(4)).status == 0
    assert talk.one(0x1B).status == 4


def test_quit_answers_and_closes_quitq_closes(talk: Talk) -> None:
    other = talk.desk.session()
    assert talk.one(QUIT).status == 0 and talk.connection.finished
    assert other.ask(QUITQ) == [] and other.connection.finished


def test_flush_deletes_every_document_by_a_deletion_of_its_own(talk: Talk) -> None:
    for vb in range(3):
        for number in range(50):
            talk.one(1, key=b"k%d" % number, extras=bytes(8), vbucket=vb)
    talk.one(4, key=b"k7", vbucket=1)
    assert talk.one(FLUSH).status == 0
    assert [talk.desk.store.index.items(vb) for vb in range(3)] == [0, 0, 0]
    assert [talk.desk.store.index.high_seqno(vb) for vb in range(3)] == [100, 100, 100]
    stored = talk.desk.store.document(1, b"k7")
    assert stored is not None and stored.rev_seqno == 2 and stored.delete_time == NOON
    assert talk.ask(FLUSHQ) == []
    assert talk.desk.store.index.high_seqno(0) == 100


def test_flush_spares_vbuckets_that_are_not_active(talk: Talk) -> None:
    talk.one(1, key=b"k", extras=bytes(8))
    talk.one(0x3D, extras=b"\2")
    assert talk.one(FLUSH, extras=bytes(4)).status == 0
    assert talk.desk.store.index.items(0) == 1


def test_flush_deletes_nothing_while_another_node_may_own_some_of_it(talk: Talk) -> None:
    """The documents behind the fence would be there again once it opens, though all were said to be deleted."""
    for vb in (0, 2):
        talk.one(1, key=b"k", extras=bytes(8), vbucket=vb)
    talk.desk.bucket.fence([2])
    talk.hello(7)  # XERROR
    refusal = talk.one(FLUSH)
    assert refusal.status == 0x86 and b"1 vbuckets may belong" in refusal.value
    assert [talk.desk.store.index.items(vb) for vb in (0, 2)] == [1, 1]
    here, other = Address("127.0.0.1", 11210), Address("127.0.0.1", 11211)
    chains = ((0, 1), (0, 1), (1, 0), (0, 1))
    talk.desk.membership.map = ClusterMap("default", "cd" * 16, 1, 7, (here, other), chains, 1, this=0)
    assert talk.one(FLUSH).status == 0, "the other one, whose the rest is by the map, is asked as well"
    talk.desk.membership.map = None
    talk.desk.bucket.unfence(2)
    assert talk.one(FLUSH).status == 0
    assert [talk.desk.store.index.items(vb) for vb in (0, 2)] == [0, 0]


@pytest.mark.parametrize("state", [State.ACTIVE, State.DEAD, State.PENDING])
def test_flush_deletes_nothing_while_a_vbucket_is_handed_over(talk: Talk, state: State) -> None:
    """Its source is dead, its target pending, and both would spare it: its documents would be there again in a moment,
    though both said that all were deleted."""
    vbucket = talk.desk.bucket.vbuckets[1]
    for vb in (0, 1):
        talk.one(1, key=b"k", extras=bytes(8), vbucket=vb)
    vbucket.set_state(state)
    vbucket.handover = None if state is State.PENDING else object()
    talk.hello(7)  # XERROR
    refusal = talk.one(FLUSH)
    assert refusal.status == 0x86 and b"vbucket 1 is being handed over" in refusal.value
    assert talk.desk.store.index.items(0) == 1
    vbucket.handover = None
    vbucket.set_state(State.DEAD)
    assert talk.one(FLUSH).status == 0
    assert talk.desk.store.index.items(0) == 0


def test_flush_deletes_nothing_while_it_can_not_read_what_there_is(talk: Talk) -> None:
    """A replica may have the damaged document, and have it alive after a failover."""
    for key in (b"whole", b"lost"):
        talk.one(1, key=key, extras=bytes(8), vbucket=1)
        talk.desk.committer.commit()
    segment = talk.desk.store.log.segments[-1]
    place = int(talk.desk.store.index.columns[1].loc[1]) & OFFSET_MASK
    talk.desk.bucket.take_out(Damage(segment, place, place + 1, "a test"))
    assert talk.one(FLUSH).status == Status.EINTERNAL
    assert talk.one(0, key=b"whole", vbucket=1).status == 0


def test_flush_can_come_later(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(talk.desk, "flush_later", asked.append, raising=False)
    talk.one(1, key=b"k", extras=bytes(8))
    assert talk.one(FLUSH, extras=(20).to_bytes(4, "big")).status == 0
    assert asked == [NOON + 20] and talk.desk.store.index.items(0) == 1


def test_while_traffic_is_disabled_documents_are_not_served(talk: Talk) -> None:
    assert talk.one(0xAE).status == 0
    assert talk.one(0, key=b"k").status == talk.one(1, key=b"k", extras=bytes(8)).status == 0x86
    assert talk.one(0x0A).status == 0
    assert talk.one(0xAD).status == 0
    assert talk.one(0, key=b"k").status == 1


OF_TAP = (Opcode.DEREGISTER_TAP_CLIENT, Opcode.CHANGE_VB_FILTER)


def test_unknown_opcodes_and_known_ones_that_are_not_served(talk: Talk) -> None:
    for opcode in (0xEE, 0x6A, 0xFF):
        assert talk.one(opcode).status == 0x81
    for opcode in [
        *sorted(RETIRED - {FLUSH, FLUSHQ, *OF_TAP}),
        Opcode.DOWNLOAD_SNAPSHOT,
    ]:
        assert talk.one(int(opcode)).status == 0x83
