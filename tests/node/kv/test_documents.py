"""Documents, in literal bytes and by their rules (kv.md 2); every command also through the plain path alone."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from headwater.wire import snappy, xattr
from headwater.wire.header import VALUE_BYTES_MAX
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.times import absolute_expiry
from tests.node.support import NOON, Desk, Talk

GET, SET, ADD, REPLACE, DELETE, GETQ, GETK, GETKQ, APPEND, PREPEND = 0, 1, 2, 3, 4, 9, 0x0C, 0x0D, 0x0E, 0x0F
EVICT_KEY = 0x93
SETQ, ADDQ, REPLACEQ, DELETEQ, APPENDQ, PREPENDQ, GET_REPLICA = 0x11, 0x12, 0x13, 0x14, 0x19, 0x1A, 0x83
ENOENT, EEXISTS, E2BIG, EINVAL, NOT_STORED, NMVB, TMPFAIL = 1, 2, 3, 4, 5, 7, 0x86
CAS_AT_NOON = f"{(NOON * 1_000_000_000) & ~0xFFFF:016x}"


@pytest.fixture(params=["kernel", "plain"])
def talk(request: pytest.FixtureRequest, counter: Desk) -> Talk:
    counter.fast = request.param == "kernel"
    return counter.session()


def put(talk: Talk, key: bytes = b"k", value: bytes = b"v", *, expiry: int = 0, flags: int = 0) -> int:
    answer = talk.one(SET, key=key, value=value, extras=flags.to_bytes(4, "big") + expiry.to_bytes(4, "big"))
    assert answer.status == 0
    return answer.cas


def test_a_set_and_its_answer_in_bytes(talk: Talk) -> None:
    request = "80 01 0005 08 00 0002 00000012 deadbeef 0000000000000000 cafebabe 00000000 48656c6c6f 576f726c64"
    body = bytes.fromhex(request.replace(" ", ""))
    body = body[:8] + (len(body) - 24).to_bytes(4, "big") + body[12:]
    assert talk.give(body) == len(body)
    assert talk.bytes_sent().hex() == "8101000000000000" + "00000000" + "deadbeef" + CAS_AT_NOON


def test_a_get_and_its_answer_in_bytes(talk: Talk) -> None:
    put(talk, b"Hello", b"World", flags=0xCAFEBABE)
    assert talk.give(bytes.fromhex("80000005000000000000000500000001000000000000000048656c6c6f")) == 29
    expected = "8100000004000000" + "00000009" + "00000001" + CAS_AT_NOON + "cafebabe" + b"World".hex()
    assert talk.bytes_sent().hex() == expected


def test_a_miss_in_bytes(talk: Talk) -> None:
    talk.give(bytes.fromhex("80000001000000000000000100000001" + "00" * 8 + "6b"))
    assert talk.bytes_sent().hex() == "810000000000000100000000" + "00000001" + "00" * 8


def test_the_k_forms_repeat_the_key_and_quiet_misses_are_silent(talk: Talk) -> None:
    assert talk.ask(GETQ, key=b"k") == talk.ask(GETKQ, key=b"k") == []
    put(talk)
    assert (talk.one(GETK, key=b"k").key, talk.one(GETKQ, key=b"k").key, talk.one(GETQ, key=b"k").key) == (
        b"k",
        b"k",
        b"",
    )


def test_with_mutation_seqno_the_answer_tells_uuid_and_seqno(talk: Talk) -> None:
    talk.hello(4, 7)
    answer = talk.one(SET, key=b"k", extras=bytes(8), value=b"v", vbucket=1)
    assert answer.extras == (2).to_bytes(8, "big") + (1).to_bytes(8, "big")
    answer = talk.one(DELETE, key=b"k", vbucket=1)
    assert answer.extras == (2).to_bytes(8, "big") + (2).to_bytes(8, "big") and answer.cas > 0


def test_a_delete_answers_no_cas_to_a_client_that_said_no_hello(talk: Talk) -> None:
    put(talk)
    assert talk.one(DELETE, key=b"k").cas == 0


def test_cas_rules(talk: Talk) -> None:
    assert talk.one(SET, key=b"k", extras=bytes(8), cas=5).status == ENOENT
    cas = put(talk)
    for opcode in (SET, REPLACE, SETQ, REPLACEQ):
        assert talk.one(opcode, key=b"k", extras=bytes(8), cas=cas + 1).status == EEXISTS
    for opcode in (DELETE, DELETEQ, APPEND, PREPEND):
        assert talk.one(opcode, key=b"k", cas=cas + 1).status == EEXISTS
    assert talk.one(ADD, key=b"n", extras=bytes(8), cas=1).status == EINVAL
    assert talk.one(REPLACE, key=b"k", extras=bytes(8), value=b"2", cas=cas).cas == cas + 1
    assert talk.one(DELETE, key=b"k", cas=cas + 1).status == 0


def test_add_replace_delete_by_what_is_there(talk: Talk) -> None:
    assert talk.one(REPLACE, key=b"k", extras=bytes(8)).status == ENOENT
    assert talk.one(DELETE, key=b"k").status == ENOENT
    assert talk.one(ADD, key=b"k", extras=bytes(8)).status == 0
    assert talk.one(ADD, key=b"k", extras=bytes(8)).status == EEXISTS
    assert talk.ask(REPLACEQ, key=b"k", extras=bytes(8)) == talk.ask(DELETEQ, key=b"k") == []
    assert talk.ask(ADDQ, key=b"k", extras=bytes(8)) == []
    assert talk.one(ADDQ, key=b"k", extras=bytes(8)).status == EEXISTS


def test_append_and_prepend_keep_flags_and_expiry(talk: Talk) -> None:
    assert talk.one(APPEND, key=b"k", value=b"x").status == NOT_STORED
    assert talk.one(PREPENDQ, key=b"k", value=b"x").status == NOT_STORED
    put(talk, value=b"b", expiry=100, flags=7)
    assert talk.ask(APPENDQ, key=b"k", value=b"c") == []
    assert talk.one(PREPEND, key=b"k", value=b"a").status == 0
    answer = talk.one(GET, key=b"k")
    assert (answer.value, answer.extras) == (b"abc", bytes([0, 0, 0, 7]))
    stored = talk.desk.store.document(0, b"k")
    assert stored is not None and stored.expiry == NOON + 100 and stored.rev_seqno == 3


@pytest.mark.parametrize(("value", "datatype"), [(b"no Snappy", 2), (b"\0\0\1\0{}", 4), (b"no Snappy", 6)])
@pytest.mark.parametrize("opcode", [Opcode.DELETE, Opcode.SET])
def test_what_can_not_be_read_can_be_deleted_and_written_anew(
    talk: Talk, opcode: int, value: bytes, datatype: int
) -> None:
    store = talk.desk.store
    store.staging.mutation(0, b"k", value, cas=1, rev_seqno=1, datatype=datatype)
    extras = bytes(8) if opcode == Opcode.SET else b""
    assert talk.one(opcode, key=b"k", extras=extras).status == Status.SUCCESS
    store.staging.mutation(0, b"k", value, cas=9, rev_seqno=9, datatype=datatype, expiry=1)
    assert talk.one(Opcode.GET, key=b"k").status == Status.KEY_ENOENT, "its time is over"


def test_revisions_go_on_over_a_deletion(talk: Talk) -> None:
    put(talk)
    talk.one(DELETE, key=b"k")
    put(talk)
    stored = talk.desk.store.document(0, b"k")
    assert stored is not None and (stored.seqno, stored.rev_seqno) == (3, 3)


def test_an_expired_document_is_gone_and_leaves_an_expiration(talk: Talk) -> None:
    put(talk, expiry=10)
    talk.desk.clock.seconds += 9
    assert talk.one(GET, key=b"k").status == 0
    talk.desk.clock.seconds += 1
    assert talk.one(GET, key=b"k").status == ENOENT
    stored = talk.desk.store.document(0, b"k")
    assert stored is not None and stored.deleted
    assert (stored.seqno, stored.rev_seqno, stored.delete_time) == (2, 2, NOON + 10)
    assert talk.desk.bucket.counters["expired"] == 1


def test_an_expired_document_can_be_added_anew(talk: Talk) -> None:
    put(talk, expiry=NOON - 5)
    assert talk.one(ADD, key=b"k", extras=bytes(8), value=b"new").status == 0
    assert talk.one(GET, key=b"k").value == b"new"
    assert talk.desk.store.index.high_seqno(0) == 3


@pytest.mark.parametrize(
    ("given", "kept"),
    [(0, 0), (1, NOON + 1), (2592000, NOON + 2592000), (2592001, 2592001), (0xFFFF_FFFF, 0xFFFF_FFFF)],
)
def test_expiry_is_relative_up_to_thirty_days(given: int, kept: int) -> None:
    assert absolute_expiry(given, NOON) == kept


def test_keys_of_250_bytes_and_values_of_20_mib_are_the_largest(talk: Talk) -> None:
    put(talk, b"k" * 250)
    assert talk.one(SET, key=b"k" * 251, extras=bytes(8)).status == EINVAL
    assert talk.one(SET, key=b"k", extras=bytes(8), value=bytes(VALUE_BYTES_MAX)).status == 0
    assert talk.one(SET, key=b"k", extras=bytes(8), value=bytes(VALUE_BYTES_MAX + 1)).status == E2BIG
    assert talk.one(APPEND, key=b"k", value=b"x").status == E2BIG
    assert len(talk.one(GET, key=b"k").value) == VALUE_BYTES_MAX


def test_malformed_requests_are_einval_and_the_connection_lives(talk: Talk) -> None:
    talk.hello(7)
    for opcode, sections in (
        (GET, {"key": b"k", "extras": b"x"}),
        (GET, {"key": b"k", "value": b"x"}),
        (GET, {}),
        (GET, {"key": b"k", "cas": 1}),
        (SET, {"key": b"k"}),
        (SET, {"key": b"k", "extras": bytes(4)}),
        (SET, {"key": b"k", "extras": bytes(8), "datatype": 8}),
        (SET, {"key": b"k", "extras": bytes(8), "datatype": 1}),
        (DELETE, {"key": b"k", "value": b"x"}),
        (APPEND, {"key": b"k", "extras": bytes(8)}),
    ):
        assert talk.one(opcode, **sections).status == EINVAL
    assert talk.one(0x0A).status == 0


def test_vbuckets_that_are_not_active_here_refuse(talk: Talk) -> None:
    assert talk.one(GET, key=b"k", vbucket=1000).status == NMVB
    assert talk.one(0x3D, extras=b"\2", vbucket=1).status == 0
    assert talk.one(SET, key=b"k", extras=bytes(8), vbucket=1).status == NMVB
    assert talk.one(GET, key=b"k", vbucket=1).status == NMVB
    assert talk.one(GET_REPLICA, key=b"k", vbucket=1).status == ENOENT
    assert talk.one(GET_REPLICA, key=b"k", vbucket=0).status == NMVB


def test_a_pending_vbucket_parks_the_request_until_its_state_changes(talk: Talk) -> None:
    async def story() -> None:
        other = talk.desk.session()
        assert other.one(0x3D, extras=b"\3").status == 0
        request = bytes.fromhex("800000010000000000000001000000000000000000000000" + "6b")
        assert talk.give(request) == 0 and talk.connection.paused == {"pending"}
        other.one(0x3D, extras=b"\1")
        talk.desk.committer.commit()
        await asyncio.sleep(0)
        assert not talk.connection.is_paused and talk.give(request) == len(request)
        assert talk.bytes_sent()[6:8] == b"\0\1"

    asyncio.run(story())


def test_a_parked_request_is_judged_again_when_the_batch_that_made_the_vbucket_pending_was_lost(talk: Talk) -> None:
    """Nothing of the takeover is left then, so no other record of the vbucket may ever follow."""

    async def story() -> None:
        desk, other = talk.desk, talk.desk.session()
        desk.committer.commit()
        assert other.one(0x3D, extras=b"\3").status == 0
        request = bytes.fromhex("800000010000000000000001000000000000000000000000" + "6b")
        assert talk.give(request) == 0 and talk.connection.paused == {"pending"}
        batch, error = desk.store.freeze(), OSError("no disk")
        assert batch is not None
        lost = desk.store.abandon(batch, error)
        for failed in desk.committer.on_failure:
            failed(error, lost)  # type: ignore[operator]
        await asyncio.sleep(0)
        assert not talk.connection.is_paused and talk.give(request) == len(request)

    asyncio.run(story())


def test_who_is_gone_waits_for_no_pending_vbucket(talk: Talk) -> None:
    """Nothing is kept of connections that asked for it and hung up, however long a takeover takes."""
    desk = talk.desk
    assert talk.one(0x3D, extras=b"\3").status == 0
    waiting = [desk.session() for _ in range(3)]
    for each in waiting:
        each.give(bytes.fromhex("800000010000000000000001000000000000000000000000" + "6b"))
    desk.committer.commit()
    known = weakref.ref(waiting[0].kv)
    for each in waiting[1:]:
        each.kv.closed()
    waiting[0].kv.closed()
    waiting.clear()
    del each
    gc.collect()
    assert known() is None
    assert not desk.bucket._state_waiters


def test_the_server_decides_what_is_json(talk: Talk) -> None:
    talk.hello(0x0B)
    for value, datatype in ((b'{"a":1}', 1), (b"{", 0), (b"12", 1), (b"", 0)):
        put(talk, value=value)
        assert talk.one(GET, key=b"k").datatype == datatype
    talk.hello()
    put(talk, value=b"{}")
    assert talk.one(GET, key=b"k").datatype == 0


def test_compressed_values_stay_compressed_for_those_who_can_read_them(talk: Talk) -> None:
    talk.hello(0x0A, 0x0B)
    text = b'{"name":"' + b"n" * 200 + b'"}'
    answer = talk.one(SET, key=b"k", extras=bytes(8), value=snappy.compress(text), datatype=2)
    assert answer.status == 0
    answer = talk.one(GET, key=b"k")
    assert answer.datatype == 3 and answer.value == snappy.compress(text)
    assert talk.one(APPEND, key=b"k", value=b" ").status == 0
    talk.hello()
    assert talk.one(GET, key=b"k").value == text + b" "


def test_what_would_be_too_large_is_refused_before_anything_is_inflated(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk.hello(0x0A)
    value = snappy.compress(bytes(VALUE_BYTES_MAX))
    assert talk.one(SET, key=b"k", extras=bytes(8), value=value, datatype=2).status == 0

    def inflate(value: bytes) -> bytes:
        raise AssertionError("it was inflated")

    monkeypatch.setattr(snappy, "inflate", inflate)
    assert talk.one(APPEND, key=b"k", value=b"x").status == E2BIG


def test_a_compressed_value_that_lies_is_refused(talk: Talk) -> None:
    talk.hello(0x0A)
    bomb = b"\xff\xff\xff\xff\x07" + b"x" * 20_000
    for value in (bomb, b"", snappy.compress(b"v" * 100)[:-3]):
        assert talk.one(SET, key=b"k", extras=bytes(8), value=value, datatype=2).status == EINVAL


def test_attributes_stay_with_the_document_and_system_ones_outlive_it(talk: Talk) -> None:
    talk.hello(6, 7, 0x0B)
    value = xattr.join({"_s": b"1", "u": b"2"}, b'{"b":3}')
    assert talk.one(SET, key=b"k", extras=bytes(8), value=value, datatype=4).status == 0
    assert (answer := talk.one(GET, key=b"k")).value == b'{"b":3}' and answer.datatype == 1
    reader = talk.desk.session()
    assert (answer := reader.one(GET, key=b"k")).value == b'{"b":3}' and answer.datatype == 0
    assert reader.one(SET, key=b"k", extras=bytes(8), value=b"plain").status == 0
    kept = talk.desk.store.document(0, b"k")
    assert kept is not None and kept.value == xattr.join({"_s": b"1", "u": b"2"}, b"plain")
    assert talk.one(DELETE, key=b"k").status == 0
    stored = talk.desk.store.document(0, b"k")
    assert stored is not None and (stored.value, stored.datatype) == (xattr.join({"_s": b"1"}), 4)


def test_attributes_that_do_not_parse_are_refused(talk: Talk) -> None:
    talk.hello(6, 7)
    assert talk.one(SET, key=b"k", extras=bytes(8), value=b"\xff" * 8, datatype=4).status == 0x87


def test_what_has_expired_is_not_there_though_there_is_no_room_to_write_that_down(
    talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = talk.desk
    put(talk, expiry=10)
    desk.clock.seconds += 10
    high = desk.store.index.high_seqno(0)
    with monkeypatch.context() as full:
        full.setattr(type(desk.store), "full", property(lambda store: True))
        assert talk.one(GET, key=b"k").status == ENOENT
    desk.bucket.vbuckets[0].back_up(True)
    assert talk.one(GET, key=b"k").status == ENOENT
    assert desk.store.index.high_seqno(0) == high, "nothing is written while the vbucket is about to leave"


def test_while_the_disk_is_full_reads_go_on_and_writes_fail(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    put(talk)
    monkeypatch.setattr(type(talk.desk.store), "full", property(lambda store: True))
    assert talk.one(GET, key=b"k").status == 0
    for opcode in (SET, SETQ, ADD, REPLACE):
        assert talk.one(opcode, key=b"k", extras=bytes(8)).status == TMPFAIL
    monkeypatch.setattr(type(talk.desk.store.staging), "may_delete", property(lambda store: False))
    assert talk.one(DELETE, key=b"k").status == TMPFAIL
    monkeypatch.setattr(
        type(talk.desk.store.staging), "may_delete", property(lambda store: True)
    )  # out of the room kept for it
    assert talk.one(DELETE, key=b"k").status == 0


def test_evicting_a_value_takes_nothing_from_the_document(talk: Talk) -> None:
    put(talk)
    told = talk.one(EVICT_KEY, key=b"k")
    assert (told.status, told.extras, told.value) == (0, b"", b"Already ejected.")
    assert talk.one(GET, key=b"k").value == b"v"
    assert talk.one(EVICT_KEY, key=b"nothing").status == ENOENT
